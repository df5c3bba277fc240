"""Schedules one after the other: what fails is shrunk and written down, what was covered is counted."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.simulation.schedule import Schedule, drawn
from tests.simulation.shrink import shrunk
from tests.simulation.world import World

FAILED = Path("build/simulation")
# No schedule takes a hundredth of that: one that does goes round in circles.
HANGS_S = 20


class Hangs(AssertionError):
    """A schedule that does not end."""


def on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise Hangs(f"it does not end within {HANGS_S} s")


@contextmanager
def bounded() -> Iterator[None]:
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)


def failure(schedule: Schedule) -> tuple[str, World | None]:
    """What went wrong ("": nothing), and the world if nothing did."""
    try:
        with bounded():
            world = World(schedule)
            world.run()
    except AssertionError as error:
        return str(error) or "an assertion of the engine or of the model", None
    return "", world


def keep(seed: int, schedule: Schedule, why: str) -> Path:
    """Shrinks and writes down a schedule that fails."""
    small = shrunk(schedule, lambda one: bool(failure(one)[0]))
    FAILED.mkdir(parents=True, exist_ok=True)
    path = FAILED / f"{seed}.txt"
    path.write_text(f"# seed {seed}: {why[:500]}\n# shrunk: {failure(small)[0][:500]}\n{small}")
    return path


def hunt(first: int, step: int, seconds: float, most: int) -> tuple[Counter[str], list[str]]:
    """Schedules of every step-th seed from `first` on; (what was covered, files of those that failed)."""
    covered: Counter[str] = Counter()
    failed: list[str] = []
    until = time.monotonic() + seconds
    for seed in range(first, first + most * step, step):
        if time.monotonic() > until or len(failed) == 3:
            break
        schedule = drawn(seed)
        why, world = failure(schedule)
        covered["schedules"] += 1
        covered["steps"] += len(schedule.steps)
        covered[f"schedules with {schedule.shards} shards"] += 1
        if world is None:
            failed.append(str(keep(seed, schedule, why)))
        else:
            covered.update(world.seen)
            covered["messages"] += len(world.messages)
            covered["subscriptions"] += len(world.subscriptions)
    return covered, failed
