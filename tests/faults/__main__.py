"""`make faults`: lets every fault of tests.faults happen to a broker under load, and writes what it observed.

Exit code 1 where an acknowledged message was lost, came twice or out of order at somebody whose connection stayed, or
the broker did not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.faults import FAULTS, rows
from tests.faults.scene import Row

PAGE = Path(__file__).parent / "results.md"
HEAD = """\
# Faults on real processes

Written by `make faults` on {when} ({took} s, seed {seed}); [README.md](README.md) says how. Each fault happens at a
random moment to a broker of four shards and a gateway, while eight clients publish to each other.

| fault | what happens | what is lost | how it is told |
|---|---|---|---|
"""


async def observe(names: list[str], seed: str, times: int) -> list[Row]:
    found: list[Row] = []
    async for name, some in rows(names, seed, times):
        for row in some:
            print(f"{'ok ' if row.holds else 'BAD'} {name}: {row.happens}\n    {row.lost}", flush=True)
        found += some
    return found


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="parts of names; all by default")
    parser.add_argument("--list", action="store_true", help="print the names, and nothing else")
    parser.add_argument("--seed", default="", help="of the moments; by default the time")
    parser.add_argument("--times", type=int, default=1, help="how often each happens (1)")
    parser.add_argument(
        "--out", type=Path, help=f"the page to write; by default {PAGE.name} here, if all faults are tried"
    )
    words = parser.parse_args()
    if words.list:
        print(*(one.name for one in FAULTS), sep="\n")
        return 0
    began_s = time.monotonic()
    seed = words.seed or str(int(time.time()))
    found = asyncio.run(observe(words.faults, seed, words.times))
    out = words.out or (None if words.faults else PAGE)
    if out is not None:
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        text = HEAD.format(when=when, took=round(time.monotonic() - began_s), seed=seed)
        text += "".join(f"| {row.fault} | {row.happens} | {row.lost} | {row.told} |\n" for row in found)
        out.write_text(text)
        print(f"written: {out}")
    return int(not all(row.holds for row in found))


if __name__ == "__main__":
    sys.exit(main())
