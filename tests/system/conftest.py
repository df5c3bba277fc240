"""Fixtures for tests of one logical broker: a subject of the test's own, and clients placed on shards."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.authority import Authority, Pair
from tests.support.servers import Broker, Kind
from tests.support.wire import Client, Cluster

Place = Callable[..., Awaitable[list[Client]]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a broker of one shard, another shard is the same one: that would be the same test twice."""
    repeated = [item for item in items if _is_repeated(item)]
    if repeated:
        config.hook.pytest_deselected(items=repeated)
        items[:] = [item for item in items if not _is_repeated(item)]


def _is_repeated(item: pytest.Item) -> bool:
    found = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    is_elsewhere = found.get("place") == "different" or found.get("shard") == 1
    kind = found.get("kind")
    return is_elsewhere and isinstance(kind, Kind) and kind.shards == 1


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


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A certificate authority of the test's own."""
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Pair:
    """The certificate of brokers that `secure` starts."""
    return authority.server()


@pytest.fixture(scope="session")
def lasting_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One for all tests; `shared_secure` has its certificate."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def lasting_server(lasting_authority: Authority) -> Pair:
    return lasting_authority.server()


@pytest.fixture
def shared_secure(broker_with: Callable[..., Broker], lasting_server: Pair) -> Broker:
    """A broker with TLS that other tests use too, on other subjects."""
    return broker_with(f"tls {{\n {lasting_server.lines}\n}}\n")


@pytest.fixture
def secure(start_broker: Callable[..., Broker], server: Pair) -> Callable[..., Broker]:
    """Starts a broker with TLS: more lines of its tls block, and of the file."""

    def start(more: str = "", rest: str = "") -> Broker:
        return start_broker(config=f"tls {{\n {server.lines}\n {more}\n}}\n{rest}")

    return start
