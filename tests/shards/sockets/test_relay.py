"""A relay carries the bytes of a client with TLS both ways, each end behind all bytes, and feels back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from gnatswarm.shards.sockets import relay
from gnatswarm.shards.sockets.relay import DetachedTls, Relay
from tests.support.authority import Authority
from tests.support.turns import until

DEADLINE_S = 30.0


class Relayed:
    """A client with TLS, the shard's end of its pair, and the relay between them."""

    def __init__(self, authority: Authority) -> None:
        pair = authority.server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self.context = context
        self.changes: list[int] = []
        self.relay = Relay(asyncio.get_running_loop(), "b", lambda: self.changes.append(self.relay.connections))

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
        for narrow in (relays, ours):  # one record is more than they take at once
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
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


async def test_the_log_says_whether_clients_or_leaf_nodes_are_carried(relayed: Relayed) -> None:
    assert relayed.relay.carried == "1 clients that have moved"
    (ours, theirs), (shards, relays) = socket.socketpair(), relayed.relay.make_pair()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = relayed.context.wrap_bio(incoming, outgoing, server_side=True)
    left = DetachedTls(ours.detach(), tls, incoming, outgoing, b"", b"")
    relayed.relay.take("leaf", left, relays, is_leaf_node=True)
    assert relayed.relay.carried == "1 clients that have moved and 1 leaf nodes"
    theirs.close()
    shards.close()


async def test_a_client_that_reads_nothing_stops_its_shard(relayed: Relayed) -> None:
    relayed.shard_writer.transport.set_write_buffer_limits(0)
    relayed.shard_writer.write(bytes(8 << 20))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(relayed.shard_writer.drain(), 0.2)
    assert relayed.shard_writer.transport.get_write_buffer_size() > 6 << 20
    assert len(await relayed.reader.readexactly(7 + (8 << 20))) == 7 + (8 << 20)


async def test_a_shard_that_reads_nothing_stops_its_client(relayed: Relayed) -> None:
    relayed.writer.write(bytes(8 << 20))
    (stream,) = relayed.relay._streams.values()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(until(lambda: len(stream._to_shard) > 1 << 20), 0.3)
    assert len(await relayed.shard_reader.readexactly(6 + (8 << 20))) == 6 + (8 << 20)


async def test_a_client_leaves_behind_more_than_its_shard_takes_at_once(relayed: Relayed) -> None:
    relayed.writer.write(bytes(16_000))
    relayed.writer.close()
    assert await relayed.shard_reader.read() == b"early " + bytes(16_000)


async def test_a_shard_closes_behind_more_than_its_client_takes_at_once(relayed: Relayed) -> None:
    relayed.shard_writer.write(bytes(300_000))
    relayed.shard_writer.close()
    assert await relayed.reader.read() == b"unsent " + bytes(300_000)


