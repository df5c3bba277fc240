"""TLS of monitoring: what costs much and brings nothing is taken in turns, and cut; pages of any size arrive."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gnatswarm.router.monitoring.tls_streams import MOST_IDLE_BYTES, READ_BYTES, Streams, streams_past_handshake
from tests.support.authority import Authority

DEADLINE_S = 30.0
PAGE = bytes(range(256)) * 8192  # 2 MiB: more than the kernel takes


@pytest.fixture
async def ends() -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """The client's and the server's."""
    client, server = socket.socketpair()
    client.setblocking(False)
    with client, server:
        yield client, server


class NewKeys:
    """A TLS layer of which nothing comes after its handshake, as of a client that only changes its keys."""

    def __init__(self) -> None:
        self.taken: list[int] = []  # bytes of each step
        self.is_shaken = False

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_side: bool) -> NewKeys:
        self._incoming = incoming
        return self

    def do_handshake(self) -> None:
        if not self.is_shaken:
            self.is_shaken = bool(self._incoming.read())
        if not self.is_shaken:
            raise ssl.SSLWantReadError

    def read(self, n: int) -> bytes:
        data = self._incoming.read()
        self.taken.append(len(data))
        raise ssl.SSLWantReadError


async def test_who_sends_much_of_which_nothing_comes_is_cut_and_others_have_turns_meanwhile(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A new key has 27 bytes and takes 30 µs: the 9,000 that asyncio's TLS takes at once were a third of a second."""
    client, server = ends
    layer: Any = NewKeys()
    client.send(b"\x16")
    streams = await streams_past_handshake(server, layer, deadline_s=DEADLINE_S)
    assert streams is not None
    client.send(bytes(2 * MOST_IDLE_BYTES))
    loop, turns = asyncio.get_running_loop(), 0
    next_turn: asyncio.Handle

    def another() -> None:
        nonlocal turns, next_turn
        turns += 1
        next_turn = loop.call_soon(another)

    next_turn = loop.call_soon(another)
    with pytest.raises(ConnectionError, match="much of which nothing comes"):
        async with asyncio.timeout(DEADLINE_S):
            await streams[0].read(100)
    next_turn.cancel()
    steps = [taken for taken in layer.taken if taken]
    assert max(steps) <= READ_BYTES
    assert sum(steps) <= MOST_IDLE_BYTES
    assert turns >= len(steps)


async def test_a_handshake_that_only_begins_is_cut(ends: tuple[socket.socket, socket.socket], tmp_path: Any) -> None:
    client, server = ends
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = Authority(tmp_path).server()
    context.load_cert_chain(pair.cert, pair.key)
    hello = b"\x01\x00\xff\xff" + bytes(16_380)  # a ClientHello of 64 KB
    record = b"\x16\x03\x01" + len(hello).to_bytes(2, "big")
    client.send((record + hello + record + bytes(len(hello)))[: MOST_IDLE_BYTES + READ_BYTES])
    assert await streams_past_handshake(server, context, deadline_s=DEADLINE_S) is None
    assert server.fileno() < 0


async def test_a_page_of_any_size_arrives_and_the_end_is_said(
    ends: tuple[socket.socket, socket.socket], tmp_path: Any
) -> None:
    client, server = ends
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.server()
    context.load_cert_chain(pair.cert, pair.key)

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(
            sock=client, ssl=authority.client_context(), server_hostname="localhost"
        )
        writer.write(b"x" * 20_000)
        return await reader.read()

    async def answer() -> bytes:
        streams: Streams | None = await streams_past_handshake(server, context, deadline_s=DEADLINE_S)
        assert streams is not None
        reader, writer = streams
        asked = b""
        while len(asked) < 20_000:
            asked += await reader.read(16_384)
        writer.write(PAGE)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        writer.transport.abort()
        return asked

    async with asyncio.timeout(DEADLINE_S):
        said, asked = await asyncio.gather(ask(), answer())
    assert (said, asked) == (PAGE, b"x" * 20_000)
