"""Of many subjects the heaviest are kept, and the rest is accounted for."""

from __future__ import annotations

import sys

import msgspec

from gnatswarm.shards.statistics import subject_history
from gnatswarm.shards.statistics.subject_history import (
    MOST_KEPT,
    MOST_SUBJECT_BYTES,
    MOST_WINDOWS,
    Heaviest,
    SubjectCounts,
    SubjectHistory,
    Window,
    weight,
)


def row(subject: str, msgs: int, payload_bytes: int = 0, deliveries: int = 0) -> SubjectCounts:
    return SubjectCounts(subject, 0, msgs, payload_bytes, deliveries, 0, 0, 0, 0, 0, 0)


def test_the_heaviest_stay_and_the_others_are_counted():
    heaviest = Heaviest(3)
    for start in range(0, 100, 10):
        heaviest.add("$G", [row(f"s{n}", n) for n in range(start, start + 10)])
    assert sorted(one.subject for _account, one in heaviest.rows) == ["s97", "s98", "s99"]
    assert heaviest.left_out == 97
    assert heaviest.left_out_msgs == sum(range(97))


def test_equals_of_two_accounts_are_two():
    heaviest = Heaviest(10)
    heaviest.add("A", [row("s", 1)])
    heaviest.add("B", [row("s", 1)])
    assert sorted(account for account, _one in heaviest.rows) == ["A", "B"]


def test_few_big_messages_weigh_as_much_as_many_small_ones():
    assert weight(row("s", 1, 2560)) == weight(row("s", 11)) == weight(row("s", 1, 0, 10))


def test_old_windows_go():
    history = SubjectHistory()
    for n in range(MOST_WINDOWS + 2):
        history.add(Window(n, [], 0))
    assert [window.length_us for window in history.windows] == list(range(2, MOST_WINDOWS + 2))
    assert history.ended == MOST_WINDOWS + 2


def test_long_subjects_have_no_row_and_are_counted_with_the_others():
    heaviest = Heaviest(10)
    at_most = "s" * (MOST_SUBJECT_BYTES - sys.getsizeof(""))
    heaviest.add("$G", [row(at_most, 1), row(at_most + "s", 1000), row("s" * 300 + "\N{BEETLE}", 200), row("short", 3)])
    assert sorted(one.subject for _account, one in heaviest.rows) == ["short", at_most]
    assert (heaviest.left_out, heaviest.left_out_msgs) == (2, 1200)


def test_the_history_takes_as_much_memory_as_it_says():
    longest = "s" * (MOST_SUBJECT_BYTES - sys.getsizeof("") - 6)
    history = SubjectHistory()
    for _ in range(MOST_WINDOWS + 2):
        heaviest = Heaviest(MOST_KEPT)
        large = [SubjectCounts(f"{longest}{i:06}", *range(10**9 + i, 10**9 + i + 10)) for i in range(2 * MOST_KEPT)]
        heaviest.add("$G", large)
        history.add(Window(1, heaviest.rows, 0))
    assert "10 MB" in (subject_history.__doc__ or "")
    kept = [one for window in history.windows for one in window.rows]
    fields = sum(sys.getsizeof(value) for _, row in kept for value in msgspec.structs.astuple(row))
    assert len(kept) == MOST_WINDOWS * MOST_KEPT
    assert fields + sum(sys.getsizeof(pair) + sys.getsizeof(pair[1]) for pair in kept) < 10_000_000
