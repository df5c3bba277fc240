"""Fixtures for tests of one logical broker: a subject of the test's own, and clients placed on shards."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.wire import Client, Cluster

Place = Callable[..., Awaitable[list[Client]]]


@pytest.fixture
def subject() -> str:
    return f"s.{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=["same", "different"])
def place(request: pytest.FixtureRequest, cluster: Cluster) -> Place:
    """So many clients, all on one shard, the last one, or each on another."""

    async def placed(count: int, connect: dict[str, Any] | None = None, **options: Any) -> list[Client]:
        if request.param == "different":
            return await cluster.clients(count, on_different_shards=True, connect=connect, **options)
        last = cluster.broker.kind.shards - 1
        return [await cluster.client_on(last, connect, **options) for _ in range(count)]

    return placed
