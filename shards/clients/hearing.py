"""Clients of a shard that leaves or stops, heard out: what they have sent is carried out, without their limit.

Those over their publish_limits, who were not read for a while, so that the kernel has more of theirs than of others';
and those that have closed, whose messages it has taken. The reactor reads them, in turns. Invariant: nobody is heard
for longer than HEAR_OUT_S at a time, and nobody who goes on talking much further than MOST_BYTES beyond what was there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gnatswarm.broker.allowance import Allowance
    from gnatswarm.shards.clients.session import ClientSession

# Less than the router waits beyond the time that a shard has to leave, or to stop.
HEAR_OUT_S = 1.0
MOST_BYTES = 1024 * 1024
# A client that has closed may have sent more than there was room for: its kernel may look so late whether there is.
DRY_S = 0.25
# A message without a payload counts, too.
MESSAGE_BYTES = 16


class _Part:
    """How far one client is heard. `is_closing`: it is closed then; else it has its limit again."""

    __slots__ = ("_dry_s", "_said", "_session", "_until_bytes", "_until_s", "is_closing")

    def __init__(self, session: ClientSession, unread_bytes: int, is_closing: bool) -> None:
        self.is_closing = is_closing
        self._session = session
        self._said = self._said_by_now
        self._dry_s = self._until_s = time.monotonic() + HEAR_OUT_S
        self._until_bytes = self._said + unread_bytes + MOST_BYTES

    @property
    def _said_by_now(self) -> int:
        return self._session.connection.in_bytes + MESSAGE_BYTES * self._session.connection.in_msgs

    def is_over(self) -> bool:
        """Look again."""
        now_s, said = time.monotonic(), self._said_by_now
        socket = self._session.socket
        if socket is None or now_s >= self._until_s:
            return True
        has_ended = self._session.has_ended
        if socket.unread_bytes or said != self._said:
            self._said = said
            self._dry_s = now_s + DRY_S
            return said >= self._until_bytes and not has_ended
        return has_ended or now_s >= self._dry_s


class Hearing:
    """Those of one shard.

    `allowance_of`: what this client may publish; None: as much as it wants to. `read_on`: it waits for that no more.
    """

    def __init__(
        self,
        allowance_of: Callable[[ClientSession], Allowance | None],
        read_on: Callable[[ClientSession], None],
    ) -> None:
        self._allowance_of = allowance_of
        self._read_on = read_on
        self._parts: dict[ClientSession, _Part] = {}

    @property
    def sessions(self) -> Collection[ClientSession]:
        """Those that are being heard."""
        return self._parts.keys()

    def begin(self, session: ClientSession) -> None:
        """Hear it, if it has something to say: settle() gives it its limit again."""
        if session not in self._parts:
            self._begin(session, False)

    def settle(self, session: ClientSession) -> bool:
        """Limit one of `sessions` again that was heard, and is not being closed; whether it is so."""
        part = self._parts[session]
        if part.is_closing or not part.is_over():
            return False
        del self._parts[session]
        session.connection.allow(self._allowance_of(session))
        return True

    def is_over(self, session: ClientSession) -> bool:
        """Whether it may be closed. Of who was not heard yet it begins."""
        part = self._parts.get(session)
        if part is None or not part.is_closing:
            return not self._begin(session, True)
        return part.is_over()

    def forget(self, session: ClientSession) -> None:
        """It has gone."""
        self._parts.pop(session, None)

    def _begin(self, session: ClientSession, is_closing: bool) -> bool:
        """Lift its limit, if it has something to say; whether it has."""
        unread_bytes = session.socket.unread_bytes if session.socket is not None else 0
        if not unread_bytes or session.connection.is_moving:
            return False
        if self._allowance_of(session) is None and not session.has_ended:
            return False
        self._parts[session] = _Part(session, unread_bytes, is_closing)
        session.connection.allow(None)
        self._read_on(session)
        return True
