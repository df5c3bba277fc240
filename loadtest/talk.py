"""`gnatswarm pub`, `sub`, `req`, `reply` and `events`: a client for the terminal and for scripts.

Each command is a function of its arguments and a connected client; `main` parses, connects and reports. Works with any
NATS server. Exit code 0: done; 1: it could not be done, with one line on standard error; 2: error in the command line.
Text for people shows control characters by number, so that a message cannot drive the terminal; --raw does not.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NoReturn

from gnatswarm.loadtest.amounts import count, rate
from gnatswarm.loadtest.command_parser import FULL, CommandParser, discard_output
from gnatswarm.loadtest.credentials import ANONYMOUS, BadCredentials, Credentials
from gnatswarm.loadtest.errors import AuthenticationError, Disconnected, NatsError, NoResponders, RequestTimeout
from gnatswarm.loadtest.handshake import tls_context
from gnatswarm.loadtest.message import Message, header_block
from gnatswarm.loadtest.natswire import Client, Settings
from gnatswarm.loadtest.subscription import Subscription
from gnatswarm.loadtest.wireparser import ProtocolViolation
from gnatswarm.loadtest.word import has_blanks

DEFAULT_PORT = 4222
# Of messages per second: one in twelve days.
LEAST_RATE = 1e-6
# Where a server states no max_payload: the largest that nats-server can have.
MOST_BYTES = 64 * 1024 * 1024
# Between two requests of --wait while nobody subscribes.
ASK_AGAIN_S = 0.1
EVENTS = ("$SYS.ACCOUNT.>", "$SYS.SERVER.>")

COMMANDS = {
    "pub": "Publish messages.",
    "sub": "Show the messages on some subjects.",
    "req": "Send a request and show its response.",
    "reply": "Answer requests.",
    "events": "Show a broker's events: connections, refused log-ins, shutdown. Needs a user of the system account.",
}
EXAMPLES = {
    "pub": """\
examples:
  gnatswarm pub orders.created '{"id": 1}' -H 'Trace: 7'
  gnatswarm pub logs --lines < access.log           a message for each line
  gnatswarm pub ticks -n 1000 --rate 100 tick
""",
    "sub": """\
examples:
  gnatswarm sub 'orders.>'
  gnatswarm sub jobs --queue workers -n 1 --raw     one payload, as it is
  gnatswarm sub '>' --count                         messages and bytes per second
""",
    "req": """\
examples:
  gnatswarm req greet.joe hello
  gnatswarm req report.daily --wait 30              wait for somebody who answers
""",
    "reply": """\
examples:
  gnatswarm reply echo                              the request comes back
  gnatswarm reply time --command date               what the command prints; the request is its input
""",
    "events": """\
examples:
  gnatswarm events --user sys --password s
  gnatswarm events --account A --json
