"""A broker inside a program, or in a process that it starts: it serves, obeys, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import uvloop

import gnatswarm
from gnatswarm.shards.boundary import linkdir
from gnatswarm.shards.embedded import EmbeddedShard
from tests.support.authority import Authority
from tests.support.ports import free_port
from tests.support.servers import session_pids, wait_pids_gone, wait_until

uvloop.new_event_loop().close()  # libuv keeps one pipe for the life of a process
FORMS = [gnatswarm.Broker, gnatswarm.BrokerProcess]


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """There are no more threads, descriptors and files than before."""

    def held() -> tuple[set[str], int, list[str]]:
        base = linkdir.default_base()
        own = [name for name in (os.listdir(base) if os.path.isdir(base) else []) if name.startswith(f"{os.getpid()}-")]
        threads = {thread.name for thread in threading.enumerate() if "asyncio" not in thread.name}
        return threads, len(os.listdir("/proc/self/fd")), own

    threads, descriptors, files = held()
    yield
    now = held()
    # (what an earlier test left to the garbage collector may have ended meanwhile)
    assert now[0] <= threads, now[0] - threads
    assert now[1] <= descriptors
    assert now[2] == files


async def round_trip(broker: Any) -> bytes:
    """A request and its answer by the official client."""
    client = await nats.connect(**broker.connect_options)
    try:

        async def answer(message: Any) -> None:
            await message.respond(b"hello, " + message.data)

        await client.subscribe("greet", cb=answer)
        return bytes((await client.request("greet", b"you", timeout=30)).data)
    finally:
        await client.close()


def publish(broker: Any, *subjects: str, login: str = "{}") -> None:
    """Publish on each of these, and wait until the broker has seen it."""
    with socket.create_connection((broker.host, broker.port)) as sock:
        lines = "".join(f"PUB {subject} 1\r\nx\r\n" for subject in subjects)
        sock.sendall(f"CONNECT {login}\r\n{lines}PING\r\n".encode())
        said = b""
        while b"PONG\r\n" not in said:
            data = sock.recv(4096)
            assert data, said
            said += data


# ------------------------------------------------------------------------------------------------ under every loop


async def test_serves_a_program_with_a_running_loop(form):
    async with form() as broker:
        assert await round_trip(broker) == b"hello, you"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_serves_loop_after_loop(form, loop):
    with form() as broker:
        for _ in range(2):
            with asyncio.Runner(loop_factory=loop) as runner:
                assert runner.run(round_trip(broker)) == b"hello, you"


def test_serves_a_program_without_a_loop_that_blocks(form):
    with form() as broker:
        captured = broker.capture("a.*")
        publish(broker, "a.b", "b.a", "a.c")
        captured.settle()
        assert captured.subjects == ["a.b", "a.c"]


def test_brokers_are_apart(form):
    with form() as one, form() as other:
        heard = [one.capture(">"), other.capture(">")]
        publish(one, "one")
        publish(other, "other")
        for capture in heard:
            capture.settle()
        assert [capture.subjects for capture in heard] == [["one"], ["other"]]


# ------------------------------------------------------------------------------------------------ the protocol


def methods(of: type) -> dict[str, Any]:
    names = [name for name in dir(of) if not name.startswith("_")]
    return {name: getattr(of, name) for name in names if inspect.isfunction(getattr(of, name))}


def test_both_have_what_the_protocol_says(form):
    wanted = methods(gnatswarm.AnyBroker)
    assert {"start", "astart", "capture", "connect"} <= set(wanted)
    for name, method in wanted.items():
        own = getattr(form, name)
        assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(method), name
        there = inspect.signature(own).parameters
        for parameter, said in inspect.signature(method).parameters.items():
            assert (there[parameter].kind, there[parameter].default) == (said.kind, said.default), (name, parameter)
    attributes = {name for name, value in vars(gnatswarm.AnyBroker).items() if isinstance(value, property)}
    assert {"url", "options"} <= attributes
    started = form().start()
    try:
        for name in attributes:
            getattr(started, name)
    finally:
        started.stop()


@pytest.mark.parametrize("of", [*FORMS, gnatswarm.Capture], ids=lambda of: of.__name__)
def test_an_awaitable_twin_has_the_parameters_of_what_it_is_a_twin_of(of: type):
    found = methods(of)
    twins = {name for name, method in found.items() if name[0] == "a" and name[1:] in found}
    assert twins == {name for name, method in found.items() if inspect.iscoroutinefunction(method)} - {"connect"}
    for name in twins:
        own, other = inspect.signature(found[name]), inspect.signature(found[name[1:]])
        assert own == other, name
    at_once = {"log_since", "counts", "clear", "leave_to_parent"}  # no I/O
    assert {name for name in found if f"a{name}" not in found} - twins - at_once == ({"connect"} & set(found))


async def test_the_loop_goes_on_while_a_broker_does_what_it_was_told(form):
    """What each call is waiting for can only happen when the loop runs meanwhile."""
    broker = form()
    release = threading.Event()
    with broker._changing:  # of this thread; the call waits for it on another
        starting = asyncio.create_task(broker.astart())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(release.set)
        await asyncio.to_thread(release.wait)
        assert not starting.done()
    assert await starting is broker
    await broker.arestart()
    captured = await broker.acapture("a")
    await asyncio.to_thread(publish, broker, "a")
    await captured.asettle()
    assert captured.subjects == ["a"]
    assert [change.field for change in await broker.areload(token="x")] == ["auth_token"]
    assert await broker.adisconnect_clients(await broker.anext_client_id()) == 0
    assert await broker.ashard_count() >= 1
    await broker.aclose_captures()
    await broker.astop()
    assert not broker.is_running


async def test_a_start_that_is_cancelled_leaves_no_broker(form):
    broker = form()
    starting = asyncio.create_task(broker.astart())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (broker.starts, broker.is_running) == (1, False)


# ------------------------------------------------------------------------------------------------ life


def test_a_process_that_was_killed_does_not_run():
    """Though it has not ended yet; a test that came next was given a broker that was about to end."""
    broker = gnatswarm.BrokerProcess()
    for _ in range(3):
        broker.start()
        assert broker.is_running
        os.kill(broker.pid, signal.SIGKILL)
        assert not broker.is_running
    with pytest.raises(gnatswarm.BrokerFailed, match="has ended by itself"):
        broker.shard_count()
    broker.stop()


def test_starts_and_stops_again_and_again(form):
    broker = form()
    assert not broker.is_running
    for _ in range(3):
        broker.start()
        broker.start()  # it runs already
        assert broker.is_running
        publish(broker, "a")
        broker.stop()
        broker.stop()
        assert not broker.is_running


def test_a_restart_keeps_its_ports(form):
    with form(websocket={"port": -1, "no_tls": True}) as broker:
        before = broker.port, broker.websocket_url
        captured = broker.capture("a")
        publish(broker, "a")
        broker.restart()
        assert (broker.port, broker.websocket_url) == before
        publish(broker, "a")
        captured.settle()
        assert captured.subjects == ["a", "a"]
        host, port = broker.websocket_url.removeprefix("ws://").split(":")
        socket.create_connection((host, int(port))).close()


def test_a_broker_that_was_stopped_starts_on_the_same_ports(form):
    broker = form(websocket={"port": -1, "no_tls": True}).start()
    before = broker.port, broker.websocket_url
    broker.stop()
    with broker:
        assert (broker.port, broker.websocket_url) == before


def test_a_restart_starts_what_was_not_started(form):
    broker = form()
    broker.restart()
    publish(broker, "a")
    broker.stop()


def test_a_port_that_is_in_use_is_a_clear_error(form):
    with form() as broker, pytest.raises(gnatswarm.BrokerFailed, match="port is in use by another process"):
        form(port=broker.port).start()


def test_a_broker_that_does_not_run_says_so(form):
    with pytest.raises(gnatswarm.BrokerFailed, match="has not been started"):
        form().disconnect_clients()


@pytest.mark.parametrize("name", ["port", "url", "connect_options"])
def test_what_only_a_start_tells_is_an_error_before_it(form, name: str):
    with pytest.raises(gnatswarm.BrokerFailed, match="has not been started"):
        getattr(form(), name)


def test_a_capture_of_a_broker_that_was_not_started_is_an_error(form):
    with pytest.raises(gnatswarm.BrokerFailed, match="has not been started"):
        form().capture("a")


def test_an_option_that_there_is_not_starts_nothing(form):
    with pytest.raises(
        gnatswarm.UnknownOption, match=rf"{form.__name__}\(\): .*'max_paylod'; did you mean max_payload"
    ):
        form(max_paylod=1)
    with pytest.raises(gnatswarm.ConfigError, match="ping_max: expected a number"):
        form(ping_max="x")


def test_options_hold(form):
    with form(max_payload=16, server_name="me") as broker, socket.create_connection((broker.host, broker.port)) as sock:
        info = sock.makefile("rb").readline()
        assert b'"max_payload":16,' in info and b'"server_name":"me"' in info


def test_a_reload_changes_what_can_be_changed_and_refuses_the_rest(form):
    with form(token="one") as broker:
        publish(broker, login='{"auth_token":"one"}')
        assert [str(change) for change in broker.reload(token="two", max_payload=5)] == [
            "limits.max_payload_bytes: 1048576 → 5",
            "auth_token changed",
        ]
        assert broker.reload(token="two") == []
        publish(broker, login='{"auth_token":"two"}')
        with pytest.raises(gnatswarm.CaptureError, match="Authorization Violation"):
            broker.capture("a", token="one")
        with pytest.raises(gnatswarm.BrokerFailed, match=r"for server_name: .*\n.* for headers: "):
            broker.reload(server_name="other", no_header_support=True, token="three")
        assert broker.capture("a", token="two").messages == []


def test_a_reload_that_would_change_a_port_changes_nothing(form):
    with form(max_payload=1000, websocket={"no_tls": True, "port": -1}) as broker:
        for _ in range(2):
            for changes in ({"port": 1}, {"listen": "127.0.0.1:1"}, {"websocket": {"no_tls": True, "port": 1}}):
                with pytest.raises(gnatswarm.BrokerFailed, match=r"^reload not supported for (websocket\.)?port: "):
                    broker.reload(max_payload=2000, **changes)
            assert broker.options.limits.max_payload_bytes == 1000
            # What it has is no change.
            assert broker.reload(port=broker.port) == broker.reload(port=0) == []
            broker.restart()
        compressed = {"no_tls": True, "port": -1, "compression": True}
        assert [change.field for change in broker.reload(websocket=compressed)] == ["websocket.compression"]
        assert [change.field for change in broker.reload(max_payload=2000)] == ["limits.max_payload_bytes"]
        broker.restart()
        assert broker.reload(websocket=compressed) == []


def test_disconnects_the_clients_that_came_after_a_moment(form):
    with form() as broker:
        socks = [socket.create_connection((broker.host, broker.port)) for _ in range(2)]
        assert [sock.recv(5) for sock in socks] == [b"INFO ", b"INFO "]
        moment = broker.next_client_id()
        late = socket.create_connection((broker.host, broker.port))
        assert late.recv(5) == b"INFO "
        assert broker.disconnect_clients(moment) == 1
        late.settimeout(30)
        while late.recv(4096):
            pass
        assert broker.disconnect_clients(moment) == 0
        assert broker.disconnect_clients() == 2
        for sock in (*socks, late):
            sock.close()


def test_what_a_client_over_its_limit_had_sent_before_it_closed_is_heard_though_the_broker_ends(form, tmp_path: Path):
    config = tmp_path / "c.conf"
    config.write_text(
        "listen: '127.0.0.1:-1'\n"
        "accounts { A: { users: [ { user: a, password: a, publish_limits: { messages: 2, burst: 1s, stall: 0s } }\n"
        "  { user: b, password: b } ] } }\n"
    )
    login = b'CONNECT {"verbose":false,"user":"%b","pass":"%b"}\r\n'
    with form(config=str(config)) as broker, socket.create_connection(("127.0.0.1", broker.port)) as listener:
        listener.sendall(login % (b"b", b"b") + b"SUB x 1\r\nPING\r\n")
        with listener.makefile("rb") as lines:
            while lines.readline() != b"PONG\r\n":
                pass
            with socket.create_connection(("127.0.0.1", broker.port)) as publisher:
                publisher.sendall(login % (b"a", b"a") + b"PING\r\n")
                with publisher.makefile("rb") as answers:
                    while answers.readline() != b"PONG\r\n":
                        pass
                publisher.sendall(b"PUB x 0\r\n\r\n" * 100)
                publisher.shutdown(socket.SHUT_WR)
                assert lines.readline().startswith(b"MSG x ")
                broker.stop()
            assert lines.read().count(b"MSG x ") == 99


def test_encrypts_and_two_at_once_do_not_mix(form, tmp_path: Path):
    pair = Authority(tmp_path).server()
    tls = {"cert_file": pair.cert, "key_file": pair.key}
    with form(tls=tls) as one, form(tls=tls | {"handshake_first": True}, user="ann", password="x") as other:
        assert asyncio.run(round_trip(one)) == b"hello, you"

        async def both() -> None:
            captures = [await one.acapture("a"), await other.acapture("a")]
            clients = [await nats.connect(**broker.connect_options) for broker in (one, other)]
            for number in range(300):
                for client in clients:
                    await client.publish("a", bytes([number % 256]) * 2000)
            for client in clients:
                await client.flush()  # (close() returns before its last bytes are sent)
                await client.close()
            for capture in captures:
                await capture.asettle()
            expected = [bytes([number % 256]) * 2000 for number in range(300)]
            assert [capture.payloads for capture in captures] == [expected, expected]

        asyncio.run(both())


# ------------------------------------------------------------------------------------------------ embedded alone


@pytest.mark.parametrize(
    "given",
    [{"shards": 2}, {"stats": True}, {"http_port": -1}, {"trace": True}, {"log_file": "x"}, {"pid_file": "x"}],
    ids=lambda given: next(iter(given)),
)
def test_what_needs_a_process_says_so(given):
    with pytest.raises(TypeError, match=rf"{next(iter(given))} needs a broker in a process .* gnatswarm.BrokerProcess"):
        gnatswarm.Broker(**given)


def test_counts_what_it_does():
    with gnatswarm.Broker() as broker:
        captured = broker.capture("a")
        publish(broker, "a", "b")
        captured.settle()
        assert len(captured) == 1
        counts = broker.counts()
        assert (counts["in_msgs"], counts["out_msgs"], broker.connections >= 1) == (2, 1, True)


def test_leaves_logging_and_signals_alone(caplog: pytest.LogCaptureFixture):
    def state() -> tuple[Any, ...]:
        root = logging.getLogger("gnatswarm")
        return root.handlers[:], root.level, root.propagate, logging.raiseExceptions, signal.getsignal(signal.SIGINT)

    before = state()
    with gnatswarm.Broker(token="x") as broker, caplog.at_level(logging.ERROR):
        assert state() == before
        with pytest.raises(gnatswarm.CaptureError):
            broker.capture("a", token="wrong")
    assert "authentication error" in caplog.text


def test_what_cannot_happen_ends_it_and_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    from gnatswarm.shards.shard import Shard

    def broken(self: Shard, late_s: float) -> None:
        raise ArithmeticError("on purpose")

    broker = gnatswarm.Broker().start()
    monkeypatch.setattr(Shard, "_show_gauges", broken)
    wait_until(lambda: not broker.is_running)
    with pytest.raises(gnatswarm.BrokerFailed, match="on purpose"):
        broker.stop()
    broker.start()
    wait_until(lambda: not broker.is_running)
    monkeypatch.undo()
    with broker.start():  # another one, though the one before was not stopped
        publish(broker, "a")
    with gnatswarm.Broker() as another:
        publish(another, "a")


def test_an_interrupted_stop_leaves_no_broker(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while clients are heard out: the port was kept, by a thread that nobody could end any more."""

    def interrupted(_shard: EmbeddedShard) -> bool:
        raise KeyboardInterrupt

    broker = gnatswarm.Broker().start()
    monkeypatch.setattr(EmbeddedShard, "is_unheard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broker.stop()
    assert not broker.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port))
    assert not any(thread.name == "gnatswarm" for thread in threading.enumerate())


