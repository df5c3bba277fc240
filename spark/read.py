"""Lines and Parquet, read into one DataFrame per kind of record.

A line that is no valid record (truncated, of a newer version, of an unknown kind) is set aside and counted; it is never
an error. Copies of a file count once: rows carry their file's identity, and one of its copies is chosen.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from gnatswarm.spark import schema
from gnatswarm.spark.directories import absolute, literal
from gnatswarm.spark.session import compiled_rows

LINES = "*.jsonl.zst"
IDENTITY = ["broker", "boot", "shard", "file"]
# The values of IDENTITY, of one file.
Identity = tuple[Any, ...]
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": schema.CORRUPT,
    "pathGlobFilter": LINES,
    "recursiveFileLookup": "true",
    # A corrupt file must not end the job: the rows before the damage count, and `unreadable` names a file without any.
    "ignoreCorruptFiles": "true",
    # Retention may remove a file between listing and reading.
    "ignoreMissingFiles": "true",
}
ASIDE = {"source": "string", "line": "string", "why": "string"}
# One row per file that was read; identity and rows (all that it has) are null if nothing of it was taken.
FILES = {**{name: schema.COMMON[name] for name in IDENTITY}, "source": "string", "rows": "bigint"}
# The batch or the day of a path in a table.
_PART = re.compile(r"/(batch|date)=([^/]+)/[^/]+$")


@dataclass(frozen=True)
class Statistics:
    """The jobs' input: a DataFrame per kind, and the lines that could not be used."""

    kinds: dict[str, DataFrame]
    aside: DataFrame  # source, line, why
    # Sums that several results are made of fit into memory.
    is_small: bool = False

    def __getitem__(self, kind: str) -> DataFrame:
        return self.kinds[kind]

    def of_broker(self, beginning: str) -> Statistics:
        """Only the rows of brokers whose ids have this prefix; lines that are set aside belong to no broker."""
        return self._where(F.col("broker").startswith(beginning))

    def between(self, from_us: int, to_us: int) -> Statistics:
        """Only the windows that begin at from_us or later, and before to_us."""
        return self._where((F.col("window_start_us") >= from_us) & (F.col("window_start_us") < to_us))

    def _where(self, is_it: Column) -> Statistics:
        return replace(self, kinds={kind: rows.where(is_it) for kind, rows in self.kinds.items()})


def stored_files(directory: str) -> dict[Path, os.stat_result]:
    """The finished files in a directory; none if it is an address (with ://) instead of a local path.

    What has such a name and is no file, such as a symbolic link to itself, is none.
    """
    found = {}
    for path in Path(absolute(directory)).rglob(LINES) if "://" not in directory else ():
        with contextlib.suppress(OSError):  # retention; a directory that may not be read
            if not path.name.startswith(".") and path.is_file():
                found[path] = path.stat()
    return found


def read_lines(session: SparkSession, *directories: str) -> DataFrame:
    """Every line of the files in directories of statistics, with the file it is from in `source`."""
    reader = session.read.schema(schema.ddl()).options(**OPTIONS)
    return with_source(reader.json([literal(directory) for directory in directories]))


def with_source(lines: DataFrame) -> DataFrame:
    """The lines with the file that each is from in `source`."""
    return lines.select("*", F.col("_metadata.file_path").alias("source"))


def filled(kind: str) -> list[str]:
    """The columns of a kind's DataFrame in SQL, with nothing in place of what a record lacks: 0, "" or false."""
    nothing = {"bigint": "0L", "double": "0D", "string": "''", "boolean": "false"}
    own = schema.KINDS[kind]
    return [
        f"coalesce(`{name}`, {nothing[own[name]]}) AS `{name}`" if own.get(name) in nothing else f"`{name}`"
        for name in schema.columns(kind)
    ]


def why_aside() -> Column:
    """The reason why a line is not used; null if it is used."""
    # (in SQL what is many columns is one call of Java)
    lacks = ", ".join(f"INT(`{name}` IS NULL)" for name in schema.COMMON)
    return (
        F.when(F.col(schema.CORRUPT).isNotNull(), "no JSON, or a field of another type")
        .when(F.col("kind").isNull() | F.col("version").isNull(), "no record")
        .when(F.col("version") > schema.KNOWN_VERSION, "a newer version")
        .when(~F.col("kind").isin(*schema.KINDS), "a kind that is not known")
        .when(F.expr(f"greatest({lacks}) > 0"), "incomplete")
        .when(_cannot_be(), "a number or a time that cannot be")
    )


