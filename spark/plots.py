"""The report's plots as PNG files, for a document or a ticket. matplotlib is imported when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark.advice import Rows
from spark.figures import bucket

DOTS_PER_INCH = 120


def plots(answers: Mapping[str, Rows], directory: Path) -> list[Path]:
    """fanout, hottest, shards, matrix, lag; those of which there is nothing are left out. Returns what was written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []

    def keep(name: str, title: str) -> None:
        pyplot.title(title, loc="left", fontsize=11)
        pyplot.tight_layout()
        written.append(directory / f"{name}.png")
        pyplot.savefig(written[-1], dpi=DOTS_PER_INCH)
        pyplot.close()

    def bars(name: str, title: str, rows: list[tuple[str, float]]) -> None:
        if rows:
            pyplot.figure(figsize=(8, 0.9 + 0.3 * len(rows)))
            pyplot.barh([label for label, _ in reversed(rows)], [value for _, value in reversed(rows)])
            keep(name, title)

    def over_time(name: str, title: str, column: str, scale: float) -> None:
        rows = answers["over_time"]
        if rows:
            pyplot.figure(figsize=(8, 3))
            for shard in sorted({row["shard"] for row in rows}):
                mine = [row for row in rows if row["shard"] == shard]
                at = [datetime.fromtimestamp(row["window_start_us"] / 1e6, UTC) for row in mine]
                pyplot.plot(at, [(row[column] or 0) * scale for row in mine], marker=".", label=f"shard {shard}")  # type: ignore[arg-type]
            pyplot.ylim(bottom=0)
            pyplot.legend()
            keep(name, title)

    bars(
        "fanout", "Messages by the fan-out of their subject", [(bucket(row), row["msgs"]) for row in answers["fanouts"]]
    )
    bars("hottest", "Deliveries by subject", [(row["subject"], row["deliveries"]) for row in answers["hottest"][:12]])
    over_time("shards", "Messages in and out per second, by shard", "msgs_per_s", 1.0)
    over_time("lag", "p99 of how late timers were, in ms", "lag_p99_us", 1e-3)
    matrix(answers, pyplot, keep)
    return written


def matrix(answers: Mapping[str, Rows], pyplot: Any, keep: Any) -> None:
    """Deliveries from shard to shard."""
    shards = [row["shard"] for row in answers["shards"]]
    if len(shards) < 2:
        return
    cells = {(row["from_shard"], row["to_shard"]): row["deliveries"] for row in answers["matrix"]}
    pyplot.figure(figsize=(1.5 + 0.8 * len(shards), 1.5 + 0.8 * len(shards)))
    pyplot.imshow([[cells.get((a, b), 0) for b in shards] for a in shards], cmap="Blues")
    for i, a in enumerate(shards):
        for j, b in enumerate(shards):
            pyplot.text(j, i, f"{cells.get((a, b), 0):,}", ha="center", va="center", fontsize=8)
    pyplot.xticks(range(len(shards)), [f"to {b}" for b in shards])
    pyplot.yticks(range(len(shards)), [f"from {a}" for a in shards])
    keep("matrix", "Deliveries from shard to shard")
