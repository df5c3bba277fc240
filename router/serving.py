"""Serving: one broker's life as a process, from its options to its exit code.

What has to be set up before the supervisor and taken down after it, in that order. Called by the command line.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.options import Options
from router import descriptors, packages
from router.greeting import greet
from router.listeners import ListenError
from router.notify import Notifier
from router.supervisor import HANDLED_SIGNALS, CannotStart, Supervisor
from shards import logs

if TYPE_CHECKING:
    from router.inherited import Inherited

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
    """Run one broker until it stops; the exit code: 0 after SIGINT or a lame duck's end, 1 after SIGTERM or failure.

    `program` is the name we were called by. `reparse` reads the configuration anew for SIGHUP, and may raise
    ConfigError, OSError or ValueError. `command` runs a shard in place of ours (tests).
    `inherited` are sockets to serve on in place of our own, `notifier` tells a service manager.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        logs.configure(options.logging, process_label=logs.ROUTER_LABEL)
    except OSError as error:
        logs.fatal_line(f"cannot open the log file {options.logging.file}: {error.strerror}")
        return 1
    problem = packages.clash()
    if problem:
        log.critical("%s", problem)
        return 1
    descriptors.raise_limit()
    try:
        supervisor = Supervisor(
            options, program=program, reparse=reparse, command=command, inherited=inherited, notifier=notifier
        )
    except CannotStart as error:
        log.critical("%s", error)
        return 1
    try:
        greet(options, program, supervisor.server_id, supervisor.server_name)
        supervisor.start()
        # The zygote is still importing: so can we.
        import asyncio

        import uvloop

        if supervisor.is_monitored:
            import router.monitor  # noqa: F401

        supervisor.meet()
        address = supervisor.doors.clients.address
        if program != "nats-server":
            from router.first_screen import first_screen, show

            show(first_screen(address, os.getpid(), supervisor.shard_pids, options.swarm.accept))
        for notice in options.notices:
            log.warning("%s", notice)
        supervisor.doors.announce()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            exit_code = runner.run(supervisor.run())
    except (CannotStart, ListenError) as error:
        log.critical("%s", error)
        return 1
    finally:
        supervisor.close()
    log.info("Server Exiting..")
    return exit_code
