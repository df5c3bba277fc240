"""The addresses at which clients reach this broker, for those of other members; and names of servers that it dials."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING

from gnatswarm.broker.info import advertised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gnatswarm.broker.options import WebSocket

_EVERY_ADDRESS = ("", "0.0.0.0", "::")
_SIOCGIFADDR = 0x8915


def own_urls(host: str, port: int) -> list[str]:
    """host:port for each address on which this port is reached; the loopback only where there is no other."""
    hosts = _addresses() if host in _EVERY_ADDRESS else [host]
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]


def name_for_tls(host: str, configured: Iterable[str]) -> str:
    """The name that the certificate of a server at this host has to have, as for nats-server.

    Of an address, such as others tell of, it is the first name that is configured.
    """
    names = (one for one in configured if not _is_address(one))
    return next(names, host) if _is_address(host) else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def websocket_urls(options: WebSocket, port: int) -> list[str]:
    """The same of the port for WebSocket clients; `port`: the bound one, 0: there is none."""
    return own_urls(*advertised(options.advertise, options.host, port)) if port else []


def _addresses() -> list[str]:
    """The addresses from which others are reached, and each interface's IPv4 address, where those may be listed."""
    found: list[str] = []
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            # Connecting a datagram socket sends nothing; it only chooses the address that would be used.
            sock.connect((somewhere, 9))
            found.append(str(sock.getsockname()[0]))
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _number, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    reachable = [
        one for one in dict.fromkeys(found) if not one.startswith(("127.", "169.254.", "fe80:")) and one != "::1"
    ]
    return reachable or ["127.0.0.1"]
