"""Parts of an X.509 certificate, read from its DER bytes: public key, DNS names, the algorithm that signed it.

Python's ssl module shows none of them of an own certificate. Not a parser of certificates: OpenSSL has checked the
structure before, and whatever is not as expected is a ValueError. Pure.
"""

from __future__ import annotations

import hashlib

_SEQUENCE = 0x30
_OBJECT_IDENTIFIER = 0x06
_VERSION = 0xA0  # [0] EXPLICIT, absent in certificates of version 1
_EXTENSIONS = 0xA3
_OCTET_STRING = 0x04
_DNS_NAME = 0x82
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")

# Signatures for which somebody else's certificate can be forged, by the content of their object identifier (RFC 3279,
# RFC 5758). Go refuses them in certificates of clients, too.
_FORGEABLE = frozenset(
    bytes.fromhex(text)
    for text in (
        "2a864886f70d010102",  # md2WithRSAEncryption
        "2a864886f70d010103",  # md4WithRSAEncryption
        "2a864886f70d010104",  # md5WithRSAEncryption
        "2a864886f70d010105",  # sha1WithRSAEncryption
        "2b0e03021d",  # sha1WithRSA, of the OIW
        "2a8648ce380403",  # dsa-with-sha1
        "2b0e03021b",  # dsaWithSHA1, of the OIW
        "2a8648ce3d0401",  # ecdsa-with-SHA1
    )
)


def public_key_digest(certificate: bytes) -> str:
    """SHA-256 of the certificate's SubjectPublicKeyInfo, in lower-case hexadecimal: what `pinned_certs` lists."""
    return hashlib.sha256(_from_key_on(certificate).take(_SEQUENCE, with_head=True)).hexdigest()


def key_kind(certificate: bytes) -> bytes:
    """The kind of its public key, RSA, elliptic curve or another: the content of the algorithm's object identifier."""
    key = _Fields(_from_key_on(certificate).take(_SEQUENCE))
    return _Fields(key.take(_SEQUENCE)).take(_OBJECT_IDENTIFIER)


def dns_names(certificate: bytes) -> tuple[str, ...]:
    """The DNS names among its alternative names, in lower case; the subject's common name is none of them."""
    rest = _from_key_on(certificate)
    rest.take(_SEQUENCE)
    while not rest.is_over:
        if not rest.next_is(_EXTENSIONS):
            rest.take()
            continue
        extensions = _Fields(_Fields(rest.take()).take(_SEQUENCE))
        while not extensions.is_over:
            extension = _Fields(extensions.take(_SEQUENCE))
            if extension.take(_OBJECT_IDENTIFIER) != _ALTERNATIVE_NAMES:
                continue
            while not extension.next_is(_OCTET_STRING):  # (whether it is critical)
                extension.take()
            names, found = _Fields(_Fields(extension.take()).take(_SEQUENCE)), []
            while not names.is_over:
                is_dns = names.next_is(_DNS_NAME)
                name = names.take()
                if is_dns:
                    found.append(name.decode("ascii", "replace").lower())
            return tuple(found)
    return ()


def _from_key_on(certificate: bytes) -> _Fields:
    """The fields from its public key on."""
    outer = _Fields(_Fields(certificate).take(_SEQUENCE))
    inner = _Fields(outer.take(_SEQUENCE))
    if inner.next_is(_VERSION):
        inner.take()
    for _ in range(5):  # serial number, signature algorithm, issuer, validity, subject
        inner.take()
    return inner


def is_forgeable(certificate: bytes) -> bool:
    """Whether it is signed by means of MD5, SHA-1 or the like."""
    outer = _Fields(_Fields(certificate).take(_SEQUENCE))
    outer.take(_SEQUENCE)
    algorithm = _Fields(outer.take(_SEQUENCE)).take(_OBJECT_IDENTIFIER)
    return algorithm in _FORGEABLE


class _Fields:
    """The fields of one constructed value, taken in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def next_is(self, tag: int) -> bool:
        return self._at < len(self._data) and self._data[self._at] == tag

    def take(self, tag: int | None = None, *, with_head: bool = False) -> bytes:
        """The next field's content; `with_head`: with tag and length. ValueError: it is cut short or another one."""
        begin, data = self._at, self._data
        if len(data) < begin + 2 or (tag is not None and data[begin] != tag):
            raise ValueError("this is no certificate")
        size, content = data[begin + 1], begin + 2
        if size & 0x80:  # the number of bytes of the length
            length = data[content : content + (size & 0x7F)]
            size, content = int.from_bytes(length, "big"), content + len(length)
        if content + size > len(data):
            raise ValueError("this certificate is cut short")
        self._at = content + size
        return data[begin if with_head else content : self._at]
