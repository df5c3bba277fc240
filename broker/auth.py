"""Who may connect: the rules of one configuration, applied to one CONNECT. No sockets, no time, no waiting.

A client is never told why it was refused. Every comparison takes as long for a wrong secret as for a right one, and
an unknown user costs what a known one does. A bcrypt hash takes a tenth of a second to compare, by design: the answer
is then a HashedPassword, which somebody else compares, and Verdicts remember how that ended.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from broker.errors import AuthorizationViolation
from broker.nkey import is_signed_by, user_key
from broker.options import GLOBAL_ACCOUNT, STANDARD, Permissions, User

if TYPE_CHECKING:
    from broker.connect import ConnectOptions
    from broker.options import Options

# What a client gave at its log-in must be checked again when the rules change. Kept is not the secret, but its
# keyed digest; the key is this process's alone.
_PROOF_KEY = os.urandom(32)

HASH_PREFIXES = ("$2a$", "$2b$", "$2y$")
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}\Z")
_LEAST_COST, _MOST_COST = 4, 31
# What an unknown user's password is compared with; nobody's, whatever the cost.
_NOBODYS_HASH = "$2b${:02d}$......................" + "." * 31

MOST_VERDICTS = 8192


def _digest(secret: str | bytes) -> bytes:
    data = secret if isinstance(secret, bytes) else secret.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=_PROOF_KEY, digest_size=32).digest()


def _proof(secret: str) -> bytes:
    return _digest(secret) if secret else b""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode("utf-8", "surrogatepass"))


def is_hashed(password: str) -> bool:
    """Whether a configured secret is meant as a bcrypt hash."""
    return password.startswith(HASH_PREFIXES)


def is_good_hash(password: str) -> bool:
    """Whether it is one that something can be compared with."""
    found = _HASH.match(password)
    return found is not None and _LEAST_COST <= int(found[1]) <= _MOST_COST


class Identity(msgspec.Struct, frozen=True):
    """Who a client is, and what follows from it."""

    user: str = ""  # as logs and pages show it; "": nobody in particular
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None


NOBODY = Identity()


class Admission(msgspec.Struct, frozen=True):
    """How a client came in: what is needed to decide once more, without its secret."""

    identity: Identity
    name: str = ""  # user name or nkey that it gave
    proof: bytes = b""  # keyed digest of the secret it gave; b"": none
    is_anonymous: bool = False  # it gave nothing, and is the no_auth_user
    is_nkey: bool = False
    kind: str = STANDARD  # of its connection


class HashedPassword(msgspec.Struct, frozen=True):
    """A comparison with a bcrypt hash that nobody has made yet. Never shown: it has a secret."""

    admission: Admission  # if it is the same
    password: str
    hashed: str
    key: bytes  # of its verdict
    is_known: bool = True  # there is such a user; otherwise the comparison is made all the same, and in vain

    def __repr__(self) -> str:
        return f"HashedPassword(of {self.admission.identity.user!r})"


class Verdicts:
    """How comparisons with bcrypt hashes ended, the latest few thousand, by keyed digest: no secret is in it."""

    def __init__(self, most: int = MOST_VERDICTS) -> None:
        self._most = most
        self._known: OrderedDict[bytes, bool] = OrderedDict()

    @staticmethod
    def key(hashed: str, proof: bytes) -> bytes:
        """Under which the verdict on a secret and a hash is kept; `proof` is the secret's own digest."""
        return _digest(proof + hashed.encode())

    def get(self, key: bytes) -> bool | None:
        """None: not known."""
        verdict = self._known.get(key)
        if verdict is not None:
            self._known.move_to_end(key)
        return verdict

    def note(self, key: bytes, is_same: bool) -> None:
        """A comparison was made."""
        self._known[key] = is_same
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


