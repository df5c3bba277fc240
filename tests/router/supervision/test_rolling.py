"""What a rolling restart asks before it begins, and where new clients go meanwhile: the rest is in tests/system."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision import rolling as rolling_module
from gnatswarm.router.supervision import successor
from gnatswarm.router.supervision.record import KEEPER, ROUTER, SHARDS, RollingRecord
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
        is_stopping=False, is_serving=True, gateway=None, options=Options(),
        keeper=SimpleNamespace(formats=dict, is_successor=False, unfit=""),
        page=SimpleNamespace(snapshot=lambda _number: {"connections": 0}),
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


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (ShardState(phase=Phase.READY, is_wanted=True, is_suspect=True), "it does not answer"),
        (ShardState(phase=Phase.READY, is_wanted=True, is_in_step=False), "it has no link to some other shard"),
        (ShardState(phase=Phase.READY), "it is to leave"),
        (ShardState(phase=Phase.BACKING_OFF, is_wanted=True), "it is backing off"),
    ],
)
async def test_a_restart_that_cannot_begin_says_of_which_shard_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, state: ShardState, why: str
):
    """It said "does not serve: it is ready" of one that hangs, and of one without a link."""
    monkeypatch.setattr(rolling_module, "LATE_WITHIN_S", 0.0)
    broker = a_broker(a_shard(0, "a"), a_shard(1, "b"))
    broker.members[1].state = state
    commands: Any = SimpleNamespace()
    rolling = Rolling(broker, commands)
    assert await rolling.restart(lambda text: None, 0.0) == ("", f"shard 1 does not serve: {why}")


@pytest.mark.parametrize("late", [{"is_suspect": True}, {"is_in_step": False}], ids=str)
async def test_a_restart_waits_for_a_shard_that_answers_late(monkeypatch: pytest.MonkeyPatch, late: dict[str, bool]):
    """As on a busy machine; it was refused because of one that did not answer for 0.75 s."""
    broker = a_broker(a_shard(0, "a"), a_shard(1, "b"))
    serving = broker.members[1].state
    broker.members[1].state = msgspec.structs.replace(serving, **late)

    async def pause() -> float:
        broker.members[1].state = serving
        return 0.5

    monkeypatch.setattr(rolling_module, "_pause", pause)
    commands: Any = SimpleNamespace(begin_rolling=lambda _record: "begun")
    assert await Rolling(broker, commands).restart(lambda text: None, 0.0) == ("", "begun")


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


class Clock:
    """Time that passes only while a rolling restart waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.stands_still_s = 0.0  # the router does not run for so long, once
        monkeypatch.setattr("gnatswarm.router.supervision.rolling.time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr("gnatswarm.router.supervision.rolling.asyncio.sleep", self.pass_by)

    async def pass_by(self, seconds: float) -> None:
        self.now_s += seconds + self.stands_still_s
        self.stands_still_s = 0.0


class Ending:
    """A broker of two shards whose additional one, or another step, does not end as it should."""

    def __init__(self, rolling: RollingRecord, spare: Phase = Phase.STOPPED) -> None:
        self.ended: list[RollingRecord | None] = []
        self.broker = a_broker(a_shard(0, "a"), a_shard(1, "b"), a_shard(2, "spare"), rolling=rolling)
        self.broker.shards[2].state = ShardState(phase=spare)
        commands: Any = self
        self.rolling = Rolling(self.broker, commands)

    def end_rolling(self, _within_s: float, _to: object = None, then: RollingRecord | None = None) -> None:
        self.ended.append(then)
        self.broker.rolling = then

    def begin_rolling(self, _rolling: RollingRecord) -> str:
        return "no descriptors"

    def note_rolling(self, rolling: RollingRecord | None) -> None:
        self.broker.rolling = rolling


async def test_after_an_upgrade_whose_additional_shard_never_leaves_others_may_begin(monkeypatch: pytest.MonkeyPatch):
    Clock(monkeypatch)
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=SHARDS), Phase.KILLED)

    async def replace_all(_rolling: RollingRecord) -> Any:
        return one.broker.shards[1]

    monkeypatch.setattr(one.rolling, "_replace_all", replace_all)
    with pytest.raises(RollingFailed, match=r"shard 2 has not left within 24 s.*The shards are of /new, the router is"):
        await one.rolling._roll()
    assert one.broker.rolling is None
    assert one.ended[-1] is None


@pytest.mark.parametrize("stage", [SHARDS, ROUTER, KEEPER])
async def test_after_an_error_that_nobody_expected_others_may_begin(stage: str, monkeypatch: pytest.MonkeyPatch):
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=stage))
    for step in ("_roll_shards", "_roll_router", "_roll_keeper"):
        monkeypatch.setattr(one.rolling, step, lambda _rolling: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await one.rolling._roll()
    assert one.broker.rolling is None
    # Shards start as the new version still where all but the keeper is of that.
    assert one.ended == ([] if stage == KEEPER else [None])


async def test_after_an_upgrade_that_cannot_even_go_back_others_may_begin():
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=ROUTER))
    one.broker.keeper.unfit = "exit code 5"
    with pytest.raises(RollingFailed, match=r"exit code 5; and going back: no descriptors\. The shards are of /new"):
        await one.rolling._roll()
    assert one.ended == [None]


