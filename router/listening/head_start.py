"""A head start for the ports: open before the modules are imported that read a configuration and make `Options`.

Only for a command line that is known to be valid without them: no file, and flags of few kinds, whose values cannot
collide. So a configuration with a mistake still fails before anything listens. Whatever else is asked for, or goes
wrong here, is left to `router.supervision.opening`, which says why. Invariant: a line that is accepted here makes
options, with the same host, ports and number of shards. Imports next to nothing. Called by the command line.
"""

from __future__ import annotations

import os
import resource

from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, SERVER_VERSIONS
from gnatswarm.router.config.cores import MAX_SHARDS, usable_cores
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.listeners import ListenError, Listeners

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import socket

    from gnatswarm.router.config.flags import CommandLine

DEFAULT_PORT = 4222  # as of Options

# Flags whose values are read here, or cannot be wrong, alone or with others.
_READ = frozenset({"a", "p", "m", "shards", "accept", "l", "n", "user", "pass", "auth", "compatibility"})
_HARMLESS = frozenset({"P", "T", "D", "V", "VV", "DV", "DVV", "no_stats", "stats_dir", "ports_file_dir", "js"})

# Of descriptors: with fewer, the number of shards might be too large.
ENOUGH_DESCRIPTORS = 1024


class _MonitorWish:
    """What `monitor_socket` reads of Options."""

    http_host = ""
    https_port = 0

    def __init__(self, host: str, http_port: int) -> None:
        self.host = host
        self.http_port = http_port


class HeadStart:
    """Ports that are open already: the clients' listeners, and the socket of the monitoring pages, if there are any."""

    def __init__(self, clients: Listeners, monitor: socket.socket | None) -> None:
        self.clients = clients
        self.monitor = monitor

    def close(self) -> None:
        """Close all of them."""
        self.clients.close()
        if self.monitor is not None:
            self.monitor.close()


def head_start(line: CommandLine) -> HeadStart | None:
    """Open the ports of this command line; None: it has to be read in whole, or a port cannot be opened at once."""
    if not is_simple(line):
        return None
    values = line.values
    host, port = str(values.get("a", "")), int(values.get("p", 0)) or DEFAULT_PORT
    shards = int(values.get("shards", 0)) or usable_cores()
    monitor = None
    try:
        monitor = monitor_socket.listen(_MonitorWish(host, int(values.get("m", 0))))
        clients = Listeners(host, port, 1 if values.get("accept") == "handoff" else shards, wait_s=0.0)
    except ListenError:
        if monitor is not None:
            monitor.close()
        return None
    return HeadStart(clients, monitor)


def is_simple(line: CommandLine) -> bool:
    """Whether this command line is known to make options, and the log file can be opened."""
    values = line.values
    if line.words or not values.keys() <= _READ | _HARMLESS:
        return False
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_DESCRIPTORS:
        return False
    port, http_port = int(values.get("p", 0)) or DEFAULT_PORT, int(values.get("m", 0))
    return (
        -1 <= port <= 65_535
        and -1 <= http_port <= 65_535
        and (port != http_port or port < 0)
        and 0 <= int(values.get("shards", 0)) <= MAX_SHARDS
        and values.get("accept", "reuseport") in ("reuseport", "handoff")
        and values.get("compatibility", DEFAULT_COMPATIBILITY) in SERVER_VERSIONS
        and " " not in str(values.get("n", ""))  # the real server has refused this since 2.10
        and _is_number_or_none(str(values.get("a", "")))
        and _has_plain_credentials(values)
        and _can_log(str(values.get("l", "")))
    )


def _is_number_or_none(host: str) -> bool:
    """Whether it is every address, or one in figures: a name would have to be looked up."""
    return not host or (host.isascii() and host.replace(".", "").isdigit())


def _has_plain_credentials(values: dict[str, bool | int | str]) -> bool:
    """No credentials, a token, or a user with a password: none of them empty or hashed."""
    names = values.keys() & {"user", "pass", "auth"}
    if names not in (set(), {"auth"}, {"user", "pass"}):
        return False
    return all(values[name] and not str(values[name]).startswith("$") for name in names)


def _can_log(path: str) -> bool:
    """Whether there can be a log file of this name, as `logs` opens it; "": standard error."""
    if not path:
        return True
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            return False  # the reader of a pipe would take closing it for the end
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640))
    except (OSError, ValueError):
        return False
    return True
