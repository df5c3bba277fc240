"""Views of services, and answers that stand, follow a broker that goes on: by the stream of `ingest --continuous`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import swarm
from tests.support.servers import KINDS, Broker, wait_until
from tests.support.statistics import added, rows, stats_in
from tests.support.wire import Cluster

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

Edge = tuple[str, str, str]
DEADLINE_S = 30.0


async def act(cluster: Cluster, publisher: str, count: int, truth: Counter[Edge]) -> None:
    """A publisher of orders on shard 1, and billing, which gets them there; both leave."""
    billing = await swarm.client_on(cluster, 1, {"name": "billing-1"})
    await billing.talk("SUB orders.> 1\r\nPING\r\n", expect_last="PONG\r\n")
    client = await swarm.client_on(cluster, 1, {"name": publisher})
    await client.talk("PUB orders.new 3\r\nabc\r\n" * count + "PING\r\n", expect_last="PONG\r\n")
    await billing.talk("PING\r\n", expect_last="PONG\r\n")
    truth[publisher, "orders.new", "billing"] += count
    client.close()
    billing.close()


async def test_services_edges_and_lone_publishers_are_those_of_the_windows_until_now(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    from gnatswarm.spark.jobs import ingest
    from gnatswarm.spark.standing import StandingAnswers
    from gnatswarm.spark.views import create_answer_views, create_views

    stats, out, answers = tmp_path / "stats", tmp_path / "tables", tmp_path / "answers"
    standing = StandingAnswers(str(answers), str(out))
    stats.mkdir()
    truth: Counter[Edge] = Counter()
    batches: list[dict[str, int]] = []

    def asked() -> tuple[dict[Edge, int], dict[tuple[str, str], int], dict[str, tuple[int, str | None]]]:
        """(Edges, the matrix of services, publishers of each lone subject), once finished files have been read."""
        query.processAllAvailable()
        assert standing.refresh(spark)
        create_answer_views(spark, str(answers))
        stand = spark.sql(
            "SELECT from_service, subject, to_service, sum(msgs) AS msgs FROM edges_by_day GROUP BY 1, 2, 3"
        ).collect()
        create_views(spark, str(out))
        edges = spark.sql("SELECT from_service, subject, to_service, msgs FROM edges").collect()
        matrix = spark.sql("SELECT from_service, to_service, msgs FROM service_matrix").collect()
        lone = spark.sql("SELECT subject, publishers, one_publisher FROM lone").collect()
        assert {tuple(row)[:3]: row["msgs"] for row in stand} == {tuple(row)[:3]: row["msgs"] for row in edges}
        return (
            {tuple(row)[:3]: row["msgs"] for row in edges},
            {tuple(row)[:2]: row["msgs"] for row in matrix},
            {row["subject"]: (row["publishers"], row["one_publisher"]) for row in lone},
        )

    def is_finished() -> bool:
        return added(rows(stats), "client", "in_msgs")["in_msgs"] == truth.total()

    query = ingest.start(
        spark, str(stats), str(out), every="200 milliseconds", on_batch=lambda _number, counts: batches.append(counts)
    )
    try:
        arguments = stats_in(stats, "300ms")
        with Broker(KINDS["gnatswarm-2"], arguments) as broker:
            cluster = cluster_of(broker)
            await act(cluster, "web", 40, truth)
            await swarm.scale(broker, 1)  # a shard that leaves finishes its file; the broker goes on
            await asyncio.to_thread(wait_until, is_finished, DEADLINE_S)
            edges, matrix, lone = await asyncio.to_thread(asked)
            assert edges == dict(truth)
            assert matrix == {("web", "billing"): 40}
            assert lone == {"orders.new": (1, "web")}
            before = len(batches)
            await swarm.scale(broker, 2)
            await act(cluster, "web", 2, truth)
            await act(cluster, "app", 10, truth)
        assert is_finished()
        edges, matrix, lone = await asyncio.to_thread(asked)
        assert edges == dict(truth)
        assert matrix == {("web", "billing"): 42, ("app", "billing"): 10}
        assert lone.get("orders.new", (2, None))[1] is None  # of two services; web has connected twice
        assert query.isActive and len(batches) > before > 0
    finally:
        query.stop()
