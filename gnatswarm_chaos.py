"""Faults for tests: of clients, by a proxy in front of a NATS server, and of the shards of a broker.

    def test_a_lost_order_is_sent_again(gnatswarm_chaos, shop):
        gnatswarm_chaos.drop("orders.new", share=0.5)
        shop(gnatswarm_chaos.url).order("tea", times=20)
        ...

Clients that connect to `url` have the faults, all others have none; so a second Chaos, or none, is a partition. What
happens to a message follows from the seed, the number of its connection (in the order of their coming) and its own
number in it: the same test has the same faults. `happened` lists them. Messages of connections with TLS or
WebSocket cannot be told apart: for them there is `slow`, `stall` and `cut`. Shards are killed, stopped and continued by
signals, and parted by the broker itself; `shards` is whoever can do that (a gnatswarm.BrokerProcess). A child after
fork() can connect to `url`, and leaves all else to its parent. Shares no code with a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
import random
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

READ_BYTES = 65_536
START_DEADLINE_S = 10.0
MESSAGES = {b"PUB", b"HPUB", b"MSG", b"HMSG"}
TLS_RECORD = 0x16

OF_CLIENTS = ("drop", "delay", "slow", "stall", "cut")
OF_SHARDS = ("kill_shard", "stall_shard", "slow_shard", "part_shards")
# A shard that has just died has a successor in some milliseconds.
SUCCESSOR_DEADLINE_S = 10.0
STOPPED_DEADLINE_S = 1.0
# A slow shard stops and goes on once in a time from this range: short beside what clients and supervisors wait for.
SLICE_S = 0.005, 0.02
LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Fault:
    """One fault, as Hypothesis draws it: apply it with `Chaos.apply`, or several with `Chaos.having`."""

    kind: str  # the name of the method
    subject: str = ">"  # drop, delay: of these messages, wildcards allowed
    share: float = 1.0  # drop, delay: of so many of them, 0 to 1; slow_shard: of the time it runs, 0.02 to 1
    seconds: float = 0.05  # delay, stall_shard, part_shards: for so long
    bytes_per_s: int = 10_000  # slow: each connection, each way
    shard: int = 0  # of the shards: which
    other: int = 1  # part_shards: from which


class Happened(NamedTuple):
    """What was done to one message, connection or shard."""

    kind: str
    connection: int = 0  # from 1, in the order of their coming
    way: str = ""  # "publish": from the client; "deliver": to the client; "": both
    subject: str = ""
    shards: tuple[int, ...] = ()  # one, or the two that were parted

    def __str__(self) -> str:
        if self.shards:
            return f"{self.kind} {' and '.join(str(shard) for shard in self.shards)}"
        return f"{self.kind} {self.way} {self.subject!r} of connection {self.connection}"


class Shards(Protocol):
    """A broker whose shards can have faults."""

    def shard_pids(self) -> list[int]:
        """The shards' process ids, by number; 0: it has none now."""

    def kill_shard(self, shard: int) -> None:
        """Kill a shard, and wait until its successor serves."""

    def part_shards(self, shard: int, other: int, seconds: float) -> None:
        """Break the link between two shards for so long; 0: no longer. Returns when it is broken."""


# All that this process has made, for its children after fork().
_all: weakref.WeakSet[Chaos] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for chaos in list(_all):
        chaos._leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


