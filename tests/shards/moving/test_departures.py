"""Which clients move next, and where to; the test moves the clock and says how each batch ends."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.shards.moving import host
from gnatswarm.shards.moving.departures import (
    AGAIN_S,
    BATCH_CLIENTS,
    CLIENTS_PER_S,
    FEW_SUBSCRIPTIONS,
    PATIENCE_S,
    STOP_AFTER_S,
    Departures,
    ToOthers,
)


class Timer:
    def __init__(self) -> None:
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


class Connection(int):
    """A client by its number."""

    subscriptions = 0

    @property
    def cid(self) -> int:
        return int(self)


class World:
    """The loop, the clients, the engine's moves and the host of one shard."""

    def __init__(self, clients: int) -> None:
        self.now_s = 100.0
        self._due: list[tuple[float, int, Callable[..., object], Timer]] = []
        self._numbers = itertools.count()
        self.open: dict[int, Any] = {n: SimpleNamespace(connection=Connection(n)) for n in range(clients)}
        self.objections: dict[int, str] = {}
        self.closed: dict[int, str] = {}  # shards that cannot be reached, with the reason
        self.late_objections: dict[int, str] = {}  # of those that were chosen
        self.asked: list[int] = []  # … for these
        self.refuses = ""
        self.most_beside = BATCH_CLIENTS  # clients for which there is room at the old shard, at a time
        self.most_fitting = BATCH_CLIENTS  # clients whose subscriptions fit one offer
        self.batches: list[tuple[int, list[int]]] = []
        self.began_s: list[float] = []
        self.n_stopped = 0
        self.n_heard = self.n_moved = 0
        self.done: list[tuple[int, dict[str, int]]] = []
        self.departures = Departures(self, self, self)  # type: ignore[arg-type]
        self.departures.host = self  # type: ignore[assignment]

    def stays(self, session: object) -> bool:
        return False

    # the loop
    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, call: Callable[..., object]) -> Timer:
        timer = Timer()
        heapq.heappush(self._due, (self.now_s + after_s, next(self._numbers), call, timer))
        return timer

    def call_soon(self, call: Callable[..., object]) -> Timer:
        return self.call_later(0.0, call)

    def in_turn(self, work: Callable[[], object]) -> None:
        self.call_soon(work)

    def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, call, timer = heapq.heappop(self._due)
            if not timer.is_over:
                call()
        self.now_s = until_s

    # clients, moves, host
    def finish_soon(self) -> None:
        pass

    def objection(self, session: Any, beside: int) -> str:
        return self.objections.get(session.connection, "" if beside < self.most_beside else "there is no room")

    def open_way(self, shard: int) -> str:
        return self.closed.get(shard, "")

    def move(self, connections: Any, shard: int) -> None:
        """As Moves.move(), and as the `Mover` of a departure."""
        if self.refuses:
            raise RecordRefused(self.refuses)
        assert len(connections) <= self.most_fitting
        self.batches.append((shard, list(connections)))
        self.began_s.append(self.now_s)

    def fitting(self, connections: Any) -> int:
        return min(len(connections), self.most_fitting)

    def why_not(self, connection: Any) -> str | None:
        self.asked.append(connection)
        return self.late_objections.get(connection)

    def stop(self) -> None:
        self.n_stopped += 1

    # the test
    def begin(self, to: dict[int, int], within_s: float = 10.0) -> bool:
        began = self.departures.begin(to, within_s, lambda *words: self.done.append(words))
        self.advance(0)
        return began

    def arrive(self) -> None:
        """The present batch is over: its clients have gone."""
        for cid in self.batches[-1][1]:
            del self.open[cid]
        self.n_moved += len(self.batches[-1][1])
        self.departures.on_ended("")
        self.advance(0)