@pytest.mark.parametrize("name", ["gnatswarm", "capture a"])
def test_a_thread_whose_start_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch, name: str):
    """Ctrl-C while a thread begins, which takes its time on a busy machine."""
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == name:
            begun.append(thread)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    broker = gnatswarm.Broker()
    with pytest.raises(KeyboardInterrupt):
        broker.start().capture("a")
    begun[0].join(30)
    is_there = begun[0].is_alive()
    broker.stop()
    assert not is_there


def test_a_forked_child_has_none_and_can_have_its_own():
    with gnatswarm.Broker() as broker:
        child = os.fork()
        if not child:
            code = 1
            try:
                with gnatswarm.Broker() as own:
                    publish(own, "a")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        publish(broker, "a")


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise KeyError", "broker.stop()"])
def test_a_forked_child_leaves_the_broker_to_its_parent(form, end: str):
    """However it leaves the `with`: at once, without a word to the parent's broker."""
    text = (
        "import gnatswarm, os, signal, sys\n"
        "signal.alarm(50)\n"  # a child that waits for what is not there would wait for ever
        f"with gnatswarm.{form.__name__}() as broker:\n"
        "    captured = broker.capture('>')\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        assert not broker.is_running\n"
        f"        {end}\n"
        "        sys.exit(0)\n"
        "    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "    print(code, broker.is_running, captured.settle())\n"
    )
    done = program(text)
    assert done.stdout == f"{int('Key' in end)} True None\n", done.stderr
    assert ("KeyError" in done.stderr) == ("Key" in end)
    assert "TimeoutError" not in done.stderr


