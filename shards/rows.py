"""Rows of the monitoring pages, as they travel from a shard to the router: typed, compact, not yet formatted.

A shard's core is the dear one, so it says numbers, and the router makes of them what the real server would show.
A question is one of the *Query structs (JSON in Snapshot.query), an answer one or more *Part structs (MessagePack, one
in each SnapshotReply.body). Times are µs since 1970; 0 is "not".
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Row(msgspec.Struct, array_like=True, gc=False):
    """Base of everything on the way.

    Nothing in it refers back, so the garbage collector need not know of it: ten thousand rows would make it look
    through all there is, which takes longer than a page may hold the loop.
    """


class SubscriptionRow(Row):
    """One subscription."""

    subject: str
    queue: str  # "": none
    sid: str
    msgs: int  # delivered
    max_msgs: int  # 0: none
    cid: int
    account: str = ""  # "": that of its connection's row


class ConnectionRow(Row):
    """One client connection, open or closed."""

    cid: int
    ip: str
    port: int
    start_us: int
    active_us: int
    stop_us: int  # 0: open
    reason: str  # as /connz shows it; "": open
    rtt_us: int  # 0: not known yet
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    subscriptions: int
    name: str
    lang: str
    version: str
    user: str
    account: str = ""
    subs: tuple[SubscriptionRow, ...] = ()
    kind: str = "nats"  # as /connz names its type: nats, websocket
    tls_version: str = ""  # "1.3"; "": not encrypted
    tls_cipher_suite: str = ""


class SubjectRow(Row):
    """What was published to one subject since its answer was cached."""

    subject: str
    msgs: int  # from clients of this shard
    payload_bytes: int
    deliveries: int  # to clients of this shard
    subscriptions: int  # plain ones here
    queue_groups: int  # anywhere
    queue_members: int  # here
    is_wanted: bool  # by anybody, here or elsewhere
    folded: int = 0  # so many subjects are this row together; 0: it is one


class HotSubjectRow(Row):
    """What was counted on one subject in the last windows. One that ends in `.>` stands for all that begin so."""

    account: str
    subject: str
    msgs: int  # from clients of this shard
    payload_bytes: int
    deliveries: int  # to clients of this shard, whoever published
    out_bytes: int
    unwanted: int  # of msgs: went to nobody, here or elsewhere
    widest: int  # subscribers here that one message reached


class SubjectInterestRow(Row):
    """Who has to do with one subject at the moment."""

    subscriptions: int  # plain ones here
    queue_groups: int  # anywhere
    queue_members: int  # here
    is_wanted: bool  # by anybody, here or elsewhere
    publishers: int  # clients here whose latest message went there


class QueueRow(Row):
    """One member of a queue group."""

    subject: str
    queue: str
    sid: str
    msgs: int  # delivered to this member
    cid: int
    name: str


class LinkRow(Row):
    """One end of a link to a sibling."""

    shard: int  # the sibling
    start_us: int
    is_dialled: bool  # this end dialled
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int


class ConnectionsQuery(Row):
    """The first `most` connections that match, in order."""

    sort: str = "cid"
    most: int = 1024
    state: str = "open"  # open, closed, all
    cid: int = 0  # 0: any
    user: str = ""  # "": any
    account: str = ""  # "": any
    search: str = ""  # in the client's name, address, user, language or id, whatever its case; "": any
    with_subs: bool = False
    now_us: int = 0  # one moment for all shards, by which `idle` and `uptime` are sorted


class ConnectionsPart(Row):
    """Some of them. A connection with many subscriptions comes in several rows, one after another."""

    total: int  # in that state, whether they match or not
    rows: list[ConnectionRow]
    is_over: bool = False  # more subscriptions than one page may show


class SubscriptionsQuery(Row):
    """A page of subscriptions: those that `test` would reach, or all."""

    offset: int = 0
    most: int = 1024
    test: str = ""
    account: str = ""  # "": all of them


class SubscriptionsPart(Row):
    """Some of them."""

    total: int  # how many there are, whatever offset and limit
    rows: list[SubscriptionRow]


class SublistQuery(Row):
    """The sublist's counters."""

    account: str = ""  # "": of all of them together


class SublistPart(Row):
    """The sublist's counters, and how many clients share it."""

    subscriptions: int
    cached: int
    inserts: int
    removes: int
    lookups: int
    misses: int
    widest: int  # of the cached answers
    widths: int  # all together
    clients: int = 0


class SubjectsQuery(Row):
    """The subjects with the most messages or deliveries."""

    most: int = 100
    fold: str = "_INBOX."  # subjects with this beginning are one row; "": none are


class SubjectsPart(Row):
    """Heaviest first; a folded row last."""

    cached: int
    rows: list[SubjectRow]


class HotSubjectsQuery(Row):
    """The heaviest subjects of so many of the recorder's windows, the open one included."""

    windows: int = 7
    most: int = 2000
    account: str = ""  # "": of all


class HotSubjectsPart(Row):
    """Some of them, in no order. Nothing at all comes where nothing is recorded."""

    since_us: int  # from when on was counted
    now_us: int
    subjects: int  # that something was counted of
    other_msgs: int  # on subjects that have no row
    rows: list[HotSubjectRow]


