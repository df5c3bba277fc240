"""What a census of the engine (broker.census) counts for monitoring; made once per row or slice.

Structs, not named tuples: making a class of those compiles text, at each start.
"""

from __future__ import annotations

import msgspec


class ConnectionCounts(msgspec.Struct, frozen=True, gc=False):
    """One client's counters; times are µs of the engine's clock."""

    cid: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    pending_bytes: int
    subscriptions: int
    last_us: int  # when bytes last came in, or went out
    rtt_us: int  # 0: not known yet


class LinkCounts(msgspec.Struct, frozen=True, gc=False):
    """This shard's end of one link."""

    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    pending_bytes: int


class FoldedCounts(msgspec.Struct, frozen=True, gc=False):
    """The sum over cached entries whose subjects begin alike."""

    entries: int
    msgs: int
    payload_bytes: int
    deliveries: int
    subscriptions: int
    queue_groups: int
    queue_members: int  # on this shard
    is_wanted: bool  # somebody on some shard gets messages on one of them
