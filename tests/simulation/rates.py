"""What clients may publish, counted over all shards: words that allowances share, as those on the page."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from gnatswarm.broker.allowance import Allowance


class Rate(NamedTuple):
    """Of one user's clients together."""

    per_second: float  # messages
    burst_s: float


# Four messages at once, and two. Of what clients publish in a schedule all may go on within some seconds.
RATES = Rate(200.0, 0.02), Rate(100.0, 0.02)


class Rates:
    """Two of three clients are of a user with such a limit."""

    def __init__(self) -> None:
        self._paid = array("Q", [0] * len(RATES))
        first, size = self._paid.buffer_info()[0], self._paid.itemsize
        self._made = [
            Allowance([(first + size * at, rate.per_second, rate.burst_s, False)], self._paid)
            for at, rate in enumerate(RATES)
        ]

    def of(self, number: int) -> Allowance | None:
        """What the client with this number has; None: it may publish as much as it wants to."""
        user = number % (len(RATES) + 1)
        return self._made[user] if user < len(RATES) else None
