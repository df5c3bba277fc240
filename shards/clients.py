"""The clients of one shard: takes new connections in, logs them in, notes their end.

The engine's ClientConnection carries out their operations; here is what happens once per connection or CONNECT.
Not here: bytes, deadlines (the reactor's), what other shards do. Called by the reactor and the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

from broker import ciphers
from broker.auth import Authenticator, HashedPassword, Verdicts
from broker.certificate_names import CertificateNames, find_user, names_of
from broker.connect import ConnectOptions, overlay, require_object, require_sense
from broker.connection import ClientConnection
from broker.errors import (
    AuthenticationTimeout,
    AuthorizationViolation,
    CloseReason,
    MaximumAccountConnectionsExceeded,
    MaximumConnectionsExceeded,
    PermissionsViolation,
    ProtocolError,
    subscription_revoked,
)
from broker.nkey import new_nonce
from broker.options import GLOBAL_ACCOUNT, STANDARD, WEBSOCKET
from broker.quoted import quoted
from broker.renewal import listen_anew
from broker.trace import Tracer
from shards.account_census import AccountCensus
from shards.closed import SLOW, Closed
from shards.logs import TRACE
from shards.passwords import Passwords
from shards.rights import Rights
from shards.window import is_on_this_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ssl import SSLObject

    from broker.auth import Admission, Identity
    from broker.connection import Fence
    from broker.fanout import Fanout
    from broker.info import InfoTemplate
    from broker.mesh import Mesh
    from broker.options import Options
    from broker.permissions import Permissions
    from shards.gate import Gate
    from shards.page import Page
    from shards.reactor import Reactor, Socket
    from shards.rows import ConnectionRow
    from shards.system import System

logger = logging.getLogger("gnatswarm.clients")

# Of what a client may not do, one line a second: it may try as often as it can write.
VIOLATIONS_EVERY_US = 1_000_000
# With more subscriptions than this a client does not become somebody else: looking at all of them takes too long.
MOST_LOOKED_AT = 20_000


class ClientSession:
    """One client: its connection, what its CONNECT said, who it is."""

    __slots__ = (
        "_asking",
        "_clients",
        "_violated_us",
        "_violations",
        "account",
        "admission",
        "claimed",
        "connect",
        "connection",
        "counted_at",
        "ended_s",
        "host",
        "kind",
        "names",
        "nonce",
        "port",
        "reason",
        "socket",
        "started_s",
        "stated",
        "tls_cipher_suite",
        "tls_version",
        "tracers",
        "user",
    )

    def __init__(
        self, clients: Clients, connection: ClientConnection, host: str, port: int, kind: str = "nats"
    ) -> None:
        self._clients = clients
        self.connection = connection
        self.host = host
        self.port = port
        self.kind = kind
        self.tls_version = self.tls_cipher_suite = ""
        self.names: CertificateNames | None = None  # of its certificate, where that says who it is
        self.started_s = time.time()
        self.ended_s = 0.0
        self.connect = NOT_CONNECTED
        self.user = ""
        self.account = ""
        self.counted_at = -1  # its account's place on the page; -1: it is not counted
        self.claimed = ""  # who it said it was, admitted or not
        self.stated = ("", "", "")  # its name, language and version, as long as it is not admitted
        self.nonce = b""
        self.admission: Admission | None = None
        self._asking: ConnectOptions | None = None  # a CONNECT whose password is being compared
        self._violated_us = 0
        self._violations = 0  # since the last log line about them
        self.reason = CloseReason.NONE
        self.socket: Socket | None = None
        self.tracers: tuple[Tracer, Tracer] | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} - {'wid' if self.kind == 'websocket' else 'cid'}:{self.connection.cid}"

    def on_secured(self, tls: SSLObject) -> None:
        """The TLS handshake is over."""
        version, suite = tls.version() or "", tls.cipher()
        self.tls_version = sys.intern(version.removeprefix("TLSv"))
        self.tls_cipher_suite = sys.intern(ciphers.server_name(suite[0] if suite else ""))
        if self._clients.maps_certificates and self.kind == "nats":
            self.names = names_of(tls.getpeercert() or {})
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - TLS version %s, cipher suite %s", self, self.tls_version, self.tls_cipher_suite)

    def on_opening_failed(self, why: str, is_upgrade: bool) -> None:
        """What comes before the protocol went wrong; on_closed follows."""
        self._clients.note_failed_handshake()
        logger.error("%s - %s handshake error: %s", self, "websocket" if is_upgrade else "TLS", _harmless(why))

    def on_wire_error(self, why: str) -> None:
        """A record or frame that is none; on_closed follows."""
        logger.error("%s - read error: %s", self, _harmless(why))

    def on_connect(self, raw: bytes) -> None:
        """A CONNECT line came. Raises the ProtocolError that it deserves."""
        options = overlay(self.connect, raw)
        try:
            self._examine(options)
        except ProtocolError:
            self._remember(options)
            raise

    def _examine(self, options: ConnectOptions) -> None:
        if self._clients.maps_certificates and self.kind == "nats":
            options.user = self._mapped_user(options.user)
        self.claimed = options.user or options.nkey
        self.stated = (options.name, options.lang, options.version)
        outcome = self._clients.authenticator.examine(options, self.nonce, self.connection_type)
        if not isinstance(outcome, HashedPassword):
            self._log_in(options, outcome)
        elif self._clients.passwords.ask(outcome, self):
            self._asking = options
            self.connection.hold_login()
        else:
            raise AuthenticationTimeout

    def _remember(self, options: ConnectOptions) -> None:
        """It is refused: who it said it is will be shown, what it said to prove that is forgotten."""
        options.auth_token = options.password = options.jwt = options.sig = ""
        self.connect = options

    def _mapped_user(self, claimed: str) -> str:
        """Who its certificate says it is, whatever its CONNECT says. AuthorizationViolation: none of our users."""
        user = find_user(self.names, self._clients.user_names) if self.names else None
        if user is None:
            raise AuthorizationViolation
        if claimed and claimed != user:
            logger.warning("User %s found in connect proto, but user required from cert", quoted(claimed))
        return user

    @property
    def connection_type(self) -> str:
        """As `allowed_connection_types` calls it."""
        return WEBSOCKET if self.kind == "websocket" else STANDARD

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits any more for what its log-in leads to."""
        return bool(self.reason) or self.connection.is_closing

    def on_compared(self, question: HashedPassword, is_same: bool | None) -> None:
        """Its password was compared with the hash; None: it never will be, there are too many."""
        options, self._asking = self._asking, None
        if options is None:
            return
        error: ProtocolError | None = None
        try:
            if is_same is None:
                raise AuthenticationTimeout
            if not is_same or not self._clients.authenticator.is_current(question):
                raise AuthorizationViolation
            self._log_in(options, question.admission)
        except ProtocolError as why:
            self._remember(options)
            error = why
        self.connection.log_in_decided(error)
        self._clients.finish_soon()

    def _log_in(self, options: ConnectOptions, admission: Admission) -> None:
        require_sense(options)
        is_first = self.admission is None
        self.enter(admission.identity)
        # Secrets have served: nothing keeps them, only what proves them once more after a reload.
        self.admission = admission
        options.auth_token = options.password = options.jwt = options.sig = ""
        self.connect = options
        self.connection.configure(
            verbose=options.verbose,
            pedantic=options.pedantic,
            echo=options.echo,
            headers=options.headers,
            no_responders=options.no_responders,
            protocol=options.protocol,
        )
        self.connection.authenticated()
        if is_first and self._clients.system is not None:
            self._clients.system.on_connected(self)

    def enter(self, identity: Identity) -> None:
        """From here on it is this one. AuthorizationViolation: it cannot become that."""
        rights = self._clients.rights
        permissions = rights.permissions(identity.permissions)
        held = self.connection.subscriptions
        if held and identity.account != self.account:
            raise AuthorizationViolation  # or its subscriptions would hear another account's messages
        if held > MOST_LOOKED_AT and self.admission is not None and identity != self.admission.identity:
            raise AuthorizationViolation
        self._clients.census.move(self, identity.account, rights.most_connections(identity.account))
        self._enter(identity, permissions)

    def reenter(self, identity: Identity) -> bool:
        """After a reload: the same user with what it may do now. False: its account is another one."""
        if identity.account != self.account:
            return False
        rights = self._clients.rights
        self._clients.census.stay(self, rights.most_connections(identity.account))
        self._enter(identity, rights.permissions(identity.permissions))
        return True

    def _enter(self, identity: Identity, permissions: Permissions | None) -> None:
        rights = self._clients.rights
        ended = self.connection.enter(rights.sublist(identity.account), permissions)
        self.connection.set_limits(rights.limits(identity.account))
        self.user = identity.user
        self.account = identity.account
        for subject, sid in ended:
            error = subscription_revoked(subject, sid)
            self.connection.send(error.wire)
            logger.info("%s - Removed sub %s (sid %s), not authorized", self, quoted(subject), quoted(sid))

    def on_info(self, raw: bytes) -> None:
        """An INFO line came: of no interest, as long as it is one. Raises BadArguments."""
        require_object(raw)

    def on_system_request(self, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """It publishes to $SYS.REQ.…. True: the broker answers, whoever else does."""
        system = self._clients.system
        return system is not None and system.on_request(self, subject, reply, payload)

    def on_error(self, error: ProtocolError) -> None:
        """The client broke the protocol and has been told, or is about to be closed in silence."""
        if isinstance(error, AuthorizationViolation | AuthenticationTimeout):
            self._clients.note_refused()
        if isinstance(error, AuthorizationViolation):
            if self._clients.system is not None:
                self._clients.system.on_refused(self)
            logger.error("%s - authentication error%s", self, f" - User {quoted(self.claimed)}" if self.claimed else "")
        elif isinstance(error, PermissionsViolation):
            self._note_violation(error)
        elif error.closes:
            logger.error("%s - %s", self, error.text or error.reason.text)
        else:
            logger.debug("%s - %s", self, error.text)

    def _note_violation(self, error: PermissionsViolation) -> None:
        self._violations += 1
        now_us = self.connection.active_us
        if self._violated_us and now_us - self._violated_us < VIOLATIONS_EVERY_US:
            return
        more = f" ({self._violations} since the last line)" if self._violations > 1 else ""
        logger.error("%s - %s - User %s%s", self, error.text, quoted(self.user), more)
        self._violated_us = now_us
        self._violations = 0

    def on_bytes_in(self, data: bytes) -> None:
        """Tracing is on: this came from the client."""
        self._trace(0, data)

    def on_bytes_out(self, data: bytes) -> None:
        """Tracing is on: this went to the client."""
        self._trace(1, data)

    def _trace(self, direction: int, data: bytes) -> None:
        if self.tracers is None:
            self.tracers = self._clients.new_tracers()
        for line in self.tracers[direction].feed(data):
            logger.log(TRACE, "%s - %s", self, line)

    def on_closed(self, reason: int) -> None:
        """The connection is over."""
        self.reason = CloseReason(reason)
        self.ended_s = time.time()
        self._clients.on_closed(self)


def _harmless(text: str) -> str:
    """For a log line: a library's words may have the peer's in them."""
    short = text[:200]
    return short if short.isprintable() else repr(short)


NOT_CONNECTED = ConnectOptions()


def _blamed(row: ConnectionRow, user: str) -> str:
    """Who was slow, and at what: the subscription that got most, of those that are remembered."""
    said = f", {row.pending_bytes} bytes pending"
    if user:
        said += f', user "{user}"'
    if row.subs:
        busiest = max(row.subs, key=lambda one: one.msgs)
        said += f', subscription "{busiest.subject}" (sid {busiest.sid}, {busiest.msgs} messages)'
    return said


class Clients:
    """All clients of one shard."""

    def __init__(
        self,
        *,
        shard: int,
        options: Options,
        info: InfoTemplate,
        reactor: Reactor,
        fanout: Fanout,
        mesh: Mesh,
        fence: Fence,
        page: Page,
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
        self._verdicts = Verdicts()
        self.passwords = Passwords(self._verdicts)
        self.authenticator = Authenticator(options, self._verdicts)
        self.rights = Rights(options, mesh)
        self.census = AccountCensus(page, shard)
        self.refused_logins = page.snapshot(shard)["refused_logins"]
        self._gates: dict[str, Gate | None] = {"nats": None, "websocket": None}
        self._failed_handshakes = page.snapshot(shard)["failed_handshakes"]
        self._set_gates(options)
        # Connections taken in so far, refused ones included; a restarted shard goes on from its predecessor's count.
        self.accepted = page.snapshot(shard)["accepted_sockets"]
        self.open: dict[int, ClientSession] = {}
        self.closed = Closed()
        self._is_holding = False
        self.on_slow: Callable[[ConnectionRow], None] = lambda row: None  # of a slow consumer that was closed
        self.system: System | None = None  # that is told who comes and goes

    def new_tracers(self) -> tuple[Tracer, Tracer]:
        """For what comes from a client, and for what goes to it."""
        most = self._options.logging.trace_payload_bytes
        return Tracer(is_incoming=True, payload_bytes=most), Tracer(is_incoming=False, payload_bytes=most)

    def note_failed_handshake(self) -> None:
        """Counts a connection that did not get to the protocol."""
        self._failed_handshakes += 1
        self._page.store(self._shard, "failed_handshakes", self._failed_handshakes)

    def _set_gates(self, options: Options) -> None:
        """What new connections have to pass from here on. CertificateError: a file is wrong, nothing was changed."""
        self.maps_certificates = options.tls.verify_and_map
        self.user_names = frozenset(user.name for user in options.users)
        gates: dict[str, Gate | None] = {"nats": None, "websocket": None}
        if options.tls.is_on or options.websocket.port:
            # ssl and all that only these need; a plain broker does not import it.
            from shards.gate import client_gate, websocket_gate

            gates = {"nats": client_gate(options), "websocket": websocket_gate(options)}
        self._gates = gates

    def on_accept(self, fd: int, host: str, port: int) -> None:
        """Takes over a new connection of the clients' port."""
        self._take(fd, host, port, "nats")

    def on_accept_websocket(self, fd: int, host: str, port: int) -> None:
        """Takes over a new connection of the WebSocket port."""
        self._take(fd, host, port, "websocket")

    def count_accepted(self, connections: int) -> None:
        """So many more were accepted for this shard; also those that were over before it had them."""
        self.accepted += connections
        self._page.store(self._shard, "accepted_sockets", self.accepted)
        self._page.store(self._shard, "total_connections", self.accepted)

    def _take(self, fd: int, host: str, port: int, kind: str) -> None:
        self.count_accepted(1)
        admitted = self._page.try_add_connection(self._shard, self._limits.max_connections)
        cid = self._page.next_client_id()
        nonce = new_nonce() if self.authenticator.wants_nonce else b""
        template = self.info if kind == "nats" else self.info.for_websocket()
        info = template.line(cid, host, nonce)
        gate = self._gates[kind]
        if not admitted:
            self._refuse(fd, info if gate is None or (kind == "nats" and not gate.is_silent) else b"", host, port, cid)
            return
        anonymous = self.authenticator.anonymous(WEBSOCKET if kind == "websocket" else STANDARD)
        connection = ClientConnection(
            self._fanout,
            self.rights.sublist(GLOBAL_ACCOUNT),
            self._fence,
            cid,
            self._limits,
            offers_headers=self._options.headers,
            must_authenticate=anonymous is None,
        )
        session = ClientSession(self, connection, host, port, kind)
        connection.session = session
        if self._is_holding:
            connection.wait()
        session.nonce = nonce
        refused: ProtocolError | None = None
        if anonymous is not None:
            try:
                session.enter(anonymous)
            except MaximumAccountConnectionsExceeded as error:
                refused = error
        self.open[cid] = session
        if gate is None:
            session.socket = self._reactor.open(fd, connection, session, is_local=is_on_this_host(host))
        else:
            session.socket = self._open_gated(fd, connection, session, gate)
        connection.send(info)
        if refused is not None:
            connection.end(refused)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client connection created", session)

    def _open_gated(self, fd: int, connection: ClientConnection, session: ClientSession, gate: Gate) -> Socket:
        from shards.layered import LayeredSocket

        layered = LayeredSocket(gate)
        socket = self._reactor.open(fd, connection, session, layered)
        if gate.is_silent and gate.fallback_s:
            asyncio.get_running_loop().call_later(gate.fallback_s, layered.speak_first)
        return socket

    def _refuse(self, fd: int, info: bytes, host: str, port: int, cid: int) -> None:
        """Over max_connections: INFO, the error, and the end. A new socket's buffer takes so few bytes.

        Without `info` the client expects a handshake first, which is not made for this.
        """
        if info:
            with contextlib.suppress(OSError):  # gone already
                os.write(fd, info + MaximumConnectionsExceeded().wire)
        os.close(fd)
        logger.error("%s:%d - cid:%d - maximum connections exceeded", host, port, cid)

    def on_closed(self, session: ClientSession) -> None:
        """A session has ended; its subscriptions go with it."""
        del self.open[session.connection.cid]
        self._page.remove_connection(self._shard)
        self.census.leave(session)
        self.closed.note(session)
        if self.system is not None:
            self.system.on_disconnected(session)
        session.socket = None
        if session.reason in SLOW:
            row = self.closed.slow[-1]
            logger.warning(
                "%s - Slow Consumer Detected: %s%s", session, session.reason.text, _blamed(row, session.user)
            )
            self.on_slow(row)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client connection closed: %s", session, session.reason.text)

    def connections(self) -> list[ClientConnection]:
        """Of all clients."""
        return [session.connection for session in self.open.values()]

    def hold(self) -> None:
        """No client's operations are carried out before go_on(), nor those of who comes meanwhile."""
        self._is_holding = True
        for connection in self.connections():
            connection.wait()

    def go_on(self) -> None:
        """They are carried out again."""
        self._is_holding = False
        for connection in self.connections():
            connection.go_on()

    def note_refused(self) -> None:
        """A log-in failed."""
        self.refused_logins += 1
        self._page.store(self._shard, "refused_logins", self.refused_logins)

    def finish_soon(self) -> None:
        """What was said outside of a turn of the reactor, or in the middle of one, goes out."""
        asyncio.get_running_loop().call_soon(self._reactor.finish)

    def close(self, sessions: Iterable[ClientSession], reason: CloseReason) -> None:
        """Ends these clients, after what is queued for them has been sent as far as it goes at once."""
        for session in sessions:
            if session.socket is not None:
                session.socket.kick(reason)
        self._reactor.finish()

    def dismiss(self, cid: int, *, is_kicked: bool) -> bool:
        """Closes this client, or tells it to go elsewhere. False: it is not here."""
        session = self.open.get(cid)
        if session is None:
            return False
        if is_kicked:
            self.close([session], CloseReason.KICKED)
        else:
            template = self.info if session.kind == "nats" else self.info.for_websocket()
            session.connection.send_info(template.for_departure().line(cid, session.host, session.nonce))
            self._reactor.finish()
        return True

    def close_all(self, reason: CloseReason) -> None:
        """Ends every client."""
        self.close(list(self.open.values()), reason)

    def disconnect(self, first_cid: int) -> int:
        """Ends every client whose id is that or higher; how many there were."""
        sessions = [session for cid, session in self.open.items() if cid >= first_cid]
        self.close(sessions, CloseReason.KICKED)
        return len(sessions)

    def announce_departure(self) -> None:
        """Tells every client that it should go elsewhere (`ldm` in INFO), and every new one from here on."""
        self.info = self.info.for_departure()
        on_websocket = self.info.for_websocket()
        for session in self.open.values():
            template = self.info if session.kind == "nats" else on_websocket
            session.connection.send_info(template.line(session.connection.cid, session.host, session.nonce))
        self._reactor.finish()

    def reload(self, options: Options, info: InfoTemplate, listeners: set[str]) -> None:
        """New options: limits hold at once for everybody, who would not be let in any more is closed; says nothing.

        `listeners`: accounts that import other streams than before.
        """
        self._options = options
        self._limits = options.limits
        self.info = info
        self._set_gates(options)
        self.authenticator = Authenticator(options, self._verdicts)
        self.rights = Rights(options, self._mesh, self.rights)
        for session in list(self.open.values()):
            self._readmit(session)
            if session.account in listeners:
                listen_anew(session.connection)
        self._reactor.finish()

    def _readmit(self, session: ClientSession) -> None:
        """Looks again at a client under the new rules."""
        rules = self.authenticator
        if session.admission is not None:
            identity = rules.readmit(session.admission)
        elif not session.connection.must_authenticate:  # it has not said CONNECT, and did not have to
            identity = rules.anonymous(session.connection_type)
        else:  # its CONNECT is still to come, or being looked at
            session.connection.set_limits(self._limits)
            return
        if identity is None:
            session.connection.end(AuthorizationViolation())
        elif not session.reenter(identity) and session.socket is not None:
            session.socket.kick(CloseReason.AUTHENTICATION_EXPIRED)
