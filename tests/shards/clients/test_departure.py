"""A shard leaves only when its clients were told, given time and closed; the test moves the clock."""

from __future__ import annotations

import heapq
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.boundary import control
from gnatswarm.shards.clients.departure import QUIET_S, STEP_S, Departure
from gnatswarm.shards.clients.hearing import HEAR_OUT_S
from gnatswarm.shards.worker import Worker


class Clock:
    """The part of an event loop that a departure knows."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), callback, arguments))

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.call_later(0.0, callback, *arguments)

    def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, callback, arguments = heapq.heappop(self._due)
            callback(*arguments)
        self.now_s = until_s


@dataclass
class Clients:
    """The clients of a shard; a closed client is removed at once and noted with the time."""

    clock: Clock
    open: dict[int, Any] = field(default_factory=dict)
    accepted: int = 0
    told: int = 0
    closed: list[tuple[float, int]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)  # the other end has closed, and what it sent is still to be read
    with_tls: set[int] = field(default_factory=set)
    unheard: set[int] = field(default_factory=set)  # who is still being heard out
    heard_out_s: list[float] = field(default_factory=list)
    passwords: Any = field(default_factory=lambda: SimpleNamespace(close=lambda: None))

    def come(self, *, pending_bytes: int = 0, is_moving: bool = False) -> None:
        self.accepted += 1
        connection = SimpleNamespace(cid=self.accepted, pending_bytes=pending_bytes, is_moving=is_moving)
        self.open[self.accepted] = SimpleNamespace(connection=connection)

    def stays(self, session: Any) -> bool:
        return session.connection.cid in self.with_tls

    def announce_departure(self, *, with_tls_only: bool = False) -> None:
        self.told += not with_tls_only

    def read_ahead(self) -> tuple[int, set[int]]:
        self.heard_out_s.append(self.clock.now_s)
        ended = self.ended & set(self.open)
        return len(ended), ended

    def hear_out(self, sessions: Iterable[Any]) -> list[Any]:
        return [session for session in sessions if session.connection.cid not in self.unheard]

    def close(self, sessions: Iterable[Any], reason: CloseReason) -> None:
        assert reason is CloseReason.SERVER_SHUTDOWN
        for session in sessions:
            del self.open[session.connection.cid]
            self.closed.append((self.clock.now_s, session.connection.cid))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def clients(clock: Clock) -> Clients:
    return Clients(clock)


class Leaving:
    """A departure that begins now, and when it was over."""

    def __init__(self, clock: Clock, clients: Clients, **times: Any) -> None:
        self.done_s: list[float] = []
        self._clock = clock
        Departure(clock, clients, **times, on_done=lambda: self.done_s.append(clock.now_s))  # type: ignore[arg-type]

    @property
    def is_done(self) -> bool:
        return bool(self.done_s)


def test_nobody_is_left_in_the_queue_though_nobody_is_connected(clock: Clock, clients: Clients) -> None:
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0)
    clock.advance(1.0 - 2 * STEP_S)
    assert clients.told == 1 and not leaving.is_done
    clock.advance(3 * STEP_S)
    assert len(leaving.done_s) == 1


def test_each_that_still_comes_makes_it_wait_anew(clock: Clock, clients: Clients) -> None:
    leaving = Leaving(clock, clients, grace_s=20.0, spread_s=20.0, quiet_s=1.0)
    for _ in range(5):
        clock.advance(0.8)
        clients.come()
        clients.open.clear()  # it was told, and went by itself
    clock.advance(1.0 - 2 * STEP_S)
    assert not leaving.is_done
    clock.advance(4 * STEP_S)
    assert len(leaving.done_s) == 1


def test_a_quiet_queue_is_not_enough_while_somebody_is_connected(clock: Clock, clients: Clients) -> None:
    clients.come()
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0)
    clock.advance(4.0)
    assert not leaving.is_done and not clients.closed
    clients.open.clear()
    clock.advance(2 * STEP_S)
    assert leaving.is_done


@pytest.mark.parametrize(("count", "last_s"), [(3, 2.0), (400, 109.7)])
def test_few_clients_are_closed_within_a_second_of_each_other(
    clock: Clock, clients: Clients, count: int, last_s: float
) -> None:
    """As nats-server does in lame duck mode; many within the time that is configured."""
    for _ in range(count):
        clients.come()
    leaving = Leaving(clock, clients, grace_s=10.0, spread_s=110.0, quiet_s=0.0)
    began_s = clock.now_s + 10.0
    clock.advance(10.0 - 2 * STEP_S)
    assert not clients.closed
    clock.advance(120.0)
    closed_s = [when_s - began_s for when_s, _ in clients.closed]
    assert len(closed_s) == count and leaving.is_done
    assert last_s - 2 * STEP_S <= closed_s[-1] <= last_s + 2 * STEP_S
    assert max(after - before for before, after in itertools.pairwise(closed_s)) <= 1.0 + 2 * STEP_S


def test_it_stays_while_clients_elsewhere_need_it(clock: Clock, clients: Clients) -> None:
    """They are on their way, or answers to their requests come through this shard."""
    needs = [True]
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, is_awaited=lambda: needs[0])
    clock.advance(4.0)
    assert not leaving.is_done
    needs[0] = False
    clock.advance(2 * STEP_S)
    assert leaving.is_done


class Mover:
    """Notes what it is told to do, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.said: list[tuple[str, float]] = []
        self.failing: set[int] = set()

    def move(self, clients: int, within_s: float) -> None:
        self.said.append((f"move {clients}", self.clock.now_s))

    def why(self) -> str:
        return "1: it has a reason"

    def stop(self) -> None:
        self.said.append(("stop", self.clock.now_s))

    def hand_over(self) -> None:
        self.said.append(("hand over", self.clock.now_s))


