"""Which steps happen, in which order: drawn from a seed, or read from a file.

A schedule is text, a line a step, so that a failing one can be kept, shortened by hand, and read in a review:

    shards 3 seed 2 narrow
    sub 4 1 0
    carry 2 0 3
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

# What may happen, and how much of it there is where the seed does not say otherwise (see World for each).
KINDS = {
    "carry": 5,
    "settle": 2,
    "sub": 3,
    "unsub": 2,
    "max": 1,
    "burst": 2,
    "pub": 3,
    "request": 1,
    "ping": 3,
    "go": 1,
    "come": 1,
    "break": 1,
    "kill": 1,
    "boot": 1,
}
# Faults: most schedules have only some of them, or none.
FAULTS = ("go", "break", "kill")
MOST_SHARDS_HERE = 6


class Step(NamedTuple):
    """`kind`, and three numbers that say who, which and how much, each within what there is then."""

    kind: str
    who: int
    which: int
    much: int


@dataclass(frozen=True)
class Schedule:
    """How the world begins, and what happens in it."""

    shards: int
    seed: int
    is_narrow: bool
    steps: tuple[Step, ...]

    def with_steps(self, steps: Sequence[Step]) -> Schedule:
        """The same world, in which this happens."""
        return replace(self, steps=tuple(steps))

    def __str__(self) -> str:
        head = f"shards {self.shards} seed {self.seed} {'narrow' if self.is_narrow else 'wide'}"
        return "\n".join([head, *(" ".join(map(str, step)) for step in self.steps)]) + "\n"


def drawn(seed: int) -> Schedule:
    """One of 60 to 200 steps.

    Each schedule has its own share of each kind of step, some of them none (swarm testing: Groce and others, 2012): so
    what shows only where something else is rare is found.
    """
    rng = random.Random(seed)
    weights = {kind: rng.choice((0, 1, 1, 2, 5)) * usual for kind, usual in KINDS.items()}
    for fault in FAULTS:
        if rng.random() < 0.6:
            weights[fault] = 0
    weights["carry"] = rng.choice((2, 5, 10, 30))
    for kind in ("sub", "pub", "ping"):
        weights[kind] = max(weights[kind], 1)
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randrange(60, 200))
    steps = tuple(Step(kind, rng.randrange(24), rng.randrange(24), rng.randrange(24)) for kind in kinds)
    return Schedule(rng.randint(2, MOST_SHARDS_HERE), rng.randint(1, 1000), rng.random() < 0.5, steps)


def parsed(text: str) -> Schedule:
    """What str() of a Schedule wrote; lines that begin with # are comments. ValueError names the bad line."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        _, shards, _, seed, width = lines[0]
        steps = tuple(Step(kind, int(who), int(which), int(much)) for kind, who, which, much in lines[1:])
        unknown = {step.kind for step in steps} - set(KINDS)
        if unknown:
            raise ValueError(f"unknown steps: {', '.join(sorted(unknown))}")
        return Schedule(int(shards), int(seed), width == "narrow", steps)
    except (IndexError, ValueError) as error:
        raise ValueError(f"not a schedule: {error}") from None
