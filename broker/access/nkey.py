"""Nkeys: public keys of users ("U…") and accounts ("A…") in text form, and checking of signatures.

A public key is base32 of one type byte, 32 bytes of Ed25519 key and a CRC-16 of both (source: nats.io/nkeys). The
signature library is imported at the first check, so that a broker without nkeys does not load it.
"""

from __future__ import annotations

import base64
import binascii
import os

_ACCOUNT, _USER = 0 << 3, 20 << 3  # 'A', 'U'
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
# As in nats-server, whose nonces have 11 random bytes: enough for no nonce to repeat.
_NONCE_BYTES = 11


def user_key(text: str) -> bytes | None:
    """The 32 bytes of a user's public key; None: the text is not one."""
    return _public_key(text, _USER)


def is_account_key(text: str) -> bool:
    """Whether this is an account's public key."""
    return _public_key(text, _ACCOUNT) is not None


def _public_key(text: str, kind: int) -> bytes | None:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return None
    if len(raw) != 1 + _KEY_BYTES + 2 or raw[0] != kind:
        return None
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    return raw[1:-2]


def new_nonce() -> bytes:
    """A new nonce for a client to sign: different for each connection."""
    return base64.urlsafe_b64encode(os.urandom(_NONCE_BYTES)).rstrip(b"=")


def _signature(text: str) -> bytes | None:
    """A signature in URL-safe base64 without padding or, as nats-server also accepts, in ordinary base64 with it.

    Line ends within count for nothing, as in Go.
    """
    text = text.replace("\r", "").replace("\n", "")
    is_ordinary = any(letter in text for letter in "=+/")
    if not is_ordinary:
        text += "=" * (-len(text) % 4)
    try:
        raw = base64.b64decode(text, altchars=None if is_ordinary else b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == _SIGNATURE_BYTES else None


def is_signed_by(key: bytes, nonce: bytes, signature: str) -> bool:
    """Whether `signature`, as in CONNECT, is a signature of `nonce` by this key."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    raw = _signature(signature)
    if raw is None:
        return False
    try:
        VerifyKey(key).verify(nonce, raw)
    except BadSignatureError:
        return False
    return True
