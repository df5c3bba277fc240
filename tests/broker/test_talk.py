"""What one client says and hears, by subject: exact while the subjects fit, and never more than was counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NO_RESPONDERS, Engine, EngineClient

LINES = 8
Said = dict[str, tuple[int, int, int]]  # subject → messages, bytes, requests


def talking(lines: int = LINES) -> Engine:
    engine = Engine()
    engine.probe.tally(1000, lines)
    return engine


def said(client: EngineClient) -> Said:
    taken = client.connection.take_talk()
    return {subject: (msgs, size, requests) for subject, msgs, size, requests in taken[2]} if taken else {}


def heard(client: EngineClient) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    taken = client.connection.take_talk()
    for subject, queue, msgs in taken[3] if taken else ():
        found[subject, queue] += msgs
    at = 0
    while True:
        rows, at = client.connection.heard(at, 3)
        for subject, queue, msgs in rows:
            found[subject, queue] += msgs
        if not at:
            return found


def published(subject: str, size: int, reply: str = "", blank: str = " ") -> bytes:
    words = ["PUB", subject, *([reply] if reply else []), str(size)]
    return blank.join(words).encode() + b"\r\n" + b"x" * size + b"\r\n"


def test_runs_are_counted_by_subject_with_their_bytes_and_requests():
    client = talking().client()
    client.feed(published("a", 3) * 5 + published("b", 7) + published("a", 3, "answer") * 4 + published("a", 1))
    assert said(client) == {"a": (10, 28, 4), "b": (1, 7, 0)}
    assert said(client) == {}
    client.feed(published("a", 1) * 2)  # the line that it repeated last
    assert said(client) == {"a": (2, 2, 0)}


def test_a_line_that_is_not_repeated_as_it_was_does_not_count_in_the_run_before():
    client = talking().client()
    client.feed(published("a", 3) * 2 + published("b", 3, blank="  ") + published("a", 3) * 3)
    assert said(client) == {"a": (5, 15, 0), "b": (1, 3, 0)}


def test_what_is_refused_is_of_no_subject():
    engine = talking()
    client = engine.client(NO_RESPONDERS)
    client.feed(published("a", 3) + published("_GR_.x", 3) + published("a", 3))
    taken = client.connection.take_talk()
    assert taken is not None
    assert taken[1][:2] == (3, 9)
    assert taken[2] == [("a", 2, 6, 0)]


def test_one_time_subjects_share_a_line():
    engine = talking()
    service, client = engine.clients(2)
    for i in range(20):
        client.feed(b"SUB _INBOX.%d %d\r\n" % (i, i))
        service.feed(published(f"_INBOX.{i}", 2))
        client.feed(b"UNSUB %d\r\n" % i)
    client.feed(b"SUB _INBOX.last 99\r\n")
    service.feed(published("_INBOX.last", 2))
    assert said(service) == {"_INBOX.>": (21, 42, 0)}
    assert heard(client) == {("_INBOX.>", ""): 21}


def test_subscriptions_are_heard_by_pattern_and_queue_also_when_they_end():
    engine = talking()
    client, publisher = engine.clients(2)
    client.feed(b"SUB a.* 1\r\nSUB a.b workers 2\r\nSUB a.> 3\r\n")
    publisher.feed(published("a.b", 1) * 3)
    client.feed(b"UNSUB 1\r\nUNSUB 2\r\n")
    publisher.feed(published("a.b", 1) * 2)
    assert heard(client) == {("a.*", ""): 3, ("a.b", "workers"): 3, ("a.>", ""): 5}
    assert heard(client) == {}
    client.feed(b"UNSUB 3\r\n")
    assert heard(client) == {}


def test_beyond_its_lines_the_rest_is_in_the_totals_and_a_heavy_subject_gets_a_line():
    client = talking().client()
    for i in range(40):
        client.feed(published(f"light.{i}", 1))
    for i in range(400):
        client.feed(published("heavy", 1) * 10 + published(f"other.{i}", 1))
    taken = client.connection.take_talk()
    assert taken is not None
    counts, rows = taken[1], taken[2]
    assert counts[0] == 40 + 400 * 11
    assert len(rows) <= LINES
    assert sum(row[1] for row in rows) <= counts[0]
    assert {row[0]: row[1] for row in rows}["heavy"] > 2000


def test_a_client_of_a_broker_without_such_rows_has_none():
    engine = Engine()
    engine.probe.tally(1000)
    client = engine.client()
    client.feed(published("a", 1))
    assert client.connection.take_talk() is None
    assert client.connection.heard(0, 10) == ([], 0)


def test_the_first_time_says_so_and_quiet_clients_say_nothing():
    client = talking().client()
    first = client.connection.take_talk()
    assert first is not None and first[0] and first[1] == (0, 0, 0, 0)
    assert client.connection.take_talk() is None


SUBJECTS = [*(f"s{i}" for i in range(6)), "_INBOX.x", "_INBOX.y"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(SUBJECTS),
            st.integers(0, 40),
            st.sampled_from(["", "r"]),
            st.sampled_from([" ", " ", "  ", "\t"]),
            st.integers(1, 5),
        ),
        max_size=40,
    ),
    st.integers(0, 39),
    st.data(),
)
def test_every_publish_is_counted_once_by_the_client_that_sent_it(
    runs: list[tuple[int, str, int, str, str, int]], taken_at: int, data: st.DataObject
):
    engine = talking()
    clients = engine.clients(2)
    engine.client().feed(b"SUB s1 1\r\nSUB s2 1\r\n")
    truth: list[dict[str, list[int]]] = [{}, {}]
    found: list[dict[str, list[int]]] = [{}, {}]

    def take() -> None:
        for client, so_far in zip(clients, found, strict=True):
            for subject, counts in said(client).items():
                row = so_far.setdefault(subject, [0, 0, 0])
                for i, n in enumerate(counts):
                    row[i] += n

    for n, (who, subject, size, reply, blank, count) in enumerate(runs):
        if n == taken_at:
            take()
        wire = published(subject, size, reply, blank) * count
        clients[who].feed(wire, data.draw(st.lists(st.integers(1, 60), max_size=4)))
        name = "_INBOX.>" if subject.startswith("_INBOX") else subject
        row = truth[who].setdefault(name, [0, 0, 0])
        for i, more in enumerate((count, count * size, count if reply else 0)):
            row[i] += more
    take()
    assert found == truth


@pytest.mark.parametrize("lines", [1, 2, 3, 8])
def test_a_full_table_stays_sound(lines: int):
    """Lines come and go at all places of the table; what is in it adds up to no more than was said."""
    client = talking(lines).client()
    for i in range(3000):
        client.feed(published(f"s{i * 7919 % 97}", 1))
    taken = client.connection.take_talk()
    assert taken is not None
    assert len(taken[2]) == lines
    assert len({row[0] for row in taken[2]}) == lines
    assert 0 < sum(row[1] for row in taken[2]) <= 3000
