"""The data of the report's charts, as labels and numbers: drawn as SVG in the page, and as PNG for documents.

There are two ways to draw: the page is self-contained, with light and dark colours, and needs no library (`page`); a
document or a ticket needs PNG, for which matplotlib is loaded (`plots`). Both draw the data that is selected here.
"""

from __future__ import annotations

from gnatswarm.spark.advice import Rows
from gnatswarm.spark.schema import GATEWAY

HOTTEST = 12

Line = list[tuple[float, float]]  # seconds since 1970, value


def hottest(rows: Rows) -> list[tuple[str, float]]:
    """(subject, deliveries), most first."""
    return [(row["subject"], row["deliveries"]) for row in rows[:HOTTEST]]


def over_time(rows: Rows, column: str, scale: float = 1.0) -> list[tuple[str, Line]]:
    """A line per shard, and one of the gateway."""
    series: dict[int, Line] = {}
    for row in rows:
        series.setdefault(row["shard"], []).append((row["window_start_us"] / 1e6, float(row[column] or 0) * scale))
    return [("gateway" if shard == GATEWAY else f"shard {shard}", line) for shard, line in sorted(series.items())]


def between_shards(shards: Rows, matrix: Rows) -> tuple[list[str], dict[tuple[int, int], float]]:
    """The shards' names, and the deliveries by (from, to), places in that list; none if there is only one shard."""
    numbers = [row["shard"] for row in shards]
    if len(numbers) < 2:
        return [], {}
    at = {number: place for place, number in enumerate(numbers)}
    return [str(number) for number in numbers], {
        (at[row["from_shard"]], at[row["to_shard"]]): float(row["deliveries"])
        for row in matrix
        if row["from_shard"] in at and row["to_shard"] in at
    }


def between_services(rows: Rows) -> list[tuple[str, str, float]]:
    """(from, to, messages) of services."""
    return [(row["from_service"], row["to_service"], float(row["msgs"])) for row in rows]
