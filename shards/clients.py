"""The clients of one shard: takes new connections in, logs them in, notes their end.

The engine's ClientConnection carries out their operations; here is what happens once per connection or CONNECT.
Not here: bytes, deadlines (the reactor's), what other shards do. Called by the reactor and the connections.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from broker.auth import Authenticator, proof_of
from broker.connect import ConnectOptions, overlay, require_object, require_sense
from broker.connection import ClientConnection
from broker.errors import AuthorizationViolation, CloseReason, MaximumConnectionsExceeded, ProtocolError
from broker.trace import Tracer
from shards.closed import SLOW, Closed
from shards.logs import TRACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.connection import Fence
    from broker.fanout import Fanout
    from broker.info import InfoTemplate
    from broker.options import Options
    from broker.sublist import Sublist
    from shards.page import Page
    from shards.reactor import Reactor, Socket

logger = logging.getLogger("gnatswarm.clients")


class ClientSession:
    """One client: its connection, what its CONNECT said, who it is."""

    __slots__ = (
        "_clients",
        "connect",
        "connection",
        "ended_s",
        "host",
        "port",
        "proof",
        "reason",
        "socket",
        "started_s",
        "tracers",
        "user",
    )

    def __init__(self, clients: Clients, connection: ClientConnection, host: str, port: int) -> None:
        self._clients = clients
        self.connection = connection
        self.host = host
        self.port = port
        self.started_s = time.time()
        self.ended_s = 0.0
        self.connect = NOT_CONNECTED
        self.user = ""
        self.proof = b""
        self.reason = CloseReason.NONE
        self.socket: Socket | None = None
        self.tracers: tuple[Tracer, Tracer] | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} - cid:{self.connection.cid}"

    def on_connect(self, raw: bytes) -> None:
        """A CONNECT line came. Raises the ProtocolError that it deserves."""
        options = overlay(self.connect, raw)
        self.user = self._clients.authenticator.user_of(options)
        require_sense(options)
        # Secrets have served: nothing keeps them, only what proves them once more after a reload.
        self.proof = proof_of(options)
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

    def on_info(self, raw: bytes) -> None:
        """An INFO line came: of no interest, as long as it is one. Raises BadArguments."""
        require_object(raw)

    def on_error(self, error: ProtocolError) -> None:
        """The client broke the protocol and has been told, or is about to be closed in silence."""
        if isinstance(error, AuthorizationViolation):
            logger.error("%s - authentication error%s", self, f' - User "{self.connect.user}"' if self.connect.user else "")
        elif error.closes:
            logger.error("%s - %s", self, error.text or error.reason.text)
        else:
            logger.debug("%s - %s", self, error.text)

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


NOT_CONNECTED = ConnectOptions()


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
        sublist: Sublist,
        fence: Fence,
        page: Page,
    ) -> None:
        self._shard = shard
        self._options = options
        self._limits = options.limits
        self._reactor = reactor
        self._fanout = fanout
        self._sublist = sublist
        self._fence = fence
        self._page = page
        self.info = info
        self.authenticator = Authenticator(options)
        # Connections taken in so far, refused ones included; a restarted shard goes on from its predecessor's count.
        self.accepted = page.snapshot(shard)["accepted_sockets"]
        self.open: dict[int, ClientSession] = {}
        self.closed = Closed()

    def new_tracers(self) -> tuple[Tracer, Tracer]:
        """For what comes from a client, and for what goes to it."""
        most = self._options.logging.trace_payload_bytes
        return Tracer(is_incoming=True, payload_bytes=most), Tracer(is_incoming=False, payload_bytes=most)

    def on_accept(self, fd: int, host: str, port: int) -> None:
        """Takes over a new connection."""
        self.accepted += 1
        self._page.store(self._shard, "accepted_sockets", self.accepted)
        self._page.store(self._shard, "total_connections", self.accepted)
        admitted = self._page.try_add_connection(self._shard, self._limits.max_connections)
        cid = self._page.next_client_id()
        info = self.info.line(cid, host)
        if not admitted:
            self._refuse(fd, info, f"{host}:{port} - cid:{cid}")
            return
        connection = ClientConnection(
            self._fanout,
            self._sublist,
            self._fence,
            cid,
            self._limits,
            offers_headers=self._options.headers,
            must_authenticate=self.authenticator.asks_before_connect,
        )
        session = ClientSession(self, connection, host, port)
        connection.session = session
        self.open[cid] = session
        session.socket = self._reactor.open(fd, connection, session)
        connection.send(info)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client connection created", session)

    def _refuse(self, fd: int, info: bytes, who: str) -> None:
        """Over max_connections: INFO, the error, and the end. A new socket's buffer takes so few bytes."""
        try:
            os.write(fd, info + MaximumConnectionsExceeded().wire)
        except OSError:
            pass  # gone already
        os.close(fd)
        logger.error("%s - maximum connections exceeded", who)

    def on_closed(self, session: ClientSession) -> None:
        """A session has ended; its subscriptions go with it."""
        del self.open[session.connection.cid]
        self._page.remove_connection(self._shard)
        self.closed.note(session)
        session.socket = None
        if session.reason in SLOW:
            logger.warning("%s - Slow Consumer Detected: %s", session, session.reason.text)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client connection closed: %s", session, session.reason.text)

    def close(self, sessions: Iterable[ClientSession], reason: CloseReason) -> None:
        """Ends these clients, after what is queued for them has been sent as far as it goes at once."""
        for session in sessions:
            if session.socket is not None:
                session.socket.kick(reason)
        self._reactor.finish()

    def close_all(self, reason: CloseReason) -> None:
        """Ends every client."""
        self.close(list(self.open.values()), reason)

    def announce_departure(self) -> None:
        """Tells every client that it should go elsewhere (`ldm` in INFO), and every new one from here on."""
        self.info = self.info.for_departure()
        for session in self.open.values():
            session.connection.send_info(self.info.line(session.connection.cid, session.host))
        self._reactor.finish()

    def reload(self, options: Options, info: InfoTemplate) -> None:
        """New options: limits hold at once for everybody, who would not be let in any more is closed; says nothing."""
        self._options = options
        self._limits = options.limits
        self.info = info
        self.authenticator = Authenticator(options)
        for session in list(self.open.values()):
            session.connection.set_limits(options.limits)
            if not session.connection.must_authenticate and not self.authenticator.still_admits(
                session.connect.user, session.proof
            ):
                session.connection.end(AuthorizationViolation())
        self._reactor.finish()
