"""A shard that is told to stop closes its clients when all shards have carried out what theirs had sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.clients.hearing import HEAR_OUT_S
from gnatswarm.shards.shard import Shard as RealShard
from gnatswarm.shards.stopping import LOOK_AGAIN_S, Stopping
from tests.shards.clients.test_departure import Clock
from tests.support.linked_shards import LinkedShards, MovingShard
from tests.support.turns import until

AT_ONCE_S = 2 * LOOK_AGAIN_S


class Shard:
    """One of a broker's, with one client; its clients and links are as the test says."""

    def __init__(self, clock: Clock, page: Page, number: int, siblings: list[int]) -> None:
        self.is_unheard = False
        self.connection = SimpleNamespace(pending_bytes=0)
        session = SimpleNamespace(connection=self.connection)
        clients = SimpleNamespace(
            open={1: session}, hear_out=lambda sessions: [] if self.is_unheard else list(sessions)
        )
        self.is_on_its_way = False  # what its clients have sent
        self.arrivals: list[Callable[[], None]] = []  # to be called when it is there
        shard = SimpleNamespace(
            clients=clients,
            end_listening=self._end_listening,
            fence=SimpleNamespace(call_when_known=self._call_when_known),
            reactor=SimpleNamespace(finish=lambda: None),
        )
        self.accepts = 0
        self.have_all_come = True
        moves = SimpleNamespace(is_leaving=False, n_arriving=0, stop=lambda: None)
        self.links = SimpleNamespace(siblings=siblings, has_unread=False, moves=moves)
        self.ends = 0
        self._arguments: Any = (clock, number, shard, self.links, page, lambda: self.have_all_come, self._on_end)

    def stop(self) -> None:
        Stopping(*self._arguments)

    def _call_when_known(self, call: Callable[[], None]) -> None:
        if self.is_on_its_way:
            self.arrivals.append(call)
        else:
            call()

    def _end_listening(self) -> None:
        self.accepts += 1

    def _on_end(self) -> None:
        self.ends += 1


