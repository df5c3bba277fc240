"""Which name the certificate of a server has to have."""

from __future__ import annotations

import pytest

from gnatswarm.shards.gateway.addresses import name_for_tls


@pytest.mark.parametrize(
    ("host", "configured", "name"),
    [
        ("192.0.2.7", ["192.0.2.1", "one.example", "two.example"], "one.example"),
        ("2001:db8::7", ["two.example"], "two.example"),
        ("192.0.2.1", ["192.0.2.1", "one.example"], "one.example"),
        ("192.0.2.7", ["192.0.2.1"], "192.0.2.7"),
        ("192.0.2.7", [], "192.0.2.7"),
        ("three.example", ["one.example"], "three.example"),
    ],
)
def test_an_address_has_the_first_name_that_is_configured(host: str, configured: list[str], name: str) -> None:
    assert name_for_tls(host, configured) == name
