"""Where the clients of each placement rule belong at the moment: decided here, carried out by the shards.

A rule with a shard has that one, while it serves. A rule with `together` gets the shard where most of its load is, and
keeps it until that is gone. A rule stays undone where it would give its shard more than `bound` times the mean load; of
several the last ones stay undone. Nobody is moved back because of that: a client only ever moves to where its rule
says. Load is messages per second that clients publish and receive, and IDLE_LOAD for each connection. `decide` is
pure; `Placing` looks twice a second while there are rules. Made by `companions`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.options import PlacementRule
from gnatswarm.router.supervision.broker_view import RuleState
from gnatswarm.shards.boundary.control import Matching, Places, RuleMatch

if TYPE_CHECKING:
    import asyncio

    from gnatswarm.router.supervision.broker import SupervisedBroker

log = logging.getLogger("gnatswarm.router")

LOOK_S = 0.5
# A connection that says nothing still has memory, and pings: as much as so many messages a second.
IDLE_LOAD = 10.0
# A shard with no more than this above the mean has as much work as the others: some thousandths of what it can do.
LIGHT_LOAD = 5000.0
# A rule that is undone because of the bound is tried again when its shard would have so much less.
AGAIN_BELOW = 0.9
# A shard that was killed or has stopped accepting may be back as soon: till then `together` does not look elsewhere.
SOON_BACK_S = 10.0
NOWHERE = -1


class Group(msgspec.Struct, frozen=True):
    """The clients of one rule, by shard."""

    clients: dict[int, int]
    staying: dict[int, int]  # of those: that cannot move
    msgs_per_s: dict[int, float]

    def load(self, shard: int) -> float:
        """What they are to that shard."""
        return self.msgs_per_s.get(shard, 0.0) + IDLE_LOAD * self.clients.get(shard, 0)

    def coming(self, to: int) -> dict[int, float]:
        """The load that would come to `to`, by the shard that it is on; without clients that cannot move."""
        found = {}
        for shard, clients in self.clients.items():
            moving = clients - self.staying.get(shard, 0)
            if shard != to and moving > 0:
                found[shard] = self.load(shard) * moving / clients
        return found


class Decision(msgspec.Struct, frozen=True):
    """Where the clients of a rule belong, or why they stay where they are."""

    shard: int
    why: str = ""
    home: int = NOWHERE  # of a rule with `together`: its shard, also while its clients stay where they are
    is_too_much: bool = False  # they stay because of the bound


def decide(
    rules: Sequence[PlacementRule],
    groups: Sequence[Group],
    loads: Mapping[int, float],
    serving: Collection[int],
    lasting: Collection[int],
    before: Sequence[Decision],
    bound: float,
) -> list[Decision]:
    """Where the clients of each rule belong.

    `loads` are of all clients by shard. `serving` shards take clients now, `lasting` ones do, or will again soon.
    `before` is what held until now.
    """
    serving = sorted(serving)
    decisions: list[Decision] = []
    if not serving:
        return paused(rules, before, "no shard takes clients")
    mean = sum(loads.values()) / len(serving)
    limit = max(bound * mean, mean + LIGHT_LOAD)
    planned = dict(loads)  # when all clients are where the decisions so far say
    brought: dict[int, list[int]] = {}  # by shard: the rules that bring load to it
    for n, (rule, group) in enumerate(zip(rules, groups, strict=True)):
        home = rule.shard
        if home < 0:
            home = before[n].home if n < len(before) else NOWHERE
            if home not in lasting:
                home = _best(group, planned, serving, limit) if group.clients else NOWHERE
        why = "" if home in serving or home == NOWHERE else _absent(home, serving)
        decisions.append(Decision(NOWHERE if why else home, why, home))
        if not why and home != NOWHERE and _move(planned, group.coming(home), home):
            brought.setdefault(home, []).append(n)
    # What would be too much is taken back, the last rule first.
    undoing = _Undoing(brought, limit, before)
    while (over := undoing.next(planned)) >= 0:
        shard = decisions[over].shard
        times = planned[shard] / mean if mean > 0 else math.inf  # of late numbers, when all clients have just left
        why = f"shard {shard} would have {times:.2f} times the mean load"
        decisions[over] = Decision(NOWHERE, why, decisions[over].home, is_too_much=True)
        _move(planned, groups[over].coming(shard), shard, back=True)
    return decisions


def paused(rules: Sequence[PlacementRule], before: Sequence[Decision], why: str) -> list[Decision]:
    """Everybody stays for now."""
    homes = [one.home for one in before] or [rule.shard for rule in rules]
    return [Decision(NOWHERE, why, home) for home in homes]


def _move(planned: dict[int, float], coming: Mapping[int, float], to: int, *, back: bool = False) -> bool:
    """Plan that this load, by shard, comes to `to`, or (`back`) that it does not; whether there is any."""
    for shard, load in coming.items():
        moved = -load if back else load
        planned[shard] = planned.get(shard, 0.0) - moved
        planned[to] = planned.get(to, 0.0) + moved
    return bool(coming)


def _best(group: Group, planned: Mapping[int, float], serving: Sequence[int], limit: float) -> int:
    """The shard for clients that belong together: where most of their load is, else where there is most room."""
    moving = group.coming(NOWHERE)
    all_of_it = sum(moving.values())

    def after(shard: int) -> float:
        return planned.get(shard, 0.0) + all_of_it - moving.get(shard, 0.0)

    fitting = [shard for shard in serving if after(shard) <= limit]
    if not fitting:
        return max(serving, key=lambda shard: (group.load(shard), -shard))
    return max(fitting, key=lambda shard: (group.load(shard), -planned.get(shard, 0.0), -shard))


class _Undoing:
    """Finds the rules to take back, one after the other, with a look at each rule only once."""

    def __init__(self, brought: dict[int, list[int]], limit: float, before: Sequence[Decision]) -> None:
        """`brought`: by shard, the rules that bring load to it."""
        self._limit = limit
        self._undone: set[int] = set()
        # One that was too much until now is taken back where AGAIN_BELOW of the limit is exceeded.
        again = {
            shard: [n for n in rules if n < len(before) and before[n].is_too_much] for shard, rules in brought.items()
        }
        self._left = ((limit, brought), (limit * AGAIN_BELOW, again))

    def next(self, planned: Mapping[int, float]) -> int:
        """The last rule that brings load to the shard that would have most, if that is too much; -1."""
        least = self._limit * AGAIN_BELOW
        for shard in sorted((one for one in planned if planned[one] > least), key=lambda one: -planned[one]):
            over = max(self._last(rules.get(shard, [])) for most, rules in self._left if planned[shard] > most)
            if over >= 0:
                self._undone.add(over)
                return over
        return -1

    def _last(self, rules: list[int]) -> int:
        """The last one that is not undone yet; -1."""
        while rules and rules[-1] in self._undone:
            rules.pop()
        return rules[-1] if rules else -1


def _absent(shard: int, serving: Sequence[int]) -> str:
    return f"shard {shard} does not take clients; {', '.join(map(str, serving))} do"


class Placing:
    """Places the clients of one broker by its rules; `states` of the broker are what it shows."""

    def __init__(self, broker: SupervisedBroker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._rules: tuple[PlacementRule, ...] = ()
        self._found: dict[int, list[RuleMatch]] = {}  # by shard
        self._decisions: list[Decision] = []
        self._told: dict[int, tuple[object, Places]] = {}  # by shard: to which process, what
        self._counted: dict[int, tuple[float, int]] = {}  # by shard: when, messages until then
        self._served_s: dict[int, float] = {}  # by shard: when it was last seen to serve
        self._timer: asyncio.TimerHandle | None = None

    def configure(self) -> None:
        """Go by the present options."""
        rules = self._broker.options.placement.rules
        if rules != self._rules:
            self._rules = rules
            self._found.clear()
            self._decisions = []
            self._broker.placed = []
        if rules and self._timer is None:
            self._timer = self._loop.call_later(0, self._look)

    def warnings(self) -> list[str]:
        """What is wrong with the rules as things are now."""
        wanted = self._broker.wanted
        return [
            f"placement rule {shown(rule)}: there is no shard {rule.shard}; 0 to {wanted - 1} run. "
            "Its clients stay where they are"
            for rule in self._broker.options.placement.rules
            if rule.shard >= wanted
        ]

    def on_matching(self, shard: int, message: Matching) -> None:
        """A shard says which rules its clients match."""
        if message.generation == self._broker.generation:
            self._found[shard] = message.rules

    def on_shard_gone(self, shard: int) -> None:
        """Its process is gone, and its clients with it."""
        self._found.pop(shard, None)
        self._told.pop(shard, None)
        self._counted.pop(shard, None)

    def close(self) -> None:
        """Decide no more."""
        self._rules = ()

    def _look(self) -> None:
        self._timer = None
        if not self._rules or self._broker.is_leaving or self._broker.is_stopping:
            self._told.clear()
            return
        self._timer = self._loop.call_later(LOOK_S, self._look)
        broker = self._broker
        groups = self._groups()
        serving = [one.number for one in broker.shards if one.number < broker.wanted and one.state.is_accepting]
        now = time.monotonic()
        self._served_s |= dict.fromkeys(serving, now)
        loads = self._loads(now)
        # Before the first shard serves there is nothing to decide, nor to warn of. Until all have said what they have,
        # most of a rule's clients may be elsewhere.
        if broker.rolling is not None:
            self._decisions = paused(self._rules, self._decisions, "a restart is under way")
        elif self._served_s and all(shard in self._found for shard in serving):
            lasting = [
                shard for shard, at in self._served_s.items() if shard < broker.wanted and now - at < SOON_BACK_S
            ]
            bound = broker.options.placement.bound
            decisions = decide(self._rules, groups, loads, serving, lasting, self._decisions, bound)
            self._say_what_changed(decisions)
            self._decisions = decisions
        broker.placed = [
            _state(rule, group, decision)
            for rule, group, decision in zip(self._rules, groups, self._decisions, strict=False)
        ]
        self._tell()

    def _groups(self) -> list[Group]:
        groups = [Group({}, {}, {}) for _ in self._rules]
        for shard, rows in self._found.items():
            for row in rows:
                if row.rule < len(groups):
                    group = groups[row.rule]
                    group.clients[shard] = row.clients
                    group.staying[shard] = row.staying
                    group.msgs_per_s[shard] = row.msgs_per_s
        return groups

    def _loads(self, now: float) -> dict[int, float]:
        """The load of each shard since the last look."""
        loads = {}
        for shard in self._broker.shards:
            slot = self._broker.page.snapshot(shard.number)
            msgs = slot["in_msgs"] + slot["out_msgs"]
            at, before = self._counted.get(shard.number, (now, msgs))
            self._counted[shard.number] = now, msgs
            rate = max(0, msgs - before) / (now - at) if now > at else 0.0
            loads[shard.number] = rate + IDLE_LOAD * slot["connections"]
        return loads

    def _say_what_changed(self, decisions: list[Decision]) -> None:
        for n, (rule, decision) in enumerate(zip(self._rules, decisions, strict=True)):
            before = self._decisions[n] if n < len(self._decisions) else Decision(NOWHERE)
            if decision.shard == NOWHERE and decision.why and not before.why:
                log.warning("Clients with %s stay where they are: %s", shown(rule), decision.why)
            elif decision.shard not in (NOWHERE, before.shard):
                log.info("Clients with %s belong on shard %d", shown(rule), decision.shard)

    def _tell(self) -> None:
        message = Places(self._broker.generation, [decision.shard for decision in self._decisions])
        for shard in self._broker.shards:
            process = shard.process
            if process is not None and shard.state.is_accepting and self._told.get(shard.number) != (process, message):
                self._told[shard.number] = process, message
                process.send(message)


def shown(rule: PlacementRule) -> str:
    """The rule's pattern, for operators."""
    return f'{rule.kind} "{rule.pattern}"'


def _state(rule: PlacementRule, group: Group, decision: Decision) -> RuleState:
    clients = sum(group.clients.values())
    in_place = group.clients.get(decision.shard, 0)
    staying = sum(n for shard, n in group.staying.items() if shard != decision.shard)
    return RuleState(
        rule=shown(rule),
        together=rule.shard < 0,
        shard=decision.shard,
        clients=clients,
        in_place=in_place,
        staying=staying,
        msgs_per_s=round(sum(group.msgs_per_s.values()), 1),
        why=decision.why,
    )
