"""Writes one micro-batch to Parquet; writing it again has the same result.

    <out>/<kind>/batch=<id>/date=<YYYY-MM-DD>/…parquet        <out>/aside/batch=<id>/…        <out>/files/batch=<id>/…

A batch that is tried again overwrites its own directories with the same rows. `files`, the list of the broker's files
in the batch, is written last: with it the batch is complete. A file that another batch has already, under any name, is
a copy and is left out. So any reader of Parquet counts every row once, even if the job was killed.
"""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark import schema
from gnatswarm.spark.read import IDENTITY, chosen, files_of, judge, no_rows, parquet, set_aside

# Rows of one Parquet file: some 30 MB of subjects. Few files, but enough for many cores.
ROWS_PER_FILE = 1_000_000
# Columns of `files`, one row per file that was read; identity and rows are null if the file was left out.
FILES = [*IDENTITY, "source", "rows"]


def write_batch(lines: DataFrame, batch: int, out: str) -> dict[str, int]:
    """Write the batch; returns rows by kind, `copies` (rows of files that other batches have), and `aside`."""
    # Each kind reads these rows once, which does not justify memory.
    judged = judge(lines, StorageLevel.DISK_ONLY)
    try:
        is_good = F.col("why").isNull()
        by_kind = judged.groupBy(F.when(is_good, F.col("kind")).alias("kind")).count().collect()
        counts = {row["kind"]: row["count"] for row in by_kind if row["kind"]}
        good = judged.where(is_good)
        files = files_of(good).persist()
        taken = chosen(files).join(_known(lines, batch, out), IDENTITY, "left_anti").persist()
        try:
            copies = _rows(files) - _rows(taken)
            if copies:
                good = good.join(F.broadcast(taken).select(*IDENTITY, "source"), [*IDENTITY, "source"], "left_semi")
            for kind, n in counts.items():
                rows = good.where(F.col("kind") == kind).select(*schema.columns(kind))
                overwrite(dated(rows), f"{out}/{kind}/batch={batch}", n, by="date")
            n_aside = sum(row["count"] for row in by_kind if not row["kind"])
            if n_aside:
                overwrite(set_aside(judged), f"{out}/aside/batch={batch}", n_aside)
            seen = judged.select("source").distinct()
            overwrite(seen.join(taken, "source", "left").select(*FILES), f"{out}/files/batch={batch}", 1)
        finally:
            files.unpersist()
            taken.unpersist()
        return {**counts, "copies": copies, "aside": n_aside}
    finally:
        judged.unpersist()


def _known(lines: DataFrame, batch: int, out: str) -> DataFrame:
    """The files in other batches."""
    found = parquet(lines.sparkSession, f"{out}/files")
    if found is None:
        return no_rows(lines.sparkSession, {name: schema.COMMON[name] for name in IDENTITY})
    return found.where(F.col("batch") != batch).select(*IDENTITY)


def dated(rows: DataFrame) -> DataFrame:
    """The rows with the UTC day of their window, by which they are partitioned."""
    return rows.withColumn("date", F.date_format(F.timestamp_micros("window_start_us"), "yyyy-MM-dd"))


def _rows(files: DataFrame) -> int:
    return int(files.agg(F.coalesce(F.sum("rows"), F.lit(0))).collect()[0][0])


def overwrite(rows: DataFrame, path: str, n: int, by: str = "") -> None:
    """Write `n` rows, ROWS_PER_FILE to a file."""
    writer = rows.coalesce(-(-n // ROWS_PER_FILE)).write.mode("overwrite")
    (writer.partitionBy(by) if by else writer).parquet(path)
