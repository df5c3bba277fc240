"""Nkey seeds and .creds files: what a broker has to have to log in to another server.

A seed is base32 of two bytes that say its kind, 32 bytes of Ed25519 seed and a CRC-16 (source: nats.io/nkeys). The
router checks them when it reads the configuration; `shards.gateway.credentials` signs with them.
"""

from __future__ import annotations

import base64
import binascii
import os

from gnatswarm.shards.boundary.file_kind import other_kind

MOST_CREDENTIALS_BYTES = 1 << 20  # of a .creds file
_SEED_BYTES = 2 + 32 + 2
_SEED = 18 << 3  # 'S'
PUBLIC_USER = 20 << 3  # 'U'


def seed_bytes(text: str) -> bytes | None:
    """The 32 bytes of a user's seed ("SU…"); None: the text is none."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return None
    if len(raw) != _SEED_BYTES or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    # Two bytes hold the five bits of "S" and the eight of the kind of key.
    kind = ((raw[0] & 7) << 5) | (raw[1] >> 3)
    return raw[2:-2] if raw[0] & 0xF8 == _SEED and kind == PUBLIC_USER else None


def read_creds(text: str) -> tuple[str, str] | None:
    """(JWT, seed) of a .creds file; None: it is none."""
    found = []
    for what in ("USER JWT", "USER NKEY SEED"):
        part = _between(text, what)
        if not part:
            return None
        found.append(part)
    return (found[0], found[1]) if seed_bytes(found[1]) is not None else None


def creds_now(path: str) -> tuple[str, str] | None:
    """The same of the file at this path; None: it cannot be read, or is just being written. It may block."""
    try:
        if other_kind(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return read_creds(file.read(MOST_CREDENTIALS_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None


def _between(text: str, what: str) -> str:
    """The line after a "BEGIN … what" line."""
    lines = [one.strip() for one in text.splitlines()]
    for number, one in enumerate(lines):
        if one.startswith("---") and "BEGIN" in one and what in one:
            return next((rest for rest in lines[number + 1 :] if rest), "")
    return ""