@pytest.mark.parametrize("has_moved", [True, False])
def test_what_is_due_is_handed_over_once_no_client_is_left_and_the_queue_is_quiet(
    clock: Clock, clients: Clients, has_moved: bool
) -> None:
    """Also where the last ones could not move, and went when they were told."""
    clients.come()
    due = [True]
    mover = Mover(clock)
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=mover, is_awaited=lambda: due[0])
    gone_at_s = 3.0 if has_moved else 4.5
    clock.advance(gone_at_s)
    assert "hand over" not in dict(mover.said)
    clients.open.clear()
    clock.advance(2 * STEP_S)
    assert mover.said[-1][0] == "hand over"
    clients.come()
    seen = len(mover.said)
    clock.advance(0.5)
    clients.open.clear()
    clock.advance(2 * STEP_S)
    assert "hand over" not in dict(mover.said[seen:]), "somebody else may be in the queue"
    clock.advance(1.0)
    assert mover.said[-1][0] == "hand over" and not leaving.is_done
    due[0] = False
    clock.advance(2 * STEP_S)
    assert leaving.is_done


def test_it_stays_no_longer_than_its_time_though_somebody_needs_it(clock: Clock, clients: Clients) -> None:
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, is_awaited=lambda: True)
    clock.advance(10.0 - 2 * STEP_S)
    assert not leaving.is_done
    clock.advance(4 * STEP_S)
    assert len(leaving.done_s) == 1


def test_who_comes_all_the_time_does_not_keep_it_beyond_its_time(clock: Clock, clients: Clients) -> None:
    leaving = Leaving(clock, clients, grace_s=2.0, spread_s=2.0, quiet_s=1.0)
    for _ in range(100):
        clients.come()
        clock.advance(STEP_S)
        if leaving.is_done:
            break
    assert clock.now_s - 1000.0 == pytest.approx(4.0, abs=4 * STEP_S)
    assert not clients.open


def test_closing_begins_after_the_grace_and_is_spread_evenly(clock: Clock, clients: Clients) -> None:
    for _ in range(100):
        clients.come()
    leaving = Leaving(clock, clients, grace_s=2.0, spread_s=10.0, quiet_s=0.0)
    clock.advance(2.0 - STEP_S)
    assert len(clients.open) == 100
    for part in range(1, 10):
        clock.advance(1.0)
        assert len(clients.open) == pytest.approx(100 - 10 * part, abs=2)
        assert not leaving.is_done
    clock.advance(1.0 + 3 * STEP_S)
    assert leaving.is_done and not clients.open


def test_who_has_bytes_to_get_is_closed_last(clock: Clock, clients: Clients) -> None:
    for number in range(10):
        clients.come(pending_bytes=100 if number < 5 else 0)
    Leaving(clock, clients, grace_s=0.0, spread_s=1.0, quiet_s=0.0)
    clock.advance(2.0)
    assert {cid for _, cid in clients.closed[:5]} == {6, 7, 8, 9, 10}


