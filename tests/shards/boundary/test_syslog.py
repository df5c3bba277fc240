"""Log lines in syslog: nats-server's format, over every transport, and no line ever waits for a syslog."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.broker.options import Logging
from gnatswarm.shards.boundary import logs, syslog
from gnatswarm.shards.boundary.syslog import SyslogHandler
from tests.support.servers import KINDS, Broker
from tests.support.turns import until
from tests.support.wire import Client

LINE = re.compile(
    rb"<(\d)>(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)) (\S+) gnatswarm\[\d+\]: (.*)\n", re.DOTALL
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The process's own logging is not changed."""
    root = logging.getLogger(logs.ROOT)
    kept = root.handlers[:], root.propagate, root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.propagate = kept[0], kept[1]
    root.setLevel(kept[2])


def udp() -> tuple[socket.socket, str]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(30)
    return sock, f"udp://127.0.0.1:{sock.getsockname()[1]}"


def configured(url: str, label: str = "router", *, must_open: bool = True) -> logging.Logger:
    options = Logging(remote_syslog=url, debug=True, trace=True)
    logs.configure(options, process_label=label, must_open=must_open)
    return logging.getLogger(f"{logs.ROOT}.x")


def test_levels_and_format_are_nats_servers() -> None:
    sock, url = udp()
    with sock:
        log = configured(url)
        for level, severity in ((10, 7), (20, 5), (30, 4), (40, 3), (50, 2), (logs.TRACE, 5)):
            log.log(level, "said %s", "a\x1bb")
            found = LINE.fullmatch(sock.recv(9000))
            assert found and int(found[1]) == severity
            assert found[4] == b"said a\\x1bb"


def test_a_traceback_is_a_message_for_each_line_and_a_shard_is_named() -> None:
    sock, url = udp()
    with sock:
        log = configured(url, "shard 1")
        try:
            raise RuntimeError("x")
        except RuntimeError:
            log.exception("failed")
        lines = [sock.recv(9000) for _ in range(4)]
    texts = [found[4] for line in lines if (found := LINE.fullmatch(line))]
    assert texts[0] == b"shard 1 - failed" and texts[1].startswith(b"shard 1 - Traceback") and len(texts) == 4


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_unix_socket(tmp_path: Path, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(tmp_path / "log"))
        sock.settimeout(30)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        configured(f"unix://{tmp_path}/log").info("hello")
        peer = sock.accept()[0] if kind == socket.SOCK_STREAM else sock
        assert peer.recv(9000).endswith(b": hello\n")
        peer.close()


def test_the_local_one_has_no_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog, "LOCAL_PATHS", (str(tmp_path / "none"), str(tmp_path / "log")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "log"))
        logs.configure(Logging(syslog=True), process_label="router")
        logging.getLogger(f"{logs.ROOT}.x").info("hello")
        assert re.fullmatch(rb"<5>\w{3} [ \d]\d \d\d:\d\d:\d\d gnatswarm\[\d+\]: hello\n", sock.recv(9000))


def test_a_stream_that_nobody_reads_loses_lines_and_says_how_many() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        handler = SyslogHandler(Logging(remote_syslog=f"tcp://127.0.0.1:{server.getsockname()[1]}"), tag="t")
        handler.setFormatter(logs.BareFormatter(logtime=True))
        peer, _ = server.accept()
        record = logging.LogRecord("x", logging.INFO, "", 0, "y" * 4000, None, None)
        sent = 0
        while not handler._lost_lines:
            handler.emit(record)
            sent += 1
            assert sent < 100_000
        peer.settimeout(30)
        got = b""
        lost = handler._lost_lines
        while b"log lines were lost" not in got:
            got = got[-100:] + peer.recv(65536)
            handler.emit(record)
        assert b"<4>" in got and re.search(rb"\d+ log lines were lost", got) and lost >= 1
        peer.close()
        handler.close()


def test_a_stream_is_connected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog, "TRY_AGAIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        log = configured(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(30)
        server.accept()[0].close()
        server.setblocking(False)
        peers: list[socket.socket] = []

        def is_back() -> bool:
            log.info("again")
            try:
                peers.append(server.accept()[0])
            except BlockingIOError:
                return False
            return True

        for _ in range(100_000):
            if is_back():
                break
        peers[0].settimeout(30)
        log.info("again")
        assert b": again\n" in peers[0].recv(9000)
        peers[0].close()


class Breaking(socket.socket):
    """Takes so many bytes, and breaks when they are taken and `is_broken` is set."""

    room_bytes = 0
    is_broken = False

    def send(self, data: Any, *flags: int) -> int:
        if self.is_broken:
            raise BrokenPipeError
        taken = min(self.room_bytes, len(data))
        if not taken:
            raise BlockingIOError
        self.room_bytes -= taken
        return super().send(data[:taken], *flags)


