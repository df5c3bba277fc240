"""Reads the shards' statistics files without the broker's code, and runs a workload whose counts are known."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from tests.support import swarm
from tests.support.wire import Client, Cluster

# A window that is as long as a test: stats_in finds one that does not end while it runs.
WHOLE = "whole"
# In seconds, as long as the slowest test may take.
LEAST_LEFT_S = 1200
LONGEST_MINUTES = 60  # of a window


def whole_window(now_s: float) -> str:
    """A window, such as "47m", of which LEAST_LEFT_S seconds and more are left at this time, in Unix seconds.

    Windows begin at multiples of their length: one of an hour ends with the hour, perhaps in the middle of a test.
    """

    def left_s(minutes: int) -> float:
        return minutes * 60 - now_s % (minutes * 60)

    best = max(range(LEAST_LEFT_S // 60 + 1, LONGEST_MINUTES + 1), key=left_s)
    assert left_s(best) >= LEAST_LEFT_S
    return f"{best}m"


def stats_in(directory: Path, window: str = WHOLE) -> list[str]:
    """Arguments with which a broker writes its statistics there; `window` is a duration, or WHOLE."""
    length = whole_window(time.time()) if window == WHOLE else window
    return ["--stats-dir", str(directory), "--stats-window", length]


def rows(directory: Path, *, hidden: bool = False) -> list[dict[str, Any]]:
    """Every record in the finished files; `hidden`: also in those being written."""
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("date=*/hour=*/*.jsonl.zst")):
        if path.name.startswith(".") and not hidden:
            continue
        try:
            with path.open("rb") as file:
                text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        except FileNotFoundError:
            continue  # renamed meanwhile
        if path.name.startswith("."):
            text = text[: text.rfind(b"\n") + 1]  # the last window may be half written
        found += [json.loads(line) for line in text.splitlines()]
    return found


def added(records: list[dict[str, Any]], kind: str, *columns: str) -> Counter[str]:
    """The sums of some columns over the records of a kind."""
    return Counter({name: sum(row[name] for row in records if row["kind"] == kind) for name in columns})


@dataclass
class Truth:
    """The counts of a workload per subject."""

    msgs: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    deliveries: Counter[str] = field(default_factory=Counter)
    unwanted: Counter[str] = field(default_factory=Counter)
    out_bytes: int = 0

    def note(self, subject: str, count: int, size: int, width: int) -> None:
        """Add messages of this size that were delivered to this number of subscribers each."""
        self.msgs[subject] += count
        self.bytes[subject] += count * size
        self.deliveries[subject] += count * width
        self.out_bytes += count * size * width
        if width == 0:
            self.unwanted[subject] += count


@dataclass
class Workload:
    """Eight clients on all shards: wide and narrow fan-out, a queue group, a limit, inboxes, no subscribers."""

    clients: list[Client]
    truth: Truth = field(default_factory=Truth)

    @classmethod
    async def on(cls, cluster: Cluster, truth: Truth | None = None, shards: int = 0) -> Workload:
        """Subscribed: wide.* by six, narrow.x by one, jobs by a group of four, and one takes limited only 30 times.

        `shards`: how many there are now, where that is not what the broker was started with.
        """
        if shards:
            clients = [await swarm.client_on(cluster, i % shards) for i in range(8)]
        else:
            clients = await cluster.clients(8, on_different_shards=True)
        made = cls(clients, truth if truth is not None else Truth())
        for i, client in enumerate(made.clients[:6]):
            words = "SUB wide.* 1\r\n"
            words += "SUB jobs workers 2\r\n" if i < 4 else ""
            words += "SUB narrow.x 3\r\nSUB limited 4\r\nUNSUB 4 30\r\n" if i == 5 else ""
            await client.talk(f"{words}PING\r\n", expect_last="PONG\r\n")
        return made

    async def publish(self, times: int = 1) -> None:
        """Every client publishes; returns when all PONGs have arrived."""
        for _ in range(times):
            for client in self.clients:
                await self._say(client, "wide.a", 200, 16, 6)
                await self._say(client, "wide.b", 50, 128, 6)
                await self._say(client, "narrow.x", 100, 5, 1)
                await self._say(client, "jobs", 80, 7, 1)
                await self._say(client, "nobody", 30, 3, 0)
                inboxes = "".join(f"PUB _INBOX.{id(client)}.{i} 2\r\nhi\r\n" for i in range(20))
                await client.talk(f"{inboxes}PING\r\n", expect_last="PONG\r\n")
                self.truth.note("_INBOX.>", 20, 2, 0)

    async def publish_limited(self) -> None:
        """Publish more in one run than the limited subscription takes, on its shard, which knows its end at once."""
        await self._say(self.clients[5], "limited", 30, 4, 1)
        await self._say(self.clients[5], "limited", 45, 4, 0)

    async def leave(self) -> int:
        """All clients read their messages, unsubscribe and close; returns the number of messages read."""
        received = 0
        for client in self.clients:
            # A fence behind each UNSUB: the next round's subscribers are all there are.
            await client.talk("UNSUB 1\r\nUNSUB 2\r\nUNSUB 3\r\nUNSUB 4\r\nPING\r\n", expect_last="PONG\r\n")
            received += len(client.inbox)
            client.close()
        return received

    async def _say(self, client: Client, subject: str, count: int, size: int, width: int) -> None:
        await client.talk(f"PUB {subject} {size}\r\n{'x' * size}\r\n" * count + "PING\r\n", expect_last="PONG\r\n")
        self.truth.note(subject, count, size, width)
