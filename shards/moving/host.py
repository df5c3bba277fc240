"""What the engine's moves need of a shard (`MovesHost` of broker.moves): sessions, sockets, and the way between shards.

At the old shard it writes clients down and hands them over; at the new one it makes sessions for those that are
announced, and gives them their sockets. Not here: who moves, and when (`departures`). Invariant: a descriptor that came
belongs to a client's socket, or waits for its last mark, or is closed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from gnatswarm.shards.boundary.linkdir import path_for_moves
from gnatswarm.shards.clients import moved as records
from gnatswarm.shards.moving.move_channel import (
    CHANNEL_VERSION,
    Door,
    Ended,
    Gone,
    HandedOver,
    Hello,
    Incoming,
    Message,
    Outgoing,
    objection_to_descriptor,
)
from gnatswarm.shards.sockets.short_timer import ShortTimer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.broker.access.certificate_names import CertificateNames
    from gnatswarm.broker.connection import ClientConnection
    from gnatswarm.broker.frozen import FrozenClient, OfferedClient
    from gnatswarm.broker.moves import Moves
    from gnatswarm.shards.boundary.control import LinkedShard
    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.sockets.frozen_socket import FrozenSocket
    from gnatswarm.shards.sockets.reactor import Reactor
    from gnatswarm.shards.sockets.reserve import Reserve

logger = logging.getLogger("gnatswarm.moving")

# Descriptors of a shard that are not its clients': links, listeners, files. Where it may have fewer than so many in
# all, they are counted, at most so often: clients come and go in hundreds meanwhile.
OTHER_DESCRIPTORS = 256
MANY_DESCRIPTORS = 4096
COUNT_EVERY_S = 0.5
# What is due for clients that move is done in steps of 20 to 80 µs, one for one client. Others of this shard are served
# between any two. When somebody was, or after so long without, this shard sleeps: who is woken on its processor waits
# for a slice of the scheduler otherwise, 1.4 ms with two processors, though another one may have nothing to do.
BUSY_NS = 200_000
# For so long. To sleep costs some 30 µs, and what it lets others do comes in no order, so not often, but for long.
REST_US = 300
# Who moves is not read, so nobody is told that its connection has ended: it is looked at, 1 µs each. (A batch with few
# subscriptions has moved before the first look.)
LOOK_EVERY_S = 0.02
# With so many, 20 µs each, it is seen for sure, and stays: it would be tried again and again, before all others.
SEEN_SUBSCRIPTIONS = 1000
# A shard that serves somebody in each of its rounds rests after each, but makes steps for so long at least so often.
GIVE_WAY_NS = 2_000_000
TURN_NS = 70_000
# What a shard says that takes no clients any more: it is not asked again.
LEAVING = "this shard is leaving"
# … that has not as many descriptors left as there are clients in the batch: fewer may have room.
NO_ROOM = "there is no room for more descriptors"
# Of a client: see Clients.is_unchecked.
AWAITS_RELOAD = "a reload has yet to come to it"


class Host:
    """The host of one shard's moves.

    `most`: descriptors that this process may have, beside those of the reserve. `on_ended` is told of each move of ours
    that is over, with the reason why its clients stay, or "".
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clients: Clients,
        moves: Moves,
        reactor: Reactor,
        *,
        server_id: str,
        shard: int,
        boot_id: str,
        link_path: str,
        most: int,
        reserve: Reserve,
        on_ended: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._reserve = reserve
        self._clients = clients
        self._moves = moves
        self._hello = Hello(CHANNEL_VERSION, server_id, shard, boot_id)
        self._most = most
        self._others = OTHER_DESCRIPTORS
        self._counted_s = -COUNT_EVERY_S  # by the loop's clock
        self._on_ended = on_ended
        self._siblings: dict[int, LinkedShard] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: list[Incoming] = []
        self._coming: dict[int, ClientSession] = {}  # expected, by client id
        self._here: dict[
            int, tuple[int, records.MovedClient]
        ] = {}  # their descriptors and records, until the last mark
        self.on_arrived: Callable[[int], None] = lambda cid: None  # a client goes on here
        self.n_refused = 0  # clients that were handed over and could not be taken
        self._readable: deque[Incoming] = deque()  # something has come
        self._writable: deque[Outgoing] = deque()  # something is to be sent
        self._is_due = False  # _go_on() is to be called, or under way
        self._is_resting = False
        self._stepped_ns = 0  # when the last step ended, or there was something to do again
        self._work: deque[Callable[[], None]] = deque()
        self._kinds = deque((self._read_some, moves.go_on, self._do_work))  # of steps; False: nothing to do
        self._busy_since_ns = 0  # when work began that no rest has interrupted
        self._reactor = reactor
        self._rest = ShortTimer(reactor, self._go_on)
        self._look: asyncio.TimerHandle | None = None  # the next one at who moves away
        self.is_leaving = False  # this shard takes no clients any more
        self._closing: set[str] = set()  # boot ids of those that have said so
        self._door = Door(loop, path_for_moves(link_path), self._on_accepted, reserve=reserve)
        moves.host = self

    def listen_anew(self) -> None:
        """Listen again at the same path, if its file was removed."""
        self._door.listen_anew()

    def on_linked_shards(self, shards: list[LinkedShard]) -> None:
        """The router's list of shards."""
        before = self._siblings
        self._siblings = {sibling.shard: sibling for sibling in shards}
        for shard, outgoing in list(self._outgoing.items()):
            if shard not in self._siblings:
                outgoing.close()
                del self._outgoing[shard]
                self._clients.lost_on_its_way()
        boots = {(sibling.shard, sibling.boot_id) for sibling in shards}
        for incoming in [one for one in self._incoming if one.hello is not None]:
            hello = incoming.hello
            if hello is not None and (hello.shard, hello.boot_id) not in boots:
                incoming.finish()  # a shard that leaves is taken off the list when it has sent all its clients
        for shard, sibling in before.items():
            if (shard, sibling.boot_id) not in boots:
                self._moves.end_arrivals(shard)

    @property
    def is_busy(self) -> bool:
        """Whether clients are on their way to this shard, or their records wait here to be sent."""
        return self._moves.n_arriving > 0 or any(one.is_sending for one in self._outgoing.values())

    def close(self) -> None:
        """End all ways to and from other shards. What was handed over is sent, as far as it can be at once."""
        self._rest.close()
        if self._look is not None:
            self._look.cancel()
        self._door.close()
        for outgoing in self._outgoing.values():
            outgoing.flush()
            outgoing.close()
        for incoming in self._incoming:
            incoming.close()
        self._outgoing.clear()
        self._incoming.clear()

    # ---- at both

    def soon(self) -> None:
        """There is something to do for a client that moves."""
        if not self._is_due:
            self._is_due = True
            self._stepped_ns = time.monotonic_ns()
            self._begin_rest()

    def in_turn(self, work: Callable[[], None]) -> None:
        """Call this as one step of those that clients move in."""
        self._work.append(work)
        self.soon()

    def _begin_rest(self) -> None:
        self._is_resting = True
        self._moves.send_on()
        self._rest.start(REST_US)

    def _go_on(self) -> None:
        """One turn, behind what else was ready in this round of the reactor."""
        was_resting, self._is_resting = self._is_resting, False
        now_ns = time.monotonic_ns()
        others = self._reactor.n_ready > 0  # were served in this round
        if others and now_ns - self._stepped_ns < GIVE_WAY_NS:
            self._begin_rest()
            return
        if was_resting:
            self._busy_since_ns = now_ns
        until_ns = now_ns + (TURN_NS if others else 0)
        while self._do_next():
            self._stepped_ns = time.monotonic_ns()
            if self._stepped_ns >= until_ns:
                break
        else:
            self._is_due = False
            return
        if others or self._stepped_ns - self._busy_since_ns >= BUSY_NS:
            self._begin_rest()
        else:
            self._rest.start(0)

    def _do_next(self) -> bool:
        """One step: do what is due for one client, read what has come of one, or send a few; False: no more for now."""
        if self._writable:  # nobody serves these clients now
            if not self._writable[0].send_some():
                self._writable.popleft()
            return True
        kinds = self._kinds  # each is first in its turn: of any there may be much
        kinds.append(kinds.popleft())
        return any(step() for step in tuple(kinds))

    def _do_work(self) -> bool:
        if self._work:
            self._work.popleft()()
            return True
        return False

    def _read_some(self) -> bool:
        if not self._readable:
            return False
        if not self._readable[0].take():
            self._readable.popleft()
        return True

    # ---- at the old shard

    def open_way(self, shard: int) -> str:
        """Make the way to another shard, if there is none; returns why that fails, or ""."""
        sibling = self._siblings.get(shard)
        if sibling is None:
            return f"shard {shard} is not there"
        if sibling.boot_id in self._closing:
            return f"shard {shard} is leaving"
        if shard not in self._outgoing:
            try:
                # Clients may have taken all other descriptors, and are to leave by this one.
                with self._reserve.opened():
                    path = path_for_moves(sibling.path)
                    way = Outgoing(self._loop, path, self._hello, self._on_way_closed, self._wait_to_send)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    return f"there is no descriptor for the way to shard {shard}: {error.strerror}"
                return f"shard {shard} takes no clients: {error.strerror}"
            self._outgoing[shard] = way
        return ""

    def _wait_to_send(self, way: Outgoing) -> None:
        self._writable.append(way)
        self.soon()

    def _on_way_closed(self, way: Outgoing) -> None:
        for shard, one in list(self._outgoing.items()):
            if one is way:
                del self._outgoing[shard]
        self._clients.lost_on_its_way()

    def _send(self, shard: int, message: Message, fd: int = -1, *, is_last: bool = True) -> None:
        way = self._outgoing.get(shard)
        if way is not None:
            way.send(message, fd, is_last=is_last)
        elif fd >= 0:
            os.close(fd)
            self._clients.lost_on_its_way()

    def objection(self, session: ClientSession, beside: int = 0) -> str:
        """Why this client cannot move now, with so many others; "": it can."""
        why = self._moves.why_not(session.connection)
        if why is not None:
            return why
        if session.has_tls_here and self._clients.relay is not None and not self._has_room_for_relays(beside + 1):
            return "there is no room for the descriptors of its relay"
        if session.connection.subscriptions >= SEEN_SUBSCRIPTIONS and session.has_ended:
            return "its connection has ended"
        if self._clients.is_unchecked(session):
            return AWAITS_RELOAD
        return session.objection_to_freezing()

    def _look_for_ended(self) -> None:
        """Tell the engine whose connection has ended at its other end, of those who move away.

        Not of who waits for its publish_limits: it may hear what is said to it until all is read, as without a move.
        """
        for client in self._moves.departing:
            session = self._clients.open.get(client.cid)
            if session is None or (session.has_ended and not self._clients.waits_for_limit(session)):
                self._moves.on_hung_up(client)
        is_leaving = self._moves.is_leaving
        self._look = self._loop.call_later(LOOK_EVERY_S, self._look_for_ended) if is_leaving else None

    def _has_room_for_relays(self, clients: int) -> bool:
        """Whether there are descriptors for the TLS of so many clients more: two for each, until one is sent."""
        unsent = sum(one.unsent_descriptors for one in self._outgoing.values())
        return self._used() + unsent + 2 * clients < self._most

    def words_of(self, client: ClientConnection) -> bytes:
        """Its session, for admit() of the new shard. RecordRefused."""
        if self._look is None:
            self._look = self._loop.call_later(LOOK_EVERY_S, self._look_for_ended)
        session = self._clients.open[client.cid]
        if self._clients.is_unchecked(session):  # since it began to move
            raise RecordRefused(AWAITS_RELOAD)
        self._clients.tell_now(session)  # (the new shard does not know what is due to it)
        return records.encoded_session(session.freeze())

    def hand_over(self, new: int, move: int, client: ClientConnection, frozen: FrozenClient | None) -> None:
        """Send its record and descriptor. `frozen` None: it has gone, or is being closed."""
        session = self._clients.open.get(client.cid)
        if frozen is None or session is None or session.socket is None:
            self._send(new, Gone(move, client.cid))
            return
        try:
            moved = records.MovedClient(
                session.freeze_socket(),
                frozen,
                session.counted_at >= 0,
                self._clients.info.news,  # (what was due was told before it moved, what came since at once)
                self._clients.is_told_to_go(session),
            )
            record = records.encoded(moved)
            fd = self._clients.leave_behind(session, new)
        except RecordRefused as error:
            logger.error("%s - cannot move, and is closed: %s", session, error)
            self._send(new, Gone(move, client.cid))
            session.socket.kick(CloseReason.ROUTE_REMOVED)
            return
        self._send(new, HandedOver(move, record), fd, is_last=False)

    def is_open(self) -> bool:
        """Whether the gateway takes leaf nodes now."""
        return not self.open_way(GATEWAY_NUMBER)

    def hand_leaf_node(
        self, fd: int, address: tuple[str, int], frozen: FrozenSocket, is_masked: bool, names: CertificateNames | None
    ) -> None:
        """Send a leaf node that came by WebSocket to the gateway, and its descriptor, which is ours from now on."""
        from gnatswarm.shards.moving.leaf_arrivals import LeafNode, encoded_leaf_node

        leaf = LeafNode(host=address[0], port=address[1], socket=frozen, is_masked=is_masked, names=names)
        self._send(GATEWAY_NUMBER, HandedOver(0, encoded_leaf_node(leaf)), fd)

    def ended(self, new: int, move: int, why: str) -> None:
        """The move is over."""
        if why == LEAVING and new in self._siblings:
            self._closing.add(self._siblings[new].boot_id)
        self._clients.reload_those_that_stay()
        self._send(new, Ended(move))
        self._clients.finish_soon()
        self._loop.call_soon(self._on_ended, why)

    # ---- at the new shard

    def admit(self, old: int, move: int, offered: OfferedClient) -> ClientConnection:
        """A fresh connection for a client that is announced. RecordRefused: it cannot come."""
        if self.is_leaving:
            raise RecordRefused(LEAVING)
        if self._used() + len(self._coming) >= self._most:
            raise RecordRefused(NO_ROOM)
        who = records.decoded_session(offered.words)
        if who.account.encode() != offered.account:
            raise RecordRefused(f"client {offered.cid}: a record with two accounts")
        session = self._clients.expect(offered.cid, who)
        self._coming[offered.cid] = session
        return session.connection

    def _used(self) -> int:
        """How many descriptors the clients here, those that have left their TLS here and all else have."""
        now_s = self._loop.time()
        relay = self._clients.relay
        of_clients = len(self._clients.open) + (2 * relay.connections if relay is not None else 0)
        if self._most < MANY_DESCRIPTORS and now_s - self._counted_s >= COUNT_EVERY_S:
            # (Where there is no /proc it stays at what it was taken for.)
            with self._reserve.opened(), contextlib.suppress(FileNotFoundError):
                self._others = len(os.listdir("/proc/self/fd")) - of_clients
            self._counted_s = now_s
        return of_clients + self._others

    def arrived(self, old: int, move: int, client: ClientConnection, frozen: FrozenClient) -> None:
        """Its output is in order: it goes on."""
        session = self._coming.pop(client.cid)
        fd, moved = self._here.pop(client.cid)
        try:
            self._clients.take_over(session, fd, moved, old)
            self.on_arrived(client.cid)
        except (RecordRefused, OSError) as error:
            logger.error("%s - cannot be taken from shard %d, and is closed: %s", session, old, error)
            self._refuse(fd)
            client.leave()
            self._clients.forget_expected(session)

    def lost(self, old: int, move: int, client: ClientConnection, frozen: FrozenClient | None, why: str) -> None:
        """It does not come."""
        session = self._coming.pop(client.cid, None)
        if session is not None:
            self._clients.forget_expected(session)
        fd, _ = self._here.pop(client.cid, (-1, None))
        if fd >= 0:
            self._refuse(fd)

    def _refuse(self, fd: int) -> None:
        self.n_refused += 1
        os.close(fd)
        self._clients.lost_on_its_way()

    def _on_accepted(self, sock: socket.socket) -> None:
        self._incoming.append(Incoming(self._loop, sock, self._on_message, self._on_way_ended, self._wait_turn))

    def _wait_turn(self, incoming: Incoming) -> None:
        self._readable.append(incoming)
        self.soon()

    def _on_way_ended(self, incoming: Incoming, why: str) -> None:
        self._incoming = [one for one in self._incoming if one is not incoming]
        hello = incoming.hello
        if why:
            logger.error("a way for clients from another shard ended: %s", why)
        if hello is not None:
            self._moves.end_arrivals(hello.shard)
            self._clients.lost_on_its_way()
            self._clients.finish_soon()

    def _on_message(self, incoming: Incoming, message: Message, fd: int) -> None:
        if isinstance(message, Hello):
            why = self._objection_to(message)
            if why:
                logger.error("a way for clients is refused: %s", why)
                incoming.close()
                self._clients.lost_on_its_way()
                self._incoming = [one for one in self._incoming if one is not incoming]
            return
        assert incoming.hello is not None
        old = incoming.hello.shard
        if isinstance(message, HandedOver):
            self._take(old, message, fd)
        elif isinstance(message, Gone):
            self._moves.forget(old, message.move, message.cid)
        else:
            self._moves.end_arrivals(old, message.move)
        self._clients.finish_soon()

    def _objection_to(self, hello: Hello) -> str:
        if hello.version != CHANNEL_VERSION:
            return f"a shard that speaks version {hello.version} of it, not {CHANNEL_VERSION}"
        if hello.server_id != self._hello.server_id:
            return "a shard of another broker"
        sibling = self._siblings.get(hello.shard)
        if sibling is None or sibling.boot_id != hello.boot_id:
            return f"a shard {hello.shard} that the router does not know"
        return ""

    def _take(self, old: int, message: HandedOver, fd: int) -> None:
        why = objection_to_descriptor(fd)
        cid = -1
        if not why:
            try:
                moved = records.decoded(message.record)
            except RecordRefused as error:
                why = str(error)
            else:
                cid = moved.client.cid
                if cid in self._coming and cid not in self._here:
                    self._here[cid] = fd, moved
                    if self._moves.arrive(old, message.move, moved.client):
                        return
                    self._here.pop(cid, None)
                why = f"client {cid} was not announced, or is not as it was announced"
        logger.error("a client from shard %d is refused, and closed: %s", old, why)
        self._clients.lost_on_its_way()
        if fd >= 0:
            self._refuse(fd)
        if cid >= 0:
            self._moves.forget(old, message.move, cid)
