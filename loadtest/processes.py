"""CPU time in nanoseconds, time spent waiting for a CPU, and resident memory of a server's processes.

Read from /proc; Linux only. A process belongs to a server if it descends from its first one, or listens on its port.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"


def tree(pids: Iterable[int]) -> list[int]:
    """These processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            try:
                # The command name is in parentheses and may contain spaces; after it come: state ppid …
                parent = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.append(pid)
            waiting += children.get(pid, [])
    return sorted(found)


def listening_pids(port: int) -> list[int]:
    """The processes with a listening TCP socket on that port, as far as we may see them."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    found = []
    for name in os.listdir(PROC):
        if not name.isdigit():
            continue
        directory = PROC / name / "fd"
        try:
            descriptors = os.listdir(directory)
        except OSError:
            continue
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(directory / descriptor) in inodes:
                    found.append(int(name))
                    break
    return sorted(found)


@dataclass(frozen=True)
class Reading:
    """CPU time used and waited for until now, in ns, by thread id."""

    run_ns: dict[int, int] = field(default_factory=dict)
    wait_ns: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """CPU time between two readings."""

    run_ns: int  # of all threads
    wait_ns: int
    busiest_ns: int  # of the busiest thread


def read_cpu(pids: Iterable[int]) -> Reading:
    """CPU time of every thread of these processes; one that has ended is left out."""
    reading = Reading()
    for pid in pids:
        try:
            threads = os.listdir(PROC / str(pid) / "task")
        except OSError:
            continue
        for thread in threads:
            try:
                words = (PROC / str(pid) / "task" / thread / "schedstat").read_text().split()
            except OSError:
                continue
            reading.run_ns[int(thread)] = int(words[0])
            reading.wait_ns[int(thread)] = int(words[1])
    return reading


def usage(before: Reading, after: Reading) -> Usage:
    """The usage between two readings; threads that started in between count from their start."""
    ran = [used - before.run_ns.get(thread, 0) for thread, used in after.run_ns.items()]
    waited = sum(used - before.wait_ns.get(thread, 0) for thread, used in after.wait_ns.items())
    return Usage(sum(ran), waited, max(ran, default=0))


def resident_bytes(pids: Iterable[int]) -> int:
    """The sum of the processes' resident memory; shared pages count once for each process."""
    total = 0
    for pid in pids:
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"(?m)^Rss:\s+(\d+) kB", text)
        total += int(found[1]) * 1024 if found else 0
    return total
