"""What serves a running broker beside its supervisor: monitoring, system account, operators, signals, reloads.

The one place that composes them, in two steps. The constructor runs before the supervisor's, because `Companions` is
its `Audience`; `run()` makes the parts that give commands to the supervisor. Modules are imported when they are first
needed, so that they do not delay the start of the shards. Called by `router.serving`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gnatswarm.broker.bounds import MOST_COUNTED_ACCOUNTS, MOST_PUBLISH_LIMITS
from gnatswarm.router.monitoring.system_account import SystemAccount
from gnatswarm.router.supervision.broker_commands import BrokerCommands, RollingCommands
from gnatswarm.router.supervision.reload_echo import ReloadEcho
from gnatswarm.shards.boundary import control, counted_names

if TYPE_CHECKING:
    import asyncio

    from gnatswarm.broker.options import Options
    from gnatswarm.router.config.arrivals import Journey
    from gnatswarm.router.monitoring.monitor import Monitor
    from gnatswarm.router.monitoring.state import MonitoringState
    from gnatswarm.router.supervision.broker import SupervisedBroker
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.operator_answers import Disconnections, Partings
    from gnatswarm.router.supervision.operator_server import OperatorServer
    from gnatswarm.router.supervision.placing import Placing
    from gnatswarm.router.supervision.rebalance import Rebalance


log = logging.getLogger("gnatswarm.router")


class Supervision(BrokerCommands, RollingCommands, Protocol):
    """The supervisor as the companions need it."""

    def supervise(self) -> None:
        """Begin to handle messages and deaths of shards, and time."""

    def on_exited(self, pid: int, status: int) -> None:
        """A shard's process was reaped, with this status of waitpid(2)."""

    async def wait_ended(self) -> int:
        """Wait until the broker has stopped; returns the exit code."""

    def stop_ticking(self) -> None:
        """Handle time no more."""


def import_companions() -> None:
    """Import what Companions.run() needs."""
    import gnatswarm.router.supervision.operator_answers
    import gnatswarm.router.supervision.operator_socket
    import gnatswarm.router.supervision.placing
    import gnatswarm.router.supervision.rebalance
    import gnatswarm.router.supervision.reloader
    import gnatswarm.router.supervision.rolling
    import gnatswarm.router.supervision.signal_handlers  # noqa: F401


def crowding(accounts: Sequence[bytes], publishers: Sequence[bytes]) -> list[str]:
    """What to expect where more have limits, before a reload and behind it, than the shared page can count."""
    n_accounts, n_publishers = len(set(accounts)), len(set(publishers))
    texts = []
    if n_accounts > MOST_COUNTED_ACCOUNTS:
        texts.append(
            f"{n_accounts:,} accounts had max_connections before this reload or have it now, and "
            f"{MOST_COUNTED_ACCOUNTS:,} can be counted: until all shards have reloaded new ones may refuse connections"
        )
    if n_publishers > MOST_PUBLISH_LIMITS:
        texts.append(
            f"{n_publishers:,} users and accounts had publish_limits before this reload or have them now, and "
            f"{MOST_PUBLISH_LIMITS:,} can be counted: until the next reload some may publish less, or their limit on "
            "each shard"
        )
    return texts


