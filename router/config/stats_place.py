"""Chooses the directory of a broker's statistics: the configured one, or one under the user's home, by port.

The default is for long-lived brokers. A broker on any free port (`-p -1`) would leave a directory behind for every run,
and one that was started as nats-server replaces a program that writes no files. These have no default; they, and a
broker whose default cannot be written, run without statistics and log that once. Called by the supervisor, at start.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import NamedTuple

from gnatswarm.broker.options import Options
from gnatswarm.shards.boundary.statfile import make_directory

log = logging.getLogger("gnatswarm.stats")


class StatsPlace(NamedTuple):
    """A directory that can be written, or "" and why there is none."""

    directory: str
    notice: str = ""  # for the log; "": nothing to report
    level: int = logging.INFO


def choose(options: Options, program: str) -> str:
    """Make the directory and test that it is writable; "" for none. Logs a notice if it is not the configured one."""
    place = stats_place(options, program)
    if place.notice:
        log.log(place.level, "%s", place.notice)
    return place.directory


def stats_place(options: Options, program: str) -> StatsPlace:
    """Make the directory, and test that it is writable."""
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
    if directory != directory.encode("utf-8", "replace").decode():
        what = f"Statistics are off: the path {directory!r} is not UTF-8, as messages between our processes are"
        return StatsPlace("", f"{what}; --stats-dir names another", logging.WARNING)
    try:
        make_directory(directory)
        _try_to_write(directory)
    except OSError as error:
        if stats.dir:  # it may become writable; the shards try again in every window
            return StatsPlace(directory, f"Cannot write statistics to {directory}: {error.strerror}", logging.ERROR)
        return StatsPlace("", f"Statistics are off: cannot write to {directory}: {error.strerror}", logging.WARNING)
    return StatsPlace(directory, "" if stats.dir else f"Statistics go to {directory}")


def _try_to_write(directory: str) -> None:
    """Make a file without a name, and let it go. OSError."""
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        import tempfile  # only for filesystems without such files: with what it imports it takes half a megabyte

        with tempfile.TemporaryFile(dir=directory):
            pass


def default_directory(port: int) -> str | None:
    """$XDG_STATE_HOME/gnatswarm/stats/<port>, by default under ~/.local/state; None without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG standard: ignore a relative path
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        state = os.path.join(home, ".local", "state")
    return os.path.join(state, "gnatswarm", "stats", str(port))
