"""Whether another server lives whose PONGs are late: they may be behind much else that it sends, or unread here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.broker.serverlink import ServerLink
    from gnatswarm.shards.sockets.reactor import Socket


class SignsOfLife:
    """What has come over one connection, of whatever kind."""

    __slots__ = ("_active_us", "_link")

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._active_us = link.active_us

    def since_last_look(self, socket: Socket | None) -> bool:
        """Whether anything has come since the last call, or is here and has not been read."""
        before, self._active_us = self._active_us, self._link.active_us
        return before != self._active_us or (socket is not None and socket.unread_bytes > 0)
