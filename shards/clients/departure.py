"""A shard's departure: moves its clients, tells those that have not moved to reconnect, closes the rest one by one.

Used when the broker is scaled down (connections that are already in the listener's queue are still accepted), and in
lame duck mode (no new connections, and nobody moves). Not here: which shard gets new connections then (the router).
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Protocol

from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.clients.hearing import HEAR_OUT_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.clients.session import ClientSession

logger = logging.getLogger("gnatswarm.departure")

# The router steers new connections away before it sends Drain; those in the queue have arrived after this quiet time.
QUIET_S = 1.0
STEP_S = 0.05
# In lame duck mode: as nats-server, which closes each within a second of the one before.
LONGEST_INTERVAL_S = 1.0
# Of the grace: for so long clients are moved before those that are left are told.
MOVING_PART = 0.8
# … and of the spread before those are closed, one by one, that can still move: where a machine has too much to do, or
# another shard leaves, a move takes long, or is broken off and tried again.
PATIENT_PART = 0.5


class Mover(Protocol):
    """Moves clients to other shards, and what is left of them here."""

    def move(self, clients: int, within_s: float, /) -> None:
        """Move so many clients within that time, unless some are being moved."""

    @property
    def failing(self) -> set[int]:
        """The ids of those that could not move when they were last looked at."""

    def why(self) -> str:
        """Why those that were tried last have not moved, or ""."""

    def stop(self) -> None:
        """Begin to move no more."""

    def hand_over(self) -> None:
        """No client is left here: have another shard pass on the replies that are due to those that have moved."""


class Departure:
    """One departure; `on_done` is called once, when every client is gone.

    Clients are closed over `spread_s`; in lame duck mode, without a `mover`, few of them within a second of each other.

    With a `mover`, clients move to other shards until grace and spread have passed. At first only those with TLS, which
    cannot, are told to leave; the others when MOVING_PART of the grace has passed. Those that could not move whenever
    they were looked at since then are closed over all of the spread, the others only when PATIENT_PART of it has
    passed. While `is_awaited()`, others still need this shard: clients are on their way to it or from it, or replies to
    clients that have moved come through it, which it hands over as soon as nobody is left. Then it stays though it has
    no clients, at most until grace and spread have passed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clients: Clients,
        *,
        grace_s: float,
        spread_s: float,
        quiet_s: float,
        on_done: Callable[[], None],
        mover: Mover | None = None,
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._clients = clients
        self._started_s = loop.time()
        self._grace_s = grace_s
        self._spread_s = spread_s
        self._quiet_s = quiet_s
        self._on_done = on_done
        self._accepted = clients.accepted
        self._accepted_s = self._started_s
        self._to_close = -1  # how many there were when closing began …
        self._to_move = 0  # … beside those that can still move
        self._failing: set[int] = set()  # who could not move, whenever it was looked at since they were told
        self._ending: set[int] = set()  # those that have ended, and are heard out
        self._hears = False  # where nobody moves: what had been sent was read ahead
        self._mover = mover
        self._are_told = mover is None
        self._is_moving = mover is not None
        self._is_awaited = is_awaited
        if mover is None:
            logger.info("Leaving: %d clients are told, and closed within %g s", len(clients.open), grace_s + spread_s)
            clients.announce_departure()
        else:
            logger.info("Leaving: %d clients move to other shards; those that cannot are told", len(clients.open))
            clients.announce_departure(with_tls_only=True)
        loop.call_later(STEP_S, self._step)

    def _step(self) -> None:
        now_s = self._loop.time()
        if self._clients.accepted != self._accepted:
            self._accepted = self._clients.accepted
            self._accepted_s = now_s
        is_quiet = now_s - self._accepted_s >= self._quiet_s
        if self._mover is not None:
            if self._is_moving:
                self._go_on_moving(self._mover, now_s)
            if is_quiet and not self._clients.open:
                self._mover.hand_over()
        elif not self._hears and now_s - self._started_s >= self._grace_s * MOVING_PART:
            self._hears = True  # (other shards close their clients as soon as the grace is over)
            self._read_ahead()
        if is_quiet and not self._clients.open and not self._is_awaited():
            self._on_done()
            return
        passed_s = now_s - self._started_s - self._grace_s
        if passed_s >= 0 and (self._to_close >= 0 or self._begin_to_close()):
            share = 1.0 if self._spread_s <= 0 else min(1.0, passed_s / self._spread_s)
            # (Nobody hears for so long; but who speaks up later than others is heard later.)
            self._close_some(share, is_late=passed_s >= self._spread_s + HEAR_OUT_S)
        if passed_s >= self._spread_s and not self._clients.open:
            self._on_done()
            return
        self._loop.call_later(STEP_S, self._step)

    def _go_on_moving(self, mover: Mover, now_s: float) -> None:
        passed_s = now_s - self._started_s
        left_s = self._grace_s + self._spread_s - passed_s
        if self._are_told:
            self._failing &= mover.failing
        elif passed_s >= self._grace_s * MOVING_PART:
            self._are_told = True
            self._failing = set(mover.failing)
            self._tell_the_rest(mover.why())
        if left_s > 0:
            mover.move(len(self._clients.open), left_s)
            return
        mover.stop()
        self._is_moving = False

    def _tell_the_rest(self, why: str) -> None:
        if self._clients.open:
            why = f": {why}" if why else ""
            n_behind = sum(session.connection.pending_bytes > 0 for session in self._clients.open.values())
            behind = f" ({n_behind} of them behind what they have not read, if they read it)" if n_behind else ""
            logger.info("Leaving: %d clients have not moved, and are told%s%s", len(self._clients.open), behind, why)
        self._clients.announce_departure()
        self._read_ahead()

    def _begin_to_close(self) -> bool:
        """Whether clients can be closed at once: not where some are just being heard out."""
        if self._mover is None:
            self._to_close = len(self._clients.open)
            if self._to_close:
                self._spread_s = min(self._spread_s, LONGEST_INTERVAL_S * self._to_close)
        else:
            self._to_close = sum(map(self._cannot_move, self._clients.open.values()))
            self._to_move = len(self._clients.open) - self._to_close
        return not self._read_ahead()

    def _read_ahead(self) -> int:
        heard, ended = self._clients.read_ahead()
        self._ending |= ended
        return heard

    def _close_some(self, share: float, *, is_late: bool) -> None:
        """Close clients until `share` of the first count is gone: late those with pending bytes, last who has ended.

        Of those that can still move a share that grows later, and those that are just being moved only at the end.
        """
        sessions = list(self._clients.open.values())
        # (A move that is under way may take seconds where there are few processors.)
        may_stay = share < 1.0
        most_failing = int(self._to_close * (1.0 - share))
        if self._mover is None:
            chosen = self._surplus(sessions, most_failing, may_stay)
        else:
            failing: list[ClientSession] = []
            others: list[ClientSession] = []
            for one in sessions:
                (failing if self._cannot_move(one) else others).append(one)
            most_others = math.ceil(self._to_move * min(1.0, (1.0 - share) / (1.0 - PATIENT_PART)))
            chosen = self._surplus(failing, most_failing, may_stay) + self._surplus(others, most_others, may_stay)
        if not chosen:
            return
        heard = chosen if is_late else self._clients.hear_out(chosen)
        if share < 1.0 or len(heard) == len(chosen):  # (at the end all at once, or nobody would get what they say)
            self._clients.close(heard, CloseReason.SERVER_SHUTDOWN)

    def _cannot_move(self, session: ClientSession) -> bool:
        return session.connection.cid in self._failing or self._clients.stays(session)

    def _surplus(self, sessions: list[ClientSession], most: int, may_stay: bool) -> list[ClientSession]:
        """Those of these that are too many; `may_stay`: nobody who is just being moved."""
        excess = len(sessions) - most
        if excess <= 0:
            return []

        def lateness(session: ClientSession) -> tuple[bool, bool]:
            return session.connection.cid in self._ending, session.connection.pending_bytes > 0

        some = [one for one in sessions if not (may_stay and one.connection.is_moving)]
        return sorted(some, key=lateness)[:excess]
