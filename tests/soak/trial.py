"""`make trials S=600`: a broker under operators' commands and faults, several at once, in an order that a seed decides.

Clients of every kind talk meanwhile and check what they are promised (`talkers`); between rounds the broker has to be
whole again, with no process, descriptor, file or subscription more than it needs (`remains`). What happened when is
printed where something does not hold. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import random
import signal
import ssl
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import happenings
from tests.soak.remains import Remains
from tests.soak.talkers import Account, Broken, Bulk, Talker, lost_jobs
from tests.support import tunnel
from tests.support.authority import Authority
from tests.support.framed import DEFLATE, websocket_port
from tests.support.pages import Pages
from tests.support.servers import KINDS, Broker
from tests.support.statistics import added, rows
from tests.support.wall_clock import WallClock
from tests.support.wire import Client

WHOLE_WITHIN_S = 60.0
PROGRESS_WITHIN_S = 90.0
LOOK_S = 0.05
MOST_AT_ONCE = 3
# Each kind of client, and how many of it.
CREW = {"plain": 4, "tls": 3, "websocket": 3}
# Of all of them together, which would say some 1,000 a second.
LIMITS = """accounts { TALK {
  publish_limits { messages: 200, bytes: 4MB, burst: "50ms", stall: "0s" }
  users [ { user: talker, password: talker } ] } }