def _log_unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error that nobody expected costs what was being done. The loop alone would say so on standard error only."""
    log.critical("%s", context.get("message", "unexpected error"), exc_info=context.get("exception"))


class Companions:
    """The companions of one broker. `reparse` reads its configuration again; None: it has none.

    `own` is the command that runs its program.
    """

    def __init__(
        self,
        broker: SupervisedBroker,
        notifier: Notifier,
        *,
        reparse: Callable[[Options], Options] | None,
        own: Sequence[str] = (),
    ) -> None:
        self._broker = broker
        self._notifier = notifier
        self._reparse = reparse
        self._own = own
        self._echo = ReloadEcho(notifier, self._on_confirmed)
        # Of accounts, and of publishers: all that have limits in some shard.
        self._counted: tuple[list[bytes], list[bytes]] = counted_names.all_of(broker.options)
        self._system = SystemAccount(broker, broker, self.monitoring, took_over=broker.left is not None)
        self._monitoring: MonitoringState | None = None
        self._monitor: Monitor | None = None
        self._operators: OperatorServer | None = None
        self._disconnections: Disconnections | None = None
        self._partings: Partings | None = None
        self._rebalance: Rebalance | None = None
        self._placing: Placing | None = None

    def monitoring(self) -> MonitoringState:
        """Created on first use; loads the monitoring modules."""
        if self._monitoring is None:
            from gnatswarm.router.monitoring.state import MonitoringState

            self._monitoring = MonitoringState(self._broker, self._broker)
        return self._monitoring

    async def run(self, supervisor: Supervision) -> int:
        """Supervise and serve until the broker has stopped; returns the exit code.

        ListenError when the monitoring pages cannot be served.
        """
        import asyncio

        from gnatswarm.router.supervision.operator_answers import Disconnections, OperatorAnswers, Partings
        from gnatswarm.router.supervision.operator_server import OperatorServer
        from gnatswarm.router.supervision.placing import Placing
        from gnatswarm.router.supervision.rebalance import Rebalance
        from gnatswarm.router.supervision.reloader import Reloader
        from gnatswarm.router.supervision.rolling import Rolling
        from gnatswarm.router.supervision.signal_handlers import SignalHandlers

        asyncio.get_running_loop().set_exception_handler(_log_unexpected)
        broker = self._broker
        self._disconnections = Disconnections()
        self._partings = Partings()
        self._rebalance = rebalance = Rebalance(broker, broker)
        self._placing = Placing(broker, asyncio.get_running_loop())
        rolling = Rolling(broker, supervisor, self._own)
        reloader = Reloader(
            broker,
            supervisor,
            self._notifier,
            self._echo,
            reparse=self._reparse,
            on_reloaded=self._on_reloaded,
            on_scaled_up=rebalance.begin_after_scale,
            warnings=self._placing.warnings,
        )
        self._system.reload = reloader.reload_everywhere
        answers = OperatorAnswers(
            broker,
            broker,
            supervisor,
            self._disconnections,
            self._partings,
            reloader,
            self._rebalance,
            rolling,
            self._live_journey,
            self._published,
        )
        signals = SignalHandlers(broker, broker, supervisor, reloader.begin)
        supervisor.supervise()
        self._operators = OperatorServer()
        rolling.go_on()
        broker.keeper.listen(signals.on_signal, supervisor.on_exited)
        try:
            await self._operators.serve(broker.runtime_files.operators, answers.answer)
            self._system.configure()
            self._placing.configure()
            # With a configured number of shards the reader of the configuration has said so.
            for warning in [] if broker.options.sharding.shards else self._placing.warnings():
                log.warning("%s", warning)
            if broker.monitor_socket is not None:
                from gnatswarm.router.monitoring.monitor import Monitor  # imports the monitoring modules

                self._monitor = Monitor(broker, self.monitoring(), broker.monitor_socket)
                await self._monitor.start()
            return await supervisor.wait_ended()
        finally:
            supervisor.stop_ticking()
            broker.keeper.close()
            self._operators.close()
            self._placing.close()
            if self._monitor is not None:
                self._monitor.close()

    async def _live_journey(self, subject: str, user: str) -> Journey:
        from gnatswarm.router.monitoring.listeners import live_journey

        numbers = [shard.number for shard in self._broker.shards]
        return await live_journey(self._broker.options, self.monitoring().questions, numbers, subject, user)

    async def _published(self) -> dict[str, int]:
        from gnatswarm.router.monitoring.listeners import published

        return await published(self.monitoring().questions, [shard.number for shard in self._broker.shards])

    def _on_reloaded(self) -> None:
        # Those of before have their places until shards have confirmed that they are gone.
        for names, new in zip(self._counted, counted_names.all_of(self._broker.options), strict=True):
            names += new
        for text in crowding(*self._counted):
            log.warning("%s", text)
        self._broker.page.keep_names(*self._counted)
        if self._monitor is not None:
            self._monitor.take_certificate()
        self._system.configure()
        if self._placing is not None:
            self._placing.configure()

    def _on_confirmed(self) -> None:
        """Who was configured with limits before the reload is counted in no shard any more."""
        self._counted = counted_names.all_of(self._broker.options)
        self._broker.page.keep_names(*self._counted)

    # ---- the supervisor's audience

    def on_message(self, shard: int, message: control.ControlMessage) -> None:
        """A shard sent a message that changes no state."""
        match message:
            case control.Reloaded(generation):
                self._echo.on_reloaded(shard, generation)
            case control.Disconnected(clients):
                if self._disconnections is not None:
                    self._disconnections.on_disconnected(shard, clients)
            case control.Parted(other):
                if self._partings is not None:
                    self._partings.on_parted(shard, other)
            case control.Moved():
                if self._rebalance is not None:
                    self._rebalance.on_moved(shard, message)
            case control.Matching():
                if self._placing is not None:
                    self._placing.on_matching(shard, message)
            case control.SnapshotReply():
                self.monitoring().questions.on_reply(shard, message)
            case control.SystemRequest() | control.AccountChanged() | control.ServerEvent():
                self._system.on_message(shard, message)

    def on_shard_gone(self, shard: int) -> None:
        """The shard's process was reaped: it will not answer questions any more."""
        with contextlib.ExitStack() as rest:  # whoever cannot be told, the others are
            if self._monitoring is not None:
                rest.callback(self._monitoring.questions.on_gone, shard)
            if self._placing is not None:
                rest.callback(self._placing.on_shard_gone, shard)
            if not self._broker.is_stopping:
                rest.callback(self._system.on_shard_gone)
            rest.callback(self._echo.on_gone, shard)  # (the last one is called first)

    def on_operator_socket(self) -> None:
        """The operator socket was removed by somebody, and there is a new one."""
        if self._operators is not None:
            self._operators.move_to(self._broker.runtime_files.operators)

    def on_stopping(self) -> None:
        """The broker is about to stop."""
        self._system.say_shutdown()

    def on_lame_duck(self) -> None:
        """Lame duck mode begins."""
        self._system.say_lame_duck()
