"""The end of a gateway: nothing is lost that is on its way to other servers, or from them, when it begins.

Shards are told first that nobody outside wants anything; when all know, what they had sent before is here. It goes out,
and each other server is told that nothing more comes: it reads that last, and closes. What it had sent until then goes
to the shards. A server that does not close, or does not take what waits for it, is waited for to the end of the time.
What clients publish between this and the next gateway's connections finds no interest outside: queue groups choose
members here, requests are told that there are no responders. Where the broker stops, shards have said all before, and
end themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.shards.gateway.leaf_connection import LeafConnection
    from gnatswarm.shards.gateway.route import RouteSession
    from gnatswarm.shards.sockets.reactor import Reactor

LOOK_S = 0.002


class Leaving:
    """One such end: `sessions` are the connections that there still are, `on_done` is called once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor,
        exchange: Exchange,
        sessions: Callable[[], list[RouteSession | LeafConnection]],
        on_done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._reactor = reactor
        self._exchange = exchange
        self._sessions = sessions
        self._on_done = on_done
        self._ended: set[RouteSession | LeafConnection] = set()  # they were told that nothing more comes
        self._is_done = False
        self._has_shards = True

    def begin_last(self, within_s: float) -> None:
        """Begin as the last process of a broker that stops; it is done within this time."""
        self._has_shards = False
        self._loop.call_later(within_s, self._done)
        self._on_withdrawn()

    def begin(self, within_s: float) -> None:
        """Begin; it is done within this time."""
        self._loop.call_later(within_s, self._done)
        self._exchange.withdraw(self._on_withdrawn)
        self._loop.call_soon(self._reactor.finish)

    def _on_withdrawn(self) -> None:
        """No shard sends anything more."""
        self._exchange.hush()
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._is_done:
            return
        self._reactor.finish()
        sessions = self._sessions()
        for session in sessions:
            if session not in self._ended:
                try:
                    self._end(session)
                except Exception:
                    self._ended.add(session)
                    if session.socket is None:
                        raise
                    self._reactor.blame(session.socket)
        if sessions or self._reactor.n_emptying:
            self._loop.call_later(LOOK_S, self._look)
        elif not self._has_shards:
            self._done_soon()
        else:
            self._exchange.call_when_known(self._done_soon)
        self._reactor.finish()

    def _end(self, session: RouteSession | LeafConnection) -> None:
        """Tell it that nothing more comes, unless something is not sent yet."""
        if session.socket is None or session.link.slot < 0:  # (who has not said who it is has nothing to lose)
            session.close("Server Shutdown")
            self._ended.add(session)
        elif session.socket.end_sending():
            session.fall_silent("Server Shutdown")
            self._ended.add(session)

    def _done_soon(self) -> None:
        self._loop.call_soon(self._done)  # (a sibling's frames are just being read)

    def _done(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._on_done()
