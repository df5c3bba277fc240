"""The last hour of the broker's counters, one sample a second: what the dashboard's chart shows when it is opened.

Counters, not rates: a reader that takes every tenth sample still gets true rates. A sample costs one look at the shared
page per shard, and asks no shard. Memory is bounded: 48 bytes a sample, 170 KB for an hour. It runs while pages are
served.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping

from gnatswarm.router.monitoring.aggregate import Document

INTERVAL_S = 1.0
MOST_SAMPLES = 3600
COUNTERS = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "connections")


class History:
    """Samples of `look()`, which returns the broker's totals by name."""

    def __init__(self, look: Callable[[], Mapping[str, int]], *, most: int = MOST_SAMPLES) -> None:
        self._look = look
        self._most = most
        self._times_us = array("q")
        self._columns = {name: array("q") for name in COUNTERS}
        self._taken = 0  # samples so far; the next one goes to the place of this number, modulo `most`
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
        self.take(time.time_ns() // 1000)
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def take(self, now_us: int) -> None:
        """Add a sample; beyond the most the oldest one is overwritten."""
        totals = self._look()
        place = self._taken % self._most
        for column, value in ((self._times_us, now_us), *((self._columns[name], totals[name]) for name in COUNTERS)):
            if place == len(column):
                column.append(value)
            else:
                column[place] = value
        self._taken += 1

    def latest(self, count: int, step: int = 1) -> Document:
        """The last `count` samples, or every `step`th, oldest first, as columns; `at` is in seconds since 1970.

        The latest one is always among them.
        """
        count = min(count, (len(self._times_us) + step - 1) // step)
        places = [(self._taken - 1 - step * back) % self._most for back in range(count - 1, -1, -1)]
        document: Document = {"at": [self._times_us[place] / 1e6 for place in places]}
        for name, column in self._columns.items():
            document[name] = [column[place] for place in places]
        return document
