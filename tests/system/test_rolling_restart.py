"""All shards are replaced under load, the router is killed in the middle, and nobody who is connected notices."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import (
    AnyRequest,
    RebalanceRequest,
    ReloadRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
)
from tests.support import swarm
from tests.support.servers import Broker, session_pids
from tests.support.traffic import Traffic
from tests.support.wire import Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2")

DEADLINE_S = 30.0


async def ask(broker: Broker, request: AnyRequest) -> Reply:
    return await asyncio.to_thread(exchange, find(broker.pid, broker.port), request)


async def test_messages_flow_on_nobody_is_disconnected_and_it_survives_its_router(start_broker, cluster_of, subject):
    """Traffic fails for a message that is lost, doubled or out of order, and for a connection that is closed."""
    broker = start_broker(config='leafnodes { remotes: [ { url: "nats-leaf://127.0.0.1:1" } ] }\n')
    cluster: Cluster = cluster_of(broker)
    fan_out = Traffic(await cluster.clients(3, True), await cluster.clients(3, True), subject)
    grouped = Traffic(await cluster.clients(2, True), await cluster.clients(4, True), f"{subject}.q", queue="g")
    await fan_out.start()
    await grouped.start()
    before = set(session_pids(broker.pid))
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    said: list[str] = []
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def hear(text: str) -> None:
        said.append(text)
        loop.call_soon_threadsafe(changed.set)

    async def heard(beginning: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not any(text.startswith(beginning) for text in said):
                await changed.wait()
                changed.clear()

    at = find(broker.pid, broker.port)
    restarting = asyncio.create_task(asyncio.to_thread(exchange, at, RestartRequest(), DEADLINE_S, hear))
    await heard("shard 0: ")
    for request in (ScaleRequest(4), RebalanceRequest(), ReloadRequest(), RestartRequest()):
        reply = await ask(broker, request)
        assert reply.error.startswith("a restart is under way"), request
    await heard("shard 0 is process")
    swarm.signal_shard(broker, router)
    with contextlib.suppress(
        ConnectionAbortedError, ConnectionResetError
    ):  # the router that would have answered is dead
        raise AssertionError(await restarting)
    await asyncio.to_thread(broker.log.wait_line, "2 shards and the gateway restarted", DEADLINE_S)
    await fan_out.progress(200)
    assert await fan_out.finish() > 0
    assert await grouped.finish() > 0
    after = set(session_pids(broker.pid))
    assert before & after == {broker.pid}
    assert len(after) == len(before)
    rows = await asyncio.to_thread(swarm.rows, broker)
    assert sum(row["connections"] for row in rows.values()) == 12
    assert {shard: row["phase"] for shard, row in rows.items()} == {0: "ready", 1: "ready"}
    late = await swarm.client_on(cluster, 1)
    await late.talk("PING\r\n", expect="PONG\r\n")
    assert "3 shards serve" in await swarm.scale(broker, 3)


async def test_a_gateway_that_still_starts_is_waited_for(start_broker):
    """It starts beside shards that serve already: who restarts a broker right after its start is not refused."""
    broker = start_broker(config='leafnodes { remotes: [ { url: "nats-leaf://127.0.0.1:1" } ] }\n')
    reply = await ask(broker, RestartRequest())
    assert reply.text.startswith("2 shards and the gateway restarted"), reply.error
