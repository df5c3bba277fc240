"""How even a queue group is, is asked within one run of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from gnatswarm.spark.advice import ENOUGH_MSGS, advise
from tests.spark.test_advice import answers, broker

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")


def test_members_of_two_runs_are_not_members_of_one_group(spark: Any):
    """A long run and a short one, each even: added up, half of the members would have got ten times as much."""
    from gnatswarm.spark.transforms.queues import balance

    strings = "broker string, account string, queue string, subject string"
    columns = f"{strings}, shard int, cid int, sid string, deliveries int"
    rows = [
        (run, "$G", "workers", "jobs", 0, cid, "1", deliveries)
        for run, deliveries in (("LONG", 10 * ENOUGH_MSGS), ("SHORT", ENOUGH_MSGS))
        for cid in (5, 6)
    ]
    found = [row.asDict() for row in balance(spark.createDataFrame(rows, columns)).collect()]
    assert [(row["broker"], row["members"], row["max_to_mean"]) for row in found] == [("LONG", 2, 1), ("SHORT", 2, 1)]
    assert advise(answers(queues=found, brokers=[broker("LONG", 0, 600), broker("SHORT", 700, 800)])) == []


def test_a_member_that_moved_to_another_shard_is_one_member(spark: Any):
    """Two even members of which one was moved by a rebalance: by shard they would be three, and uneven."""
    from gnatswarm.spark.transforms.queues import balance

    strings = "broker string, account string, queue string, subject string"
    columns = f"{strings}, shard int, cid int, sid string, deliveries int"
    parts = [(0, 5, ENOUGH_MSGS), (0, 6, ENOUGH_MSGS // 4), (1, 6, 3 * ENOUGH_MSGS // 4)]
    rows = [("B", "$G", "workers", "jobs", shard, cid, "1", deliveries) for shard, cid, deliveries in parts]
    (found,) = [row.asDict() for row in balance(spark.createDataFrame(rows, columns)).collect()]
    assert (found["members"], found["max_to_mean"]) == (2, 1)
    assert advise(answers(queues=[found])) == []
