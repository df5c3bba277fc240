"""Who would get a message at the moment, and what was published, by asking every shard; for operators and tests.

The rules are in `router.config.journey`; this asks for subscriptions and for the users of their connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.subject import matches
from gnatswarm.router.config.arrivals import Arrival, Journey, Listener
from gnatswarm.router.config.journey import journey, kept_out_by
from gnatswarm.shards.boundary import rows

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.monitoring.shard_questions import ShardQuestions

# Of one arrival on one shard; more would be a page that nobody reads.
MOST_LISTENERS = 200
# Subjects of published(); all of them are in one line on the operators' socket.
MOST_PUBLISHED = 1000
# Of one account; each is one more question to each shard.
MOST_DENIED_USERS = 10


async def live_journey(
    options: Options, questions: ShardQuestions, shards: Iterable[int], subject: str, user: str
) -> Journey:
    """The journey of a message in a running broker. ValueError as for `journey`; BadQuery if a shard is silent."""
    found = journey(options, subject, user)
    numbers = list(shards)
    arrivals = [
        msgspec.structs.replace(arrival, listeners=tuple(await _listeners(options, questions, numbers, arrival)))
        for arrival in found.arrivals
    ]
    return msgspec.structs.replace(found, arrivals=tuple(arrivals), is_live=True)


async def published(questions: ShardQuestions, shards: Iterable[int]) -> dict[str, int]:
    """Messages by subject since each subject's answer was cached, the most frequent first; without inboxes."""
    found: dict[str, int] = {}
    for shard in shards:
        for part in await questions.ask(shard, rows.SubjectsQuery(MOST_PUBLISHED), rows.SubjectsPart):
            for row in part.rows:
                if row.msgs and not row.folded:
                    found[row.subject] = found.get(row.subject, 0) + row.msgs
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:MOST_PUBLISHED])


async def _listeners(
    options: Options, questions: ShardQuestions, shards: Iterable[int], arrival: Arrival
) -> list[Listener]:
    found = []
    for shard in shards:
        asked = rows.SubscriptionsQuery(0, MOST_LISTENERS, arrival.subject, arrival.account)
        parts = await questions.ask(shard, asked, rows.SubscriptionsPart)
        listed = [row for part in parts for row in part.rows]
        users: dict[int, tuple[str, str]] = {}  # by cid: account and user
        if listed:
            cids = sorted({row.cid for row in listed})
            question = rows.ConnectionsQuery(cids=cids, most=len(cids))
            answer = await questions.ask(shard, question, rows.ConnectionsPart)
            users = {one.cid: (one.account, one.user) for part in answer for one in part.rows}
        for row in listed:
            account, user = users.get(row.cid, (arrival.account, ""))
            if account == arrival.account:  # others are here by an import, and arrive under its subject
                found.append(Listener(row.cid, user, shard, row.subject, row.queue))
        found += await _kept_out(options, questions, shard, arrival)
    return found


async def _kept_out(options: Options, questions: ShardQuestions, shard: int, arrival: Arrival) -> list[Listener]:
    """Subscriptions that match, of users that a deny rule keeps the message from: the engine leaves them out."""
    found = []
    subject = arrival.subject.encode("utf-8", "surrogateescape")
    denied = [user for user in options.users if user.account == arrival.account and kept_out_by(user, subject)]
    for user in denied[:MOST_DENIED_USERS]:
        name = user.shown
        asked = rows.ConnectionsQuery(user=name, account=arrival.account, most=MOST_LISTENERS, with_subs=True)
        for part in await questions.ask(shard, asked, rows.ConnectionsPart):
            for one in part.rows:
                for row in one.subs:
                    if not matches(row.subject.encode("utf-8", "surrogateescape"), subject):
                        continue
                    rule = kept_out_by(user, subject, row.queue)
                    if rule:
                        found.append(Listener(one.cid, name, shard, row.subject, row.queue, rule))
    return found
