"""How many clients there may be: the real shared page and census, as shards and the router use them.

The broker and one account have a limit. Each change is made where the real code makes it: when a client comes, enters
its account, is handed over, is expected and arrives, goes, and when the router has heard that a shard is dead. Not
here: who is closed (world), reloads of limits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnatswarm.broker.errors import MaximumAccountConnectionsExceeded
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.clients.account_census import AccountCensus
from tests.simulation.schedule import MOST_SHARDS_HERE

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class Counted:
    """A client, as a census sees it."""

    account: str
    counted_at: int = -1


class Crowd:
    """All connections of one broker."""

    def __init__(self, most: int, account: str, most_of_account: int) -> None:
        self._page = Page.create()
        self.most = most
        self.account = account
        self.most_of_account = most_of_account
        self._place = self._page.account_place(account.encode())
        self._census: dict[int, AccountCensus] = {}
        self._clients: dict[int, Counted] = {}  # by number

    def _census_of(self, shard: int) -> AccountCensus:
        return self._census.setdefault(shard, AccountCensus(self._page, shard))

    def _most(self, account: str) -> int:
        return self.most_of_account if account == self.account else 0

    def come(self, client: int, account: str, shard: int) -> str:
        """What it is refused for; "": it is in."""
        if not self._page.try_add_connection(shard, self.most):
            return "broker"
        counted = Counted(account)
        try:
            self._census_of(shard).move(counted, account, self._most(account))
        except MaximumAccountConnectionsExceeded:
            self._page.remove_connection(shard)
            return "account"
        self._clients[client] = counted
        return ""

    def may_come(self, accounts: Iterable[str], account: str, counted_still: Iterable[str]) -> set[str]:
        """What that may be, from who is there; of the others any number may still be counted."""
        there, lost = list(accounts), list(counted_still)
        of_account = lost.count(self.account)
        return {
            "broker"
            if len(there) + mine + others >= self.most
            else "account"
            if account == self.account and there.count(account) + mine >= self.most_of_account
            else ""
            for mine in range(of_account + 1)
            for others in range(len(lost) - of_account + 1)
        }

    def go(self, client: int, shard: int) -> None:
        """Its shard has closed it."""
        self._page.remove_connection(shard)
        self._census_of(shard).leave(self._clients[client])

    def expect(self, shard: int) -> None:
        """It is announced to its new shard."""
        self._page.expect_connection(shard)

    def pass_on(self, client: int, shard: int) -> None:
        """Its old shard has handed it over."""
        self._page.pass_connection(shard)
        self._census_of(shard).pass_on(self._clients[client])

    def take(self, client: int, shard: int) -> None:
        """It has arrived."""
        one = self._clients[client]
        if one.account == self.account:
            self._census_of(shard).take(one)
        self._page.take_connection(shard)
        self._census_of(shard).stay(one, self._most(one.account))

    def expect_no_more(self, shard: int) -> None:
        """It does not come."""
        self._page.expect_no_more(shard)

    def doubt(self) -> None:
        """It may have been lost on its way."""
        self._page.doubt_connections()

    def forget(self, shard: int) -> None:
        """The router has heard that this shard is dead."""
        self._page.forget_connections(shard)

    def settle(self) -> None:
        """The router looks from time to time."""
        self._page.settle_connections()

    def check(self, clients: Iterable[tuple[int, str]]) -> None:
        """Everything has arrived, and the router has looked: all are counted once, where they are.

        `clients`: the shard and the account of each.
        """
        shards: Counter[int] = Counter()
        there: list[str] = []
        for shard, account in clients:
            shards[shard] += 1
            there.append(account)
        for shard in range(MOST_SHARDS_HERE):
            counted = self._page.snapshot(shard)["connections"]
            assert counted == shards[shard], f"{counted} connections of shard {shard}, not {shards[shard]}"
        assert self._page.connections == len(there), f"{self._page.connections} connections, not {len(there)}"
        counted = self._page.account_connections(self._place)
        assert counted == there.count(self.account), f"{counted} connections of {self.account}, not {there}"

    def close(self) -> None:
        self._page.close()
