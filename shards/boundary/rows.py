"""Rows of the monitoring pages, as a shard sends them to the router: typed, compact, not yet formatted.

A shard's CPU time is the scarce one, so it sends plain numbers, and the router makes nats-server's documents of them.
A question is one of the *Query structs (the `query` of a Snapshot), an answer one or more *Part structs (MessagePack,
one in each SnapshotReply.body). Times are µs since 1970; 0 means never.
"""

from collections.abc import Callable

import msgspec


class PageStruct(msgspec.Struct, array_like=True, gc=False):
    """Base of all queries, parts and rows.

    None of them can be part of a reference cycle, so the garbage collector need not track them (gc=False): ten
    thousand tracked rows would trigger a full collection, which takes longer than a page may hold the loop.
    """


class SubscriptionRow(PageStruct):
    """One subscription."""

    subject: str
    queue: str  # "": none
    sid: str
    msgs: int  # delivered
    max_msgs: int  # 0: none
    cid: int
    account: str = ""  # "": as in its connection's row
    stream: int = 0  # which of the streams of other accounts that it gets, whose subject is the exporter's; 0: none


class ConnectionRow(PageStruct):
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
    came_from: int = -1  # the shard that it has moved from; -1: it was accepted here
    moved_us: int = 0  # when
    login: str = ""  # by what it logged in: password, token, nkey, certificate, no_auth_user; "": it needed nothing
    publish_waits: int = 0  # how often it was not read for a while, because of publish_limits
    packed_subs: bytes = b""  # within a shard: those of a closed connection, in less memory (shards.clients.closed)


class SubjectRow(PageStruct):
    """What was published to one subject since its match result was cached."""

    subject: str
    msgs: int  # from clients of this shard
    payload_bytes: int
    deliveries: int  # to clients of this shard
    subscriptions: int  # plain ones on this shard
    queue_groups: int  # on any shard
    queue_members: int  # on this shard
    is_wanted: bool  # has a subscriber on any shard
    folded: int = 0  # the number of subjects that this row sums up; 0: it is one subject
    account: str = ""


class HotSubjectRow(PageStruct):
    """What was counted for one subject in the last windows. A subject that ends in `.>` stands for all below it."""

    account: str
    subject: str
    msgs: int  # from clients of this shard
    payload_bytes: int
    deliveries: int  # to clients of this shard, whoever published
    out_bytes: int
    unwanted: int  # of msgs: had no subscriber on any shard
    widest: int  # the most subscribers on this shard that one message reached


class SubjectInterestRow(PageStruct):
    """Present subscribers and publishers of one subject."""

    subscriptions: int  # plain ones on this shard
    queue_groups: int  # on any shard
    queue_members: int  # on this shard
    is_wanted: bool  # has a subscriber on any shard
    publishers: int  # clients of this shard whose latest message had this subject


class QueueRow(PageStruct):
    """One member of a queue group."""

    subject: str
    queue: str
    sid: str
    msgs: int  # delivered to this member
    cid: int
    name: str
    account: str


class LinkRow(PageStruct):
    """One end of a link to a sibling."""

    shard: int  # the sibling
    start_us: int
    is_dialled: bool  # by this end
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int


class Question(PageStruct):
    """Base of the router's questions; the tag names the page."""

    @property
    def page(self) -> str:
        """The page's name, for the log."""
        return str(self.__struct_config__.tag)


class ConnectionsQuery(Question, tag="connz"):
    """The first `most` connections that match, in the order of `sort`."""

    sort: str = "cid"
    most: int = 1024
    state: str = "open"  # open, closed, all
    cid: int = 0  # 0: any
    user: str = ""  # "": any
    account: str = ""  # "": any
    search: str = ""  # in the client's name, address, user, language or id, ignoring case; "": any
    with_subs: bool = False
    most_subs: int = 0  # stop after so many subscriptions; 0: after MOST_SUBSCRIPTIONS, with `is_over`
    now_us: int = 0  # the same moment for all shards, for sorting by `idle` and `uptime`
    cids: list[int] = []  # only these, open or about to come here; []: any
    subject: str = ""  # of open ones those alone that have a subscription that overlaps this pattern; "": any


