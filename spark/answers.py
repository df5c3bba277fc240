"""Every result of the report as a named DataFrame; the report, the tables and the tests use these."""

from __future__ import annotations

from pyspark.sql import DataFrame

from gnatswarm.spark.read import Statistics
from gnatswarm.spark.transforms import fanout, graph, matrix, queues, skew, subjects, talkers, trouble

# Of the graph: the page draws the heaviest of them.
MOST_EDGES = 5000


def graph_answers(clients: DataFrame, most: int = 25, services: str = "auto") -> dict[str, DataFrame]:
    """Who talks to whom, from the rows of clients."""
    rows = talkers.by_service(clients, services)
    talk = graph.talk(rows)
    edges = graph.settled(graph.edges(graph.met(*talk)))
    rows = graph.settled(talkers.over_windows(rows))
    return {
        "services": talkers.services(rows, most=MOST_EDGES),
        "edges": edges.limit(MOST_EDGES),
        "service_matrix": graph.between_services(edges, most=MOST_EDGES),
        "who_crosses": graph.who_crosses(edges, most=most),
        "lone": graph.lone(*talk, most=most),
        "pairs": graph.pairs(edges, rows, most=most),
        "churners": talkers.churners(rows, most=most),
    }


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows


def answers(statistics: Statistics, most: int = 25, services: str = "auto") -> dict[str, DataFrame]:
    """The results by name; lazy, like all DataFrames, but for the sums that several of them are made of."""
    subject, shard, link = statistics["subject"], statistics["shard"], statistics["link"]
    # What fits into memory is scanned once, and the many results are made of what is left.
    kept = graph.settled if statistics.is_small else _as_it_is
    shard, link = kept(shard), kept(link)
    torn = trouble.torn(subject, shard)
    subject = subjects.between_shards(subject)
    if statistics.is_small:
        subject = graph.settled(subjects.over_shards(subject))
    parts = kept(skew.per_shard(shard))
    deliveries = kept(matrix.deliveries(shard, link))
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
        "torn": torn,
        **graph_answers(statistics["client"], most, services),
        "unreadable": trouble.unreadable(statistics.aside),
        "aside": statistics.aside.groupBy("why").count().orderBy("why"),
    }
