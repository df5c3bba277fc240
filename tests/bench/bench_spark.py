"""What ingest and report cost per row, from 10^5 rows on: as a user runs them, on files as shards write them.

    GNATSWARM_BENCH_ROWS=100000,1000000,10000000 make bench ARGS='-k spark'

Processor time and resident memory are those of the program and its Java, read from /proc; `net` is less what the same
program takes for 1,000 rows, which is Spark's start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench import statistics_rows
from tests.support.servers import session_pids

# Of the rows: of clients, as many per shard and window.
CLIENTS = int(os.environ.get("GNATSWARM_BENCH_CLIENTS", "0"))
ROWS = [int(n) for n in os.environ.get("GNATSWARM_BENCH_ROWS", "100000,1000000").split(",")]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """The cost of one run of a program."""

    wall_s: float
    cpu_s: float
    resident_bytes: int


def run(*words: str) -> Cost:
    """`python WORDS…` to its end."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    cost = Cost(0.0, 0.0, 0)
    cpu: dict[int, float] = {}
    pause = threading.Event()

    def watch() -> None:
        while process.poll() is None:
            resident = 0
            for pid in session_pids(process.pid):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                except (OSError, IndexError):
                    continue
                cpu[pid] = (int(fields[11]) + int(fields[12])) / TICKS
            cost.resident_bytes = max(cost.resident_bytes, resident)
            pause.wait(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    process.wait()
    watcher.join()
    assert process.returncode == 0, said
    cost.wall_s, cost.cpu_s = time.monotonic() - started, sum(cpu.values())
    return cost


def costs(place: Path, rows: int) -> dict[str, Cost]:
    """The cost of both programs over this many rows, and of answers that stand, over the tables that are there then."""
    stats, tables, page, answers = place / "stats", place / "tables", place / "page.html", place / "answers"
    made = statistics_rows.write(stats, rows, clients=CLIENTS, subjects=10 if CLIENTS else 2000)
    given = ["--master", "local[2]", "--memory", "1g"]
    report = ["-m", "gnatswarm.spark.jobs.report", "--out", str(page)]
    ingest = ["-m", "gnatswarm.spark.jobs.ingest", "--stats-dir", str(stats), "--out", str(tables), *given]
    stored, whole = made["stored_bytes"] / 1e6, made["bytes"] / 1e6
    print(f"{made['rows']:,} rows in {made['files']:,} files, {stored:,.0f} MB of {whole:,.0f}")
    found = {
        "ingest": run(*ingest),
        "answers": run(*ingest, "--answers", str(answers)),
        "report from tables": run(*report, "--from-parquet", str(tables), *given),
        "report from lines": run(*report, "--stats-dir", str(stats), *given),
    }
    assert f"{made['in_msgs']:,}" in page.read_text()
    stored = sum(path.stat().st_size for path in tables.rglob("*.parquet"))
    print(f"  {len(list(tables.rglob('*.parquet')))} Parquet files, {stored / 1e6:,.0f} MB")
    shutil.rmtree(place)
    return found


@pytest.mark.timeout(3600)
def test_cost_of_a_row(tmp_path: Path):
    least = costs(tmp_path / "least", 1000)
    for rows in ROWS:
        for name, cost in costs(tmp_path / str(rows), rows).items():
            net_s = cost.cpu_s - least[name].cpu_s
            print(
                f"{rows:>12,} {name:20} {cost.wall_s:7.1f} s  {cost.cpu_s:7.1f} CPU s, "
                f"net {net_s / rows * 1e6:6.1f} µs per row, {cost.resident_bytes / 1e6:6,.0f} MB resident"
            )
