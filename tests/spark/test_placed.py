"""From statistics to rules to moved connections, on a running broker: pairs that were badly spread end together.

`make placement` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import ReloadRequest
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import Broker, wait_until
from tests.support.statistics import added, rows, stats_in
from tests.support.wire import Client, Cluster

# Two Spark jobs of their own, of which tests/spark/test_place.py has the parts.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.kinds("gnatswarm-4"), pytest.mark.slow]

PAIRS = 8
MSGS = 500
MOST_CROSSING = 0.05


async def talk(clients: list[Client], pages: Pages) -> float:
    """Each pair's talker publishes, and its listener gets all of it, in order; the share that crossed."""

    def crossed() -> int:
        return sum(shard["link_in_msgs"] for shard in pages.json("/shardz?links=0")["shards"])

    before = await asyncio.to_thread(crossed)
    for number, talker in enumerate(clients[:PAIRS]):
        await talker.send("".join(f"PUB pair.{number} {len(str(n))}\r\n{n}\r\n" for n in range(MSGS)))
        await talker.flush()
    for listener in clients[PAIRS:]:
        assert [int(frame.payload) for frame in await listener.flush()] == list(range(MSGS))
    return (await asyncio.to_thread(crossed) - before) / (PAIRS * MSGS)


def finished(stats: Path, copies: Path) -> Path:
    """Copies of the statistics so far as if their files were finished, which a broker does once a minute."""
    for path in stats.glob("date=*/hour=*/.*.jsonl.zst"):
        copy = copies / path.relative_to(stats).with_name(path.name[1:])
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return copies


async def test_what_place_promises_comes_true_without_a_disconnect(
    spark: Any,
    start_broker: Callable[..., Broker],
    cluster_of: Callable[[Broker], Cluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    from gnatswarm.spark.jobs.place import place
    from gnatswarm.spark.jobs.progress import Progress
    from gnatswarm.spark.jobs.report import lines_of
    from gnatswarm.spark.placement_file import expected_of

    stats, out = tmp_path / "stats", tmp_path / "placement.conf"
    broker = start_broker(args=["-m", "-1", *stats_in(stats, "300ms")], config="\n")
    assert broker.directory is not None
    pages, cluster = Pages.of(broker), cluster_of(broker)
    clients = [await cluster.client_on(n, {"name": f"talker{n}"}) for n in range(PAIRS)]
    clients += [await cluster.client_on(n + 1, {"name": f"listener{n}"}) for n in range(PAIRS)]
    for number, listener in enumerate(clients[PAIRS:]):
        await listener.talk(f"SUB pair.{number} 1\r\nPING\r\n", expect="PONG\r\n")

    async def placed(copies: str, expected: Any = None) -> str:
        """What `gnatswarm place` prints of all that was said until now, once it is written."""
        published = (await asyncio.to_thread(pages.json, "/varz"))["in_msgs"]

        def is_written() -> bool:
            return bool(added(rows(stats, hidden=True), "client", "in_msgs")["in_msgs"] == published)

        await asyncio.to_thread(wait_until, is_written)
        asked = argparse.Namespace(
            shards=0, services="name", bound=1.25, least_gain=0.05, stats_dir=str(stats), from_parquet="", out=str(out)
        )

        def work() -> None:
            with lines_of(spark, str(finished(stats, tmp_path / copies)), Progress()) as statistics:
                assert place(asked, statistics, expected) == 0

        await asyncio.to_thread(work)
        return capsys.readouterr().out

    connected = (await asyncio.to_thread(pages.json, "/varz"))["total_connections"]
    assert await talk(clients, pages) == 1.0
    said = await placed("before")
    assert "deliveries that cross: 100.0% → 0.0%" in said, said
    expected = expected_of(out.read_text())
    assert expected.shards == 4 and expected.balance <= 1.25
    (broker.directory / "broker.conf").write_text(f'include "{out}"\n')
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), ReloadRequest())
    assert reply.reload is not None and not reply.reload.problems, reply

    def is_carried_out() -> bool:
        rules = swarm.status(broker)["rules"]
        return bool(sum(rule["in_place"] for rule in rules) == 2 * PAIRS)

    await asyncio.to_thread(wait_until, is_carried_out)
    assert await talk(clients, pages) < MOST_CROSSING
    came = await placed("after", expected)
    found = re.search(r"cross: ([\d.]+)% \(promised 0\.0%, before 100\.0%\)", came)
    assert found and float(found[1]) < 100 * MOST_CROSSING, came
    assert (await asyncio.to_thread(pages.json, "/varz"))["total_connections"] == connected
    for client in clients:
        assert await client.flush() == []  # open, and told nothing
