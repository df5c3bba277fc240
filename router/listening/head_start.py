"""A head start for the ports: open before the modules are imported that read a configuration and make `Options`.

Only for a command line and a file that are known to be valid without them: flags of few kinds, and what
`router.config.simple_file` accepts, with values that cannot collide. Whatever else is asked for is left to
`router.start_early`. Invariant: what is accepted here makes options, with the same host, ports and number of shards.
Imports little.
"""

from __future__ import annotations

import os
import resource

from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, SERVER_VERSIONS
from gnatswarm.router.config.cores import MAX_SHARDS, usable_cores
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.listeners import ListenError, Listeners, Ports, adopted

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import socket

    from gnatswarm.broker.options import Options
    from gnatswarm.router.config.conf import Parsed
    from gnatswarm.router.config.flags import CommandLine
    from gnatswarm.router.config.simple_file import SimpleFile

DEFAULT_PORT = 4222  # as of Options

# Flags whose values are read here, or cannot be wrong, alone or with others.
_READ = frozenset({"a", "p", "m", "shards", "accept", "l", "n", "c", "user", "pass", "auth", "compatibility"})
_HARMLESS = frozenset({"P", "T", "D", "V", "VV", "DV", "DVV", "no_stats", "stats_dir", "ports_file_dir", "js"})

_CREDENTIALS = frozenset({"user", "pass", "auth"})

# Of descriptors: with fewer, the number of shards might be too large.
ENOUGH_DESCRIPTORS = 1024


class Wished:
    """What is read here of flags and file; `monitor_socket` reads the hosts and ports as of Options."""

    https_port = 0

    def __init__(self, line: CommandLine, file: SimpleFile | None) -> None:
        values = line.values
        found = {} if file is None else file.settings
        self.host = str(values.get("a", found.get("host", "")))
        self.port = _number(values.get("p", found.get("port", 0))) or DEFAULT_PORT
        self.http_host = str(found.get("http_host", ""))
        self.http_port = _number(values.get("m", found.get("http_port", 0)))
        self.shards = _number(values.get("shards", found.get("sharding.shards", 0)))
        self.accept = str(values.get("accept", found.get("sharding.accept", "reuseport")))
        self.parsed = None if file is None else file.parsed
        self.log_file = str(values.get("l", found.get("logging.file", "")))

    def is_sound(self) -> bool:
        """Whether these ports, and this log, can be opened without a question."""
        return (
            -1 <= self.port <= 65_535
            and -1 <= self.http_port <= 65_535
            and (self.port != self.http_port or self.port < 0)
            and 0 <= self.shards <= MAX_SHARDS
            and self.accept in ("reuseport", "handoff")
            and all(is_looked_up_at_once(host) for host in (self.host, self.http_host))
            and can_log(self.log_file)
        )


class HeadStart:
    """Ports that are open already: the listeners, and the socket of the monitoring pages, if there are any."""

    def __init__(
        self,
        ports: Ports,
        monitor: socket.socket | None,
        *,
        parsed: Parsed | None = None,
        options: Options | None = None,
    ) -> None:
        self.ports = ports
        self.monitor = monitor
        self.parsed = parsed  # the file that said which; None: there is none
        self.options = options  # that say which; None: they have yet to be made
        self.has_https = options is not None and options.https_port != 0

    def adopt(self) -> None:
        """Make sockets of Python's `socket` of all of them, in the router."""
        self.ports.adopt()
        if self.monitor is not None:
            self.monitor = adopted(self.monitor)

    def close(self) -> None:
        """Close all of them, and forget the file."""
        self.parsed = self.options = None
        self.ports.close()
        if self.monitor is not None:
            self.monitor.close()


def open_ports(wished: Wished) -> HeadStart | None:
    """Open these ports; None: one is not free, and the router says so."""
    monitor = None
    try:
        monitor = monitor_socket.listen(wished, early=True)
        count = 1 if wished.accept == "handoff" else wished.shards or usable_cores()
        clients = Listeners(wished.host, wished.port, count, early=True)
    except ListenError:
        if monitor is not None:
            monitor.close()
        return None
    return HeadStart(Ports(clients), monitor, parsed=wished.parsed)


def simple(line: CommandLine, parsed: Parsed | None) -> Wished | None:
    """What this command line and its file ask for; None: it is not known here that they make options."""
    if not _has_simple_flags(line):
        return None
    file = None
    if parsed is not None:
        from gnatswarm.router.config.simple_file import simple_file

        file = simple_file(parsed)
        if file is None or (file.has_credentials and line.values.keys() & _CREDENTIALS):
            return None
    wished = Wished(line, file)
    return wished if wished.is_sound() else None


def _has_simple_flags(line: CommandLine) -> bool:
    """Whether the flags alone are known to make options."""
    values = line.values
    if line.words or not values.keys() <= _READ | _HARMLESS:
        return False
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_DESCRIPTORS:
        return False
    return (
        values.get("compatibility", DEFAULT_COMPATIBILITY) in SERVER_VERSIONS
        and " " not in str(values.get("n", ""))  # the real server has refused this since 2.10
        and _has_plain_credentials(values)
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def is_looked_up_at_once(host: str) -> bool:
    """Whether it is every address, this host, or an address in figures: another name might have to be asked for."""
    figures = host.strip("[]")
    is_v6 = figures.count(":") > 1 and set(figures.lower()) <= set("0123456789abcdef:.")
    return not host or host == "localhost" or is_v6 or (host.isascii() and host.replace(".", "").isdigit())


def _has_plain_credentials(values: dict[str, bool | int | str]) -> bool:
    """No credentials, a token, or a user with a password: none of them empty or hashed."""
    names = values.keys() & _CREDENTIALS
    if names not in (set(), {"auth"}, {"user", "pass"}):
        return False
    return all(values[name] and not str(values[name]).startswith("$") for name in names)


def can_log(path: str) -> bool:
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
