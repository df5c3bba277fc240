"""Whose an address is, where hosts get shares: one host has an IPv4 address, and a whole network of IPv6 ones.

Used where many connections of one host are not to be at the expense of others: log-ins, ports for other servers, pages.
"""

from __future__ import annotations


def owner_of(address: str) -> bytes:
    """The same for all addresses of one host: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address.encode()
    from ipaddress import IPv6Address

    try:
        ip = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address.encode()
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped).encode()
    return ip.packed[:8] + b":"  # as no text of an IPv4 address
