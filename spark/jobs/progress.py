"""What a job is doing, on standard error, with the time since it began."""

from __future__ import annotations

import sys
import time


class Progress:
    """Says one line at a time."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, what: str) -> None:
        """One line."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {what}", file=sys.stderr, flush=True)
