"""The control channel carries every message however its bytes are cut, and says one thing about wrong bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, get_args

import msgspec
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from gnatswarm.broker.options import Options, Permissions, User
from gnatswarm.shards.boundary import control
from gnatswarm.shards.boundary.control import Channel, ControlError, ControlMessage, Framer, encode
from gnatswarm.shards.boundary.rows import ClientQuery, PublishersQuery, Query, SubjectInterestQuery

BOOT = control.Boot(
    version=control.CONTROL_VERSION,
    shard=1,
    shards=2,
    server_id="NABC",
    server_name="marsh",
    boot_id="0011223344556677",
    options=Options(users=(User("a", "b"),)),
    host="",
    port=4222,
    listener_fds=[7],
    websocket_fds=[8],
    may_refuse=True,
    handoff_fd=-1,
    page_fd=8,
    link_dir="/run/gnatswarm/1-abc",
    created_us=1,
    keeper_pid=1,
    server_ports={"cluster": control.ServerPort(9, "127.0.0.1", 6222)},
)
GIVEN = {SubjectInterestQuery: ([("$G", "a.b")],), ClientQuery: (7,), PublishersQuery: ("$G", "a.b")}
QUESTIONS: list[Query] = [kind(*GIVEN.get(kind, ())) for kind in get_args(Query)]
TO_SHARD: list[ControlMessage] = [
    BOOT,
    control.Ping(2**63),
    control.LinkedShards([control.LinkedShard(0, "aa", "/x"), control.LinkedShard(1, "bb", "/y")]),
    control.ListenAnew(),
    *control.users_in_parts([User("a", "secret")]),
    control.Reload(Options(port=1)),
    control.ReopenLog(),
    control.Drain(10.0, [0, 2]),
    control.RelaysEnd(["b1", "b2"]),
    control.EndRelay(20.0),
    control.MoveAway([(1, 20)], 30.0),
    control.Places(2, [1, -1]),
    control.LameDuck(10.0, 120.0),
    control.Stop(),
    control.PartLink(1, 0.5),
    control.Disconnect(7),
    control.Places(3, [0, -1]),
    *(control.Snapshot(1, query) for query in QUESTIONS),
    control.SystemReply(1, b"{}"),
    control.SystemEvent("$SYS.SERVER.X.SHUTDOWN", b"{}", is_last_word=True),
]
NEWS = control.ClusterNews("C", ["a:1"], ["b:1"], [], ["c:1"], members=1, is_settled=False)
TO_SHARD.append(NEWS)
TO_ROUTER: list[ControlMessage] = [
    control.Awake(),
    control.Linked("/x/1.bb.sock"),
    control.Ready(),
    control.Resumed(True, False, 3, 1.5, True),
    NEWS,
    control.InStep(False),
    control.HasHeadroom(False),
    control.Pong(3),
    control.Fatal("no \N{GREEK SMALL LETTER ALPHA}ccount"),
    control.Reloaded(3),
    control.Disconnected(3),
    control.Moved(3, {"it has TLS": 2}),
    control.Matching(2, [control.RuleMatch(0, 3, 1, 2.5)]),
    control.Parted(1),
    control.Drained(True),
    control.Relays(3, 3599.5),
    control.SnapshotReply(1, b"\x00" * 70_000),
    control.SystemRequest(1, "$SYS", "$SYS.REQ.SERVER.PING", b"{}"),
    control.AccountChanged("A"),
    control.ServerEvent("$SYS.ACCOUNT.A.CONNECT", b"{}"),
    control.Matching(3, []),
]
BOTH = [(control.ToShard, TO_SHARD), (control.ToRouter, TO_ROUTER)]


def test_every_message_is_in_a_sample() -> None:
    assert {type(message) for message in TO_SHARD} == set(control.ToShard.__args__)
    assert {type(message) for message in TO_ROUTER} == set(control.ToRouter.__args__)


@pytest.mark.parametrize(("expected", "messages"), BOTH)
@pytest.mark.parametrize("step", [1, 3, 1000, 1 << 20])
def test_messages_arrive_whole_however_they_are_cut(expected: Any, messages: list[ControlMessage], step: int) -> None:
    framer = Framer(expected)
    stream = b"".join(encode(message) for message in messages)
    got: list[ControlMessage] = []
    for start in range(0, len(stream), step):
        got += framer.feed(stream[start : start + step])
    framer.end()
    assert got == messages


def test_an_incomplete_frame_is_kept_for_the_next_feed() -> None:
    framer = Framer(control.ToShard)
    frame = encode(control.Ping(5))
    assert framer.feed(encode(control.Stop()) + frame[:-1]) == [control.Stop()]
    assert framer.feed(frame[-1:] + frame[:2]) == [control.Ping(5)]


def body(value: object) -> bytes:
    raw = msgspec.msgpack.encode(value)
    return struct.pack(">I", len(raw)) + raw


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (struct.pack(">I", control.MAX_FRAME_BYTES + 1), "control frame of 16777217 bytes, over 16777216"),
        (b"GET / HTTP/1.1\r\n", "control frame of 1195725856 bytes"),
        (b"\x00\x00\x00\x00", "undecodable control message"),
        (b"\x00\x00\x00\x03abc", "undecodable control message"),
        (body(["Unheard"]), "undecodable control message: Invalid value 'Unheard'"),
        (body({"type": "Ping"}), "undecodable control message"),
        (body(["Ping", "1"]), "undecodable control message"),
        (body(["Ping"]), "undecodable control message"),
        (body(["Ping", 1, 2]), "undecodable control message"),
        (body(["Pong", 1]), "undecodable control message: Invalid value 'Pong'"),
        (b"\x00\x00\x00\x0a" + b"\x92\xa5Fatal\xa2\xff\xfe", "undecodable control message"),
    ],
)
def test_wrong_bytes_are_one_error_and_nothing_after_it_is_read(wrong: bytes, says: str) -> None:
    framer = Framer(control.ToShard)
    with pytest.raises(ControlError, match=says) as caught:
        framer.feed(wrong)
    with pytest.raises(ControlError) as again:
        framer.feed(encode(control.Ping(1)))
    assert again.value is caught.value


@settings(deadline=None)  # a busy machine may pause it
@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_messages_or_one_error(data: bytes, step: int) -> None:
    framer = Framer(control.ToShard)
    try:
        for start in range(0, len(data), step):
            for message in framer.feed(data[start : start + step]):
                assert isinstance(message, control.ToShard)
        framer.end()
    except ControlError:
        return


def test_the_end_inside_a_frame_is_an_error() -> None:
    framer = Framer(control.ToShard)
    framer.feed(encode(control.Stop())[:-1])
    with pytest.raises(ControlError, match="ended inside a frame"):
        framer.end()


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(ControlError, match="SnapshotReply"):
        encode(control.SnapshotReply(1, b"x" * control.MAX_FRAME_BYTES))


class End:
    """One end of a channel, and what it was told."""

    def __init__(self, sock: socket.socket, expected: Any) -> None:
        self.got: list[ControlMessage] = []
        self.closed: list[ControlError | None] = []
        self.changed = asyncio.Event()
        self.channel = Channel(sock, expected, self._on_message, self._on_closed)

    def _on_message(self, message: ControlMessage) -> None:
        self.got.append(message)
        self.changed.set()

    def _on_closed(self, error: ControlError | None) -> None:
        self.closed.append(error)
        self.changed.set()

    async def wait_got(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.got) < count:
                self.changed.clear()
                await self.changed.wait()

    async def wait_closed(self) -> ControlError | None:
        async with asyncio.timeout(30):
            while not self.closed:
                self.changed.clear()
                await self.changed.wait()
        return self.closed[0]


def ends() -> tuple[End, End]:
    router, shard = socket.socketpair()
    return End(router, control.ToRouter), End(shard, control.ToShard)


async def test_both_ways_at_once() -> None:
    router, shard = ends()
    for message in TO_SHARD:
        router.channel.send(message)
    for message in TO_ROUTER:
        shard.channel.send(message)
    await shard.wait_got(len(TO_SHARD))
    await router.wait_got(len(TO_ROUTER))
    assert shard.got == TO_SHARD
    assert router.got == TO_ROUTER
    router.channel.close()
    assert await shard.wait_closed() is None
    assert router.closed == [None]
    shard.channel.close()
    assert shard.closed == [None]


async def test_what_the_socket_does_not_take_waits_and_arrives() -> None:
    router, shard = ends()
    replies = [control.SnapshotReply(number, b"x" * 3_000_000) for number in range(5)]
    for reply in replies:
        shard.channel.send(reply)
    assert shard.channel.pending_bytes > 10_000_000
    await router.wait_got(5)
    assert router.got == replies
    assert shard.channel.pending_bytes == 0
    router.channel.close()
    await shard.wait_closed()


async def test_an_end_that_does_not_read_is_given_up_at_a_bound() -> None:
    left, right = socket.socketpair()
    shard = End(left, control.ToShard)
    reply = control.SnapshotReply(1, b"x" * (control.MAX_FRAME_BYTES - 100))
    for _ in range(6):
        shard.channel.send(reply)
    error = await shard.wait_closed()
    assert "unread" in str(error)
    shard.channel.send(reply)
    assert shard.channel.is_closed
    assert len(shard.closed) == 1
    right.close()


async def test_last_words_are_heard_though_we_write_to_the_dead() -> None:
    left, right = socket.socketpair()
    router = End(left, control.ToRouter)
    right.sendall(encode(control.Fatal("bad option")))
    right.close()
    router.channel.send(control.Ping(1))
    router.channel.send(control.Ping(2))
    assert await router.wait_closed() is None
    assert router.got == [control.Fatal("bad option")]


def test_the_end_is_heard_of_one_that_died_with_bytes_unread() -> None:
    """The loop of routers and shards says so once, with its last words."""

    async def test() -> None:
        left, right = socket.socketpair()
        router = End(left, control.ToRouter)
        router.channel.send(control.Ping(1))
        right.sendall(encode(control.Fatal("bad option")))
        right.close()
        assert await router.wait_closed() is None
        assert router.got == [control.Fatal("bad option")]

    uvloop.run(test())


async def test_read_to_end_delivers_at_once() -> None:
    left, right = socket.socketpair()
    router = End(left, control.ToRouter)
    right.sendall(encode(control.Fatal("bad option")))
    right.close()
    router.channel.read_to_end()
    assert router.got == [control.Fatal("bad option")]
    assert router.closed == [None]


async def test_bad_bytes_close_the_channel_with_the_reason() -> None:
    left, right = socket.socketpair()
    router = End(left, control.ToRouter)
    right.sendall(encode(control.Ready()) + b"\xff\xff\xff\xff" + encode(control.Ready()))
    assert "over 16777216" in str(await router.wait_closed())
    assert router.got in ([], [control.Ready()])
    assert right.recv(1) == b""
    right.close()


async def test_what_came_behind_a_message_that_fails_is_delivered() -> None:
    """The router logs an error of its own, and goes on: a shard that had said that it is ready would not be so."""
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    router, shard = ends()
    on_message = router._on_message

    def stumbles(message: ControlMessage) -> None:
        on_message(message)
        if len(router.got) in (1, 3):
            raise RuntimeError("of the test")

    router.channel._on_message = stumbles
    for seq in range(4):
        shard.channel.send(control.Pong(seq))
    await router.wait_got(4)  # though nothing more is said
    assert router.got == [control.Pong(seq) for seq in range(4)]
    assert len(failed) == 2
    shard.channel.close()
    assert await router.wait_closed() is None


async def test_pings_are_answered_within_work_that_takes_long_and_all_else_waits_in_order() -> None:
    router, shard = ends()
    messages = [control.LinkedShards([]), control.Ping(1), control.Stop(), control.Ping(2), control.ListenAnew()]
    for message in messages:
        router.channel.send(message)
    shard.channel.answer_pings()
    assert shard.got == []
    await router.wait_got(2)
    assert router.got == [control.Pong(1), control.Pong(2)]
    await shard.wait_got(3)
    assert shard.got == [message for message in messages if not isinstance(message, control.Ping)]
    shard.channel.answer_pings()  # nothing has come
    router.channel.close()
    shard.channel.answer_pings()
    assert await shard.wait_closed() is None
    shard.channel.answer_pings()


async def test_closing_inside_a_message_delivers_no_other() -> None:
    left, right = socket.socketpair()
    got: list[ControlMessage] = []
    closed: list[ControlError | None] = []
    ended = asyncio.Event()

    def on_closed(error: ControlError | None) -> None:
        closed.append(error)
        ended.set()

    def on_message(message: ControlMessage) -> None:
        got.append(message)
        channel.close()

    channel = Channel(left, control.ToRouter, on_message, on_closed)
    right.sendall(encode(control.Pong(1)) + encode(control.Pong(2)))
    async with asyncio.timeout(30):
        await ended.wait()
    assert got == [control.Pong(1)]
    assert closed == [None]
    right.close()


def test_users_with_long_permissions_are_told_few_at_once() -> None:
    """A shard takes each message in one turn: of a thousand users with hundreds of subjects each it was 130 ms."""
    subjects = tuple(f"subject.{n}" for n in range(200))
    users = [User(f"u{n}", "secret", permissions=Permissions(publish_allow=subjects)) for n in range(1001)]
    parts = list(control.users_in_parts(users))
    assert max(len(part.users) for part in parts) <= control.USERS_BYTES
    assert [user for part in parts for user in control.decode_users(part.users)] == users
    one = User("u", "secret", permissions=Permissions(publish_allow=("x" * control.USERS_BYTES,)))
    assert [control.decode_users(part.users) for part in control.users_in_parts([one, one])] == [[one], [one]]
