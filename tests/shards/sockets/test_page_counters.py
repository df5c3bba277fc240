"""What a reactor counts is on the shared page when a client can have seen it, and goes on where a predecessor ended."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.mesh import Mesh
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.sockets.page_counters import PageCounters
from gnatswarm.shards.sockets.reactor import Reactor
from tests.support.engine import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBER = 3


class Owner:
    """Who the test's sockets belong to."""

    def on_closed(self, reason: int) -> None:
        pass


class Shard:
    """A reactor with the slot of shard NUMBER, and one client."""

    def __init__(self, page: Page, stack: contextlib.ExitStack) -> None:
        fanout = Fanout()
        mesh = Mesh(fanout, NUMBER)
        self.counters = PageCounters(page, NUMBER, fanout, mesh)
        self.reactor = Reactor(fanout, self.counters)
        stack.callback(self.reactor.close)
        self.client, theirs = socket.socketpair()
        stack.enter_context(self.client)
        theirs.setblocking(False)
        session = Session()
        connection = ClientConnection(fanout, mesh.account(b"$G"), Fence(), 1, Limits(), session)
        session.connection = connection
        self.reactor.open(theirs.detach(), connection, Owner())

    def talk(self, said: bytes) -> bytes:
        self.client.sendall(said)
        self.reactor.turn()
        return self.client.recv(1 << 16)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def counted(page: Page) -> dict[str, int]:
    names = ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "subscriptions")
    return {name: page.snapshot(NUMBER)[name] for name in names}


def test_a_message_is_counted_on_the_page_of_its_shard_alone(stack):
    page = Page.create()
    shard = Shard(page, stack)
    shard.talk(QUIET + b"SUB a 1\r\nSUB a 2\r\nPUB a 5\r\nhello\r\n")
    assert counted(page) == {"in_msgs": 1, "in_bytes": 5, "out_msgs": 2, "out_bytes": 10, "subscriptions": 2}
    assert page.snapshot(NUMBER + 1)["in_msgs"] == 0


def test_a_successor_goes_on_with_the_counters_and_begins_with_no_subscriptions(stack):
    page = Page.create()
    Shard(page, stack).talk(QUIET + b"SUB a 1\r\nPUB a 5\r\nhello\r\n")
    Shard(page, stack).talk(QUIET + b"PUB a 2\r\nhi\r\nPING\r\n")
    assert counted(page) == {"in_msgs": 2, "in_bytes": 7, "out_msgs": 1, "out_bytes": 5, "subscriptions": 0}


def test_the_brokers_own_subscriptions_are_not_shown(stack):
    page = Page.create()
    shard = Shard(page, stack)
    shard.counters.own_subs = 2
    shard.talk(QUIET + b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nPING\r\n")
    assert counted(page)["subscriptions"] == 1
