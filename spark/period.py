"""The two periods that a report compares: `yesterday`, a day, or FROM..TO; and everything after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

END_US = 1 << 62
DAY_US = 86_400_000_000
FORMS = "yesterday, a day (2026-02-03), or FROM..TO (2026-02-03T10:00..2026-02-03T12:00), in UTC"


class BadPeriod(ValueError):
    """It is none of FORMS."""


class Periods(NamedTuple):
    """Before, and now: µs since 1970, each with its beginning, and its end excluded."""

    before: tuple[int, int]
    now: tuple[int, int]


def periods(text: str, last_us: int) -> Periods:
    """What `text` says, where the last window is at last_us. What comes after the first period is the second."""
    if text == "yesterday":
        today = datetime.fromtimestamp(last_us / 1e6, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        begin, end = _us(today - timedelta(days=1)), _us(today)
    elif ".." in text:
        first, _, last = text.partition("..")
        begin, end = _us(_moment(first)), _us(_moment(last))
    else:
        begin = _us(_moment(text))
        end = begin + DAY_US
    if begin >= end:
        raise BadPeriod(f"{text}: it ends before it begins")
    return Periods((begin, end), (end, END_US))


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadPeriod(f"{text!r} is no period: write {FORMS}") from None


def _us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000
