"""Progress of a job, on standard error, with the time since its start."""

from __future__ import annotations

import sys
import time


class Progress:
    """Prints lines with the time since its creation."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, what: str) -> None:
        """Print one line."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {what}", file=sys.stderr, flush=True)