@pytest.mark.parametrize(("subscriptions", "each"), [(3000, 1), (2000, 2), (100_000, 1), (1, BATCH_CLIENTS)])
def test_no_more_are_looked_at_for_a_batch_than_their_subscriptions_let_in(
    monkeypatch: pytest.MonkeyPatch, subscriptions: int, each: int
) -> None:
    """Others would be looked at anew for each batch."""
    monkeypatch.setattr(Connection, "subscriptions", subscriptions)
    world = World(24)
    assert world.begin({1: 24}, within_s=10_000.0)
    while not world.done:
        world.arrive()
        world.advance(60.0)
    assert {len(batch) for _, batch in world.batches} == {min(each, 24)}
    assert sorted(world.asked) == list(range(24))
    assert world.done == [(24, {})]


def test_so_many_go_to_each_shard_a_batch_at_a_time() -> None:
    world = World(100)
    assert world.begin({1: 40, 2: 5})
    assert not world.begin({1: 1}), "others are being moved"
    while not world.done:
        world.arrive()
        world.advance(1.0)
    assert [(shard, len(batch)) for shard, batch in world.batches] == [(1, BATCH_CLIENTS), (1, 8), (2, 5)]
    assert world.done == [(45, {})] and not world.departures.is_under_way
    assert len(world.open) == 55


def test_who_cannot_move_is_waited_for_with_patience_and_no_longer() -> None:
    world = World(3)
    world.objections[0] = "it has not logged in"
    world.departures.begin({1: 3}, 30.0, lambda *words: world.done.append(words), patience_s=PATIENCE_S)
    world.advance(0)
    world.arrive()
    world.advance(PATIENCE_S - 2 * AGAIN_S)
    assert not world.done
    world.advance(3 * AGAIN_S)
    assert world.done == [(2, {"it has not logged in": 1})]


def test_a_batch_is_followed_by_a_pause() -> None:
    world = World(100)
    world.begin({1: 100})
    world.advance(0.001)
    world.arrive()
    world.advance(1.0)
    assert world.began_s[1] - world.began_s[0] == pytest.approx(BATCH_CLIENTS / CLIENTS_PER_S)


def test_a_batch_that_waits_too_long_is_stopped_and_its_clients_are_tried_again() -> None:
    world = World(3)
    world.begin({1: 3})
    world.advance(STOP_AFTER_S - 0.01)
    assert world.n_stopped == 0
    world.advance(0.02)
    assert world.n_stopped == 1
    world.departures.on_ended("it was stopped")
    world.advance(AGAIN_S * 3)
    assert world.batches == [(1, [0, 1, 2])] * 2
    world.arrive()
    world.advance(1.0)
    assert world.done == [(3, {})]
    assert world.n_stopped == 1, "of the second batch nothing is to be stopped"


def test_others_go_without_the_client_whose_subscriptions_kept_their_batch_too_long() -> None:
    """It comes last, and alone, as often as there is time."""
    world = World(5)
    world.open[1].connection.subscriptions = 1000
    world.open[3].connection.subscriptions = 1000
    world.begin({1: 5}, within_s=60.0)
    for without in ([1], [1, 3]):
        world.advance(STOP_AFTER_S + 1.0)
        world.departures.on_ended("it was stopped")
        world.advance(AGAIN_S * 3)
        if len(without) == 1:
            assert world.batches == [(1, [0, 1, 2, 3, 4])] * 2, "two have as many"
            world.open[3].connection.subscriptions = 10
    assert world.batches[2] == (1, [0, 2, 3, 4])
    world.arrive()
    world.advance(1.0)
    assert world.batches[3:] == [(1, [1])]
    world.advance(STOP_AFTER_S + 1.0)
    world.departures.on_ended("it was stopped")
    world.advance(AGAIN_S * 3)
    assert world.batches[3:] == [(1, [1])] * 2
    world.arrive()
    world.advance(1.0)
    assert world.done == [(5, {})]


