"""Who is read with patience, and when a shard looks at them: promptly, unless waiting longer makes more come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from gnatswarm.probes.patience import ProbeHabit
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


def test_a_prompt_look_is_due_when_some_128_kib_have_come():
    fast = publisher(lambda wait: 600.0)
    waits = fast.go_on(100)
    assert all(64 * 1024 <= wait * 600 <= 2 * 128 * 1024 for wait in waits[20:])


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


# ---- whose reads are small and quick

QUICK_US, SLOW_US = 10, 30
SMALL, THIN, BULK, WHOLE = 4096, 100, 48 * 1024, 262_144


def findings(habit: ProbeHabit, sizes: list[int], every_us: int = QUICK_US) -> list[str]:
    """What each of these reads shows; they begin at 1 s."""
    return [habit.read(size, 1_000_000 + at * every_us) for at, size in enumerate(sizes, 1)]


def test_the_sixteenth_small_quick_read_in_a_row_shows_a_writer_of_small_pieces():
    assert findings(ProbeHabit(1_000_000), [SMALL] * 16) == ["as before"] * 15 + ["small and quick"]


@pytest.mark.parametrize(("size", "every_us"), [(SMALL + 1, QUICK_US), (SMALL, SLOW_US)])
def test_reads_that_are_larger_or_slower_do_not(size, every_us):
    assert set(findings(ProbeHabit(1_000_000), [size] * 100, every_us)) == {"as before"}


def test_one_large_read_begins_the_count_again():
    assert set(findings(ProbeHabit(1_000_000), ([SMALL] * 15 + [SMALL + 1]) * 3)) == {"as before"}


def test_who_is_sent_something_between_reads_is_read_at_once():
    habit = ProbeHabit(1_000_000)
    for at in range(1, 100):
        if at % 10 == 0:
            habit.send()
        assert habit.read(SMALL, 1_000_000 + at * QUICK_US) == "as before"


def patient() -> ProbeHabit:
    habit = ProbeHabit(1_000_000)
    habit.admit()
    return habit


def test_a_patient_one_stays_so_while_looks_find_enough():
    assert set(findings(patient(), ([THIN] * 7 + [SMALL]) * 10, 3000)) == {"as before"}


def test_eight_thin_looks_in_a_row_end_the_patience():
    assert findings(patient(), [SMALL] + [THIN] * 8) == ["as before"] * 8 + ["not patiently"]


def test_a_whole_read_or_something_sent_ends_the_patience():
    assert findings(patient(), [WHOLE]) == ["not patiently"]
    asked = patient()
    asked.send()
    assert findings(asked, [SMALL]) == ["not patiently"]


def test_sixteen_more_large_reads_than_small_ones_widen_a_narrow_buffer_once():
    sizes = [BULK] * 10 + [SMALL] * 4 + [BULK] * 30
    habit = ProbeHabit(1_000_000, is_narrow=True)
    assert findings(habit, sizes, SLOW_US) == ["as before"] * 23 + ["in bulk"] + ["as before"] * 20
    assert set(findings(ProbeHabit(1_000_000), sizes, SLOW_US)) == {"as before"}, "it is not narrow"
