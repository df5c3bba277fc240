"""Two parts of certificates are found where another library finds them, and broken bytes are refused."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from gnatswarm.broker.access.certificate_parts import dns_names, is_forgeable, key_kind, public_key_digest
from tests.support.authority import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert.read_text())


def test_the_public_key_is_that_of_another_library(authority: Authority) -> None:
    names = [x509.DNSName("x" * 60 + f".{number}") for number in range(40)]  # long fields before and after it
    for pair in (authority.client(), authority.client("CN=" + "y" * 60, *names)):
        assert public_key_digest(der(pair)) == pair.pin


def test_a_signature_by_sha1_is_forgeable(authority: Authority) -> None:
    pair = authority.client()
    assert not is_forgeable(der(pair))
    assert is_forgeable(der(authority.by_sha1(pair)))
    assert public_key_digest(der(authority.by_sha1(pair))) == pair.pin


def test_bytes_that_are_no_certificate_are_refused(authority: Authority) -> None:
    whole = der(authority.client())
    for size in range(len(whole) - 1):
        with pytest.raises(ValueError, match="certificate"):
            public_key_digest(whole[:size])
        with pytest.raises(ValueError, match="certificate"):
            is_forgeable(whole[:size])
    with pytest.raises(ValueError, match="no certificate"):
        public_key_digest(b"\x31" + whole[1:])


def test_dns_names_and_the_kind_of_key_are_those_of_another_library(authority: Authority) -> None:
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = x509.DNSName("A.example"), address, x509.DNSName("*.b.example")
    assert dns_names(der(authority.client("CN=c", *names))) == ("a.example", "*.b.example")
    assert dns_names(der(authority.client("CN=c"))) == ()
    assert key_kind(der(authority.client())) == bytes.fromhex("2a8648ce3d0201")  # id-ecPublicKey
