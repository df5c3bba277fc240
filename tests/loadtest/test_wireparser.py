"""The load generator's own parser: every frame whole, byte by byte and with what follows; and what it refuses."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.loadtest import wireparser
from gnatswarm.loadtest.wireparser import Err, Frame, Info, Msg, Ok, Parser, Ping, Pong, ProtocolViolation

FRAMES: list[tuple[bytes, Frame]] = [
    (b'INFO {"server_id":"x","max_payload":1048576} \r\n', Info({"server_id": "x", "max_payload": 1048576})),
    (b"PING\r\n", Ping()),
    (b"PONG\r\n", Pong()),
    (b"+OK\r\n", Ok()),
    (b"-ERR 'Unknown Protocol Operation'\r\n", Err("Unknown Protocol Operation")),
    (b"MSG a.b 7 2\r\nhi\r\n", Msg("a.b", 7, "", b"", b"hi")),
    (b"MSG a.b 7 r.1 2\r\n\r\n\r\n", Msg("a.b", 7, "r.1", b"", b"\r\n")),
    (b"MSG a 1 0\r\n\r\n", Msg("a", 1, "", b"", b"")),
    (b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Msg("a", 1, "", b"NATS/1.0\r\n\r\n", b"hi")),
    (b"HMSG r 3 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", Msg("r", 3, "", b"NATS/1.0 503\r\n\r\n", b"")),
    (b"HMSG a 1 r 12 12\r\nNATS/1.0\r\n\r\n\r\n", Msg("a", 1, "r", b"NATS/1.0\r\n\r\n", b"")),
]


@pytest.mark.parametrize(("data", "frame"), FRAMES)
def test_a_frame_is_read_whole_and_byte_by_byte_and_leaves_what_follows(data: bytes, frame: Frame):
    assert Parser().feed(data) == [frame]
    parser = Parser()
    for index in range(len(data) - 1):
        assert parser.feed(data[index : index + 1]) == []
    assert parser.feed(data[-1:] + b"PIN") == [frame]
    assert parser.pending_bytes == 3
    assert parser.feed(b"G\r\n") == [Ping()]


@given(st.lists(st.sampled_from(FRAMES), max_size=20), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_any_frames_in_any_pieces(frames: list[tuple[bytes, Frame]], pieces: list[int]):
    data = b"".join(raw for raw, _ in frames)
    parser, got, at, turn = Parser(), [], 0, 0
    while at < len(data):
        size = pieces[turn % len(pieces)]
        got += parser.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert got == [frame for _, frame in frames]


@pytest.mark.parametrize(
    "data",
    [
        b"PUB a 2\r\nhi\r\n",
        b"pong\r\n",
        b"PONG \r\n",
        b"\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 -2\r\n",
        b"MSG a x 2\r\nhi\r\n",
        b"MSG a 1 r s 2\r\nhi\r\n",
        b"MSG a 1 2\r\nhiho",
        b"MSG a 1 99999999999\r\n",
        b"HMSG a 1 9 2\r\nhi\r\n",
        b"x" * wireparser.MAX_LINE_BYTES,
    ],
)
def test_what_no_server_says_is_a_violation(data: bytes):
    with pytest.raises(ProtocolViolation):
        Parser().feed(data)


@given(st.binary(max_size=200))
def test_nonsense_is_a_violation_or_waits_for_more(data: bytes):
    with contextlib.suppress(ProtocolViolation):
        Parser().feed(data)
