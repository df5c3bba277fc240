"""Handles changes of a shard's links to its siblings: clients wait while a link is missing.

A link that broke while its sibling lives is a hole: a message that is published now would miss subscribers there. No
client is served, and no other server read, until the link is restored, and new clients are steered elsewhere if that
takes longer than a moment.
Called by `shards.links.links`, made by the worker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gnatswarm.shards.boundary import logs
from gnatswarm.shards.boundary.control import InStep

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.link import SiblingLink
    from gnatswarm.shards.boundary.control import ControlMessage
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.shard import Shard

logger = logging.getLogger("gnatswarm.shard")

# A broken link is restored in milliseconds; when it takes longer than this, new connections are steered elsewhere.
STEER_AWAY_S = 0.05


class Siblings:
    """The `LinkSink` of shard `number`. `on_ready` is called once; `on_gone` when a link has ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        shard: Shard,
        *,
        number: int,
        page: Page,
        tell: Callable[[ControlMessage], None],
        on_ready: Callable[[], None],
        on_gone: Callable[[SiblingLink], None],
    ) -> None:
        self._loop = loop
        self._shard = shard
        self._number = number
        self._page = page
        self._tell = tell
        self.on_ready = on_ready
        self.on_gone = on_gone
        self.servers: Exchange | None = None  # the gateway's
        self._steering_away: asyncio.TimerHandle | None = None
        self.is_in_step = True  # the last InStep told to the router

    def on_change(self, links: int) -> None:
        """The number of synchronised links has changed."""
        self._page.store(self._number, "links", links)

    def on_hole(self) -> None:
        """A link broke while its sibling lives."""
        self._shard.clients.hold()
        if self.servers is not None:
            self.servers.hold()
        self._steering_away = self._loop.call_later(STEER_AWAY_S, self._say_in_step, False)

    def on_doubt(self, sibling: int) -> int:
        """A link broke with messages in flight; returns how many clients or other servers may have lost some."""
        return self._shard.fence.doubt(sibling, self._shard.clients.connections(), self.servers)

    def on_dead(self, sibling: int) -> None:
        """A sibling is dead, or has left: the next shard of its number was sent nothing of what that one was."""
        self._shard.fence.forget_published(sibling, self._shard.clients.connections())

    def on_whole(self) -> None:
        """No link is missing any more."""
        if self._steering_away is not None:
            self._steering_away.cancel()
            self._steering_away = None
        if not self.is_in_step:
            self._say_in_step(True)
        self._shard.clients.go_on()
        if self.servers is not None:
            self.servers.go_on()

    def on_given_up(self, why: str) -> None:
        """A link could not be restored."""
        logger.critical("%s; ending, to be started again", why)
        logs.exit_now(70)  # EX_SOFTWARE, as for every unexpected error

    def _say_in_step(self, on: bool) -> None:
        self.is_in_step = on
        self._tell(InStep(on))
