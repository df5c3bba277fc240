"""Pings from the broker, and connections that are silent."""

from __future__ import annotations

import asyncio


async def test_the_first_ping_comes_early(cluster):
    """About two seconds after CONNECT, so that the round trip is known; the interval itself is two minutes."""
    client = await cluster.client()
    client.ignores_pings = False
    await client.expect("PING\r\n", deadline_s=30)
    await client.send("PONG\r\n")
    await client.expect_quiet()


async def test_a_client_that_answers_pings_stays_and_one_that_does_not_goes(start_broker, cluster_of):
    broker = start_broker(config='ping_interval: "500ms"\nping_max: 8\n')
    alive, dead = await cluster_of(broker).clients(2, on_different_shards=True)
    alive.ignores_pings = False

    async def answer_until(stop: asyncio.Event) -> int:
        pings = 0
        while not stop.is_set():
            frame = await alive.read_frame()
            assert frame.verb == "PING"
            pings += 1
            await alive.send("PONG\r\n")
        return pings

    stop = asyncio.Event()
    answering = asyncio.create_task(answer_until(stop))
    assert (await dead.wait_closed()).endswith(b"-ERR 'Stale Connection'\r\n")
    stop.set()
    assert await answering >= 2
    alive.inbox.clear()
    await alive.send("PING\r\n")
    while (frame := await alive.read_frame()).verb != "PONG":
        assert frame.verb == "PING"


async def test_any_traffic_keeps_a_connection_from_being_pinged_to_death(start_broker, cluster_of):
    """A client that publishes all the time but never answers a ping is not stale."""
    broker = start_broker(config='ping_interval: "200ms"\nping_max: 20\n')
    cluster = cluster_of(broker)
    busy, watched = await cluster.clients(2)
    stopped = asyncio.create_task(watched.wait_closed())
    while not stopped.done():
        await busy.send("PUB a 0\r\n\r\n")
        await asyncio.wait([stopped], timeout=0.01)
    assert (await stopped).endswith(b"-ERR 'Stale Connection'\r\n")
    await busy.send("SUB b 1\r\nPUB b 2\r\nhi\r\n")
    [message] = await busy.messages(1)
    assert message.payload == b"hi"
