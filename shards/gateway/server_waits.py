"""Bounds how long shards wait for other servers: PONGs with `fence: cluster`, and queue members that have left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gnatswarm.shards.gateway.route import RouteSession

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.options import Options
    from gnatswarm.shards.gateway.leaf_connection import LeafConnection


class ServerWaits:
    """The timer of one gateway's fence; `sessions`: the connections to other servers; `flush`: sends what is queued."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        options: Options,
        sessions: Callable[[], Iterable[RouteSession | LeafConnection]],
        flush: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fence = exchange.fence
        self._sessions = sessions
        self._flush = flush
        self._timer: asyncio.TimerHandle | None = None
        self._fence.on_wait = self._on_wait
        self.reload(options)

    def reload(self, options: Options) -> None:
        """Waits that begin from now on follow these options."""
        self._timeout_s = options.fence_timeout_s
        self._fence.is_on = options.fence == "cluster"

    def _on_wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        late, next_us = self._fence.expire(time.monotonic_ns() // 1000, round(self._timeout_s * 1e6))
        self._timer = self._loop.call_later(next_us / 1e6, self._look) if next_us else None
        if late and self._fence.is_on:
            for session in self._sessions():
                if session.link.slot in late and isinstance(session, RouteSession):
                    session.say_late(self._timeout_s)
        self._flush()
