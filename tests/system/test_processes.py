"""The broker as a process: start, stop, signals, exit codes, files it writes, configurations it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from gnatswarm.router.commands.operator_commands import find
from tests.support import swarm
from tests.support.ports import free_port
from tests.support.servers import HOST, START_DEADLINE_S, Broker, session_pids, wait_pids_gone, wait_until
from tests.support.wire import Client, Closed

# What SIGTERM and SIGINT make of the exit code of nats-server, and so of every program that stands in for it.
EXIT_CODES = [(signal.SIGTERM, 1), (signal.SIGINT, 0)]


@pytest.fixture
def start_broker(start_broker):
    """As a user starts it."""
    return functools.partial(start_broker, by_fork=False)


@pytest.fixture
def launch(kind):
    """Start a process without waiting for readiness; whatever it does, it is gone when the test is over."""
    started = []

    def launched(**options) -> Broker:
        broker = Broker(kind, by_fork=False, **options)
        started.append(broker)
        return broker.launch()

    yield launched
    for broker in started:
        broker.kill()


@pytest.mark.parametrize(("sent", "code"), EXIT_CODES, ids=lambda value: getattr(value, "name", value))
def test_a_stopped_broker_leaves_with_the_exit_code_of_nats_server(start_broker, sent, code):
    broker = start_broker()
    assert broker.stop(sent) == code
    assert session_pids(broker.pid) == []


@pytest.mark.kinds("gnatswarm-2")
def test_signals_that_come_as_it_exits_change_no_exit_code(start_broker):
    """A process group may be told to stop process by process, and the second one may come late."""
    for _ in range(3):
        broker = start_broker()
        broker.send_signal(signal.SIGTERM)
        broker.log.wait_line("Server Exiting")
        while broker.process.poll() is None:
            broker.send_signal(signal.SIGTERM)
        assert broker.wait_exit() == 1


@pytest.mark.parametrize(("sent", "code"), EXIT_CODES, ids=lambda value: getattr(value, "name", value))
async def test_a_stopped_broker_closes_its_clients(start_broker, cluster_of, sent, code):
    broker = start_broker()
    clients = await cluster_of(broker).clients(20, on_different_shards=True)
    for client in clients:
        await client.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    assert broker.stop(sent) == code
    for client in clients:
        assert b"-ERR" not in await client.wait_closed()


@pytest.mark.kinds("gnatswarm-4")
async def test_who_is_closed_by_a_broker_that_stops_cannot_come_to_its_next_shard(start_broker, cluster_of):
    """Clients reconnect at once: one whose connection is accepted and closed again may wait for seconds."""
    broker = start_broker()
    clients = await cluster_of(broker).clients(8, on_different_shards=True)
    pids = await swarm.pids(broker)
    swarm.signal_shard(broker, pids[0], signal.SIGSTOP)
    try:
        broker.send_signal(signal.SIGTERM)
        for client in clients:
            if client.shard != 0:
                await client.wait_closed()
        for _ in range(20):
            with pytest.raises(ConnectionRefusedError):
                await Client.dial(broker.port)
    finally:
        swarm.signal_shard(broker, pids[0], signal.SIGCONT)
    assert broker.wait_exit() == 1


async def test_messages_answered_by_a_pong_are_out_before_the_broker_stops(start_broker, cluster_of):
    """Published, PONG received, then SIGTERM: the subscriber still reads everything."""
    broker = start_broker()
    subscriber, publisher = await cluster_of(broker).clients(2, on_different_shards=True)
    await subscriber.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    await publisher.talk(b"PUB a 2\r\nhi\r\n" * 100 + b"PING\r\n", expect="PONG\r\n")
    await subscriber.talk(b"PING\r\n", expect_last="PONG\r\n")
    broker.stop()
    assert len(subscriber.inbox) == 100


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR2], ids=lambda how: how.name)
async def test_who_has_published_and_gone_is_heard_though_the_broker_ends_just_then(start_broker, cluster_of, how):
    """It does not wait for INFO: its connection may still be in a port's queue."""
    broker = start_broker(config='lame_duck_grace_period: "1s"\nlame_duck_duration: "30s"\n')
    subscribers = await cluster_of(broker).clients(2, on_different_shards=True)
    for subscriber in subscribers:
        await subscriber.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            sock = stack.enter_context(socket.create_connection((HOST, broker.port)))
            sock.sendall(b"PUB a 1\r\nx\r\n")
            sock.shutdown(socket.SHUT_WR)
        broker.send_signal(how)
        for subscriber in subscribers:
            assert (await subscriber.wait_closed()).count(b"MSG a 1 1\r\n") == 200


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR2], ids=lambda how: how.name)
@pytest.mark.parametrize("late", ["router", "shards"])
async def test_who_is_being_handed_over_when_the_broker_ends_is_heard(start_broker, cluster_of, how, late):
    """More than one packet of them are in the port's queue, or on their way to a shard."""
    config = 'lame_duck_grace_period: "1s"\nlame_duck_duration: "30s"\n'
    broker = start_broker(config=config, args=["--accept", "handoff"])
    subscribers = await cluster_of(broker).clients(2, on_different_shards=True)
    for subscriber in subscribers:
        await subscriber.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    pids = [router] if late == "router" else list((await swarm.pids(broker)).values())
    with contextlib.ExitStack() as stack:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for _ in range(400):
            sock = stack.enter_context(socket.create_connection((HOST, broker.port)))
            sock.sendall(b"PUB a 1\r\nx\r\n")
            sock.shutdown(socket.SHUT_WR)
        broker.send_signal(how)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for subscriber in subscribers:
            assert (await subscriber.wait_closed()).count(b"MSG a 1 1\r\n") == 400


