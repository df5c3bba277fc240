"""No ping is late by more than a tenth of its interval, and usual intervals cost what they always did."""

from __future__ import annotations

import asyncio
import threading

import pytest

import gnatswarm
from gnatswarm.shards.sockets.lookout import LEAST_ROUND_S, SWEEP_S, Lookout, rhythm


@pytest.mark.parametrize("interval_s", [0.001, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 9.9, 10.0, 120.0, 86_400.0])
def test_every_socket_is_looked_at_within_a_tenth_of_the_ping_interval_and_within_a_second(interval_s):
    every_s, share = rhythm(interval_s)
    assert every_s / share <= max(interval_s / 10, LEAST_ROUND_S) * 1.000001
    assert every_s / share <= 1.000001
    assert LEAST_ROUND_S <= every_s <= SWEEP_S and 0 < share <= 1


def test_usual_intervals_are_looked_at_in_tenths_at_each_sweep():
    for interval_s in (10.0, 120.0, 3_600.0):
        every_s, share = rhythm(interval_s)
        assert every_s == SWEEP_S
        assert share == pytest.approx(0.1)


async def test_between_sweeps_there_is_a_timer_only_where_pings_are_due_sooner():
    looks: list[float] = []
    twice = asyncio.Event()

    def look(share: float) -> bool:
        looks.append(share)
        if len(looks) == 2:
            twice.set()
        return False

    lookout = Lookout(asyncio.get_running_loop(), look, lambda: False, ping_interval_s=120.0)
    lookout.on_sweep()
    assert looks == [pytest.approx(0.1)]
    looks.clear()
    lookout.set_interval(0.1)
    lookout.on_sweep()
    assert looks == []  # it is not the sweep that looks now
    await asyncio.wait_for(twice.wait(), 30)
    assert looks == [1.0, 1.0]
    lookout.set_interval(120.0)
    lookout.on_sweep()
    assert looks[2:] == [pytest.approx(0.1)]
    lookout.close()


async def test_what_is_too_much_for_one_turn_goes_on_in_the_next_ones():
    loop = asyncio.get_running_loop()
    happened: list[str] = []
    left = [True, True, False]
    is_over = loop.create_future()

    def go_on() -> bool:
        happened.append("more")
        loop.call_soon(happened.append, "others")
        if len(left) == 1:
            loop.call_soon(is_over.set_result, None)
        return left.pop(0)

    lookout = Lookout(loop, lambda share: True, go_on, ping_interval_s=120.0)
    lookout.on_sweep()
    lookout.on_sweep()  # nothing is begun twice
    await asyncio.wait_for(is_over, 30)
    assert happened == ["more", "others"] * 3
    lookout.on_sweep()
    lookout.close()
    next_turn = loop.create_future()
    loop.call_soon(next_turn.set_result, None)  # behind what was closed
    await next_turn
    assert len(happened) == 6


def test_a_broker_looks_as_often_as_its_ping_interval_wants_it(monkeypatch):
    looks = threading.Semaphore(0)
    between = Lookout._on_time

    def on_time(lookout: Lookout) -> None:
        between(lookout)
        looks.release()

    monkeypatch.setattr(Lookout, "_on_time", on_time)
    with gnatswarm.Broker(ping_interval=0.1):
        assert all(looks.acquire(timeout=30) for _ in range(5))
