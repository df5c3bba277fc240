"""What the comparisons with real servers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Broker


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    """Those that a test starts; they are ended behind it."""
    started: list[Broker] = []
    yield started
    for one in started:
        one.kill()
