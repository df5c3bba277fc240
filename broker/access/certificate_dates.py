"""From when until when an X.509 certificate is valid, read from its DER bytes (RFC 5280, 4.1). Pure.

The standard library shows these dates only of a peer's certificate. Reads five elements and skips the rest; checks no
signature.
"""

from __future__ import annotations

import datetime

_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0


def validity_of(der: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """The dates notBefore and notAfter, both in UTC. ValueError for bytes that are no certificate."""
    certificate, _ = _element(der, 0, _SEQUENCE)
    signed, _ = _element(certificate, 0, _SEQUENCE)
    at = _element(signed, 0, _VERSION)[1] if signed[:1] == bytes([_VERSION]) else 0
    _, at = _element(signed, at, _INTEGER)  # serial number
    _, at = _element(signed, at, _SEQUENCE)  # signature algorithm
    _, at = _element(signed, at, _SEQUENCE)  # issuer
    dates, _ = _element(signed, at, _SEQUENCE)
    begin, at = _time(dates, 0)
    end, _ = _time(dates, at)
    return begin, end


def _element(data: bytes, at: int, *tags: int) -> tuple[bytes, int]:
    """The content of the element that begins at `at`, and where the next one begins."""
    if at + 2 > len(data) or data[at] not in tags:
        raise ValueError("not an X.509 certificate")
    size, start = data[at + 1], at + 2
    if size >= 0x80:
        digits = size & 0x7F
        if not 1 <= digits <= 4:
            raise ValueError("not an X.509 certificate")
        size, start = int.from_bytes(data[start : start + digits], "big"), start + digits
    if start + size > len(data):
        raise ValueError("an X.509 certificate that is cut off")
    return data[start : start + size], start + size


def _time(data: bytes, at: int) -> tuple[datetime.datetime, int]:
    """A time in one of its two forms: with a year of two digits, 1950 to 2049, or of four."""
    raw, after = _element(data, at, _UTC_TIME, _GENERALIZED_TIME)
    text = raw.decode("ascii")
    if data[at] == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC), after
