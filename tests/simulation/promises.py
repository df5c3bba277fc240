"""What must be true of a history when everything has arrived: promises 2 to 5 and 7 of the design, in its own terms.

With several shards there is no single order of events, so this is no prediction of each delivery: it says who must have
got a message, by when, how often and in which order, and what excuses it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.simulation.history import NEVER, Message, Subscription
from tests.simulation.tenants import Tenants, View, is_kept_out, matches

QUEUES = ("q", "r")
MOST_NAME_BYTES = 32768  # of all groups in one frame between shards
UNRESTRICTED = [(0, 0)]


@dataclass
class History:
    """All that clients did and got."""

    tenants: Tenants  # at first; reloads change neither its services nor its accounts
    subscriptions: list[Subscription] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)  # clients that have moved to another shard, or began to
    rights: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # of each client; others may do everything: (from this step on, number)
    reloads: list[tuple[int, Tenants]] = field(default_factory=list)  # of imports and mappings: from this step on

    def tenants_for(self, message: Message) -> list[Tenants]:
        """The accounts' imports when a message was published; several, where a reload came before its PONG."""
        if message.crosses_reload:
            return [self.tenants, *(one for _, one in self.reloads)]
        return [next((one for at, one in reversed(self.reloads) if at < message.at), self.tenants)]

    def rights_between(self, client: int, first: int, last: int) -> list[int]:
        """The rights that a client had at any time between two steps."""
        log = self.rights.get(client, UNRESTRICTED)
        if len(log) == 1:
            return [log[0][1]] if log[0][0] <= last else []
        return [
            number
            for place, (at, number) in enumerate(log)
            if at <= last and (place + 1 == len(log) or log[place + 1][0] >= first)
        ]

    def rights_of(self, sub: Subscription, first: int, last: int) -> list[int]:
        """The same of a subscription's client, which has others since a CONNECT has ended the subscription."""
        return self.rights_between(sub.client, min(first, sub.anew_at), min(last, sub.anew_at))

    def may_be_kept_out(self, sub: Subscription, subject: str, first: int, last: int) -> bool:
        """Whether permissions that its client had at any time between two steps exclude the subject."""
        log = self.rights.get(sub.client, UNRESTRICTED)
        if len(log) == 1 and not log[0][1]:  # it may do everything, always
            return False
        return any(is_kept_out(one, subject) for one in self.rights_of(sub, first, last))

    def inbox_of(self, message: Message) -> Subscription | None:
        """The subscription to which its publisher has answers sent; None: a user of another server, who has none."""
        if message.inbox:
            return self.subscriptions[message.inbox - 1]
        pattern = f"_INBOX.{message.client}.*"
        of_users = (one for one in self.subscriptions if one.is_outside and one.pattern == pattern)
        return next(of_users, None)


@dataclass(slots=True)
class Reach:
    """Who may get a message: subscriptions, each with its account's view of the message, and the subject there."""

    message: Message
    tenants: Tenants
    hits: dict[int, tuple[Subscription, View, str]] = field(default_factory=dict)  # by the subscription's sid
    # The same hits: those without a queue group, and the members of each group, by account and name.
    plain: list[tuple[Subscription, View, str]] = field(default_factory=list)
    groups: dict[tuple[str, str], list[Subscription]] = field(default_factory=dict)


def check(history: History) -> None:
    """AssertionError, which names who did not get what."""
    reaches = [reach for reach in found_reaches(history) if reach.message.at != NEVER]
    by_number = {reach.message.number: reach for reach in reaches}
    for sub in history.subscriptions:
        check_deliveries(history, sub, by_number)
        if not sub.queue:
            check_order(sub, history.messages)
    latest: dict[tuple[int, int], int] = {}  # of each subscription, and publisher: the last message that came
    for sub in history.subscriptions:
        for number in sub.got:
            key = sub.sid, history.messages[number].client
            latest[key] = max(number, latest.get(key, -1))
    answered: dict[int, list[Message]] = defaultdict(list)
    for reach in reaches:
        check_plain(history, reach, latest)
        for group, members in reach.groups.items():
            check_queue(history, reach, group, members)
        if reach.message.wants_answer:
            check_no_responders(history, reach)
        if reach.message.answers >= 0 and reach.message.subject.startswith("_R_"):
            answered[reach.message.answers].append(reach.message)
    for request, answers in answered.items():
        check_answers(history, history.messages[request], answers)


