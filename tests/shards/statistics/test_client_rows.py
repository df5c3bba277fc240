"""Rows by client: each client's own numbers, bounded in every way that a client can be many or strange."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnatswarm.shards.boundary import records
from gnatswarm.shards.statistics.client_rows import MOST_TEXT, ClientRows
from tests.support.engine import Engine, EngineClient

WINDOW: dict[str, object] = {
    **{"version": records.RECORDS_VERSION, "broker": "B", "boot": "b", "shard": 0, "file": 1},
    **{"window_start_us": 0, "window_us": 1},
}


class Person:
    """A session of which only what a row needs is known."""

    account, host = "$G", "10.0.0.1"

    def __init__(self, client: EngineClient, name: str = "", user: str = "") -> None:
        self.client = client
        self.connection = client.connection
        self.stated = (name, "go", "1.2")
        self.user = user


class Room:
    """Some clients of an engine, and their rows."""

    def __init__(self, *, most: int = 100, subjects: int = 4, names: bool = True) -> None:
        self.engine = Engine()
        self.engine.probe.tally(1000, subjects)
        self.people: dict[int, Person] = {}
        self.rows = ClientRows(self.people, most=most, subjects=subjects, names=names)

    def enter(self, name: str = "", user: str = "") -> Person:
        person = Person(self.engine.client(), name, user)
        self.people[person.connection.cid] = person
        return person

    def leave(self, person: Person) -> None:
        del self.people[person.connection.cid]
        self.rows.on_closed(person)
        person.connection.leave()

    def move(self, person: Person) -> None:
        del self.people[person.connection.cid]
        self.rows.on_moved(person)
        person.connection.leave()

    def window(self) -> tuple[list[dict[str, Any]], list[int]]:
        lines: list[bytes] = []
        sums = [0, 0, 0, 0]
        for _ in self.rows.steps(WINDOW, lines, sums):
            pass
        return [json.loads(line) for line in lines], sums


def say(person: Person, subject: str, count: int = 1) -> None:
    person.client.feed(b"PUB %b 2\r\nhi\r\n" % subject.encode() * count)


def test_a_row_says_who_and_what():
    room = Room()
    eve, bob = room.enter("eve", "u1"), room.enter("bob", "u2")
    bob.client.feed(b"SUB a.> 1\r\nSUB a.b workers 2\r\n")
    say(eve, "a.b", 3)
    rows, sums = room.window()
    by_name = {row["name"]: row for row in rows}
    assert sums == [3, 6, 6, 12]
    mine = by_name["eve"]
    assert (mine["user"], mine["lib"], mine["ip"], mine["cid"]) == ("u1", "go 1.2", "10.0.0.1", eve.connection.cid)
    assert mine["published"] == [{"subject": "a.b", "msgs": 3, "bytes": 6, "requests": 0}]
    assert (mine["connections"], mine["opened"], mine["closed"], mine["received"]) == (1, 1, 0, [])
    heard = {(one["subject"], one["queue"]): one["msgs"] for one in by_name["bob"]["received"]}
    assert heard == {("a.>", ""): 3, ("a.b", "workers"): 3}
    assert room.window() == ([], [0, 0, 0, 0])


def test_those_who_come_and_go_are_one_row():
    room = Room()
    for _ in range(50):
        person = room.enter("churner")
        person.client.feed(b"SUB a 1\r\n")
        say(person, "a", 2)
        room.leave(person)
    (row,), sums = room.window()
    assert (row["cid"], row["connections"], row["opened"], row["closed"]) == (0, 50, 50, 50)
    assert sums[0] == row["in_msgs"] == row["out_msgs"] == 100
    assert row["published"][0]["msgs"] == row["received"][0]["msgs"] == 100


def test_what_a_client_did_before_it_moved_is_a_row_of_its_own():
    room = Room()
    eve = room.enter("eve", "u1")
    eve.client.feed(b"SUB a.* 1\r\n")
    say(eve, "a.b", 2)
    room.move(eve)
    (row,), sums = room.window()
    assert (row["name"], row["user"], row["cid"]) == ("eve", "u1", eve.connection.cid)
    assert (row["connections"], row["opened"], row["closed"]) == (1, 1, 0)
    assert row["published"] == [{"subject": "a.b", "msgs": 2, "bytes": 4, "requests": 0}]
    assert row["received"] == [{"subject": "a.*", "queue": "", "msgs": 2}]
    assert sums == [2, 4, 2, 4]
    idle = room.enter("idle")
    room.window()
    room.move(idle)
    assert room.window() == ([], [0, 0, 0, 0]), "of one that did nothing since then there is nothing to say"


def test_more_clients_than_rows_share_one():
    room = Room(most=3)
    for i in range(10):
        say(room.enter(f"c{i}"), "a", i + 1)
    for i in range(10):
        room.leave(room.enter(f"gone{i}"))
    rows, sums = room.window()
    assert [row["name"] for row in sorted(rows, key=lambda row: row["in_msgs"]) if row["user"] != "*other*"] == [
        "c7", "c8", "c9",
    ]  # fmt: skip
    (other,) = [row for row in rows if row["user"] == records.OTHER]
    assert other["connections"] == 7 + 10 and other["closed"] == 10
    assert sums[0] == sum(row["in_msgs"] for row in rows) == 55
    assert other["published"] == [{"subject": "*other*", "msgs": 28, "bytes": 56, "requests": 0}]


def test_more_subjects_than_places_share_one():
    room = Room(subjects=3)
    eve = room.enter("eve")
    eve.client.feed(b"SUB a.* 1\r\n" + b"".join(b"SUB a.%d %d\r\n" % (i, i) for i in range(2, 30)))
    for i in range(30):
        say(eve, f"a.{i}", 1 + i % 2)
    (row,), _ = room.window()
    assert len(row["published"]) == len(row["received"]) == 4
    assert sum(one["msgs"] for one in row["published"]) == row["in_msgs"] == 45
    assert sum(one["msgs"] for one in row["received"]) == row["out_msgs"]
    assert {"subject": "a.*", "queue": "", "msgs": 45} in row["received"]


def test_privacy_leaves_names_and_addresses_out():
    room = Room(names=False)
    say(room.enter("eve", "u1"), "a")
    (row,), _ = room.window()
    assert (row["name"], row["ip"], row["user"]) == ("", "", "u1")


@pytest.mark.parametrize("name", ["x" * 10_000, "\ud800", "<script>\x00\x1b[31m\u202e", "é" * 5000])
def test_a_hostile_name_is_bounded_and_can_be_written(name: str):
    room = Room()
    say(room.enter(name, name), "a")
    (row,), _ = room.window()
    assert len(row["name"]) <= MOST_TEXT and len(row["user"]) <= MOST_TEXT
    assert row["name"].encode()


def test_a_long_subject_is_part_of_the_rest():
    room = Room()
    eve = room.enter("eve")
    say(eve, "a" * 2000, 2)
    (row,), _ = room.window()
    assert row["published"] == [{"subject": "*other*", "msgs": 2, "bytes": 4, "requests": 0}]
