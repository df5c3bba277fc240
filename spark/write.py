"""One micro-batch to Parquet, so that doing it twice is doing it once.

    <out>/<kind>/batch=<id>/date=<YYYY-MM-DD>/…parquet        <out>/aside/batch=<id>/…        <out>/files/batch=<id>/…

A batch that is tried again overwrites its own directories with the same rows; `files`, which of the broker's files are
in it, is written last and makes it whole. A file that another batch has already, under whatever name, is a copy and is
left out. So any reader of Parquet counts every row once, whatever was killed when.
"""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark import schema
from spark.read import IDENTITY, chosen, files_of, judge, parquet, set_aside

# Of one file that is written: some 30 MB of subjects. Few files, and enough of them for many cores.
ROWS_PER_FILE = 1_000_000
# One row per file that was read; no identity and no rows: nothing of it was taken.
FILES = [*IDENTITY, "source", "rows"]


def write_batch(lines: DataFrame, batch: int, out: str) -> dict[str, int]:
    """Writes the batch; rows by kind, `copies` for those of files that other batches have, and `aside`."""
    # Read once per kind: not worth the memory.
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
    """The files that other batches have."""
    found = parquet(lines.sparkSession, f"{out}/files")
    if found is None:
        return lines.sparkSession.createDataFrame([], "broker string, boot string, shard bigint, file bigint")
    return found.where(F.col("batch") != batch).select(*IDENTITY)


def dated(rows: DataFrame) -> DataFrame:
    """With the UTC day of their window, by which they are partitioned."""
    return rows.withColumn("date", F.date_format(F.timestamp_micros("window_start_us"), "yyyy-MM-dd"))


def _rows(files: DataFrame) -> int:
    return int(files.agg(F.coalesce(F.sum("rows"), F.lit(0))).collect()[0][0])


def overwrite(rows: DataFrame, path: str, n: int, by: str = "") -> None:
    """So many rows in as many files as they need."""
    writer = rows.coalesce(-(-n // ROWS_PER_FILE)).write.mode("overwrite")
    (writer.partitionBy(by) if by else writer).parquet(path)
