"""How many connections each account with a limit has, on all shards together; counted on the shared page.

Only accounts that have a limit are counted. Called when a client logs in, when it goes, and at a reload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.errors import MaximumAccountConnectionsExceeded

if TYPE_CHECKING:
    from shards.page import Page


class Counted(Protocol):
    """Who is counted."""

    account: str
    counted_at: int


class AccountCensus:
    """This shard's part of it."""

    def __init__(self, page: Page, shard: int) -> None:
        self._page = page
        self._shard = shard

    def move(self, client: Counted, account: str, most: int) -> None:
        """The client becomes one of the account, which may have `most` (0: any number).

        MaximumAccountConnectionsExceeded: it has; then the client is what it was. The same where a thousand other
        accounts have had a limit: one that cannot be counted must not be open.
        """
        place = self._page.account_place(_raw(account)) if most else -1
        if place == client.counted_at and (place >= 0 or not most):
            return
        if most and (place < 0 or not self._page.try_add_to_account(self._shard, place, most)):
            raise MaximumAccountConnectionsExceeded
        self.leave(client)
        client.counted_at = place

    def stay(self, client: Counted, most: int) -> None:
        """After a reload: nobody has to go because there is a lower limit now."""
        if bool(most) == (client.counted_at >= 0):
            return
        self.leave(client)
        place = self._page.account_place(_raw(client.account)) if most else -1
        if place >= 0:
            self._page.try_add_to_account(self._shard, place, 0)
            client.counted_at = place

    def leave(self, client: Counted) -> None:
        """It is none of its account any more."""
        if client.counted_at >= 0:
            self._page.remove_from_account(self._shard, client.counted_at)
            client.counted_at = -1


def _raw(account: str) -> bytes:
    return account.encode("utf-8", "surrogateescape")
