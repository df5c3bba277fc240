"""Questions in SQL, an example to go on from in a notebook: `python -m gnatswarm.spark.questions [TABLES]`.

TABLES: of `gnatswarm ingest` (default: build/demo/tables, which `make demo` writes).
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from gnatswarm.spark.session import SMALL, run
from gnatswarm.spark.views import NoTables, create_views, no_tables_text

QUESTIONS = {
    "Which subjects are delivered most?": """
        SELECT subject, msgs, deliveries, round(fanout, 1) AS fanout FROM subjects
        ORDER BY deliveries DESC, subject LIMIT 5
    """,
    "Which services talk most to each other, and how much of that crosses shards?": """
        SELECT from_service, to_service, msgs, round(try_divide(crossed_msgs, msgs), 2) AS crosses FROM service_matrix
        ORDER BY msgs DESC, from_service, to_service LIMIT 5
    """,
    "Which subjects depend on one client?": """
        SELECT subject, one_publisher, one_listener FROM lone ORDER BY msgs DESC, subject LIMIT 5
    """,
    "Who has published without being heard?": """
        SELECT p.name, p.subject, sum(p.msgs) AS msgs FROM published p JOIN subjects s USING (account, subject)
        WHERE s.deliveries = 0 GROUP BY p.name, p.subject ORDER BY msgs DESC, subject LIMIT 5
    """,
    "How busy was each shard?": """
        SELECT shard, in_msgs, out_msgs, round(cpu_share, 2) AS of_a_core FROM shards ORDER BY shard
    """,
}


def ask(session: SparkSession) -> None:
    """Print the answer to each question, from the views of `create_views`."""
    for question, statement in QUESTIONS.items():
        print(question)
        session.sql(statement).show(truncate=60)


def main(tables: str) -> int:
    """Ask about these tables in a session of their own; the exit code."""
    if why := no_tables_text(tables):
        print(f"questions: {why}", file=sys.stderr)
        return 1

    def work(session: SparkSession) -> int:
        try:
            # While `gnatswarm ingest --continuous` writes tables: do this again to see what has been written since.
            create_views(session, tables)
        except NoTables as error:
            print(f"questions: {error}", file=sys.stderr)
            return 1
        ask(session)
        return 0

    return run("questions", work, master="local[*]", memory="1g", shuffle_partitions=0, settings=SMALL)


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:2] or ["build/demo/tables"])))
