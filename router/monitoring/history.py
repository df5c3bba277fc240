"""The last hour of the broker's counters, one sample a second: what the dashboard's chart shows when it is opened.

Counters, not rates: a reader that takes every tenth sample still gets true rates. A sample costs one look at the shared
page per shard, and asks no shard. Memory is bounded: 48 bytes a sample, 170 KB for an hour, in a memfd that the keeper
holds, so the next router goes on with it. It runs while pages are served.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Callable, Mapping

from gnatswarm.router.monitoring.aggregate import Document

INTERVAL_S = 1.0
MOST_SAMPLES = 3600
COUNTERS = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "connections")


# Before the samples: how many there may be, and how many there have been.
_MOST, _TAKEN, _HEAD = 0, 1, 2
_ROW = 1 + len(COUNTERS)  # the time in µs since 1970, and the counters
_CELL_BYTES = 8


class History:
    """Samples of `look()`, which returns the broker's totals by name, in the file `fd` (-1: in memory of its own).

    What another router has left in the file is kept, unless it is of another form.
    """

    def __init__(self, look: Callable[[], Mapping[str, int]], *, most: int = MOST_SAMPLES, fd: int = -1) -> None:
        self._look = look
        self._most = most
        size_bytes = (_HEAD + most * _ROW) * _CELL_BYTES
        if fd >= 0 and os.fstat(fd).st_size != size_bytes:
            os.ftruncate(fd, 0)  # of another form, or new
            os.ftruncate(fd, size_bytes)
        self._cells = memoryview(mmap.mmap(fd, size_bytes)).cast("q")
        if self._cells[_MOST] != most or self._cells[_TAKEN] < 0:
            self._cells[_MOST], self._cells[_TAKEN] = most, 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take a sample now, and one every second from now on."""
        if self._timer is None:
            self._tick()

    def close(self) -> None:
        """Stop taking samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)  # first: there is a next one
        self.take(time.time_ns() // 1000)

    def take(self, now_us: int) -> None:
        """Add a sample; beyond the most the oldest one is overwritten."""
        totals = self._look()
        taken = self._cells[_TAKEN]
        row = self._row(taken)
        for cell, value in enumerate((now_us, *(totals[name] for name in COUNTERS)), row):
            self._cells[cell] = value
        self._cells[_TAKEN] = taken + 1  # last: a router may be killed at any moment

    def _row(self, number: int) -> int:
        """Where this sample is."""
        return _HEAD + number % self._most * _ROW

    def latest(self, count: int, step: int = 1) -> Document:
        """The last `count` samples, or every `step`th, oldest first, as columns; `at` is in seconds since 1970.

        The latest one is always among them.
        """
        taken = self._cells[_TAKEN]
        count = min(count, (min(taken, self._most) + step - 1) // step)
        rows = [self._row(taken - 1 - step * back) for back in range(count - 1, -1, -1)]
        document: Document = {"at": [self._cells[row] / 1e6 for row in rows]}
        for column, name in enumerate(COUNTERS, 1):
            document[name] = [self._cells[row + column] for row in rows]
        return document
