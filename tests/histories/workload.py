"""The workload: what recorded clients do, drawn from a seed.

Time is cut into epochs of some hundred operations, each with subjects of its own. If a connection was closed, nobody
knows when its interest ended; this makes only its own epoch uncertain. Each epoch has its own share of each kind of
operation, and may have none of some kinds (swarm testing: Groce and others, 2012).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

EPOCH_OPERATIONS = 300
# Operations, and the weight of each unless an epoch changes it.
KINDS = {"sub": 3, "unsub": 2, "most": 1, "pub": 4, "request": 2}
SUBJECTS = ("a", "b", "a.b", "c")
# So many subjects that each is often without a subscriber, and gains and loses them often.
MANY_SUBJECTS = tuple(f"s{number}" for number in range(20))
WILDCARDS = ("*", ">", "*.b", "a.*", "a.>")
FILLINGS = (0, 0, 0, 10, 100, 100, 4_000)
LARGE_FILLINGS = (0, 0, 0, 0, 0, 10, 100, 100, 1_000, 4_000, 9_000, 20_000, 33_000, 70_000, 200_000)


@dataclass(frozen=True)
class Epoch:
    """The workload of some hundred operations."""

    number: int
    subjects: tuple[str, ...]
    patterns: tuple[str, ...]
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    weights: tuple[int, ...]
    burst: int  # the most operations in one write
    close_chance: float  # per write
    fence_chance: float  # per write
    answer_chance: float
    interjection_chance: float  # per PONG: that another client publishes at once


@lru_cache(maxsize=4)
def epoch(seed: int, number: int, has_closes: bool = True) -> Epoch:
    """The same for the same seed and number."""
    rng = Random(f"{seed} {number}")
    prefix = f"h.{seed}.{number}"
    names = rng.choice((SUBJECTS[: rng.randint(1, len(SUBJECTS))], MANY_SUBJECTS))
    subjects = [f"{prefix}.{name}" for name in names]
    wildcards = [f"{prefix}.{name}" for name in rng.sample(WILDCARDS, rng.randint(0, len(WILDCARDS)))]
    weights = {kind: rng.choice((0, 1, 1, 2, 5)) * usual for kind, usual in KINDS.items()}
    weights["sub"] = max(weights["sub"], 1)
    weights["pub"] += not weights["request"]
    return Epoch(
        number=number,
        subjects=tuple(subjects),
        patterns=tuple(subjects * 2 + wildcards),
        queues=rng.choice((("",), ("", "q"), ("q",), ("", "q", "r"))),
        kinds=tuple(weights),
        weights=tuple(weights.values()),
        burst=rng.choice((2, 4, 8, 40)),
        close_chance=rng.choice((0, 0, 0, 0.02)) if has_closes else 0,
        fence_chance=rng.choice((0.3, 0.6, 0.9)),
        answer_chance=rng.choice((0, 0.3)),
        interjection_chance=rng.choice((0, 0.3, 1)),
    )
