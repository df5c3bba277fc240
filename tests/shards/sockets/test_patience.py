"""When a shard looks at publishers in small writes: promptly, unless waiting longer makes more come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gnatswarm.shards.sockets.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PROMPT_US, MOST_US = 200, 3000
FILL_BYTES = 96 * 1024


@dataclass
class Publisher:
    """Writes at a rate that may depend on how long nobody reads; `patience` decides when somebody does."""

    rate: Callable[[int], float]  # bytes per µs, of the wait in µs
    patience: Patience
    now_us: int = 1_000_000
    total: int = 0

    def go_on(self, looks: int) -> list[int]:
        """So many looks; returns the waits before each."""
        waits = []
        for _ in range(looks):
            wait = self.patience.tick_us
            found = int(self.rate(wait) * wait)
            self.now_us += wait
            self.total += found
            waits.append(wait)
            self.patience.looked(found, self.now_us)
        return waits


def publisher(rate: Callable[[int], float]) -> Publisher:
    patience = Patience()
    patience.began(1_000_000)
    return Publisher(rate, patience)


def test_a_slow_publisher_never_waits_longer_than_a_prompt_look():
    slow = publisher(lambda wait: 5.0)
    assert max(slow.go_on(1000)) == MOST_PROMPT_US
    assert not slow.patience.is_filling


def test_a_prompt_look_is_due_when_some_32_kib_have_come():
    fast = publisher(lambda wait: 600.0)
    waits = fast.go_on(100)
    assert all(16 * 1024 <= wait * 600 <= 2 * 32 * 1024 for wait in waits[20:])


def test_who_writes_faster_the_longer_he_waits_is_waited_for():
    coalescing = publisher(lambda wait: 40.0 if wait <= MOST_PROMPT_US else 130.0)
    waits = coalescing.go_on(200)
    assert coalescing.patience.is_filling
    assert all(wait * 130 <= FILL_BYTES for wait in waits[40:])
    assert min(waits[40:]) > MOST_PROMPT_US


def test_who_does_not_is_looked_at_promptly_again_and_tried_ever_less_often():
    paced = publisher(lambda wait: 40.0)
    waits = paced.go_on(60_000)
    long_ones = [at for at, wait in enumerate(waits) if wait > MOST_PROMPT_US]
    assert long_ones, "it was never tried"
    assert max(waits) <= MOST_US
    seconds = (paced.now_us - 1_000_000) / 1e6
    tries = 1 + sum(later - earlier > 1 for earlier, later in pairwise(long_ones))
    assert 2 <= tries <= 2 + seconds / 0.1
    assert sum(waits[at] for at in long_ones[-tries * 4 :]) < 0.1 * sum(waits)


def test_a_publisher_that_stops_filling_up_is_left_alone():
    rate = [130.0]
    changing = publisher(lambda wait: 40.0 if wait <= MOST_PROMPT_US else rate[0])
    changing.go_on(100)
    assert changing.patience.is_filling
    rate[0] = 20.0
    waits = changing.go_on(40)
    assert not changing.patience.is_filling
    assert max(waits) <= MOST_US
    assert waits[-1] <= MOST_PROMPT_US


def test_looks_that_find_nothing_do_no_harm():
    nobody = publisher(lambda wait: 0.0)
    assert nobody.go_on(100)[-1] == MOST_PROMPT_US
    coalescing = publisher(lambda wait: 40.0 if wait <= MOST_PROMPT_US else 130.0)
    coalescing.go_on(100)
    coalescing.rate = lambda wait: 0.0
    assert coalescing.go_on(40)[-1] <= MOST_PROMPT_US


def test_who_comes_back_is_looked_at_promptly_first():
    coalescing = publisher(lambda wait: 40.0 if wait <= MOST_PROMPT_US else 130.0)
    coalescing.go_on(100)
    coalescing.patience.began(coalescing.now_us + 10_000_000)
    assert not coalescing.patience.is_filling
    assert coalescing.patience.tick_us <= MOST_PROMPT_US
