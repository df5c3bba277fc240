"""A timer for less than a millisecond calls once for each start, in a round of the reactor; once closed, not at all."""

from __future__ import annotations

import select

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