def test_a_killed_broker_leaves_no_process_behind(start_broker):
    broker = start_broker()
    broker.process.kill()
    broker.process.wait()
    left = session_pids(broker.pid)
    assert wait_pids_gone(left, 30.0) == []


@pytest.mark.kinds("gnatswarm-2")
def test_a_shard_has_room_for_the_descriptors_of_clients_before_they_come(start_broker):
    rows = swarm.rows(start_broker(descriptors=5000))
    assert len(rows) == 2
    for row in rows.values():
        # Without it the table of a process has 64 entries, then 128, 256 …, and a shard waits for each to be made.
        status = Path(f"/proc/{row['pid']}/status").read_text()
        assert int(status.split("FDSize:")[1].split()[0]) >= 4800


def test_a_port_in_use_is_a_clear_error_and_exit_code_1(start_broker, launch):
    first = start_broker()
    second = launch(port=first.port)
    assert second.wait_exit() == 1
    assert re.search(rf"\b{first.port}\b.*in use", second.log.text), second.log.text
    assert "Server is ready" not in second.log.text


def test_a_port_that_another_program_listens_on_is_a_clear_error(launch):
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        broker = launch(port=port)
        assert broker.wait_exit() == 1
        assert re.search(rf"\b{port}\b.*in use", broker.log.text), broker.log.text


async def test_a_killed_broker_can_be_started_again_at_once(start_broker, cluster_of):
    """On the same port, though only the keeper was killed: clients are cut, and nothing is left of it."""
    broker = start_broker(port=free_port())
    for _ in range({"gnatswarm-1": 20, "gnatswarm-2": 50}.get(broker.kind.name, 5)):
        clients = await cluster_of(broker).clients(3, True)
        directory = None if broker.kind.is_oracle else Path(find(broker.pid, broker.port)).parent
        processes = session_pids(broker.pid)
        assert broker.pid in processes and (directory is None or len(processes) == 2 + broker.kind.shards)
        os.kill(broker.pid, signal.SIGKILL)
        if broker.kind.is_oracle:  # which fails while the one before is dying
            assert wait_pids_gone(processes, 30.0) == []
        before, broker = broker, start_broker(port=broker.port)
        for client in clients:
            await client.wait_closed()
        assert wait_pids_gone(processes, 30.0) == []
        assert directory is None or not directory.exists()
        before.kill()
    [client] = await cluster_of(broker).clients(1)
    await client.expect_quiet()


def test_an_unknown_key_in_the_configuration_stops_the_start(launch):
    broker = launch(config="max_payload: 100\nmax_paylod: 100\n")
    assert broker.wait_exit() == 1
    assert re.search(r'broker\.conf:2:\d+: unknown field "max_paylod"', broker.log.text), broker.log.text


def test_a_configuration_that_cannot_be_parsed_stops_the_start(launch):
    broker = launch(config="authorization {\n  user: a\n")
    assert broker.wait_exit() == 1


def test_a_value_of_the_wrong_type_stops_the_start(launch):
    broker = launch(config="max_connections: many\n")
    assert broker.wait_exit() == 1


def test_a_configuration_file_that_does_not_exist_stops_the_start(launch, tmp_path):
    broker = launch(args=["-c", str(tmp_path / "nowhere.conf")])
    assert broker.wait_exit() == 1


@pytest.mark.parametrize(("config", "code"), [("max_payload: 1MB\n", 0), ("nonsense_key: 1\n", 1)])
def test_t_only_tests_the_configuration(launch, config, code):
    broker = launch(config=config, args=["-t"])
    assert broker.wait_exit() == code
    assert "Listening" not in broker.log.text


def test_an_unknown_option_stops_the_start(launch):
    """The exit code is not looked at: nats-server says how it is used, and leaves with 0."""
    broker = launch(args=["--no-such-option"])
    broker.wait_exit()
    assert "Server is ready" not in broker.log.text


