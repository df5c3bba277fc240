"""What follows from who a client is: the subjects it shares, what it may do, its limits.

Compiled once for all clients with the same permissions, when the first of them logs in; what a reload does not change
stays the same object. Called by the clients of one shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from broker.permissions import Permissions

if TYPE_CHECKING:
    from broker.limits import Limits
    from broker.mesh import Mesh
    from broker.options import Options
    from broker.options import Permissions as PermissionOptions
    from broker.sublist import Sublist


class Rights:
    """Those of one configuration; `before`: of the one that it replaces."""

    def __init__(self, options: Options, mesh: Mesh, before: Rights | None = None) -> None:
        self._limits = options.limits
        self._accounts = {account.name: account for account in options.accounts}
        self._mesh = mesh
        # By identity of the option, which lives as long as this; by value once, when it was made.
        self._compiled: dict[int, tuple[PermissionOptions, Permissions]] = {}
        self._before = dict(before._compiled.values()) if before is not None else {}

    def permissions(self, wanted: PermissionOptions | None) -> Permissions | None:
        """Compiled; None: everything is allowed."""
        if wanted is None:
            return None
        found = self._compiled.get(id(wanted))
        if found is None:
            found = (wanted, self._before.get(wanted) or Permissions(wanted))
            self._compiled[id(wanted)] = found
        return found[1]

    def sublist(self, account: str) -> Sublist:
        """The account's subscriptions on this shard."""
        return self._mesh.account(account.encode())

    def most_connections(self, account: str) -> int:
        """How many the account may have; 0: no limit of its own."""
        own = self._accounts.get(account)
        return own.max_connections if own is not None else 0

    def limits(self, account: str) -> Limits:
        """The broker's, or lower ones that the account has."""
        own = self._accounts.get(account)
        if own is None:
            return self._limits
        limits = self._limits
        if own.max_subscriptions and (not limits.max_subscriptions or own.max_subscriptions < limits.max_subscriptions):
            limits = msgspec.structs.replace(limits, max_subscriptions=own.max_subscriptions)
        if own.max_payload_bytes and own.max_payload_bytes < limits.max_payload_bytes:
            limits = msgspec.structs.replace(limits, max_payload_bytes=own.max_payload_bytes)
        return limits
