"""A hundred thousand SUB and UNSUB beside steady traffic: the traffic goes on, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import swarm
from tests.support.traffic import Traffic

PAIRS = 100_000


@pytest.mark.kinds("gnatswarm-2")
async def test_traffic_goes_on_beside_a_hundred_thousand_pairs(start_broker, cluster_of, subject):
    broker = start_broker()
    cluster = cluster_of(broker)
    publishers = await cluster.clients(2, on_different_shards=True)
    subscribers = await cluster.clients(2, on_different_shards=True)
    churner, witness = await cluster.clients(2, on_different_shards=True)
    traffic = Traffic(publishers, subscribers, subject, batch=20)
    await traffic.start()
    # Messages pass beside every step.
    for start in range(0, PAIRS, 10_000):
        before = sum(traffic.sent)
        # (A pair in one breath is told to nobody.)
        words = "".join(f"SUB churn.{start + n} {n}\r\n" for n in range(10_000))
        words += "".join(f"UNSUB {n}\r\n" for n in range(10_000))
        await churner.talk(words + "PING\r\n", expect="PONG\r\n", deadline_s=20)
        async with asyncio.timeout(30):
            while sum(traffic.sent) == before:  # noqa: ASYNC110 - a turn of the loop is what traffic needs
                await asyncio.sleep(0)
    assert await traffic.finish() > 0
    # What was subscribed and unsubscribed is gone everywhere: no responders.
    await witness.talk('CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
    await witness.talk("SUB r 1\r\nPING\r\n", expect="PONG\r\n")
    for number in (0, PAIRS // 2, PAIRS - 1):
        await witness.talk(f"PUB churn.{number} r 0\r\n\r\n", expect="HMSG r 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
    async with asyncio.timeout(30):
        while True:
            rows = await asyncio.to_thread(swarm.rows, broker)
            if sum(row["subscriptions"] for row in rows.values()) == 3:
                break
