"""Whether a queue group's members get equal parts."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.transforms.skew import gini


def members(queues: DataFrame) -> DataFrame:
    """What each member got. A client id is unique over all shards of one broker."""
    return (
        queues.groupBy("broker", "account", "queue", "subject", "shard", "cid", "sid")
        .agg(F.sum("deliveries").alias("deliveries"))
        .orderBy("account", "queue", "subject", "cid", "sid")
    )


def balance(queues: DataFrame, most: int = 25) -> DataFrame:
    """Per group: members that got something, what each got at least and most, how uneven that is."""
    group = ["account", "queue", "subject"]
    return (
        gini(members(queues), group, "deliveries")
        .select(
            *group,
            F.col("n").alias("members"),
            F.col("sum").alias("deliveries"),
            F.col("min").alias("least"),
            F.col("max").alias("most"),
            "max_to_mean",
            "gini",
        )
        .orderBy(F.desc("deliveries"), *group)
        .limit(most)
    )