def test_a_forked_child_keeps_no_port_open(form):
    broker = form(port=free_port()).start()
    reader, writer = os.pipe()
    its_reader, its_writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.close(its_writer)  # it has left the broker to its parent
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.close(its_writer)
    try:
        assert os.read(its_reader, 1) == b""
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port), timeout=30)
        with form(port=broker.port) as again:
            publish(again, "a")
    finally:
        os.close(its_reader)
        os.close(writer)
        os.waitpid(child, 0)


def program(text: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=60, check=False, **more
    )


def test_a_start_without_descriptors_fails_and_leaves_none_open(form):
    """With room for none, for one, and so on until it starts."""
    done = program(
        "import gnatswarm, os, resource\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        f"with gnatswarm.{form.__name__}(): pass\n"  # what is imported is open no more
        "room, is_started = 0, False\n"
        "while not is_started:\n"
        f"    broker = gnatswarm.{form.__name__}()\n"
        "    before = len(os.listdir('/proc/self/fd')) - 1\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, limits[1]))\n"
        "    try:\n"
        "        broker.start()\n"
        "        is_started = True\n"
        "    except gnatswarm.BrokerFailed as error:\n"
        "        print(error)\n"
        "    room += 1\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "    broker.stop()\n"
        "    assert len(os.listdir('/proc/self/fd')) - 1 == before\n"
    )
    assert done.returncode == 0, done.stderr
    assert "Too many open files" in done.stdout


