"""What a rolling restart asks before it begins, and where new clients go meanwhile: the rest is in tests/system."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.router.supervision import successor
from gnatswarm.router.supervision.record import RollingRecord
from gnatswarm.router.supervision.rolling import Rolling
from gnatswarm.router.supervision.supervision import Phase, ShardState
from gnatswarm.router.supervision.supervisor import Supervisor


def a_shard(number: int, boot_id: str) -> Any:
    state = ShardState(phase=Phase.READY, is_wanted=True)
    process = SimpleNamespace(boot_id=boot_id)
    return SimpleNamespace(number=number, name=f"Shard {number}", state=state, process=process, is_gateway=False)


def a_broker(*shards: Any, rolling: RollingRecord | None = None) -> Any:
    return SimpleNamespace(
        shards=list(shards), members=list(shards), wanted=len(shards), rolling=rolling, is_leaving=False,
        is_stopping=False, is_serving=True, keeper=SimpleNamespace(formats=dict), gateway=None,
    )  # fmt: skip


async def test_an_upgrade_does_not_begin_where_the_broker_has_gone_on_meanwhile(monkeypatch: pytest.MonkeyPatch):
    broker = a_broker(a_shard(0, "a"))
    begun: list[object] = []

    async def ask(_command: object, _spoken: object) -> str:
        broker.is_leaving = True  # while the program says what it is
        return "9.9"

    monkeypatch.setattr(successor, "ask", ask)
    commands: Any = SimpleNamespace(begin_rolling=begun.append)
    rolling = Rolling(broker, commands)
    assert await rolling.upgrade("/new", lambda text: None, 0.0) == ("", "the broker is shutting down")
    assert not begun


def test_new_clients_go_to_shards_that_have_been_replaced():
    shards = [a_shard(0, "a"), a_shard(1, "new"), a_shard(2, "additional")]
    supervisor: Any = SimpleNamespace(_broker=a_broker(*shards, rolling=RollingRecord(2, ["a", "b"])))
    assert Supervisor._accepting(supervisor) == [1]
    shards[1].process.boot_id = "b"
    assert Supervisor._accepting(supervisor) == [0, 1, 2]
