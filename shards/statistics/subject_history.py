"""The heaviest subjects of a shard's last windows, kept in memory for monitoring.

Bounded: at most MOST_KEPT subjects of each window, none of them longer than MOST_SUBJECT_BYTES, so some 4 MB in all,
and 10 MB if all are that long; very little on a broker with few subjects. Filled by the recorder, read by
`shards.monitoring.hot_subjects`.
"""

from __future__ import annotations

import heapq
import operator
import sys
from collections import deque
from collections.abc import Iterable

import msgspec

# A minute of windows of the default length.
MOST_WINDOWS = 6
MOST_KEPT = 1000
# As Python keeps it: with some 50 bytes around it, and two or four a character where one of them is not of Latin-1. A
# subject may have as many as a control line; those without a row are in the sum of all others.
MOST_SUBJECT_BYTES = 1024


class WindowCounts(msgspec.Struct, frozen=True, gc=False):
    """What a tally says of a window as a whole, in its order (broker/tally.pxd)."""

    msgs: int = 0  # from clients of this shard
    payload_bytes: int = 0
    deliveries: int = 0  # to clients of this shard, whoever published
    out_bytes: int = 0
    unwanted: int = 0  # of msgs: went to nobody, here or elsewhere
    link_out_msgs: int = 0
    link_in_msgs: int = 0
    widest: int = 0  # subscribers here that one message reached
    misses: int = 0

    def __add__(self, other: WindowCounts) -> WindowCounts:
        """Of two accounts; `widest` has no meaning then."""
        return WindowCounts(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class SubjectCounts(msgspec.Struct, frozen=True, order=True, gc=False):
    """What a tally says of one subject, in its order."""

    subject: str
    error: int  # at most so many messages more, counted while it had no row
    msgs: int
    payload_bytes: int
    deliveries: int
    out_bytes: int
    unwanted: int
    link_out_msgs: int
    link_in_msgs: int
    widest: int
    misses: int


def weight(row: SubjectCounts) -> int:
    """How hot a subject is: messages plus deliveries plus their bytes / 256."""
    return row.msgs + row.deliveries + (row.payload_bytes + row.out_bytes >> 8)


class Heaviest:
    """Keeps the heaviest `most` of the rows added, but for those with long subjects.

    `left_out` and `left_out_msgs` are the number of the others, and of their messages.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, str, SubjectCounts]] = []  # weight, account; the lightest first
        self.left_out_msgs = 0
        self.left_out = 0

    def add(self, account: str, rows: Iterable[SubjectCounts]) -> None:
        """Add rows; each subject of an account may be added once."""
        for row in rows:
            if sys.getsizeof(row.subject) > MOST_SUBJECT_BYTES:
                self.left_out_msgs += row.msgs
                self.left_out += 1
                continue
            entry = (weight(row), account, row)
            if len(self._heap) < self._most:
                heapq.heappush(self._heap, entry)
            else:
                _weight, _account, lightest = heapq.heappushpop(self._heap, entry)
                self.left_out_msgs += lightest.msgs
                self.left_out += 1

    @property
    def rows(self) -> list[tuple[str, SubjectCounts]]:
        """(account, row), in no order."""
        return [(account, row) for _weight, account, row in self._heap]


class Window(msgspec.Struct, frozen=True):
    """One closed window."""

    length_us: int
    rows: list[tuple[str, SubjectCounts]]  # (account, row)
    other_msgs: int  # published to subjects that have no row


class SubjectHistory:
    """The last windows, the latest last."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=MOST_WINDOWS)
        self.ended = 0  # changes when closing a window begins, and when the window is added here

    def add(self, window: Window) -> None:
        """Add a closed window."""
        self.windows.append(window)
        self.ended += 1
