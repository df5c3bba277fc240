"""Distributions of load: subjects, payload sizes, and times when messages are due.

All use the given random.Random, so that a run can be repeated.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import re
from collections.abc import Callable

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024


# Of a Zipf distribution: 160 MB.
MOST_NUMBERS = 10_000_000
# Its exponential makes any payload larger than the largest; that of a thousand is no number.
FAR = 100.0


class Zipf:
    """Numbers 0 to n-1, the first the most frequent: number k comes up in proportion to 1 ÷ (k+1)^s.

    s = 0 is even; about 1 is what web pages, words and chat rooms look like. 16 bytes for each number.
    """

    def __init__(self, n: int, s: float = 1.0) -> None:
        if not (1 <= n <= MOST_NUMBERS and 0 <= s < math.inf):
            raise ValueError(f"a Zipf distribution has n of 1 to {MOST_NUMBERS} and s of 0 or more, not {n} and {s:g}")
        self._sums = list(itertools.accumulate((k + 1) ** -s for k in range(n)))

    def draw(self, rng: random.Random) -> int:
        """A random number of this distribution."""
        return min(bisect.bisect_left(self._sums, rng.random() * self._sums[-1]), len(self._sums) - 1)


def payload_sizes(text: str) -> Callable[[random.Random], int]:
    """`256`, `16-4096` (even), or `lognormal:256:1.0` (median, sigma): a function that draws sizes. ValueError."""
    if match := re.fullmatch(r"\d+", text):
        size = _checked(int(text), text)
        return lambda rng: size
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        least, most = _checked(int(match[1]), text), _checked(int(match[2]), text)
        if least <= most:
            return lambda rng: rng.randint(least, most)
    if match := re.fullmatch(r"lognormal:(\d+):(\d+(?:\.\d+)?)", text):
        median, sigma = _checked(int(match[1]), text), float(match[2])
        return lambda rng: min(MAX_PAYLOAD_BYTES, round(median * math.exp(min(rng.normalvariate(0, sigma), FAR))))
    raise ValueError(f"{text!r} is no distribution of sizes (write 256, 16-4096 or lognormal:256:1.0)")


def _checked(size: int, text: str) -> int:
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"{text!r}: a payload has {MAX_PAYLOAD_BYTES:,} bytes at most")
    return size


class Arrivals:
    """Times when messages are due, independent of earlier messages: an open model.

    Evenly spaced, or a Poisson process, as of independent clients. A publisher that is late has several messages due at
    once, and counts each one's latency from its due time.
    """

    def __init__(self, rate_per_s: float, start_s: float, rng: random.Random, is_poisson: bool = True) -> None:
        if rate_per_s <= 0:
            raise ValueError(f"a rate is more than 0, not {rate_per_s:g}")
        self._interval_s = 1 / rate_per_s
        self._rng = rng
        self._is_poisson = is_poisson
        self.due_s = start_s

    def next_s(self) -> float:
        """When the next message is due, on the clock of `start_s`."""
        self.due_s += self._rng.expovariate(1) * self._interval_s if self._is_poisson else self._interval_s
        return self.due_s
