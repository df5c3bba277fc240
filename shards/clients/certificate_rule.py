"""Checks of clients' certificates that OpenSSL does not make: `pinned_certs`, and no signature with SHA-1.

One rule for each port with TLS, made at start and reload. The rule is applied after a
successful handshake. A port that needs no such check has no rule, and no cost.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import msgspec

from gnatswarm.broker.access.certificate_parts import is_forgeable, public_key_digest

if TYPE_CHECKING:
    from gnatswarm.broker.options import ClientTls, Tls

# From this security level on, OpenSSL itself refuses signatures with SHA-1.
_SAFE_LEVEL = 1


class CertificateRule(msgspec.Struct, frozen=True):
    """The rule of one port."""

    pins: frozenset[str] = frozenset()  # SHA-256 of public keys; empty: all keys are allowed
    looks_at_signatures: bool = False

    def objection(self, tls: ssl.SSLObject) -> str:
        """Why this client may not connect, in nats-server's words; "": it may."""
        try:
            if self.pins:
                own = tls.getpeercert(binary_form=True)
                if own is None or public_key_digest(own) not in self.pins:
                    return "certificate not pinned"
            # The signature of the authority itself does not matter: the operator named its file.
            if self.looks_at_signatures and any(is_forgeable(one) for one in _chain(tls)[:-1]):
                return "certificate signed by means of an insecure algorithm"
        except ValueError as error:
            return str(error)
        return ""


def certificate_rule(tls: Tls | ClientTls, context: ssl.SSLContext | None) -> CertificateRule | None:
    """The rule for a port, or another server, with these options; None: there is nothing to check."""
    if context is None:
        return None
    weak = context.verify_mode is ssl.CERT_REQUIRED and context.security_level < _SAFE_LEVEL
    return CertificateRule(frozenset(tls.pinned_certs), weak) if tls.pinned_certs or weak else None


def _chain(tls: ssl.SSLObject) -> list[bytes]:
    """The client's verified certificates, its own first, the authority's last."""
    found: Any
    if hasattr(tls, "get_verified_chain"):  # Python 3.13
        found = tls.get_verified_chain()
        return list(found)
    found = tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in found or ()]
