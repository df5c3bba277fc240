"""Problems: slow consumers, and windows that are missing or incomplete."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.read import IDENTITY
from gnatswarm.spark.schema import UNREADABLE


def slow_consumers(slow: DataFrame, most: int = 50) -> DataFrame:
    """Clients that were closed because they did not read fast enough, and how often."""
    return (
        slow.groupBy("user", "name", "ip", "subject", "reason")
        .agg(
            F.count("*").alias("times"),
            F.max("pending_bytes").alias("most_pending_bytes"),
            F.max("window_start_us").alias("last_window_us"),
        )
        .orderBy(F.desc("times"), "name", "ip", "subject", "reason", "user")
        .limit(most)
    )


def torn(subjects: DataFrame, shards: DataFrame, most: int = 50) -> DataFrame:
    """Incomplete windows: the last row of a window is of kind shard, and these have none."""
    key = [*IDENTITY, "window_start_us"]
    return (
        subjects.select(*key).distinct()
        .join(shards.select(*key), key, "left_anti")
        .orderBy("window_start_us", *IDENTITY)
        .limit(most)
    )  # fmt: skip


def unreadable(aside: DataFrame, most: int = 50) -> DataFrame:
    """Files of which nothing can be read, by their paths here, or by their addresses elsewhere."""
    # (in an address "+" is itself, and not a blank)
    path = F.try_url_decode(F.regexp_replace("source", r"\+", "%2B"))
    return (
        aside.where(F.col("why") == UNREADABLE)
        .select(F.regexp_replace(path, "^file:/+", "/").alias("path"))
        .orderBy("path")
        .limit(most)
    )


def gaps(rows: DataFrame) -> DataFrame:
    """Shards that died, and the totals that they had not written."""
    return rows.select(
        "shard", "window_start_us", "window_us", "in_msgs", "in_bytes", "out_msgs", "out_bytes", "link_out_msgs",
        "link_in_msgs", "reason",
    ).orderBy("window_start_us", "shard")  # fmt: skip


def denied(rows: DataFrame, most: int = 25) -> DataFrame:
    """What permissions denied, by user."""
    return (
        rows.groupBy("account", "user")
        .agg(F.sum("publishes").alias("publishes"), F.sum("subscriptions").alias("subscriptions"))
        .orderBy(F.desc(F.col("publishes") + F.col("subscriptions")), "account", "user")
        .limit(most)
    )


def totals(subjects: DataFrame, missing: DataFrame, shards: DataFrame) -> DataFrame:
    """One row: totals of subjects, gaps and refused messages together. Equal to the totals of the monitoring pages."""
    counted = subjects.agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("in_msgs", "in_bytes", "deliveries", "out_bytes")),
        F.coalesce(F.sum("unwanted_msgs"), F.lit(0)).alias("unwanted_msgs"),
    )
    lost = missing.agg(
        *(
            F.coalesce(F.sum(name), F.lit(0)).alias(f"gap_{name}")
            for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")
        )
    )
    refused = shards.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("refused_msgs", "refused_bytes")))
    return counted.crossJoin(lost).crossJoin(refused).select(
        (F.col("in_msgs") + F.col("gap_in_msgs") + F.col("refused_msgs")).alias("in_msgs"),
        (F.col("in_bytes") + F.col("gap_in_bytes") + F.col("refused_bytes")).alias("in_bytes"),
        (F.col("deliveries") + F.col("gap_out_msgs")).alias("out_msgs"),
        (F.col("out_bytes") + F.col("gap_out_bytes")).alias("out_bytes"),
        "unwanted_msgs", "gap_in_msgs", "gap_out_msgs", "refused_msgs",
    )  # fmt: skip
