"""Deliveries from shard to shard, and the share between different shards."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def deliveries(shards: DataFrame, links: DataFrame) -> DataFrame:
    """Deliveries on `to_shard` of messages published on `from_shard`: exact, counted by the delivering shard."""
    crossed = links.groupBy(F.col("peer").alias("from_shard"), F.col("shard").alias("to_shard")).agg(
        F.sum("received_deliveries").alias("deliveries"), F.sum("received_msgs").alias("frames")
    )
    arrived = links.groupBy("shard").agg(F.sum("received_deliveries").alias("crossed"))
    own = (
        shards.groupBy("shard")
        .agg(F.sum("out_msgs").alias("out_msgs"))
        .join(arrived, "shard", "left")
        .select(
            F.col("shard").alias("from_shard"),
            F.col("shard").alias("to_shard"),
            (F.col("out_msgs") - F.coalesce("crossed", F.lit(0))).alias("deliveries"),
            F.lit(0).cast("bigint").alias("frames"),
        )
    )
    return own.unionByName(crossed).orderBy("from_shard", "to_shard")


def crossed_share(matrix: DataFrame) -> DataFrame:
    """One row: all deliveries, those from another shard, their share, and the frames that carried them."""
    crosses = F.col("from_shard") != F.col("to_shard")
    return matrix.agg(
        F.coalesce(F.sum("deliveries"), F.lit(0)).alias("deliveries"),
        F.coalesce(F.sum(F.when(crosses, F.col("deliveries"))), F.lit(0)).alias("crossed"),
        F.coalesce(F.sum("frames"), F.lit(0)).alias("frames"),
    ).select("deliveries", "crossed", F.try_divide("crossed", "deliveries").alias("share"), "frames")


def links(rows: DataFrame) -> DataFrame:
    """Each link, with the sender's counters."""
    return (
        rows.groupBy(F.col("shard").alias("from_shard"), F.col("peer").alias("to_shard"))
        .agg(
            F.sum("sent_msgs").alias("msgs"),
            F.sum("sent_bytes").alias("bytes"),
            F.max("peak_pending_bytes").alias("peak_pending_bytes"),
            F.sum("paused_us").alias("paused_us"),
        )
        .orderBy("from_shard", "to_shard")
    )