""",
}


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}\nrun {self.prog} -h to see every option\n")
        raise SystemExit(2)


class _Failed(Exception):
    """The command could not do its work; the text is for the user."""


def arguments(command: str) -> argparse.ArgumentParser:
    """The command line of this command."""
    # The usage line is short, so that the first line of the help fits a screen.
    operands = {
        "pub": "SUBJECT [PAYLOAD]",
        "sub": "SUBJECT …",
        "req": "SUBJECT [PAYLOAD]",
        "reply": "SUBJECT [PAYLOAD]",
        "events": "",
    }
    parser = _Parser(
        f"gnatswarm {command}",
        usage=f"gnatswarm {command} [options] {operands.get(command, 'SUBJECT [PAYLOAD]')}".rstrip(),
        description=COMMANDS[command],
        epilog=EXAMPLES[command],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    if command == "sub":
        add("subjects", nargs="+", metavar="SUBJECT", help="subjects; * is one word, a last > the rest")
    elif command != "events":
        add("subject", metavar="SUBJECT", help="the subject")
        what = {"pub": "the message", "req": "the request", "reply": "the response (default: the request itself)"}
        default = "" if command == "reply" else " (default: standard input, if it is no terminal)"
        add("payload", nargs="?", metavar="PAYLOAD", help=what[command] + default)
    if command == "pub":
        add("-n", "--number", type=count, default=1, metavar="N", help="publish so many times (default: 1)")
        add("--rate", type=rate, metavar="N", help="so many messages per second (default: no limit)")
        add("--lines", action="store_true", help="a message for each line of standard input")
        add("--reply", default="", metavar="SUBJECT", help="the subject for responses")
    elif command == "req":
        add("-n", "--number", type=count, default=1, metavar="N", help="wait for so many responses (default: 1)")
        add("--timeout", type=float, default=5.0, metavar="S", help="seconds to wait for them (default: 5)")
        add("--wait", type=float, default=0.0, metavar="S", help="try again so long while nobody subscribes")
    elif command == "reply":
        add("-n", "--number", type=count, default=0, metavar="N", help="end after so many requests (default: never)")
        add("--queue", default="", metavar="NAME", help="answer as a member of this queue group")
        add("--command", default="", metavar="LINE", help="answer what this shell command prints; it reads the request")
    else:
        add("-n", "--number", type=count, default=0, metavar="N", help="end after so many messages (default: never)")
        add("--timeout", type=float, default=0.0, metavar="S", help="end after so many seconds (default: never)")
    if command == "sub":
        add("--queue", default="", metavar="NAME", help="subscribe as a member of this queue group")
        add("--count", action="store_true", help="show messages and bytes per second, not the messages")
    elif command == "events":
        add("--account", default="*", metavar="NAME", help="events of this account only")
    if command in ("pub", "req", "reply"):
        add("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header; may be repeated")
    if command in ("sub", "req"):
        add("--raw", action="store_true", help="print the payloads alone, as they are, each with a line break")
    add("--json", action="store_true", help="one JSON document per line")
    if command in ("pub", "reply"):
        add("-q", "--quiet", action="store_true", help="print errors only")
    _add_connection(parser)
    return parser


def _add_connection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the server").add_argument
    add("-s", "--server", default="", metavar="URL", help="default: $NATS_URL, or nats://127.0.0.1:4222")
    add("-p", "--port", type=int, default=0, metavar="PORT", help="a port of this host, instead of a URL")
    add("--user", default="", metavar="NAME", help="default: $NATS_USER; a token, if there is no password")
    add("--password", default="", metavar="WORD", help="default: $NATS_PASSWORD, which other users cannot see")
    add("--creds", default="", metavar="FILE", help="a .creds file or an nkey seed (default: $NATS_CREDS)")
    add("--tlsca", default="", metavar="FILE", help="authorities to trust (default: $NATS_CA, or the system's)")
    add("--tlscert", default="", metavar="FILE", help="our certificate (default: $NATS_CERT)")
    add("--tlskey", default="", metavar="FILE", help="its key (default: $NATS_KEY)")
    add("--tlsfirst", action="store_true", help="TLS before INFO, for servers with handshake_first")


def main(argv: Sequence[str]) -> int:
    """Run the command in argv[0] with the rest; returns the exit code."""
    command = argv[0]
    parser = arguments(command)
    # Options may come between the words, but not where a -- says which words are no options.
    options = parser.parse_args(argv[1:]) if "--" in argv else parser.parse_intermixed_args(argv[1:])
    try:
        # (blocked by who started it: before, ^C would be a traceback)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = _run(command, options)
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
        return code
    except (NatsError, BadCredentials, ProtocolViolation, _Failed) as error:
        return _complain(command, str(error) or type(error).__name__, 1)
    except ValueError as error:
        return _complain(command, str(error), 2)
    except BrokenPipeError:  # whoever reads our output has exited
        discard_output()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in FULL and not where:  # it writes nothing else
            discard_output()
            where = "standard output: "
        return _complain(command, where + (error.strerror or str(error)).lower(), 1)
    except KeyboardInterrupt:
        # ^C is how those that go on are ended.
        return 130 if command in ("pub", "req") else 0


def _complain(command: str, why: str, code: int) -> int:
    print(f"gnatswarm {command}: {why}", file=sys.stderr)
    return code


def _check_words(command: str, options: argparse.Namespace) -> None:
    """Say what is wrong with a word of what will be sent, before it connects; ValueError."""
    for subject in getattr(options, "subjects", None) or [getattr(options, "subject", "x")]:
        _check_subject(subject, "a subject", is_sent=command in ("pub", "req"))
    if reply := getattr(options, "reply", ""):
        _check_subject(reply, "a subject for --reply", is_sent=True)
    if has_blanks(queue := getattr(options, "queue", "")):
        raise ValueError(f"not a name for --queue: {queue!r}")
    if command == "events" and ("" in options.account.split(".") or has_blanks(options.account)):
        raise ValueError(f"not an account: {options.account!r}")
    header_block(_headers(getattr(options, "header", ())) or {})


def _check_subject(subject: str, what: str, *, is_sent: bool) -> None:
    tokens = subject.split(".")
    if "" in tokens or has_blanks(subject) or ">" in tokens[:-1]:
        raise ValueError(f"not {what}: {subject!r}")
    if is_sent and ("*" in tokens or ">" in tokens):
        raise ValueError(f"not {what}: {subject!r}: a message has one subject, wildcards are for subscribers")


def _run(command: str, options: argparse.Namespace) -> int:
    _check_words(command, options)
    for name in ("timeout", "wait"):
        if not 0 <= getattr(options, name, 0) <= 86_400 * 365:
            raise ValueError(f"--{name}: a number of seconds from 0 to a year is wanted")
    if (per_s := getattr(options, "rate", None)) is not None and not per_s >= LEAST_RATE:
        raise ValueError(f"--rate {per_s:g}: a number of messages per second above 0 is wanted")
    url, settings = _connection(options)
    if command in ("pub", "req"):
        return _with_client(url, settings, _publish if command == "pub" else _request, options)
    # These run until they are stopped: a server that restarts is waited for.
    settings = replace(settings, max_reconnects=-1, on_reconnect=lambda: _note(command, "connected again"))
    return _with_client(url, settings, {"sub": _subscribe, "reply": _respond, "events": _events}[command], options)


def _with_client(
    url: str, settings: Settings, work: Callable[[_Conversation, argparse.Namespace], int], options: argparse.Namespace
) -> int:
    talk = _Conversation()
    lost = replace(settings, on_error=talk.on_error, on_disconnect=talk.on_disconnect, name="gnatswarm")
    talk.is_patient = settings.max_reconnects != 0
    talk.client = Client(url, lost)
    talk.client.connect()
    try:
        return work(talk, options)
    finally:
        talk.client.close()


def _connection(options: argparse.Namespace) -> tuple[str, Settings]:
    environment = os.environ.get
    if options.port and options.server:
        raise ValueError("-p and -s: give one of them")
    if not 0 <= options.port <= 65535:
        raise ValueError(f"-p {options.port}: a port from 1 to 65535 is wanted")
    url = f"nats://127.0.0.1:{options.port}" if options.port else options.server
    url = url or environment("NATS_URL", "") or f"nats://127.0.0.1:{DEFAULT_PORT}"
    user = options.user or environment("NATS_USER", "")
    password = options.password or environment("NATS_PASSWORD", "")
    creds = options.creds or environment("NATS_CREDS", "")
    credentials = ANONYMOUS
    if creds:
        credentials = Credentials.from_file(creds)
    elif user:
        credentials = Credentials(user=user, password=password) if password else Credentials(token=user)
    elif options.password:
        raise ValueError("--password without --user")
    ca, cert, key = (
        getattr(options, f"tls{name}") or environment(f"NATS_{name.upper()}", "") for name in ("ca", "cert", "key")
    )
    # A context takes some milliseconds to make, and few servers need it before INFO.
    tls = tls_context(ca, cert, key) if ca or cert or key or options.tlsfirst else None
    return url, Settings(credentials=credentials, tls=tls, tls_first=options.tlsfirst)


class _Done:
    """An event that ^C always ends.

    Waiting for a lock or a queue goes on if the signal comes in the instant before it begins. Here the signal is a byte
    in the pipe that is waited for, too.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._pipe, self._told = os.pipe()
        for end in (self._pipe, self._told):
            os.set_blocking(end, False)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(BlockingIOError):  # it is full of signals
            os.write(self._told, b"x")

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it was set within that time; None: no limit."""
        until_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_set and (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._pipe], [], [], None if timeout_s is None else left_s)[0]:
                os.read(self._pipe, 4096)
        return self._is_set


class _Conversation:
    """A client, what has gone wrong meanwhile, and the event that ends a command."""

    client: Client

    def __init__(self) -> None:
        self.done = _Done()
        self.errors: list[str] = []
        self.failure: BaseException | None = None  # in a callback
        self.is_patient = False  # the client connects again

    def on_error(self, error: NatsError) -> None:
        self.errors.append(str(error))
        if "violation" in str(error).lower() and self.is_patient:
            self.fail(_Failed(str(error)))  # a subscription that is forbidden gets nothing, however long one waits

    def on_disconnect(self, lost: NatsError) -> None:
        if isinstance(lost, AuthenticationError) or not self.is_patient:
            self.fail(lost)
        else:
            print(f"gnatswarm: {lost}; connecting again", file=sys.stderr)

    def fail(self, why: BaseException) -> None:
        self.failure = self.failure or why
        self.done.set()

    def check(self) -> None:
        """Raise what has gone wrong."""
        if self.failure is not None:
            raise self.failure
        if self.errors:
            raise _Failed(self.errors[0])

    def check_allowed(self) -> None:
        """Raise what has gone wrong, but for the end of the connection: what came before it is shown first."""
        if not isinstance(self.failure, Disconnected):
            self.check()

    def wait(self, timeout_s: float) -> bool:
        """Whether `done` was set within that time; 0: no limit. ^C ends it, as if it had."""
        try:
            is_done = self.done.wait(timeout_s or None)
        except KeyboardInterrupt:
            return True
        self.check()
        return is_done


# ---- the commands


def _publish(talk: _Conversation, options: argparse.Namespace) -> int:
    headers = _headers(options.header)
    begun = time.monotonic()
    sent = size = 0
    for payload in _payloads(options, _most_bytes(talk)):
        if options.rate is not None:
            # Errors of the server end a slow run at once.
            talk.done.wait(max(0.0, begun + sent / options.rate - time.monotonic()))
        elif sent % 1000 == 0 and sent:
            talk.client.flush(timeout_s=30)
        talk.check()
        talk.client.publish(options.subject, payload, options.reply, headers)
        sent += 1
        size += len(payload)
    try:
        talk.client.flush(timeout_s=30)
    except Disconnected:
        talk.check()
        raise
    talk.check()
    took_s = time.monotonic() - begun
    if options.json:
        _print_json({"published": sent, "bytes": size, "seconds": round(took_s, 6)})
    elif not options.quiet:
        speed = f", {sent / took_s:,.0f} per second" if sent > 1 else ""
        print(f"published {_messages(sent)}, {_bytes(size)}{speed}")
    return 0


def _most_bytes(talk: _Conversation) -> int:
    """The server's max_payload: standard input may have no end."""
    most = talk.client.info.get("max_payload")
    return most if isinstance(most, int) and most > 0 else MOST_BYTES