def test_a_program_without_descriptors_does_not_wait_for_the_end_of_a_broker_that_runs():
    done = program(
        "import gnatswarm, resource\n"
        "from unittest import mock\n"
        "with gnatswarm.BrokerProcess(shards=1) as broker:\n"
        "    limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "    with mock.patch.object(broker._process, 'wait', side_effect=AssertionError):\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))\n"
        "        print(broker.is_running)\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError"])
def test_a_program_that_forgets_it_ends_all_the_same(form, end: str):
    text = f"import sys, gnatswarm\nbroker = gnatswarm.{form.__name__}().start()\nprint(broker.port, flush=True)\n{end}"
    done = program(text)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1)
    assert ("KeyError" in done.stderr) == ("KeyError" in end)
    port = int(done.stdout)

    def is_free() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) != 0

    wait_until(is_free)


# ------------------------------------------------------------------------------------------------ in processes


def test_several_shards_and_one_of_them_is_killed():
    with gnatswarm.BrokerProcess(shards=2) as broker:
        before = broker.shard_pids()
        assert len(set(before)) == 2
        captured = broker.capture("a")
        for _ in range(4):  # without the pauses that a shard in trouble makes
            broker.kill_shard(1)
        publish(broker, "a")
        captured.settle()
        assert captured.subjects == ["a"]
        after = broker.shard_pids()
        assert after[0] == before[0] and after[1] != before[1] and all(after)
        with pytest.raises(gnatswarm.BrokerFailed, match="there is no shard 2; there are 0 to 1"):
            broker.kill_shard(2)


