"""Certificates as the router reads them, and as shards use them: by their bytes, whatever the files are by then."""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import ssl
import threading
from pathlib import Path

import msgspec
import pytest

from gnatswarm.broker.access.certificate_dates import validity_of
from gnatswarm.broker.options import ClientTls, LeafNodes, LeafRemote, Options, Tls
from gnatswarm.router.commands import config_get
from gnatswarm.router.config.reload import diff
from gnatswarm.shards.boundary import certificates
from gnatswarm.shards.boundary.certificates import (
    CertificateError,
    UnusedAuthorities,
    client_context,
    server_context,
    validity,
    with_client_files,
    with_files,
)
from tests.support.authority import Authority


@pytest.fixture
def tls(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.server()
    return Tls(cert_file=str(pair.cert), key_file=str(pair.key), ca_file=str(authority.path), verify=True)


def test_what_was_read_is_used_whatever_the_files_are_by_then(tls):
    read = with_files(tls)
    for path in (tls.cert_file, tls.key_file, tls.ca_file):
        with open(path, "wb") as file:
            file.write(b"garbage")
    with pytest.raises(CertificateError):
        server_context(tls)
    context = server_context(msgspec.msgpack.decode(msgspec.msgpack.encode(read), type=Tls))
    assert context.verify_mode is ssl.CERT_REQUIRED and context.cert_store_stats()["x509_ca"] == 1


def test_neither_log_nor_repr_shows_what_is_in_them(tls):
    read = with_files(tls)
    assert "PRIVATE" not in repr(read) and "PRIVATE" not in repr(Options(tls=read))
    changed = msgspec.structs.replace(read, key_pem=b"-----BEGIN PRIVATE KEY-----other", cert_pem=b"x")
    lines = [str(change) for change in diff(Options(tls=read), Options(tls=changed)).live]
    assert lines == ["tls.cert_pem changed", "tls.key_pem changed"]


@pytest.fixture
def own(tls):
    """TLS of a remote with the same files."""
    return ClientTls(is_on=True, cert_file=tls.cert_file, key_file=tls.key_file, ca_file=tls.ca_file)


def test_another_server_is_connected_to_with_what_was_read(own):
    read = with_client_files(own)
    for path in (own.cert_file, own.key_file, own.ca_file):
        os.unlink(path)
    with pytest.raises(CertificateError, match="no such file"):
        client_context(own, is_insecure=False)
    context = client_context(msgspec.msgpack.decode(msgspec.msgpack.encode(read), type=ClientTls), is_insecure=False)
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert context.cert_store_stats()["x509_ca"] == 1
    assert client_context(read, is_insecure=True).verify_mode is ssl.CERT_NONE
    assert with_client_files(ClientTls(is_on=True)) == ClientTls(is_on=True)


def agrees(client: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Whether a handshake between them succeeds, without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return False
    return all(end.cipher() is not None for end in ends)


def test_who_is_in_ca_file_is_trusted_though_another_authority_has_signed_it(tls, tmp_path):
    """As by nats-server: of a chain it may have an intermediate authority, or the server alone."""
    port = server_context(Tls(cert_file=tls.cert_file, key_file=tls.key_file))
    assert agrees(client_context(ClientTls(ca_file=tls.cert_file), is_insecure=False), port)
    other = Authority(tmp_path).server()
    assert not agrees(client_context(ClientTls(ca_file=str(other.cert)), is_insecure=False), port)


@pytest.mark.parametrize("of", [ClientTls, Tls], ids=["a remote's", "a cluster's"])
def test_restrictions_hold_for_who_dials_too(tls, of):
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "ca_file": tls.ca_file}
    port = Tls(cert_file=tls.cert_file, key_file=tls.key_file, curve_preferences=("CurveP384",))
    for curve, fits in (("CurveP384", True), ("CurveP256", False)):
        dialling = client_context(of(**files, curve_preferences=(curve,)), is_insecure=False)
        assert agrees(dialling, server_context(port)) is fits
    assert client_context(of(**files, min_version="1.3"), is_insecure=False).minimum_version is ssl.TLSVersion.TLSv1_3
    suites = ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)
    old = [
        cipher["name"]
        for cipher in client_context(of(**files, cipher_suites=suites), is_insecure=False).get_ciphers()
        if cipher["protocol"] != "TLSv1.3"
    ]
    assert old == ["ECDHE-ECDSA-AES128-GCM-SHA256"]


@pytest.mark.parametrize("field", ["cert_file", "key_file", "ca_file"])
def test_files_for_another_server_that_are_none_are_named(own, field, tmp_path):
    other = msgspec.structs.replace(own, **{field: str(tmp_path / "other")})
    with pytest.raises(CertificateError, match="other: no such file"):
        with_client_files(other)
    (tmp_path / "other").write_bytes(b"half")
    with pytest.raises(
        CertificateError, match="root ca certificate: .*other" if field == "ca_file" else "other has no"
    ):
        client_context(with_client_files(other), is_insecure=False)


def test_nothing_shows_what_is_in_files_for_another_server(own):
    options = [
        Options(leafnodes=LeafNodes(remotes=(LeafRemote(("nats://h",), tls=tls),)))
        for tls in (with_client_files(own), own)
    ]
    assert "-----" not in repr(options[0])
    assert [str(change) for change in diff(*options).live] == ["leafnodes.remotes changed"]
    shown = config_get.shown(config_get.values(options[0], ["leafnodes"]), as_json=True)
    assert '"cert_pem": "…", "key_pem": "…", "ca_pem": "…"' in shown
    assert options[0].leafnodes.remotes[0].apart_from_files == options[1].leafnodes.remotes[0]


