"""Records, checks and counts histories one after the other; keeps those with a violation."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from tests.histories.brokers import Target
from tests.histories.checker import KINDS, Report, check
from tests.histories.doors import Door
from tests.histories.events import read
from tests.histories.generator import record
from tests.support.servers import Broker

FOLDER = Path("build/histories")
# Violations that are printed of each kind and target.
MOST_TOLD = 3
MOST_KEPT = 5


@dataclass
class Row:
    """The results of one target's histories."""

    target: Target
    histories: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    kept: list[Path] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def add(self, report: Report, path: Path, began_at: int) -> None:
        self.histories += 1
        self.counts.update(report.counts)
        for one in report.violations:
            if self.violations[one.kind] < MOST_TOLD:
                self.told.append(f"{path}: {one.told(began_at)}")
            self.violations[one.kind] += 1
        if report.violations and len(self.kept) < MOST_KEPT:
            self.kept.append(path)
        else:
            path.unlink()

    @property
    def has_failed(self) -> bool:
        return self.target.must_hold and bool(self.violations)


def one_history(
    target: Target,
    brokers: Sequence[Broker],
    doors: Sequence[Door],
    path: Path,
    *,
    seed: int,
    clients: int,
    operations: int,
) -> Report:
    """Record and check one history."""
    faults = target.faults(brokers[0]) if target.faults else None
    recording = record(
        path,
        target.name,
        doors,
        seed=seed,
        clients=clients,
        operations=operations,
        servers=len(brokers),
        fillings=target.fillings,
        faults=faults,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(recording)
    return check(read(path))


def run(target: Target, seconds: float, *, seed: int, clients: int, operations: int, folder: Path = FOLDER) -> Row:
    """Histories with the seeds from `seed` on, on one broker, for some seconds; at least one."""
    row = Row(target)
    until = time.monotonic() + seconds
    with target.running() as (brokers, doors):
        while not row.histories or time.monotonic() < until:
            path = folder / f"{target.name}-{seed}.ndjson"
            report = one_history(target, brokers, doors, path, seed=seed, clients=clients, operations=operations)
            row.add(report, path, next(read(path)).at)
            seed += 1
    return row


def table(rows: Sequence[Row]) -> str:
    """The table of the README: what was recorded, and the violations by kind."""
    lines = ["| broker | histories | operations | messages | deliveries | fences | 503 | violations |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|---|")
    for row in rows:
        found = ", ".join(f"{kind} {row.violations[kind]:,}" for kind in KINDS if row.violations[kind])
        names = ("operations", "messages", "deliveries", "fences", "503")
        counts = " | ".join(f"{row.counts[name]:,}" for name in names)
        lines.append(f"| {row.target.name} | {row.histories:,} | {counts} | {found or '0'} |")
    return "\n".join(lines)
