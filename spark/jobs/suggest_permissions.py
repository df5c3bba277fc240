"""`gnatswarm suggest-permissions`: the least permissions for what each user did, as a file; or what it did, as JSON.

With --dry-run the router's command runs this program with --used, and applies the broker's own rules to its lines.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from gnatswarm.spark.figures import counted
from gnatswarm.spark.jobs.arguments import (
    DATE_MISTAKE,
    DEFAULT_PORT,
    date_mistake,
    default_directory,
    suggest_permissions_parser,
)
from gnatswarm.spark.jobs.progress import Progress
from gnatswarm.spark.jobs.report import lines_of, refusal, write_whole
from gnatswarm.spark.permissions_file import suggestions, written
from gnatswarm.spark.read import Statistics, no_days_text, read_parquet
from gnatswarm.spark.session import run
from gnatswarm.spark.transforms import usage

# Pairs of user and subject that are looked at. Rules for more would not be read by anybody.
MOST_ROWS = 200_000


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = suggest_permissions_parser().parse_args(arguments)
    if not asked.from_parquet:
        asked.stats_dir = asked.stats_dir or default_directory(asked.port or DEFAULT_PORT)
    why = refusal(asked.stats_dir, asked.from_parquet, asked.out)
    if asked.least_values < 2:
        why = f"--least-values {asked.least_values}: one value is no reason for a wildcard; write 2 or more"
    if asked.date and not asked.from_parquet:
        why = DATE_MISTAKE
    why = why or date_mistake(asked.date or ())
    if asked.dry_run:
        why = "--dry-run needs the command `gnatswarm suggest-permissions`, which reads the configuration"
    if why:
        print(f"gnatswarm suggest-permissions: {why}", file=sys.stderr)
        return 1
    progress = Progress()
    progress.say("starting Spark (this takes some seconds) …")

    def work(session: SparkSession) -> int:
        if asked.from_parquet:
            if why := no_days_text(session, asked.from_parquet, asked.date or ()):
                print(f"gnatswarm suggest-permissions: {why}", file=sys.stderr)
                return 1
            return suggest(asked, read_parquet(session, asked.from_parquet, asked.date or ()))
        with lines_of(session, asked.stats_dir, progress) as statistics:
            return suggest(asked, statistics)

    name = "gnatswarm suggest-permissions"
    return run(name, work, master=asked.master, memory=asked.memory, shuffle_partitions=asked.partitions)


def suggest(asked: argparse.Namespace, statistics: Statistics) -> int:
    """Write the file, or print what was used; returns the exit code."""
    if asked.broker:
        statistics = statistics.of_broker(asked.broker)
    clients = statistics["client"]
    users = [row.asDict() for row in usage.users(clients).collect()]
    if not users:
        print("gnatswarm suggest-permissions: there are no rows of clients in these statistics", file=sys.stderr)
        return 1
    used = [row.asDict() for row in usage.usage(clients, MOST_ROWS + 1).collect()]
    is_cut = len(used) > MOST_ROWS
    if asked.used:
        for row in (*users, *used[:MOST_ROWS]):
            print(json.dumps(row))
        print(json.dumps({"is_cut": is_cut}))
        return 0
    found = suggestions(users, used[:MOST_ROWS], asked.least_values)
    source = asked.stats_dir or asked.from_parquet
    text = written(found, users, source, is_cut=is_cut)
    write_whole(Path(asked.out), text)
    incomplete = "; INCOMPLETE, it says why" if "# INCOMPLETE" in text else ""
    print(f"permissions of {counted(len(found), 'user')} in {asked.out}{incomplete}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
