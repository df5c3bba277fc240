"""`gnatswarm report`: a broker's statistics as one HTML page, and optionally as tables (Parquet and CSV) and plots."""

from __future__ import annotations

import argparse
import contextlib
import csv
import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gnatswarm.spark.advice import Advice, Rows, advise
from gnatswarm.spark.answers import answers
from gnatswarm.spark.directories import absolute, unusable_text
from gnatswarm.spark.explain import explained
from gnatswarm.spark.jobs import ingest
from gnatswarm.spark.jobs.arguments import (
    DATE_MISTAKE,
    DEFAULT_PORT,
    date_mistake,
    default_directory,
    report_parser,
    unreadable_text,
)
from gnatswarm.spark.jobs.progress import Progress
from gnatswarm.spark.page import page
from gnatswarm.spark.period import BadPeriod, periods
from gnatswarm.spark.plots import plots
from gnatswarm.spark.read import (
    FILES,
    LINES,
    Statistics,
    no_days_text,
    parquet,
    read_lines,
    read_parquet,
    split,
    stored_files,
    unreadable,
)
from gnatswarm.spark.session import SMALL, is_here, run
from gnatswarm.spark.transforms import graph, talkers
from gnatswarm.spark.unfinished import copy_unfinished, has_unfinished, is_being_written
from gnatswarm.spark.write import write_batch

# Of compressed files: some half a million rows. Every result reads all parsed rows, so they have to stay in memory;
# with ten times as many and a heap of 1 GB, Spark writes them to disk and reads them again for each of twenty results.
MOST_KEPT_BYTES = 8 << 20
# Of compressed files: some 10^5 rows. In tables a row takes a quarter of that, or much less where all are alike.
MOST_SMALL_BYTES = 2 << 20
PARQUET_WEIGHT = 4
# The batch number of the temporary tables. It is after every batch of the stream, so that a row in both counts once.
LAST_BATCH = 1 << 30
# Why a file cannot be replaced that can be written: it or its directory is mounted, or its owner is nobody here.
IN_PLACE = (errno.EPERM, errno.EACCES, errno.EBUSY, errno.EINVAL, errno.EROFS)


def is_small(master: str, directory: str) -> bool:
    """Whether session.SMALL costs least: all is on this machine, and in at most MOST_SMALL_BYTES of files."""
    if "://" in directory or not is_here(master):
        return False
    left = MOST_SMALL_BYTES
    for ending, weight in ((LINES, 1), ("*.parquet", PARQUET_WEIGHT)):
        for path in Path(directory).rglob(ending):
            with contextlib.suppress(OSError):  # retention
                left -= weight * path.stat().st_size
            if left < 0:
                return False
    return True


@contextlib.contextmanager
def lines_of(
    session: SparkSession, stats_dir: str, progress: Progress, *, is_small: bool = False
) -> Iterator[Statistics]:
    """Parse the shards' files once: keep the rows in memory if there are few, else in temporary tables."""
    with contextlib.ExitStack() as stack:
        # Executors on other machines cannot read or write a local directory; they have their own memory and disks.
        here = is_here(session.sparkContext.master or "")
        left = [_unfinished(stats_dir, stack, progress)] if here else []
        found = stored_files(stats_dir)
        stored = sum(status.st_size for status in found.values())
        if stored <= MOST_KEPT_BYTES or not here:
            yield split(read_lines(session, stats_dir, *filter(None, left)), is_small=is_small)
            return
        tables = stack.enter_context(tempfile.TemporaryDirectory(prefix="gnatswarm-report-"))
        progress.say(
            f"{len(found):,} files, {stored / 1e6:,.0f} MB: making temporary tables in {tables} first "
            "(`gnatswarm ingest` makes permanent ones, and later reads only new files)"
        )

        def on_batch(batch: int, counts: dict[str, int]) -> None:
            progress.say(f"batch {batch}: {sum(counts.values()):,} rows")

        ingest.start(session, stats_dir, tables, on_batch=on_batch).awaitTermination()
        for directory in filter(None, left):
            write_batch(read_lines(session, directory), LAST_BATCH, tables)
        statistics = read_parquet(session, tables)
        listed = read_lines(session, stats_dir).inputFiles()
        none_of_it = unreadable(session, listed, parquet(session, f"{tables}/files", FILES))
        yield Statistics(statistics.kinds, statistics.aside.unionByName(none_of_it))


