"""How long something takes, in ns of processor time per piece of work; and how much memory it holds.

The least of several runs counts: other processes only ever add. Times of different runs of the bench are not
comparable on a shared machine; the ratios within one are.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

RUNS = 5


def ns_each(work: Callable[[], object], pieces: int, runs: int = RUNS) -> float:
    """Processor time of one of the `pieces` that `work` does at a time."""
    least = float("inf")
    for _ in range(runs):
        started = time.process_time_ns()
        work()
        least = min(least, time.process_time_ns() - started)
    return least / pieces


def resident_bytes() -> int:
    """Memory of this process; tracemalloc does not see what the engine allocates."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _held(make: Callable[[], object]) -> int:
    before = resident_bytes()
    kept = make()
    held = resident_bytes() - before
    del kept
    return held


def bytes_each(make: Callable[[], object], pieces: int) -> float:
    """Memory that one of the `pieces` in what `make` returns holds, in a process that has made nothing before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_held, make).result() / pieces


def table(title: str, rows: list[tuple[str, float]], unit: str = "ns") -> None:
    """Prints rows under a title, each with its ratio to the first."""
    print(f"\n{title}")
    for name, value in rows:
        ratio = f"   {value / rows[0][1]:6.2f}x" if rows[0][1] else ""
        print(f"  {name:<44}{value:12,.1f} {unit}{ratio}")
