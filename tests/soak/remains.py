"""What has to be there when a broker is whole, and nothing else: its processes, descriptors, files, subscriptions."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnatswarm.router.commands.operator_commands import NotFound, exchange, find
from gnatswarm.router.supervision.operator_socket import FinishRequest, Reply, StatusRequest
from tests.soak.talkers import Broken
from tests.support.pages import Pages
from tests.support.servers import session_pids, wait_pids_gone

if TYPE_CHECKING:
    from tests.soak.trial import Trial

ASK_WITHIN_S = 5.0
END_WITHIN_S = 60.0
# As nats-server 2.9; in lame duck mode it ends by itself.
EXIT_CODES = {signal.SIGTERM: (1,), signal.SIGINT: (0,), signal.SIGUSR2: (0,), signal.SIGKILL: (-9,)}
# A log line with one of these is a fault, whatever happened.
NEVER = re.compile(r"Traceback|\[FTL\]|^\w*Error:|Exception")
SUBSCRIPTIONS_EACH = 4
# Sockets that are being closed, files that are being written, what a router has of the one before it: more are a leak.
SLACK_DESCRIPTORS = 14
# Keeper and router keep the listeners and the hand-off queue of a shard that has left: it may come back. The highest
# number that a trial scales to, and the shard that helps in a restart, are so many more than it begins with.
DESCRIPTORS_OF_THE_GONE = 3
MOST_SHARDS_MORE = 4


class Remains:
    """Of one trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._first: dict[tuple[str, int, int], int] = {}  # descriptors by process, shards and relays
        self._directory = ""

    def status(self) -> dict[str, Any]:
        """OSError, NotFound: nobody answers now."""
        broker = self._trial.broker
        path = find(broker.pid, broker.port)
        self._directory = os.path.dirname(path)
        reply = exchange(path, StatusRequest(0.0), ASK_WITHIN_S)
        if reply.status is None:
            raise OSError(reply.error)
        import msgspec

        return dict(msgspec.to_builtins(reply.status))

    async def wait_whole(self, within_s: float) -> None:
        """All shards serve and are linked, nobody leaves. Broken: they do not in time."""
        await self._until(self._why_not_whole, within_s)

    async def check(self, within_s: float) -> None:
        """Nothing is left over. Clients are quiet."""
        await self._until(self._left_over, within_s)
        broker = self._trial.broker
        lines = [line for line in broker.log.lines if NEVER.search(line)]
        if lines:
            raise Broken("the log says: " + "\n".join(lines[:10]))

    async def _until(self, why: Callable[[], str], within_s: float) -> None:
        until = time.monotonic() + within_s
        last = ""
        while True:
            try:
                found = await asyncio.to_thread(why)
            except (OSError, NotFound, ValueError, EOFError) as error:
                found = f"{type(error).__name__}: {error}"
            if not found:
                self._trial.tell("as it should be")
                return
            if found != last:
                self._trial.tell(f"not yet: {found}")
                last = found
            self._trial.check()
            if time.monotonic() > until:
                raise Broken(f"not within {within_s:.0f} s: {found}")
            await self._trial.look_again()

    def _why_not_whole(self) -> str:
        found = self.status()
        there = [row for row in found["shards"] if row["pid"]]
        others = len(there) - 1 + self._trial.world.has_gateway
        for row in found["shards"]:
            if row["phase"] not in ("ready", "stopped") or (row["phase"] == "ready") != bool(row["pid"]):
                return f"shard {row['shard']} is {row['phase']}"
            if row["pid"] and row["links"] != others:
                return f"shard {row['shard']} has {row['links']} links of {others}"
        page = Pages.of(self._trial.broker).get("/healthz")
        return "" if page.status == 200 and there else f"/healthz: {page.text}"

    def _left_over(self) -> str:
        return (
            self._why_not_whole()
            or self._wrong_counts()
            or self._wrong_processes()
            or self._wrong_descriptors()
            or self._wrong_files()
        )

    def _wrong_counts(self) -> str:
        found, crew = self.status(), len(self._trial.talkers)
        pages = Pages.of(self._trial.broker)
        told = [found["connections"], sum(row["connections"] for row in found["shards"])]
        told += [pages.json("/varz")["connections"], pages.json("/connz?limit=1000")["num_connections"]]
        if any(n != crew for n in told):
            return f"{crew} clients, counted {told}"
        subs = sum(row["subscriptions"] for row in found["shards"] if row["pid"])
        if subs != crew * SUBSCRIPTIONS_EACH:
            return f"{crew} clients with {SUBSCRIPTIONS_EACH} subscriptions each, counted {subs}"
        return ""

    def _wrong_processes(self) -> str:
        found, pid = self.status(), self._trial.broker.pid
        known = {pid, found["router_pid"], *(row["pid"] for row in found["shards"] if row["pid"])}
        known |= {relay["pid"] for relay in found["relays"]}
        strange = [one for one in session_pids(pid) if one not in known]
        if self._trial.world.has_gateway and len(strange) == 1:
            return ""
        return f"processes that nobody knows: {[(one, _title(one)) for one in strange]}" if strange else ""

    def _wrong_descriptors(self) -> str:
        found = self.status()
        shards = sum(1 for row in found["shards"] if row["pid"])
        kept = DESCRIPTORS_OF_THE_GONE * (self._trial.world.shards + MOST_SHARDS_MORE - shards)
        relays = len(found["relays"])
        counts = {"keeper": found["pid"], "router": found["router_pid"]}
        for name, pid in counts.items():
            n = len(os.listdir(f"/proc/{pid}/fd"))
            first = self._first.setdefault((name, shards, relays), n)
            if n > first + SLACK_DESCRIPTORS + kept:
                return f"the {name} has {n} descriptors, had {first}: {_descriptors(pid)}"
        for row in found["shards"]:
            if row["pid"]:
                n = len(os.listdir(f"/proc/{row['pid']}/fd")) - row["connections"] - row["links"]
                first = self._first.setdefault(("shard", shards, 0), n)
                if n > first + SLACK_DESCRIPTORS + 2 * len(self._trial.talkers) * bool(relays):
                    return f"shard {row['shard']} has {n} more descriptors than connections and links, had {first}"
        return ""

    def _wrong_files(self) -> str:
        found = self.status()
        shards = [row["shard"] for row in found["shards"] if row["pid"]]
        names = sorted(os.listdir(self._directory))
        sockets = [name for name in names if re.match(r"\d+\.", name)]
        by_shard = [name for name in sockets if int(name.partition(".")[0]) in shards]
        strange = set(sockets) - set(by_shard)
        if self._trial.world.has_gateway:
            strange = set(list(strange)[2:])
        if strange or len(by_shard) > 2 * len(shards):
            return f"in the private directory: {names}"
        return ""

    # ---- the end

    async def finish_relays(self) -> None:
        broker = self._trial.broker

        def ask() -> Reply:
            return exchange(find(broker.pid, broker.port), FinishRequest(), 90.0, lambda text: None)

        reply = await asyncio.to_thread(ask)
        if reply.error:
            raise Broken(f"relays do not end: {reply.error}")

    def stop(self, how: signal.Signals, *, is_sudden: bool = False) -> None:
        """The broker ends, and leaves nothing. `is_sudden`: while something else happens to it."""
        broker = self._trial.broker
        pids = session_pids(broker.pid)
        if not is_sudden:
            status = self.status()
            if status["relays"]:
                raise Broken(f"relays are left: {status['relays']}")
        os.kill(broker.pid, how)
        os.kill(broker.pid, signal.SIGCONT)  # (something may have stopped it)
        code = broker.wait_exit(END_WITHIN_S)
        left = wait_pids_gone([pid for pid in {*pids, *session_pids(broker.pid)} if pid != broker.pid], END_WITHIN_S)
        if left:
            raise Broken(f"after {how.name} there is {[(pid, _title(pid)) for pid in left]}")
        if code not in EXIT_CODES[how] and not is_sudden:
            raise Broken(f"the broker ended with {code} after {how.name}")
        # Who removes it may just have been killed, too.
        if os.path.isdir(self._directory) and not (is_sudden and how is signal.SIGKILL):
            raise Broken(f"{self._directory} is left with {os.listdir(self._directory)}")
        hidden = [str(path) for path in (self._trial.folder / "stats").glob("date=*/hour=*/.*")]
        if hidden and not (self._trial.loses_windows or is_sudden or how is signal.SIGKILL):
            raise Broken(f"statistics files that were not finished: {hidden}")


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "gone"


def _descriptors(pid: int) -> dict[str, int]:
    """How many of each kind."""
    counts: dict[str, int] = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            kind = re.sub(r"[\d\[\]]+", "", os.readlink(entry.path))
        except OSError:
            continue
        counts[kind] = counts.get(kind, 0) + 1
    return counts
