"""Certificates: from the options of one port to the ssl context that its connections are made with.

The router reads the files, once for each start and reload, and hands over what was in them: a file that is wrong stops
the start and changes nothing in a running broker, and one that is replaced meanwhile is the next reload's, for every
shard, also for one that is started again. Sessions are not resumed: the next connection meets
another shard, which has other keys. Imported only where TLS is configured.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import TYPE_CHECKING

import msgspec

from broker import ciphers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.options import Tls

# A file of certificates that is longer is something else: the largest bundle of all public authorities has 230 KB.
MOST_FILE_BYTES = 2**20

_PAIR = "error parsing X509 certificate/key pair"
_AUTHORITY = "error parsing root ca certificate"
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class CertificateError(Exception):
    """Files or names that make no context; the text is for the operator."""


def with_files(tls: Tls) -> Tls:
    """The same, with what its files hold now. CertificateError."""
    found = {"cert_pem": _read(tls.cert_file, _PAIR), "key_pem": _read(tls.key_file, _PAIR)}
    if tls.asks_for_certificate and tls.ca_file:
        found["ca_pem"] = _read(tls.ca_file, _AUTHORITY)
    return msgspec.structs.replace(tls, **found)


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{what}: open {path}: {(error.strerror or '').lower()}") from None
    if len(data) > MOST_FILE_BYTES:
        raise CertificateError(f"{what}: {path} has more than {MOST_FILE_BYTES} bytes")
    if not data:
        raise CertificateError(f"{what}: {path} is empty")
    return data


@contextlib.contextmanager
def _as_file(data: bytes, path: str) -> Iterator[str]:
    """A path under which OpenSSL reads these bytes, which never come to a disk; without any, the file's own."""
    if not data:
        yield path
        return
    fd = os.memfd_create("gnatswarm-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def server_context(tls: Tls) -> ssl.SSLContext:
    """What connections of a port with these options are wrapped in. CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    # A client that shakes hands again and again in TLS 1.2 would have us do the dear half of it each time.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        with _as_file(tls.cert_pem, tls.cert_file) as cert, _as_file(tls.key_pem, tls.key_file) as key:
            context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{_PAIR}: {_text(error, tls)}") from None
    if tls.asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            if tls.ca_file:
                with _as_file(tls.ca_pem, tls.ca_file) as authorities:
                    context.load_verify_locations(authorities)
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except OSError as error:
            raise CertificateError(f"{_AUTHORITY}: {_text(error, tls, tls.ca_file)}") from None
    if tls.cipher_suites:
        names = [ciphers.TLS_1_2[name] for name in tls.cipher_suites if name in ciphers.TLS_1_2]
        if names:
            try:
                context.set_ciphers(":".join(names))
            except ssl.SSLError:
                raise CertificateError(f"OpenSSL here has none of {', '.join(tls.cipher_suites)}") from None
        else:  # of TLS 1.3 alone
            context.minimum_version = ssl.TLSVersion.TLSv1_3
    for curve in tls.curve_preferences:
        context.set_ecdh_curve(ciphers.CURVES[curve])
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted with a password, which nobody could type here")


def _text(error: Exception, tls: Tls, path: str = "") -> str:
    if isinstance(error, ssl.SSLError):
        words = (error.reason or "").replace("_", " ").lower()
        return f"{path or f'{tls.cert_file}, {tls.key_file}'}: {words or error}"
    if isinstance(error, OSError) and error.errno:
        missing = path or next((name for name in (tls.cert_file, tls.key_file) if not _can_read(name)), tls.cert_file)
        return f"open {missing}: {(error.strerror or '').lower()}"
    return str(error)


def _can_read(path: str) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False
