"""One connected socket, written down: what the reactor and the WebSocket layer know of it, beside its peer.

Part of the record of a client that moves to another shard (shards.clients.moved). Times are µs of the host's monotonic
clock, which all shards share. TLS has no record: its keys live in OpenSSL (shards.sockets.relay).
"""

from typing import Annotated

import msgspec

from gnatswarm.broker.frozen import MOST_HALF_READ_BYTES, Count

# Input that a layer has kept, a frame that is half here, and output that the kernel has not taken: each is bounded by
# one message of the largest max_payload, with room for what surrounds it: 1 MiB in its frame (frames.FRAME_ROOM_BYTES),
# as much in frames of the same turn, what one read has.
MOST_LAYER_BYTES = MOST_HALF_READ_BYTES + 3 * 1024 * 1024
Bytes = Annotated[bytes, msgspec.Meta(max_length=MOST_LAYER_BYTES)]
WindowBits = Annotated[int, msgspec.Meta(ge=8, le=15)]


class FrozenDeflate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What client and server have agreed on for permessage-deflate (RFC 7692)."""

    client_window_bits: WindowBits
    server_window_bits: Annotated[int, msgspec.Meta(ge=9, le=15)]


class FrozenFrames(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The WebSocket layer of a connection whose upgrade is done."""

    partial: Bytes = b""  # frames that were not taken yet; the last, or only one may be incomplete
    message_bytes: Count | None = None  # of a message in fragments that has begun; None: none has
    deflate: FrozenDeflate | None = None  # None: nothing is compressed


class FrozenSocket(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One socket."""

    opened_us: Count
    used_us: Count  # when it was last used, other than for pings, …
    work: Count  # … as of this count of messages and subscriptions
    read_us: Count
    is_narrow: bool = False  # its receive buffer is bounded
    small_reads: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    bulk_reads: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    frames: FrozenFrames | None = None  # None: no WebSocket
    kept: Bytes = b""  # input behind the layer, for the peer
    unsent: Bytes = b""  # output behind the layer, for the kernel
