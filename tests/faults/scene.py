"""One broker with every kind of port, under load, while one fault happens to it; what was observed is a row."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnatswarm.router.commands.operator_commands import NotFound
from tests.faults.flow import Flow
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import KINDS, Broker, session_pids

CONFIG = """\
authorization {{ user: u, password: p, timeout: 2 }}
cluster {{ name: faults, listen: "127.0.0.1:-1", authorization {{ timeout: 2 }} }}
leafnodes {{ listen: "127.0.0.1:-1", authorization {{ timeout: 2 }} }}
websocket {{ host: 127.0.0.1, port: -1, no_tls: true }}
stats {{ dir: "{stats}", window: "100ms" }}
{more}
"""
SHARDS = 4
BACK_WITHIN_S = 40.0
LINE = re.compile(r"\[(INF|WRN|ERR|FTL)\] (.*)")
MOST_LINES = 3
GATEWAY = r"^\[(\d+)\].* gateway - Cluster name is"


@dataclass
class Row:
    """One line of the table."""

    fault: str
    happens: str
    lost: str
    told: str
    holds: bool  # nothing acknowledged was lost, and the broker serves again (or ended, where it has to)


@dataclass
class Scene:
    """A running broker; `dice` chooses the moments."""

    broker: Broker
    folder: Path
    dice: random.Random
    flow: Flow
    log_at: int = 0
    unhealthy: list[tuple[float, str]] = field(default_factory=list)  # when a probe failed, and what it said
    ends: bool = False  # the broker is to end

    @property
    def stats(self) -> Path:
        return self.folder / "stats"

    @property
    def router(self) -> int:
        return int(swarm.status(self.broker)["router_pid"])

    @property
    def gateway(self) -> int:
        found = [re.search(GATEWAY, line) for line in self.broker.log.lines]
        return [int(one[1]) for one in found if one][-1]

    def shard_pids(self) -> dict[int, int]:
        return {number: row["pid"] for number, row in swarm.rows(self.broker).items() if row["pid"]}

    async def moment(self) -> None:
        """A random moment, from which on the log and the probes count."""
        await self.flow.progress(self.dice.randrange(5, 20))
        self.log_at = len(self.broker.log.lines)
        self.unhealthy.clear()

    async def until(self, condition: Callable[[], Any], within_s: float = BACK_WITHIN_S) -> float:
        """Wait for it; the seconds that took. TimeoutError."""
        began_s = time.monotonic()
        while not await asyncio.to_thread(told_quietly, condition):
            if time.monotonic() - began_s > within_s:
                raise TimeoutError(f"not within {within_s} s")
            await self.flow.pause(0.02)
        return time.monotonic() - began_s

    def serves(self) -> bool:
        """Whether all shards accept, and the health page says so."""
        rows = swarm.status(self.broker)["shards"]
        return [row["phase"] for row in rows] == ["ready"] * SHARDS and Pages.of(self.broker).get(
            "/healthz"
        ).status == 200

    def signal(self, pid: int, what: signal.Signals) -> None:
        """Send a signal to a process of this broker; refuses others."""
        assert pid > 1 and pid in session_pids(self.broker.pid), f"{pid} is no process of this broker"
        os.kill(pid, what)

    def told(self) -> str:
        """What the log and the health page said since the fault."""
        found: dict[str, str] = {}
        for line in self.broker.log.lines[self.log_at :]:
            if said := LINE.search(line):
                found.setdefault(re.sub(r"\d+", "0", said[2]), said[0])
        loud = [line for line in found.values() if not line.startswith("[INF]")] or list(found.values())
        shown = [re.sub(r"/\S*/gnatswarm-(faults-\w+|\d+)(/\d+-\w+)?", "…", line) for line in loud[:MOST_LINES]]
        text = "<br>".join(f"`{line[:160]}`" for line in shown)
        if len(loud) > MOST_LINES:
            text += f"<br>and {len(loud) - MOST_LINES} more"
        if self.unhealthy:
            first, last = self.unhealthy[0], self.unhealthy[-1]
            text += f"<br>`/healthz` not 200 for {last[0] - first[0]:.1f} s: {first[1][:120]}"
        return text.replace("|", "\\|") or "nothing to tell"


def told_quietly(condition: Callable[[], Any]) -> Any:
    """The condition, or False where the broker cannot be asked now."""
    try:
        return condition()
    except (OSError, NotFound, AssertionError, LookupError, ValueError):
        return False


async def probe(scene: Scene) -> None:
    """Asks for the health page again and again, as an orchestrator does."""
    pages = Pages.of(scene.broker)
    while not scene.flow.is_over:
        try:
            page = await asyncio.to_thread(pages.get, "/healthz")
            if page.status != 200:
                scene.unhealthy.append((time.monotonic(), " ".join(page.text.split())))
        except (OSError, ValueError) as error:
            scene.unhealthy.append((time.monotonic(), f"{type(error).__name__}"))
        await scene.flow.pause(0.1)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="gnatswarm-faults-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[bool]:
    """A file system of its own at this place; False: this user may not mount one."""
    place.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", options, "gnatswarm-faults", str(place)]
    is_mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def small_disk(place: Path, kib: int) -> contextlib.AbstractContextManager[bool]:
    """A disk of that size, for as long as the context lasts."""
    return mounted(place, f"size={kib}k,mode=0700")


def read_only_disk(place: Path) -> contextlib.AbstractContextManager[bool]:
    """Nothing can be made at this place, which hides what is there, for as long as the context lasts."""
    return mounted(place, "size=4k,mode=0700,ro")


class Cgroup:
    """A group of processes whose memory is limited, of either version of the kernel's interface."""

    def __init__(self, place: Path, names: tuple[str, str], home: Path) -> None:
        self.place = place
        self._limit, self._usage = names
        self._home = home  # where this process was

    def enter(self) -> None:
        """This process, and what it starts from now on."""
        (self.place / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """This process goes back; what it has started stays."""
        (self._home / "cgroup.procs").write_text(str(os.getpid()))

    def usage(self) -> int:
        """Bytes that were first used in it."""
        return int((self.place / self._usage).read_text())

    def limit(self, n_bytes: int) -> None:
        (self.place / self._limit).write_text(str(n_bytes))


@contextlib.contextmanager
def memory_cgroup() -> Iterator[Cgroup | None]:
    """A cgroup of its own for as long as the context lasts; None: this user may not make one."""
    root, names = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    if not root.is_dir():
        root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
    place = root / f"gnatswarm-faults-{os.getpid()}"
    found = re.search(r"(?m)^\d+:(?:memory)?:/(.*)$", Path("/proc/self/cgroup").read_text())
    home = root / found[1] if found else root
    try:
        place.mkdir()
    except OSError:
        yield None
        return
    try:
        yield Cgroup(place, names, home) if (place / names[0]).exists() else None
    finally:
        for pid in (place / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                (root / "cgroup.procs").write_text(pid)
        place.rmdir()


@contextlib.asynccontextmanager
async def scene(
    place: Path, seed: str, *, more: str = "", environment: dict[str, str] | None = None
) -> AsyncIterator[Scene]:
    """A broker of four shards and a gateway, and the flow on it."""
    config = CONFIG.format(stats=place / "stats", more=more)
    broker = Broker(KINDS[f"gnatswarm-{SHARDS}"], ["-m", "-1"], config, environment=environment, by_fork=False)
    with broker:
        broker.log.wait_line(GATEWAY, 20.0)
        one = Scene(broker, place, random.Random(seed), Flow(broker.port))
        await one.flow.start()
        probing = asyncio.create_task(probe(one))
        try:
            await one.flow.progress(5)
            yield one
        finally:
            one.flow.is_over = True
            probing.cancel()
            await asyncio.gather(probing, *one.flow.tasks, return_exceptions=True)


async def observed(one: Scene, fault: str, happens: str) -> Row:
    """The row, when the broker serves again and some more messages have passed."""
    if one.ends:
        one.flow.may_end = True
        await one.flow.finish()
        return Row(fault, happens, one.flow.lost(), one.told(), one.flow.account() == (0, 0, 0))
    back_s = await one.until(one.serves)
    await one.flow.progress(10)
    await one.flow.finish()
    text = f"{happens}; {one.flow.waited()}"
    if back_s > 1:
        text += f"; healthy {back_s:.1f} s later"
    return Row(fault, text, one.flow.lost(), one.told(), one.flow.account() == (0, 0, 0))
