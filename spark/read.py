"""Lines and Parquet, read into one DataFrame per kind of record.

What is no record (torn, of a newer version, of no known kind) is set aside and counted, never an error. A file that is
there twice, under whatever name, counts once: its rows carry its identity, and of its copies one is chosen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import schema

LINES = "*.jsonl.zst"
IDENTITY = ["broker", "boot", "shard", "file"]
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": schema.CORRUPT,
    "pathGlobFilter": LINES,
    "recursiveFileLookup": "true",
    # A file that is no zstd must not end the job: what can be read of it counts, and `unreadable` names it.
    "ignoreCorruptFiles": "true",
    # Retention may remove a file between listing and reading.
    "ignoreMissingFiles": "true",
}
UNREADABLE = "a file of which nothing can be read"


@dataclass(frozen=True)
class Statistics:
    """What the jobs work on: a DataFrame per kind, and what could not be used."""

    kinds: dict[str, DataFrame]
    aside: DataFrame  # source, line, why

    def __getitem__(self, kind: str) -> DataFrame:
        return self.kinds[kind]

    def of_broker(self, beginning: str) -> Statistics:
        """Only what the brokers whose ids begin so have written; what is aside is nobody's."""
        is_it = F.col("broker").startswith(beginning)
        return Statistics({kind: rows.where(is_it) for kind, rows in self.kinds.items()}, self.aside)


def stored_files(directory: str) -> dict[Path, os.stat_result]:
    """The finished files there; none of an address that is no directory here."""
    found = {}
    for path in Path(directory).absolute().rglob(LINES) if "://" not in directory else ():
        with contextlib.suppress(FileNotFoundError):  # retention
            if not path.name.startswith("."):
                found[path] = path.stat()
    return found


def read_lines(session: SparkSession, directory: str) -> DataFrame:
    """Every line of the files in a directory of statistics, with the file it is from in `source`."""
    reader = session.read.schema(schema.ddl()).options(**OPTIONS)
    return with_source(reader.json(directory))


def with_source(lines: DataFrame) -> DataFrame:
    """The file that a line came from."""
    return lines.select("*", F.col("_metadata.file_path").alias("source"))


def why_aside() -> Column:
    """Why a line is not used; null for one that is."""
    return (
        F.when(F.col(schema.CORRUPT).isNotNull(), "no JSON, or a field of another type")
        .when(F.col("kind").isNull() | F.col("version").isNull(), "no record")
        .when(F.col("version") > schema.KNOWN_VERSION, "a newer version")
        .when(~F.col("kind").isin(*schema.KINDS), "a kind that is not known")
        .when(F.greatest(*(F.col(name).isNull().cast("int") for name in schema.COMMON)) > 0, "incomplete")
    )


def judge(lines: DataFrame, level: StorageLevel) -> DataFrame:
    """The lines with `why` they are not used, kept there: parsing is most of what reading costs."""
    return lines.withColumn("why", why_aside()).persist(level)


def split(lines: DataFrame) -> Statistics:
    """Records by kind, copies of files left out, and the rest aside."""
    judged = judge(lines, StorageLevel.MEMORY_AND_DISK)
    good = once(judged.where("why is null"))
    kinds = {kind: good.where(F.col("kind") == kind).select(*schema.columns(kind)) for kind in schema.KINDS}
    aside = set_aside(judged).unionByName(unreadable(lines.sparkSession, lines.inputFiles(), judged))
    return Statistics(kinds, aside)


def set_aside(judged: DataFrame) -> DataFrame:
    """The lines that are not used, each with its file and why."""
    line = F.coalesce(F.col(schema.CORRUPT), F.to_json(F.struct("kind", *schema.COMMON)))
    return judged.where("why is not null").select("source", line.alias("line"), "why")


def place(source: str) -> str:
    """The path that the address of a file means; Spark writes file:/a as well as file:///a."""
    return unquote(urlsplit(source).path)


def unreadable(session: SparkSession, listed: list[str], seen: DataFrame | None) -> DataFrame:
    """Of the files that were listed those of which there is no row, in the form of `set_aside`."""
    rows = seen.select("source").distinct().collect() if seen is not None else []
    found = {place(row["source"]) for row in rows}
    missing = [(source, None, UNREADABLE) for source in sorted(listed) if place(source) not in found]
    return session.createDataFrame(missing, "source string, line string, why string")


def files_of(rows: DataFrame) -> DataFrame:
    """Which files the rows are of: identity, source, how many rows. Small: one row per file."""
    return rows.groupBy(*IDENTITY, "source").agg(F.count("*").alias("rows"))


def chosen(files: DataFrame) -> DataFrame:
    """Of a file's copies the one with the most rows (another may be torn); of equal ones the first by name."""
    best = F.min_by("source", F.struct(-F.col("rows"), "source"))
    return files.groupBy(*IDENTITY).agg(best.alias("source"), F.max("rows").alias("rows"))


def once(rows: DataFrame) -> DataFrame:
    """Without the rows of all but one of a file's copies. Nearly always there are none, which one look shows."""
    files = files_of(rows)
    if files.groupBy(*IDENTITY).count().where("count > 1").isEmpty():
        return rows
    return rows.join(F.broadcast(chosen(files)).select(*IDENTITY, "source"), [*IDENTITY, "source"], "left_semi")


def read_parquet(session: SparkSession, directory: str, dates: Sequence[str] = ()) -> Statistics:
    """What `ingest` or `compact` has finished so far, of these days or of all; what there is nothing of is empty."""
    written = parquet(session, f"{directory}/files")
    # A batch is whole when its list of files is there, which is written last; so is a day that was made compact.
    part = "batch" if written is not None and "batch" in written.columns else "date"
    whole = [] if written is None else [row[0] for row in written.select(part).distinct().collect()]

    def rows_of(kind: str, columns: dict[str, str]) -> DataFrame:
        rows = parquet(session, f"{directory}/{kind}") if whole else None
        if rows is None:
            return session.createDataFrame([], ", ".join(f"`{name}` {t}" for name, t in columns.items()))
        rows = rows.where(F.col(part).isin(whole))
        if dates and "date" in rows.columns:
            rows = rows.where(F.col("date").cast("string").isin(list(dates)))
        return rows.select(*columns)

    kinds = {kind: rows_of(kind, {"source": "string", **schema.COMMON, **of}) for kind, of in schema.KINDS.items()}
    return Statistics(kinds, rows_of("aside", {"source": "string", "line": "string", "why": "string"}))


def parquet(session: SparkSession, path: str) -> DataFrame | None:
    """None: there is no such directory."""
    try:
        return session.read.option("mergeSchema", "false").parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None  # nothing of the kind was ever written
        raise
