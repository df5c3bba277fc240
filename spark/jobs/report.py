"""`gnatswarm report`: what a broker did, as one HTML page, and as tables (Parquet and CSV) where they are wanted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark.advice import Advice, advise
from spark.answers import answers
from spark.jobs.progress import Progress
from spark.page import page
from spark.read import Statistics, read_lines, read_parquet, split
from spark.session import run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="gnatswarm report", description=__doc__)
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--stats-dir", default="", help="where the shards write")
    source.add_argument("--from-parquet", default="", metavar="DIR", help="what `gnatswarm ingest` has written")
    made.add_argument("--out", default="report.html", help="the page (default: %(default)s)")
    made.add_argument("--tables", default="", metavar="DIR", help="also every answer as Parquet and CSV, here")
    made.add_argument("--top", type=int, default=25, help="rows of the long tables (default: %(default)s)")
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=4, help="of shuffles; more for more than some million rows")
    made.add_argument("--memory", default="1g", help="of the driver (default: %(default)s)")
    return made


def statistics_of(session: SparkSession, stats_dir: str, parquet: str) -> Statistics:
    """From either source; lines are parsed once."""
    if parquet:
        return read_parquet(session, parquet)
    return split(read_lines(session, stats_dir))


def collect(statistics: Statistics, most: int, progress: Progress | None = None) -> dict[str, list[dict[str, Any]]]:
    """Every answer, as rows."""
    found = {}
    for name, frame in answers(statistics, most).items():
        if progress is not None:
            progress.say(f"{name} …")
        found[name] = [row.asDict() for row in frame.collect()]
    return found


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = parser().parse_args(arguments)
    progress = Progress()
    if asked.stats_dir and not Path(asked.stats_dir).is_dir() and "://" not in asked.stats_dir:
        print(f"gnatswarm report: there is no directory {asked.stats_dir}", file=sys.stderr)
        return 1
    if asked.from_parquet and "://" not in asked.from_parquet and not (Path(asked.from_parquet) / "files").is_dir():
        print(f"gnatswarm report: {asked.from_parquet} has no tables of `gnatswarm ingest`", file=sys.stderr)
        return 1
    if not Path(asked.out).resolve().parent.is_dir():
        print(f"gnatswarm report: there is no directory {Path(asked.out).resolve().parent}", file=sys.stderr)
        return 1
    progress.say("starting Spark (this takes some seconds) …")

    def work(session: SparkSession) -> int:
        progress.say(f"Spark {session.version} on {session.sparkContext.master}; reading …")
        statistics = statistics_of(session, asked.stats_dir, asked.from_parquet)
        found = collect(statistics, asked.top, progress)
        if not found["shards"] and not found["gaps"] and not found["aside"]:
            print(
                f"gnatswarm report: there are no statistics in {asked.stats_dir or asked.from_parquet}", file=sys.stderr
            )
            return 1
        advice = advise(found)
        Path(asked.out).write_text(page(found, advice, asked.stats_dir or asked.from_parquet), encoding="utf-8")
        if asked.tables:
            write_tables(statistics, asked.top, asked.tables, progress)
        progress.say(f"{asked.out} is written")
        print(summary(found, advice))
        return 0

    return run("gnatswarm report", work, master=asked.master, memory=asked.memory, shuffle_partitions=asked.partitions)


def write_tables(statistics: Statistics, most: int, directory: str, progress: Progress) -> None:
    """Every answer as a file of Parquet and one of CSV."""
    for name, frame in answers(statistics, most).items():
        progress.say(f"table {name} …")
        frame.coalesce(1).write.mode("overwrite").parquet(f"{directory}/{name}.parquet")
        frame.coalesce(1).write.mode("overwrite").csv(f"{directory}/{name}.csv", header=True)


def summary(found: dict[str, list[dict[str, Any]]], advice: list[Advice]) -> str:
    """The headline for a terminal."""
    totals = found["totals"][0]
    lines = [f"{totals['in_msgs']:,} messages, {totals['out_msgs']:,} deliveries, {len(found['shards'])} shards"]
    lines += [f"- {one.what} ({one.figures})" for one in advice]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