def found_reaches(history: History) -> list[Reach]:
    """The reach of every message."""
    kinds: dict[str, dict[str, list[Subscription]]] = {}  # by account, and pattern
    for sub in history.subscriptions:
        kinds.setdefault(sub.account, {}).setdefault(sub.pattern, []).append(sub)
    known: dict[tuple[int, tuple[View, ...]], Reach] = {}
    answers: dict[int, list[Message]] = defaultdict(list)
    for message in history.messages:
        if message.answers >= 0 and message.at != NEVER and not message.is_denied:
            answers[message.answers].append(message)
    reaches = []
    for message in history.messages:
        arrangements = history.tenants_for(message)
        if message.is_denied or message.is_only:
            reaches.append(Reach(message, arrangements[0]))
            continue
        all_answers = answers[message.answers] if message.answers >= 0 else []
        found = [(one, views_of(history, one, message, all_answers)) for one in arrangements]
        key = (id(found[0][0]) if len(found) == 1 else 0, found[0][1])
        reach = known.get(key) if len(found) == 1 else None
        if reach is None:
            reach = Reach(message, found[0][0])
            if len(found) == 1:
                known[key] = reach
            for tenants, views in found:
                for view in views:
                    seen = view if len(found) == 1 else view._replace(is_sure=False)
                    for account, patterns in kinds.items():
                        subject = tenants.heard(view, account)
                        if not subject:
                            continue
                        for pattern, subs in patterns.items():
                            if matches(pattern, subject):
                                for sub in subs:
                                    reach.hits[sub.sid] = sub, seen, subject
            for sub, view, subject in reach.hits.values():
                if sub.queue:
                    reach.groups.setdefault((view.account, sub.queue), []).append(sub)
                else:
                    reach.plain.append((sub, view, subject))
        found_reach = Reach(message, reach.tenants, reach.hits, reach.plain, reach.groups)
        if message.is_of_leaf:
            found_reach = with_near(history, found_reach)
        if message.is_echoless:
            found_reach = without(found_reach, message.client)
        reaches.append(found_reach)
    return reaches


def with_near(history: History, reach: Reach) -> Reach:
    """The same with those whom a leaf node's message reached without us, as it was published: its own user, too."""
    message = reach.message
    if reach.tenants.mapped(message.account, message.subject) == (message.subject,):
        return reach
    view = View(message.account, message.subject, is_across=False, is_sure=False)
    near = {
        sub.sid: (sub, view, message.subject)
        for sub in history.subscriptions
        if sub.client in message.near and sub.account == message.account and matches(sub.pattern, message.subject)
    }
    groups = {name: list(members) for name, members in reach.groups.items()}
    for sub, _, _ in near.values():
        if sub.queue and sub.sid not in reach.hits:
            groups.setdefault((view.account, sub.queue), []).append(sub)
    plain = [hit for hit in reach.plain if hit[0].sid not in near]
    plain += [hit for hit in near.values() if not hit[0].queue]
    return Reach(message, reach.tenants, reach.hits | near, plain, groups)


def without(reach: Reach, client: int) -> Reach:
    """The same reach without what one client has subscribed to."""
    groups = {name: [sub for sub in members if sub.client != client] for name, members in reach.groups.items()}
    return Reach(
        reach.message,
        reach.tenants,
        {sid: hit for sid, hit in reach.hits.items() if hit[0].client != client},
        [hit for hit in reach.plain if hit[0].client != client],
        {name: members for name, members in groups.items() if members},
    )


