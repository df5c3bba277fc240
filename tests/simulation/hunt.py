"""Runs schedules one after the other; shrinks and writes down those that fail, and counts what was covered."""

from __future__ import annotations

import gc
import logging
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.simulation.coverage import Coverage
from tests.simulation.schedule import Schedule, drawn, drawn_lasting
from tests.simulation.shrink import shrunk
from tests.simulation.world import World

FAILED = Path("build/simulation")
# No schedule takes a hundredth of that: one that does goes round in circles.
HANGS_S = 20
MOST_MEMORY_BYTES = 4 << 30  # of a process that hunts; what one schedule takes without end is a failure like others
COLLECT_EVERY = 10  # schedules; each leaves about a megabyte
# A schedule that has not become short by then is kept as it is: many thousand are tried for a long one.
SHRINK_S = 120.0


class Hangs(AssertionError):
    """A schedule that does not end."""


def on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise Hangs(f"it does not end within {HANGS_S} s of processor time")


@contextmanager
def bounded() -> Iterator[None]:
    signal.signal(signal.SIGPROF, on_alarm)
    signal.setitimer(signal.ITIMER_PROF, HANGS_S)  # processor time: a machine that is busy or pauses is no fault
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what is said of links that break, of moves that end, and of log-ins."""
    loggers = [logging.getLogger(name) for name in ("gnatswarm.links", "gnatswarm.moving", "gnatswarm.clients")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def failure(schedule: Schedule) -> tuple[str, World | None]:
    """What goes wrong ("" nothing), and the world in which it did not."""
    try:
        with bounded(), quiet():
            world = World(schedule)
            world.run()
    except AssertionError as error:
        return str(error) or "an assertion of the engine or of the model", None
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    return "", world


def keep(seed: int, schedule: Schedule, why: str, collect: Callable[[], None]) -> Path:
    """Shrinks and writes down a schedule that fails; calls `collect` for each that it tries."""
    until = time.monotonic() + SHRINK_S

    def fails(shorter: Schedule) -> bool:
        collect()
        return time.monotonic() < until and bool(failure(shorter)[0])

    small = shrunk(schedule, fails)
    FAILED.mkdir(parents=True, exist_ok=True)
    path = FAILED / f"{seed}.txt"
    path.write_text(f"# seed {seed}: {why[:500]}\n# shrunk: {failure(small)[0][:500]}\n{small}")
    return path


def hunt(first: int, step: int, seconds: float, most: int, *, lasting: bool = False) -> tuple[Coverage, list[str]]:
    """Schedules of every step-th seed from `first` on; (what was covered, files of those that failed)."""
    draw = drawn_lasting if lasting else drawn
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    covered = Coverage()
    failed: list[str] = []
    until = time.monotonic() + seconds
    with collecting_seldom() as collect:
        for seed in range(first, first + most * step, step):
            if time.monotonic() > until or len(failed) == 3:
                break
            schedule = draw(seed)
            why, world = failure(schedule)
            covered.add(schedule, world)
            if world is None:
                failed.append(str(keep(seed, schedule, why, collect)))
            del world
            collect()
    return covered, failed


@contextmanager
def collecting_seldom() -> Iterator[Callable[[], None]]:
    """Garbage is collected once in some schedules, by a call of what this yields.

    Worlds are full of cycles, and a collector that runs by itself goes through them again and again. What was frozen
    before, as a test run's tests are, stays so.
    """
    n = 0
    before = gc.get_freeze_count()

    def collect() -> None:
        nonlocal n
        n += 1
        if n % COLLECT_EVERY == 0:
            gc.collect()

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield collect
    finally:
        gc.enable()
        if not before:
            gc.unfreeze()
