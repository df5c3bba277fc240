"""How this broker logs in to another server: user and password, an nkey's seed, or a .creds file's JWT and seed.

The signature library is imported when the first nonce is signed.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from gnatswarm.shards.boundary.seeds import PUBLIC_USER, seed_bytes


def public_key(seed: bytes) -> str:
    """The user's public key in text form, "U…"."""
    from nacl.signing import SigningKey

    raw = bytes([PUBLIC_USER]) + bytes(SigningKey(seed).verify_key)
    raw += binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw).decode().rstrip("=")


def signature(seed: bytes, nonce: bytes) -> str:
    """The nonce's signature as CONNECT has it: URL-safe base64 without padding."""
    from nacl.signing import SigningKey

    return base64.urlsafe_b64encode(SigningKey(seed).sign(nonce).signature).decode().rstrip("=")


def log_in(*, user: str, password: str, jwt: str, seed: str, nonce: str) -> dict[str, Any]:
    """The keys of CONNECT that log in: by JWT, else by seed, else by user and password."""
    raw = seed_bytes(seed) if seed else None
    if raw is not None:
        signed = {"sig": signature(raw, nonce.encode())}
        return {"jwt": jwt, **signed} if jwt else {"nkey": public_key(raw), **signed}
    if not user:
        return {}
    return {"user": user, "pass": password} if password else {"user": user, "auth_token": user}
