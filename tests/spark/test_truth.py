"""The report's figures equal what was done: from running brokers, over bad files, and through ingest."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.support import swarm
from tests.support.servers import Broker, wait_until
from tests.support.statistics import Truth, Workload, rows
from tests.support.wire import Cluster

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
# Everything here shares one session; xdist's worker that gets the first gets all.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

NOBODY_WAS_SLOW = ("slow", "aside")


def assert_figures(found: dict[str, list[dict[str, Any]]], truth: Truth, gap: dict[str, int] | None = None) -> None:
    """Every figure of the report against the truth."""
    (totals,) = found["totals"]
    lost = gap or {"in_msgs": 0, "out_msgs": 0}
    assert totals["in_msgs"] == truth.msgs.total() and totals["in_bytes"] == truth.bytes.total()
    assert totals["out_msgs"] == truth.deliveries.total() and totals["out_bytes"] == truth.out_bytes
    assert (totals["gap_in_msgs"], totals["gap_out_msgs"]) == (lost["in_msgs"], lost["out_msgs"])
    for name in NOBODY_WAS_SLOW:
        assert found[name] == []
    if gap is None:
        hottest = {row["subject"]: row for row in found["hottest"]}
        assert {name: row["msgs"] for name, row in hottest.items()} == dict(truth.msgs)
        assert {name: row["deliveries"] for name, row in hottest.items()} == {
            name: truth.deliveries[name] for name in truth.msgs
        }
        assert hottest["wide.a"]["fanout"] == 6.0
        assert found["hottest"][0]["subject"] == "wide.a"
        assert {row["subject"]: row["unwanted"] for row in found["unwanted"]} == dict(truth.unwanted)
        assert sum(row["deliveries"] for row in found["matrix"]) == truth.deliveries.total()
        assert sum(row["deliveries"] for row in found["queues"]) == truth.deliveries["jobs"]
        (spread,) = found["fanout"]
        assert spread["msgs"] == truth.msgs.total() and spread["p100"] == 6.0
        assert sum(row["msgs"] for row in found["widths"] if row["origin"] == "client") == truth.msgs.total()


async def run_brokers(
    start_broker: Callable[..., Broker], cluster_of: Callable[[Broker], Cluster], place: Path
) -> Truth:
    """Two brokers one after the other, in one directory."""
    truth = Truth()
    for _ in range(2):
        broker = start_broker(args=["--stats-dir", str(place), "--stats-window", "300ms"])
        workload = await Workload.on(cluster_of(broker), truth)
        await workload.publish(2)
        broker.stop()
    return truth


@pytest.mark.kinds("gnatswarm-2")
async def test_report_and_ingest_say_what_was_done(
    spark: Any, start_broker: Callable[..., Broker], cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    from spark.advice import advise
    from spark.jobs.ingest import start
    from spark.jobs.report import collect
    from spark.page import page
    from spark.read import read_lines, read_parquet, split

    place, out = tmp_path / "stats", tmp_path / "tables"
    truth = await run_brokers(start_broker, cluster_of, place)
    direct = await asyncio.to_thread(lambda: collect(split(read_lines(spark, str(place)).persist()), 100))
    assert_figures(direct, truth)
    shown = page(direct, advise(direct), "here")
    assert f"{truth.msgs.total():,}" in shown and "wide.a" in shown and "<script" not in shown

    def ingest() -> None:
        start(spark, str(place), str(out), files_per_batch=2000).awaitTermination()

    # Twice, the second time with a copy of a file under another name, with nonsense, and with a torn file.
    await asyncio.to_thread(ingest)
    files = sorted(place.glob("date=*/hour=*/*.zst"))
    shutil.copy(files[0], files[0].with_name("copy.jsonl.zst"))
    good = next(row for row in rows(place) if row["kind"] == "subject")
    newer = json.dumps({**good, "version": 99})
    nonsense = f'{{"kind": "subject", "in_ms\nnot json\n{newer}\n{{"kind":"riddle","version":1}}\n'.encode()
    frame = zstandard.ZstdCompressor().compress(nonsense)
    files[0].with_name("nonsense.jsonl.zst").write_bytes(frame + frame[: len(frame) // 2])
    files[0].with_name("noise.jsonl.zst").write_bytes(b"this was never compressed")
    await asyncio.to_thread(ingest)
    again = await asyncio.to_thread(lambda: collect(read_parquet(spark, str(out)), 100))
    aside = {row["why"]: row["count"] for row in again.pop("aside")}
    assert_figures({**again, "aside": []}, truth)
    assert aside == {
        "no JSON, or a field of another type": 2,
        "a newer version": 1,
        "a kind that is not known": 1,
    }


@pytest.mark.kinds("gnatswarm-2")
async def test_a_killed_shard_is_in_the_totals(
    spark: Any, start_broker: Callable[..., Broker], cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    from spark.read import read_lines, split
    from spark.transforms import trouble

    broker = start_broker(args=["--stats-dir", str(tmp_path), "--stats-window", "1h"])
    workload = await Workload.on(cluster_of(broker))
    await workload.publish()
    await swarm.kill(broker, 1)
    await asyncio.to_thread(wait_until, lambda: any(row["kind"] == "gap" for row in rows(tmp_path)), 10.0)
    broker.stop()
    (gap,) = [row for row in rows(tmp_path) if row["kind"] == "gap"]

    def totals() -> dict[str, Any]:
        statistics = split(read_lines(spark, str(tmp_path)).persist())
        return dict(trouble.totals(statistics["subject"], statistics["gap"]).collect()[0].asDict())

    found = {"totals": [await asyncio.to_thread(totals)], "slow": [], "aside": []}
    assert_figures(found, workload.truth, gap)
