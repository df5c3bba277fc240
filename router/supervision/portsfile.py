"""Two files that tell scripts about a running broker: its process id, and its ports.

Both appear complete (written under another name, then renamed) and are removed at the end, unless another process has
replaced them. The ports file is that of nats-server: `<dir>/<program>_<pid>.ports`, JSON arrays of URLs, one URL for
every address of a wildcard listener.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping

import msgspec


class Listening(msgspec.Struct, frozen=True):
    """One listener as bound, for the ports file."""

    host: str  # as configured; "", "0.0.0.0" and "::" are every address
    port: int  # as bound, never 0 or -1
    scheme: str = ""  # "": the usual one of its kind


class TemporaryFile:
    """A small file for scripts: appears complete, and is removed at the broker's end, if it is a file."""

    def __init__(self, path: str, text: str) -> None:
        """Write it; OSError when that fails."""
        self.path = path
        self._identity: tuple[int, int] | None = None
        if not _may_be_replaced(path):
            _write(path, text)
            return
        draft = f"{path}.{os.getpid()}.tmp"
        try:
            _remove(draft)  # of a process that died with this number, or of somebody who wants us to write elsewhere
            _write(draft, text, os.O_EXCL)
            os.replace(draft, path)
        except (PermissionError, FileExistsError):
            # We may write the file but not its directory, as an init script may prepare it: write in place. So, too,
            # where another user has a file of the draft's name.
            _remove(draft)
            _write(path, text)
        except OSError:
            _remove(draft)
            raise
        self._identity = _identity(path)

    @classmethod
    def taken_over(cls, path: str, text: str = "") -> TemporaryFile | None:
        """One that another process of this broker has written; None: there is none, or its text is another."""
        taken = cls.__new__(cls)
        taken.path, identity = path, _identity(path)
        if not _may_be_replaced(path):
            return None
        try:
            with open(path) as stream:
                if identity is None or (text and stream.read(64) != text):
                    return None
        except (OSError, ValueError):
            return None
        taken._identity = identity
        return taken

    def is_same_as(self, other: TemporaryFile) -> bool:
        """Whether both are one file, perhaps by two names."""
        return self._identity == other._identity

    def remove(self) -> None:
        """Remove it, if it is still ours: the next broker may have replaced it."""
        if self._identity is not None and _identity(self.path) == self._identity:
            _remove(self.path)


def write_pid_file(path: str, pid: int | None = None) -> TemporaryFile:
    """Write the process id (default: ours) to a file, without a newline, as nats-server does."""
    return TemporaryFile(path, str(os.getpid() if pid is None else pid))


def ports_file_path(directory: str, program: str, pid: int | None = None) -> str:
    """The path of the ports file."""
    return os.path.join(directory, f"{program}_{os.getpid() if pid is None else pid}.ports")


def write_ports_file(
    directory: str,
    program: str,
    *,
    nats: Listening,
    monitoring: Listening | None = None,
    websocket: Listening | None = None,
    servers: Mapping[str, Listening] | None = None,
    pid: int | None = None,
) -> TemporaryFile:
    """Write the ports in use; to be called when they accept, because scripts connect as soon as they see the file."""
    text = ports_text(nats=nats, monitoring=monitoring, websocket=websocket, servers=servers)
    return TemporaryFile(ports_file_path(directory, program, pid), text)


def ports_text(
    *,
    nats: Listening,
    monitoring: Listening | None = None,
    websocket: Listening | None = None,
    servers: Mapping[str, Listening] | None = None,
) -> str:
    """The ports file's one line of JSON; `servers`: ports for other servers, by kind."""
    ports = {"nats": urls(nats.scheme or "nats", nats)}
    if monitoring is not None:
        ports["monitoring"] = urls(monitoring.scheme or "http", monitoring)
    if websocket is not None:
        ports["websocket"] = urls(websocket.scheme or "ws", websocket)
    for kind, listening in (servers or {}).items():
        ports[kind] = urls("nats", listening)
    return msgspec.json.encode(ports).decode()


def urls(scheme: str, listening: Listening) -> list[str]:
    """One URL for each address that reaches a listener, loopback first."""
    host = listening.host
    hosts = local_addresses() if host in ("", "0.0.0.0", "::") else [_resolved(host)]
    return [f"{scheme}://{f'[{address}]' if ':' in address else address}:{listening.port}" for address in hosts]


def local_addresses() -> list[str]:
    """This machine's own addresses, loopback first; only those that can be found without a library."""
    addresses = ["127.0.0.1"]
    if _has_ipv6():
        addresses.append("::1")
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing; it only tells us which source address the kernel would use.
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((somewhere, 9))
                address = str(probe.getsockname()[0])
        except OSError:  # no route, or no such family here
            continue
        if address not in addresses:
            addresses.append(address)
    return addresses


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _resolved(host: str) -> str:
    """The address of a host name, IPv4 first, as nats-server listens."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _may_be_replaced(path: str) -> bool:
    """Whether it is a file, or nothing. /dev/null, a named pipe or a link is written, as by nats-server, and stays."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return True


def _write(path: str, text: str, how: int = os.O_TRUNC) -> None:
    # Readable by others, because monitoring rarely runs as the service's user. A named pipe that nobody reads would be
    # waited for.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | how, 0o644), "w") as stream:
        stream.write(text)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the file or its directory is gone already
