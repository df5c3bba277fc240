"""A certificate authority for one test: files in a directory, valid for an hour, or expired if the test wants that."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import itertools
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)
_ATTRIBUTES = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME}
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both PEM."""

    cert: Path
    key: Path

    @property
    def pin(self) -> str:
        """What `pinned_certs` lists for it: SHA-256 of its SubjectPublicKeyInfo, in hexadecimal."""
        public = x509.load_pem_x509_certificate(self.cert.read_bytes()).public_key()
        info = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(info).hexdigest()

    @property
    def lines(self) -> str:
        """The keys of a `tls` block with these files."""
        return f'cert_file: "{self.cert}", key_file: "{self.key}"'


class Authority:
    """One authority; `path` is its own certificate."""

    _numbers = itertools.count()

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {next(self._numbers)}")])
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
            (_SIGNS_CERTIFICATES, True),
        ]
        cert = self._sign(self._name, self._key, extensions, datetime.datetime.now(datetime.UTC) + HOUR)
        self.path = self._write(cert.public_bytes(serialization.Encoding.PEM), f"authority-{next(self._numbers)}.pem")

    def server(
        self, password: bytes | None = None, subject: str = "CN=server", lasts: datetime.timedelta = HOUR
    ) -> Pair:
        """A certificate for the loopback address and localhost, valid for two hours until `lasts` from now."""
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), address])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return self._issue(subject, [(names, False), (usage, False)], lasts, password)

    def client(
        self,
        subject: str = "CN=client",
        *names: x509.GeneralName,
        lasts: datetime.timedelta = HOUR,
        is_server: bool = False,
    ) -> Pair:
        """A certificate for a client with these alternative names. `lasts` below 0: it expired so long ago."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH]
        extensions: list[tuple[x509.ExtensionType, bool]] = [(x509.ExtendedKeyUsage(usages), False)]
        if names:
            extensions.append((x509.SubjectAlternativeName(names), False))
        return self._issue(subject, extensions, lasts, None)

    def member(self, *names: x509.GeneralName) -> Pair:
        """A certificate for the loopback address of a cluster's member, which is server and client; or these names."""
        found = x509.SubjectAlternativeName(names or [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        return self._issue("CN=member", [(found, False), (usage, False)], HOUR, None)

    def by_sha1(self, pair: Pair) -> Pair:
        """The same certificate, signed by means of SHA-1. By OpenSSL's command: the library signs so no more."""
        number = next(self._numbers)
        cert = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        builder = x509.CertificateSigningRequestBuilder().subject_name(cert.subject)
        for extension in cert.extensions:
            if not isinstance(extension.value, x509.AuthorityKeyIdentifier):
                builder = builder.add_extension(extension.value, extension.critical)
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        request = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        own = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = self._directory / f"{number}.pem"
        by: list[str | Path] = [
            "-CA",
            self.path,
            "-CAkey",
            self._write(own, f"authority-{number}.key"),
            "-CAcreateserial",
        ]
        command = ["openssl", "x509", "-req", "-sha1", "-days", "1", "-copy_extensions", "copyall", *by]
        subprocess.run([*command, "-out", signed], input=request, check=True, stderr=subprocess.DEVNULL)
        return Pair(signed, pair.key)

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority and may have a certificate."""
        context = ssl.create_default_context(cafile=str(self.path))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context

    def _issue(
        self,
        subject: str,
        extensions: list[tuple[x509.ExtensionType, bool]],
        lasts: datetime.timedelta,
        password: bytes | None,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [part.split("=", 1) for part in subject.split(",")] if subject else []
        name = x509.Name([x509.NameAttribute(_ATTRIBUTES[kind], value) for kind, value in attributes])
        cert = self._sign(name, key, extensions, datetime.datetime.now(datetime.UTC) + lasts)
        number = next(self._numbers)
        locked: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            locked = serialization.BestAvailableEncryption(password)
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        return Pair(
            self._write(cert.public_bytes(serialization.Encoding.PEM), f"{number}.pem"),
            self._write(pem, f"{number}.key"),
        )

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
        until: datetime.datetime,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 2 * HOUR)
            .not_valid_after(until)
        )
        # Python 3.13 requires the authority key identifier.
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension, is_critical in [*extensions, (known, False)]:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, data: bytes, name: str) -> Path:
        path = self._directory / name
        path.write_bytes(data)
        return path