def test_who_moves_alone_is_not_stopped_while_the_next_shard_takes_its_subscriptions() -> None:
    """They may be long, and the machine busy."""
    world = World(2)
    world.open[1].connection.subscriptions = 1000
    world.begin({1: 2}, within_s=60.0)
    world.n_heard = 1
    world.advance(STOP_AFTER_S + 1.0)
    assert world.n_stopped == 1, "the other one waits for it"
    world.departures.on_ended("it was stopped")
    world.advance(AGAIN_S * 3)
    world.arrive()
    world.advance(1.0)
    assert world.batches[2:] == [(1, [1])]
    for n in range(2, 6):
        world.n_heard = n
        world.advance(STOP_AFTER_S)
        assert world.n_stopped == 1
    world.advance(STOP_AFTER_S + 1.0)
    assert world.n_stopped == 2


def test_clients_with_many_subscriptions_have_more_time() -> None:
    world = World(1)
    world.open[0].connection.subscriptions = 50_000
    world.begin({1: 1}, within_s=60.0)
    world.advance(STOP_AFTER_S + 5.0)
    assert world.n_stopped == 0
    world.advance(10.0)
    assert world.n_stopped == 1


def test_who_cannot_move_is_tried_until_the_time_is_up() -> None:
    world = World(3)
    world.objections = {0: "its PONG is due", 1: "it has TLS", 2: "it has TLS"}
    world.begin({1: 3}, within_s=1.0)
    world.advance(0.5)
    assert not world.batches
    del world.objections[0]
    world.advance(AGAIN_S * 2)
    assert world.batches == [(1, [0])]
    world.arrive()
    world.advance(1.0)
    assert world.done == [(1, {"it has TLS": 2})]


@pytest.mark.parametrize("first", [1, 2])
def test_where_a_shard_takes_nobody_the_others_take_its_share(first: int) -> None:
    world = World(30)
    world.closed = {first: "shard is leaving"}
    world.begin({1: 10, 2: 10, 3: 10})
    while not world.done:
        world.arrive()
        world.advance(1.0)
    others = [shard for shard in (1, 2, 3) if shard != first]
    gone = {shard: sum(len(batch) for to, batch in world.batches if to == shard) for shard in others}
    assert gone == dict.fromkeys(others, 15)
    assert world.done[0][0] == 30


@pytest.mark.parametrize("others", [10, 5])
def test_a_shard_that_refuses_a_batch_does_not_keep_the_others_waiting(others: int) -> None:
    world = World(20)
    world.begin({1: 10, 2: others})
    assert world.batches[-1][0] == 1
    world.departures.on_ended("its link broke")
    world.advance(AGAIN_S)
    assert world.batches[-1][0] == 2
    world.arrive()
    world.advance(1.0)
    assert world.batches[-1][0] == 1, "it is asked again"


@pytest.mark.parametrize("refused", [0, 13, 31])
def test_a_client_that_a_shard_refuses_keeps_no_others(refused: int) -> None:
    """Batches without it are soon found, and get larger again; it is tried last, as often as there is time."""
    world = World(40)
    world.begin({1: 40})
    while len(world.open) > 1:
        assert len(world.batches) < 30
        if refused in world.batches[-1][1]:
            world.departures.on_ended("its permissions are different here")
            world.advance(AGAIN_S * 2)
        else:
            world.arrive()
            world.advance(1.0)
    assert list(world.open) == [refused]
    assert max(len(batch) for _, batch in world.batches[1:]) > 8
    for _ in range(2):
        assert world.batches[-1] == (1, [refused])
        world.departures.on_ended("its permissions are different here")
        world.advance(AGAIN_S * 2)
    world.arrive()
    world.advance(1.0)
    assert world.done == [(40, {})]


def test_who_has_gone_meanwhile_has_not_moved() -> None:
    world = World(3)
    world.begin({1: 3})
    world.n_moved += 2
    for cid in range(3):
        del world.open[cid]
    world.departures.on_ended("")
    world.advance(1.0)
    assert world.done == [(2, {})]


