"""A web page that points a name of its own at loopback (DNS rebinding) reads no monitoring; everybody else does."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.support.pages import Pages
from tests.support.servers import HOST

pytestmark = pytest.mark.kinds("gnatswarm-2")

PATHS = ("/", "/varz", "/connz", "/subsz", "/metrics", "/healthz", "/nothing")


def get(port: int, path: str, host: str | None, address: str = HOST, more: str = "") -> tuple[int, str]:
    """Status and text of a page, asked for with this Host header; None: HTTP/1.0, without one. `more`: headers."""
    request = f"GET {path} HTTP/1.0\r\n\r\n"
    if host is not None:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n"
    said = b""
    with socket.create_connection((address, port), timeout=30) as sock:
        sock.sendall(request.encode("latin-1"))
        while data := sock.recv(65536):
            said += data
    return int(said.split()[1]), said.decode("utf-8", "replace")


async def status(*args: Any, **more: Any) -> int:
    return (await asyncio.to_thread(get, *args, **more))[0]


async def test_a_foreign_name_reads_no_page_of_a_loopback_port(start_broker):
    port = Pages.of(start_broker(args=["-m", "-1"])).port
    foreign = (
        "rebound.example",
        f"rebound.example:{port}",
        "127.0.0.1.rebound.example",
        "localhost.example",
        "[::1].x",
    )
    for host in foreign:
        for path in PATHS:
            code, text = await asyncio.to_thread(get, port, path, host)
            assert code == 421
            assert "server_id" not in text
    assert "Ask for localhost or 127.0.0.1" in text


async def test_names_that_nobody_else_can_point_here_are_answered(start_broker):
    port = Pages.of(start_broker(args=["-m", "-1"])).port
    machine = socket.gethostname()
    known = ("127.0.0.1", "localhost", "LocalHost.", "broker.localhost", "[::1]", "10.1.2.3", machine, machine.upper())
    for host in known:
        assert await status(port, "/varz", host) == 200
        assert await status(port, "/varz", f"{host}:{port}") == 200
    assert await status(port, "/varz", None) == 200
    assert await status(port, "/varz", "") == 200


async def test_the_configured_name_is_answered(start_broker):
    pages = Pages.of(start_broker(config='http: "localhost:-1"'))
    assert await status(pages.port, "/varz", "localhost") == 200
    assert await status(pages.port, "/varz", "rebound.example") == 421


async def test_every_name_is_answered_where_the_port_is_open_to_others(start_broker):
    """Prometheus says a service's name, a proxy what it was asked for, a probe the pod's address."""
    port = Pages.of(start_broker(config='http: "0.0.0.0:-1"')).port
    for host in ("gnatswarm.messaging.svc", "metrics.example.com", "10.244.0.7:8222"):
        assert await status(port, "/metrics", host) == 200
        assert await status(port, "/healthz", host) == 200


async def test_another_web_page_cannot_have_a_page_for_a_script(start_broker):
    port = Pages.of(start_broker(args=["-m", "-1"])).port
    path = "/connz?callback=steal"

    async def asked(path: str, site: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, port, path, "127.0.0.1", more=f"Sec-Fetch-Site: {site}\r\n")

    for site in ("cross-site", "same-site"):
        code, text = await asked(path, site)
        assert code == 403 and "server_id" not in text
        code, text = await asked("/connz", site)
        assert code == 200 and "application/json" in text  # which no page can run
    for site in ("same-origin", "none"):
        code, text = await asked(path, site)
        assert code == 200 and "steal({" in text
