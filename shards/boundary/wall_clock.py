"""The wall clock beside the monotonic one, which nobody sets and which all processes of a host share."""

from __future__ import annotations

import time


def wall_offset_us() -> int:
    """What to add to a monotonic time to get µs since 1970, by the clock as it is now."""
    return (time.time_ns() - time.monotonic_ns()) // 1000
