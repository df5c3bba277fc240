"""`gnatswarm compact`: whole days of the tables of `gnatswarm ingest`, sorted, in few files, in another directory."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gnatswarm.spark import schema
from gnatswarm.spark.directories import absolute, unusable_text
from gnatswarm.spark.jobs.arguments import compact_parser, date_mistake
from gnatswarm.spark.jobs.progress import Progress
from gnatswarm.spark.lock import alone
from gnatswarm.spark.read import IDENTITY, no_days_text, parquet, read_parquet
from gnatswarm.spark.session import run
from gnatswarm.spark.write import ROWS_PER_FILE, dated

# Other kinds are sorted by window_start_us.
SORTED_BY = {"subject": ["account", "subject", "window_start_us"], "queue": ["account", "queue", "window_start_us"]}
# Beside the days of a kind, and read by nobody: those that are being made, and what one of them takes the place of.
MADE = ".made-"
REPLACED = ".replaced-"
# A run in another container, or on another host, has no process here: it is over when it has been silent for so long.
# (One that loses half of what it has written writes the rest, and says nothing.)
OVER_AFTER_S = 24 * 3600.0


def compact(
    session: SparkSession, source: str, out: str, dates: list[str], on_wait: Callable[[], object] = lambda: None
) -> dict[str, int]:
    """Rows by kind. A later run overwrites these days, and adds rows that were ingested late.

    What an earlier one has put there stays, also if it has been removed from the tables since. A run that writes there
    is waited for, after a call of `on_wait`.
    """
    with alone(out, on_wait):
        return _compact(session, source, out, dates)


def _compact(session: SparkSession, source: str, out: str, dates: list[str]) -> dict[str, int]:
    put_back(out)
    statistics, archived = (read_parquet(session, directory, dates) for directory in (source, out))
    counts = {}
    for kind in schema.KINDS:
        rows = _with_archived(statistics[kind], archived[kind])
        if n := rows.count():
            counts[kind] = n
            ordered = dated(rows.coalesce(-(-n // ROWS_PER_FILE))).sortWithinPartitions(
                *SORTED_BY.get(kind, ["window_start_us"])
            )
            _overwrite_days(ordered, f"{out}/{kind}")
    if counts:  # written last: a day is complete if the list of its files exists
        files = functools.reduce(DataFrame.union, (_files(session, f"{out}/{kind}", kind, dates) for kind in counts))
        _overwrite_days(files.distinct().withColumn("rows", F.lit(None).cast("bigint")).coalesce(1), f"{out}/files")
    return counts


def _with_archived(rows: DataFrame, archived: DataFrame) -> DataFrame:
    """The rows; of files of which the archive has more rows, or all, those of the archive."""
    here, there = (each.groupBy(*IDENTITY).agg(F.count("*").alias(n)) for each, n in ((rows, "here"), (archived, "n")))
    more = there.join(here, IDENTITY, "left").where("n > coalesce(here, 0)").select(*IDENTITY)
    kept = rows.join(more, IDENTITY, "left_anti").select(*rows.columns)
    return kept.unionByName(archived.join(more, IDENTITY, "left_semi"))


def _files(session: SparkSession, directory: str, kind: str, dates: list[str]) -> DataFrame:
    """The files of which rows were written there, of these days."""
    written = parquet(session, directory, schema.types(kind))
    assert written is not None
    day = F.col("date").cast("string")
    return written.where(day.isin(dates)).select(*IDENTITY, "source", day.alias("date")).distinct()


def _overwrite_days(rows: DataFrame, directory: str) -> None:
    """A day that is there is so until the new one is, or is put back: Spark would delete it first."""
    if "://" in directory:
        days = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        days.partitionBy("date").parquet(directory)
        return
    made = Path(absolute(f"{directory}/{MADE}{os.getpid()}"))
    try:
        rows.write.mode("overwrite").partitionBy("date").parquet(str(made))
        for day in made.glob("date=*"):
            replace_day(made.parent / day.name, day)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def replace_day(day: Path, made: Path) -> None:
    """`made` takes its place, if it is there."""
    replaced = day.with_name(REPLACED + day.name)
    if day.exists():
        day.rename(replaced)
    made.rename(day)
    shutil.rmtree(replaced, ignore_errors=True)


def put_back(out: str) -> None:
    """What runs that were killed have left: in replace_day(), and days that they were making."""
    if "://" in out:
        return
    for made in Path(out).glob(f"*/{MADE}*"):
        if not Path("/proc", made.name.removeprefix(MADE)).exists() and _is_old(made):
            shutil.rmtree(made, ignore_errors=True)
    for replaced in Path(out).glob(f"*/{REPLACED}date=*"):
        day = replaced.with_name(replaced.name.removeprefix(REPLACED))
        if day.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(day)


def _is_old(made: Path) -> bool:
    try:
        return time.time() - made.stat().st_mtime > OVER_AFTER_S
    except FileNotFoundError:  # its run has ended
        return False


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = compact_parser().parse_args(arguments)
    if why := date_mistake(asked.date) or unusable_text(asked.from_parquet, asked.out):
        print(f"gnatswarm compact: {why}", file=sys.stderr)
        return 1
    if "://" not in asked.from_parquet and not os.path.isdir(Path(asked.from_parquet) / "files"):
        print(f"gnatswarm compact: {asked.from_parquet} has no tables of `gnatswarm ingest`", file=sys.stderr)
        return 1
    if Path(asked.from_parquet).resolve() == Path(asked.out).resolve():
        print("gnatswarm compact: --out has to be another directory", file=sys.stderr)
        return 1
    # Days of an archive and batches cannot be in one table: Spark would read neither.
    if "://" not in asked.out and any(Path(asked.out).glob("files/batch=*")):
        print(f"gnatswarm compact: {asked.out} has tables of `gnatswarm ingest`: choose another --out", file=sys.stderr)
        return 1
    progress = Progress()
    progress.say("starting Spark (this takes some seconds) …")

    def work(session: SparkSession) -> int:
        if why := no_days_text(session, asked.from_parquet, asked.date):
            print(f"gnatswarm compact: {why}", file=sys.stderr)
            return 1
        started = time.monotonic()
        waits = f"waiting for another run that writes to {asked.out} …"
        counts = compact(session, asked.from_parquet, asked.out, asked.date, lambda: progress.say(waits))
        shown = ", ".join(f"{n:,} {kind}" for kind, n in counts.items())
        progress.say(f"{shown} in {time.monotonic() - started:.1f} s")
        return 0

    return run("gnatswarm compact", work, master=asked.master, memory=asked.memory, shuffle_partitions=asked.partitions)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
