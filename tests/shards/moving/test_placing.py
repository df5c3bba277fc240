"""A shard's part of placement: clients that have just come or cannot move stay, and places are those of its rules."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Placement, PlacementRule
from gnatswarm.shards.boundary.control import Places
from gnatswarm.shards.moving import placing
from gnatswarm.shards.moving.placing import STAY_S, Placing


class Here:
    """Shard 0 with clients 1 and 2, of which a rule says that they belong on shard 1."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.next: Callable[[], None] | None = None
        self.asked: list[dict[int, list[int]]] = []
        self.staying: set[int] = set()
        sessions = {cid: self.session(cid) for cid in (1, 2)}
        clients: Any = SimpleNamespace(open=sessions, stays=lambda one: one.connection.cid in self.staying)
        self.sessions = sessions
        self.departures: Any = SimpleNamespace(begin_named=lambda away, _done: self.asked.append(away), keeps=None)
        loop: Any = SimpleNamespace(time=lambda: self.now_s, call_later=self.call_later)
        departures: Any = self.departures
        self.told: list[Any] = []
        self.placing = Placing(loop, clients, departures, shard=0, tell=self.told.append)
        self.placing.configure(Placement(rules=(PlacementRule("user", "u*", 1),)), 7)

    @staticmethod
    def session(cid: int) -> Any:
        connection = SimpleNamespace(cid=cid, must_authenticate=False, in_msgs=0, out_msgs=0, subscriptions=0)
        return SimpleNamespace(connection=connection, connect=None, account="$G", user=f"u{cid}", stated=("", "", ""))

    def call_later(self, wait_s: float, call: Callable[[], None]) -> Any:
        self.next = call
        return SimpleNamespace(cancel=lambda: None)

    def look(self) -> list[int]:
        """Who is asked to go to shard 1 after one more look at all."""
        self.asked.clear()
        is_over = False
        while not is_over:
            assert self.next is not None
            self.now_s += 1.0
            self.next()
            is_over = self.placing._look is None
        return sorted(self.asked[0].get(1, [])) if self.asked else []


@pytest.fixture(params=[False, True], ids=["at once", "in steps"])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A look takes one step, or (as where the shard is kept from its processor) one more."""
    monkeypatch.setattr(placing, "STEP_S", -1.0 if request.param else 1e9)
    return Here()


def test_clients_go_where_the_router_says(here: Here):
    assert here.look() == []
    here.placing.go_by(Places(7, [1]))
    assert here.look() == [1, 2]


def test_who_has_just_come_from_another_shard_stays_for_a_while(here: Here):
    here.placing.go_by(Places(7, [1]))
    here.placing.note_arrival(2)
    assert here.look() == [1]
    here.now_s += STAY_S
    here.look()
    assert here.look() == [1, 2]


def test_who_cannot_move_is_not_asked_to(here: Here):
    here.placing.go_by(Places(7, [1]))
    here.staying = {1}
    assert here.look() == [2]


def test_places_of_other_rules_do_not_count(here: Here):
    here.placing.go_by(Places(6, [1]))
    assert here.look() == []


def test_who_is_in_place_is_not_moved_to_make_shards_even(here: Here):
    here.placing.go_by(Places(7, [0]))
    assert here.look() == []
    assert "a placement rule" in here.departures.keeps(here.sessions[1], 1)
    assert here.departures.keeps(here.sessions[1], 0) == ""


def test_a_shard_that_leaves_places_nobody(here: Here):
    here.placing.go_by(Places(7, [1]))
    here.next = None
    here.placing.stop()
    assert here.next is None


def test_a_shard_that_leaves_keeps_nobody_because_of_a_rule(here: Here):
    here.look()
    here.placing.go_by(Places(7, [0]))
    assert here.departures.keeps(here.sessions[1], 1)
    here.placing.stop()
    assert here.departures.keeps(here.sessions[1], 1) == ""


def test_clients_have_a_turn_after_each_one_that_costs_much(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placing, "STEP_S", -1.0)
    matched: list[int] = []
    monkeypatch.setattr(here.placing, "_match", lambda session, _seen: matched.append(session.connection.cid))
    for looked in (1, 2):
        assert here.next is not None
        here.next()
        assert len(matched) == looked


def test_the_router_hears_how_much_was_said_since_the_last_look(here: Here):
    for _ in range(3):
        here.look()
        here.sessions[1].connection.in_msgs += 30
        here.sessions[2].connection.out_msgs += 10
    here.look()
    here.look()
    rates = [row.msgs_per_s for told in here.told for row in told.rules]
    assert len(rates) == 2 and rates[0] > 0 and rates[1] == 0, "the same is not told again"


def test_a_look_in_the_millisecond_of_the_last_one_divides_by_nothing(here: Here):
    """As after a reload: the clock of the event loop stands still meanwhile."""
    here.look()
    here.sessions[1].connection.in_msgs += 3
    here.placing.configure(Placement(rules=(PlacementRule("user", "u*", 1),)), 8)
    is_over = False
    while not is_over:
        assert here.next is not None
        here.next()
        is_over = here.placing._look is None
    assert here.told[-1].generation == 8
