"""What a process takes of its machine, as /proc tells: CPU time and memory. Costs some 20 µs."""

from __future__ import annotations

import os
from typing import NamedTuple

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """So far, and now."""

    cpu_s: float  # of all its threads, in steps of a clock tick
    resident_bytes: int


def process_use(pid: int) -> ProcessUse:
    """Of that process; zeros when it is gone, or for pid 0."""
    if not pid:
        return ProcessUse(0.0, 0)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the name, which may hold blanks and brackets: proc(5) counts from there on.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ProcessUse(0.0, 0)
    return ProcessUse((int(fields[11]) + int(fields[12])) / CLOCK_TICKS, int(fields[21]) * PAGE_BYTES)
