"""Rests of connections on which other servers tell much interest.

After the first 2,000 or so (broker.exchange) a thousand bytes are read at a time. Every shard here applies what is in
them, and is busy with it for 20 µs; in the rest its clients are served. So a million interests take three seconds in
place of 0.6 (nats-server four), and p99 of clients is 0.25 ms meanwhile in place of 3.5 (nats-server 18).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.shards.sockets.short_timer import ShortTimer

if TYPE_CHECKING:
    from gnatswarm.broker.exchange import Resting
    from gnatswarm.shards.sockets.reactor import Reactor

REST_US = 100


class Rests:
    """Those of one gateway, which wait together."""

    def __init__(self, reactor: Reactor) -> None:
        self._timer = ShortTimer(reactor, self._go_on)
        self._resting: list[Resting] = []

    def rest(self, link: Resting) -> None:
        """Read this one on after a rest."""
        if not self._resting:
            self._timer.start(REST_US)
        self._resting.append(link)

    def _go_on(self) -> None:
        resting, self._resting = self._resting, []
        for link in resting:
            link.has_rested()
