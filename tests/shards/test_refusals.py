"""What another server tells or sends without effect, in the log."""

from __future__ import annotations

from typing import Any

import pytest

from gnatswarm.shards.gateway.refusals import Refusals


class Loop:
    """`later` has what it is to call."""

    def __init__(self) -> None:
        self.later: list[Any] = []

    def call_later(self, _after_s: float, call: Any, *words: str) -> None:
        self.later.append(lambda: call(*words))

    def turn(self) -> None:
        later, self.later = self.later, []
        for call in later:
            call()


def test_of_each_reason_there_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    refusals = Refusals(loop, "rid:1")  # type: ignore[arg-type]

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    for number in range(1000):
        refusals.note("bad subject:", f"s{number}")
    refusals.note("too long:", "t")
    assert lines() == ["rid:1 - bad subject: s0", "rid:1 - too long: t"]
    loop.turn()
    assert lines() == ["rid:1 - bad subject: s999 (999 since the last line)"]
    refusals.note("bad subject:", "u")
    loop.turn()
    assert lines() == ["rid:1 - bad subject: u (1 since the last line)"]
    loop.turn()
    loop.turn()
    assert not loop.later
    refusals.note("bad subject:", "v")
    assert lines() == ["rid:1 - bad subject: v"]
