"""The router's part of the system account: answers requests for the whole broker, and publishes events about it.

Shards pass requests on (`shards.clients.system`) and publish the answers and events. Answers contain the monitoring
pages, wrapped as in nats-server. Where the system account has no users, nothing is imported and no timer runs.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.router.supervision.broker_view import cluster_of
from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary.control import (
    AccountChanged,
    ServerEvent,
    SystemEvent,
    SystemReply,
    SystemRequest,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection, Coroutine

    from gnatswarm.router.monitoring.state import MonitoringState
    from gnatswarm.router.monitoring.system_answers import SystemAnswers
    from gnatswarm.router.supervision.broker_commands import ShardChannels
    from gnatswarm.router.supervision.broker_view import BrokerView
    from gnatswarm.router.supervision.reloader import ReloadOutcome

log = logging.getLogger("gnatswarm.router")

# STATSZ is sent as by nats-server: soon after the start, then less and less often, finally every ten seconds.
FIRST_STATSZ_S = 0.25
STATSZ_EVERY_S = 10.0
# Each account's number of connections, if it has any, as by nats-server; at changes, too.
CONNECTIONS_EVERY_S = 30.0
# How often to look whether all shards have said where they stand, after a router was replaced: that takes milliseconds.
RESUMING_EVERY_S = 0.02


class SystemAccount:
    """The system account of one broker. `monitoring` returns the monitoring state, which the first call creates.

    `took_over`: from another router, which has said what this one does not know.
    """

    def __init__(
        self,
        view: BrokerView,
        channels: ShardChannels,
        monitoring: Callable[[], MonitoringState],
        *,
        took_over: bool = False,
    ) -> None:
        self._view = view
        self._channels = channels
        self._monitoring = monitoring
        # Reads the configuration again; None: nobody does.
        self.reload: Callable[[], Awaitable[ReloadOutcome]] | None = None
        self._answers: SystemAnswers | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: set[str] = set()  # accounts whose connections are to be published
        self._said: dict[str, int] = {}  # by account the number that was published last
        self._doubtful: set[str] = set()  # accounts whose number is to be published if it is another one now
        self._doubts_all = took_over  # until it has said the number of every account that has connections
        self._is_saying_changes = False
        self._next_statsz: asyncio.TimerHandle | None = None
        self._statsz_s = FIRST_STATSZ_S
        self._next_connections: asyncio.TimerHandle | None = None

    def configure(self) -> None:
        """Apply the broker's present options; needs a running loop."""
        for account in self._said.keys() - self._view.options.account_names:
            del self._said[account]
        if self._view.options.has_system_users and self._next_statsz is None:
            self._schedule_statsz(FIRST_STATSZ_S)
            self._schedule_connections()
            if self._doubts_all:  # what has changed while there was no router, nobody has said
                self._do(self._say_connections(has_lost=True))

    def _schedule_statsz(self, after_s: float) -> None:
        import asyncio  # here: the router starts its shards before it imports asyncio

        self._statsz_s = after_s
        self._next_statsz = asyncio.get_running_loop().call_later(after_s, self._on_statsz_due)

    def _schedule_connections(self) -> None:
        import asyncio

        if self._next_connections is not None:
            self._next_connections.cancel()
        loop = asyncio.get_running_loop()
        self._next_connections = loop.call_later(CONNECTIONS_EVERY_S, self._on_connections_due)

    def _on_connections_due(self) -> None:
        self._next_connections = None
        if self._view.options.has_system_users:
            self._schedule_connections()
            self._do(self._say_connections())

    def on_message(self, shard: int, message: SystemRequest | AccountChanged | ServerEvent) -> None:
        """A message from a shard: a request, a changed account, or the gateway's event."""
        if isinstance(message, SystemRequest):
            self._do(self._answer(shard, message))
        elif isinstance(message, ServerEvent):
            self._publish(message.subject, message.payload)
        else:
            self._changed.add(message.account)
            self._say_changes_soon()

    def on_shard_gone(self) -> None:
        """A shard's process has ended, with clients perhaps, of which no shard says anything any more."""
        if self._view.options.has_system_users:
            if self._doubts_all:
                options = self._view.options
                own = options.system_account, GLOBAL_ACCOUNT
                self._doubtful.update((*own, *(account.name for account in options.accounts)))
            else:
                self._doubtful.update(account for account, connections in self._said.items() if connections)
            if self._doubtful:
                self._say_changes_soon()

    def _say_changes_soon(self) -> None:
        if not self._is_saying_changes:
            self._is_saying_changes = True
            self._do(self._say_changes())

    def say_shutdown(self) -> None:
        """Publish that the broker stops. Every shard tells its own subscribers, because links may end first."""
        if self._view.options.has_system_users:
            subject = f"$SYS.SERVER.{self._view.server_id}.SHUTDOWN"
            self._channels.tell_all(SystemEvent(subject, self._names(), is_last_word=True))

    def say_lame_duck(self) -> None:
        """Publish that lame duck mode begins."""
        if self._view.options.has_system_users:
            self._publish(f"$SYS.SERVER.{self._view.server_id}.LAMEDUCK", self._names())

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
        """The answers; created on first use."""
        if self._answers is None:
            from gnatswarm.router.monitoring.system_answers import SystemAnswers  # imports the pages too

            self._answers = SystemAnswers(self._view, self._monitoring(), self.reload)
        return self._answers

    async def _answer(self, shard: int, request: SystemRequest) -> None:
        payload = b""
        try:
            payload = await self.answers.answer(request.account, request.subject, request.body)
        finally:
            # Always reply, because the shard counts unanswered requests.
            self._channels.tell(shard, SystemReply(request.seq, payload))

    async def _say_changes(self) -> None:
        """Publish the connections of accounts that have changed. One look at all shards is for all of them."""
        try:
            while self._changed or self._doubtful:
                changed, self._changed = self._changed, set()
                doubtful, self._doubtful = self._doubtful - changed, set()
                await self._say_connections(changed | doubtful, doubtful)
        finally:
            self._is_saying_changes = False

    async def _say_connections(
        self, accounts: Collection[str] = (), doubtful: Collection[str] = (), *, has_lost: bool = False
    ) -> None:
        """Publish the connections of these accounts, or of all that have any; of the doubtful if there is news.

        `has_lost`: also of all that have none any more.
        """
        await self._wait_resumed()
        before = dict(self._said)
        async for account, connections, subject, payload in self.answers.connections(accounts, has_lost=has_lost):
            self._said[account] = connections
            if account not in doubtful or before.get(account) != connections:
                self._publish(subject, payload)
        if not accounts:
            self._doubts_all = False

    async def _wait_resumed(self) -> None:
        """Wait until no shard is left that the last router knew, and that may not be asked yet: it has connections."""
        import asyncio

        while any(shard.state.is_resuming for shard in self._view.shards):  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(RESUMING_EVERY_S)

    def _on_statsz_due(self) -> None:
        self._next_statsz = None
        if self._view.options.has_system_users:
            self._schedule_statsz(min(2 * self._statsz_s, STATSZ_EVERY_S))
            self._do(self._say_statsz())

    async def _say_statsz(self) -> None:
        self._publish(f"$SYS.SERVER.{self._view.server_id}.STATSZ", await self.answers.statsz())

    def _publish(self, subject: str, payload: bytes) -> None:
        """Publish through one shard that accepts; without such a shard there is no subscriber either."""
        shards = self._view.shards
        for wanted in (Phase.READY, Phase.DRAINING):
            for shard in shards:
                if shard.state.phase is wanted:
                    self._channels.tell(shard.number, SystemEvent(subject, payload))
                    return

    def _names(self) -> bytes:
        import orjson

        from gnatswarm.broker.advisory import ServerIdentity

        view = self._view
        server = ServerIdentity(view.server_id, view.server_name, view.options, cluster_of(view))
        return orjson.dumps(server.document(view.page.next_event_number(), time.time_ns() // 1000))