def views_of(history: History, tenants: Tenants, message: Message, answers: list[Message]) -> tuple[View, ...]:
    """The message in each account that it comes to; `answers`: all answers to the request that it answers."""
    if not message.subject.startswith("_R_"):
        return tenants.views(message.account, message.subject, message.chosen)
    request = history.messages[message.answers]
    inbox = history.inbox_of(request)
    is_sure = (
        (tenants.is_chunked or len([one for one in answers if one.subject.startswith("_R_")]) == 1)
        and is_in_time(history, request, message)
        and request.lost_at > message.acked_at
        and not request.is_orphaned
        and (inbox is None or inbox.left_at > message.acked_at)  # whoever kept the request forgets it with the asker
        and not message.was_on_broken_link  # whoever kept the request passed it on over that link
        and not request.is_outside  # Servers.check_asked() looks at those
    )
    return tenants.way_back(
        request.account, message.account, f"_INBOX.{request.client}.{request.number}", is_sure=is_sure
    )


def is_in_time(history: History, request: Message, answer: Message) -> bool:
    """Whether an answer came surely before the request was forgotten."""
    until_us = answer.acked_us if answer.acked_at != NEVER else 1 << 62
    return until_us - request.at_us <= history.tenants.threshold_s * 1e6


def check_deliveries(history: History, sub: Subscription, reaches: dict[int, Reach]) -> None:
    """Each subscription gets only what it asked for and may have, and only while it asked for it."""
    # A member of a queue group lingers until its siblings know that it has left; its client's PONG says so.
    until = min(sub.left_acked_at, sub.gone_at) if sub.queue else max(sub.left_at, sub.anew_until)
    assert len(sub.got) <= sub.most, f"{sub}: more than its max"
    for number, at in sub.got.items():
        reach = reaches.get(number)
        assert reach is not None and sub.sid in reach.hits, f"{sub}: {history.messages[number]} is not for it"
        message = reach.message
        _, view, subject = reach.hits[sub.sid]
        # (Else it may have come as another subject.)
        if view.is_sure and history.may_be_kept_out(sub, subject, message.at, at):
            rights = history.rights_of(sub, message.at, at)
            assert not all(is_kept_out(one, subject) for one in rights), f"{sub}: it may not have {message}"
        assert message.at <= until, f"{sub}: {message} was published after it had left"
        assert at <= sub.left_acked_at, f"{sub}: {message} came after the PONG of its end"


def check_order(sub: Subscription, messages: list[Message]) -> None:
    """Each publisher's messages in the order in which it published them; answers between accounts are excepted."""
    last: dict[int, int] = {}
    for number in sub.got:
        if messages[number].subject.startswith("_R_"):
            continue
        # A frame to another server that names a queue group, and was sent on, serves plain subscriptions there, too,
        # of which we had not heard.
        if sub.is_outside and messages[number].at <= sub.acked_at:
            continue
        client = messages[number].client
        assert last.get(client, -1) < number, f"{sub}: {number} of client {client} came behind {last[client]}"
        last[client] = number


def check_plain(history: History, reach: Reach, latest: dict[tuple[int, int], int]) -> None:
    """Every subscription that is there got it, no later than its publisher's PONG.

    So did one that ended later, if it got anything that was published behind it.
    """
    message = reach.message
    if not message.is_promised:
        return
    is_answer = message.subject.startswith("_R_")
    for sub, view, subject in reach.plain:
        if not (view.is_sure and sub.has_seen(message)):
            continue
        if sub.left_at != NEVER and latest.get((sub.sid, message.client), -1) < message.number:
            continue  # (who stays has not had its max)
        if is_answer and view.is_across and sub.left_at <= message.acked_at:
            continue  # it is published in the asker's account when it arrives on the asker's shard, behind others
        if sub.is_outside or view.account in message.unsent:
            continue  # Servers.settled() has looked at that; or its server did not know that anybody wants it there
        if history.may_be_kept_out(sub, subject, message.at, message.acked_at):
            continue
        assert message.number in sub.got, f"{sub} did not get {message}"
        assert sub.got[message.number] <= message.acked_at, f"{message} was acknowledged before {sub} got it"