@pytest.mark.parametrize("field", ["cert_file", "key_file", "ca_file"])
def test_a_named_pipe_is_no_file_whoever_writes_to_it(tls, field, tmp_path):
    """With a writer that keeps it open the start and `-t` waited for ever."""
    for path, kind in ((tmp_path, "a directory"), ("/dev/null", "a character device, not a file")):
        with pytest.raises(CertificateError, match=f"{path} is {kind}"):
            with_files(msgspec.structs.replace(tls, **{field: str(path)}))
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    writer = os.open(pipe, os.O_RDWR)
    for path in (pipe, link):
        with pytest.raises(CertificateError, match=rf"{path} is a FIFO \(named pipe\), not a file"):
            with_files(msgspec.structs.replace(tls, **{field: str(path)}))
    os.close(writer)


def test_a_pipe_that_nobody_writes_to_is_empty(tls):
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(CertificateError, match="is empty"):
        with_files(msgspec.structs.replace(tls, cert_file=f"/dev/fd/{read_end}"))
    os.close(read_end)


def test_a_pipe_is_read_until_its_writer_closes_it(tls):
    key = Path(tls.key_file).read_bytes()
    read_end, write_end = os.pipe()

    def write() -> None:
        for byte in key:
            os.write(write_end, bytes([byte]))
        os.close(write_end)

    writer = threading.Thread(target=write)
    writer.start()
    read = with_files(msgspec.structs.replace(tls, key_file=f"/dev/fd/{read_end}"))
    writer.join()
    os.close(read_end)
    assert read.key_pem == key


@pytest.mark.parametrize("field", ["cert_file", "key_file", "ca_file"])
def test_files_that_are_none_are_named(tls, field, tmp_path, monkeypatch):
    path = tmp_path / "other"
    other = msgspec.structs.replace(tls, **{field: str(path)})
    with pytest.raises(CertificateError, match="other: no such file"):
        with_files(other)
    path.write_bytes(b"")
    with pytest.raises(CertificateError, match="other is empty"):
        with_files(other)
    monkeypatch.setattr(certificates, "MOST_FILE_BYTES", 10)
    path.write_bytes(b"x" * 11)
    with pytest.raises(CertificateError, match="more than 10 bytes"):
        with_files(msgspec.structs.replace(other, cert_file=str(path)))


@pytest.mark.parametrize("text", [b"", b"text", b"-----BEGIN CERTIFICATE-----\nMIIB"])
def test_a_file_without_authorities_is_refused_by_who_checks_nobody_as_on_nats_server(tls, tmp_path, text):
    (tmp_path / "other").write_bytes(text)
    lax = msgspec.structs.replace(tls, verify=False)
    assert with_files(lax).ca_pem == b""
    with pytest.raises(UnusedAuthorities, match=r"error parsing root ca certificate: .*other"):
        with_files(msgspec.structs.replace(lax, ca_file=str(tmp_path / "other")))


@pytest.mark.parametrize("field", ["cert_file", "key_file"])
def test_the_file_of_a_pair_that_cannot_be_opened_is_named(tls, field, tmp_path):
    path = tmp_path / "missing"
    with pytest.raises(CertificateError, match=f"open {path}: no such file"):
        server_context(msgspec.structs.replace(tls, **{field: str(path)}))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            lambda tls, _other: (tls.key_file, tls.cert_file),
            "swapped: cert_file .* is a private key, key_file .* a cert",
        ),
        (lambda tls, _other: (tls.key_file, tls.key_file), "has no certificate in PEM"),
        (lambda tls, _other: (tls.cert_file, tls.cert_file), "has no private key in PEM"),
        (lambda tls, other: (tls.cert_file, str(other.key)), "the key in .* is not that of the certificate in"),
    ],
    ids=["swapped", "two keys", "two certificates", "another key"],
)
def test_what_is_wrong_with_a_pair_is_said_in_words(tls, tmp_path, files, words):
    cert, key = files(tls, Authority(tmp_path).server())
    with pytest.raises(CertificateError, match=words) as raised:
        server_context(with_files(msgspec.structs.replace(tls, cert_file=cert, key_file=key)))
    assert "_ssl.c" not in str(raised.value)


def test_the_dates_of_a_certificate_are_those_that_are_in_it(tmp_path):
    from cryptography import x509

    for lasts in (datetime.timedelta(hours=1), datetime.timedelta(days=-3), datetime.timedelta(days=365 * 40)):
        pair = Authority(tmp_path).server(lasts=lasts)
        theirs = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        ours = validity(with_files(Tls(cert_file=str(pair.cert), key_file=str(pair.key))).pairs[0])
        naive = theirs.not_valid_before_utc, theirs.not_valid_after_utc
        assert ours == naive


def test_bytes_that_are_no_certificate_have_no_dates(tmp_path):
    good = base64.b64decode(b"".join(Authority(tmp_path).server().cert.read_bytes().splitlines()[1:-1]))
    assert validity_of(good)[0] < validity_of(good)[1]
    for at in range(0, 200):
        for bad in (good[:at], good[:at] + b"\xff" + good[at + 1 :]):
            with contextlib.suppress(ValueError):
                validity_of(bad)
    with pytest.raises(ValueError, match=r"X.509"):
        validity_of(b"")
