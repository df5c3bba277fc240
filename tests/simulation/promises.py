"""What must be true of a history when everything has arrived: promises 2 to 5 and 7 of the design, in its own terms.

With several shards there is no single order of events, so this is no prediction of each delivery: it says who must have
got a message, by when, how often and in which order, and what excuses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import NEVER, Message, Subscription
from tests.support.model import matches

QUEUES = ("q", "r")


def check(subscriptions: list[Subscription], messages: list[Message]) -> None:
    """AssertionError, which names who did not get what."""
    for sub in subscriptions:
        check_deliveries(sub, messages)
        if not sub.queue:
            check_order(sub, messages)
            check_plain(sub, messages)
    for message in messages:
        for queue in QUEUES:
            check_queue(message, queue, [one for one in subscriptions if one.queue == queue])
        if message.wants_answer:
            check_no_responders(message, subscriptions)


def check_deliveries(sub: Subscription, messages: list[Message]) -> None:
    """Each subscription gets a message at most once, only if it matches, and only while it exists."""
    numbers = [number for number, _ in sub.got]
    assert len(set(numbers)) == len(numbers), f"{sub}: a message twice"
    assert all(matches(sub.pattern, messages[number].subject) for number in numbers)
    # A member of a queue group lingers until its siblings know that it has left; its client's PONG says so.
    until = min(sub.left_acked_at, sub.gone_at) if sub.queue else sub.left_at
    late = [number for number in numbers if messages[number].at > until]
    assert not late, f"{sub}: {late} were published after it had left"
    assert len(sub.got) <= sub.most, f"{sub}: more than its max"
    assert all(at <= sub.left_acked_at for _, at in sub.got), f"{sub}: messages after the PONG of its end"


def check_order(sub: Subscription, messages: list[Message]) -> None:
    """Each publisher's messages in the order in which it published them."""
    last: dict[int, int] = {}
    for number, _ in sub.got:
        client = messages[number].client
        assert last.get(client, -1) < number, f"{sub}: {number} of client {client} came behind {last[client]}"
        last[client] = number


def check_plain(sub: Subscription, messages: Iterable[Message]) -> None:
    """Everything that was published while it was there, and no later than its publisher's PONG."""
    got = dict(sub.got)
    for message in messages:
        if sub.must_have(message) and message.is_promised:
            assert message.number in got, f"{sub} did not get {message}"
            assert got[message.number] <= message.acked_at, f"{message} was acknowledged before {sub} got it"


def check_queue(message: Message, queue: str, members: list[Subscription]) -> None:
    """One member gets it, if one was there when it was published: lost no more than on one server."""
    got = [(one, at) for one in members for number, at in one.got if number == message.number]
    assert len(got) <= 1, f"{message} came to {len(got)} members of {queue}: {got}"
    if message.may_be_lost or not message.is_promised:
        return
    if any(
        matches(one.pattern, message.subject) and (one.most != NEVER or message.at <= one.gone_at <= message.acked_at)
        for one in members
    ):
        return  # who was chosen has had enough, or it went with its connection
    if any(message.at <= one.shard_died_at <= message.acked_at and not one.is_over_for(message) for one in members):
        return  # it was on its way to a shard that was believed to have a member, and died with it
    if not got and is_excused_by_a_stale_choice(message, members):
        return
    if any(member.has_seen(message) for member in members):
        assert got, f"no member of {queue} got {message}"
        assert got[0][1] <= message.acked_at, f"{message} was acknowledged before {got[0][0]} got it"


def is_excused_by_a_stale_choice(message: Message, members: list[Subscription]) -> bool:
    """Whether it may have gone to the shard of a connection that had just closed, while everybody else unsubscribed.

    A known limit: who unsubscribes lingers until its siblings know. What one of them had sent to a third shard by then,
    where the chosen connection was closed already, comes to nobody. (One server would have given it to a member.)
    """
    stale = [one for one in members if one.gone_at < message.at and not one.is_over_for(message)]
    return bool(stale) and all(one.left_at <= message.acked_at for one in members if one.has_seen(message))


def check_no_responders(message: Message, subscriptions: list[Subscription]) -> None:
    """503 if every shard knew that there was no subscriber; no 503 if every shard knew of one."""
    if any(sub.must_have(message) for sub in subscriptions):
        assert message.nobody_at == NEVER, f"{message}: told that nobody responds, and somebody was there"
    elif all(sub.is_over_for(message) for sub in subscriptions) and not message.is_orphaned:
        assert message.nobody_at != NEVER, f"{message}: everybody knew that nobody responds, and it was not told"
