"""`gnatswarm place`: which services belong on which shard, as a file of placement rules; afterwards, what came true."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gnatswarm.spark.answers import MOST_EDGES
from gnatswarm.spark.figures import percent, visible
from gnatswarm.spark.jobs.arguments import DEFAULT_PORT, default_directory, place_parser
from gnatswarm.spark.jobs.progress import Progress
from gnatswarm.spark.jobs.report import is_small, lines_of, refusal, write_whole
from gnatswarm.spark.partition import balance, crossing_share, partition
from gnatswarm.spark.placement_file import MOST_AT_US, BadFile, Expected, Rule, expected_of, is_writable, written
from gnatswarm.spark.read import Statistics, read_parquet
from gnatswarm.spark.schema import GATEWAY
from gnatswarm.spark.session import SMALL, run
from gnatswarm.spark.transforms import graph, skew, talkers

# Instructions of the engine for a small message that crosses to another shard, and for one that does not:
# tests/bench/instructions.json, "across 2 shards, 16 B in runs" and "1:1, 16 B in runs".
CROSSING_COST = 154.14 / 61.5


class Figures:
    """What the statistics say of services: loads, who talks to whom, and what crossed."""

    def __init__(self, statistics: Statistics, services: str) -> None:
        rows = talkers.by_service(statistics["client"], services).persist()
        edges = graph.settled(graph.edges(graph.flows(rows)))
        by = "user" if services == "user" else "name"
        self.weights: dict[str, float] = {}
        self.rules: dict[str, tuple[str, str]] = {}  # service → kind, pattern
        whole_name = F.max(F.when(F.col("name") == F.col("service"), 1).otherwise(0))
        numbered = F.max(F.when(F.col("name") != F.col("service"), 1).otherwise(0))
        is_named = F.min(F.col("name").startswith(F.col("service")).cast("int"))
        is_user = F.min((F.col("user") == F.col("service")).cast("int"))
        for row in (
            rows.groupBy("service")
            .agg(
                F.sum(F.col("in_msgs") + F.col("out_msgs")).alias("msgs"),
                whole_name.alias("whole"), numbered.alias("numbered"), is_named.alias("named"), is_user.alias("user"),
            )
            .collect()
        ):  # fmt: skip
            self.weights[row["service"]] = float(row["msgs"])
            if by == "name" and row["named"] and is_writable(row["service"]):
                self.rules[row["service"]] = "name", row["service"] + ("*" if row["numbered"] else "")
            elif row["user"] and is_writable(row["service"]):
                self.rules[row["service"]] = "user", row["service"]
        self.edges: dict[tuple[str, str], float] = {}
        self.msgs = self.crossed = 0.0
        # Without those of an unknown publisher: nobody knows whether they cross, or would.
        known = edges.where(F.col("from_service") != graph.UNKNOWN)
        for row in graph.between_services(known, most=MOST_EDGES).collect():
            self.msgs += row["msgs"]
            self.crossed += row["crossed_msgs"]
            pair = row["from_service"], row["to_service"]
            self.edges[pair] = self.edges.get(pair, 0.0) + row["msgs"]
        load = F.sum(F.col("in_msgs") + F.col("out_msgs")).alias("msgs")
        loads = {row["shard"]: float(row["msgs"]) for row in rows.groupBy("shard").agg(load).collect()}
        # Also those without clients, and none that only a restart had.
        current = skew.per_shard(statistics["shard"]).where("is_current").select("shard").collect()
        self.loads = [loads.get(row["shard"], 0.0) for row in current]
        self.shards = max(len(current), 1)
        last = rows.agg(F.coalesce(F.max(F.col("window_start_us") + F.col("window_us")), F.lit(0))).collect()
        self.last_us = int(last[0][0])
        rows.unpersist()

    @property
    def crossing(self) -> float:
        """The share of deliveries that crossed, of those whose publisher is known."""
        return self.crossed / self.msgs if self.msgs else 0.0

    def unevenness(self, shards: int) -> float:
        """The heaviest shard's messages ÷ the mean of so many shards."""
        return max(self.loads) * shards / sum(self.loads) if sum(self.loads) else 1.0


def plan(figures: Figures, shards: int, services_by: str, bound: float) -> tuple[list[Rule], Expected, list[str]]:
    """The rules, what they promise, and the services that have none."""
    known = {name: weight for name, weight in figures.weights.items() if name in figures.rules and weight > 0}
    # Services without a rule are spread over all shards: they weigh on each, and only those of `known` may move.
    others = sum(figures.weights.values()) - sum(known.values())
    room = bound + (bound - 1) * others / sum(known.values()) if known else bound
    placed = partition(known, figures.edges, shards, room)
    rules = [Rule(*figures.rules[name], shard) for name, shard in sorted(placed.shard.items())]
    expected = Expected(
        shards=shards,
        crossing_before=round(figures.crossing, 4),
        crossing=round(crossing_share(figures.edges, placed.shard, shards), 4),
        balance_before=round(figures.unevenness(shards), 3),
        balance=round(balance(figures.weights, placed.shard, shards), 3),
        services_by=services_by,
        at_us=figures.last_us,
    )
    return rules, expected, sorted(set(figures.weights) - set(placed.shard))


