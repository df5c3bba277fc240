"""The rows of a shard's statistics files: one JSON object per line, each one of these records, its type in `kind`.

Every number is for one window of one shard, never a running total. This file is the contract with the Spark jobs,
which have a schema of their own; a test compares the two. Whoever adds a field increases RECORDS_VERSION; readers
ignore unknown fields, and read missing ones as 0. A row costs about 3 µs, and 20 to 40 bytes on disk.
"""

from __future__ import annotations

import msgspec

RECORDS_VERSION = 3

# The subject of the row that sums up all subjects without a row of their own.
OTHER = "*other*"
# The user of the row that makes a window's rows of clients add up to its rows of subjects.
REST = "*rest*"


class Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """Fields of every row. (broker, boot, shard, file) identifies the file it was written to, and all copies of it."""

    version: int  # RECORDS_VERSION
    broker: str  # the broker's server id: changes with each start of the broker
    boot: str  # changes with each start of the shard
    shard: int  # 0..63
    file: int  # number of the file within the boot, from 1
    window_start_us: int  # µs since 1970, a multiple of the window's nominal length
    window_us: int  # its true length, by the monotonic clock


class SubjectRecord(Record, frozen=True, tag="subject"):
    """One subject to which this shard's clients published, or of which they got messages."""

    account: str
    subject: str  # OTHER: the sum of subjects that have no row of their own
    is_folded: bool  # the row sums up many subjects: `_INBOX.>` and the like, and OTHER
    in_msgs: int  # from clients of this shard
    in_bytes: int  # payload and headers
    deliveries: int  # to clients of this shard, whoever published
    out_bytes: int
    widest: int  # the most subscriptions of this shard's clients that one message reached
    link_out_msgs: int  # frames to siblings
    link_in_msgs: int  # messages from siblings
    unwanted_msgs: int  # of in_msgs: had no subscriber on any shard
    cache_misses: int  # how often its match result was not in the cache
    error_msgs: int  # at most so many messages of this subject are counted in OTHER instead


class QueueRecord(Record, frozen=True, tag="queue"):
    """One member of a queue group."""

    account: str
    subject: str  # as subscribed to, wildcards included
    queue: str  # the group's name
    cid: int  # the member's client id; 0: the sum of several members without rows of their own
    sid: str
    deliveries: int


class LinkRecord(Record, frozen=True, tag="link"):
    """This shard's end of the link to one sibling."""

    peer: int  # the sibling
    sent_msgs: int
    sent_bytes: int  # payload and headers
    received_msgs: int
    received_bytes: int
    received_deliveries: int  # deliveries to clients here of the received messages
    peak_pending_bytes: int  # the most bytes waiting to be sent, sampled ten times a second
    paused_us: int  # how long publishers were paused because of it, sampled as often


class ShardRecord(Record, frozen=True, tag="shard"):
    """The shard as a whole, once per window. Its message counts are the sums of the window's subject rows."""

    window_nominal_us: int
    connections: int  # at the window's end; so is the next field
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
    widths: tuple[int, ...]  # clients' messages by the number of deliveries here: 0, 1, … 16, then 17-32, 33-64, …
    link_widths: tuple[int, ...]  # siblings' messages, likewise
    lag_p50_us: int  # lateness of the event loop's timers
    lag_p99_us: int
    lag_max_us: int
    cpu_s: float
    resident_bytes: int
    slow_consumers: int
    stalls: int  # how often a publisher or link had to wait for a slow receiver
    lost_windows: int  # earlier windows that could not be written
    refused_msgs: int  # not in in_msgs: published and sent nowhere, because of permissions or a mapping
    refused_bytes: int


class SlowRecord(Record, frozen=True, tag="slow"):
    """A client that was closed because it did not read fast enough."""

    cid: int
    user: str
    name: str  # this and ip: "" as in ClientRecord
    ip: str
    subject: str  # the subscription with the most deliveries
    pending_bytes: int
    reason: str


class DeniedRecord(Record, frozen=True, tag="denied"):
    """What permissions denied to one user's clients."""

    account: str  # OTHER, like the user: all users without rows of their own
    user: str  # "": clients without a user
    publishes: int
    subscriptions: int


class Published(msgspec.Struct, frozen=True):
    """What one client published to one subject."""

    subject: str  # OTHER: subjects without one of these of their own, and what was refused
    msgs: int
    bytes: int  # payload and headers
    requests: int  # of msgs: had a reply subject


class Received(msgspec.Struct, frozen=True):
    """What one client got of its subscriptions to one subject."""

    subject: str  # as subscribed to, wildcards included; OTHER: all without one of these of their own
    queue: str  # "": none
    msgs: int


class ClientRecord(Record, frozen=True, tag="client"):
    """One client of this shard, or several that have left and were of the same user, name, library and address.

    A client has a row if it sent or got messages, came or left. Clients without rows of their own share the one of the
    user OTHER. The numbers of a window's rows of clients are together those of its rows of subjects and of what was
    refused; for that there may be a row of the user REST: the broker's own messages, and messages that other rows have
    in the window before or after (one of the two is negative).
    """

    account: str
    user: str
    name: str  # as its CONNECT says; "": privacy (stats client_names)
    lib: str  # language and version
    ip: str
    cid: int  # 0: not one client
    connections: int  # clients in this row
    opened: int  # of them: came in this window
    closed: int  # of them: left in this window
    in_msgs: int  # from the client
    in_bytes: int
    out_msgs: int  # to the client
    out_bytes: int
    published: tuple[Published, ...]  # adds up to in_msgs
    received: tuple[Received, ...]  # adds up to out_msgs, up to messages of the windows beside this one


class GapRecord(Record, frozen=True, tag="gap"):
    """Written by the router for a shard that died: what the shared page has counted and no window contains."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    link_out_msgs: int
    link_in_msgs: int
    reason: str  # how the process ended


AnyRecord = (
    SubjectRecord | QueueRecord | LinkRecord | ShardRecord | SlowRecord | DeniedRecord | ClientRecord | GapRecord
)
KINDS: dict[str, type[Record]] = {
    "subject": SubjectRecord,
    "queue": QueueRecord,
    "link": LinkRecord,
    "shard": ShardRecord,
    "slow": SlowRecord,
    "denied": DeniedRecord,
    "client": ClientRecord,
    "gap": GapRecord,
}