def _cannot_be() -> Column:
    """Whether a number or the time is none that a broker writes: it could not be added up, or not be shown."""
    numbers = [f"DOUBLE({name})" for name in schema.numbers()]  # (Spark takes NaN for the greatest of all)
    lists = schema.number_lists()
    most = F.expr(f"greatest({', '.join([*numbers, *(f'DOUBLE(array_max({name}))' for name in lists)])})")
    least = F.expr(f"least({', '.join([*numbers, *(f'DOUBLE(array_min({name}))' for name in lists)])})")
    start_us = F.col("window_start_us")
    return (most > schema.MOST_COUNT) | (least < -schema.MOST_COUNT) | ~start_us.between(F.lit(0), schema.MOST_TIME_US)


def judge(lines: DataFrame, level: StorageLevel) -> DataFrame:
    """The lines with the column `why` (why_aside), persisted at this level, because parsing is expensive."""
    judged = lines.withColumn("why", why_aside())
    # Spark takes rows of the same directories for the same rows, and would answer from those of an earlier reading.
    judged.unpersist()
    return judged.persist(level)


def no_rows(session: SparkSession, columns: Mapping[str, str]) -> DataFrame:
    """Nothing, with these columns (name → type). Spark answers questions about it without a job.

    createDataFrame([]) would start a Python worker.
    """
    shown = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in columns.items())
    return session.sql(f"SELECT {shown} WHERE false")


def split(lines: DataFrame, *, is_small: bool = False) -> Statistics:
    """Records by kind, without copies of files; all other lines set aside."""
    session = lines.sparkSession
    judged = judge(lines, StorageLevel.MEMORY_AND_DISK)
    # Everything that must be known before the first question, in one pass: which files, which kinds, any copies.
    with compiled_rows(session) if is_small else contextlib.nullcontext():
        counted = judged.groupBy("why", "kind", *IDENTITY, "source").agg(F.count("*").alias("rows")).collect()
    used = [row for row in counted if row["why"] is None]
    good = judged.where("why is null")
    files = files_of(used)
    if any(len(copies) > 1 for copies in files.values()):
        good = of_files(good, {file: source for file, (source, _) in chosen(files).items()})
    found = {row["kind"] for row in used}

    def of_kind(kind: str) -> DataFrame:
        if kind not in found:
            return no_rows(session, schema.types(kind))
        return good.where(F.col("kind") == kind).selectExpr(*filled(kind))

    aside = nothing_read(session, unread(lines.inputFiles(), {row["source"] for row in counted}))
    if len(used) < len(counted):
        aside = set_aside(judged).unionByName(aside)
    return Statistics({kind: of_kind(kind) for kind in schema.KINDS}, aside, is_small)


def set_aside(judged: DataFrame) -> DataFrame:
    """The lines that are not used, each with its file and the reason."""
    line = F.coalesce(F.col(schema.CORRUPT), F.to_json(F.struct("kind", *schema.COMMON)))
    return judged.where("why is not null").select("source", line.alias("line"), "why")


def place(source: str) -> str:
    """The path of a file's address; Spark writes both file:/a and file:///a."""
    return unquote(urlsplit(source).path)


def unreadable(session: SparkSession, listed: list[str], seen: DataFrame | None) -> DataFrame:
    """The listed files without any row, in the form of `set_aside`."""
    rows = seen.select("source").distinct().collect() if seen is not None else []
    return nothing_read(session, unread(listed, {row["source"] for row in rows}))


def nothing_read(session: SparkSession, missing: list[str]) -> DataFrame:
    """These files as lines that are set aside."""
    if not missing:
        return no_rows(session, ASIDE)
    ddl = ", ".join(f"{name} {kind}" for name, kind in ASIDE.items())
    return session.createDataFrame([(source, None, schema.UNREADABLE) for source in missing], ddl)


def unread(listed: Iterable[str], seen: Iterable[str]) -> list[str]:
    """The listed files that are not among those of which a row was seen."""
    found = {place(source) for source in seen}
    return sorted(source for source in listed if place(source) not in found)


