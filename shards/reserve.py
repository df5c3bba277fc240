"""Descriptors that clients cannot take, kept back for links: a full shard must still be linked to a new sibling.

The soft limit of the process is lowered by them and raised for the moment in which a link's socket is made, so they
cost nothing until then. Which numbers links get does not matter: what is open stays open when the limit falls.
"""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A link to each of 63 siblings, and some that are being replaced or are turned away.
DESCRIPTORS_FOR_LINKS = 80
# Of a limit that is small anyway, this part.
MOST_OF_LIMIT = 8


class Reserve:
    """Keeps them back from here on, for the whole process."""

    def __init__(self) -> None:
        self._limit, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._for_clients = self._limit
        if self._limit != resource.RLIM_INFINITY:
            self._for_clients -= min(DESCRIPTORS_FOR_LINKS, self._limit // MOST_OF_LIMIT)
        self._allow(self._for_clients)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Within, descriptors may be had that are kept back."""
        self._allow(self._limit)
        try:
            yield
        finally:
            self._allow(self._for_clients)

    def _allow(self, descriptors: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, self._hard))
