"""The loop at full speed against a socket whose other end the test holds: bytes out, windows, what is compared."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnatswarm.loadtest.board import Board
from gnatswarm.loadtest.errors import LoadFailed
from gnatswarm.loadtest.flow import Flow
from gnatswarm.loadtest.plan import Scenario, Share

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The generator's end, and the server's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(30)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def other(pair: Pair) -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def flow(scenario: Scenario, publisher: socket.socket | None, subscriber: socket.socket | None) -> Flow:
    share = Share(scenario)
    share.publishers = [(0, 0, publisher.fileno())] if publisher else []
    share.subscribers = [(0, 0, subscriber.fileno())] if subscriber else []
    board = Board(scenario.publishers, scenario.subscribers, 1)
    return Flow(board, 0, share)


def read_to_ping(theirs: socket.socket, to: Path) -> None:
    """Until the PING behind the last message, which is answered; some bytes at a time, so that frames are cut."""
    came = bytearray()
    while not came.endswith(b"PING\r\n"):
        came.extend(theirs.recv(1000))
    to.write_bytes(came)
    theirs.sendall(b"PONG\r\n")


@contextlib.contextmanager
def reading(theirs: socket.socket, to: Path) -> Iterator[None]:
    """In a process of its own: the loop does not let another thread of this one run."""
    reader = multiprocessing.get_context("fork").Process(target=read_to_ping, args=(theirs, to))
    reader.start()
    try:
        yield
        reader.join(30)
        assert reader.exitcode == 0
    finally:
        reader.kill()
        reader.join()


@pytest.mark.parametrize(
    ("subjects", "head", "digits"),
    [(1, b"MSG foo 1 16\r\n", range(0)), (1000, b"MSG foo.000000 1 16\r\n", range(8, 14))],
    ids=["one subject", "rotating"],
)
def test_every_byte_of_a_head_is_compared_but_the_digits_of_rotating_subjects(
    pair: Pair, subjects: int, head: bytes, digits: range
):
    scenario = Scenario("s", publishers=0, messages=2, subjects=subjects)
    ours, theirs = pair
    right = head + b"x" * 16 + b"\r\n"
    accepted = []
    for at in range(len(right)):
        changed = bytearray(right)
        changed[at] ^= 1
        theirs.sendall(right + changed)
        loop = flow(scenario, None, ours)
        try:
            loop.run()
        except LoadFailed:
            continue
        assert loop.received() == {0: 2}
        accepted.append(at)
    payload = range(len(head), len(right) - 1)
    assert accepted == [*digits, *payload]


@pytest.mark.parametrize(("payload", "write"), [(16, 1), (16, 300), (16, 65536), (5000, 1), (5000, 65536), (0, 64)])
def test_what_is_written_is_whole_frames_one_behind_the_other(pair: Pair, tmp_path: Path, payload: int, write: int):
    scenario = Scenario("s", subscribers=0, messages=700, payload_bytes=payload, write_bytes=write)
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = flow(scenario, ours, None)
    with reading(theirs, tmp_path / "came"):
        loop.run()
    came = (tmp_path / "came").read_bytes()
    assert came == (b"PUB foo %d\r\n%s\r\n" % (payload, b"x" * payload)) * 700 + b"PING\r\n"
    assert loop.sent() == {0: 700}


@pytest.mark.parametrize("write", [1, 100, 65536])
def test_a_publisher_stays_within_its_window(pair: Pair, other: Pair, write: int):
    scenario = Scenario("s", messages=5000, write_bytes=write, window_bytes=3200, patience_s=0.05)
    delivery = b"MSG foo 1 16\r\n" + b"x" * 16 + b"\r\n"
    publish = b"PUB foo 16\r\n" + b"x" * 16 + b"\r\n"
    window = 3200 // len(delivery)
    (publisher, from_publisher), (subscriber, to_subscriber) = pair, other
    to_subscriber.sendall(delivery * 7)
    with pytest.raises(LoadFailed, match=rf"^nothing moved for 0.05 s: 7 deliveries of {window + 7} messages sent$"):
        flow(scenario, publisher, subscriber).run()
    publisher.close()
    came = b""
    while data := from_publisher.recv(65536):
        came += data
    assert came == publish * (window + 7)


def test_a_ping_is_answered_between_two_frames(pair: Pair, tmp_path: Path):
    scenario = Scenario("s", subscribers=0, messages=50, payload_bytes=3000)
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.sendall(b"PING\r\n")
    with reading(theirs, tmp_path / "came"):
        flow(scenario, ours, None).run()
    frame = b"PUB foo 3000\r\n" + b"x" * 3000 + b"\r\n"
    before, pong, behind = (tmp_path / "came").read_bytes().partition(b"PONG\r\n")
    assert pong
    assert before + behind == frame * 50 + b"PING\r\n"
    assert len(before) % len(frame) == 0
