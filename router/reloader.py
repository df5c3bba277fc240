"""The reloader: reads the configuration anew and gives it to a running broker, all of it or nothing.

What may change is decided by `router.reload`; here it is carried out. Called by the supervisor at SIGHUP.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from broker.conf_tree import ConfigError
from router.listeners import ListenError
from router.reload import diff
from shards import logs
from shards.control import Reload

if TYPE_CHECKING:
    from broker.options import Options
    from router.supervisor import Supervisor

log = logging.getLogger("gnatswarm.router")


def reload(supervisor: Supervisor, reparse: Callable[[], Options] | None) -> None:
    """Every problem is a line in the log, and then nothing has changed."""
    supervisor.notifier.reloading()
    if not _reload(supervisor, reparse):
        supervisor.notifier.reloaded("the reload failed and changed nothing, the log says why")


def _reload(supervisor: Supervisor, reparse: Callable[[], Options] | None) -> bool:
    if reparse is None:
        log.warning("Reload: there is no configuration to read again")
        return False
    try:
        options = reparse()
    except (ConfigError, ListenError, OSError, ValueError) as error:
        log.error("Reload failed, nothing was changed: %s", error)
        return False
    old = supervisor.options
    reloaded = diff(old, options)
    if reloaded.is_refused:
        for line in reloaded.refused:
            log.error("%s", line)
        log.error("Reload failed, nothing was changed")
        return False
    for change in reloaded.live:
        log.info("Reloaded: %s", change)
    if old.logging != options.logging:
        try:
            logs.configure(options.logging, process_label=logs.ROUTER_LABEL)
        except OSError as error:
            why = f"{options.logging.file}: {error.strerror}"
            log.error("Reload: cannot open the log file, logging stays as it was: %s", why)
            options = msgspec.structs.replace(options, logging=old.logging)
    if old.pid_file != options.pid_file:
        try:
            supervisor.footprint.write_pid_file(options.pid_file)
        except OSError as error:
            log.error("Could not write pidfile: %s: %s", options.pid_file, error.strerror)
    supervisor.options = options
    supervisor.configured_us = time.time_ns() // 1000
    supervisor.on_reloaded()
    supervisor.await_reloaded()
    supervisor.tell_all(Reload(options))
    supervisor.system.configure()
    if options.swarm.shards and options.swarm.shards != old.swarm.shards:
        problem = supervisor.scale(options.swarm.shards)
        if problem:
            log.warning("Reload: %s", problem)
    return True
