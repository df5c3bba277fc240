"""The promises hold over kept schedules, and over some thousand drawn ones; the simulation itself is sound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.coverage import Coverage
from tests.simulation.hunt import collecting_seldom, failure
from tests.simulation.schedule import LASTING_STEPS, Schedule, Step, drawn, drawn_lasting, parsed
from tests.simulation.shrink import shrunk
from tests.simulation.world import FORGOTTEN

CORPUS = Path(__file__).parent / "corpus"
# Each batch is a test, so that workers share them. GNATSWARM_SCHEDULES says how many there are in all. The usual
# number covers every situation in each batch; the seeds are the same each time.
BATCHES = 2
USUAL_SCHEDULES = 2000
SCHEDULES = int(os.environ.get("GNATSWARM_SCHEDULES", str(USUAL_SCHEDULES)))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.txt")), ids=lambda path: path.stem)
def test_what_failed_once_holds(path):
    why, _ = failure(parsed(path.read_text()))
    assert not why


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_promise_holds_whatever_the_schedule(batch):
    covered = Coverage()
    with collecting_seldom() as collect:
        for seed in range(batch, SCHEDULES, BATCHES):
            schedule = drawn(seed)
            why, world = failure(schedule)
            assert not why, f"tests.simulation.schedule.drawn({seed}): {why}"
            covered.add(schedule, world)
            del world
            collect()
    if SCHEDULES >= USUAL_SCHEDULES:
        assert not covered.missing, f"situations that the promises are about do not occur any more:\n{covered}"


def test_every_promise_holds_over_long_histories():
    for seed in range(4):
        schedule = drawn_lasting(seed)
        assert len(schedule.steps) > LASTING_STEPS
        why, world = failure(schedule)
        assert world is not None, f"tests.simulation.schedule.drawn_lasting({seed}): {why}"


def test_a_schedule_is_the_same_again():
    for seed in range(40):
        worlds = [failure(drawn(seed))[1] for _ in range(2)]
        assert worlds[0] is not None and worlds[1] is not None
        assert worlds[0].history == worlds[1].history
        for world in (worlds[0], worlds[1]):
            del world.seen[FORGOTTEN]  # (Python forgets clients at moments of its own)
        assert worlds[0].seen == worlds[1].seen


def test_a_schedule_reads_what_it_writes():
    for seed in range(50):
        assert parsed(str(drawn(seed))) == drawn(seed)
    assert parsed(str(drawn_lasting(1))) == drawn_lasting(1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shards x seed 1 wide",
        "shards 2 seed 1 wide\nsub 1 2",
        "shards 2 seed 1 wide\nfly 1 2 3",
        "shards 2 seed 1 wide wet",
    ],
)
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(ValueError, match="not a schedule"):
        parsed(text)


def test_shrinking_leaves_what_is_needed():
    def fails(schedule: Schedule) -> bool:
        kinds = [step.kind for step in schedule.steps]
        return "kill" in kinds and "boot" in kinds[kinds.index("kill") :]

    noise = [Step("carry", 5, 6, 7)] * 40
    long = Schedule(2, 1, False, (*noise, Step("kill", 1, 2, 3), *noise, Step("boot", 3, 2, 1), *noise))
    assert shrunk(long, fails).steps == (Step("kill", 0, 0, 0), Step("boot", 0, 0, 0))
