"""Clients move between shards while everybody talks: nothing is lost, doubled or reordered, and nobody notices.

The soak runs for some seconds here, and for GNATSWARM_SOAK_S seconds where that is set (`make soak`), then also while
shards and the router are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import MoveRequest, RebalanceRequest, Reply
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import Broker
from tests.support.traffic import Traffic
from tests.support.wire import Client

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

SOAK_S = float(os.environ.get("GNATSWARM_SOAK_S", "0"))
LEAST_MOVES = 12
EMPTY_WITHIN_S = 30
# A broker whose router dies five times within ten seconds ends.
BETWEEN_ROUTERS_S = 4.0
# Members of a queue group take as much each: a chi-square value that one in a million fair groups exceeds (3 degrees).
MOST_CHI_SQUARE = 31.0


@pytest.fixture
def swarmed(start_broker, cluster_of):
    broker = start_broker(args=["-m", "-1"])
    return broker, cluster_of(broker)


async def move(broker: Broker, shard: int, to: int, clients: int) -> Reply:
    return await asyncio.to_thread(exchange, find(broker.pid, broker.port), MoveRequest(shard, to, clients))


async def connections(broker: Broker) -> list[int]:
    rows = await asyncio.to_thread(swarm.rows, broker)
    return [rows[shard]["connections"] for shard in sorted(rows)]


async def asking(client: Client, subject: str, is_over: asyncio.Event) -> int:
    """Asks one request after the other; returns how many. Every one is answered, by its own answer."""
    await client.send(f"SUB {subject}.answer.* 1\r\n")
    n = 0
    while not is_over.is_set():
        n += 1
        await client.send(f"PUB {subject}.ask {subject}.answer.{n} 0\r\n\r\n")
        (answer,) = await client.messages(1, deadline_s=20)
        assert answer.subject == f"{subject}.answer.{n}"
    return n


async def answering(client: Client) -> None:
    while True:
        (asked,) = await client.messages(1, deadline_s=600)
        await client.send(f"PUB {asked.reply} 2\r\nok\r\n")


async def bounded(client: Client, publisher: Client, subject: str, is_over: asyncio.Event) -> int:
    """Subscribes with a max, again and again: exactly that many messages come; returns how often."""
    n = 0
    while not is_over.is_set():
        n += 1
        await client.send(f"SUB {subject}.max {n}\r\nUNSUB {n} 5\r\n")
        await client.flush(deadline_s=20)
        await publisher.send(f"PUB {subject}.max 1\r\nx\r\n" * 9)
        await publisher.flush(deadline_s=20)
        assert len(await client.messages(5, deadline_s=20)) == 5
        assert await client.flush(deadline_s=20) == []
    return n


async def looking(pages: Pages, cids: list[int], is_over: asyncio.Event) -> int:
    """Asks for all connections again and again; returns how often. Each of them is there, once."""
    n = 0
    while not is_over.is_set():
        query = ("", "sort=msgs_to", "subs=1", "sort=uptime")[n % 4]
        page = await asyncio.to_thread(pages.json, f"/connz?{query}")
        assert sorted(row["cid"] for row in page["connections"]) == cids
        assert page["total"] == len(cids)
        n += 1
    return n


async def test_a_soak_of_random_moves(swarmed, subject):
    broker, cluster = swarmed
    dice = random.Random(7)
    fan_out = Traffic(await cluster.clients(3, True), await cluster.clients(4, True), subject)
    grouped = Traffic(await cluster.clients(2, True), await cluster.clients(4, True), f"{subject}.q", queue="g")
    asker, *answerers = await cluster.clients(3, True)
    listener, publisher = await cluster.clients(2, True)
    is_over = asyncio.Event()
    await fan_out.start()
    await grouped.start()
    for client in answerers:
        await client.talk(f"SUB {subject}.r.ask workers 1\r\nPING\r\n", expect="PONG\r\n")
    pages = Pages.of(broker)
    cids = [row["cid"] for row in pages.json("/connz")["connections"]]
    working = [asyncio.create_task(answering(client)) for client in answerers]
    seen = asyncio.create_task(looking(pages, cids, is_over))
    asked = asyncio.create_task(asking(asker, f"{subject}.r", is_over))
    filled = asyncio.create_task(bounded(listener, publisher, f"{subject}.m", is_over))
    until = time.monotonic() + SOAK_S
    shards = list(range(broker.kind.shards))
    moved = n = 0
    while n < LEAST_MOVES or time.monotonic() < until:
        n += 1
        before = await connections(broker)
        shard, to = dice.sample(shards, 2)
        reply = await move(broker, shard, to, min(before[shard], dice.randint(1, 9)))
        assert not reply.error, reply.error
        moved += int(reply.text.split(" ", 1)[0])
        for task in (asked, filled, seen, *working):
            assert not task.done() or task.result()
    is_over.set()
    assert await asked > 0
    assert await filled > 0
    assert await seen > 0
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    await fan_out.finish()
    total = await grouped.finish()
    shares = [sum(len(numbers) for numbers in got) for got in grouped.got]
    fair = total / len(shares)
    assert sum((share - fair) ** 2 for share in shares) / fair < MOST_CHI_SQUARE, shares
    assert moved > LEAST_MOVES
    assert sum(await connections(broker)) == 18


async def emptied(broker: Broker, shard: int, others: list[int], dice: random.Random) -> None:
    """Move all clients of the shard to others."""
    async with asyncio.timeout(EMPTY_WITHIN_S):
        while clients := (await connections(broker))[shard]:
            await move(broker, shard, dice.choice(others), clients)


async def moved_about(broker: Broker, shards: list[int], dice: random.Random, is_over: asyncio.Event) -> int:
    """Move clients among these shards until told to end; returns how many moved.

    Where a shard or the router has just died, none may.
    """
    n = 0
    while not is_over.is_set():
        shard, to = dice.sample(shards, 2)
        with contextlib.suppress(OSError, EOFError):
            reply = await move(broker, shard, to, dice.randint(1, 9))
            n += 0 if reply.error else int(reply.text.split(" ", 1)[0])
    return n


async def back(broker: Broker, pid: int, shard: int) -> None:
    """Wait until another process than this one serves as the shard, and a router answers."""
    async with asyncio.timeout(swarm.BACK_DEADLINE_S):
        while True:
            with contextlib.suppress(OSError, EOFError, KeyError, AssertionError):
                row = (await asyncio.to_thread(swarm.rows, broker))[shard]
                if row["pid"] not in (0, pid) and row["phase"] == "ready":
                    return


@pytest.mark.skipif(not SOAK_S, reason="takes GNATSWARM_SOAK_S seconds: make soak")
async def test_a_soak_of_moves_while_shards_and_the_router_are_killed(swarmed, subject):
    """Each time a shard without clients, or the router, while clients move among the other shards: nobody notices."""
    broker, cluster = swarmed
    dice = random.Random(11)
    fan_out = Traffic(await cluster.clients(3, True), await cluster.clients(4, True), subject)
    grouped = Traffic(await cluster.clients(2, True), await cluster.clients(4, True), f"{subject}.q", queue="g")
    asker, *answerers = await cluster.clients(3, True)
    listener, publisher = await cluster.clients(2, True)
    is_over = asyncio.Event()
    await fan_out.start()
    await grouped.start()
    for client in answerers:
        await client.talk(f"SUB {subject}.r.ask workers 1\r\nPING\r\n", expect="PONG\r\n")
    working = [asyncio.create_task(answering(client)) for client in answerers]
    asked = asyncio.create_task(asking(asker, f"{subject}.r", is_over))
    filled = asyncio.create_task(bounded(listener, publisher, f"{subject}.m", is_over))
    shards = list(range(broker.kind.shards))
    until = time.monotonic() + SOAK_S
    killed = moved = 0
    router_from = time.monotonic() + 1.0
    while time.monotonic() < until:
        victim = dice.choice(shards)
        others = [shard for shard in shards if shard != victim]
        await emptied(broker, victim, others, dice)
        is_enough = asyncio.Event()
        moving = asyncio.create_task(moved_about(broker, others, dice, is_enough)) if len(others) > 1 else None
        await fan_out.progress(dice.choice((1, 500)))
        pid = 0
        if time.monotonic() > router_from:
            router_from = time.monotonic() + BETWEEN_ROUTERS_S
            swarm.signal_shard(broker, (await asyncio.to_thread(swarm.status, broker))["router_pid"])
        else:
            pid = await swarm.kill(broker, victim)
        killed += 1
        await fan_out.progress(500)
        is_enough.set()
        if moving is not None:
            moved += await moving
        await back(broker, pid, victim)
        for task in (asked, filled, *working):
            assert not task.done() or task.result()
    is_over.set()
    assert await asked > 0
    assert await filled > 0
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    await fan_out.finish()
    await grouped.finish()
    assert killed > 3
    assert moved > 0 or len(shards) == 2
    assert sum(await connections(broker)) == 18


async def test_rebalance_evens_the_connections_and_clients_do_not_notice(swarmed, subject):
    broker, cluster = swarmed
    crowd = [await cluster.client_on(0) for _ in range(20)]
    for n, client in enumerate(crowd):
        await client.send(f"SUB {subject}.{n} 1\r\nSUB {subject}.all 2\r\n")
        await client.flush()
    publisher = await cluster.client_on(1)
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RebalanceRequest())
    assert "clients moved" in reply.text, reply
    found = await connections(broker)
    assert sum(found) == 21
    assert max(found) - min(found) <= 1
    await publisher.send(f"PUB {subject}.all 1\r\nx\r\n" + "".join(f"PUB {subject}.{n} 1\r\ny\r\n" for n in range(20)))
    await publisher.flush()
    for client in crowd:
        assert len(await client.flush()) == 2
    again = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RebalanceRequest())
    assert again.text.startswith("0 clients moved")


async def test_a_shard_that_leaves_moves_its_clients_and_tells_none_of_them(swarmed, subject):
    broker, cluster = swarmed
    last = broker.kind.shards - 1
    crowd = [await cluster.client_on(last) for _ in range(10)]
    for client in crowd:
        await client.send(f"SUB {subject} 1\r\n")
        await client.flush()
    publisher = await cluster.client_on(0)
    await swarm.scale(broker, last)
    await publisher.send(f"PUB {subject} 1\r\nx\r\n")
    await publisher.flush()
    for client in crowd:  # nothing but the message: no INFO
        assert [frame.payload for frame in await client.flush()] == [b"x"]
