"""One subject, explained on a terminal: who publishes it, who gets it and would miss it, how much, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gnatswarm.spark.figures import counted, moment, number, percent, visible

MOST_ROWS = 50

Row = Mapping[str, Any]


def explained(subject: str, publishers: Sequence[Row], listeners: Sequence[Row], edges: Sequence[Row]) -> str:
    """The text, from what `graph.of_subject` says."""
    name = visible(subject)
    if not publishers and not listeners:
        return f"Nobody published {name} or got it in this time, as far as rows of clients say."
    lines = [f"{name}", ""]
    total = sum(row["msgs"] for row in publishers)
    lines.append(f"Published by {_counted(publishers)}: {counted(total, 'message')}")
    lines += _table([_publisher(row, total) for row in publishers])
    lines.append("")
    if listeners:
        lines.append(f"Received by {_counted(listeners)}")
        lines += _table([_listener(row) for row in listeners])
        lines.append("")
        missing = sorted({visible(row["service"]) for row in listeners})
        lines.append(f"Would miss it: {_list(missing)}")
    else:
        lines.append("Nobody received it: nobody would miss it.")
    if edges:
        lines += ["", "From → to, messages"]
        lines += _table(
            [
                [
                    visible(row["from_service"]),
                    "→",
                    visible(row["to_service"]),
                    f"{row['msgs']:,}",
                    f"{percent(row['crossed_msgs'] / row['msgs'])} to another shard" if row["crossed_msgs"] else "",
                ]
                for row in edges
            ]
        )
    return "\n".join(lines)


def _counted(rows: Sequence[Row]) -> str:
    services = {row["service"] for row in rows}
    return f"{len(services)} service{'s' if len(services) != 1 else ''}"


def _who(row: Row) -> list[str]:
    cid = f"cid {row['cid']}" if row["cid"] else "gone"
    user = f"user {visible(row['user'])}" if row["user"] else ""
    return [visible(row["service"]), user, visible(row["ip"]), f"shard {row['shard']}", cid]


def _publisher(row: Row, total: int) -> list[str]:
    seconds = (row["last_us"] - row["first_us"]) / 1e6
    rate = f"{number(row['msgs'] / seconds)}/s" if seconds else ""
    requests = f"{row['requests']:,} requests" if row["requests"] else ""
    share = percent(row["msgs"] / total) if total else ""
    return [*_who(row), f"{row['msgs']:,}", share, rate, requests, f"since {moment(row['first_us'])}"]


def _listener(row: Row) -> list[str]:
    queue = f"queue {visible(row['queue'])}" if row["queue"] else ""
    return [*_who(row), f"by {visible(row['pattern'])}", queue, f"{row['msgs']:,}", f"since {moment(row['first_us'])}"]


def _list(names: list[str]) -> str:
    return ", ".join(names[:MOST_ROWS]) + (f" and {len(names) - MOST_ROWS} others" if len(names) > MOST_ROWS else "")


def _table(rows: list[list[str]]) -> list[str]:
    """Columns below each other; empty ones are left out."""
    shown = rows[:MOST_ROWS]
    kept = [i for i in range(len(shown[0])) if any(row[i] for row in shown)] if shown else []
    wide = {i: max(len(row[i]) for row in shown) for i in kept}
    lines = ["  " + "  ".join(row[i].ljust(wide[i]) for i in kept).rstrip() for row in shown]
    return lines + ([f"  … and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else [])
