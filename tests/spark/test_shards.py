"""Which shards there are: those that serve at the end, not those that a restart or the gateway leaves in the rows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gnatswarm.spark.advice import advise
from gnatswarm.spark.page import page
from tests.spark.test_advice import answers

pytestmark = pytest.mark.xdist_group("spark")

NOMINAL_US = 10_000_000
# The year 2100.
AHEAD = 4_102_444_800_000_000 // NOMINAL_US


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


def test_shards_are_those_that_serve_at_the_end(spark: Any):
    from gnatswarm.spark.transforms.skew import per_shard

    rows = [
        *windows(0, 0, 3, 40), *windows(0, 4, 9, 20, short=True),  # a rebalance, and the broker's end
        *windows(1, 0, 5, 0), *windows(1, 6, 9, 20, short=True),
        *windows(2, 4, 6, 40, short=True),  # there while another one was started again
        *windows(3, 1, 4, 5),  # its last file is not finished yet
        *windows(0, AHEAD, AHEAD, 20),  # while a clock stood ahead
        *windows(4, AHEAD, AHEAD, 1),
    ]  # fmt: skip
    found = {row["shard"]: row for row in per_shard(frame(spark, "shard", rows)).collect()}
    assert {shard: row["is_current"] for shard, row in found.items()} == {0: True, 1: True, 2: False, 3: True, 4: False}
    assert [row["connections"] for row in found.values()] == [40, 20, 40, 5, 1]


def test_what_a_subject_may_lack_adds_up_over_windows_and_shards(spark: Any):
    from gnatswarm.spark.transforms import subjects

    rows = [
        {"shard": shard, "subject": "a", "in_msgs": 9, "error_msgs": 50 + n, "window_start_us": n * NOMINAL_US}
        for shard in (0, 1)
        for n in (0, 1)
    ]
    by_shard = frame(spark, "subject", rows)
    for each in (by_shard, subjects.over_shards(by_shard)):
        assert [(row["msgs"], row["error"]) for row in subjects.totals(each).collect()] == [(36, 202)]


def test_the_gateway_is_no_shard_and_what_it_passes_on_does_not_cross(spark: Any):
    """One shard whose clients got 3,000 messages of another server, and 1,000 of their own."""
    from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
    from gnatswarm.spark.transforms import matrix, skew, subjects

    gateway: dict[str, Any] = {"shard": GATEWAY_NUMBER, "window_us": NOMINAL_US, "window_nominal_us": NOMINAL_US}
    own = {**gateway, "shard": 0, "in_msgs": 1000, "out_msgs": 4000, "cpu_s": 1.0}
    shard = frame(spark, "shard", [own, gateway | {"link_out_msgs": 3000, "cpu_s": 9.0}])
    link = frame(
        spark,
        "link",
        [
            {"shard": 0, "peer": GATEWAY_NUMBER, "received_msgs": 3000, "received_deliveries": 3000, "sent_msgs": 5},
            {"shard": GATEWAY_NUMBER, "peer": 0, "sent_msgs": 3000, "received_msgs": 5, "received_deliveries": 5},
        ],
    )
    parts, between = skew.per_shard(shard), matrix.deliveries(shard, link)
    (crossed,) = [row.asDict() for row in matrix.crossed_share(between).collect()]
    assert crossed == {"deliveries": 4000, "crossed": 0, "share": 0.0, "frames": 0, "from_servers": 3000}
    shards = [row.asDict() for row in parts.collect()]
    assert [row["shard"] for row in shards] == [0]
    assert [row["shards"] for row in skew.per_broker(shard).collect()] == [1]
    assert {row["n"] for row in skew.unevenness(parts).collect()} == {1}
    rows = [{"shard": n, "subject": "a", "link_out_msgs": frames} for n, frames in ((0, 5), (GATEWAY_NUMBER, 3000))]
    (subject,) = subjects.crossing(subjects.between_shards(frame(spark, "subject", rows))).collect()
    assert subject["crossed"] == 5
    links, deliveries = ([row.asDict() for row in found.collect()] for found in (matrix.links(link), between))
    found = answers(shards=shards, crossed=[crossed], matrix=deliveries, links=links)
    assert advise(found) == []
    (part,) = re.findall(r"<h2>From and to other servers</h2>(.*?)<h2>", page(found, [], "x"), re.S)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in part.split("<tr>")[2:]]
    assert cells == [["0", "gateway", "5", "0 B", "–"], ["gateway", "0", "3,000", "0 B", "3,000"]]
