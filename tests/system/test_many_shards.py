"""A broker of many more shards than cores boots, links all of them to each other, and serves."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.support import swarm
from tests.support.servers import Broker, Kind
from tests.support.wire import Cluster


@pytest.mark.parametrize("shards", [16, pytest.param(62, marks=pytest.mark.slow)])
async def test_many_shards_boot_and_serve(shards):
    if shards > 16 and os.environ.get("GNATSWARM_SLOW") != "1":
        pytest.skip("opt-in: GNATSWARM_SLOW=1")
    with Broker(Kind(f"gnatswarm-{shards}", shards)) as broker:
        cluster = Cluster(broker)
        try:
            async with asyncio.timeout(120):
                rows = await asyncio.to_thread(swarm.rows, broker)
                while any(row["links"] != shards - 1 for row in rows.values()):
                    rows = await asyncio.to_thread(swarm.rows, broker)
            assert sorted(rows) == list(range(shards))
            assert all(row["phase"] == "ready" and row["starts"] == 1 for row in rows.values())
            clients = await cluster.clients(shards, on_different_shards=True)
            for at, client in enumerate(clients):
                await client.talk(f"SUB all 1\r\nSUB one.{at} 2\r\nSUB jobs q 3\r\nPING\r\n", expect="PONG\r\n")
            for at, client in enumerate(clients):
                await client.talk(f"PUB one.{(at + 1) % shards} 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
                await client.talk("PUB all 1\r\ny\r\nPUB jobs 1\r\nz\r\nPING\r\n", expect_last="PONG\r\n")
            jobs = 0
            for at, client in enumerate(clients):
                await client.flush()
                got = [message.subject for message in client.inbox]
                assert (got.count("all"), got.count(f"one.{at}")) == (shards, 1)
                jobs += got.count("jobs")
            assert jobs == shards
        finally:
            cluster.close()


@pytest.mark.kinds("gnatswarm-2")
def test_status_is_a_table_with_one_line_per_shard(broker):
    lines = swarm.operate(broker, "status").splitlines()
    assert f"127.0.0.1:{broker.port}" in lines[0]
    assert lines[1].split()[:3] == ["SHARD", "PID", "STATE"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert all(line.split()[2] == "ready" for line in lines[2:4])
