"""Hot subjects, and subjects without subscribers."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.schema import GATEWAY


def totals(subjects: DataFrame) -> DataFrame:
    """Per subject over all windows and shards. Messages are counted where they were published."""
    return (
        subjects.groupBy("account", "subject")
        .agg(
            F.max("is_folded").alias("is_folded"),
            F.sum("in_msgs").alias("msgs"),
            F.sum("in_bytes").alias("bytes"),
            F.sum("deliveries").alias("deliveries"),
            F.sum("out_bytes").alias("out_bytes"),
            F.max("widest").alias("widest"),
            F.sum("link_out_msgs").alias("crossed"),
            F.sum("unwanted_msgs").alias("unwanted"),
            F.sum("cache_misses").alias("misses"),
            F.sum("error_msgs").alias("error"),
            F.countDistinct("window_start_us").alias("windows"),
        )
        .withColumn("fanout", F.try_divide("deliveries", "msgs"))
        .select(
            "account", "subject", "is_folded", "msgs", "bytes", "deliveries", "out_bytes", "fanout", "widest",
            "crossed", "unwanted", "misses", "error", "windows",
        )
    )  # fmt: skip


def between_shards(subjects: DataFrame) -> DataFrame:
    """The rows, without the frames in which the gateway passed on what other servers sent: these cross to no shard."""
    is_ours = F.col("shard") != GATEWAY
    return subjects.withColumn("link_out_msgs", F.when(is_ours, F.col("link_out_msgs")).otherwise(0).cast("bigint"))


def over_shards(subjects: DataFrame) -> DataFrame:
    """One row per subject and window, with the columns of the shards' rows: what several results are made of."""
    first = ["broker", "account", "subject", "window_start_us"]
    sums = [
        "in_msgs", "in_bytes", "deliveries", "out_bytes", "link_out_msgs", "unwanted_msgs", "cache_misses",
        "error_msgs",
    ]  # fmt: skip
    return subjects.groupBy(*first).agg(
        *(F.sum(name).alias(name) for name in sums),
        *(F.max(name).alias(name) for name in ("is_folded", "widest")),
    )


def hottest(subjects: DataFrame, by: str = "deliveries", most: int = 25) -> DataFrame:
    """The subjects with the highest value in a column of `totals`; equal ones by name, so that the result is stable."""
    return totals(subjects).orderBy(F.desc(by), F.desc("msgs"), "account", "subject").limit(most)


def crossing(subjects: DataFrame, most: int = 25) -> DataFrame:
    """The subjects with most frames to other shards, with their totals."""
    return totals(subjects).where("crossed > 0").orderBy(F.desc("crossed"), "account", "subject").limit(most)


def unwanted(subjects: DataFrame, most: int = 25) -> DataFrame:
    """Subjects with messages that had no subscriber on any shard."""
    return (
        totals(subjects)
        .where("unwanted > 0")
        .orderBy(F.desc("unwanted"), "account", "subject")
        .limit(most)
        .select("account", "subject", "msgs", "unwanted", F.try_divide("unwanted", "msgs").alias("share"))
    )
