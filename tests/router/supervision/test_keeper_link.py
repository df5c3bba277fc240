"""What the keeper says: each signal and each death is delivered, whatever became of the one before."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gnatswarm.router.supervision.keeper_link import KeeperLink
from gnatswarm.shards.boundary.keeping import Exited


class Link:
    """One without a keeper; the first packet cannot be handled."""

    def __init__(self, *waiting: Exited) -> None:
        self._waiting = deque(waiting)
        self._loop: Any = self
        self.later: list[Any] = []
        self.delivered: list[Exited] = []

    def call_soon(self, call: Any) -> None:
        self.later.append(call)

    def _deliver(self, packet: Exited) -> None:
        self.delivered.append(packet)
        assert len(self.delivered) > 1

    def _read(self, _flags: int) -> bool:
        return False

    def _on_readable(self) -> None:
        readable: Any = self
        KeeperLink._on_readable(readable)


def test_what_waits_behind_a_death_that_could_not_be_handled_is_delivered() -> None:
    """The keeper may say nothing more that would bring it about."""
    link = Link(Exited(1, 0), Exited(2, 0), Exited(3, 0))
    with pytest.raises(AssertionError):
        link._on_readable()
    [call] = link.later
    call()
    assert [packet.pid for packet in link.delivered] == [1, 2, 3]
