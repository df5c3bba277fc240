"""Which clients of this shard match which placement rule: tells the router, and moves those that belong elsewhere.

While there are rules, all clients are looked at again and again, in short steps: twice a second, and more rarely where
there are so many that it would take more than a hundredth of the processor. What a client subscribes to is read when
the number of its subscriptions has changed, and every LOOK_ANEW-th time. A client that has come from another shard
stays for STAY_S, unless rules or shards change: so none goes back and forth. Without rules this does nothing at all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gnatswarm.broker import census
from gnatswarm.broker.placement_rules import NONE, PlacementRules
from gnatswarm.shards.boundary.control import Matching, RuleMatch
from gnatswarm.shards.clients.session import NOT_CONNECTED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from gnatswarm.broker.options import Placement
    from gnatswarm.shards.boundary.control import ControlMessage, Places
    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.moving.departures import Departures

# Between two looks at all clients, and a look's share of the time at most. New clients are seen within this time.
LOOK_S = 0.5
LEAST_PASSED_S = 0.001  # the event loop's clock counts whole milliseconds
MOST_SHARE = 0.01
# One step, looked up after each client: rules may make one cost milliseconds.
STEP_S = 0.0002
# Looks after which subscriptions are read although their number is the same.
LOOK_ANEW = 20
# Slots of a client's subscriptions that are read; a client with more is known by these.
SUBSCRIPTION_SLOTS = 256
# What came from another shard stays for so long, whatever its subscriptions say by then.
STAY_S = 30.0


class _Known:
    """What was seen of a client."""

    __slots__ = ("looks", "msgs", "names", "rule", "subscriptions")

    def __init__(self, msgs: int) -> None:
        self.rule = NONE
        self.names: tuple[str, str, str] | None = None
        self.subscriptions = NONE  # how many there were when they were read; NONE: they do not matter
        self.looks = 0
        self.msgs = msgs


class Placing:
    """Places the clients of one shard."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clients: Clients,
        departures: Departures,
        *,
        shard: int,
        tell: Callable[[ControlMessage], None],
    ) -> None:
        self._loop = loop
        self._clients = clients
        self._departures = departures
        self._shard = shard
        self._tell = tell
        self._generation = 0
        self._placement: Placement | None = None
        self._is_over = False
        self._rules = PlacementRules(())
        self._places: list[int] = []  # by rule, as the router says
        self._known: dict[int, _Known] = {}  # by client id
        self._came_at_s: dict[int, float] = {}  # those that have come from other shards
        self._timer: asyncio.TimerHandle | None = None
        self._look: Iterator[None] | None = None
        self._looked_at_s = 0.0
        self._told: list[RuleMatch] | None = None
        self._has_rates = False  # two looks are needed to know how much a client says
        departures.keeps = self._keeps

    def configure(self, placement: Placement, generation: int) -> None:
        """Go by these rules from now on; the router says where their clients belong."""
        if self._placement is None or placement.rules != self._placement.rules:
            self._rules = PlacementRules(placement.rules)
            self._known.clear()
            self._came_at_s.clear()
            self._look = None
            self._has_rates = False
            self._places = []
        self._placement = placement
        self._generation = generation
        self._told = None
        self._again(0.0)

    def tell_again(self) -> None:
        """Another router has taken over, which knows nothing."""
        self._told = None

    def go_by(self, message: Places) -> None:
        """The router says where clients belong."""
        if message.generation == self._generation and message.shards != self._places:
            self._places = list(message.shards)
            self._came_at_s.clear()

    def note_arrival(self, cid: int) -> None:
        """This client has come from another shard."""
        if self._timer is not None:
            self._came_at_s[cid] = self._loop.time()

    def stop(self) -> None:
        """Place nobody any more: the shard leaves."""
        self._is_over = True
        self._places = []
        self._again(0.0)

    def _again(self, wait_s: float) -> None:
        """Look at all clients after this time, if there are rules."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._placement is not None and self._placement.rules and not self._is_over:
            self._timer = self._loop.call_later(wait_s, self._step)

    def _step(self) -> None:
        if self._look is None:
            self._look = self._look_at_all()
        if next(self._look, self) is self:
            self._look = None
        else:
            self._again(0.0)

    def _look_at_all(self) -> Iterator[None]:
        began_s = self._loop.time()
        passed_s = max(began_s - self._looked_at_s, LEAST_PASSED_S)
        self._looked_at_s = began_s
        used_s = 0.0
        known: dict[int, _Known] = {}
        counts: dict[int, list[float]] = {}  # by rule: clients, staying, messages
        away: dict[int, list[int]] = {}
        since_s = time.perf_counter()
        for cid in list(self._clients.open):
            session = self._clients.open.get(cid)
            if session is not None:
                self._look_at(cid, session, known, counts, away)
            if (took_s := time.perf_counter() - since_s) > STEP_S:
                used_s += took_s
                yield
                since_s = time.perf_counter()
        self._known = known
        self._came_at_s = {cid: at for cid, at in self._came_at_s.items() if cid in known and began_s - at < STAY_S}
        rows = [
            RuleMatch(rule, int(clients), int(staying), round(msgs / passed_s, 1))
            for rule, (clients, staying, msgs) in sorted(counts.items())
        ]
        if self._has_rates and rows != self._told:
            self._told = rows
            self._tell(Matching(self._generation, rows))
        self._has_rates = True
        if away:
            self._departures.begin_named(dict(away), lambda: None)
        self._again(max(LOOK_S, used_s / MOST_SHARE))

    def _look_at(
        self,
        cid: int,
        session: ClientSession,
        known: dict[int, _Known],
        counts: dict[int, list[float]],
        away: dict[int, list[int]],
    ) -> None:
        """Count one client, and note whether it belongs elsewhere."""
        connection = session.connection
        if connection.must_authenticate or session.connect is NOT_CONNECTED:
            return  # who it is is not known yet
        seen = self._known.get(cid)
        msgs = connection.in_msgs + connection.out_msgs
        if seen is None:
            seen = _Known(msgs)
        known[cid] = seen
        self._match(session, seen)
        rule = seen.rule
        if rule == NONE:
            return
        row = counts.setdefault(rule, [0, 0, 0])
        is_staying = self._clients.stays(session)
        row[0] += 1
        row[1] += is_staying
        row[2] += msgs - seen.msgs
        seen.msgs = msgs
        to = self._places[rule] if rule < len(self._places) else NONE
        if to not in (NONE, self._shard) and not is_staying and cid not in self._came_at_s:
            away.setdefault(to, []).append(cid)

    def _match(self, session: ClientSession, seen: _Known) -> None:
        connection = session.connection
        names = (session.account, session.user, session.stated[0])
        seen.looks += 1
        is_read = seen.subscriptions == NONE or (
            seen.subscriptions == connection.subscriptions and seen.looks % LOOK_ANEW != 0
        )
        if names == seen.names and is_read:
            return
        seen.names = names
        seen.rule = self._rules.of_names(*names)
        seen.subscriptions = NONE
        if self._rules.asks_for_subjects(seen.rule):
            seen.subscriptions = connection.subscriptions
            rows, _ = census.subscriptions(connection, 0, SUBSCRIPTION_SLOTS)
            seen.rule = self._rules.of_subjects((row[0] for row in rows), seen.rule)

    def _keeps(self, session: ClientSession, to: int) -> str:
        """Why a client is not to be moved to that shard only to make shards even."""
        seen = self._known.get(session.connection.cid)
        if seen is None or seen.rule == NONE or seen.rule >= len(self._places):
            return ""
        belongs = self._places[seen.rule]
        return "" if belongs in (NONE, to) else "a placement rule says where they belong"
