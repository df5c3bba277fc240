"""Whether the promises held in a history, decided from the history alone.

The promises are those of a single server (ARCHITECTURE.md, "The invariants", 2 to 5, 7 and 8), so the checker needs to
know nothing of shards and links. It reports a violation only if no order of the operations explains what was seen. Such
an order must agree with real time, and with the order in which each connection wrote and read.

Cost: each message is compared with all subscriptions that its subject ever had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from tests.histories.events import Event, Pong, Record
from tests.histories.timeline import Connection, Delivery, Fence, Message, Subscription, Timeline

# What each kind of violation says, in the order of the table.
KINDS = {
    "lost": "a plain subscriber that was there for all to know did not get a message",
    "late": "a PONG came before a message that had been acknowledged before its PING",
    "order": "messages of one publisher came to one subscription in another order",
    "overtaken": "a message came behind one that was published after it had been acknowledged",
    "twice": "a subscription got a message twice, or two members of a queue group got it",
    "early": "a subscription got a message that had been acknowledged before it existed",
    "after the end": "a message came behind the PONG of an UNSUB",
    "over max": "a subscription got more messages than its max",
    "not asked for": "a message came that its subscription does not match, or that nobody published like that",
    "group lost": "no member of a queue group got a message although there was one all the time",
    "503 wrong": "a requestor was told that nobody responds although somebody was there, or got it",
    "503 missing": "everybody knew that nobody responds, and the requestor was not told",
    "disconnected": "the broker closed a connection that had done nothing wrong",
    "no PONG": "a PING was not answered",
    "strange": "a client saw an error, or something that it had not asked for",
}


@dataclass(frozen=True)
class Violation:
    """One breach, with the events that show it."""

    kind: str
    why: str
    events: tuple[Record, ...]

    def told(self, began_at: int) -> str:
        """The violation as text, with times in µs since the history began."""
        lines = [f"{self.kind}: {self.why}"]
        for event in sorted(self.events, key=attrgetter("at")):
            words = ", ".join(f"{name}={getattr(event, name)!r}" for name in event.__struct_fields__ if name != "at")
            lines.append(f"    {(event.at - began_at) / 1000:>12,.1f} µs  {type(event).__name__:<7}{words}")
        return "\n".join(lines)


@dataclass
class Report:
    """The result of one history."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def by_kind(self) -> Counter[str]:
        return Counter(one.kind for one in self.violations)


def check(events: Iterable[Event]) -> Report:
    """Apply all rules. ValueError if it is not a history."""
    timeline = Timeline(events)
    checker = Checker(timeline)
    for rule in RULES:
        rule(checker)
    counts = checker.report.counts
    counts["operations"] = timeline.operations
    counts["messages"] = len(timeline.messages)
    counts["deliveries"] = sum(len(one.deliveries) for one in timeline.messages.values())
    counts["connections"] = len(timeline.conns)
    counts["fences"] = sum(len(conn.fences) for conn in timeline.conns.values())
    return checker.report


