"""The broker's side of the system account: answers requests once for the whole broker, and tells of its own life.

Shards pass on what is asked (`shards.system`) and publish what is said here. Answers are the monitoring pages, in
nats-server's wrapping. Nothing of it is imported, and no clock runs, where the system account has no users.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from router.supervision import Phase
from shards.control import AccountChanged, SystemEvent, SystemReply, SystemRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from router.supervisor import Supervisor
    from router.system_answers import SystemAnswers

log = logging.getLogger("gnatswarm.router")

# STATSZ as nats-server sends it: soon after the start, then ever more rarely, down to every ten seconds.
FIRST_STATSZ_S = 0.25
STATSZ_EVERY_S = 10.0


class SystemDesk:
    """That of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._answers: SystemAnswers | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_statsz: asyncio.TimerHandle | None = None
        self._statsz_s = FIRST_STATSZ_S

    def configure(self) -> None:
        """The supervisor's options hold from here on; needs a running loop."""
        if self._supervisor.options.has_system_users and self._next_statsz is None:
            self._schedule_statsz(FIRST_STATSZ_S)

    def _schedule_statsz(self, after_s: float) -> None:
        import asyncio  # the router starts its shards before it has paid for that

        self._statsz_s = after_s
        self._next_statsz = asyncio.get_running_loop().call_later(after_s, self._on_statsz_due)

    def on_message(self, shard: int, message: SystemRequest | AccountChanged) -> None:
        """A shard has a question, or something to tell."""
        if isinstance(message, SystemRequest):
            self._do(self._answer(shard, message))
        else:
            self._do(self._say_connections(message.account))

    def say_shutdown(self) -> None:
        """The broker is about to stop. Every shard tells its own: links may end first."""
        if self._supervisor.options.has_system_users:
            subject = f"$SYS.SERVER.{self._supervisor.server_id}.SHUTDOWN"
            self._supervisor.tell_all(SystemEvent(subject, self._names(), is_last_word=True))

    def say_lame_duck(self) -> None:
        """The broker leaves slowly."""
        if self._supervisor.options.has_system_users:
            self._publish(f"$SYS.SERVER.{self._supervisor.server_id}.LAMEDUCK", self._names())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        import asyncio

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("cannot answer in the system account", exc_info=task.exception())

    @property
    def answers(self) -> SystemAnswers:
        """Made when the first is wanted."""
        if self._answers is None:
            from router.system_answers import SystemAnswers  # and with it the pages

            self._answers = SystemAnswers(self._supervisor)
        return self._answers

    async def _answer(self, shard: int, request: SystemRequest) -> None:
        payload = b""
        try:
            payload = await self.answers.answer(request.account, request.subject, request.body)
        finally:
            # Always: the shard counts what is unanswered.
            self._supervisor.tell(shard, SystemReply(request.seq, payload))

    async def _say_connections(self, account: str) -> None:
        for subject, payload in await self.answers.connections(account):
            self._publish(subject, payload)

    def _on_statsz_due(self) -> None:
        self._next_statsz = None
        if self._supervisor.options.has_system_users:
            self._schedule_statsz(min(2 * self._statsz_s, STATSZ_EVERY_S))
            self._do(self._say_statsz())

    async def _say_statsz(self) -> None:
        self._publish(f"$SYS.SERVER.{self._supervisor.server_id}.STATSZ", await self.answers.statsz())

    def _publish(self, subject: str, payload: bytes) -> None:
        """Through any shard that is well; there is always another one, or nobody to hear it."""
        shards = self._supervisor.shards
        for wanted in (Phase.READY, Phase.DRAINING):
            for shard in shards:
                if shard.state.phase is wanted:
                    self._supervisor.tell(shard.number, SystemEvent(subject, payload))
                    return

    def _names(self) -> bytes:
        import orjson

        from broker.advisory import Server

        supervisor = self._supervisor
        server = Server(supervisor.server_id, supervisor.server_name, supervisor.options)
        return orjson.dumps(server.document(supervisor.page.next_event_number(), time.time_ns() // 1000))