def _payloads(options: argparse.Namespace, most: int) -> Iterator[bytes]:
    if not options.lines:
        payload = _payload(options.payload, most)
        for _ in range(options.number):
            yield payload
        return
    if options.payload is not None:
        raise ValueError("--lines reads standard input: give no payload")
    number = 0
    while line := sys.stdin.buffer.readline(most + 3):  # with \r\n, and one more
        number += 1
        payload = line.rstrip(b"\r\n")
        if len(payload) > most or len(line) == most + 3:
            raise _too_large(f"line {number}", most)
        for _ in range(options.number):
            yield payload


def _subscribe(talk: _Conversation, options: argparse.Namespace) -> int:
    return _listen(talk, options, options.subjects, options.queue, _shown)


def _events(talk: _Conversation, options: argparse.Namespace) -> int:
    try:
        with _asked(talk, "$SYS.REQ.SERVER.PING") as subscription:
            is_answered = subscription.next(5).status != 503
    except (_Failed, RequestTimeout):
        is_answered = False
    if not is_answered:
        raise _Failed("this user is not in the system account, so it gets no events (--user, --password)")
    account = options.account
    subjects = EVENTS if account == "*" else (f"$SYS.ACCOUNT.{account}.>",)
    options.count = options.raw = False
    return _listen(talk, options, subjects, "", _event_line)


