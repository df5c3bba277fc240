"""What happens to a broker in a trial: operators' commands, signals, and faults of processes, files and clocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnatswarm.router.commands.operator_commands import NotFound, exchange, find
from gnatswarm.router.supervision.operator_socket import (
    AnyRequest,
    FinishRequest,
    FollowRequest,
    KillRequest,
    MoveRequest,
    RebalanceRequest,
    ReloadRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
    StatusRequest,
    UpgradeRequest,
    WhyRequest,
)
from tests.support.servers import session_pids

if TYPE_CHECKING:
    from tests.soak.trial import Trial, World

ANSWER_WITHIN_S = 120.0
# A broker whose router dies five times within ten seconds ends.
ROUTER_DEATHS, WITHIN_S = 3, 11.0
# How a broker is ended.
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGKILL)
UNREACHED = (OSError, EOFError, NotFound)

Run = Callable[["Trial", random.Random], Coroutine[Any, Any, str]]


@dataclass(frozen=True)
class Happening:
    """One thing that may happen; `run` does it, and says in a word how it went."""

    name: str
    weight: int
    run: Run
    is_possible: Callable[[World], bool] = lambda world: True


ALL: list[Happening] = []


def happening(weight: int, is_possible: Callable[[World], bool] = lambda world: True) -> Callable[[Run], Run]:
    def note(run: Run) -> Run:
        ALL.append(Happening(run.__name__.replace("_", " "), weight, run, is_possible))
        return run

    return note


def thrown(dice: random.Random, world: World) -> Happening:
    possible = [one for one in ALL if one.is_possible(world)]
    return dice.choices(possible, [one.weight for one in possible])[0]


# ---- asking and finding


async def asked(trial: Trial, request: AnyRequest, within_s: float = ANSWER_WITHIN_S) -> Reply:
    """The last word, which another router may say; of what ends with its router, that it did."""
    broker = trial.broker
    until = time.monotonic() + within_s
    while True:
        try:
            path = find(broker.pid, broker.port)
            return await asyncio.to_thread(exchange, path, request, within_s, lambda text: None)
        except UNREACHED as error:
            if not isinstance(request, RestartRequest | UpgradeRequest | FollowRequest) or time.monotonic() > until:
                return Reply(error=f"nobody answers: {error!r}")
            if isinstance(error, ConnectionAbortedError | ConnectionResetError):
                request = FollowRequest()
            await trial.account.clock.pause(0.05)


def said(reply: Reply) -> str:
    return f"refused: {reply.error}" if reply.error else reply.text.partition("\n")[0]


async def scaled(trial: Trial, shards: int) -> None:
    """Until there are so many."""
    for _ in range(100):
        reply = await asked(trial, ScaleRequest(shards))
        if not reply.error:
            return
        await trial.account.clock.pause(0.2)
    raise TimeoutError(f"cannot scale to {shards}: {reply.error}")


def processes(trial: Trial, word: str) -> list[int]:
    """Those of this broker whose title says so: "router", "shard", "gateway"."""
    found = []
    for pid in session_pids(trial.broker.pid):
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            if pid != trial.broker.pid and word.encode() in title:
                found.append(pid)
    return sorted(found)


def sent(trial: Trial, pid: int, number: int) -> bool:
    """Send the signal to a process of this broker, and no other."""
    if pid not in session_pids(trial.broker.pid):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


# ---- commands


@happening(4)
async def scale(trial: Trial, dice: random.Random) -> str:
    n = dice.randint(1, trial.world.shards + 2)
    return f"{n}: " + said(await asked(trial, ScaleRequest(n)))


@happening(2)
async def scale_to_and_fro(trial: Trial, dice: random.Random) -> str:
    numbers = [dice.randint(1, trial.world.shards + 3) for _ in range(3)]
    waiting = []
    for n in numbers:
        waiting.append(asyncio.create_task(asked(trial, ScaleRequest(n))))
        await trial.account.clock.pause(dice.choice((0.0, 0.03, 0.2)))
    replies = await asyncio.gather(*waiting)
    return f"{numbers}: {'; '.join(map(said, replies))}"


@happening(3)
async def rebalance(trial: Trial, dice: random.Random) -> str:
    return said(await asked(trial, RebalanceRequest()))


@happening(3)
async def move(trial: Trial, dice: random.Random) -> str:
    shard, to = dice.sample(range(trial.world.shards + 1), 2)
    return said(await asked(trial, MoveRequest(shard, to, dice.randint(1, 12))))


@happening(4)
async def restart(trial: Trial, dice: random.Random) -> str:
    return said(await asked(trial, RestartRequest(dice.choice((0.0, 2.0, 3600.0)))))


@happening(3)
async def upgrade(trial: Trial, dice: random.Random) -> str:
    program = trial.folder / "gnatswarm-next"
    if not program.exists():
        program.write_text(
            f"#!{sys.executable} -P\nimport sys\nfrom gnatswarm.router.cli import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)
    executable = dice.choice(("", str(program), str(program), "/bin/false"))
    return said(await asked(trial, UpgradeRequest(executable, dice.choice((0.0, 3600.0)))))


@happening(1)
async def finish(trial: Trial, dice: random.Random) -> str:
    return said(await asked(trial, FinishRequest()))


@happening(4)
async def reload(trial: Trial, dice: random.Random) -> str:
    lines = [f"max_payload: {dice.randint(*trial.world.payloads)}"]
    if dice.random() < 0.3:
        lines.append('placement { after_scale: "even" }')
    if dice.random() < 0.5:
        lines += [f'log_file: "{trial.folder / "log"}"', f"log_size_limit: {dice.choice((0, 4000, 100_000))}"]
    if dice.random() < 0.3:
        lines += ["debug: true"]
    if dice.random() < 0.1:
        lines += ["nonsense: {"]
    assert trial.broker.directory is not None
    path = trial.broker.directory / "broker.conf"
    path.write_text(trial.world.config(trial.folder, trial.certificate, "\n".join(lines) + "\n"))
    if dice.random() < 0.3:
        sent(trial, trial.broker.pid, signal.SIGHUP)
        return "by signal"
    reply = await asked(trial, ReloadRequest())
    return said(reply) if reply.error else str([str(change) for change in reply.reload.changes] if reply.reload else "")


@happening(1)
async def looks(trial: Trial, dice: random.Random) -> str:
    await asked(trial, WhyRequest("all.1"), 10.0)
    return said(await asked(trial, StatusRequest(0.3), 10.0))


@happening(1)
async def kill_by_command(trial: Trial, dice: random.Random) -> str:
    return said(await asked(trial, KillRequest(dice.randrange(trial.world.shards))))


# ---- signals


@happening(3)
async def signals_to_the_keeper(trial: Trial, dice: random.Random) -> str:
    names = dice.choices(("SIGHUP", "SIGUSR1", "SIGTTIN", "SIGTTOU"), k=dice.randint(1, 4))
    for name in names:
        sent(trial, trial.broker.pid, getattr(signal, name))
        await trial.account.clock.pause(dice.choice((0.0, 0.1)))
    return " ".join(names)


@happening(2)
async def signals_to_the_others(trial: Trial, dice: random.Random) -> str:
    """Which they leave to the keeper."""
    names = ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGTERM", "SIGTTIN", "SIGTTOU", "SIGPIPE"]
    told = []
    for pid in dice.sample(found := processes(trial, "gnatswarm: "), min(3, len(found))):
        name = dice.choice(names)
        sent(trial, pid, getattr(signal, name))
        told.append(f"{pid} {name}")
    return ", ".join(told)


# ---- faults of processes


@happening(4)
async def kill_a_shard(trial: Trial, dice: random.Random) -> str:
    found = processes(trial, "gnatswarm: shard")
    pid = dice.choice(found) if found else 0
    return f"{pid} {sent(trial, pid, signal.SIGKILL)}"


@happening(1)
async def kill_two_shards(trial: Trial, dice: random.Random) -> str:
    found = processes(trial, "gnatswarm: shard")
    chosen = dice.sample(found, min(2, len(found)))
    return f"{chosen} {[sent(trial, pid, signal.SIGKILL) for pid in chosen]}"


_router_deaths: dict[int, list[float]] = {}


@happening(4)
async def kill_the_router(trial: Trial, dice: random.Random) -> str:
    times = _router_deaths.setdefault(trial.broker.pid, [])
    now = time.monotonic()
    if sum(now - one < WITHIN_S for one in times) >= ROUTER_DEATHS:
        return "spared"
    times.append(now)
    found = processes(trial, "gnatswarm: router")
    return f"{found} {[sent(trial, pid, signal.SIGKILL) for pid in found]}"


async def _paused(trial: Trial, pid: int, for_s: float) -> str:
    if not sent(trial, pid, signal.SIGSTOP):
        return "gone"
    try:
        await trial.account.clock.pause(for_s)
    finally:
        sent(trial, pid, signal.SIGCONT)
    return f"{pid} for {for_s} s"


@happening(2)
async def stop_the_keeper(trial: Trial, dice: random.Random) -> str:
    return await _paused(trial, trial.broker.pid, dice.choice((0.1, 1.0, 3.0)))


@happening(2)
async def stop_the_router(trial: Trial, dice: random.Random) -> str:
    found = processes(trial, "gnatswarm: router")
    return await _paused(trial, found[0], dice.choice((0.1, 1.0, 3.0))) if found else "none"


@happening(3)
async def stop_a_shard(trial: Trial, dice: random.Random) -> str:
    found = processes(trial, "gnatswarm: shard")
    return await _paused(trial, dice.choice(found), dice.choice((0.1, 0.5, 1.0, 4.0))) if found else "none"


@happening(2, lambda world: world.has_gateway)
async def kill_the_gateway(trial: Trial, dice: random.Random) -> str:
    found = processes(trial, "gateway")
    return f"{found} {[sent(trial, pid, signal.SIGKILL) for pid in found]}"


# ---- faults of files, limits and clocks


@happening(2)
async def remove_the_directory(trial: Trial, dice: random.Random) -> str:
    with contextlib.suppress(*UNREACHED):
        directory = os.path.dirname(find(trial.broker.pid, trial.broker.port))
        names = os.listdir(directory)
        if dice.random() < 0.5:
            shutil.rmtree(directory, ignore_errors=True)
            return f"all of {len(names)}"
        name = dice.choice(names)
        os.unlink(os.path.join(directory, name))
        return name
    return "not there"


@dataclass
class Limits:
    """Of one resource, while there is too little of it."""

    users: int = 0
    soft: dict[int, int] = field(default_factory=dict)  # by process, as it was before


@contextlib.contextmanager
def limited(trial: Trial, pids: list[int], kind: int, most: Callable[[int], int]) -> Iterator[None]:
    """Each process has this soft limit of `kind` meanwhile, and what they start; then all have that of before."""
    before = trial.limits.setdefault(kind, Limits())
    before.users += 1  # (two may overlap)
    for pid in pids:
        with contextlib.suppress(OSError):
            soft, hard = resource.prlimit(pid, kind)
            before.soft.setdefault(pid, soft)
            resource.prlimit(pid, kind, (most(pid), hard))
    try:
        yield
    finally:
        before.users -= 1
        if not before.users:
            del trial.limits[kind]
            soft = next(iter(before.soft.values()), resource.RLIM_INFINITY)
            for pid in session_pids(trial.broker.pid):
                with contextlib.suppress(OSError):
                    now = resource.prlimit(pid, kind)
                    if now[0] != soft:  # (infinity is -1)
                        resource.prlimit(pid, kind, (before.soft.get(pid, soft), now[1]))


@happening(2)
async def a_full_disk(trial: Trial, dice: random.Random) -> str:
    """No file may grow."""
    trial.loses_windows = True
    for_s = dice.choice((0.5, 2.0))
    with limited(trial, session_pids(trial.broker.pid), resource.RLIMIT_FSIZE, lambda pid: dice.choice((0, 600))):
        await trial.account.clock.pause(for_s)
    return f"for {for_s} s"


@happening(2)
async def no_descriptors(trial: Trial, dice: random.Random) -> str:
    """In some process, a few are left."""
    pids = dice.sample(found := session_pids(trial.broker.pid), min(len(found), dice.randint(1, 2)))
    spare, for_s = dice.choice((0, 3)), dice.choice((0.3, 1.5))

    def most(pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd")) + spare

    with limited(trial, pids, resource.RLIMIT_NOFILE, most):
        await trial.account.clock.pause(for_s)
    return f"{pids} for {for_s} s"


@happening(2)
async def remove_the_statistics(trial: Trial, dice: random.Random) -> str:
    trial.loses_windows = True
    shutil.rmtree(trial.folder / "stats", ignore_errors=True)
    return ""


@happening(2)
async def rotate_the_log(trial: Trial, dice: random.Random) -> str:
    with contextlib.suppress(FileNotFoundError):
        os.rename(trial.folder / "log", trial.folder / f"log.{dice.randrange(10**6)}")
    sent(trial, trial.broker.pid, signal.SIGUSR1)
    return ""


@happening(4, lambda world: world.has_clock)
async def step_the_clock(trial: Trial, dice: random.Random) -> str:
    assert trial.clock is not None
    ahead_s = dice.choice((-3600.0, -5.0, 0.0, 5.0, 3600.0, 864_000.0))
    trial.clock.set(ahead_s)
    return f"{ahead_s} s"


@happening(2)
async def newcomers(trial: Trial, dice: random.Random) -> str:
    """Clients that come and go at once, one of them without a word."""
    from tests.support.wire import Client

    came = 0
    for _ in range(30):
        with contextlib.suppress(Exception):
            client = await Client.dial(trial.broker.port)
            came += 1
            if dice.random() < 0.5:
                await client.send("CONNECT {}\r\nSUB x 1\r\nPING\r\n")
            (client.reset if dice.random() < 0.5 else client.close)()
    return f"{came}"
