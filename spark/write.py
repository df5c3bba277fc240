"""Writes one micro-batch to Parquet; writing it again has the same result.

    <out>/<kind>/batch=<id>/date=<YYYY-MM-DD>/…parquet        <out>/aside/batch=<id>/…        <out>/files/batch=<id>/…

A batch that is tried again overwrites its own directories with the same rows. `files`, the list of the broker's files
in the batch, is written last: with it the batch is complete, and stays as it is. A file that another batch has already,
under any name, is a copy, and nothing of it is taken; but if that other copy was truncated, and this one has more rows,
those that it lacks are. So any reader of Parquet counts every row once, even if the job was killed.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gnatswarm.spark import schema
from gnatswarm.spark.directories import absolute
from gnatswarm.spark.read import (
    FILES,
    IDENTITY,
    Identity,
    chosen,
    file_key,
    files_of,
    finished_rows,
    judge,
    key_of,
    no_rows,
    of_files,
    parquet,
    set_aside,
)

# Rows of one Parquet file: some 30 MB of subjects. Few files, but enough for many cores.
ROWS_PER_FILE = 1_000_000


class Taken(NamedTuple):
    """A copy of a file of which rows are taken."""

    source: str
    rows: int
    known_rows: int | None  # how many another batch has; None: it has not this file

    @property
    def new_rows(self) -> int:
        return self.rows - (self.known_rows or 0)


def write_batch(lines: DataFrame, batch: int, out: str) -> dict[str, int]:
    """Write the batch; returns rows by kind, `copies` (of them, rows that other batches have), and `aside`."""
    session = lines.sparkSession
    # Each kind reads these rows once, which does not justify memory.
    judged = judge(lines, StorageLevel.DISK_ONLY)
    try:
        # One pass finds all that must be known of the rows. What is set aside is of no kind, and of no file's identity.
        of_good = [F.expr(f"IF(why IS NULL, `{name}`, NULL) AS `{name}`") for name in ("kind", *IDENTITY)]
        counted = judged.groupBy(*of_good, "source").agg(F.count("*").alias("rows")).collect()
        used = [row for row in counted if row["kind"] is not None]
        counts: dict[str, int] = {}
        for row in used:
            counts[row["kind"]] = counts.get(row["kind"], 0) + row["rows"]
        taken = _taken(session, chosen(files_of(used)), batch, out)
        others: dict[str, DataFrame] = {}
        if _longer(taken):
            others, taken = _that_are_there(taken, _of_others(session, batch, out))
        longer = _longer(taken)
        copies = sum(counts.values()) - sum(one.new_rows for one in taken.values())
        n_aside = sum(row["rows"] for row in counted) - sum(counts.values())
        sources = {row["source"] for row in counted}
        if _has(session, f"{out}/files/batch={batch}", sources):
            return {**counts, "copies": copies, "aside": n_aside}
        good = judged.where("why is null")
        if copies:
            good = of_files(good, {file: one.source for file, one in taken.items()})
        for kind, n in counts.items():
            rows = good.where(F.col("kind") == kind).select(*schema.columns(kind))
            if longer and kind in others:
                rows = _without_known(rows, longer, others[kind])
            overwrite(dated(rows), f"{out}/{kind}/batch={batch}", n, by="date")
        if n_aside:
            overwrite(set_aside(judged), f"{out}/aside/batch={batch}", n_aside)
        _clear(session, out, batch, {*counts, *(["aside"] if n_aside else [])})
        list_of_files = _list_of_files(session, taken, sources)
        overwrite(list_of_files, f"{out}/files/batch={batch}", 1)
        return {**counts, "copies": copies, "aside": n_aside}
    finally:
        judged.unpersist()


def _clear(session: SparkSession, out: str, batch: int, written: Collection[str]) -> None:
    """Remove what an attempt has left in tables that were not `written` now: it was made of files that have gone since.

    With a checkpoint that is gone, the batch had others.
    """
    for table in {*schema.KINDS, "aside"} - {*written}:
        directory = f"{out}/{table}/batch={batch}"
        if "://" in directory:
            if parquet(session, directory, FILES) is not None:
                overwrite(no_rows(session, FILES), directory, 1)
        elif os.path.isdir(absolute(directory)):
            shutil.rmtree(absolute(directory))


def _has(session: SparkSession, directory: str, sources: Collection[str]) -> bool:
    """Whether this batch's list is written, and has these. Else, with another checkpoint, it may be another batch's."""
    listed = parquet(session, directory, FILES)
    return listed is not None and {row["source"] for row in listed.select("source").collect()} >= {*sources}


def _taken(
    session: SparkSession, best: Mapping[Identity, tuple[str, int]], batch: int, out: str
) -> dict[Identity, Taken]:
    """The files of which rows are taken: those that no other batch has, and those of which others have fewer rows."""
    known: dict[Identity, int] = {}
    listed = parquet(session, f"{out}/files", FILES) if best else None
    if listed is not None:
        same = _near(listed.where(F.col("batch") != batch), best)
        for row in same.groupBy(*IDENTITY).agg(F.max("rows").alias("rows")).collect():
            known[tuple(row[name] for name in IDENTITY)] = row["rows"]
    found = {file: Taken(source, rows, known.get(file)) for file, (source, rows) in best.items()}
    return {file: one for file, one in found.items() if one.new_rows > 0}


def _near(rows: DataFrame, files: Collection[Identity]) -> DataFrame:
    """The rows of these files, and at most a few of others of the same brokers: Parquet finds them by two columns."""
    boots, numbers = (sorted({file[at] for file in files}) for at in (IDENTITY.index("boot"), IDENTITY.index("file")))
    return rows.where(F.col("boot").isin(boots) & F.col("file").isin(numbers))


def _longer(taken: Mapping[Identity, Taken]) -> dict[Identity, Taken]:
    """The files of which another batch has fewer rows."""
    return {file: one for file, one in taken.items() if one.known_rows is not None}


def _that_are_there(
    taken: Mapping[Identity, Taken], others: Mapping[str, DataFrame]
) -> tuple[dict[str, DataFrame], dict[Identity, Taken]]:
    """Without longer files of which rows have gone from the tables since: what others lack of them cannot be told.

    `compact` has put these elsewhere, and somebody has removed them here. Also without kinds in which others have none
    of these files' rows.
    """
    longer = _longer(taken)
    parts = [_near(rows, longer).select(*IDENTITY, F.lit(kind).alias("kind")) for kind, rows in others.items()]
    there: dict[Identity, int] = {}
    kinds = set()
    counted = functools.reduce(DataFrame.unionAll, parts).groupBy(*IDENTITY, "kind").count() if parts else None
    for row in counted.collect() if counted is not None else ():
        file = tuple(row[name] for name in IDENTITY)
        there[file] = there.get(file, 0) + row["count"]
        if file in longer:
            kinds.add(row["kind"])
    gone = {file for file, one in longer.items() if there.get(file, 0) < (one.known_rows or 0)}
    whole = {file: one for file, one in taken.items() if file not in gone}
    return {kind: rows for kind, rows in others.items() if kind in kinds}, whole


def _without_known(rows: DataFrame, longer: Mapping[Identity, Taken], others: DataFrame) -> DataFrame:
    """These rows without those that others have of longer files: of equal ones as many as there are more here."""
    is_longer = file_key().isin([key_of(file) for file in longer])
    sources = F.create_map(*(F.lit(text) for file, one in longer.items() for text in (key_of(file), one.source)))
    late, known = (each.where(is_longer).drop("source") for each in (rows, _near(others, longer)))
    lacking = late.exceptAll(known).withColumn("source", sources[file_key()])
    return rows.where(~is_longer).unionByName(lacking)


def _of_others(session: SparkSession, batch: int, out: str) -> dict[str, DataFrame]:
    """The rows in other batches that are complete, by kind; without kinds of which there are none."""
    finished = finished_rows(session, out)
    found = {kind: finished(kind, schema.types(kind)) for kind in schema.KINDS}
    return {
        kind: rows.where(F.col("batch") != batch).select(*schema.columns(kind))
        for kind, rows in found.items()
        if rows is not None
    }


def _list_of_files(session: SparkSession, taken: Mapping[Identity, Taken], sources: Collection[str]) -> DataFrame:
    """One row per file of which rows are taken, and per other source; columns: FILES."""
    rows = [dict(zip(FILES, (*file, one.source, one.rows), strict=True)) for file, one in taken.items()]
    rows += [{"source": source} for source in sorted({*sources} - {one.source for one in taken.values()})]
    # (createDataFrame would start a Python worker)
    types = ", ".join(f"{name}: {kind}" for name, kind in FILES.items())
    return session.sql(f"SELECT inline(from_json(:rows, 'array<struct<{types}>>'))", {"rows": json.dumps(rows)})


def dated(rows: DataFrame) -> DataFrame:
    """The rows with the UTC day of their window, by which they are partitioned."""
    return rows.withColumn("date", F.date_format(F.timestamp_micros("window_start_us"), "yyyy-MM-dd"))


def overwrite(rows: DataFrame, directory: str, n: int, by: str = "") -> None:
    """Write `n` rows, ROWS_PER_FILE to a file."""
    writer = rows.coalesce(-(-n // ROWS_PER_FILE)).write.mode("overwrite")
    (writer.partitionBy(by) if by else writer).parquet(absolute(directory))
