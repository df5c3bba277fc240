"""How often a shard reads what was recorded of real publishers: patience and crowd alone decide, so counts are exact.

A file of `arrivals` has up to 2,000 writes of an independent load generator, as strace saw them: µs since the one
before, which socket, bytes. strace slows a writer down, so times are divided such that the rate is that without it.
Each file is played many times, one behind the other. When something is read does not change here when it is written,
as it does in life: what is compared is only what the rules decide. A change that is meant to decide otherwise changes
`arrivals/expected.json`, and says why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gnatswarm.probes.patience import ProbeHabit
from gnatswarm.shards.sockets.crowd import Crowd
from gnatswarm.shards.sockets.patience import Patience

ARRIVALS = Path(__file__).parent / "arrivals"
EXPECTED: dict[str, dict[str, int]] = json.loads((ARRIVALS / "expected.json").read_text())
SMALL_READ_BYTES = 4096
FIRST_US = 1_000_000
WRITES = 200_000
NEVER = 1 << 60


@dataclass
class Reader:
    """What the reactor does of reading: a socket is in neither set, read with patience, or one of the crowd."""

    habits: dict[int, ProbeHabit] = field(default_factory=dict)
    sets: dict[int, str] = field(default_factory=dict)  # by socket: "patient" or "gathered"
    waiting: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by socket: when what has come, bytes
    patience: Patience = field(default_factory=Patience)
    crowd: Crowd = field(default_factory=Crowd)
    due_us: dict[str, int] = field(default_factory=lambda: {"patient": NEVER, "gathered": NEVER})
    reads: int = 0
    looks: int = 0
    waited_us: int = 0

    def write(self, at: int, socket: int, size: int) -> None:
        while (due := min(self.due_us.values())) <= at:
            self.look("patient" if self.due_us["patient"] == due else "gathered", due)
        self.waiting.setdefault(socket, []).append((at, size))
        if socket not in self.sets:
            self.read(socket, at)

    def look(self, name: str, at: int) -> None:
        found = [self.read(socket, at) for socket in list(self.waiting) if self.sets.get(socket) == name]
        self.looks += 1
        if name == "patient":
            self.due_us[name] = at + self.patience.looked(sum(found), at)
        else:
            self.due_us[name] = at + self.crowd.looked(sum(found), len(found), at)

    def read(self, socket: int, at: int) -> int:
        came = self.waiting.pop(socket)
        size = sum(one for _, one in came)
        self.reads += 1
        self.waited_us += sum(at - when for when, _ in came)
        habit = self.habits.setdefault(socket, ProbeHabit(FIRST_US))
        finding = habit.read(size, at)
        there = self.sets.get(socket, "")
        has_ended = there == "gathered" and not self.crowd.is_gathering
        if has_ended or (there and finding == "not patiently"):
            habit.read_promptly()
            del self.sets[socket]
        elif not there and finding == "small and quick":
            habit.admit()
            self.join(socket, "patient", at)
        elif not there and size <= SMALL_READ_BYTES:
            if self.crowd.is_gathering:
                habit.gather()
                self.join(socket, "gathered", at)
            else:
                self.crowd.read(size, at)
        return size

    def join(self, socket: int, name: str, at: int) -> None:
        self.sets[socket] = name
        if self.due_us[name] == NEVER:
            if name == "patient":
                self.patience.began(at)
            self.due_us[name] = at + (self.patience if name == "patient" else self.crowd).tick_us


def played(path: Path) -> Reader:
    writes = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    reader, at = Reader(), FIRST_US
    for number in range(WRITES):
        after_us, socket, size = writes[number % len(writes)]
        at += max(after_us, 0)
        reader.write(at, socket, size)
    return reader


@pytest.mark.parametrize("name", sorted(path.stem for path in ARRIVALS.glob("*.txt")))
def test_reads_and_looks_are_what_they_were(name):
    reader = played(ARRIVALS / f"{name}.txt")
    found = {"reads": reader.reads, "looks": reader.looks, "mean_wait_us": reader.waited_us // WRITES}
    assert found == EXPECTED.get(name), f"of {WRITES:,} writes; if that is meant: {json.dumps(found)}"