def test_of_a_batch_that_broke_those_who_had_gone_by_then_have_moved() -> None:
    world = World(3)
    world.begin({1: 3})
    del world.open[0]
    world.n_moved += 1
    world.departures.on_ended("its link broke")
    world.advance(AGAIN_S * 2)
    assert world.batches[1] == (1, [1])
    world.arrive()
    world.advance(1.0)
    world.arrive()
    world.advance(1.0)
    assert world.done == [(3, {})]


def test_a_shard_that_refuses_everybody_is_asked_no_longer_than_patience_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(2)
    world.departures.begin({1: 2}, 30.0, lambda *words: world.done.append(words), patience_s=PATIENCE_S)
    world.advance(0)
    tried = 0
    while not world.done:
        if len(world.batches) > tried:
            tried = len(world.batches)
            world.departures.on_ended("its links to other shards are not the same")
        world.advance(AGAIN_S / 2)
    assert world.now_s - world.began_s[0] == pytest.approx(PATIENCE_S, abs=2 * AGAIN_S)
    assert tried > PATIENCE_S / AGAIN_S / 2
    assert len(caplog.records) <= PATIENCE_S + 1, "the log says it once a second"


def test_the_only_shard_is_asked_again_until_the_time_is_up() -> None:
    world = World(2)
    world.closed = {1: "shard 1 is not there"}
    world.begin({1: 2}, within_s=1.0)
    world.advance(0.5)
    assert not world.done
    world.advance(1.0)
    assert world.done == [(0, {"shard 1 is not there": 1})]


def test_a_journey_to_a_shard_that_has_gone_ends_when_its_patience_does() -> None:
    world = World(2)
    world.closed = {1: "shard 1 is not there"}
    world.departures.begin({1: 2}, 30.0, lambda *words: world.done.append(words), patience_s=PATIENCE_S)
    world.advance(PATIENCE_S - 0.1)
    assert not world.done
    world.advance(0.2)
    assert world.done == [(0, {"shard 1 is not there": 1})]


def leaving(world: World, to: list[int]) -> ToOthers:
    prefixes = SimpleNamespace(is_leaving=False, hand_over=lambda to: None)
    return ToOthers(world.departures, prefixes, to)  # type: ignore[arg-type]


def test_a_shard_that_leaves_does_not_wait_for_an_operator_s_journey() -> None:
    """That one leads to a shard that leaves too."""
    world = World(3)
    world.closed = {1: "shard 1 is leaving"}
    world.begin({1: 3}, within_s=30.0)
    others = leaving(world, [2])
    for _ in range(10):  # as often as it looks
        others.move(3, 8.0)
        world.advance(0.05)
    assert world.batches == [(2, [0, 1, 2])]
    assert world.done == [(0, {"shard 1 is leaving": 1})]
    assert not world.begin({2: 1})


def test_a_shard_that_leaves_waits_for_the_present_batch_alone() -> None:
    world = World(100)
    world.begin({1: 100})
    world.departures.begin_named({1: [1]}, lambda: None)
    others = leaving(world, [2])
    others.move(100, 8.0)
    others.move(100, 8.0)
    world.advance(0.5)
    assert len(world.batches) == 1
    world.arrive()
    world.advance(0.1)
    assert [to for to, _ in world.batches] == [1, 2]
    assert world.done == [(BATCH_CLIENTS, {})]


def test_who_waits_behind_named_clients_is_told_that_a_shard_that_leaves_goes_first() -> None:
    world = World(3)
    world.departures.begin_named({1: [0]}, lambda: None)
    world.advance(0)
    world.begin({1: 3})
    leaving(world, [2]).move(3, 8.0)
    assert world.done == [(0, {})]
    world.arrive()
    world.advance(1.0)
    assert [to for to, _ in world.batches] == [1, 2]


