"""A relay carries the bytes of a client with TLS both ways, each end behind all bytes, and feels back-pressure."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnatswarm.shards.sockets.relay import DetachedTls, Relay
from tests.support.authority import Authority
from tests.support.turns import until

DEADLINE_S = 10.0


class Relayed:
    """A client with TLS, the shard's end of its pair, and the relay between them."""

    def __init__(self, authority: Authority) -> None:
        pair = authority.server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self.context = context
        self.changes: list[int] = []
        self.relay = Relay(asyncio.get_running_loop(), "b", lambda: self.changes.append(self.relay.clients))

    async def open(self, client_context: ssl.SSLContext, *, first: bytes = b"") -> None:
        """Shake hands; `first`: what the client has sent before the relay begins, and is not decrypted."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self.context.wrap_bio(incoming, outgoing, server_side=True)
        loop = asyncio.get_running_loop()
        connecting = asyncio.create_task(
            asyncio.open_connection(sock=theirs, ssl=client_context, server_hostname="localhost")
        )
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(ours, outgoing.read())
                incoming.write(await loop.sock_recv(ours, 65536))
        await loop.sock_sendall(ours, outgoing.read())
        self.reader, self.writer = await connecting
        read = b""
        if first:
            self.writer.write(first)
            read = await loop.sock_recv(ours, 65536)
        tls.write(b"unsent ")
        shards, relays = self.relay.make_pair()
        self.shard_reader, self.shard_writer = await asyncio.open_connection(sock=shards)
        self.relay.take("client", DetachedTls(ours.detach(), tls, incoming, outgoing, read, outgoing.read()), relays)


@pytest.fixture
async def relayed(tmp_path: Path) -> AsyncIterator[Relayed]:
    authority = Authority(tmp_path)
    one = Relayed(authority)
    async with asyncio.timeout(DEADLINE_S):
        await one.open(authority.client_context(), first=b"early ")
        yield one
    one.writer.close()
    one.shard_writer.close()
    one.relay.close()


async def test_bytes_go_both_ways_behind_those_that_the_shard_left(relayed: Relayed) -> None:
    relayed.writer.write(b"hello")
    assert await relayed.shard_reader.readexactly(11) == b"early hello"
    relayed.shard_writer.write(b"back")
    assert await relayed.reader.readexactly(11) == b"unsent back"
    big = bytes(range(256)) * 8192
    for writer, reader in (
        (relayed.writer, relayed.shard_reader),
        (relayed.shard_writer, relayed.reader),
    ):
        writer.write(big)
        assert await reader.readexactly(len(big)) == big
    assert relayed.changes == [1]


async def test_a_client_that_reads_nothing_stops_its_shard(relayed: Relayed) -> None:
    relayed.shard_writer.transport.set_write_buffer_limits(0)
    relayed.shard_writer.write(bytes(8 << 20))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(relayed.shard_writer.drain(), 0.2)
    assert relayed.shard_writer.transport.get_write_buffer_size() > 6 << 20
    assert len(await relayed.reader.readexactly(7 + (8 << 20))) == 7 + (8 << 20)


async def test_the_client_leaves_and_its_shard_hears_of_it_behind_its_last_bytes(relayed: Relayed) -> None:
    relayed.writer.write(b"last")
    relayed.writer.close()
    assert await relayed.shard_reader.read() == b"early last"
    relayed.shard_writer.close()
    await until(lambda: not relayed.relay.clients)
    assert relayed.changes == [1, 0]


async def test_the_shard_closes_and_the_client_hears_of_it_behind_its_last_bytes(relayed: Relayed) -> None:
    relayed.shard_writer.write(b"-ERR 'Bye'\r\n")
    relayed.shard_writer.close()
    assert await relayed.reader.read() == b"unsent -ERR 'Bye'\r\n"
    relayed.writer.close()
    await until(lambda: not relayed.relay.clients)


async def test_garbage_in_place_of_a_record_ends_the_client(relayed: Relayed, caplog: pytest.LogCaptureFixture) -> None:
    sock = relayed.writer.get_extra_info("socket")
    assert await relayed.shard_reader.readexactly(6) == b"early "
    with socket.socket(fileno=sock.fileno()) as raw:
        raw.send(b"\x17\x03\x03\x00\x05hello")
        raw.detach()
    assert await relayed.shard_reader.read() == b""
    assert "client - read error: " in caplog.text


async def test_those_that_stay_are_closed_in_time(relayed: Relayed) -> None:
    relayed.relay.dismiss(0.1)
    assert await relayed.shard_reader.read() == b"early "
    relayed.shard_writer.close()
    assert await relayed.reader.read() == b"unsent "
