"""The listening socket of the monitoring pages: bound before any shard starts, so that a taken port stops the start.

Without any configured host the pages are on loopback only, because they show who is connected and every subject.
"""

from __future__ import annotations

import os

from gnatswarm.router.listening.listeners import ListenError, adopted, has_ipv6, tcp_socket

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import socket
    from typing import Protocol

    class Wanted(Protocol):
        """What is read here of `Options`."""

        @property
        def host(self) -> str: ...
        @property
        def http_host(self) -> str: ...
        @property
        def http_port(self) -> int: ...
        @property
        def https_port(self) -> int: ...

else:
    import _socket as socket  # as in `listeners`


LOOPBACK = "127.0.0.1"
# More than come while the router builds a page. A client that finds the backlog full tries again a second later.
BACKLOG = 1024


def monitoring_host(options: Wanted) -> str:
    """The host of the pages: http_host, else the clients' host, else loopback."""
    return options.http_host or options.host or LOOPBACK


def monitoring_scheme(options: Wanted) -> str:
    """The scheme of the pages: https or http."""
    return "https" if options.https_port else "http"


def listen(options: Wanted, *, early: bool = False) -> socket.socket | None:
    """A socket on https_port or http_port (-1: any free one), None where both are 0. ListenError.

    `early`: `socket` need not be imported; listeners.adopted() makes one of its sockets.
    """
    asked = options.https_port or options.http_port
    if not asked:
        return None
    host = monitoring_host(options)
    port = max(asked, 0)
    sock = None
    try:
        if host in ("0.0.0.0", "::"):
            family, place = (socket.AF_INET6, "") if has_ipv6() else (socket.AF_INET, "")
        else:
            name = host.encode() if host.isascii() else host  # the codec for other names imports much
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            found.sort(key=lambda entry: entry[0] != socket.AF_INET)
            family, place = found[0][0], str(found[0][4][0])
        sock = tcp_socket(family)
        sock.bind((place, port))
        sock.listen(BACKLOG)
        return sock if early else adopted(sock)
    except UnicodeError as error:
        raise ListenError(f"Can't start monitoring: {host} is no host name: {error}") from None
    except OSError as error:
        if sock is not None:
            sock.close()
        # A name without an address has a negative errno; for other errors socket's own text repeats the address.
        number = error.errno or 0
        why = (os.strerror(number) if number > 0 else error.strerror or "").lower()  # as Go writes it
        raise ListenError(
            f"Can't start monitoring: can't listen to the monitor port: listen tcp {host}:{asked}: bind: {why}"
        ) from None


def address(sock: socket.socket, options: Wanted) -> tuple[str, int]:
    """The host as configured and the port as bound."""
    return monitoring_host(options), sock.getsockname()[1]
