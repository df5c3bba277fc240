"""Where a broker's statistics go: what was asked for, or a place of the user's own by the broker's port.

The default is for brokers that somebody runs: one on a port of its own choice (`-p -1`) is gone tomorrow and leaves a
directory for ever, and one that was started as nats-server stands in for a program that writes nothing. Those, and one
whose default cannot be written, go on without and say so once. Called by the supervisor, at the start.
"""

from __future__ import annotations

import logging
import os
import tempfile
from typing import NamedTuple

from broker.options import Options

log = logging.getLogger("gnatswarm.stats")


class StatsPlace(NamedTuple):
    """A directory that can be written, or "" and why there is none."""

    directory: str
    notice: str = ""  # for the log; "": as was asked for
    level: int = logging.INFO


def choose(options: Options, program: str) -> str:
    """The directory, made and tried; "" for none. Says in the log what was not asked for."""
    place = stats_place(options, program)
    if place.notice:
        log.log(place.level, "%s", place.notice)
    return place.directory


def stats_place(options: Options, program: str) -> StatsPlace:
    """Make the directory, and try it."""
    stats = options.stats
    if not stats.enabled:
        return StatsPlace("")
    if not stats.dir:
        if program == "nats-server":
            return StatsPlace("", "Statistics are off, as on nats-server; --stats-dir says where they would go")
        if options.port <= 0:
            return StatsPlace("", "Statistics are off, because the port is any free one", logging.DEBUG)
    directory = os.path.abspath(stats.dir) if stats.dir else default_directory(options.port)
    if directory is None:
        return StatsPlace(
            "", "Statistics are off: there is no home directory; --stats-dir turns them on", logging.WARNING
        )
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        if stats.dir:  # it may come back; the shards try again with every window
            return StatsPlace(directory, f"Cannot write statistics to {directory}: {error.strerror}", logging.ERROR)
        return StatsPlace("", f"Statistics are off: cannot write to {directory}: {error.strerror}", logging.WARNING)
    return StatsPlace(directory, "" if stats.dir else f"Statistics go to {directory}")


def default_directory(port: int) -> str | None:
    """$XDG_STATE_HOME/gnatswarm/stats/<port>, by default under ~/.local/state; None without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the standard: a relative path is as none
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        state = os.path.join(home, ".local", "state")
    return os.path.join(state, "gnatswarm", "stats", str(port))