async def test_shards_are_killed_and_scaled_by_a_program_with_a_loop():
    async with gnatswarm.BrokerProcess(shards=2) as broker:
        before = await broker.ashard_pids()
        captured = await broker.acapture("a")
        client = await broker.connect()
        await broker.akill_shard(1)
        await broker.ascale(1)
        assert len((await broker.astatus()).shards) == await broker.ashard_count() == 1
        assert (await broker.ashard_pids())[0] == before[0]
        await client.publish("a")
        assert [message.subject for message in await captured.areceive()] == ["a"]
        await client.close()


def test_scales_while_clients_talk():
    with gnatswarm.BrokerProcess(shards=1) as broker:
        captured = broker.capture("a")
        broker.scale(3)
        assert len(broker.status().shards) == 3
        publish(broker, "a")
        captured.settle()
        assert captured.subjects == ["a"]


def test_its_log_is_kept_over_a_restart():
    with gnatswarm.BrokerProcess(shards=1) as broker:
        broker.restart()
        start = broker.lines_logged
        broker.restart(kill=True)
        since = broker.log_since(start)
        assert sum("Server is ready" in line for line in since) == 1
        assert broker.log == broker.log_since(0) and broker.log[-len(since) :] == since
    assert sum("Server is ready" in line for line in broker.log) == 3
    assert sum("Server Exiting" in line for line in broker.log) == 2