class ConnectionsPart(PageStruct):
    """Some of the connections. One with many subscriptions is sent as several consecutive rows."""

    total: int  # connections in that state, of that account; otherwise matching or not
    rows: list[ConnectionRow]
    is_over: bool = False  # there are more subscriptions than one page may show
    # In the first part, for `router.monitoring.moving_clients`:
    counted_us: int = 0  # when `total` was counted
    left: list[tuple[int, ConnectionRow]] = []  # clients that have lately moved on: the new shard, and their last row
    came: list[tuple[int, int, int]] = []  # those that have lately come: their id, the old shard, when (µs)
    coming: list[int] = []  # of `cids`: those that are about to come


class SubscriptionsQuery(Question, tag="subscriptions"):
    """A page of subscriptions: those that match the subject `test`, or all.

    A subscription that gets a stream of another account is one of that account, too.
    """

    offset: int = 0
    most: int = 1024
    test: str = ""
    account: str = ""  # "": all accounts


class SubscriptionsPart(PageStruct):
    """Some of the subscriptions."""

    # How many there are, regardless of offset and limit; of a list of all, in the last part, those up to its end.
    total: int
    rows: list[SubscriptionRow]
    is_over: bool = False  # there are more, or longer ones, than one page may show


class SublistQuery(Question, tag="subsz"):
    """The sublist's counters."""

    account: str = ""  # "": the sum over all accounts
    most_due: int = 0  # so many of the replies that are due from this account, too


class DueReplyRow(PageStruct):
    """A reply that an account owes another one whose request it has."""

    made: str  # the generated subject on which the responder replies
    account: str  # the requestor's
    reply: str  # where it goes there
    latency_subject: str = ""  # where its latency is published; "": it is not measured
    headers: dict[str, list[str]] = {}  # because of which it is measured


class SublistPart(PageStruct):
    """The sublist's counters, and the number of clients that use it."""

    subscriptions: int
    cached: int
    inserts: int
    removes: int
    lookups: int
    misses: int
    widest: int  # the most subscriptions in one cached match result
    widths: int  # subscriptions in all cached match results
    clients: int = 0
    due: list[DueReplyRow] = []


class SubjectsQuery(Question, tag="cached"):
    """The subjects with the most messages or deliveries."""

    most: int = 100
    fold: str = "_INBOX."  # subjects with this prefix are summed up in one row; "": none are
    account: str = ""  # "": all accounts


class SubjectsPart(PageStruct):
    """Subjects, heaviest first; the folded row last."""

    cached: int
    rows: list[SubjectRow]


class HotSubjectsQuery(Question, tag="subjectz"):
    """The heaviest subjects of the recorder's last `windows` windows, the open one included."""

    windows: int = 7
    most: int = 2000
    account: str = ""  # "": all accounts


class HotSubjectsPart(PageStruct):
    """Some of the subjects, in no order. A shard without a recorder sends no part."""

    since_us: int  # when counting began
    now_us: int
    subjects: int  # number of subjects with counts
    other_msgs: int  # messages on subjects that have no row
    rows: list[HotSubjectRow]


class SubjectInterestQuery(Question, tag="interest"):
    """The publishers and subscribers of these subjects."""

    subjects: list[tuple[str, str]]  # (account, subject)


class SubjectInterestPart(PageStruct):
    """Rows of some of the subjects, in the order of the query."""

    rows: list[SubjectInterestRow]


class QueuesQuery(Question, tag="queuez"):
    """Members of queue groups."""

    most: int = 10_000


class QueuesPart(PageStruct):
    """Some of the members, in no order."""

    rows: list[QueueRow]
    is_over: bool = False  # there are more than were asked for


class SlowQuery(Question, tag="slowz"):
    """Slow consumers, past and present."""

    least_pending_bytes: int = 65_536
    most: int = 256


