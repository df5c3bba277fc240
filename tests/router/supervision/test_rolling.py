"""What a rolling restart asks before it begins, and where new clients go meanwhile: the rest is in tests/system."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.router.supervision import successor
from gnatswarm.router.supervision.record import RollingRecord
from gnatswarm.router.supervision.rolling import Rolling, RollingFailed
from gnatswarm.router.supervision.standby import Readiness
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


class Preparing:
    """A gateway that serves, and whose next process becomes what it is told to."""

    def __init__(self, *becomes: Readiness) -> None:
        self.becomes = list(becomes)
        self.done: list[str] = []
        self.broker = a_broker(a_shard(63, "old"))
        self.broker.gateway = self.broker.members[0]
        self.gateway_readiness = Readiness.NONE

    def prepare_gateway(self) -> None:
        self.done.append("prepare")
        self.gateway_readiness = self.becomes.pop(0) if self.becomes else Readiness.NONE

    async def replace(self) -> None:
        commands: Any = self
        await Rolling(self.broker, commands)._replace_gateway(self.broker.gateway, RollingRecord(1, ["old"]))

    def replace_gateway(self, _within_s: float) -> None:
        self.done.append("replace")
        self.broker.gateway.process.boot_id = "new"
        self.broker.gateway.state = ShardState(phase=Phase.READY, is_wanted=True, is_in_step=True)


async def test_a_gateway_is_replaced_when_its_next_process_is_ready_one_that_ended_is_started_again():
    one = Preparing(Readiness.NONE, Readiness.READY)
    await one.replace()
    assert one.done == ["prepare", "prepare", "replace"]


@pytest.mark.parametrize("what", ["hangs", "ends each time", "lame duck"])
async def test_a_gateway_serves_on_where_its_next_process_is_not_ready(what: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gnatswarm.router.supervision.rolling.BOOT_DEADLINE_S", 0.05)
    one = Preparing(*([] if what == "ends each time" else [Readiness.PENDING]))
    one.broker.is_leaving = what == "lame duck"
    with pytest.raises(RollingFailed, match="shutting down" if what == "lame duck" else "serves on"):
        await one.replace()
    assert "replace" not in one.done


async def test_a_gateway_that_died_while_the_next_one_was_prepared_is_not_replaced_twice():
    one = Preparing(Readiness.READY)
    one.broker.gateway.process.boot_id = "new"
    one.broker.gateway.state = ShardState(phase=Phase.READY, is_wanted=True, is_in_step=True)
    await one.replace()
    assert one.done == ["prepare"]
