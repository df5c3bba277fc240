"""Who would get a message now: asked of shards, without a look at all users for each subscription."""

from __future__ import annotations

from typing import Any

import pytest

from gnatswarm.broker.options import Options, Permissions, User
from gnatswarm.router.config import journey
from gnatswarm.router.monitoring import listeners
from gnatswarm.router.monitoring.shard_questions import ShardQuestions
from gnatswarm.shards.boundary import rows

USERS, SUBSCRIPTIONS = 1000, 300


class Answering(ShardQuestions):
    """One shard, with a client of the user who is asked for and its subscriptions."""

    def __init__(self, subs: tuple[rows.SubscriptionRow, ...]) -> None:
        super().__init__(lambda shard, message: False)
        self.asked: list[str] = []
        self._subs = subs

    async def ask(self, shard: int, query: rows.Query, kind: Any) -> list[Any]:
        if not isinstance(query, rows.ConnectionsQuery) or not query.user:
            return []
        self.asked.append(query.user)
        row = rows.ConnectionRow(
            7, "", *(0, 0, 0, 0), "", *(0, 0, 0, 0, 0, 0, 0), "", "", "", query.user, subs=self._subs
        )
        return [rows.ConnectionsPart(1, [row])]


async def test_a_denied_users_many_subscriptions_are_looked_at_and_not_all_users_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 users, and ten who are denied it with 2,000 subscriptions each, held up the router for seconds."""
    names = evaluations = 0

    def shown(user: User) -> str:
        nonlocal names
        names += 1
        return user.name

    def denial(rules: tuple[str, ...], subject: bytes, queue: str = "") -> str:
        nonlocal evaluations
        evaluations += 1
        return of_rules(rules, subject, queue)

    of_rules = journey._denial
    monkeypatch.setattr(User, "shown", property(shown))
    monkeypatch.setattr(journey, "_denial", denial)
    denies = Permissions(subscribe_deny=("a.b", "c q"))
    users = tuple(User(f"u{number}", "x", permissions=denies if number > 996 else None) for number in range(USERS))
    others = tuple(rows.SubscriptionRow(f"x.{number}", "", str(number), 0, 0, 7) for number in range(SUBSCRIPTIONS))
    met = tuple(rows.SubscriptionRow(subject, "", subject, 0, 0, 7) for subject in ("a.*", ">"))
    questions = Answering((*others, *met))
    found = await listeners.live_journey(Options(users=users), questions, [0], "a.b", "u1")
    (arrival,) = found.arrivals
    kept_out = [(one.cid, one.user, one.subject, one.kept_out_by) for one in arrival.listeners]
    assert kept_out == [(7, user, subject, "a.b") for user in ("u997", "u998", "u999") for subject in ("a.*", ">")]
    assert questions.asked == ["u997", "u998", "u999"]
    assert names < 5 * USERS and evaluations < SUBSCRIPTIONS
