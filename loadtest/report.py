"""A comparison as files: a page in Markdown, all numbers as JSON and CSV, plots.

`loadtest/results/<date>/README.md` is for people; all numbers are in files beside it. Plots need matplotlib; without it
they are left out with a message.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gnatswarm.loadtest.compare import Comparison
from gnatswarm.loadtest.measure import Result
from gnatswarm.loadtest.plan import Scenario

UNIT_OF = {"cpu": "µs", "rate": "/s", "memory": "B", "p50": "µs", "p99": "µs", "p99.9": "µs"}
TITLE_OF = {"cpu": "CPU", "rate": "rate", "memory": "memory"}

METHOD = """\
Each scenario runs on every server in turn, {rounds} rounds (A B A B …{more}), with the same compiled generator in
processes of its own; shown are medians. **CPU** is the on-CPU time of all threads of a server's process tree
(`/proc/PID/task/*/schedstat`, nanoseconds) from the first message to the last, divided by deliveries. **Rate** is
deliveries (answers, connections, pairs) per second of wall time; on a machine whose cores generator and server share it
says as much about the machine as about the server, so read the CPU column first. Publishers stay at most {window} of
unread bytes ahead of the slowest subscriber, so that no server has a reason to drop; every delivery is compared with
what it must look like and counted, and a PING at the end finds those that nobody should have got. **Memory** is what
the resident memory of a freshly started process tree has grown by, 1.5 s after the last connection. Latencies at a
fixed rate count from the moment a message was *due* (no coordinated omission); those of request/reply are of a closed
loop. Where a scenario does not say on which shards its clients are, chance decides, and a server with several shards
may or may not carry its messages between two of them. The generator's sockets use TCP congestion control
`{congestion}`. A **ratio** is "better by so many times": the reference's CPU, memory or latency ÷ the server's, the
server's rate ÷ the reference's. Times and rates hold for this machine and hour alone; ratios travel better.
"""


def write(comparison: Comparison, folder: Path, machine: dict[str, Any], congestion: str, date: str) -> list[Path]:
    """Write all files of a comparison; returns their paths. OSError if the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = _plots(comparison, folder)
    files = {
        "README.md": page(
            comparison, machine, congestion, date, [path.name for path in plots if path.suffix == ".svg"]
        ),
        "results.json": json_text(comparison.results, machine, comparison, date),
        "results.csv": csv_text(comparison.results),
    }
    for name, text in files.items():
        write_file(folder / name, text)
    return [*(folder / name for name in files), *plots]


def write_file(path: Path, text: str) -> None:
    """OSError has the file's name, also when the disk is full."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename = str(path)
        raise


# ------------------------------------------------------------------------------------------------------------ numbers


def shown(value: float | None, figure: str) -> str:
    """A figure as text with its unit."""
    if value is None:
        return "–"
    unit = UNIT_OF[figure]
    if figure == "rate":
        return f"{value:,.0f}{unit}"
    if figure == "memory":
        return f"{value / 1024:,.2f} KB" if value >= 1024 else f"{value:,.0f} B"
    digits = 4 if value < 1 else 2 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}"


def verdict(ratio: float | None, must: float | None, aim: float | None) -> str:
    """The verdict on a ratio: whether it reaches must and aim."""
    if ratio is None or must is None:
        return ""
    if aim is not None and ratio >= aim:
        return "aim reached"
    return "must reached" if ratio >= must else "**below must**"


def wanted(scenario: Scenario, index: int) -> tuple[float | None, float | None]:
    """Must and aim of a scenario's figure, by the figure's index."""
    must = scenario.must[index] if index < len(scenario.must) else None
    aim = scenario.aim[index] if index < len(scenario.aim) else None
    return must, aim


# --------------------------------------------------------------------------------------------------------------- pages


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def ratio_rows(comparison: Comparison) -> list[list[str]]:
    """Rows of the table of targets: work, figure, both servers' values, ratio, must, aim, verdict."""
    rows = []
    for scenario in comparison.scenarios:
        label = comparison.judged(scenario)
        for index, figure in enumerate(scenario.figures):
            must, aim = wanted(scenario, index)
            if must is None:
                continue
            if label is None:
                rows.append([scenario.title, TITLE_OF.get(figure, figure), *["–"] * 4, f"{must:g}", "", "not run"])
                continue
            ratio = comparison.ratio(scenario.name, label, figure)
            has_failed = any((scenario.name, one) in comparison.failed for one in (label, comparison.reference))
            rows.append(
                [
                    scenario.title,
                    TITLE_OF.get(figure, figure),
                    label,
                    shown(comparison.median(scenario.name, label, figure), figure),
                    shown(comparison.median(scenario.name, comparison.reference, figure), figure),
                    f"**{ratio:.2f}**" if ratio else "–",
                    f"{must:g}",
                    f"{aim:g}" if aim else "",
                    "**failed**" if has_failed else verdict(ratio, must, aim),
                ]
            )
    return rows


