"""Which Host headers are accepted on monitoring pages that only this machine can reach: on loopback, without TLS.

A hostile web page may point a DNS name of its own to 127.0.0.1; the browser then lets it read what is served there (DNS
rebinding). Such a request has that name in its Host header, which the page cannot change. So on loopback only names are
accepted that a stranger cannot control: addresses, localhost, http_host (or host) of the configuration, and this
machine's own name. On other addresses every name is accepted, because services and proxies have names of their own;
over TLS too, because there the page lacks a certificate for its name.

JSONP is readable by whatever page has it for a script, so on loopback, with TLS or without, no other page gets it: a
browser says in Sec-Fetch-Site where the page is from, and the page cannot change that.
"""

from __future__ import annotations

import ipaddress
import socket

LONGEST_SHOWN = 100  # characters of a name in the text of a refusal


class HostHeader:
    """The rule for one listening socket."""

    def __init__(self, sock: socket.socket, *configured: str, is_tls: bool) -> None:
        self._is_loopback = _is_loopback(str(sock.getsockname()[0]))
        self._is_checked = not is_tls and self._is_loopback
        machine = socket.gethostname()
        names = (*configured, machine, machine.partition(".")[0])
        self._names = {_plain(name) for name in names if name}

    def refusal(self, header: str) -> str:
        """Why a request with this header is refused, and what to do; "": it is accepted. `header` "": there is none."""
        if not self._is_checked or not header.strip() or self._is_known(_without_port(header.strip())):
            return ""
        shown = header.strip()[:LONGEST_SHOWN]
        return (
            f"421 misdirected request: monitoring listens on loopback alone and does not answer to the Host {shown!a}, "
            "which a web page could have pointed here. Ask for localhost or 127.0.0.1 (a proxy: let it send "
            '"Host: localhost"), or set http to an address that others reach, or to a name of this machine\'s loopback'
        )

    def jsonp_refusal(self, site: str) -> str:
        """Why JSONP is refused to a request with this Sec-Fetch-Site; "": it is not. `site` "": there is none."""
        if not self._is_loopback or site.strip().lower() in ("", "none", "same-origin"):
            return ""
        return "403 forbidden: on loopback, scripts of other web pages get no JSONP"

    def _is_known(self, host: str) -> bool:
        name = _plain(host)
        return _address(name) is not None or name in self._names or name == "localhost" or name.endswith(".localhost")


def _without_port(host: str) -> str:
    """The address or name in [::1]:8222, ::1, 127.0.0.1:8222 or name:8222."""
    if host.startswith("["):
        address, bracket, rest = host[1:].partition("]")
        return address if bracket and (not rest or rest.startswith(":")) and ":" in address else host
    return host if host.count(":") > 1 else host.partition(":")[0]


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_loopback(text: str) -> bool:
    address = _address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address is not None and address.is_loopback
