"""Sums over all kinds of rows, and percentiles weighted by messages: on few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_shards import frame

pytestmark = pytest.mark.xdist_group("spark")


def test_totals_have_what_was_refused_and_what_a_dead_shard_had_counted(spark: Any):
    from gnatswarm.spark.transforms.trouble import totals

    columns = "in_msgs bigint, in_bytes bigint, deliveries bigint, out_bytes bigint, unwanted_msgs bigint"
    subjects = spark.createDataFrame([(10, 100, 20, 200, 1)], columns)
    gaps = spark.createDataFrame([(1, 2, 3, 4)], "in_msgs bigint, in_bytes bigint, out_msgs bigint, out_bytes bigint")
    shards = spark.createDataFrame([(5, 6)], "refused_msgs bigint, refused_bytes bigint")
    [row] = totals(subjects, gaps, shards).collect()
    assert (row["in_msgs"], row["in_bytes"], row["out_msgs"], row["out_bytes"]) == (16, 108, 23, 204)


def test_percentiles_of_the_fan_out_are_weighted_by_messages(spark: Any):
    from gnatswarm.spark.transforms.fanout import distribution

    rows = [("B", "$G", "rare", 0, 1, 100), ("B", "$G", "common", 0, 99, 99)]
    columns = "broker string, account string, subject string, window_start_us bigint, in_msgs bigint, deliveries bigint"
    [row] = distribution(spark.createDataFrame(rows, columns)).collect()
    assert (row["p50"], row["p90"], row["p100"]) == (1.0, 1.0, 100.0)


def test_deliveries_in_the_window_after_their_message_are_part_of_the_mean(spark: Any):
    from gnatswarm.spark.transforms.fanout import distribution, histogram

    rows = [("B", "$G", "a", 0, 1, 0), ("B", "$G", "a", 10_000_000, 0, 5)]
    columns = "broker string, account string, subject string, window_start_us bigint, in_msgs bigint, deliveries bigint"
    subjects = spark.createDataFrame(rows, columns)
    [row] = distribution(subjects).collect()
    assert (row["msgs"], row["deliveries"], row["mean"], row["p100"]) == (1, 5, 5.0, 0.0)
    assert [(row["least"], row["msgs"]) for row in histogram(subjects).collect()] == [(0, 1)]


def test_a_share_of_no_messages_is_none(spark: Any):
    """No broker writes such a row; one ended the whole report with DIVIDE_BY_ZERO."""
    from gnatswarm.spark.transforms.subjects import unwanted

    found = unwanted(frame(spark, "subject", [{"subject": "a", "unwanted_msgs": 1}])).collect()
    assert [(row["unwanted"], row["share"]) for row in found] == [(1, None)]


def test_gini_is_0_where_all_have_the_same_and_near_1_where_one_has_all(spark: Any):
    from gnatswarm.spark.transforms.skew import gini

    rows = [("even", 2.0)] * 4 + [("one", 0.0)] * 3 + [("one", 4.0)] + [("none", 0.0)] * 2
    found = gini(spark.createDataFrame(rows, "name string, value double"), ["name"], "value").collect()
    assert {row["name"]: row["gini"] for row in found} == pytest.approx({"even": 0.0, "one": 0.75, "none": 0.0})


def test_tables_of_another_checkpoint_are_refused(tmp_path: Path):
    from gnatswarm.spark.jobs.ingest import refusal

    stats, out, checkpoint = (tmp_path / name for name in ("stats", "out", "checkpoint"))
    for directory in (stats, out / "files", checkpoint):
        directory.mkdir(parents=True)
    assert "was written with another checkpoint" in refusal(str(stats), str(out), str(checkpoint))
    (checkpoint / "metadata").touch()
    assert refusal(str(stats), str(out), str(checkpoint)) == ""
