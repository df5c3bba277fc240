"""How often a shard checks the deadlines of its sockets: so often that no ping is late by more than a tenth.

All sockets are checked within a second, a part of them at a time; that is much cheaper than a timer per socket, and
exact enough for ping intervals of minutes. With intervals below 10 s, as in tests, they are checked more often. Called
by the shard, at each of its sweeps and for new options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

# The interval of the shard's sweep, which does other work too.
SWEEP_S = 0.1
# All sockets are checked at least this often, for log-in timeouts and write deadlines.
MOST_ROUND_S = 1.0
# They are checked at most this often, or a shard with many clients would do nothing else.
LEAST_ROUND_S = 0.01
# The part of the ping interval by which a ping may be late.
LATE_PART = 0.1


def rhythm(ping_interval_s: float) -> tuple[float, float]:
    """The rhythm for this ping interval: check every so many seconds, and this share of the sockets each time."""
    round_s = min(MOST_ROUND_S, max(LEAST_ROUND_S, ping_interval_s * LATE_PART))
    every_s = min(SWEEP_S, round_s)
    return every_s, every_s / round_s


class Lookout:
    """Calls `look(share)` of `deadlines` at the shard's sweeps, or by its own timer if those are too rare.

    Where that says that more is to be done, `go_on` is called until it does not, once in a turn of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        look: Callable[[float], bool],
        go_on: Callable[[], bool],
        *,
        ping_interval_s: float,
    ) -> None:
        self._loop = loop
        self._look = look
        self._go_on = go_on
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.set_interval(ping_interval_s)

    def set_interval(self, ping_interval_s: float) -> None:
        """Use this ping interval from now on."""
        self.close()
        self._every_s, self._share = rhythm(ping_interval_s)
        if self._every_s < SWEEP_S:
            self._timer = self._loop.call_later(self._every_s, self._on_time)

    def on_sweep(self) -> None:
        """To be called at each sweep of the shard."""
        if self._timer is None:
            self._begin()

    def close(self) -> None:
        """Look no more."""
        for waiting in (self._timer, self._next):
            if waiting is not None:
                waiting.cancel()
        self._timer = self._next = None

    def _on_time(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._on_time)
        self._begin()

    def _begin(self) -> None:
        if self._look(self._share) and self._next is None:
            self._next = self._loop.call_soon(self._in_turn)

    def _in_turn(self) -> None:
        self._next = self._loop.call_soon(self._in_turn) if self._go_on() else None