def _listen(
    talk: _Conversation,
    options: argparse.Namespace,
    subjects: Sequence[str],
    queue: str,
    shown: Callable[[Message, int], str],
) -> int:
    """Show messages until there are enough, the time is up, or ^C."""
    got = size = 0

    def take(message: Message) -> None:
        # On the reading thread: a terminal that is slow to show messages slows the server down, and fills no memory.
        nonlocal got, size
        if talk.done.is_set():
            return
        got += 1
        size += len(message.payload)
        try:
            if not options.count:
                _print_message(message, got, options, shown)
        except OSError as error:
            talk.fail(error)
        if got == options.number:
            talk.done.set()

    for subject in subjects:
        talk.client.subscribe(subject, take, queue)
    talk.client.flush()
    talk.check()
    if not options.count:
        print(f"subscribed to {', '.join(subjects)}", file=sys.stderr)
        is_done = talk.wait(options.timeout)
    else:
        is_done = _show_rates(talk, options, lambda: (got, size))
    if not is_done and options.number:
        raise _Failed(f"{got} of {_messages(options.number)} within {options.timeout:g} s")
    return 0


def _show_rates(talk: _Conversation, options: argparse.Namespace, totals: Callable[[], tuple[int, int]]) -> bool:
    """A line each second, and one with the sums at the end."""
    begun = last_s = time.monotonic()
    until = begun + options.timeout if options.timeout else float("inf")
    last = (0, 0)
    is_done = False
    while not is_done and (now_s := time.monotonic()) < until:
        is_done = talk.wait(min(1.0, until - now_s))
        now_s, now = time.monotonic(), totals()
        took_s = max(now_s - last_s, 1e-9)
        _print_counts(options, "", now[0] - last[0], now[1] - last[1], took_s)
        last_s, last = now_s, now
    _print_counts(options, "in all: ", *last, max(time.monotonic() - begun, 1e-9))
    return is_done


