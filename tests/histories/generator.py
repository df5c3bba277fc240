"""Clients that carry out a workload against a running broker, and record everything.

Bounded by operations, not by time. Each client writes a few operations, then waits for a PONG or goes on without one;
it closes its connection now and then and dials again. When a PONG comes, another client tests at once what it promises.
When the operations are done, each client asks for a PONG, and when all have theirs, for another one. So nothing in the
history is left undecided.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from time import monotonic_ns
from typing import Any

from tests.histories.doors import Door
from tests.histories.events import Began, Ended, Fault, Mended, Ping, Pub, Recorder, Sub, Unsub
from tests.histories.wire import Wire, payload
from tests.histories.workload import EPOCH_OPERATIONS, FILLINGS, Epoch, epoch
from tests.support.servers import HOST

# A broker that takes longer for a PONG has hung: the fences of a loaded machine take milliseconds.
PONG_DEADLINE_S = 20.0
# A killed shard is back within a second or two.
REFUSED_DEADLINE_S = 30.0
REDIAL_S = 0.01
# The longest pause of a client that goes on without a PONG.
THINK_S = 0.002
MOST_SUBSCRIPTIONS = 6
MOST_UNANSWERED = 4
# Chance per SUB that it repeats the newest one of any client, which may still be under way.
IMITATION_CHANCE = 0.4
MOST_UNFENCED = 200
# Chance per write, after the broker has asked its clients to leave: most leave before they are closed.
LEAVE_CHANCE = 0.1

Faults = Callable[["Generator"], Coroutine[Any, Any, None]]


class Generator:
    """Generates one history."""

    def __init__(
        self,
        recorder: Recorder,
        doors: Sequence[Door],
        seed: int,
        clients: int,
        operations: int,
        fillings: Sequence[int] = FILLINGS,
    ) -> None:
        self.record = recorder
        self.doors = list(doors)
        self.fillings = fillings
        self.seed = seed
        self.operations = operations
        self.done = 0
        self.messages = 0
        self.conns = 0
        self.newest = ""  # what anybody subscribed to last
        self.replies: dict[int, str] = {}  # the reply subject of each request, as its client wrote it
        self.clients = [Client(self, number) for number in range(clients)]
        self.during: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.done >= self.operations and (self.during is None or self.during.done())

    @property
    def epoch(self) -> Epoch:
        return epoch(self.seed, self.done // EPOCH_OPERATIONS)

    def drawn(self) -> Random:
        """Random numbers for faults: which ones, and when."""
        return Random(f"{self.seed} faults")

    def next_message(self) -> int:
        self.messages += 1
        return self.messages

    def did(self, operations: int) -> None:
        self.done += operations
        self._moved.set()

    async def wait_done(self, operations: int) -> None:
        """Wait until clients have done so many operations."""
        while self.done < operations:
            self._moved.clear()
            await self._moved.wait()

    def note_fault(self, what: str, places: Sequence[str]) -> None:
        """Connections to these places may end from now on."""
        self.record(Fault(monotonic_ns(), what, tuple(places)))

    def note_mended(self) -> None:
        """The fault does not excuse the end of connections that are opened from now on."""
        self.record(Mended(monotonic_ns()))

    async def run(self, faults: Faults | None = None) -> None:
        """Run until the operations, and the faults that happen meanwhile, are done."""
        if faults:
            self.during = asyncio.create_task(faults(self))
        try:
            async with asyncio.TaskGroup() as group:
                for client in self.clients:
                    group.create_task(client.live())
            if self.during:
                await self.during
            for _ in range(2):
                await asyncio.gather(*(client.settle() for client in self.clients))
            self.record(Ended(monotonic_ns()))
        finally:
            if self.during:
                self.during.cancel()
            for client in self.clients:
                client.leave()


class Client:
    """A client that has one connection after the other."""

    def __init__(self, generator: Generator, number: int) -> None:
        self.generator = generator
        self.rng = Random(f"{generator.seed} client {number}")
        self.wire: Wire | None = None
        self.subscriptions: dict[int, int] = {}  # sid → epoch
        self.limited: set[int] = set()  # sids with a max
        self.sids = 0
        self.unfenced = 0
        self.newest = ""  # what it subscribed to last

    async def live(self) -> None:
        """Work until everything is done. ConnectionError if the broker accepts no connection any more."""
        refused_since = 0
        while not self.generator.is_over:
            try:
                await self._turn(self.wire or await self._come())
                refused_since = 0
            except ConnectionError:
                self.wire = None
                refused_since = refused_since or monotonic_ns()
                if monotonic_ns() - refused_since > REFUSED_DEADLINE_S * 1e9:
                    raise
            except TimeoutError:
                return  # a PONG did not come: it is in the history

    async def _come(self) -> Wire:
        """Open a new connection; ConnectionError if that is not possible now."""
        generator = self.generator
        generator.conns += 1
        door = self.rng.choice(generator.doors)
        wire = Wire(generator.record, generator.conns, door)
        context = door.context if door.is_framed else None
        name = "localhost" if context else None
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: wire, HOST, door.port, ssl=context, server_hostname=name)
            await wire.greet(PONG_DEADLINE_S)
        except OSError as error:
            wire.abort()
            await wire.pause(REDIAL_S)  # the broker may have no shard that takes clients
            raise ConnectionError from error
        self.wire = wire
        wire.on_pong = self._on_pong
        self.subscriptions.clear()
        self.limited.clear()
        self.unfenced = 0
        return wire

    async def _turn(self, wire: Wire) -> None:
        now = self.generator.epoch
        if self.rng.random() < max(now.close_chance, wire.is_leaving * LEAVE_CHANCE):
            self.wire = None
            await wire.close(self.rng.choice(("shut", "shut", "reset")), PONG_DEADLINE_S)
            return
        operations = self._operations(wire, now)
        wants_fence = self.rng.random() < now.fence_chance or self.unfenced > MOST_UNFENCED
        self.unfenced = 0 if wants_fence else self.unfenced + len(operations)
        if wants_fence:
            operations.append(Ping(monotonic_ns(), wire.conn))
        wire.send(operations)
        self.generator.did(len(operations))
        if wants_fence and (self.rng.random() < 0.7 or wire.unanswered > MOST_UNANSWERED):
            await self._wait_pongs(wire)
        elif self.rng.random() < 0.5:
            await wire.pause(self.rng.random() * THINK_S)
        else:
            await asyncio.sleep(0)
        if wire.is_over:
            raise ConnectionError

    def _on_pong(self) -> None:
        """Let another client publish at once: this tests the PONG while what it acknowledges is newest."""
        generator = self.generator
        now = generator.epoch
        if not generator.is_over and self.rng.random() < now.interjection_chance:
            others = [one for one in generator.clients if one is not self and one.can_interject(now)]
            if others:
                self.rng.choice(others).interject(now, self.newest)

    def can_interject(self, now: Epoch) -> bool:
        return self.wire is not None and not self.wire.is_over and self.wire.door.may("pub", now.number)

    def interject(self, now: Epoch, newest: str) -> None:
        """Publish, whatever this client is waiting for."""
        assert self.wire
        operations: list[Sub | Unsub | Pub | Ping] = []
        for _ in range(self.rng.randint(1, 2)):
            subject = newest if newest in now.subjects else self.rng.choice(now.subjects)
            wants_answer = self.rng.random() < 0.5 and self.wire.door.may("request", now.number)
            operations.append(self._pub(self.wire, subject, wants_answer=wants_answer))
        operations.append(Ping(monotonic_ns(), self.wire.conn))
        self.wire.send(operations)
        self.generator.did(len(operations))

    async def _wait_pongs(self, wire: Wire) -> None:
        async with asyncio.timeout(PONG_DEADLINE_S):
            while wire.unanswered and not wire.is_over:
                wire.changed.clear()
                await wire.changed.wait()

    def _operations(self, wire: Wire, now: Epoch) -> list[Sub | Unsub | Pub | Ping]:
        """The operations that this client writes next."""
        rng = self.rng
        old = [sid for sid, of in self.subscriptions.items() if of != now.number]
        operations: list[Sub | Unsub | Pub | Ping] = [self._unsub(wire, sid) for sid in old]
        for name, request in wire.requests:
            if rng.random() < now.answer_chance:
                reply = self.generator.replies[request]
                if name != reply:
                    wire.names[reply] = name
                operations.append(self._pub(wire, reply))
        wire.requests.clear()
        for kind in rng.choices(now.kinds, now.weights, k=rng.randint(1, now.burst)):
            mine = list(self.subscriptions)
            if not wire.door.may(kind, now.number):
                continue
            if kind == "sub" and len(mine) < MOST_SUBSCRIPTIONS:
                self.sids += 1
                self.subscriptions[self.sids] = now.number
                pattern, queue = rng.choice(now.patterns), rng.choice(now.queues)
                if rng.random() < IMITATION_CHANCE and self.generator.newest in now.subjects:
                    pattern = self.generator.newest
                self.newest = self.generator.newest = pattern
                operations.append(Sub(monotonic_ns(), wire.conn, self.sids, pattern, queue))
            elif kind == "unsub" and mine:
                operations.append(self._unsub(wire, rng.choice(mine)))
            elif kind == "most" and (free := [sid for sid in mine if sid not in self.limited]):
                sid = free[-1] if rng.random() < 0.5 else rng.choice(free)
                self.limited.add(sid)
                operations.append(Unsub(monotonic_ns(), wire.conn, sid, rng.randint(1, 6)))
            elif kind in ("pub", "request"):
                operations.append(self._pub(wire, rng.choice(now.subjects), wants_answer=kind == "request"))
        return operations

    def _unsub(self, wire: Wire, sid: int) -> Unsub:
        del self.subscriptions[sid]
        return Unsub(monotonic_ns(), wire.conn, sid)

    def _pub(self, wire: Wire, subject: str, *, wants_answer: bool = False) -> Pub:
        message = self.generator.next_message()
        size = len(payload(message, self.rng.choice(self.generator.fillings)))
        if wants_answer:
            self.generator.replies[message] = f"_INBOX.{wire.conn}.{message}"
        return Pub(monotonic_ns(), wire.conn, message, subject, size, wants_answer, crosses=subject in wire.names)

    async def settle(self) -> None:
        """Wait for a last PONG. If it does not come, the history has a Ping without a Pong."""
        if self.wire and not self.wire.is_over:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self.wire.fence(PONG_DEADLINE_S)

    def leave(self) -> None:
        if self.wire:
            self.wire.abort()


async def record(
    path: Path,
    broker: str,
    doors: Sequence[Door],
    *,
    seed: int,
    clients: int,
    operations: int,
    servers: int = 1,
    fillings: Sequence[int] = FILLINGS,
    faults: Faults | None = None,
) -> None:
    """Record one history of the broker, or the cluster, that has these doors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        recorder = Recorder(file)
        recorder(Began(monotonic_ns(), broker, seed, clients, servers))
        await Generator(recorder, doors, seed, clients, operations, fillings).run(faults)
