"""`gnatswarm pub`, `sub`, `req`, `reply` and `events` do for a terminal and for scripts what a client does."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nkeys
import pytest

from gnatswarm.loadtest import natswire, talk
from gnatswarm.loadtest.errors import Disconnected
from gnatswarm.loadtest.message import Message
from tests.loadtest.bad_server import BadServer
from tests.support.authority import Authority
from tests.support.forkserver import forkserver
from tests.support.servers import Broker, wait_until

MODULE = "gnatswarm.loadtest.talk"
PROGRAM = f"import sys; from {MODULE} import main; sys.exit(main(sys.argv[1:]))"
StartBroker = Callable[..., Broker]
SYSTEM = """
system_account: SYS
accounts {
  A { users: [{user: a, password: a}, {user: few, password: f, permissions: {publish: "ok.>"}}] }
  SYS { users: [{user: sys, password: s}] }
}
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", MODULE, *words]


def environment(**more: str) -> dict[str, str]:
    """The environment without what would be a default of these commands."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("NATS_")}, **more}


def ran(*words: str, given: bytes = b"", more: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Forked from a process that has imported it: that takes longer than most commands."""
    done = forkserver(MODULE).run(["talk", *words], PROGRAM, given=given, environment=environment(**(more or {})))
    return done.returncode, done.stdout, done.stderr


def answer(payload: bytes, message: Message) -> None:
    message.respond(payload)


@contextmanager
def started(*words: str, until: str = "subscribed to") -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; what follows comes after its subscription."""
    with subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith(until), line
        yield process
        process.kill()


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """A subject of this test's own: brokers are shared."""
    return f"talk.{abs(hash(request.node.nodeid))}"


def test_what_pub_sends_sub_shows(broker: Broker, subject: str):
    with started("sub", subject, "-s", broker.url, "-n", "1") as listener:
        words = ("pub", subject, "hello", "-s", broker.url, "-H", "Trace: 7", "--reply", "somewhere")
        assert ran(*words) == (0, "published 1 message, 5 bytes\n", "")
        shown, _ = listener.communicate(timeout=30)
    assert shown == f"#1 {subject}  reply somewhere  5 bytes\nTrace: 7\n\nhello\n"
    assert listener.returncode == 0


def test_a_message_cannot_drive_the_terminal_unless_it_is_asked_for_raw(broker: Broker, subject: str):
    evil = b"\x1b[2J\xe2\x80\xae\ttab"
    for options, wanted in (
        ((), f"#1 {subject}  {len(evil)} bytes\n\\u001b[2J\\u202e\ttab\n".encode()),
        (("--raw",), evil + b"\n"),
    ):
        with started("sub", subject, "-s", broker.url, "-n", "1", *options) as listener:
            assert ran("pub", subject, "-s", broker.url, given=evil)[0] == 0
            assert listener.communicate(timeout=30)[0].encode() == wanted


def test_every_line_is_a_message_and_json_is_for_programs(broker: Broker, subject: str):
    with started("sub", f"{subject}.>", "-s", broker.url, "-n", "3", "--json") as listener:
        assert ran("pub", f"{subject}.x", "--lines", "-q", "-s", broker.url, given=b"1\n2\r\n\xff") == (0, "", "")
        documents = [json.loads(line) for line in listener.communicate(timeout=30)[0].splitlines()]
    assert [document.get("data") for document in documents] == ["1", "2", None]
    assert documents[2]["data_base64"] == "/w=="
    assert {document["subject"] for document in documents} == {f"{subject}.x"}


@pytest.mark.parametrize("words", ["pub", "req", "pub --lines"])
def test_input_without_end_is_read_up_to_what_a_message_may_have(start_broker: StartBroker, words: str):
    broker = start_broker(config="max_payload: 4096")
    verb, *options = words.split()
    line = command(verb, "endless", *options, "-s", broker.url)
    bounded = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", *line]
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(bounded, stdin=endless, capture_output=True, text=True, timeout=60, check=False)
    what = "line 1" if options else "standard input"
    why = f"{what} is more than a message may have: the server's max_payload is 4,096 bytes"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"gnatswarm {verb}: {why}\n")