def test_a_pid_file_holds_the_pid(start_broker, tmp_path):
    path = tmp_path / "broker.pid"
    broker = start_broker(args=["-P", str(path)])
    assert int(path.read_text()) == broker.pid


def test_a_ports_file_says_where_clients_connect(start_broker, tmp_path):
    broker = start_broker(args=["--ports_file_dir", str(tmp_path)])
    # nats-server writes it just after it has said that it is ready.
    wait_until(lambda: any(path.read_text() for path in tmp_path.glob("*.ports")))
    [path] = tmp_path.glob(f"*_{broker.pid}.ports")
    assert json.loads(path.read_text())["nats"] == [f"nats://{HOST}:{broker.port}"]
    broker.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_log_file_gets_the_log(launch, tmp_path):
    path = tmp_path / "broker.log"
    broker = launch(args=["-l", str(path)])
    wait_until(lambda: path.exists() and "Server is ready" in path.read_text(), START_DEADLINE_S)
    assert broker.stop() == 1
    assert "Listening for client connections on" in path.read_text()


async def takes_clients(broker: Broker) -> bool:
    try:
        client = await Client.connect(broker.port, deadline_s=1.0)
    except (ConnectionError, TimeoutError, Closed):
        return False
    client.close()
    return True


async def test_lame_duck_mode_tells_the_clients_and_takes_no_new_ones(start_broker, cluster_of):
    broker = start_broker(config='lame_duck_grace_period: "60s"\nlame_duck_duration: "90s"\n')
    client, silent = await cluster_of(broker).clients(2, connect={"protocol": 1})
    await client.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    broker.send_signal(signal.SIGUSR2)
    line = (await client.expect_line(r"INFO (.*) "))[1]
    assert json.loads(line)["ldm"] is True
    async with asyncio.timeout(30):
        while await takes_clients(broker):
            pass
    # Within the grace period those who are in go on.
    await silent.send("PUB a 2\r\nhi\r\n")
    await client.expect("MSG a 1 2\r\nhi\r\n")
    end_at_once(broker)


def end_at_once(broker: Broker) -> None:
    """nats-server in lame duck mode lets its grace period pass before it obeys SIGTERM."""
    if broker.kind.is_oracle:
        broker.kill()


async def test_lame_duck_mode_is_told_only_to_clients_that_understand_a_later_info(start_broker, cluster_of):
    broker = start_broker(config='lame_duck_grace_period: "60s"\nlame_duck_duration: "90s"\n')
    cluster = cluster_of(broker)
    [modern] = await cluster.clients(1, connect={"protocol": 1})
    [old] = await cluster.clients(1, connect={"protocol": 0})
    broker.send_signal(signal.SIGUSR2)
    await modern.expect_line(r'INFO .*"ldm":true.*')
    await old.expect_quiet()
    end_at_once(broker)


def write_configuration(broker: Broker, text: str) -> None:
    assert broker.directory is not None
    (broker.directory / "broker.conf").write_text(text)


async def test_a_reload_raises_max_payload_for_everybody_and_says_nothing(start_broker, cluster_of):
    """nats-server pushes no INFO for it; new connections read the new value, old ones may use it."""
    broker = start_broker(config="max_payload: 100\n")
    cluster = cluster_of(broker)
    [before] = await cluster.clients(1, connect={"protocol": 1})
    assert before.info["max_payload"] == 100
    write_configuration(broker, "max_payload: 200\n")
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, r"Reloaded server configuration")
    assert (await cluster.raw()).info["max_payload"] == 200
    await before.talk(b"PUB a 150\r\n" + b"x" * 150 + b"\r\nPING\r\n", expect="PONG\r\n")
    await before.send("PUB a 201\r\n")
    assert await before.wait_closed() == b"-ERR 'Maximum Payload Violation'\r\n"


async def test_a_reload_that_asks_for_a_token_closes_who_has_none(start_broker, cluster_of):
    broker = start_broker(config="max_payload: 1MB\n")
    cluster = cluster_of(broker)
    clients = await cluster.clients(2, on_different_shards=True)
    write_configuration(broker, "max_payload: 1MB\nauthorization { token: s3cret }\n")
    broker.send_signal(signal.SIGHUP)
    for client in clients:
        assert await client.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
    late = await cluster.raw()
    await late.talk('CONNECT {"verbose":false,"auth_token":"s3cret"}\r\nPING\r\n', expect="PONG\r\n")


async def test_a_reload_of_a_broken_file_changes_nothing(start_broker, cluster_of):
    broker = start_broker(config="max_payload: 100\n")
    cluster = cluster_of(broker)
    [client] = await cluster.clients(1)
    seen = len(broker.log.lines)
    write_configuration(broker, "max_payload: 200\nnonsense_key: 1\n")
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, "(?i)nonsense_key", 30.0, seen)
    await client.expect_quiet()
    assert (await cluster.raw()).info["max_payload"] == 100
