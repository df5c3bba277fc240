"""The users of one configuration, by name and by nkey, as the log-in rules of all its ports find them.

Thousands are added in turns: one user takes a microsecond or two. Contains secrets: never show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gnatswarm.broker.access.certificate_names import CertificateNames, SubjectIndex, find_user
from gnatswarm.broker.access.nkey import user_key
from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed

if TYPE_CHECKING:
    from gnatswarm.broker.options import User


class UserIndex:
    """Of these users, and those that are added before it is used."""

    def __init__(self, users: Iterable[User] = ()) -> None:
        self.names: dict[str, User] = {}
        self.nkeys: dict[str, User] = {}
        self.keys: dict[str, bytes | None] = {}  # by nkey, its bytes
        self.subjects = SubjectIndex()
        self.cost = 0  # the highest of their bcrypt hashes; 0: there are none
        self.add(users)

    def add(self, users: Iterable[User]) -> None:
        """Add these."""
        for user in users:
            if user.name:
                self.names[user.name] = user
                self.subjects.add(user.name)
                if is_hashed(user.password) and is_good_hash(user.password):
                    self.cost = max(self.cost, int(user.password[4:6]))
            if user.nkey:
                self.nkeys[user.nkey] = user
                self.keys[user.nkey] = user_key(user.nkey)

    def find(self, name: str) -> User | None:
        """The user with this nkey or name, as nats-server 2.10 finds its no_auth_user; None: there is none."""
        return self.nkeys.get(name) or self.names.get(name)

    def of_certificate(self, names: CertificateNames) -> str | None:
        """The name of the user that a certificate stands for; None: it is none of them."""
        return find_user(names, self.names.keys(), self.subjects)
