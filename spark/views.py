"""Creates the views of sql/views.sql in a session, for a notebook or a Python shell."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

SQL = Path(__file__).with_name("sql") / "views.sql"


def statements(out: str) -> list[str]:
    """The SQL statements, for tables in that directory."""
    lines = [line for line in SQL.read_text(encoding="utf-8").splitlines() if not line.startswith("--")]
    return [text.strip().replace("${out}", out) for text in "\n".join(lines).split(";") if text.strip()]


def create_views(session: SparkSession, out: str) -> None:
    """Create temporary views: subject_rows, shard_rows, subjects, fanout_per_window, shards."""
    for statement in statements(out):
        session.sql(statement)
