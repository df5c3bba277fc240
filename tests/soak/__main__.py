"""`make soak H=2`: four shards under a steady, checked load; plots, tables and a verdict in build/soak.

The exit code is 1 where a message was lost, doubled or out of order, or where the statistics do not add up in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.soak import report
from tests.soak.load import Load
from tests.soak.samples import Samples
from tests.support.pages import Pages
from tests.support.servers import KINDS, Broker
from tests.support.statistics import added, rows

SAMPLES = 360  # in a soak of any length, at most one each second
# The load's clients answer no PING: they would be closed as stale.
CONFIG = 'ping_interval: "24h"\nstats {{ dir: "{folder}", window: "10s" }}\n'


async def soak(broker: Broker, hours: float, rate: int, samples: Samples) -> Load:
    """Run the load for so long, and take samples."""
    load = Load(broker.port, rate)
    await load.start()
    every_s = max(1.0, hours * 3600 / SAMPLES)
    while samples.hours < hours:
        sent = load.sent
        await asyncio.to_thread(samples.take, sent)
        load.check()
        await load.clock.pause(min(every_s, max(0.01, (hours - samples.hours) * 3600)))
    await load.finish()
    await asyncio.to_thread(samples.take, load.sent)
    return load


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=2000, help="messages published each second (2,000)")
    parser.add_argument("--shards", type=int, default=4, choices=(1, 2, 4))
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    words = parser.parse_args()
    shutil.rmtree(words.out, ignore_errors=True)
    words.out.mkdir(parents=True)
    statistics = words.out / "stats"
    kind = KINDS[f"gnatswarm-{words.shards}"]
    began = datetime.now(UTC)
    with Broker(kind, ["-m", "-1"], CONFIG.format(folder=statistics.resolve()), by_fork=False) as broker:
        samples = Samples(broker, Pages.of(broker), statistics)
        load = asyncio.run(soak(broker, words.hours, words.rate, samples))
        lasted_s = time.monotonic() - samples.began_s
        samples.write(words.out)
        counted = samples.totals[-1]["in_msgs"]
        broker.stop()
        log = [line for line in broker.log.lines if "[WRN]" in line or "[ERR]" in line or "[FTL]" in line]
    records = rows(statistics)
    written = added(records, "shard", "in_msgs")["in_msgs"]
    gaps = sum(row["kind"] == "gap" for row in records)
    is_exact = load.sent == counted == written and not gaps
    facts = {
        "began": began.strftime("%Y-%m-%d %H:%M UTC"),
        "lasted": f"{lasted_s / 3600:.2f} hours",
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), load average {os.getloadavg()[2]:.1f} at the end",
        "broker": f"{kind}, statistics window 10 s",
        "published and acknowledged": f"{load.sent:,} messages ({load.sent / lasted_s:,.0f}/s)",
        "received, each once and in order": f"{load.received:,}",
        "requests answered": f"{load.asked:,}",
        "connections that came and went": f"{load.opened:,}",
        "subscriptions that came and went": f"{load.churned:,}",
        "the broker's pages counted at the end": f"{counted:,}",
        "its statistics files add up to": f"{written:,} in {len(records):,} rows, {gaps} gaps",
        "the three counts are equal": "yes" if is_exact else "**no**",
        "warnings and errors in its log": f"{len(log)}" + "".join(f"<br>`{line[:150]}`" for line in log[:5]),
    }
    report.write(words.out, samples.processes, samples.totals, facts)
    shutil.rmtree(statistics)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    return int(not is_exact)


if __name__ == "__main__":
    sys.exit(main())
