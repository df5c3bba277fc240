"""What a census of the engine (broker.census) counts for monitoring: named tuples, made once per row or slice."""

from __future__ import annotations

from typing import NamedTuple


class ConnectionCounts(NamedTuple):
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


class LinkCounts(NamedTuple):
    """This shard's end of one link."""

    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    pending_bytes: int


class FoldedCounts(NamedTuple):
    """The sum over cached entries whose subjects begin alike."""

    entries: int
    msgs: int
    payload_bytes: int
    deliveries: int
    subscriptions: int
    queue_groups: int
    queue_members: int  # on this shard
    is_wanted: bool  # somebody on some shard gets messages on one of them
