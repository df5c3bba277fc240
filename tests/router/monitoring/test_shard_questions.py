"""What a page asks a shard: whose answer counts, and what becomes of it when that shard dies."""

from __future__ import annotations

import asyncio

import msgspec

from gnatswarm.router.monitoring.shard_questions import ShardQuestions
from gnatswarm.shards.boundary.control import ControlMessage, Snapshot, SnapshotReply
from gnatswarm.shards.boundary.rows import RoutesPart, RoutesQuery
from tests.support.turns import until

PART = msgspec.msgpack.encode(RoutesPart([]))


class Asked:
    """A question to shard 1, on its way."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, ControlMessage]] = []
        self.questions = ShardQuestions(self._send)
        self.answer = asyncio.create_task(self.questions.ask(1, RoutesQuery(), RoutesPart))

    def _send(self, shard: int, message: ControlMessage) -> bool:
        self.sent.append((shard, message))
        return True

    async def seq(self) -> int:
        await until(lambda: self.sent)
        ((shard, message),) = self.sent
        assert shard == 1 and isinstance(message, Snapshot)
        return message.seq


async def test_only_the_shard_that_was_asked_answers() -> None:
    asked = Asked()
    seq = await asked.seq()
    for shard, is_last in ((0, False), (1, False), (0, True), (1, False), (1, True)):
        assert not asked.answer.done()
        asked.questions.on_reply(shard, SnapshotReply(seq, b"" if is_last else PART, is_last))
        await asyncio.sleep(0)
    assert await asked.answer == [RoutesPart([])] * 2


async def test_a_shard_that_dies_is_not_waited_for() -> None:
    asked = Asked()
    seq = await asked.seq()
    asked.questions.on_reply(1, SnapshotReply(seq, PART, is_last=False))
    asked.questions.on_gone(0)
    await asyncio.sleep(0)
    assert not asked.answer.done()
    asked.questions.on_gone(1)
    assert await asyncio.wait_for(asked.answer, 30) == []
