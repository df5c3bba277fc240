"""Many schedules, for some seconds: `python -m tests.simulation --seconds 60`.

A schedule that fails is shrunk, written to build/simulation/ and printed; the exit code is 1 then. What was covered is
printed as a table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

from tests.simulation.coverage import Coverage
from tests.simulation.hunt import failure, hunt
from tests.simulation.schedule import parsed


def main() -> int:
    """The exit code: 1 where a schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--schedules", type=int, default=1 << 40, help="at most so many for each process")
    parser.add_argument("--seed", type=int, default=0, help="the first one; 0: by the clock")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lasting", action="store_true", help="schedules of 500 steps and more, with everything")
    parser.add_argument("--replay", type=Path, help="one schedule from a file, and nothing else")
    words = parser.parse_args()
    if words.replay:
        why, _ = failure(parsed(words.replay.read_text()))
        print(why or "every promise holds")
        return int(bool(why))
    first = words.seed or int(time.time() * 1000)
    with multiprocessing.get_context("spawn").Pool(words.processes) as pool:
        work = [(first + number, words.processes, words.seconds, words.schedules) for number in range(words.processes)]
        results = pool.starmap(partial(hunt, lasting=words.lasting), work)
    covered = Coverage()
    for one, _ in results:
        covered.merge(one)
    failed = [name for _, names in results for name in names]
    print(f"seeds from {first} on")
    print(covered)
    for name in failed:
        print(f"\n{name}\n{Path(name).read_text()}")
    print(f"\n{covered.schedules - len(failed):,} passed, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
