"""Record and check histories: `python -m tests.histories --seconds 60`.

The seconds are shared among the targets. A history with a violation is kept in build/histories/, and the violation is
printed with its events; the exit code is 1 then. A cluster of nats-servers runs for comparison; its violations do not
change the exit code.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.histories.brokers import TARGETS
from tests.histories.checker import check
from tests.histories.events import read
from tests.histories.runs import run, table
from tests.support.servers import BrokerUnavailable


def main() -> int:
    """The exit code: 1 where a promise did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together (60)")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--operations", type=int, default=20_000, help="of each history (20,000)")
    parser.add_argument("--clients", type=int, default=12, help="at a time (12)")
    parser.add_argument("--seed", type=int, default=0, help="of the first history; 0: from the clock")
    parser.add_argument("--check", type=Path, help="check this history again, and nothing else")
    words = parser.parse_args()
    if words.check:
        report = check(read(words.check))
        began_at = next(read(words.check)).at
        print(*(one.told(began_at) for one in report.violations), *sorted(report.counts.items()), sep="\n")
        return int(bool(report.violations))
    targets = [TARGETS[name] for name in words.targets.split(",")]
    seed = words.seed or int(time.time())
    print(f"seeds from {seed} on", flush=True)
    rows = []
    for target in targets:
        try:
            rows.append(
                run(
                    target,
                    words.seconds / len(targets),
                    seed=seed,
                    clients=words.clients,
                    operations=words.operations,
                )
            )
        except BrokerUnavailable as error:
            print(f"{target.name}: {error}")
            continue
        print(*rows[-1].told, sep="\n", flush=True)
    print(table(rows))
    for row in rows:
        for name, count in sorted(row.counts.items()):
            if name.startswith("excused"):
                print(f"{row.target.name}: {count:,} {name}")
    return int(any(row.has_failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
