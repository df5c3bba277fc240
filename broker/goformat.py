"""Times and durations as in nats-server's pages and events, which tools parse with Go.

Go writes nanoseconds without trailing zeros; our precision is 1 µs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def time_text(us: int) -> str:
    """µs since 1970 as RFC 3339 in UTC: 2026-11-20T10:25:55.857175Z."""
    seconds, rest = divmod(us, 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{_second(seconds)}{fraction}Z"


def age_text(us: int) -> str:
    """How long something has lasted, in whole seconds: 7s, 3m7s, 2h0m7s, 5d2h0m7s, 1y5d2h0m7s."""
    seconds = max(us, 0) // 1_000_000
    minutes, hours, days, years = seconds // 60, seconds // 3600, seconds // 86_400, seconds // 31_536_000
    if years:
        return f"{years}y{days % 365}d{hours % 24}h{minutes % 60}m{seconds % 60}s"
    if days:
        return f"{days}d{hours % 24}h{minutes % 60}m{seconds % 60}s"
    if hours:
        return f"{hours}h{minutes % 60}m{seconds % 60}s"
    if minutes:
        return f"{minutes}m{seconds % 60}s"
    return f"{seconds}s"


def duration_text(us: int) -> str:
    """A Go Duration of whole µs: 0s, 411µs, 1.25ms, 2.5s, 1m2.5s."""
    if us <= 0:
        return "0s"
    if us < 1000:
        return f"{us}µs"
    if us < 1_000_000:
        return f"{_trimmed(us, 1000)}ms"
    minutes, rest = divmod(us, 60_000_000)
    text = f"{_trimmed(rest, 1_000_000)}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


def _trimmed(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
