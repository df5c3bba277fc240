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
    rows, more = sublist.harvest_queues(1 << 30)
    assert not more
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
