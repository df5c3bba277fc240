"""Clients that have lately left this shard for another, or come from one: so that no page misses or doubles them.

The router asks the shards one after the other, or at once but not at the same moment: a client that moves meanwhile may
be told by both, or by neither. What is kept here lets it tell (`router.monitoring.moving_clients`). It is kept for some
seconds, or until the next client leaves, and bounded by number and bytes; a move costs one row.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from gnatswarm.shards.clients.closed import row_bytes
from gnatswarm.shards.clients.latest import Latest

if TYPE_CHECKING:
    from gnatswarm.shards.boundary.rows import ConnectionRow

# A page is gathered within much less. Of those that came less is told, so that each of them has its other half.
LEFT_FOR_S = 5.0
CAME_FOR_S = 2.0
# As many as a shard moves in that time.
MOST = 5000
# Ordinary rows of so many take 6 MB. All of them go to the router in one message, which may have 16 MB.
MOST_BYTES = 8 * 1024 * 1024


class Passing:
    """Who has left, and who has come."""

    def __init__(self) -> None:
        self._left: Latest[tuple[float, int, ConnectionRow]] = Latest(MOST, MOST_BYTES)
        self._came: deque[tuple[float, int, int, int]] = deque(maxlen=MOST)
        self.has_come = False  # anybody ever

    def leave(self, row: ConnectionRow, to: int) -> None:
        """A client has left for shard `to`, and was as this row says."""
        self._left.add((time.monotonic(), to, row), row_bytes(row))
        self._forget_left()

    def come(self, cid: int, old: int, moved_us: int) -> None:
        """A client has come from shard `old`, at that moment of the wall clock."""
        self.has_come = True
        self._came.append((time.monotonic(), cid, old, moved_us))

    @property
    def left(self) -> list[tuple[int, ConnectionRow]]:
        """(new shard, its last row here) of clients that have lately left."""
        self._forget_left()
        return [(to, row) for _, to, row in self._left]

    @property
    def came(self) -> list[tuple[int, int, int]]:
        """(client id, old shard, when) of clients that have lately come; some of them may have left again."""
        since_s = time.monotonic() - CAME_FOR_S
        while self._came and self._came[0][0] < since_s:
            self._came.popleft()
        return [(cid, old, moved_us) for _, cid, old, moved_us in self._came]

    def _forget_left(self) -> None:
        since_s = time.monotonic() - LEFT_FOR_S
        while self._left and self._left.oldest[0] < since_s:
            self._left.drop_oldest()