async def test_a_client_that_does_not_close_is_closed(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER_S", 0.01)
    transport: Any = relayed.writer.transport
    transport.pause_reading()  # it does not see the end
    relayed.shard_writer.close()
    await until(lambda: not relayed.relay.connections)


async def test_the_client_leaves_and_its_shard_hears_of_it_behind_its_last_bytes(relayed: Relayed) -> None:
    relayed.writer.write(b"last")
    relayed.writer.close()
    assert await relayed.shard_reader.read() == b"early last"
    relayed.shard_writer.close()
    await until(lambda: not relayed.relay.connections)
    assert relayed.changes == [1, 0]


async def test_the_shard_closes_and_the_client_hears_of_it_behind_its_last_bytes(relayed: Relayed) -> None:
    relayed.shard_writer.write(b"-ERR 'Bye'\r\n")
    relayed.shard_writer.close()
    assert await relayed.reader.read() == b"unsent -ERR 'Bye'\r\n"
    relayed.writer.close()
    await until(lambda: not relayed.relay.connections)


async def test_garbage_in_place_of_a_record_ends_the_client(relayed: Relayed, caplog: pytest.LogCaptureFixture) -> None:
    sock = relayed.writer.get_extra_info("socket")
    assert await relayed.shard_reader.readexactly(6) == b"early "
    with socket.socket(fileno=sock.fileno()) as raw:
        raw.send(b"\x17\x03\x03\x00\x05hello")
        raw.detach()
    assert await relayed.shard_reader.read() == b""
    assert "client - read error: " in caplog.text
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        await relayed.reader.read()


async def test_those_that_stay_are_closed_in_time(relayed: Relayed) -> None:
    relayed.relay.dismiss(0.1)
    assert await relayed.shard_reader.read() == b"early "
    relayed.shard_writer.close()
    assert await relayed.reader.read() == b"unsent "


SENT = bytes(600_000)  # more than a shard takes that reads nothing


async def stuffed(relayed: Relayed, *, closes: bool = False) -> Any:
    """The relay's side of a client that has sent more than its shard has taken, and has closed perhaps."""
    (stream,) = relayed.relay._streams.values()
    relayed.writer.write(SENT)
    if closes:
        relayed.writer.close()
    await until(lambda: stream._to_shard and not stream._client_events[0])
    return stream


@pytest.mark.parametrize("closes", [False, True])
async def test_what_the_client_has_sent_by_then_is_handed_on_behind_its_end(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    monkeypatch.setattr(relay, "DRY_S", 0.01)
    await stuffed(relayed, closes=closes)
    relayed.relay.dismiss(0.0)
    assert await relayed.shard_reader.read() == b"early " + SENT


async def test_of_who_does_not_close_no_more_is_kept_than_there_is_room_for(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each, and of all together; who has taken what was kept makes room."""
    monkeypatch.setattr(relay, "MOST_KEPT_OF_ALL", 100_000)
    stream = await stuffed(relayed)
    relayed.relay.dismiss(0.0)
    await until(lambda: stream._is_input_over)
    assert 100_000 <= relayed.relay._kept.bytes < 100_000 + 2 * relay.FEED_BYTES
    kept = await relayed.shard_reader.read()
    assert 100_000 < len(kept) < len(SENT)
    assert relayed.relay._kept.bytes == 0


async def test_of_each_that_does_not_close_only_so_much_is_kept(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_KEPT_BYTES", 100_000)
    stream = await stuffed(relayed)
    relayed.relay.dismiss(0.0)
    await until(lambda: stream._is_input_over)
    assert 100_000 <= stream._bytes_read < 100_000 + 2 * relay.FEED_BYTES


async def test_who_goes_on_talking_is_ended_all_the_same(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "KEEP_ON_S", 0.05)
    (stream,) = relayed.relay._streams.values()
    monkeypatch.setattr(relay, "DRY_S", 0.01)
    relayed.relay.dismiss(0.0)

    def talks_on() -> bool:
        if not stream._is_input_over:
            relayed.writer.write(b"x")
        return bool(stream._is_input_over)

    await until(talks_on)
    assert (await relayed.shard_reader.read()).startswith(b"early x")


def test_those_that_stay_are_closed_one_by_one() -> None:
    now_s = 0.0
    calls: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []
    loop: Any = SimpleNamespace(
        time=lambda: now_s, call_later=lambda after_s, call, *args: calls.append((now_s + after_s, call, args))
    )
    one = Relay(loop, "b", lambda: None)
    ended: list[int] = []
    streams: Any = {
        n: SimpleNamespace(attend=lambda work: work(), end_input=lambda n=n: ended.append(n)) for n in range(10)
    }
    one._streams = streams
    one.dismiss(10.0)
    counts = []
    while calls:
        now_s, call, args = calls.pop(0)
        call(*args)
        counts.append((now_s, len(ended)))
    assert ended == list(range(10))
    assert [n for at, n in counts if at < 5.0] == []
    assert 4 <= max(n for at, n in counts if at <= 7.5) <= 5


@pytest.mark.parametrize("what", ["reading", "looking", "ending"])
async def test_an_error_of_ours_in_one_connection_costs_that_one_alone(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the process, which has the TLS of all others."""
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    authority = Authority(tmp_path)
    one = Relayed(authority)
    async with asyncio.timeout(DEADLINE_S):
        await one.open(authority.client_context())
        bad, [stream] = (one.reader, one.writer, one.shard_writer), list(one.relay._streams.values())
        await one.open(authority.client_context())
        name = {"reading": "_decrypt", "looking": "_look_whether_dry", "ending": "end_input"}[what]
        before: Any = getattr(relay._Stream, name)
        monkeypatch.setattr(
            relay._Stream, name, lambda self, *given: 1 // 0 if self is stream else before(self, *given)
        )
        if what == "looking":
            stream.attend(stream._look_whether_dry, -1, 0.0)
        elif what == "ending":
            one.relay.dismiss(0.0)
        else:
            stream.attend(stream._on_client_readable)
            stream.attend(stream._decrypt)
        await bad[0].read()
        assert one.relay.connections == 1
        one.shard_writer.write(b"hello")
        assert await one.reader.readexactly(12) == b"unsent hello"
    assert not failed and caplog.text.count("its connection is closed because of an error of ours") == 1
    one.relay.close()


class Kernel:
    """A socket whose kernel takes nothing until it may."""

    def __init__(self) -> None:
        self.takes = False
        self.done: list[object] = []

    def fileno(self) -> int:
        return 7

    def send(self, data: bytearray, _flags: int) -> int:
        if not self.takes:
            raise BlockingIOError
        self.done.append(bytes(data))
        return len(data)

    def shutdown(self, how: int) -> None:
        self.done.append(how)


def test_the_end_of_a_shard_waits_for_the_last_word_of_tls() -> None:
    loop: Any = SimpleNamespace(call_later=lambda *_: None)
    for name in ("add_reader", "add_writer", "remove_reader", "remove_writer"):
        setattr(loop, name, lambda *_: None)
    words = iter([b"close_notify"])
    tls: Any = SimpleNamespace(unwrap=lambda: None)
    outgoing: Any = SimpleNamespace(read=lambda: next(words))
    client: Any = Kernel()
    shard: Any = Kernel()
    left = DetachedTls(7, tls, ssl.MemoryBIO(), outgoing, b"", b"")
    stream = relay._Stream(loop, "client", left, client, shard, lambda fd: None, relay._Kept())
    stream._end_output()
    stream._settle()
    assert client.done == []
    client.takes = True
    stream._settle()
    assert client.done == [b"close_notify", socket.SHUT_WR]


class Reset:
    """A client that a relay carries on the loop of shards, as blocking sockets: `client` encrypts, `shard` is plain."""

    def __init__(self, authority: Authority) -> None:
        pair = authority.server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        here, there = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
        server = context.wrap_bio(*here, server_side=True)
        self._tls = authority.client_context().wrap_bio(*there, server_hostname="localhost")
        self._in, self._out = there
        for _ in range(4):
            for tls in (self._tls, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                here[0].write(self._out.read())
                self._in.write(here[1].read())
        self.relay = Relay(asyncio.get_running_loop(), "b", lambda: None)
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.shard, relays = self.relay.make_pair()
        self.relay.take("client", DetachedTls(ours.detach(), server, *here, b"", b""), relays)

    def say(self, data: bytes) -> None:
        """As the client."""
        for at in range(0, len(data), 16384):
            self._tls.write(data[at : at + 16384])
        self.client.sendall(self._out.read())

    async def hear(self) -> bytes:
        """All that the client is sent until the end."""
        loop, heard = asyncio.get_running_loop(), b""
        while data := await loop.sock_recv(self.client, 65536):
            self._in.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                while more := self._tls.read(65536):
                    heard += more
        return heard

    async def read(self) -> bytes:
        """All that the shard is sent until the end."""
        loop, read = asyncio.get_running_loop(), b""
        while data := await loop.sock_recv(self.shard, 65536):
            read += data
        return read

    def close(self) -> None:
        self.client.close()
        self.shard.close()
        self.relay.close()


def has_come(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


WORDS = bytes(range(256)) * 200  # of more than one read


def on_our_loop(tmp_path: Path, test: Callable[[Reset], Any]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            one = Reset(Authority(tmp_path))
            for end in (one.client, one.shard):
                end.setblocking(False)
            await test(one)
            one.close()

    uvloop.run(run())


def test_a_client_that_resets_the_connection_is_read_to_its_end(tmp_path: Path) -> None:
    """It left an answer unread. uvloop says so once, with its first bytes."""

    async def test(one: Reset) -> None:
        one.shard.send(b"answer")
        await until(lambda: has_come(one.client))
        one.say(WORDS)
        one.client.close()
        assert await one.read() == WORDS

    on_our_loop(tmp_path, test)


def test_a_client_that_takes_nothing_more_is_read_to_its_end(tmp_path: Path) -> None:
    async def test(one: Reset) -> None:
        one.client.shutdown(socket.SHUT_RD)
        one.shard.send(b"answer")
        (stream,) = one.relay._streams.values()
        await until(lambda: stream._is_client_gone)
        one.say(WORDS)
        one.client.close()
        assert await one.read() == WORDS

    on_our_loop(tmp_path, test)


def test_the_last_words_of_a_shard_that_was_killed_with_bytes_unread_reach_its_client(tmp_path: Path) -> None:
    async def test(one: Reset) -> None:
        one.say(b"unread")
        await until(lambda: has_come(one.shard))
        one.shard.send(WORDS)
        one.shard.close()
        assert await one.hear() == WORDS

    on_our_loop(tmp_path, test)
