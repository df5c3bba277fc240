"""Deliveries from shard to shard, and the share between different shards.

Messages of other servers come from the gateway (schema.GATEWAY), which is no shard: they cross to none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.schema import GATEWAY


def deliveries(shards: DataFrame, links: DataFrame) -> DataFrame:
    """Deliveries on `to_shard` of messages published on `from_shard`: exact, counted by the delivering shard."""
    shards, links = shards.where(F.col("shard") != GATEWAY), links.where(F.col("shard") != GATEWAY)
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
    """One row: all deliveries, those from another shard, their share, the frames that carried them; and from elsewhere.

    `from_servers`: deliveries of messages that other servers sent.
    """
    is_from_servers = F.col("from_shard") == GATEWAY
    crosses = (F.col("from_shard") != F.col("to_shard")) & ~is_from_servers
    return matrix.agg(
        F.coalesce(F.sum("deliveries"), F.lit(0)).alias("deliveries"),
        F.coalesce(F.sum(F.when(crosses, F.col("deliveries"))), F.lit(0)).alias("crossed"),
        F.coalesce(F.sum(F.when(crosses, F.col("frames"))), F.lit(0)).alias("frames"),
        F.coalesce(F.sum(F.when(is_from_servers, F.col("deliveries"))), F.lit(0)).alias("from_servers"),
    ).select("deliveries", "crossed", F.try_divide("crossed", "deliveries").alias("share"), "frames", "from_servers")


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
