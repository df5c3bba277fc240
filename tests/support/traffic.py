"""Numbered messages between clients for as long as a test needs, and a check that each arrived once.

Every publisher has its own subject and sends batches, each followed by a PING; every subscriber has one wildcard
subscription. All frames have the same length, so that reading costs little more than a comparison per frame.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from tests.support.wire import Client

BATCH = 100
# A publisher does not run ahead of the slowest subscriber by more than this: these clients are slow, and a broker that
# closes a slow consumer is right.
MOST_AHEAD_BYTES = 8 << 20


class Traffic:
    """Runs from `start` to `finish`. `queue`: all subscribers are one queue group; one of them gets each message."""

    def __init__(
        self,
        publishers: Sequence[Client],
        subscribers: Sequence[Client],
        subject: str,
        *,
        queue: str = "",
        payload_bytes: int = 10,
        batch: int = BATCH,
    ) -> None:
        assert payload_bytes >= 10
        self.publishers = list(publishers)
        self.subscribers = list(subscribers)
        self.subject = subject
        self.queue = queue
        self.batch = batch
        self.sent = [0] * len(self.publishers)
        self.got: list[list[list[int]]] = [[[] for _ in self.publishers] for _ in self.subscribers]
        self._filling = b"." * (payload_bytes - 10)
        self._size = payload_bytes
        self._frame_bytes = len(self._frame(0, 0))
        self._number_at = self._frame_bytes - payload_bytes - 2
        self._publisher_at = len(f"MSG {subject}.")
        self._others: list[tuple[int, int]] = []
        self._is_over = False
        self._moved = asyncio.Event()
        self._was_read = asyncio.Event()
        self._publishing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []

    def _frame(self, publisher: int, number: int) -> bytes:
        return b"MSG %b.%02d 1 %d\r\n%010d%b\r\n" % (
            self.subject.encode(),
            publisher,
            self._size,
            number,
            self._filling,
        )

    async def start(self) -> None:
        """Subscribe, and begin."""
        words = f"SUB {self.subject}.* {self.queue} 1\r\nPING\r\n"
        for subscriber in self.subscribers:
            await subscriber.talk(words, expect="PONG\r\n")
        self._reading = [asyncio.create_task(self._read(at)) for at in range(len(self.subscribers))]
        self._publishing = [asyncio.create_task(self._publish(at)) for at in range(len(self.publishers))]

    async def _publish(self, publisher: int) -> None:
        client = self.publishers[publisher]
        head = b"PUB %b.%02d %d\r\n" % (self.subject.encode(), publisher, self._size)
        most_ahead = max(2 * self.batch, MOST_AHEAD_BYTES // self._frame_bytes // len(self.publishers))
        while not self._is_over:
            first = self.sent[publisher]
            if not self.queue and any(len(got[publisher]) < first - most_ahead for got in self.got):
                self._was_read.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._was_read.wait(), 0.1)
                continue
            numbers = range(first, first + self.batch)
            batch = b"".join(b"%b%010d%b\r\n" % (head, number, self._filling) for number in numbers)
            await client.talk(batch + b"PING\r\n", expect="PONG\r\n", deadline_s=20)
            self.sent[publisher] += self.batch
            self._moved.set()

    async def _read(self, subscriber: int) -> None:
        client = self.subscribers[subscriber]
        got = self.got[subscriber]
        size, at, who = self._frame_bytes, self._number_at, self._publisher_at
        while True:
            data = await client.read_units(size)
            for start in range(0, len(data), size):
                publisher = int(data[start + who : start + who + 2])
                number = int(data[start + at : start + at + 10])
                got[publisher].append(number)
            self._was_read.set()
            assert data[:4] == b"MSG ", data[:size]

    def _check_running(self) -> None:
        for task in [*self._publishing, *self._reading]:
            if task.done() and not task.cancelled():
                task.result()

    async def progress(self, messages: int, deadline_s: float = 20.0) -> None:
        """Wait until every publisher has had so many more acknowledged."""
        goals = [sent + messages for sent in self.sent]
        try:
            async with asyncio.timeout(deadline_s):
                while any(sent < goal for sent, goal in zip(self.sent, goals, strict=True)):
                    self._check_running()
                    self._moved.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._moved.wait(), 0.5)
        except TimeoutError:
            raise TimeoutError(f"{messages} more messages each from {goals}, not within {deadline_s} s") from None

    def add(self, frame: bytes) -> None:
        """Count a frame that a member of the group outside `subscribers` got. Its order is not looked at."""
        assert self.queue
        self._others.append((int(frame[self._publisher_at :][:2]), int(frame[self._number_at :][:10])))

    async def stop(self) -> None:
        """Stop publishing; everything sent is acknowledged when this returns."""
        self._is_over = True
        await asyncio.gather(*self._publishing)

    async def finish(self, deadline_s: float = 30.0, in_order: bool = True) -> int:
        """Stop, and check that each message arrived once and (with `in_order`) in order; returns their number."""
        await self.stop()
        total = sum(self.sent)
        wanted = total if self.queue else total * len(self.subscribers)
        try:
            async with asyncio.timeout(deadline_s):
                while self._count() < wanted:
                    self._check_running()
                    await asyncio.wait(self._reading, timeout=0.02)
        except TimeoutError:
            raise AssertionError(f"{self._count()} of {wanted} messages came: {self._difference()}") from None
        finally:
            for task in self._reading:
                task.cancel()
            await asyncio.wait(self._reading)
        for subscriber in self.subscribers:
            await subscriber.expect_quiet()
        if self.queue:
            for publisher, sent in enumerate(self.sent):
                numbers = sorted(self._numbers(publisher))
                assert numbers == list(range(sent)), self._difference()
            for got in self.got if in_order else ():
                assert all(numbers == sorted(numbers) for numbers in got), "out of order at one member"
        else:
            for got in self.got:
                assert got == [list(range(sent)) for sent in self.sent], self._difference()
        return total

    def _count(self) -> int:
        return len(self._others) + sum(len(numbers) for got in self.got for numbers in got)

    def _numbers(self, publisher: int) -> list[int]:
        """Of one publisher, over a whole group."""
        others = [number for who, number in self._others if who == publisher]
        return others + [number for got in self.got for number in got[publisher]]

    def _difference(self) -> str:
        """What is wrong, in one line."""
        said = []
        for publisher, sent in enumerate(self.sent):
            everything = list(range(sent))
            parts = [self._numbers(publisher)] if self.queue else [got[publisher] for got in self.got]
            for at, numbers in enumerate(parts):
                if sorted(numbers) == everything and (self.queue or numbers == everything):
                    continue
                missing = sorted(set(everything) - set(numbers))
                doubled = len(numbers) - len(set(numbers))
                said.append(
                    f"publisher {publisher} → subscriber {at}: {sent} sent, {len(numbers)} came, "
                    f"{len(missing)} missing (from {missing[:3]}), {doubled} doubled"
                )
        return "; ".join(said) or "nothing"
