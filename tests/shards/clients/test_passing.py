"""Who has left and who has come is known for some seconds, and of no more clients than move in that time."""

from __future__ import annotations

import msgspec
import pytest

from gnatswarm.shards.clients.passing import CAME_FOR_S, LEFT_FOR_S, MOST, MOST_BYTES, Passing
from tests.router.monitoring.test_pages import connection


def test_they_are_forgotten_in_time_those_that_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("gnatswarm.shards.clients.passing.time.monotonic", lambda: now_s)
    passing = Passing()
    passing.leave(connection(1), 3)
    passing.come(2, 3, 7)
    now_s += CAME_FOR_S
    assert ([row.cid for _, row in passing.left], passing.came) == ([1], [(2, 3, 7)])
    now_s += 0.1
    assert ([row.cid for _, row in passing.left], passing.came) == ([1], [])
    now_s += LEFT_FOR_S - CAME_FOR_S
    assert passing.left == []
    assert passing.has_come  # for ever: it says that ids are out of order


def test_they_are_bounded() -> None:
    passing = Passing()
    for cid in range(MOST + 10):
        passing.leave(connection(cid), 3)
        passing.come(cid, 3, 7)
    assert len(passing.left) == len(passing.came) == MOST
    assert passing.came[-1] == (MOST + 9, 3, 7)


def test_those_that_left_are_forgotten_though_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("gnatswarm.shards.clients.passing.time.monotonic", lambda: now_s)
    passing = Passing()
    for cid in range(100):
        passing.leave(connection(cid), 3)
    now_s += LEFT_FOR_S + 0.1
    passing.leave(connection(100), 3)
    assert len(passing._left) == 1


def test_long_names_are_bounded_by_what_they_take() -> None:
    passing = Passing()
    large = msgspec.structs.replace(connection(1), name="n" * 100_000)
    for cid in range(100):
        passing.leave(msgspec.structs.replace(large, cid=cid), 3)
    cids = [row.cid for _, row in passing.left]
    assert cids == list(range(100 - len(cids), 100))
    assert MOST_BYTES - 200_000 < len(cids) * 100_000 < MOST_BYTES