def files_of(counted: Iterable[Row]) -> dict[Identity, dict[str, int]]:
    """The files in counts of rows (IDENTITY, source, rows): identity → source of each copy → its rows."""
    found: dict[Identity, dict[str, int]] = {}
    for row in counted:
        copies = found.setdefault(tuple(row[name] for name in IDENTITY), {})
        copies[row["source"]] = copies.get(row["source"], 0) + row["rows"]
    return found


def chosen(files: Mapping[Identity, Mapping[str, int]]) -> dict[Identity, tuple[str, int]]:
    """Of a file's copies the one with the most rows (others may be truncated); of equal ones the first by name."""
    return {file: min(copies.items(), key=lambda copy: (-copy[1], copy[0])) for file, copies in files.items()}


def file_key() -> Column:
    """A row's identity as one text, as key_of() makes it of a file's."""
    return F.expr(f"concat_ws('\n', {', '.join(f'STRING({name})' for name in IDENTITY)})")


def key_of(file: Identity) -> str:
    """The values of an identity as one text."""
    return "\n".join(map(str, file))


def of_files(rows: DataFrame, sources: Mapping[Identity, str]) -> DataFrame:
    """The rows of these files that are from this source each."""
    with_source = [f"{key_of(file)}\n{source}" for file, source in sources.items()]
    return rows.where(F.concat_ws("\n", file_key(), "source").isin(with_source))


def read_parquet(session: SparkSession, directory: str, dates: Sequence[str] = ()) -> Statistics:
    """The finished rows of `ingest` or `compact`, of these days or of all; kinds without rows are empty."""
    finished = finished_rows(session, directory)

    def rows_of(kind: str, columns: dict[str, str], shown: Sequence[str]) -> DataFrame:
        rows = finished(kind, columns)
        if rows is None:
            return no_rows(session, columns)
        if dates and "date" in rows.columns:
            rows = rows.where(F.col("date").cast("string").isin(list(dates)))
        return rows.selectExpr(*shown)

    kinds = {kind: rows_of(kind, schema.types(kind), filled(kind)) for kind in schema.KINDS}
    return Statistics(kinds, rows_of("aside", ASIDE, [*ASIDE]))


def finished_rows(session: SparkSession, directory: str) -> Callable[[str, dict[str, str]], DataFrame | None]:
    """What answers with the finished rows of a kind, with these columns (name → type); None: there are none."""
    written = parquet(session, f"{directory}/files", FILES)
    # The list of files is written last, so a batch (or a day of `compact`) is complete if its list exists.
    part = "batch" if written is not None and "batch" in written.columns else "date"
    found = [] if written is None else [_PART.search(path) for path in written.inputFiles()]
    whole = [match[2] for match in found if match is not None and match[1] == part]

    def finished(kind: str, columns: dict[str, str]) -> DataFrame | None:
        # Tables of an older version lack columns: with the schema given they are null.
        rows = parquet(session, f"{directory}/{kind}", columns) if whole else None
        if rows is None or part not in rows.columns:  # … or all their days have been archived, and removed here
            return None
        return rows.where(F.col(part).isin(whole))

    return finished


def no_days_text(session: SparkSession, directory: str, dates: Collection[str]) -> str:
    """Of which of these days tables have no rows, or ""."""
    if not dates:
        return ""
    finished = finished_rows(session, directory)
    days = no_rows(session, {"day": "string"})
    for kind in schema.KINDS:
        if (rows := finished(kind, schema.types(kind))) is not None:
            days = days.unionAll(rows.select(F.col("date").cast("string").alias("day")))
    known = {row["day"] for row in days.where(F.col("day").isin(list(dates))).distinct().collect()}
    missing = ", ".join(sorted(set(dates) - known))
    return f"there are no rows of {missing} in {directory}" if missing else ""


def parquet(session: SparkSession, directory: str, columns: Mapping[str, str]) -> DataFrame | None:
    """The Parquet files in a directory, with these columns (name → type) and those of their partitions.

    None if there are none. With columns that are given Spark starts no job to find them.
    """
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    try:
        return session.read.schema(ddl).parquet(literal(directory))
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None  # nothing of this kind was ever written
        raise
