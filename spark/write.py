"""One micro-batch to Parquet, so that doing it twice is doing it once.

    <out>/<kind>/batch=<id>/date=<YYYY-MM-DD>/…parquet        <out>/aside/batch=<id>/…parquet

A batch that is tried again overwrites its own directories with the same rows; Spark's commit makes each appear whole.
Any reader of Parquet therefore counts every row once, whatever was killed when.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.read import split


def write_batch(lines: DataFrame, batch: int, out: str) -> dict[str, int]:
    """Writes the batch; rows by kind."""
    cached = lines.persist()
    statistics = None
    try:
        statistics = split(cached)
        counts: dict[str, int] = {}
        present = {row["kind"] for row in cached.select("kind").distinct().collect()}
        for kind, rows in statistics.kinds.items():
            if kind in present:
                date = F.date_format(F.timestamp_micros("window_start_us"), "yyyy-MM-dd")
                counts[kind] = overwrite(rows.withColumn("date", date), f"{out}/{kind}/batch={batch}", by="date")
        counts["aside"] = overwrite(statistics.aside, f"{out}/aside/batch={batch}")
        return counts
    finally:
        cached.unpersist()
        if statistics is not None and statistics.cached is not None:
            statistics.cached.unpersist()


def overwrite(rows: DataFrame, path: str, by: str = "") -> int:
    """One file per value of `by`; how many rows."""
    counted = rows.persist()
    try:
        n = counted.count()
        if n:
            writer = (counted.repartition(by) if by else counted.coalesce(1)).write.mode("overwrite")
            (writer.partitionBy(by) if by else writer).parquet(path)
        return n
    finally:
        counted.unpersist()
