"""What permissions deny has a place of its own: in windows, on pages, in metrics. It is no message that was lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import Broker, wait_until
from tests.support.statistics import added, rows, stats_in

pytestmark = pytest.mark.kinds("gnatswarm-2")
Start = Callable[..., Broker]

CONFIG = """
accounts {
  A: { users: [ { user: ann, password: a, permissions: { publish: "ok.>", subscribe: "ok.>" } } ] }
  B: { users: [ { user: bob, password: b, permissions: { publish: "ok.>" } } ],
       mappings: { "ok.lossy": [ { destination: "ok.lossy", weight: 0% } ] } }
}
"""
ANN = {"user": "ann", "pass": "a"}
BOB = {"user": "bob", "pass": "b"}


async def test_denied_messages_are_counted_by_user_and_leave_no_gap(start_broker: Start, cluster_of, tmp_path: Path):
    place = tmp_path / "stats"
    broker = start_broker(args=["-m", "-1", *stats_in(place, "150ms")], config=CONFIG)
    pages = Pages.of(broker)
    cluster = cluster_of(broker)
    for _ in range(2):
        for client in await cluster.clients(2, on_different_shards=True, connect=ANN):
            await client.send("PUB ok.x 2\r\nhi\r\nPUB no.x 3\r\nabc\r\nPUB no.y 4\r\nabcd\r\nSUB no.> 1\r\n")
            await client.expect_line(".*Publish to .no.x.*")
            await client.expect_line(".*Publish to .no.y.*")
            await client.expect_line(".*Subscription to .no.*")
            await client.talk("PING\r\n", expect="PONG\r\n")
    [bob] = await cluster.clients(1, connect=BOB)
    await bob.send("PUB no.x 1\r\nx\r\nPUB ok.lossy 5\r\nhello\r\n")
    await bob.expect_line(".*Publish to .no.x.*")
    await bob.talk("PING\r\n", expect="PONG\r\n")

    ann = {"account": "A", "user": "ann", "publishes": 8, "subscriptions": 4, "waits": 0}
    page = await asyncio.to_thread(pages.json, "/deniedz")
    assert page["denied"] == [ann, {"account": "B", "user": "bob", "publishes": 1, "subscriptions": 0, "waits": 0}]
    assert (page["denied_msgs"], page["denied_subscriptions"], page["users"]) == (9, 4, 2)
    assert len((await asyncio.to_thread(pages.json, "/deniedz?limit=1"))["denied"]) == 1
    varz = await asyncio.to_thread(pages.json, "/varz")
    assert (varz["in_msgs"], varz["denied_msgs"], varz["denied_subscriptions"]) == (4 + 9 + 1, 9, 4)
    shards = (await asyncio.to_thread(pages.json, "/shardz"))["shards"]
    assert [shard["denied_msgs"] >= 4 for shard in shards] == [True, True]
    text = (await asyncio.to_thread(pages.get, "/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    by_user: Counter[tuple[str, str, str]] = Counter()
    for sample in samples:
        if sample.name == "gnatswarm_permission_denied_total":
            by_user[sample.labels["account"], sample.labels["user"], sample.labels["action"]] += int(sample.value)
    assert by_user == {("A", "ann", "publish"): 8, ("A", "ann", "subscribe"): 4, ("B", "bob", "publish"): 1}

    broker.stop()
    records = rows(place)
    assert not [row for row in records if row["kind"] == "gap"]
    assert added(records, "subject", "in_msgs")["in_msgs"] == 4
    shard = added(records, "shard", "in_msgs", "refused_msgs", "refused_bytes")
    assert shard == {"in_msgs": 4, "refused_msgs": 9 + 1, "refused_bytes": 4 * (3 + 4) + 1 + 5}
    denied: dict[tuple[str, str], list[int]] = {}
    for row in records:
        if row["kind"] == "denied":
            entry = denied.setdefault((row["account"], row["user"]), [0, 0])
            entry[0] += row["publishes"]
            entry[1] += row["subscriptions"]
    assert denied == {("A", "ann"): [8, 4], ("B", "bob"): [1, 0]}


async def test_a_killed_shard_leaves_no_gap_where_a_window_has_its_denied_messages(
    start_broker: Start, cluster_of, tmp_path: Path
):
    broker = start_broker(args=stats_in(tmp_path, "150ms"), config=CONFIG)
    clients = await cluster_of(broker).clients(2, on_different_shards=True, connect=ANN)
    for client in clients:
        await client.send("PUB ok.x 2\r\nhi\r\nPUB no.x 3\r\nabc\r\n")
        await client.expect_line(".*Publish to .no.x.*")

    def are_written() -> bool:
        shards = added(rows(tmp_path, hidden=True), "shard", "in_msgs", "refused_msgs")
        return shards == {"in_msgs": 2, "refused_msgs": 2}

    await asyncio.to_thread(wait_until, are_written)
    await swarm.kill(broker, 1)
    await asyncio.to_thread(broker.log.wait_line, "Shard 1 died")
    await asyncio.to_thread(wait_until, lambda: swarm.rows(broker)[1]["starts"] == 2)
    broker.stop()
    assert not [row for row in rows(tmp_path) if row["kind"] == "gap"]