def _print_counts(options: argparse.Namespace, title: str, messages: int, size: int, took_s: float) -> None:
    if options.json:
        _print_json({"messages": messages, "bytes": size, "seconds": round(took_s, 6), "is_total": bool(title)})
    else:
        print(f"{title}{_messages(messages)}, {_bytes(size)}; {messages / took_s:,.0f} per second", flush=True)


def _request(talk: _Conversation, options: argparse.Namespace) -> int:
    payload, headers = _payload(options.payload, _most_bytes(talk)), _headers(options.header)
    until = time.monotonic() + options.wait
    while True:
        try:
            responses = _responses(talk, options, payload, headers)
            break
        except NoResponders:
            if time.monotonic() >= until:
                raise
            talk.done.wait(ASK_AGAIN_S)
            talk.check()
    for number, message in enumerate(responses, 1):
        _print_message(message, number, options, _response_shown)
    talk.check()
    if len(responses) < options.number:
        missing = f"{len(responses)} of {options.number} responses within {options.timeout:g} s"
        raise _Failed(missing)
    return 0


def _responses(
    talk: _Conversation, options: argparse.Namespace, payload: bytes, headers: Mapping[str, str] | None
) -> list[Message]:
    """NoResponders, RequestTimeout: there is none at all."""
    found: list[Message] = []
    until = time.monotonic() + options.timeout
    with _asked(talk, options.subject, payload, headers) as subscription:
        try:
            while len(found) < options.number:
                message = subscription.next(max(0.0, until - time.monotonic()))
                if message.status == 503 and not message.payload:
                    raise NoResponders(f"nobody subscribes to {options.subject}")
                found.append(message)
        except RequestTimeout:
            if not found:
                raise RequestTimeout(f"no answer from {options.subject} within {options.timeout:g} s") from None
        except Disconnected as lost:
            if not found:
                raise
            talk.fail(lost)  # after those that came have been shown
    return found


@contextlib.contextmanager
def _asked(
    talk: _Conversation, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None
) -> Iterator[Subscription]:
    """Send a request; its responses come to this subscription. One that is forbidden fails at once."""
    inbox = f"_INBOX.{os.urandom(11).hex()}"
    subscription = talk.client.subscribe(inbox)
    try:
        talk.client.publish(subject, payload, inbox, headers)
        talk.client.flush()  # the server's refusal comes before its PONG
        talk.check_allowed()
        yield subscription
    finally:
        with contextlib.suppress(Disconnected):
            subscription.unsubscribe()


def _respond(talk: _Conversation, options: argparse.Namespace) -> int:
    headers = _headers(options.header)
    if options.command and options.payload is not None:
        raise ValueError("--command and a payload: give one of them")
    fixed = None if options.payload is None else options.payload.encode("utf-8", "surrogateescape")
    answered = 0

    def take(message: Message) -> None:
        nonlocal answered
        if talk.done.is_set() or not message.reply:
            return  # only requests are counted
        try:
            message.respond(_response(message, fixed, options.command), headers)
            answered += 1
            if options.json:
                _print_json(_document(message, answered))
            elif not options.quiet:
                print(f"#{answered} {_safe(message.subject)}  {_bytes(len(message.payload))}", flush=True)
        except (OSError, _Failed, NatsError) as error:
            talk.fail(error)
        if answered == options.number:
            talk.done.set()

    talk.client.subscribe(options.subject, take, options.queue)
    talk.client.flush()
    talk.check()
    if not options.quiet:
        print(f"answering {options.subject}", file=sys.stderr)
    talk.wait(0)
    with contextlib.suppress(Disconnected):
        talk.client.flush()  # the last response has arrived
    return 0


