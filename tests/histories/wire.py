"""One connection of a recorded client: what it writes and reads goes into the history.

Not tests.support.wire: that client waits for what a test expects, this one takes whatever comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from random import Random
from time import monotonic_ns
from typing import Any, cast

from tests.histories.doors import Door, Frames
from tests.histories.events import Close, Closed, Msg, Nobody, Odd, Open, Ping, Pong, Pub, Recorder, Sub, Unsub

INBOX_SID = 0
# Payloads are filled with this after the number of their message.
FILLING = b"0123456789abcdef" * 12_500
NO_RESPONDERS = b"NATS/1.0 503"
FROM_ANOTHER_ACCOUNT = re.compile(rb'NATS/1.0\r\nNats-Request-Info: {"acc":"AWAY"(,"rtt":\d+)?}\r\n\r\n')
# The longest time for which a slow client reads nothing.
MOST_SLOW_S = 0.2


def payload(message: int, filling_bytes: int) -> bytes:
    return b"%d." % message + FILLING[:filling_bytes]


class Wire(asyncio.Protocol):
    """From dialling to the end. Operations are written by `send`; what is read is recorded at once."""

    def __init__(self, recorder: Recorder, conn: int, door: Door) -> None:
        self.conn = conn
        self.door = door
        self.record = recorder
        self.info: dict[str, Any] = {}
        self.place = ""
        self.is_over = False
        self.is_shut = False  # nothing can be written any more
        self.is_leaving = False  # the broker asked its clients to go elsewhere
        self.pings = 0
        self.pongs = 0
        self.on_pong: Callable[[], None] | None = None
        self.requests: list[tuple[str, int]] = []  # what wants an answer: (reply subject, message)
        self.names: dict[str, str] = {}  # of reply subjects that the broker has generated
        self.changed = asyncio.Event()
        self._frames = Frames(door) if door.is_framed else None
        self._rng = Random(conn)
        self._rest = b""
        self._made: asyncio.Transport | None = None

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made = cast(asyncio.Transport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        at, pongs = monotonic_ns(), self.pongs
        try:
            if self._frames:
                data = self._frames.take(data)
            self._rest = self._read(at, self._rest + data if self._rest else data)
        except ValueError as error:
            self.record(Odd(at, self.conn, str(error)[:200]))
            self._transport.abort()
        self.changed.set()
        if self.on_pong and self.pongs > pongs:
            self.on_pong()
        if self.place and self.door.pause_chance and self._rng.random() < self.door.pause_chance:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._rng.random() * MOST_SLOW_S, self._resume)

    def _resume(self) -> None:
        if not self.is_over and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        if self.place:
            self.record(Closed(monotonic_ns(), self.conn))
        self.changed.set()

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._made is not None, "not connected"
        return self._made

    # ---- reading

    def _read(self, at: int, data: bytes) -> bytes:
        """Record all whole operations; return the rest. ValueError for bytes that are no operation."""
        here = 0
        while (end := data.find(b"\r\n", here)) >= 0:
            line = data[here:end]
            behind = end + 2
            if line.startswith((b"MSG ", b"HMSG ")):
                size = int(line[line.rfind(b" ") + 1 :])
                if len(data) < behind + size + 2:
                    break
                body = data[behind : behind + size]
                behind += size + 2
                self._on_message(at, line.split(), body)
            elif line == b"PONG":
                self.pongs += 1
                if self.place:
                    self.record(Pong(at, self.conn))
            elif line == b"PING":
                if not self.is_shut:
                    self._write(b"PONG\r\n")
            elif line.startswith(b"INFO "):
                self.info = json.loads(line[5:])
                self.is_leaving = bool(self.info.get("ldm"))
            else:
                self.record(Odd(at, self.conn, repr(line[:200])))
            here = behind
        return data[here:]

    def _on_message(self, at: int, words: list[bytes], body: bytes) -> None:
        sid = int(words[2])
        if words[0] == b"HMSG":
            header_bytes = int(words.pop(-2))
            header, body = body[:header_bytes], body[header_bytes:]
            if header.startswith(NO_RESPONDERS) and sid == INBOX_SID:
                self.record(Nobody(at, self.conn, int(words[1].rpartition(b".")[2])))
                return
            if not FROM_ANOTHER_ACCOUNT.fullmatch(header):
                raise ValueError(f"a header that nobody sent: {words} {header[:100]!r}")
        number, _, filling = body.partition(b".")
        if filling != FILLING[: len(filling)]:
            raise ValueError(f"a payload that nobody sent: {words}")
        self.record(Msg(at, self.conn, sid, int(number), words[1].decode().removeprefix(self.door.heard), len(body)))
        if len(words) == 5:
            self.requests.append((words[3].decode(), int(number)))

    # ---- writing

    @property
    def unanswered(self) -> int:
        """Fences whose PONG has not come."""
        return self.pings - self.pongs

    async def greet(self, deadline_s: float) -> None:
        """Log in, and subscribe to the inbox. ConnectionError, TimeoutError."""
        async with asyncio.timeout(deadline_s):
            if self._frames:
                self._transport.write(self._frames.hello)
            await self._wait(lambda: bool(self.info))
            if self.door.context and not self._frames:
                loop, context = asyncio.get_running_loop(), self.door.context
                secure = await loop.start_tls(self._transport, self, context, server_hostname="localhost")
                self._made = cast(asyncio.Transport, secure)
            self._write(self.door.connect + b"PING\r\n")
            self.pings += 1
            await self._wait(lambda: self.unanswered == 0)
        self.place = str(self.info.get("shard", self.info.get("server_name")))
        self.record(Open(monotonic_ns(), self.conn, self.place))
        self.send([Sub(monotonic_ns(), self.conn, INBOX_SID, f"_INBOX.{self.conn}.*")])
        await self.fence(deadline_s)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.is_over:
                raise ConnectionError
            self.changed.clear()
            await self.changed.wait()

    def send(self, operations: list[Sub | Unsub | Pub | Ping]) -> None:
        """Send all of them in one write; their times were taken before it."""
        for operation in operations:
            self.record(operation)
        self.pings += sum(isinstance(operation, Ping) for operation in operations)
        self._write(b"".join(map(self._as_bytes, operations)))

    def _write(self, data: bytes) -> None:
        self._transport.write(self._frames.wrapped(data) if self._frames else data)

    def _as_bytes(self, operation: Sub | Unsub | Pub | Ping) -> bytes:
        """The same, under the names that subjects have behind this door."""
        match operation:
            case Sub() if operation.sid != INBOX_SID:
                return as_bytes(operation, self.door.heard + operation.pattern)
            case Pub():
                name = self.names.get(operation.subject, "") or self.door.published + operation.subject
                return as_bytes(operation, name)
        return as_bytes(operation)

    def ping(self) -> None:
        self.send([Ping(monotonic_ns(), self.conn)])

    async def fence(self, deadline_s: float) -> None:
        """PING, and wait for all PONGs that are due. ConnectionError, TimeoutError."""
        self.ping()
        async with asyncio.timeout(deadline_s):
            await self._wait(lambda: self.unanswered == 0)

    async def pause(self, most_s: float) -> None:
        """Wait until something comes, at most for so long."""
        self.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self.changed.wait()

    async def close(self, how: str, deadline_s: float) -> None:
        """End the connection; returns when that is recorded. With TLS nobody can close half of it."""
        how = "reset" if self.door.context else how
        self.record(Close(monotonic_ns(), self.conn, how))
        self.is_shut = True
        if how == "shut" and self._frames:
            self._transport.write(self._frames.goodbye())
        elif how == "shut":
            self._transport.write_eof()
        else:
            self._transport.abort()
        try:
            async with asyncio.timeout(deadline_s):
                while not self.is_over:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            self._transport.abort()

    def abort(self) -> None:
        """End it without a record: the history is over."""
        self.place = ""
        if self._made:
            self._made.abort()


def as_bytes(operation: Sub | Unsub | Pub | Ping, name: str = "") -> bytes:
    """The bytes that a client writes for this operation; `name` is what the broker shall read as its subject."""
    match operation:
        case Sub():
            return f"SUB {name or operation.pattern} {operation.queue} {operation.sid}\r\n".encode()
        case Unsub():
            return f"UNSUB {operation.sid} {operation.most or ''}\r\n".encode()
        case Pub():
            head = b"%d." % operation.message
            body = head + FILLING[: operation.size - len(head)]
            reply = f"_INBOX.{operation.conn}.{operation.message} " if operation.wants_answer else ""
            return f"PUB {name or operation.subject} {reply}{operation.size}\r\n".encode() + body + b"\r\n"
        case Ping():
            return b"PING\r\n"
