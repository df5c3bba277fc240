"""Authentication: the log-in rules of one configuration, applied to one CONNECT. No sockets, no clock, no blocking.

A client is never told why it was refused. A comparison takes as long for a wrong secret as for a right one, and as long
for an unknown user as for a known one. Comparing with a bcrypt hash takes a tenth of a second, by design: the result is
then a HashedPassword, which the caller has compared elsewhere, and Verdicts keeps the results of that.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.access.nkey import is_signed_by
from gnatswarm.broker.access.password_hash import is_hashed
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.errors import AuthorizationViolation
from gnatswarm.broker.options import (
    GLOBAL_ACCOUNT,
    LEAFNODE,
    LEAFNODE_WS,
    STANDARD,
    WEBSOCKET,
    Permissions,
    User,
)

if TYPE_CHECKING:
    from gnatswarm.broker.access.connect import ClientOptions
    from gnatswarm.broker.options import Options

# A client's credentials must be checked again when the rules change. For that we keep not the secret but its keyed
# digest; the key is known only to this process, and to shards that took clients over from it.
_PROOF_KEY = os.urandom(32)

# The hash with which an unknown user's password is compared, for any bcrypt cost; no password matches it.
_NOBODYS_HASH = "$2b${:02d}$......................" + "." * 31

# Guesses: as many as are compared in some ten minutes.
MOST_WRONG = 8192
# One for each password of a connected client: a reload closes clients whose result is forgotten. Some 10 MB.
MOST_RIGHT = 65_536


def _digest(secret: str | bytes, key: bytes = _PROOF_KEY) -> bytes:
    data = secret if isinstance(secret, bytes) else secret.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=32).digest()


def _proof(secret: str) -> bytes:
    return _digest(secret) if secret else b""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode("utf-8", "surrogatepass"))


class Identity(msgspec.Struct, frozen=True):
    """A client's user, account and permissions."""

    user: str = ""  # as logs and pages show it; "": not a named user
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None


NOBODY = Identity()


class Admission(msgspec.Struct, frozen=True):
    """How a client was admitted: what readmit() needs, without the secret."""

    identity: Identity
    name: str = ""  # the user name or nkey in its CONNECT
    proof: bytes = b""  # keyed digest of the secret it gave; b"": none
    proof_key: bytes = _PROOF_KEY  # that key; another process's for a client that was taken over
    is_anonymous: bool = False  # it gave no credentials, and became the no_auth_user
    is_nkey: bool = False
    kind: str = STANDARD  # the type of its connection


class HashedPassword(msgspec.Struct, frozen=True):
    """A comparison with a bcrypt hash that is still to be made. Never show it: it contains the password."""

    admission: Admission  # if the password matches
    password: str
    hashed: str
    key: bytes  # for Verdicts
    is_known: bool = True  # False: there is no such user; compared only to take the same time

    def __repr__(self) -> str:
        return f"HashedPassword(of {self.admission.identity.user!r})"


class Verdicts:
    """Results of the latest comparisons with bcrypt hashes, by keyed digest; contains no secrets.

    Wrong passwords are kept apart: guesses push out other guesses, and no result that a connected client needs.
    """

    def __init__(self, most_right: int = MOST_RIGHT, most_wrong: int = MOST_WRONG) -> None:
        self._most = {True: most_right, False: most_wrong}
        self._known: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}

    @staticmethod
    def key(hashed: str, proof: bytes) -> bytes:
        """The key of the result for a secret and a hash; `proof` is the secret's digest."""
        return _digest(proof + hashed.encode())

    def get(self, key: bytes) -> bool | None:
        """The result; None: not known."""
        for verdict, keys in self._known.items():
            if key in keys:
                keys.move_to_end(key)
                return verdict
        return None

    def note(self, key: bytes, is_same: bool) -> None:
        """Keep the result of a comparison."""
        keys = self._known[is_same]
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) > self._most[is_same]:
            keys.popitem(last=False)


