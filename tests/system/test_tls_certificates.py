"""Certificates of clients: whose are taken, which user they stand for, and what every other one gets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import signal
import ssl
import time

import pytest
from cryptography import x509

from tests.router.routers import pause
from tests.support.authority import HOUR, Authority, Pair
from tests.support.framed import connect as upgraded
from tests.support.framed import request, upgrade, websocket_port
from tests.support.leaves import hub_port
from tests.support.pages import Pages
from tests.support.secure import CONNECT, SecureClient, connect, connections, dial, read_info, said
from tests.support.servers import HOST, Broker
from tests.support.wire import Client

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server")


async def alert(client: SecureClient) -> bytes:
    """What a client sees whose certificate was refused: in TLS 1.3 its own handshake has ended by then."""
    await client.send(CONNECT + b"PING\r\n")
    return await client.rest()


async def until_gone(broker: Broker) -> None:
    """Nobody is connected any more."""
    await Pages.of(broker).wait("/connz", lambda document: not document["connections"])


async def test_a_client_needs_a_certificate_of_our_authority(secure, authority, tmp_path):
    broker = secure(f'verify: true\n ca_file: "{authority.path}"')
    client = await connect(broker.port, authority.client_context(authority.client()))
    assert client.info["tls_required"] is True
    assert client.info["tls_verify"] is True
    client.close()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda own, foreign: None, "certificate"),
        (lambda own, foreign: foreign.client(), "unknown authority|unable to get|self.signed"),
        (lambda own, foreign: own.client(lasts=datetime.timedelta(hours=-1)), "expired"),
        (lambda own, foreign: own.client(is_server=True), "purpose|usage"),
    ],
    ids=["none", "foreign", "expired", "of a server"],
)
async def test_any_other_certificate_ends_the_handshake(secure, authority, tmp_path, make, why):
    foreign = Authority(tmp_path)
    broker = secure(f'verify: true\n ca_file: "{authority.path}"')
    context = authority.client_context(make(authority, foreign))
    try:
        client = await dial(broker.port, context)
    except (ssl.SSLError, ConnectionError):
        pass
    else:
        assert b"PONG" not in await alert(client)
        client.close()
    line = await said(broker, "TLS handshake error")
    assert re.search(why, line)


# User → subject and alternative names of a certificate.
Cases = dict[str, tuple[str, list[x509.GeneralName]]]


def mapping(authority: Authority, users: list[str]) -> tuple[str, str]:
    listed = ", ".join(f'{{user: "{user}"}}' for user in users)
    return f'verify_and_map: true\n ca_file: "{authority.path}"', f"authorization {{ users [ {listed} ] }}\n"


async def test_a_certificate_says_which_user_it_is(secure, authority):
    cases: Cases = {
        "bob@example.com": ("CN=x", [x509.RFC822Name("bob@example.com")]),
        "bob.example.com": ("CN=x", [x509.DNSName("bob.example.com")]),
        "urn:bob": ("CN=x", [x509.UniformResourceIdentifier("urn:bob")]),
        "second.example.com": ("CN=x", [x509.DNSName("a.b"), x509.DNSName("second.example.com")]),
        "third.example.com": ("CN=x", [x509.RFC822Name("a@b.c"), x509.DNSName("third.example.com")]),
        "CN=bob,O=gnats": ("O=gnats,CN=bob", []),
        "O=gnats,CN=eve": ("O=gnats,CN=eve", []),
        "cn=ann, o=gnats": ("O=gnats,CN=ann", []),
    }
    block, users = mapping(authority, list(cases))
    broker = secure(block, f"{users}\nhttp: 127.0.0.1:-1\n")
    for user, (subject, names) in cases.items():
        client = await dial(broker.port, authority.client_context(authority.client(subject, *names)))
        assert client.info["auth_required"] is True
        await client.send(b'CONNECT {"verbose":false,"user":"somebody else"}\r\nPING\r\n')
        await client.expect(b"PONG\r\n")
        (row,) = await connections(broker, "open&auth=1")
        assert row["authorized_user"] == user
        client.close()
        await until_gone(broker)


async def test_a_certificate_that_names_no_user_does_not_come_in(secure, authority):
    cases: Cases = {
        "CN=bob": ("O=gnats,CN=bob", []),
        "CN=Eve,O=gnats": ("O=gnats,CN=eve", []),
        "ann": ("CN=ann", []),
        "x": ("CN=y", [x509.DNSName("z")]),
        "CN=": ("", [x509.DNSName("v")]),
    }
    broker = secure(*mapping(authority, list(cases)))
    for subject, names in cases.values():
        client = await dial(broker.port, authority.client_context(authority.client(subject, *names)))
        await client.send(b'CONNECT {"verbose":false,"user":"ann"}\r\nPING\r\n')
        assert await client.rest() == b"-ERR 'Authorization Violation'\r\n"
        client.close()


async def test_a_mapped_user_with_a_password_has_to_give_it_as_well(secure, authority):
    broker = secure(
        f'verify_and_map: true\n ca_file: "{authority.path}"', "authorization { users [ {user: a.b, pass: secret} ] }\n"
    )
    context = authority.client_context(authority.client("CN=x", x509.DNSName("a.b")))
    (await connect(broker.port, context, line=b'CONNECT {"pass":"secret","verbose":false}\r\n')).close()
    client = await dial(broker.port, context)
    await client.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert await client.rest() == b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.kinds("gnatswarm-1")
@pytest.mark.parametrize(
    ("lasts", "words"),
    [(datetime.timedelta(hours=-1), "expired on"), (datetime.timedelta(minutes=5), "expires on"), (HOUR, "")],
)
async def test_a_certificate_that_ends_is_said_at_the_start(start_broker, authority, lasts, words):
    broker = start_broker(config=f"tls {{\n {authority.server(lasts=lasts).lines}\n}}\n")
    warnings = [line for line in broker.log.lines if "[WRN]" in line and "certificate" in line]
    assert [words in line for line in warnings] == ([True] if words else [])


def trusting_sha1(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """The context of a client that takes what OpenSSL refuses unless told otherwise."""
    context = authority.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


async def test_a_certificate_signed_with_sha1_is_used_and_warned_of(start_broker, authority, kind):
    pair = authority.by_sha1(authority.server())
    broker = start_broker(config=f"tls {{ {pair.lines} }}")
    if not kind.is_oracle:
        line = await said(broker, "signed with SHA-1")
        assert str(pair.cert) in line and "[WRN]" in line
    client = await connect(broker.port, trusting_sha1(authority))
    await client.flush()
    client.close()
    with pytest.raises(ssl.SSLError):  # a client that is as careful as it should be
        await dial(broker.port, authority.client_context())


@pytest.mark.parametrize("is_last", [False, True], ids=["with such a server", "with a server of today"])
async def test_a_client_whose_certificate_is_signed_with_sha1_does_not_come_in(start_broker, authority, is_last):
    """OpenSSL takes it where it has to take the server's own."""
    server = authority.server() if is_last else authority.by_sha1(authority.server())
    broker = start_broker(config=f'tls {{ {server.lines}, verify: true, ca_file: "{authority.path}" }}')
    (await connect(broker.port, trusting_sha1(authority, authority.client()))).close()
    forgeable = authority.by_sha1(authority.client())
    try:
        client = await dial(broker.port, trusting_sha1(authority, forgeable))
    except (ssl.SSLError, ConnectionError):
        pass
    else:
        assert b"PONG" not in await alert(client)
        client.close()
    line = await said(broker, "TLS handshake error")
    assert re.search("insecure algorithm|too weak", line)