def check_queue(history: History, reach: Reach, group: tuple[str, str], members: list[Subscription]) -> None:
    """One member gets it, if one was there when it was published: lost no more than on one server."""
    message = reach.message
    _, queue = group
    is_answer = message.subject.startswith("_R_")
    got = [(one, one.got[message.number]) for one in members if message.number in one.got]
    is_mapped = message.is_of_leaf and reach.tenants.mapped(message.account, message.subject) != (message.subject,)
    if is_mapped:
        # Its own server knew it by another subject, whose groups are others. Of those of the mapped one a member in its
        # cluster is as good as any, where it is at another server.
        elsewhere = [(one, at) for one, at in got if one.client not in message.near]
        assert len(elsewhere) <= 1 and len(got) <= 2, f"{message} came to {len(got)} members of {queue}: {got}"
        if got and not elsewhere:
            return
        got = elsewhere
        members = [one for one in members if one.client not in message.near]
    else:
        assert len(got) <= 1, f"{message} came to {len(got)} members of {queue}: {got}"
    if got:
        check_near_by(history, reach, got[0][0], members)
        check_choice(history, reach, *got[0], members)
        check_second_choice(history, reach, got[0][0], members, group)
    if got and got[0][1] <= message.acked_at:
        return
    if message.may_be_lost or message.is_lost_on_its_way or not message.is_promised:
        return
    if is_answer and message.was_on_broken_link:
        return
    if message.knows_no_origins and any(one.is_second for one in members):
        return  # it may have come for a member in the cluster that it is from, which is not sent it
    if message.is_outside and group not in message.named:
        return  # another server has chosen one of its members, or knew of none
    # What was detached for a member that ended while it moved comes to another when the move is over.
    late = [one.lost_until for one in members if one.lost_from != NEVER and not one.is_over_for(message)]
    comes_until = max([message.acked_at, *late])
    if any(message.at <= one.taken_until and one.gone_at <= comes_until for one in members):
        return  # it was lost with the connection of the member that was chosen
    if any(one.is_lost_on(message) for one in members):
        return
    if any(one.most != NEVER for one in members) and not any(one.must_have(message) for one in members):
        return  # the chosen member has reached its max, and others left meanwhile
    if any(one.lost_from <= message.acked_at and message.at <= one.taken_until for one in members):
        return  # it was detached at the new shard of a member that moved, and lost with the shard or the link
    counted = members if got else members + counted_elsewhere(history, reach, queue, members)
    if any(may_have_died_with(one, message) for one in counted):
        return  # it was on its way to a shard that was believed to have a member, and died with it
    kept_out = {
        one.sid for one in members if history.may_be_kept_out(one, reach.hits[one.sid][2], message.at, message.acked_at)
    }
    if (
        message.is_outside
        and any(
            one.left_at <= message.acked_at
            and not one.is_over_for(message)
            and (
                one.is_outside
                or one.gone_at <= message.acked_at
                or one.most != NEVER
                or message.is_late
                or (message.is_of_leaf and group[0] != message.account)  # (its server knew of no group there, …
                or is_mapped  # … nor of this one by that subject: it named none, for which somebody would linger)
            )
            for one in members
        )
        and not any(
            one.must_have(message) and one.sid not in kept_out and not (one.client in message.near and one.is_second)
            for one in members
        )
    ):
        return  # our broker got it later, when nobody was left, or its server did not know
    if is_excused_by_another_server(reach, group, members, got, kept_out):
        return
    if not got and is_excused_by_a_stale_choice(message, members, counted, kept_out):
        return
    here = [one for one in members if one.client not in message.near]
    is_in_vain = message.is_of_leaf and bool(here) and all(one.sid in kept_out for one in here)
    for one in members:
        _, view, _ = reach.hits[one.sid]
        if not view.is_sure or one.sid in kept_out or one.most != NEVER:
            continue
        if one.client in message.near and is_in_vain:
            continue  # a hub has chosen us, for members of ours that may not have it
        if one.client in message.near and one.is_second:
            continue  # its server thought of members here, who had left; a leaf node gets nothing back
        if is_answer and view.is_across and one.left_at <= message.acked_at:
            continue  # an answer is published in the asker's account when it arrives on the asker's shard
        if one.has_seen(message):
            assert got, f"no member of {queue} got {message}, and {one} was there"
            assert got[0][1] <= comes_until, f"{message} was acknowledged before {got[0][0]} got it"