def objection(rules: Sequence[Rule], expected: Expected, bound: float, least_gain: float) -> str:
    """Why nothing should be done; "" if it should."""
    gain = expected.crossing_before - expected.crossing
    if not rules:
        return "no service has a name or a user that a rule can say"
    if expected.shards < 2:
        return "there is one shard"
    if expected.balance > max(bound, expected.balance_before):
        return f"the heaviest shard would have {expected.balance:.2f} times the mean load, more than {bound:.2f}"
    if gain < least_gain:
        return (
            f"{percent(expected.crossing_before)} of the deliveries cross, {percent(expected.crossing)} would: "
            f"less than {percent(least_gain)} is gained"
        )
    return ""


def promise(expected: Expected) -> str:
    """What is expected, in words."""
    cost = (1 + (CROSSING_COST - 1) * expected.crossing) / (1 + (CROSSING_COST - 1) * expected.crossing_before)
    return (
        f"deliveries that cross: {percent(expected.crossing_before)} → {percent(expected.crossing)}; "
        f"heaviest shard ÷ mean: {expected.balance_before:.2f} → {expected.balance:.2f}; "
        f"CPU of the engine per small message: {cost - 1:+.0%}"
    )


def came_true(expected: Expected, figures: Figures) -> str:
    """What was promised, beside what the statistics since then say."""
    if not figures.msgs:
        return "There are no deliveries in the statistics since then."
    return (
        f"deliveries that cross: {percent(figures.crossing)} (promised {percent(expected.crossing)}, "
        f"before {percent(expected.crossing_before)})\n"
        f"heaviest shard ÷ mean: {figures.unevenness(expected.shards):.2f} (promised {expected.balance:.2f}, "
        f"before {expected.balance_before:.2f})"
    )


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = place_parser().parse_args(arguments)
    if not asked.from_parquet:
        asked.stats_dir = asked.stats_dir or default_directory(asked.port or DEFAULT_PORT)
    expected: Expected | None = None
    why = refusal(asked.stats_dir, asked.from_parquet, asked.out)
    if asked.bound < 1.0:
        why = f"--bound {asked.bound}: no shard can have less than the mean; write 1.0 or more"
    if not 0 <= asked.shards < GATEWAY:
        why = f"--shards {asked.shards}: a broker has 1 to {GATEWAY - 1}"
    if asked.check:
        try:
            expected = expected_of(Path(asked.check).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, BadFile) as error:
            why = f"--check {asked.check}: {error}"
    if why:
        print(f"gnatswarm place: {why}", file=sys.stderr)
        return 1
    progress = Progress()
    progress.say("starting Spark (this takes some seconds) …")

    def work(session: SparkSession) -> int:
        if asked.from_parquet:
            return place(asked, read_parquet(session, asked.from_parquet), expected)
        with lines_of(session, asked.stats_dir, progress) as statistics:
            return place(asked, statistics, expected)

    small = is_small(asked.master, asked.stats_dir or asked.from_parquet)
    return run(
        "gnatswarm place",
        work,
        master=asked.master,
        memory=asked.memory,
        shuffle_partitions=0 if small else asked.partitions,
        settings=SMALL if small else None,
    )


def place(asked: argparse.Namespace, statistics: Statistics, expected: Expected | None) -> int:
    """Write the file, or compare what it promised; returns the exit code."""
    if expected is not None:
        since = statistics.between(expected.at_us, MOST_AT_US)
        print(came_true(expected, Figures(since, expected.services_by)))
        return 0
    figures = Figures(statistics, asked.services)
    if not figures.weights:
        print("gnatswarm place: there are no rows of clients in these statistics", file=sys.stderr)
        return 1
    rules, promised, left = plan(figures, asked.shards or figures.shards, asked.services, asked.bound)
    if left:
        shown: list[Any] = [visible(name) for name in left[:10]]
        print(f"without a rule: {', '.join(shown)}{' …' if len(left) > 10 else ''}")
    if why := objection(rules, promised, asked.bound, asked.least_gain):
        stays = f"; {asked.out} stays as it is" if Path(asked.out).exists() else ""
        print(f"nothing is written: {why}{stays}")
        return 0
    write_whole(Path(asked.out), written(rules, promised, asked.stats_dir or asked.from_parquet))
    print(f"{len(rules)} rules in {asked.out}; {promise(promised)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
