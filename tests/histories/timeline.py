"""A history as intervals: what was certainly true when, and what may have been.

An operation takes effect between its invocation (`at`) and its completion (`done`): the first PONG behind it on its
connection, or NEVER. Of two operations, one is before the other if it was complete before the other was invoked, or if
one connection wrote it first. Everything else is concurrent, and any order is possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.histories.events import (
    Began,
    Close,
    Closed,
    Ended,
    Event,
    Fault,
    Mended,
    Msg,
    Nobody,
    Odd,
    Open,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
)
from tests.support.model import matches

NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class Fence:
    """A PING and its PONG."""

    ping: Ping
    index: int  # among what the connection wrote
    pong: Pong
    place: int  # of the PONG, among what the connection read

    @property
    def at(self) -> int:
        return self.ping.at

    @property
    def done(self) -> int:
        return self.pong.at


@dataclass(slots=True, eq=False)
class Connection:
    """What one connection did."""

    number: int
    opened: Open
    written: int = 0
    read: int = 0
    fences: list[Fence] = field(default_factory=list)  # those that have their PONG
    waiting: list[tuple[Ping, int]] = field(default_factory=list)  # those that have not
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    close: Close | None = None
    closed: Closed | None = None

    def fence_behind(self, index: int) -> Fence | None:
        """The first fence that was written after the operation with this index."""
        at = bisect_right(self.fences, index, key=lambda fence: fence.index)
        return self.fences[at] if at < len(self.fences) else None

    def fence_since(self, at: int) -> Fence | None:
        """The first fence that was invoked after this time."""
        number = bisect_right(self.fences, at, key=lambda fence: fence.at)
        return self.fences[number] if number < len(self.fences) else None

    @property
    def alive_until(self) -> int:
        """Until when it was certainly open."""
        return self.fences[-1].at if self.fences else 0

    @property
    def ended_at(self) -> int:
        """When the broker had certainly closed it, on the client's request; NEVER: unknown."""
        is_told = self.close is not None and self.close.how == "shut" and self.closed is not None
        return self.closed.at if is_told and self.closed else NEVER


@dataclass(slots=True, eq=False)
class Message:
    """One PUB."""

    pub: Pub
    conn: Connection
    index: int
    deliveries: list[Delivery] = field(default_factory=list)
    nobody: list[tuple[Nobody, int]] = field(default_factory=list)  # 503, and its place among what was read
    fence: Fence | None = None

    @property
    def at(self) -> int:
        return self.pub.at

    @property
    def done(self) -> int:
        return self.fence.done if self.fence else NEVER


@dataclass(slots=True, eq=False)
class Delivery:
    """One MSG."""

    msg: Msg
    sub: Subscription
    message: Message
    place: int  # among what the connection read


@dataclass(slots=True, eq=False)
class Subscription:
    """One SUB, and how it ended."""

    sub: Sub
    conn: Connection
    index: int
    unsub: Unsub | None = None  # the one without a max
    unsub_index: int = NEVER
    limit: Unsub | None = None  # the one with a max
    limit_index: int = NEVER
    deliveries: list[Delivery] = field(default_factory=list)
    # What follows is known once everything has been read.
    done: int = NEVER
    here_until: int = 0  # it was certainly there from `done` to then
    over_at: int = NEVER  # everybody knows from then on that it is over
    over_fence: Fence | None = None  # the one behind the UNSUB without a max

    @property
    def at(self) -> int:
        return self.sub.at

    @property
    def most(self) -> int:
        return self.limit.most if self.limit else NEVER

    def had_before(self, place: int) -> int:
        """How many messages it had got before its connection read what is at this place."""
        return bisect_right(self.deliveries, place, key=lambda one: one.place)

    def close_books(self) -> None:
        """Work out the intervals."""
        first = self.conn.fence_behind(self.index)
        self.done = first.done if first else NEVER
        self.here_until = self.conn.alive_until
        if self.unsub:
            self.here_until = min(self.here_until, self.unsub.at)
            self.over_fence = self.conn.fence_behind(self.unsub_index)
            if self.over_fence:
                self.over_at = self.over_fence.done
        if self.limit and len(self.deliveries) >= self.limit.most:
            last = self.deliveries[self.limit.most - 1]
            # It ended when both had happened: the UNSUB was read, and the last one published.
            self.here_until = min(self.here_until, max(self.limit.at, last.message.at))
            behind = self.conn.fence_behind(self.limit_index)
            later = self.conn.fence_since(last.msg.at)
            if behind and later:
                self.over_at = min(self.over_at, max(behind.done, later.done))

    def is_before(self, message: Message) -> bool:
        """Whether it was there, for all to know, when the message was published."""
        return self.done < message.at or (self.conn is message.conn and self.index < message.index)

    def is_over_before(self, message: Message) -> bool:
        """Whether everybody knew, when the message was published, that it was over."""
        if self.over_at < message.at:
            return True
        # The client of this connection knows at once.
        return self.conn is message.conn and (self.unsub_index < message.index or self.is_used_up_at(message.at))

    def is_used_up_at(self, at: int) -> bool:
        """Whether its client had got its max by then."""
        return (
            self.limit is not None
            and self.limit.at < at
            and len(self.deliveries) >= self.limit.most
            and self.deliveries[self.limit.most - 1].msg.at < at
        )

    def may_end_before(self, at: int) -> bool:
        """Whether anything that can end it had happened by then."""
        ends = [one.at for one in (self.unsub, self.limit, self.conn.close, self.conn.closed) if one]
        return bool(ends) and min(ends) < at

    def is_after(self, message: Message) -> bool:
        """Whether it began when the message had reached everybody."""
        return message.done < self.at or (self.conn is message.conn and message.index < self.index)

    def stays_for(self, message: Message) -> bool:
        """Whether it was certainly still there when the message had reached everybody."""
        if message.fence is None:
            return False
        if message.done < self.here_until:
            return True
        if self.conn is not message.conn or self.unsub_index < message.index:
            return False
        return self.limit is None or self.had_before(message.fence.place) < self.limit.most


