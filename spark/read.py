"""Lines and Parquet, read into one DataFrame per kind of record.

What is no record (torn, of a newer version, of no known kind) is set aside and counted, never an error. A file that is
there twice, under whatever name, counts once: its rows carry its identity, and of its copies one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
}


@dataclass(frozen=True)
class Statistics:
    """What the jobs work on: a DataFrame per kind, and what could not be used."""

    kinds: dict[str, DataFrame]
    aside: DataFrame  # source, line, why
    cached: DataFrame | None = None  # what all kinds are cut from; unpersist it in the end

    def __getitem__(self, kind: str) -> DataFrame:
        return self.kinds[kind]


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
        .when(F.col("file").isNull() | F.col("boot").isNull() | F.col("window_start_us").isNull(), "incomplete")
    )


def split(lines: DataFrame) -> Statistics:
    """Records by kind, copies of files left out, and the rest aside. `lines` is read twice: cache it."""
    judged = lines.withColumn("why", why_aside())
    good = once(judged.where("why is null")).persist(StorageLevel.MEMORY_AND_DISK)
    kinds = {kind: good.where(F.col("kind") == kind).select(*schema.columns(kind)) for kind in schema.KINDS}
    line = F.coalesce(F.col(schema.CORRUPT), F.to_json(F.struct("kind", *schema.COMMON)))
    return Statistics(kinds, judged.where("why is not null").select("source", line.alias("line"), "why"), good)


def once(rows: DataFrame) -> DataFrame:
    """Without the rows of all but one of a file's copies."""
    chosen = rows.groupBy(*IDENTITY).agg(F.min("source").alias("source"))
    return rows.join(F.broadcast(chosen), [*IDENTITY, "source"])


def read_parquet(session: SparkSession, directory: str) -> Statistics:
    """What `ingest` has written so far; a kind of which there is nothing yet is empty."""
    kinds = {}
    for kind in schema.KINDS:
        rows = _parquet(session, Path(directory) / kind)
        if rows is None:
            empty = ", ".join(f"`{n}` {t}" for n, t in {**schema.COMMON, **schema.KINDS[kind]}.items())
            kinds[kind] = session.createDataFrame([], f"source string, {empty}")
        else:
            kinds[kind] = once(rows).select(*schema.columns(kind))
    aside = _parquet(session, Path(directory) / "aside")
    if aside is None:
        aside = session.createDataFrame([], "source string, line string, why string")
    return Statistics(kinds, aside.select("source", "line", "why"))


def _parquet(session: SparkSession, path: Path) -> DataFrame | None:
    try:
        return session.read.option("mergeSchema", "false").parquet(str(path))
    except AnalysisException:
        return None  # nothing of the kind was ever written
