"""Every result of the report as a named DataFrame; the report, the tables and the tests use these."""

from __future__ import annotations

from pyspark.sql import DataFrame

from gnatswarm.spark.read import Statistics
from gnatswarm.spark.transforms import fanout, matrix, queues, skew, subjects, trouble


def answers(statistics: Statistics, most: int = 25) -> dict[str, DataFrame]:
    """The results by name; lazy, like all DataFrames."""
    subject, shard, link = statistics["subject"], statistics["shard"], statistics["link"]
    parts = skew.per_shard(shard)
    deliveries = matrix.deliveries(shard, link)
    return {
        "totals": trouble.totals(subject, statistics["gap"], shard),
        "hottest": subjects.hottest(subject, most=most),
        "fanout": fanout.distribution(subject),
        "fanouts": fanout.histogram(subject),
        "widths": fanout.widths(shard),
        "brokers": skew.per_broker(shard),
        "shards": parts,
        "skew": skew.unevenness(parts),
        "over_time": skew.over_time(shard),
        "matrix": deliveries,
        "crossed": matrix.crossed_share(deliveries),
        "links": matrix.links(link),
        "crossing": subjects.crossing(subject, most=most),
        "queues": queues.balance(statistics["queue"], most=most),
        "unwanted": subjects.unwanted(subject, most=most),
        "slow": trouble.slow_consumers(statistics["slow"]),
        "denied": trouble.denied(statistics["denied"], most=most),
        "gaps": trouble.gaps(statistics["gap"]),
        "torn": trouble.torn(subject, shard),
        "aside": statistics.aside.groupBy("why").count().orderBy("why"),
    }
