"""The shortest schedule that still fails: Zeller's ddmin over the steps, then each number made small."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.schedule import Schedule, Step

Fails = Callable[[Schedule], bool]


def shrunk(schedule: Schedule, fails: Fails) -> Schedule:
    """`fails(schedule)` holds, and holds for what is returned; taking any one step out of that makes it pass."""
    parts = 2
    while True:
        steps = schedule.steps
        size = max(1, -(-len(steps) // parts))
        for start in range(0, len(steps), size):
            shorter = schedule.with_steps(steps[:start] + steps[start + size :])
            if fails(shorter):
                schedule = shorter
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return with_small_numbers(schedule, fails)
            parts = min(len(steps), parts * 2)


def with_small_numbers(schedule: Schedule, fails: Fails) -> Schedule:
    """Numbers are taken modulo what there is: small ones say more to a reader."""
    for at in range(len(schedule.steps)):
        for field in (1, 2, 3):
            for value in range(schedule.steps[at][field]):  # type: ignore[arg-type]
                words = list(schedule.steps[at])
                words[field] = value
                steps = [*schedule.steps[:at], Step(*words), *schedule.steps[at + 1 :]]  # type: ignore[arg-type]
                smaller = schedule.with_steps(steps)
                if fails(smaller):
                    schedule = smaller
                    break
    return schedule