def check_near_by(history: History, reach: Reach, taker: Subscription, members: list[Subscription]) -> None:
    """Where members on the publisher's shard are preferred, one of them takes it if one was there."""
    message = reach.message
    if not message.near_by or taker.sid in message.near_by | message.moving or message.crosses_reload:
        return
    if any(one.sid in message.moving and one.left_at != NEVER for one in members):
        return  # one that moved may have been chosen, and where it went it left: there others are as near as any
    for one in members:
        _, view, subject = reach.hits[one.sid]
        if one.sid in message.near_by and view.is_sure and one.must_have(message):
            is_kept_out = history.may_be_kept_out(one, subject, message.at, message.at)
            assert is_kept_out, f"{message} came to {taker}, and {one} was on its publisher's shard"


def check_choice(history: History, reach: Reach, taker: Subscription, at: int, members: list[Subscription]) -> None:
    """Who has unsubscribed takes a message only where no member is left that may have it.

    A known limit: nobody knows from which account a message came that was detached for a member whose move failed. So
    members of third accounts, by their stream imports, do not get it.
    """
    message = reach.message
    if max(taker.left_at, taker.anew_until) >= at or taker.is_outside or taker.most != NEVER or message.crosses_reload:
        return
    was_detached = any(one.lost_from <= at for one in members)
    for one in members:
        _, view, subject = reach.hits[one.sid]
        if was_detached and one.account != view.account:
            continue
        is_there = one.has_seen(message) and one.left_at == NEVER and one.most == NEVER and not one.is_outside
        if is_there and not view.is_across and not history.may_be_kept_out(one, subject, message.at, at):
            raise AssertionError(f"{taker} took {message} after it had left, and {one} was there")


def check_second_choice(
    history: History, reach: Reach, taker: Subscription, members: list[Subscription], group: tuple[str, str]
) -> None:
    """A member at a leaf node takes only what no other may, or what its own server or cluster gave it.

    Known limits: what is chosen while a link is missing, what was on its way to a member of the cluster that has just
    left, and what would go on to a server that has it already for its plain subscriptions, may end at a leaf node.
    """
    message = reach.message
    if not taker.is_second or message.is_lost_outside or message.may_be_lost or message.is_past_break:
        return
    if message.is_outside and group not in message.named:
        return
    plain = {sub.client for sub, _, _ in reach.plain}
    first = [one for one in members if not one.is_second]
    for one in first:
        if one.is_outside and (one.is_cut_off(message) or one.left_at <= message.acked_at or one.client in plain):
            return
    for one in first:
        _, view, subject = reach.hits[one.sid]
        if not view.is_sure or not one.must_have(message):
            continue
        if one.is_outside and message.is_outside:  # that other server would have sent it there itself
            continue
        if not history.may_be_kept_out(one, subject, message.at, message.acked_at):
            raise AssertionError(f"{message} came to {taker} at a leaf node, and {one} was there")


