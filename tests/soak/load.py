"""A steady load that checks every message, and remembers nothing of it but counts.

Four streams (one publisher, two plain subscribers each), a queue group, an asker with two responders, a client whose
subscriptions come and go, and short connections. AssertionError as soon as something is lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.soak.clock import Clock
from tests.support.wire import Client

STREAMS = 4
WIDTH = 2
MEMBERS = 4
BATCHES_PER_S = 20
WITHIN_S = 60.0  # for an answer: the machine may be busy
# Numbers are written with ten digits, so all frames of a subject have the same size.
DIGITS = 10
MASK = (1 << 61) - 1


def hashed(number: int) -> int:
    """Adds up to a sum that a lost and a doubled message cannot leave as it was."""
    return (number + 1) * (2 * number + 7) * 0x9E3779B97F4A7C15 & MASK


@dataclass
class Load:
    """Runs from start() to finish(). `rate`: messages that are published each second, in all."""

    port: int
    rate: int
    seed: int = 1
    sent: int = 0  # acknowledged messages that this load has published, requests and answers included
    received: int = 0
    opened: int = 0  # short connections
    churned: int = 0  # subscriptions that came and went
    asked: int = 0
    clients: list[Client] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    due: list[int] = field(default_factory=lambda: [0] * STREAMS)  # messages of each stream that were sent
    came: list[list[int]] = field(default_factory=lambda: [[0] * WIDTH for _ in range(STREAMS)])
    group_sent: list[int] = field(default_factory=lambda: [0, 0])  # messages, and the sum of their hashes
    group_came: list[int] = field(default_factory=lambda: [0, 0])

    async def client(self) -> Client:
        one = await Client.connect(self.port, {"verbose": False}, deadline_s=WITHIN_S)
        self.clients.append(one)
        return one

    async def start(self) -> None:
        batch = max(1, self.rate // (STREAMS + 1) // BATCHES_PER_S)
        for stream in range(STREAMS):
            for at in range(WIDTH):
                one = await self.client()
                await one.talk(f"SUB soak.{stream}.> 1\r\nPING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
                self.readers.append(asyncio.create_task(self.read_stream(one, stream, at)))
        for _ in range(MEMBERS):
            one = await self.client()
            await one.talk("SUB soak.work workers 1\r\nPING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            self.readers.append(asyncio.create_task(self.read_group(one)))
        for _ in range(2):
            one = await self.client()
            await one.talk("SUB soak.ask responders 1\r\nPING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            self.readers.append(asyncio.create_task(self.respond(one)))
        for stream in range(STREAMS):
            self.run(self.publish_stream, stream, batch)
        self.run(self.publish_group, batch)
        self.run(self.ask)
        self.run(self.churn)
        self.run(self.come_and_go)

    def run(self, what: Callable[..., Awaitable[None]], *words: object) -> None:
        self.tasks.append(asyncio.create_task(what(*words)))  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise what has gone wrong in any part so far."""
        for task in (*self.tasks, *self.readers):
            if task.done() and not task.cancelled():
                task.result()

    async def publish_stream(self, stream: int, batch: int) -> None:
        one = await self.client()
        while not self.clock.is_over.is_set():
            first = self.due[stream]
            frames = [
                b"PUB soak.%d.%d %d\r\n%010d\r\n" % (stream, n % 7, DIGITS, n) for n in range(first, first + batch)
            ]
            self.due[stream] += batch
            await one.talk(b"".join(frames) + b"PING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            self.sent += batch
            await self.clock.pause(1 / BATCHES_PER_S)

    async def read_stream(self, one: Client, stream: int, at: int) -> None:
        size = len(b"MSG soak.0.0 1 10\r\n") + DIGITS + 2
        came = self.came[stream]
        while True:
            data = await one.read_units(size)
            for end in range(size - 2, len(data), size):
                number = int(data[end - DIGITS : end])
                assert number == came[at], f"stream {stream}, subscriber {at}: {number} came, and {came[at]} was due"
                came[at] += 1
            self.received += len(data) // size

    async def publish_group(self, batch: int) -> None:
        one = await self.client()
        while not self.clock.is_over.is_set():
            first = self.group_sent[0]
            numbers = range(first, first + batch)
            data = b"".join(b"PUB soak.work %d\r\n%010d\r\n" % (DIGITS, n) for n in numbers)
            self.group_sent[0] += batch
            self.group_sent[1] = (self.group_sent[1] + sum(map(hashed, numbers))) & MASK
            await one.talk(data + b"PING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            self.sent += batch
            await self.clock.pause(1 / BATCHES_PER_S)

    async def read_group(self, one: Client) -> None:
        size = len(b"MSG soak.work 1 10\r\n") + DIGITS + 2
        while True:
            data = await one.read_units(size)
            numbers = [int(data[end - DIGITS : end]) for end in range(size - 2, len(data), size)]
            self.group_came[0] += len(numbers)
            self.group_came[1] = (self.group_came[1] + sum(map(hashed, numbers))) & MASK
            self.received += len(numbers)

    async def ask(self) -> None:
        one = await self.client()
        await one.send("SUB soak.inbox.* 1\r\n")
        while not self.clock.is_over.is_set():
            self.asked += 1
            await one.send(f"PUB soak.ask soak.inbox.{self.asked} 0\r\n\r\n")
            self.sent += 1
            (answer,) = await one.messages(1, deadline_s=WITHIN_S)
            assert answer.subject == f"soak.inbox.{self.asked}", f"request {self.asked}: {answer}"
            self.received += 1
            await self.clock.pause(0.05)

    async def respond(self, one: Client) -> None:
        while True:
            (asked,) = await one.messages(1, deadline_s=3600.0)
            await one.send(f"PUB {asked.reply} 2\r\nok\r\n")
            self.sent += 1
            self.received += 1

    async def churn(self) -> None:
        """Subscriptions to subjects that are never used again, a hundred at a time."""
        one = await self.client()
        sid = 0
        while not self.clock.is_over.is_set():
            sids = range(sid, sid + 100)
            sid += 100
            words = "".join(f"SUB soak.once.{n}{('', '.*', '.>')[n % 3]} {('', 'g')[n % 2]} {n}\r\n" for n in sids)
            await one.talk(f"{words}PING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            words = "".join(f"UNSUB {n}\r\n" for n in sids)
            await one.talk(f"{words}PING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            self.churned += len(sids)
            await self.clock.pause(0.25)

    async def come_and_go(self) -> None:
        """Connections that subscribe and end: in order, by a reset, or in the middle of an operation."""
        dice = random.Random(self.seed)
        while not self.clock.is_over.is_set():
            one = await Client.connect(self.port, {"verbose": False}, deadline_s=WITHIN_S)
            await one.talk(f"SUB soak.short.{self.opened} 1\r\nPING\r\n", expect="PONG\r\n", deadline_s=WITHIN_S)
            way = dice.randrange(3)
            if way == 2:
                await one.send("PUB soak.short 100\r\nhalf")
            if way:
                one.reset()
            else:
                one.close()
            self.opened += 1
            await self.clock.pause(0.1)

    async def finish(self) -> None:
        """Stop; every message that was sent has come, once."""
        self.clock.is_over.set()
        await asyncio.gather(*self.tasks)
        async with asyncio.timeout(WITHIN_S):
            while self.group_came[0] < self.group_sent[0] or self.came != [[due] * WIDTH for due in self.due]:
                self.check()
                await asyncio.wait(self.readers, timeout=0.02)
        assert self.group_came == self.group_sent, f"the group got {self.group_came} of {self.group_sent}"
        for task in self.readers:
            task.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        for one in self.clients:
            await one.flush(deadline_s=WITHIN_S)
            one.close()
