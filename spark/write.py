"""Writes one micro-batch to Parquet; writing it again has the same result.

    <out>/<kind>/batch=<id>/date=<YYYY-MM-DD>/…parquet        <out>/aside/batch=<id>/…        <out>/files/batch=<id>/…

A batch that is tried again overwrites its own directories with the same rows. `files`, the list of the broker's files
in the batch, is written last: with it the batch is complete. A file that another batch has already, under any name, is
a copy, and nothing of it is taken; but if that other copy was truncated, and this one has more rows, those that it
lacks are. So any reader of Parquet counts every row once, even if the job was killed.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gnatswarm.spark import schema
from gnatswarm.spark.directories import absolute
from gnatswarm.spark.read import IDENTITY, chosen, files_of, finished_rows, judge, parquet, set_aside

# Rows of one Parquet file: some 30 MB of subjects. Few files, but enough for many cores.
ROWS_PER_FILE = 1_000_000
# Columns of `files`, one row per file that was read; identity and rows (all that it has) are null if it was left out.
FILES = [*IDENTITY, "source", "rows"]


def write_batch(lines: DataFrame, batch: int, out: str) -> dict[str, int]:
    """Write the batch; returns rows by kind, `copies` (of them, rows that other batches have), and `aside`."""
    # Each kind reads these rows once, which does not justify memory.
    judged = judge(lines, StorageLevel.DISK_ONLY)
    try:
        is_good = F.col("why").isNull()
        by_kind = judged.groupBy(F.when(is_good, F.col("kind")).alias("kind")).count().collect()
        counts = {row["kind"]: row["count"] for row in by_kind if row["kind"]}
        good = judged.where(is_good)
        kept = [files := files_of(good).persist(), taken := _taken(files, batch, out).persist()]
        try:
            others: dict[str, DataFrame] = {}
            n_taken, n_longer = _counted(taken)
            if n_longer:
                others = _of_others(lines.sparkSession, batch, out)
                kept.append(taken := _that_are_there(taken, others).persist())
                n_taken, n_longer = _counted(taken)
            copies = files.agg(F.coalesce(F.sum("rows"), F.lit(0))).collect()[0][0] - n_taken
            if copies:
                good = good.join(F.broadcast(taken).select(*IDENTITY, "source"), [*IDENTITY, "source"], "left_semi")
            for kind, n in counts.items():
                rows = good.where(F.col("kind") == kind).select(*schema.columns(kind))
                if n_longer and kind in others:
                    rows = _without_known(rows, taken, others[kind])
                overwrite(dated(rows), f"{out}/{kind}/batch={batch}", n, by="date")
            n_aside = sum(row["count"] for row in by_kind if not row["kind"])
            if n_aside:
                overwrite(set_aside(judged), f"{out}/aside/batch={batch}", n_aside)
            seen = judged.select("source").distinct()
            overwrite(seen.join(taken, "source", "left").select(*FILES), f"{out}/files/batch={batch}", 1)
        finally:
            for each in kept:
                each.unpersist()
        return {**counts, "copies": copies, "aside": n_aside}
    finally:
        judged.unpersist()


def _taken(files: DataFrame, batch: int, out: str) -> DataFrame:
    """The files of which rows are taken: those that no other batch has, and those of which others have fewer rows.

    Columns: identity, source, rows, known_rows (how many others have; null: they have not this file), new_rows.
    """
    best = chosen(files)
    listed = parquet(files.sparkSession, f"{out}/files")
    if listed is None:
        return best.withColumns({"known_rows": F.lit(None).cast("bigint"), "new_rows": F.col("rows")})
    same = listed.where(F.col("batch") != batch).join(F.broadcast(best.select(*IDENTITY)), IDENTITY, "left_semi")
    known = same.groupBy(*IDENTITY).agg(F.max("rows").alias("known_rows"))
    counted = best.join(known, IDENTITY, "left").withColumn("new_rows", F.expr("rows - coalesce(known_rows, 0)"))
    return counted.where("new_rows > 0")


def _that_are_there(taken: DataFrame, others: Mapping[str, DataFrame]) -> DataFrame:
    """Without longer files of which rows have gone from the tables since: what others lack of them cannot be told.

    `compact` has put these elsewhere, and somebody has removed them here.
    """
    longer = taken.where("known_rows is not null").select(*IDENTITY)
    there = longer
    for rows in others.values():
        there = there.unionByName(rows.select(*IDENTITY))
    counted = there.join(F.broadcast(longer), IDENTITY, "left_semi").groupBy(*IDENTITY).count()
    whole = taken.join(counted, IDENTITY, "left").where("known_rows is null or count > known_rows")
    return whole.drop("count")


def _without_known(rows: DataFrame, taken: DataFrame, others: DataFrame) -> DataFrame:
    """These rows without those that others have of longer files: of equal ones as many as there are more here."""
    longer = taken.where("known_rows is not null")
    files = F.broadcast(longer.select(*IDENTITY))
    late, known = (each.join(files, IDENTITY, "left_semi").drop("source") for each in (rows, others))
    lacking = late.exceptAll(known).join(F.broadcast(longer.select(*IDENTITY, "source")), IDENTITY)
    return rows.join(files, IDENTITY, "left_anti").unionByName(lacking)


def _of_others(session: SparkSession, batch: int, out: str) -> dict[str, DataFrame]:
    """The rows in other batches that are complete, by kind; without kinds of which there are none."""
    finished = finished_rows(session, out)
    found = {kind: finished(kind, schema.types(kind)) for kind in schema.KINDS}
    return {
        kind: rows.where(F.col("batch") != batch).select(*schema.columns(kind))
        for kind, rows in found.items()
        if rows is not None
    }


def dated(rows: DataFrame) -> DataFrame:
    """The rows with the UTC day of their window, by which they are partitioned."""
    return rows.withColumn("date", F.date_format(F.timestamp_micros("window_start_us"), "yyyy-MM-dd"))


def _counted(taken: DataFrame) -> tuple[int, int]:
    """How many rows are new, and how many files are longer ones."""
    (row,) = taken.agg(F.coalesce(F.sum("new_rows"), F.lit(0)), F.count("known_rows")).collect()
    return row[0], row[1]


def overwrite(rows: DataFrame, directory: str, n: int, by: str = "") -> None:
    """Write `n` rows, ROWS_PER_FILE to a file."""
    writer = rows.coalesce(-(-n // ROWS_PER_FILE)).write.mode("overwrite")
    (writer.partitionBy(by) if by else writer).parquet(absolute(directory))
