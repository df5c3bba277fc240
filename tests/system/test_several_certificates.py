"""Several certificates for a port: a client is shown the one of the name that it asks for, as on nats-server 2.15."""

from __future__ import annotations

import datetime
import signal
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.support.authority import HOUR, Authority, Pair
from tests.support.framed import websocket_port
from tests.support.secure import dial
from tests.support.servers import HOST

pytestmark = pytest.mark.kinds("gnatswarm-1-as-2.15", "gnatswarm-2-as-2.15", "nats-server-2.15")

EC_ONLY, RSA_ONLY = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"


def trusting(authority: Authority, ciphers: str = "") -> ssl.SSLContext:
    """A client's context that takes any certificate; `ciphers`: with TLS 1.2 and these alone."""
    context = authority.client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if ciphers:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    return context


async def shown(port: int, context: ssl.SSLContext, name: str) -> str:
    """The common name of the certificate that a client sees who asks for `name`."""
    client = await dial(port, context, name=name)
    tls = client.writer.get_extra_info("ssl_object")
    found = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True)).subject.rfc4514_string()
    client.close()
    return found.removeprefix("CN=")


def of_names(authority: Authority, subject: str, *names: str) -> Pair:
    return authority.client(f"CN={subject}", *map(x509.DNSName, names), is_server=True)


def by_rsa(directory: Path, subject: str, *names: str) -> Pair:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - HOUR).not_valid_after(now + HOUR)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
    pair = Pair(directory / f"{subject}.pem", directory / f"{subject}.key")
    pair.cert.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pair.key.write_bytes(key.private_bytes(*form))
    return pair


def certs(*pairs: Pair) -> str:
    return f"certs: [ {', '.join(f'{{ {pair.lines} }}' for pair in pairs)} ]"


NAMES = {
    "one.example": "one",
    "ONE.Example": "one",
    "two.example": "two",
    "x.wild.example": "two",
    "y.wild.example": "one",  # it has this name of its own, and is the first
    "x.y.wild.example": "one",
    "wild.example": "one",
    "other.example": "one",
    "cn.example": "one",  # a common name is no name
}


async def test_a_client_sees_the_certificate_of_the_name_it_asks_for(start_broker, authority):
    one = of_names(authority, "one", "one.example", "y.wild.example")
    two = of_names(authority, "two", "two.example", "*.wild.example")
    broker = start_broker(config=f"tls {{ {certs(one, two, of_names(authority, 'cn.example'))} }}")
    context = trusting(authority)
    assert {name: await shown(broker.port, context, name) for name in NAMES} == NAMES
    assert await shown(broker.port, context, HOST) == "one"  # (an address is no name that is asked for)


async def test_of_one_name_there_may_be_certificates_of_each_kind_of_key(start_broker, authority, tmp_path):
    one, two = of_names(authority, "one", "one.example"), of_names(authority, "two", "two.example")
    broker = start_broker(config=f"tls {{ {certs(one, two, by_rsa(tmp_path, 'rsa', 'two.example'))} }}")
    for ciphers, found in ((EC_ONLY, "two"), (RSA_ONLY, "rsa")):
        assert await shown(broker.port, trusting(authority, ciphers), "two.example") == found
    assert await shown(broker.port, trusting(authority, EC_ONLY), "one.example") == "one"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await shown(broker.port, trusting(authority, RSA_ONLY), "one.example")
    assert await shown(broker.port, trusting(authority, RSA_ONLY), HOST) == "rsa"


async def test_client_certificates_are_asked_for_whatever_the_name(start_broker, authority):
    one, two = of_names(authority, "one", "one.example"), of_names(authority, "two", "two.example")
    more = f'verify: true\n ca_file: "{authority.path}"'
    broker = start_broker(config=f"tls {{\n {certs(one, two)}\n {more}\n}}")
    for name in ("one.example", "two.example"):
        client = await dial(broker.port, trusting(authority), name=name)
        await client.send(b"CONNECT {}\r\nPING\r\n")
        assert b"PONG" not in await client.rest()
    context = authority.client_context(authority.client())
    context.check_hostname = False
    client = await dial(broker.port, context, name="two.example")
    await client.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
    await client.flush()
    client.close()


@pytest.mark.kinds("gnatswarm-2-as-2.15")
async def test_they_are_those_of_the_port_and_a_reload_reads_them_again(start_broker, authority):
    one, two = of_names(authority, "one", "one.example"), of_names(authority, "two", "two.example")
    broker = start_broker(
        config=f"tls {{ {one.lines} }}\nwebsocket {{\n host: {HOST}\n port: -1\n tls {{ {certs(one, two)} }}\n}}"
    )
    context = trusting(authority)
    assert await shown(broker.port, context, "two.example") == "one"
    websocket_port(broker)
    text = broker.config.replace(f"tls {{ {one.lines} }}\nwebsocket", f"tls {{ {certs(one, two)} }}\nwebsocket")
    (broker.directory / "broker.conf").write_text(text)
    start = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    broker.log.wait_line("Reloaded server configuration", start=start)
    assert await shown(broker.port, context, "two.example") == "two"
    other = of_names(authority, "other", "two.example")
    two.cert.write_bytes(other.cert.read_bytes())
    two.key.write_bytes(other.key.read_bytes())
    start = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    broker.log.wait_line("Reloaded server configuration", start=start)
    assert await shown(broker.port, context, "two.example") == "other"