class Timeline:
    """A whole history. ValueError if it is not one."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.conns: dict[int, Connection] = {}
        self.messages: dict[int, Message] = {}
        self.strange: list[tuple[str, list[Event]]] = []  # what fits nothing that a client asked for
        self.faults: list[tuple[Fault, int]] = []  # and when it was over
        self.operations = 0
        self.is_whole = False
        self.began: Began | None = None
        for event in events:
            self._take(event)
        if self.began is None or not self.is_whole:
            raise ValueError("the history has no beginning or no end")
        for conn in self.conns.values():
            for sub in conn.subscriptions.values():
                sub.close_books()
        for message in self.messages.values():
            message.fence = message.conn.fence_behind(message.index)
        self._by_prefix: dict[str, list[Subscription]] = defaultdict(list)
        for sub in self.subscriptions:
            self._by_prefix[literal_prefix(sub.sub.pattern)].append(sub)
        self._wanted: dict[str, list[Subscription]] = {}

    @property
    def subscriptions(self) -> Iterator[Subscription]:
        return (sub for conn in self.conns.values() for sub in conn.subscriptions.values())

    def wanted(self, subject: str) -> list[Subscription]:
        """Everybody who ever subscribed to a subject."""
        found = self._wanted.get(subject)
        if found is None:
            words = subject.split(".")
            prefixes = [".".join(words[:count]) for count in range(len(words) + 1)]
            found = [
                sub for one in prefixes for sub in self._by_prefix.get(one, ()) if matches(sub.sub.pattern, subject)
            ]
            self._wanted[subject] = found
        return found

    def _take(self, event: Event) -> None:
        match event:
            case Began():
                self.began = event
            case Ended():
                self.is_whole = True
            case Fault():
                self.faults.append((event, NEVER))
            case Mended():
                self.faults[-1] = self.faults[-1][0], event.at
            case Open():
                self.conns[event.conn] = Connection(event.conn, event)
            case Odd():
                self.strange.append(("a client saw what no client should see", [event]))
            case Sub() | Unsub() | Pub() | Ping():
                conn = self.conns[event.conn]
                conn.written += 1
                self.operations += 1
                self._take_written(conn, event)
            case Close():
                self.conns[event.conn].close = event
            case Closed():
                self.conns[event.conn].closed = event
            case Pong() | Msg() | Nobody():
                conn = self.conns[event.conn]
                conn.read += 1
                self._take_read(conn, event)

    def _take_written(self, conn: Connection, event: Sub | Unsub | Pub | Ping) -> None:
        match event:
            case Sub():
                if event.sid in conn.subscriptions:
                    raise ValueError(f"a sid twice: {event}")
                conn.subscriptions[event.sid] = Subscription(event, conn, conn.written)
            case Unsub():
                sub = conn.subscriptions[event.sid]
                if (sub.limit if event.most else sub.unsub) or (event.most and sub.unsub):
                    raise ValueError(f"a second end of a subscription: {event}")
                if event.most:
                    sub.limit, sub.limit_index = event, conn.written
                else:
                    sub.unsub, sub.unsub_index = event, conn.written
            case Pub():
                self.messages[event.message] = Message(event, conn, conn.written)
            case Ping():
                conn.waiting.append((event, conn.written))

    def _take_read(self, conn: Connection, event: Pong | Msg | Nobody) -> None:
        match event:
            case Pong():
                if conn.waiting:
                    ping, index = conn.waiting.pop(0)
                    conn.fences.append(Fence(ping, index, event, conn.read))
                else:
                    self.strange.append(("a PONG that nobody asked for", [event]))
            case Msg():
                message, sub = self.messages.get(event.message), conn.subscriptions.get(event.sid)
                if message is None or sub is None:
                    self.strange.append(("a message that nobody published, or for no subscription", [event]))
                    return
                delivery = Delivery(event, sub, message, conn.read)
                for deliveries in (sub.deliveries, conn.deliveries, message.deliveries):
                    deliveries.append(delivery)
            case Nobody():
                message = self.messages.get(event.message)
                if message is None or message.conn is not conn or not message.pub.wants_answer:
                    self.strange.append(("a 503 for no request of this connection", [event]))
                    return
                message.nobody.append((event, conn.read))


def literal_prefix(pattern: str) -> str:
    """The tokens of a pattern before its first wildcard."""
    words = pattern.split(".")
    first = next((at for at, word in enumerate(words) if word in ("*", ">")), len(words))
    return ".".join(words[:first])
