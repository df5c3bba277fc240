"""When the publishers of a shard are read together: many small reads a second, and only while that brings something."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from gnatswarm.shards.sockets.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_US, MOST_US = 3000, 12_000


@dataclass
class Publishers:
    """They write `rate` bytes a second together, which may depend on how long nobody looks. One message per write."""

    rate: Callable[[int], float]
    message: int = 100  # bytes
    many: int = 200  # of them
    crowd: Crowd = field(default_factory=Crowd)
    now_us: float = 1_000_000.0
    total: float = 0.0

    def go_on(self, seconds: float) -> list[int]:
        """So long; returns the wait before each look."""
        end = self.now_us + seconds * 1e6
        waits = []
        while self.now_us < end:
            if self.crowd.is_gathering:
                wait = self.crowd.tick_us
                found = self.rate(wait) * wait / 1e6
                self.now_us += wait
                waits.append(wait)
                self.crowd.looked(int(found), max(1, min(self.many, int(found / self.message))), int(self.now_us))
            else:
                found = self.message
                self.now_us += found * 1e6 / self.rate(0)
                self.crowd.read(self.message, int(self.now_us))
            self.total += found
        return waits


def steady(messages_per_s: float) -> Publishers:
    return Publishers(lambda wait: messages_per_s * 100)


@pytest.mark.parametrize(("per_s", "gathers"), [(20_000, False), (38_000, False), (42_000, True), (200_000, True)])
def test_a_shard_gathers_from_forty_thousand_small_reads_a_second_on(per_s, gathers):
    publishers = steady(per_s)
    waits = publishers.go_on(0.2)
    assert bool(waits) == gathers


def test_a_burst_after_a_quiet_hour_counts_from_its_own_beginning():
    publishers = steady(100_000)
    publishers.crowd.read(100, 1)
    publishers.now_us = 3.6e9
    publishers.go_on(0.2)
    assert publishers.crowd.is_gathering


@pytest.mark.parametrize("stopped_ms", [30, 60, 90])
def test_publishers_that_catch_up_after_a_stop_are_no_crowd(stopped_ms):
    """20,000 a second: what became due meanwhile comes at once, and all the rest in time."""
    publishers = steady(20_000)
    for _ in range(20):
        publishers.go_on(0.3)
        publishers.now_us += stopped_ms * 1000
        for _ in range(20 * stopped_ms):
            publishers.crowd.read(100, int(publishers.now_us))
        assert not publishers.crowd.is_gathering
    assert publishers.go_on(0.3) == []


def test_a_crowd_is_one_after_a_tenth_of_a_second():
    publishers = steady(100_000)
    publishers.go_on(0.1)
    assert not publishers.crowd.is_gathering
    publishers.go_on(0.03)
    assert publishers.crowd.is_gathering


def test_it_stays_while_reads_grow_and_publishers_are_as_fast_as_before():
    publishers = steady(200_000)  # 200 publishers, 3 ms: three messages in each read
    waits = publishers.go_on(5)
    assert publishers.crowd.is_gathering
    assert sum(waits) > 4.8e6


def test_a_longer_wait_that_makes_nobody_faster_is_tried_ever_less_often():
    publishers = steady(200_000)
    waits = publishers.go_on(10)
    longer = sum(wait > FIRST_US for wait in waits)
    assert longer, "it was never tried"
    assert max(waits) == 2 * FIRST_US
    assert longer <= 16 * 9  # after 0.1 s, 0.2 s, 0.4 s …: at most nine times


def test_a_longer_wait_that_makes_them_faster_stays():
    publishers = Publishers(lambda wait: 20e6 * (1 + wait / 12_000))
    waits = publishers.go_on(5)
    assert set(waits[100:]) == {MOST_US}


def test_who_writes_less_than_before_waits_no_longer_than_at_first():
    busy = True
    publishers = Publishers(lambda wait: 20e6 * (1 + wait / 12_000) if busy else 16e6)
    publishers.go_on(5)
    assert publishers.crowd.tick_us == MOST_US
    busy = False
    assert publishers.go_on(1)[-10:] == [FIRST_US] * 10
    assert publishers.crowd.is_gathering


def test_those_who_come_after_a_pause_do_not_wait():
    """What was measured of the crowd before says nothing of them."""
    busy = True
    publishers = Publishers(lambda wait: 20e6 * (1 + wait / 12_000) if busy else 2e6)
    publishers.go_on(5)
    assert publishers.crowd.tick_us == MOST_US
    publishers.crowd.ended()
    busy = False
    assert publishers.go_on(1) == []


def test_it_ends_where_reads_stay_as_small_as_they_were():
    """A thousand publishers with 60 messages a second each: a look every 3 ms finds one message of each fifth."""
    publishers = Publishers(lambda wait: 6e6, many=1000)
    waits = publishers.go_on(10)
    assert waits
    assert set(waits) == {FIRST_US}
    assert sum(waits) < 0.07 * 10e6  # tried again after 0.1 s, 0.2 s, … 10 s


def test_it_ends_where_publishers_wait_for_what_they_cause():
    """One round trip after the other: a third of the rate when each look takes 3 ms."""
    publishers = Publishers(lambda wait: 20e6 if not wait else 6e6)
    waits = publishers.go_on(10)
    assert waits
    assert sum(waits) < 0.07 * 10e6
    assert publishers.total > 0.9 * 10 * 20e6


def test_it_is_tried_again_after_waits_that_double():
    publishers = Publishers(lambda wait: 20e6 if not wait else 6e6)
    begins = []
    for _ in range(1200):
        was = publishers.crowd.is_gathering
        publishers.go_on(0.01)
        if publishers.crowd.is_gathering and not was:
            begins.append(publishers.now_us)
    gaps = [later - earlier for earlier, later in pairwise(begins)]
    assert len(gaps) >= 5
    assert all(1.5 < later / earlier < 2.6 for earlier, later in pairwise(gaps[1:]))


def test_who_pauses_just_when_gathering_is_decided_is_none_any_more():
    """Nobody is gathered then, so no look finds that nothing comes; the next message would wait for one."""
    for pause_us, is_joined in ((99_999, True), (100_000, False)):
        crowd, now_us = Crowd(), 0
        while not crowd.is_gathering:
            now_us += 10
            crowd.read(50, now_us)
        assert crowd.joined(now_us + pause_us) == crowd.is_gathering == is_joined