class SubjectInterestQuery(Row):
    """Who publishes and subscribes to these."""

    subjects: list[tuple[str, str]]  # (account, subject)


class SubjectInterestPart(Row):
    """Of some of them, in that order."""

    rows: list[SubjectInterestRow]


class QueuesQuery(Row):
    """Members of queue groups."""

    most: int = 10_000


class QueuesPart(Row):
    """Some of them, in no order."""

    rows: list[QueueRow]
    is_over: bool = False  # there are more than were asked for


class SlowQuery(Row):
    """Slow consumers, past and present."""

    least_pending_bytes: int = 65_536
    most: int = 256


class SlowPart(Row):
    """Present ones with the most pending first, past ones the latest first."""

    present: list[ConnectionRow]
    past: list[ConnectionRow]


class LinksQuery(Row):
    """The links to the siblings."""


class LinksPart(Row):
    """All of them."""

    rows: list[LinkRow]


class AccountsQuery(Row):
    """Connections and traffic by account."""


class AccountRow(Row):
    """One account on one shard; the traffic is of all its clients since the shard started."""

    name: str
    connections: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    slow_consumers: int = 0


class AccountsPart(Row):
    """All of those that ever had a client here."""

    rows: list[AccountRow]


class ClientQuery(Row):
    """Something is to be done to one client."""

    cid: int
    is_kicked: bool = False  # close it; else it is told to go elsewhere (`ldm`)


class ClientPart(Row):
    """Whether it was here."""

    is_found: bool


# /connz?sort=… → the key of a row at a moment, ascending: largest first, but for those that are times or names.
SORTS: dict[str, Callable[[ConnectionRow, int], int | str]] = {
    "cid": lambda row, _now_us: row.cid,
    "start": lambda row, _now_us: row.start_us,
    "subs": lambda row, _now_us: -row.subscriptions,
    "pending": lambda row, _now_us: -row.pending_bytes,
    "msgs_to": lambda row, _now_us: -row.out_msgs,
    "msgs_from": lambda row, _now_us: -row.in_msgs,
    "bytes_to": lambda row, _now_us: -row.out_bytes,
    "bytes_from": lambda row, _now_us: -row.in_bytes,
    "last": lambda row, _now_us: -row.active_us,
    "idle": lambda row, now_us: (row.stop_us or now_us) - row.active_us,
    "uptime": lambda row, now_us: (row.stop_us or now_us) - row.start_us,
    "stop": lambda row, _now_us: -row.stop_us,
    "reason": lambda row, _now_us: row.reason,
    "rtt": lambda row, _now_us: -row.rtt_us,
}


def is_found(row: ConnectionRow, query: ConnectionsQuery) -> bool:
    """Whether a connection matches what is looked for beside its state."""
    if query.user and row.user != query.user:
        return False
    if query.account and row.account != query.account:
        return False
    if query.cid and row.cid != query.cid:
        return False
    if not query.search:
        return True
    text = f"{row.name}\n{row.ip}:{row.port}\n{row.user}\n{row.lang} {row.version}\n{row.cid}"
    return query.search.lower() in text.lower()


def order(sort: str, now_us: int) -> Callable[[ConnectionRow], tuple[int | str, int]]:
    """The key by which connections are sorted, on every shard and where they are merged; equals by cid."""
    key = SORTS[sort]
    return lambda row: (key(row, now_us), row.cid)


Query = (
    ConnectionsQuery
    | SubscriptionsQuery
    | SublistQuery
    | SubjectsQuery
    | HotSubjectsQuery
    | SubjectInterestQuery
    | QueuesQuery
    | SlowQuery
    | LinksQuery
    | AccountsQuery
    | ClientQuery
)
Part = (
    ConnectionsPart
    | SubscriptionsPart
    | SublistPart
    | SubjectsPart
    | HotSubjectsPart
    | SubjectInterestPart
    | QueuesPart
    | SlowPart
    | LinksPart
    | AccountsPart
    | ClientPart
)

# The page named in Snapshot.page → what is asked, and what each part of the answer is.
QUERIES: dict[str, type[Query]] = {
    "connz": ConnectionsQuery,
    "subscriptions": SubscriptionsQuery,
    "subsz": SublistQuery,
    "cached": SubjectsQuery,
    "subjectz": HotSubjectsQuery,
    "interest": SubjectInterestQuery,
    "queuez": QueuesQuery,
    "slowz": SlowQuery,
    "linkz": LinksQuery,
    "accstatz": AccountsQuery,
    "client": ClientQuery,
}
PAGES: dict[type[Row], str] = {query: page for page, query in QUERIES.items()}

_encode_json = msgspec.json.Encoder().encode
_encode_part = msgspec.msgpack.Encoder().encode
_query_decoders = {page: msgspec.json.Decoder(query) for page, query in QUERIES.items()}


def encode_query(query: Query) -> str:
    """For Snapshot.query."""
    return _encode_json(query).decode()


def decode_query(page: str, text: str) -> Query:
    """The reverse. KeyError for no such page, msgspec.ValidationError for no such query."""
    return _query_decoders[page].decode(text)


def encode_part(part: Part) -> bytes:
    """For SnapshotReply.body."""
    return _encode_part(part)