class Chaos:
    """The proxy in front of the server at `url` (nats://…), on a free port of 127.0.0.1; and faults of its `shards`.

    Faults of clients return at once. Those of shards return when they have begun, kill_shard() when it has ended.
    """

    def __init__(self, url: str, *, seed: int = 0, shards: Shards | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            port = parts.port or 4222
        except ValueError as error:
            raise ValueError(f"not the address of a server: {error}; write nats://127.0.0.1:4222") from None
        if not parts.hostname:
            raise ValueError("not the address of a server: write nats://127.0.0.1:4222")  # (it may have a password)
        self.seed = seed
        self.happened: list[Happened] = []
        self._target = parts.hostname, port
        self._scheme = parts.scheme
        self._login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        self._rules: tuple[Fault, ...] = ()
        self._shards = shards
        self._held: dict[int, _Held] = {}  # by process id
        self._parted: set[tuple[int, int]] = set()
        self._bytes_per_s = 0
        self._is_stalled = False
        self._connections = 0
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flowing = asyncio.Event()
        self._ending = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._of_parent: list[object] = []  # in a child after fork(): never to be cleared away there
        _all.add(self)

    # ---- its life

    def start(self) -> Self:
        """Listen. RuntimeError: it cannot."""
        if self._thread is not None:
            return self
        ready, self._failure = threading.Event(), None
        try:
            listener = socket.create_server(("127.0.0.1", 0))
            try:
                _find_room_for_a_loop()
                work = functools.partial(self._serve, listener, ready)
                thread = threading.Thread(target=lambda: asyncio.run(work()), name="chaos", daemon=True)
                thread.start()
            except BaseException:
                listener.close()
                raise
        except (OSError, RuntimeError) as error:  # this program may have no more descriptors, or threads
            raise RuntimeError(f"chaos cannot listen: {error}") from None
        self._thread = thread
        if not ready.wait(START_DEADLINE_S) or self._failure is not None:
            raise RuntimeError(f"chaos cannot listen: {self._failure or 'it does not start'}")
        return self

    def stop(self) -> None:
        """End all its connections, and the faults of shards."""
        self._let_shards_go()
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

    def _leave_to_parent(self) -> None:
        """In a child after fork(): hold no connection, which would not end with the parent's, and end no fault."""
        sockets = [writer.get_extra_info("socket") for writer in self._open]
        sockets += self._server.sockets if self._server is not None else ()
        self._of_parent += [self._loop, self._server, self._open, self._tasks]
        self._loop = self._server = None
        self._open, self._tasks, self._held, self._parted = set(), set(), {}, set()
        null = os.open(os.devnull, os.O_RDWR)
        for number in [sock.fileno() for sock in sockets]:
            if number >= 0:  # in its place, because its owner may close the number one day
                os.dup2(null, number, inheritable=False)
        os.close(null)

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
        """Hold such messages back for this time; whatever else is sent overtakes them, PING and PONG too.

        The end of the connection does not: the other side sees it when they have come.
        """
        self.apply(Fault("delay", subject, share, seconds))

    def slow(self, bytes_per_s: int) -> None:
        """Let each connection have so many bytes per second each way."""
        self.apply(Fault("slow", bytes_per_s=bytes_per_s))

    def stall(self) -> None:
        """Let no byte through, either way, until go_on(); connections stay open."""
        self.apply(Fault("stall"))

    def go_on(self) -> None:
        """End stall() and stall_shard()."""
        self._release_shards()
        self._is_stalled = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flowing.set)

    def cut(self) -> None:
        """Reset all connections there are; new ones are accepted."""
        self.apply(Fault("cut"))

    # (of shards)

    def kill_shard(self, shard: int) -> None:
        """SIGKILL this shard, and wait until its successor serves; its clients are disconnected."""
        self.apply(Fault("kill_shard", shard=shard))

    def stall_shard(self, shard: int, seconds: float) -> None:
        """Stop this shard for so long, or until go_on().

        After 0.75 s the broker sends new clients to other shards; after some 2 s it replaces the shard, as any that
        hangs, and its clients are disconnected.
        """
        self.apply(Fault("stall_shard", shard=shard, seconds=seconds))

    def slow_shard(self, shard: int, share: float) -> None:
        """Let this shard run for this share of the time (0.02 to 1), in slices of 5 to 20 ms, until it is replaced."""
        self.apply(Fault("slow_shard", shard=shard, share=share))

    def part_shards(self, shard: int, other: int, seconds: float) -> None:
        """Break the link between two shards for so long: operations of their clients wait meanwhile.

        After 2 s the broker replaces the lower of the two, as any that cannot be reached.
        """
        self.apply(Fault("part_shards", shard=shard, other=other, seconds=seconds))

    def apply(self, fault: Fault) -> None:
        """Begin with this fault. ValueError: it is none. RuntimeError: the broker has no such shards."""
        if fault.kind not in OF_CLIENTS + OF_SHARDS:
            raise ValueError(f"{fault.kind!r} is no fault: {', '.join(OF_CLIENTS + OF_SHARDS)}")
        if not (0 <= fault.share <= 1 and 0 <= fault.seconds < math.inf and 0 < fault.bytes_per_s < math.inf):
            raise ValueError(f"{fault}: share is 0 to 1, seconds are finite and not negative, bytes_per_s is positive")
        if not all(fault.subject.split(".")) or any(character.isspace() for character in fault.subject):
            raise ValueError(f"{fault}: no message has such a subject")
        if fault.kind in OF_SHARDS:
            self._apply_to_shards(fault)
        elif fault.kind in ("drop", "delay"):
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
        self._let_shards_go()

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

    # ---- shards

    def _apply_to_shards(self, fault: Fault) -> None:
        shards, loop = self._shards, self._loop
        if shards is None:
            text = "no shards to do that to: Chaos(broker.url, shards=broker) has those of a gnatswarm.BrokerProcess"
            raise RuntimeError(f"{fault.kind}: {text}")
        if self._thread is None or loop is None:
            raise RuntimeError("it has not started: use it as a context manager, or call start()")
        is_parting = fault.kind == "part_shards"
        which = (fault.shard, fault.other) if is_parting else (fault.shard,)
        there = len(shards.shard_pids())
        if any(not 0 <= shard < there for shard in which) or (is_parting and fault.shard == fault.other):
            raise RuntimeError(f"{Happened(fault.kind, shards=which)}: the broker has the shards 0 to {there - 1}")
        if fault.kind == "slow_shard" and fault.share < LEAST_SHARE:
            raise ValueError(f"{fault}: share is {LEAST_SHARE} to 1")
        self.happened.append(Happened(fault.kind, shards=which))
        if fault.kind == "kill_shard":
            shards.kill_shard(fault.shard)
        elif is_parting:
            self._parted.add((fault.shard, fault.other))
            shards.part_shards(fault.shard, fault.other, fault.seconds)
        elif fault.kind == "stall_shard":
            held = self._held_of(fault.shard)
            held.hold(waits=True)
            loop.call_soon_threadsafe(loop.call_later, fault.seconds, held.release)
        else:
            slow = _slow(self._held_of(fault.shard), fault.share, random.Random(f"{self.seed} {fault}"))
            asyncio.run_coroutine_threadsafe(slow, loop)

    def _held_of(self, shard: int) -> _Held:
        """The process of a shard, or of its successor."""
        assert self._shards is not None
        deadline = time.monotonic() + SUCCESSOR_DEADLINE_S
        while not (pid := self._shards.shard_pids()[shard]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"shard {shard} has no process")
            time.sleep(0.01)
        held = self._held.get(pid)
        if held is None or held.is_over:
            held = self._held[pid] = _Held(pid)
        return held

    def _release_shards(self) -> None:
        for held in list(self._held.values()):
            held.end()
        self._held.clear()

    def _let_shards_go(self) -> None:
        self._release_shards()
        parted, self._parted = self._parted, set()
        for shard, other in parted:
            assert self._shards is not None
            # The broker has ended, or has fewer shards by now.
            with contextlib.suppress(Exception):
                self._shards.part_shards(shard, other, 0.0)

    # ---- the proxy, in its thread

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            self._flowing, self._ending = asyncio.Event(), asyncio.Event()  # it may have run before
            if not self._is_stalled:
                self._flowing.set()
            server = await asyncio.start_server(lambda *streams: self._begin(self._connect(*streams)), sock=listener)
            self._server, self._port = server, server.sockets[0].getsockname()[1]
        except OSError as error:
            self._failure = error
            return
        finally:
            ready.set()
        await self._ending.wait()
        server.close()
        self._cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _note_stall(self) -> None:
        if self._is_stalled:
            self._flowing.clear()

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        self._open.add(writer)
        try:
            there, to_there = await asyncio.open_connection(*self._target)
        except OSError:
            self._open.discard(writer)
            writer.transport.abort()
            return
        self._open.add(to_there)
        late: dict[str, set[asyncio.Task[None]]] = {"publish": set(), "deliver": set()}
        publish = asyncio.ensure_future(self._pump(reader, to_there, number, "publish", late["publish"]))
        deliver = asyncio.ensure_future(self._pump(there, writer, number, "deliver", late["deliver"]))
        pumps = (publish, deliver)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if publish.done() and publish.exception() is None and publish.result():
                await asyncio.wait([deliver])  # the client says no more, and may still read
            await self._all_come(late["deliver"], writer)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._open -= {writer, to_there}
            for one in (writer, to_there):
                one.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
        way: str,
        late: set[asyncio.Task[None]],
    ) -> bool:
        """Whether it has passed on everything until the sender's end of stream, and the end itself."""
        has_ended = False
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
                        task = self._begin(self._write_late(writer, frame, fault.seconds))
                        late.add(task)
                        task.add_done_callback(late.discard)
                        continue
                    await self._write(writer, frame)
            if rest := frames.rest():
                await self._write(writer, rest)
            has_ended = True
        await self._all_come(late, writer)
        if has_ended:
            with contextlib.suppress(OSError):  # the receiver has gone meanwhile
                writer.write_eof()
        return has_ended

    async def _all_come(self, late: set[asyncio.Task[None]], writer: asyncio.StreamWriter) -> None:
        if late and not writer.is_closing():
            await asyncio.wait(late)

    async def _write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        await self._may_flow()
        if self._bytes_per_s:
            # Bytes of one message stay together: a delayed one must not come in between.
            await asyncio.sleep(min(len(frame) / self._bytes_per_s, 3600.0))
            await self._may_flow()
        writer.write(frame)
        await writer.drain()

    async def _write_late(self, writer: asyncio.StreamWriter, frame: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._may_flow()
        if not writer.is_closing():
            writer.write(frame)

    async def _may_flow(self) -> None:
        if self._is_stalled:
            self._flowing.clear()
        await self._flowing.wait()

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


def _find_room_for_a_loop() -> None:
    """OSError: there are too few descriptors for one, which a loop that is made says in tracebacks."""
    with select.epoll():
        for one in socket.socketpair():
            one.close()


class _Held:
    """A process that is stopped while anybody holds it. For any thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd = -1
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)
        self._holds = 0
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or end() was called."""
        with self._lock:
            return not self._signalled(0)

    def hold(self, *, waits: bool = False) -> None:
        """Stop it, if it is not stopped yet; `waits`: return when it has stopped."""
        with self._lock:
            self._holds += 1
            if not self._signalled(signal.SIGSTOP):
                return
        deadline = time.monotonic() + STOPPED_DEADLINE_S
        while waits and self._state() not in ("", "T", "Z") and time.monotonic() < deadline:
            time.sleep(0.0005)

    def release(self) -> None:
        """Let it go on, if nobody else holds it."""
        with self._lock:
            self._holds -= 1
            if self._holds == 0:
                self._signalled(signal.SIGCONT)

    def end(self) -> None:
        """Let it go on, whoever holds it; nobody can hold it any more."""
        with self._lock:
            self._signalled(signal.SIGCONT)
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _signalled(self, number: int) -> bool:
        """Send it this signal; whether it is there."""
        if self._fd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return False
        return True

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""


async def _slow(held: _Held, share: float, chance: random.Random) -> None:
    """Let a process run for this share of the time, until it has ended or held.end() was called."""
    while not held.is_over:
        slice_s = chance.uniform(*SLICE_S)
        held.hold()
        try:
            await asyncio.sleep(slice_s * (1 - share))
        finally:
            held.release()
        await asyncio.sleep(slice_s * share)


class _Frames:
    """A stream of the protocol, in whole operations; as it is, once it is not understood (TLS, WebSocket)."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []  # the beginning of an operation
        self._missing = 0  # bytes of its payload that have not come
        self._has_begun = False
        self._is_opaque = False

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """(subject of a message or "", its bytes) of what is complete."""
        self._kept.append(data)
        if len(data) < self._missing:  # a large message is joined once, when it is whole
            self._missing -= len(data)
            return
        data = self.rest()
        is_upgrade = not self._has_begun and data.startswith((b"GET ", b"HTTP/"))
        if self._is_opaque or is_upgrade or data[0] == TLS_RECORD:
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
                    self._missing = size - (len(data) - at)
                    break
            self._has_begun = True
            frame = data[at : at + size]
            yield subject, _without_other_urls(frame) if words and words[0].upper() == b"INFO" else frame
            at += size
        if at < len(data):
            self._kept = [data[at:]]

    def rest(self) -> bytes:
        """What has come of an operation that is not whole, which is then no longer kept."""
        rest = b"".join(self._kept)
        self._kept, self._missing = [], 0
        return rest


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


def faults(*subjects: str, most: int = 4, shards: int = 0) -> SearchStrategy[list[Fault]]:
    """For Hypothesis: up to `most` faults, drops and delays of messages on these subjects first.

    With `shards`, faults of so many shards, too, short enough that only kill_shard disconnects clients. A test that
    fails has the fewest and the simplest with which it does. (Connections do not stall: nothing would end that.)
    """
    from hypothesis import strategies as st

    of = st.sampled_from(subjects or (">",))
    share = st.sampled_from([1.0, 0.5, 0.1])
    kinds = [
        st.builds(Fault, st.just("drop"), of, share),
        st.builds(Fault, st.just("delay"), of, share, st.sampled_from([0.01, 0.05, 0.2])),
        st.builds(Fault, st.just("slow"), bytes_per_s=st.sampled_from([1_000_000, 100_000])),
        st.builds(Fault, st.just("cut")),
    ]
    if shards > 0:
        shard, seconds = st.integers(0, shards - 1), st.sampled_from([0.05, 0.2, 0.5])
        running = st.sampled_from([0.5, 0.2])
        kinds.append(st.builds(Fault, st.just("slow_shard"), share=running, shard=shard))
        kinds.append(st.builds(Fault, st.just("stall_shard"), seconds=seconds, shard=shard))
        kinds.append(st.builds(Fault, st.just("kill_shard"), shard=shard))
    if shards > 1:
        pairs = st.sampled_from([(one, other) for other in range(shards) for one in range(other)])
        parted = st.tuples(pairs, seconds)
        kinds.append(parted.map(lambda two: Fault("part_shards", seconds=two[1], shard=two[0][0], other=two[0][1])))
    return st.lists(st.one_of(kinds), max_size=most)
