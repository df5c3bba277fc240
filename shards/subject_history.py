"""The subjects of the last windows of one shard, for monitoring: what the recorder wrote down, still in memory.

Of each window the heaviest subjects are kept, so it is bounded: some 4 MB when every window has more of them than that,
next to nothing on a broker with few. Fed by the recorder, read by `shards.hot_subjects`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

# A minute of windows of the default length.
MOST_WINDOWS = 6
MOST_KEPT = 1000

# (subject, error, msgs, bytes, deliveries, bytes out, unwanted, frames to and messages from siblings, widest, misses)
Counted = tuple[str, int, int, int, int, int, int, int, int, int, int]


def weight(row: Counted) -> int:
    """How hot: messages and deliveries, and what they carried in pieces of 256 bytes."""
    _subject, _error, msgs, payload_bytes, deliveries, out_bytes, *_ = row
    return msgs + deliveries + (payload_bytes + out_bytes >> 8)


class Heaviest:
    """Of all that is added the heaviest so many; `left_out_msgs` says what the others had."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, str, Counted]] = []  # weight, account; the lightest first
        self.left_out_msgs = 0
        self.left_out = 0

    def add(self, account: str, rows: Iterable[Counted]) -> None:
        """Some more of them; each subject of an account once."""
        for row in rows:
            entry = (weight(row), account, row)
            if len(self._heap) < self._most:
                heapq.heappush(self._heap, entry)
            else:
                _weight, _account, lightest = heapq.heappushpop(self._heap, entry)
                self.left_out_msgs += lightest[2]
                self.left_out += 1

    @property
    def rows(self) -> list[tuple[str, Counted]]:
        """(account, row), in no order."""
        return [(account, row) for _weight, account, row in self._heap]


class Window(NamedTuple):
    """One window that is over."""

    start_us: int  # since 1970
    length_us: int
    rows: list[tuple[str, Counted]]  # (account, row)
    other_msgs: int  # published to subjects that have no row


class SubjectHistory:
    """The last windows, the latest last."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
        self.ended = 0  # windows since the start: changes when one begins or is there

    def add(self, window: Window) -> None:
        """One has ended."""
        self.windows.append(window)
        self.ended += 1
