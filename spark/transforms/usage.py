"""What each user did: subjects that its clients published to, and subscriptions of which they received messages."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.schema import REST

PUBLISH, SUBSCRIBE = "publish", "subscribe"


def users(clients: DataFrame) -> DataFrame:
    """From rows of clients: each user, the user OTHER and the user REST, with messages and the time of their rows."""
    return (
        clients.groupBy("account", "user")
        .agg(
            F.sum("in_msgs").alias("in_msgs"),
            F.sum("out_msgs").alias("out_msgs"),
            F.countDistinct("window_start_us").alias("windows"),
            F.min("window_start_us").alias("first_us"),
            F.max(F.col("window_start_us") + F.col("window_us")).alias("last_us"),
        )
        .orderBy("account", "user")
    )


def usage(clients: DataFrame, most: int) -> DataFrame:
    """From rows of clients: account, user, deed, subject, queue, messages, requests; the heaviest `most` of them.

    The subject of a subscription is its pattern, and its messages are those that it received. The subject OTHER sums up
    those without rows of their own.
    """
    rows = clients.where(F.col("user") != REST)
    one = F.col("one")
    key = ["account", "user", "deed", "subject", "queue"]
    said = rows.select("account", "user", F.explode("published").alias("one")).select(
        "account", "user", F.lit(PUBLISH).alias("deed"), one["subject"].alias("subject"), F.lit("").alias("queue"),
        one["msgs"].alias("msgs"), one["requests"].alias("requests"),
    )  # fmt: skip
    heard = rows.select("account", "user", F.explode("received").alias("one")).select(
        "account", "user", F.lit(SUBSCRIBE).alias("deed"), one["subject"].alias("subject"),
        one["queue"].alias("queue"), one["msgs"].alias("msgs"), F.lit(0).cast("bigint").alias("requests"),
    )  # fmt: skip
    return (
        said.unionByName(heard)
        .groupBy(*key)
        .agg(F.sum("msgs").alias("msgs"), F.sum("requests").alias("requests"))
        .orderBy(F.desc("msgs"), *key)
        .limit(most)
    )
