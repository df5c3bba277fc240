"""Relays end when their time is over, their clients are told before, and none outlives the broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.router.supervision.broker import SupervisedRelay
from gnatswarm.router.supervision.relays import END_WITHIN_S, LEAST, MOST_PER_SHARD, STOP_WITHIN_S, RelayKeeping
from gnatswarm.shards.boundary.control import EndRelay, Relays, RelaysEnd, Stop


class Process:
    """One that was a shard, and takes messages."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.said: list[object] = []

    def send(self, message: object) -> None:
        self.said.append(message)

    def kill(self) -> None:
        self.said.append("kill")


class Kept:
    """A broker with one shard and one relay; `now` is its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("gnatswarm.router.supervision.relays.time.monotonic", lambda: self.now)
        self.shard, self.process = Process("new"), Process("old")
        process: Any = self.process
        self.relay = SupervisedRelay(process)
        options = SimpleNamespace(limits=SimpleNamespace(lame_duck_grace_s=10.0))
        broker: Any = SimpleNamespace(
            relays=[self.relay], shards=[SimpleNamespace(process=self.shard)], options=options, wanted=1
        )
        self.broker = broker
        self.keeping = RelayKeeping(broker)

    def restart(self, shards: int) -> list[SupervisedRelay]:
        """So many shards become relays; `wanted` is as many."""
        self.broker.wanted = shards
        processes: list[Any] = [Process(f"another {number}") for number in range(shards)]
        left = [SupervisedRelay(process) for process in processes]
        self.broker.relays += left
        self.keeping.on_tick()
        return left


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


def test_its_time_is_over_and_its_clients_are_told_once(kept: Kept):
    kept.keeping.on_message(kept.relay, Relays(3, 60.0))
    kept.now += 59.0
    kept.keeping.on_tick()
    assert kept.shard.said == kept.process.said == []
    kept.now += 1.0
    kept.keeping.on_tick()
    kept.keeping.on_tick()
    assert kept.shard.said == [RelaysEnd(["old"])]
    assert kept.process.said == [EndRelay(END_WITHIN_S)]


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_of_restarts_in_a_row_the_oldest_relays_end(kept: Kept, shards: int):
    most = max(LEAST, MOST_PER_SHARD * shards)
    relays = [kept.relay]
    while len(relays) + shards <= most:
        relays += kept.restart(shards)
    assert not any(relay.is_ending for relay in relays)
    relays += kept.restart(shards)
    assert [relay.is_ending for relay in relays] == [number < len(relays) - most for number in range(len(relays))]
    assert kept.process.said == [EndRelay(END_WITHIN_S)]


def test_an_operator_hears_how_many_clients_are_told(kept: Kept):
    kept.keeping.on_message(kept.relay, Relays(3, 3600.0))
    assert kept.keeping.end([kept.relay]) == 3
    assert kept.keeping.end([kept.relay]) == 0


def test_one_that_another_router_had_told_is_not_told_again(kept: Kept):
    kept.keeping.on_message(kept.relay, Relays(3, -1.0))
    kept.keeping.on_tick()
    assert kept.process.said == []


def test_one_that_hangs_when_the_broker_stops_is_killed(kept: Kept):
    kept.keeping.stop()
    kept.keeping.stop()
    assert kept.process.said == [Stop()]
    kept.now += STOP_WITHIN_S - 0.1
    kept.keeping.on_tick()
    assert "kill" not in kept.process.said
    kept.now += 0.1
    kept.keeping.on_tick()
    assert "kill" in kept.process.said