class Checker:
    """The rules, applied to one timeline. `counts` of its report say how often each rule had a case."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.report = Report()
        # Servers do not tell each other what became of a queue message that they sent on.
        self.is_cluster = timeline.began is not None and timeline.began.servers > 1

    def breach(self, kind: str, why: str, events: Iterable[Record | None]) -> None:
        self.report.violations.append(Violation(kind, why, tuple(one for one in events if one is not None)))

    # ---- connections

    def check_connections(self) -> None:
        for why, events in self.timeline.strange:
            self.breach("strange", why, events)
        for conn in self.timeline.conns.values():
            if conn.closed and not conn.close:
                if self.is_by_fault(conn):
                    self.report.counts["excused: connections that ended in a fault"] += 1
                else:
                    self.breach("disconnected", f"connection {conn.number} ended unasked", [conn.opened, conn.closed])
            if conn.waiting and not conn.closed:
                self.breach("no PONG", f"connection {conn.number} waits for one", [conn.waiting[0][0]])

    def is_by_fault(self, conn: Connection) -> bool:
        """Whether a fault explains its end: the shard or server that it met was killed, or left."""
        assert conn.closed
        opened, ended_at = conn.opened, conn.closed.at
        faults = self.timeline.faults
        return any(opened.place in one.places and one.at < ended_at and opened.at < over for one, over in faults)

    # ---- deliveries

    def check_deliveries(self) -> None:
        """Check each delivery by itself: it was asked for at that time, and is unaltered."""
        for sub in self.timeline.subscriptions:
            wanted: dict[str, bool] = {}
            for number, one in enumerate(sub.deliveries, 1):
                pub, msg = one.message.pub, one.msg
                subject = pub.subject
                if subject not in wanted:
                    wanted[subject] = sub in self.timeline.wanted(subject)
                if not wanted[subject] or (msg.subject, msg.size) != (subject, pub.size) or msg.at < pub.at:
                    self.breach("not asked for", "subject, size or time differ", [sub.sub, pub, msg])
                if sub.over_fence and one.place > sub.over_fence.place:
                    self.breach("after the end", "behind UNSUB's PONG", end_of(sub, one))
                elif not sub.sub.queue and sub.conn is one.message.conn and sub.unsub_index < one.message.index:
                    self.breach("after the end", "its own client published it behind UNSUB", end_of(sub, one))
                if number > sub.most and self.is_behind_limit(sub, one):
                    self.breach("over max", f"number {number} of {sub.most}", [sub.sub, sub.limit, pub, msg])
                if is_too_early(sub, one.message):
                    events = [pub, pong_of(one.message.fence), sub.sub, msg]
                    self.breach("early", "acknowledged before SUB", events)

    def is_behind_limit(self, sub: Subscription, one: Delivery) -> bool:
        """Whether the broker had certainly read the UNSUB with a max when it sent this."""
        fence = sub.conn.fence_behind(sub.limit_index)
        is_behind_pong = fence is not None and fence.place < one.place
        return is_behind_pong or (sub.conn is one.message.conn and sub.limit_index < one.message.index)

    def check_twice(self) -> None:
        for message in self.timeline.messages.values():
            if len(message.deliveries) < 2:
                continue
            seen: dict[Subscription | str, Delivery] = {}
            for one in message.deliveries:
                who = one.sub.sub.queue or one.sub
                if who in seen:
                    other = seen[who]
                    events = [message.pub, other.sub.sub, other.msg, one.sub.sub, one.msg]
                    self.breach("twice", "one message, two deliveries", events)
                seen[who] = one

    def check_order(self) -> None:
        """Check that a publisher's messages come in order; for members of queue groups see `may_be_sent_on`."""
        for sub in self.timeline.subscriptions:
            last: dict[int, Delivery] = {}
            for one in sub.deliveries:
                before = last.get(one.message.conn.number)
                if before is None or before.message.index <= one.message.index:
                    last[one.message.conn.number] = one
                elif self.may_be_sent_on(sub, one, one) or self.may_be_sent_on(sub, before, one):
                    self.report.counts["excused: sent on, and so in another order"] += 1
                elif (one.message.pub.crosses or before.message.pub.crosses) and (
                    one.message.pub.subject != before.message.pub.subject
                ):
                    self.report.counts["excused: answers to another account, one by a shard that its client left"] += 1
                else:
                    events = [sub.sub, one.message.pub, before.message.pub, before.msg, one.msg]
                    self.breach("order", "the second came first", events)

    def may_be_sent_on(self, sub: Subscription, one: Delivery, last: Delivery) -> bool:
        """Whether it may have been for a member that left before the last of two came.

        What is sent on to another member may come later than what was published behind it, or sooner than what was
        published before it.
        """
        return bool(sub.sub.queue) and any(
            other.sub.queue == sub.sub.queue
            and other.may_end_before(last.msg.at)
            and not other.is_over_before(one.message)
            for other in self.timeline.wanted(one.message.pub.subject)
        )

    def check_overtaken(self) -> None:
        """Check that no later message comes before an acknowledged one, which was sent to everybody."""
        for conn in self.timeline.conns.values():
            newest: Delivery | None = None
            for one in conn.deliveries:
                if newest and one.message.done < newest.message.at:
                    assert one.message.fence
                    if self.is_cluster and self.may_be_sent_on(one.sub, one, one):
                        self.report.counts["excused: sent on to another server, and so behind its PONG"] += 1
                        continue
                    events = [one.message.pub, one.message.fence.pong, newest.message.pub, newest.msg, one.msg]
                    self.breach("overtaken", "by a message that was published after its PONG", events)
                if newest is None or newest.message.at < one.message.at:
                    newest = one

    def check_late(self) -> None:
        for conn in self.timeline.conns.values():
            for one in conn.deliveries:
                fence = conn.fence_since(one.message.done)
                if fence and fence.place < one.place:
                    assert one.message.fence
                    events = [one.message.pub, one.message.fence.pong, fence.ping, fence.pong, one.sub.sub, one.msg]
                    self.breach("late", "behind a PONG whose PING came after the publisher's PONG", events)

    # ---- missing deliveries

    def check_lost(self) -> None:
        """Check that plain subscribers and queue groups got their messages."""
        counts = self.report.counts
        for message in self.timeline.messages.values():
            if message.fence is None:
                continue
            groups: dict[str, list[Subscription]] = {}
            got = {one.sub for one in message.deliveries}
            for sub in self.timeline.wanted(message.pub.subject):
                if sub.sub.queue:
                    groups.setdefault(sub.sub.queue, []).append(sub)
                elif sub.is_before(message) and sub.stays_for(message):
                    counts["had to come"] += 1
                    if sub not in got:
                        self.say_lost(sub, message)
            for queue, members in groups.items():
                if is_somebody_there(members, message, message.done):
                    counts["had to come to a group"] += 1
                    if not any(one.sub.sub.queue == queue for one in message.deliveries):
                        self.say_group_lost(members, message)

    def say_lost(self, sub: Subscription, message: Message) -> None:
        first, fence = sub.conn.fence_behind(sub.index), message.fence
        assert first and fence
        later = fence if sub.conn is message.conn else sub.conn.fence_since(message.done)
        known = [later.ping, later.pong] if later else []
        events = [sub.sub, first.pong, message.pub, fence.pong, *known, sub.limit, sub.unsub]
        self.breach("lost", f"{sub.sub.pattern} on connection {sub.conn.number} did not get it", events)

    def say_group_lost(self, members: list[Subscription], message: Message) -> None:
        """Report it, unless the member that was chosen may have been closing its connection."""
        assert message.fence
        chosen = [one for one in members if not is_too_early(one, message) and not one.is_over_before(message)]
        gone = [one for one in chosen if one.conn is not message.conn and not one.conn.fence_since(message.done)]
        if any(one.conn.ended_at >= message.at for one in gone):
            self.report.counts["excused: the chosen member's connection was closed"] += 1
            return
        if gone and not any(one.is_before(message) and one.stays_for(message) for one in members):
            # A known limit (deploy/decisions/2026-11-22-lingering-queue-members.md).
            self.report.counts["excused: a stale choice while the last members unsubscribe"] += 1
            return
        stays = [one for one in members if one.is_before(message) and one.limit is None]
        if (
            self.is_cluster
            and any(one.limit is not None for one in chosen)
            and not any(one.here_until > message.done for one in stays)
        ):
            # A known limit (deploy/DIFFERENCES.md, "Queue groups").
            self.report.counts["excused: one had its max on another server while the last members unsubscribe"] += 1
            return
        events: list[Record | None] = [message.pub, message.fence.pong]
        for one in chosen:
            first = one.conn.fence_behind(one.index)
            events += [one.sub, pong_of(first), one.limit, one.unsub, pong_of(one.over_fence), one.conn.close]
        self.breach("group lost", f"no member of {members[0].sub.queue} got it", events)

    # ---- nobody responds

    def check_nobody(self) -> None:
        for message in self.timeline.messages.values():
            if not message.pub.wants_answer:
                continue
            wanted = self.timeline.wanted(message.pub.subject)
            if message.nobody:
                self.report.counts["503"] += 1
                self.check_503(message, wanted)
            elif (
                message.fence
                and not message.deliveries
                and all(one.at > message.done or one.is_over_before(message) for one in wanted)
            ):
                events = [message.pub, message.fence.pong, *(one.sub for one in wanted[-3:])]
                self.breach("503 missing", "nobody was there, for all to know", events)

    def check_503(self, message: Message, wanted: list[Subscription]) -> None:
        told, place = message.nobody[0]
        if len(message.nobody) > 1:
            self.breach("503 wrong", "it was told twice", [message.pub, told, message.nobody[1][0]])
        if message.fence and place > message.fence.place:
            self.breach("503 missing", "it came behind the PONG", [message.pub, message.fence.pong, told])
        if message.deliveries:
            got = message.deliveries[0]
            self.breach("503 wrong", "somebody got the request", [message.pub, told, got.sub.sub, got.msg])
        if is_somebody_there(wanted, message, told.at):
            there = [one for one in wanted if one.is_before(message) and one.here_until > message.at]
            events: list[Record | None] = [message.pub, told]
            for one in there:
                first = one.conn.fence_behind(one.index)
                events += [one.sub, pong_of(first), one.limit, one.unsub]
            self.breach("503 wrong", "somebody was there, for all to know", events)


