"""Certificates of clients: whose are taken, which user they stand for, and what every other one gets."""

from __future__ import annotations

import datetime
import re
import ssl

import pytest
from cryptography import x509

from tests.support.authority import HOUR, Authority
from tests.support.pages import Pages
from tests.support.secure import CONNECT, SecureClient, connect, connections, dial, said
from tests.support.servers import Broker

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
