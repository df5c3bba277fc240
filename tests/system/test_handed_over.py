"""Accept mode handoff: connections stay evenly spread, whatever became of some before their shard had them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import Counter

import pytest

from tests.support import swarm
from tests.support.servers import HOST
from tests.support.wire import Client, Closed, Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2")

DESCRIPTORS = 256


async def wait_connections(cluster: Cluster, count: int) -> None:
    async with asyncio.timeout(20):
        while (await asyncio.to_thread(swarm.status, cluster.broker))["connections"] != count:
            pass


async def spread_of(cluster: Cluster, count: int) -> Counter[int]:
    """How many of so many new connections each shard gets."""
    return Counter([(await cluster.client()).shard for _ in range(count)])


async def test_connections_that_were_reset_at_once_are_not_on_their_way_for_ever(start_broker, cluster_of):
    """Port scanners and health checks; then one shard is started anew, of which nothing is remembered."""
    broker = start_broker(args=["--accept", "handoff"])
    cluster = cluster_of(broker)
    for _ in range(300):
        client = await Client.dial(broker.port)
        client.reset()
    await swarm.kill(broker, 1)
    back = await swarm.client_on(cluster, 1)
    back.close()
    await wait_connections(cluster, 0)
    assert await spread_of(cluster, 20) == {0: 10, 1: 10}


async def test_a_full_shard_closes_what_it_is_handed_and_says_so(start_broker, cluster_of, subject):
    """With 256 descriptors each, two shards cannot have 700 clients: those too many see the end, nobody hangs."""
    broker = start_broker(args=["--accept", "handoff"], descriptors=DESCRIPTORS)
    cluster = cluster_of(broker)
    talker, listener = await cluster.clients(2, on_different_shards=True)
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    inside = ended = 0
    for _ in range(700):
        client = await Client.dial(broker.port)
        cluster.all.append(client)
        try:
            await client.read_info()
        except Closed:
            ended += 1
        else:
            inside += 1
    assert inside > 300
    assert ended > 100
    await asyncio.to_thread(broker.log.wait_line, "no descriptors left for .* handed over", 30.0)
    await talker.talk(f"PUB {subject} 1\r\nx\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 1\r\nx\r\n")
    for client in cluster.all:
        client.close()
    cluster.all.clear()
    await wait_connections(cluster, 0)
    await swarm.kill(broker, 1)
    # Shard 0 says that it has room again when it next looks, some time after its clients have gone. Until shard 1 is
    # back it gets clients all the same, nobody having room: only beside shard 1 does a client of its mean anything.
    for shard in (1, 0):
        (await swarm.client_on(cluster, shard)).close()
    await wait_connections(cluster, 0)
    assert await spread_of(cluster, 20) == {0: 10, 1: 10}


@pytest.mark.kinds("gnatswarm-1")
async def test_who_is_handed_over_to_the_only_shard_when_the_broker_ends_is_read(start_broker, cluster_of):
    """It stays, so that it need not be heard out, and no other shard is waited for."""
    broker = start_broker(args=["--accept", "handoff"])
    (subscriber,) = await cluster_of(broker).clients(1)
    await subscriber.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    (pid,) = (await swarm.pids(broker)).values()
    with contextlib.ExitStack() as stack:
        swarm.signal_shard(broker, pid, signal.SIGSTOP)
        for _ in range(400):
            sock = stack.enter_context(socket.create_connection((HOST, broker.port)))
            sock.sendall(b"PUB a 1\r\nx\r\n")
        broker.send_signal(signal.SIGTERM)
        broker.log.wait_line("Initiating Shutdown")
        swarm.signal_shard(broker, pid, signal.SIGCONT)
        assert (await subscriber.wait_closed()).count(b"MSG a 1 1\r\n") == 400
