"""Connection counts of accounts with a connection limit, over all shards; kept on the shared page.

Only accounts with a limit are counted. Called when a client logs in, when it moves, when it is closed, and at a reload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gnatswarm.broker.errors import MaximumAccountConnectionsExceeded
from gnatswarm.shards.boundary import counted_names

if TYPE_CHECKING:
    from gnatswarm.shards.boundary.page import Page


class CountedClient(Protocol):
    """A client as the census sees it."""

    account: str
    counted_at: int


class AccountCensus:
    """Counts this shard's clients."""

    def __init__(self, page: Page, shard: int) -> None:
        self._page = page
        self._shard = shard

    def move(self, client: CountedClient, account: str, most: int) -> None:
        """Count the client for this account, which may have `most` connections (0: no limit).

        MaximumAccountConnectionsExceeded when the account is full; the client is then counted as before. Raised too
        while 16,384 other accounts occupy the page: a connection that cannot be counted must not stay open.
        """
        place = self._page.account_place(counted_names.of_account(account)) if most else -1
        if place == client.counted_at and (place >= 0 or not most):
            return
        if most and (place < 0 or not self._page.try_add_to_account(self._shard, place, most)):
            raise MaximumAccountConnectionsExceeded
        self.leave(client)
        client.counted_at = place

    def stay(self, client: CountedClient, most: int) -> None:
        """Count the client after a reload, also beyond the limit: see has_surplus()."""
        if bool(most) == (client.counted_at >= 0):
            return
        self.leave(client)
        place = self._page.account_place(counted_names.of_account(client.account)) if most else -1
        if place >= 0:
            self._page.try_add_to_account(self._shard, place, 0)
            client.counted_at = place

    def has_surplus(self, client: CountedClient, most: int) -> bool:
        """Whether the client's account, which may have `most` connections (0: no limit), has more of them."""
        return bool(most) and client.counted_at >= 0 and self._page.account_connections(client.counted_at) > most

    def pass_on(self, client: CountedClient) -> None:
        """The client is on its way to another shard: the account counts it as before; behind Page.pass_connection()."""
        if client.counted_at >= 0:
            self._page.pass_to_account(self._shard, client.counted_at)
            client.counted_at = -1

    def take(self, client: CountedClient) -> None:
        """The client, counted by the shard that it comes from, is here; before Page.take_connection()."""
        client.counted_at = self._page.account_place(counted_names.of_account(client.account))
        self._page.take_to_account(self._shard, client.counted_at)

    def leave(self, client: CountedClient) -> None:
        """Stop counting the client."""
        if client.counted_at >= 0:
            self._page.remove_from_account(self._shard, client.counted_at)
            client.counted_at = -1