class SlowPart(PageStruct):
    """Present slow consumers, most pending bytes first; past ones, latest first."""

    present: list[ConnectionRow]
    past: list[ConnectionRow]


class LinksQuery(Question, tag="linkz"):
    """The links to the siblings."""


class LinksPart(PageStruct):
    """All links."""

    rows: list[LinkRow]


# Of one connection, in one answer.
MOST_LEAF_SUBS = 10_000
MOST_ROUTE_SUBS = 10_000
# Their texts together: a row goes to the router in one message, which may have 16 MB.
MOST_LISTED_BYTES = 4 * 1024 * 1024


class LeafRow(PageStruct):
    """A leaf node connection."""

    name: str  # of the other server
    account: str
    host: str
    port: int
    is_spoke: bool  # this broker is the leaf node
    rtt_us: int  # 0: not measured yet
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    pending_bytes: int
    subscriptions: int  # that the other server has told
    lid: int = 0
    is_isolated: bool = False  # it hears nothing of other leaf nodes' interest
    subs: tuple[str, ...] = ()  # their subjects, if they were asked for: at most MOST_LEAF_SUBS, of MOST_LISTED_BYTES


class RouteRow(PageStruct):
    """A route: the connection to another member of the cluster."""

    rid: int
    remote_id: str
    name: str
    did_solicit: bool  # this broker dialled
    is_configured: bool
    host: str
    port: int
    start_us: int  # since 1970
    idle_us: int  # how long the member has sent nothing
    rtt_us: int  # 0: not measured yet
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    pending_bytes: int
    subscriptions: int  # that the member has told
    # What the member said it is told, and tells: subjects by "allow" and "deny"; None: everything.
    imports: dict[str, tuple[str, ...]] | None = None
    exports: dict[str, tuple[str, ...]] | None = None
    subs: tuple[SubscriptionRow, ...] = ()  # what it wants, if that was asked for, bounded likewise


class RoutesQuery(Question, tag="routez"):
    """The routes: a question to the gateway."""

    subs: bool = False  # with what the members are interested in


class RoutesPart(PageStruct):
    """Some of the routes."""

    rows: list[RouteRow]


class LeafsQuery(Question, tag="leafz"):
    """The leaf node connections: a question to the gateway."""

    subs: bool = False  # with what the other servers are interested in


class LeafsPart(PageStruct):
    """All leaf node connections."""

    rows: list[LeafRow]


class AccountsQuery(Question, tag="accstatz"):
    """Connections and traffic by account."""

    counts_clients: bool = True  # False: only what is known without a look at every client
    names: tuple[str, ...] = ()  # only these; (): all
    cids: list[int] = []  # no accounts, but where these clients are; []: the accounts


class AccountRow(PageStruct):
    """One account on one shard; the traffic is that of all its clients since the shard started."""

    name: str  # "": all that are forgotten, of which there is unwanted_msgs alone
    connections: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    slow_consumers: int = 0
    unwanted_msgs: int = 0  # that nobody got, up to the end of the recorder's last window
    subscriptions: int = 0  # in it, also of other accounts' clients that get its streams
    # Of clients that have moved: what they had done when they left, less what they had done elsewhere when they came.
    left_in_msgs: int = 0
    left_in_bytes: int = 0
    left_out_msgs: int = 0
    left_out_bytes: int = 0

    # What clients did on this shard, which is never less than before. The traffic above moves with a client.
    @property
    def in_msgs_here(self) -> int:
        """Messages that came in on this shard."""
        return self.in_msgs + self.left_in_msgs

    @property
    def in_bytes_here(self) -> int:
        """Bytes of those messages."""
        return self.in_bytes + self.left_in_bytes

    @property
    def out_msgs_here(self) -> int:
        """Messages that went out from this shard."""
        return self.out_msgs + self.left_out_msgs

    @property
    def out_bytes_here(self) -> int:
        """Bytes of those messages."""
        return self.out_bytes + self.left_out_bytes


