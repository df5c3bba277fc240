"""The control channel between router and shard."""

from __future__ import annotations

import zlib

from gnatswarm.shards.boundary.control import MAX_FRAME_BYTES, ControlError, Framer, ToRouter, ToShard, encode
from tests.fuzz.programs import pieces


def check(data: bytes) -> None:
    """Any bytes give messages or one ControlError, and no other exception, however they are cut.

    A message that was read is written as a frame that is read as the same message. After an error nothing is held, and
    each further feed raises the same error. No more than one frame is held. The first byte says which end reads: odd
    for the shard, even for the router.
    """
    expected = ToShard if data[:1] and data[0] & 1 else ToRouter
    stream = data[1:]
    whole, why = fed(expected, [stream])
    each = [stream[at : at + 1] for at in range(len(stream))] if len(stream) < 4000 else [stream]
    for parts in (each, pieces(stream, zlib.crc32(data))):
        read, error = fed(expected, parts)
        assert error == why
        # Messages that came in the same read as the error are not delivered.
        assert read == whole if not why else read[: len(whole)] == whole


def fed(expected: object, parts: list[bytes]) -> tuple[list[bytes], str]:
    """The messages, written again, and the error of a stream in these pieces."""
    framer = Framer(expected)
    written: list[bytes] = []
    why = ""
    try:
        for part in parts:
            for message in framer.feed(part):
                frame = encode(message)
                (same,) = Framer(expected).feed(frame)
                assert type(same) is type(message) and encode(same) == frame
                written.append(frame)
            assert len(framer._buffer) < MAX_FRAME_BYTES + 4
        framer.end()
    except ControlError as error:
        why = str(error)
    if why:
        assert not framer._buffer
        for more in (b"", b"\x00\x00\x00\x00"):
            assert feed_error(framer, more) == why
    return written, why


def feed_error(framer: Framer, data: bytes) -> str:
    """The error that these bytes raise; "": none."""
    try:
        framer.feed(data)
    except ControlError as error:
        return str(error)
    return ""
