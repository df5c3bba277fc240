"""The end of a shard that is told to stop with all others: at once, but for what its clients had sent.

Those that have closed, or are over their publish_limits, are heard out first (`shards.clients.hearing`). Nobody is
closed before all shards have done so, which they note on the shared page, and what they sent each other is carried out:
the messages may be for clients of any. And clients that just take what they are sent may go on with it. All that within
HEAR_OUT_S; where nobody has anything to say it takes one look, with several shards two. Called by the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.shards.clients.hearing import HEAR_OUT_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.links.links import Links

LOOK_AGAIN_S = 0.01


class Stopping:
    """One stop of shard `number`; `on_done` is called once, when its clients may be closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        clients: Clients,
        links: Links,
        page: Page,
        on_done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._number = number
        self._clients = clients
        self._links = links
        self._page = page
        self._on_done = on_done
        self._until_s = loop.time() + HEAR_OUT_S
        self._pending_bytes: int | None = None
        self._look()

    def _look(self) -> None:
        is_over = self._are_heard() and self._have_siblings_ended() and not self._are_taking()
        if is_over or self._loop.time() >= self._until_s:
            self._page.note_heard_out(self._number, True)
            self._on_done()
        else:
            self._loop.call_later(LOOK_AGAIN_S, self._look)

    def _are_heard(self) -> bool:
        sessions = self._clients.open.values()
        return len(self._clients.hear_out(list(sessions))) == len(sessions) and not self._links.has_unsent

    def _have_siblings_ended(self) -> bool:
        """Whether they have nothing more for this shard's clients."""
        self._page.note_heard_out(self._number, True)
        return all(map(self._page.is_heard_out, self._links.siblings)) and not self._links.has_unread

    def _are_taking(self) -> bool:
        """Whether clients have taken some of their output since the last look, and have not taken all."""
        before = self._pending_bytes
        self._pending_bytes = sum(session.connection.pending_bytes for session in self._clients.open.values())
        return self._pending_bytes > 0 and (before is None or self._pending_bytes < before)