def pong_of(fence: Fence | None) -> Pong | None:
    return fence.pong if fence else None


def end_of(sub: Subscription, one: Delivery) -> list[Record | None]:
    return [sub.sub, sub.unsub, pong_of(sub.over_fence), one.message.pub, one.msg]


def is_too_early(sub: Subscription, message: Message) -> bool:
    """Whether the message had reached everybody before the subscription began."""
    if sub.sub.queue:
        return message.done < sub.at  # what is sent on may come back to where it was published
    return sub.is_after(message)


def is_somebody_there(members: list[Subscription], message: Message, until: int) -> bool:
    """Whether at each moment from the message's PUB to `until` one of them was there for all to know."""
    now = message.at
    if any(one.conn is message.conn and one.index < message.index and is_there(one, message, until) for one in members):
        return True
    while now <= until:
        best = max((one.here_until for one in members if one.done < now), default=0)
        if best <= now:
            return False
        now = best
    return True


def is_there(sub: Subscription, message: Message, until: int) -> bool:
    """Whether a subscription of the publisher's own connection was there when it published, and then up to a time."""
    return sub.stays_for(message) if until == message.done else sub.here_until > until


RULES: tuple[Callable[[Checker], None], ...] = (
    Checker.check_connections,
    Checker.check_deliveries,
    Checker.check_twice,
    Checker.check_order,
    Checker.check_overtaken,
    Checker.check_late,
    Checker.check_lost,
    Checker.check_nobody,
)
