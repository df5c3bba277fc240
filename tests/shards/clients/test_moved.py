"""A client that goes on in another shard notices nothing; who cannot is told why, and stays as it was."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace

import bcrypt
import msgspec
import pytest

from gnatswarm.broker.bounds import LARGEST_MAX_PAYLOAD_BYTES
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.freezer import freeze, thaw
from gnatswarm.broker.frozen import MOST_HALF_READ_BYTES, RecordRefused
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Account, Options, Permissions, User, WebSocket
from gnatswarm.shards.boundary import wall_clock
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.rows import AccountRow, AccountsQuery
from gnatswarm.shards.boundary.wall_clock import wall_offset_us
from gnatswarm.shards.clients import moved as records
from gnatswarm.shards.clients.closed import connection_row
from gnatswarm.shards.clients.moved import FrozenSession, MovedClient
from gnatswarm.shards.clients.session import ClientSession
from gnatswarm.shards.monitoring.snapshots import Snapshots
from gnatswarm.shards.sockets.frames import most_frame_bytes
from tests.support.framed import BINARY, CLOSE, CONTINUATION, PING, deflated, frame, request
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until

HASH = bcrypt.hashpw(b"good", b"$2b$04$" + b"a" * 21 + b"u").decode()
RIGHTS = Permissions(publish_allow=("a",), subscribe_allow=("a", "_INBOX.>"))
OPTIONS = Options(
    users=(User("plain", "secret", permissions=RIGHTS), User("hashed", HASH), User("counted", "x", account="C")),
    accounts=(Account("C", max_connections=2),),
    websocket=WebSocket(port=-1, no_tls=True, compression=True),
)
OPEN = Options(websocket=WebSocket(port=-1, no_tls=True, compression=True))


class Two:
    """Two shards that are not linked, on one page."""

    def __init__(self, options: Options, options_there: Options | None = None) -> None:
        self.here = OneShard(options)
        self.there = OneShard(options_there or options, beside=self.here)

    def session(self, shard: OneShard | None = None) -> ClientSession:
        """The newest client of the shard."""
        return list((shard or self.here).shard.clients.open.values())[-1]

    def move(self) -> ClientSession:
        """The newest client of the one goes on in the other."""
        here, there = self.here.shard.clients, self.there.shard.clients
        session = self.session()
        cid = session.connection.cid
        said = records.encoded_session(session.freeze())
        assert session.socket is not None
        record = records.encoded(
            MovedClient(session.socket.freeze(), freeze(session.connection), session.counted_at >= 0, here.info.news)
        )
        moved = records.decoded(record)
        new = there.expect(cid, records.decoded_session(said))
        try:
            thaw(new.connection, moved.client)
        except RecordRefused:
            new.connection.leave()
            there.forget_expected(new)
            raise
        there.take_over(new, here.leave_behind(session, 1), moved, 0)
        return new

    def close(self) -> None:
        self.there.close()
        self.here.close()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    two = Two(OPTIONS)
    yield two
    two.close()


@pytest.fixture
async def free() -> AsyncIterator[Two]:
    two = Two(OPEN)
    yield two
    two.close()


async def logged_in(shard: OneShard, user: str, password: str, more: str = "") -> Client:
    client = shard.connect()
    await client.wait(b"}")
    connect = f'CONNECT {{"verbose":false,"user":"{user}","pass":"{password}","name":"n","lang":"l"{more}}}\r\nPING\r\n'
    assert await client.talk(connect.encode()) == b"PONG\r\n"
    return client


@pytest.mark.parametrize("by_s", [-3600, 86_400])
async def test_a_client_is_as_old_as_before_when_the_clock_is_set(
    two: Two, by_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await logged_in(two.here, "plain", "secret")
    offset_us, by_us = wall_offset_us(), by_s * 1_000_000
    before = connection_row(two.session(), offset_us)
    adjusted = connection_row(two.session(), offset_us + 900_000)
    assert adjusted.start_us == before.start_us  # a clock that runs a little faster does not change it
    wall = SimpleNamespace(time_ns=lambda: time.time_ns() + 1000 * by_us, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(wall_clock, "time", wall)
    after = connection_row(two.session(), wall_offset_us())
    assert abs(after.start_us - before.start_us - by_us) < 1_000_000
    moved = connection_row(two.move(), wall_offset_us())
    assert abs(moved.start_us - after.start_us) < 1_000_000
    monkeypatch.undo()  # it is set back
    again = connection_row(two.session(two.there), wall_offset_us())
    assert abs(again.start_us - before.start_us) < 1_000_000


@pytest.mark.parametrize(("user", "password"), [("plain", "secret"), ("hashed", "good"), ("counted", "x")])
async def test_a_client_goes_on_with_all_that_it_was(two: Two, user: str, password: str) -> None:
    client = await logged_in(two.here, user, password)
    assert await client.talk(b"SUB a 7\r\nPUB a 2\r\nhi\r\nPING\r\n") == b"MSG a 7 2\r\nhi\r\nPONG\r\n"
    offset_us = wall_offset_us()
    before = connection_row(two.session(), offset_us)
    new = two.move()
    after = connection_row(new, offset_us)
    assert after.came_from == 0 and after.moved_us >= after.start_us
    assert msgspec.structs.replace(after, came_from=-1, moved_us=0) == before
    # Both shards can tell for a while, so that no page misses it.
    ((to, row),) = two.here.shard.clients.passing.left
    assert (to, row.cid, row.user) == (1, before.cid, user)
    assert [(cid, old) for cid, old, _us in two.there.shard.clients.passing.came] == [(before.cid, 0)]
    assert not two.here.shard.clients.open
    assert not two.here.shard.clients.closed.latest
    assert await client.talk(b"PUB a 2\r\nyo\r\nPING\r\n") == b"MSG a 7 2\r\nyo\r\nPONG\r\n"
    counts = two.here.page.snapshot(0), two.here.page.snapshot(1)
    assert [count["connections"] for count in counts] == [0, 1]
    assert two.here.page.connections == 1
    assert [count["accepted_sockets"] for count in counts] == [1, 0]
    client.close()


async def test_what_an_account_did_on_a_shard_stays_there(two: Two) -> None:
    """A counter of Prometheus that falls, or begins with what was done elsewhere, shows a rate that never was."""

    async def here_and_there() -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for one in (two.here, two.there):
            shard = one.shard
            snapshots = Snapshots(
                channel=None,  # type: ignore[arg-type]
                clients=shard.clients,
                mesh=shard.mesh,
                fanout=shard.fanout,
            )
            parts = [part async for part in snapshots._accounts(AccountsQuery(), Pace())]
            row = next((row for part in parts for row in part.rows if row.name == "$G"), AccountRow("$G"))
            found.append((row.in_msgs_here, row.in_bytes_here, row.out_msgs_here, row.out_bytes_here, row.in_msgs))
        return found

    client = await logged_in(two.here, "plain", "secret")
    await client.talk(b"SUB a 7\r\nPUB a 2\r\nhi\r\nPUB a 2\r\nhi\r\nPING\r\n")
    assert await here_and_there() == [(2, 4, 2, 4, 2), (0, 0, 0, 0, 0)]
    two.move()
    assert await here_and_there() == [(2, 4, 2, 4, 0), (0, 0, 0, 0, 2)]
    await client.talk(b"PUB a 3\r\nyou\r\nPING\r\n")
    assert await here_and_there() == [(2, 4, 2, 4, 0), (1, 3, 1, 3, 3)]
    client.close()
    await until(lambda: not two.there.shard.clients.open)
    assert await here_and_there() == [(2, 4, 2, 4, 0), (1, 3, 1, 3, 3)]


async def test_its_permissions_hold_there_and_a_reload_there_finds_its_password_right(two: Two) -> None:
    client = await logged_in(two.here, "plain", "secret", ', "pedantic": false')
    two.move()
    assert b"Permissions Violation" in await client.talk(b"PUB b 1\r\nx\r\nPING\r\n")
    two.there.shard.reload(msgspec.structs.replace(OPTIONS, server_tags=("new",)))
    assert await client.talk(b"PING\r\n") == b"PONG\r\n"
    users = (User("plain", "another", permissions=RIGHTS), *OPTIONS.users[1:])
    two.there.shard.reload(msgspec.structs.replace(OPTIONS, users=users))
    assert b"Authorization Violation" in await client.wait(b"Violation'")


def announced(two: Two) -> tuple[ClientSession, tuple[FrozenSession, MovedClient]]:
    """The newest client, and its records."""
    session = two.session()
    assert session.socket is not None
    news = two.here.shard.clients.info.news
    record = MovedClient(session.socket.freeze(), freeze(session.connection), session.counted_at >= 0, news)
    return session, (records.decoded_session(records.encoded_session(session.freeze())), record)


def coming(two: Two) -> Callable[[], ClientSession]:
    """The newest client is announced to the other shard, with its subscriptions; the call lets it arrive."""
    here, there = two.here.shard.clients, two.there.shard.clients
    session, (said, record) = announced(two)
    new = there.expect(session.connection.cid, said)
    thaw(new.connection, record.client)

    def arrive() -> ClientSession:
        there.take_over(new, here.leave_behind(session, 1), record, 0)
        return new

    return arrive


async def test_what_is_reloaded_while_a_client_comes_holds_when_it_is_here(two: Two) -> None:
    """Until then its subscriptions are what other shards were told of."""
    client = await logged_in(two.here, "plain", "secret")
    await client.talk(b"SUB a 7\r\nPING\r\n")
    arrive = coming(two)
    sublist = two.there.shard.mesh.account(b"$G")
    nothing = Permissions(subscribe_allow=("b",))
    two.there.shard.reload(msgspec.structs.replace(OPTIONS, users=(User("plain", "secret", permissions=nothing),)))
    assert sublist.n_subs == 1
    arrive()
    await until(lambda: sublist.n_subs == 0)
    assert b"Permissions Violation for Subscription" in await client.wait(b"\r\n")
    assert await client.talk(b"PING\r\n") == b"PONG\r\n"


@pytest.mark.parametrize(
    "user", [User("plain", "secret", account="C"), User("plain", "another")], ids=["account", "password"]
)
async def test_a_reload_under_which_a_client_that_comes_could_not_log_in_closes_it(two: Two, user: User) -> None:
    client = await logged_in(two.here, "plain", "secret")
    await client.talk(b"SUB a 7\r\nPING\r\n")
    arrive = coming(two)
    two.there.shard.reload(msgspec.structs.replace(OPTIONS, users=(user,)))
    arrive()
    await client.wait(b"nothing")
    assert client.is_over
    assert two.here.page.connections == 0


async def test_a_hashed_password_is_not_compared_again_by_a_reload_there(two: Two) -> None:
    client = await logged_in(two.here, "hashed", "good")
    two.move()
    two.there.shard.reload(msgspec.structs.replace(OPTIONS, server_tags=("new",)))
    assert await client.talk(b"PING\r\n") == b"PONG\r\n"


async def test_connections_of_an_account_with_a_limit_are_counted_once(two: Two) -> None:
    first = await logged_in(two.here, "counted", "x")
    second = await logged_in(two.here, "counted", "x")
    two.move()
    place = two.here.page.account_place(b"C")
    assert two.here.page.account_connections(place) == 2
    first.close()
    second.close()
    third = two.here.connect()
    await until(lambda: two.here.page.account_connections(place) == 0)
    await third.wait(b"}")


async def test_an_account_counts_a_client_that_moves_once_all_the_time(two: Two) -> None:
    """A reload at that moment closes nobody, and a newcomer gets the last place."""
    stays = await logged_in(two.there, "counted", "x")
    moves = await logged_in(two.here, "counted", "x")
    place = two.here.page.account_place(b"C")
    session, record = announced(two)
    new = two.there.shard.clients.expect(session.connection.cid, record[0])
    thaw(new.connection, record[1].client)
    assert two.here.page.account_connections(place) == 2
    for shard in (two.here, two.there):
        shard.shard.reload(msgspec.structs.replace(OPTIONS, server_tags=("new",)))
    fd = two.here.shard.clients.leave_behind(session, 1)
    assert two.here.page.account_connections(place) == 2  # it is on its way
    two.there.shard.reload(msgspec.structs.replace(OPTIONS, server_tags=("newer",)))
    refused = two.here.connect()
    await refused.wait(b"}")
    log_in = b'CONNECT {"user":"counted","pass":"x"}\r\nPING\r\n'
    assert b"maximum account active connections exceeded" in await refused.talk(log_in, b"exceeded'")
    two.there.shard.clients.take_over(new, fd, record[1], 0)
    for client in (stays, moves):
        assert await client.talk(b"PING\r\n") == b"PONG\r\n"
    assert two.here.page.account_connections(place) == 2
    stays.close()
    moves.close()
    await until(lambda: two.here.page.account_connections(place) == 0)


async def test_a_client_that_moves_takes_no_newcomers_place_of_its_account(two: Two) -> None:
    moves = await logged_in(two.here, "counted", "x")
    arrive = coming(two)
    stays = await logged_in(two.there, "counted", "x")
    arrive()
    for client in (stays, moves):
        assert await client.talk(b"PING\r\n") == b"PONG\r\n"


async def test_one_that_does_not_arrive_counts_for_its_account_no_more(two: Two) -> None:
    """As soon as nobody is on the way: until then it may yet come."""
    await logged_in(two.here, "counted", "x")
    place = two.here.page.account_place(b"C")
    there = two.there.shard.clients
    session, record = announced(two)
    new = there.expect(session.connection.cid, record[0])
    os.close(two.here.shard.clients.leave_behind(session, 1))
    there.lost_on_its_way()
    two.here.page.settle_connections()
    assert two.here.page.account_connections(place) == 1
    new.connection.leave()
    there.forget_expected(new)
    two.here.page.settle_connections()
    assert two.here.page.account_connections(place) == 0
    assert two.here.page.connections == 0


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2)])
async def test_a_limit_that_comes_or_goes_while_a_client_moves_holds_where_it_arrives(before: int, after: int) -> None:
    def limited(most: int) -> Options:
        return msgspec.structs.replace(OPTIONS, accounts=(Account("C", max_connections=most),))

    two = Two(limited(before))
    await logged_in(two.here, "counted", "x")
    place = two.here.page.account_place(b"C")
    arrive = coming(two)
    two.there.shard.reload(limited(after))
    assert two.here.page.account_connections(place) == (1 if before else 0)
    arrive()
    assert two.here.page.account_connections(place) == (1 if after else 0)
    two.close()
    assert two.here.page.account_connections(place) == 0


async def test_a_client_that_moves_takes_no_newcomers_place() -> None:
    """It counts once from its announcement to its arrival."""
    two = Two(msgspec.structs.replace(OPEN, limits=Limits(max_connections=2)))
    client = two.here.connect()
    await client.talk(b"CONNECT {}\r\nPING\r\n", b"PONG\r\n")
    arrive = coming(two)
    newcomer = two.there.connect()
    await newcomer.talk(b"CONNECT {}\r\nPING\r\n", b"PONG\r\n")
    arrive()
    assert b"maximum connections" in await two.here.connect().wait(b"exceeded'")
    assert two.here.page.connections == 2
    two.close()


async def test_unread_input_and_unsent_output_go_with_it(free: Two) -> None:
    client = free.here.connect()
    await client.wait(b"}")
    await client.talk(b"CONNECT {}\r\nSUB a 1\r\nPUB a 100\r\nfirst half ", b"+OK\r\n")
    session = free.session()
    session.connection.send(b"x" * 3_000_000 + b" and the end\r\n")
    free.here.shard.reactor.finish()
    assert session.connection.pending_bytes > 1_000_000
    free.move()
    got = await client.wait(b" and the end\r\n")
    assert got.count(b"x") == 3_000_000
    await client.talk(b"." * 89 + b"\r\nPING\r\n")


async def test_one_that_is_refused_stays_where_it_was() -> None:
    other = msgspec.structs.replace(OPTIONS, users=(User("plain", "secret", permissions=Permissions()),))
    two = Two(OPTIONS, other)
    for user, password, why in (
        ("plain", "secret", "permissions or limits are different"),
        ("hashed", "good", "may not log in here"),
    ):
        client = await logged_in(two.here, user, password)
        assert await client.talk(b"SUB a 7\r\nPING\r\n") == b"PONG\r\n"
        with pytest.raises(RecordRefused, match=why):
            two.move()
        assert await client.talk(b"PUB a 2\r\nhi\r\nPING\r\n") == b"MSG a 7 2\r\nhi\r\nPONG\r\n"
    assert two.here.page.snapshot(1)["connections"] == 0
    assert two.here.page.connections == 2
    assert not two.there.shard.clients.open
    assert two.there.shard.mesh.account(b"$G").n_subs == 0
    two.close()


async def test_who_has_not_logged_in_or_is_here_already_does_not_move(two: Two) -> None:
    client = two.here.connect()
    await client.wait(b"}")
    with pytest.raises(RecordRefused, match="not logged in"):
        two.session().freeze()
    client = await logged_in(two.here, "plain", "secret")
    session = two.session()
    with pytest.raises(RecordRefused, match="in this shard already"):
        two.here.shard.clients.expect(session.connection.cid, session.freeze())
    socket = session.socket
    assert socket is not None
    two.here.shard.clients.close([session], CloseReason.KICKED)
    with pytest.raises(RecordRefused, match="being closed"):
        session.freeze()
    with pytest.raises(RecordRefused, match="being closed"):
        socket.freeze()


async def test_a_damaged_record_is_refused_whatever_is_wrong_with_it(two: Two) -> None:
    await logged_in(two.here, "plain", "secret")
    session = two.session()
    assert session.socket is not None
    data = records.encoded(MovedClient(session.socket.freeze(), freeze(session.connection), session.counted_at >= 0))
    said = records.encoded_session(session.freeze())
    for bad, why in (
        (b"", "without a version"),
        (b"\x00\x01" + data[2:], f"version 1; this shard understands version {records.CLIENT_RECORD_VERSION}"),
        (data[:-1], "truncated or damaged"),
        (data[: len(data) // 2], "truncated or damaged"),
        (data[:2] + b"\xc1", "truncated or damaged"),
        (data + b"x", "truncated or damaged"),
    ):
        with pytest.raises(RecordRefused, match=why):
            records.decoded(bad)
        with pytest.raises(RecordRefused, match=why):
            records.decoded_session(said[: len(said) // 2] if len(bad) > 10 and why.startswith("trunc") else bad)
    assert records.decoded_session(said).stated == ("n", "l", "")


async def test_half_a_surrogate_pair_in_a_name_keeps_nobody_where_it_is(free: Two) -> None:
    client = free.here.connect()
    await client.wait(b"}")
    await client.talk(b'CONNECT {"verbose":false,"name":"\\ud800"}\r\nPING\r\n')
    said = records.encoded_session(free.session().freeze())
    assert records.decoded_session(said).stated[0] == "\N{REPLACEMENT CHARACTER}"


# ---- WebSocket


async def upgraded(shard: OneShard, *more: str) -> Client:
    client = shard.connect(websocket=True)
    await client.talk(request(80, *more), b"\r\n\r\n")  # (INFO may be compressed)
    await client.talk(frame(BINARY, b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n'), b"PONG\r\n")
    return client


def pieces(data: bytes) -> Iterator[int]:
    """Where to cut: in the header, behind it, in the payload."""
    yield from range(1, 15)
    yield from (len(data) // 2, len(data) - 1)


def stream_of(said: bytes) -> bytes:
    """What these frames of the server hold."""
    held = b""
    while said:
        size, at = said[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            size = int.from_bytes(said[2:at], "big")
        held += said[at : at + size]
        said = said[at + size :]
    return held


@pytest.mark.parametrize("size", [10, 200, 70_000])
async def test_a_frame_that_is_half_here_is_completed_there(free: Two, size: int) -> None:
    whole = frame(BINARY, b"PUB a %d\r\n%b\r\nPING\r\n" % (size, os.urandom(size).hex().encode()[:size]))
    for at in pieces(whole):
        client = await upgraded(free.here)
        session = free.session()
        await client.talk(frame(PING, b"seen?") + whole[:at], b"seen?")
        assert session.connection.in_msgs == 0
        free.move()
        assert b"MSG a 1 %d\r\n" % size in stream_of(await client.talk(whole[at:], b"PONG\r\n"))
        client.close()


async def test_compression_and_fragments_go_on(free: Two) -> None:
    client = await upgraded(free.here, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    await client.talk(frame(BINARY, b"PUB a 2", fin=False) + frame(PING, b"seen?"), b"seen?")
    free.move()
    said = await client.talk(frame(CONTINUATION, b"\r\nhi\r\nPING\r\n"), b"PONG\r\n")
    assert said.endswith(b"MSG a 1 2\r\nhi\r\nPONG\r\n")
    packed = frame(BINARY, deflated(b"PUB a 90\r\n" + b"z" * 90 + b"\r\nPING\r\n"), reserved=0x40)
    said = await client.talk(packed + frame(PING, b"seen?"), b"seen?")
    said = said.removeprefix(b"\x8a\x05seen?") or await client.wait(b"\x00")
    first, second = said[0], said[1]
    assert first == 0xC2  # a whole binary message, compressed
    text = zlib.decompressobj(wbits=-15).decompress(said[2 : 2 + second] + b"\x00\x00\xff\xff")
    assert text.startswith(b"MSG a 1 90\r\nzzz")


async def test_a_client_moves_while_the_largest_compressed_frame_is_taken_in_turns() -> None:
    most = Limits(max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES)
    two = Two(msgspec.structs.replace(OPEN, limits=most))
    client = await upgraded(two.here, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    session = two.session()
    assert session.socket is not None
    message = b"PUB b 1000000\r\n%b\r\n" % bytes(1_000_000)
    n, rest = divmod(most_frame_bytes(Options(limits=most)), len(message))
    packed = frame(BINARY, deflated(message * n + b"PING\r\n" * (rest // 6)), reserved=0x40)
    client.send(packed)
    await until(lambda: session.socket is not None and session.socket.unread_bytes > MOST_HALF_READ_BYTES)
    new = two.move()
    await until(lambda: new.connection.in_msgs == n)
    two.close()


async def test_a_compressed_message_in_fragments_keeps_its_client_where_it_is(free: Two) -> None:
    client = await upgraded(free.here, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    packed = deflated(b"PUB a 2\r\nhi\r\nPING\r\n")
    await client.talk(frame(BINARY, packed[:5], fin=False, reserved=0x40) + frame(PING, b"seen?"), b"seen?")
    with pytest.raises(RecordRefused, match="compressed message in fragments"):
        free.move()
    await client.talk(frame(CONTINUATION, packed[5:]), b"")


async def test_a_websocket_client_that_says_goodbye_does_not_move(free: Two) -> None:
    client = await upgraded(free.here)
    session = free.session()
    await client.talk(frame(CLOSE, b"\x03\xe8"), b"never")
    with pytest.raises(RecordRefused, match="being closed"):
        session.freeze()


async def test_a_shard_without_a_websocket_port_takes_no_such_client() -> None:
    two = Two(OPEN, Options())
    client = await upgraded(two.here)
    with pytest.raises(RecordRefused, match="no port for WebSocket"):
        two.move()
    await client.talk(frame(BINARY, b"PING\r\n"), b"PONG\r\n")
    two.close()


async def test_a_client_with_too_much_unsent_for_the_other_shard_stays() -> None:
    two = Two(OPEN, Options(limits=Limits(max_pending_bytes=1_000_000)))
    client = two.here.connect()
    await client.wait(b"}")
    await client.talk(b'CONNECT {"verbose":false}\r\nPING\r\n')
    two.session().connection.send(b"x" * 5_000_000)
    two.here.shard.reactor.finish()
    with pytest.raises(RecordRefused, match="max_pending"):
        two.move()
    assert (await client.wait(b"x" * 5_000_000)).count(b"x") == 5_000_000
    two.close()
