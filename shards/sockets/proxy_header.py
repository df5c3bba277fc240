"""The PROXY header that a load balancer sends in front of a client's own bytes, versions 1 and 2.

A state machine without sockets: fed with pieces of any size, it says when the header is over, and whose connection it
is. It keeps at most LONGEST_LINE bytes; what a header of version 2 has behind its addresses is counted and dropped. A
connection that does not begin with a header is served with its own address, as by nats-server 2.15, so only the load
balancer may reach such a port. The source is "The PROXY protocol, versions 1 & 2" of HAProxy.
"""

from __future__ import annotations

import ipaddress

TIMEOUT_S = 5.0  # of nats-server: from the accept to the header's end
LONGEST_LINE = 107  # of version 1, CRLF included
V1 = b"PROXY "
V2 = b"\r\n\r\n\x00\r\nQUIT\n"
V2_HEAD_BYTES = 16  # signature, version and command, family and protocol, size of the rest
LOCAL, PROXIED = 0x20, 0x21
STREAM = 1
UNKNOWN_FAMILY = 0  # the load balancer does not say who it is: as LOCAL
ADDRESS_BYTES = {1: 4, 2: 16}  # by address family


class ProxyHeaderError(ValueError):
    """The header is invalid, or of a kind that is not supported; the text says why."""


class ProxyHeader:
    """One connection's header. `address` is what it says, once feed() has returned bytes; None: the sender's own."""

    __slots__ = ("_kept", "_left", "address")

    def __init__(self) -> None:
        self.address: tuple[str, int] | None = None
        self._kept = b""
        self._left = -1  # bytes of version 2 still to be dropped; -1: not known yet

    @property
    def has_begun(self) -> bool:
        """Whether anything has come."""
        return bool(self._kept) or self._left >= 0

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes from the wire. Returns what comes after the header; None: it is not over. ProxyHeaderError."""
        if self._left >= 0:
            return self._drop(data)
        room = LONGEST_LINE - len(self._kept)
        self._kept, more = self._kept + data[:room], data[room:]
        if self._kept.startswith(V1):
            return self._line(more)
        if self._kept.startswith(V2):
            return self._binary(more)
        if V1.startswith(self._kept) or V2.startswith(self._kept):
            return None
        return self._kept + more

    def _line(self, more: bytes) -> bytes | None:
        line, end, rest = self._kept.partition(b"\r\n")
        if not end:
            if len(self._kept) == LONGEST_LINE:
                raise ProxyHeaderError("invalid PROXY protocol header: v1 line too long")
            return None
        words = line.split(b" ")
        if words[1] != b"UNKNOWN":
            if len(words) != 6 or words[1] not in {b"TCP4", b"TCP6"}:
                raise ProxyHeaderError("invalid PROXY protocol header: invalid v1 format")
            self.address = _host(words[2], words[1]), _port(words[4])
            _host(words[3], words[1])
            _port(words[5])
        return rest + more

    def _binary(self, more: bytes) -> bytes | None:
        head = self._kept
        if len(head) < V2_HEAD_BYTES:
            return None
        command, family, protocol = head[12], head[13] >> 4, head[13] & 15
        size = int.from_bytes(head[14:16])
        if command not in {LOCAL, PROXIED}:
            raise ProxyHeaderError(f"invalid PROXY protocol header: version and command 0x{command:02x}")
        if command == PROXIED:
            if protocol != STREAM:
                raise ProxyHeaderError("unsupported PROXY protocol feature: only STREAM protocol supported")
            if family not in {UNKNOWN_FAMILY, *ADDRESS_BYTES}:
                raise ProxyHeaderError(f"unsupported PROXY protocol feature: unsupported address family 0x{family:x}0")
        if command == PROXIED and family != UNKNOWN_FAMILY:
            one = ADDRESS_BYTES[family]
            if size < 2 * one + 4:
                raise ProxyHeaderError(f"IPv{4 if one == 4 else 6} address data too short: {size} bytes")
            if len(head) < V2_HEAD_BYTES + 2 * one + 4:
                return None
            at = V2_HEAD_BYTES + 2 * one
            host = ipaddress.ip_address(head[V2_HEAD_BYTES : V2_HEAD_BYTES + one])
            self.address = _shown(host), int.from_bytes(head[at : at + 2])
        self._left, self._kept = size, b""
        return self._drop(head[V2_HEAD_BYTES:] + more)

    def _drop(self, data: bytes) -> bytes | None:
        taken = min(self._left, len(data))
        self._left -= taken
        return None if self._left else data[taken:]


def _host(word: bytes, family: bytes) -> str:
    """An address in its usual form; a zone (`%eth0`) is none."""
    kind = ipaddress.IPv4Address if family == b"TCP4" else ipaddress.IPv6Address
    try:
        if b"%" in word:
            raise ValueError
        return _shown(kind(word.decode("ascii")))
    except ValueError:
        raise ProxyHeaderError("invalid PROXY protocol header: invalid address") from None


def _shown(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """An IPv4 client of a load balancer that listens on IPv6 as well is shown by its IPv4 address."""
    return str(host.ipv4_mapped or host) if isinstance(host, ipaddress.IPv6Address) else str(host)


def _port(word: bytes) -> int:
    if not (word.isdigit() and len(word) <= 5 and int(word) <= 65535):
        raise ProxyHeaderError("invalid PROXY protocol header: invalid port")
    return int(word)
