"""Denials add up, by user and by window, and need no more room when users are many."""

from __future__ import annotations

from gnatswarm.shards.boundary.records import OTHER
from gnatswarm.shards.boundary.rows import DeniedRow
from gnatswarm.shards.clients.denials import MOST_USERS, Denials


def test_a_window_has_what_is_new_and_monitoring_has_all() -> None:
    denials = Denials()
    denials.note("A", "ann", is_publish=True)
    denials.note("A", "ann", is_publish=False)
    denials.note("B", "", is_publish=True)
    assert denials.take() == [DeniedRow("A", "ann", 1, 1), DeniedRow("B", "", 1, 0)]
    assert denials.take() == []
    denials.note("A", "ann", is_publish=True)
    assert denials.take() == [DeniedRow("A", "ann", 1, 0)]
    assert denials.rows == [DeniedRow("A", "ann", 2, 1), DeniedRow("B", "", 1, 0)]


def test_beyond_a_bound_users_share_a_row() -> None:
    denials = Denials()
    for number in range(MOST_USERS + 50):
        denials.note("A", f"user{number}", is_publish=True)
    assert len(denials.rows) == MOST_USERS + 1
    assert denials.rows[-1] == DeniedRow(OTHER, OTHER, 50, 0)
    assert sum(row.publishes for row in denials.take()) == MOST_USERS + 50
