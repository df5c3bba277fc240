"""Descriptor headroom: tells when a shard runs out of descriptors, so that new clients are steered to other shards.

The kernel gives a new connection the lowest free number, so that number shows at no cost how many are in use. Until
steering takes effect some connections still come; the last descriptors are kept for those. Not here: descriptors
reserved for links (shards.sockets.reserve), and what happens when none is left (shards.shard).
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The headroom: a sixteenth of the descriptors, but not more than the connections of some 30 ms.
LAST_PART = 16
MOST_LAST = 1024
# `full_at` and `most` of a process without a limit: no descriptor is that high.
NEVER = 2**31 - 1


class DescriptorHeadroom:
    """Calls `on_change(has_headroom)` whenever that changes; it is True at first. Make it when the limit is final."""

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._on_change = on_change
        limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._last = min(MOST_LAST, limit // LAST_PART)
        self.most = NEVER if limit == resource.RLIM_INFINITY else limit
        self.full_at = NEVER if self.most == NEVER else limit - self._last  # a descriptor from here on
        self.has_headroom = True
        self._again_at = 0

    def fill(self, clients: int) -> None:
        """A client, of `clients` now, got a descriptor of the headroom, or none at all."""
        if self.has_headroom:
            self.has_headroom = False
            self._again_at = max(0, clients - self._last)  # hysteresis, or has_headroom would change with each client
            self._on_change(False)

    def look(self, clients: int) -> None:
        """Compare with the present number of clients."""
        if not self.has_headroom and clients <= self._again_at:
            self.has_headroom = True
            self._on_change(True)
