"""How many cores this process may use: the default number of shards.

Reads the scheduler's affinity mask and the CPU quota of the control group, version 2 or 1. os.cpu_count() ignores
both, and sixteen shards in a container with two cores are slower than two.
"""

from __future__ import annotations

import os

# Of the 64 numbers that the mesh has one is the gateway's (63), and one stays free for a rolling restart.
MAX_SHARDS = 62


def usable_cores(proc_self_cgroup: str = "/proc/self/cgroup", cgroup_root: str = "/sys/fs/cgroup") -> int:
    """1..62: the cores of the affinity mask, or the CPU quota, rounded up, if that is less."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = _quota_cores(proc_self_cgroup, cgroup_root)
    if quota is not None:
        cores = min(cores, quota)
    return max(1, min(MAX_SHARDS, -int(-cores // 1)))


def _quota_cores(proc_self_cgroup: str, cgroup_root: str) -> float | None:
    """The smallest quota from this process's group up to the root, in cores; None: there is none."""
    smallest: float | None = None
    for line in _text(proc_self_cgroup).splitlines():
        _number, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if controllers == "" and path:
            root, quota_of = cgroup_root, _quota_v2
        elif "cpu" in controllers.split(","):
            root, quota_of = os.path.join(cgroup_root, "cpu"), _quota_v1
        else:
            continue
        # In a container the path is often the host's, and does not exist below this root: so read the root itself, too.
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            quota = quota_of(os.path.join(root, *parts[:depth]))
            if quota is not None:
                smallest = quota if smallest is None else min(smallest, quota)
    return smallest


def _quota_v2(directory: str) -> float | None:
    fields = _text(os.path.join(directory, "cpu.max")).split()
    if len(fields) != 2 or not fields[0].isdigit() or not fields[1].isdigit() or int(fields[1]) == 0:
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(directory: str) -> float | None:
    quota = _text(os.path.join(directory, "cpu.cfs_quota_us")).strip()
    period = _text(os.path.join(directory, "cpu.cfs_period_us")).strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
