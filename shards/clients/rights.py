"""The rights of a client's user: its account's sublist, its permissions, its limits.

Permissions are compiled once for all clients with equal ones, when the first of them logs in; those that a reload does
not change stay the same objects. Called by the clients of one shard.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.permissions import Permissions

if TYPE_CHECKING:
    from gnatswarm.broker.limits import Limits
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.options import Options
    from gnatswarm.broker.options import Permissions as PermissionOptions
    from gnatswarm.broker.sublist import Sublist

# So many entries are compiled at once whoever logs in: some 1.3 us each. Who has more waits for its turn.
FEW_ENTRIES = 100


class Rights:
    """The rights under one configuration; `before`: those under the configuration that it replaces."""

    def __init__(self, options: Options, mesh: Mesh, before: Rights | None = None) -> None:
        self._limits = options.limits
        self._accounts = {account.name: account for account in options.accounts}
        self._mesh = mesh
        # By id() of the option struct, which lives as long as this object; compared by value only once, with `before`.
        self._compiled: dict[int, tuple[PermissionOptions, Permissions]] = {}
        self._digests: dict[tuple[int, str], tuple[PermissionOptions | None, bytes]] = {}  # … and by account
        self._before: dict[PermissionOptions, Permissions] = {}
        self.compiled_entries = 0  # so far: what it has cost
        if before is not None:  # (what that one has not come to has the rights before it)
            self._before = before._before | dict(before._compiled.values())

    @property
    def limit_accounts(self) -> bool:
        """Whether any account has a connection limit of its own."""
        return any(account.max_connections for account in self._accounts.values())

    def all_follow(self) -> None:
        """Every client has these rights now: earlier ones are forgotten."""
        self._before.clear()

    def permissions(self, wanted: PermissionOptions | None) -> Permissions | None:
        """The compiled permissions; None: everything is allowed."""
        if wanted is None:
            return None
        found = self._compiled.get(id(wanted))
        if found is None:
            found = (wanted, self._before.get(wanted) or self._compile(wanted))
            self._compiled[id(wanted)] = found
        return found[1]

    def _compile(self, wanted: PermissionOptions) -> Permissions:
        self.compiled_entries += _entries(wanted)
        return Permissions(wanted)

    def are_at_hand(self, wanted: PermissionOptions | None) -> bool:
        """Whether permissions() has compiled these already, or they are few."""
        return wanted is None or id(wanted) in self._compiled or _entries(wanted) <= FEW_ENTRIES

    def digest(self, wanted: PermissionOptions | None, account: str) -> bytes:
        """What distinguishes these permissions and limits of connections from others, in every process."""
        found = self._digests.get((id(wanted), account))
        if found is None:
            words = msgspec.msgpack.encode((wanted, self.most_connections(account), self._limits.max_connections))
            data = hashlib.blake2b(words, digest_size=16).digest()
            found = self._digests[id(wanted), account] = (wanted, data)
        return found[1]

    def sublist(self, account: str) -> Sublist:
        """The account's subscriptions on this shard."""
        return self._mesh.account(account.encode())

    def most_connections(self, account: str) -> int:
        """The account's connection limit; 0: it has none of its own."""
        own = self._accounts.get(account)
        return own.max_connections if own is not None else 0

    def limits(self, account: str) -> Limits:
        """The broker's limits, lowered to those of the account."""
        own = self._accounts.get(account)
        return own.lowers(self._limits) if own is not None else self._limits


def _entries(wanted: PermissionOptions) -> int:
    listed = (wanted.publish_allow, wanted.publish_deny, wanted.subscribe_allow, wanted.subscribe_deny)
    return sum(len(entries) for entries in listed if entries)
