"""Signals become commands; a request that comes twice is one."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnatswarm.router.supervision import signal_handlers
from gnatswarm.router.supervision.signal_handlers import SignalHandlers


class Stopped:
    """Commands that only note how often the broker was to stop."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def stop(self, exit_code: int) -> None:
        self.codes.append(exit_code)


def handlers_of(commands: Stopped) -> SignalHandlers:
    anything = cast(Any, SimpleNamespace(is_leaving=False))
    return SignalHandlers(anything, anything, cast(Any, commands), lambda: None)


async def test_a_signal_to_the_router_and_to_its_group_is_one_request() -> None:
    """`timeout` sends both. A second request would kill shards that are writing their last window."""
    commands = Stopped()
    handlers = handlers_of(commands)
    handlers.on_signal(signal.SIGTERM)
    handlers.on_signal(signal.SIGTERM)
    handlers.on_signal(signal.SIGINT)
    assert commands.codes == [1]


async def test_a_later_signal_is_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_handlers, "SAME_REQUEST_S", 0.0)
    commands = Stopped()
    handlers = handlers_of(commands)
    handlers.on_signal(signal.SIGINT)
    handlers.on_signal(signal.SIGINT)
    assert commands.codes == [0, 0]
