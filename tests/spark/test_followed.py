"""Advice of the report is got from a real broker, followed, and the figure that it promised is better.

The rules that advice follows from are in test_advice, on figures that are written there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_advice import answers
from tests.support import swarm
from tests.support.servers import KINDS, Broker, wait_until
from tests.support.statistics import rows
from tests.support.wire import Client, Cluster

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300), pytest.mark.slow]

MSGS = 1200
CLIENTS = 24
ENOUGH = "One shard would be enough"
EVENLY = "`accept: handoff` places connections evenly"
UNEVEN = "Queue group workers on jobs is uneven"
UNHEARD = "Publish fewer messages that have no subscriber"
SUBJECTS = "Use fewer different subjects"


async def say(client: Client, operations: str) -> None:
    await client.talk(f"{operations}PING\r\n", expect_last="PONG\r\n")


async def act(publisher: Client, early: Client, late: Client, *, as_advised: bool) -> None:
    """Events, jobs and lost messages; as advised: both workers from the start, a subscriber, and few subjects."""
    await say(early, "SUB events.> 1\r\nSUB jobs workers 2\r\n")
    if as_advised:
        await say(late, "SUB jobs workers 2\r\nSUB lost 3\r\n")
    await say(publisher, "PUB jobs 1\r\nx\r\n" * MSGS)
    await say(late, "" if as_advised else "SUB jobs workers 2\r\n")
    await say(publisher, "PUB jobs 1\r\nx\r\nPUB lost 1\r\nx\r\n" * (MSGS // 2))
    await say(publisher, "".join(f"PUB events.{n % 3 if as_advised else n} 1\r\nx\r\n" for n in range(2 * MSGS)))


async def crowd(cluster: Cluster, shards: list[int]) -> list[Client]:
    """A client on each of these shards; -1: wherever the broker puts it."""
    return [await (cluster.client() if shard < 0 else cluster.client_on(shard)) for shard in shards]


async def recorded(place: Path, shards: int) -> None:
    """Wait until windows of all shards have all connections and messages."""

    def is_written() -> bool:
        found = [row for row in rows(place, hidden=True) if row["kind"] == "shard"]
        most = {row["shard"]: max(one["connections"] for one in found if one["shard"] == row["shard"]) for row in found}
        return len(most) == shards and sum(most.values()) >= CLIENTS

    await asyncio.to_thread(wait_until, is_written)


async def run(
    cluster_of: Callable[[Broker], Cluster], place: Path, kind: str, config: str, on: list[int], *, as_advised: bool
) -> None:
    """One broker, from start to end, with clients on these shards; the first publishes, the next two get it."""
    arguments = ["--stats-dir", str(place), "--stats-window", "300ms", "-m", "-1"]
    with Broker(KINDS[kind], arguments, config=config) as broker:
        clients = await crowd(cluster_of(broker), on)
        await act(clients[0], clients[1], clients[2], as_advised=as_advised)
        await recorded(place, len(await swarm.pids(broker)))
        for client in clients:
            client.close()


def advice(spark: Any, place: Path) -> tuple[dict[str, str], dict[str, list[dict[str, Any]]]]:
    """(What is advised about these statistics and why, the figures)."""
    from gnatswarm.spark.advice import advise
    from gnatswarm.spark.jobs.report import collected
    from gnatswarm.spark.read import read_lines, split
    from gnatswarm.spark.transforms import matrix, queues, skew, subjects, trouble

    statistics = split(read_lines(spark, str(place)))
    subject, shard = statistics["subject"], statistics["shard"]
    found = collected(
        {
            "totals": trouble.totals(subject, statistics["gap"], shard),
            "unwanted": subjects.unwanted(subject),
            "queues": queues.balance(statistics["queue"]),
            "shards": skew.per_shard(shard),
            "crossed": matrix.crossed_share(matrix.deliveries(shard, statistics["link"])),
        }
    )
    return {one.what: one.figures for one in advise(answers(**found))}, found


def about(given: dict[str, str], what: str) -> bool:
    return any(one.startswith(what) for one in given)


async def test_what_is_advised_and_followed_makes_the_figure_better(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    badly = [1, 0, 0] + [0] * (CLIENTS - 3)
    await run(cluster_of, tmp_path / "before", "gnatswarm-2", "\n", badly, as_advised=False)
    given, before = await asyncio.to_thread(advice, spark, tmp_path / "before")
    for what in (ENOUGH, EVENLY, UNEVEN, UNHEARD, SUBJECTS):
        assert about(given, what), (what, given)
    assert before["crossed"][0]["share"] > 0.9 and "100% of the deliveries would no longer" in str(given)

    # One shard, both workers from the start, a subscriber of what nobody heard, and three subjects.
    await run(cluster_of, tmp_path / "one", "gnatswarm-1", "\n", [-1] * CLIENTS, as_advised=True)
    given, after = await asyncio.to_thread(advice, spark, tmp_path / "one")
    assert not any(about(given, what) for what in (ENOUGH, EVENLY, UNEVEN, UNHEARD, SUBJECTS)), given
    assert after["crossed"][0]["share"] == 0.0
    assert after["totals"][0]["unwanted_msgs"] == 0 < before["totals"][0]["unwanted_msgs"]
    assert after["queues"][0]["max_to_mean"] < before["queues"][0]["max_to_mean"]
    misses = [sum(row["cache_misses"] for row in figures["shards"]) for figures in (before, after)]
    assert misses[1] * 20 < misses[0]

    # Or two shards, and the router places the connections.
    config = "accept: handoff\n"
    await run(cluster_of, tmp_path / "evenly", "gnatswarm-2", config, [-1] * CLIENTS, as_advised=True)
    given, after = await asyncio.to_thread(advice, spark, tmp_path / "evenly")
    assert not about(given, EVENLY), given
    connections = [row["connections"] for row in after["shards"]]
    assert max(connections) - min(connections) <= 2 and sum(connections) >= CLIENTS
