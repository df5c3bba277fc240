"""Records and descriptors reach the other end together and in order; what is not understood ends the way."""

from __future__ import annotations

import array
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gnatswarm.shards.moving import move_channel as channel
from gnatswarm.shards.sockets.reserve import Reserve
from tests.support.turns import until

HELLO = channel.Hello(channel.CHANNEL_VERSION, "N", 0, "aa")


class Ends:
    """A door, and what came through it."""

    def __init__(self, path: str) -> None:
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.path = path
        self.came: list[tuple[channel.Message, int]] = []
        self.ended: list[str] = []
        self.incoming: list[channel.Incoming] = []
        self.closed: list[channel.Outgoing] = []
        self.door = channel.Door(self.loop, path, self._on_accepted, reserve=Reserve())

    def _on_accepted(self, sock: socket.socket) -> None:
        self.incoming.append(
            channel.Incoming(
                self.loop,
                sock,
                lambda _, message, fd: self.came.append((message, fd)),
                lambda _, why: self.ended.append(why),
            )
        )

    def dial(self) -> channel.Outgoing:
        return channel.Outgoing(self.loop, self.path, HELLO, self.closed.append)

    def raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(self.path)
        return sock


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[Ends]:
    ends = Ends(str(tmp_path / "0.aa.mv"))
    yield ends
    ends.door.close()
    for incoming in ends.incoming:
        incoming.close()


def framed(message: channel.MoveMessage) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


def number(fd: int) -> int:
    return os.fstat(fd).st_ino


async def test_a_process_of_another_user_is_handed_nothing(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: other)
        with pytest.raises(PermissionError, match=f"a process of user {os.getuid()} listens there"):
            ends.dial()
    await until(lambda: ends.ended == [""])
    assert ends.came == []


async def test_each_record_comes_with_its_descriptor_whatever_its_size(ends: Ends) -> None:
    way = ends.dial()
    assert os.stat(ends.path).st_mode & 0o777 == 0o600
    pairs = [socket.socketpair() for _ in range(20)]
    wanted = []
    for n, (ours, _) in enumerate(pairs):
        wanted.append(number(ours.fileno()))
        way.send(channel.HandedOver(n, b"x" * (1 if n % 3 else 3_000_000)), os.dup(ours.fileno()))
        way.send(channel.Ended(n))
    await until(lambda: len(ends.came) == 41)
    assert [number(fd) for message, fd in ends.came if isinstance(message, channel.HandedOver)] == wanted
    assert all(fd == channel.NOT_RECEIVED for message, fd in ends.came if not isinstance(message, channel.HandedOver))
    for _, fd in ends.came:
        if fd >= 0:
            os.close(fd)
    way.close()
    await until(lambda: ends.ended == [""])
    for pair in pairs:
        for sock in pair:
            sock.close()


@pytest.mark.parametrize(("turn_ns", "at_least", "at_most"), [(10**12, 20, 20), (0, 1, 1)])
async def test_as_many_are_taken_in_one_turn_as_its_time_allows(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, turn_ns: int, at_least: int, at_most: int
) -> None:
    monkeypatch.setattr(channel, "TURN_NS", turn_ns)
    way = ends.dial()
    await until(lambda: ends.came)
    ours, theirs = socket.socketpair()
    for n in range(20):
        way.send(channel.HandedOver(n, b"x"), os.dup(ours.fileno()))
    ends.incoming[0]._on_readable()
    assert at_least <= len(ends.came) - 1 <= at_most
    await until(lambda: len(ends.came) == 21)
    for _, fd in ends.came[1:]:
        os.close(fd)
    way.close()
    ours.close()
    theirs.close()


