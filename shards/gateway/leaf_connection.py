"""One leaf node connection, whichever end of it is the hub: pings, loops, errors, and how it ends.

`shards.gateway.leaf` is the end of a leaf node, `shards.gateway.hub` that of a hub: they add their handshakes. Messages
and interest are the engine's (`broker.serverlink`).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from gnatswarm.broker.advisory import Person
from gnatswarm.broker.errors import CloseReason, MaximumSubscriptionsExceeded
from gnatswarm.broker.quoted import quoted
from gnatswarm.broker.serverlink import ServerLink
from gnatswarm.shards.boundary.rows import MOST_LEAF_SUBS, MOST_LISTED_BYTES, LeafRow
from gnatswarm.shards.gateway.refusals import Refusals
from gnatswarm.shards.gateway.signs_of_life import SignsOfLife
from gnatswarm.shards.sockets.blame import costs_its_connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator

    from gnatswarm.broker.advisory import Document
    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.shards.gateway.server_events import ServerEvents
    from gnatswarm.shards.sockets.reactor import Socket

logger = logging.getLogger("gnatswarm.gateway")

# Both ends ping whatever the traffic, as nats-server does: the first time soon, because it measures the round trip.
FIRST_PING_S = 1.0
# How long a loop that another connection has just opened may still seem to be there.
LOOP_LOOK_S = 2.0


class ConnectionOwner(Protocol):
    """What both ends need of their owner."""

    def opens_loop(self, account: str) -> bool:
        """Whether this connection is the one to close; False: another one was closed just now."""

    @property
    def events(self) -> ServerEvents:
        """Tells users of the system account who comes and goes."""

    @property
    def flush(self) -> Callable[[], None]:
        """Sends what was queued outside of the reactor's round."""


