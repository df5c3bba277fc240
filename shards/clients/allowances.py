"""What the clients of each user and account may publish per second (`publish_limits`), counted on the shared page.

One Allowance for all clients of a user in an account. Clients that wait for it are resumed by a timer each; the more
wait, the rarer. Called by the sessions of one shard.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from gnatswarm.broker.allowance import Allowance
from gnatswarm.shards.boundary import counted_names

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options, PublishLimits
    from gnatswarm.shards.boundary.page import Page

# A client that waits is looked at this often at most; so many of one user or account that wait make it rarer.
LEAST_WAIT_S = 0.005
WAITING_PER_STEP = 16


class Allowances:
    """Those under one configuration. `before`: those of the last one, of which all stay whose limits are the same."""

    def __init__(self, options: Options, page: Page, before: Allowances | None = None) -> None:
        self._page = page
        self._users = {user.shown: user.publish_limits for user in options.users if user.publish_limits is not None}
        self._accounts = {one.name: one.publish_limits for one in options.accounts if one.publish_limits is not None}
        self._made: dict[tuple[str, str], Allowance | None] = {}
        self._before = {} if before is None else {made.key: made for made in before._made.values() if made is not None}
        self._waiting: Counter[Hashable] = Counter() if before is None else before._waiting

    def of(self, user: str, account: str) -> Allowance | None:
        """The allowance of a user's clients; None: they may publish as much as they want to."""
        if not self._users and not self._accounts:
            return None
        key = (user if user in self._users else "", account)
        if key not in self._made:
            parts: list[tuple[bytes, PublishLimits]] = []
            if (limits := self._users.get(user)) is not None:
                parts.append((counted_names.of_publishing_user(user, limits), limits))
            if (limits := self._accounts.get(account)) is not None:
                parts.append((counted_names.of_publishing_account(account, limits), limits))
            self._made[key] = self._before.get(tuple(parts)) or self._new(parts)
        return self._made[key]

    def _new(self, parts: list[tuple[bytes, PublishLimits]]) -> Allowance | None:
        buckets: list[tuple[int, float, float, bool]] = []
        stalls = []
        for name, limits in parts:
            of_messages, of_bytes = self._page.publisher_words(name)
            if limits.messages:
                buckets.append((of_messages, limits.messages, limits.burst_s, False))
            if limits.bytes:
                buckets.append((of_bytes, limits.bytes, limits.burst_s, True))
            if limits.stall_s:
                stalls.append(limits.stall_s)
        if not buckets:
            return None
        return Allowance(buckets, self._page, stall_s=min(stalls, default=0.0), key=tuple(parts))

    def wait(self, key: Hashable, wait_us: int, again: Callable[[], None]) -> Callable[[], None]:
        """Call `again` after this time, or somewhat later. What is returned calls it at once; it may be called once."""
        steps = 1 + self._waiting[key] // WAITING_PER_STEP
        self._waiting[key] += 1

        def over() -> None:
            self._waiting[key] -= 1
            if not self._waiting[key]:  # (a reload may bring other limits, so that it is not waited for again)
                del self._waiting[key]
            again()

        timer = asyncio.get_running_loop().call_later(max(wait_us / 1e6, LEAST_WAIT_S * steps), over)

        def at_once() -> None:
            timer.cancel()
            over()

        return at_once
