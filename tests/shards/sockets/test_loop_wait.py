"""The event loop waits in the reactor's set: clients, callbacks, timers, signals and its own descriptors are served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
import uvloop

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.sublist import Sublist
from gnatswarm.shards.sockets.loop_wait import LoopWait
from gnatswarm.shards.sockets.reactor import Reactor
from gnatswarm.shards.sockets.short_timer import ShortTimer
from tests.support.engine import QUIET, Session
from tests.support.turns import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

WITHIN_S = 20


class Owner:
    def on_closed(self, reason: int) -> None:
        pass


class Calling(Session):
    """Calls a function in the round that reads CONNECT."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call

    def on_connect(self, raw: bytes) -> None:
        super().on_connect(raw)
        self.call()


class Served:
    """A reactor in a loop that waits in its set, and a client: blocking, so that the loop knows nothing of it."""

    def __init__(self, on_connect: Callable[[], object] = lambda: None) -> None:
        self.loop = asyncio.get_running_loop()
        fanout = Fanout()
        self.reactor = Reactor(fanout)
        self.client, ours = socket.socketpair()
        self.client.settimeout(WITHIN_S)
        ours.setblocking(False)
        session = Calling(on_connect)
        peer = ClientConnection(fanout, Sublist(b"$G", InterestSink()), Fence(), 1, Limits(), session)
        session.connection = peer
        self.reactor.open(ours.detach(), peer, Owner())
        wait = LoopWait.begin(self.loop, self.reactor)
        assert wait is not None
        self.wait = wait

    def talk(self, words: bytes = QUIET) -> None:
        """In another thread: sends this, and waits for the answer to a PING."""
        self.client.sendall(words + b"PING\r\n")
        said = b""
        while not said.endswith(b"PONG\r\n"):
            said += self.client.recv(65536)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(work(), WITHIN_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within())


@contextlib.contextmanager
def served(on_connect: Callable[[], object] = lambda: None) -> Iterator[Served]:
    made = Served(on_connect)
    try:
        yield made
    finally:
        made.wait.end()
        made.reactor.close()
        made.client.close()


def test_a_client_is_served_while_the_loop_waits():
    async def work() -> None:
        with served() as here:
            await here.loop.run_in_executor(None, here.talk)
            assert here.reactor.rounds >= 1

    run(work)


def test_what_a_round_calls_soon_is_called_soon():
    async def work() -> None:
        called = asyncio.get_running_loop().create_future()
        with served(lambda: called.get_loop().call_soon(called.set_result, None)) as here:
            here.client.sendall(QUIET)
            await called

    run(work)


def test_a_timer_that_a_round_starts_is_on_time():
    async def work() -> None:
        loop = asyncio.get_running_loop()
        called = loop.create_future()
        with served(lambda: loop.call_later(0.02, called.set_result, loop.time())) as here:
            here.client.sendall(QUIET)
            assert await called + 0.02 <= loop.time() + 0.001

    run(work)


