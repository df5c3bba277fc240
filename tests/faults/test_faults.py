"""The account that `make faults` gives of its clients is right, and its page has a row for each kind of fault."""

from __future__ import annotations

from typing import cast

import pytest

from tests.faults.__main__ import PAGE
from tests.faults.faults import FAULTS
from tests.faults.flow import Flow, Voice
from tests.support.wire import Client

SENT = [0, 1, 2, 3, 4]


def flow(came: list[int], *, broke: int = 0) -> Flow:
    """Voice 0 has published SENT, and `came` came to voice 1."""
    nobody = cast(Client, None)
    speaker = Voice(0, nobody, came=list(SENT), acknowledged=list(SENT))
    return Flow(0, voices=[speaker, Voice(1, nobody, came=came, broke=broke, unacknowledged=broke * 5)])


@pytest.mark.parametrize(
    ("came", "account"),
    [
        (SENT, (0, 0, 0)),
        ([0, 1, 3, 4], (1, 0, 0)),
        ([0, 1, 2, 2, 3, 4], (0, 1, 1)),
        ([0, 1, 3, 2, 4], (0, 0, 1)),
        ([], (5, 0, 0)),
    ],
)
def test_what_somebody_missed_is_counted(came, account):
    assert flow(came).account() == account


def test_who_was_disconnected_is_promised_nothing():
    broken = flow([0], broke=1)
    assert broken.account() == (0, 0, 0)
    assert "1 of 2 connections closed, 5 messages on them not acknowledged" in broken.lost()


def test_the_page_has_a_row_for_every_fault():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| fault ")]
    assert len({one.name for one in FAULTS}) == len(FAULTS)
    assert len(rows) >= len(FAULTS)
    assert not any("**" in row for row in rows), "something did not hold"
