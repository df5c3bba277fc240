"""What operators are told that no test of a whole broker can wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.router.supervision.operator_answers import OperatorAnswers
from gnatswarm.router.supervision.operator_socket import ReloadAnswer, Reply
from gnatswarm.router.supervision.record import RollingRecord
from gnatswarm.router.supervision.reloader import ReloadOutcome
from gnatswarm.router.supervision.supervision import Phase, ShardState


async def test_who_scales_up_is_told_at_once_that_a_shard_cannot_start():
    shards = [
        SimpleNamespace(number=0, state=ShardState(phase=Phase.READY, is_wanted=True)),
        SimpleNamespace(number=1, state=ShardState(phase=Phase.STOPPED, last_reason="cannot start a process: no room")),
    ]
    view = SimpleNamespace(wanted=2, shards=shards)
    answers: Any = SimpleNamespace(_view=view, _commands=SimpleNamespace(scale=lambda wanted: ""))
    reply = await OperatorAnswers._scale(answers, 2)
    assert reply.error == "shard 1 cannot start: cannot start a process: no room; scale again, or to fewer shards"


@pytest.mark.parametrize(
    ("wanted", "rolling", "reply"),
    [
        (4, None, Reply(error="another command has come: the broker is to have 4 shards now")),
        (3, RollingRecord(2, []), Reply(text="2 shards serve (before: 2)")),
        (6, RollingRecord(5, []), Reply(error="another command has come: the broker is to have 6 shards now")),
    ],
    ids=["scaled anew", "restarted", "scaled and restarted"],
)
async def test_who_scales_hears_what_came_after_it(wanted: int, rolling: RollingRecord | None, reply: Reply):
    shards = [SimpleNamespace(number=n, state=ShardState(phase=Phase.READY, is_wanted=True)) for n in range(2)]
    view = SimpleNamespace(wanted=2, shards=shards, rolling=rolling)

    def scale(_shards: int) -> str:
        view.wanted = wanted  # by the next command, as this one finds it when it looks
        shards.append(SimpleNamespace(number=2, state=ShardState(phase=Phase.STARTING, is_wanted=True)))
        return ""

    answers: Any = SimpleNamespace(_view=view, _commands=SimpleNamespace(scale=scale))
    assert await OperatorAnswers._scale(answers, 2) == reply


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (1, "another command has come: the broker is to have 1 shard now"),
        (2, "shard 1 is not to come back; `gnatswarm status` says why"),
    ],
    ids=["scaled", "cannot start"],
)
async def test_who_kills_a_shard_does_not_wait_for_one_that_is_not_to_come_back(wanted: int, error: str):
    shard = SimpleNamespace(number=1, process=object(), state=ShardState(phase=Phase.READY, is_wanted=True))
    view = SimpleNamespace(wanted=2, shards=[None, shard])

    def kill(_number: int) -> None:
        view.wanted, shard.process, shard.state = wanted, None, ShardState(phase=Phase.STOPPED)

    answers: Any = SimpleNamespace(_view=view, _commands=SimpleNamespace(kill_shard=kill))
    assert (await OperatorAnswers._kill(answers, 1)).error == error


async def test_a_reload_that_a_shard_takes_late_is_not_refused():
    """Who heard an error would believe that the options of before hold."""
    late = ReloadAnswer(problems=("shard 0 has not taken the new options yet",))

    async def reload_everywhere() -> ReloadOutcome:
        return ReloadOutcome(answer=late, is_late=True)

    answers: Any = SimpleNamespace(_reloader=SimpleNamespace(reload_everywhere=reload_everywhere))
    assert await OperatorAnswers._reload(answers) == Reply(reload=late)
