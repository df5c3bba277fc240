"""A shard's departure: tells its clients to reconnect, gives them time, then closes the rest one by one over time.

Used when the broker is scaled down (connections that are already in the listener's queue are still accepted, and
told), and in lame duck mode (no new connections). Not here: which shard gets new connections then (the router).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gnatswarm.broker.errors import CloseReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.clients.session import ClientSession

logger = logging.getLogger("gnatswarm.departure")

# The router steers new connections away before it sends Drain; those in the queue have arrived after this quiet time.
QUIET_S = 1.0
STEP_S = 0.05


class Departure:
    """One departure; `on_done` is called once, when every client is gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clients: Clients,
        *,
        grace_s: float,
        spread_s: float,
        quiet_s: float,
        on_done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clients = clients
        self._started_s = loop.time()
        self._grace_s = grace_s
        self._spread_s = spread_s
        self._quiet_s = quiet_s
        self._on_done = on_done
        self._accepted = clients.accepted
        self._accepted_s = self._started_s
        self._to_close = -1  # how many there were when closing began
        logger.info("Leaving: %d clients are told, and closed within %g s", len(clients.open), grace_s + spread_s)
        clients.announce_departure()
        loop.call_later(STEP_S, self._step)

    def _step(self) -> None:
        now_s = self._loop.time()
        if self._clients.accepted != self._accepted:
            self._accepted = self._clients.accepted
            self._accepted_s = now_s
        is_quiet = now_s - self._accepted_s >= self._quiet_s
        if is_quiet and not self._clients.open:
            self._on_done()
            return
        passed_s = now_s - self._started_s - self._grace_s
        if passed_s >= 0:
            self._close_some(1.0 if self._spread_s <= 0 else min(1.0, passed_s / self._spread_s))
        if passed_s >= self._spread_s and not self._clients.open:
            self._on_done()
            return
        self._loop.call_later(STEP_S, self._step)

    def _close_some(self, share: float) -> None:
        """Close clients until `share` of the first count is gone; those with pending bytes last."""
        if self._to_close < 0:
            self._to_close = len(self._clients.open)
        excess = len(self._clients.open) - int(self._to_close * (1.0 - share))
        if excess <= 0:
            return

        def pending(session: ClientSession) -> bool:
            return session.connection.pending_bytes > 0

        chosen = sorted(self._clients.open.values(), key=pending)[:excess]
        self._clients.close(chosen, CloseReason.SERVER_SHUTDOWN)