def is_excused_by_another_server(
    reach: Reach,
    group: tuple[str, str],
    members: list[Subscription],
    got: list[tuple[Subscription, int]],
    kept_out: set[int],
) -> bool:
    """Whether it went to a member of another server, or was lost on the way to one that may have been chosen.

    No PONG waits for what goes there, and what comes where a member's client has just gone is lost. A known limit: a
    frame to a nats-server serves plain subscriptions there, too. So what finds no member any more where it was sent is
    not sent on to one that has some: these would get it twice. Nor, one time of 16, what came from outside to members
    that may not have it; nor what names more groups at other servers than one frame to the gateway, but for the last.
    """
    message = reach.message
    outside = [one for one in members if one.is_outside]
    if not outside:
        return False
    if got and got[0][0].is_outside:
        return True
    if message.is_lost_outside or any(one.left_at != NEVER and not one.is_over_for(message) for one in outside):
        return True
    plain = {sub.client for sub, _, _ in reach.plain if sub.is_outside and not sub.is_at_gnatswarm}
    may_be_dropped = message.is_outside and len(kept_out) > 0
    if not all(
        one.client in plain
        or (may_be_dropped and not one.is_at_gnatswarm)
        or (group in message.sent_on and one.client in message.near)  # where it has been
        for one in outside
        if one.has_seen(message) and one.sid not in kept_out
    ):
        return False
    inside = [one for one in members if not one.is_outside]
    able = [one for one in inside if one.sid not in kept_out]
    is_stale = any(
        one.left_at <= message.acked_at
        and not one.is_over_for(message)
        and (one.gone_at <= message.acked_at or one.most != NEVER or message.is_late)
        for one in able
    )
    there = [name for (_, name), subs in reach.groups.items() if any(one.is_outside for one in subs)]
    is_in_frames = sum(len(name) for name in there) > MOST_NAME_BYTES
    return (is_stale or len(kept_out) > 0 or group in message.sent_on or is_in_frames) and not any(
        one.has_seen(message) and one.left_at == NEVER for one in able
    )


def counted_elsewhere(history: History, reach: Reach, queue: str, members: list[Subscription]) -> list[Subscription]:
    """Who counts as a member for siblings, but may not have it: members of a third account, by its stream import."""
    views = {
        view._replace(is_across=False) for _, view, _ in (reach.hits[one.sid] for one in members) if view.is_across
    }
    own = {one.sid for one in members}
    return [
        one
        for one in history.subscriptions
        if one.queue == queue and one.sid not in own
        for view in views
        if (subject := reach.tenants.heard(view, one.account)) and matches(one.pattern, subject)
    ]


def is_excused_by_a_stale_choice(
    message: Message, members: list[Subscription], counted: list[Subscription], kept_out: set[int]
) -> bool:
    """Whether it may have gone where nobody could take it (any more), while everybody else unsubscribed.

    It was the shard of a connection that had just closed, another server's too, or of a member that may not have the
    message: by its permissions, or as one of a third account (`counted`, besides `members`). A known limit: who
    unsubscribes lingers until its siblings know. What one of them had sent to a third shard by then, where nobody takes
    it, goes back to the publisher's shard, and comes to nobody if nobody takes it there either. (One server would give
    it to a member.)
    """
    may_have = {one.sid for one in members} - kept_out
    stale = [
        one
        for one in counted
        if (
            one.is_cut_off(message)
            or (one.taken_until < message.at if one.sid in may_have else one.at <= message.acked_at)
        )
        and not one.is_over_for(message)
    ]
    takers = [one for one in members if one.has_seen(message) and one.sid not in kept_out]
    if any(one.client == message.client for one in takers):
        return False
    return bool(stale) and all(one.left_at <= message.acked_at for one in takers)


