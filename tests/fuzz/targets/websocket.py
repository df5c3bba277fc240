"""A WebSocket connection: the upgrade, then frames."""

from __future__ import annotations

import re
import zlib

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.options import Tls, WebSocket
from gnatswarm.shards.sockets.frames import Frames, Rules
from tests.fuzz.programs import pieces

MOST_BYTES = 1000
# The library's own bounds of an HTTP request: 128 header lines and one request line of at most 8,192 bytes.
MOST_REQUEST_BYTES = 129 * 8193 + 8193
# 14: the longest header of a frame.
MOST_HEADER_BYTES = 14
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: a:80\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
_DATE = re.compile(rb"\r\nDate: [^\r]*")

Seen = tuple[bytes, bytes, bool, bool, str, CloseReason]


def check(data: bytes) -> None:
    """Any bytes give the same payload, answer, error and reason however they are cut, and never an exception.

    No piece of payload is longer than the limit. Before a frame, a piece of a large one, or a request is complete, no
    more of its bytes are held than the limit allows, whatever length it announces. The answer is never longer
    than what came, but for the response to the upgrade. The bits of the first byte: compression is offered, the request
    comes by itself, it asks for compression, the page's origin is checked.
    """
    flags = data[0] if data else 0
    stream = data[1:]
    if flags & 2:
        asks = DEFLATE if flags & 4 else b""
        whole = run(flags, [REQUEST + asks + b"\r\n", stream])
        cut = [REQUEST + asks + b"\r\n", *pieces(stream, zlib.crc32(data))]
        each = [REQUEST + asks + b"\r\n", *(stream[at : at + 1] for at in range(len(stream)))]
        assert run(flags, cut) == whole
        assert len(stream) > 3000 or run(flags, each) == whole
        return
    # Bytes that come together with a request are an error, so a request that is cut elsewhere may have another result.
    run(flags, [stream])
    run(flags, pieces(stream, zlib.crc32(data)))
    end = stream.find(b"\r\n\r\n") + 4
    if end >= 4:
        request, rest = stream[:end], stream[end:]
        each = [request[at : at + 1] for at in range(len(request))]
        assert run(flags, [*each, rest]) == run(flags, [request, rest])


def run(flags: int, parts: list[bytes]) -> Seen:
    """All that can be seen of a connection to which these bytes come."""
    websocket = WebSocket(
        port=1, no_tls=True, tls=Tls(), compression=bool(flags & 1), same_origin=bool(flags & 8), allowed_origins=()
    )
    frames = Frames(Rules(websocket, most_bytes=MOST_BYTES, is_encrypted=bool(flags & 16)))
    payload = answer = b""
    came = 0
    for part in parts:
        if frames.is_over:
            break
        if not part:
            continue
        came += len(part)
        was_open = frames.is_open
        pieces_of_it = frames.receive(part)
        while frames.is_paused:
            pieces_of_it += frames.receive(b"")
        for piece in pieces_of_it:
            assert 0 < len(piece) <= MOST_BYTES, f"a piece of {len(piece)} bytes"
            payload += piece
        said = frames.take_answer()
        held = len(frames._protocol.reader.buffer)
        if not frames.is_over:
            assert held <= (MOST_BYTES + MOST_HEADER_BYTES if was_open else MOST_REQUEST_BYTES), (
                f"{held} bytes are held"
            )
        # A ping of 125 bytes has a mask, its pong has none; an error has a close frame of at most 127 bytes.
        assert not was_open or len(said) <= len(part) + 14 + 2 * 127 + 125, f"{len(said)} bytes for {len(part)}"
        answer += said
    if frames.is_open:
        assert not frames.farewell(CloseReason.SERVER_SHUTDOWN) or not frames.is_over
    if not frames.is_over:
        assert not frames.error
    return payload, _DATE.sub(b"", answer), frames.is_open, frames.is_over, frames.error, frames.close_reason