def test_who_is_just_being_moved_is_closed_when_time_is_up(clock: Clock, clients: Clients) -> None:
    """On a busy machine its move may take seconds; it was closed while another shard was about to go on with it."""
    for is_moving in (True, False, True):
        clients.come(is_moving=is_moving)
    mover = Mover(clock)
    mover.failing = {2}
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=mover)
    clock.advance(10.0 - STEP_S)
    assert [cid for _, cid in clients.closed] == [2]
    del clients.open[1]  # it has moved
    clock.advance(3 * STEP_S)
    assert [cid for _, cid in clients.closed] == [2, 3] and leaving.is_done


def test_who_can_move_is_tried_until_the_time_is_up_though_it_was_told(clock: Clock, clients: Clients) -> None:
    clients.come()
    mover = Mover(clock)
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=mover)
    clock.advance(4.0 + 2 * STEP_S)
    assert clients.told == 1
    clock.advance(6.0 - 4 * STEP_S)
    assert {what for what, _ in mover.said} == {"move 1"}
    assert clock.now_s - mover.said[-1][1] <= 2 * STEP_S
    clock.advance(4 * STEP_S)
    assert leaving.is_done and [what for what, _ in mover.said if what == "stop"] == ["stop"]


def test_the_time_for_moves_is_what_is_left_of_all_of_it(
    clock: Clock, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.come()
    mover = Mover(clock)
    within_s: list[float] = []
    began_s = clock.now_s
    monkeypatch.setattr(mover, "move", lambda clients, left_s: within_s.append(clock.now_s + left_s))
    Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=mover)
    clock.advance(12.0)
    assert within_s == [pytest.approx(began_s + 10.0)] * len(within_s)


@pytest.mark.parametrize("with_tls", [False, True])
def test_who_cannot_move_is_closed_over_all_of_the_spread_beside_those_that_can(
    clock: Clock, clients: Clients, *, with_tls: bool
) -> None:
    """Also who has not been looked at, because a batch takes long, and has TLS here."""
    for _ in range(200):
        clients.come()
    mover = Mover(clock)
    failing = set(range(1, 101))
    (clients.with_tls if with_tls else mover.failing).update(failing)
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=10.0, quiet_s=1.0, mover=mover)
    clock.advance(5.0)
    for part in range(1, 10):
        for cid in range(101 + 10 * part, 111 + 10 * part):  # they move
            del clients.open[cid]
        clock.advance(1.0)
        assert len(failing & clients.open.keys()) == pytest.approx(100 - 10 * part, abs=2)
    assert [cid for _, cid in clients.closed if cid > 100] == []
    clock.advance(1.0 + 3 * STEP_S)
    assert leaving.is_done and not clients.open


def test_who_can_still_move_is_closed_one_by_one_in_the_second_half_of_the_spread(
    clock: Clock, clients: Clients
) -> None:
    """Not all at once when time is up: they come back to shards that have too much to do."""
    for _ in range(100):
        clients.come()
    leaving = Leaving(clock, clients, grace_s=5.0, spread_s=10.0, quiet_s=1.0, mover=Mover(clock))
    clock.advance(10.0)
    assert not clients.closed
    for part in range(1, 5):
        clock.advance(1.0)
        assert len(clients.open) == pytest.approx(100 - 20 * part, abs=2)
    clock.advance(1.0 + 3 * STEP_S)
    assert leaving.is_done and not clients.open


@pytest.mark.parametrize("again", [False, True])
def test_who_could_move_once_since_it_was_told_is_closed_with_those_that_can(
    clock: Clock, clients: Clients, *, again: bool
) -> None:
    """It waited for its PONG, and perhaps does again; its move may be broken off each time."""
    clients.come()
    mover = Mover(clock)
    mover.failing = {1}
    Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=mover)
    clock.advance(4.5)
    mover.failing.clear()
    clock.advance(2 * STEP_S)
    if again:
        mover.failing.add(1)
    clock.advance(3.0 - 2 * STEP_S)
    assert not clients.closed
    clock.advance(2.5 + 2 * STEP_S)
    assert len(clients.closed) == 1


def test_without_time_to_spread_they_are_closed_at_once(clock: Clock, clients: Clients) -> None:
    for _ in range(10):
        clients.come()
    leaving = Leaving(clock, clients, grace_s=1.0, spread_s=0.0, quiet_s=0.0)
    clock.advance(1.0 + 2 * STEP_S)
    assert leaving.is_done and not clients.open


