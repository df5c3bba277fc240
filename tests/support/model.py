"""What a broker delivers, slow and obvious: the oracle for tests of the compiled engine.

No tries, no caches, no bytes: subjects are strings, a subscription is a row in a list, and every publish looks at every
row. It knows subjects, subscriptions, queue groups, echo and UNSUB with max; it does not know sockets, shards, limits,
permissions or time.

Where the protocol leaves a choice (which member of a queue group) the model returns all permissible ones; the caller
says which was taken (`Delivery.chosen`), so that counts for UNSUB with max stay right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

BLANKS = " \t\r\n"


def tokens(subject: str) -> list[str]:
    return subject.split(".")


def is_valid_subject(subject: str) -> bool:
    """A subject that can be subscribed to: no empty token, no blank, `>` as a whole token only at the end."""
    if not subject or any(blank in subject for blank in BLANKS):
        return False
    parts = tokens(subject)
    return "" not in parts and ">" not in parts[:-1]


def is_literal(subject: str) -> bool:
    """Valid, and no token is `*` or `>`: what pedantic mode wants to publish to."""
    return is_valid_subject(subject) and not any(part in ("*", ">") for part in tokens(subject))


def is_publishable(subject: str) -> bool:
    """Can match anything at all outside pedantic mode: no token is empty. Wildcards are then ordinary characters."""
    return "" not in tokens(subject)


def matches(pattern: str, subject: str) -> bool:
    """Whether a message on `subject` goes to a subscription on `pattern`. Wildcards in `subject` are literal."""
    if not is_valid_subject(pattern) or not is_publishable(subject):
        return False
    wanted, given = tokens(pattern), tokens(subject)
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(want in ("*", have) for want, have in zip(wanted, given, strict=True))


@dataclass
class Subscription:
    client: str
    sid: str
    subject: str
    queue: str = ""
    delivered: int = 0
    most: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.client, self.sid)


@dataclass
class Delivery:
    """What one publish causes: every key in `plain`, and one key out of each set in `queues` (by queue name)."""

    plain: list[tuple[str, str]] = field(default_factory=list)
    queues: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    chosen: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Nobody gets it: with a reply subject and no_responders, the publisher is told so."""
        return not self.plain and not self.queues

    def permits(self, got: Sequence[tuple[str, str]]) -> bool:
        """Whether exactly these deliveries, in any order, are a correct outcome of the publish."""
        rest = sorted(got)
        for key in self.plain:
            if key not in rest:
                return False
            rest.remove(key)
        # Each key that is left has to serve a queue of its own; a subscription is in one queue only, so there is no
        # choice to try: the queue a key belongs to is the one whose set holds it.
        for members in self.queues.values():
            here = [key for key in rest if key in members]
            if len(here) != 1:
                return False
            rest.remove(here[0])
        return not rest


def first_member(queue: str, members: set[tuple[str, str]]) -> tuple[str, str]:
    return min(members)


class Model:
    """One broker. Clients are any strings; one that was never mentioned has no subscriptions and hears itself."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.without_echo: set[str] = set()

    # -- clients ------------------------------------------------------------------------------------------------

    def set_echo(self, client: str, echo: bool) -> None:
        if echo:
            self.without_echo.discard(client)
        else:
            self.without_echo.add(client)

    def disconnect(self, client: str) -> None:
        self.subscriptions = [row for row in self.subscriptions if row.client != client]
        self.without_echo.discard(client)

    # -- subscriptions ------------------------------------------------------------------------------------------

    def find(self, client: str, sid: str) -> Subscription | None:
        for row in self.subscriptions:
            if row.key == (client, sid):
                return row
        return None

    def subscribe(self, client: str, subject: str, queue: str, sid: str) -> bool:
        """SUB. False when the subject is refused; a sid in use is accepted and changes nothing, even with a bad one."""
        if self.find(client, sid) is not None:
            return True
        if not is_valid_subject(subject):
            return False
        self.subscriptions.append(Subscription(client, sid, subject, queue))
        return True

    def unsubscribe(self, client: str, sid: str, max: int | None = None) -> None:
        """UNSUB. `max` counts from the SUB; absent, zero, negative, or reached already: removed at once."""
        row = self.find(client, sid)
        if row is None:
            return
        if max is None or max <= row.delivered:
            self.subscriptions.remove(row)
        else:
            row.most = max

    def is_interested(self, subject: str) -> bool:
        return any(matches(row.subject, subject) for row in self.subscriptions)

    # -- messages -----------------------------------------------------------------------------------------------

    def candidates(self, client: str, subject: str) -> Delivery:
        """Who may get a message that `client` publishes; nothing is counted."""
        delivery = Delivery()
        for row in self.subscriptions:
            if not matches(row.subject, subject) or (row.client == client and client in self.without_echo):
                continue
            if row.queue:
                delivery.queues.setdefault(row.queue, set()).add(row.key)
            else:
                delivery.plain.append(row.key)
        return delivery

    def publish(
        self,
        client: str,
        subject: str,
        choose: Callable[[str, set[tuple[str, str]]], tuple[str, str]] = first_member,
    ) -> Delivery:
        """PUB: who may get it, and count it: for every plain subscription, and for the member `choose` names.

        `choose(queue, members)` is told what the broker under test did, or decides.
        """
        delivery = self.candidates(client, subject)
        for queue, members in delivery.queues.items():
            taken = choose(queue, members)
            assert taken in members, f"{taken} is no member of {queue!r} that may get {subject!r}"
            delivery.chosen[queue] = taken
        for key in [*delivery.plain, *delivery.chosen.values()]:
            row = self.find(*key)
            assert row is not None
            row.delivered += 1
            if row.most is not None and row.delivered >= row.most:
                self.subscriptions.remove(row)
        return delivery