def test_what_a_broker_has_logged_is_in_its_log_at_once():
    with gnatswarm.BrokerProcess(shards=1, debug=True) as broker:
        for _ in range(50):
            start = broker.lines_logged
            publish(broker, "a")
            assert any("Client connection created" in line for line in broker.log_since(start))


def test_its_pages_are_where_it_says():
    import urllib.request

    with (
        gnatswarm.BrokerProcess(shards=1, http_port=-1) as broker,
        urllib.request.urlopen(f"{broker.monitoring_url}/healthz") as page,
    ):
        assert page.read() == b'{"status":"ok"}'


@pytest.mark.parametrize("how", ["keyword", "configuration"])
def test_its_log_may_be_a_file(tmp_path: Path, how: str):
    log, config = tmp_path / "broker.log", tmp_path / "broker.conf"
    config.write_text(f'log_file: "{log}"\nlog_format: json\nstats {{ enabled: false }}\n')
    given: gnatswarm.Keywords = {"shards": 1, "host": "127.0.0.1", "port": 0}
    if how == "keyword":
        given["log_file"] = log
    else:
        given["config"] = config
    with gnatswarm.BrokerProcess(**given) as broker:
        publish(broker, "a")
        broker.restart()
        assert [str(change) for change in broker.reload(token="x")] == ["auth_token changed"]
        with pytest.raises(gnatswarm.BrokerFailed, match="reload not supported for server_name"):
            broker.reload(server_name="other")
        assert broker.log == []
    assert log.read_text().count("Server is ready") == 2


def test_a_start_that_fails_says_why_though_its_log_is_a_file(tmp_path: Path):
    log = tmp_path / "broker.log"
    with gnatswarm.Broker() as other, pytest.raises(gnatswarm.BrokerFailed, match=r"ended at once(.|\n)*in use"):
        gnatswarm.BrokerProcess(shards=1, log_file=log, port=other.port).start()


