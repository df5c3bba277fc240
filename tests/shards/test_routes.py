"""What is decided about connections to other members of the cluster, without any."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Cluster
from gnatswarm.shards.gateway.remote import Address
from gnatswarm.shards.gateway.routes import Routes


@pytest.mark.parametrize(
    ("configured", "dialled", "name"),
    [
        (["one.example", "two.example"], "two.example", "two.example"),
        (["one.example", "two.example"], "198.51.100.1", "one.example"),  # others told of it, by its address
        ([], "198.51.100.1", "198.51.100.1"),
    ],
)
def test_a_member_s_certificate_must_have_a_name_that_is_configured(
    configured: list[str], dialled: str, name: str
) -> None:
    context = ssl.create_default_context()
    routes: Any = SimpleNamespace(
        cluster=Cluster(),
        _contexts=(context, context),
        _addresses=lambda: [Address(host, 6222) for host in configured],
    )
    gate = Routes._gate(routes, Address(dialled, 6222))
    assert gate is not None and gate.server_hostname == name