def _response(message: Message, fixed: bytes | None, command: str) -> bytes:
    if not command:
        return message.payload if fixed is None else fixed
    environment = {**os.environ, "NATS_SUBJECT": message.subject}
    done = subprocess.run(
        ["sh", "-c", command], input=message.payload, stdout=subprocess.PIPE, env=environment, check=False
    )
    if done.returncode:
        raise _Failed(f"the command ended with {done.returncode}: {command}")
    return done.stdout


# ---- input and output


def _payload(given: str | None, most: int) -> bytes:
    """The payload; of standard input no more is read than what shows that it is too large."""
    if given is not None:
        return given.encode("utf-8", "surrogateescape")
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    found = sys.stdin.buffer.read(most + 1)
    if len(found) > most:
        raise _too_large("standard input", most)
    return found


def _too_large(what: str, most: int) -> _Failed:
    return _Failed(f"{what} is more than a message may have: the server's max_payload is {_bytes(most)}")


def _headers(lines: Sequence[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"-H {line!r}: write 'Name: value'")
        if name in found:
            raise ValueError(f"-H {line!r}: {name} is given twice")
        found[name] = value.strip()
    return found or None


def _messages(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    return f"{number:,} byte{'' if number == 1 else 's'}"


def _note(command: str, text: str) -> None:
    print(f"gnatswarm {command}: {text}", file=sys.stderr)


def _print_json(document: Mapping[str, object]) -> None:
    print(json.dumps(document, ensure_ascii=False), flush=True)


def _print_message(
    message: Message, number: int, options: argparse.Namespace, shown: Callable[[Message, int], str]
) -> None:
    if options.raw:
        sys.stdout.buffer.write(message.payload + b"\n")
        sys.stdout.buffer.flush()
    elif options.json:
        _print_json(_document(message, number))
    else:
        print(shown(message, number), flush=True)


def _document(message: Message, number: int) -> dict[str, object]:
    found: dict[str, object] = {"number": number, "time": datetime.now().astimezone().isoformat()}
    found["subject"] = message.subject
    if message.reply:
        found["reply"] = message.reply
    if message.headers:
        found["headers"] = message.headers
    if message.status:
        found["status"] = message.status
    try:
        found["data"] = message.payload.decode()
    except UnicodeDecodeError:
        found["data_base64"] = base64.b64encode(message.payload).decode()
    return found


def _safe(text: str, *, but: str = "") -> str:
    """The text without characters that move the cursor, change colours, or turn the direction of what follows."""
    return "".join(one if one.isprintable() or one in but else f"\\u{ord(one):04x}" for one in text)


def _body(message: Message) -> list[str]:
    lines = [f"{_safe(name)}: {_safe(value)}" for name, value in message.headers.items()]
    text = message.payload.decode("utf-8", "replace")
    return [*lines, *([""] if lines and text else []), *([_safe(text, but="\n\t")] if text else [])]


def _shown(message: Message, number: int) -> str:
    reply = f"  reply {_safe(message.reply)}" if message.reply else ""
    first = f"#{number} {_safe(message.subject)}{reply}  {_bytes(len(message.payload))}"
    return "\n".join((first, *_body(message)))


def _response_shown(message: Message, number: int) -> str:
    return "\n".join(_body(message))


def _event_line(message: Message, number: int) -> str:
    """One line: time, what, who, from where, why."""
    try:
        document = json.loads(message.payload)
        client = document.get("client") or {}
        kind = str(document.get("type", "")).rpartition(".")[2] or message.subject.rpartition(".")[2].lower()
    except (ValueError, AttributeError):
        return f"{datetime.now():%H:%M:%S} {_safe(message.subject)}"
    if message.subject.endswith("AUTH.ERR"):
        kind = "refused"
    words = [kind]
    if client:
        name = f' "{client["name"]}"' if client.get("name") else ""
        words.append(f"cid {client.get('id')} {client.get('user') or '(no user)'}@{client.get('acc')}{name}")
        words.append(f"from {client.get('host')}")
    elif "acc" in document:
        words.append(f"{document['acc']}: {document.get('conns')} connections")
    if document.get("reason"):
        words.append(str(document["reason"]))
    return _safe(f"{datetime.now():%H:%M:%S} {'  '.join(words)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
