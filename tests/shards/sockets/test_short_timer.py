"""A timer for less than a millisecond calls once for each start, in a round of the reactor; once closed, not at all."""

from __future__ import annotations

import gc
import select
import weakref
from functools import partial

from gnatswarm.broker.fanout import Fanout
from gnatswarm.shards.sockets.reactor import Reactor
from gnatswarm.shards.sockets.short_timer import ShortTimer

WITHIN_MS = 20_000
LONG_US = 999_999


def rounds(reactor: Reactor, n: int) -> None:
    """So many rounds, each as soon as something is ready."""
    waiting = select.poll()
    waiting.register(reactor.fd, select.POLLIN)
    for _ in range(n):
        assert waiting.poll(WITHIN_MS), "nothing is ready"
        reactor.turn()


def is_quiet(reactor: Reactor) -> bool:
    """Whether nothing is ready."""
    return not select.select([reactor.fd], [], [], 0)[0]


def test_it_calls_once_for_each_start() -> None:
    reactor = Reactor(Fanout())
    called = []
    timer = ShortTimer(reactor, lambda: called.append(reactor.rounds))
    reactor.turn()
    assert called == []
    for n in (1, 2):
        timer.start(50)
        rounds(reactor, 1)
        assert len(called) == n
        assert is_quiet(reactor)
    timer.close()
    reactor.close()


def test_a_later_start_replaces_the_one_before() -> None:
    reactor = Reactor(Fanout())
    called = []
    timer = ShortTimer(reactor, lambda: called.append(1))
    timer.start(LONG_US)
    timer.start(50)
    rounds(reactor, 1)
    assert called == [1]
    assert is_quiet(reactor)
    timer.close()
    reactor.close()


def test_it_may_be_started_and_closed_where_it_calls() -> None:
    reactor = Reactor(Fanout())
    called = []

    def call() -> None:
        called.append(1)
        if len(called) < 3:
            timer.start(50)
        else:
            timer.close()
            timer.close()

    timer = ShortTimer(reactor, call)
    timer.start(50)
    rounds(reactor, 3)
    assert len(called) == 3
    assert is_quiet(reactor)
    reactor.close()


def test_once_closed_it_calls_no_more() -> None:
    reactor = Reactor(Fanout())
    timer = ShortTimer(reactor, lambda: called.append(1))
    called: list[int] = []
    timer.start(1)
    waiting = select.poll()
    waiting.register(reactor.fd, select.POLLIN)
    assert waiting.poll(WITHIN_MS)
    timer.close()
    reactor.turn()
    assert called == []
    reactor.close()


def test_what_was_started_anew_in_the_round_in_which_it_was_due_is_forgotten() -> None:
    """Of three that are due, whichever calls first starts the others anew."""
    reactor, clock = Reactor(Fanout()), Reactor(Fanout())
    called: list[int] = []

    def call(own: int) -> None:
        called.append(own)
        for n, timer in enumerate(timers):
            if n != own:
                timer.start(LONG_US)

    timers = [ShortTimer(reactor, partial(call, n)) for n in range(3)]
    last = ShortTimer(clock, lambda: None)
    for timer in (*timers, last):
        timer.start(50)
    rounds(clock, 1)  # then the three are due as well, which were to call before it
    reactor.turn()
    assert len(called) == 1
    for timer in (*timers, last):
        timer.close()
    reactor.close()
    clock.close()


def test_with_no_wait_it_calls_in_the_next_round_too() -> None:
    """Where no loop waits in the reactor's set, its descriptor becomes ready."""
    reactor = Reactor(Fanout())
    called = []
    timer = ShortTimer(reactor, lambda: called.append(reactor.is_serving))
    timer.start(LONG_US)
    timer.start(0)
    rounds(reactor, 1)
    assert called == [True] and not reactor.is_serving
    assert is_quiet(reactor)
    timer.close()
    reactor.close()


def test_once_closed_it_is_forgotten() -> None:
    class Called:
        def __call__(self) -> None:
            """Nobody calls it."""

    reactor = Reactor(Fanout())
    called = Called()
    timer = ShortTimer(reactor, called)
    timer.close()
    is_kept = weakref.ref(called)
    del timer, called
    reactor.finish()
    gc.collect()
    assert is_kept() is None
    reactor.close()
