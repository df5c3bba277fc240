"""Descriptors that clients cannot take: a full shard must still link to a new sibling, and move clients there.

The soft limit of the process is lowered by their number, and raised only while such a socket is made, so they cost
nothing. A link may get any number: open descriptors stay open when the limit is lowered.
"""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A link to each of 63 siblings, and some that are being replaced or refused.
DESCRIPTORS_FOR_LINKS = 80
# But at most this part of the process limit.
MOST_OF_LIMIT = 8


class Reserve:
    """Reserves them from its construction on, for the whole process."""

    def __init__(self) -> None:
        self._limit, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._for_clients = self._limit
        if self._limit != resource.RLIM_INFINITY:
            self._for_clients -= min(DESCRIPTORS_FOR_LINKS, self._limit // MOST_OF_LIMIT)
        self._open = 0  # contexts, of which one may be within another
        self._allow(self._for_clients)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Within this context the reserved descriptors may be used."""
        self._open += 1
        self._allow(self._limit)
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._allow(self._for_clients)

    def _allow(self, descriptors: int) -> None:
        with contextlib.suppress(OSError, ValueError):  # somebody has lowered the hard limit meanwhile (prlimit)
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, self._hard))
