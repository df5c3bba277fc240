"""A tally is exact while its subjects fit, loses no message when they do not, and knows its error."""

from __future__ import annotations

import random

from gnatswarm.broker.tally import Tally
from tests.support.engine import Engine

MSGS, OTHER_MSGS = 2, 0
MOST_BYTES = 64 << 20  # of all tallies of a process


def contents(tally: Tally) -> dict[str, tuple[int, int]]:
    """Subject → (error, messages)."""
    found = {}
    at = 0
    while True:
        rows, at = tally.read(at, 16)
        found.update({row[0]: (row[1], row[2]) for row in rows})
        if not at:
            return found


def test_what_fits_is_exact():
    tally = Tally(100)
    for i in range(100):
        for _ in range(3):
            tally.note(b"s.%d" % i, i, deliveries=2 * i)
    total, other = tally.settle()
    assert contents(tally) == {f"s.{i}": (0, 3 * i) for i in range(100)}
    assert total[0] == 3 * sum(range(100)) and total[2] == 2 * total[0]
    assert not any(other)


def test_one_time_inboxes_are_one_row():
    tally = Tally(10)
    for i in range(1000):
        tally.note(b"_INBOX.%d" % i, 1)
        tally.note(b"_INBOXER.%d" % (i % 3), 1)
    tally.settle()
    assert contents(tally)["_INBOX.>"] == (0, 1000)
    assert sum(msgs for _, msgs in contents(tally).values()) == 2000


def test_rows_and_the_rest_are_all_there_is():
    tally = Tally(64)
    for i in range(100_000):
        tally.note(b"once.%d" % i, 1)
    total, other = tally.settle()
    rows = contents(tally)
    assert len(rows) == 64
    assert total[0] == 100_000 == sum(msgs for _, msgs in rows.values()) + other[0]


def test_a_heavy_subject_is_found_and_its_error_is_a_bound():
    """Every subject heavier than some total / rows has a row, and row + error is not less than what it had."""
    chance = random.Random(7)
    tally = Tally(64)
    truth: dict[bytes, int] = {}
    for _ in range(60_000):
        subject = b"heavy.%d" % chance.randrange(20) if chance.random() < 0.5 else b"once.%d" % chance.randrange(10**9)
        truth[subject] = truth.get(subject, 0) + 1
        tally.note(subject, 1)
    tally.settle()
    rows = contents(tally)
    for i in range(20):
        error, msgs = rows[f"heavy.{i}"]
        assert msgs <= truth[b"heavy.%d" % i] <= msgs + error
    for name, (error, msgs) in rows.items():
        assert msgs <= truth[name.encode()] <= msgs + error


def test_equal_weights_leave_as_many_rows_as_there_is_room_for():
    tally = Tally(50)
    for i in range(99):
        tally.note(b"s.%d" % i, 5)
    tally.settle()
    assert tally.count == 50


def test_a_subject_too_long_for_a_row_is_in_the_rest():
    tally = Tally(4)
    tally.note(b"x" * 60_000, 3)
    _total, other = tally.settle()
    assert other[OTHER_MSGS] == 3 and contents(tally) == {}


def test_inboxes_stay_one_row_while_other_rows_are_purged_around_it():
    tally = Tally(10)
    for i in range(2000):
        tally.note(b"_INBOX.%d" % i, 1)
        if i % 3 == 0:  # so that the inboxes' row is among the light ones at first, and among the heavy ones later
            tally.note(b"s.%d" % i, 5)
    total, other = tally.settle()
    rows = contents(tally)
    assert total[OTHER_MSGS] == 2000 + 5 * len(range(0, 2000, 3))
    assert sum(msgs for _, msgs in rows.values()) + other[OTHER_MSGS] == total[OTHER_MSGS]
    error, msgs = rows["_INBOX.>"]
    assert msgs <= 2000 <= msgs + error


def test_rows_are_found_near_where_they_belong_though_a_cache_is_harvested_in_the_order_of_its_hashes():
    """With the cache's own hashes the farthest of these rows was thousands of slots away, and a window took seconds."""
    engine = Engine()
    publisher = engine.client()
    engine.probe.tally(4096)
    for start in range(0, 100_000, 1000):
        publisher.feed(b"".join(b"PUB device.%d.status 0\r\n\r\n" % i for i in range(start, start + 1000)))
    longest = engine.probe.harvest(1000)
    assert len(longest) > 10
    assert max(longest) < 200


def test_a_tally_is_empty_until_something_is_counted_in_a_row_or_beside():
    tally = Tally(4)
    assert tally.is_empty
    tally.note(b"x" * 60_000, 0, link_in=1)  # (no row)
    assert not tally.is_empty
    tally = Tally(4)
    tally.note(b"s", 0, deliveries=1)
    assert not tally.is_empty


def test_the_tallies_of_many_accounts_have_no_more_than_one_shard_can_write():
    """24 accounts with 4,096 subjects of 3.9 KB each made a shard grow by 1.2 GB, and it was killed as hung."""
    tallies = [Tally(4096) for _ in range(24)]
    truth: dict[bytes, int] = {}
    for n in range(4096):
        subject = b"%d.%b" % (n, b"x" * 3900)
        for tally in tallies:
            tally.note(subject, n)
        truth[subject] = n
    assert sum(tally.row_bytes for tally in tallies) < 2 * MOST_BYTES
    for tally in tallies:
        total, other = tally.settle()
        rows = contents(tally)
        assert total[OTHER_MSGS] == sum(truth.values()) == sum(msgs for _, msgs in rows.values()) + other[OTHER_MSGS]
        for subject, n in truth.items():
            error, msgs = rows.get(subject.decode(), (0, 0))
            assert msgs <= n and (msgs + error >= n or not msgs)
        assert b"4095.%b" % (b"x" * 3900) in {subject.encode() for subject in rows}
    del tallies, tally
    again = Tally(4096)
    for n in range(4096):
        again.note(b"%d.%b" % (n, b"x" * 3900), 1)
    assert again.count == 4096


def test_an_account_with_few_subjects_keeps_them_whatever_others_have():
    other, before = Tally(100_000), -1
    while before < other.row_bytes <= MOST_BYTES:  # or until it gives up rows: tallies of other tests may count, too
        before = other.row_bytes
        other.note(b"%d.%b" % (before, b"x" * 3900), 1)
    light = Tally(4096)
    for n in range(200):
        light.note(b"%d" % n, 1)
    assert light.count == 200
