"""Creates the views of sql/views.sql in a session, for a notebook or a Python shell."""

from __future__ import annotations

from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from gnatswarm.spark.answers import graph_answers
from gnatswarm.spark.directories import literal, unusable_text
from gnatswarm.spark.read import read_parquet
from gnatswarm.spark.standing import CURRENT

MOST_ROWS = 1_000_000

SQL = Path(__file__).with_name("sql") / "views.sql"


class NoTables(ValueError):
    """The directory has no tables of `gnatswarm ingest`, or no answers."""


def no_tables_text(out: str) -> str:
    """Why there can be no views of this directory, or ""; an address (with ://) is not checked."""
    if why := unusable_text(out):
        return why
    if "://" in out or (Path(out) / "files").is_dir():
        return ""
    return f"{out} has no tables of `gnatswarm ingest`"


def statements(out: str) -> list[str]:
    """The SQL statements, for tables in that directory."""
    lines = [line for line in SQL.read_text(encoding="utf-8").splitlines() if not line.startswith("--")]
    return [
        text.strip().replace("${out}", literal(out).replace("`", "``"))
        for text in "\n".join(lines).split(";")
        if text.strip()
    ]


def create_views(session: SparkSession, out: str, services: str = "auto") -> None:
    """Create temporary views: those of sql/views.sql, and services, edges and so on (answers.graph_answers).

    Tables of brokers without rows of clients have the first five alone. `services`: as in `report --services`.
    NoTables.
    """
    if why := no_tables_text(out):
        raise NoTables(why)
    for statement in statements(out):
        try:
            session.sql(statement)
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            if "client_rows" in statement:
                return
            raise NoTables(f"{out} has no tables of `gnatswarm ingest` with rows yet") from None
    for name, frame in graph_answers(read_parquet(session, out)["client"], MOST_ROWS, services).items():
        frame.createOrReplaceTempView(name)


def create_answer_views(session: SparkSession, answers: str) -> list[str]:
    """Create a temporary view <answer>_by_day of each answer of `gnatswarm ingest --answers`; returns their names.

    They are the answers that stand at the time of the call. NoTables.
    """
    # Not the link: a view would find other files than it has listed, once the link is exchanged.
    stands = (Path(answers) / CURRENT).resolve()
    if why := unusable_text(answers, str(stands)):
        raise NoTables(why)
    found = sorted(path for path in stands.glob("*") if path.is_dir())
    if not found:
        raise NoTables(f"{answers} has no answers of `gnatswarm ingest --answers`")
    for path in found:
        session.read.parquet(literal(str(path))).createOrReplaceTempView(f"{path.name}_by_day")
    return [f"{path.name}_by_day" for path in found]