def check_no_responders(history: History, reach: Reach) -> None:
    """A request is answered or told 503: 503 where nobody got it, before its PONG, and none where somebody did."""
    message = reach.message
    if message.is_denied or message.is_only or not message.hears_nobody:
        assert message.nobody_at == NEVER, f"{message}: it was not published, or its publisher did not want to know"
        return
    subs = [sub for sub, _, _ in reach.hits.values()]
    for sub in subs:
        if message.number in sub.got or (sub.must_have(message) and not is_kept_out_of(history, reach, sub)):
            assert message.nobody_at == NEVER, f"{message}: told that nobody responds, and {sub} was there"
    if message.crosses_reload or not message.is_promised or message.is_lost_on_its_way:
        return
    if any(message.number in sub.got or may_have_lost(sub, message) for sub in subs):
        return
    if any(may_have_died_with(sub, message) for sub in only_counted(history, reach)):
        return  # a shard that dies says nothing of what was on its way to it, whoever was counted on there
    inbox = history.inbox_of(message)
    if inbox is not None and inbox.left_at <= message.acked_at:
        return  # (its client does not hear there any more: it has sent CONNECT again, as somebody of another account)
    if message.acked_at != NEVER:
        assert message.nobody_at <= message.acked_at, f"{message}: nobody got it, and its publisher was not told"
    assert message.nobody_at != NEVER, f"{message}: nobody got it, and its publisher was never told"


def is_kept_out_of(history: History, reach: Reach, sub: Subscription) -> bool:
    """Whether permissions may exclude the subject, or it is not sure that the message came to the account."""
    _, view, subject = reach.hits[sub.sid]
    message = reach.message
    return (
        not view.is_sure
        or message.crosses_reload
        or history.may_be_kept_out(sub, subject, message.at, message.acked_at)
    )


def may_have_lost(sub: Subscription, message: Message) -> bool:
    """Whether it may have been sent the message, which was lost then: with its connection, its shard or its server."""
    if sub.is_over_for(message):
        return False
    if sub.is_outside:
        return True
    if (message.at <= sub.taken_until and sub.gone_at <= message.acked_at) or sub.is_lost_on(message):
        return True
    if sub.lost_from <= message.acked_at and message.at <= min(sub.lost_until, sub.deaf_until):
        return True  # it was kept for a client that had ended while it moved, where it was expected
    return may_have_died_with(sub, message)


def may_have_died_with(sub: Subscription, message: Message) -> bool:
    """Whether its shard died while the message may have been on its way there."""
    return sub.shard_died_at <= message.acked_at and message.at <= sub.death_known_at and not sub.is_over_for(message)


def only_counted(history: History, reach: Reach) -> list[Subscription]:
    """Who counts for siblings as wanting it, but gets nothing: it imports a stream to which others' requests come."""
    views = reach.tenants.views(reach.message.account, reach.message.subject, reach.message.chosen)
    across = [view._replace(is_across=False) for view in views if view.is_across]
    return [
        sub
        for sub in history.subscriptions
        for view in across
        if sub.sid not in reach.hits
        and (subject := reach.tenants.heard(view, sub.account))
        and matches(sub.pattern, subject)
    ]


def check_answers(history: History, request: Message, answers: list[Message]) -> None:
    """Only the first answer that arrives from another account comes to the asker."""
    inbox = history.inbox_of(request)
    assert inbox is not None
    got = [one for one in answers if one.number in inbox.got]
    if request.is_outside:  # Servers.check_asked() has looked at the rest
        assert len(got) <= 1 or history.tenants.is_chunked, f"{request} was answered {len(got)} times"
        return
    assert len(got) <= 1 or history.tenants.is_chunked, f"{request} was answered {len(got)} times"
    assert not got or request.nobody_at == NEVER, f"{request} was answered, and told that nobody responds"
    if got or inbox.left_at != NEVER or request.lost_at != NEVER:
        return
    if not history.tenants.is_chunked and any(one.was_on_broken_link for one in answers):
        return  # it may have been the first one, and the only one that was passed on
    for one in answers:
        if one.acked_at != NEVER and not (one.is_denied or one.was_on_broken_link or one.crosses_reload):
            assert not is_in_time(history, request, one), f"{request} was not told its answer {one}"
