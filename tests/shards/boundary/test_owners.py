"""All addresses of one host have one owner."""

from __future__ import annotations

import pytest

from gnatswarm.shards.boundary.owners import owner_of


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("3130:2e30:2e30:2e31::", "10.0.0.1", False),  # the bytes of the text
        ("a:name", "a:name", True),
        ("", "10.0.0.1", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_one_owner_has_one_ipv4_address_or_one_network_of_ipv6(one: str, other: str, is_same: bool):
    assert (owner_of(one) == owner_of(other)) is is_same
