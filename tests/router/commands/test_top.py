"""What `gnatswarm top` draws fits the screen it has, of ours and of a nats-server."""

from __future__ import annotations

import base64
import contextlib
import getpass
import json
import os
import pty
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from rich.console import Console

from gnatswarm.router.commands import top
from gnatswarm.router.commands.top import Look, view

GENERAL = {
    "server_id": "N",
    "server_name": "N",
    "version": "2.9.10",
    "uptime": "16s",
    "cpu": 12.5,
    "mem": 150_000_000,
    "connections": 65_000,
    "total_connections": 1_000_000,
    "subscriptions": 123_456,
    "slow_consumers": 1234,
    **dict.fromkeys(("in_msgs", "out_msgs", "in_bytes", "out_bytes"), 123_456_789),
}
CONNECTION = {
    "cid": 1_000_000,
    "name": "a name of some length",
    "ip": "127.0.0.1",
    "port": 54321,
    "subscriptions": 2,
    "pending_bytes": 0,
    "idle": "0s",
    "uptime": "1d2h",
    **dict.fromkeys(("in_msgs", "out_msgs", "in_bytes", "out_bytes"), 12_345),
}
SHARD_COUNTS = (
    *("connections", "subscriptions", "in_msgs", "out_msgs"),
    *("cpu", "loop_lag_us", "mem", "slow_consumers", "starts"),
)
SUBJECT = {
    "account": "A",
    "subject": "hot.subject",
    "msgs": 2010,
    "msgs_per_s": 233.4,
    "bytes": 40_200,
    "deliveries": 8040,
    "fanout": 4.0,
    "publishers": 3,
    "subscribers": 4,
    "wanted": True,
}


