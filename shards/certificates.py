"""Certificates: from the options of one port to the ssl context that its connections are made with.

Read by a shard at its start and at every reload, and by the router before that, so that a file that is wrong stops the
start and changes nothing in a running broker. Sessions are not resumed: the next connection meets another shard, which
has other keys. Imported only where TLS is configured.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from broker import ciphers

if TYPE_CHECKING:
    from broker.options import Tls

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class CertificateError(Exception):
    """Files or names that make no context; the text is for the operator."""


def server_context(tls: Tls) -> ssl.SSLContext:
    """What connections of a port with these options are wrapped in. CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    # A client that shakes hands again and again in TLS 1.2 would have us do the dear half of it each time.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ValueError) as error:
        raise CertificateError(f"error parsing X509 certificate/key pair: {_text(error, tls)}") from None
    if tls.asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            if tls.ca_file:
                context.load_verify_locations(tls.ca_file)
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except OSError as error:
            raise CertificateError(f"error parsing root ca certificate: {_text(error, tls, tls.ca_file)}") from None
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
