"""What a shard writes about itself: one JSON object per line, each one of these records, with its kind in `kind`.

Every number is of one window and of one shard, never a running total. This file is the contract with the Spark jobs,
which have a schema of their own; a test compares the two. A new field is added with RECORDS_VERSION raised; readers
ignore what they do not know. Cost of a row: about 3 µs, and 20 to 40 bytes on disk.
"""

from __future__ import annotations

import msgspec

RECORDS_VERSION = 1

# Rows of subjects that are not one subject.
OTHER = "*other*"


class Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """What every row has. (broker, boot, file) names the file it was written to, wherever a copy of that may lie."""

    version: int  # RECORDS_VERSION
    broker: str  # the broker's server id: changes with each start of the broker
    boot: str  # changes with each start of the shard
    shard: int  # 0..63
    file: int  # number of the file within the boot, from 1
    window_start_us: int  # µs since 1970, a multiple of the window's nominal length
    window_us: int  # how long it really was, by the monotonic clock


class SubjectRecord(Record, frozen=True, tag="subject"):
    """One subject that was published to from here or delivered to here."""

    account: str
    subject: str  # OTHER: all that had no row of their own
    is_folded: bool  # many subjects in one row: `_INBOX.>` and the like, and OTHER
    in_msgs: int  # from clients of this shard
    in_bytes: int  # payload and headers
    deliveries: int  # to clients of this shard, whoever published
    out_bytes: int
    widest: int  # most clients' subscriptions on this shard that one message reached
    link_out_msgs: int  # frames to siblings
    link_in_msgs: int  # messages from siblings
    unwanted_msgs: int  # of in_msgs: nobody wanted them, on any shard
    cache_misses: int  # times its match had to be made
    error_msgs: int  # at most so many messages of it are in OTHER instead


class QueueRecord(Record, frozen=True, tag="queue"):
    """One member of a queue group."""

    account: str
    subject: str  # as subscribed to, wildcards included
    queue: str  # the group's name
    cid: int  # the member's client id; 0: several members that there was no room for
    sid: str
    deliveries: int


class LinkRecord(Record, frozen=True, tag="link"):
    """This shard's end of the link to one sibling."""

    peer: int  # the sibling
    sent_msgs: int
    sent_bytes: int  # payload and headers
    received_msgs: int
    received_bytes: int
    received_deliveries: int  # to clients here, of what was received
    peak_pending_bytes: int  # most that waited to be sent, looked at ten times a second
    paused_us: int  # how long its publishers were to wait for it, looked at as often


class ShardRecord(Record, frozen=True, tag="shard"):
    """The shard as a whole, once per window. Messages are what the window's subject rows add up to."""

    window_nominal_us: int
    connections: int  # at the window's end, like subscriptions
    subscriptions: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    link_out_msgs: int
    link_in_msgs: int
    unwanted_msgs: int
    cache_misses: int
    subjects: int  # rows of subjects in this window
    widths: tuple[int, ...]  # clients' messages by how many they reached here: 0, 1, … 16, then 17-32, 33-64, …
    link_widths: tuple[int, ...]  # siblings' messages, likewise
    lag_p50_us: int  # how late the event loop's timers were
    lag_p99_us: int
    lag_max_us: int
    cpu_s: float
    resident_bytes: int
    slow_consumers: int
    stalls: int  # times a publisher or link had to wait for somebody slow
    lost_windows: int  # before this one, that could not be written


class SlowRecord(Record, frozen=True, tag="slow"):
    """A client that was closed because it did not read fast enough."""

    cid: int
    user: str
    name: str
    ip: str
    subject: str  # the subscription that had got most
    pending_bytes: int
    reason: str


class GapRecord(Record, frozen=True, tag="gap"):
    """Written by the router for a shard that died: what the shared page counted and no window of it has."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    link_out_msgs: int
    link_in_msgs: int
    reason: str  # how the process ended


AnyRecord = SubjectRecord | QueueRecord | LinkRecord | ShardRecord | SlowRecord | GapRecord
KINDS: dict[str, type[Record]] = {
    "subject": SubjectRecord,
    "queue": QueueRecord,
    "link": LinkRecord,
    "shard": ShardRecord,
    "slow": SlowRecord,
    "gap": GapRecord,
}
