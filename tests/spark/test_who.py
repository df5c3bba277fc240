"""Named services do what is known, a shard is killed in between, and the graph that Spark draws is exactly that."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_advice import answers
from tests.support import swarm
from tests.support.servers import KINDS, Broker, wait_until
from tests.support.statistics import added, rows, stats_in
from tests.support.wire import Client, Cluster

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.xdist_group("spark")

HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J"
Edge = tuple[str, str, str]


async def act(cluster: Cluster, truth: Counter[Edge]) -> None:
    """Events with two listeners, a wildcard, requests to a queue group; all leave when they have heard everything."""

    async def come(name: str, shard: int, words: str = "") -> Client:
        client = await swarm.client_on(cluster, shard, {"name": name})
        await client.talk(f"{words}PING\r\n", expect_last="PONG\r\n")
        return client

    web, app = await come("web-1", 0), await come("app-77", 1)
    billing = await come("billing", 1, "SUB orders.new 1\r\nSUB _INBOX.b.* 2\r\n")
    audit = await come("audit-7f9c-2", 0, "SUB orders.> 1\r\n")
    hostile = await come(HOSTILE, 0, "SUB orders.odd 1\r\n")
    prices = [await come(f"prices-{i}", i, "SUB price.* workers 1\r\n") for i in range(2)]

    async def publish(client: Client, name: str, subject: str, count: int, *to: str) -> None:
        await client.talk(f"PUB {subject} 3\r\nabc\r\n" * count + "PING\r\n", expect_last="PONG\r\n")
        for one in to:
            truth[name, subject, one] += count

    await publish(web, "web", "orders.new", 40, "billing", "audit")
    await publish(app, "app", "orders.new", 10, "billing", "audit")
    await publish(app, "app", "orders.odd", 6, "audit", HOSTILE)
    asked = "".join(f"PUB price.x _INBOX.b.{i} 2\r\nhi\r\n" for i in range(8))
    await billing.talk(f"{asked}PING\r\n", expect_last="PONG\r\n")
    truth["billing", "price.x", "prices"] += 8
    for one in prices:  # the fence: what is for it has been queued, and comes before the PONG
        await one.talk("PING\r\n", expect_last="PONG\r\n")
        for message in one.inbox:
            reply = message.raw.split(b" ")[3].decode()
            await one.talk(f"PUB {reply} 3\r\nyes\r\nPING\r\n", expect_last="PONG\r\n")
    truth["prices", "_INBOX.>", "billing"] += 8
    assert sum(len(one.inbox) for one in prices) == 8
    for one in (web, app, billing, audit, hostile, *prices):
        await one.talk("PING\r\n", expect_last="PONG\r\n")
        one.close()


def drawn(page: str) -> dict[tuple[str, str], int]:
    """The lines of the page's graph."""
    (part,) = re.findall(r"<h2>Who talks to whom</h2>(.*?)<h2>", page, re.S)
    titles = [unescape(one) for one in re.findall(r"<path[^>]*><title>(.*?)</title>", part)]
    found = [re.fullmatch(r"(.*) → (.*): ([\d,]+) messages", title) for title in titles]
    return {(one[1], one[2]): int(one[3].replace(",", "")) for one in found if one is not None}


async def test_the_graph_is_what_was_done_though_a_shard_was_killed(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    from gnatswarm.spark.advice import advise
    from gnatswarm.spark.page import page

    truth: Counter[Edge] = Counter()
    place = tmp_path / "stats"
    arguments = stats_in(place, "300ms")
    with Broker(KINDS["gnatswarm-2"], arguments) as broker:
        cluster = cluster_of(broker)
        await act(cluster, truth)
        done = 64 + 8  # a round publishes so many, with the answers

        def is_written() -> bool:
            return added(rows(place, hidden=True), "client", "in_msgs")["in_msgs"] == done

        await asyncio.to_thread(wait_until, is_written)
        await swarm.kill(broker, 1)
        await act(cluster, truth)
    found, explained = await asyncio.to_thread(_collected, spark, place)
    edges = {(row["from_service"], row["subject"], row["to_service"]): row["msgs"] for row in found["edges"]}
    assert edges == dict(truth)
    text = page(found, advise(found), str(place))
    between: Counter[tuple[str, str]] = Counter()
    for (sender, _subject, receiver), msgs in truth.items():
        between[sender, receiver.replace("\u202e", "\\u202e").replace("\x1b", "\\u001b")] += msgs
    assert drawn(text) == dict(between)
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    assert {row["requester"]: (row["requests"], row["replies"]) for row in found["pairs"]} == {"billing": (16, 16)}
    lone = {row["subject"]: row for row in found["lone"]}
    assert lone["price.x"]["one_publisher"] is None or lone["price.x"]["one_listener"] == "prices"

    assert "Would miss it: audit, billing" in explained
    assert "100 messages" in explained and "web" in explained and "app" in explained


def _collected(spark: Any, place: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """What the graph's sections of the page are made of, and what is said of one subject.

    The other sections are tested in test_truth.
    """
    from gnatswarm.spark.answers import graph_answers
    from gnatswarm.spark.jobs.progress import Progress
    from gnatswarm.spark.jobs.report import collected, explain, lines_of

    with lines_of(spark, str(place), Progress()) as statistics:
        found = collected(graph_answers(statistics["client"], 50))
        return answers(**found), explain(statistics, "orders.new", "auto")