def test_what_the_engine_refuses_is_told_and_tried_again() -> None:
    world = World(1)
    world.refuses = "a link to another shard is not in step"
    world.begin({1: 1, 2: 1})
    world.advance(AGAIN_S * 4)
    assert not world.batches
    world.refuses = ""
    world.advance(AGAIN_S * 2)
    assert len(world.batches) == 1


def test_who_cannot_move_any_more_when_the_batch_begins_leaves_the_others_alone() -> None:
    world = World(3)
    world.late_objections = {1: "it waits for a slow receiver"}
    world.begin({1: 3})
    assert world.batches == [(1, [0, 2])]
    world.late_objections.clear()
    world.arrive()
    world.advance(1.0)
    assert world.batches[1:] == [(1, [1])]


def test_those_whose_subscriptions_do_not_fit_one_offer_follow_in_the_next() -> None:
    world = World(8)
    world.most_fitting = 3
    world.begin({1: 8})
    while not world.done:
        world.arrive()
        world.advance(1.0)
    assert [len(batch) for _, batch in world.batches] == [3, 3, 2]
    assert world.done == [(8, {})] and not world.open


def test_named_clients_whose_subscriptions_do_not_fit_one_offer_follow_in_the_next() -> None:
    world = World(9)
    world.most_fitting = 3
    world.late_objections = {1: "it waits for a slow receiver"}
    done: list[bool] = []
    world.departures.begin_named({1: range(9)}, lambda: done.append(True))
    world.advance(0)
    while not done:
        world.arrive()
        world.advance(1.0)
    assert [batch for _, batch in world.batches] == [[0, 2, 3], [4, 5, 6], [7, 8]]
    assert list(world.open) == [1]


def room_for(world: World, clients: int) -> None:
    """End the present batches, for which the new shard has so many descriptors, until the journey is over."""
    seen = 0
    while not world.done and len(world.batches) > seen:
        seen = len(world.batches)
        batch = world.batches[-1][1]
        if len(batch) > clients:
            world.departures.on_ended(host.NO_ROOM)
            world.advance(AGAIN_S)
        else:
            clients -= len(batch)
            world.arrive()
            world.advance(AGAIN_S)


@pytest.mark.parametrize("room", [0, 1, 5, 31, 32, 33, 47])
def test_as_many_move_as_the_new_shard_has_descriptors_for(room: int) -> None:
    world = World(48)
    world.begin({1: 48}, 2.0)
    room_for(world, room)
    while not world.done:
        assert len(world.batches[-1][1]) == 1, "a shard that has no room at all is asked for one client alone"
        world.departures.on_ended(host.NO_ROOM)
        world.advance(AGAIN_S)
    assert world.done[0][0] == room and len(world.open) == 48 - room


def test_named_clients_move_as_far_as_there_are_descriptors_too() -> None:
    world = World(20)
    done: list[bool] = []
    world.departures.begin_named({1: range(20)}, lambda: done.append(True))
    world.advance(0)
    room_for(world, 9)
    assert done and len(world.open) == 11


def test_as_many_move_together_as_the_old_shard_has_room_for() -> None:
    """Those chosen for a batch before a client take some, too."""
    world = World(10)
    world.most_beside = 4
    world.begin({1: 10})
    for _ in range(3):
        world.arrive()
        world.advance(1.0)
    assert [len(batch) for _, batch in world.batches] == [4, 4, 2] and world.done == [(10, {})]


def test_a_batch_is_large_again_where_there_is_room_again() -> None:
    world = World(200)
    world.begin({1: 200})
    room_for_none = [32, 16, 8, 4, 2, 1]
    for size in room_for_none:
        assert len(world.batches[-1][1]) == size
        world.departures.on_ended(host.NO_ROOM)
        world.advance(2 * AGAIN_S)
    while not world.done:
        world.arrive()
        world.advance(AGAIN_S)
    assert [len(batch) for _, batch in world.batches[6:]][:7] == [1, 2, 4, 8, 16, 32, 32]
    assert world.done == [(200, {})]