class Authenticator:
    """The log-in rules of one port: no authentication, one token, one user, or several users."""

    def __init__(self, options: Options, verdicts: Verdicts | None = None, *, users: UserIndex | None = None) -> None:
        """`users`: those of the options, if they are known already; shared, and not changed."""
        self._verdicts = verdicts if verdicts is not None else Verdicts()
        self._token = options.auth_token
        if options.auth_user:  # (and there are no others)
            users = UserIndex([User(options.auth_user, options.auth_password)])
        elif users is None:
            users = UserIndex(options.users)
        self._users, self._nkeys, self._keys = users.names, users.nkeys, users.keys
        self.is_required = bool(self._token or self._users or self._nkeys)
        # INFO has a nonce only where users with nkeys could sign it.
        self.wants_nonce = bool(self._nkeys)
        self._nobody = users.find(options.no_auth_user) if options.no_auth_user else None
        # Whether the system account's users alone have to log in. INFO asks for it all the same, as nats-server's does.
        self.has_guests = options.has_guests and self._nobody is None
        self._nobodys_hash = _NOBODYS_HASH.format(users.cost) if users.cost else ""
        self._kinds_with_passwords = _kinds_with_passwords(options) if options.users else frozenset()

    def anonymous(self, kind: str = STANDARD) -> Identity | None:
        """The identity of a client that has sent no CONNECT; None: it must log in first."""
        if not self.is_required or self.has_guests:
            return NOBODY
        return _identity(self._nobody) if self._nobody is not None and self._nobody.may_come_by(kind) else None

    def examine(self, connect: ClientOptions, nonce: bytes = b"", kind: str = STANDARD) -> Admission | HashedPassword:
        """How the client is admitted, or the comparison to make first. Raises AuthorizationViolation."""
        given = connect.auth_token or connect.password
        if not self.is_required:
            return Admission(NOBODY, connect.user, _proof(given), kind=kind)
        if self._token:
            admission = Admission(NOBODY, "", _proof(connect.auth_token), kind=kind)
            return self._compared(admission, connect.auth_token, self._token)
        if self._nkeys and connect.nkey:
            return self._signed(connect, nonce, kind)
        anonymous = self.anonymous(kind)
        if not connect.user and not given and anonymous is not None:
            return Admission(anonymous, is_anonymous=True, kind=kind)
        user = self._users.get(connect.user)
        if user is not None and not self._may_come(user, kind):
            user = None
        proof = _proof(connect.password)
        if user is None:
            # For an unknown user the same comparison is made, so that it takes as long.
            stranger = Admission(NOBODY, connect.user, proof)
            return self._compared(stranger, connect.password, self._nobodys_hash, is_known=False)
        if self._nobodys_hash and not is_hashed(user.password) and not _same(connect.password, user.password):
            # Beside users with hashes, a plain password is refused no faster than an unknown user's.
            stranger = Admission(NOBODY, user.name, proof)
            return self._compared(stranger, connect.password, self._nobodys_hash, is_known=False)
        return self._compared(Admission(_identity(user), user.name, proof, kind=kind), connect.password, user.password)

    def _compared(
        self, admission: Admission, given: str, wanted: str, *, is_known: bool = True
    ) -> Admission | HashedPassword:
        if not is_hashed(wanted):
            if not _same(given, wanted) or not is_known:
                raise AuthorizationViolation
            return admission
        # For a stranger the key has the name, too: another's result would answer at once, and so tell who is none.
        proof = admission.proof if is_known else _digest(admission.name) + admission.proof
        question = HashedPassword(admission, given, wanted, Verdicts.key(wanted, proof), is_known)
        verdict = self._verdicts.get(question.key)
        if verdict is None:
            return question
        if not verdict or not is_known:
            raise AuthorizationViolation
        return admission

    def _signed(self, connect: ClientOptions, nonce: bytes, kind: str) -> Admission:
        user = self._nkeys.get(connect.nkey)
        key = self._keys.get(connect.nkey)
        if user is None or key is None or not nonce or not is_signed_by(key, nonce, connect.sig):
            raise AuthorizationViolation
        if not user.may_come_by(kind):
            raise AuthorizationViolation
        return Admission(_identity(user), user.nkey, is_nkey=True, kind=kind)

    def admitted(self, question: HashedPassword) -> Identity | None:
        """The identity, under these rules, of a client whose password was found to match; None: it is refused.

        They may be others than those that led to the comparison. Who gave a user's password has given no token.
        """
        if not question.is_known or (self._token and question.admission.name):
            return None
        return self.readmit(question.admission)

    def readmit(self, admission: Admission) -> Identity | None:
        """The identity, under these rules, of a client admitted under earlier ones; None: it would be refused now.

        None also for a password that is now stored as another bcrypt hash: it cannot be compared again. Of one that was
        plain before see question_after().
        """
        if not self.is_required:
            return NOBODY
        if self._token:
            return NOBODY if self._proves(admission, self._token) else None
        if admission.is_nkey:
            nkey_user = self._nkeys.get(admission.name)
            return _identity(nkey_user) if nkey_user and nkey_user.may_come_by(admission.kind) else None
        if admission.is_anonymous or (not admission.name and not admission.proof):
            return self.anonymous(admission.kind)
        user = self._users.get(admission.name)
        if user is None or not self._may_come(user, admission.kind) or not self._proves(admission, user.password):
            return None
        return _identity(user)

    def _may_come(self, user: User, kind: str) -> bool:
        """Whether this user, who has a name, may log in by this type of connection with the right password.

        Where certificates select users, one without a password is known by its certificate, and not by its name alone.
        """
        needs_password = kind in self._kinds_with_passwords and user is not self._nobody
        return user.may_come_by(kind) and (bool(user.password) or not needs_password)

    def question_after(self, former: Authenticator, admission: Admission) -> HashedPassword | None:
        """What to compare before readmit() is asked again; None: nothing, its answer counts.

        A client's secret was plain in the former rules, which had admitted it with that one, and is a hash now.
        """
        if admission.is_nkey or admission.is_anonymous or bool(self._token) is not bool(former._token):
            return None
        wanted, before = self._secret_of(admission), former._secret_of(admission)
        if not is_hashed(wanted) or not before or is_hashed(before) or not former._proves(admission, before):
            return None
        key = Verdicts.key(wanted, admission.proof)
        return HashedPassword(admission, before, wanted, key) if self._verdicts.get(key) is None else None

    def _secret_of(self, admission: Admission) -> str:
        """The token or password that a client needs to be who it is; "": there is none."""
        user = self._users.get(admission.name)
        return self._token or (user.password if user is not None else "")

    def hash_of(self, admission: Admission) -> str:
        """The bcrypt hash that the secret of an admitted client was found to match; "": it was compared otherwise."""
        if admission.is_nkey or admission.is_anonymous or not self.is_required:
            return ""
        wanted = self._secret_of(admission)
        return wanted if is_hashed(wanted) and self._proves(admission, wanted) else ""

    def vouch(self, admission: Admission, hashed: str) -> None:
        """Another shard has found that this secret matches that bcrypt hash; here it is not compared again."""
        self._verdicts.note(Verdicts.key(hashed, admission.proof), True)

    def _proves(self, admission: Admission, wanted: str) -> bool:
        proof = admission.proof
        if is_hashed(wanted):
            return self._verdicts.get(Verdicts.key(wanted, proof)) is True
        return hmac.compare_digest(proof, _digest(wanted, admission.proof_key) if wanted else b"")


def _kinds_with_passwords(options: Options) -> frozenset[str]:
    """The types of connection whose certificates select no user, where those of others do (verify_and_map)."""
    leafnodes, by_websocket = options.leafnodes, options.websocket.tls.verify_and_map
    maps = {
        STANDARD: options.tls.verify_and_map,
        WEBSOCKET: by_websocket,
        LEAFNODE: leafnodes.tls.verify_and_map,
        LEAFNODE_WS: leafnodes.tls.verify_and_map or (by_websocket and not leafnodes.users),
    }
    return frozenset(kind for kind, is_mapped in maps.items() if not is_mapped) if any(maps.values()) else frozenset()


def for_websocket(options: Options) -> Options:
    """The options with the log-in rules of WebSocket clients, who may have a token, user or nobody of their own."""
    own = options.websocket
    if own.auth_token or own.auth_user:  # (there are no users then)
        return msgspec.structs.replace(
            options,
            auth_token=own.auth_token,
            auth_user=own.auth_user,
            auth_password=own.auth_password,
            has_guests=False,
        )
    return msgspec.structs.replace(options, no_auth_user=own.no_auth_user) if own.no_auth_user else options


def _identity(user: User) -> Identity:
    return Identity(user.shown, user.account, user.permissions)
