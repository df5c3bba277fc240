"""Monitoring pages over TLS: the certificate of the clients' port, none asked for; the same beside nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.authority import Authority, Pair
from tests.support.pages import Pages, basic
from tests.support.servers import HOST, Broker, wait_until

BOTH = ("gnatswarm-1", "gnatswarm-2", "nats-server")
OURS = ("gnatswarm-2",)

Encrypted = Callable[..., tuple[Broker, Pages]]


@pytest.fixture
def encrypted(start_broker: Callable[..., Broker], server: Pair, authority: Authority) -> Encrypted:
    """Starts a broker whose pages are on any free port by https: more lines of its tls block, and of the file."""

    def start(more: str = "", rest: str = "https: -1", args: list[str] | None = None) -> tuple[Broker, Pages]:
        broker = start_broker(config=f"tls {{\n {server.lines}\n {more}\n}}\n{rest}\n", args=args or [])
        return broker, Pages.of(broker, context=authority.client_context())

    return start


def presented(pages: Pages, context: ssl.SSLContext) -> bytes:
    """The certificate that somebody is shown who looks now."""
    with (
        socket.create_connection((HOST, pages.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


@pytest.mark.kinds(*BOTH)
@pytest.mark.parametrize(
    ("rest", "args"), [("https: -1", []), (f"https: '{HOST}:-1'", []), ("https_port: -1", []), ("", ["-ms", "-1"])]
)
async def test_pages_are_served_encrypted(encrypted, rest, args):
    broker, pages = encrypted(rest=rest, args=args)
    assert pages.scheme == "https"
    page = await asyncio.to_thread(pages.json, "/varz")
    assert (page["tls_required"], page["http_port"]) == (True, 0)
    assert page["https_port"] in (-1, pages.port)  # there it is what was asked for
    assert (await asyncio.to_thread(pages.json, "/healthz")) == {"status": "ok"}
    assert any("TLS required for client connections" in line for line in broker.log.lines)


@pytest.mark.kinds(*OURS, "nats-server-2.15")
@pytest.mark.parametrize(("groups", "is_taken"), [("ffdhe8192", False), ("P-384:ffdhe8192", True)])
async def test_nobody_exchanges_keys_in_a_large_group_of_a_finite_field(encrypted, groups, is_taken):
    """OpenSSL would: 190 ms each, in which the router does nothing else."""
    _, pages = encrypted()
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"{HOST}:{pages.port}", "-groups", groups, "-brief",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said_by_client, _ = await asyncio.wait_for(process.communicate(), 20)
    assert (b"CONNECTION ESTABLISHED" in said_by_client) is is_taken


@pytest.mark.kinds(*BOTH)
@pytest.mark.parametrize("group", ["prime256v1", "secp384r1", "secp521r1", "X25519"])
async def test_a_client_that_knows_one_group_only_is_served(encrypted, authority, group):
    """Where rules allow P-384 alone, or a small client has X25519 alone."""
    _, pages = encrypted()
    context = authority.client_context()
    context.set_ecdh_curve(group)
    reader, writer = await asyncio.open_connection(HOST, pages.port, ssl=context, server_hostname="localhost")
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()


@pytest.mark.kinds(*BOTH)
async def test_whoever_looks_needs_no_certificate_though_clients_do(encrypted, authority):
    _broker, pages = encrypted(f'verify: true\n ca_file: "{authority.path}"')
    page = await asyncio.to_thread(pages.json, "/varz")
    assert (page["tls_required"], page["tls_verify"]) == (True, True)


@pytest.mark.kinds(*BOTH)
async def test_who_speaks_plain_there_is_told_so(encrypted):
    _broker, pages = encrypted()
    with socket.create_connection((HOST, pages.port), timeout=30) as plain:
        plain.sendall(b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n")
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while data := plain.recv(4096):
                said += data
    assert said.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert said.endswith(b"Client sent an HTTP request to an HTTPS server.\n")


@pytest.mark.kinds(*BOTH)
async def test_a_reload_shows_the_new_certificate(encrypted, authority, server):
    broker, pages = encrypted()
    assert pages.context is not None
    old = await asyncio.to_thread(presented, pages, pages.context)
    new = authority.server()
    for there, fresh in ((server.cert, new.cert), (server.key, new.key)):
        there.write_bytes(fresh.read_bytes())
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, "Reloaded server configuration")
    shown = await asyncio.to_thread(presented, pages, pages.context)
    assert shown != old
    assert shown == ssl.PEM_cert_to_DER_cert(new.cert.read_text())


@pytest.mark.kinds(*OURS)
async def test_a_reload_without_the_certificate_changes_nothing(encrypted):
    broker, pages = encrypted()
    assert broker.directory is not None
    (broker.directory / "broker.conf").write_text("https: -1\n")
    broker.send_signal(signal.SIGHUP)
    line = await asyncio.to_thread(broker.log.wait_line, "Failed to reload")
    assert "TLS cert and key required for HTTPS" in line.string
    assert (await asyncio.to_thread(pages.get, "/varz")).status == 200


@pytest.mark.kinds(*BOTH)
async def test_the_ports_file_says_that_both_are_encrypted(encrypted, tmp_path):
    _broker, pages = encrypted(args=["--ports_file_dir", str(tmp_path)])
    wait_until(lambda: list(tmp_path.glob("*.ports")) != [])
    found: dict[str, Any] = {}

    def is_whole() -> bool:
        with contextlib.suppress(ValueError):
            found.update(json.loads(next(tmp_path.glob("*.ports")).read_text()))
        return bool(found)

    wait_until(is_whole)
    assert found["monitoring"] == [f"https://{HOST}:{pages.port}"]
    assert [url.split(":")[0] for url in found["nats"]] == ["tls"]


@pytest.mark.kinds(*BOTH)
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("https_port: -1", "TLS cert and key required for HTTPS"),
        ("http: -1\nhttps: -1\n{tls}", "can't specify both HTTP (-1) and HTTPs (-1) ports"),
        ("http_port: 18222\nhttps_port: 18223", "can't specify both HTTP (18222) and HTTPs (18223) ports"),
    ],
)
async def test_what_makes_no_sense_stops_the_start(kind, server, config, words):
    text = config.replace("{tls}", f"tls {{ {server.lines} }}")
    broker = Broker(kind, config=text).launch()
    try:
        assert await asyncio.to_thread(broker.wait_exit) == 1
        assert f"Can't start monitoring: {words}" in broker.log.text
    finally:
        broker.kill()


@pytest.mark.kinds(*OURS)
async def test_handshakes_that_never_end_do_not_keep_others_out(encrypted):
    """They count as connections, so there are bounds; one that is given up makes room."""
    _broker, pages = encrypted()
    idle = [socket.create_connection((HOST, pages.port), timeout=30) for _ in range(100)]
    try:
        assert (await asyncio.to_thread(pages.get, "/varz")).status == 200
    finally:
        for sock in idle:
            sock.close()
    for _ in range(40):  # more than the bound all told
        half = socket.create_connection((HOST, pages.port), timeout=30)
        half.sendall(b"\x16\x03\x01")
        half.close()
    await pages.wait("/healthz", lambda page: page["status"] == "ok")


@pytest.mark.kinds(*OURS)
async def test_access_and_the_dashboard_are_the_same_as_in_plain(encrypted):
    _broker, pages = encrypted(rest="https: -1\nhttp_user: op\nhttp_password: secret")
    assert (await asyncio.to_thread(pages.get, "/varz")).status == 401
    pages.headers.update(basic("op", "secret"))
    assert (await asyncio.to_thread(pages.get, "/varz")).status == 200
    page = await asyncio.to_thread(lambda: pages.get("/", Accept="text/html"))
    assert b"<!doctype html>" in page.body.lower()
