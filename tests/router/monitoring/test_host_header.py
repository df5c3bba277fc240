"""Which Host headers are believed, and on which listening sockets."""

from __future__ import annotations

import socket

import pytest

from gnatswarm.router.monitoring.host_header import HostHeader


def rule(address: str, *configured: str, is_tls: bool = False) -> HostHeader:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    is_mapped = address.startswith("::ffff:")
    with socket.create_server((address, 0), family=family, dualstack_ipv6=is_mapped) as sock:
        return HostHeader(sock, *configured, is_tls=is_tls)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host",
    ["rebound.example", "rebound.example:80", "reboundlocalhost", "[localhost]", "[::1]x", "::1.example", "[::1"],
)
def test_on_loopback_a_foreign_name_is_refused_and_named(address: str, host: str):
    assert f"{host!r}" in rule(address).refusal(host)


@pytest.mark.parametrize("host", ["", " ", "::1", "[::1]", "[::1]:80", "127.0.0.1", "192.168.0.7:80", "LOCALHOST:1"])
def test_addresses_and_localhost_are_believed(host: str):
    assert rule("127.0.0.1").refusal(host) == ""


def test_the_configured_name_is_believed_and_others_are_not():
    names = rule("127.0.0.1", "pages.example", "")
    assert names.refusal("Pages.Example.:8222") == ""
    assert names.refusal("example") != ""


@pytest.mark.parametrize("is_tls", [False, True])
def test_elsewhere_and_over_tls_every_name_is_believed(is_tls: bool):
    assert rule("127.0.0.1" if is_tls else "0.0.0.0", is_tls=is_tls).refusal("rebound.example") == ""


@pytest.mark.parametrize("is_tls", [False, True])
def test_on_loopback_no_other_web_page_gets_jsonp(is_tls: bool):
    local, elsewhere = rule("127.0.0.1", is_tls=is_tls), rule("0.0.0.0", is_tls=is_tls)
    for site in ("cross-site", "same-site", "Cross-Site", "new-word"):
        assert "no JSONP" in local.jsonp_refusal(site)
        assert elsewhere.jsonp_refusal(site) == ""
    for site in ("", "none", "same-origin", " Same-Origin "):
        assert local.jsonp_refusal(site) == ""


def test_a_long_name_is_cut_in_the_refusal():
    assert len(rule("127.0.0.1").refusal("a" * 10_000)) < 600
