"""What statistics keep of queue members that left: rows, bounded for all accounts, and the rest counted."""

from __future__ import annotations

import gc
from sys import getsizeof
from typing import Any

from tests.support.engine import Engine

MOST_BYTES = 16 * 1048576
LEAVERS = 3000  # fewer than an account may have rows
# A character beyond the first 65,536 of Unicode makes the whole text four times as long in memory.
SUBJECT = "\U0001f41c" + "s" * 2000


def harvested(sublist: Any) -> list[tuple[Any, ...]]:
    """All rows there are."""
    rows: list[tuple[Any, ...]]
    rows, left_out, more = sublist.harvest_queues(1 << 30, 1 << 30)
    assert not more and left_out == 0
    return rows


def members_come_and_go(engine: Engine, count: int = LEAVERS) -> None:
    """Each is sent one message, and leaves."""
    client = engine.client()
    subject = SUBJECT.encode()
    for number in range(count):
        sid = b"%d" % number
        client.feed(b"SUB %b q %b\r\nPUB %b 0\r\n\r\nUNSUB %b\r\n" % (subject, sid, subject, sid))
        client.take()
    client.close()


def test_rows_of_members_that_left_are_bounded_for_all_accounts_together():
    gc.collect()
    engines = [Engine(), Engine()]
    for engine in engines:
        engine.probe.tally(LEAVERS)
        harvested(engine.probe.sublist)
        members_come_and_go(engine)
    kept = 0
    for engine in engines:
        rows = harvested(engine.probe.sublist)
        assert all(row[0] == SUBJECT and row[1] == "q" for row in rows)
        kept += sum(getsizeof(part) for row in rows for part in (row, *row))
        assert sum(row[4] for row in rows) + engine.probe.sublist.take_gone_deliveries() == LEAVERS
    assert MOST_BYTES / 2 < kept < MOST_BYTES + 2 * getsizeof(SUBJECT)


def test_of_many_members_some_have_rows_and_the_others_are_counted():
    """Those of a large group are looked at in one go: rows of all, with a long subject, took hundreds of megabytes."""
    engine = Engine()
    engine.probe.tally(LEAVERS)
    client = engine.client()
    client.feed(b"".join(b"SUB g q %d\r\n" % sid for sid in range(500)))
    for most in 0, 15, 100, LEAVERS:
        members_come_and_go(engine, 20)
        client.feed(b"PUB g 0\r\n\r\n" * 3000)
        room, without_row, more, rows = most, 0, True, []
        while more:
            found, left_out, more = engine.probe.sublist.harvest_queues(100, room)
            assert len(found) <= room
            rows += found
            room -= len(found)
            without_row += left_out
        assert len(rows) == most if most < LEAVERS else 400 < len(rows) <= 520
        assert sum(row[4] for row in rows) + without_row == 3020
        assert (without_row > 0) is (most < LEAVERS)
    client.close()


def test_what_a_member_was_delivered_before_the_last_harvest_is_not_counted_again_when_it_leaves():
    engine = Engine()
    engine.probe.tally(LEAVERS)
    client = engine.client()
    publish = b"PUB g 0\r\n\r\n"
    for operations, counted in (
        (b"SUB g q 1\r\n" + publish * 3, [3]),
        (publish * 2 + b"UNSUB 1\r\n", [2]),
        (b"SUB g q 1\r\nUNSUB 1\r\n", []),
    ):
        client.feed(operations)
        assert [row[4] for row in harvested(engine.probe.sublist)] == counted
    client.close()


def test_there_is_room_again_after_a_harvest_and_when_the_account_has_gone():
    gc.collect()
    engine = Engine()
    engine.probe.tally(LEAVERS)
    members_come_and_go(engine)
    first = len(harvested(engine.probe.sublist))
    members_come_and_go(engine)
    assert len(harvested(engine.probe.sublist)) == first > 0
    members_come_and_go(engine)
    del engine
    gc.collect()
    engine = Engine()
    engine.probe.tally(LEAVERS)
    members_come_and_go(engine)
    assert len(harvested(engine.probe.sublist)) == first
