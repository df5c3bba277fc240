"""Frames of any size, and in any state, are passed on as they come: the stream is the same however it is cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.server import ServerProtocol

from gnatswarm.broker.options import Tls, WebSocket
from gnatswarm.shards.sockets import frames as module
from gnatswarm.shards.sockets.frames import FRAMES_IN_A_TURN, MOST_LIST_BYTES, PIECE_BYTES, Frames, Rules
from gnatswarm.shards.sockets.frozen_socket import FrozenDeflate, FrozenFrames
from tests.support.framed import BINARY, CLOSE, CONTINUATION, DEFLATE, PING, deflated, frame, request

RULES = Rules(WebSocket(port=1, no_tls=True, tls=Tls()), most_bytes=2 << 20, is_encrypted=False)
LONG = 65_536  # the least that has eight bytes of length


def message(dice: random.Random, sizes: list[int], *, masked: bool) -> tuple[bytes, bytes]:
    """A message in fragments of these sizes, with pings between them, and what it holds."""
    wire = held = b""
    for number, size in enumerate(sizes):
        data = dice.randbytes(size)
        held += data
        last = number == len(sizes) - 1
        wire += frame(CONTINUATION if number else BINARY, data, fin=last, masked=masked)
        if dice.random() < 0.5:
            wire += frame(PING, b"x" * dice.randrange(10), masked=masked)
    return wire, held


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 100, 126, LONG, LONG + 1, 200_003]), min_size=1, max_size=3), max_size=4),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_the_stream_is_the_same_however_it_is_cut_and_wherever_it_moves(
    messages: list[list[int]], seed: int, masked: bool
) -> None:
    dice = random.Random(seed)
    told = [message(dice, sizes, masked=masked) for sizes in messages]
    wire, held = (b"".join(parts) for parts in zip(*told, strict=True)) if told else (b"", b"")
    frames, came, most_kept = Frames(RULES, FrozenFrames(), is_masked=masked), b"", 0
    at = 0
    while at < len(wire):
        end = at + dice.choice((1, 3, 20, 1000, 70_000))
        came += b"".join(frames.receive(wire[at:end]))
        frames.take_answer()
        at = end
        frozen = frames.freeze()
        most_kept = max(most_kept, len(frozen.partial))
        if dice.random() < 0.2:
            frames = Frames(RULES, frozen, is_masked=masked)
    assert came == held
    assert not frames.is_over
    assert most_kept <= PIECE_BYTES + 14


@given(st.integers(0, 2**32), st.booleans())
def test_many_frames_are_taken_in_turns_and_the_stream_is_the_same_wherever_it_moves(seed: int, masked: bool) -> None:
    dice = random.Random(seed)
    told = [message(dice, [dice.choice((0, 1, 3))] * dice.randrange(1, 4), masked=masked) for _ in range(300)]
    wire, held = (b"".join(parts) for parts in zip(*told, strict=True))
    frames, came, at = Frames(RULES, FrozenFrames(), is_masked=masked), b"", 0
    while at < len(wire) or frames.is_paused:
        data = b"" if frames.is_paused else wire[at : at + dice.choice((1, 500, 20_000))]
        at += len(data)
        pieces = frames.receive(data)
        assert len(pieces) <= FRAMES_IN_A_TURN
        came += b"".join(pieces)
        frames.take_answer()
        if dice.random() < 0.3:
            frames = Frames(RULES, frames.freeze(), is_masked=masked)
    assert came == held
    assert not frames.is_over


LISTS = {
    "Connection": "a,",
    "Sec-WebSocket-Extensions": "x,",
    "Sec-WebSocket-Protocol": "a,",
    "Upgrade": "a,",
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("lines", [1, 20])
def test_an_upgrade_with_long_lists_is_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, name: str, lines: int
) -> None:
    """240 KB of them took 380 ms of its shard."""
    read: list[str] = []
    monkeypatch.setattr(ServerProtocol, "accept", lambda self, request: read.append(request.path))
    frames = Frames(RULES)
    line = f"{name}: {LISTS[name] * (MOST_LIST_BYTES // 2 // lines)}a"
    assert frames.receive(request(4222, *[line] * lines)) == []
    assert frames.is_over and not frames.is_open and not read
    assert frames.error == f"more than {MOST_LIST_BYTES} bytes of {', '.join(module.LISTS)}"
    assert frames.take_answer().startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_an_upgrade_with_lists_of_usual_length_and_long_cookies_is_done() -> None:
    frames = Frames(RULES)
    lists = [f"Sec-WebSocket-Extensions: {DEFLATE}, {DEFLATE}; server_max_window_bits=15", "Connection: a, b, c"]
    frames.receive(request(4222, *lists, "Cookie: " + "a=b; " * 1500))
    assert frames.is_open and frames.take_answer().startswith(b"HTTP/1.1 101 ")


def test_a_close_frame_behind_a_turn_is_answered_in_the_next() -> None:
    frames = Frames(RULES, FrozenFrames())
    frames.receive(frame(BINARY, b"x") * FRAMES_IN_A_TURN + frame(CLOSE) + b"not looked at" * 100)
    assert frames.is_paused and not frames.is_over and not frames.take_answer()
    assert frames.receive(b"") == []
    assert frames.is_over and not frames.is_paused and frames.take_answer()
    assert len(frames._reader.buffer) == 0


def test_a_frame_that_never_ends_is_passed_on_and_not_kept() -> None:
    frames = Frames(RULES, FrozenFrames(), is_masked=False)
    head = b"\x82\x7f" + (1 << 50).to_bytes(8, "big")
    assert b"".join(frames.receive(head)) == b""
    came = sum(len(piece) for _ in range(100) for piece in frames.receive(bytes(70_000)))
    assert 100 * 70_000 - PIECE_BYTES < came <= 100 * 70_000
    assert len(frames.freeze().partial) <= PIECE_BYTES + 14


@pytest.mark.parametrize("step", [1000, PIECE_BYTES, 100_000])
def test_nothing_more_is_read_of_a_large_frame_that_is_an_error(step: int) -> None:
    frames = Frames(RULES, FrozenFrames(), is_masked=False)
    wire = frame(BINARY, b"x", fin=False, masked=False) + b"\x82\x7f" + (1 << 62).to_bytes(8, "big") + bytes(70_000)
    came = b"".join(b"".join(frames.receive(wire[at : at + step])) for at in range(0, len(wire), step))
    assert (came, frames.is_over, frames.error) == (b"x", True, "expected a continuation frame")
    assert frames.receive(bytes(70_000)) == []
    assert len(frames._reader.buffer) == 0


def test_a_compressed_frame_is_waited_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    rules = Rules(WebSocket(port=1, no_tls=True, tls=Tls(), compression=True), most_bytes=2 << 20, is_encrypted=False)
    frames = Frames(rules, FrozenFrames(deflate=FrozenDeflate(15, 15)))
    data = random.Random(1).randbytes(100_000)
    wire = frame(BINARY, deflated(data), reserved=0x40)
    assert frames.receive(wire[:-1]) == []
    assert b"".join(frames.receive(wire[-1:])) == data