def test_a_reload_that_can_be_carried_out_in_part_says_what_could_not(tmp_path: Path):
    with gnatswarm.BrokerProcess(shards=1) as broker:
        nowhere = tmp_path / "missing" / "pid"
        with pytest.raises(gnatswarm.BrokerFailed, match=r"could not write pidfile: .*missing"):
            broker.reload(pid_file=nowhere, max_payload=5)
        assert broker.options.limits.max_payload_bytes == 5


def test_secrets_are_in_no_command_line():
    with gnatswarm.BrokerProcess(shards=1, token="hush-hush") as broker:
        for pid in session_pids(broker.pid):
            for name in ("cmdline", "environ"):
                assert b"hush" not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert not any("hush" in line for line in broker.log)
        assert "hush" not in repr(broker.options)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_program_that_started_it(how: signal.Signals):
    text = "import gnatswarm, sys\nb = gnatswarm.BrokerProcess(shards=2).start()\nprint(b.pid, flush=True)\n"
    text += "sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        pids = session_pids(pid)
        assert len(pids) >= 3
        owner.send_signal(how)
        owner.wait(30)
    assert wait_pids_gone(pids, 30.0) == []


def test_it_does_not_end_with_the_thread_that_started_it():
    brokers = []
    thread = threading.Thread(target=lambda: brokers.append(gnatswarm.BrokerProcess(shards=1).start()))
    thread.start()
    thread.join()
    publish(brokers[0], "a")
    brokers[0].stop()


def test_what_a_stranger_says_of_its_start_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """The name of the socket for such words is in /proc/net/unix, and every user may send to it."""
    start: Any = subprocess.Popen

    def overtaken(*args: Any, env: dict[str, str], **rest: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"READY=1", "\0" + env["NOTIFY_SOCKET"].removeprefix("@"))
        return start(*args, env=env, **rest)

    monkeypatch.setattr(subprocess, "Popen", overtaken)
    broker = gnatswarm.BrokerProcess(shards=1).start()
    publish(broker, "a")
    broker.stop()


def test_who_fills_the_socket_for_words_about_a_start_does_not_hinder_it(monkeypatch: pytest.MonkeyPatch):
    """What the broker says is lost then: it waited for 30 s, and failed."""
    start: Any = subprocess.Popen

    def unheard(*args: Any, env: dict[str, str], **rest: Any) -> Any:
        name = "\0" + env["NOTIFY_SOCKET"].removeprefix("@")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"x", name)
        return start(*args, env={**env, "NOTIFY_SOCKET": "@nobody-hears-this"}, **rest)

    monkeypatch.setattr(subprocess, "Popen", unheard)
    broker = gnatswarm.BrokerProcess(shards=1).start()
    publish(broker, "a")
    broker.stop()


def test_one_that_died_is_said_to_have_died():
    broker = gnatswarm.BrokerProcess(shards=1).start()
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not broker.is_running)
    with pytest.raises(gnatswarm.BrokerFailed, match="ended by itself"):
        broker.kill_shard()
    broker.stop()


def test_an_encrypted_broker_is_trusted_by_nobody_else(tmp_path: Path):
    pair = Authority(tmp_path).server()
    with gnatswarm.BrokerProcess(shards=1, tls={"cert_file": pair.cert, "key_file": pair.key}) as broker:
        assert broker.url.startswith("tls://")

        async def connect() -> None:
            await nats.connect(
                broker.url, tls=ssl.create_default_context(), allow_reconnect=False, max_reconnect_attempts=0
            )

        with pytest.raises(ssl.SSLError):
            asyncio.run(connect())


def test_an_embedded_broker_refuses_to_be_a_member_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster.conf").write_text("cluster { port: -1 }")
    why = "cluster needs a broker in a process of its own"
    with pytest.raises(TypeError, match=why):
        gnatswarm.Broker(cluster={"port": -1})
    with pytest.raises(TypeError, match=why):
        gnatswarm.Broker(config=tmp_path / "cluster.conf")


def test_an_embedded_broker_refuses_to_be_a_leaf_node() -> None:
    with pytest.raises(TypeError, match="leafnodes needs a broker in a process of its own"):
        gnatswarm.Broker(leafnodes={"remotes": [{"url": "nats://127.0.0.1:7422"}]})
