"""The pace of long work on an event loop: a slice, then everybody else's turn, then the next slice.

Who has much to do calls `await pace()` between small steps. Once the slice has lasted its time, that gives the loop one
turn; before that it costs one reading of the clock. Nothing is cut inside a step, so a step has to be short.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

# Half of what a monitoring page may hold a shard's loop, so that the step that goes over it has room.
SLICE_S = 0.001


class Pace:
    """One piece of work. `longest_s` is the longest that it has held the loop so far."""

    __slots__ = ("_since", "longest_s", "slices")

    def __init__(self) -> None:
        self._since = perf_counter()
        self.longest_s = 0.0
        self.slices = 0

    async def __call__(self) -> None:
        """Between two steps."""
        held_s = perf_counter() - self._since
        if held_s > self.longest_s:
            self.longest_s = held_s
        if held_s >= SLICE_S:
            await self.rest()

    async def rest(self) -> None:
        """The others' turn, whatever the clock says."""
        self.slices += 1
        await asyncio.sleep(0)
        self._since = perf_counter()
