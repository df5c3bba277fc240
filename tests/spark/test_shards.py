"""Which shards there are: those that serve at the end, not those that a restart or the gateway leaves in the rows."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("spark")

NOMINAL_US = 10_000_000


def frame(spark: Any, kind: str, rows: list[dict[str, Any]]) -> Any:
    """Rows of a kind; what they do not say is nothing."""
    from gnatswarm.spark import schema

    types = schema.types(kind)
    nothing = {"bigint": 0, "double": 0.0, "string": "", "boolean": False}
    empty = {name: nothing.get(column, []) for name, column in types.items()}
    ddl = ", ".join(f"`{name}` {column}" for name, column in types.items())
    return spark.createDataFrame([tuple((empty | row)[name] for name in types) for row in rows], ddl)


def windows(shard: int, first: int, last: int, connections: int, short: bool = False) -> list[dict[str, Any]]:
    """A shard's rows from one window to another, of which the last one may be short: it ended there."""
    common = {"shard": shard, "window_us": NOMINAL_US, "window_nominal_us": NOMINAL_US, "connections": connections}
    rows = [common | {"window_start_us": n * NOMINAL_US} for n in range(first, last + 1)]
    return [*rows[:-1], rows[-1] | {"window_us": NOMINAL_US // 3, "connections": 0}] if short else rows


def test_shards_are_those_that_serve_at_the_end_with_the_connections_that_they_have_then(spark: Any):
    from gnatswarm.spark.transforms.skew import per_shard

    rows = [
        *windows(0, 0, 3, 40), *windows(0, 4, 9, 20, short=True),  # a rebalance, and the broker's end
        *windows(1, 0, 5, 0), *windows(1, 6, 9, 20, short=True),
        *windows(2, 4, 6, 40, short=True),  # there while another one was started again
        *windows(3, 1, 4, 5),  # its last file is not finished yet
    ]  # fmt: skip
    found = {row["shard"]: row for row in per_shard(frame(spark, "shard", rows)).collect()}
    assert {shard: row["is_current"] for shard, row in found.items()} == {0: True, 1: True, 2: False, 3: True}
    assert [row["connections"] for row in found.values()] == [40, 20, 40, 5]
    assert [found[shard]["last_connections"] for shard in (0, 1)] == [20, 20]