def page(comparison: Comparison, machine: dict[str, Any], congestion: str, date: str, plots: Sequence[str]) -> str:
    """The report as a Markdown page."""
    window = max((scenario.window_bytes for scenario in comparison.scenarios), default=0)
    parts = [f"# Comparison of {date}", ""]
    parts.append(table(["server", "started as", "version"], _server_rows(comparison)))
    parts += ["", "## What must be reached", ""]
    head = ["work", "figure", "server", "ours", comparison.reference, "ratio", "must", "aim", ""]
    parts.append(table(head, ratio_rows(comparison)))
    parts += [f"\n![{name}]({name})" for name in plots]
    parts += ["", f"## Where {' or '.join(_peers(comparison))} is ahead", "", _ahead(comparison)]
    parts += ["", "## Everything that was measured", ""]
    parts.append(_all_table(comparison))
    notes = _notes(comparison)
    if notes:
        parts += ["", "## To know about these numbers", "", *(f"- {note}" for note in notes)]
    parts += ["", "## Method", "", METHOD.format(
        rounds=comparison.rounds, more=_more_rounds(comparison), window=f"{window / 1024**2:g} MiB",
        congestion=congestion,
    )]  # fmt: skip
    parts += ["## Machine", "", table(["what", "is"], [[key, str(value)] for key, value in machine.items()])]
    parts += ["", "All runs with every number: [results.json](results.json), [results.csv](results.csv).", ""]
    return "\n".join(parts)


def _peers(comparison: Comparison) -> list[str]:
    """The reference and other versions of it; the reference alone if every server is of its kind."""
    kinds = {label: version.split(" ")[0] for label, version in comparison.versions.items()}
    peers = [label for label, kind in kinds.items() if kind == kinds[comparison.reference]]
    return peers if len(peers) < len(kinds) else [comparison.reference]


def _ahead(comparison: Comparison) -> str:
    """Each figure in which one of the peers beats every other server, and what limited the best of the others.

    One broker runs in several ways, with one shard or more, so a figure counts only if each of them is behind.
    """
    peers = _peers(comparison)
    ours = [label for label in comparison.versions if label not in peers]
    rows = []
    for scenario in comparison.scenarios:
        for figure in scenario.figures:
            ratios = {
                label: min(found)
                for label in ours
                if (found := [one for peer in peers if (one := comparison.ratio(scenario.name, label, figure, peer))])
            }
            if ratios and max(ratios.values()) < 1:
                best = max(ratios, key=lambda label: ratios[label])
                work = f"{scenario.title}: {TITLE_OF.get(figure, figure)}"
                rows.append([work, best, f"{ratios[best]:.2f}", _limit(comparison, scenario.name, best, figure)])
    if not rows:
        return "In no figure."
    return table(["work", "the best of the others", "ratio", "what limited it"], rows)


def _limit(comparison: Comparison, scenario: str, label: str, figure: str) -> str:
    """What the runs themselves say about a figure that is worse than the reference's."""
    results = comparison.of(scenario, label)
    if figure != "cpu" and (bound := sum(result.is_generator_bound for result in results)):
        return f"the generator, in {bound} of {len(results)} runs"
    if figure != "cpu" and (late := sum(any("was late" in note for note in result.notes) for result in results)):
        return f"the generator was late in {late} of {len(results)} runs"
    if figure != "cpu" and (waited := sum(any("was busy" in note for note in result.notes) for result in results)):
        return f"it waited for a CPU in {waited} of {len(results)} runs"
    return "nothing that its runs show"


def _more_rounds(comparison: Comparison) -> str:
    """Part of a sentence: the scenarios with more rounds than the rest; "" if there are none."""
    more = [one for one in comparison.scenarios if one.rounds > 1]
    return "".join(f"; {comparison.rounds * one.rounds} of {one.title or one.name}" for one in more)


def _server_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [spec.label + (" (reference)" if spec.label == comparison.reference else ""), f"`{spec.shown}`", version]
        for spec, version in zip(comparison.specs, comparison.versions.values(), strict=True)
    ]