@pytest.mark.parametrize("taken", [0, 10, 150, 2000])  # nothing, parts of the first and the second line, all
def test_a_connection_that_breaks_in_a_line_begins_again_with_that_line(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    monkeypatch.setattr(syslog, "TRY_AGAIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        handler = SyslogHandler(Logging(remote_syslog=f"tcp://127.0.0.1:{server.getsockname()[1]}"), tag="t")
        handler.setFormatter(logs.BareFormatter(logtime=True))
        before = handler._socket = Breaking(fileno=handler._socket.detach())
        before.room_bytes = taken

        def say(text: str) -> None:
            handler.emit(logging.LogRecord("x", logging.INFO, "", 0, text, None, None))

        with server.accept()[0] as peer:
            peer.settimeout(30)
            for number in range(3):
                say(f"line {number} {'x' * 80}")
            before.is_broken = True
            say("line 3")
            assert handler._socket is not before
            got = b"".join(iter(lambda: peer.recv(65536), b""))
        assert len(got) <= taken and got.count(b"\n") == {0: 0, 10: 0, 150: 1, 2000: 3}[taken]
        with server.accept()[0] as peer:
            peer.settimeout(30)
            say("line 4")
            handler.close()
            again = b"".join(iter(lambda: peer.recv(65536), b""))
        lines = again.splitlines()
        assert all(line.startswith(b"<5>") for line in lines)
        numbers = [int(found) for found in re.findall(rb"line (\d)", again)]
        assert numbers == list(range(got.count(b"\n"), 5)) and len(lines) == len(numbers)


def test_without_a_syslog_the_router_does_not_start_and_a_shard_does(
    unused_tcp_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"tcp://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(OSError, match="refused"):
        configured(url)
    configured(url, "shard 0", must_open=False).info("here")
    said, here = capfd.readouterr().err.splitlines()
    assert "[ERR] shard 0 - Error connecting to syslog: " in said and "refused" in said and "lines go here" in said
    assert here.endswith("[INF] shard 0 - here")


@pytest.mark.parametrize("label", ["router", "shard 0"])
async def test_a_syslog_that_did_not_answer_gets_the_lines_when_it_does(
    label: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The process logged to standard error for ever."""
    monkeypatch.setattr(syslog, "LOOK_EVERY_S", 0.01)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        log = configured(f"tcp://127.0.0.1:{server.getsockname()[1]}", label, must_open=False)
        log.info("before")
        server.listen()
        root = logging.getLogger(logs.ROOT)

        def has_gone_over() -> bool:
            log.info("again")
            return not isinstance(root.handlers[0], logs.LineHandler)

        await until(has_gone_over)
        log.info("last")
        connection, _ = server.accept()
        with connection:
            connection.settimeout(30)
            got = b""
            while b"last\n" not in got:
                got += connection.recv(65536)
    texts = [line.partition(b"]: ")[2] for line in got.splitlines()]
    head = b"" if label == "router" else b"shard 0 - "
    assert texts == [head + one for one in (b"The syslog answers now: earlier lines are elsewhere", b"again", b"last")]
    assert "before" in capfd.readouterr().err


async def test_a_syslog_that_is_found_when_nobody_wants_it_any_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reload says that lines go elsewhere."""
    monkeypatch.setattr(syslog, "LOOK_EVERY_S", 0.0)
    handlers = [logging.NullHandler(), logging.NullHandler()]
    closed: list[logging.Handler] = []
    for handler in handlers:
        monkeypatch.setattr(handler, "close", lambda handler=handler: closed.append(handler))
    asked, goes_on = threading.Event(), threading.Event()

    def make() -> logging.Handler:
        asked.set()
        goes_on.wait(30)
        return handlers.pop()

    early, late = syslog.Seeker(make), syslog.Seeker(handlers.pop)
    asked.wait(30)
    early.stop()
    goes_on.set()
    await until(lambda: late.take() is not None and closed)
    late.stop()
    assert len(closed) == 2 and early.take() is None


@pytest.mark.parametrize("name", ["a..b", "a" * 64, "é..x"])
def test_a_name_that_cannot_be_one_is_an_error_as_one_without_an_address(name: str) -> None:
    with pytest.raises(OSError, match="is no host name"):
        configured(f"udp://{name}:514")


async def test_a_broker_logs_to_syslog_what_it_would_log_to_standard_error() -> None:
    sock, url = udp()
    config = f'listen: "127.0.0.1:-1"\nremote_syslog: "{url}"\ndebug: true\n'
    broker = Broker(KINDS["gnatswarm-2"], config=config)
    with sock:
        got = b""

        def found(pattern: bytes) -> re.Match[bytes] | None:
            nonlocal got
            sock.setblocking(False)
            try:
                while True:
                    message = sock.recv(9000)
                    assert LINE.fullmatch(message)
                    got += message
            except BlockingIOError:
                return re.search(pattern, got)

        broker.launch()
        try:
            await until(lambda: found(b"Server is ready"))
            listening = found(rb"Listening for client connections on 127.0.0.1:(\d+)")
            assert listening
            async with await Client.connect(int(listening[1]), {"verbose": False}) as client:
                await client.flush()
                cid = client.info["client_id"]
                await until(lambda: found(b"shard [01] - .* - cid:%d - Client connection created" % cid))
            assert "Server is ready" not in broker.log.text
        finally:
            broker.kill()


@pytest.mark.parametrize("again", [False, True])
def test_the_syslog_of_before_has_the_lines_while_the_log_of_a_reload_cannot_be_opened(
    *, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They went to standard error, which nobody may keep."""
    now_s = 100.0
    monkeypatch.setattr("gnatswarm.shards.boundary.logs.time.monotonic", lambda: now_s)
    sock, url = udp()
    path = tmp_path / "no" / "x.log"
    with sock:
        log = configured(url, "shard 1")
        for file in ([tmp_path / "neither" / "x.log"] if again else []) + [path]:  # `again`: after another reload, too
            logs.configure(Logging(file=str(file)), process_label="shard 1", must_open=False)
            found = LINE.fullmatch(sock.recv(9000))
            assert found and b"Cannot open the log file" in found[4] and found[4].endswith(b"lines go here")
        log.info("here")
        assert b"shard 1 - here" in sock.recv(9000)
        path.parent.mkdir()
        now_s += logs.OPEN_AGAIN_S
        log.info("there")
        assert path.read_text().endswith("[INF] shard 1 - there\n") and "can be opened now" in path.read_text()
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(9000)
    assert not capfd.readouterr().err