def _unfinished(stats_dir: str, stack: contextlib.ExitStack, progress: Progress) -> str:
    """A directory of copies of what is whole in unfinished files, until the stack closes; "" if there are none."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="gnatswarm-report-"))
    copied = copy_unfinished(stats_dir, Path(directory))
    if copied:
        progress.say(f"{copied:,} files were not finished, their broker was killed: reading their whole windows")
    return directory if copied else ""


def collect(
    statistics: Statistics, most: int, progress: Progress | None = None, *, services: str = "auto"
) -> dict[str, list[dict[str, Any]]]:
    """Every result, as rows."""
    return collected(answers(statistics, most, services), progress)


def collected(frames: Mapping[str, DataFrame], progress: Progress | None = None) -> dict[str, list[dict[str, Any]]]:
    """These results, as rows."""
    found = {}
    for name, frame in frames.items():
        if progress is not None:
            progress.say(f"{name} …")
        found[name] = [row.asDict() for row in frame.collect()]
    return found


def changes(statistics: Statistics, period: str, services: str, most: int) -> tuple[Statistics, DataFrame]:
    """The statistics of the time after `period`, and what has changed since. BadPeriod."""
    rows = statistics["client"]
    last_us = rows.agg(F.coalesce(F.max("window_start_us"), F.lit(0))).collect()[0][0]
    asked = periods(period, last_us)

    def edges(of: Statistics) -> tuple[DataFrame, float]:
        mine = of["client"]
        length = (F.max(F.col("window_start_us") + F.col("window_us")) - F.min("window_start_us")) / 1e6
        seconds = mine.agg(length).collect()[0][0]
        return graph.edges(graph.flows(talkers.by_service(mine, services))), seconds or 0.0

    before, before_s = edges(statistics.between(*asked.before))
    now = statistics.between(*asked.now)
    after, after_s = edges(now)
    if not before_s:
        raise BadPeriod(f"there are no rows of clients in {period}")
    if not after_s:
        raise BadPeriod(f"there are no rows of clients after {period}")
    return now, graph.changes(before, after, before_s, after_s, most)


def explain(statistics: Statistics, subject: str, services: str) -> str:
    """What is known of one subject."""
    parts = graph.of_subject(talkers.by_service(statistics["client"], services), subject)
    publishers, listeners, edges = ([row.asDict() for row in part.collect()] for part in parts)
    return explained(subject, publishers, listeners, edges)


def refusal(stats_dir: str, parquet: str, out: str) -> str:
    """Why these directories cannot be used, or ""; addresses (with ://) are not checked."""
    if why := unusable_text(stats_dir, parquet):
        return why
    if stats_dir and "://" not in stats_dir:
        if why := unreadable_text(stats_dir):
            return why
        if not stored_files(stats_dir) and not has_unfinished(stats_dir):
            if is_being_written(stats_dir):
                return f"the first file in {stats_dir} is still being written: after a minute, or when the broker stops"
            return f"there are no statistics in {stats_dir}"
    if parquet and "://" not in parquet and not os.path.isdir(Path(parquet) / "files"):
        return f"{parquet} has no tables of `gnatswarm ingest`"
    folder = Path(out).resolve().parent
    return "" if os.path.isdir(folder) else f"there is no directory {folder}"


def mistake(asked: argparse.Namespace) -> str:
    """What is wrong with the command line, or ""."""
    if why := talkers.services_mistake(asked.services):
        return f"--services: {why}"
    if asked.date and not asked.from_parquet:
        return DATE_MISTAKE
    if why := date_mistake(asked.date or ()):
        return why
    if why := unusable_text(asked.tables):
        return f"--tables: {why}"
    try:
        if asked.compare:
            periods(asked.compare, 0)
    except BadPeriod as error:
        return f"--compare: {error}"
    return ""


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = report_parser().parse_args(arguments)
    if not asked.from_parquet:
        asked.stats_dir = asked.stats_dir or default_directory(asked.port or DEFAULT_PORT)
    progress = Progress()
    if why := mistake(asked) or refusal(asked.stats_dir, asked.from_parquet, asked.out):
        print(f"gnatswarm report: {why}", file=sys.stderr)
        return 1
    progress.say("starting Spark (this takes some seconds) …")
    small = is_small(asked.master, asked.stats_dir or asked.from_parquet)

    def work(session: SparkSession) -> int:
        progress.say(f"Spark {session.version} on {session.sparkContext.master}; reading …")
        if asked.from_parquet:
            if why := no_days_text(session, asked.from_parquet, asked.date or ()):
                print(f"gnatswarm report: {why}", file=sys.stderr)
                return 1
            statistics = read_parquet(session, asked.from_parquet, asked.date or ())
            return report(asked, session, replace(statistics, is_small=small), progress)
        with lines_of(session, asked.stats_dir, progress, is_small=small) as statistics:
            return report(asked, session, statistics, progress)

    return run(
        "gnatswarm report",
        work,
        master=asked.master,
        memory=asked.memory,
        shuffle_partitions=0 if small else asked.partitions,
        settings=SMALL if small else None,
    )


def write_whole(path: Path, text: str) -> None:
    """Write it, in the place of what is there: that stays if this fails, or is killed. OSError that names the file.

    Owner and mode stay. A device, a pipe, a link, a file that is mounted, one whose owner nobody else can be, and one
    in a directory where no other can be made, are written as they are; one that may not be written is not replaced.
    """
    try:
        if not _replaced(path, text):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _replaced(path: Path, text: str) -> bool:
    """Whether a new file could take its place."""
    is_there = path.exists()
    if path.is_symlink() or (is_there and not (path.is_file() and os.access(path, os.W_OK))):
        return False
    # In a directory of all users nobody else knows the name, and nobody may read what its owner alone could.
    draft = path.with_name(f".gnatswarm-{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_there else 0o666)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if is_there:
            former = path.stat()
            os.chown(draft, former.st_uid, former.st_gid)
            shutil.copymode(path, draft)
        draft.replace(path)
    except OSError as error:
        if error.errno in IN_PLACE:
            return False
        raise
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return True


def report(asked: argparse.Namespace, session: SparkSession, statistics: Statistics, progress: Progress) -> int:
    """Write the page, tables and plots; returns the exit code."""
    source = asked.stats_dir or asked.from_parquet
    if asked.broker:
        statistics = statistics.of_broker(asked.broker)
        if all(rows.isEmpty() for rows in statistics.kinds.values()):
            print(f"gnatswarm report: there are no rows of a broker {asked.broker} in {source}", file=sys.stderr)
            return 1
    if asked.explain:
        print(explain(statistics, asked.explain, asked.services))
        return 0
    frames: dict[str, DataFrame] = {}
    if asked.compare:
        try:
            statistics, frames["changes"] = changes(statistics, asked.compare, asked.services, asked.top)
        except BadPeriod as error:
            print(f"gnatswarm report: --compare: {error}", file=sys.stderr)
            return 1
    frames = answers(statistics, asked.top, asked.services) | frames
    found = collected(frames, progress)
    if not found["shards"] and not found["gaps"] and not found["aside"]:
        print(f"gnatswarm report: there are no statistics in {source}", file=sys.stderr)
        return 1
    advice = advise(found)
    write_whole(Path(asked.out), page(found, advice, source))
    if asked.tables:
        progress.say(f"tables in {asked.tables} …")
        write_tables(session, frames, found, Path(asked.tables))
    if asked.png:
        for path in plots(found, Path(asked.png)):
            progress.say(f"{path} is written")
    progress.say(f"{asked.out} is written")
    print(summary(found, advice))
    return 0


def write_tables(
    session: SparkSession, frames: Mapping[str, DataFrame], found: Mapping[str, Rows], directory: Path
) -> None:
    """Write every collected result as NAME.csv and NAME.parquet."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        rows = [tuple(row.values()) for row in found[name]]
        with (directory / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([frame.columns, *rows])
        session.createDataFrame(rows, frame.schema).coalesce(1).write.mode("overwrite").parquet(
            absolute(f"{directory}/{name}.parquet")
        )


def summary(found: dict[str, list[dict[str, Any]]], advice: list[Advice]) -> str:
    """Totals and advice, for a terminal."""
    totals, shards = found["totals"][0], sum(row["is_current"] for row in found["shards"])
    lines = [f"{totals['in_msgs']:,} messages, {totals['out_msgs']:,} deliveries, {shards} shards"]
    lines += [f"- {one.what} ({one.figures})" for one in advice]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
