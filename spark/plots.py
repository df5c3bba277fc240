"""The report's plots as PNG files, for a document or a ticket. Imports matplotlib only when it makes them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnatswarm.spark import charts
from gnatswarm.spark.advice import Rows
from gnatswarm.spark.figures import bucket, visible

DOTS_PER_INCH = 120
# Characters of a label.
MOST_SHOWN = 40


def plots(answers: Mapping[str, Rows], directory: Path) -> list[Path]:
    """Write fanout, hottest, shards, matrix and lag, except those without data; returns the paths written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []

    def keep(name: str, title: str) -> None:
        pyplot.title(title, loc="left", fontsize=11)
        written.append(directory / f"{name}.png")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph ")  # the font has not each letter of a client: a box stands for it
            pyplot.tight_layout()
            pyplot.savefig(written[-1], dpi=DOTS_PER_INCH)
        pyplot.close()

    def bars(name: str, title: str, rows: list[tuple[str, float]]) -> None:
        if rows:
            pyplot.figure(figsize=(8, 0.9 + 0.3 * len(rows)))
            places = range(len(rows))  # (subjects of several accounts may have one name, and so one label)
            pyplot.barh(places, [value for _, value in reversed(rows)])
            pyplot.yticks(places, [_plain(label) for label, _ in reversed(rows)])
            keep(name, title)

    def over_time(name: str, title: str, column: str, scale: float) -> None:
        series = charts.over_time(answers["over_time"], column, scale)
        if series:
            pyplot.figure(figsize=(8, 3))
            for label, line in series:
                at = [datetime.fromtimestamp(x, UTC) for x, _ in line]
                pyplot.plot(at, [y for _, y in line], marker=".", label=label)  # type: ignore[arg-type]
            pyplot.ylim(bottom=0)
            pyplot.legend()
            keep(name, title)

    bars(
        "fanout", "Messages by the fan-out of their subject", [(bucket(row), row["msgs"]) for row in answers["fanouts"]]
    )
    bars("hottest", "Deliveries by subject", charts.hottest(answers["hottest"]))
    over_time("shards", "Messages in and out per second, by shard", "msgs_per_s", 1.0)
    over_time("lag", "p99 of the delay of timers, in ms", "lag_p99_us", 1e-3)
    matrix(answers, pyplot, keep)
    return written


def _plain(label: str) -> str:
    """A client's word, bounded; what is between two dollar signs would be drawn as a formula, or be an error in one."""
    return visible(label, MOST_SHOWN).replace("$", r"\$")


def matrix(answers: Mapping[str, Rows], pyplot: Any, keep: Any) -> None:
    """Deliveries from shard to shard."""
    shards, cells = charts.between_shards(answers["shards"], answers["matrix"])
    if not shards:
        return
    places = range(len(shards))
    pyplot.figure(figsize=(1.5 + 0.8 * len(shards), 1.5 + 0.8 * len(shards)))
    pyplot.imshow([[cells.get((a, b), 0) for b in places] for a in places], cmap="Blues")
    for a in places:
        for b in places:
            pyplot.text(b, a, f"{cells.get((a, b), 0):,.0f}", ha="center", va="center", fontsize=8)
    pyplot.xticks(places, [f"to {b}" for b in shards])
    pyplot.yticks(places, [f"from {a}" for a in shards])
    keep("matrix", "Deliveries from shard to shard")
