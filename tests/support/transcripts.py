r"""Transcripts: what clients say and what the broker answers, as text files that run against any broker.

The first line is a comment, a sentence that says what the transcript shows. Then, one directive a line:

    # args: --auth secret            options of its broker, which no other clients use meanwhile; without `args` and
    #                                `config` it is one that all tests share
    # config:                        a configuration file; its text follows, indented behind `#`
    #   max_payload: 100
    # kinds: gnatswarm-1             only on these brokers
    # whole only: <reason>           do not replay byte by byte
    # <anything else>                a remark
    C: PUB foo 2                     the client sends this and CRLF
    C>: PING\n                       the client sends exactly this, no CRLF added
    S: MSG foo 1 2                   the server sends exactly this and CRLF, and it is the next thing it sends
    S>: PONG\r\n                     the server sends exactly this
    S~: -ERR '.*'                    the next line matches this regular expression as a whole
    S: <closed>                      the server closes, and said nothing more
    S: <nothing>                     nothing is on its way: a PING sent now is answered next
    S[2.15]: …                       only brokers that are like nats-server 2.15 say it; C and the other forms likewise

`C1:`/`S1:`, `C2:`/`S2:` and so on are several clients; `C:` is client 1. A client connects at its first line; its INFO
is read then, and can be matched only by an `S~: INFO …` as that first line. `C1: <close>` closes from our side,
`C1: <shut>` ends our sending only.
Escapes: \r \n \t \0 \\ \xNN, a trailing space as \x20, and \{x*1000} for a thousand times x. Text goes out as UTF-8.

Directives run in order. Lines of one client that follow one another are sent as one segment, or one byte a segment.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import NEW, OLD
from tests.support.wire import Client, Closed, Cluster

_DIRECTIVE = re.compile(r"([CS])(\d*)(?:\[([\d.]+)\])?([>~]?):(?: (.*))?")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|\{(.+?)\*(\d+)\}|(.))", re.DOTALL)
_PLAIN_ESCAPES = {b"r": b"\r", b"n": b"\n", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
_SUB = re.compile(rb"(?im)^sub[ \t]+\S+[ \t]+(?:\S+[ \t]+)?(\S+)[ \t]*\r?$")


class TranscriptError(Exception):
    """The transcript itself is wrong: file, line, what."""


def unescaped(text: str, where: str) -> bytes:
    def replacement(found: re.Match[bytes]) -> bytes:
        code, repeated, times, letter = found.groups()
        if code is not None:
            return bytes([int(code, 16)])
        if repeated is not None:
            return bytes(_ESCAPE.sub(replacement, repeated)) * int(times)
        if letter not in _PLAIN_ESCAPES:
            raise TranscriptError(f"{where}: unknown escape \\{letter!r}")
        return _PLAIN_ESCAPES[letter]

    return _ESCAPE.sub(replacement, text.encode("utf-8"))


@dataclass(frozen=True)
class Step:
    """One directive: `what` is send, close, shut, expect, match, closed or nothing."""

    what: str
    client: int
    line: int
    data: bytes = b""
    pattern: str = ""
    version: str = ""  # of the nats-server that alone does it; "": all do


@dataclass
class Transcript:
    """One file, parsed."""

    path: Path
    shows: str
    steps: list[Step] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    config: str | None = None
    kinds: list[str] | None = None
    is_whole_only: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def wants_own_broker(self) -> bool:
        return bool(self.args) or self.config is not None

    def __str__(self) -> str:
        return self.name


def load(path: Path) -> Transcript:
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not re.fullmatch(r"# .+\.", lines[0]):
        raise TranscriptError(f"{path.name}:1: the first line has to be a comment, a sentence that ends in a full stop")
    transcript = Transcript(path, lines[0][2:])
    config: list[str] | None = None
    for number, line in enumerate(lines[1:], start=2):
        where = f"{path.name}:{number}"
        if line.startswith("#"):
            text = line[1:]
            if config is not None and text.startswith("   "):
                config.append(text[3:])
            elif text.startswith(" args:"):
                transcript.args = text.removeprefix(" args:").split()
            elif text.rstrip() == " config:":
                config = []
            elif text.startswith(" kinds:"):
                transcript.kinds = text.removeprefix(" kinds:").split()
            elif text.startswith(" whole only:"):
                transcript.is_whole_only = True
            continue
        if not line.strip():
            continue
        found = _DIRECTIVE.fullmatch(line)
        if not found:
            raise TranscriptError(f"{where}: not a directive: {line!r}")
        transcript.steps.append(_step(found, number, where))
    if config is not None:
        transcript.config = "\n".join(config) + "\n"
    if not any(step.what not in ("send", "close", "shut") for step in transcript.steps):
        raise TranscriptError(f"{path.name}: expects nothing, so it cannot fail")
    return transcript


def _step(found: re.Match[str], number: int, where: str) -> Step:
    side, client_text, version, mode, text = found.groups()
    client, text, version = int(client_text or 1), text or "", version or ""
    if version and version not in (OLD, NEW):
        raise TranscriptError(f"{where}: there is no oracle {version}")
    if side == "C":
        if mode == "~":
            raise TranscriptError(f"{where}: C~ has no meaning")
        if text in ("<close>", "<shut>"):
            return Step(text.strip("<>"), client, number, version=version)
        data = unescaped(text, where) + (b"" if mode == ">" else b"\r\n")
        return Step("send", client, number, data, version=version)
    if mode == "~":
        return Step("match", client, number, pattern=text, version=version)
    if text in ("<closed>", "<nothing>"):
        return Step(text.strip("<>"), client, number, version=version)
    data = unescaped(text, where) + (b"" if mode == ">" else b"\r\n")
    return Step("expect", client, number, data, version=version)


def load_all(directory: Path) -> list[Transcript]:
    return [load(path) for path in sorted(directory.rglob("*.txt"))]


def joined(steps: Sequence[Step]) -> list[Step]:
    """Neighbouring sends of one client become one, and so do neighbouring expectations of exact bytes."""
    result: list[Step] = []
    for step in steps:
        last = result[-1] if result else None
        if last and step.what == last.what and step.client == last.client and step.what in ("send", "expect"):
            result[-1] = Step(step.what, step.client, last.line, last.data + step.data)
        else:
            result.append(step)
    return result


async def run(transcript: Transcript, cluster: Cluster, piece_bytes: int | None = None) -> None:
    """Play it; the client side in segments of `piece_bytes`, or as large as they come. AssertionError says where."""
    like = cluster.broker.kind.compatibility
    steps = joined([step for step in transcript.steps if step.version in ("", like)])
    numbers = sorted({step.client for step in steps})
    speaks_of_pings = any(step.what == "expect" and step.data.startswith(b"PING\r\n") for step in steps)
    clients: dict[int, Client] = {}
    said: dict[int, bytes] = {}
    for step in steps:
        try:
            if step.client not in clients:
                on = numbers.index(step.client)
                # A broker with options of its own may count connections: no tries for placement there.
                client = await (cluster.raw() if transcript.wants_own_broker else cluster.raw_on(on))
                client.ignores_pings = not speaks_of_pings
                clients[step.client] = client
                if step.what == "match" and step.pattern.startswith("INFO"):
                    line = client.info_line[:-2].decode("utf-8", "surrogateescape")
                    assert re.fullmatch(step.pattern, line), f"INFO is {line!r}"
                    continue
            client = clients[step.client]
            if step.what == "send":
                said[step.client] = said.get(step.client, b"") + step.data
            await _play(step, client, piece_bytes)
        except Exception as error:
            where = f"{transcript.path.name}:{step.line}: client {step.client}, {step.what}"
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    if not transcript.wants_own_broker:
        for number, client in clients.items():
            await _leave(client, said.get(number, b""))


async def _play(step: Step, client: Client, piece_bytes: int | None) -> None:
    match step.what:
        case "send":
            await client.send_split(step.data, piece_bytes or len(step.data))
        case "close":
            client.close()
        case "shut":
            client.shut_writing()
        case "expect":
            await client.expect(step.data)
        case "match":
            await client.expect_line(step.pattern)
        case "closed":
            rest = await client.wait_closed()
            assert rest == b"", f"before it closed, the server said {rest!r}"
        case "nothing":
            await client.expect_quiet()


async def _leave(client: Client, said: bytes) -> None:
    """Take back the subscriptions made here: a shared broker may see our close later than the next test."""
    if client.is_ended or client.sock.fileno() < 0:
        return
    sids = {found[1] for found in _SUB.finditer(said)}
    if sids:
        await client.send(b"".join(b"UNSUB " + sid + b"\r\n" for sid in sids))
        # Tidying up after a test that has already passed is not a reason to fail it: the client may be half-way
        # through a payload, or closed.
        with contextlib.suppress(TimeoutError, Closed):
            await client.flush(deadline_s=1.0)
    client.close()
