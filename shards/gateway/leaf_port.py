"""The port for leaf nodes: accepts them, and has what all their sessions share.

Users of `leafnodes { authorization }` log in here if there are any, and then no others; else the broker's own users do.
A leaf node without credentials is admitted only where a client without would be.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gnatswarm.broker.access.auth import NOBODY, Authenticator, Verdicts
from gnatswarm.broker.access.nkey import new_nonce
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.broker.info import advertised
from gnatswarm.shards.clients.comparisons import Comparisons
from gnatswarm.shards.clients.passwords import Passwords
from gnatswarm.shards.gateway.addresses import own_urls, websocket_urls
from gnatswarm.shards.gateway.hub import HubSession
from gnatswarm.shards.gateway.waiting import Waiting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from gnatswarm.broker.access.auth import Admission, Identity
    from gnatswarm.broker.access.certificate_names import CertificateNames
    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.options import Options
    from gnatswarm.shards.boundary.rows import LeafRow
    from gnatswarm.shards.clients.certificate_rule import CertificateRule
    from gnatswarm.shards.gateway.server_events import ServerEvents
    from gnatswarm.shards.gateway.words import Identity as OwnIdentity
    from gnatswarm.shards.sockets.frames import Frames
    from gnatswarm.shards.sockets.frozen_socket import FrozenSocket
    from gnatswarm.shards.sockets.gate import Gate
    from gnatswarm.shards.sockets.layered import LayeredSocket
    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.gateway")

_EVERY_ADDRESS = ("", "0.0.0.0", "::")
# A compressed WebSocket frame of a leaf node that has not logged in: CONNECT with a JWT, and the interest behind it.
MOST_FIRST_FRAME_BYTES = 1024 * 1024


class ArrivedLeafNode(Protocol):
    """A leaf node that came by WebSocket, as shards.moving.leaf_arrivals has it."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def port(self) -> int:
        """… and port."""

    @property
    def socket(self) -> FrozenSocket:
        """What is known of its socket."""

    @property
    def is_masked(self) -> bool:
        """Whether its WebSocket frames are masked."""

    @property
    def names(self) -> CertificateNames | None:
        """The names in its certificate; None: it has none, or nobody wanted to know."""


