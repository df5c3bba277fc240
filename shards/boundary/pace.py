"""Cooperative pacing of long work on an event loop: work for one slice, let the loop run once, work again.

Long work calls `await pace()` between small steps. When the slice is used up, that lets the event loop run one turn;
otherwise it costs two clock readings. A step is never interrupted, so steps must be short.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, thread_time

# A monitoring page may hold a shard's loop for four times as long: the last step of a slice may exceed it.
SLICE_S = 0.0005


class Pace:
    """The pacing of one piece of work. `longest_s` is its longest slice so far, in CPU time."""

    __slots__ = ("_cpu_since", "_since", "longest_s", "slices")

    def __init__(self) -> None:
        self._since = perf_counter()
        self._cpu_since = thread_time()
        self.longest_s = 0.0
        self.slices = 1

    async def __call__(self) -> None:
        """To be awaited between two steps."""
        held_s = thread_time() - self._cpu_since
        if held_s > self.longest_s:
            self.longest_s = held_s
        # By wall-clock time: time in which other processes had the CPU counts too, because clients waited.
        if perf_counter() - self._since >= SLICE_S:
            self.slices += 1
            await asyncio.sleep(0)
            self._since = perf_counter()
            self._cpu_since = thread_time()
