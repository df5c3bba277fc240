"""Connections that rest are read on together, in a round of the reactor."""

from __future__ import annotations

from typing import Any

from gnatswarm.broker.fanout import Fanout
from gnatswarm.shards.gateway.rests import Rests
from gnatswarm.shards.sockets.reactor import Reactor
from tests.shards.sockets.test_short_timer import is_quiet, rounds


class Link:
    def __init__(self) -> None:
        self.rested = 0

    def has_rested(self) -> None:
        self.rested += 1


def test_who_rests_is_read_on_once() -> None:
    reactor = Reactor(Fanout())
    rests = Rests(reactor)
    links: list[Any] = [Link(), Link()]
    for link in links:
        rests.rest(link)
    assert [link.rested for link in links] == [0, 0]
    rounds(reactor, 1)
    assert [link.rested for link in links] == [1, 1]
    assert is_quiet(reactor)
    rests.rest(links[1])
    rounds(reactor, 1)
    assert [link.rested for link in links] == [1, 2]
    assert is_quiet(reactor)
    reactor.close()
