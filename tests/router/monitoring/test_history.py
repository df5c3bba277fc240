"""The history of counters: bounded, in order, and without a gap where it wraps around."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from gnatswarm.router.monitoring.history import COUNTERS, History


def filled(count: int, most: int) -> History:
    totals = iter(range(1, count + 1))
    history = History(lambda: dict.fromkeys(COUNTERS, next(totals)), most=most)
    for at in range(1, count + 1):
        history.take(at * 1_000_000)
    return history


def test_samples_are_oldest_first():
    seen = filled(3, most=5).latest(10)
    assert seen["at"] == [1.0, 2.0, 3.0]
    assert all(seen[name] == [1, 2, 3] for name in COUNTERS)


def test_the_oldest_sample_gives_way():
    for count in range(5, 13):
        history = filled(count, most=5)
        assert history.latest(5)["in_msgs"] == list(range(count - 4, count + 1))
        assert history.latest(2)["at"] == [count - 1, count]


def test_nothing_yet():
    assert filled(0, most=5).latest(5)["at"] == []


def test_an_hour_is_told_in_few_samples_and_the_latest_is_among_them():
    for count in range(1, 13):
        seen = filled(count, most=7).latest(3, step=3)["in_msgs"]
        assert seen[-1] == count
        assert all(later - earlier == 3 for earlier, later in pairwise(seen))
        assert len(seen) == min(3, (min(count, 7) + 2) // 3)


def test_the_next_router_goes_on_with_it_and_not_with_another_form():
    fd = os.memfd_create("history")
    first = History(lambda: dict.fromkeys(COUNTERS, 7), most=5, fd=fd)
    for at in range(1, 8):
        first.take(at * 1_000_000)
    second = History(lambda: dict.fromkeys(COUNTERS, 8), most=5, fd=fd)
    assert second.latest(9)["at"] == [3.0, 4.0, 5.0, 6.0, 7.0]
    second.take(8_000_000)
    assert second.latest(2) == {"at": [7.0, 8.0]} | {name: [7, 8] for name in COUNTERS}
    assert History(dict, most=6, fd=fd).latest(9)["at"] == []
    os.close(fd)


async def test_after_a_sample_that_failed_there_is_another():
    history = History(lambda: {}, most=5)
    with pytest.raises(KeyError):
        history.start()
    assert history._timer is not None
    history.close()