# ---- what a shard's process does with it


class Router:
    """The router's end of a worker's control channel; what the worker is made of is in `steps`, in order."""

    def __init__(self, clock: Clock, clients: Clients) -> None:
        self._ours, theirs = socket.socketpair()
        self._keepers, lifeline = socket.socketpair()
        self.steps: list[str] = []
        self.worker = Worker(theirs, lifeline)
        self.worker._loop = clock  # type: ignore[assignment]
        self.service_imports = SimpleNamespace(waiting=0)
        self.worker._shard = SimpleNamespace(  # type: ignore[assignment]
            clients=clients,
            reactor=SimpleNamespace(finish=lambda: self.steps.append("finish")),
            imports_exports=SimpleNamespace(service_imports=self.service_imports),
            end_listening=lambda: self.steps.append("end listening"),
            stop_listening=lambda: self.steps.append("stop listening"),
        )
        self.links = SimpleNamespace(
            close=lambda: self.steps.append("close links"),
            has_unsent=False,
            moves=SimpleNamespace(send_on=lambda: None),
        )
        self.worker._links = self.links  # type: ignore[assignment]
        self.worker._channel.send = lambda message: self.steps.append(type(message).__name__)  # type: ignore[method-assign]

    def says(self, message: control.ControlMessage) -> None:
        self.worker._on_message(message)

    def close(self) -> None:
        self.worker._channel.close_silently()
        self._ours.close()


@pytest.fixture
async def router(clock: Clock, clients: Clients) -> AsyncIterator[Router]:
    router = Router(clock, clients)
    yield router
    router.close()


async def test_a_shard_that_is_scaled_away_takes_its_queue_in_before_it_closes_it(
    router: Router, clock: Clock, clients: Clients
) -> None:
    router.says(control.Drain(10.0))
    clock.advance(QUIET_S - 2 * STEP_S)
    assert router.steps == []
    clients.come()
    clients.open.clear()
    clock.advance(QUIET_S - STEP_S)
    assert router.steps == [] and not router.worker.done.done()
    clock.advance(4 * STEP_S)
    assert router.steps == ["stop listening", "finish", "Drained", "close links"]
    assert not router.worker.done.done()  # what links hold for siblings goes out first
    clock.advance(1.0)
    assert router.worker.done.result() == 0


async def test_half_of_its_time_is_for_clients_to_go_by_themselves(
    router: Router, clock: Clock, clients: Clients
) -> None:
    for _ in range(10):
        clients.come()
    router.says(control.Drain(10.0))
    clock.advance(5.0 - STEP_S)
    assert len(clients.open) == 10
    clock.advance(5.0 + 3 * STEP_S)
    assert not clients.open and "Drained" in router.steps


async def test_answers_that_are_due_come_before_the_shard_through_which_they_come_is_gone(
    router: Router, clock: Clock, clients: Clients
) -> None:
    """Its clients have moved; what they had asked another account is answered through this shard."""
    router.service_imports.waiting = 1
    router.says(control.Drain(10.0))
    clock.advance(QUIET_S + 3.0)
    assert "Drained" not in router.steps
    router.service_imports.waiting = 0
    clock.advance(2 * STEP_S)
    assert "Drained" in router.steps


async def test_what_siblings_are_to_have_goes_out_before_the_shard_that_has_it(
    router: Router, clock: Clock, clients: Clients
) -> None:
    router.links.has_unsent = True
    router.says(control.Drain(10.0))
    clock.advance(QUIET_S + 3.0)
    assert "Drained" not in router.steps
    router.links.has_unsent = False
    clock.advance(2 * STEP_S)
    assert "Drained" in router.steps


async def test_a_lame_duck_waits_for_no_answer(router: Router, clock: Clock, clients: Clients) -> None:
    """The whole broker ends, and who asked with it."""
    router.service_imports.waiting = 1
    router.says(control.LameDuck(1.0, 2.0))
    clock.advance(2 * STEP_S)
    assert "Drained" in router.steps


async def test_a_lame_duck_takes_nobody_in_from_the_first_moment(
    router: Router, clock: Clock, clients: Clients
) -> None:
    clients.come()
    router.says(control.LameDuck(1.0, 2.0))
    assert router.steps == ["end listening"]
    clients.open.clear()
    clock.advance(2 * STEP_S)
    assert "Drained" in router.steps


