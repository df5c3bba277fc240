"""Whichever shard a client meets, it is the same server: one identity, one set of limits, unique client ids."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import swarm
from tests.support.wire import Client

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4")

# What may differ between two connections.
OF_THE_CONNECTION = {"client_id", "shard", "client_ip"}


async def test_every_shard_shows_the_same_server(cluster):
    shards = cluster.broker.kind.shards
    infos = [(await cluster.raw_on(shard)).info for shard in range(shards)]
    assert [info["shard"] for info in infos] == list(range(shards))
    same = [{key: value for key, value in info.items() if key not in OF_THE_CONNECTION} for info in infos]
    assert all(one == same[0] for one in same)
    assert {"server_id", "server_name", "version", "max_payload", "host", "port"} <= set(same[0])
    assert same[0]["port"] == cluster.broker.port


async def test_client_ids_are_unique_over_all_shards(cluster):
    clients = await asyncio.gather(*(cluster.raw() for _ in range(200)))
    assert len({client.info["client_id"] for client in clients}) == 200
    assert {client.shard for client in clients} == set(range(cluster.broker.kind.shards))


async def test_every_shard_holds_the_same_limits(start_broker, cluster_of):
    broker = start_broker(config="max_payload: 100\nmax_subscriptions: 2\nmax_control_line: 64\n")
    cluster = cluster_of(broker)
    for shard in range(broker.kind.shards):
        client = await cluster.client_on(shard)
        assert client.info["max_payload"] == 100
        await client.talk(
            "SUB a 1\r\nSUB a 2\r\nSUB a 3\r\nPING\r\n", expect="-ERR 'maximum subscriptions exceeded'\r\nPONG\r\n"
        )
        await client.talk(b"PUB b 100\r\n" + b"x" * 100 + b"\r\nPING\r\n", expect="PONG\r\n")
        await client.talk("PUB b 101\r\n", expect="-ERR 'Maximum Payload Violation'\r\n")
        other = await cluster.client_on(shard)
        await other.send(f"SUB {'a' * 65} 1\r\n")
        assert b"maximum control line exceeded" in await other.wait_closed()


async def test_every_shard_knows_the_same_users(start_broker, cluster_of):
    broker = start_broker(config="authorization { users: [ {user: ann, password: secret} ] }\n")
    cluster = cluster_of(broker)
    for shard in range(broker.kind.shards):
        assert (await cluster.raw_on(shard)).info["auth_required"] is True
        await cluster.client_on(shard, {"user": "ann", "pass": "secret"})
        wrong = await cluster.raw_on(shard)
        await wrong.send('CONNECT {"user":"ann","pass":"guess"}\r\nPING\r\n')
        assert await wrong.wait_closed() == b"-ERR 'Authorization Violation'\r\n"


async def test_the_identity_and_the_ids_outlive_a_killed_shard(start_broker, cluster_of):
    broker = start_broker()
    cluster = cluster_of(broker)
    before = [await cluster.client_on(shard) for shard in range(broker.kind.shards)]
    before += await cluster.clients(20)
    seen = {client.info["client_id"] for client in before}
    assert len(seen) == len(before)
    for shard in range(broker.kind.shards):
        await swarm.kill(broker, shard)
        client = await swarm.client_on(cluster, shard)
        assert client.info["server_id"] == before[0].info["server_id"]
        assert client.info["server_name"] == before[0].info["server_name"]
        later: list[Client] = [client, *await cluster.clients(20)]
        ids = {client.info["client_id"] for client in later}
        assert len(ids) == len(later)
        assert not ids & seen, "a client id was given twice"
        seen |= ids