@pytest.mark.parametrize(("end", "is_line"), [(b"", False), (b"\n", True), (b"\r\n", True)])
def test_the_largest_message_that_the_server_takes_comes_from_standard_input(
    start_broker: StartBroker, end: bytes, is_line: bool
):
    broker = start_broker(config="max_payload: 4096")
    words = ("pub", "a", "--json", *(["--lines"] if is_line else []), "-s", broker.url)
    for size, code in ((4096, 0), (4097, 1)):
        found, _, error = ran(*words, given=b"x" * size + end)
        assert (found, "max_payload is 4,096 bytes" in error) == (code, bool(code))
    assert json.loads(ran(*words, given=b"x" * 4096 + end)[1])["bytes"] == 4096
    assert is_line or json.loads(ran(*words, given=b"")[1])["bytes"] == 0


def test_counts_and_their_sum(broker: Broker, subject: str):
    with started("pub", subject, "-n", "0", "-s", broker.url, until="") as nothing:
        assert nothing.communicate(timeout=30)[0].startswith("published 0 messages")
    listener = subprocess.Popen(
        command("sub", subject, "--count", "--json", "-n", "10", "-s", broker.url),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with listener, natswire.connect(broker.url) as client:
        assert listener.stdout is not None
        listener.stdout.readline()  # a second has passed, so it has subscribed
        for _ in range(10):
            client.publish(subject, b"abc")
        documents = [json.loads(line) for line in listener.stdout]
    assert documents[-1]["is_total"] and (documents[-1]["messages"], documents[-1]["bytes"]) == (10, 30)
    assert sum(document["messages"] for document in documents[:-1]) == 10


def test_a_rate_is_kept_to(broker: Broker, subject: str):
    code, shown, _ = ran("pub", subject, "x", "-n", "5", "--rate", "20", "--json", "-s", broker.url)
    assert code == 0
    assert json.loads(shown)["published"] == 5
    assert json.loads(shown)["seconds"] >= 4 / 20


def test_a_request_and_its_response(broker: Broker, subject: str):
    for options, response in (((), "hello"), (("fixed",), "fixed"), (("--command", "tr a-z A-Z"), "HELLO")):
        with started("reply", subject, *options, "-s", broker.url, "-n", "1", until="answering") as responder:
            assert ran("req", subject, "hello", "-s", broker.url) == (0, f"{response}\n", "")
            assert responder.communicate(timeout=30)[0] == f"#1 {subject}  5 bytes\n"


def test_quiet_responders_print_nothing(broker: Broker, subject: str):
    with subprocess.Popen(
        command("reply", subject, "-q", "-n", "1", "-s", broker.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
    ) as responder:
        assert ran("req", subject, "hello", "--wait", "30", "-s", broker.url) == (0, "hello\n", "")
        assert responder.communicate(timeout=30)[0] == b""


def test_a_request_to_nobody_fails_at_once_or_waits_for_somebody(broker: Broker, subject: str):
    code, _, error = ran("req", subject, "-s", broker.url)
    assert (code, error) == (1, f"gnatswarm req: nobody subscribes to {subject}\n")
    waiting = subprocess.Popen(
        command("req", subject, "me", "--wait", "30", "-s", broker.url),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with waiting, started("reply", subject, "-n", "1", "-s", broker.url, until="answering"):
        assert waiting.communicate(timeout=30)[0] == "me\n"
    assert waiting.returncode == 0


def test_several_responses_are_collected(broker: Broker, subject: str):
    with natswire.connect(broker.url) as client:
        for name in (b"1", b"2"):
            client.subscribe(subject, partial(answer, name))
        client.flush()
        code, shown, error = ran("req", subject, "-n", "2", "--raw", "-s", broker.url)
        assert (code, sorted(shown.split()), error) == (0, ["1", "2"], "")
        code, shown, error = ran("req", subject, "-n", "3", "--timeout", "0.3", "-s", broker.url)
        assert (code, sorted(shown.split())) == (1, ["1", "2"])
        assert error == "gnatswarm req: 2 of 3 responses within 0.3 s\n"


@pytest.mark.parametrize("responses", [0, 1])
def test_a_request_ends_with_the_server(responses: int):
    line = command("req", "a", "-n", "2", "--raw", "--timeout", "86400")
    with BadServer(hang_up_after=1 + responses) as server, natswire.connect(server.url) as client:
        requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        client.subscribe("a", requests.put)
        client.flush()
        with subprocess.Popen(
            [*line, "-s", server.url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as requester:
            request = requests.get(timeout=30)
            wait_until(lambda: server.pongs == 4)  # each has logged in, and flushed: the requester behind its request
            for _ in range(responses):
                request.respond(b"one")
            client.publish("enough")
            shown, error = requester.communicate(timeout=30)
    assert (requester.returncode, shown) == (1, "one\n" * responses)
    assert error == "gnatswarm req: the server closed the connection\n"


def test_a_connection_that_ends_behind_a_request_s_pong_does_not_hide_its_responses():
    """They may have come before, and are waited for only then."""
    conversation = talk._Conversation()
    ends: Any = [Disconnected("the server closed the connection")]
    subscription: Any = SimpleNamespace(unsubscribe=lambda: None)
    client: Any = SimpleNamespace(
        subscribe=lambda _inbox: subscription,
        publish=lambda *_: None,
        flush=lambda: conversation.fail(ends[0]),
    )
    conversation.client = client
    with talk._asked(conversation, "a") as found:
        assert found is subscription
    conversation.failure = None
    ends = [talk._Failed("Permissions Violation")]
    with pytest.raises(talk._Failed, match="Permissions"), talk._asked(conversation, "a"):
        pytest.fail("it is waited for")


def test_what_the_server_forbids_is_said(start_broker: StartBroker):
    rules = "publish: ok.>, subscribe: [ok.>, '_INBOX.>']"
    broker = start_broker(config=f"authorization {{ users [ {{user: a, password: b, permissions: {{ {rules} }} }} ] }}")
    login = ("-p", str(broker.port), "--user", "a", "--password", "b")
    assert ran("pub", "ok.x", "1", *login)[0] == 0
    # A request that is forbidden is not waited for: an answer would have an hour.
    for words in (("pub", "no.x", "1"), ("sub", "no.x"), ("req", "no.x", "--timeout", "3600"), ("reply", "no.x")):
        code, _, error = ran(*words, *login)
        assert code == 1 and "Permissions Violation" in error, words
        assert len(error.splitlines()) == 1
    assert "Authorization Violation" in ran("pub", "ok.x", "1", "-p", str(broker.port))[2]
    variables = {"NATS_URL": broker.url, "NATS_USER": "a", "NATS_PASSWORD": "b"}
    assert ran("pub", "ok.x", "1", "-q", more=variables) == (0, "", "")


def test_credentials_by_key_and_tls(start_broker: StartBroker, tmp_path: Path):
    seed = nkeys.encode_seed(b"0123456789abcdef0123456789abcdef", nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    (tmp_path / "user.nk").write_text(seed.decode())
    authority = Authority(tmp_path)
    config = f"tls {{ {authority.server().lines} }}\nauthorization {{ users [ {{ nkey: {public} }} ] }}"
    broker = start_broker(config=config)
    words = ("pub", "a", "1", "-q", "-p", str(broker.port), "--tlsca", str(authority.path))
    assert ran(*words, "--creds", str(tmp_path / "user.nk")) == (0, "", "")
    assert ran(*words)[0] == 1
    (tmp_path / "user.nk").write_text(seed.decode()[:-1] + "A")
    assert "the nkey seed cannot be used" in ran(*words, "--creds", str(tmp_path / "user.nk"))[2]


@pytest.mark.kinds("gnatswarm-2", "nats-server")
def test_events(start_broker: StartBroker):
    broker = start_broker(config=SYSTEM)
    url = f"127.0.0.1:{broker.port}"
    system = ("-s", f"nats://sys:s@{url}")
    with started("events", "--account", "A", "-n", "2", *system) as watcher:
        assert ran("pub", "x", "1", "-s", f"nats://a:a@{url}")[0] == 0
        shown, _ = watcher.communicate(timeout=30)
    assert "client_connect" in shown and 'a@A "gnatswarm"  from 127.0.0.1' in shown
    for user in ("a:a", "few:f"):  # for the other one asking is forbidden, and not answered
        code, _, error = ran("events", "-s", f"nats://{user}@{url}")
        assert (code, "not in the system account" in error) == (1, True)


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("words", ["pub {} x", "sub {} --count --timeout 0.2"])
def test_a_full_standard_output_is_said_in_one_line(broker: Broker, subject: str, words: str, is_buffered: bool):
    given = environment(**({} if is_buffered else {"PYTHONUNBUFFERED": "1"}))
    if is_buffered:
        given.pop("PYTHONUNBUFFERED", None)
    with open("/dev/full", "wb") as full:
        line = command(*words.format(subject).split(), "-s", broker.url)
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=given)
    error = f"gnatswarm {words.split()[0]}: standard output: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, error)


def test_interrupted_it_ends_well(broker: Broker, subject: str):
    with started("sub", subject, "-s", broker.url) as listener:
        listener.send_signal(signal.SIGINT)
        assert listener.wait(30) == 0


def test_a_server_that_stops_is_waited_for(start_broker: StartBroker, subject: str):
    broker = start_broker()
    with started("sub", subject, "-s", broker.url, "-n", "1") as listener:
        assert listener.stderr is not None
        broker.kill()
        assert "connecting again" in listener.stderr.readline()
        listener.kill()


def test_nobody_listens(unused_port: int):
    code, shown, error = ran("pub", "a", "b", "-p", str(unused_port))
    assert (code, shown) == (1, "")
    assert error == f"gnatswarm pub: 127.0.0.1:{unused_port}: cannot connect: connection refused\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("pub", "a b", "x"), "not a subject: 'a b'\n"),
        (("sub", "a", "a..b"), "not a subject: 'a..b'\n"),
        (("reply", "a.>.b"), "not a subject: 'a.>.b'\n"),
        (("pub", "a.*", "x"), "wildcards are for subscribers"),
        (("req", "a.>", "x"), "wildcards are for subscribers"),
        (("pub",), "the following arguments are required"),
        (("pub", "a", "x", "-H", "nonsense"), "write 'Name: value'"),
        (("pub", "a", "x", "-H", "A: 1", "-H", "A: 2"), "given twice"),
        (("pub", "a", "x", "--lines"), "give no payload"),
        (("reply", "a", "x", "--command", "y"), "give one of them"),
        (("sub", "a", "--timeout", "-1"), "--timeout"),
        (("pub", "a", "x", "--rate", "0"), "--rate 0: a number of messages per second above 0 is wanted"),
        (("pub", "a", "x", "--rate", "-1"), "--rate -1: a number of messages per second above 0 is wanted"),
        (("sub", "a", "-p", "70000"), "a port from 1 to 65535"),
        (("pub", "a", "x", "--creds", "/nonexistent"), "/nonexistent: cannot be read"),
    ],
)
def test_mistakes_of_the_command_line(broker: Broker, words: tuple[str, ...], why: str):
    more = {} if "-p" in words else {"NATS_URL": broker.url}
    code, shown, error = ran(*words, more=more)
    assert code in (1, 2) and shown == "" and why in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("pub", "a", "x", "--reply", "a b"), "pub: not a subject for --reply: 'a b'"),
        (("pub", "a", "x", "--reply", "r 1\r\nx\r\nPUB b"), r"pub: not a subject for --reply: 'r 1\r\nx\r\nPUB b'"),
        (("pub", "a", "x", "--reply", "a.*"), "pub: not a subject for --reply: 'a.*': a message has one subject"),
        (("sub", "a", "--queue", "x y"), "sub: not a name for --queue: 'x y'"),
        (("reply", "a", "--queue", "q 1\r\nPUB b 0\r\n"), r"reply: not a name for --queue: 'q 1\r\nPUB b 0\r\n'"),
        (("events", "--account", "A\t1"), r"events: not an account: 'A\t1'"),
        (("req", "a", "x", "-H", "A: 1\r\nB: 2"), r"req: not a header: 'A': '1\r\nB: 2'"),
        (("reply", "a", "-H", "A B: 1"), "reply: not a header: 'A B': '1'"),
    ],
)
def test_what_would_break_out_of_its_line_is_refused_before_it_connects(
    unused_port: int, words: tuple[str, ...], why: str
):
    code, shown, error = ran(*words, "-p", str(unused_port))
    assert (code, shown) == (2, "")
    assert error.startswith(f"gnatswarm {why}") and len(error.splitlines()) == 1


def test_the_usage_of_events_has_no_subject():
    assert ran("events", "-h")[1].startswith("usage: gnatswarm events [options]\n")


def test_a_payload_may_begin_with_a_dash(broker: Broker, subject: str):
    assert ran("pub", "-s", broker.url, "--", subject, "-x") == (0, "published 1 message, 2 bytes\n", "")


def test_one_byte_is_not_bytes(broker: Broker, subject: str):
    assert ran("pub", "-s", broker.url, subject, "x") == (0, "published 1 message, 1 byte\n", "")


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        ({"type": "io.nats.server.advisory.v1.client_disconnect", "client": {"id": 7, "acc": "A", "host": "h"},
          "reason": "Client \x1b Closed"}, "client_disconnect  cid 7 (no user)@A  from h  Client \\u001b Closed"),
        ({"acc": "A", "conns": 2, "type": "x.account_connections"}, "account_connections  A: 2 connections"),
        ([], "$SYS.X"),
    ],
)  # fmt: skip
def test_an_event_is_one_line(payload: Any, wanted: str):
    message = Message(None, None, "$SYS.X", "", b"", json.dumps(payload).encode())  # type: ignore[arg-type]
    assert talk._event_line(message, 1).partition(" ")[2] == wanted