class PassingRow(PageStruct):
    """A client that has lately left for another shard, or come from one."""

    cid: int
    shard: int  # the other one
    moved_us: int  # when it came to the shard that says so; 0: it was accepted there
    account: str


class AccountsPart(PageStruct):
    """All accounts that have ever had a client on this shard, or those of `names`."""

    rows: list[AccountRow]
    # In the first part, for `router.monitoring.moving_clients`:
    counted_us: int = 0  # when connections were counted
    left: list[PassingRow] = []
    came: list[PassingRow] = []  # those that are still here; of `cids` all that are here
    coming: list[int] = []  # of `cids`: those that are about to come


class DeniedQuery(Question, tag="deniedz"):
    """What permissions have denied."""


class DeniedRow(PageStruct):
    """One user on one shard, since the shard started."""

    account: str  # records.OTHER: all users without a row of their own
    user: str  # "": clients without a user
    publishes: int = 0
    subscriptions: int = 0
    waits: int = 0  # how often a client of its was not read for a while, because of publish_limits


class DeniedPart(PageStruct):
    """All users that were denied something."""

    rows: list[DeniedRow]


class ClientQuery(Question, tag="client"):
    """A command about one client, not only a query."""

    cid: int
    is_kicked: bool = False  # True: close it; False: ask it to reconnect (INFO with `ldm`)


class StacksQuery(Question, tag="stacks"):
    """Asks for the stacks of the shard."""


class StacksPart(PageStruct):
    """The stacks of the shard: see shards.boundary.stacks."""

    text: str


class PublishersQuery(Question, tag="publishers"):
    """The clients whose latest message had this subject."""

    account: str  # "": any
    subject: str
    most: int = 200


class PublishersPart(PageStruct):
    """All of them, up to `most`."""

    rows: list[ConnectionRow]


class MovesQuery(Question, tag="moves"):
    """How many clients have moved."""


class MovesPart(PageStruct):
    """Counts since the shard's start, and how many are on their way."""

    moved: int = 0  # that went on in another shard
    arrived: int = 0
    stopped: int = 0  # batches that ended with their clients where they were
    lost: int = 0  # clients that were closed because a shard or link ended in the middle
    moving: int = 0  # still to be moved by the present request


class ClientPart(PageStruct):
    """Whether the client is on this shard, where the command was carried out."""

    is_found: bool
    is_coming: bool = False  # it is about to come from another shard: the command is carried out when it is here
    has_left: bool = False  # it has lately gone to another shard
    is_deaf: bool = False  # it is here, but reads no `ldm` now: nothing was done


# What `idle` means in nats-server 2.15, which begins with those that have been idle for longest, closed ones too.
LONGEST_IDLE = "idle of 2.15"
# /connz?sort=… → key function of (row, now), for an ascending sort. Counts are negated: the largest come first.
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
    LONGEST_IDLE: lambda row, _now_us: row.active_us,
    "uptime": lambda row, now_us: (row.stop_us or now_us) - row.start_us,
    "stop": lambda row, _now_us: -row.stop_us,
    "reason": lambda row, _now_us: row.reason,
    "rtt": lambda row, _now_us: -row.rtt_us,
}


def is_found(row: ConnectionRow, query: ConnectionsQuery) -> bool:
    """Whether a connection matches the query; its state and its subscriptions are not looked at."""
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
    """The sort key of connections, the same on every shard and in the router, which merges them; ties by cid."""
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
    | LeafsQuery
    | RoutesQuery
    | AccountsQuery
    | DeniedQuery
    | ClientQuery
    | PublishersQuery
    | MovesQuery
    | StacksQuery
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
    | LeafsPart
    | RoutesPart
    | AccountsPart
    | DeniedPart
    | ClientPart
    | PublishersPart
    | MovesPart
    | StacksPart
)

_encode_part = msgspec.msgpack.Encoder().encode


def encode_part(part: Part) -> bytes:
    """The bytes for SnapshotReply.body."""
    return _encode_part(part)
