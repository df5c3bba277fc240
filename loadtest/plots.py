"""The plots of a comparison: ratios as bars, latencies by percentile. Each as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from gnatswarm.loadtest.compare import Comparison

# Equal numbers must give equal files.
matplotlib.rcParams["svg.hashsalt"] = "gnatswarm"
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Draw every plot for which there are numbers; returns the files written."""
    return [*_ratios(comparison, folder), *_latencies(comparison, folder)]


def _save(figure: Any, folder: Path, name: str) -> list[Path]:
    paths = []
    for ending, metadata in _METADATA.items():
        path = folder / f"{name}.{ending}"
        figure.savefig(path, bbox_inches="tight", dpi=110, metadata=metadata)
        paths.append(path)
    pyplot.close(figure)
    return paths


def _ratios(comparison: Comparison, folder: Path) -> list[Path]:
    bars: list[tuple[str, float]] = []
    marks: dict[str, list[tuple[float, int]]] = {"must": [], "aim": []}
    for scenario in comparison.scenarios:
        label = comparison.judged(scenario)
        if label is None:
            continue
        for index, shown in enumerate(scenario.figures):
            ratio = comparison.ratio(scenario.name, label, shown)
            if ratio:
                for name, wanted in (("must", scenario.must), ("aim", scenario.aim)):
                    if index < len(wanted):
                        marks[name].append((wanted[index], len(bars)))
                bars.append((f"{scenario.name}: {shown}", ratio))
    if not bars:
        return []
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(bars) + 1.2))
    places = range(len(bars))
    axes.barh(places, [bar[1] for bar in bars], color=["#3a7d44" if bar[1] >= 1 else "#b5452c" for bar in bars])
    for name, color in (("must", "black"), ("aim", "#888888")):
        axes.plot(*([mark[axis] for mark in marks[name]] for axis in (0, 1)), "|", color=color, ms=11, mew=2)
    for at, bar in zip(places, bars, strict=True):
        axes.text(bar[1] * 1.03, at, f"{bar[1]:.1f}", va="center", fontsize=8)
    axes.set_yticks(list(places), [bar[0] for bar in bars], fontsize=8)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("×{x:g}")
    axes.axvline(1, color="black", lw=0.8)
    axes.set_title(f"better than {comparison.reference} by (black mark: must, grey: aim)", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, folder, "ratios")


def _latencies(comparison: Comparison, folder: Path) -> list[Path]:
    paths = []
    for number, scenario in enumerate(one for one in comparison.scenarios if one.kind == "latency"):
        figure, axes = pyplot.subplots(figsize=(8, 4.2))
        for spec in comparison.specs:
            results = [result for result in comparison.of(scenario.name, spec.label) if result.histogram]
            if results and (scenario.name, spec.label) not in comparison.failed:
                # The round with the median p99; an average of percentiles has no meaning.
                result = sorted(results, key=lambda one: one.latency_us["p99"])[len(results) // 2]
                axes.plot(*_curve(result.histogram["pairs"]), label=spec.label, lw=1.5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        marks = [50, 90, 99, 99.9, 99.99]
        axes.set_xticks([100 / (100 - mark) for mark in marks], [f"{mark:g} %" for mark in marks])
        axes.set_ylabel("µs")
        axes.set_title(scenario.title, fontsize=10)
        axes.grid(alpha=0.3, which="both")
        axes.legend()
        paths += _save(figure, folder, f"latency-{number + 1}")
    return paths


def _curve(pairs: list[list[int]]) -> tuple[list[float], list[float]]:
    """x: 1 ÷ (share of messages that took longer); y: the longest time of the others."""
    whole = sum(count for _, count in pairs)
    seen = 0
    across, up = [], []
    for value_ns, count in pairs:
        seen += count
        if seen < whole:
            across.append(whole / (whole - seen))
            up.append(value_ns / 1000)
    return across, up
