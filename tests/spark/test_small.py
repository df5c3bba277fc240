"""Statistics of a small broker: the same answers for less, in a session that does not compile for so few rows."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import statistics_rows
from tests.bench.bench_spark import run
from tests.support.servers import wait_pids_gone

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.xdist_group("spark")

# Spark's start, and the number of lines in a directory.
COUNT = """
import sys
from gnatswarm.spark.read import read_lines
from gnatswarm.spark.session import new_session
session = new_session("count", master="local[*]", memory="1g")
assert read_lines(session, sys.argv[1]).count() == int(sys.argv[2])
session.stop()
"""
# Measured: 1.2 with 2,000 rows, 1.7 with 100,000. Beside a count for which Java uses its first compiler only: 2.0, 2.6.
MOST_TO_COUNT = 2.5


# Small statistics have their truth in test_truth, with all that can be wrong with files.
@pytest.mark.slow
def test_few_rows_are_asked_once_and_answer_the_same(spark: Any, tmp_path: Path):
    from gnatswarm.spark.answers import answers
    from gnatswarm.spark.jobs.report import collected
    from gnatswarm.spark.read import read_lines, split

    statistics_rows.write(tmp_path, 900, shards=2, subjects=30, clients=40)
    statistics = split(read_lines(spark, str(tmp_path)), is_small=True)
    found, jobs = [], []
    for is_small in (False, True):
        spark.sparkContext.setJobGroup(f"small: {is_small}", "")
        found.append(collected(answers(replace(statistics, is_small=is_small), 100)))
        jobs.append(len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"small: {is_small}")))
    assert found[0] == found[1]
    assert all(found[1][name] for name in ("hottest", "fanouts", "matrix", "links", "services", "edges"))
    assert jobs[1] <= jobs[0]


def test_small_is_what_is_on_disk_of_statistics_or_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gnatswarm.spark.jobs import report

    monkeypatch.setattr(report, "MOST_SMALL_BYTES", 10)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert report.is_small("local[*]", str(tmp_path))
    assert not report.is_small("local[*]", "s3a://bucket/stats") and not report.is_small("yarn", str(tmp_path))
    (tmp_path / "deep" / "a.jsonl.zst").write_bytes(b"x" * 10)
    (tmp_path / "deep" / "er" / "page.html").write_bytes(b"x" * 10)
    assert report.is_small("local[*]", str(tmp_path))
    (tmp_path / "deep" / "er" / "b.parquet").write_bytes(b"x")  # weighs more
    assert not report.is_small("local[*]", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2_000, 100_000])
def test_a_report_costs_little_more_than_to_start_spark_and_to_count(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")  # of conftest.py: both as a user runs them
    stats, page = tmp_path / "stats", tmp_path / "page.html"
    made = statistics_rows.write(stats, rows, shards=4, subjects=rows // 200, clients=rows // 200)
    counted = run("-c", COUNT, str(stats), str(made["rows"]))
    reported = run("-m", "gnatswarm.spark.jobs.report", "--stats-dir", str(stats), "--out", str(page))
    assert f"{made['in_msgs']:,}" in page.read_text() and "Who talks to whom" in page.read_text()
    print(f"{rows:,} rows: count {counted.cpu_s:.1f} s, report {reported.cpu_s:.1f} s of processor time")
    assert reported.cpu_s <= MOST_TO_COUNT * counted.cpu_s


def test_a_java_that_starts_when_its_start_is_interrupted_is_ended(monkeypatch: pytest.MonkeyPatch):
    from pyspark.sql import SparkSession

    from gnatswarm.spark.session import new_session

    started: list[subprocess.Popen[bytes]] = []
    before = subprocess.Popen(["sleep", "60"])

    def start(_builder: object) -> object:
        # A script that asks a first Java for the command that it then becomes.
        started.append(subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        asked.append(int(started[0].stdout.readline()))
        raise KeyboardInterrupt

    asked: list[int] = []

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    try:
        with pytest.raises(KeyboardInterrupt):
            new_session("count", master="local[1]", memory="")
        assert started[0].wait(30) == -signal.SIGKILL
        assert wait_pids_gone(asked, 30.0) == []
        assert before.poll() is None, "somebody else's child"
    finally:
        before.kill()
        before.wait()
