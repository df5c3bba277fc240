"""Where a message arrives, and who would get it: the result of `router.config.journey`, and its text for people."""

from __future__ import annotations

from collections import Counter

import msgspec


class Listener(msgspec.Struct, frozen=True):
    """One subscription of a running broker that the message matches."""

    cid: int
    user: str  # "": without a user
    shard: int
    subject: str  # what it subscribed to
    queue: str  # "": none
    kept_out_by: str = ""  # the deny rule that keeps this message from it; "": none


class Arrival(msgspec.Struct, frozen=True):
    """The message in one account, under one subject."""

    account: str
    subject: str
    how: str  # by which rule it came there
    may: tuple[str, ...] = ()  # users that may subscribe to it
    may_not: tuple[str, ...] = ()  # users that may not, each with the rule
    listeners: tuple[Listener, ...] = ()
    # What it is published as, where this is that account or one that imports its stream: a queue group is one group
    # over all of these. "": a request to a service, which has receivers of its own.
    origin: str = ""


class Journey(msgspec.Struct, frozen=True):
    """What becomes of one message. `stopped`: the rule that ends its way at once; "": it arrives somewhere."""

    subject: str
    user: str
    account: str
    rules: tuple[str, ...] = ()  # that were applied, in order
    stopped: str = ""
    arrivals: tuple[Arrival, ...] = ()
    is_live: bool = False  # listeners were looked up


def is_heard(found: Journey) -> bool:
    """Whether anybody gets the message, or by the rules alone: could."""
    if found.is_live:
        return any(not one.kept_out_by for arrival in found.arrivals for one in arrival.listeners)
    return any(arrival.may or not arrival.may_not for arrival in found.arrivals)


def shown(found: Journey) -> str:
    """The journey for people, a line for each rule, account and listener; names cannot drive the terminal."""
    from gnatswarm.broker.quoted import visible  # every router has Journey, few show one

    return "\n".join(visible(line) for line in _lines(found))


def _lines(found: Journey) -> list[str]:
    lines = [f"{found.subject}, published {f'by {found.user} ' if found.user else ''}in account {found.account}"]
    lines += [f"  {rule}" for rule in found.rules]
    if found.stopped:
        return [*lines, f"  STOPPED: {found.stopped}"]
    members = _members(found.arrivals)
    for arrival in found.arrivals:
        lines.append(f"  in {arrival.account} on {arrival.subject}" + (f" ({arrival.how})" if arrival.how else ""))
        if found.is_live:
            lines += [f"    {line}" for line in _listeners_shown(arrival, members)]
        elif arrival.may:
            more = ", …" if len(arrival.may) > 20 else ""
            lines.append(f"    may be heard by {', '.join(arrival.may[:20])}{more}")
        elif not arrival.may_not:
            has_users = " (this account has no users)" if found.user else ""
            lines.append(f"    may be heard by all clients of this account{has_users}")
        lines += [f"    not by {rule}" for rule in arrival.may_not[:20]]
    return lines


def as_json(found: Journey) -> str:
    """The same as one JSON document, for programs."""
    return msgspec.json.encode(found).decode()


def _group(arrival: Arrival, queue: str) -> tuple[str, ...]:
    return (queue, arrival.origin) if arrival.origin else (queue, arrival.account, arrival.subject, arrival.how)


def _members(arrivals: tuple[Arrival, ...]) -> Counter[tuple[str, ...]]:
    """How many members of each queue group may get the message."""
    return Counter(
        _group(arrival, one.queue)
        for arrival in arrivals
        for one in arrival.listeners
        if one.queue and not one.kept_out_by
    )


def _listeners_shown(arrival: Arrival, members: Counter[tuple[str, ...]]) -> list[str]:
    lines = []
    for one in sorted(arrival.listeners, key=lambda one: (one.queue, one.cid)):
        kept = f' KEPT OUT by subscribe deny "{one.kept_out_by}"' if one.kept_out_by else ""
        count = "" if one.kept_out_by else f"one of {members[_group(arrival, one.queue)]} "
        group = f", {count}in the queue group {one.queue}" if one.queue else ""
        lines.append(f'cid {one.cid} {one.user or "(no user)"} on shard {one.shard}: "{one.subject}"{group}{kept}')
    return lines or ["nobody subscribes to it"]
