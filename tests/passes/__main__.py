"""`make passes N=20`: `make test` so many times in one fresh clone of the last commit, on a machine that is kept busy.

What keeps it busy is the simulation. With `--follow`, the clone is brought to the last commit before each pass. Stops
at the first failure; the exit code is 1 then, and the output of each pass is in build/passes. README.md gains a row for
each pass.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = Path(__file__).with_name("README.md")
SUMMARY = re.compile(r"=+ (?P<counts>[^=]*\b\d+ (?:passed|failed|error)[^=]*) in (?P<seconds>[\d.]+)s")
BUSY_S = 24 * 3600
# `make` gives its variables to what it starts, and ARGS of `make passes` is no option of pytest.
OF_THE_OUTER_MAKE = ("PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS", "N")


def git(directory: Path, *words: str) -> str:
    """What git prints there."""
    return subprocess.run(["git", *words], cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def cloned(out: Path) -> Path:
    """A fresh clone of the last commit."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    clone = out / "clone"
    git(out, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone))
    return clone


@contextmanager
def busy(processes: int, out: Path) -> Iterator[None]:
    """So many processes of the simulation meanwhile."""
    if not processes:
        yield
        return
    words = ["--seconds", str(BUSY_S), "--processes", str(processes)]
    with (out / "busy.txt").open("wb") as output:
        load = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.simulation", *words],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(load.pid, signal.SIGKILL)
            load.wait()


def passed(clone: Path, output: Path) -> tuple[bool, re.Match[str] | None]:
    """Whether the tests have passed, and their summary (None: they did not come so far)."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_THE_OUTER_MAKE}
    with output.open("wb") as file:
        code = subprocess.run(["make", "test"], cwd=clone, stdout=file, stderr=subprocess.STDOUT, env=kept).returncode
    found = list(SUMMARY.finditer(output.read_text(errors="replace")))
    return code == 0, found[-1] if found else None


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.passes", description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=len(os.sched_getaffinity(0)), help="processes (one for each core)")
    parser.add_argument("--follow", action="store_true", help="before each pass, bring the clone to the last commit")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "passes")
    words = parser.parse_args()
    # A shell ignores it for what it starts in the background, and so would all that the tests start, and send ^C to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words.out = words.out.resolve()
    clone = cloned(words.out)
    for number in range(1, words.times + 1):
        if words.follow:
            git(clone, "fetch", "--quiet", str(ROOT), "HEAD")
            git(clone, "reset", "--quiet", "--hard", "FETCH_HEAD")
        output = words.out / f"{number}.txt"
        with busy(words.busy, words.out):
            is_passed, summary = passed(clone, output)
            load = os.getloadavg()[1]
        said = summary["counts"] if summary else "did not end"
        minutes = f"{float(summary['seconds']) / 60:.0f}" if summary else ""
        commit = git(clone, "rev-parse", "--short", "HEAD")
        row = f"| {datetime.now(UTC):%Y-%m-%d %H:%M} | {commit} | {load:.0f} | {minutes} | {said} |\n"
        with README.open("a", encoding="utf-8") as table:
            table.write(row)
        print(row, end="", flush=True)
        if not is_passed:
            print(f"see {output}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
