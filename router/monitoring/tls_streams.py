"""TLS for the monitoring pages, on an accepted socket.

A client that speaks plain HTTP gets an error in plain HTTP, as from nats-server. asyncio's own TLS takes 256 KB at
once, which may be 9,000 new keys (0.1 s or more of the router); here others have their turn behind each READ_BYTES, and
who sends much of which nothing comes is cut. The caller bounds the time, and the number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from gnatswarm.shards.boundary.client_hello import HANDSHAKE_FAILURE, ExpensiveHello, HelloWatch

logger = logging.getLogger("gnatswarm.monitor")

# The first byte of a TLS handshake record.
HANDSHAKE = b"\x16"
PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
READ_BYTES = 4096
# A record of 16 KB comes before anything comes of it; the beginning of a handshake has 2 KB at most.
MOST_IDLE_BYTES = 24 * 1024

_Result = TypeVar("_Result")


class Reader(Protocol):
    """What is used of an asyncio.StreamReader."""

    async def read(self, n: int, /) -> bytes:
        """At most n bytes; b"": the end."""


class Transport(Protocol):
    """What is used of a stream's transport."""

    def abort(self) -> None:
        """Close the connection at once."""


class Writer(Protocol):
    """What is used of an asyncio.StreamWriter."""

    @property
    def transport(self) -> Transport:
        """The connection."""

    def write(self, data: bytes, /) -> None:
        """Take bytes to be sent."""

    async def drain(self) -> None:
        """Send them."""

    def close(self) -> None:
        """Send no more."""

    async def wait_closed(self) -> None:
        """Until the kernel has everything."""


Streams = tuple[Reader, Writer]


class TlsStream:
    """Reader and writer of one connection. Every error is an OSError."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._idle_bytes = 0
        self._hello: HelloWatch | None = HelloWatch()  # until the handshake is over

    @property
    def transport(self) -> TlsStream:
        """The connection."""
        return self

    async def shake_hands(self) -> None:
        """Do the handshake."""
        try:
            await self._done(self._tls.do_handshake)
            self._hello = None
        except ExpensiveHello as error:
            self._outgoing.write(HANDSHAKE_FAILURE)
            raise ConnectionError(str(error)) from None
        finally:
            with contextlib.suppress(OSError):  # an alert; of a handshake that is done it has gone already
                self._sock.send(self._outgoing.read())

    async def read(self, n: int, /) -> bytes:
        """At most n bytes; b"": the end."""
        try:
            return await self._done(lambda: self._tls.read(n))
        except (ssl.SSLZeroReturnError, EOFError):
            return b""

    async def _done(self, step: Callable[[], _Result]) -> _Result:
        """What this step of TLS returns, when enough has come for it. EOFError."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self.drain()
            else:
                self._idle_bytes = 0
                await self.drain()
                return result
            data = await self._loop.sock_recv(self._sock, READ_BYTES)
            if not data:
                raise EOFError("the client has closed the connection")
            self._idle_bytes += len(data)
            if self._idle_bytes > MOST_IDLE_BYTES:
                raise ConnectionError("the client sends much of which nothing comes")
            if self._hello is not None:
                self._hello.look(data)
            self._incoming.write(data)
            await asyncio.sleep(0)

    def write(self, data: bytes, /) -> None:
        """Take bytes to be sent."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]

    async def drain(self) -> None:
        """Send them."""
        wire = self._outgoing.read()
        if wire:
            await self._loop.sock_sendall(self._sock, wire)

    def close(self) -> None:
        """Send no more."""
        with contextlib.suppress(ssl.SSLError):  # the client has not said its last word, and need not
            self._tls.unwrap()

    async def wait_closed(self) -> None:
        """Until the kernel has everything."""
        await self.drain()

    def abort(self) -> None:
        """Close the connection at once."""
        self._sock.close()


async def streams_past_handshake(sock: socket.socket, context: ssl.SSLContext, *, deadline_s: float) -> Streams | None:
    """Its streams; None when the handshake failed or took too long. Takes over the socket."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(deadline_s):
            if await _first_byte(sock) != HANDSHAKE:
                await loop.sock_sendall(sock, PLAIN)
                sock.close()
                return None
            stream = TlsStream(sock, context)
            await stream.shake_hands()
            return stream, stream
    except (OSError, EOFError, TimeoutError) as error:  # an SSLError is an OSError
        logger.debug("TLS handshake of a monitoring connection failed: %s", error or "it took too long")
        sock.close()
        return None


async def _first_byte(sock: socket.socket) -> bytes:
    """The first byte from the client, which stays in the socket."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(sock.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
    return sock.recv(1, socket.MSG_PEEK)
