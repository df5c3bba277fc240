"""A link whose messages take long to match rests between them, and what it has read is not forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.link import SiblingLink
from tests.support import patterns
from tests.support.linked_shards import LinkedShards
from tests.support.one_shard import Client
from tests.support.turns import until

COUNT = 200


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[LinkedShards]:
    two = LinkedShards(tmp_path)
    await two.link()
    yield two
    two.close()


async def come(two: LinkedShards, shard: int, words: bytes) -> Client:
    client = two.shards[shard].one.connect()
    await client.wait(b"}")
    assert await client.talk(b'CONNECT {"verbose":false}\r\n' + words + b"PING\r\n") == b"PONG\r\n"
    return client


def payloads(said: bytes) -> list[int]:
    return [int(line) for line in said.split(b"\r\n")[1::2]]


async def test_all_that_it_has_read_is_heard_when_its_sibling_leaves(two: LinkedShards) -> None:
    """It has read everything at once, so that nothing is left in its socket."""
    subscriber = await come(two, 1, b"SUB > 0\r\n" + patterns.subscriptions())
    publisher = await come(two, 0, b"")
    assert await publisher.talk(patterns.publishes(COUNT) + b"PING\r\n") == b"PONG\r\n"
    said = b""
    while said.count(b"\r\n") < 2 * COUNT:
        said += await subscriber.wait(b"\r\n")
    await come(two, 1, b"SUB > 0\r\n")  # shard 1 alone has to match everything anew
    rests: list[SiblingLink] = []
    link = two.shards[1].links.sessions[0].link
    link.rest_with(rests.append)
    read = link.in_msgs
    assert await publisher.talk(patterns.publishes(COUNT), b"") == b""
    await until(lambda: rests)
    assert 0 < link.in_msgs - read < COUNT
    for shard in two.shards:
        shard.tell([shard.peer])
    said = b""
    while said.count(b"\r\n") < 2 * COUNT:
        said += await subscriber.wait(b"\r\n")
    assert payloads(said) == list(range(COUNT))


@pytest.mark.parametrize("sibling_leaves", [False, True])
async def test_all_that_it_has_read_comes_in_order(two: LinkedShards, sibling_leaves: bool) -> None:
    """`sibling_leaves`: the router takes it off its list while the link rests."""
    subscriber = await come(two, 1, b"SUB > 0\r\n" + patterns.subscriptions())
    publisher = await come(two, 0, b"")
    links = two.shards[1].links
    rests: list[SiblingLink] = []
    on_resting = links.on_resting

    def note(link: SiblingLink) -> None:
        rests.append(link)
        if not sibling_leaves:
            on_resting(link)

    links.sessions[0].link.rest_with(note)
    if sibling_leaves:
        await publisher.talk(patterns.publishes(COUNT), b"")
        (session,) = two.shards[0].one.shard.clients.open.values()
        await until(lambda: rests and session.connection.in_msgs == COUNT)
        two.shards[1].tell([two.shards[1].peer])
    else:
        assert await publisher.talk(patterns.publishes(COUNT) + b"PING\r\n") == b"PONG\r\n"
        assert len(rests) >= 3
    said = b""
    while said.count(b"\r\n") < 2 * COUNT:
        said += await subscriber.wait(b"\r\n")
    assert payloads(said) == list(range(COUNT))


async def many(two: LinkedShards, rests: list[SiblingLink]) -> tuple[Client, SiblingLink]:
    """500 messages from shard 0 to 1,000 subscriptions at shard 1, whose link rests behind the first ones."""
    subscriber = await come(two, 1, b"".join(b"SUB a %d\r\n" % sid for sid in range(1000)))
    publisher = await come(two, 0, b"")
    link = two.shards[1].links.sessions[0].link
    link.rest_with(rests.append)
    await publisher.talk(b"PUB a 0\r\n\r\n" * 500, b"")
    await until(lambda: rests)
    assert link.in_msgs < 500
    return subscriber, link


async def test_what_a_resting_link_has_read_is_heard_out_where_nothing_more_comes(two: LinkedShards) -> None:
    """Its shard leaves the router's list when all that it sent has been read, and most of that waits."""
    _, link = await many(two, [])
    two.shards[1].tell([two.shards[1].peer])
    assert link.in_msgs == 500


async def test_a_resting_link_that_has_ended_is_heard_out_in_turns(two: LinkedShards) -> None:
    rests: list[SiblingLink] = []
    _, link = await many(two, rests)
    (there,), (here,) = (shard.links.sessions for shard in two.shards)
    assert there.socket is not None and here.socket is not None
    there.socket.kick(CloseReason.SERVER_SHUTDOWN)
    two.shards[0].tell([two.shards[0].peer])
    socket = here.socket
    await until(lambda: socket.is_hung_up)
    two.shards[1].tell([two.shards[1].peer])
    assert link.in_msgs <= 102
    turns = 1
    while two.shards[1].links.sessions:
        assert link.in_msgs <= 102 * turns, "behind 100,000 deliveries others have their turn"
        turns += 1
        rests.pop().has_rested()
        two.shards[1].one.shard.reactor.finish()
        await until(lambda: rests or not two.shards[1].links.sessions)
    assert link.in_msgs == 500


async def test_an_error_of_ours_for_a_sibling_costs_more_than_its_link(two: LinkedShards) -> None:
    """Its link would be made anew without what the error has cost others: the shard ends."""
    reactor, [session] = two.shards[0].one.shard.reactor, two.shards[0].links.sessions

    def fail() -> None:
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            reactor.blame(session.socket)  # type: ignore[arg-type]

    with pytest.raises(ZeroDivisionError):
        fail()
    assert two.shards[0].links.sessions == [session]
