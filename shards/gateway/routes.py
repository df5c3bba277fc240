"""The cluster: which members there are, who dials whom, and what clients are told of them.

There is one connection to each member. Members named in the options are dialled for ever; those that others tell of
once, and again as often as connect_retries says. Where two connections to one member come about, because both dialled,
nats-server closes one of them; so none is closed here, and what the member says decides which of them is the one.
Between two gnatswarms the one stays that the member with the smaller id has dialled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from typing import TYPE_CHECKING, Any

import msgspec

from gnatswarm.broker.access.nkey import new_nonce
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.info import advertised, cluster_name
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.version import LANGUAGE, OWN_VERSION
from gnatswarm.shards.boundary.control import ClusterNews
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.addresses import name_for_tls, own_urls, websocket_urls
from gnatswarm.shards.gateway.cluster_teller import ClusterTeller
from gnatswarm.shards.gateway.remote import TELL_EVERY, Address, address_of, connected, places_of, told_address
from gnatswarm.shards.gateway.route import RouteSession
from gnatswarm.shards.gateway.waiting import Waiting
from gnatswarm.shards.sockets.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ssl import SSLContext, SSLObject

    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.options import Cluster, Options
    from gnatswarm.shards.boundary.control import ServerPort
    from gnatswarm.shards.boundary.rows import RouteRow
    from gnatswarm.shards.clients.certificate_rule import CertificateRule
    from gnatswarm.shards.gateway.server_events import ServerEvents
    from gnatswarm.shards.gateway.words import ServerInfo
    from gnatswarm.shards.sockets.layered import LayeredSocket
    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.gateway")

CONNECT_S = 1.0
# As nats-server: a second; with connect_backoff each time twice as long while nobody listens there. After a connection
# that has ended up to a tenth more, so that two that dial each other do not do so at the same time again.
AGAIN_S = 1.0
AGAIN_SPREAD_S = 0.1
LONGEST_AGAIN_S = 30.0
# A connection that is as young was dialled by both ends at once; the member does not know an older one any more.
YOUNG_S = 5.0
# Members that are configured are waited for so long at the start, before shards are told to take clients.
FIRST_WORD_S = 0.25
# So long after its start a gateway only adds to what clients have been told: the one before may have known more.
SETTLE_S = 3.0
# So many that connect within a second are refused at once, others later. A nats-server 2.10 or newer that was known for
# a moment, before it is refused, dials again without a pause (and writes two lines each time): thousands a second.
REFUSED_AT_ONCE = 5
REFUSED_LATER_S = 1.0
# Members that others tell of and that are being dialled; a cluster has fewer.
MOST_DIALLED = 64
# Why connections end over which another name of the cluster was told.
NAME_CONFLICT = "Cluster Name Conflict"
NO_GATEWAYS = (
    "this member is connected to other clusters by gateways: clients there hear nothing of what clients here publish, "
    "and get no answers from them; connect this broker as a leaf node instead"
)
# connect_urls of one member.
MOST_URLS = 64


class Dialled(msgspec.Struct):
    """A member that is dialled."""

    address: Address
    is_configured: bool
    task: asyncio.Task[None] | None = None
    session: RouteSession | None = None
    server_id: str = ""  # of who answered there last
    is_self: bool = False  # all its addresses are this broker's own …
    is_literal: bool = False  # … and it is one of them itself, no name


class Routes:
    """All routes of one broker. `next_id` numbers them, `tell` sends news to the router.

    `known_routes`: host:port of the members that the gateway before this one was connected to.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor,
        exchange: Exchange,
        options: Options,
        identity: words.Identity,
        port: ServerPort,
        *,
        clients_at: tuple[str, int],
        websocket_port: int,
        known_routes: Sequence[str],
        next_id: Callable[[], int],
        tell: Callable[[ClusterNews], None],
        flush: Callable[[], None],
        events: ServerEvents,
    ) -> None:
        self._loop = loop
        self._reactor = reactor
        self._exchange = exchange
        self._options = options
        self._identity = identity
        self._port = port
        self._clients_at = clients_at
        self._websocket_port = websocket_port
        self._known_routes = known_routes
        self._next_id = next_id
        self.flush = flush
        self.events = events
        self.name = cluster_name(options.cluster.name, identity.server_id)
        self.is_dynamic = not options.cluster.name
        self._sessions: list[RouteSession] = []
        self._waiting = Waiting(loop, "members of the cluster")
        self._refusing_since_s = 0.0  # a second, in which …
        self._n_refused = 0  # … so many were refused
        self._members: dict[str, RouteSession] = {}
        self._spares: dict[str, list[RouteSession]] = {}  # connections beside the member's one
        self._dialled: dict[tuple[str, int], Dialled] = {}
        self._untried: set[tuple[str, int]] = set()  # configured ones that have not answered yet, nor failed to
        self._own_places: set[tuple[Any, ...]] = set()  # addresses at which this broker has reached itself
        self._own_urls: tuple[list[str], list[str]] = ([], [])
        self._had_members = False
        self.leaf_url = ""  # where leaf nodes connect to this broker; "": members are not told
        self._leaf_urls: list[str] = []  # … and to the members
        self.on_leaf_urls: Callable[[list[str]], None] = _nobody
        self.on_renamed: Callable[[], None] = _nothing
        self._is_leaving = False
        self._is_closed = False
        self._is_settled = False
        self._contexts: tuple[SSLContext, SSLContext] | None = None  # of accepted and of dialled connections
        self._certificate_rules: tuple[CertificateRule | None, CertificateRule | None] = (None, None)  # likewise
        self._make_contexts()
        self._teller = ClusterTeller(loop, self._news, tell)

    @property
    def cluster(self) -> Cluster:
        """The options of the cluster."""
        return self._options.cluster

    @property
    def is_like_newer(self) -> bool:
        """Whether the broker behaves as nats-server 2.15."""
        return self._options.is_like_newer

    # ---- life

    def start(self) -> None:
        """Dial the members that the options name."""
        logger.info("Cluster name is %s", self.name)
        if self.is_dynamic:
            logger.warning("Cluster name was dynamically generated, consider setting one")
        self._learn_own_urls()
        self._loop.call_later(SETTLE_S, self._settle)
        self._untried = {(one.host, one.port) for one in self._addresses()}
        if self._untried:
            self._loop.call_later(FIRST_WORD_S, self._teller.begin)
            self._dial_configured()
        else:
            self._teller.begin()
        for place in self._known_routes:
            # Some of them dial this broker themselves: a nats-server does so a second after it lost the connection.
            if (address := _dialable(place)) is not None:
                self._dial_learned(address)

    def _has_tried(self, address: Address) -> None:
        """That member has answered, or cannot be reached: shards take clients once this is said of all."""
        if self._untried:
            self._untried.discard((address.host, address.port))
            if not self._untried:
                self._teller.begin()

    def _settle(self) -> None:
        self._is_settled = True
        self._teller.changed()

    def _learn_own_urls(self) -> None:
        host, port = advertised(self._options.client_advertise, *self._clients_at)
        self._own_urls = own_urls(host, port), websocket_urls(self._options.websocket, self._websocket_port)

    def on_accept(self, fd: int, host: str, port: int) -> None:
        """Another server, or whoever it is, has connected to the cluster's port."""
        try:
            session = self._open(fd, host, port, None, is_configured=False)
        except OSError as error:  # as of a client (`Clients`)
            logger.error("%s:%d - cannot be served, and is closed: %s", host, port, error)
        else:
            self._waiting.add(session)

    def reload(self, options: Options, *, has_new_accounts: bool) -> None:
        """Apply new options: members that are not named any more are disconnected, if this broker dialled them.

        Renewed certificates leave the connections as they are, and hold for the next ones.
        What members have told of new accounts counts from now on.
        """
        had = self.cluster
        was_fenced = self._options.fence
        self.adopt(options)
        self._learn_own_urls()
        cluster = options.cluster
        wanted = {(one.host, one.port) for one in self._addresses()}
        for key, dialled in list(self._dialled.items()):
            if dialled.is_configured and key not in wanted:
                self._forget(key, dialled)
                if dialled.session is not None:
                    dialled.session.close("it was removed from the configuration")
        if _terms(had) != _terms(cluster):
            for session in list(self._sessions):
                session.close("the cluster's configuration has changed")
        elif was_fenced != options.fence:
            self._say_hello_again()
        for session in list(self._sessions):
            session.reload(*self._pings)
        for session in list(self._sessions) if has_new_accounts else ():
            session.take_accounts()
        self._dial_configured()
        self._teller.changed()
        self.flush()

    @property
    def _pings(self) -> tuple[float, int]:
        """How often routes ping, in seconds, and for how many answers they wait."""
        cluster, limits = self.cluster, self._options.limits
        return cluster.ping_interval_s or limits.ping_interval_s, cluster.ping_max or limits.ping_max

    def adopt(self, options: Options) -> None:
        """Have these options from now on, or from start() on."""
        self._options = options
        self._make_contexts()

    def announce_departure(self) -> None:
        """The broker is in lame duck mode: members tell their clients no more of it."""
        if not self._is_leaving:
            self._is_leaving = True
            self._say_hello_again()
            self.flush()

    def _say_hello_again(self) -> None:
        """Something in our INFO has changed."""
        line = self.hello()
        for session in self._members.values():
            session.link.send(line)

    def say(self, account: str, subject: str, payload: bytes) -> None:
        """Send every member this message, which the cluster's permissions let it have, whether it wants it or not."""
        rules = self.cluster.permissions
        if rules is None or Permissions(rules).can_publish(subject.encode()):
            head = f"RMSG {account} {subject} {len(payload)}\r\n".encode("utf-8", "surrogateescape")
            for session in self._members.values():
                session.link.send(head + payload + b"\r\n")
            self.flush()

    @property
    def sessions(self) -> list[RouteSession]:
        """All connections."""
        return list(self._sessions)

    def stop_dialling(self) -> None:
        """Make no connection any more, and tell the router nothing more; present ones stay."""
        self._is_closed = True
        self._teller.close()  # the next gateway dials who was there, and clients need not hear that they were gone
        for key, dialled in list(self._dialled.items()):
            self._forget(key, dialled)

    def close(self) -> None:
        """End all routes, and dial no more."""
        self._is_closed = True
        self._teller.close()
        for key, dialled in list(self._dialled.items()):
            self._forget(key, dialled)
        for session in list(self._sessions):
            session.close("Server Shutdown")
        self.flush()

    def tell_again(self) -> None:
        """There is another router: tell it the news again."""
        self._teller.forget()

    def rows(self, with_subs: bool) -> Iterator[RouteRow | None]:
        """The routes that pass messages, for the monitoring pages; None: others may be served before the next one."""
        for session in list(self._members.values()):
            if session.is_member:
                yield (yield from session.row(with_subs))

    # ---- dialling

    def _addresses(self) -> list[Address]:
        return [address_of(url, 6222) for url in self.cluster.routes]

    def _dial_configured(self) -> None:
        for address in self._addresses():
            known = self._dialled.get((address.host, address.port))
            if known is not None and not known.is_configured:
                self._forget((address.host, address.port), known)
            if known is None or not known.is_configured:
                self._dial(address, is_configured=True)
            else:
                known.address = address  # from the next try on: a reload may have changed its log-in

    def _dial(self, address: Address, *, is_configured: bool) -> None:
        dialled = self._dialled[address.host, address.port] = Dialled(address, is_configured)
        dialled.task = self._loop.create_task(self._keep_dialling(dialled))
        dialled.task.add_done_callback(self._on_task_done)

    def _dial_learned(self, address: Address) -> None:
        """Dial a member that is not configured, unless it is being dialled."""
        if (address.host, address.port) not in self._dialled and len(self._dialled) < MOST_DIALLED:
            self._dial(address, is_configured=False)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "dialling a route failed", "exception": error})

    def _forget(self, key: tuple[str, int], dialled: Dialled) -> None:
        self._dialled.pop(key, None)
        if dialled.task is not None:
            dialled.task.cancel()

    async def _keep_dialling(self, dialled: Dialled) -> None:
        attempts = 0
        again_s = AGAIN_S
        key = (dialled.address.host, dialled.address.port)
        while True:
            member = self._members.get(dialled.server_id)
            if member is not None:
                if not dialled.is_configured:
                    break
                await asyncio.wait([member.over])
                if not member.has_lasted:
                    await self._pause(AGAIN_S, AGAIN_SPREAD_S)
                continue
            attempts += 1
            session = await self._dial_once(dialled, attempts)
            if session is not None and session.is_self:
                attempts -= 1
                continue  # to another address of that name, if there is one
            self._has_tried(dialled.address)
            if dialled.is_self:
                if not dialled.is_configured or dialled.is_literal:
                    break
                attempts -= 1
                await self._pause(LONGEST_AGAIN_S)  # another member may have this name by then
                continue
            if session is not None:
                if session.was_member or session.is_duplicate:
                    attempts = 0
                if session.info is not None:
                    dialled.server_id = session.info.server_id
            if not dialled.is_configured and attempts > self.cluster.connect_retries:
                break
            if session is None:
                await self._pause(again_s)
                again_s = min(2 * again_s, LONGEST_AGAIN_S) if self.cluster.connect_backoff else AGAIN_S
                continue
            again_s = AGAIN_S
            if not session.has_lasted:
                await self._pause(AGAIN_S, AGAIN_SPREAD_S)
        self._dialled.pop(key, None)

    async def _pause(self, seconds: float, spread_s: float = 0.0) -> None:
        await asyncio.sleep(seconds + random.random() * spread_s)

    async def _dial_once(self, dialled: Dialled, attempt: int) -> RouteSession | None:
        """Returns the connection when it has ended; None: there was none."""
        try:
            found = await places_of(self._loop, dialled.address, CONNECT_S)
            places = [one for one in found if one[-1] not in self._own_places]
            dialled.is_self = bool(found) and not places
            dialled.is_literal = any(one[-1][0] == dialled.address.host for one in found)
            if dialled.is_self:
                return None
            sock, where = await connected(self._loop, places, CONNECT_S)
        except Exception as error:  # resolvers object to what others name in ways of their own
            self._failed(dialled.address, attempt, str(error) or type(error).__name__)
            return None
        try:
            host, port = sock.getpeername()[:2]
        except OSError as error:
            sock.close()
            self._failed(dialled.address, attempt, str(error))
            return None
        try:
            session = dialled.session = self._open(
                sock.detach(), str(host), int(port), dialled.address, is_configured=dialled.is_configured
            )
        except Exception as error:  # OpenSSL objects to what others name in ways of its own
            self._failed(dialled.address, attempt, str(error) or type(error).__name__)
            return None
        finally:
            self.flush()
        await asyncio.wait([session.over])
        dialled.session = None
        if session.is_self:
            self._own_places.add(where)
        if not session.was_member and not session.is_quiet and not session.is_self:
            self._failed(dialled.address, attempt, session.reason or "it closed the connection")
        return session

    def _failed(self, address: Address, attempt: int, why: str) -> None:
        if attempt == 1 or attempt % TELL_EVERY == 0:
            where = "" if why.startswith("dial tcp ") else f" {address}"  # that is in it
            logger.error("Error trying to connect to route%s (attempt %d): %s", where, attempt, why)

    def _open(self, fd: int, host: str, port: int, dialled: Address | None, *, is_configured: bool) -> RouteSession:
        """The session of a new connection, whose descriptor is its from now on. OSError: it cannot be watched."""
        ping_interval_s, ping_max = self._pings
        session = RouteSession(
            self._loop,
            self._exchange,
            self,
            rid=self._next_id(),
            host=host.removeprefix("::ffff:"),
            port=port,
            dialled=dialled,
            is_configured=is_configured,
            identity=self._identity,
            ping_interval_s=ping_interval_s,
            ping_max=ping_max,
        )
        self._sessions.append(session)
        gate = self._gate(dialled)
        layered: LayeredSocket | None = None
        if gate is not None:
            from gnatswarm.shards.sockets.layered import LayeredSocket

            layered = LayeredSocket(gate)
        try:
            session.socket = self._reactor.open(fd, session.link, session, layered)
        except OSError:
            session.on_closed(CloseReason.READ_ERROR)
            os.close(fd)
            raise
        if layered is None:
            session.start()
        elif dialled is not None:
            try:
                layered.connect()
            except Exception:
                session.close("the handshake could not begin")
                raise
        return session

    def _gate(self, dialled: Address | None) -> Gate | None:
        """How to encrypt; None: not at all."""
        tls = self.cluster.tls
        if self._contexts is None:
            return None
        accepting, dialling = self._contexts
        if dialled is None:
            return Gate(context=accepting, timeout_s=tls.timeout_s, is_silent=True)
        name = name_for_tls(dialled.host, [one.host for one in self._addresses()])
        return Gate(context=dialling, timeout_s=tls.timeout_s, server_hostname=name)

    def _make_contexts(self) -> None:
        tls = self.cluster.tls
        self._contexts = None
        if tls.is_on:
            # Imported here, so that a cluster without TLS does not load ssl.
            from gnatswarm.shards.boundary.certificates import client_context, server_context
            from gnatswarm.shards.clients.certificate_rule import certificate_rule

            accepting, dialling = server_context(tls), client_context(tls, is_insecure=self.cluster.tls_insecure)
            self._contexts = accepting, dialling
            self._certificate_rules = certificate_rule(tls, accepting), certificate_rule(tls, dialling)

    def objection_to_certificate(self, tls: SSLObject, session: RouteSession) -> str:
        """Why a member with this certificate may not be connected; "": it may. Whoever dialled, as in nats-server."""
        rule = self._certificate_rules[session.dialled is not None]
        return rule.objection(tls) if rule is not None else ""

    # ---- what is said at first

    def hello(self) -> bytes:
        """Our INFO line."""
        cluster = self.cluster
        host, port = advertised(cluster.advertise, self._port.host or "0.0.0.0", self._port.port)
        urls, websockets = ([], []) if cluster.no_advertise else self._own_urls
        content: dict[str, Any] = {
            "server_id": self._identity.server_id,
            "server_name": self._identity.server_name,
            "version": self._identity.version,
            "proto": 2,
            "go": LANGUAGE,
            "host": host,
            "port": port,
            "headers": self._identity.headers,
            "auth_required": bool(cluster.user) or None,
            "tls_required": cluster.tls.is_on or None,
            "tls_verify": cluster.tls.is_on or None,
            "max_payload": self._identity.max_payload_bytes,
            "nonce": new_nonce().decode(),  # nobody signs it, but all servers have one
            "ip": f"nats-route://{_place(host, port)}/" if cluster.advertise else None,
            "cluster": self.name,
            "cluster_dynamic": self.is_dynamic or None,
            "connect_urls": urls or None,
            "ws_connect_urls": websockets or None,
            "leafnode_urls": [self.leaf_url] if self.leaf_url else None,
            "ldm": self._is_leaving or None,
            "lnoc": True,
            "lnocu": True,
            "gnatswarm": OWN_VERSION,
            "only_queues": True,
            "fenced": self._options.fence == "cluster" or None,
        }
        permissions = cluster.permissions
        if permissions is not None:
            content["import"] = _rules(permissions.subscribe_allow, permissions.subscribe_deny)
            content["export"] = _rules(permissions.publish_allow, permissions.publish_deny)
        return words.line(b"INFO", content)

    def introduction(self, session: RouteSession) -> bytes:
        """Our CONNECT line: with the user of the address that was dialled, else our own."""
        cluster = self.cluster
        assert session.dialled is not None
        user, password = session.dialled.login
        if not user:
            user, password = cluster.user, cluster.password
        return words.line(
            b"CONNECT",
            {
                "echo": True,
                "verbose": False,
                "pedantic": False,
                "user": user or None,
                "pass": password or None,
                "tls_required": cluster.tls.is_on,
                "headers": self._identity.headers,
                "name": self._identity.server_id,
                "cluster": self.name,
                "cluster_dynamic": self.is_dynamic or None,
                "lnoc": True,
                "lnocu": True,
            },
        )

    def objection_to_name(self, name: str, session: RouteSession, *, is_dynamic: bool) -> str:
        """Why a member of a cluster of this name cannot be connected; "": it can.

        A made-up name of ours gives way to a configured one, and to a greater one.
        """
        if name == self.name:
            return ""
        if self.is_dynamic and name and (not is_dynamic or name > self.name):
            self._rename(name, session, is_dynamic=is_dynamic)
            return ""
        if session.dialled is not None and is_dynamic and (not self.is_dynamic or name < self.name):
            return ""  # theirs gives way, when they hear ours
        return f'Rejecting connection, cluster name "{name[:200]}" does not match "{self.name}"'

    def _rename(self, name: str, but: RouteSession, *, is_dynamic: bool) -> None:
        logger.info("Cluster name updated to %s", name[: words.MOST_SHOWN])
        self.name, self.is_dynamic = name, is_dynamic
        for session in list(self._sessions):
            if session is not but:
                session.close(NAME_CONFLICT)
        self.on_renamed()
        self._teller.changed()
        self.flush()

    def pause_before_refusal_s(self) -> float:
        """How long to wait until one more is told that it is refused; 0: not at all."""
        now_s = self._loop.time()
        if now_s - self._refusing_since_s >= REFUSED_LATER_S:
            self._refusing_since_s, self._n_refused = now_s, 0
        self._n_refused += 1
        return REFUSED_LATER_S if self._n_refused > REFUSED_AT_ONCE else 0.0

    # ---- which connection is a member's

    def is_known(self, server_id: str) -> bool:
        """Whether that member is connected, so that it need not be dialled."""
        return server_id in self._members

    def on_introduced(self, session: RouteSession) -> None:
        """A member's INFO has come: it is connected now, or had been already."""
        assert session.info is not None
        self._waiting.remove(session)
        server_id = session.info.server_id
        present = self._members.get(server_id)
        if present is None:
            self._register(session)
        elif not session.info.gnatswarm:
            # It closes one of the two, and says on the other what it is interested in.
            if session.join():
                session.is_duplicate = session.link.is_spare = True
                self._spares.setdefault(server_id, []).append(session)
        elif self._loop.time() - present.introduced_s < YOUNG_S and self._was_dialled_first(present, session):
            session.is_duplicate = True
            session.close("Duplicate Route")
        else:
            present.is_duplicate = True
            present.close("Duplicate Route")
            self._members.pop(server_id, None)
            self._register(session)

    def _was_dialled_first(self, present: RouteSession, other: RouteSession) -> bool:
        """Whether the smaller of the two ids dialled the present connection, of a member that dialled, too."""
        assert other.info is not None
        if (present.dialled is None) == (other.dialled is None):
            return False
        return (present.dialled is not None) == (self._identity.server_id < other.info.server_id)

    def _register(self, session: RouteSession) -> None:
        if not session.join():
            return
        assert session.info is not None
        session.is_duplicate = session.link.is_spare = False
        self._members[session.info.server_id] = session
        self._had_members = True
        session.begin()
        logger.info("%s - Route connection created", session)
        if session.info.gateway_url:
            logger.warning("%s - %s", session, NO_GATEWAYS)
        self._introduce(session)
        self._teller.changed()
        self._tell_leaf_nodes()
        self.flush()

    def on_frames(self, session: RouteSession) -> None:
        """A member tells its interest where a second connection to it is: then that is the one for it."""
        assert session.info is not None
        server_id = session.info.server_id
        present = self._members.get(server_id)
        if session.is_duplicate and present is not None and present is not session:
            self._spares.get(server_id, []).remove(session)
            self._spares.setdefault(server_id, []).append(present)
            present.is_duplicate = True
            present.is_member = False
            present.link.hush()
            self._register(session)

    def on_ended(self, session: RouteSession, reason: str) -> None:
        """A connection has ended. If it was its member's one, and there is another, that is the one now."""
        self._sessions.remove(session)
        self._waiting.remove(session)
        if session.info is None:
            return
        server_id = session.info.server_id
        spares = self._spares.get(server_id, [])
        if session in spares:
            spares.remove(session)
        if self._members.get(server_id) is session:
            del self._members[server_id]
            if spares and not self._is_closed:
                self._promote(spares.pop())
            self._teller.changed()
            self._tell_leaf_nodes()
        if not spares:
            self._spares.pop(server_id, None)

    def _promote(self, session: RouteSession) -> None:
        """The spare connection of a member is its one now.

        The reactor attends to the end of another one: so an error of ours in what this one said ends it here.
        """
        try:
            self._register(session)
        except Exception:
            logger.exception("%s - its connection is closed because of an error of ours", session)
            session.close(CloseReason.PARSE_ERROR.text)

    def on_answered(self, session: RouteSession) -> None:
        """A member that was dialled knows this broker now, and has told its interest."""
        assert session.dialled is not None
        self._has_tried(session.dialled)

    def on_self(self, session: RouteSession) -> None:
        """The broker has dialled itself; it does so no more at this address."""
        logger.debug("%s - this broker itself listens there: it is not dialled again", session)

    # ---- gossip

    def _introduce(self, newcomer: RouteSession) -> None:
        """Tell the other members of this one, so that they dial it."""
        if newcomer.gossip:
            for session in self._members.values():
                if session is not newcomer:
                    session.link.send(newcomer.gossip)

    def on_gossip(self, session: RouteSession, info: ServerInfo) -> None:
        """A member told of another one: dial it, unless it is known."""
        if self._is_closed or info.server_id in ("", self._identity.server_id) or self.is_known(info.server_id):
            return
        address = _dialable(info.ip)
        if address is None:
            session.on_refused("told of a member at an address that cannot be dialled", info.ip[:100].encode())
            return
        self._dial_learned(address)

    # ---- what clients are told

    def on_news(self, session: RouteSession, info: ServerInfo) -> None:
        """A member told something new of itself: that clients should leave it."""
        if info.ldm and session.info is not None and not session.info.ldm:
            session.info = msgspec.structs.replace(session.info, ldm=True, connect_urls=(), ws_connect_urls=())
            self._teller.changed()

    def _tell_leaf_nodes(self) -> None:
        infos = [session.info for session in self._members.values()]
        # A member says one address, its own.
        urls = sorted({url for info in infos if info is not None for url in (info.leafnode_urls or ())[:1]})
        if urls != self._leaf_urls:
            self._leaf_urls = urls
            self.on_leaf_urls(urls)

    def _route_addresses(self) -> list[str]:
        """Where the members take routes, for the next gateway. At first also those that this one was told of."""
        addresses = {_dialable(session.url) for session in self._members.values()}
        known = [] if self._is_settled else self._known_routes
        return sorted({*known, *(str(one) for one in addresses if one is not None)})[:MOST_DIALLED]

    def _news(self) -> ClusterNews:
        urls: list[str] = []
        websockets: list[str] = []
        own: tuple[list[str], list[str]] = ([], [])
        if not self.cluster.no_advertise and self._had_members:
            own = self._own_urls
            for session in self._members.values():
                assert session.info is not None
                urls += (session.info.connect_urls or ())[:MOST_URLS]
                websockets += (session.info.ws_connect_urls or ())[:MOST_URLS]
        return ClusterNews(
            name=self.name,
            own_urls=own[0],
            urls=sorted(set(urls) - set(own[0])),
            own_websocket_urls=own[1],
            websocket_urls=sorted(set(websockets) - set(own[1])),
            members=len(self._members),
            is_settled=self._is_settled,
            routes=self._route_addresses(),
        )


def _terms(cluster: Cluster) -> tuple[object, ...]:
    """What connected members have agreed to: where it changes, they have to connect again."""
    tls = cluster.tls
    return cluster.user, cluster.password, cluster.permissions, cluster.tls_insecure, tls.is_on, tls.terms


def _nobody(_urls: list[str]) -> None:
    """There is no port for leaf nodes."""


def _nothing() -> None:
    """There are no hubs."""


def _dialable(url: str) -> Address | None:
    """Where another server says that a member takes routes; None: that cannot be dialled."""
    try:
        address = told_address(url, 0)
    except ValueError:
        return None
    return address if 0 < address.port < 65536 else None


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _rules(allow: tuple[str, ...] | None, deny: tuple[str, ...]) -> dict[str, list[str]] | None:
    found = {name: list(rules) for name, rules in (("allow", allow or ()), ("deny", deny)) if rules}
    return found or None
