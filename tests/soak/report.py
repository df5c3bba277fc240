"""The report of a soak: plots as SVG, and a page in Markdown with first and last values and their drift."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

matplotlib.rcParams["svg.hashsalt"] = "gnatswarm"

Rows = Sequence[dict[str, Any]]


def lines_of(rows: Rows, column: str) -> dict[str, list[tuple[float, float]]]:
    """(hours, value) of each process."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row[column] != "":
            found[row["process"]].append((row["hours"], float(row[column])))
    return found


def plot(lines: dict[str, list[tuple[float, float]]], title: str, path: Path, *, scale: float = 1.0) -> None:
    figure, axes = pyplot.subplots(figsize=(8, 3.2))
    for name, points in lines.items():
        axes.plot([at for at, _ in points], [value * scale for _, value in points], label=name, linewidth=1)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("hours")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def part(points: list[tuple[float, float]], first: float, last: float) -> float:
    """The median value within these shares of the time."""
    end = points[-1][0]
    return median([value for at, value in points if first * end <= at <= last * end] or [points[-1][1]])


def drift_table(rows: Rows, column: str, shown: Callable[[float], str]) -> list[str]:
    """A row for each process: the medians of the second and the last tenth of the time, and what an hour added.

    Not the first tenth: caches and pools fill then.
    """
    said = []
    for name, points in lines_of(rows, column).items():
        early, late = part(points, 0.1, 0.2), part(points, 0.9, 1.0)
        most = max(value for _, value in points)
        an_hour = (late - early) / max(1e-9, 0.8 * points[-1][0])
        said.append(f"| {name} | {shown(early)} | {shown(late)} | {shown(most)} | {an_hour:+,.1f} |")
    return said


def write(folder: Path, processes: Rows, totals: Rows, facts: dict[str, str]) -> None:
    """Write plots and README.md."""
    plot(lines_of(processes, "resident_kib"), "resident memory, MiB", folder / "memory.svg", scale=1 / 1024)
    plot(lines_of(processes, "descriptors"), "open descriptors", folder / "descriptors.svg")
    plot(lines_of(processes, "loop_lag_us"), "event loop's lag, ms", folder / "lag.svg", scale=1e-3)
    drift = [(row["hours"], abs(float(row["in_msgs"] - row["ours"]))) for row in totals]
    plot({"|broker − load|": drift}, "messages counted by the broker and by the load", folder / "drift.svg")
    head = "| process | second tenth | last tenth | most | an hour adds |\n|---|--:|--:|--:|--:|"
    text = ["# A soak", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    for title, column, name in (
        ("Resident memory, KiB", "resident_kib", "memory"),
        ("Private memory, KiB", "private_kib", ""),
        ("Descriptors", "descriptors", "descriptors"),
        ("Event loop's lag, µs", "loop_lag_us", "lag"),
    ):
        text += ["", f"## {title}", "", head, *drift_table(processes, column, lambda value: f"{value:,.0f}")]
        if name:
            text += ["", f"![{title}]({name}.svg)"]
    text += [
        "",
        "## Counts",
        "",
        "What the pages say that clients have published, less what the load had had acknowledged a moment before: what",
        "was under way between the two looks. The end is exact (above).",
        "",
        "![drift](drift.svg)",
        "",
    ]
    (folder / "README.md").write_text("\n".join(text))