class Two:
    """Two shards, of which the first has begun to stop."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.page = Page.create()
        self.first, self.second = Shard(self.clock, self.page, 0, [1]), Shard(self.clock, self.page, 1, [0])


@pytest.fixture
def two() -> Two:
    return Two()


def test_without_siblings_it_ends_when_what_has_arrived_was_read() -> None:
    clock = Clock()
    shard = Shard(clock, Page.create(), 0, [])
    shard.stop()
    assert shard.ends == 0
    clock.advance(AT_ONCE_S)
    assert shard.ends == 1


def test_all_end_when_the_last_has_heard_its_clients(two: Two) -> None:
    two.second.is_unheard = True
    two.first.stop()
    two.second.stop()
    two.clock.advance(HEAR_OUT_S / 2)
    assert (two.first.ends, two.second.ends) == (0, 0)
    two.second.is_unheard = False
    two.clock.advance(AT_ONCE_S)
    assert (two.first.ends, two.second.ends) == (1, 1)


def test_what_clients_of_one_have_sent_comes_to_those_of_all(two: Two) -> None:
    two.first.is_on_its_way = True
    two.first.stop()
    two.second.stop()
    two.clock.advance(HEAR_OUT_S / 2)
    assert (two.first.ends, two.second.ends, len(two.first.arrivals)) == (0, 0, 1)
    two.first.arrivals[0]()
    two.clock.advance(AT_ONCE_S)
    assert (two.first.ends, two.second.ends) == (1, 1)


def test_what_siblings_have_sent_is_carried_out(two: Two) -> None:
    two.first.links.has_unread = True
    two.first.stop()
    two.second.stop()
    two.clock.advance(HEAR_OUT_S / 2)
    assert (two.first.ends, two.second.ends) == (0, 1)
    two.first.links.has_unread = False
    two.clock.advance(AT_ONCE_S)
    assert two.first.ends == 1


def test_who_is_heard_once_more_is_waited_for_once_more(two: Two) -> None:
    """A client has closed meanwhile: what is known by then is without what it had sent."""
    two.first.is_on_its_way = True
    two.first.stop()
    two.second.stop()
    two.clock.advance(AT_ONCE_S)
    two.first.is_unheard = True
    two.clock.advance(AT_ONCE_S)
    two.first.is_unheard = False
    two.first.arrivals[0]()
    two.clock.advance(AT_ONCE_S)
    assert (two.first.ends, two.second.ends, len(two.first.arrivals)) == (0, 0, 2)
    two.first.arrivals[1]()
    two.clock.advance(AT_ONCE_S)
    assert (two.first.ends, two.second.ends) == (1, 1)


@pytest.mark.parametrize("is_offered", [False, True])
async def test_what_a_client_had_sent_that_was_being_moved_is_carried_out(tmp_path: Path, *, is_offered: bool) -> None:
    """Nobody reads it while it moves, and then it is in another shard, or stays."""
    two = LinkedShards(tmp_path)
    await two.link()
    old, new = two.shards
    subscriber, publisher = new.one.connect(), old.one.connect()
    for one in (subscriber, publisher):
        await one.talk(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
    assert not old.host.open_way(1)
    old.moves.move([one.connection for one in old.one.shard.clients.open.values()], 1)
    if is_offered:
        await until(lambda: new.moves.n_arriving > 0)
    busy = SimpleNamespace(start=lambda us: None, close=lambda: None)  # a turn that does not come
    for shard in two.shards:
        shard.host._rest.close()
        shard.host._rest = busy  # type: ignore[assignment]
    publisher.send(b"PUB a 1\r\n1\r\n" * 100)
    publisher.close()
    ended: list[int] = []

    def stop(number: int, shard: MovingShard) -> None:
        def end() -> None:
            shard.one.shard.clients.close_all(CloseReason.SERVER_SHUTDOWN)
            ended.append(number)

        loop = asyncio.get_running_loop()
        Stopping(loop, number, shard.one.shard, shard.links, two.page, lambda: True, end)

    for number, shard in enumerate(two.shards):
        stop(number, shard)
    await until(lambda: len(ended) == 2)
    assert (await subscriber.wait(b"ERR")).count(b"MSG a 1 1\r\n1\r\n") == 100
    two.close()


def test_who_is_about_to_come_from_another_shard_is_waited_for(two: Two) -> None:
    two.first.links.moves.n_arriving = 1
    two.first.stop()
    two.second.stop()
    two.clock.advance(HEAR_OUT_S / 2)
    assert (two.first.ends, two.second.ends) == (0, 0)
    two.first.links.moves.n_arriving = 0
    two.clock.advance(AT_ONCE_S)
    assert (two.first.ends, two.second.ends) == (1, 1)


def test_it_does_not_wait_for_a_sibling_that_has_gone(two: Two) -> None:
    two.first.stop()
    two.clock.advance(AT_ONCE_S)
    assert two.first.ends == 0
    two.first.links.siblings.clear()
    two.clock.advance(AT_ONCE_S)
    assert two.first.ends == 1


def test_it_waits_for_nothing_longer_than_its_time_and_nobody_waits_for_it_then(two: Two) -> None:
    two.first.is_unheard = True
    two.first.stop()
    two.clock.advance(HEAR_OUT_S - AT_ONCE_S)
    assert two.first.ends == 0
    two.clock.advance(2 * AT_ONCE_S)
    assert two.first.ends == 1
    two.second.stop()
    two.clock.advance(AT_ONCE_S)
    assert two.second.ends == 1


def test_a_client_that_takes_its_output_may_go_on_and_one_that_does_not_is_not_waited_for(two: Two) -> None:
    shard = Shard(two.clock, two.page, 0, [])
    shard.connection.pending_bytes = 1000
    shard.stop()
    for _ in range(5):
        shard.connection.pending_bytes -= 100
        two.clock.advance(LOOK_AGAIN_S)
        assert shard.ends == 0
    two.clock.advance(AT_ONCE_S)
    assert shard.ends == 1


def test_who_waits_in_a_queue_is_accepted_and_nobody_is_closed_before_the_last_has_been_handed_over(two: Two) -> None:
    two.first.have_all_come = False
    two.first.stop()
    two.second.stop()
    assert two.first.accepts == two.second.accepts == 1
    two.clock.advance(HEAR_OUT_S / 2)
    assert two.first.ends == two.second.ends == 0
    two.first.have_all_come = True
    two.clock.advance(AT_ONCE_S)
    assert two.first.ends == two.second.ends == 1


def test_who_begins_to_serve_has_not_been_heard_out(two: Two) -> None:
    """A process of that number may have ended before."""
    two.page.note_heard_out(1, True)
    assert [two.page.is_heard_out(shard) for shard in (0, 1)] == [False, True]
    two.page.note_heard_out(1, False)
    assert not two.page.is_heard_out(1)


def test_who_is_handed_over_is_read_at_once() -> None:
    done: list[tuple[str, object]] = []
    shard: Any = SimpleNamespace(
        clients=SimpleNamespace(on_accept=lambda *accepted: done.append(("accepted", accepted))),
        reactor=SimpleNamespace(read_newest=lambda fd: done.append(("read", fd))),
        _headroom=SimpleNamespace(full_at=100),
    )
    RealShard.take(shard, 7, "127.0.0.1", 4222)
    assert done == [("accepted", (7, "127.0.0.1", 4222)), ("read", 7)]