async def test_a_departure_that_has_begun_is_not_begun_again(router: Router, clock: Clock, clients: Clients) -> None:
    router.says(control.Drain(10.0))
    router.says(control.Drain(10.0))
    assert clients.told == 1
    clock.advance(20.0)
    assert router.steps.count("Drained") == 1


async def test_a_shard_that_stops_encrypts_the_last_words_for_clients_that_have_moved(
    router: Router, clock: Clock, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards that have them close them at the same time."""
    monkeypatch.setattr(clients, "close_all", lambda reason: router.steps.append("close all"), raising=False)
    relay = SimpleNamespace(connections=1)
    router.worker._relay = relay  # type: ignore[assignment]
    router.worker._end()
    assert router.steps == ["stop listening", "close all", "close links"] and not router.worker.done.done()
    relay.connections = 0
    router.worker._on_relay_changed()
    clock.advance(0.0)
    assert router.worker.done.result() == 0
    router.worker._on_departed()  # it was leaving
    assert "Drained" not in router.steps


def test_the_log_says_why_clients_did_not_move(
    clock: Clock, clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clients.come()
    Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=Mover(clock))
    clock.advance(5.0)
    assert "Leaving: 1 clients have not moved, and are told: 1: it has a reason" in caplog.messages


@pytest.mark.parametrize(
    ("pending_bytes", "how"), [(0, ""), (1, " (1 of them behind what they have not read, if they read it)")]
)
def test_the_log_says_who_is_told_behind_output_that_it_has_not_read(
    clock: Clock, clients: Clients, caplog: pytest.LogCaptureFixture, pending_bytes: int, how: str
) -> None:
    caplog.set_level(logging.INFO)
    clients.come(pending_bytes=pending_bytes)
    Leaving(clock, clients, grace_s=5.0, spread_s=5.0, quiet_s=1.0, mover=Mover(clock))
    clock.advance(5.0)
    assert f"Leaving: 1 clients have not moved, and are told{how}: 1: it has a reason" in caplog.messages


@pytest.mark.parametrize("moves", [False, True])
def test_who_has_ended_is_heard_out_before_anybody_is_closed_and_is_closed_last(
    clock: Clock, clients: Clients, *, moves: bool
) -> None:
    for _ in range(3):
        clients.come()
    clients.ended = {1, 2}
    began_s = clock.now_s
    Leaving(clock, clients, grace_s=5.0, spread_s=0.0, quiet_s=1.0, mover=Mover(clock) if moves else None)
    clock.advance(5.0 + 4 * STEP_S)
    in_time = [at_s - began_s for at_s in clients.heard_out_s if at_s < began_s + 5.0]
    assert in_time == [pytest.approx(4.0, abs=2 * STEP_S)]
    assert clients.heard_out_s[-1] < clients.closed[0][0]
    assert [cid for _, cid in clients.closed] == [3, 1, 2]


def test_who_is_still_being_heard_is_not_closed_yet(clock: Clock, clients: Clients) -> None:
    for _ in range(10):
        clients.come()
    clients.unheard = {1}
    Leaving(clock, clients, grace_s=1.0, spread_s=1.0, quiet_s=0.0)
    clock.advance(1.5)
    assert 1 in clients.open and len(clients.closed) in (4, 5)
    clock.advance(1.0)
    assert 1 in clients.open
    clients.unheard.clear()
    clock.advance(2 * STEP_S)
    assert not clients.open


def test_a_departure_ends_though_there_is_always_somebody_who_speaks_up(clock: Clock, clients: Clients) -> None:
    """The router would kill the shard, two seconds after its time."""
    for _ in range(10):
        clients.come()
    clients.unheard = {1}
    leaving = Leaving(clock, clients, grace_s=1.0, spread_s=1.0, quiet_s=0.0)
    clock.advance(2.0 + HEAR_OUT_S - STEP_S)
    assert 1 in clients.open
    clock.advance(3 * STEP_S)
    assert leaving.is_done


def test_where_all_are_closed_at_once_nobody_is_before_the_last_one_is_heard(clock: Clock, clients: Clients) -> None:
    """What it says may be for the others."""
    for _ in range(3):
        clients.come()
    clients.unheard = {3}
    leaving = Leaving(clock, clients, grace_s=1.0, spread_s=0.0, quiet_s=0.0)
    clock.advance(1.5)
    assert len(clients.open) == 3
    clients.unheard.clear()
    clock.advance(2 * STEP_S)
    assert leaving.is_done
