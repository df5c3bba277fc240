"""PROXY headers in pieces of any size: whose connection it is, what follows, what is refused, how little is kept."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from gnatswarm.shards.sockets.proxy_header import V2, ProxyHeader, ProxyHeaderError

NEXT = b"CONNECT {}\r\nPING\r\n"


def v2(
    *, command: int = 0x21, kind: int = 0x11, hosts: tuple[str, str] = ("1.2.3.4", "10.0.0.1"), more: bytes = b""
) -> bytes:
    body = b"".join(ipaddress.ip_address(host).packed for host in hosts) + struct.pack(">HH", 1111, 4222) + more
    return V2 + bytes((command, kind)) + struct.pack(">H", len(body)) + body


VALID = {
    b"PROXY TCP4 1.2.3.4 10.0.0.1 5555 4222\r\n": ("1.2.3.4", 5555),
    b"PROXY TCP6 2001:DB8::0:1 ::1 0 65535\r\n": ("2001:db8::1", 0),
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN ffff:f...f:ffff anything 1 2\r\n": None,
    b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n": None,
    v2(): ("1.2.3.4", 1111),
    v2(kind=0x21, hosts=("2001:db8::1", "::1")): ("2001:db8::1", 1111),
    v2(more=b"\x03\x00\x04abcd"): ("1.2.3.4", 1111),
    v2(more=b"x" * (65535 - 12)): ("1.2.3.4", 1111),
    v2(command=0x20): None,
    V2 + b"\x20\x00\x00\x00": None,
    V2 + b"\x21\x01\x00\x00": None,
    V2 + b"\x21\x01\x00\x0c" + b"a" * 12: None,
    b"PROXY TCP6 ::ffff:1.2.3.4 ::1 5555 4222\r\n": ("1.2.3.4", 5555),
    v2(kind=0x21, hosts=("::ffff:1.2.3.4", "::1")): ("1.2.3.4", 1111),
}
INVALID = {
    b"PROXY TCP4 1.2.3 10.0.0.1 5555 4222\r\n": "invalid address",
    b"PROXY TCP4 ::1 10.0.0.1 5555 4222\r\n": "invalid address",
    b"PROXY TCP4 1.2.3.4 ::1 5555 4222\r\n": "invalid address",
    b"PROXY TCP6 fe80::1%eth0 ::1 5555 4222\r\n": "invalid address",
    b"PROXY TCP4 1.2.3.\xd9\xa4 10.0.0.1 5555 4222\r\n": "invalid address",
    b"PROXY TCP4 1.2.3.4 10.0.0.1 65536 4222\r\n": "invalid port",
    b"PROXY TCP4 1.2.3.4 10.0.0.1 -1 4222\r\n": "invalid port",
    b"PROXY TCP4 1.2.3.4 10.0.0.1 5555 \r\n": "invalid port",
    b"PROXY TCP4 1.2.3.4 10.0.0.1 5555\r\n": "invalid v1 format",
    b"PROXY TCP4  1.2.3.4 10.0.0.1 5555 4222\r\n": "invalid v1 format",
    b"PROXY UDP4 1.2.3.4 10.0.0.1 5555 4222\r\n": "invalid v1 format",
    b"PROXY \r\n": "invalid v1 format",
    b"PROXY " + b"x" * 1000: "v1 line too long",
    b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n": "v1 line too long",
    v2(kind=0x12): "only STREAM protocol supported",
    V2 + b"\x21\x00\x00\x00": "only STREAM protocol supported",
    V2 + b"\x21\x31\x00\xd8" + b"a" * 216: "unsupported address family 0x30",
    v2(command=0x31): "version and command 0x31",
    v2(command=0x22): "version and command 0x22",
    V2 + b"\x21\x11\x00\x04abcd": "IPv4 address data too short: 4 bytes",
    V2 + b"\x21\x21\x00\x0c" + b"a" * 12: "IPv6 address data too short: 12 bytes",
}


def fed(data: bytes, piece: int) -> tuple[ProxyHeader, bytes | None]:
    """What is left of `data`, fed in pieces of this size; all that comes behind the end belongs to it."""
    header = ProxyHeader()
    for at in range(0, len(data), piece):
        rest = header.feed(data[at : at + piece])
        if rest is not None:
            return header, rest + data[at + piece :]
    return header, None


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_a_header_says_whose_connection_it_is_and_ends_where_it_says(piece):
    for data, address in VALID.items():
        header, rest = fed(data + NEXT, piece)
        assert (header.address, rest) == (address, NEXT), data[:60]
        header, rest = fed(data, piece)
        assert (header.address, rest) == (address, b""), data[:60]


def test_a_header_that_is_cut_short_is_not_over():
    for data in VALID:
        for size in {1, 5, 6, 11, 12, 15, 16, 27, len(data) - 1}:
            if size < len(data):
                header, rest = fed(data[:size], 1)
                assert rest is None and header.has_begun


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_an_invalid_header_is_refused_with_the_reason(piece):
    for data, why in INVALID.items():
        with pytest.raises(ProxyHeaderError, match=why):
            fed(data, piece)


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_a_connection_without_a_header_goes_on_with_its_own_bytes(piece):
    for data in (NEXT, b"PING\r\n", b"PUB a 0\r\n\r\n", b"\r\n", b"\r\nPING\r\n", b"proxy TCP4 ", b"\x16\x03\x01"):
        if V2.startswith(data):  # (it may still become one)
            continue
        header, rest = fed(data, piece)
        assert header.address is None and rest == data


def test_what_is_kept_of_a_header_does_not_grow_with_it():
    header = ProxyHeader()
    whole = v2(more=b"x" * 60_000)
    for at in range(0, len(whole) - 1, 100):
        assert header.feed(whole[at : min(at + 100, len(whole) - 1)]) is None
        assert len(header._kept) <= 107
    assert header.feed(whole[-1:] + NEXT) == NEXT
