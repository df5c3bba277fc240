"""The listening socket of the monitoring pages: bound before any shard starts, so that a taken port stops the start.

Who names no host at all gets pages that this machine alone can see: they show who is connected, and every subject.
"""

from __future__ import annotations

import os
import socket

from broker.options import Options
from router.listeners import ListenError

LOOPBACK = "127.0.0.1"
BACKLOG = 128


def monitoring_host(options: Options) -> str:
    """Where the pages are served: http_host, else the clients' host, else loopback."""
    return options.http_host or options.host or LOOPBACK


def monitoring_scheme(options: Options) -> str:
    """How they are served: https or http."""
    return "https" if options.https_port else "http"


def listen(options: Options) -> socket.socket | None:
    """A socket on https_port or http_port (-1: any free one), None where both are 0. ListenError when there is none."""
    asked = options.https_port or options.http_port
    if not asked:
        return None
    host = monitoring_host(options)
    port = max(asked, 0)
    try:
        if host in ("0.0.0.0", "::"):
            is_dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if is_dual else socket.AF_INET
            return socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        return socket.create_server((str(found[0][4][0]), port), family=found[0][0], backlog=BACKLOG)
    except OSError as error:
        # A name that has no address has a negative number; socket's own text of the others repeats the address.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror
        raise ListenError(f"Can't start monitoring: cannot listen on {host}:{asked}: {why}") from None


def address(sock: socket.socket, options: Options) -> tuple[str, int]:
    """Host as asked for and port as bound."""
    return monitoring_host(options), sock.getsockname()[1]