@pytest.mark.parametrize("where", ["round", "callback"])
def test_a_descriptor_that_the_loop_watches_from_then_on_is_watched(where: str):
    """Libuv adds it to its set in its next poll: until then the wait would not end for it."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        readable, is_watched = loop.create_future(), threading.Event()

        def watch() -> None:
            loop.add_reader(ours, readable.set_result, None)
            is_watched.set()

        def write() -> None:
            is_watched.wait(WITHIN_S)
            theirs.sendall(b"x")

        with served(watch if where == "round" else lambda: loop.call_soon(watch)) as here, ours, theirs:
            writer = threading.Thread(target=write)
            writer.start()
            here.client.sendall(QUIET)
            await readable
            loop.remove_reader(ours)
            writer.join()

    run(work)


def test_a_wait_that_is_ended_in_a_round_leaves_a_loop_that_waits():
    """As where an embedded broker ends because of an error of ours: libuv went on with a handle that was freed."""

    async def work() -> None:
        ended = asyncio.get_running_loop().create_future()
        waits: list[LoopWait] = []

        def end() -> None:
            waits[0].end()
            ended.get_loop().call_soon(ended.set_result, None)

        with served(end) as here:
            waits.append(here.wait)
            here.client.sendall(QUIET)
            await ended
            before_s = time.thread_time()
            await here.loop.run_in_executor(None, threading.Event().wait, 0.1)
            assert time.thread_time() - before_s < 0.02

    run(work)


def test_a_signal_reaches_its_handler():
    async def work() -> None:
        loop = asyncio.get_running_loop()
        heard = loop.create_future()
        loop.add_signal_handler(signal.SIGUSR1, heard.set_result, None)
        with served():
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1)).start()
            await heard
        loop.remove_signal_handler(signal.SIGUSR1)

    run(work)


def test_a_flood_does_not_keep_timers_and_threads_waiting():
    async def work() -> None:
        loop = asyncio.get_running_loop()
        with served() as here:
            await loop.run_in_executor(None, here.talk)
            is_over = threading.Event()

            def flood() -> None:
                while not is_over.is_set():
                    here.talk(b"PUB a 8\r\n01234567\r\n" * 3000)

            flooding = loop.run_in_executor(None, flood)
            before = here.reactor.rounds
            while here.reactor.rounds < before + 100:
                called = loop.create_future()
                loop.call_later(0.001, called.set_result, None)
                await called
                await loop.run_in_executor(None, lambda: None)
            is_over.set()
            await flooding

    run(work)


def test_an_error_of_a_round_is_the_loop_s():
    def fail() -> None:
        raise RuntimeError("a defect")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        seen = loop.create_future()
        loop.set_exception_handler(lambda _, context: seen.set_result(context["exception"]))
        with served() as here:  # (an error of what a client has sent costs its connection)
            timer = ShortTimer(here.reactor, fail)
            timer.start(50)
            assert str(await seen) == "a defect"
            timer.close()
            loop.set_exception_handler(None)

    run(work)


def test_an_exit_in_a_round_ends_the_loop():
    def leave() -> None:
        raise SystemExit(3)

    async def work() -> None:
        with served(leave) as here:
            here.client.sendall(QUIET)
            await asyncio.get_running_loop().create_future()

    with pytest.raises(SystemExit, match="3"):
        run(work)


def test_after_its_end_the_loop_waits_by_itself_and_closes_without_a_complaint():
    complaints: list[object] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        with served() as here:
            await loop.run_in_executor(None, here.talk)
            here.wait.end()
            rounds = here.reactor.rounds
            here.client.sendall(b"PING\r\n")
            called = loop.create_future()
            loop.call_later(0.02, called.set_result, None)
            await called
            assert here.reactor.rounds == rounds

    run(work)
    assert complaints == []


def test_a_second_reactor_of_a_loop_is_watched_by_the_loop():
    """As in a program with several embedded brokers."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        with served() as here:
            second = Reactor(Fanout())
            assert LoopWait.begin(loop, second) is None
            loop.add_reader(second.fd, second.turn)
            client, ours = socket.socketpair()
            ours.setblocking(False)
            fanout = second.fanout
            session = Session()
            peer = ClientConnection(fanout, Sublist(b"$G", InterestSink()), Fence(), 1, Limits(), session)
            session.connection = peer
            second.open(ours.detach(), peer, Owner())
            await loop.run_in_executor(None, here.talk)
            client.settimeout(WITHIN_S)
            client.sendall(QUIET + b"PING\r\n")
            assert (await loop.run_in_executor(None, client.recv, 65536)).endswith(b"PONG\r\n")
            loop.remove_reader(second.fd)
            second.close()
            client.close()
        third = Reactor(Fanout())
        wait = LoopWait.begin(loop, third)
        assert wait is not None
        wait.end()
        wait.end()
        third.close()

    run(work)


def test_another_loop_keeps_its_wait():
    async def work() -> None:
        reactor = Reactor(Fanout())
        assert LoopWait.begin(asyncio.get_running_loop(), reactor) is None
        reactor.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(work())


LONG_US = 999_999


def test_who_is_due_is_called_in_the_next_round_behind_what_is_ready_then():
    async def work() -> None:
        order: list[str] = []
        over = asyncio.get_running_loop().create_future()
        with served(lambda: order.append("read")) as here:

            def call() -> None:
                order.append(f"due, of {here.reactor.n_ready}")
                assert here.reactor.is_serving
                if len(order) == 2:
                    timer.start(0)
                else:
                    over.set_result(None)

            timer = ShortTimer(here.reactor, call)
            here.client.sendall(QUIET)
            timer.start(LONG_US)
            timer.start(0)
            await over
            assert order == ["read", "due, of 1", "due, of 0"]
            assert not here.reactor.is_serving
            timer.close()

    run(work)


def test_a_start_that_was_replaced_or_closed_is_not_due():
    async def work() -> None:
        called: list[str] = []
        over = asyncio.get_running_loop().create_future()
        with served() as here:
            closed = ShortTimer(here.reactor, lambda: called.append("closed"))
            later = ShortTimer(here.reactor, lambda: called.append("later"))
            first = ShortTimer(here.reactor, lambda: called.append("first"))
            last = ShortTimer(here.reactor, lambda: over.set_result(None))
            closed.start(0)
            closed.close()
            closed.start(0)
            later.start(0)
            later.start(LONG_US)
            first.start(0)
            last.start(0)  # only one can be called without its descriptor
            await over
            await until(lambda: called)
            assert called == ["first"]
            for timer in (later, first, last):
                timer.close()

    run(work)


def test_callbacks_of_the_loop_are_called_between_those_who_are_due_all_the_time():
    async def work() -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        with served() as here:
            timer = ShortTimer(here.reactor, lambda: timer.start(0))
            timer.start(0)
            loop.call_later(0.01, over.set_result, None)
            await over
            await loop.run_in_executor(None, here.talk)
            timer.close()

    run(work)
