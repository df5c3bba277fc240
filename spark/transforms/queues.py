"""How evenly a queue group's messages are spread over its members."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.transforms.skew import gini


def members(queues: DataFrame) -> DataFrame:
    """Deliveries to each member. A client that moves to another shard keeps its id, which is unique in one broker."""
    return (
        queues.groupBy("broker", "account", "queue", "subject", "cid", "sid")
        .agg(F.sum("deliveries").alias("deliveries"))
        .orderBy("account", "queue", "subject", "cid", "sid")
    )


def balance(queues: DataFrame, most: int = 25) -> DataFrame:
    """Per group of one broker: members that got messages, the least and the most of a member, and how uneven that is.

    A broker's id changes with each start: members of two runs are not members of one group.
    """
    group = ["account", "queue", "subject", "broker"]
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
