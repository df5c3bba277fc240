"""Clients that have lately left this shard for another, or come from one: so that no page misses or doubles them.

The router asks the shards one after the other, or at once but not at the same moment: a client that moves meanwhile may
be told by both, or by neither. What is kept here lets it tell (`router.monitoring.moving_clients`). It is kept for some
seconds and bounded; a move costs one row.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.shards.boundary.rows import ConnectionRow

# A page is gathered within much less. Of those that came less is told, so that each of them has its other half.
LEFT_FOR_S = 5.0
CAME_FOR_S = 2.0
# As many as a shard moves in that time.
MOST = 5000


class Passing:
    """Who has left, and who has come."""

    def __init__(self) -> None:
        self._left: deque[tuple[float, int, ConnectionRow]] = deque(maxlen=MOST)
        self._came: deque[tuple[float, int, int, int]] = deque(maxlen=MOST)
        self.has_come = False  # anybody ever

    def leave(self, row: ConnectionRow, to: int) -> None:
        """A client has left for shard `to`, and was as this row says."""
        self._left.append((time.monotonic(), to, row))

    def come(self, cid: int, old: int, moved_us: int) -> None:
        """A client has come from shard `old`, at that moment of the wall clock."""
        self.has_come = True
        self._came.append((time.monotonic(), cid, old, moved_us))

    @property
    def left(self) -> list[tuple[int, ConnectionRow]]:
        """(new shard, its last row here) of clients that have lately left."""
        _prune(self._left, LEFT_FOR_S)
        return [(to, row) for _, to, row in self._left]

    @property
    def came(self) -> list[tuple[int, int, int]]:
        """(client id, old shard, when) of clients that have lately come; some of them may have left again."""
        _prune(self._came, CAME_FOR_S)
        return [(cid, old, moved_us) for _, cid, old, moved_us in self._came]


def _prune(passed: deque[tuple[float, int, ConnectionRow]] | deque[tuple[float, int, int, int]], for_s: float) -> None:
    since_s = time.monotonic() - for_s
    while passed and passed[0][0] < since_s:
        passed.popleft()
