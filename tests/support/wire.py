"""A raw client: bytes to and from a broker, every wait with a deadline.

It knows only so much of the protocol as it needs to find the end of a frame (MSG and HMSG carry a payload). It checks
and corrects nothing, so that a test sees exactly the bytes on the wire. It reads from its socket only when told to: for
a client that never reads, a test just does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import orjson

from tests.support.servers import HOST, Broker

# Whoever waits so long has waited in vain, also where others take the processor.
DEADLINE_S = 30.0

# One recv. Large, because several tests move tens of megabytes.
_READ_BYTES = 1 << 18


def as_bytes(text: bytes | str) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text


def abridged(data: bytes, most: int = 400) -> str:
    """`data` for an error message."""
    if len(data) <= most:
        return repr(data)
    return f"{data[: most // 2]!r} … {data[-most // 2 :]!r} ({len(data)} bytes)"


def _body_bytes(line: bytes) -> int:
    """The number of bytes after a line of the server: a payload and its CRLF after MSG and HMSG, else 0."""
    words = line.split()
    return int(words[-1]) + 2 if words and words[0] in (b"MSG", b"HMSG") else 0


@dataclass(frozen=True)
class Frame:
    """One frame of the server: `raw` is all of it, with CRLF and payload; `verb` is in upper case."""

    raw: bytes
    verb: str
    subject: str = ""
    sid: str = ""
    reply: str = ""
    headers: bytes = b""
    payload: bytes = b""

    @property
    def is_message(self) -> bool:
        return self.verb in ("MSG", "HMSG")


class Closed(Exception):
    """The server closed the connection while more was expected; `.data` has the unread bytes."""

    def __init__(self, text: str, data: bytes) -> None:
        super().__init__(f"{text}; before that came {abridged(data)}")
        self.data = data


async def wait_readable(clients: Sequence[Client]) -> None:
    """Until at least one of these connections has something to read, its end included. Has no deadline of its own."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    # Numbers: of a socket asyncio would write down, each time, what it is and from where to where it leads.
    descriptors = [client.sock.fileno() for client in clients if not client.is_ended]
    assert descriptors, "every connection has ended; nothing will ever be readable"
    for descriptor in descriptors:
        loop.add_reader(descriptor, on_readable)
    try:
        await readable
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


