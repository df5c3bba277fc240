"""Whether a shard has descriptors left for new clients; it says so while it has some: they are then steered elsewhere.

The kernel gives a new connection the lowest number that is free, so that number tells how many are in use, at no cost.
Between the word and the steering of others some still come: the last descriptors are for them. Not here: what is kept
back for links (shards.reserve), and what happens when there is really none left (shards.shard).
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The last sixteenth of the descriptors, and not more than comes within some 30 ms.
LAST_PART = 16
MOST_LAST = 1024
# Without a limit no descriptor is among the last.
NEVER = 2**31 - 1


class Room:
    """Starts with room; `on_change(has_room)` whenever that changes. Made when the limit of the process is final."""

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._on_change = on_change
        limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._last = min(MOST_LAST, limit // LAST_PART)
        self.full_at = NEVER if limit == resource.RLIM_INFINITY else limit - self._last  # a descriptor from here on
        self.has_room = True
        self._again_at = 0

    def fill(self, clients: int) -> None:
        """A client, the last of so many, got one of the last descriptors, or none."""
        if self.has_room:
            self.has_room = False
            self._again_at = max(0, clients - self._last)  # and not one less: it would come and go with each client
            self._on_change(False)

    def look(self, clients: int) -> None:
        """There are so many clients now."""
        if not self.has_room and clients <= self._again_at:
            self.has_room = True
            self._on_change(True)
