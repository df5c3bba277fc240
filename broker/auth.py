"""Who may connect: the rules of one configuration, applied to one CONNECT. No sockets, no time.

A client is never told why it was refused. Every comparison takes as long for a wrong secret as for a right one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TYPE_CHECKING

from broker.errors import AuthorizationViolation

if TYPE_CHECKING:
    from broker.connect import ConnectOptions
    from broker.options import Options


# What a client gave at its log-in must be checked again when the rules change. Kept is not the secret, but its
# keyed digest; the key is this process's alone.
_PROOF_KEY = os.urandom(32)


def _digest(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), key=_PROOF_KEY, digest_size=32).digest()


def proof_of(connect: ConnectOptions) -> bytes:
    """What proves the secret in a CONNECT later, without the secret; b"" where it gave none."""
    secret = connect.auth_token or connect.password
    return _digest(secret) if secret else b""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode("utf-8", "surrogatepass"))


class Authenticator:
    """The log-in rules of one configuration: nobody asked, one token, one user, or several users."""

    def __init__(self, options: Options) -> None:
        self._token = options.auth_token
        self._passwords = {user.name: user.password for user in options.users}
        if options.auth_user:
            self._passwords[options.auth_user] = options.auth_password
        self._no_auth_user = options.no_auth_user
        self.is_required = bool(self._token or self._passwords)

    @property
    def asks_before_connect(self) -> bool:
        """Must the first operation be CONNECT? Not where clients without credentials are let in as somebody."""
        return self.is_required and not self._no_auth_user

    def user_of(self, connect: ConnectOptions) -> str:
        """Who the client is; "" for nobody in particular. AuthorizationViolation: it may not come in."""
        if not self.is_required:
            return ""
        if self._token:
            if not _same(connect.auth_token, self._token):
                raise AuthorizationViolation
            return ""
        if not connect.user and self._no_auth_user:
            return self._no_auth_user
        # An unknown user costs the same comparison as a known one.
        wanted = self._passwords.get(connect.user)
        good = _same(connect.password, wanted if wanted is not None else connect.password + "?")
        if wanted is None or not good:
            raise AuthorizationViolation
        return connect.user

    def still_admits(self, user: str, proof: bytes) -> bool:
        """Would a client that logged in as `user` with the secret behind `proof` be let in by these rules?"""
        if not self.is_required:
            return True
        if self._token:
            return hmac.compare_digest(proof, _digest(self._token))
        if not user and self._no_auth_user:
            return True
        wanted = self._passwords.get(user)
        return wanted is not None and hmac.compare_digest(proof, _digest(wanted) if wanted else b"")
