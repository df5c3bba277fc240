"""The report's figures equal what was done: with 1, 2 and 4 shards, bad files, ingest, a killed shard."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.bench import statistics_rows
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import KINDS, Broker, wait_until
from tests.support.statistics import WHOLE, Truth, Workload, rows, stats_in
from tests.support.wall_clock import WallClock
from tests.support.wire import Cluster

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
# All of a group begin first (tests/conftest.py), on one worker: so they share one session.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


DAY_S = 86400.0


def assert_totals(found: dict[str, list[dict[str, Any]]], truth: Truth) -> None:
    """The results that do not depend on the windows in which messages were counted."""
    (totals,) = found["totals"]
    assert totals["in_msgs"] == truth.msgs.total() and totals["in_bytes"] == truth.bytes.total()
    assert totals["out_msgs"] == truth.deliveries.total() and totals["out_bytes"] == truth.out_bytes
    assert (totals["gap_in_msgs"], totals["gap_out_msgs"]) == (0, 0)
    assert found["slow"] == found["gaps"] == found["torn"] == []
    hottest = {row["subject"]: row for row in found["hottest"]}
    assert {name: row["msgs"] for name, row in hottest.items()} == dict(truth.msgs)
    for column, counted in (("deliveries", truth.deliveries), ("bytes", truth.bytes), ("unwanted", truth.unwanted)):
        assert {name: row[column] for name, row in hottest.items()} == {name: counted[name] for name in truth.msgs}
    assert hottest["wide.a"]["fanout"] == 6.0
    assert {row["subject"]: row["unwanted"] for row in found["unwanted"]} == dict(truth.unwanted)
    assert sum(row["deliveries"] for row in found["matrix"]) == truth.deliveries.total()
    (crossed,) = found["crossed"]
    across = [row["deliveries"] for row in found["matrix"] if row["from_shard"] != row["to_shard"]]
    assert crossed["crossed"] == sum(across) > 0
    # What crosses is compared with all of a subject, not with its part on the shards that sent it.
    assert all(row["msgs"] == truth.msgs[row["subject"]] for row in found["crossing"])
    assert sum(row["deliveries"] for row in found["queues"]) == truth.deliveries["jobs"]
    assert sum(row["msgs"] for row in found["widths"] if row["origin"] == "client") == truth.msgs.total()
    parts = {row["shard"]: row for row in found["shards"]}
    assert sum(row["in_msgs"] for row in parts.values()) == truth.msgs.total()
    assert sum(row["out_msgs"] for row in parts.values()) == truth.deliveries.total()
    for row in found["skew"]:
        values = [part[row["measure"]] for part in parts.values()]
        assert row["sum"] == pytest.approx(sum(values)) and row["max_to_mean"] == pytest.approx(
            max(values) * len(values) / sum(values)
        )


def assert_figures(found: dict[str, list[dict[str, Any]]], truth: Truth) -> None:
    """Every figure of the report against the truth."""
    assert_totals(found, truth)
    assert found["hottest"][0]["subject"] == "wide.a"
    (spread,) = found["fanout"]
    assert spread["msgs"] == truth.msgs.total() and spread["p100"] == 6.0
    by_fanout = {row["least"]: row["msgs"] for row in found["fanouts"]}
    assert by_fanout == {
        0: truth.unwanted.total(),
        1: truth.msgs["narrow.x"] + truth.msgs["jobs"],
        6: truth.msgs["wide.a"] + truth.msgs["wide.b"],
    }


async def run_brokers(cluster_of: Callable[[Broker], Cluster], place: Path) -> dict[str, Truth]:
    """Brokers of 1, 2 and 4 shards one after the other in one directory, the second scaled; what each has done."""
    done: dict[str, Truth] = {}
    for shards, then in ((1, 1), (2, 3), (4, 2)):
        # Deliveries are booked to the window of arrival: per window, fan-out is exact where no window ends in between.
        window = "300ms" if shards == then == 1 else WHOLE
        arguments = [*stats_in(place, window), "-m", "-1"]
        with Broker(KINDS[f"gnatswarm-{shards}"], arguments) as broker:
            truth = Truth()
            cluster = cluster_of(broker)
            workload = await Workload.on(cluster, truth)
            await workload.publish()
            received = await workload.leave()
            await swarm.scale(broker, then)
            workload = await Workload.on(cluster, truth, then)
            await workload.publish()
            received += await workload.leave()
            varz = await asyncio.to_thread(Pages.of(broker).json, "/varz")
            assert (varz["in_msgs"], varz["out_msgs"]) == (truth.msgs.total(), truth.deliveries.total())
            assert received == truth.deliveries.total()
            done[varz["server_id"]] = truth
    return done


def added(truths: dict[str, Truth]) -> Truth:
    whole = Truth()
    for truth in truths.values():
        whole.msgs += truth.msgs
        whole.bytes += truth.bytes
        whole.deliveries += truth.deliveries
        whole.unwanted += truth.unwanted
        whole.out_bytes += truth.out_bytes
    return whole


def compressed(text: str) -> bytes:
    return zstandard.ZstdCompressor().compress(text.encode())


def spoil(place: Path, rows_of: list[dict[str, Any]]) -> dict[str, int]:
    """Copies, nonsense, other versions, torn files; how many lines are to be set aside, and why."""
    files = sorted(place.glob("date=*/hour=*/*.zst"))
    folder = files[0].parent
    shutil.copy(files[0], folder / "copy.jsonl.zst")  # under another name
    lines = [json.dumps(row) for row in rows_of if row["boot"] == rows_of[-1]["boot"]]
    torn = [compressed("\n".join(part) + "\n") for part in (lines[: len(lines) // 2], lines[len(lines) // 2 :])]
    # First by name, so whoever went by that would take it: the others begin with a broker's name, in capital letters.
    first = folder / "0 torn copy.jsonl.zst"
    first.write_bytes(torn[0] + torn[1][:-20])
    assert first == min(first, *files)
    (place / "elsewhere").mkdir()
    shutil.copy(files[1], place / "elsewhere" / files[1].name)
    subject = next(row for row in rows_of if row["kind"] == "subject")
    shard = next(row for row in rows_of if row["kind"] == "shard")
    bad = [
        '{"kind": "subject", "in_ms',
        "not json",
        json.dumps({**subject, "in_msgs": "many"}),
        json.dumps({**subject, "version": 99}),
        '{"kind":"riddle","version":1}',
        '{"version":1}',
        json.dumps({name: value for name, value in subject.items() if name != "window_us"}),
    ]
    frame = compressed("\n".join(bad) + "\n")
    (folder / "nonsense.jsonl.zst").write_bytes(frame + frame[: len(frame) // 2])
    (folder / "noise.jsonl.zst").write_bytes(b"this was never compressed")
    (folder / "empty.jsonl.zst").write_bytes(b"")
    (folder / ".being-written.jsonl.zst").write_bytes(files[0].read_bytes())
    # An older broker knew less, a newer one says more in the same version; both with a clock that went back a year.
    past = {"boot": "past", "file": 1, "window_start_us": subject["window_start_us"] - 365 * 86_400_000_000}
    nothing = {name: 0 for name in subject if name.endswith(("_msgs", "_bytes")) or name in ("deliveries", "widest")}
    older = {name: value for name, value in {**subject, **nothing, **past}.items() if name != "error_msgs"}
    silent = {name: 0 for name, value in shard.items() if isinstance(value, int)}
    newer = {
        **shard,
        **silent,
        **{name: shard[name] for name in ("version", "shard")},
        **past,
        "widths": [],
        "mood": "good",
    }
    newer["link_widths"] = []
    (folder / "other.jsonl.zst").write_bytes(compressed(f"{json.dumps(older)}\n{json.dumps(newer)}\n"))
    return {
        "no JSON, or a field of another type": 3, "a newer version": 1, "a kind that is not known": 1, "no record": 1,
        "incomplete": 1,
    }  # fmt: skip


def failing_at(nth: int, write: Callable[..., None]) -> Callable[..., None]:
    calls = []

    def writes(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == nth:
            raise OSError(28, "No space left on device")
        write(*arguments, **named)

    return writes


def assert_views(spark: Any, out: Path, truth: Truth) -> None:
    """What the README does in a notebook, on these tables."""
    from gnatswarm.spark import questions

    readme = (Path(__file__).parent.parent.parent / "spark" / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.replace('"tables"', repr(str(out))), {})
    assert "wide.a" in printed.getvalue() and str(truth.deliveries["wide.a"]) in printed.getvalue()
    with contextlib.redirect_stdout(said := io.StringIO()):
        questions.ask(spark)
    assert all(question in said.getvalue() for question in questions.QUESTIONS)
    assert re.search(rf"\| *wide\.a\| *{truth.msgs['wide.a']}\|", said.getvalue()), said.getvalue()
    rows = {row["subject"]: row for row in spark.sql("SELECT * FROM subjects").collect()}
    assert {name: row["msgs"] for name, row in rows.items()} == dict(truth.msgs)
    assert {name: row["deliveries"] for name, row in rows.items()} == {n: truth.deliveries[n] for n in truth.msgs}
    (shards,) = spark.sql("SELECT sum(in_msgs), sum(out_msgs) FROM shards").collect()
    assert tuple(shards) == (truth.msgs.total(), truth.deliveries.total())
    (widest,) = spark.sql("SELECT max(fanout), sum(msgs) FROM fanout_per_window").collect()
    assert tuple(widest) == (6.0, truth.msgs.total())


async def test_report_and_ingest_say_what_was_done(
    spark: Any,
    cluster_of: Callable[[Broker], Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F

    from gnatswarm.spark import write
    from gnatswarm.spark.advice import advise
    from gnatswarm.spark.jobs import report
    from gnatswarm.spark.jobs.ingest import start, unread
    from gnatswarm.spark.jobs.progress import Progress
    from gnatswarm.spark.jobs.report import collect
    from gnatswarm.spark.page import page
    from gnatswarm.spark.plots import plots
    from gnatswarm.spark.read import read_parquet
    from gnatswarm.spark.schema import UNREADABLE
    from gnatswarm.spark.transforms import trouble

    place, out = tmp_path / "stats", tmp_path / "tables"
    truths = await run_brokers(cluster_of, place)
    truth = added(truths)
    counted: list[dict[str, int]] = []

    def ingest() -> None:
        start(spark, str(place), str(out), on_batch=lambda _, n: counted.append(n)).awaitTermination()

    # It fails with some tables written, and is done again; then there is everything that can be wrong with files.
    with monkeypatch.context() as broken:
        broken.setattr(write, "overwrite", failing_at(3, write.overwrite))
        with pytest.raises(StreamingQueryException):
            await asyncio.to_thread(ingest)
    assert not counted and len(list(out.glob("*/batch=0"))) == 2
    await asyncio.to_thread(ingest)
    aside = spoil(place, rows(place))
    await asyncio.to_thread(ingest)
    assert len(counted) == 2 and counted[0]["copies"] == counted[0]["aside"] == 0
    assert counted[1]["copies"] > 0 and counted[1]["aside"] == sum(aside.values())
    # As a small broker's; test_a_clock_that_is_set_again_and_again_changes_no_total asks as if it were a big one.
    statistics = replace(read_parquet(spark, str(out)), is_small=True)
    found = await asyncio.to_thread(collect, statistics, 100)
    assert {row["why"]: row["count"] for row in found["aside"]} == aside
    assert_figures(found, truth)
    shown = page(found, advise(found), "here")
    assert f"{truth.msgs.total():,}" in shown and "wide.a" in shown and "<script" not in shown
    drawn = await asyncio.to_thread(plots, found, tmp_path / "plots")
    assert {path.stem for path in drawn} >= {"fanout", "hottest", "shards", "lag", "matrix"}
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 2000 for path in drawn)
    assert_views(spark, out, truth)
    names = [path.name for path in unread(spark, str(place), str(out), 1e12)]
    assert names == ["empty.jsonl.zst", "noise.jsonl.zst"]

    def directly() -> tuple[Any, Any, Any]:
        with report.lines_of(spark, str(place), Progress()) as lines:
            subject = lines["subject"]
            per_broker = subject.groupBy("broker").agg(F.sum("in_msgs"), F.sum("deliveries"), F.sum("out_bytes"))
            totals = trouble.totals(subject, lines["gap"], lines["shard"])
            return totals.collect(), per_broker.collect(), lines.aside.collect()

    # Few files are kept as they are parsed, many go through tables first: the same answers.
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for most_kept in (1 << 30, 0):
        monkeypatch.setattr(report, "MOST_KEPT_BYTES", most_kept)
        (total,), per_broker, lines_aside = await asyncio.to_thread(directly)
        assert total.asDict() == found["totals"][0]
        assert {row[0]: row[1:] for row in per_broker} == {
            broker: (one.msgs.total(), one.deliveries.total(), one.out_bytes) for broker, one in truths.items()
        }
        assert sum(row["why"] != UNREADABLE for row in lines_aside) == sum(aside.values())
        assert sum(row["why"] == UNREADABLE for row in lines_aside) == 2
    assert "making temporary tables" in capsys.readouterr().err
    assert not list(temporary.iterdir())


def test_of_an_empty_directory_there_are_no_tables_until_there_are_files(spark: Any, tmp_path: Path):
    from gnatswarm.spark.jobs.ingest import start
    from gnatswarm.spark.jobs.report import refusal
    from gnatswarm.spark.read import read_parquet

    place, out = tmp_path / "stats", tmp_path / "tables"
    place.mkdir()
    start(spark, str(place), str(out)).awaitTermination()
    assert refusal("", str(out), str(tmp_path / "page.html")) == f"{out} has no tables of `gnatswarm ingest`"
    assert all(rows.isEmpty() for rows in read_parquet(spark, str(out)).kinds.values())
    made = statistics_rows.write(place, 500, shards=1, subjects=100)
    start(spark, str(place), str(out)).awaitTermination()
    assert refusal("", str(out), str(tmp_path / "page.html")) == ""
    (row,) = read_parquet(spark, str(out))["subject"].agg({"in_msgs": "sum"}).collect()
    assert row[0] == made["in_msgs"]


@pytest.mark.kinds("gnatswarm-2")
async def test_a_killed_shard_is_in_the_totals(
    spark: Any, start_broker: Callable[..., Broker], cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    from gnatswarm.spark.read import read_lines, split
    from gnatswarm.spark.transforms import trouble

    broker = start_broker(args=stats_in(tmp_path))
    workload = await Workload.on(cluster_of(broker))
    await workload.publish()
    await swarm.kill(broker, 1)
    await asyncio.to_thread(wait_until, lambda: any(row["kind"] == "gap" for row in rows(tmp_path)), 10.0)
    broker.stop()
    (gap,) = [row for row in rows(tmp_path) if row["kind"] == "gap"]

    def totals() -> dict[str, Any]:
        statistics = split(read_lines(spark, str(tmp_path)))
        return dict(trouble.totals(*(statistics[kind] for kind in ("subject", "gap", "shard"))).collect()[0].asDict())

    found = await asyncio.to_thread(totals)
    truth = workload.truth
    assert (found["in_msgs"], found["in_bytes"]) == (truth.msgs.total(), truth.bytes.total())
    assert (found["out_msgs"], found["out_bytes"]) == (truth.deliveries.total(), truth.out_bytes)
    assert (found["gap_in_msgs"], found["gap_out_msgs"]) == (gap["in_msgs"], gap["out_msgs"])
    assert found["gap_in_msgs"] == truth.msgs.total() // 2


@pytest.mark.kinds("gnatswarm-2")
async def test_a_clock_that_is_set_again_and_again_changes_no_total(
    spark: Any,
    start_broker: Callable[..., Broker],
    cluster_of: Callable[[Broker], Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """By seconds, days and a year, both ways, while the broker runs; part of the files is ingested in between."""
    from gnatswarm.spark import answers
    from gnatswarm.spark.jobs.ingest import start
    from gnatswarm.spark.jobs.report import collect
    from gnatswarm.spark.read import read_lines, read_parquet, split
    from gnatswarm.spark.transforms import trouble

    clock = WallClock(tmp_path)
    place, out = tmp_path / "stats", tmp_path / "tables"
    # By the clock most of the files are very old in the end.
    broker = start_broker(
        args=[*stats_in(place, "150ms"), "-m", "-1"],
        config="stats { max_age: 0 }",
        environment=clock.environment,
    )
    workload = await Workload.on(cluster_of(broker))
    days = []  # when each was published: midnight may be in between

    def today() -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(clock.now_us() / 1e6))

    def wait_windows_of_both_shards_near(now_us: int) -> None:
        def found() -> set[int]:
            near = [row for row in rows(place, hidden=True) if abs(row["window_start_us"] - now_us) < 600_000_000]
            return {row["shard"] for row in near}

        wait_until(lambda: found() == {0, 1}, 30.0)

    async def ingest() -> None:
        await asyncio.to_thread(lambda: start(spark, str(place), str(out)).awaitTermination())

    for ahead_s in (0.0, -2 * DAY_S, 400 * DAY_S, -400 * DAY_S, 2.0, -DAY_S):
        clock.set(ahead_s)
        begun = today()
        # (else what is published could be in a window that had begun before)
        await asyncio.to_thread(wait_windows_of_both_shards_near, clock.now_us())
        await workload.publish()
        days.append({begun, today()})
        if ahead_s == 400 * DAY_S:
            await ingest()
    received = await workload.leave()
    varz = await asyncio.to_thread(Pages.of(broker).json, "/varz")
    broker.stop()
    await ingest()
    truth = workload.truth
    assert (varz["in_msgs"], varz["out_msgs"]) == (truth.msgs.total(), truth.deliveries.total())
    assert received == truth.deliveries.total()
    assert len(list(out.glob("subject/batch=*"))) == 2
    # Who talks to whom takes as long as all the rest, and does not ask for the time.
    monkeypatch.setattr(answers, "graph_answers", lambda *_: {})
    found = await asyncio.to_thread(collect, read_parquet(spark, str(out)), 100)
    assert_totals(found, truth)
    ingested = {path.name.removeprefix("date=") for path in out.glob("subject/batch=*/date=*")}
    assert all(published & ingested for published in days)
    lines = split(read_lines(spark, str(place)))
    direct = await asyncio.to_thread(lambda: trouble.totals(lines["subject"], lines["gap"], lines["shard"]).collect())
    assert [row.asDict() for row in direct] == found["totals"]