class Authenticator:
    """The log-in rules of one configuration: nobody is asked, one token, one user, or several users."""

    def __init__(self, options: Options, verdicts: Verdicts | None = None) -> None:
        self._verdicts = verdicts if verdicts is not None else Verdicts()
        self._token = options.auth_token
        self._users = {user.name: user for user in options.users if user.name}
        self._nkeys = {user.nkey: user for user in options.users if user.nkey}
        if options.auth_user:
            self._users[options.auth_user] = User(options.auth_user, options.auth_password)
        self._keys = {text: user_key(text) for text in self._nkeys}
        self.is_required = bool(self._token or self._users or self._nkeys)
        # A nonce in INFO: there is something to sign.
        self.wants_nonce = bool(self._nkeys)
        self._nobody = self._users.get(options.no_auth_user) if options.no_auth_user else None
        hashes = [user.password for user in self._users.values() if is_hashed(user.password)]
        cost = max((int(hashed[4:6]) for hashed in hashes if is_good_hash(hashed)), default=0)
        self._nobodys_hash = _NOBODYS_HASH.format(cost) if cost else ""

    def anonymous(self, kind: str = STANDARD) -> Identity | None:
        """Who a client is that has not said anything yet; None: its first operation must be CONNECT."""
        if not self.is_required:
            return NOBODY
        return _identity(self._nobody) if self._nobody is not None and self._nobody.may_come_by(kind) else None

    def examine(self, connect: ConnectOptions, nonce: bytes = b"", kind: str = STANDARD) -> Admission | HashedPassword:
        """How the client comes in, or what is to be compared first. AuthorizationViolation: it may not come in."""
        given = connect.auth_token or connect.password
        if not self.is_required:
            return Admission(NOBODY, connect.user, _proof(given))
        if self._token:
            return self._compared(Admission(NOBODY, "", _proof(connect.auth_token)), connect.auth_token, self._token)
        if self._nkeys and connect.nkey:
            return self._signed(connect, nonce, kind)
        anonymous = self.anonymous(kind)
        if not connect.user and not given and anonymous is not None:
            return Admission(anonymous, is_anonymous=True, kind=kind)
        user = self._users.get(connect.user)
        if user is not None and not user.may_come_by(kind):
            user = None
        proof = _proof(connect.password)
        if user is None:
            # An unknown user costs the same comparison as a known one.
            stranger = Admission(NOBODY, connect.user, proof)
            return self._compared(stranger, connect.password, self._nobodys_hash, is_known=False)
        return self._compared(Admission(_identity(user), user.name, proof, kind=kind), connect.password, user.password)

    def _compared(
        self, admission: Admission, given: str, wanted: str, *, is_known: bool = True
    ) -> Admission | HashedPassword:
        if not is_hashed(wanted):
            if not _same(given, wanted) or not is_known:
                raise AuthorizationViolation
            return admission
        question = HashedPassword(admission, given, wanted, Verdicts.key(wanted, admission.proof), is_known)
        verdict = self._verdicts.get(question.key)
        if verdict is None:
            return question
        if not verdict or not is_known:
            raise AuthorizationViolation
        return admission

    def _signed(self, connect: ConnectOptions, nonce: bytes, kind: str) -> Admission:
        user = self._nkeys.get(connect.nkey)
        key = self._keys.get(connect.nkey)
        if user is None or key is None or not nonce or not is_signed_by(key, nonce, connect.sig):
            raise AuthorizationViolation
        if not user.may_come_by(kind):
            raise AuthorizationViolation
        return Admission(_identity(user), user.nkey, is_nkey=True, kind=kind)

    def is_current(self, question: HashedPassword) -> bool:
        """Whether these are still the rules that asked for that comparison."""
        admission = question.admission
        if self._token:
            return self._token == question.hashed
        user = self._users.get(admission.name)
        if user is None or not user.may_come_by(admission.kind):
            return False
        return user.password == question.hashed and _identity(user) == admission.identity

    def readmit(self, admission: Admission) -> Identity | None:
        """Who a client that came in under other rules is now; None: it would not be let in any more.

        A password that is now compared by bcrypt and was not before cannot be looked at again: None.
        """
        if not self.is_required:
            return NOBODY
        if self._token:
            return NOBODY if self._proves(admission.proof, self._token) else None
        if admission.is_nkey:
            nkey_user = self._nkeys.get(admission.name)
            return _identity(nkey_user) if nkey_user and nkey_user.may_come_by(admission.kind) else None
        if admission.is_anonymous or (not admission.name and not admission.proof):
            return self.anonymous(admission.kind)
        user = self._users.get(admission.name)
        if user is None or not user.may_come_by(admission.kind) or not self._proves(admission.proof, user.password):
            return None
        return _identity(user)

    def _proves(self, proof: bytes, wanted: str) -> bool:
        if is_hashed(wanted):
            return self._verdicts.get(Verdicts.key(wanted, proof)) is True
        return hmac.compare_digest(proof, _digest(wanted) if wanted else b"")


def _identity(user: User) -> Identity:
    return Identity(user.shown, user.account, user.permissions)
