"""Where the clients of placement rules belong: not beyond the bound, and never back and forth."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnatswarm.broker.options import PlacementRule
from gnatswarm.router.supervision.placing import IDLE_LOAD, LIGHT_LOAD, NOWHERE, Decision, Group, Placing, decide
from gnatswarm.shards.boundary.control import Matching, RuleMatch

SHARDS = (0, 1, 2, 3)
BOUND = 1.25


def group(**by_shard: tuple[int, float]) -> Group:
    """Clients and their messages per second by shard: s0=(clients, messages)."""
    numbers = {int(name[1:]): pair for name, pair in by_shard.items()}
    return Group({n: c for n, (c, _) in numbers.items()}, {}, {n: m for n, (_, m) in numbers.items()})


def loads(groups: list[Group]) -> dict[int, float]:
    return {shard: sum(one.load(shard) for one in groups) for shard in SHARDS}


def decided(rules: list[PlacementRule], groups: list[Group], before: list[Decision] | None = None) -> list[Decision]:
    return decide(rules, groups, loads(groups), SHARDS, SHARDS, before or [], BOUND)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[PlacementRule], list[Group]]:
    n = draw(st.integers(1, 8))
    rules = [PlacementRule("name", f"n{i}", draw(st.integers(-1, 3))) for i in range(n)]
    cell = st.tuples(st.integers(0, 200), st.floats(0, 100_000))
    groups = []
    for _ in range(n):
        clients, msgs, staying = {}, {}, {}
        for shard in SHARDS:
            clients[shard], rate = draw(cell)
            msgs[shard] = rate if clients[shard] else 0.0
            staying[shard] = draw(st.integers(0, clients[shard]))
        groups.append(Group(clients, staying, msgs))
    return rules, groups


def moved(group: Group, to: int) -> Group:
    """The same clients, when those that can have gone there."""
    clients, msgs = dict(group.clients), dict(group.msgs_per_s)
    for shard in group.coming(to):
        going = clients[shard] - group.staying.get(shard, 0)
        share = going / clients[shard]
        clients[to] = clients.get(to, 0) + going
        msgs[to] = msgs.get(to, 0.0) + msgs[shard] * share
        clients[shard] -= going
        msgs[shard] -= msgs[shard] * share
    return Group(clients, dict(group.staying), msgs)


@settings(deadline=None)
@given(situations())
def test_no_shard_comes_over_the_bound_by_rules_and_what_was_decided_is_final(situation):
    rules, groups = situation
    first = decided(rules, groups)
    after = [moved(one, to.shard) if to.shard != NOWHERE else one for one, to in zip(groups, first, strict=True)]
    before, then = loads(groups), loads(after)
    mean = sum(then.values()) / len(SHARDS)
    for shard in SHARDS:
        assert then[shard] <= max(BOUND * mean, mean + LIGHT_LOAD, before[shard]) + 1e-3
    # When all have moved, nobody has another place than before.
    second = decided(rules, after, first)
    for one, other in zip(first, second, strict=True):
        assert other.shard in (one.shard, NOWHERE) or one.shard == NOWHERE
        assert one.home == NOWHERE or other.home == one.home


def test_all_on_one_shard_is_too_much_and_the_last_rules_stay_undone():
    rules = [PlacementRule("name", "a", 0), PlacementRule("name", "b", 0), PlacementRule("name", "c", 3)]
    groups = [
        group(s0=(10, 10_000.0), s1=(10, 10_000.0)),
        group(s2=(10, 40_000.0)),
        group(s3=(10, 40_000.0)),
    ]
    first, second, third = decided(rules, groups)
    assert (first.shard, second.shard, third.shard) == (0, NOWHERE, 3)
    assert second.why == "shard 0 would have 2.40 times the mean load"
    # A little less is not enough to try again; much less is.
    groups[1] = group(s2=(10, 14_000.0))
    limit = max(BOUND * sum(loads(groups).values()) / 4, sum(loads(groups).values()) / 4 + LIGHT_LOAD)
    assert 0.9 * limit < 20_000 + 14_000 + 30 * IDLE_LOAD
    assert decided(rules, groups, [first, second, third])[1].shard == NOWHERE
    groups[1] = group(s2=(10, 500.0))
    groups[2] = group(s3=(10, 60_000.0))
    assert decided(rules, groups, [first, second, third])[1].shard == 0


def test_services_that_change_places_are_not_in_each_others_way():
    rules = [PlacementRule("name", "a", 1), PlacementRule("name", "b", 0)]
    groups = [group(s0=(10, 50_000.0)), group(s1=(10, 50_000.0)), group(s2=(10, 50_000.0)), group(s3=(10, 50_000.0))]
    found = decide(rules, groups[:2], loads(groups), SHARDS, SHARDS, [], BOUND)
    assert [one.shard for one in found] == [1, 0]


def test_together_is_where_most_of_the_load_is_while_it_fits_and_stays_there():
    rules = [PlacementRule("name", "a*")]
    groups = [group(s0=(2, 100.0), s3=(3, 300.0))]
    (first,) = decided(rules, groups)
    assert first.shard == 3
    # The shard is away for a moment: nobody goes elsewhere; it is gone: they do.
    groups = [group(s0=(4, 400.0), s3=(1, 1.0))]
    (away,) = decide(rules, groups, loads(groups), (0, 1, 2), SHARDS, [first], BOUND)
    assert (away.shard, away.home) == (NOWHERE, 3)
    assert away.why == "shard 3 does not take clients; 0, 1, 2 do"
    (gone,) = decide(rules, groups, loads(groups), (0, 1, 2), (0, 1, 2), [away], BOUND)
    assert gone.shard == 0
    (back,) = decided(rules, groups, [gone])
    assert back.shard == 0


def test_together_avoids_a_shard_that_is_full():
    heavy = group(s0=(1, 100_000.0))
    (first,) = decide(
        [PlacementRule("name", "a")],
        [group(s0=(1, 6_000.0), s1=(1, 100.0))],
        {0: heavy.load(0) + 6_000.0, 1: 100.0, 2: 60_000.0, 3: 60_000.0},
        SHARDS,
        SHARDS,
        [],
        BOUND,
    )
    assert first.shard == 1


class Counted(Group, frozen=True):
    """Counts how often its load is added up."""

    looks: ClassVar[int] = 0

    def coming(self, to: int) -> dict[int, float]:
        """As Group."""
        Counted.looks += 1
        return super().coming(to)


@pytest.mark.parametrize("shard", [0, NOWHERE], ids=["too much for one shard", "together"])
def test_a_rule_costs_the_same_however_many_there_are(shard):
    n = 400
    rules = [PlacementRule("name", f"n{i}", shard) for i in range(n)]
    groups = [Counted({i % 4: 10}, {}, {i % 4: 1000.0}) for i in range(n)]
    Counted.looks = 0
    found = decide(rules, groups, loads([*groups]), SHARDS, SHARDS, [], BOUND)
    assert sum(one.is_too_much for one in found) == (275 if shard == 0 else 0)
    assert Counted.looks <= 3 * n


def test_without_shards_or_clients_nobody_belongs_anywhere():
    rules = [PlacementRule("name", "a"), PlacementRule("name", "b", 2)]
    empty = [Group({}, {}, {}), Group({}, {}, {})]
    assert [one.shard for one in decided(rules, empty)] == [NOWHERE, 2]
    first = [Decision(1, "", 1), Decision(2, "", 2)]
    none = decide(rules, empty, {}, (), (), first, BOUND)
    assert [(one.shard, one.home) for one in none] == [(NOWHERE, 1), (NOWHERE, 2)]


class Calls:
    """A loop whose calls are made by hand."""

    def __init__(self) -> None:
        self._next: Any = None

    def call_later(self, _delay_s: float, callback: Any) -> Any:
        self._next = callback
        return SimpleNamespace(cancel=lambda: None)

    def turn(self) -> None:
        call, self._next = self._next, None
        call()


def test_nobody_is_warned_of_shards_that_do_not_serve_before_the_first_did(caplog: pytest.LogCaptureFixture):
    state = SimpleNamespace(is_accepting=False)
    page = SimpleNamespace(snapshot=lambda _: {"in_msgs": 0, "out_msgs": 0, "connections": 0})
    placement = SimpleNamespace(rules=(PlacementRule("name", "a*", 0),), bound=BOUND)
    broker: Any = SimpleNamespace(
        options=SimpleNamespace(placement=placement), shards=[SimpleNamespace(number=0, state=state, process=None)],
        page=page, wanted=1, generation=1, rolling=None, is_leaving=False, is_stopping=False, placed=[],
    )  # fmt: skip
    loop: Any = Calls()
    placing = Placing(broker, loop)
    with caplog.at_level(logging.INFO, "gnatswarm.router"):
        placing.configure()
        loop.turn()
        assert not caplog.messages
        state.is_accepting = True
        placing.on_matching(0, Matching(1, []))
        loop.turn()
        assert caplog.messages == ['Clients with name "a*" belong on shard 0']
        state.is_accepting = False
        loop.turn()
    assert caplog.messages[1:] == ['Clients with name "a*" stay where they are: no shard takes clients']


@pytest.mark.parametrize(("before", "shard"), [(Decision(0, "", 0), 0), (Decision(NOWHERE, "", 0, True), NOWHERE)])
def test_a_rule_that_was_undone_is_tried_again_only_when_there_is_room_to_spare(before, shard):
    rules = [PlacementRule("name", "a", 0)]
    load = {0: 80_000.0, 1: 120_000.0, 2: 100_000.0, 3: 100_000.0}  # the bound is 125,000
    found = decide(rules, [group(s1=(1, 39_990.0))], load, SHARDS, SHARDS, [before], BOUND)
    assert found[0].shard == shard


def test_nobody_is_placed_before_all_have_spoken_nor_during_a_restart():
    said: list[Any] = []
    state = SimpleNamespace(is_accepting=True)
    page = SimpleNamespace(snapshot=lambda _: {"in_msgs": 0, "out_msgs": 0, "connections": 0})
    placement = SimpleNamespace(rules=(PlacementRule("name", "a*", -1),), bound=BOUND)
    shards = [SimpleNamespace(number=n, state=state, process=SimpleNamespace(send=said.append)) for n in range(2)]
    broker: Any = SimpleNamespace(
        options=SimpleNamespace(placement=placement), shards=shards, page=page, wanted=2, generation=1, rolling=None,
        is_leaving=False, is_stopping=False, placed=[],
    )  # fmt: skip
    loop: Any = Calls()
    placing = Placing(broker, loop)
    placing.configure()
    placing.on_matching(0, Matching(1, [RuleMatch(0, 1, 0, 0.0)]))
    loop.turn()
    assert [message.shards for message in said] == [[], []]  # most of them may be on the other one
    placing.on_matching(1, Matching(1, [RuleMatch(0, 5, 0, 0.0)]))
    loop.turn()
    assert [message.shards for message in said[2:]] == [[1], [1]]
    broker.rolling = object()
    loop.turn()
    assert [message.shards for message in said[4:]] == [[NOWHERE], [NOWHERE]]
    assert broker.placed[0].why == "a restart is under way"


def test_clients_that_are_gone_though_their_shard_still_counts_them_are_no_load():
    """All have just gone: the load of shards is known anew before the shards' word of who is where."""
    gone = [Group({1: 3000}, {1: 0}, {1: 20_000.0})]
    (found,) = decide([PlacementRule("user", "u*", 0)], gone, {0: 0.0, 1: 0.0}, [0, 1], [0, 1], [], BOUND)
    assert found.is_too_much and found.shard == NOWHERE


def test_an_error_in_a_look_does_not_end_the_looks():
    broker: Any = SimpleNamespace(
        options=SimpleNamespace(placement=SimpleNamespace(rules=(PlacementRule("name", "a*", 0),), bound=BOUND)),
        shards=None, page=None, wanted=1, generation=1, rolling=None, is_leaving=False, is_stopping=False, placed=[],
    )  # fmt: skip
    loop: Any = Calls()
    placing = Placing(broker, loop)
    placing.configure()
    for _ in range(2):
        with pytest.raises(TypeError):
            loop.turn()
