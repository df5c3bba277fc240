"""The reloader: reads the configuration again and applies all of it to a running broker, or nothing.

`router.config.reload` decides what may change; this module applies it. Called at SIGHUP, and when an operator asks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.reload import diff, with_chosen_ports
from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.supervision.operator_socket import ReloadAnswer
from gnatswarm.shards.boundary import logs
from gnatswarm.shards.boundary.control import Reload

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.supervision.broker import SupervisedBroker
    from gnatswarm.router.supervision.broker_commands import BrokerCommands
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.reload_echo import ReloadEcho

log = logging.getLogger("gnatswarm.router")


class ReloadOutcome(msgspec.Struct, frozen=True):
    """The result of a reload: every reason why nothing was changed, or else the answer for an operator."""

    refused: tuple[str, ...] = ()
    answer: ReloadAnswer = msgspec.field(default_factory=ReloadAnswer)


class Reloader:
    """Reloads one broker. `reparse` reads its configuration again; `on_reloaded` is called when the options changed.

    `on_scaled_up` is called when shards are being added, `warnings` says what of the new options cannot be done now.
    """

    def __init__(
        self,
        broker: SupervisedBroker,
        commands: BrokerCommands,
        notifier: Notifier,
        echo: ReloadEcho,
        *,
        reparse: Callable[[], Options] | None,
        on_reloaded: Callable[[], None],
        on_scaled_up: Callable[[], None] = lambda: None,
        warnings: Callable[[], list[str]] = list,
    ) -> None:
        self._broker = broker
        self._commands = commands
        self._notifier = notifier
        self._echo = echo
        self._reparse = reparse
        self._on_reloaded = on_reloaded
        self._on_scaled_up = on_scaled_up
        self._warnings = warnings

    @property
    def is_done(self) -> bool:
        """Whether every shard has confirmed the last reload, or is gone."""
        return self._echo.is_complete

    def reload(self) -> ReloadOutcome:
        """Reload; each problem is also logged. Shards confirm the new options later (`is_done`)."""
        self._notifier.reloading()
        outcome = self._reload()
        has_failed = outcome.refused or outcome.answer.problems
        self._broker.reload_failed_us = time.time_ns() // 1000 if has_failed else 0
        self._broker.remember()
        if outcome.refused:
            self._notifier.reloaded("the reload failed and changed nothing, the log says why")
        return outcome

    def _reload(self) -> ReloadOutcome:
        if self._broker.rolling is not None:
            log.error("Reload refused, nothing was changed: a restart is under way")
            return ReloadOutcome(("a restart is under way: try again when it is over",))
        if self._reparse is None:
            log.warning("Reload: there is no configuration to read again")
            return ReloadOutcome(("there is no configuration to read again",))
        try:
            options = self._reparse()
        except ConfigError as error:
            from gnatswarm.router.config.excerpt import with_lines

            log.error("Failed to reload server configuration: %s", error)
            return ReloadOutcome(tuple(with_lines(error).splitlines()) or (type(error).__name__,))
        except (ListenError, OSError, ValueError) as error:
            log.error("Failed to reload server configuration: %s", error)
            return ReloadOutcome(tuple(str(error).splitlines()) or (type(error).__name__,))
        old = self._broker.options
        options = with_chosen_ports(old, options, self._broker.bound_ports())
        reloaded = diff(old, options)
        if reloaded.is_refused:
            for line in reloaded.refused:
                log.error("Failed to reload server configuration: config %s", line)
            return ReloadOutcome(tuple(reloaded.refused))
        problems: list[str] = []
        for change in reloaded.live:
            log.info("Reloaded: %s", change)
        if old.logging != options.logging:
            try:
                logs.configure(options.logging, process_label=logs.ROUTER_LABEL, pid=self._broker.pid)
            except OSError as error:
                why = logs.failure(options.logging, error)
                log.error("Reload: logging stays as it was: %s", why)
                problems.append(f"logging stays as it was: {why}")
                options = msgspec.structs.replace(options, logging=old.logging)
        if old.pid_file != options.pid_file:
            try:
                self._broker.runtime_files.write_pid_file(options.pid_file)
            except OSError as error:
                log.error("Could not write pidfile: %s: %s", options.pid_file, error.strerror)
                problems.append(f"could not write pidfile: {options.pid_file}: {error.strerror}")
        self._broker.adopt(options)
        self._on_reloaded()
        serving = {shard.number for shard in self._broker.members if shard.process is not None}
        self._echo.expect(serving, self._broker.generation, options.config_digest)
        self._broker.tell_all(Reload(options, self._broker.generation))
        if options.sharding.shards and options.sharding.shards != old.sharding.shards:
            before = self._broker.wanted
            problem = self._commands.scale(options.sharding.shards)
            if problem:
                log.warning("Reload: %s", problem)
                problems.append(problem)
            elif options.sharding.shards > before:
                self._on_scaled_up()
        for problem in self._warnings():
            log.warning("Reload: %s", problem)
            problems.append(problem)
        return ReloadOutcome(answer=ReloadAnswer(diff(old, options).live, tuple(problems)))
