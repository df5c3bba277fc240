"""The pace of long work on an event loop: a slice, then everybody else's turn, then the next slice.

Who has much to do calls `await pace()` between small steps. Once the slice has lasted its time, that gives the loop one
turn; before that it costs two readings of clocks. Nothing is cut inside a step, so a step has to be short.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, thread_time

# A quarter of what a monitoring page may hold a shard's loop, so that the step that goes over it has room.
SLICE_S = 0.0005


class Pace:
    """One piece of work. `longest_s` is the longest slice so far, in CPU time: what the work itself took."""

    __slots__ = ("_cpu_since", "_since", "longest_s", "slices")

    def __init__(self) -> None:
        self._since = perf_counter()
        self._cpu_since = thread_time()
        self.longest_s = 0.0
        self.slices = 1

    async def __call__(self) -> None:
        """Between two steps."""
        held_s = thread_time() - self._cpu_since
        if held_s > self.longest_s:
            self.longest_s = held_s
        # Time that other processes took from us counts as well: clients have waited through it.
        if perf_counter() - self._since >= SLICE_S:
            self.slices += 1
            await asyncio.sleep(0)
            self._since = perf_counter()
            self._cpu_since = thread_time()
