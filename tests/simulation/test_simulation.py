"""The promises hold over kept schedules, and over some thousand drawn ones; the simulation itself is sound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.hunt import bounded, failure
from tests.simulation.schedule import Schedule, Step, drawn, parsed
from tests.simulation.shrink import shrunk
from tests.simulation.world import World

CORPUS = Path(__file__).parent / "corpus"
# Each batch is a test, so that workers share them. GNATSWARM_SCHEDULES says how many there are in all.
BATCHES = 8
SCHEDULES = int(os.environ.get("GNATSWARM_SCHEDULES", "2400"))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.txt")), ids=lambda path: path.stem)
def test_what_failed_once_holds(path):
    why, _ = failure(parsed(path.read_text()))
    assert not why


@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_promise_holds_whatever_the_schedule(batch):
    for seed in range(batch, SCHEDULES, BATCHES):
        why, _ = failure(drawn(seed))
        assert not why, f"tests.simulation.schedule.drawn({seed}): {why}"


def test_a_schedule_is_the_same_again():
    for seed in range(20):
        worlds = [World(drawn(seed)), World(drawn(seed))]
        for world in worlds:
            world.run()
        assert worlds[0].subscriptions == worlds[1].subscriptions
        assert worlds[0].messages == worlds[1].messages


def test_a_schedule_reads_what_it_writes():
    for seed in range(50):
        assert parsed(str(drawn(seed))) == drawn(seed)


@pytest.mark.parametrize(
    "text", ["", "shards x seed 1 wide", "shards 2 seed 1 wide\nsub 1 2", "shards 2 seed 1 wide\nfly 1 2 3"]
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


def test_the_situations_that_promises_are_about_are_reached():
    seen = World(drawn(0)).seen
    with bounded():
        for seed in range(150):
            world = World(drawn(seed))
            world.run()
            seen.update(world.seen)
    wanted = {"fence", "503", "sent on", "lingering member took it", "link break", "shard killed", "shard booted"}
    assert wanted <= set(seen), wanted - set(seen)
