"""Events in the system account about leaf nodes that come and go, and about other servers whose log-in is refused.

The gateway publishes nothing itself: the router has a shard do it, which knows whether somebody subscribes. A leaf node
is to an account what a client is, so its number of connections changes, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker import advisory
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.shards.boundary.control import AccountChanged, ServerEvent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.broker.advisory import Person, ServerIdentity
    from gnatswarm.shards.boundary.control import ControlMessage

# As for clients (shards.clients.system).
CHANGES_EVERY_S = 0.1
# What nats-server says of a server that has no account yet.
NO_ACCOUNT = "N/A"


class ServerEvents:
    """Tells the router; `server` is the broker as it names itself now, `next_number` numbers all its events."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[ControlMessage], None],
        server: Callable[[], ServerIdentity],
        next_number: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._server = server
        self._next_number = next_number
        self._changed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Tell nothing any more."""
        self._changed.clear()
        if self._timer is not None:
            self._timer.cancel()

    def describe(self, who: Person, server: str) -> advisory.Document:
        """The other end of a leaf node connection, a server of that name, as other accounts see it that may know it."""
        return who.document(server, self._server().options.stated_cluster)

    def connected(self, who: Person, *, has_dialled: bool = False) -> None:
        """A leaf node connection passes messages. `has_dialled`: this broker, of which 2.9 publishes only the end."""
        if self._is_heard(who.account) and (not has_dialled or self._server().options.is_like_newer):
            server, now_us = self._named()
            self._say(*advisory.connected(server, now_us, self._tagged(who)))
        self._note_change(who.account)

    def disconnected(self, who: Person, received: tuple[int, int], sent: tuple[int, int], reason: str) -> None:
        """It has ended; `received`, `sent`: messages and bytes, as this broker sees them."""
        if self._is_heard(who.account):
            server, now_us = self._named()
            gone = msgspec.structs.replace(self._tagged(who), stop_us=now_us)
            self._say(*advisory.disconnected(server, now_us, gone, received, sent, reason))
        self._note_change(who.account)

    def refused(self, who: Person) -> None:
        """The log-in of another server was refused."""
        if self._server().options.has_system_users:
            server, now_us = self._named()
            gone = msgspec.structs.replace(who, account=NO_ACCOUNT, stop_us=now_us)
            self._say(*advisory.refused(server, now_us, gone, CloseReason.AUTHENTICATION_FAILURE.text))

    def _is_heard(self, account: str) -> bool:
        """Whether there are events about this account: 2.9 has none about $G."""
        options = self._server().options
        return options.has_system_users and (account != GLOBAL_ACCOUNT or options.is_like_newer)

    def _named(self) -> tuple[advisory.Document, int]:
        now_us = time.time_ns() // 1000
        return self._server().document(self._next_number(), now_us), now_us

    def _tagged(self, who: Person) -> Person:
        is_like_newer = self._server().options.is_like_newer
        return msgspec.structs.replace(who, name_tag=who.account) if is_like_newer else who

    def _say(self, subject: str, document: bytes) -> None:
        self._tell(ServerEvent(subject, document))

    def _note_change(self, account: str) -> None:
        if not self._server().options.has_system_users:
            return
        self._changed.add(account)
        if self._timer is None:
            self._timer = self._loop.call_later(CHANGES_EVERY_S, self._say_changes)

    def _say_changes(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, set()
        for account in sorted(changed):
            self._tell(AccountChanged(account))
