"""What was denied to clients: publishes and subscriptions by permissions, speed by limits; by account and user.

Bounded: beyond MOST_USERS users one row sums up the others. Counted by the sessions; read by monitoring (since the
shard's start) and by the recorder (each window's part).
"""

from __future__ import annotations

from gnatswarm.shards.boundary.records import OTHER
from gnatswarm.shards.boundary.rows import DeniedRow

# A user is some 200 bytes here, and one line in each window in which it was denied something.
MOST_USERS = 1000


class Denials:
    """The denials of one shard."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], DeniedRow] = {}
        self._taken: dict[tuple[str, str], tuple[int, int]] = {}  # what earlier windows have counted

    def note_limited(self, account: str, user: str) -> None:
        """Count that a client of this user had to wait because of publish_limits."""
        self._row(account, user).waits += 1

    def _row(self, account: str, user: str) -> DeniedRow:
        row = self._rows.get((account, user))
        if row is None:
            if len(self._rows) >= MOST_USERS:
                account, user = OTHER, OTHER
            row = self._rows.setdefault((account, user), DeniedRow(account, user))
        return row

    def note(self, account: str, user: str, *, is_publish: bool) -> None:
        """Count a publish or a subscription that this user was denied; "": clients without a user."""
        row = self._row(account, user)
        if is_publish:
            row.publishes += 1
        else:
            row.subscriptions += 1

    @property
    def rows(self) -> list[DeniedRow]:
        """All denials since the shard started."""
        return list(self._rows.values())

    def take(self) -> list[DeniedRow]:
        """The denials since the last call."""
        found = []
        for key, row in self._rows.items():
            publishes, subscriptions = self._taken.get(key, (0, 0))
            new = DeniedRow(*key, row.publishes - publishes, row.subscriptions - subscriptions)
            if new.publishes or new.subscriptions:
                found.append(new)
                self._taken[key] = row.publishes, row.subscriptions
        return found
