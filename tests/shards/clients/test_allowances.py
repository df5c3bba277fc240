"""Clients that wait for their publish_limits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.shards.clients.allowances import LEAST_WAIT_S, WAITING_PER_STEP, Allowances


class Loop:
    """Takes timers, and calls none."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def call_later(self, after_s: float, _over: object) -> SimpleNamespace:
        self.waits_s.append(after_s)
        return SimpleNamespace(cancel=lambda: None)


def test_the_more_wait_the_rarer_they_are_looked_at_also_after_a_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    page: Any = None  # nobody has limits here
    allowances = Allowances(Options(), page)
    first = [allowances.wait("a", 0, lambda: None) for _ in range(WAITING_PER_STEP)]
    allowances = Allowances(Options(), page, allowances)
    second = allowances.wait("a", 0, lambda: None)
    for at_once in (*first, second):
        at_once()
    allowances.wait("a", 0, lambda: None)
    allowances.wait("b", 0, lambda: None)
    assert loop.waits_s == [LEAST_WAIT_S] * WAITING_PER_STEP + [2 * LEAST_WAIT_S, LEAST_WAIT_S, LEAST_WAIT_S]
