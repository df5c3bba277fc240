"""Formats numbers for people by the name of their column: with their unit, and few digits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gnatswarm.spark.schema import GATEWAY

HEADINGS = {
    "in_msgs": "messages in",
    "out_msgs": "messages out",
    "link_out_msgs": "to siblings",
    "link_in_msgs": "from siblings",
    "msgs": "messages",
    "fanout": "fan-out",
    "error": "may lack",
    "cpu_share": "of a core",
    "resident_bytes": "memory",
    "lag_max_us": "latest timer",
    "peak_pending_bytes": "most pending",
    "most_pending_bytes": "most pending",
    "paused_us": "paused",
    "window_start_us": "from",
    "window_us": "for",
    "first_us": "from",
    "last_us": "to",
    "from_shard": "from shard",
    "to_shard": "to shard",
    "n": "shards",
    "from_service": "from",
    "to_service": "to",
    "crossed_msgs": "crossed",
    "crossed_share": "share",
    "on_shards": "shards",
    "one_publisher": "published by",
    "one_listener": "received by",
    "requests_per_s": "per second",
    "before_per_s": "before, per s",
    "now_per_s": "now, per s",
    "opened_per_minute": "per minute",
}
# Numbers that are identifiers.
NAMES = frozenset({"shard", "from_shard", "to_shard", "file"})
MOMENTS = frozenset({"window_start_us", "first_us", "last_us"})


def shown(name: str, row: Mapping[str, Any]) -> str:
    """A value as a cell of a table."""
    value = row[name]
    if value is None:
        return "–"
    if isinstance(value, str):
        return visible(value, MOST_PATH_SHOWN if name == "path" else MOST_SHOWN)
    if name in NAMES:
        return "gateway" if value == GATEWAY and name != "file" else str(value)
    if name in MOMENTS:
        return moment(value)
    if name.endswith("_us"):
        return duration(value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith("share"):
        return percent(value)
    if row.get("measure") == "cpu_s" and name in ("sum", "min", "max"):
        return f"{value:,.2f} s"
    return f"{value:,}" if isinstance(value, int) else number(value)


# A name or a subject may be of any length; a page shows so much of it.
MOST_SHOWN = 120
# A file cannot be found by a part of its path.
MOST_PATH_SHOWN = 4096


def visible(text: str, most: int = MOST_SHOWN) -> str:
    """A client's word for a page or a terminal: bounded, and with codes instead of characters that are not seen."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def counted(count: int, noun: str) -> str:
    """As in "1 message" and "1,501 messages"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def number(value: float | None) -> str:
    """Two decimals, or none for large and for whole numbers."""
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.2f}"


def percent(value: float | None) -> str:
    """0.884 → 88.4%."""
    return "–" if value is None else f"{value:.1%}"


def size(value: float) -> str:
    """1234567 → 1.2 MB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= unit:
            return f"{value / unit:,.1f} {name}"
    return f"{value:,.0f} B"


def duration(us: float) -> str:
    """1500 → 1.5 ms."""
    if us >= 1e6:
        return f"{us / 1e6:,.1f} s"
    return f"{us / 1000:.1f} ms" if us >= 1000 else f"{us:.0f} µs"


def bucket(row: Mapping[str, Any]) -> str:
    """A bucket of a histogram: 5, or 17–32."""
    return str(row["least"]) if row["least"] == row["most"] else f"{row['least']}–{row['most']}"


def moment(at_us: float) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(at_s: float) -> str:
    """UTC, for an axis."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")