class LeafPort:
    """The leaf nodes of one broker.

    `port` is the bound one, `websocket_port` that of clients by WebSocket, 0: there is none; `next_id` gives numbers
    that no client has. `flush` sends what was queued outside of the reactor's round; `opens_loop` says whether a
    connection that finds a loop is to be closed, or another one was just now.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor,
        exchange: Exchange,
        identity: OwnIdentity,
        options: Options,
        port: int,
        *,
        cluster_name: Callable[[], str],
        websocket_port: int,
        next_id: Callable[[], int],
        flush: Callable[[], None],
        opens_loop: Callable[[str], bool],
        events: ServerEvents,
    ) -> None:
        self._loop = loop
        self._reactor = reactor
        self._exchange = exchange
        self._identity = identity
        self._port = port
        self._websocket_port = websocket_port
        self.flush = flush
        self.opens_loop = opens_loop
        self.events = events
        self._verdicts = Verdicts()
        self.passwords = Passwords(self._verdicts)
        self.sessions: list[HubSession] = []
        self._waiting = Waiting(loop, "leaf nodes")
        self.cluster_name = cluster_name
        self._members_urls: list[str] = []
        self._next_id = next_id
        self._configure(options, UserIndex(options.users))
        self._formers: list[Authenticator] = []  # rules from before the reloads after which passwords are compared
        self._comparisons: Comparisons[HubSession] = Comparisons(self.passwords, self._look_again)
        self._on_reloaded: list[Callable[[], None]] = []

    def _configure(self, options: Options, users: UserIndex) -> None:
        leafnodes = options.leafnodes
        self._options = options
        self.limits = options.limits
        self.login_timeout_s = leafnodes.auth_timeout_s + (leafnodes.tls.timeout_s if leafnodes.tls.is_on else 0.0)
        self.min_version = leafnodes.min_version
        self._most_of = {account.name: account.max_leafnodes for account in options.accounts}
        self.is_like_newer = options.is_like_newer
        self.takes_headers = options.headers
        self.isolates = leafnodes.isolate
        own = options
        if leafnodes.users:
            own = msgspec.structs.replace(
                options,
                auth_token="",
                auth_user="",
                auth_password="",
                has_guests=False,
                users=leafnodes.users,
                no_auth_user="",
            )
            users = UserIndex(own.users)
        self.authenticator = Authenticator(own, self._verdicts, users=users)
        self.users = users
        self.is_encrypted = leafnodes.tls.is_on
        self.asks_for_certificate = leafnodes.tls.asks_for_certificate
        self.maps_certificates = leafnodes.tls.verify_and_map
        # (the users of leaf nodes alone are no business of the WebSocket port)
        by_websocket = options.websocket.tls.verify_and_map and not leafnodes.users
        self.maps_by_websocket = self.maps_certificates or by_websocket
        self._gate: Gate | None = None
        self.certificate_rule: CertificateRule | None = None
        if leafnodes.tls.is_on:
            from gnatswarm.shards.boundary.certificates import server_context
            from gnatswarm.shards.clients.certificate_rule import certificate_rule
            from gnatswarm.shards.sockets.gate import Gate

            tls = leafnodes.tls
            context = server_context(tls)
            self._gate = Gate(
                context=context,
                timeout_s=tls.timeout_s,
                is_silent=tls.handshake_first,
                fallback_s=tls.handshake_fallback_s,
            )
            self.certificate_rule = certificate_rule(tls, context)

    def reload(self, options: Options, users: UserIndex, on_done: Callable[[], None]) -> None:
        """Use the new options, with these users; leaf nodes that they do not admit are closed.

        on_done() is called when they hold for all that there are: some wait until their passwords have been compared.
        """
        self._formers.append(self.authenticator)
        self._configure(options, users)
        self._on_reloaded.append(on_done)
        for session in self.sessions:
            session.set_pings(self.limits.ping_interval_s, self.limits.ping_max)
        self._look_again(list(self.sessions))

    def compares_anew(self, session: HubSession, admission: Admission) -> bool:
        """Whether its password, plain before a reload, is compared with a hash now: session.reload() follows."""
        for former in self._formers:
            question = self.authenticator.question_after(former, admission)
            if question is not None and self._comparisons.wait_for(question, session):
                return True
        return False

    def _look_again(self, sessions: Iterable[HubSession]) -> None:
        for session in sessions:
            if not session.is_gone:
                session.reload()
        self.flush()
        if self._comparisons.are_over:
            self._comparisons.end()
            self._formers.clear()
            told, self._on_reloaded = self._on_reloaded, []
            for on_done in told:
                self._loop.call_soon(on_done)  # behind the end of who is closed

    def close(self) -> None:
        """End all connections."""
        for session in list(self.sessions):
            session.close("Server Shutdown")
        self.passwords.close()

    def rows(self, with_subs: bool) -> Iterator[LeafRow | None]:
        """The leaf nodes that pass messages, for the monitoring pages; None: others may be served before the next."""
        for session in list(self.sessions):
            if session.is_accepted:
                yield (yield from session.row(with_subs))

    # ---- connections

    def on_accept(self, fd: int, host: str, port: int) -> None:
        """Take over a new connection of the port."""
        session = self._new_session(fd, host, port)
        gate = self._gate
        layered: LayeredSocket | None = None
        if gate is not None:
            from gnatswarm.shards.sockets.layered import LayeredSocket

            layered = LayeredSocket(gate)
        try:
            session.socket = self._reactor.open(fd, session.link, session, layered)
        except OSError as error:
            _forget_unwatched(session, fd, error)
            return
        if layered is not None and gate is not None and gate.is_silent and gate.fallback_s:
            self._loop.call_later(gate.fallback_s, layered.speak_first)
        session.greet()

    def on_websocket(self, fd: int, leaf: ArrivedLeafNode) -> None:
        """Take over a connection of the WebSocket port; whoever accepted it has its TLS."""
        # Imported here: few leaf nodes come so.
        from gnatswarm.shards.sockets.frames import Frames, Rules
        from gnatswarm.shards.sockets.gate import Gate
        from gnatswarm.shards.sockets.layered import LayeredSocket

        rules = Rules(self._options.websocket, most_bytes=MOST_FIRST_FRAME_BYTES, is_encrypted=False)
        try:
            frames = Frames(rules, leaf.socket.frames, is_masked=leaf.is_masked)
        except RecordRefused as error:
            logger.error("%s:%d - %s", leaf.host, leaf.port, error)
            socket.close(fd)
            return
        session = self._new_session(fd, leaf.host, leaf.port, frames, leaf.names)
        layered = LayeredSocket(Gate(timeout_s=0, frames=lambda _: frames), leaf.socket)
        try:
            session.socket = self._reactor.put(fd, session.link, session, leaf.socket, layered)
        except OSError as error:
            _forget_unwatched(session, fd, error)
        else:
            session.greet()
            self.flush()

    def _new_session(
        self, fd: int, host: str, port: int, frames: Frames | None = None, names: CertificateNames | None = None
    ) -> HubSession:
        """The session of a new connection."""
        session = HubSession(
            self._loop,
            self._exchange,
            self,
            lid=self._next_id(),
            host=host,
            port=port,
            nonce=new_nonce(),
            reached=_local_host(fd),
            frames=frames,
            names=names,
            ping_interval_s=self.limits.ping_interval_s,
            ping_max=self.limits.ping_max,
        )
        self.sessions.append(session)
        if not self._waiting.is_full:  # (of a crowd the log tells who logs in)
            session.announce()
        self._waiting.add(session)
        return session

    # ---- the cluster

    @property
    def url(self) -> str:
        """Where leaf nodes of other members may connect to this one; "": they are not told."""
        leafnodes = self._options.leafnodes
        if leafnodes.no_advertise:
            return ""
        host, port = advertised(leafnodes.advertise, leafnodes.host, self._port)
        return own_urls(host, port)[0]

    def tell_urls(self, urls: list[str]) -> None:
        """The other members' ports for leaf nodes are these: a leaf node whose own is gone may connect there."""
        self._members_urls = urls
        if self._options.leafnodes.no_advertise:
            return
        for session in self.sessions:
            if session.is_accepted and not session.is_websocket:
                session.tell_urls()
        self.flush()

    # ---- for the sessions

    def info(self, session: HubSession) -> dict[str, Any]:
        """The content of INFO for this leaf node."""
        own = self._identity
        host = self._options.leafnodes.host
        if host in _EVERY_ADDRESS:
            host = session.reached  # an address of ours at which it has reached us
        host, port = advertised(self._options.leafnodes.advertise, host, self._port)
        url = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        tls = self._options.leafnodes.tls
        is_websocket = session.is_websocket
        hides = self._options.leafnodes.no_advertise
        return {
            "server_id": own.server_id,
            "server_name": own.server_name,
            "version": own.version,
            "proto": 1,
            "go": "",
            "host": host,
            "port": port,
            "headers": own.headers,
            "auth_required": True,
            # (by WebSocket it is done already, or not wanted)
            "tls_required": (tls.is_on and not is_websocket) or None,
            "tls_verify": (tls.asks_for_certificate and not is_websocket) or None,
            "max_payload": self.limits.max_payload_bytes,
            "ip": url,
            "client_id": session.lid,
            "nonce": session.nonce.decode(),
            "cluster": self.cluster_name() or None,
            "leafnode_urls": [] if hides else [url, *(one for one in self._members_urls if one != url)],
            "ws_connect_urls": (
                websocket_urls(self._options.websocket, self._websocket_port) if is_websocket and not hides else None
            ),
        }

    def account_of(self, identity: Identity) -> str:
        """The account here of a leaf node that was admitted so."""
        default = self._options.leafnodes.account
        return default if default and identity is NOBODY else identity.account

    def most_subscriptions(self, account: str) -> int:
        """How much interest one leaf node of this account may tell; 0: any."""
        return self._options.limits_of(account).max_subscriptions

    def is_full(self, session: HubSession) -> bool:
        """Whether the account of this leaf node has as many as it may; those that it replaces do not count."""
        most = self._most_of.get(session.account, 0)
        others = (
            one
            for one in self.sessions
            if one.is_accepted and one.account == session.account and not one.is_replaced_by(session)
        )
        return bool(most) and sum(1 for _ in others) >= most

    def on_accepted(self, session: HubSession) -> None:
        """It passes messages: older connections of the same leaf node end."""
        self._waiting.remove(session)
        for other in list(self.sessions):
            if other is not session and other.is_accepted and other.is_replaced_by(session):
                other.replace()

    def on_ended(self, session: HubSession) -> None:
        """The connection has ended."""
        self.sessions.remove(session)
        self._waiting.remove(session)


def _forget_unwatched(session: HubSession, fd: int, why: OSError) -> None:
    """Its socket cannot be watched, as of a client (`Clients`)."""
    logger.error("%s - cannot be served, and is closed: %s", session, why)
    session.on_closed(CloseReason.READ_ERROR)
    socket.close(fd)


def _local_host(fd: int) -> str:
    with socket.socket(fileno=fd) as sock:
        try:
            name = sock.getsockname()
        except OSError:
            name = ("127.0.0.1",)
        sock.detach()
    # (one end of a pair, whose other end has TLS, has no address: any of ours)
    host = str(name[0]) if isinstance(name, tuple) else own_urls("", 0)[0].rpartition(":")[0].strip("[]")
    return host.removeprefix("::ffff:")