no_auth_user: talker
"""


@dataclass
class World:
    """How one broker is run; a seed decides."""

    shards: int
    accept: str
    has_gateway: bool
    has_clock: bool
    is_bulky: bool = False  # messages of all sizes, in pieces, and clients that do not read all the time
    has_limits: bool = False  # they say more than `publish_limits` let them

    @classmethod
    def thrown(cls, dice: random.Random) -> World:
        shards, accept = dice.choice((2, 4)), dice.choice(("reuseport", "handoff"))
        has_gateway, has_clock, is_bulky, has_limits = (dice.random() < 0.3 for _ in range(4))
        return cls(shards, accept, has_gateway, has_clock, is_bulky, has_limits)

    @property
    def payloads(self) -> tuple[int, int]:
        """Between which bounds max_payload may be."""
        return (300_000, 900_000) if self.is_bulky else (2000, 100_000)

    def config(self, folder: Path, certificate: str, more: str = "") -> str:
        gateway = 'cluster { name: trial, listen: "127.0.0.1:-1" }\n' if self.has_gateway else ""
        limits = LIMITS if self.has_limits else ""
        return (
            f"tls {{\n {certificate}\n}}\nallow_non_tls: true\n"
            'websocket { host: "127.0.0.1", port: -1, no_tls: true, compression: true }\n'
            f'accept: "{self.accept}"\n'
            f'stats {{ dir: "{folder / "stats"}", window: "1s" }}\n'
            f'ping_interval: "10h"\n'
            f'lame_duck_grace_period: "500ms"\nlame_duck_duration: "30s"\n{gateway}{limits}{more}'
        )


@dataclass
class Trial:
    """One broker and its clients. `told` has what happened, with times."""

    seed: str
    world: World
    broker: Broker
    folder: Path
    certificate: str
    clock: WallClock | None
    dice: random.Random
    account: Account = field(default_factory=Account)
    talkers: list[Talker] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    rounds: int = 0
    done: dict[str, int] = field(default_factory=dict)
    loses_windows: bool = False  # statistics could not be written for a while
    limits: dict[int, happenings.Limits] = field(default_factory=dict)  # of resources of which there is too little now
    _read_log: int = 0

    def tell(self, text: str) -> None:
        self.told.append(f"{time.monotonic():.3f} {text}")

    async def run(self, seconds: float, rounds: int) -> None:
        """At least one round, then more until the time is over or there were so many."""
        remains = Remains(self)
        until = time.monotonic() + seconds
        await self._start()
        try:
            await self._settle(remains)
            while not self.rounds or (time.monotonic() < until and self.rounds < rounds):
                self.rounds += 1
                await self._round()
                await self._settle(remains)
            await self._end(remains)
        finally:
            self.account.clock.is_over.set()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            for talker in self.talkers:
                await talker.finish()

    # ---- the clients

    async def _start(self) -> None:
        context = ssl.create_default_context(cafile=str(self.folder / "authority.pem"))
        port = websocket_port(self.broker)
        packed = f"Sec-WebSocket-Extensions: {DEFLATE}"
        dials = {
            "plain": functools.partial(Client.connect, self.broker.port),
            "tls": functools.partial(tunnel.over_tls, self.broker.port, context),
            "websocket": functools.partial(tunnel.over_websocket, port, packed),
        }
        kinds = [kind for kind, count in CREW.items() for _ in range(count)]
        bulk = Bulk(random.Random(self.seed)) if self.world.is_bulky else None
        self.talkers = [Talker(n, kind, dials[kind], self.account, bulk) for n, kind in enumerate(kinds)]
        for talker in self.talkers:
            await talker.connect()
        self.tasks = [asyncio.create_task(talker.talk()) for talker in self.talkers]

    def check(self) -> None:
        """Fails where a promise was not kept."""
        for task in self.tasks:
            if task.done():
                task.result()
        if self.account.faults:
            raise Broken("\n".join(self.account.faults[:20]))
        code = self.broker.process.poll()
        if code is not None:
            raise Broken(f"the broker has ended with {code}")

    async def look_again(self) -> None:
        """Until it is time to look again at what no event tells, or a client has failed."""
        await asyncio.wait(self.tasks, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION)

    async def progress(self, batches: int = 2) -> None:
        """Everybody has had so many more batches acknowledged."""
        goals = [talker.batches + batches for talker in self.talkers]
        until = time.monotonic() + PROGRESS_WITHIN_S
        while late := [t for t, goal in zip(self.talkers, goals, strict=True) if t.batches < goal]:
            self.check()
            if time.monotonic() > until:
                raise Broken(f"no progress: {', '.join(map(str, late))}")
            await self.look_again()

    # ---- rounds

    async def _round(self) -> None:
        chosen = [happenings.thrown(self.dice, self.world) for _ in range(self.dice.randint(1, MOST_AT_ONCE))]
        pauses = [self.dice.choice((0.0, 0.0, 0.05, 0.2, 0.6)) for _ in chosen]
        self.tell(f"round {self.rounds}: {', '.join(one.name for one in chosen)}")

        async def one(happening: happenings.Happening, pause_s: float, seed: float) -> None:
            await self.account.clock.pause(pause_s)
            self.tell(f"{happening.name} begins")
            said = await happening.run(self, random.Random(seed))
            self.tell(f"{happening.name}: {said}")
            self.done[happening.name] = self.done.get(happening.name, 0) + 1

        seeds = [self.dice.random() for _ in chosen]
        await asyncio.gather(*(one(*words) for words in zip(chosen, pauses, seeds, strict=True)))

    async def _settle(self, remains: Remains) -> None:
        """The broker is whole again, everybody talks, and nothing is missing when all are quiet."""
        await self._follow_advice()
        await remains.wait_whole(WHOLE_WITHIN_S)
        await self.progress()
        await self._quieten()
        self.check()
        if lost := lost_jobs(self.account):
            raise Broken(f"queue messages {lost[:10]} of {len(self.account.job_sent)} came to nobody")
        self.account.job_sent.clear()
        await remains.check(WHOLE_WITHIN_S)
        for talker in self.talkers:
            talker.is_quiet = False

    async def _follow_advice(self) -> None:
        """A new shard that cannot start, as without a file that may grow, is given up until somebody scales again."""
        lines = self.broker.log.lines
        read, self._read_log = self._read_log, len(lines)
        if any("cannot start, the broker goes on without it" in line for line in lines[read:]):
            await happenings.scaled(self, self.world.shards)

    async def _quieten(self) -> None:
        """Nobody has anything on its way any more: all have ended what they were at, and are fenced since."""
        for talker in self.talkers:
            talker.is_quiet = True
        until = time.monotonic() + PROGRESS_WITHIN_S
        while busy := [talker for talker in self.talkers if not talker.is_resting]:
            self.check()
            if time.monotonic() > until:
                raise Broken(f"not quiet: {', '.join(map(str, busy))}")
            await self.look_again()
        await self._fenced()

    async def _fenced(self) -> None:
        """Everybody has had a PONG since all were quiet, twice: for answers to what came with the first."""
        for _ in range(2):
            for talker in self.talkers:
                async with asyncio.timeout(PROGRESS_WITHIN_S):
                    while True:
                        try:
                            await talker.fence()
                            break
                        except Exception:
                            self.check()
                            await self.look_again()

    async def _end(self, remains: Remains) -> None:
        self.tell("end: relays finish, the first number of shards")
        await remains.finish_relays()
        await happenings.scaled(self, self.world.shards)
        await self._settle(remains)
        await self._quieten()
        counted = (await asyncio.to_thread(Pages.of(self.broker).json, "/varz"))["in_msgs"]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []
        how = self.dice.choice(happenings.ENDS)
        if how is signal.SIGUSR2:  # which would take half a minute for them
            for talker in self.talkers:
                await talker.finish()
        self.tell(f"end by {how.name}")
        if self.dice.random() < 0.5:
            await asyncio.to_thread(remains.stop, how)
            if how is not signal.SIGKILL:  # which costs their open window
                self._compare_statistics(counted)
        else:
            await self._end_amid(remains, how)

    async def _end_amid(self, remains: Remains, how: signal.Signals) -> None:
        """While something else happens."""
        happening = happenings.thrown(self.dice, self.world)
        self.tell(f"end by {how.name} amid {happening.name}")
        amid = asyncio.create_task(happening.run(self, self.dice))
        await self.account.clock.pause(self.dice.choice((0.0, 0.1, 0.5, 2.0)))
        try:
            await asyncio.to_thread(remains.stop, how, is_sudden=True)
        finally:
            amid.cancel()
            await asyncio.gather(amid, return_exceptions=True)

    def _compare_statistics(self, counted: int) -> None:
        """What the files have is what the pages have counted."""
        records = rows(self.folder / "stats")
        written = added(records, "shard", "in_msgs")["in_msgs"] + added(records, "gap", "in_msgs")["in_msgs"]
        if written != counted and not self.loses_windows:
            raise Broken(f"the pages counted {counted} messages, the statistics files have {written}")


def played(seed: str, seconds: float, rounds: int, *, world: World | None = None) -> str:
    """Run one trial; returns what did not hold, with the story; "": all did."""
    dice = random.Random(seed)
    world = world or World.thrown(dice)
    with tempfile.TemporaryDirectory(prefix="gnatswarm-trial-") as place:
        folder = Path(place)
        authority = Authority(folder)
        authority.path.rename(folder / "authority.pem")
        certificate = authority.server().lines
        clock = WallClock(folder) if world.has_clock else None
        broker = Broker(
            KINDS[f"gnatswarm-{world.shards}"],
            ["-m", "-1"],
            world.config(folder, certificate),
            environment=clock.environment if clock is not None else {"GNATSWARM_TRIAL": seed},
            by_fork=False,
        )
        with broker:
            trial = Trial(seed, world, broker, folder, certificate, clock, dice)
            failure = ""
            try:
                asyncio.run(trial.run(seconds, rounds))
            except (Broken, TimeoutError, ExceptionGroup) as error:
                failure = f"{type(error).__name__}: {error}"
            shown = f"seed {seed}: {world}, {trial.rounds} rounds, {sum(t.batches for t in trial.talkers)} batches, "
            shown += f"{trial.account.breaks} connections ended; {dict(sorted(trial.done.items()))}"
            print(shown, flush=True)
            if failure or os.environ.get("TELL"):
                log = [*broker.log.lines, "-- log file", *_lines(folder / "log")]
                ends = ["-- closures", *trial.account.closures[-40:]]
                return "\n".join([shown, failure, *trial.told, *ends, "-- log", *log[-400:]])
    return ""


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").splitlines()
    return []


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.trial", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all trials together (60)")
    parser.add_argument("--rounds", type=int, default=12, help="in each trial, at most (12)")
    parser.add_argument("--seed", help="this one alone")
    words = parser.parse_args()
    until = time.monotonic() + words.seconds
    failed = 0
    while time.monotonic() < until:
        seed = words.seed or os.urandom(4).hex()
        story = played(seed, until - time.monotonic(), words.rounds)
        if story:
            failed += 1
            place = Path("build/soak")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"trial-{seed}.txt").write_text(story)
            print("\n".join(story.splitlines()[:30]), f"\n… build/soak/trial-{seed}.txt", flush=True)
        if words.seed:
            break
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
