"""The brokers that are recorded, and the faults that happen to them meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from gnatswarm.router.commands.operator_commands import NotFound, exchange, find
from gnatswarm.router.supervision.operator_socket import (
    FollowRequest,
    MoveRequest,
    OperatorRequest,
    RebalanceRequest,
    ReloadRequest,
    RestartRequest,
    ScaleRequest,
    UpgradeRequest,
)
from tests.histories import doors
from tests.histories.doors import Door
from tests.histories.generator import Faults, Generator
from tests.histories.workload import FILLINGS, LARGE_FILLINGS
from tests.support import swarm
from tests.support.authority import Authority
from tests.support.framed import websocket_port
from tests.support.servers import KINDS, Broker, Kind, Log, wait_until

ORACLE = KINDS["nats-server"]
KILLS = 3
MOVES = 6
PAUSES = 100
# A pause ends when the clients have done so many operations, or after this time. A shard that does not answer its
# router for two seconds is killed.
PAUSE_OPERATIONS = 200
MOST_PAUSE_S = 0.05
SERVES_DEADLINE_S = 30.0
# Of what is mixed, how often each happens.
MIXED_EACH = 3
STORMS = 8
# A broker whose router dies five times within ten seconds ends.
MOST_ROUTER_DEATHS, ROUTER_DEATHS_WITHIN_S = 3, 11.0
UNREACHED = (AssertionError, OSError, EOFError, NotFound)
# All clients are this user.
GUESTS = (
    f"max_payload: 1000000\nauthorization {{ users: [ {{ user: guest, password: none, {doors.OPEN} }} ] }}\n"
    "no_auth_user: guest\naccounts { X0: { } }\n"
)


def serves(broker: Broker, shards: int) -> bool:
    """Whether exactly so many shards accept clients."""
    return [row["phase"] for row in swarm.status(broker)["shards"]] == ["ready"] * shards


async def wait_serves(broker: Broker, shards: int) -> None:
    await asyncio.to_thread(wait_until, lambda: serves(broker, shards), SERVES_DEADLINE_S)


def kills(broker: Broker) -> Faults:
    """Kills one shard after the other (SIGKILL)."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        for number in range(1, KILLS + 1):
            await generator.wait_done(generator.operations * number // (KILLS + 1))
            shard = rng.randrange(broker.kind.shards)
            pid = (await swarm.pids(broker))[shard]
            generator.note_fault("kill -9", [str(shard)])
            swarm.signal_shard(broker, pid)
            await wait_serves(broker, broker.kind.shards)
            generator.note_mended()

    return happen


def pauses(broker: Broker) -> Faults:
    """Stops single shards for some milliseconds (SIGSTOP), so that messages between shards wait there for longer."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        pids = await swarm.pids(broker)
        for pid in pids.values():
            swarm.signal_shard(broker, pid, signal.SIGCONT)  # refuses what is no shard of this broker
        for number in range(1, PAUSES + 1):
            await generator.wait_done(generator.operations * number // (PAUSES + 1))
            shard = rng.choice(sorted(pids))
            generator.note_fault(f"SIGSTOP of shard {shard}", [])
            os.kill(pids[shard], signal.SIGSTOP)
            try:
                async with asyncio.timeout(rng.random() * MOST_PAUSE_S):
                    await generator.wait_done(generator.done + PAUSE_OPERATIONS)
            except TimeoutError:
                pass  # the clients that still work wait for this shard
            finally:
                os.kill(pids[shard], signal.SIGCONT)
            generator.note_mended()

    return happen


def scales(broker: Broker) -> Faults:
    """Removes and adds shards, and ends with as many as at first."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        now = broker.kind.shards
        few, many = rng.randint(1, now - 1), now + rng.randint(1, 2)
        steps = [few, many, now] if rng.random() < 0.5 else [many, few, now]
        await scale_through(broker, generator, steps)

    return happen


def grows(broker: Broker) -> Faults:
    """Three times as many shards, and as many as at first again, two times."""

    async def happen(generator: Generator) -> None:
        few = broker.kind.shards
        await scale_through(broker, generator, [3 * few, few] * 2)

    return happen


async def scale_through(broker: Broker, generator: Generator, steps: Sequence[int]) -> None:
    """To so many shards after each other, at even distances in the work of the generator."""
    now = broker.kind.shards
    for number, shards in enumerate(steps, 1):
        await generator.wait_done(generator.operations * number // (len(steps) + 1))
        generator.note_fault(f"scale {now} to {shards}", [str(shard) for shard in range(shards, now)])
        await swarm.scale(broker, shards)
        await wait_serves(broker, shards)
        generator.note_mended()
        now = shards


def restarts(broker: Broker) -> Faults:
    """One shard after the other is replaced, two times; its clients go on in others."""

    async def happen(generator: Generator) -> None:
        for number in (1, 2):
            await generator.wait_done(generator.operations * number // 3)
            before = await swarm.pids(broker)
            generator.note_fault("restart", everywhere(broker))  # (who cannot move is closed in the end)
            await swarm.asked(broker, RestartRequest())
            await asyncio.to_thread(wait_until, partial(are_all_new, broker, before), SERVES_DEADLINE_S)
            await wait_serves(broker, broker.kind.shards)
            generator.note_mended()

    return happen


def upgrades(broker: Broker) -> Faults:
    """Every process is replaced, two times; its clients go on."""

    async def happen(generator: Generator) -> None:
        for number in (1, 2):
            await generator.wait_done(generator.operations * number // 3)
            generator.note_fault("upgrade", everywhere(broker))
            await asyncio.to_thread(upgrade, broker)
            await wait_serves(broker, broker.kind.shards)
            generator.note_mended()

    return happen


def upgrade(broker: Broker, must: bool = True) -> None:
    """Replace every process by the same program; `must`: it may not be refused."""
    request: OperatorRequest = UpgradeRequest()
    until = time.monotonic() + 3 * SERVES_DEADLINE_S
    while time.monotonic() < until:
        try:
            reply = exchange(find(broker.pid, broker.port), request, SERVES_DEADLINE_S, lambda text: None)
        except UNREACHED:
            request = FollowRequest()
        else:
            assert not (must and reply.error), reply.error
            return


def moves(broker: Broker) -> Faults:
    """Clients move all the time, and between them an even share to each shard is made again."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        generator.note_fault("moves", [])
        while generator.done < generator.operations:
            for _ in range(3):
                await move_some(broker, rng)
            await tried(broker, RebalanceRequest())
        generator.note_mended()

    return happen


def reloads(broker: Broker) -> Faults:
    """The configuration is read anew all the time, and always says something else."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        generator.note_fault("reloads", [])
        while generator.done < generator.operations:
            await reload_others(broker, rng)
        generator.note_mended()

    return happen


def kills_of_those_who_move(broker: Broker) -> Faults:
    """Many clients of a shard are moved to another one, and one of the two is killed meanwhile (SIGKILL)."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        for number in range(1, MOVES + 1):
            await generator.wait_done(generator.operations * number // (MOVES + 1))
            old, new = rng.sample(range(broker.kind.shards), 2)
            pids = await swarm.pids(broker)
            generator.note_fault("kill -9 of a shard whose clients move", everywhere(broker))
            moving = asyncio.create_task(swarm.asked(broker, MoveRequest(old, new, 12)))
            try:
                async with asyncio.timeout(rng.random() * MOST_PAUSE_S):
                    await generator.wait_done(generator.done + PAUSE_OPERATIONS)
            except TimeoutError:
                pass  # clients that move are silent for a while
            swarm.signal_shard(broker, pids[rng.choice((old, new))])
            with suppress(AssertionError):  # (the command may say that the shard has died)
                await moving
            await wait_serves(broker, broker.kind.shards)
            generator.note_mended()

    return happen


def mixes(broker: Broker) -> Faults:
    """All that disturbs nobody, two at once: moves, reloads, a stopped shard, another router, more or fewer shards."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        deck = sorted(MIXED) * MIXED_EACH
        rng.shuffle(deck)
        pairs = [{*pair} for pair in zip(deck[::2], deck[1::2], strict=True)]
        for number, pair in enumerate(pairs, 1):
            await generator.wait_done(generator.operations * number // (len(pairs) + 1))
            # Shards that leave close who cannot move.
            generator.note_fault(" and ".join(sorted(pair)), everywhere(broker) if "scale" in pair else [])
            await asyncio.gather(*(MIXED[name](broker, rng) for name in sorted(pair)))
            await asyncio.to_thread(wait_until, partial(is_whole, broker), SERVES_DEADLINE_S)
            generator.note_mended()

    return happen


def storms(broker: Broker) -> Faults:
    """All that is mixed, and kills of shards, restarts and upgrades, three at once."""

    async def happen(generator: Generator) -> None:
        rng = generator.drawn()
        names = sorted(STORM)
        for number in range(1, STORMS + 1):
            await generator.wait_done(generator.operations * number // (STORMS + 1))
            three = sorted(rng.sample(names, 3))
            generator.note_fault(" and ".join(three), [str(shard) for shard in range(64)])
            await asyncio.gather(*(STORM[name](broker, rng) for name in three))
            await asyncio.to_thread(wait_until, partial(is_whole, broker), SERVES_DEADLINE_S)
            generator.note_mended()

    return happen


async def kill_one(broker: Broker, rng: Random) -> None:
    rows = (await asyncio.to_thread(status_soon, broker))["shards"]
    pid = rng.choice([row["pid"] for row in rows if row["phase"] == "ready"] or [0])
    await asyncio.to_thread(threading.Event().wait, rng.random() * MOST_PAUSE_S)
    with suppress(AssertionError, ProcessLookupError):  # (it may have left)
        swarm.signal_shard(broker, pid)


async def move_some(broker: Broker, rng: Random) -> None:
    old, new = rng.sample(range(broker.kind.shards), 2)
    await tried(broker, MoveRequest(old, new, rng.randint(1, 12)))


async def reload_others(broker: Broker, rng: Random) -> None:
    """Accounts come and go, and limits and rights change; nobody is there whom that concerns."""
    assert broker.directory is not None
    path = broker.directory / "broker.conf"
    new = path.with_suffix(f".{rng.random()}")
    new.write_text(doors.varied(broker.config or "", rng))
    new.replace(path)
    await tried(broker, ReloadRequest())


async def stop_one(broker: Broker, rng: Random) -> None:
    pid = rng.choice([row["pid"] for row in (await asyncio.to_thread(status_soon, broker))["shards"] if row["pid"]])
    with suppress(ProcessLookupError):  # (it may leave)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.to_thread(threading.Event().wait, rng.random() * MOST_PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)


async def kill_router(broker: Broker, rng: Random) -> None:
    """Unless it has died so often that the broker would end with it."""
    status = await asyncio.to_thread(status_soon, broker)
    times = _router_deaths.setdefault(broker.pid, [])
    if sum(time.monotonic() - one < ROUTER_DEATHS_WITHIN_S for one in times) < MOST_ROUTER_DEATHS:
        times.append(time.monotonic())
        swarm.signal_shard(broker, status["router_pid"])


_router_deaths: dict[int, list[float]] = {}


async def scale_to(broker: Broker, rng: Random) -> None:
    await tried(broker, ScaleRequest(rng.randint(1, broker.kind.shards + 2)))


def status_soon(broker: Broker) -> dict[str, Any]:
    """Its status, as soon as a router answers."""
    found: list[dict[str, Any]] = []

    def answers() -> bool:
        with suppress(*UNREACHED):
            found.append(swarm.status(broker))
        return bool(found)

    wait_until(answers, SERVES_DEADLINE_S)
    return found[0]


def is_whole(broker: Broker) -> bool:
    """Whether it serves with its own number of shards; has it go back to that where it does not."""
    with suppress(*UNREACHED):
        if serves(broker, broker.kind.shards):
            return True
        exchange(find(broker.pid, broker.port), ScaleRequest(broker.kind.shards))
    return False


async def tried(broker: Broker, request: OperatorRequest) -> None:
    """Ask for it. What happens at the same time may have it refused, or end the router that answers."""
    with suppress(*UNREACHED):
        await swarm.asked(broker, request)


MIXED = {
    "move": move_some,
    "reload": reload_others,
    "stop": stop_one,
    "kill -9 of the router": kill_router,
    "scale": scale_to,
    "rebalance": lambda broker, _rng: tried(broker, RebalanceRequest()),
}


STORM = {
    **MIXED,
    "kill -9": kill_one,
    "restart": lambda broker, _rng: tried(broker, RestartRequest()),
    "upgrade": lambda broker, _rng: asyncio.to_thread(partial(upgrade, broker, must=False)),
}


def everywhere(broker: Broker) -> list[str]:
    """All shards: nobody is told to which of them a connection has moved."""
    return [str(shard) for shard in range(broker.kind.shards)]


def are_all_new(broker: Broker, before: dict[int, int]) -> bool:
    """Whether no shard is the process any more that it was."""
    return not {row["pid"] for row in swarm.rows(broker).values()} & set(before.values())


@dataclass(frozen=True)
class Target:
    """A broker, or several that are one cluster, and the faults of each history."""

    name: str
    kind: Kind
    servers: int = 1
    config: str = ""  # of each
    has_house: bool = False  # all doors, in place of `config`
    fillings: tuple[int, ...] = FILLINGS
    faults: Callable[[Broker], Faults] | None = None
    must_hold: bool = True  # False: shown for comparison; its violations fail nothing

    @contextmanager
    def running(self) -> Iterator[tuple[list[Broker], list[Door]]]:
        """The brokers, and where clients come in."""
        with ExitStack() as stack:
            args = [] if self.kind.is_oracle else ["--no-stats"]
            if self.has_house:
                authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
                is_secure = bool(os.urandom(1)[0] & 1)
                config = doors.house(authority.server(), is_secure)
                broker = stack.enter_context(
                    Broker(self.kind, args, config, by_fork=self.faults not in (upgrades, storms))
                )
                context = authority.client_context()
                # What a killed shard has kept for clients that have moved from it is lost: whom to pass answers to.
                may_ask = self.faults not in (kills_of_those_who_move, storms)
                yield [broker], doors.doors(broker.port, websocket_port(broker), context, is_secure, may_ask)
            elif self.servers == 1:
                broker = stack.enter_context(Broker(self.kind, args, self.config or None))
                yield [broker], [Door(broker.port)]
            else:
                brokers = cluster(stack, self.kind, self.servers, self.config)
                yield brokers, [Door(broker.port) for broker in brokers]


def cluster(stack: ExitStack, kind: Kind, servers: int, config: str) -> list[Broker]:
    """Servers in a full mesh of routes."""
    brokers: list[Broker] = []
    routes: list[str] = []
    for _ in range(servers):
        args = ["--cluster", "nats://127.0.0.1:-1", "--cluster_name", "histories"]
        args += ["--routes", ",".join(routes)] if routes else []
        broker = stack.enter_context(Broker(kind, args, config=config or None))
        routes.append("nats://127.0.0.1:" + broker.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1])
        brokers.append(broker)
    for broker in brokers:
        wait_until(lambda log=broker.log: routes_of(log) >= servers - 1, SERVES_DEADLINE_S)  # type: ignore[misc]
    return brokers


def routes_of(log: Log) -> int:
    """Two servers may dial each other at once; one of the two routes is closed then."""
    return log.text.count("Route connection created") - log.text.count("Duplicate Route")


PLAIN = tuple(Target(name, KINDS[name]) for name in ("gnatswarm-1", "gnatswarm-2", "gnatswarm-4"))
FAULTY = (
    replace(PLAIN[1], name="gnatswarm-2-paused", faults=pauses),
    replace(PLAIN[2], name="gnatswarm-4-paused", faults=pauses),
    replace(PLAIN[1], name="gnatswarm-2-killed", faults=kills),
    replace(PLAIN[2], name="gnatswarm-4-killed", faults=kills),
    replace(PLAIN[2], name="gnatswarm-4-scaled", faults=scales),
    replace(PLAIN[1], name="gnatswarm-2-grown", faults=grows),
    replace(PLAIN[2], name="gnatswarm-4-restarted", faults=restarts),
    replace(PLAIN[2], name="gnatswarm-4-killed-in-moves", faults=kills_of_those_who_move),
    replace(PLAIN[2], name="gnatswarm-4-mixed", faults=mixes, config=GUESTS),
)
SIX = Kind("gnatswarm-6", shards=6)
DOORS = Target("gnatswarm-6-doors", SIX, has_house=True, fillings=LARGE_FILLINGS)
HOUSED = (
    DOORS,
    *(
        replace(DOORS, name=f"gnatswarm-6-doors-{name}", faults=faults)
        for name, faults in {
            "paused": pauses,
            "killed": kills,
            "scaled": scales,
            "restarted": restarts,
            "upgraded": upgrades,
            "killed-in-moves": kills_of_those_who_move,
            "moved": moves,
            "reloaded": reloads,
            "mixed": mixes,
            "stormed": storms,
        }.items()
    ),
    replace(DOORS, name="gnatswarm-2-doors-grown", kind=KINDS["gnatswarm-2"], faults=grows),
)
# PONGs wait for other members, so that it keeps all that one broker does.
CLUSTERED = (
    Target("gnatswarm-2-cluster-of-3", KINDS["gnatswarm-2"], 3, "fence: cluster\nfence_timeout: 5s\nstats: false\n"),
)
ORACLES = (
    Target("nats-server", ORACLE),
    Target("nats-server-cluster-of-3", ORACLE, servers=3, must_hold=False),
)
TARGETS = {target.name: target for target in (*PLAIN, *FAULTY, *HOUSED, *CLUSTERED, *ORACLES)}