@dataclass
class Client:
    """One connection. Make it with `Client.connect`."""

    sock: socket.socket
    deadline_s: float = DEADLINE_S
    info_line: bytes = b""
    info: dict[str, Any] = field(default_factory=dict)
    # Messages that arrived while waiting for something else (`talk(expect_last=…)`, `read_until_pong`), oldest first.
    inbox: list[Frame] = field(default_factory=list)
    is_ended: bool = False
    # The broker pings about two seconds after CONNECT, so in any test on a slow machine. Left out of what is read,
    # and not answered: we may be half-way through sending an operation. Set to False to see them.
    ignores_pings: bool = True
    _buffer: bytearray = field(default_factory=bytearray)
    # Where in the buffer the first frame begins that was not looked at yet; may lie beyond what has come.
    _next_frame_at: int = 0

    # -- life ---------------------------------------------------------------------------------------------------

    @classmethod
    async def dial(
        cls, port: int, host: str = HOST, deadline_s: float = DEADLINE_S, receive_bytes: int | None = None
    ) -> Client:
        """A connection on which nothing was read yet, not even INFO. `receive_bytes`: the kernel's receive buffer."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        return cls(sock, deadline_s)

    @classmethod
    async def connect(
        cls,
        port: int,
        connect: dict[str, Any] | bytes | str | None = None,
        host: str = HOST,
        deadline_s: float = DEADLINE_S,
        receive_bytes: int | None = None,
    ) -> Client:
        """Connect and read INFO. `connect`: then CONNECT with these keys (or this JSON text), fenced by a PING."""
        client = await cls.dial(port, host, deadline_s, receive_bytes)
        try:
            await client.read_info()
            if connect is not None:
                text = connect if isinstance(connect, bytes | str) else orjson.dumps(connect)
                await client.send(b"CONNECT " + as_bytes(text) + b"\r\nPING\r\n")
                await client.read_until_pong()
        except BaseException:
            client.close()
            raise
        return client

    async def read_info(self) -> dict[str, Any]:
        """Read the INFO that opens every connection into `info`."""
        self.info_line = await self.read_line()
        assert self.info_line.startswith(b"INFO {"), f"expected INFO, got {abridged(self.info_line)}"
        self.info = orjson.loads(self.info_line[5:])
        return self.info

    @property
    def shard(self) -> int:
        """The shard that serves this connection; 0 on a server that has none."""
        return int(self.info.get("shard", 0))

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close so that the server gets a reset, not an orderly end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.sock.close()

    def shut_writing(self) -> None:
        """Close the sending side. It is no error if the server has closed already; reading will show that."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    # -- sending ------------------------------------------------------------------------------------------------

    async def send(self, data: bytes | str, deadline_s: float | None = None) -> None:
        """Send all bytes. It is no error if the server has closed; reading will show that."""
        rest = memoryview(as_bytes(data))
        try:
            with contextlib.suppress(BlockingIOError):
                rest = rest[self.sock.send(rest) :]
            if rest:  # the kernel takes most of what tests send at once, and then no timer is needed
                async with asyncio.timeout(deadline_s or self.deadline_s):
                    await asyncio.get_running_loop().sock_sendall(self.sock, rest)
        except (BrokenPipeError, ConnectionResetError):
            pass

    async def send_split(self, data: bytes | str, piece_bytes: int = 1) -> None:
        """Send it in segments of `piece_bytes`."""
        whole = as_bytes(data)
        for at in range(0, len(whole), piece_bytes):
            await self.send(whole[at : at + piece_bytes])

    # -- reading ------------------------------------------------------------------------------------------------

    def _fill_now(self) -> bool:
        """Read what is there into the buffer; False when the socket has nothing for us at the moment."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_ended = True
        self._buffer += data
        self._leave_out_pings()
        return True

    def _leave_out_pings(self) -> None:
        while (end := self._buffer.find(b"\r\n", self._next_frame_at)) >= 0:
            line = bytes(self._buffer[self._next_frame_at : end])
            if line == b"PING" and self.ignores_pings:
                del self._buffer[self._next_frame_at : end + 2]
            else:
                self._next_frame_at = end + 2 + _body_bytes(line)

    async def _fill(self) -> bool:
        """Read once into the buffer; False when the server has closed.

        Waits for readability and then reads, so that a deadline that cancels the wait loses no bytes. Yields to other
        tasks first: on a busy machine there is always something to read, and one client could run for seconds.
        """
        await asyncio.sleep(0)
        while not self.is_ended and not self._fill_now():
            await wait_readable([self])
        return not self.is_ended

    async def _wait(self, is_there: Callable[[bytearray], bool], what: str, deadline_s: float | None) -> None:
        """Read until `is_there(buffer)`."""
        if is_there(self._buffer):
            return
        allowed_s = deadline_s or self.deadline_s
        try:
            async with asyncio.timeout(allowed_s):
                while not is_there(self._buffer):
                    if not await self._fill():
                        raise Closed(f"the server closed while {what} was expected", bytes(self._buffer))
        except TimeoutError:
            raise TimeoutError(
                f"{what} did not come within {allowed_s} s; came {abridged(bytes(self._buffer))}"
            ) from None

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._next_frame_at = max(0, self._next_frame_at - count)
        return data

    async def read_bytes(self, count: int, deadline_s: float | None = None) -> bytes:
        await self._wait(lambda buffer: len(buffer) >= count, f"{count} bytes", deadline_s)
        return self._take(count)

    async def read_units(self, unit_bytes: int) -> bytes:
        """All complete units of this size that have arrived, at least one. Has no deadline of its own."""
        while len(self._buffer) < unit_bytes:
            if not await self._fill():
                raise Closed("the server closed while more was expected", bytes(self._buffer))
        while len(self._buffer) < 16 * _READ_BYTES and not self.is_ended and self._fill_now():
            pass
        return self._take(len(self._buffer) // unit_bytes * unit_bytes)

    async def read_line(self, deadline_s: float | None = None) -> bytes:
        """The next line, CRLF included."""
        await self._wait(lambda buffer: buffer.find(b"\r\n") >= 0, "a line", deadline_s)
        return self._take(self._buffer.index(b"\r\n") + 2)

    def _frame_bytes(self) -> int:
        """How long the frame at the head of the buffer is; 0 while it is incomplete."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return 0
        whole = end + 2 + _body_bytes(bytes(self._buffer[:end]))
        return whole if len(self._buffer) >= whole else 0

    def _take_frame(self) -> Frame:
        raw = self._take(self._frame_bytes())
        line, _, body = raw.partition(b"\r\n")
        words = line.decode("utf-8", "surrogateescape").split()
        verb = words[0].upper() if words else ""
        if verb == "MSG":
            return Frame(raw, verb, words[1], words[2], words[3] if len(words) == 5 else "", b"", body[:-2])
        if verb == "HMSG":
            head, payload = body[: int(words[-2])], body[int(words[-2]) : -2]
            return Frame(raw, verb, words[1], words[2], words[3] if len(words) == 6 else "", head, payload)
        return Frame(raw, verb)

    async def read_frame(self, deadline_s: float | None = None) -> Frame:
        """The server's next frame, with its payload."""
        await self._wait(lambda buffer: self._frame_bytes() > 0, "an answer", deadline_s)
        return self._take_frame()

    async def read_until_pong(self, deadline_s: float | None = None) -> list[Frame]:
        """Everything up to the next PONG, without it. Messages among it also go to `inbox`."""
        frames: list[Frame] = []
        while True:
            frame = await self.read_frame(deadline_s)
            if frame.verb == "PONG":
                return frames
            frames.append(frame)
            if frame.is_message:
                self.inbox.append(frame)

    async def flush(self, deadline_s: float | None = None) -> list[Frame]:
        """PING, and everything up to its PONG: what was sent before has taken effect."""
        await self.send(b"PING\r\n", deadline_s)
        return await self.read_until_pong(deadline_s)

    async def messages(self, count: int, deadline_s: float | None = None) -> list[Frame]:
        """The next `count` messages, those in `inbox` first. Skips PONG, +OK and a later INFO."""
        while len(self.inbox) < count:
            frame = await self.read_frame(deadline_s)
            if frame.is_message:
                self.inbox.append(frame)
            elif frame.verb not in ("PONG", "+OK", "PING", "INFO"):
                raise AssertionError(f"expected a message, got {abridged(frame.raw)}")
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return taken

    def take_arrived_messages(self, most: int) -> list[Frame]:
        """At most `most` messages that have arrived already, without waiting; other frames are skipped."""
        while not self.is_ended and self._fill_now():
            pass
        while len(self.inbox) < most and self._frame_bytes():
            frame = self._take_frame()
            if frame.is_message:
                self.inbox.append(frame)
        taken, self.inbox = self.inbox[:most], self.inbox[most:]
        return taken

    # -- expecting ----------------------------------------------------------------------------------------------

    async def expect(self, expected: bytes | str, deadline_s: float | None = None) -> None:
        """Exactly these bytes come next. Fails at the first one that differs, without waiting for the rest."""
        whole = as_bytes(expected)
        size = len(whole)

        def is_decided(buffer: bytearray) -> bool:
            return len(buffer) >= size or not whole.startswith(bytes(buffer))

        await self._wait(is_decided, abridged(whole), deadline_s)
        if bytes(self._buffer[:size]) != whole:
            raise AssertionError(f"expected {abridged(whole)}, got {abridged(bytes(self._buffer))}")
        self._take(size)

    async def expect_line(self, pattern: str, deadline_s: float | None = None) -> re.Match[str]:
        """The next line, without CRLF, matches the regular expression as a whole."""
        line = (await self.read_line(deadline_s))[:-2].decode("utf-8", "surrogateescape")
        found = re.fullmatch(pattern, line)
        assert found, f"expected a line that matches {pattern!r}, got {line!r}"
        return found

    async def expect_quiet(self) -> None:
        """Check that nothing is on its way: the next frame is the PONG to a PING sent now."""
        await self.send(b"PING\r\n")
        await self.expect(b"PONG\r\n")

    async def wait_closed(self, deadline_s: float | None = None) -> bytes:
        """Read until the server closes; returns the unread bytes before that."""
        allowed_s = deadline_s or self.deadline_s
        try:
            async with asyncio.timeout(allowed_s):
                while await self._fill():
                    pass
        except TimeoutError:
            raise TimeoutError(f"still open after {allowed_s} s; came {abridged(bytes(self._buffer))}") from None
        return self._take(len(self._buffer))

    async def talk(
        self,
        text: bytes | str,
        expect: bytes | str | None = None,
        expect_last: bytes | str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Send `text`; then exactly `expect` comes, or anything up to and with `expect_last`.

        Messages before `expect_last` are kept in `inbox`; an -ERR before it fails.
        """
        await self.send(text, deadline_s)
        if expect is not None:
            await self.expect(expect, deadline_s)
        if expect_last is not None:
            last = as_bytes(expect_last)
            while True:
                frame = await self.read_frame(deadline_s)
                if frame.raw == last:
                    return
                if frame.is_message:
                    self.inbox.append(frame)
                elif frame.verb == "-ERR":
                    raise AssertionError(f"expected {abridged(last)}, got {abridged(frame.raw)}")


@dataclass
class Cluster:
    """The clients of a broker: makes them, spreads them over its shards, and closes them all in the end."""

    broker: Broker
    all: list[Client] = field(default_factory=list)

    # Placement is the kernel's or the router's choice: the chance to miss one of n shards in 60 n tries is below 1e-26.
    most_tries_each: int = 60

    async def client(self, connect: dict[str, Any] | None = None, **options: Any) -> Client:
        """One more client, quiet (`verbose:false`) unless `connect` says otherwise, past its first PONG."""
        client = await Client.connect(self.broker.port, {"verbose": False, **(connect or {})}, **options)
        self.all.append(client)
        return client

    async def clients(
        self, count: int, on_different_shards: bool = False, connect: dict[str, Any] | None = None, **options: Any
    ) -> list[Client]:
        """`count` more clients. On different shards: spread as evenly as the broker's number of shards allows."""
        if not on_different_shards:
            return [await self.client(connect, **options) for _ in range(count)]
        return [await self.client_on(index, connect, **options) for index in range(count)]

    async def client_on(self, shard: int, connect: dict[str, Any] | None = None, **options: Any) -> Client:
        """One more client, on the shard with that number (modulo the number of shards)."""
        client = await self.raw_on(shard, **options)
        keys = orjson.dumps({"verbose": False, **(connect or {})})
        await client.talk(b"CONNECT " + keys + b"\r\nPING\r\n", expect_last=b"PONG\r\n")
        return client

    async def raw(self, **options: Any) -> Client:
        """One more client that has sent nothing and read only INFO."""
        client = await Client.connect(self.broker.port, None, **options)
        self.all.append(client)
        return client

    async def raw_on(self, shard: int, **options: Any) -> Client:
        """The same, on the shard with that number (modulo the number of shards)."""
        shards = self.broker.kind.shards
        most_tries = self.most_tries_each * shards
        for _ in range(most_tries):
            client = await Client.connect(self.broker.port, None, **options)
            if shards == 1 or client.shard == shard % shards:
                self.all.append(client)
                return client
            client.close()
        raise AssertionError(f"{most_tries} connections to {self.broker.kind}, none on shard {shard % shards}")

    async def delivered(
        self,
        total: int,
        then_quiet: bool = False,
        among: Sequence[Client] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> list[bytes]:
        """The payloads of the next `total` messages, whichever clients get them; client by client.

        `then_quiet`: after that, a PING on each client is answered before any further message.
        """
        clients = list(self.all if among is None else among)
        payloads: list[list[bytes]] = [[] for _ in clients]
        got = 0
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    for client, mine in zip(clients, payloads, strict=True):
                        for frame in client.take_arrived_messages(total - got):
                            mine.append(frame.payload)
                            got += 1
                    if got == total:
                        break
                    await wait_readable(clients)
        except TimeoutError:
            raise TimeoutError(f"{total} deliveries expected, {got} came within {deadline_s} s") from None
        if then_quiet:
            for client in clients:
                await client.flush()
                assert not client.inbox, f"more than {total} deliveries: {client.inbox}"
        return [payload for mine in payloads for payload in mine]

    def leave(self, *clients: Client) -> None:
        """Closes these."""
        for client in clients:
            client.close()
            self.all.remove(client)

    def close(self) -> None:
        self.leave(*self.all)

    def depart(self, deadline_s: float = DEADLINE_S) -> None:
        """Closes them all, and waits until the broker has closed them too: it has then forgotten what they wanted."""
        open_ones = [client for client in self.all if client.sock.fileno() >= 0]
        for client in open_ones:
            client.shut_writing()
        for client in open_ones:
            client.sock.settimeout(deadline_s)
            with contextlib.suppress(ConnectionResetError):
                while client.sock.recv(_READ_BYTES):
                    pass
        self.close()
