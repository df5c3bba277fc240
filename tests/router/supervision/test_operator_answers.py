"""What operators are told that no test of a whole broker can wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gnatswarm.router.supervision.operator_answers import OperatorAnswers
from gnatswarm.router.supervision.operator_socket import ReloadAnswer, Reply
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


async def test_a_reload_that_a_shard_takes_late_is_not_refused():
    """Who heard an error would believe that the options of before hold."""
    late = ReloadAnswer(problems=("shard 0 has not taken the new options yet",))

    async def reload_everywhere() -> ReloadOutcome:
        return ReloadOutcome(answer=late, is_late=True)

    answers: Any = SimpleNamespace(_reloader=SimpleNamespace(reload_everywhere=reload_everywhere))
    assert await OperatorAnswers._reload(answers) == Reply(reload=late)
