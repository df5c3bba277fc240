"""What the router says in the system account by itself."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnatswarm.broker.options import Account
from gnatswarm.router.monitoring import system_account
from gnatswarm.router.monitoring.system_account import SystemAccount
from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary.control import AccountChanged, SystemEvent
from tests.support.turns import until

CONNECTIONS = "$SYS.ACCOUNT.A.SERVER.CONNS"


class Answers:
    """The documents: each is another one."""

    def __init__(self) -> None:
        self.asked = 0
        self.counts = {"A": 1}  # accounts that have connections

    async def connections(
        self, accounts: Collection[str] = (), *, has_lost: bool = False
    ) -> AsyncIterator[tuple[str, int, str, bytes]]:
        self.asked += 1
        for name in sorted(accounts or (name for name, count in self.counts.items() if count or has_lost)):
            yield name, self.counts.get(name, 0), f"$SYS.ACCOUNT.{name}.SERVER.CONNS", b"%d" % self.asked

    async def statsz(self) -> bytes:
        return b"{}"


def account_of(
    options: SimpleNamespace, *, took_over: bool = False
) -> tuple[SystemAccount, list[tuple[int, SystemEvent]]]:
    """It, and what it says to the shards."""
    shard = SimpleNamespace(number=3, state=SimpleNamespace(phase=Phase.READY, is_resuming=False))
    options.__dict__.setdefault("account_names", {"A"})
    view = SimpleNamespace(options=options, server_id="N", shards=[shard])
    said: list[tuple[int, SystemEvent]] = []
    channels = SimpleNamespace(tell=lambda number, event: said.append((number, event)))
    account = SystemAccount(cast(Any, view), cast(Any, channels), cast(Any, None), took_over=took_over)
    account._answers = cast(Any, Answers())
    return account, said


async def test_the_numbers_of_connections_are_said_again_and_again_while_somebody_may_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_account, "CONNECTIONS_EVERY_S", 0.001)
    options = SimpleNamespace(has_system_users=True)
    account, said = account_of(options)

    def heard() -> list[bytes]:
        return [event.payload for number, event in said if number == 3 and event.subject == CONNECTIONS]

    account.configure()
    await until(lambda: len(heard()) >= 3)
    assert heard()[:3] == [b"1", b"2", b"3"]
    options.has_system_users = False
    await until(lambda: account._next_connections is None)
    assert heard() == [b"%d" % (number + 1) for number in range(len(heard()))]
    options.has_system_users = True
    account._next_statsz = None
    account.configure()
    before = len(heard())
    await until(lambda: len(heard()) > before)
    options.has_system_users = False


async def test_many_accounts_that_change_at_once_are_said_after_one_look_at_the_shards() -> None:
    account, said = account_of(SimpleNamespace(has_system_users=True))
    names = [f"A{number:03}" for number in range(300)]
    for shard in (0, 1):
        for name in names:
            account.on_message(shard, AccountChanged(name))
    await until(lambda: not account._tasks)
    assert [event.subject for _, event in said] == [f"$SYS.ACCOUNT.{name}.SERVER.CONNS" for name in names]
    assert {event.payload for _, event in said} == {b"1"}
    account.on_message(0, AccountChanged("A007"))
    await until(lambda: not account._tasks)
    assert said[-1][1] == SystemEvent("$SYS.ACCOUNT.A007.SERVER.CONNS", b"2")


async def test_accounts_that_a_shard_took_connections_of_with_it_are_said_and_no_others() -> None:
    account, said = account_of(SimpleNamespace(has_system_users=True))
    answers = cast(Answers, account.answers)
    answers.counts = {"A": 3, "B": 2, "C": 1}
    for name in ("A", "B", "C", "empty"):
        account.on_message(0, AccountChanged(name))
    await until(lambda: not account._tasks)
    said.clear()
    answers.counts = {"A": 1, "B": 2}
    account.on_shard_gone()
    account.on_message(0, AccountChanged("B"))
    await until(lambda: not account._tasks)
    assert [event.subject for _, event in said] == [f"$SYS.ACCOUNT.{name}.SERVER.CONNS" for name in "ABC"]
    said.clear()
    account.on_shard_gone()
    await until(lambda: not account._tasks)
    assert not said


async def test_what_was_said_of_accounts_that_a_reload_removes_is_forgotten() -> None:
    options = SimpleNamespace(has_system_users=False, account_names={"A", "B"})
    account, _said = account_of(options)
    for name in ("A", "B"):
        account.on_message(0, AccountChanged(name))
    await until(lambda: not account._tasks)
    assert set(account._said) == {"A", "B"}
    options.account_names = {"B"}
    account.configure()
    assert set(account._said) == {"B"}


async def test_what_the_look_at_all_accounts_has_said_is_put_right_when_a_shard_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_account, "CONNECTIONS_EVERY_S", 0.001)
    options = SimpleNamespace(has_system_users=True)
    account, said = account_of(options)
    answers = cast(Answers, account.answers)
    account.configure()
    await until(lambda: account._said)
    answers.counts = {}
    await until(lambda: answers.asked > 5)
    said.clear()
    account.on_shard_gone()
    await until(lambda: said)
    assert [event.subject for _, event in said] == [CONNECTIONS]
    options.has_system_users = False


async def test_a_router_that_took_over_says_all_when_a_shard_has_gone_until_it_has_said_all_by_itself() -> None:
    accounts = tuple(Account(name) for name in "AB")
    options = SimpleNamespace(has_system_users=True, accounts=accounts, system_account="$SYS")
    account, said = account_of(options, took_over=True)
    answers = cast(Answers, account.answers)
    answers.counts = {"A": 3}

    async def heard() -> list[str]:
        await until(lambda: not account._tasks)
        found = [event.subject.split(".")[2] for _, event in said]
        said.clear()
        return found

    account.on_shard_gone()
    assert await heard() == ["$G", "$SYS", "A", "B"]
    account.on_shard_gone()
    assert await heard() == [], "nothing is new"
    answers.counts = {"A": 3, "B": 1}
    account._on_connections_due()
    assert await heard() == ["A", "B"]
    answers.counts = {"B": 1}
    options.accounts += (Account("C"),)
    account.on_shard_gone()
    assert await heard() == ["A"]
    options.has_system_users = False


async def test_a_router_that_took_over_says_at_once_who_has_connections_and_who_has_none_any_more() -> None:
    """While there was no router nobody said so, and accounts without connections are said at changes alone."""
    options = SimpleNamespace(has_system_users=True, accounts=(), system_account="$SYS")
    account, said = account_of(options, took_over=True)
    answers = cast(Answers, account.answers)
    answers.counts = {"A": 3, "had some": 0}
    shard = cast(Any, account._view.shards[0])
    shard.state = SimpleNamespace(phase=Phase.READY, is_resuming=True)
    account.configure()
    account.on_message(3, AccountChanged("A"))
    turns = itertools.count()
    await until(lambda: next(turns) > 5)
    assert answers.asked == 0, "a shard that has not said where it stands is not asked, and may have some"
    shard.state = SimpleNamespace(phase=Phase.READY, is_resuming=False)
    await until(lambda: not account._tasks)
    assert {event.subject.split(".")[2] for _, event in said} == {"A", "had some"}
    said.clear()
    account.on_shard_gone()
    await until(lambda: not account._tasks)
    assert not said
    options.has_system_users = False
    account._on_statsz_due()


async def test_where_nobody_may_hear_it_no_shard_is_asked_when_another_has_gone() -> None:
    options = SimpleNamespace(has_system_users=True)
    account, _said = account_of(options)
    account.on_shard_gone()
    assert not account._tasks
    account.on_message(0, AccountChanged("A"))
    await until(lambda: not account._tasks)
    options.has_system_users = False
    account.on_shard_gone()
    assert not account._tasks
