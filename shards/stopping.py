"""The end of a shard that is told to stop with all others: at once, but for what its clients had sent.

Those that have closed, or are over their publish_limits, are heard out first (`shards.clients.hearing`). Nobody is
closed before all shards have done so, and all that caused has arrived, as the fence says (`broker.fence`): messages may
be for clients of any shard. They note it on the shared page. Clients that are being moved, whom nobody reads, stay or
arrive first. Who waits in the queues of the ports, or was accepted by the router, is heard, too: nobody is closed
before no shard accepts any more, as who is closed would come back. And clients that just take what they are sent may go
on with it. All that within HEAR_OUT_S. Called by the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.shards.clients.hearing import HEAR_OUT_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.links.links import Links
    from gnatswarm.shards.shard import Shard

LOOK_AGAIN_S = 0.01


class Arrival:
    """Of what a shard's clients had sent so far."""

    def __init__(self) -> None:
        self.is_over = False

    def note(self) -> None:
        """It has come to whoever is to get it."""
        self.is_over = True


class Stopping:
    """One stop of shard `number`; `on_done` is called once, when its clients may be closed.

    `take_handed_over` takes those connections that the router has accepted: whether these are the last.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        shard: Shard,
        links: Links,
        page: Page,
        take_handed_over: Callable[[], bool],
        on_done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._number = number
        self._shard = shard
        self._clients = shard.clients
        self._links = links
        self._page = page
        self._take_handed_over = take_handed_over
        self._on_done = on_done
        self._until_s = loop.time() + HEAR_OUT_S
        self._pending_bytes: int | None = None
        self._arrival: Arrival | None = None  # None: clients are heard
        self._have_all_come = False
        shard.end_listening()
        links.moves.stop()
        self._look()

    def _look(self) -> None:
        had_all_come = self._have_all_come  # at the last look: what they had sent by then is read
        self._have_all_come = self._take_handed_over()
        is_over = had_all_come and self._are_heard() and self._have_siblings_ended() and not self._are_taking()
        if is_over or self._loop.time() >= self._until_s:
            self._page.note_heard_out(self._number, True)
            self._on_done()
        else:
            self._loop.call_later(LOOK_AGAIN_S, self._look)

    def _are_heard(self) -> bool:
        """Whether what its clients had sent has come to whoever is to get it."""
        sessions = self._clients.open.values()
        moves = self._links.moves
        if moves.is_leaving or moves.n_arriving or len(self._clients.hear_out(list(sessions))) < len(sessions):
            self._arrival = None
            return False
        if self._arrival is None:
            self._arrival = Arrival()
            self._shard.fence.call_when_known(self._arrival.note)
            self._shard.reactor.finish()
        return self._arrival.is_over

    def _have_siblings_ended(self) -> bool:
        """Whether they have nothing more for this shard's clients: also of what is said since they have noted so."""
        self._page.note_heard_out(self._number, True)
        return all(map(self._page.is_heard_out, self._links.siblings)) and not self._links.has_unread

    def _are_taking(self) -> bool:
        """Whether clients have taken some of their output since the last look, and have not taken all."""
        before = self._pending_bytes
        self._pending_bytes = sum(session.connection.pending_bytes for session in self._clients.open.values())
        return self._pending_bytes > 0 and (before is None or self._pending_bytes < before)