async def test_a_pinned_certificate_comes_in_and_no_other(secure, authority):
    pinned, renewed, other = authority.client(), authority.client(), authority.client()
    pins = f'pinned_certs: [ "{pinned.pin.upper()}", "{renewed.pin}" ]'
    broker = secure(f'verify: true\n ca_file: "{authority.path}"\n {pins}', "http: 127.0.0.1:-1\n")
    for pair in (pinned, renewed):
        (await connect(broker.port, authority.client_context(pair))).close()
    client = await dial(broker.port, authority.client_context(other))
    assert await alert(client) == b""
    client.close()
    await said(broker, r"cid:\d+ - TLS handshake error: certificate not pinned$")
    closed = await connections(broker, "closed")
    assert [row["reason"] for row in closed if "Client" not in row["reason"]] == ["TLS Handshake Failure"]


async def test_who_has_no_certificate_is_not_pinned(secure, authority):
    broker = secure(f'pinned_certs: [ "{authority.client().pin}" ]')
    client = await dial(broker.port, authority.client_context())
    assert await alert(client) == b""
    client.close()
    await said(broker, "TLS handshake error: certificate not pinned")


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")  # nats-server 2.9 has no handshake_first
async def test_a_client_that_is_not_pinned_gets_no_info_after_its_handshake(secure, authority):
    pinned, other = authority.client(), authority.client()
    pins = f'verify: true\n ca_file: "{authority.path}"\n pinned_certs: [ "{pinned.pin}" ]'
    broker = secure(f"{pins}\n handshake_first: true")
    (await connect(broker.port, authority.client_context(pinned), first=True)).close()
    reader, writer = await asyncio.open_connection(
        HOST, broker.port, ssl=authority.client_context(other), server_hostname="localhost"
    )
    client = SecureClient(reader, writer)
    assert b"INFO" not in await client.rest()
    client.close()
    await said(broker, "TLS handshake error: certificate not pinned")


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")  # the real server pins nothing on this port
async def test_pins_hold_for_websocket_clients(start_broker, authority, server):
    pinned, other = authority.client(), authority.client()
    asks = f'verify: true, ca_file: "{authority.path}", pinned_certs: [ "{pinned.pin}" ]'
    broker = start_broker(config=f"websocket {{ host: {HOST}, port: -1, tls {{ {server.lines}, {asks} }} }}")
    port = websocket_port(broker)
    for pair, expected in ((pinned, b"HTTP/1.1 101 "), (other, b"")):
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=authority.client_context(pair), server_hostname="localhost"
        )
        client = SecureClient(reader, writer)
        await client.send(request(port))
        answer = await client.line() if expected else await client.rest()
        assert answer.startswith(expected) and bool(answer) is bool(expected)
        client.close()
    await said(broker, "TLS handshake error: certificate not pinned")


