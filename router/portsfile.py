"""Two files that tell scripts about a running broker: its process id, and the ports it got.

Both appear whole (written beside, then renamed) and are removed at the end, unless somebody else has put another in
their place since. The ports file is the real server's: `<dir>/<program>_<pid>.ports`, JSON arrays of URLs, one URL for
every address a wildcard listener answers on.
"""

from __future__ import annotations

import os
import socket

import msgspec


class Listening(msgspec.Struct, frozen=True):
    """One listener as it came to be: what the ports file is made of."""

    host: str  # as configured; "", "0.0.0.0" and "::" are every address
    port: int  # as bound, never 0 or -1
    scheme: str = ""  # "": that of its kind


class TemporaryFile:
    """A small file that others wait for: appears whole, is removed when we go."""

    def __init__(self, path: str, text: str) -> None:
        """Write it; OSError when that cannot be done."""
        self.path = path
        draft = f"{path}.{os.getpid()}.tmp"
        try:
            _write(draft, text)
            os.replace(draft, path)
        except PermissionError:
            # A file that is ours in a directory that is not, as an init script prepares it: written in place.
            _remove(draft)
            _write(path, text)
        except OSError:
            _remove(draft)
            raise
        self._identity = _identity(path)

    def remove(self) -> None:
        """Take it away, if it is still ours: the next broker may have written its own over it."""
        if _identity(self.path) == self._identity:
            _remove(self.path)


def write_pid_file(path: str, pid: int | None = None) -> TemporaryFile:
    """The process id (default: ours) in a file, without a newline, as the real server writes it."""
    return TemporaryFile(path, str(os.getpid() if pid is None else pid))


def ports_file_path(directory: str, program: str, pid: int | None = None) -> str:
    """Where the ports file goes."""
    return os.path.join(directory, f"{program}_{os.getpid() if pid is None else pid}.ports")


def write_ports_file(
    directory: str,
    program: str,
    *,
    nats: Listening,
    monitoring: Listening | None = None,
    websocket: Listening | None = None,
    pid: int | None = None,
) -> TemporaryFile:
    """The ports in use; to be written when they answer, because scripts dial as soon as they see it."""
    text = ports_text(nats=nats, monitoring=monitoring, websocket=websocket)
    return TemporaryFile(ports_file_path(directory, program, pid), text)


def ports_text(*, nats: Listening, monitoring: Listening | None = None, websocket: Listening | None = None) -> str:
    """The ports file's one line of JSON."""
    ports = {"nats": urls(nats.scheme or "nats", nats)}
    if monitoring is not None:
        ports["monitoring"] = urls(monitoring.scheme or "http", monitoring)
    if websocket is not None:
        ports["websocket"] = urls(websocket.scheme or "ws", websocket)
    return msgspec.json.encode(ports).decode()


def urls(scheme: str, listening: Listening) -> list[str]:
    """One URL for each address that reaches a listener, loopback first."""
    host = listening.host
    hosts = local_addresses() if host in ("", "0.0.0.0", "::") else [_resolved(host)]
    return [f"{scheme}://{f'[{address}]' if ':' in address else address}:{listening.port}" for address in hosts]


def local_addresses() -> list[str]:
    """This machine's own addresses, loopback first; what can be found without a library is enough."""
    addresses = ["127.0.0.1"]
    if _has_ipv6():
        addresses.append("::1")
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing; it only asks the kernel which address it would send from.
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
    """A name as the address it stands for, IPv4 first, as the real server listens."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _write(path: str, text: str) -> None:
    # Readable by others: whoever watches a service is rarely the user it runs as.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w") as stream:
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
        return  # gone already, or its directory is: nothing is left to remove
