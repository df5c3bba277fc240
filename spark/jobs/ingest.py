"""`gnatswarm ingest`: the shards' files into Parquet, each row exactly once, as far as there are files or for ever."""

from __future__ import annotations

import argparse
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark import schema
from spark.jobs.progress import Progress
from spark.read import OPTIONS, with_source
from spark.session import NoJava, new_session
from spark.write import write_batch


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="gnatswarm ingest", description=__doc__)
    made.add_argument("--stats-dir", required=True, help="where the shards write")
    made.add_argument("--out", required=True, help="directory of the Parquet tables")
    made.add_argument(
        "--checkpoint", default="", help="where the stream remembers what it has read (default: in --out)"
    )
    made.add_argument("--continuous", action="store_true", help="go on until interrupted")
    made.add_argument("--every", default="30 seconds", help="with --continuous: how often (default: %(default)s)")
    made.add_argument("--files-per-batch", type=int, default=2000, help="default: %(default)s")
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument("--memory", default="1g", help="of the driver (default: %(default)s)")
    return made


def start(
    session: SparkSession,
    stats_dir: str,
    out: str,
    *,
    checkpoint: str = "",
    every: str = "",
    files_per_batch: int = 2000,
    on_batch: object = None,
) -> StreamingQuery:
    """The stream; `every` "" ends it when all files that are there have been read."""
    lines = (
        session.readStream.schema(schema.ddl())
        .options(**OPTIONS)
        .option("maxFilesPerTrigger", files_per_batch)
        # A backlog older than Spark's week would be left out in silence.
        .option("maxFileAge", "36500d")
        .json(stats_dir)
    )

    def write(batch_lines: DataFrame, batch: int) -> None:
        counts = write_batch(batch_lines, batch, out)
        if callable(on_batch):
            on_batch(batch, counts)

    writer = (
        with_source(lines)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint or f"{out}/_checkpoint")
    )
    return (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()


def main(arguments: list[str]) -> int:
    """The program; its exit code."""
    asked = parser().parse_args(arguments)
    progress = Progress()
    progress.say("starting Spark (this takes some seconds) …")
    try:
        session = new_session("gnatswarm ingest", master=asked.master, memory=asked.memory, shuffle_partitions=8)
    except NoJava as error:
        print(f"gnatswarm ingest: {error}", file=sys.stderr)
        return 1
    total: dict[str, int] = {}

    def on_batch(batch: int, counts: dict[str, int]) -> None:
        for kind, n in counts.items():
            total[kind] = total.get(kind, 0) + n
        progress.say(f"batch {batch}: " + ", ".join(f"{n:,} {kind}" for kind, n in counts.items()))

    started = time.monotonic()
    query = start(
        session,
        asked.stats_dir,
        asked.out,
        checkpoint=asked.checkpoint,
        every=asked.every if asked.continuous else "",
        files_per_batch=asked.files_per_batch,
        on_batch=on_batch,
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    aside = total.pop("aside", 0)
    progress.say(f"{sum(total.values()):,} rows in {time.monotonic() - started:.1f} s, {aside:,} lines set aside")
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
