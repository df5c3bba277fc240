"""A broker inside a program, or in a process that it starts: it serves, obeys, and leaves nothing behind."""

from __future__ import annotations

import asyncio
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
from shards import linkdir
from tests.support.authority import Authority
from tests.support.servers import session_pids, wait_pids_gone, wait_until

uvloop.new_event_loop().close()  # libuv keeps one pipe for the life of a process
FORMS = [gnatswarm.Broker, gnatswarm.BrokerProcess]


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Threads, descriptors, children and files are what they were."""

    def held() -> tuple[set[str], int, list[str]]:
        base = linkdir.default_base()
        own = [name for name in (os.listdir(base) if os.path.isdir(base) else []) if name.startswith(f"{os.getpid()}-")]
        threads = {thread.name for thread in threading.enumerate() if "asyncio" not in thread.name}
        return threads, len(os.listdir("/proc/self/fd")), own

    before = held()
    yield
    assert held() == before


async def round_trip(broker: Any) -> bytes:
    """A request and its answer by the official client."""
    client = await nats.connect(**broker.connect_options)
    try:

        async def answer(message: Any) -> None:
            await message.respond(b"hello, " + message.data)

        await client.subscribe("greet", cb=answer)
        return bytes((await client.request("greet", b"you", timeout=5)).data)
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
        assert captured.subjects == ["a.b", "a.c"]


def test_brokers_are_apart(form):
    with form() as one, form() as other:
        heard = [one.capture(">"), other.capture(">")]
        publish(one, "one")
        publish(other, "other")
        assert [capture.subjects for capture in heard] == [["one"], ["other"]]


# ------------------------------------------------------------------------------------------------ life


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
        assert captured.subjects == ["a", "a"]
        host, port = broker.websocket_url.removeprefix("ws://").split(":")
        socket.create_connection((host, int(port))).close()


def test_a_port_that_is_in_use_is_a_clear_error(form):
    with form() as broker, pytest.raises(gnatswarm.BrokerFailed, match="port is in use by another process"):
        form(port=broker.port).start()


def test_a_broker_that_does_not_run_says_so(form):
    with pytest.raises(gnatswarm.BrokerFailed, match="has not been started"):
        form().disconnect_clients()


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
        broker.reload(token="two")
        publish(broker, login='{"auth_token":"two"}')
        with pytest.raises(gnatswarm.CaptureError, match="Authorization Violation"):
            broker.capture("a", token="one")
        with pytest.raises(gnatswarm.BrokerFailed, match="server_name"):
            broker.reload(server_name="other", token="three")
        assert broker.capture("a", token="two").messages == []


def test_disconnects_the_clients_that_came_after_a_moment(form):
    with form() as broker:
        socks = [socket.create_connection((broker.host, broker.port)) for _ in range(2)]
        assert [sock.recv(5) for sock in socks] == [b"INFO ", b"INFO "]
        moment = broker.next_client_id()
        late = socket.create_connection((broker.host, broker.port))
        assert late.recv(5) == b"INFO "
        assert broker.disconnect_clients(moment) == 1
        late.settimeout(5)
        while late.recv(4096):
            pass
        assert broker.disconnect_clients(moment) == 0
        assert broker.disconnect_clients() == 2
        for sock in (*socks, late):
            sock.close()


def test_encrypts_and_two_at_once_do_not_mix(form, tmp_path: Path):
    pair = Authority(tmp_path).server()
    tls = {"cert_file": pair.cert, "key_file": pair.key}
    with form(tls=tls) as one, form(tls=tls | {"handshake_first": True}, user="ann", password="x") as other:
        assert asyncio.run(round_trip(one)) == b"hello, you"

        async def both() -> None:
            captures = [one.capture("a"), other.capture("a")]
            clients = [await nats.connect(**broker.connect_options) for broker in (one, other)]
            for number in range(300):
                for client in clients:
                    await client.publish("a", bytes([number % 256]) * 2000)
            for client in clients:
                await client.close()
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
    from shards.shard import Shard

    def broken(self: Shard, late_s: float) -> None:
        raise ArithmeticError("on purpose")

    broker = gnatswarm.Broker().start()
    monkeypatch.setattr(Shard, "_show_gauges", broken)
    wait_until(lambda: not broker.is_running)
    with pytest.raises(gnatswarm.BrokerFailed, match="on purpose"):
        broker.stop()
    monkeypatch.undo()
    with gnatswarm.Broker() as another:
        publish(another, "a")


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


def program(text: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=60, check=False, **more
    )


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


@pytest.mark.parametrize("name", ["broker", "shards", "router"])
def test_another_package_of_the_same_name_is_said_in_one_line(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    done = program("import gnatswarm", env=os.environ | {"PYTHONPATH": f"{tmp_path}"}, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: gnatswarm needs its own package '{name}', in {Path(gnatswarm.__file__).parent}, "
        f"and Python finds another one in {tmp_path}: take that directory off PYTHONPATH, or do not start there"
    )


# ------------------------------------------------------------------------------------------------ in processes


def test_several_shards_and_one_of_them_is_killed():
    with gnatswarm.BrokerProcess(shards=2) as broker:
        before = broker.shard_pids
        assert len(set(before)) == 2
        captured = broker.capture("a")
        for _ in range(4):  # without the pauses that a shard in trouble makes
            broker.kill_shard(1)
        publish(broker, "a")
        assert captured.subjects == ["a"]
        after = broker.shard_pids
        assert after[0] == before[0] and after[1] != before[1] and all(after)
        with pytest.raises(gnatswarm.BrokerFailed, match="there is no shard 2; there are 0 to 1"):
            broker.kill_shard(2)


def test_scales_while_clients_talk():
    with gnatswarm.BrokerProcess(shards=1) as broker:
        captured = broker.capture("a")
        broker.scale(3)
        assert len(broker.status().shards) == 3
        publish(broker, "a")
        assert captured.subjects == ["a"]


def test_its_log_is_kept_over_a_restart():
    with gnatswarm.BrokerProcess(shards=1) as broker:
        broker.restart()
        broker.restart(kill=True)
        lines = [line for line in broker.log if "Server is ready" in line]
    assert len(lines) == 3
    assert sum("Server Exiting" in line for line in broker.log) == 2


def test_its_pages_are_where_it_says():
    import urllib.request

    with (
        gnatswarm.BrokerProcess(shards=1, http_port=-1) as broker,
        urllib.request.urlopen(f"{broker.monitoring_url}/healthz") as page,
    ):
        assert page.read() == b'{"status":"ok"}'


def test_a_log_file_is_refused():
    with pytest.raises(TypeError, match="log_file: the log of a broker in a process is in"):
        gnatswarm.BrokerProcess(log_file="x")


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
        owner.wait(10)
    assert wait_pids_gone(pids, 10.0) == []


def test_it_does_not_end_with_the_thread_that_started_it():
    brokers = []
    thread = threading.Thread(target=lambda: brokers.append(gnatswarm.BrokerProcess(shards=1).start()))
    thread.start()
    thread.join()
    publish(brokers[0], "a")
    brokers[0].stop()


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
