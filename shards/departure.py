"""How a shard leaves while its clients talk: it tells them, gives them time, then closes them spread over time.

Two occasions: the broker is scaled down (connections that are already in the listener's queue are still taken in, and
told), or the whole broker is a lame duck (nobody new). Not here: who takes connections afterwards (the router).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.errors import CloseReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from shards.clients import Clients, ClientSession

logger = logging.getLogger("gnatswarm.departure")

# The router has steered new connections away before it says Drain; what was in the queue then has come by now.
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
        """Closes so many that `share` of those there were are gone; who still has bytes to get comes last."""
        if self._to_close < 0:
            self._to_close = len(self._clients.open)
        excess = len(self._clients.open) - int(self._to_close * (1.0 - share))
        if excess <= 0:
            return

        def pending(session: ClientSession) -> bool:
            return session.connection.pending_bytes > 0

        chosen = sorted(self._clients.open.values(), key=pending)[:excess]
        self._clients.close(chosen, CloseReason.SERVER_SHUTDOWN)
