"""Clients that publish, listen and dial again, and an account of what each of them missed.

Every client is subscribed to everything, publishes numbered messages in small batches, and asks for a PONG behind each.
What was acknowledged so is promised to everybody whose connection stayed; a connection that broke is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field

from tests.support.wire import Client, Closed

CONNECT = {"verbose": False, "user": "u", "pass": "p"}
BATCH = 5
PAUSE_S = 0.05
# A client that waits for longer than this gives its connection up.
HANGS_S = 30.0
BROKEN = (Closed, ConnectionError, TimeoutError, AssertionError)


@dataclass
class Voice:
    """One client. `came` has what it got over its first connection, while that lasts."""

    number: int
    client: Client
    came: list[int] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    unacknowledged: int = 0
    broke: int = 0
    longest_wait_s: float = 0.0  # for a PONG, over its first connection
    away_s: float = 0.0  # without a connection, at most
    batches: int = 0
    is_gone: bool = False  # with the broker


@dataclass
class Flow:
    """Several voices; start() to finish()."""

    port: int
    size: int = 8
    voices: list[Voice] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    is_over: bool = False
    may_end: bool = False  # the broker is to end: nobody dials again
    _pause: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        for number in range(self.size):
            self.voices.append(Voice(number, await self.dial()))
        self.tasks = [asyncio.create_task(self.speak(voice)) for voice in self.voices]

    async def dial(self) -> Client:
        client = await Client.connect(self.port, CONNECT, deadline_s=HANGS_S)
        await client.talk("SUB flow.* 1\r\nPING\r\n", expect_last="PONG\r\n")
        return client

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pause.wait()

    async def speak(self, voice: Voice) -> None:
        for first in itertools.count(0, BATCH):
            if self.is_over:
                return
            numbers = [voice.number * 10**8 + n for n in range(first, first + BATCH)]
            try:
                await self.publish(voice, numbers)
            except BROKEN:
                voice.unacknowledged += BATCH
                voice.broke += 1
                voice.client.close()
                voice.is_gone = self.may_end
                if voice.is_gone:
                    return
                await self.dial_again(voice)
            await self.pause(PAUSE_S)

    async def publish(self, voice: Voice, numbers: list[int]) -> None:
        began_s = time.monotonic()
        words = b"".join(b"PUB flow.%d 10\r\n%010d\r\n" % (voice.number, n) for n in numbers)
        await voice.client.send(words + b"PING\r\n", HANGS_S)
        await self.hear(voice)
        voice.acknowledged += numbers
        voice.batches += 1
        if not voice.broke:
            voice.longest_wait_s = max(voice.longest_wait_s, time.monotonic() - began_s)

    async def hear(self, voice: Voice) -> None:
        """Read up to the next PONG."""
        voice.client.inbox.clear()
        frames = await voice.client.read_until_pong(HANGS_S)
        errors = [frame for frame in frames if frame.verb == "-ERR"]
        assert not errors, errors
        if not voice.broke:
            voice.came += [int(frame.payload) for frame in frames if frame.is_message]

    async def dial_again(self, voice: Voice) -> None:
        began_s = time.monotonic()
        while not self.is_over:
            try:
                voice.client = await self.dial()
                break
            except BROKEN:
                await self.pause(0.05)
        voice.away_s = max(voice.away_s, time.monotonic() - began_s)

    async def progress(self, batches: int, deadline_s: float = 60.0) -> None:
        """Until every voice has had so many batches more acknowledged."""
        goals = [voice.batches + batches for voice in self.voices]
        async with asyncio.timeout(deadline_s):
            while any(voice.batches < goal for voice, goal in zip(self.voices, goals, strict=True)):
                for task in self.tasks:
                    if task.done():
                        task.result()
                await self.pause(0.02)

    async def finish(self) -> None:
        """Stop publishing; then everybody reads what is still on its way to it."""
        self.is_over = True
        await asyncio.gather(*self.tasks)
        for voice in self.voices:
            if voice.is_gone:
                continue
            with contextlib.suppress(*BROKEN):
                await voice.client.send("PING\r\n")
                await self.hear(voice)
            voice.client.close()

    # ---- the account

    @property
    def stayed(self) -> list[Voice]:
        return [voice for voice in self.voices if not voice.broke]

    def account(self) -> tuple[int, int, int]:
        """Of those that stayed: (acknowledged messages that one of them missed, doubled ones, those out of order)."""
        promised = {n for voice in self.voices for n in voice.acknowledged}
        missed = doubled = disordered = 0
        for voice in self.stayed:
            missed += len(promised - set(voice.came))
            doubled += len(voice.came) - len(set(voice.came))
            last: dict[int, int] = {}
            for n in voice.came:
                disordered += n <= last.get(n // 10**8, -1)
                last[n // 10**8] = n
        return missed, doubled, disordered

    def lost(self) -> str:
        """What is lost, in words."""
        missed, doubled, disordered = self.account()
        total = sum(len(voice.acknowledged) for voice in self.voices)
        broke = sum(voice.broke for voice in self.voices)
        said = f"of {total:,} acknowledged messages, those whose connection stayed missed {missed:,}"
        if doubled or disordered:
            said += f" (**{doubled:,} came twice, {disordered:,} out of order**)"
        if broke:
            said += f"; {broke} of {len(self.voices)} connections closed"
            said += f", {sum(voice.unacknowledged for voice in self.voices)} messages on them not acknowledged"
            away_s = max(voice.away_s for voice in self.voices)
            said += "" if self.may_end else f"; all connected again within {away_s:.2f} s"
        return said

    def waited(self) -> str:
        return f"longest wait for a PONG of who stayed: {max((v.longest_wait_s for v in self.stayed), default=0):.2f} s"