async def test_a_certificate_says_which_user_a_websocket_client_is(start_broker, authority, server):
    asks = f'verify_and_map: true, ca_file: "{authority.path}"'
    users = "authorization { users [ {user: CN=ann}, {user: CN=bob} ] }"
    websocket = f"websocket {{ host: {HOST}, port: -1, tls {{ {server.lines}, {asks} }} }}"
    broker = start_broker(config=f"{users}\nhttp: '127.0.0.1:-1'\n{websocket}")
    port = websocket_port(broker)
    line = b'CONNECT {"verbose":false,"user":"CN=bob"}\r\n'
    client = await upgraded(port, context=authority.client_context(authority.client("CN=ann")), line=line)
    (row,) = await connections(broker, "open&auth=1")
    assert row["authorized_user"] == "CN=ann"
    client.close()
    stranger = await upgrade(port, context=authority.client_context(authority.client("CN=eve")))
    await stranger.say(line + b"PING\r\n")
    while b"\r\n" not in stranger.stream:
        assert await stranger.read_frame() >= 0
    assert bytes(stranger.stream).startswith(b"-ERR 'Authorization Violation'")
    stranger.close()


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server-2.15")
async def test_the_name_of_whom_a_certificate_selects_opens_no_other_port(start_broker, authority, server):
    """Neither by WebSocket nor for a leaf node, where nobody asks for a certificate."""
    asks = f'verify_and_map: true, ca_file: "{authority.path}"'
    users = 'authorization { users [ { user: "CN=ann" } ] }'
    ports = f"websocket {{ host: {HOST}, port: -1, no_tls: true }}\nleafnodes {{ host: {HOST}, port: -1 }}"
    broker = start_broker(config=f"tls {{ {server.lines}, {asks} }}\n{users}\n{ports}")
    mine = await connect(broker.port, authority.client_context(authority.client("CN=ann")))
    await mine.send(b"PING\r\n")
    while await mine.line() != b"PONG\r\n":
        pass
    mine.close()
    by_websocket = await upgrade(websocket_port(broker))
    await by_websocket.say(b'CONNECT {"verbose":false,"user":"CN=ann"}\r\nPING\r\n')
    while b"\r\n" not in by_websocket.stream:
        assert await by_websocket.read_frame() >= 0
    assert bytes(by_websocket.stream).startswith(b"-ERR 'Authorization Violation'")
    by_websocket.close()
    leaf_node = await Client.connect(hub_port(broker), None)
    await leaf_node.send(b'CONNECT {"version":"2.9.0","name":"leaf","user":"CN=ann"}\r\nPING\r\n')
    while (line := await leaf_node.read_line()).startswith(b"INFO "):
        pass
    assert line == b"-ERR 'Authorization Violation'\r\n"
    leaf_node.close()


