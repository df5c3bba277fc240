"""A client's credentials: user and password, token, nkey, JWT with its key, or none.

Reads URLs and files, opens no sockets. Signing needs PyNaCl, which is imported only then.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 4222
_SEED = 18 << 3  # S


class BadCredentials(Exception):
    """The credentials cannot be used; the text says why."""


@dataclass(frozen=True)
class Address:
    """A server's address, and whether the URL requires TLS."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Credentials:
    """Credentials for CONNECT; all empty: an anonymous client."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey_seed: str = ""  # SU…; signs the server's nonce
    jwt: str = ""  # with nkey_seed

    @classmethod
    def from_file(cls, path: str) -> Credentials:
        """The credentials in a .creds file (JWT and seed between marker lines), or in a file with a bare seed."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise BadCredentials(f"{path}: cannot be read: {error}") from None
        found = re.findall(r"-----BEGIN [^\n]*-----\s*(\S+)\s*-+END [^\n]*", text)
        if len(found) == 2:
            return cls(jwt=found[0], nkey_seed=found[1])
        seed = re.search(r"(?m)^\s*(S[A-Z2-7]{57})\s*$", text)
        if not found and seed:
            return cls(nkey_seed=seed[1])
        raise BadCredentials(f"{path}: neither a .creds file nor a seed")

    def connect_keys(self, nonce: str) -> dict[str, str]:
        """The keys of CONNECT that log this client in; `nonce` is that of INFO, "" if there was none."""
        keys = {"user": self.user, "pass": self.password, "auth_token": self.token, "jwt": self.jwt}
        if self.nkey_seed and nonce:
            public, signature = _signed(self.nkey_seed, nonce)
            keys["sig"] = signature
            if not self.jwt:  # a JWT contains the key
                keys["nkey"] = public
        return {key: value for key, value in keys.items() if value}


ANONYMOUS = Credentials()


def _signed(seed: str, nonce: str) -> tuple[str, str]:
    """(public key, signature): a seed is 'S' and the kind of key in 10 bits, 32 bytes, CRC-16; all in base32."""
    try:
        from nacl.signing import SigningKey
    except ImportError:
        raise BadCredentials("signing in with an nkey needs the package PyNaCl (pip install PyNaCl)") from None
    try:
        raw = base64.b32decode(seed.strip() + "=" * (-len(seed.strip()) % 8))
    except ValueError:
        raise BadCredentials("the nkey seed cannot be used: it is not base32") from None
    body, checksum = raw[:-2], raw[-2:]
    if len(raw) != 36 or raw[0] & 0xF8 != _SEED or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum:
        raise BadCredentials("the nkey seed cannot be used: it is damaged, or no seed")
    key = SigningKey(body[2:])
    public = bytes([(raw[0] & 7) << 5 | raw[1] >> 3]) + key.verify_key.encode()
    public += binascii.crc_hqx(public, 0).to_bytes(2, "little")
    signature = base64.urlsafe_b64encode(key.sign(nonce.encode()).signature).rstrip(b"=").decode()
    return base64.b32encode(public).rstrip(b"=").decode(), signature


def parse_url(url: str) -> tuple[Address, Credentials]:
    """`[nats://|tls://][user:password@|token@]host[:port]`; ValueError with the reason if it is invalid."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if parts.scheme not in ("nats", "tls"):
        raise ValueError(f"{url}: a NATS address begins with nats:// or tls://")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError(f"{url}: the port is no number from 1 to 65535") from None
    if not parts.hostname:
        raise ValueError(f"{url}: no host")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user and parts.password is None:
        return Address(parts.hostname, port, parts.scheme == "tls"), Credentials(token=user)
    return Address(parts.hostname, port, parts.scheme == "tls"), Credentials(user=user, password=password)
