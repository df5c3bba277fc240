"""Faults for tests: a proxy in front of a NATS server slows, stalls and cuts connections, drops and delays messages.

    def test_a_lost_order_is_sent_again(gnatswarm_chaos, shop):
        gnatswarm_chaos.drop("orders.new", share=0.5)
        shop(gnatswarm_chaos.url).order("tea", times=20)
        ...

Clients that connect to `url` have the faults, all others have none; so a second Chaos, or none, is a partition. What
happens to a message follows from the seed, the number of its connection (in the order of their coming) and its own
number in it: the same test has the same faults. `happened` lists them. Messages of connections with TLS cannot be
told apart: for them there is `slow`, `stall` and `cut`. Knows no broker, and shares no code with one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

READ_BYTES = 65_536
START_DEADLINE_S = 10.0
MESSAGES = {b"PUB", b"HPUB", b"MSG", b"HMSG"}
TLS_RECORD = 0x16


@dataclass(frozen=True)
class Fault:
    """One fault, as Hypothesis draws it: apply it with `Chaos.apply`, or several with `Chaos.having`."""

    kind: str  # "drop", "delay", "slow", "stall" or "cut"
    subject: str = ">"  # drop, delay: of these messages, wildcards allowed
    share: float = 1.0  # drop, delay: of so many of them, 0 to 1
    seconds: float = 0.05  # delay: for so long
    bytes_per_s: int = 10_000  # slow: each connection, each way


class Happened(NamedTuple):
    """What was done to one message or connection."""

    kind: str
    connection: int  # from 1, in the order of their coming
    way: str  # "publish": from the client; "deliver": to the client; "": both
    subject: str

    def __str__(self) -> str:
        return f"{self.kind} {self.way} {self.subject!r} of connection {self.connection}"


class Chaos:
    """The proxy in front of the server at `url` (nats://…), on a free port of 127.0.0.1. All methods return at once."""

    def __init__(self, url: str, *, seed: int = 0) -> None:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server: write nats://127.0.0.1:4222")
        self.seed = seed
        self.happened: list[Happened] = []
        self._target = parts.hostname, parts.port or 4222
        self._scheme = parts.scheme
        self._login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        self._rules: tuple[Fault, ...] = ()
        self._bytes_per_s = 0
        self._is_stalled = False
        self._connections = 0
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flowing = asyncio.Event()
        self._ending = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # ---- its life

    def start(self) -> Self:
        """Listen. RuntimeError: it cannot."""
        if self._thread is not None:
            return self
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="chaos", daemon=True)
        self._thread.start()
        if not ready.wait(START_DEADLINE_S) or self._failure is not None:
            raise RuntimeError(f"chaos cannot listen: {self._failure or 'it does not start'}")
        return self

    def stop(self) -> None:
        """End all its connections."""
        if self._thread is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients that shall have the faults connect, with the server's user and password."""
        if self._thread is None:
            raise RuntimeError("it has not started: use it as a context manager, or call start()")
        return f"{self._scheme}://{self._login}127.0.0.1:{self._port}"

    # ---- faults

    def drop(self, subject: str, share: float = 1.0) -> None:
        """Lose messages on this subject (wildcards allowed), published by or delivered to these clients."""
        self.apply(Fault("drop", subject, share))

    def delay(self, subject: str, seconds: float, share: float = 1.0) -> None:
        """Hold such messages back for this time; whatever else is sent overtakes them, PING and PONG too."""
        self.apply(Fault("delay", subject, share, seconds))

    def slow(self, bytes_per_s: int) -> None:
        """Let each connection have so many bytes per second each way."""
        self.apply(Fault("slow", bytes_per_s=bytes_per_s))

    def stall(self) -> None:
        """Let no byte through, either way, until go_on(); connections stay open."""
        self.apply(Fault("stall"))

    def go_on(self) -> None:
        """End stall()."""
        self._is_stalled = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flowing.set)

    def cut(self) -> None:
        """Reset all connections there are; new ones are accepted."""
        self.apply(Fault("cut"))

    def apply(self, fault: Fault) -> None:
        """Begin with this fault. ValueError: it is none."""
        if fault.kind not in ("drop", "delay", "slow", "stall", "cut"):
            raise ValueError(f"{fault.kind!r} is no fault: drop, delay, slow, stall or cut")
        if not 0 <= fault.share <= 1 or fault.seconds < 0 or fault.bytes_per_s <= 0:
            raise ValueError(f"{fault}: share is 0 to 1, seconds are not negative, bytes_per_s is positive")
        if fault.kind in ("drop", "delay"):
            self._rules = (*self._rules, fault)
        elif fault.kind == "slow":
            self._bytes_per_s = fault.bytes_per_s
        elif fault.kind == "stall":
            self._is_stalled = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._note_stall)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._cut)

    def clear(self) -> None:
        """End all faults. What is delayed comes when it is due."""
        self._rules = ()
        self._bytes_per_s = 0
        self.go_on()

    @contextlib.contextmanager
    def having(self, faults: Iterable[Fault]) -> Iterator[Self]:
        """Have these faults and no others for a while."""
        self.clear()
        for fault in faults:
            self.apply(fault)
        try:
            yield self
        finally:
            self.clear()

    # ---- the proxy, in its thread

    async def _serve(self, ready: threading.Event) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            if not self._is_stalled:
                self._flowing.set()
            server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
            self._port = server.sockets[0].getsockname()[1]
        except OSError as error:
            self._failure = error
            return
        finally:
            ready.set()
        await self._ending.wait()
        server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _note_stall(self) -> None:
        if self._is_stalled:
            self._flowing.clear()

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        try:
            there, to_there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, to_there}
        pumps = [
            asyncio.ensure_future(self._pump(reader, to_there, number, "publish")),
            asyncio.ensure_future(self._pump(there, writer, number, "deliver")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._open -= {writer, to_there}
            for one in (writer, to_there):
                one.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, way: str) -> None:
        frames = _Frames()
        seen: dict[Fault, int] = {}
        assert self._loop is not None
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                for subject, frame in frames.feed(data):
                    fault = self._fault_of(subject, number, way, seen) if subject else None
                    if fault is not None and fault.kind == "drop":
                        continue
                    if fault is not None:
                        self._loop.call_later(fault.seconds, self._write_late, writer, frame)
                        continue
                    await self._write(writer, frame)

    async def _write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        if self._is_stalled:
            self._flowing.clear()
        await self._flowing.wait()
        if not self._bytes_per_s:
            writer.write(frame)
            await writer.drain()
            return
        # Bytes of one message stay together: a delayed one must not come in between.
        await asyncio.sleep(min(len(frame) / self._bytes_per_s, 3600.0))
        writer.write(frame)
        await writer.drain()

    def _write_late(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        if not writer.is_closing():
            writer.write(frame)

    def _fault_of(self, subject: str, number: int, way: str, seen: dict[Fault, int]) -> Fault | None:
        for fault in self._rules:
            if not _matches(fault.subject, subject):
                continue
            nth = seen[fault] = seen.get(fault, 0) + 1
            chance = random.Random(f"{self.seed} {fault} {number} {way} {nth}").random()
            if chance < fault.share:
                self.happened.append(Happened(fault.kind, number, way, subject))
                return fault
        return None


class _Frames:
    """A stream of the protocol, in whole operations; as it is, once it is not understood (TLS)."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_opaque = False

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """(subject of a message or "", its bytes) of what is complete."""
        data = self._kept + data
        self._kept = b""
        if self._is_opaque or data[0] == TLS_RECORD:
            self._is_opaque = True
            yield "", data
            return
        at = 0
        while at < len(data):
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            words = data[at:end].split()
            size = end + 2 - at
            subject = ""
            if words and words[0].upper() in MESSAGES and len(words) > 2 and words[-1].isdigit():
                size += int(words[-1]) + 2
                subject = words[1].decode("utf-8", "replace")
                if len(data) - at < size:
                    break
            frame = data[at : at + size]
            yield subject, _without_other_urls(frame) if words and words[0].upper() == b"INFO" else frame
            at += size
        self._kept = data[at:]


def _without_other_urls(info: bytes) -> bytes:
    """An INFO line without other addresses of the server: a client would go there when it reconnects."""
    try:
        found = json.loads(info[4:])
    except ValueError:
        return info
    for name in ("connect_urls", "ws_connect_urls"):
        found.pop(name, None)
    return b"INFO " + json.dumps(found, separators=(",", ":")).encode() + b"\r\n"


def _matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">" and i == len(wanted) - 1:
            return len(tokens) > i
        if i >= len(tokens) or token not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


def faults(*subjects: str, most: int = 4) -> SearchStrategy[list[Fault]]:
    """For Hypothesis: up to `most` faults, drops and delays of messages on these subjects first.

    A test that fails has the fewest and the simplest with which it does. (They do not stall: nothing would end that.)
    """
    from hypothesis import strategies as st

    of = st.sampled_from(subjects or (">",))
    share = st.sampled_from([1.0, 0.5, 0.1])
    one = st.one_of(
        st.builds(Fault, st.just("drop"), of, share),
        st.builds(Fault, st.just("delay"), of, share, st.sampled_from([0.01, 0.05, 0.2])),
        st.builds(Fault, st.just("slow"), bytes_per_s=st.sampled_from([1_000_000, 100_000])),
        st.builds(Fault, st.just("cut")),
    )
    return st.lists(one, max_size=most)