async def test_certificates_do_not_begin_to_stand_for_users_while_clients_are_connected(
    start_broker, authority, server
):
    """Nobody has looked at theirs, and some may have none."""

    def config(more: str) -> str:
        users = 'authorization { users [ { user: "CN=ann", password: x } ] }'
        return f'tls {{ {server.lines}, ca_file: "{authority.path}"{more} }}\n{users}\n'

    broker = start_broker(config=config(""))
    log_in = b'CONNECT {"verbose":false,"user":"CN=ann","pass":"x"}\r\n'
    client = await connect(broker.port, authority.client_context(), line=log_in)
    await client.flush()
    assert broker.directory is not None
    (broker.directory / "broker.conf").write_text(config(", verify_and_map: true"))
    start = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, r"not supported for (TLSMap|tls\.verify_and_map): ", 30.0, start)
    await client.flush()
    client.close()
    (await connect(broker.port, authority.client_context(), line=log_in)).close()  # who comes now needs none either


async def test_more_handshakes_a_second_than_allowed_are_refused(secure, authority):
    """The first three of a second, on all shards together."""
    broker = secure("connection_rate_limit: 3\n timeout: 0.5")

    async def burst() -> tuple[list[bytes], float]:
        """What ten clients at once were told, and how long it took until the last one was connected."""
        began_s = time.monotonic()
        clients = [await asyncio.open_connection(HOST, broker.port) for _ in range(10)]
        for reader, _ in clients:
            await read_info(reader)
        took_s = time.monotonic() - began_s
        told = [await reader.read() for reader, _ in clients]
        for _, writer in clients:
            writer.close()
        return told, took_s

    told, took_s = await burst()
    while took_s > 0.9:  # it was longer than the second that is counted
        await asyncio.to_thread(pause, 1.1)
        told, took_s = await burst()
    refusal = b"-ERR 'Connection throttling is active. Please try again later.'\r\n"
    assert [refusal in rest for rest in told].count(True) == 7
    assert re.search(r"\[WRN\].*Rejected \d connections due to TLS rate limiting$", await said(broker, "Rejected"))
    await until_admitted(broker, authority)


async def until_admitted(broker: Broker, authority: Authority) -> None:
    """Until the broker takes a client again."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
                (await connect(broker.port, authority.client_context())).close()
                return
