"""The clients of one shard: accepts new connections, applies the options to them, records their end.

What happens between one client and its shard is its session's (`shards.clients.session`). Not here: bytes and
deadlines (the reactor), other shards. Called by the reactor, the sessions and the shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from gnatswarm.broker.access.auth import NOBODY, Authenticator, Verdicts, for_websocket
from gnatswarm.broker.access.nkey import new_nonce
from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.errors import (
    AuthorizationViolation,
    CloseReason,
    ConnectionThrottling,
    MaximumAccountConnectionsExceeded,
    MaximumConnectionsExceeded,
    ProtocolError,
)
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.broker.trace import Tracer
from gnatswarm.shards.boundary.wall_clock import wall_offset_us
from gnatswarm.shards.clients.account_census import AccountCensus
from gnatswarm.shards.clients.allowances import Allowances
from gnatswarm.shards.clients.closed import SLOW, Closed, connection_row, unpacked
from gnatswarm.shards.clients.comparisons import Comparisons
from gnatswarm.shards.clients.denials import Denials
from gnatswarm.shards.clients.hearing import Hearing
from gnatswarm.shards.clients.passing import Passing
from gnatswarm.shards.clients.passwords import Passwords
from gnatswarm.shards.clients.rights import Rights
from gnatswarm.shards.clients.session import LOOKED_AT_ONCE, ClientSession
from gnatswarm.shards.sockets.window import is_on_this_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gnatswarm.broker.access.certificate_names import CertificateNames
    from gnatswarm.broker.access.user_index import UserIndex
    from gnatswarm.broker.allowance import Allowance
    from gnatswarm.broker.connection import Fence
    from gnatswarm.broker.fanout import Fanout
    from gnatswarm.broker.info import InfoTemplate
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.options import Logging, Options
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.boundary.rows import ConnectionRow
    from gnatswarm.shards.clients.certificate_rule import CertificateRule
    from gnatswarm.shards.clients.moved import FrozenSession, MovedClient
    from gnatswarm.shards.clients.system import System
    from gnatswarm.shards.sockets.frozen_socket import FrozenSocket
    from gnatswarm.shards.sockets.gate import Gate
    from gnatswarm.shards.sockets.layered import LayeredSocket
    from gnatswarm.shards.sockets.reactor import Reactor, Socket
    from gnatswarm.shards.sockets.relay import Relay

logger = logging.getLogger("gnatswarm.clients")

# For so many subscriptions of LOOKED_AT_ONCE a client counts at least: it may have a line in the log.
CLIENT_COUNTS_AS = 10

# So many clients that have had their turn are read on in one turn of the loop: 200 operations each, some 4 ms in all.
BUSY_AT_ONCE = 5

# So many clients are told what is new in INFO in one turn of the loop: some 6 us each.
TOLD_AT_ONCE = 500

# So many clients are looked at in one turn of a reload: some 20 us each.
RELOADED_AT_ONCE = 200
# … and so many entries of permissions that are compiled for them count as one of them, or, of who logs in, as a look at
# one subscription.
ENTRIES_COUNT_AS_CLIENT = 15
ENTRIES_COUNT_AS_LOOK = 4

# Of whom a reload allows fewer than there are, so many are closed in one turn, with a line in the log for each: some
# 100 us each. And so many are looked at.
SURPLUS_AT_ONCE = 50
SURPLUS_LOOKED_AT_ONCE = 5000

# Why a reload closes clients: of several, and of one.
NOT_LET_IN = "the new users and rules do not let them in", "the new users and rules do not let it in"
OTHER_ACCOUNT = "their users have another account now", "its user has another account now"
TOO_MANY = "there are more than max_connections", "there is one more than max_connections"
TOO_MANY_OF_ACCOUNT = "their accounts have more than they may", "its account has more than it may"

# Those that are heard out, and stay, are looked at so often.
SETTLE_AGAIN_S = 0.02

# Shards do not hear of a request to disconnect clients at the same moment. A client that comes meanwhile may be one of
# those of the latest requests: more do not come within a move.
MOST_DISCONNECTED = 16

# A leaf node waits for a gateway that is being started, until the handshake's timeout.
GATEWAY_AGAIN_S = 0.05


class LeafWay(Protocol):
    """The way of leaf nodes that came by WebSocket to the gateway."""

    def is_open(self) -> bool:
        """Whether the gateway takes leaf nodes now."""

    def hand_leaf_node(
        self, fd: int, address: tuple[str, int], frozen: FrozenSocket, is_masked: bool, names: CertificateNames | None
    ) -> None:
        """Send one there: its descriptor, which is the callee's now, its address and socket, and what else it knows."""


def _later(info: InfoTemplate, session: ClientSession) -> InfoTemplate:
    """This INFO for a client that has had its first one."""
    later = info.for_later()
    return later if session.kind == "nats" else later.for_websocket()


def _blamed(row: ConnectionRow, user: str) -> str:
    """The log text about a slow consumer: user, and of the remembered subscriptions the one with most messages."""
    said = f", {row.pending_bytes} bytes pending"
    if user:
        said += f', user "{user}"'
    if row.subs:
        busiest = max(row.subs, key=lambda one: one.msgs)
        said += f', subscription "{busiest.subject}" (sid {busiest.sid}, {busiest.msgs} messages)'
    return said


class _Disconnection:
    """Clients that are closed on request, of whom some are about to come: `coming`, by id."""

    __slots__ = ("closed", "coming", "on_done")

    def __init__(self, coming: set[int], closed: int, on_done: Callable[[int], None]) -> None:
        self.coming = coming
        self.closed = closed
        self.on_done = on_done


