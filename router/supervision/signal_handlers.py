"""Handles signals to a running router: each is one command.

The keeper receives them and passes them on; the router itself ignores signals. They wait until the event loop runs. The
sender is `router.commands.signals`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from gnatswarm.router.supervision.broker_commands import BrokerCommands, ShardChannels
from gnatswarm.router.supervision.broker_view import BrokerView
from gnatswarm.shards.boundary import logs
from gnatswarm.shards.boundary.control import ReopenLog

# Go's names of signals, in the log of nats-server 2.15.
_SPELLED: dict[int, str] = {
    signal.SIGTERM: "terminated",
    signal.SIGINT: "interrupt",
    signal.SIGHUP: "hangup",
    signal.SIGUSR1: "user defined signal 1",
    signal.SIGUSR2: "user defined signal 2",
}

# `timeout` and some supervisors signal a process, then its group. Two signals within this time are one request.
SAME_REQUEST_S = 0.5

log = logging.getLogger("gnatswarm.router")


class SignalHandlers:
    """The signal handlers of one broker; `reload` reads its configuration again."""

    def __init__(
        self, view: BrokerView, channels: ShardChannels, commands: BrokerCommands, reload: Callable[[], object]
    ) -> None:
        self._view = view
        self._channels = channels
        self._commands = commands
        self._reload = reload
        self._stopping_since_s: float | None = None  # by the loop's clock

    def on_signal(self, number: int) -> None:
        """Handle this signal."""
        name = signal.Signals(number).name
        is_like_newer = self._view.options.is_like_newer
        level = logging.INFO if is_like_newer and number in _SPELLED else logging.DEBUG
        log.log(level, 'Trapped "%s" signal', _SPELLED.get(number, name))
        if number == signal.SIGTERM:
            # As in nats-server: lame duck mode runs to its end, even if the service manager sends SIGTERM.
            if not self._view.is_leaving:
                self._stop(0 if is_like_newer else 1)
        elif number == signal.SIGINT:
            self._stop(0)
        elif number == signal.SIGHUP:
            self._reload()
        elif number == signal.SIGUSR1:
            self._reopen_logs()
        elif number == signal.SIGUSR2:
            self._commands.become_lame_duck()
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            error = self._commands.scale(self._view.wanted + (1 if number == signal.SIGTTIN else -1))
            if error:
                log.warning("%s: %s", name, error)

    def _stop(self, exit_code: int) -> None:
        """Stop; the next signal kills, unless it is the same request."""
        now = asyncio.get_running_loop().time()
        if self._stopping_since_s is None:
            self._stopping_since_s = now
        elif now - self._stopping_since_s < SAME_REQUEST_S:
            return
        self._commands.stop(exit_code)

    def _reopen_logs(self) -> None:
        problem = logs.reopen()
        if problem:
            log.error("%s", problem)
        elif self._view.options.logging.file:
            log.info("File log re-opened")
        else:
            log.info("File log re-open ignored, not a file logger")
        self._channels.tell_all(ReopenLog())
