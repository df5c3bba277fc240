"""Raw clients (`tests.support.wire`) whose bytes reach the broker inside WebSocket frames, or inside TLS.

The client has one end of a socket pair; tasks of the running loop carry its bytes to the connection and back. So
whatever a test does with a client in plain it can do with these. An end of the connection is an end of the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from tests.support import framed, secure
from tests.support.wire import Client

_READ_BYTES = 1 << 16

# What is pumped is referred to here until it has ended, because the loop holds tasks only weakly.
_pumping: set[asyncio.Task[None]] = set()


async def _carry(
    far: socket.socket,
    read: Callable[[], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
    close: Callable[[], None],
) -> None:
    """Carry bytes both ways until one side ends."""
    loop = asyncio.get_running_loop()

    async def outwards() -> None:
        while data := await loop.sock_recv(far, _READ_BYTES):
            await write(data)

    async def inwards() -> None:
        while data := await read():
            await loop.sock_sendall(far, data)

    both = [asyncio.create_task(outwards()), asyncio.create_task(inwards())]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        with contextlib.suppress(OSError):  # one of them has ended
            for task in both:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        far.close()
        close()


def _client(info: dict[str, Any], read: Callable[[], Awaitable[bytes]], write: Any, close: Any) -> Client:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    task = asyncio.create_task(_carry(far, read, write, close))
    _pumping.add(task)
    task.add_done_callback(_pumping.discard)
    return Client(near, info_line=b"INFO " + orjson.dumps(info) + b"\r\n", info=info)


async def over_websocket(port: int, *more: str, context: ssl.SSLContext | None = None) -> Client:
    """A client of the WebSocket port that has read INFO; `more` header lines of its upgrade request."""
    inner = await framed.upgrade(port, *more, context=context)

    async def read() -> bytes:
        while not inner.stream:
            if await inner.read_frame(deadline_s=None) in (-1, framed.CLOSE):
                return b""
        data = bytes(inner.stream)
        inner.stream.clear()
        return data

    return _client(inner.info, read, inner.say, inner.close)


async def over_tls(port: int, context: ssl.SSLContext) -> Client:
    """A client with TLS that has read INFO."""
    inner = await secure.dial(port, context)

    async def read() -> bytes:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            return await inner.reader.read(_READ_BYTES)
        return b""

    return _client(inner.info, read, inner.send, inner.close)


async def on_shards(dial: Callable[[], Awaitable[Client]], shards: int, count: int) -> list[Client]:
    """`count` of these clients after CONNECT, spread evenly over so many shards."""
    found: list[Client] = []
    for _ in range(100 * shards * count):
        if len(found) == count:
            return found
        client = await dial()
        if client.shard == len(found) % shards:
            await client.talk(b'CONNECT {"verbose":false}\r\nPING\r\n', expect_last=b"PONG\r\n")
            found.append(client)
        else:
            client.close()
    raise AssertionError(f"shard {len(found) % shards} gets no connections")
