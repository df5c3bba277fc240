"""`gnatswarm ingest`: the shards' files into Parquet tables, each row exactly once; ends, or runs continuously."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gnatswarm.spark import schema
from gnatswarm.spark.directories import absolute, literal, unusable_text
from gnatswarm.spark.jobs.arguments import DEFAULT_PORT, default_directory, ingest_parser, unreadable_text
from gnatswarm.spark.jobs.progress import Progress
from gnatswarm.spark.lock import alone
from gnatswarm.spark.read import FILES, OPTIONS, parquet, place, stored_files, with_source
from gnatswarm.spark.session import StopSignal, reason, run
from gnatswarm.spark.standing import NotOurs, StandingAnswers
from gnatswarm.spark.transforms import talkers
from gnatswarm.spark.write import write_batch

# A batch may take this long to finish when the stream must stop; if it takes longer, the next run repeats it.
FINISH_BATCH_S = 60


def start(
    session: SparkSession,
    stats_dir: str,
    out: str,
    *,
    checkpoint: str = "",
    every: str = "",
    batch_mb: int = 64,
    files_per_batch: int = 0,
    on_batch: object = None,
    on_error: Callable[[Exception], object] = lambda error: None,
) -> StreamingQuery:
    """Start the stream; with `every` "" it ends when it has read all existing files.

    `on_error` gets what ends it in a batch: of that Spark tells the text alone, behind much of its own.
    """
    lines = (
        session.readStream.schema(schema.ddl())
        .options(**OPTIONS)
        .options(
            **({"maxFilesPerTrigger": files_per_batch} if files_per_batch else {"maxBytesPerTrigger": batch_mb << 20})
        )
        # By default Spark silently leaves out files that are older than a week.
        .option("maxFileAge", "36500d")
        .json(literal(stats_dir))
    )

    def write(batch_lines: DataFrame, batch: int) -> None:
        try:
            counts = write_batch(batch_lines, batch, out)
        except Exception as error:
            on_error(error)
            raise
        if callable(on_batch):
            on_batch(batch, counts)

    writer = (
        with_source(lines)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", absolute(checkpoint or f"{out}/_checkpoint"))
    )
    return (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()


def refusal(stats_dir: str, out: str, checkpoint: str) -> str:
    """Why these directories cannot be used, or ""; addresses (with ://) are not checked."""
    if why := unusable_text(stats_dir, out, checkpoint):
        return why
    if "://" in stats_dir or "://" in out:
        return ""
    if why := unreadable_text(stats_dir):
        return why
    if os.path.isdir(Path(out) / "files") and not os.path.isfile(Path(checkpoint, "metadata")):
        # Batch numbers would start from 0 again, and overwrite existing batches.
        return f"{out} was written with another checkpoint than {checkpoint}: use that one, or another --out"
    return ""


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = ingest_parser().parse_args(arguments)
    asked.stats_dir = asked.stats_dir or default_directory(asked.port or DEFAULT_PORT)
    checkpoint = asked.checkpoint or f"{asked.out}/_checkpoint"
    mistake = talkers.services_mistake(asked.services)
    why = (mistake and f"--services: {mistake}") or refusal(asked.stats_dir, asked.out, checkpoint)
    standing = None
    if asked.answers and not why:
        try:
            standing = StandingAnswers(asked.answers, asked.out, asked.services)
        except NotOurs as error:
            why = str(error)
    if why:
        print(f"gnatswarm ingest: {why}", file=sys.stderr)
        return 1
    progress = Progress()
    progress.say("starting Spark (this takes some seconds) …")
    total: dict[str, int] = {}
    errors: list[Exception] = []

    def on_batch(batch: int, counts: dict[str, int]) -> None:
        for kind, n in counts.items():
            total[kind] = total.get(kind, 0) + n
        progress.say(f"batch {batch}: " + ", ".join(f"{n:,} {kind}" for kind, n in counts.items()))

    stop = StopSignal()

    def work(session: SparkSession) -> int:
        with alone(asked.out) as is_alone:
            if is_alone:
                return read(session)
        print(f"gnatswarm ingest: another one is writing to {asked.out}", file=sys.stderr)
        return 1

    def read(session: SparkSession) -> int:
        stop.listen()
        started, began = time.monotonic(), time.time()
        progress.say(f"reading {asked.stats_dir}" + (f" every {asked.every}" if asked.continuous else ""))
        query = start(
            session,
            asked.stats_dir,
            asked.out,
            checkpoint=checkpoint,
            every=asked.every if asked.continuous else "",
            batch_mb=asked.batch_mb,
            files_per_batch=asked.files_per_batch,
            on_batch=on_batch,
            on_error=errors.append,
        )

        def refresh(now: bool) -> bool:
            """Whether the answers stand as they should."""
            if standing is None:
                return True
            make, began = standing.refresh if now else standing.refresh_if_due, time.monotonic()
            try:
                days = make(session, lambda: stop.is_asked)
            except (OSError, PySparkException) as error:  # the rows go on
                progress.say(f"no new answers in {asked.answers}: {reason(error)}")
                return False
            if days:
                progress.say(f"answers of {', '.join(days)} in {asked.answers}: {time.monotonic() - began:.1f} s")
            return True

        try:
            wait(query, stop, progress, lambda: refresh(now=False), lambda: session.sparkContext.setLogLevel("OFF"))
        except PySparkException:
            if not errors:
                raise
            print(f"gnatswarm ingest: cannot write a batch to {asked.out}: {reason(errors[-1])}", file=sys.stderr)
            return 1
        are_answered = stop.is_asked or refresh(now=True)
        # (who is stopped has not come to the rest yet)
        for path in [] if stop.is_asked else unread(session, asked.stats_dir, asked.out, began):
            progress.say(f"nothing can be read of {path}")
        aside, copies = total.pop("aside", 0), total.pop("copies", 0)
        progress.say(
            f"{sum(total.values()) - copies:,} rows in {time.monotonic() - started:.1f} s, {aside:,} lines set aside, "
            f"{copies:,} rows of copies left out"
        )
        return 0 if are_answered else 1

    return run("gnatswarm ingest", work, master=asked.master, memory=asked.memory, shuffle_partitions=asked.partitions)


def unread(session: SparkSession, stats_dir: str, out: str, began: float) -> list[Path]:
    """Files older than this run from which no line was read, not even one that was set aside."""
    if "://" in stats_dir or "://" in out:
        return []
    old = {path for path, status in stored_files(stats_dir).items() if status.st_mtime < began}
    written = parquet(session, f"{out}/files", FILES) if old else None
    known = {row[0] for row in written.select("source").distinct().collect()} if written is not None else set()
    return sorted(old - {Path(place(source)) for source in known})


def wait(
    query: StreamingQuery,
    stop: StopSignal,
    progress: Progress,
    meanwhile: Callable[[], object],
    hush: Callable[[], object],
) -> None:
    """Wait until the stream has ended, and call `meanwhile` each second.

    On a signal stop the stream, after its current batch if that is soon; else `hush` comes first, because Spark logs
    what it was doing. The batch is made again by the next run.
    """
    while not stop.is_asked and not query.awaitTermination(1):
        meanwhile()
    if query.isActive:
        progress.say("stopping …")
        until = time.monotonic() + FINISH_BATCH_S
        while query.status["isTriggerActive"] and time.monotonic() < until and not query.awaitTermination(1):
            pass
        if query.status["isTriggerActive"]:
            progress.say(f"the batch is not done after {FINISH_BATCH_S} s: the next run makes it")
            hush()
        query.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
