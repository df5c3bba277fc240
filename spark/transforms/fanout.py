"""Fan-out of messages.

A subject's fan-out in a window is the deliveries of all shards ÷ the messages from clients. Its distribution is over
(subject, window), weighted by messages. Shards count the exact fan-out of single messages within the shard.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PERCENTILES = (0.5, 0.9, 0.99, 1.0)


def per_window(subjects: DataFrame) -> DataFrame:
    """One row per subject and window with messages."""
    return _of_windows(subjects).where("msgs > 0")


def _of_windows(subjects: DataFrame) -> DataFrame:
    """One row per subject and window; no fan-out where there are only deliveries, of messages of the window before."""
    return (
        subjects.groupBy("broker", "account", "subject", "window_start_us")
        .agg(F.sum("in_msgs").alias("msgs"), F.sum("deliveries").alias("deliveries"))
        .select(
            "broker", "account", "subject", "window_start_us", "msgs", "deliveries",
            F.try_divide("deliveries", "msgs").alias("fanout"),
        )
    )  # fmt: skip


def distribution(subjects: DataFrame) -> DataFrame:
    """Exact percentiles of the fan-out, weighted by messages, and the mean of all messages and deliveries: one row."""
    quoted = ", ".join(str(p) for p in PERCENTILES)
    return (
        _of_windows(subjects)
        .agg(
            F.sum("msgs").alias("msgs"),
            F.sum("deliveries").alias("deliveries"),
            F.expr(f"percentile(fanout, array({quoted}), msgs)").alias("at"),
        )
        .select(
            F.coalesce("msgs", F.lit(0)).alias("msgs"),
            F.coalesce("deliveries", F.lit(0)).alias("deliveries"),
            F.try_divide("deliveries", "msgs").alias("mean"),
            *(F.col("at")[i].alias(f"p{int(p * 100)}") for i, p in enumerate(PERCENTILES)),
        )
    )


def histogram(subjects: DataFrame) -> DataFrame:
    """Messages by the fan-out of their subject in their window, rounded; `least` to `most` is the bucket."""
    rounded = F.col("rounded")
    power = F.pow(F.lit(2), F.ceil(F.log2(rounded)).cast("int"))
    return (
        per_window(subjects)
        .withColumn("rounded", F.round("fanout").cast("bigint"))
        .withColumn("most", F.when(rounded <= 16, rounded).otherwise(power).cast("bigint"))
        .groupBy("most")
        .agg(F.sum("msgs").alias("msgs"), F.countDistinct("account", "subject").alias("subjects"))
        .select(
            F.when(F.col("most") <= 16, F.col("most")).otherwise(F.col("most") / 2 + 1).cast("bigint").alias("least"),
            "most", "msgs", "subjects",
        )
        .orderBy("least")
    )  # fmt: skip


def widths(shards: DataFrame) -> DataFrame:
    """Messages by how many subscribers they reached within one shard; `least` to `most` is the bucket."""

    def exploded(column: str, origin: str) -> DataFrame:
        return shards.select(F.posexplode(column).alias("bucket", "msgs"), F.lit(origin).alias("origin"))

    first = F.lit(2).cast("double")
    return (
        exploded("widths", "client")
        .unionByName(exploded("link_widths", "sibling"))
        .groupBy("origin", "bucket")
        .agg(F.sum("msgs").alias("msgs"))
        .where("msgs > 0")
        .select(
            "origin",
            F.when(F.col("bucket") <= 16, F.col("bucket"))
            .otherwise(F.pow(first, F.col("bucket") - 13) + 1)
            .cast("bigint")
            .alias("least"),
            F.when(F.col("bucket") <= 16, F.col("bucket"))
            .otherwise(F.pow(first, F.col("bucket") - 12))
            .cast("bigint")
            .alias("most"),
            "msgs",
        )
        .orderBy("origin", "least")
    )
