"""What the processes of a broker hold at one time: memory, descriptors, threads, how late their loops are."""

from __future__ import annotations

import csv
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import Broker

COLUMNS = ("hours", "process", "resident_kib", "private_kib", "descriptors", "threads", "cpu_s", "loop_lag_us")
TOTALS = ("hours", "connections", "subscriptions", "in_msgs", "ours", "statistics_kib")


@dataclass
class Samples:
    """Takes samples of one broker, and keeps them as rows of two tables: by process, and of the whole."""

    broker: Broker
    pages: Pages
    statistics: Path
    began_s: float = field(default_factory=time.monotonic)
    processes: list[dict[str, Any]] = field(default_factory=list)
    totals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def hours(self) -> float:
        return (time.monotonic() - self.began_s) / 3600

    def take(self, ours: int) -> None:
        """Take one. `ours`: messages that the load has published by now."""
        status = swarm.status(self.broker)
        document = self.pages.json("/shardz?links=0")
        hours = round(self.hours, 5)
        named = {"keeper": self.broker.pid, "router": int(status["router_pid"])}
        named |= {f"shard {row['shard']}": int(row["pid"]) for row in document["shards"]}
        lags = {f"shard {row['shard']}": row["loop_lag_us"] for row in document["shards"]}
        for name, pid in named.items():
            self.processes.append({"hours": hours, "process": name, **held(pid), "loop_lag_us": lags.get(name, "")})
        rows = document["shards"]
        self.totals.append(
            {
                "hours": hours,
                **{name: sum(row[name] for row in rows) for name in ("connections", "subscriptions", "in_msgs")},
                "ours": ours,
                "statistics_kib": sum(one.stat().st_size for one in self.statistics.rglob("*") if one.is_file())
                // 1024,
            }
        )

    def write(self, folder: Path) -> None:
        for name, columns, rows in (
            ("processes", COLUMNS, self.processes),
            ("totals", TOTALS, self.totals),
        ):
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def held(pid: int) -> dict[str, Any]:
    """What one process holds, from /proc."""
    place = Path(f"/proc/{pid}")
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", (place / "smaps_rollup").read_text()))
    status = (place / "status").read_text()
    stat = (place / "stat").read_text().rpartition(")")[2].split()
    return {
        "resident_kib": int(sizes["Rss"]),
        "private_kib": int(sizes["Private_Dirty"]) + int(sizes["Private_Clean"]),
        "descriptors": len(os.listdir(place / "fd")),
        "threads": int(re.findall(r"Threads:\s+(\d+)", status)[0]),
        "cpu_s": (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    }
