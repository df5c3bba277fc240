"""The processor time of this process and of all that it started: what runs, and what has ended and was waited for."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def spent_s() -> float:
    """Seconds of both kinds, user's and kernel's; what left the family, as a daemon does, is not counted."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text()
        except OSError:
            continue
        # The command name is in parentheses and may hold spaces. After it: state, parent, nine other fields, and then
        # utime, stime, and both of the children that were waited for.
        fields = stat.rpartition(") ")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    family = [os.getpid()]
    while family:
        pid = family.pop()
        total += ticks.get(pid, 0)
        family += children.get(pid, ())
    return total / _TICKS_PER_S