def drawn(width: int, subjects: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    look = Look(100.0, GENERAL | changes, {"total": 1, "connections": [CONNECTION]}, None, subjects)
    console = Console(width=width, record=True, file=None, quiet=False, no_color=True)
    with console.capture() as capture:
        console.print(view(None, look, "cid", shows_subjects=subjects is not None, width=width))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_general_figures_are_two_lines_on_every_screen(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("╭")
    assert lines[3].startswith("╰")


def test_there_are_no_more_rows_than_the_screen_has_room_for() -> None:
    connections = [CONNECTION | {"cid": 7_000_000 + number} for number in range(10)]
    subjects = [SUBJECT | {"subject": f"hot.{number}"} for number in range(10)]
    look = Look(
        100.0, GENERAL, {"total": 10, "connections": connections}, None, {"subjects": subjects, "enabled": True}
    )
    for shows_subjects, mark in ((False, "70000"), (True, "hot.")):
        console = Console(width=120, file=None, quiet=False, no_color=True)
        with console.capture() as capture:
            console.print(view(None, look, "cid", shows_subjects=shows_subjects, rows=3, width=120))
        assert capture.get().count(mark) == 3


def test_subjects_of_an_account_are_shown_with_rate_and_subscribers() -> None:
    shown = {"recorder": "on", "seconds": 9.2, "subjects": [SUBJECT, SUBJECT | {"account": "$G", "wanted": False}]}
    text = "\n".join(drawn(120, shown))
    assert "hot subjects of the last 9 s" in text
    assert "A · hot.subject" in text
    assert " 233 " in text
    assert "nobody" in text and "gnatswarm why SUBJECT" in text


def test_without_the_recorder_that_is_said() -> None:
    row = {name: value for name, value in SUBJECT.items() if name not in ("account", "msgs_per_s", "publishers")}
    assert "statistics are off" in "\n".join(drawn(120, {"recorder": "off", "subjects": [row]}))


def test_what_clients_choose_is_text_in_a_terminal_too() -> None:
    """A name could clear the screen, or turn the text around it."""
    evil = "a\x1b[2Jb\u202efdp\x07"
    subjects = {"recorder": "on", "seconds": 9.2, "subjects": [SUBJECT | {"subject": evil}]}
    look = Look(100.0, GENERAL, {"total": 1, "connections": [CONNECTION | {"name": evil}]}, None, subjects)
    for shows_subjects in (False, True):
        console = Console(width=150, file=None, quiet=False, no_color=True)
        with console.capture() as capture:
            console.print(view(None, look, "cid", shows_subjects=shows_subjects, width=150))
        assert r"a\x1b[2Jb\u202efdp\a" in capture.get()
        assert not {"\x1b", "\u202e", "\x07"} & set(capture.get())


@pytest.mark.parametrize(
    ("name", "shown"),
    [("eu[/prod]", "eu[/prod]"), ("eu[prod]", "eu[prod]"), ("n\x1b]0;owned\x07\x1b[2J", r"n\x1b]0;owned\a\x1b[2J")],
)
def test_what_a_server_says_of_itself_is_text_in_a_terminal_too(name: str, shown: str) -> None:
    """Who looks at a server does not have to trust it."""
    shards = {"shards": [dict.fromkeys((*SHARD_COUNTS, "shard"), 0) | {"state": name}]}
    connection = CONNECTION | {"ip": name, "idle": name, "uptime": name}
    look = Look(100.0, GENERAL | {"server_name": name}, {"total": 1, "connections": [connection]}, shards, None)
    console = Console(width=240, file=None, quiet=False, no_color=True)
    with console.capture() as capture:
        console.print(view(None, look, "cid", width=240))
    assert capture.get().count(shown) == 5
    assert capture.get().splitlines()[0].startswith(f"╭─ {shown} · nats-server 2.9.10 · up 16s")
    assert "\x1b" not in capture.get()


def test_a_shard_that_does_not_answer_is_late_not_ready() -> None:
    counts = dict.fromkeys(SHARD_COUNTS, 0)
    shards = [{"shard": at, "state": "ready", "suspect": at == 1, **counts} for at in range(2)]
    look = Look(100.0, GENERAL, {"total": 0, "connections": []}, {"shards": shards}, None)
    console = Console(width=150, file=None, quiet=False, no_color=True)
    with console.capture() as capture:
        console.print(view(None, look, "cid", shows_subjects=False, width=150))
    assert re.search(r" 0 +ready ", capture.get()) and re.search(r" 1 +late ", capture.get())


class Guarded(BaseHTTPRequestHandler):
    """Pages for ann, whose password has a colon."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(b"ann:s:ecret").decode()
        is_she = self.headers.get("Authorization") == wanted
        document = {**GENERAL, "now": "2026-02-03T04:05:06Z", "connections": 0}
        connections = {"connections": [], "total": 0, "num_connections": 0}
        body = json.dumps(document if self.path == "/varz" else connections).encode()
        self.send_response((404 if self.path.startswith("/s") else 200) if is_she else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def guarded() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def typing(monkeypatch: pytest.MonkeyPatch, *answers: tuple[str, str], is_there: bool = True) -> list[int]:
    """Somebody at a terminal who gives these users and passwords; how often he was asked."""
    asked: list[int] = []

    def readline() -> str:
        asked.append(1)
        return answers[len(asked) - 1][0] + "\n"

    stdin = SimpleNamespace(isatty=lambda: is_there, readline=readline)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(getpass, "getpass", lambda: answers[len(asked) - 1][1])
    return asked


def test_who_is_at_a_terminal_is_asked_for_a_password(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = typing(monkeypatch, ("ann", "wrong"), ("ann", "s:ecret"))
    pages = top.PagesClient(guarded)
    top._log_in(pages)
    assert len(asked) == 2 and pages.get("varz") is not None


@pytest.mark.parametrize("ends_at", ["User", "Password"])
def test_who_types_the_end_of_input_in_the_place_of_a_password_is_not_asked_again(
    guarded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends_at: str
) -> None:
    asked = typing(monkeypatch, ("ann", ""))

    def at_end() -> NoReturn:
        asked.append(1)
        raise EOFError

    monkeypatch.setattr(getpass, "getpass", at_end)
    if ends_at == "User":
        monkeypatch.setattr(sys.stdin, "readline", lambda: "")
    assert top.run(guarded) == 1
    assert len(asked) == (2 if ends_at == "Password" else 0)
    assert capsys.readouterr().err.endswith("wants a user and a password: http://USER:PASSWORD@HOST:PORT\n")


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_terminal_without_a_screen_is_printed_to(guarded: str, term: str) -> None:
    """As a shell in Emacs is one."""
    controlling, terminal = pty.openpty()
    os.set_blocking(controlling, False)
    try:
        code = subprocess.run(
            [
                sys.executable,
                "-P",
                "-c",
                f"from gnatswarm.router.commands import top; top.run('ann:s%3Aecret@{guarded}', looks=1)",
            ],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            timeout=60,
            env={**os.environ, "TERM": term},
        ).returncode
        shown = os.read(controlling, 65536)
    finally:
        os.close(controlling)
        os.close(terminal)
    assert code == 0
    assert b"0 connections" in shown
    assert (b"\x1b[?1049h" in shown) == (term == "xterm")


def test_who_has_given_a_user_has_only_the_password_to_type(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typing(monkeypatch, ("", "s:ecret"))
    pages = top.PagesClient(f"http://ann@{guarded}")
    top._log_in(pages)
    assert pages.get("varz") is not None


def test_after_some_attempts_it_gives_up(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = typing(monkeypatch, *[("ann", "wrong")] * 9)
    with pytest.raises(top.PasswordWanted, match="or others than these"):
        top._log_in(top.PagesClient(guarded))
    assert len(asked) == top.ATTEMPTS


def test_without_a_terminal_it_says_where_a_password_goes(
    guarded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(monkeypatch, is_there=False)
    assert top.run(guarded, looks=1) == 1
    assert "wants a user and a password: http://USER:PASSWORD@HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(("looks", "code"), [(1, 0), (0, 1)])
def test_closed_streams_are_no_terminal(
    guarded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], looks: int, code: int
) -> None:
    """Python has None for each that is closed, as by `gnatswarm top <&- >&-`."""
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert top.run(f"ann:s%3Aecret@{guarded}" if looks else guarded, looks=looks) == code
    assert ("wants a user and a password" in capsys.readouterr().err) == (code == 1)


def test_a_password_in_the_address_may_be_quoted(guarded: str) -> None:
    assert top.PagesClient(f"http://ann:s%3Aecret@{guarded}").get("varz") is not None


@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://a b:1", "http://:8222"),
        *("ftp://a", "http://a/x\x1b", "http://[a]:1"),
    ],
)
def test_what_is_no_address_is_said_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert top.run(url, looks=1) == 1
    error = capsys.readouterr().err
    assert "is no address of monitoring pages (as in http://127.0.0.1:8222)\n" in error
    assert len(error.splitlines()) == 1 and "\x1b" not in error


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that says this to whoever has asked, and nothing else; its address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def page_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999"])
@pytest.mark.parametrize("key", ["mem", "in_bytes", "connections"])
def test_a_number_that_no_broker_has_is_said_in_one_line(
    key: str, number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    general = {**GENERAL, "now": "2026-02-03T04:05:06Z", key: json.loads(number)}
    pages = {"varz": general, "connz": {"connections": [], "total": 0, "num_connections": 0}}
    monkeypatch.setattr(top.PagesClient, "get", lambda _, page: pages.get(page.partition("?")[0]))
    code = top.run("127.0.0.1:1", looks=1)
    error = capsys.readouterr().err
    assert (code, error) in ((0, ""), (1, "gnatswarm: http://127.0.0.1:1: these are not a broker's monitoring pages\n"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'INFO {"server_id":"X"}\r\n', "does not answer as a monitoring port does (a broker has"),
        (b"", "does not answer: Remote end closed connection without response (a broker has"),
        *((page_of(body), "its answer is no document in JSON (a broker") for body in (b"hello", b"{", b"[" * 50_000)),
        *(
            (page_of(body), "these are not a broker's monitoring pages")
            for body in (b"{}", b"[]", b"[1]", b"null", b'{"now": 5}', b'{"now": "soon"}')
        ),
        (page_of(b'{"now": "2026-02-03T10:00:00Z"}'), "these are not a broker's monitoring pages"),
        (b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", "these are not a broker's monitoring pages"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 6\r\n\r\na\x1b[2J\n", r"/varz: 500 a\x1b[2J"),
    ],
)
def test_other_servers_are_told_from_monitoring_pages_in_one_line(
    answer: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as address:
        assert top.run(address, looks=1) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"gnatswarm: http://{address}") and why in error
    assert len(error.splitlines()) == 1 and "\x1b" not in error
