"""Clients of one broker, in plain, with TLS and over WebSocket, that talk all the time and hold it to its promises.

Everybody subscribes to everything, is a member of one queue group and of one group of responders, publishes numbered
messages, asks requests, and wants a PONG behind each batch. Since all of them are in one process, a PONG of one and a
PING of another have an order: what was acknowledged before somebody's PING has to come before its PONG. A connection
that ends is dialled again; only that excuses anything, and only of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tests.soak.clock import Clock
from tests.support.wire import Client, Closed

Dial = Callable[[], Awaitable[Client]]

BATCH = 4
# A PONG, an answer or a connection that takes longer will never come: a shard that hangs is killed after two seconds.
PATIENCE_S = 45.0
BETWEEN_DIALS_S = 0.1
PACE_S = 0.05
SLOW_S = 5.0  # worth a word in the story
# Of who has much to say: bytes of its bodies, each beside how often of a hundred times; …
SIZES = ((60, 10, 10), (32, 100, 20_000), (8, 20_000, 200_000))
# … how long it pauses within one, and before it reads on, which it seldom does.
WITHIN_S = (0.0, 0.001, 0.01, 0.05)
BEFORE_READING_S = (0.05, 0.2, 1.0)
SELDOM = 0.004
CONNECT = b'CONNECT {"verbose":false,"protocol":1,"headers":true,"no_responders":true}\r\n'
BROKEN = (Closed, ConnectionError, OSError, TimeoutError, AssertionError)


class Broken(Exception):
    """A promise was not kept; the text says which, to whom."""


class Bulk:
    """Bodies of all sizes, sent in pieces, and read with pauses: what is half here, and what was not taken."""

    pace_s = 3 * PACE_S

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        # Blanks behind a number are nothing, but for who compresses them.
        self._blanks = bytes(dice.choices(b" \t\r\n", k=2 * SIZES[-1][2]))

    def body(self, number: int) -> bytes:
        """The number, and something behind it."""
        _, least, most = self._dice.choices(SIZES, [weight for weight, _, _ in SIZES])[0]
        size = self._dice.randint(least, most)
        at = self._dice.randrange(len(self._blanks) - size)
        return b"%010d" % number + self._blanks[at : at + size - 10]

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, float]]:
        """What is sent at once, and how long nothing follows."""
        cuts = self._dice.choices(range(len(data)), k=self._dice.choice((0, 0, 1, 4))) if data else []
        at = 0
        for cut in sorted(cuts):
            yield data[at:cut], self._dice.choice(WITHIN_S)
            at = cut
        yield data[at:], 0.0

    def pause_s(self) -> float:
        """Before it reads on."""
        return self._dice.choice(BEFORE_READING_S) if self._dice.random() < SELDOM else 0.0


@dataclass
class Account:
    """What all of them know of each other."""

    acknowledged: dict[int, int] = field(default_factory=dict)  # by talker: its last message with a PONG
    written: dict[int, int] = field(default_factory=dict)  # likewise: its last message
    doubtful: dict[int, set[int]] = field(default_factory=dict)  # messages whose PONG never came
    jobs: dict[int, int] = field(default_factory=dict)  # queue messages that have come: how often
    job_sent: dict[int, tuple[int, bool]] = field(default_factory=dict)  # breaks at its time, and whether acknowledged
    clock: Clock = field(default_factory=Clock)
    breaks: int = 0  # connections that ended
    closures: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        self.faults.append(text)


@dataclass
class Talker:
    """One client. `kind` says how it is connected."""

    number: int
    kind: str
    dial: Dial
    account: Account
    bulk: Bulk | None = None  # None: what it says is short
    client: Client | None = None
    batches: int = 0
    jobs: int = 0  # queue messages that came to it
    floor: dict[int, int] = field(default_factory=dict)  # what was written before it was subscribed, by talker
    heard: dict[int, int] = field(default_factory=dict)  # the last that came, by talker
    answers: dict[int, asyncio.Event] = field(default_factory=dict)
    pongs: list[asyncio.Future[None]] = field(default_factory=list)
    is_over: bool = False
    is_quiet: bool = False  # it is to say nothing
    is_resting: bool = False  # and has ended what it was at
    is_told_to_leave: bool = False  # by INFO
    left: int = 0  # how often it has, since it was told
    lost_answers: int = 0
    _reading: asyncio.Task[None] | None = None
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next: int = 0
    _asked: int = 0

    # ---- a connection's life

    async def connect(self) -> None:
        """Dial until it is connected and subscribed. Broken: nobody answers for too long."""
        began_s = time.monotonic()
        until = began_s + PATIENCE_S
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._begin()
                self.account.closures.append(
                    f"{began_s:.3f} {self}: connected {time.monotonic() - began_s:.3f} s later"
                )
                return
            except BROKEN as error:
                self.account.closures.append(f"{time.monotonic():.3f} {self}: not connected: {error!r}"[:300])
                if self._reading is not None:
                    self._reading.cancel()
                if self.client is not None:
                    self.client.close()
                if time.monotonic() > until:
                    raise Broken(f"{self} cannot connect: {error!r}") from None
                await self.account.clock.pause(BETWEEN_DIALS_S)

    async def _begin(self) -> None:
        self.client = None
        self.is_told_to_leave = False
        client = await self.dial()
        self.client = client
        self.heard, self.floor, self.pongs = {}, {}, []
        subs = b"SUB all.* 1\r\nSUB jobs.* crew 2\r\nSUB ask crew 3\r\nSUB answer.%d.* 4\r\n" % self.number
        self._reading = asyncio.create_task(self._read(client))
        await self.fence(CONNECT + subs)
        self.floor = dict(self.account.written)

    async def _send(self, data: bytes) -> None:
        assert self.client is not None
        client = self.client
        async with self._sending:
            for piece, pause_s in self.bulk.pieces(data) if self.bulk is not None else ((data, 0.0),):
                await client.send(piece, PATIENCE_S)
                if pause_s:
                    await self.account.clock.pause(pause_s)

    async def _leave(self) -> None:
        """Drain, as a client does that is told to reconnect: nothing is lost. Then connect anew."""
        self.left += 1
        self.floor = {}  # (nothing is promised from here on)
        await self.fence(b"UNSUB 1\r\nUNSUB 2\r\nUNSUB 3\r\n")
        await self.fence()  # behind the answers to what came before the first PONG
        assert self._reading is not None and self.client is not None
        self._reading.cancel()
        self.client.close()
        await self.connect()

    async def fence(self, data: bytes = b"") -> None:
        """Send this and a PING, and wait for its PONG; by then all that was acknowledged before has come."""
        promised = dict(self.account.acknowledged)
        floor = dict(self.floor)
        if self._has_ended:
            raise ConnectionError("closed before a PING")
        pong = asyncio.get_running_loop().create_future()
        self.pongs.append(pong)
        await self._send(data + b"PING\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await pong
        if floor:
            for who, last in promised.items():
                if last > floor.get(who, 0) and self.heard.get(who, 0) < last:
                    self.account.fail(f"{self} had its PONG before {last} of {who}; had {self.heard.get(who)}")

    async def _read(self, client: Client) -> None:
        try:
            while True:
                frame = await client.read_frame(3600)
                if self.bulk is not None and (pause_s := self.bulk.pause_s()):
                    await self.account.clock.pause(pause_s)
                if frame.is_message:
                    await self._on_message(frame.sid, frame.subject, frame.reply, frame.payload)
                elif frame.verb == "PONG":
                    pong = self.pongs.pop(0)
                    if not pong.done():
                        pong.set_result(None)
                elif frame.verb == "INFO":
                    self.is_told_to_leave = self.is_told_to_leave or b'"ldm":true' in frame.raw
                elif frame.verb == "-ERR":
                    raise Closed(frame.raw.decode(), b"")
        except BROKEN as error:
            self.account.closures.append(f"{time.monotonic():.3f} {self}: {error!r}"[:300])
            for pong in self.pongs:
                if not pong.done():
                    pong.set_exception(ConnectionError(str(error)))
                    pong.exception()

    async def _on_message(self, sid: str, subject: str, reply: str, payload: bytes) -> None:
        account = self.account
        if sid == "1":
            self.on_number(int(subject[4:]), int(payload))
        elif sid == "2":
            job = int(payload)
            account.jobs[job] = account.jobs.get(job, 0) + 1
            self.jobs += 1
            if account.jobs[job] > 1:
                account.fail(f"queue message {job} came twice, now to {self}")
        elif sid == "3":
            if reply:
                await self._send(b"PUB %b 2\r\nok\r\n" % reply.encode())
        else:
            event = self.answers.get(int(subject.rpartition(".")[2]))
            if event is not None:
                event.set()

    def on_number(self, who: int, number: int) -> None:
        before = self.heard.get(who, 0)
        if number <= before:
            self.account.fail(f"{self} got {number} of {who} after {before}")
        elif before or number > self.floor.get(who, number):
            first = max(before, self.floor.get(who, 0)) + 1
            doubtful = self.account.doubtful.get(who, set())
            missed = [n for n in range(first, number) if n not in doubtful]
            if missed and self.floor:
                self.account.fail(f"{self} got {number} of {who} after {before}, without {missed[:5]}")
        self.heard[who] = number

    # ---- what it does

    async def talk(self) -> None:
        """Until it is over. It fails where it cannot connect any more, or waits in vain."""
        while not self.is_over:
            try:
                if self.is_told_to_leave:
                    await self._leave()
                elif not self.is_quiet:
                    self.is_resting = False
                    await self._batch()
                    await self._ask()
                else:
                    self.is_resting = True
                    await self.fence()
            except BROKEN as error:
                if isinstance(error, TimeoutError) and not self._has_ended:
                    self.account.fail(f"{self} waited in vain: {error!r}")
                await self._again()
            await self.account.clock.pause(self.bulk.pace_s if self.bulk is not None else PACE_S)

    @property
    def _has_ended(self) -> bool:
        return self._reading is None or self._reading.done()

    async def _again(self) -> None:
        self.account.breaks += 1
        if self._reading is not None:
            self._reading.cancel()
        if self.client is not None:
            self.client.close()
        await self.connect()

    async def _batch(self) -> None:
        account, who = self.account, self.number
        numbers = range(self._next + 1, self._next + 1 + BATCH)
        self._next += BATCH
        job = who * 10**8 + self._next
        words = b"".join(self._numbered(b"all", n) for n in numbers) + self._numbered(b"jobs", job)
        account.written[who] = numbers[-1]
        account.job_sent[job] = account.breaks, False
        try:
            await self.fence(words)
        except BROKEN:
            account.doubtful.setdefault(who, set()).update(numbers)
            raise
        account.acknowledged[who] = numbers[-1]
        account.job_sent[job] = account.job_sent[job][0], True
        self.batches += 1

    def _numbered(self, subject: bytes, number: int) -> bytes:
        body = self.bulk.body(number) if self.bulk is not None else b"%010d" % number
        return b"PUB %b.%d %d\r\n%b\r\n" % (subject, self.number, len(body), body)

    async def _ask(self) -> None:
        self._asked += 1
        began_s = time.monotonic()
        breaks = self.account.breaks
        event = self.answers[self._asked] = asyncio.Event()
        number = self._asked
        await self._send(b"PUB ask answer.%d.%d 0\r\n\r\n" % (self.number, number))
        try:
            # While others' connections end, requests may end with them.
            for _ in range(int(PATIENCE_S)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await event.wait()
                        return
                if self._has_ended:
                    raise ConnectionError("closed while a request was under way")
                if self.account.breaks != breaks:
                    self.lost_answers += 1
                    return
            self.account.fail(f"{self} got no answer to request {number}")
        finally:
            self.answers.pop(number, None)
            if time.monotonic() - began_s > SLOW_S:
                self.account.closures.append(
                    f"{began_s:.3f} {self}: {time.monotonic() - began_s:.3f} s for request {number}"
                )

    async def finish(self) -> None:
        self.is_over = True
        if self._reading is not None:
            self._reading.cancel()
        if self.client is not None:
            self.client.close()

    def __str__(self) -> str:
        shard = self.client.shard if self.client is not None else -1
        return f"talker {self.number} ({self.kind}, came by shard {shard})"


def lost_jobs(account: Account) -> list[int]:
    """Acknowledged queue messages that came to nobody, though no connection ended from then on to `breaks` later."""
    return [
        job
        for job, (breaks, is_acknowledged) in account.job_sent.items()
        if is_acknowledged and not account.jobs.get(job) and breaks == account.breaks
    ]
