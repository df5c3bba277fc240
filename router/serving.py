"""Serving: one broker's life as a process, from its options to its exit code.

Composes the broker, its companions and its supervisor; sets up what they need, and tears it down in order.
Called by the command line.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gnatswarm.broker.options import Options
from gnatswarm.router.companions import Companions
from gnatswarm.router.greeting import greet, has_log_in
from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.supervision import descriptors
from gnatswarm.router.supervision.broker import CannotStart, SupervisedBroker
from gnatswarm.router.supervision.notify import Notifier
from gnatswarm.router.supervision.supervisor import Supervisor
from gnatswarm.router.supervision.zygote import HANDLED_SIGNALS
from gnatswarm.shards.boundary import logs

if TYPE_CHECKING:
    from gnatswarm.router.listening.inherited import Inherited

log = logging.getLogger("gnatswarm.router")


def serve(
    options: Options,
    *,
    program: str,
    reparse: Callable[[], Options] | None = None,
    command: Sequence[str] | None = None,
    inherited: Inherited | None = None,
    notifier: Notifier | None = None,
) -> int:
    """Run one broker until it stops; the exit code: 0 after SIGINT or lame duck mode, 1 after SIGTERM or a failure.

    `program` is the name we were called by. `reparse` reads the configuration again for SIGHUP, and may raise
    ConfigError, OSError or ValueError. `command` replaces the command that runs a shard (tests).
    `inherited` are sockets to use in place of our own, `notifier` tells a service manager.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        logs.configure(options.logging, process_label=logs.ROUTER_LABEL)
    except OSError as error:
        logs.fatal_line(f"cannot open the log file {options.logging.file}: {error.strerror}")
        return 1
    descriptors.raise_limit()
    try:
        broker = SupervisedBroker(options, program=program, command=command, inherited=inherited)
    except CannotStart as error:
        log.critical("%s", error)
        return 1
    notifier = notifier or Notifier()
    companions = Companions(broker, notifier, reparse=reparse)
    supervisor = Supervisor(broker, notifier=notifier, audience=companions)
    try:
        greet(options, program, broker.server_id, broker.server_name)
        supervisor.start()
        # The zygote is still importing, so this import costs no time.
        import asyncio

        import uvloop

        if broker.monitor_socket is not None:
            import gnatswarm.router.monitoring.monitor  # noqa: F401

        supervisor.meet()
        address = broker.listener_groups.clients.address
        if program != "nats-server":
            from gnatswarm.router.commands.first_screen import first_screen, show

            is_open = not (has_log_in(options) or (options.tls.is_on and not options.allow_non_tls))
            accept = options.sharding.accept
            show(first_screen(address, os.getpid(), broker.shard_pids, accept, is_open=is_open))
        for notice in options.notices:
            log.warning("%s", notice)
        broker.listener_groups.announce()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            exit_code = runner.run(companions.run(supervisor))
    except (CannotStart, ListenError) as error:
        log.critical("%s", error)
        return 1
    finally:
        supervisor.close()
    log.info("Server Exiting..")
    return exit_code