@pytest.mark.parametrize("why", [host.NO_ROOM, "its link broke"])
def test_a_cancelled_journey_does_not_go_on_when_its_last_batch_stays(why: str) -> None:
    world = World(40)
    world.begin({1: 40})
    world.departures.cancel()
    world.departures.on_ended(why)
    world.advance(1.0)
    assert world.done == [(0, {})] and len(world.batches) == 1


def test_a_cancelled_journey_begins_no_further_batch() -> None:
    world = World(100)
    world.begin({1: 100})
    world.departures.cancel()
    world.arrive()
    world.advance(1.0)
    assert len(world.batches) == 1 and world.done == [(BATCH_CLIENTS, {})]


def test_a_shard_that_leaves_sends_as_many_to_each_of_the_others() -> None:
    world = World(7)
    handed_over: list[list[int]] = []
    prefixes = SimpleNamespace(is_leaving=False, hand_over=handed_over.append)
    others = ToOthers(world.departures, prefixes, [2, 4, 5])  # type: ignore[arg-type]
    assert prefixes.is_leaving, "it takes no replies over any more"
    others.move(7, 10.0)
    world.advance(0)
    while world.open:
        world.arrive()
        world.advance(1.0)
    assert sorted((shard, len(batch)) for shard, batch in world.batches) == [(2, 3), (4, 2), (5, 2)]
    assert not handed_over
    others.hand_over()
    assert handed_over == [[2, 4, 5]]


def test_from_a_shard_that_leaves_those_with_few_subscriptions_go_first_and_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine one with thousands of them takes as long as hundreds of others, which were closed instead."""
    heavy = {0, 3, 4, 20}
    few = FEW_SUBSCRIPTIONS
    monkeypatch.setattr(Connection, "subscriptions", property(lambda one: few + 1 if one in heavy else few))
    world = World(40)
    others = leaving(world, [1])
    others.move(40, 100.0)
    world.advance(0.0)
    while world.open:
        world.arrive()
        world.advance(1.0)
    light = [cid for cid in range(40) if cid not in heavy]
    assert [batch for _, batch in world.batches] == [light[:BATCH_CLIENTS], light[BATCH_CLIENTS:], sorted(heavy)]


def test_those_with_few_subscriptions_go_first_again_when_a_batch_was_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = FEW_SUBSCRIPTIONS
    monkeypatch.setattr(Connection, "subscriptions", property(lambda one: few + 1 if one == 0 else few))
    world = World(3)
    others = leaving(world, [1])
    others.move(3, 100.0)
    world.advance(0.0)
    world.departures.on_ended("a link between shards is missing")
    world.advance(1.0)
    while world.open:
        world.arrive()
        world.advance(1.0)
    assert [batch for _, batch in world.batches[1:]] in ([[1, 2], [0]], [[1], [2], [0]])


def test_who_stays_when_a_shard_leaves_and_why_is_known_in_the_end() -> None:
    world = World(4)
    others = leaving(world, [1])
    assert others.why() == "", "nobody was tried"
    world.objections = {0: "a queue subscription of its has a max", 1: "it has TLS", 2: "it has TLS"}
    others.move(4, 2.0)
    world.advance(0.0)
    world.arrive()
    for _ in range(60):
        world.advance(0.05)
    why = "1: a queue subscription of its has a max; 2: it has TLS"
    assert others.why() == why
    assert others.failing == {0, 1, 2}
    world.objections.clear()
    world.advance(0.1)
    others.move(3, 2.0)
    world.advance(0.1)
    assert not others.failing


def test_who_is_still_being_moved_when_the_time_is_up_is_known_too() -> None:
    world = World(1)
    others = leaving(world, [1])
    others.move(1, 2.0)
    world.advance(0.0)
    assert len(world.batches) == 1
    assert others.why() == "1: it is still being moved"
