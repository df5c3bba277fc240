"""Parses what a server sends into frames.

Strict on purpose: anything that a NATS server may not send is a ProtocolViolation, never skipped. Holds no socket. A
payload is copied once. Cost: about a microsecond a frame; for higher rates use `gnatswarm bench`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

# The longest control line of a server is INFO; this has room for the connect_urls of hundreds of servers.
MAX_LINE_BYTES = 64 * 1024
# A server's max_payload can be 64 MiB at most. A larger size means a broken frame, whose end would never arrive.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class ProtocolViolation(Exception):
    """The server sent something that no NATS server sends."""


class Msg(NamedTuple):
    """A delivered message: MSG or HMSG."""

    subject: str
    sid: int
    reply: str  # "": none
    headers: bytes  # the header block, from NATS/1.0 to the empty line; b"": none
    payload: bytes


class Info(NamedTuple):
    """The server's description of itself."""

    keys: dict[str, Any]


class Err(NamedTuple):
    """-ERR with its text, without quotes."""

    text: str


@dataclass(frozen=True)
class Ping:
    """The server checks whether the client is alive."""


@dataclass(frozen=True)
class Pong:
    """Everything before our PING has taken effect."""


@dataclass(frozen=True)
class Ok:
    """The answer to an operation in verbose mode."""


Frame = Msg | Info | Err | Ping | Pong | Ok

_WORDLESS: dict[bytes, Frame] = {b"PING": Ping(), b"PONG": Pong(), b"+OK": Ok()}


class Parser:
    """Takes bytes in pieces of any size; returns frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted_bytes = 0  # the buffer has no complete frame before it holds this many

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an incomplete frame are buffered."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete; ProtocolViolation at the first invalid one."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at, end = 0, len(buffer)
        if end < self._wanted_bytes:
            return frames
        self._wanted_bytes = 0
        while at < end:
            line_end = buffer.find(b"\r\n", at, at + MAX_LINE_BYTES)
            if line_end < 0:
                if end - at >= MAX_LINE_BYTES:
                    raise ProtocolViolation(f"no end of line in {MAX_LINE_BYTES} bytes: {_shown(buffer[at:])}")
                break
            line = bytes(buffer[at:line_end])
            verb = line[:4]
            if verb == b"MSG " or verb == b"HMSG":
                words = line.split()
                start = line_end + 2
                total_bytes = _checked_size(line, words)
                if end < start + total_bytes + 2:
                    self._wanted_bytes = start + total_bytes + 2 - at
                    break
                frames.append(_message(words, bytes(buffer[start : start + total_bytes])))
                at = start + total_bytes + 2
                if buffer[at - 2 : at] != b"\r\n":
                    raise ProtocolViolation(f"a payload does not end where {_shown(line)} says")
            else:
                frames.append(_WORDLESS.get(line) or _described(line))
                at = line_end + 2
        del buffer[:at]
        return frames


def _checked_size(line: bytes, words: list[bytes]) -> int:
    """How many bytes follow a message's control line, CRLF not counted."""
    least = 5 if words[0] == b"HMSG" else 4
    if not least <= len(words) <= least + 1 or not words[2].isdigit():
        raise ProtocolViolation(f"bad arguments: {_shown(line)}")
    total_bytes = _size(words[-1], line)
    if least == 5 and _size(words[-2], line) > total_bytes:
        raise ProtocolViolation(f"headers longer than their message: {_shown(line)}")
    return total_bytes


def _message(words: list[bytes], body: bytes) -> Msg:
    header_bytes = int(words[-2]) if words[0] == b"HMSG" else 0
    has_reply = len(words) == (6 if words[0] == b"HMSG" else 5)
    subject = words[1].decode("utf-8", "surrogateescape")
    reply = words[3].decode("utf-8", "surrogateescape") if has_reply else ""
    return Msg(subject, int(words[2]), reply, body[:header_bytes], body[header_bytes:])


def _size(word: bytes, line: bytes) -> int:
    if not word.isdigit() or int(word) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"bad size: {_shown(line)}")
    return int(word)


def _described(line: bytes) -> Frame:
    if line.startswith(b"INFO "):
        try:
            keys = json.loads(line[5:])
        except ValueError:
            keys = None
        if not isinstance(keys, dict):
            raise ProtocolViolation(f"INFO without a JSON object: {_shown(line)}")
        return Info(keys)
    if line.startswith(b"-ERR"):
        return Err(line[4:].strip().strip(b"'").decode("utf-8", "replace"))
    raise ProtocolViolation(f"no operation of a server: {_shown(line)}")


def _shown(data: bytes | bytearray) -> str:
    text = bytes(data[:80])
    return f"{text!r} …" if len(data) > 80 else repr(text)