def _all_table(comparison: Comparison) -> str:
    rows = []
    for scenario in comparison.scenarios:
        for figure in scenario.figures:
            row = [f"{scenario.title}: {TITLE_OF.get(figure, figure)}"]
            for spec in comparison.specs:
                cell = shown(comparison.median(scenario.name, spec.label, figure), figure)
                ratio = comparison.ratio(scenario.name, spec.label, figure)
                if (scenario.name, spec.label) in comparison.failed:
                    cell = "failed"
                is_other = spec.label != comparison.reference
                row.append(f"{cell} (×{ratio:.2f})" if ratio and is_other else cell)
            rows.append(row)
    return table(["work", *(spec.label for spec in comparison.specs)], rows)


def _notes(comparison: Comparison) -> list[str]:
    notes = ["it was interrupted: rounds and scenarios are missing"] if comparison.is_interrupted else []
    notes += [f"{scenario} on {label}: not run: {why}" for (scenario, label), why in comparison.skipped.items()]
    notes += [
        f"{scenario} on {label}: failed in round {len(comparison.of(scenario, label)) + 1}: {why}"
        for (scenario, label), why in comparison.failed.items()
    ]
    for scenario in comparison.scenarios:
        for spec in comparison.specs:
            results = comparison.of(scenario.name, spec.label)
            bound = sum(result.is_generator_bound for result in results)
            if bound:
                notes.append(
                    f"{scenario.name} on {spec.label}: the generator was saturated in {bound} of {len(results)} rounds:"
                    " the rate is its own, and the server could do more"
                )
            for text in sorted({note for result in results for note in result.notes}):
                if text.startswith(("wrong", "impossible", "the memory")):
                    notes.append(f"{scenario.name} on {spec.label}: {text}")
    late = [result for result in comparison.results if any("was late" in note for note in result.notes)]
    if late:
        worst = max(result.lateness_us["p99"] for result in late)
        notes.append(
            f"in {len(late)} runs at a fixed rate the generator itself was late (p99 up to {worst:,.0f} µs from due to"
            " sent); their latencies contain that, the service times in results.json do not"
        )
    waited = [result for result in comparison.results if any("was busy" in note for note in result.notes)]
    if waited:
        notes.append(
            f"in {len(waited)} of {len(comparison.results)} runs the server waited for a CPU more than half as long"
            " as it had one: rates and latencies are the machine's as much as the server's"
        )
    return notes


# --------------------------------------------------------------------------------------------------------------- files


def json_text(
    results: Sequence[Result], machine: dict[str, Any], comparison: Comparison | None = None, date: str = ""
) -> str:
    """All numbers of all runs as JSON; a comparison's without histograms, which would take megabytes."""
    whole: dict[str, Any] = {"date": date, "machine": machine}
    if comparison is not None:
        whole["reference"] = comparison.reference
        whole["servers"] = {
            spec.label: {"command": spec.shown, "version": comparison.versions[spec.label]} for spec in comparison.specs
        }
        for name, missing in (("skipped", comparison.skipped), ("failed", comparison.failed)):
            whole[name] = {f"{scenario} on {label}": why for (scenario, label), why in missing.items()}
    whole["runs"] = [result.as_words() for result in results]
    if comparison is not None:
        for run in whole["runs"]:
            del run["histogram"]
    return json.dumps({key: value for key, value in whole.items() if value != ""}, indent=1, ensure_ascii=False) + "\n"


COLUMNS = (
    *("scenario", "server", "kind", "unit", "units", "expected_units", "surplus", "seconds", "rate_per_s", "cpu_us"),
    *("server_cpu_share", "server_busiest_share", "server_waited_share", "memory_bytes", "is_generator_bound", "is_ok"),
)
LATENCIES = ("p50", "p90", "p99", "p99.9", "p99.99", "max")


class _Lines:
    """The file object that csv writes to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, line: str) -> int:
        self.text += line
        return len(line)


def csv_text(results: Sequence[Result]) -> str:
    """CSV with one row for each run."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"{name}_us" for name in LATENCIES), "generator_cpu_share", "notes"])
    for result in results:
        words = result.as_words()
        writer.writerow(
            [
                *(words[name] for name in COLUMNS),
                *(result.latency_us.get(name, "") for name in LATENCIES),
                max(result.generator_cpu_shares, default=""),
                "; ".join(result.notes),
            ]
        )
    return lines.text


def _plots(comparison: Comparison, folder: Path) -> list[Path]:
    try:
        from gnatswarm.loadtest import plots
    except ImportError:
        return []
    return plots.draw(comparison, folder)
