"""Connections are limited and counted over the whole broker: max_connections is exact, whatever shards they are on."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import swarm
from tests.support.wire import Client
from tests.system.test_log_in import reload
from tests.system.test_moving_clients import move

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4")

MOST = 20
REFUSED = b"-ERR 'maximum connections exceeded'\r\n"


async def ask(cluster) -> tuple[Client, bool]:
    """One more connection, and whether it was let in."""
    client = await cluster.raw()
    await client.send('CONNECT {"verbose":false}\r\nPING\r\n')
    line = await client.read_line()
    assert line in (b"PONG\r\n", REFUSED)
    return client, line != REFUSED


async def fill(cluster, until: int) -> list[Client]:
    """Connect until so many are in; a place that has just become free may be noticed a moment late."""
    taken: list[Client] = []
    async with asyncio.timeout(30):
        while len(taken) < until:
            client, is_in = await ask(cluster)
            if is_in:
                taken.append(client)
            else:
                cluster.leave(client)
    return taken


async def test_exactly_as_many_as_allowed_get_in_at_once(start_broker, cluster_of):
    """Sixty connections at the same time; those too many are told and closed."""
    cluster = cluster_of(start_broker(config=f"max_connections: {MOST}\n"))
    answers = await asyncio.gather(*(ask(cluster) for _ in range(3 * MOST)))
    assert sum(is_in for _, is_in in answers) == MOST
    for client, is_in in answers:
        if is_in:
            await client.expect_quiet()
        else:
            assert await client.wait_closed() == b""


async def test_a_place_that_becomes_free_on_one_shard_is_free_on_all(start_broker, cluster_of):
    broker = start_broker(config=f"max_connections: {MOST}\n")
    cluster = cluster_of(broker)
    inside = await fill(cluster, MOST)
    for shard in range(broker.kind.shards):
        leaving = [client for client in inside if client.shard == shard][:2]
        for client in leaving:
            inside.remove(client)
            cluster.leave(client)
        inside += await fill(cluster, len(leaving))
        answers = await asyncio.gather(*(ask(cluster) for _ in range(10)))
        assert not any(is_in for _, is_in in answers)
    for client in inside:
        await client.expect_quiet()


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")
async def test_clients_that_move_keep_no_newcomer_out(start_broker, cluster_of):
    """There is room for each newcomer all the time, while all others move to and fro."""
    broker = start_broker(config=f"max_connections: {MOST + 4}\n")
    cluster = cluster_of(broker)
    inside = await fill(cluster, MOST)

    async def moving() -> None:
        for n in range(12):
            reply = await move(broker, n % 2, 1 - n % 2, len(inside) // broker.kind.shards)
            assert not reply.error

    moves = asyncio.create_task(moving())
    while not moves.done():
        newcomer, is_in = await ask(cluster)
        assert is_in
        cluster.leave(newcomer)
    await moves
    for client in inside:
        await client.expect_quiet()
    inside += await fill(cluster, 4)
    answers = await asyncio.gather(*(ask(cluster) for _ in range(10)))
    assert not any(is_in for _, is_in in answers)


async def test_a_killed_shards_connections_no_longer_count(start_broker, cluster_of):
    broker = start_broker(config=f"max_connections: {MOST}\n")
    cluster = cluster_of(broker)
    inside = await fill(cluster, MOST)
    for shard in range(broker.kind.shards):
        lost = [client for client in inside if client.shard == shard]
        await swarm.kill(broker, shard)
        for client in lost:
            await client.wait_closed()
        inside = [client for client in inside if client.shard != shard]
        inside += await fill(cluster, len(lost))
        answers = await asyncio.gather(*(ask(cluster) for _ in range(10)))
        assert not any(is_in for _, is_in in answers)


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server", "nats-server-2.15")
async def test_a_reload_that_allows_fewer_connections_closes_the_others(start_broker, cluster_of):
    broker = start_broker(config="max_connections: 8")
    inside = await fill(cluster_of(broker), 8)
    await reload(broker, "max_connections: 3")
    ended = [asyncio.ensure_future(client.wait_closed()) for client in inside]
    async with asyncio.timeout(30):
        while sum(one.done() for one in ended) < 5:
            await asyncio.wait([one for one in ended if not one.done()], return_when=asyncio.FIRST_COMPLETED)
    errors = [one.result() for one in ended if one.done()]
    assert set(errors) == {b"-ERR 'maximum connections exceeded'\r\n"}
    most = 5 + broker.kind.shards - 1  # shards that look at the same moment
    assert 5 <= len(errors) <= most
    stays = next(client for client, one in zip(inside, ended, strict=True) if not one.done())
    for one in ended:
        one.cancel()
    await stays.talk("PING\r\n", expect="PONG\r\n")


async def test_status_counts_the_connections_of_all_shards(start_broker, cluster_of):
    broker = start_broker()
    cluster = cluster_of(broker)
    clients = await cluster.clients(12)
    for client in clients:
        await client.talk("SUB a 1\r\nSUB b 2\r\nPING\r\n", expect="PONG\r\n")
    said = await asyncio.to_thread(swarm.status, broker)
    assert said["connections"] == 12
    by_shard = {row["shard"]: row["connections"] for row in said["shards"]}
    assert by_shard == {shard: sum(client.shard == shard for client in clients) for shard in range(broker.kind.shards)}
    assert sum(row["subscriptions"] for row in said["shards"]) == 24
