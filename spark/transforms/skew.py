"""How evenly work is spread over shards: each shard's part, and how uneven the parts are."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from gnatswarm.spark.schema import GATEWAY

MEASURES = ("in_msgs", "out_msgs", "work", "cpu_s")
# The last windows of a shard that serves may be in a file of a minute that is not finished yet.
FILE_US = 60_000_000
# A window that begins later than this from now has been counted while a clock stood ahead: it ends no statistics.
AHEAD_US = 86_400_000_000
# Of its nominal length: a window that is shorter was the last of its shard, or the first.
WHOLE = 0.9


def per_shard(shards: DataFrame) -> DataFrame:
    """Totals of each shard. `work` is every message in or out, including links; those of the gateway are among them.

    `is_current`: it serves where the statistics end.
    Others have left, as one that a restart gives the clients of the next shard for a moment.
    """
    shards = shards.where(F.col("shard") != GATEWAY)
    is_whole = F.col("window_us") >= WHOLE * F.col("window_nominal_us")
    begun = F.unix_micros(F.current_timestamp()) + AHEAD_US
    shards = shards.withColumn(
        "at_us", F.when(F.col("window_start_us") <= begun, F.col("window_start_us")).otherwise(0)
    )
    latest = shards.agg(F.max("at_us").alias("latest_us"))
    behind = F.col("latest_us") - F.col("last_us")
    return (
        shards.groupBy("shard")
        .agg(
            F.sum("in_msgs").alias("in_msgs"),
            F.sum("in_bytes").alias("in_bytes"),
            F.sum("out_msgs").alias("out_msgs"),
            F.sum("out_bytes").alias("out_bytes"),
            F.sum("link_out_msgs").alias("link_out_msgs"),
            F.sum("link_in_msgs").alias("link_in_msgs"),
            F.sum("unwanted_msgs").alias("unwanted_msgs"),
            F.sum("cache_misses").alias("cache_misses"),
            F.sum("cpu_s").alias("cpu_s"),
            (F.sum("window_us") / 1e6).alias("seconds"),
            F.max("connections").alias("connections"),
            F.max("subscriptions").alias("subscriptions"),
            F.max("resident_bytes").alias("resident_bytes"),
            F.sum("slow_consumers").alias("slow_consumers"),
            F.sum("stalls").alias("stalls"),
            F.max("lag_max_us").alias("lag_max_us"),
            F.sum("lost_windows").alias("lost_windows"),
            F.countDistinct("boot").alias("boots"),
            F.max("at_us").alias("last_us"),
            F.max_by(is_whole, "at_us").alias("ends_whole"),
            F.max("window_nominal_us").alias("nominal_us"),
        )
        .crossJoin(F.broadcast(latest))
        .withColumn(
            "is_current",
            (behind < 2 * F.col("nominal_us")) | (F.col("ends_whole") & (behind <= FILE_US + 2 * F.col("nominal_us"))),
        )
        .drop("last_us", "ends_whole", "nominal_us", "latest_us")
        .withColumn("work", F.expr("in_msgs + out_msgs + link_in_msgs + link_out_msgs"))
        .withColumn("cpu_share", F.try_divide("cpu_s", "seconds"))
        .orderBy("shard")
    )


def per_broker(shards: DataFrame) -> DataFrame:
    """Each start of a broker: first and last time, and totals."""
    return (
        shards.groupBy("broker")
        .agg(
            F.min("window_start_us").alias("first_us"),
            F.max(F.col("window_start_us") + F.col("window_us")).alias("last_us"),
            F.countDistinct(F.when(F.col("shard") != GATEWAY, F.col("shard"))).alias("shards"),
            F.sum("in_msgs").alias("in_msgs"),
            F.sum("out_msgs").alias("out_msgs"),
        )
        .orderBy("first_us", "broker")
    )


def unevenness(parts: DataFrame) -> DataFrame:
    """From `per_shard`: max ÷ mean (1: even) and Gini (0: even, near 1: one has all) for each measure."""
    stack = ", ".join(f"'{name}', cast({name} as double)" for name in MEASURES)
    values = parts.select("shard", F.expr(f"stack({len(MEASURES)}, {stack}) as (measure, value)"))
    return gini(values, ["measure"], "value").orderBy("measure")


def gini(values: DataFrame, by: list[str], value: str) -> DataFrame:
    """Per group: count, sum, min, max, max ÷ mean, Gini. Groups whose sum is 0 are even."""
    ranked = values.withColumn("rank", F.row_number().over(Window.partitionBy(*by).orderBy(value)))
    counted = ranked.groupBy(*by).agg(
        F.count(value).alias("n"),
        F.sum(value).alias("sum"),
        F.min(value).alias("min"),
        F.max(value).alias("max"),
        F.sum(F.col("rank") * F.col(value)).alias("weighted"),
    )
    return counted.select(
        *by, "n", "sum", "min", "max",
        F.coalesce(F.try_divide(F.col("max") * F.col("n"), F.col("sum")), F.lit(1.0)).alias("max_to_mean"),
        F.coalesce(
            F.try_divide(2 * F.col("weighted"), F.col("n") * F.col("sum")) - (F.col("n") + 1) / F.col("n"), F.lit(0.0)
        ).alias("gini"),
    )  # fmt: skip


def over_time(shards: DataFrame) -> DataFrame:
    """Messages in and out per second, and connections, by window and shard; also of the gateway."""
    seconds = F.sum("window_us") / 1e6
    return (
        shards.groupBy("window_start_us", "shard")
        .agg(
            F.try_divide(F.sum(F.expr("in_msgs + out_msgs")), seconds).alias("msgs_per_s"),
            F.try_divide(F.sum("cpu_s"), seconds).alias("cpu_share"),
            F.sum("connections").alias("connections"),
            F.max("lag_p50_us").alias("lag_p50_us"),
            F.max("lag_p99_us").alias("lag_p99_us"),
            F.max("lag_max_us").alias("lag_max_us"),
        )
        .orderBy("window_start_us", "shard")
    )
