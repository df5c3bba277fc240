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
    "tell": 2,
    "pass": 1,
    "sub": 3,
    "unsub": 2,
    "max": 1,
    "burst": 2,
    "pub": 3,
    "volley": 1,
    "request": 1,
    "answer": 1,
    "ping": 3,
    "slow": 1,
    "take": 1,
    "rights": 1,
    "limits": 1,
    "go": 1,
    "come": 1,
    "break": 1,
    "kill": 1,
    "boot": 1,
    "leave": 1,
}
# Faults: most schedules have only some of them, or none.
FAULTS = ("go", "break", "kill", "leave")
# Features of a world: how often each occurs, and the steps that only such a world has, with their weights.
FEATURES = {
    "slow": (0.4, {"slow": 4, "take": 5, "volley": 4, "pub": 12, "pass": 4, "limits": 1}),
    "accounts": (0.4, {"request": 8, "answer": 8}),
    "rights": (0.3, {"rights": 1, "answer": 2}),
    "third": (0.15, {}),
    "queues": (0.5, {}),  # of a world with a third account: queue groups there
}
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
    features: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        """Whether its world has this: see FEATURES."""
        return feature in self.features

    def with_steps(self, steps: Sequence[Step]) -> Schedule:
        """The same world, in which this happens."""
        return replace(self, steps=tuple(steps))

    def __str__(self) -> str:
        head = f"shards {self.shards} seed {self.seed} {'narrow' if self.is_narrow else 'wide'}"
        head = " ".join([head, *self.features])
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
    if rng.random() < 0.3:  # nothing but traffic
        weights.update(dict.fromkeys((*FAULTS, "boot", "tell"), 0))
    features = tuple(name for name, (share, _) in FEATURES.items() if rng.random() < share)
    if "accounts" not in features:
        features = tuple(name for name in features if name != "third")
    for name, (_, own) in FEATURES.items():
        for kind, usual in own.items():
            if name in features:
                weights[kind] = max(weights[kind], usual)
            elif kind in ("slow", "take", "limits", "rights"):
                weights[kind] = 0
    weights["carry"] = rng.choice((2, 5, 10, 30))
    for kind in ("sub", "pub", "ping"):
        weights[kind] = max(weights[kind], 1)
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randrange(60, 200))
    steps = tuple(Step(kind, rng.randrange(24), rng.randrange(24), rng.randrange(24)) for kind in kinds)
    return Schedule(rng.randint(2, MOST_SHARDS_HERE), rng.randint(1, 1000), rng.random() < 0.5, steps, features)


def parsed(text: str) -> Schedule:
    """What str() of a Schedule wrote; lines that begin with # are comments. ValueError names the bad line."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        _, shards, _, seed, width, *features = lines[0]
        steps = tuple(Step(kind, int(who), int(which), int(much)) for kind, who, which, much in lines[1:])
        unknown = {step.kind for step in steps} - set(KINDS)
        unknown |= set(features) - set(FEATURES)
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        return Schedule(int(shards), int(seed), width == "narrow", steps, tuple(features))
    except (IndexError, ValueError) as error:
        raise ValueError(f"not a schedule: {error}") from None