class LeafConnection:
    """The session of a `ServerLink`; `account` is the one here that it shares, known when it passes messages."""

    account = ""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        owner: ConnectionOwner,
        *,
        ping_interval_s: float,
        ping_max: int,
    ) -> None:
        self._loop = loop
        self._connection_owner = owner
        self._ping_interval_s = ping_interval_s
        self._ping_max = ping_max
        self.is_accepted = False
        self.rtt_us = 0
        self.opened_s = loop.time()
        self._opened_us = time.time_ns() // 1000
        self._pinged_ns = 0
        self._pings_out = 0
        self._why = ""
        self._wait_long = False
        self._is_at_limit = False  # either end has told the other more interest than that takes; it is logged once
        self._timer: asyncio.TimerHandle | None = None
        self._loop_timer: asyncio.TimerHandle | None = None
        self._refusals = Refusals(loop, self)
        self.link = ServerLink(exchange, self, is_route=False)
        self._signs = SignsOfLife(self.link)
        self.socket: Socket | None = None  # None: not yet

    # ---- from the engine

    def on_info(self, raw: bytes) -> None:
        """An INFO of the other end."""
        raise NotImplementedError

    def on_connect(self, raw: bytes) -> None:
        """A CONNECT of the other end."""
        raise NotImplementedError

    def on_error(self, raw: bytes) -> None:
        """The other end has refused something."""
        raise NotImplementedError

    def on_early(self) -> None:
        """Interest or a message before the connection was accepted."""
        raise NotImplementedError

    def on_interest(self) -> None:
        """Only routes have spare connections."""

    def on_pong(self) -> None:
        """A PING of ours was answered."""
        if self._pings_out:
            self.rtt_us = max(1, (time.monotonic_ns() - self._pinged_ns) // 1000)
        self._pings_out = 0

    def on_loop(self, begins: bool) -> None:
        """Our own loop subject came back, so that messages would go round; or it is gone again.

        Both ends of a loop hear of it. One closed connection opens it: the other waits whether that was enough.
        """
        if self._loop_timer is not None:
            self._loop_timer.cancel()
            self._loop_timer = None
        if not begins:
            return
        if self._connection_owner.opens_loop(self.account):
            self._end_loop()
        else:
            self._loop_timer = self._loop.call_later(LOOP_LOOK_S, self._end_loop)

    @costs_its_connection
    def _end_loop(self) -> None:
        text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
        self._refuse(text, wait_long=True)
        self._connection_owner.flush()

    def on_unknown_account(self, account: bytes) -> None:
        """Frames of a leaf node connection name no account."""

    def on_refused(self, why: str, subject: bytes) -> None:
        """An operation that has no effect."""
        if why == "Limit":  # of interest: the connection goes on without it, as in nats-server
            self._log_limit()
            self.link.send(MaximumSubscriptionsExceeded().wire)
        else:
            self._refusals.note(f"{why}:", quoted(subject[:200]))

    def _log_limit(self) -> None:
        if not self._is_at_limit:
            self._is_at_limit = True
            logger.error("%s - %s", self, MaximumSubscriptionsExceeded.text)

    def on_broken(self, why: str) -> None:
        """Bytes that are no frame; the link is being closed."""
        self._why = self._why or why

    def on_closed(self, reason: int) -> None:
        """The connection has ended."""
        for timer in (self._timer, self._loop_timer):
            if timer is not None:
                timer.cancel()
        self.link.leave()
        self._on_ended(self._why or CloseReason(reason).text)

    def _on_ended(self, why: str) -> None:
        """The connection has ended, and its interest is dropped."""
        raise NotImplementedError

    # ---- events

    def _person(self) -> Person:
        """The other end, in events."""
        raise NotImplementedError

    @property
    def _server_name(self) -> str:
        """The other end's."""
        raise NotImplementedError

    def requestor(self) -> Document:
        """The other end, as those see it whose services its clients ask, and with whom that is shared."""
        return self._connection_owner.events.describe(self._person(), self._server_name)

    def _tell_of_end(self, why: str) -> None:
        """The connection, which was accepted, has ended."""
        link = self.link
        received, sent = (link.in_msgs, link.in_bytes), (link.out_msgs, link.out_bytes)
        self._connection_owner.events.disconnected(self._person(), received, sent, why)

    # ---- TLS

    def on_opening_failed(self, why: str, is_upgrade: bool = False) -> None:
        """The handshake failed, or the upgrade to WebSocket."""
        self._why = f"{'WebSocket' if is_upgrade else 'TLS'} handshake error: {why}"

    def on_wire_error(self, text: str) -> None:
        """Encryption failed later."""
        self._why = f"TLS error: {text}"

    # ---- life

    def _row(
        self, name: str, host: str, port: int, *, is_spoke: bool, lid: int, is_isolated: bool, with_subs: bool
    ) -> Generator[None, None, LeafRow]:
        """In steps, where it is to have what the other end is interested in."""
        link = self.link
        subs = tuple(_listed((yield from link.interest_told(MOST_LEAF_SUBS)))) if with_subs else ()
        return LeafRow(
            name=name,
            account=self.account,
            host=host,
            port=port,
            is_spoke=is_spoke,
            rtt_us=self.rtt_us,
            in_msgs=link.in_msgs,
            out_msgs=link.out_msgs,
            in_bytes=link.in_bytes,
            out_bytes=link.out_bytes,
            pending_bytes=link.pending_bytes,
            subscriptions=link.subscriptions,
            lid=lid,
            is_isolated=is_isolated,
            subs=subs,
        )

    def close(self, why: str) -> None:
        """End it, for this reason."""
        self._end(why)

    def fall_silent(self, why: str) -> None:
        """Nothing is sent any more, as the other end has been told; when it closes, this is the reason."""
        self._why = self._why or why
        self.link.fall_silent()

    def _refuse(self, text: str, *, wait_long: bool = False) -> None:
        """End it, and tell the other end why."""
        self.link.send(f"-ERR '{text}'\r\n".encode("utf-8", "surrogateescape"))
        self._end(text, wait_long=wait_long)

    def _end(self, why: str, *, wait_long: bool = False) -> None:
        self._why = self._why or why
        self._wait_long = self._wait_long or wait_long
        self.link.end()

    def set_pings(self, interval_s: float, most: int) -> None:
        """After a reload: ping so often, and wait for so many answers."""
        is_other = interval_s != self._ping_interval_s
        self._ping_interval_s, self._ping_max = interval_s, most
        if is_other and self._timer is not None and self._pinged_ns:  # (the first ping comes soon)
            self._timer.cancel()
            self._timer = self._loop.call_later(interval_s, self._ping)

    def _keep_pinging(self) -> None:
        """From now on ping the other end; it is accepted."""
        self._timer = self._loop.call_later(FIRST_PING_S, self._ping)

    @costs_its_connection
    def _ping(self) -> None:
        if self.link.is_silent:
            return
        is_alive = self._signs.since_last_look(self.socket)
        if self._pings_out >= self._ping_max and not is_alive:
            self._refuse("Stale Connection")
            self._connection_owner.flush()
            return
        if self._pings_out < self._ping_max:  # (else its PONG is late, and nothing else is)
            self._pings_out += 1
            self._pinged_ns = time.monotonic_ns()  # (the loop's clock counts milliseconds)
            self.link.ping()
            self._connection_owner.flush()
        self._timer = self._loop.call_later(self._ping_interval_s, self._ping)


def _listed(interest: list[tuple[bytes, bytes]]) -> Iterator[str]:
    room = MOST_LISTED_BYTES
    for subject, _queue in interest:
        room -= len(subject)
        if room < 0:
            return
        yield subject.decode("utf-8", "replace")