@pytest.mark.parametrize("why", ["on trial", "lame duck"])
async def test_what_is_left_to_do_stays_where_another_router_or_nobody_goes_on(
    why: str, monkeypatch: pytest.MonkeyPatch
):
    Clock(monkeypatch)
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=ROUTER))
    one.broker.keeper.is_successor = why == "on trial"
    one.broker.is_leaving = why == "lame duck"
    one.broker.shards[0].state = ShardState(phase=Phase.STARTING)
    if why == "lame duck":
        one.broker.shards[2].state = ShardState(phase=Phase.DRAINING)
    with pytest.raises(RollingFailed):
        await one.rolling._roll()
    assert not one.ended


async def test_an_additional_shard_is_not_blamed_for_time_in_which_the_router_did_not_run(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = Clock(monkeypatch)
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=ROUTER), Phase.DRAINING)
    spare = one.broker.shards[2]
    clock.stands_still_s = 60.0

    async def pass_by(seconds: float) -> None:
        if clock.now_s > 60.0:  # its end is heard with the second look
            spare.state = ShardState(phase=Phase.STOPPED)
        await clock.pass_by(seconds)

    monkeypatch.setattr("gnatswarm.router.supervision.rolling.asyncio.sleep", pass_by)
    await one.rolling._wait_left(spare)


def test_a_router_of_another_version_than_the_keeper_has_nothing_to_prove_when_no_upgrade_is_under_way():
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=ROUTER))
    one.broker.rolling, one.broker.keeper.is_successor = None, True
    one.rolling.go_on()
    assert not one.broker.keeper.is_successor


async def test_an_error_that_nobody_expected_is_no_success_of_before(monkeypatch: pytest.MonkeyPatch):
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: logged.append(context["exception"]))
    one = Ending(RollingRecord(2, ["old"]))
    outcomes: list[object] = [RollingRecord(2, ["old"]), ZeroDivisionError("zero")]

    async def roll_shards(_rolling: RollingRecord) -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(one.rolling, "_roll_shards", roll_shards)
    assert (await one.rolling._carry_out(lambda text: None))[0].startswith("2 shards restarted")
    error = "an unexpected error has ended it, the log says more: ZeroDivisionError('zero')"
    assert await one.rolling._carry_out(lambda text: None) == ("", error)
    assert await one.rolling.follow(lambda text: None) == ("", error)
    assert [type(one) for one in logged] == [ZeroDivisionError]


@pytest.mark.parametrize("what", ["restart", "upgrade"])
async def test_who_asks_again_does_not_hear_of_the_one_before(what: str, monkeypatch: pytest.MonkeyPatch):
    """As where the connection to the router has ended before anything was begun."""
    one = Ending(RollingRecord(2, ["old"]))
    one.broker.rolling, one.broker.shards, one.broker.members = None, [], []
    one.rolling._outcome = "2 shards restarted", ""

    async def ask(_command: object, _spoken: object) -> str:
        raise successor.Unfit("it is no gnatswarm")

    monkeypatch.setattr(successor, "ask", ask)
    text, problem = await (
        one.rolling.restart(lambda text: None, 0.0)
        if what == "restart"
        else one.rolling.upgrade("/new", lambda text: None, 0.0)
    )
    assert not text and problem
    text, problem = await one.rolling.follow(lambda text: None)
    assert not text and problem.startswith("nothing is under way")


@pytest.mark.parametrize("why", ["is_stopping", "is_leaving", ""])
async def test_the_router_makes_no_room_where_the_broker_is_told_to_end_just_then(
    why: str, monkeypatch: pytest.MonkeyPatch
):
    """Its shards would be killed where they are to close their clients."""
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=ROUTER))
    made_room: list[object] = []
    one.broker.keeper.make_room = made_room.append
    one.broker.keeper.taken_over = lambda: None

    async def pass_by(_seconds: float) -> None:
        if why:
            setattr(one.broker, why, True)  # a signal comes while the operator is told

    monkeypatch.setattr("gnatswarm.router.supervision.rolling.asyncio.sleep", pass_by)
    if why:
        with pytest.raises(RollingFailed, match="the broker is shutting down"):
            await one.rolling._roll()
    else:
        await one.rolling._roll_router(one.broker.rolling)
    assert made_room == ([] if why else [["/new"]])
    assert not one.ended


async def test_a_router_that_comes_back_to_a_broker_that_ends_does_not_go_back_to_the_version_before():
    """The new one ended in lame duck mode, not because it was unfit; and all that could be changed is closed."""
    one = Ending(RollingRecord(2, ["old"], ["/new"], stage=ROUTER))
    one.broker.keeper.unfit, one.broker.is_leaving = "exit code 0", True
    with pytest.raises(RollingFailed, match="the broker is shutting down"):
        await one.rolling._roll()
    assert not one.ended