async def test_a_descriptor_for_which_there_is_no_room_is_lost_with_its_record_alone(ends: Ends) -> None:
    way = ends.dial()
    await until(lambda: ends.came)
    ours, theirs = socket.socketpair()
    way.send(channel.HandedOver(0, b"x"), os.dup(ours.fileno()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(ours.fileno())
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        ends.incoming[0]._on_readable()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    way.send(channel.HandedOver(1, b"x"), os.dup(ours.fileno()))
    await until(lambda: len(ends.came) == 3 or ends.ended)
    assert [fd >= 0 for _, fd in ends.came[1:]] == [False, True]
    os.close(ends.came[-1][1])
    way.close()
    ours.close()
    theirs.close()


async def test_a_way_whose_other_end_is_gone_closes_what_it_could_not_send(ends: Ends) -> None:
    way = ends.dial()
    await until(lambda: ends.came)
    ours, theirs = socket.socketpair()
    way.send(channel.HandedOver(1, b"x" * 30_000_000), os.dup(ours.fileno()))
    way.send(channel.HandedOver(2, b"x"), os.dup(ours.fileno()))
    ours.close()
    ends.incoming[0].close()
    await until(lambda: ends.closed == [way])
    theirs.setblocking(True)
    assert theirs.recv(1) == b""  # no copy of it is open any more
    theirs.close()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">I", channel.MOST_FRAME_BYTES + 1), "at most"),
        (struct.pack(">I", 3) + b"abc", "not understood"),
        (framed(channel.Ended(1)), "Hello out of place"),
        (framed(HELLO) + framed(HELLO), "Hello out of place"),
        (framed(HELLO) + framed(channel.HandedOver(1, b"x")), "without its descriptor"),
    ],
)
async def test_what_is_not_understood_ends_the_way(ends: Ends, data: bytes, why: str) -> None:
    sock = ends.raw()
    sock.sendall(data)
    await until(lambda: ends.ended)
    assert why in ends.ended[0]
    sock.close()


async def test_a_way_that_ends_inside_a_record_says_so_and_closes_its_descriptor(ends: Ends) -> None:
    ours, theirs = socket.socketpair()
    sock = ends.raw()
    data = framed(HELLO) + framed(channel.HandedOver(1, b"x" * 100))[:50]
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours.fileno()]))])
    ours.close()
    sock.close()
    await until(lambda: ends.ended)
    assert ends.ended == ["it ended inside a record"]
    assert theirs.recv(1) == b""
    theirs.close()


def test_a_descriptor_must_be_a_connection(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening = socket.create_server(("127.0.0.1", 0))
    with open(tmp_path / "file", "w") as file:
        assert channel.objection_to_descriptor(ours.fileno()) == ""
        assert "no socket" in channel.objection_to_descriptor(file.fileno())
        assert "no stream" in channel.objection_to_descriptor(datagram.fileno())
        assert "listening" in channel.objection_to_descriptor(listening.fileno())
        assert "too many" in channel.objection_to_descriptor(channel.NOT_RECEIVED)
    for sock in (ours, theirs, datagram, listening):
        sock.close()


async def test_what_waits_for_the_next_goes_out_with_it_in_order(ends: Ends) -> None:
    way = ends.dial()
    way.send(channel.Gone(1, 1), is_last=False)
    way.send(channel.HandedOver(1, b"x"), os.dup(0), is_last=False)
    assert way.is_sending and way.unsent_descriptors == 1
    way.send(channel.Ended(1))
    assert not way.is_sending and way.unsent_descriptors == 0
    await until(lambda: len(ends.came) == 4)
    assert [type(message).__name__ for message, _ in ends.came] == ["Hello", "Gone", "HandedOver", "Ended"]
    os.close(ends.came[2][1])
    way.close()


async def test_what_waits_is_bounded(ends: Ends) -> None:
    way = ends.dial()
    way.send(channel.HandedOver(1, bytes(channel.HELD_BYTES)), os.dup(0), is_last=False)
    assert not way.is_sending
    await until(lambda: len(ends.came) == 2)
    os.close(ends.came[1][1])
    way.close()


async def test_a_little_is_sent_in_each_turn_in_order(ends: Ends) -> None:
    asked: list[channel.Outgoing] = []
    way = channel.Outgoing(ends.loop, ends.path, HELLO, ends.closed.append, asked.append)
    for move in range(20):
        way.send(channel.Ended(move), is_last=move == 19)
    assert asked == [way] and way.is_sending
    turns = 1
    while way.send_some():
        turns += 1
        assert way.is_sending
    assert turns == 20 // channel.FRAMES_A_TURN + 1 and not way.is_sending
    way.send(channel.Ended(20))
    assert asked == [way, way]
    way.close()  # … without what waits for its turn
    assert not way.send_some()
    await until(lambda: ends.ended)
    assert [message for message, _ in ends.came] == [HELLO, *(channel.Ended(move) for move in range(20))]