class Clients:
    """All clients of one shard, by id in `sessions`, which is empty at first and shared with `system`.

    `system` is told of log-ins and disconnects, `on_slow` of each slow consumer that was closed,
    `on_closed` of every client that has left, `on_moved` of every one that goes on in another shard.
    """

    def __init__(
        self,
        *,
        shard: int,
        options: Options,
        users: UserIndex,
        info: InfoTemplate,
        reactor: Reactor,
        fanout: Fanout,
        mesh: Mesh,
        fence: Fence,
        page: Page,
        system: System,
        sessions: dict[int, ClientSession],
        on_slow: Callable[[ConnectionRow], None],
        on_closed: Callable[[ClientSession], None],
        on_moved: Callable[[ClientSession], None],
    ) -> None:
        self._shard = shard
        self._options = options
        self._limits = options.limits
        self._reactor = reactor
        self._fanout = fanout
        self._mesh = mesh
        self._fence = fence
        self._page = page
        self.info = info
        self.is_like_newer = options.is_like_newer
        self._connected: dict[tuple[str, str], InfoTemplate] = {}  # INFO by kind and account
        self._verdicts = Verdicts()
        self.passwords = Passwords(self._verdicts)
        self._set_authenticators(options, users)
        self.rights = Rights(options, mesh)
        self.allowances = Allowances(options, page)
        self.census = AccountCensus(page, shard)
        self.denials = Denials()
        self._denied_msgs = page.snapshot(shard)["denied_msgs"]
        self._denied_subscriptions = page.snapshot(shard)["denied_subscriptions"]
        self.refused_logins = page.snapshot(shard)["refused_logins"]
        self._gates: dict[str, Gate | None] = {"nats": None, "websocket": None}
        self._failed_handshakes = page.snapshot(shard)["failed_handshakes"]
        self._stale = page.snapshot(shard)["stale_connections"]
        self._set_gates(options)
        # Connections accepted so far, refused ones included; a restarted shard continues its predecessor's count.
        self.accepted = page.snapshot(shard)["accepted_sockets"]
        self.open = sessions
        self._expected: dict[int, ClientSession] = {}  # clients of other shards that are about to go on here
        self._reload_later: dict[int, bool] = {}  # cid of a client that moves → whether its stream imports have changed
        self._dismiss_later: dict[int, bool] = {}  # cid of a client that is about to come → see dismiss()
        self._disconnections: list[_Disconnection] = []  # that wait for clients that are about to come
        self._disconnected: deque[range] = deque(maxlen=MOST_DISCONNECTED)  # client ids; some may yet come
        self._ending: dict[ClientSession, None] = {}  # those with subscriptions to end, in the order of their turns
        self._ends_soon = False
        self._followers: set[ClientSession] = set()  # of those, whom a reload waits for
        self._at_once = 0  # so many subscriptions are still renewed in the turn of a reload
        self._limited: dict[ClientSession, Callable[[], None]] = {}  # waits for its publish_limits → reads it on
        self._busy: deque[ClientSession] = deque()  # held, because they have had their turn
        self._untold: dict[ClientSession, bool] = {}  # who is to hear what is new in INFO; whether to go (`ldm`)
        self._news: dict[tuple[str, bool], InfoTemplate] = {}  # the INFO for those, by kind of client and `ldm`
        self._tells_soon = False
        self._unchecked: dict[ClientSession, bool] = {}  # not looked at since a reload; whether they listen anew
        self._checks_soon = False
        self._allows_fewer = False  # connections than before, of the reload that is under way
        self._formers: list[dict[str, Authenticator]] = []  # rules from before the reloads that are not over
        self._comparisons: Comparisons[ClientSession] = Comparisons(self.passwords, self._look_again)
        self._on_reloaded: list[Callable[[], None]] = []
        self._reload_closed: Counter[tuple[str, str]] = Counter()  # how many clients a reload has closed; why
        self._surplus: set[int] = set()  # cids of clients that are being closed, and count no more: see _end_surplus
        self._perhaps_surplus: list[ClientSession] = []  # a reload may allow fewer than there are: the next one last
        self._closes_soon = False
        self.closed = Closed(options.limits.max_closed_clients)
        self.passing = Passing()
        self._hearing = Hearing(self._allowance_of, self.on_other_publish_limits)
        self._settles_soon = False
        self._told_when_heard: set[ClientSession] = set()  # that they are to go
        self._is_holding = False
        self._is_departing = False
        self._ended_relays: set[str] = set()  # boot ids
        self._finishes = False  # the reactor is to send what was queued
        self.relay: Relay | None = None  # this process stays for the TLS of clients that move; None: they do not
        self.leaf_way: LeafWay | None = None  # None: this broker is no hub
        self._leaf_nodes: set[ClientSession] = set()  # that are held until the gateway has them
        self.relay_here: Callable[[], Relay] | None = None  # has the TLS of leaf nodes; None: see leaf_way
        self._throttled = 0  # connections refused by connection_rate_limit since the last log line
        self._system = system
        self._on_slow = on_slow
        self._on_closed = on_closed
        self._on_moved = on_moved

    def new_tracers(self) -> tuple[Tracer, Tracer]:
        """Two tracers of a client: incoming, outgoing."""
        logging = self._options.logging

        def tracer(*, is_incoming: bool) -> Tracer:
            return Tracer(
                is_incoming=is_incoming,
                payload_bytes=logging.trace_payload_bytes,
                is_like_newer=self.is_like_newer,
                only_headers=logging.trace_headers,
            )

        return tracer(is_incoming=True), tracer(is_incoming=False)

    def note_failed_handshake(self) -> None:
        """Count a connection that failed before the NATS protocol began."""
        self._failed_handshakes += 1
        self._page.store(self._shard, "failed_handshakes", self._failed_handshakes)

    def _set_gates(self, options: Options) -> None:
        """Set the gates of new connections. CertificateError when a file is wrong; the gates are unchanged then."""
        leafnodes, websocket = options.leafnodes, options.websocket
        mapped = {"nats": options.tls.verify_and_map, "websocket": websocket.tls.verify_and_map}
        self.maps_certificates = frozenset(kind for kind, maps in mapped.items() if maps)
        mapped["websocket"] |= bool(leafnodes.port and leafnodes.tls.verify_and_map)
        self.keeps_names = frozenset(kind for kind, maps in mapped.items() if maps)
        gates: dict[str, Gate | None] = {"nats": None, "websocket": None}
        rules: dict[str, CertificateRule | None] = {"nats": None, "websocket": None}
        if options.tls.is_on or options.websocket.port or options.proxy_protocol:
            # Imported here, so that a broker without TLS and WebSocket does not load ssl.
            from gnatswarm.shards.sockets.gate import client_gate, websocket_gate

            gates = {"nats": client_gate(options), "websocket": websocket_gate(options)}
        if options.tls.is_on or options.websocket.tls.is_on:
            from gnatswarm.shards.clients.certificate_rule import certificate_rule

            for kind, tls in ("nats", options.tls), ("websocket", options.websocket.tls):
                gate = gates[kind]
                if gate is not None and gate.context is not None:
                    rules[kind] = certificate_rule(tls, gate.context)
        self._gates = gates
        self.certificate_rules = rules

    def _set_authenticators(self, options: Options, users: UserIndex) -> None:
        self.users = users
        self.has_nkeys = bool(users.nkeys)
        general = Authenticator(options, self._verdicts, users=users)
        own = for_websocket(options)
        of_websocket = general if own is options else Authenticator(own, self._verdicts, users=users)
        self.authenticators = {"nats": general, "websocket": of_websocket}

    def on_accept(self, fd: int, host: str, port: int) -> None:
        """Take over a new connection of the clients' port."""
        self._take(fd, host, port, "nats")

    def on_accept_websocket(self, fd: int, host: str, port: int) -> None:
        """Take over a new connection of the WebSocket port."""
        self._take(fd, host, port, "websocket")

    def count_accepted(self, connections: int) -> None:
        """Count connections accepted for this shard, including those that ended before it got them."""
        self.accepted += connections
        self._page.store(self._shard, "accepted_sockets", self.accepted)
        self._page.store(self._shard, "total_connections", self.accepted)

    def _take(self, fd: int, host: str, port: int, kind: str) -> None:
        self.count_accepted(1)
        admitted = self._page.try_add_connection(self._shard, self._limits.max_connections)
        cid = self._page.next_client_id()
        nonce = new_nonce() if self.authenticators[kind].wants_nonce else b""
        template = self.info if kind == "nats" else self.info.for_websocket()
        gate = self._gates[kind]
        # A PROXY header, which says whose connection it is, comes after INFO.
        info = template.line(cid, "" if gate is not None and gate.reads_proxy_header else host, nonce)
        if not admitted:
            greeting = info if gate is None or (kind == "nats" and not gate.is_silent) else b""
            self._refuse(fd, greeting, MaximumConnectionsExceeded())
            self.closed.note_refused(cid, host, port, kind)
            fields = {"cid": cid, "address": f"{host}:{port}"}
            logger.error("%s:%d - cid:%d - maximum connections exceeded", host, port, cid, extra={"log_fields": fields})
            return
        if kind == "nats" and gate is not None and gate.context is not None and self._is_throttled():
            self._page.remove_connection(self._shard)
            self._refuse(fd, b"" if gate.is_silent else info, ConnectionThrottling())
            self.closed.note_refused(cid, host, port, kind)
            return
        must_authenticate = self.authenticators[kind].is_required
        session = ClientSession(self, cid, host, port, kind=kind, nonce=nonce, must_authenticate=must_authenticate)
        connection = session.connection
        if self._is_holding:
            connection.wait()
        refused: ProtocolError | None = None
        if not must_authenticate:
            try:
                session.enter(NOBODY)
            except MaximumAccountConnectionsExceeded as error:
                refused = error
        self.open[cid] = session
        try:
            if gate is None:
                session.socket = self._reactor.open(fd, connection, session, is_local=is_on_this_host(host))
            else:
                session.socket = self._open_gated(fd, connection, session, gate)
        except OSError as error:
            self._forget_unwatched(session, error)
            os.close(fd)
            return
        if gate is not None and gate.reads_proxy_header and gate.is_silent and refused is None:
            session.needs_greeting = True  # (the header comes before the handshake, and that before INFO)
        else:
            connection.send(info)
        if refused is not None:
            connection.end(refused)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client connection created", session)

    def greet(self, session: ClientSession, *, is_known: bool) -> None:
        """Queue its first INFO, with its address if that is known."""
        host = session.host if is_known else ""
        session.connection.send(self.info.line(session.connection.cid, host, session.nonce))

    def _forget_unwatched(self, session: ClientSession, why: OSError) -> None:
        """Its socket cannot be watched: a user may have so many in all processes (max_user_watches)."""
        logger.error("%s - cannot be served, and is closed: %s", session, why)
        del self.open[session.connection.cid]
        self._page.remove_connection(self._shard)
        self.census.leave(session)
        self._reactor.release(session.connection)

    def on_leaf_node(self, session: ClientSession) -> None:
        """A leaf node has come by WebSocket; its session is held."""
        self._leaf_nodes.add(session)
        # (not at once: the reactor is just reading its socket)
        asyncio.get_running_loop().call_soon(self._give_away, session)

    def _give_away(self, session: ClientSession) -> None:
        """The leaf node goes on in the gateway, but for its TLS: its session here ends as if it had never been."""
        if session.socket is None or session.connection.is_closing:
            return
        layered: LayeredSocket = session.socket  # type: ignore[assignment]  # as every socket with WebSocket
        try:
            if self.leaf_way is None:
                raise RecordRefused("Not configured to accept leaf node connections")
            if not self.leaf_way.is_open():  # it is being started
                asyncio.get_running_loop().call_later(GATEWAY_AGAIN_S, self._give_away, session)
                return
            frozen, is_masked = layered.freeze_upgraded(), layered.is_masked
            fd = self._without_tls(session, layered) if layered.has_tls else layered.detach()
        except RecordRefused as error:
            logger.error("%s - %s", session, error)
            layered.kick(CloseReason.CLIENT_CLOSED)
            return
        except Exception:  # (behind this nobody else would close its descriptor)
            self._blame(session)
            self._reactor.finish()
            return
        del self.open[session.connection.cid]
        self._leaf_nodes.discard(session)
        self._untold.pop(session, None)
        self._told_when_heard.discard(session)
        self._hearing.forget(session)
        self._end_limited(session)
        self._unchecked.pop(session, None)
        self._page.remove_connection(self._shard)
        self.census.leave(session)
        session.socket = None
        self._reactor.release(session.connection)
        self.leaf_way.hand_leaf_node(fd, (session.host, session.port), frozen, is_masked, session.names)

    def _without_tls(self, session: ClientSession, layered: LayeredSocket) -> int:
        """A descriptor with what is behind its TLS, which stays in this process. RecordRefused: there is none left."""
        assert self.relay_here is not None
        relay = self.relay_here()
        ends = relay.make_pair()
        label = f"{session.host}:{session.port} - leaf node"
        relay.take(label, layered.detach_tls(), ends[1], is_leaf_node=True)
        return ends[0].detach()

    def new_connection(self, session: ClientSession, cid: int, *, must_authenticate: bool) -> ClientConnection:
        """The engine's side of a new session."""
        return ClientConnection(
            self._fanout,
            self.rights.sublist(GLOBAL_ACCOUNT),
            self._fence,
            cid,
            self._limits,
            session,
            offers_headers=self._options.headers,
            must_authenticate=must_authenticate,
        )

    # ---- between shards

    @property
    def may_have_tls(self) -> bool:
        """Whether any port has TLS, now or before a reload."""
        return any(gate is not None and gate.context is not None for gate in self._gates.values()) or any(
            session.has_tls_here for session in self.open.values()
        )

    def stays(self, session: ClientSession) -> bool:
        """Whether this client cannot move: its TLS is here, and this process does not stay for it."""
        return session.has_tls_here and self.relay is None

    @property
    def most_subject_bytes(self) -> int:
        """No client may publish or subscribe to a longer subject."""
        return self._limits.max_control_line_bytes

    def is_unchecked(self, session: ClientSession) -> bool:
        """Whether a reload has yet to come to this client: the next shard, where it is over perhaps, would not."""
        is_noted = session in self._unchecked or session.connection.cid in self._reload_later
        return is_noted or self._may_be_surplus(session)

    def waits_for_limit(self, session: ClientSession) -> bool:
        """Whether it has publish_limits, and has sent what is not carried out yet."""
        is_limited = self._allowance_of(session) is not None
        return is_limited and session.socket is not None and session.socket.unread_bytes > 0

    def is_expected(self, cid: int) -> bool:
        """Whether a client of another shard is about to go on here."""
        return cid in self._expected

    def leave_behind(self, session: ClientSession, new: int) -> int:
        """The client goes on in shard `new`: forget it, and return its descriptor, which is the caller's now.

        It is not told, and nobody is told that it has left. RecordRefused: its socket is being closed.
        """
        if session.socket is None:
            raise RecordRefused("it is being closed")
        relay = self.relay if session.has_tls_here else None
        ends = relay.make_pair() if relay is not None else None
        row = connection_row(session, wall_offset_us())
        self.passing.leave(row, new)
        if relay is not None and ends is not None:
            layered: LayeredSocket = session.socket  # type: ignore[assignment]  # no other has TLS
            relay.take(str(session), layered.detach_tls(), ends[1])
            fd = ends[0].detach()
        else:
            fd = session.socket.detach()
        del self.open[session.connection.cid]
        self.closed.note_moved(row.account, row.in_msgs, row.in_bytes, row.out_msgs, row.out_bytes)
        self._on_moved(session)
        self._untold.pop(session, None)
        self._told_when_heard.discard(session)
        self._hearing.forget(session)
        self._end_limited(session)
        self._unchecked.pop(session, None)
        self._reload_no_more(session.connection.cid)
        self._page.pass_connection(self._shard)
        self.census.pass_on(session)
        session.socket = None
        self._reactor.release(session.connection)
        return fd

    def expect(self, cid: int, who: FrozenSession) -> ClientSession:
        """A client of another shard is about to go on here; take_over() or forget_expected() follows.

        The broker and its account count it once: it is counted there until it goes, and here from take_over() on.
        RecordRefused, with the reason: nothing has changed.
        """
        if cid in self.open or cid in self._expected:
            raise RecordRefused(f"client {cid} is in this shard already")
        if who.kind == "websocket" and self._gates["websocket"] is None:
            raise RecordRefused("there is no port for WebSocket clients here")
        session = ClientSession(self, cid, who.host, who.port, kind=who.kind, nonce=who.nonce, must_authenticate=False)
        session.thaw(who)
        self._page.expect_connection(self._shard)
        self._expected[cid] = session
        if self._is_holding:
            session.connection.wait()
        return session

    def forget_expected(self, session: ClientSession) -> None:
        """It does not come. The caller has taken its connection out of the engine."""
        del self._expected[session.connection.cid]
        self._reload_no_more(session.connection.cid)
        self._dismiss_later.pop(session.connection.cid, None)
        self._end_waiting(session.connection.cid, was_closed=False)
        self._page.expect_no_more(self._shard)

    def lost_on_its_way(self) -> None:
        """Clients that were to go on in another shard, or in this one, may have come nowhere: they count no more."""
        self._page.doubt_connections()

    def take_over(self, session: ClientSession, fd: int, moved: MovedClient, old: int) -> None:
        """An expected client of shard `old` is here: it goes on over this descriptor, its socket's from now on.

        RecordRefused: the record is not of its kind; OSError: its socket cannot be watched. Then it is expected as
        before, and the descriptor is the caller's.
        """
        frozen = moved.socket
        socket: Socket | None = None
        if (session.kind == "websocket") != (frozen.frames is not None):
            raise RecordRefused("the record of its socket is not of its kind")
        if frozen.frames is not None or frozen.kept:
            from gnatswarm.shards.sockets.layered import LayeredSocket

            socket = LayeredSocket(self._gates[session.kind], frozen)
        cid = session.connection.cid
        # Before it counts as one of ours: the kernel may have no room for one more watched socket.
        session.socket = self._reactor.put(fd, session.connection, session, frozen, socket)
        del self._expected[cid]
        if moved.is_counted:
            self.census.take(session)
        self._page.take_connection(self._shard)
        self.open[cid] = session
        came = moved.client
        self.closed.note_moved(session.account, -came.in_msgs, -came.in_bytes, -came.out_msgs, -came.out_bytes)
        session.came_from, session.moved_us = old, time.time_ns() // 1000
        self.passing.come(cid, old, session.moved_us)
        self.census.stay(session, self.rights.most_connections(session.account))
        if any(cid in cids for cids in self._disconnected):  # its old shard has not heard of it in time
            self._dismiss_later[cid] = True
        self._tell_what_it_missed(session, moved)
        self._reload_now(cid)
        self._log_closed()
        if cid in self._dismiss_later:  # (not at once: its move ends in a turn of the reactor)
            asyncio.get_running_loop().call_soon(self._dismiss_now, cid, self._dismiss_later.pop(cid))
        self.finish_soon()

    def _open_gated(self, fd: int, connection: ClientConnection, session: ClientSession, gate: Gate) -> Socket:
        from gnatswarm.shards.sockets.layered import LayeredSocket

        layered = LayeredSocket(gate)
        socket = self._reactor.open(fd, connection, session, layered)
        if gate.is_silent and gate.fallback_s:
            asyncio.get_running_loop().call_later(gate.fallback_s, layered.speak_first)
        return socket

    def _is_throttled(self) -> bool:
        """Whether connection_rate_limit is reached. The log has one line for the refused connections of a second."""
        most = self._options.tls.handshakes_per_s
        if most == 0 or self._page.try_handshake(most):
            return False
        if self._throttled == 0:
            asyncio.get_running_loop().call_later(1.0, self._log_throttled)
        self._throttled += 1
        return True

    def _log_throttled(self) -> None:
        refused, self._throttled = self._throttled, 0
        logger.warning("Rejected %d connections due to TLS rate limiting", refused)

    def _refuse(self, fd: int, info: bytes, error: ProtocolError) -> None:
        """Send INFO and the error, and close. A new socket's buffer takes these few bytes.

        `info` is empty if the client expects a handshake first: then it is closed without any text.
        """
        if info:
            with contextlib.suppress(OSError):  # the client has left already
                os.write(fd, info + error.wire)
        os.close(fd)

    def info_of_connected(self, session: ClientSession) -> bytes:
        """The INFO line for a client that has logged in; b"": 2.9 tells only of another max_payload than before."""
        account = session.account
        if not self.is_like_newer and self.rights.limits(account).max_payload_bytes == self.info.max_payload_bytes:
            return b""
        which = session.kind, account
        template = self._connected.get(which)
        if template is None:
            template = _later(self.info, session)
            if self.is_like_newer:
                template = template.for_connected(account, is_system=account == self._options.system_account)
            self._connected[which] = template
        return self._line(template, session)

    def _line(self, template: InfoTemplate, session: ClientSession) -> bytes:
        """A later INFO of this client, with its account's max_payload: clients check what they publish against it."""
        most = self.rights.limits(session.account).max_payload_bytes
        return template.line(session.connection.cid, session.host, max_payload_bytes=most)

    def on_connected(self, session: ClientSession, before: str = "", *, is_announced: bool = True) -> None:
        """It has logged in; `before`: the account in which it was until now. `is_announced`: there is an event."""
        self._system.on_connected(session, before, is_announced=is_announced)

    def on_refused(self, session: ClientSession) -> None:
        """The client's log-in was refused; it is about to be closed."""
        self._system.on_refused(session)

    def on_system_request(self, session: ClientSession, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """The client publishes to $SYS.REQ.…. True: the broker answers, perhaps beside other subscribers."""
        return self._system.on_request(session, subject, reply, payload)

    def on_closed(self, session: ClientSession) -> None:
        """A session has ended; its subscriptions are removed."""
        cid = session.connection.cid
        del self.open[cid]
        self._leaf_nodes.discard(session)
        self._hearing.forget(session)
        self._told_when_heard.discard(session)
        self._end_limited(session)
        self._reload_no_more(cid)
        self._ending.pop(session, None)
        self._follows_no_more(session)
        self._untold.pop(session, None)
        self._unchecked.pop(session, None)
        if cid in self._surplus:
            self._surplus.discard(cid)
        else:
            self._page.remove_connection(self._shard)
        self.census.leave(session)
        self.closed.note(session)
        self._on_closed(session)
        self._system.on_disconnected(session)
        session.socket = None
        if session.reason is CloseReason.STALE_CONNECTION:
            self._stale += 1
            self._page.store(self._shard, "stale_connections", self._stale)
        if session.reason in SLOW:
            row = unpacked(self.closed.slow.newest)
            logger.warning(
                "%s - Slow Consumer Detected: %s%s", session, session.reason.text, _blamed(row, session.user)
            )
            self._on_slow(row)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client connection closed: %s", session, session.reason.text)

    def connections(self) -> list[ClientConnection]:
        """The connections of all clients, and of those that are about to come from other shards."""
        return [session.connection for session in (*self.open.values(), *self._expected.values())]

    def hold(self) -> None:
        """Execute no operations of present and new clients until go_on()."""
        self._is_holding = True
        for connection in self.connections():
            connection.wait()

    def go_on(self) -> None:
        """Execute clients' operations again; what a leaf node says is for the gateway."""
        self._is_holding = False
        for session in (*self.open.values(), *self._expected.values()):
            if session not in self._leaf_nodes:
                session.connection.go_on()

    def note_refused(self) -> None:
        """A log-in failed."""
        self.refused_logins += 1
        self._page.store(self._shard, "refused_logins", self.refused_logins)

    def note_denied(self, account: str, user: str, *, is_publish: bool) -> None:
        """A client's permissions did not allow a publish, or a subscription."""
        self.denials.note(account, user, is_publish=is_publish)
        if is_publish:
            self._denied_msgs += 1
            self._page.store(self._shard, "denied_msgs", self._denied_msgs)
        else:
            self._denied_subscriptions += 1
            self._page.store(self._shard, "denied_subscriptions", self._denied_subscriptions)

    def on_publish_limited(self, session: ClientSession, wait_us: int) -> None:
        """The client has to wait, because of publish_limits."""
        self.denials.note_limited(session.account, session.connect.nkey or session.user)

        def again() -> None:
            if self._limited.pop(session, None) is not None and session.socket is not None:
                session.connection.publish_again()
                self.finish_soon()  # (a link that is just being read may have brought this about)

        self._limited[session] = self.allowances.wait((session.user, session.account), wait_us, again)

    def _end_limited(self, session: ClientSession) -> None:
        """It is here no more, and waits for nothing."""
        end = self._limited.pop(session, None)
        if end is not None:
            end()

    def on_other_publish_limits(self, session: ClientSession) -> None:
        """The client has other publish_limits than before: it waits for those no more."""
        read_on = self._limited.get(session)
        if read_on is not None:
            read_on()

    def on_turn_over(self, session: ClientSession) -> None:
        """The client has had its turn: it is read on behind those before it, a few in each turn of the loop."""
        self._busy.append(session)
        if len(self._busy) == 1:
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        for _ in range(min(BUSY_AT_ONCE, len(self._busy))):
            session = self._busy.popleft()
            if session.socket is not None:
                try:
                    session.connection.read_on()
                except Exception:
                    self._blame(session)
        if self._busy:
            asyncio.get_running_loop().call_soon(self._read_on)
        self._reactor.finish()

    def end_soon(self, session: ClientSession) -> None:
        """Subscriptions of its, or a log-in that waits for their end, are due: end_some() follows until none is."""
        self._ending[session] = None
        self._end_in_turn()

    def _end_in_turn(self) -> None:
        if self._ending and not self._ends_soon:
            self._ends_soon = True
            asyncio.get_running_loop().call_soon(self._end_some)

    def _end_some(self) -> None:
        """One turn: other clients are served before the next one."""
        self._ends_soon = False
        if not self._ending:  # they have gone
            return
        left = LOOKED_AT_ONCE
        while self._ending and left > 0:
            session = next(iter(self._ending))
            del self._ending[session]
            held, compiled = session.connection.subscriptions, self.rights.compiled_entries
            try:
                session.end_some(left)
            except Exception:
                self._follows_no_more(session)
                self._blame(session)
                continue
            left -= max(held, CLIENT_COUNTS_AS, (self.rights.compiled_entries - compiled) // ENTRIES_COUNT_AS_LOOK)
            if not session.connection.is_ending:
                self._follows_no_more(session)
            else:  # behind the others
                self._ending[session] = None
        self._end_in_turn()
        self._reactor.finish()

    def finish_soon(self) -> None:
        """Flush what is queued: when the reactor's round is over, or without one on the loop's next turn."""
        if not self._finishes and not self._reactor.is_serving:
            self._finishes = True
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        self._finishes = False
        self._reactor.finish()

    def close(self, sessions: Iterable[ClientSession], reason: CloseReason) -> None:
        """Close these clients, after sending as much of their queued bytes as their sockets take at once."""
        for session in sessions:
            try:
                self.tell_now(session)
            except Exception:
                self._blame(session)
            if session.socket is not None:
                session.socket.kick(reason)
        self._reactor.finish()

    def _blame(self, session: ClientSession) -> None:
        """An error of ours is being handled, in what is done for one client of many: the others go on."""
        if session.socket is not None:
            self._reactor.blame(session.socket)
        else:
            logger.exception("%s - an error of ours for a client that has gone", session)

    def read_ahead(self) -> tuple[int, set[int]]:
        """Carry out what clients have sent that have closed, or are over their publish_limits, without these.

        Of how many, and the ids of those that have closed. The others have their limit again behind it.
        """
        self._hear(list(self.open.values()))
        heard = self._hearing.sessions
        return len(heard), {session.connection.cid for session in heard if session.has_ended}

    def _hear(self, sessions: Iterable[ClientSession]) -> None:
        for session in sessions:
            try:
                self._hearing.begin(session)
            except Exception:
                self._blame(session)
        self._reactor.finish()
        if self._hearing.sessions and not self._settles_soon:
            self._settles_soon = True
            asyncio.get_running_loop().call_later(SETTLE_AGAIN_S, self._settle)

    def _settle(self) -> None:
        self._settles_soon = False
        heard = []
        for session in list(self._hearing.sessions):
            try:
                if self._hearing.settle(session):
                    heard.append(session)
            except Exception:
                self._blame(session)
        self._tell({session: True for session in heard if session in self._told_when_heard})
        self._told_when_heard.difference_update(heard)
        self._hear(())

    def hear_out(self, sessions: Iterable[ClientSession]) -> list[ClientSession]:
        """Those of them that may be closed now: others are heard out first (`Hearing`), for a second at most."""
        heard = []
        for session in sessions:
            try:
                is_over = self._hearing.is_over(session)
            except Exception:
                self._blame(session)
                is_over = True
            if is_over:
                heard.append(session)
        self._reactor.finish()
        return heard

    def allowance_of(self, session: ClientSession, user: str, account: str) -> Allowance | None:
        """What it may publish as this user; None: as much as it wants to, or it is being heard out."""
        return None if session in self._hearing.sessions else self.allowances.of(user, account)

    def _allowance_of(self, session: ClientSession) -> Allowance | None:
        return self.allowances.of(session.user, session.account)

    def is_deaf(self, cid: int) -> bool:
        """Whether this client is here, and reads no other INFO now: it understands none, or has had no PONG."""
        session = self.open.get(cid)
        return session is not None and not (session.connection.protocol >= 1 and session.connection.was_ponged)

    def dismiss(self, cid: int, *, is_kicked: bool) -> bool:
        """Close this client, or ask it to reconnect (`ldm`). False: it is not on this shard.

        One that is about to come here is told when it has come; until then it is on its shard.
        """
        session = self.open.get(cid)
        if session is None:
            if cid in self._expected:
                self._dismiss_later[cid] = is_kicked or self._dismiss_later.get(cid, False)
            return False
        if is_kicked:
            self.close([session], CloseReason.KICKED)
        else:
            session.connection.send_info(self._line(_later(self.info.for_departure(), session), session))
            self._reactor.finish()
        return True

    def _dismiss_now(self, cid: int, is_kicked: bool) -> None:
        """It has come."""
        was_found = self.dismiss(cid, is_kicked=is_kicked)
        self._end_waiting(cid, was_closed=was_found)

    def close_all(self, reason: CloseReason) -> None:
        """Close every client."""
        self.close(list(self.open.values()), reason)

    def disconnect(self, first_cid: int, on_done: Callable[[int], None]) -> None:
        """Close all clients whose id is `first_cid` or higher, and on_done(how many) is called: at once, mostly.

        Those that are about to come are closed and counted when they have come, unless their old shard does that. One
        that comes later, because its old shard had not heard of this before it moved, is closed then, and not counted.
        """
        sessions = [session for cid, session in self.open.items() if cid >= first_cid]
        coming = {cid for cid in self._expected if cid >= first_cid}
        self._dismiss_later |= dict.fromkeys(coming, True)
        self._disconnected.append(range(first_cid, self._page.peek_client_id()))
        self.close(sessions, CloseReason.KICKED)
        if coming:
            self._disconnections.append(_Disconnection(coming, len(sessions), on_done))
        else:
            on_done(len(sessions))

    def _end_waiting(self, cid: int, *, was_closed: bool) -> None:
        """Nobody waits for this client any more: it has come, or does not come."""
        for one in [one for one in self._disconnections if cid in one.coming]:
            one.coming.discard(cid)
            one.closed += was_closed
            if not one.coming:
                self._disconnections.remove(one)
                one.on_done(one.closed)

    def announce_departure(self, *, with_tls_only: bool = False) -> None:
        """Ask every client, and from now on every new one, to reconnect elsewhere (`ldm` in INFO).

        `with_tls_only`: those alone that cannot move, because of their TLS.
        """
        self._is_departing = not with_tls_only
        if not with_tls_only:
            self.info = self.info.for_departure()
            self._forget_info()
        self._tell_to_go([session for session in self.open.values() if not with_tls_only or self.stays(session)])

    def announce_end_of_relays(self, relays: list[str]) -> None:
        """Ask those clients to reconnect whose TLS is in these processes (`ldm` in INFO)."""
        self._ended_relays.update(relays)
        self._tell_to_go([session for session in self.open.values() if session.relay in relays])

    def _tell_to_go(self, sessions: list[ClientSession]) -> None:
        """Ask these to reconnect. What those had sent that are over their publish_limits is read ahead.

        Who has closed answers INFO with a reset, which ends what its kernel still has.
        """
        self._hear(sessions)
        heard = self._hearing.sessions
        self._told_when_heard.update(session for session in sessions if session in heard)
        self._tell({session: True for session in sessions if session not in heard})

    def is_told_to_go(self, session: ClientSession) -> bool:
        """Whether all clients of this shard, or of this one's relay, are asked to reconnect."""
        return self._is_departing or session.relay in self._ended_relays

    def _tell_what_it_missed(self, session: ClientSession, moved: MovedClient) -> None:
        """Tell a client that has come what was announced while it was on its way, unless its old shard has done so."""
        goes = self.is_told_to_go(session) and not moved.was_told_to_go
        if goes or moved.news != self.info.news:
            self._untold[session] = goes
            self.tell_now(session)

    def announce(self, info: InfoTemplate) -> None:
        """Tell every client, and from now on every new one, what is new in INFO; not again that it should leave."""
        self.info = info.for_departure() if self._is_departing else info
        self._forget_info()
        self._tell(dict.fromkeys(self.open.values(), False))

    def _tell(self, sessions: dict[ClientSession, bool]) -> None:
        """Tell each of them what INFO says when it has its turn: the newest, once, and whether it is to go (`ldm`)."""
        sessions |= {session: True for session, goes in self._untold.items() if goes}
        self._untold |= sessions
        for session in [session for session in sessions if session.connection.is_moving]:
            self.tell_now(session)  # (it may go on elsewhere before its turn comes)
        if not self._tells_soon:
            self._tell_some()

    def _tell_some(self) -> None:
        """One turn: other clients are served before the next one."""
        self._tells_soon = False
        for session in list(islice(self._untold, TOLD_AT_ONCE)):
            try:
                self.tell_now(session)
            except Exception:
                self._blame(session)
        if self._untold:
            self._tells_soon = True
            asyncio.get_running_loop().call_soon(self._tell_some)
        self._reactor.finish()

    def _forget_info(self) -> None:
        """INFO is another one: what was made of it counts no more."""
        self._connected.clear()
        self._news.clear()

    def tell_now(self, session: ClientSession) -> None:
        """Tell the client what is new in INFO, if that is due: it is about to be closed, or to go on elsewhere."""
        goes = self._untold.pop(session, None)
        if session in self._told_when_heard:  # (there is no other time to tell it)
            self._told_when_heard.discard(session)
            goes = True
        if goes is None:
            return
        # What waits for its first PONG is replaced: it has not heard yet that it should leave.
        goes = goes or (self.is_told_to_go(session) and not session.connection.was_ponged)
        which = session.kind, goes
        template = self._news.get(which)
        if template is None:
            general = self.info.for_departure() if goes else self.info.for_told()
            template = self._news[which] = _later(general, session)
        session.connection.send_info(self._line(template, session))

    def reload(
        self,
        options: Options,
        users: UserIndex,
        info: InfoTemplate,
        listeners: set[str],
        on_done: Callable[[], None] | None = None,
    ) -> None:
        """Apply new options: they hold at once for new clients, for all others when on_done() is called.

        Those that could not log in any more are closed, and the log says how many. `users`: those of the options.
        `listeners`: accounts whose stream imports have changed. Clients have their turns, so that others are served in
        between; of few it is done at once.
        """
        self._options = options
        if options.limits.max_closed_clients != self._limits.max_closed_clients:
            self.closed.set_most(options.limits.max_closed_clients)
        self._allows_fewer |= options.limits.max_connections < self._limits.max_connections
        if options.websocket.port and options.limits.max_payload_bytes != self._limits.max_payload_bytes:
            self._allow_frames(options)
        self._limits = options.limits
        self.info = info.for_departure() if self._is_departing else info
        self._forget_info()
        self._set_gates(options)
        self._formers.append(self.authenticators)
        self._set_authenticators(options, users)
        self.rights = Rights(options, self._mesh, self.rights)
        self.allowances = Allowances(options, self._page, self.allowances)
        self._trace_anew(options.logging)
        self._at_once = LOOKED_AT_ONCE
        before = self._unchecked
        self._unchecked = {
            session: session.account in listeners or before.get(session, False) for session in self.open.values()
        }
        for session in self._expected.values():
            self._note_reload(session, listens=session.account in listeners)
        if on_done is not None:
            self._on_reloaded.append(on_done)
        if not self._checks_soon:
            self._check_some()

    def _allow_frames(self, options: Options) -> None:
        from gnatswarm.shards.sockets.frames import most_frame_bytes
        from gnatswarm.shards.sockets.layered import LayeredSocket

        most_bytes = most_frame_bytes(options)
        for session in self.open.values():
            if isinstance(session.socket, LayeredSocket):
                session.socket.allow_frames(most_bytes)

    def _trace_anew(self, logging: Logging) -> None:
        """Other traces than before, or none any more."""
        for session in self.open.values():
            if not logging.trace:
                session.tracers = None  # one that is begun later does not begin in the middle of a message of now
            elif session.tracers is not None:
                for tracer in session.tracers:
                    tracer.show(payload_bytes=logging.trace_payload_bytes, only_headers=logging.trace_headers)

    def _check_some(self) -> None:
        """One turn of a reload: other clients are served before the next one."""
        self._checks_soon = False
        most_entries = self.rights.compiled_entries + RELOADED_AT_ONCE * ENTRIES_COUNT_AS_CLIENT
        for session in list(islice(self._unchecked, RELOADED_AT_ONCE)):
            if self.rights.compiled_entries > most_entries:
                break
            listens = self._unchecked.pop(session, None)
            if listens is None:  # it has gone
                continue
            if session.connection.is_moving:
                self._note_reload(session, listens=listens)
                continue
            try:
                self._readmit(session)
                if listens:
                    self._listen_anew(session)
                self._wait_for_subscriptions(session)
            except Exception:  # it may have rights still that it should not have
                self._blame(session)
        self._at_once = 0
        if self._unchecked:
            self._checks_soon = True
            asyncio.get_running_loop().call_soon(self._check_some)
        elif self._comparisons.are_over:
            self._end_reload()
        self._reactor.finish()

    def _end_reload(self) -> None:
        """All have been looked at."""
        self._reactor.finish()  # (who was refused counts no more)
        if self._allows_fewer or self.rights.limit_accounts:
            self._perhaps_surplus = list(self.open.values())
        if not self._closes_soon:
            self._close_some_surplus()

    def _close_some_surplus(self) -> None:
        """Close some of whom there are too many, the latest first; other clients are served before the next turn."""
        self._closes_soon = False
        looked = closed = 0
        while self._perhaps_surplus and looked < SURPLUS_LOOKED_AT_ONCE and closed < SURPLUS_AT_ONCE:
            session = self._perhaps_surplus.pop()
            looked += 1
            if self.open.get(session.connection.cid) is not session:
                continue
            if session.connection.is_moving:
                if self._may_be_surplus(session):
                    self._note_reload(session, listens=False)
                continue
            try:
                closed += self._end_surplus(session) or self._end_surplus_of_account(session)
            except Exception:
                self._blame(session)
        self._reactor.finish()
        if self._perhaps_surplus:
            self._closes_soon = True
            asyncio.get_running_loop().call_soon(self._close_some_surplus)
        elif not self._unchecked and self._comparisons.are_over:  # (else the end of what is left comes here again)
            self._forget_rights()
            self._log_closed()
            if self._reload_later or self._followers:  # (so does the last of these)
                return
            self._allows_fewer = False
            told, self._on_reloaded = self._on_reloaded, []
            for on_done in told:  # (who called reload() may have more to do)
                asyncio.get_running_loop().call_soon(on_done)

    def _log_closed(self) -> None:
        for (of_several, of_one), closed in self._reload_closed.items():
            if closed == 1:
                logger.info("Reloaded: 1 client is closed, because %s", of_one)
            else:
                logger.info("Reloaded: %d clients are closed, because %s", closed, of_several)
        self._reload_closed.clear()

    def _forget_rights(self) -> None:
        if self._unchecked or not self._comparisons.are_over:
            return
        self._comparisons.end()
        if not self._reload_later:
            self.rights.all_follow()
            self._formers.clear()

    def _compares(self, session: ClientSession) -> bool:
        """Whether the client, which the rules do not admit as far as is known, waits for a comparison.

        It stays until then as it was: its password was right until now.
        """
        if session.admission is None:
            return False
        rules = self.authenticators[session.kind]
        for former in self._formers:
            question = rules.question_after(former[session.kind], session.admission)
            if question is not None and self._comparisons.wait_for(question, session):
                return True
        return False

    def _look_again(self, sessions: Iterable[ClientSession]) -> None:
        """Their passwords have been compared."""
        for session in sessions:
            if self.open.get(session.connection.cid) is session:
                self._unchecked.setdefault(session, False)
        if not self._checks_soon:
            self._checks_soon = True
            asyncio.get_running_loop().call_soon(self._check_some)

    def _note_reload(self, session: ClientSession, *, listens: bool) -> None:
        """While it moves its subscriptions stay as they were announced: other shards count with them."""
        cid = session.connection.cid
        self._reload_later[cid] = self._reload_later.get(cid, False) or listens

    def _reload_no_more(self, cid: int) -> None:
        """It is here no more, or does not come: what was reloaded while it moved is nothing to it."""
        if self._reload_later.pop(cid, None) is not None:
            self._look_whether_reloaded()

    def _wait_for_subscriptions(self, session: ClientSession) -> None:
        """A reload is not over while some of its are still to end, or to follow other streams."""
        if session.connection.is_ending:
            self._followers.add(session)

    def _follows_no_more(self, session: ClientSession) -> None:
        if session in self._followers:
            self._followers.discard(session)
            self._look_whether_reloaded()

    def _look_whether_reloaded(self) -> None:
        """One less that a reload waits for, because it moves or has many subscriptions; behind the last, it is over."""
        self._forget_rights()
        if self._on_reloaded and not self._reload_later and not self._followers:
            asyncio.get_running_loop().call_soon(self._end_late_reload)

    def _end_late_reload(self) -> None:
        if not self._unchecked and self._comparisons.are_over:  # (else the end of these comes there)
            self._end_reload()

    def _may_be_surplus(self, session: ClientSession) -> bool:
        """Whether a reload that is not over may allow fewer like this client than there are."""
        return self._allows_fewer or (bool(self._formers) and session.counted_at >= 0)

    def _end_surplus(self, session: ClientSession) -> bool:
        """Close the client if there are more than there may be, on all shards together; whether it was so.

        The count falls at once. Two shards that look at the same moment close one more than they need to.
        """
        if not self._allows_fewer or self._page.connections <= self._limits.max_connections:
            return False
        self._surplus.add(session.connection.cid)
        self._reload_closed[TOO_MANY] += 1
        self._page.remove_connection(self._shard)
        self.census.leave(session)
        session.connection.end(MaximumConnectionsExceeded())
        return True

    def _end_surplus_of_account(self, session: ClientSession) -> bool:
        """Close the client if its account has more than it may; as _end_surplus."""
        if not self.census.has_surplus(session, self.rights.most_connections(session.account)):
            return False
        self._reload_closed[TOO_MANY_OF_ACCOUNT] += 1
        self.census.leave(session)
        session.connection.end(MaximumAccountConnectionsExceeded())
        return True

    def _listen_anew(self, session: ClientSession) -> None:
        """Its account imports other streams than before."""
        connection = session.connection
        connection.listen_anew()
        while connection.is_ending and self._at_once > 0:  # where there are few, a reload that is over has done all
            self._at_once -= max(connection.subscriptions, CLIENT_COUNTS_AS)
            session.end_some(LOOKED_AT_ONCE)
        if connection.is_ending:
            self.end_soon(session)

    def _reload_now(self, cid: int) -> None:
        """Its move is over: what was reloaded meanwhile holds from now on."""
        is_listener = self._reload_later.pop(cid, None)
        session = self.open.get(cid)
        if is_listener is None or session is None:
            return
        try:
            self._readmit(session)
            if is_listener:
                self._listen_anew(session)
            self._wait_for_subscriptions(session)
            self._end_surplus_of_account(session)
        except Exception:
            self._blame(session)
        self._look_whether_reloaded()

    def reload_those_that_stay(self) -> None:
        """A move has ended: clients of this shard that were to leave, and stay, get what was reloaded meanwhile."""
        for cid in [cid for cid in self._reload_later if cid not in self._expected]:
            session = self.open.get(cid)
            if session is None or not session.connection.is_moving:
                self._reload_now(cid)
        self._log_closed()

    def _readmit(self, session: ClientSession) -> None:
        """Check a client against the new rules."""
        rules = self.authenticators[session.kind]
        if session.admission is not None:
            identity = rules.readmit(session.admission)
        elif not session.connection.must_authenticate:  # it has sent no CONNECT, and needed none
            identity = rules.anonymous(session.connection_type)
        else:  # its CONNECT has not come yet, or is being checked
            session.connection.set_limits(self._limits)
            return
        if identity is None and self._compares(session):
            return
        if identity is None:
            self._reload_closed[NOT_LET_IN] += 1
            session.connection.end(AuthorizationViolation())
        elif not session.reenter(identity) and session.socket is not None:
            self._reload_closed[OTHER_ACCOUNT] += 1
            session.socket.kick(CloseReason.AUTHENTICATION_EXPIRED)
