"""Accepted connections of one port that have not said who they are, so many at most.

Where there are too many, the oldest is closed of those from the host that has most of them. So a newcomer always has
time to say who it is, and a crowd from one host closes only its own. Knows no sockets: `give_way` closes one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from gnatswarm.shards.boundary.owners import owner_of

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("gnatswarm.gateway")

# Each holds a descriptor for two seconds at most.
MOST_WAITING = 256
# The log has one line for those of this time.
TELL_EVERY_S = 1.0


class Stranger(Protocol):
    """A connection that has not said who it is."""

    host: str

    def give_way(self) -> None:
        """Close it, without a word and a line in the log."""


class Waiting:
    """The connections of one port. `port` is its name in the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: str) -> None:
        self._loop = loop
        self._port = port
        self._by_owner: dict[bytes, dict[Stranger, None]] = {}  # oldest first
        self._n = 0
        self._n_closed = 0  # since the last line in the log

    @property
    def is_full(self) -> bool:
        """Whether one gives way to the next."""
        return self._n >= MOST_WAITING

    def add(self, stranger: Stranger) -> None:
        """A new connection waits; one gives way to it if there are too many."""
        if self.is_full:
            self._close_one()
        self._by_owner.setdefault(owner_of(stranger.host), {})[stranger] = None
        self._n += 1

    def remove(self, stranger: Stranger) -> None:
        """It has said who it is, or has ended. A second call does nothing."""
        owner = owner_of(stranger.host)
        waiting = self._by_owner.get(owner, {})
        if stranger in waiting:
            del waiting[stranger]
            self._n -= 1
            if not waiting:
                del self._by_owner[owner]

    def _close_one(self) -> None:
        crowded = max(self._by_owner.values(), key=len)
        stranger = next(iter(crowded))
        self.remove(stranger)
        stranger.give_way()
        if self._n_closed == 0:
            self._loop.call_later(TELL_EVERY_S, self._tell)
        self._n_closed += 1

    def _tell(self) -> None:
        closed, self._n_closed = self._n_closed, 0
        text = "Too many connections to the port for %s that have not said who they are (%d may wait): closed %d"
        logger.error(text, self._port, MOST_WAITING, closed)
