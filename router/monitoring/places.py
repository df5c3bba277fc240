"""Places for monitoring connections: their number, who gets one, and which connection is cut when all are taken.

A new connection always gets a place. If all are taken, a connection is cut: first the oldest without a complete
request, then an idle kept-alive one, then one that does not read its response. Connections whose response is being
built are never cut: then the new one gets a reserved place, where only a few pages are served (an orchestrator would
restart a healthy broker that does not answer). One address may have a share of the places; beyond it, one of its own
connections is cut. Knows no sockets: `Place.close` cuts a connection.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Collection

from gnatswarm.shards.boundary.owners import owner_of

# Reserved places. A new connection's request is read two or three turns of the loop after its accept, and only a few
# are accepted per turn: so it is answered before this many others have come.
RESERVED = 32
# The share of one address. A proxy or a scraper never needs as many; the rest is always left for others.
SHARE_OF_ONE_ADDRESS = 0.75
# A response is written in pieces; a connection that has taken none for this long may be cut.
UNTAKEN_S = 2.0


class Doing(enum.Enum):
    """The state of a connection."""

    ASKING = enum.auto()  # no complete request yet: new, in the TLS handshake, or within a request
    IDLE = enum.auto()  # was answered, and has sent nothing since
    ANSWERING = enum.auto()  # its response is being built
    TAKING = enum.auto()  # we wait until it has read a piece of its response


class Place:
    """The place of one connection."""

    __slots__ = ("close", "doing", "is_reserved", "owner", "since_s")

    def __init__(self, address: str, close: Callable[[], object]) -> None:
        self.owner = owner_of(address)
        self.close = close
        self.is_reserved = False
        self.turn(Doing.ASKING)

    def turn(self, doing: Doing) -> None:
        """Set its state."""
        self.doing = doing
        self.since_s = time.monotonic()


class Places:
    """`most` ordinary places, and RESERVED more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.cuts = 0  # connections cut so far
        self._share = max(1, int(most * SHARE_OF_ONE_ADDRESS))
        self._ordinary: dict[Place, None] = {}  # oldest first
        self._reserve: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._reserve)

    def take(self, place: Place) -> None:
        """Give a place to a new connection; a reserved one if there is no other."""
        if self._has_room_for(place):
            self._ordinary[place] = None
            return
        if len(self._reserve) >= RESERVED:
            self._cut(next(iter(self._reserve)))
        place.is_reserved = True
        self._reserve[place] = None

    def leave_reserve(self, place: Place) -> bool:
        """Move from a reserved place to an ordinary one; False: none is free yet."""
        if not self._has_room_for(place):
            return False
        self._reserve.pop(place, None)
        place.is_reserved = False
        self._ordinary[place] = None
        return True

    def leave(self, place: Place) -> None:
        """Free its place, if it still has one."""
        self._ordinary.pop(place, None)
        self._reserve.pop(place, None)

    def cut_one(self) -> bool:
        """Cut a connection, as when descriptors run out; False: none may be cut."""
        return self._cut_first_of(self._ordinary) or self._cut_first_of(self._reserve)

    def _has_room_for(self, place: Place) -> bool:
        own = [other for other in self._ordinary if other.owner == place.owner]
        if len(own) >= self._share:
            return self._cut_first_of(own)
        return len(self._ordinary) < self.most or self._cut_first_of(self._ordinary)

    def _cut_first_of(self, places: Collection[Place]) -> bool:
        first = _first_to_go(places)
        if first is None:
            return False
        self._cut(first)
        return True

    def _cut(self, place: Place) -> None:
        self.leave(place)
        self.cuts += 1
        place.close()


def _first_to_go(places: Collection[Place]) -> Place | None:
    """The connection to cut; None if all are being answered."""
    asking = [place for place in places if place.doing is Doing.ASKING]
    if asking:
        return min(asking, key=_since)
    idle = [place for place in places if place.doing is Doing.IDLE]
    if idle:
        # From the address with the most of them, so that a crowd from one address does not cut others.
        counts: dict[bytes, int] = {}
        for place in idle:
            counts[place.owner] = counts.get(place.owner, 0) + 1
        most = max(counts.values())
        return min((place for place in idle if counts[place.owner] == most), key=_since)
    until_s = time.monotonic() - UNTAKEN_S
    untaken = [place for place in places if place.doing is Doing.TAKING and place.since_s < until_s]
    return min(untaken, key=_since, default=None)


def _since(place: Place) -> float:
    return place.since_s
