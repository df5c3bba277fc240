"""One connection to another member of the cluster: the handshake of both ends, pings, and what the member says.

Who accepted sends INFO at once; who dialled answers it with CONNECT and INFO. A member is known, and told the interest
here, when its INFO has come: newer nats-servers make a second connection for $SYS, with the same CONNECT, which they
end themselves when they have read that here is one connection for all accounts. Messages and interest are the engine's
(`broker.serverlink`); which connections there are is decided by `shards.gateway.routes`.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from gnatswarm.broker.access.certificate_names import is_name, names_of
from gnatswarm.broker.advisory import Person
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.quoted import quoted
from gnatswarm.broker.serverlink import ServerLink
from gnatswarm.shards.boundary.rows import MOST_LISTED_BYTES, MOST_ROUTE_SUBS, RouteRow, SubscriptionRow
from gnatswarm.shards.boundary.utf8_text import utf8_text
from gnatswarm.shards.boundary.wall_clock import wall_offset_us
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.refusals import Refusals
from gnatswarm.shards.gateway.remote import Address
from gnatswarm.shards.gateway.signs_of_life import SignsOfLife
from gnatswarm.shards.sockets.blame import costs_its_connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from ssl import SSLObject

    from gnatswarm.broker.access.certificate_names import CertificateNames
    from gnatswarm.broker.advisory import Document
    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.options import Cluster
    from gnatswarm.shards.gateway.server_events import ServerEvents
    from gnatswarm.shards.gateway.words import ServerConnect, ServerInfo
    from gnatswarm.shards.sockets.reactor import Socket

logger = logging.getLogger("gnatswarm.gateway")

# A route that has lasted so long is dialled again at once: who restarts keeps its port open (see leaf.LASTED_S).
LASTED_S = 2.0
# The first ping comes soon, because it measures the round trip; later ones at least this often.
FIRST_PING_S = 1.0
LONGEST_PING_S = 30.0
# nats-server says this to the connection for $SYS, which it makes beside the ordinary one.
_NO_DEDICATED = "not possible to have a dedicated route"
CLIENT_PORT = "attempted to connect to route port"


class RouteOwner(Protocol):
    """The routes of this broker."""

    @property
    def flush(self) -> Callable[[], None]:
        """Sends what was queued outside of the reactor's round."""

    @property
    def events(self) -> ServerEvents:
        """Tells users of the system account who is refused."""

    @property
    def cluster(self) -> Cluster:
        """The options."""

    @property
    def is_like_newer(self) -> bool:
        """Whether the broker behaves as nats-server 2.15."""

    def hello(self) -> bytes:
        """Our INFO line."""

    def introduction(self, session: RouteSession) -> bytes:
        """Our CONNECT line."""

    def objection_to_certificate(self, tls: SSLObject, session: RouteSession) -> str:
        """Why a member with this certificate may not be connected; "": it may."""

    def objection_to_name(self, name: str, session: RouteSession, *, is_dynamic: bool) -> str:
        """Why a member of a cluster of this name cannot be connected; "": it can, perhaps because ours has changed."""

    def on_introduced(self, session: RouteSession) -> None:
        """The member's INFO has come, and it is none of ours."""

    def on_frames(self, session: RouteSession) -> None:
        """The member passes messages or interest on a connection that is not its only one."""

    def on_gossip(self, session: RouteSession, info: ServerInfo) -> None:
        """The member told of another one."""

    def on_news(self, session: RouteSession, info: ServerInfo) -> None:
        """The member told something new of itself."""

    def on_answered(self, session: RouteSession) -> None:
        """The member was dialled, and has read our interest."""

    def on_self(self, session: RouteSession) -> None:
        """It is this broker that was dialled."""

    def is_known(self, server_id: str) -> bool:
        """Whether that member is connected."""

    def pause_before_refusal_s(self) -> float:
        """How long to wait until whoever has connected is told that it is refused; 0: not at all."""

    def on_ended(self, session: RouteSession, reason: str) -> None:
        """The connection has ended."""


class RouteSession:
    """One connection; `dialled` is the address that was, None: it was accepted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        owner: RouteOwner,
        *,
        rid: int,
        host: str,
        port: int,
        dialled: Address | None,
        is_configured: bool,
        identity: words.Identity,
        ping_interval_s: float,
        ping_max: int,
    ) -> None:
        self._loop = loop
        self._exchange = exchange
        self._owner = owner
        self._identity = identity
        self._ping_interval_s = min(ping_interval_s, LONGEST_PING_S)
        self._ping_max = ping_max
        self.rid = rid
        self.host = host
        self.port = port
        self.dialled = dialled
        self.is_configured = is_configured
        self.info: ServerInfo | None = None  # of the member, once it has come
        self.gossip = b""  # the line that tells other members of this one; b"": it takes no routes
        self._imports: words.ShownRules = None  # what the member says that it wants to be told, …
        self._exports: words.ShownRules = None  # … and that it tells; None: everything
        self.is_member = False  # it passes messages and is told interest
        self.is_duplicate = False
        self.is_self = False
        self.was_member = False
        self.rtt_us = 0
        self.opened_us = time.monotonic_ns() // 1000
        self.introduced_s = 0.0  # when its INFO had come, by the loop's clock
        self._pinged_ns = 0
        self._pings_out = 0
        self._why = ""
        self._is_quiet = False
        self._has_started = False
        self._tls: SSLObject | None = None  # None: the handshake is not done, or the connection is not encrypted
        self._names: CertificateNames | None = None  # of its certificate, where that says who it is
        self._is_on_trial = False  # logged in, and the member has not said that it takes it
        self._is_refused = False  # and is told so, or will be soon
        self._timer = loop.call_later(min(FIRST_PING_S, self._ping_interval_s), self._ping)
        self._login_timer = loop.call_later(self._login_timeout_s, self._too_late)
        self.over: asyncio.Future[None] = loop.create_future()
        self._refusals = Refusals(loop, self)
        self.link = ServerLink(exchange, self, is_route=True)
        self.link.must_authenticate = dialled is None
        self._signs = SignsOfLife(self.link)
        self.socket: Socket | None = None  # None: not yet

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} - rid:{self.rid}"

    @property
    def _login_timeout_s(self) -> float:
        """How long the other end may take to say who it is, where it was dialled also to encrypt."""
        cluster = self._owner.cluster
        is_encrypted = self.dialled is not None and cluster.tls.is_on
        return cluster.auth_timeout_s + (cluster.tls.timeout_s if is_encrypted else 0.0)

    # ---- handshake

    def start(self) -> None:
        """The connection is there, and encrypted where it shall be."""
        self._has_started = True
        if self.dialled is None:
            self.link.send(self._owner.hello())

    def on_secured(self, tls: SSLObject) -> bool:
        """The TLS handshake is done. False: its certificate is refused, and the connection is being closed."""
        self._tls = tls
        objection = self._owner.objection_to_certificate(tls, self)
        if objection:
            self.on_opening_failed(objection)
            self.link.end()
            return False
        if self._owner.cluster.tls.verify_and_map:
            self._names = names_of(tls.getpeercert() or {})
        self.start()
        return True

    def on_opening_failed(self, why: str, *_: object) -> None:
        """The TLS handshake failed; on_closed follows."""
        self._why = f"TLS route handshake error: {why}"
        if self.dialled is None:
            logger.error("%s - %s", self, self._why)

    def on_wire_error(self, text: str) -> None:
        """Encryption failed later; on_closed follows."""
        self._why = f"TLS error: {text}"

    def on_connect(self, raw: bytes) -> None:
        """The member, or whoever it is, introduces itself."""
        if self.dialled is not None:
            self.refuse("the other server sent CONNECT, but was dialled")
            return
        try:
            said = words.read_connect(raw)
        except ValueError as error:
            self.refuse(str(error))
            return
        if said.lang is not None or said.gateway is not None:
            self.refuse(CLIENT_PORT, CLIENT_PORT)
        elif not self._is_right(said):
            self._refuse_login(said)
        elif said.name == self._identity.server_id:
            self.is_self = self._is_quiet = True
            self._end("it is this broker itself")
        elif why := self._owner.objection_to_name(said.cluster, self, is_dynamic=said.cluster_dynamic):
            self.refuse(why, why)
        else:
            self.link.must_authenticate = False

    def _refuse_login(self, said: ServerConnect | None = None, *, at_once: bool = False) -> None:
        user = said.user if said is not None else ""
        who = f" - User {quoted(user[: words.MOST_SHOWN])}" if user and self._owner.is_like_newer else ""
        why = CloseReason.AUTHENTICATION_FAILURE.text
        self.refuse(why, "Authorization Violation", f"authentication error{who}", at_once=at_once)
        self._owner.events.refused(
            Person(self.rid, self.host, "", utf8_text(user), "", "", "", "router", self._start_us)
        )

    @property
    def _start_us(self) -> int:
        """When it was opened, in µs since 1970, by the wall clock as it is now."""
        return self.opened_us + wall_offset_us()

    def _is_right(self, said: ServerConnect) -> bool:
        import hmac

        cluster = self._owner.cluster
        if cluster.tls.is_on and cluster.tls.verify_and_map:
            # As in nats-server, whatever CONNECT says; and without a user it is nobody.
            return self._names is not None and is_name(self._names, cluster.user)
        if not cluster.user:
            return True
        pairs = (said.user, cluster.user), (said.password, cluster.password)
        right = [hmac.compare_digest(given.encode(), wanted.encode()) for given, wanted in pairs]
        return all(right)

    @costs_its_connection
    def _too_late(self) -> None:
        if self.info is not None or self._is_refused:
            return
        if self.dialled is None:
            self.refuse("Authentication Timeout", "Authentication Timeout", at_once=True)
        else:
            self.refuse(f"no INFO within {self._login_timeout_s:g} s")
        self._owner.flush()

    def on_info(self, raw: bytes) -> None:
        """Who the member is; later, what is new of it, or of others."""
        try:
            info = words.read_info(raw)
        except ValueError as error:
            self.refuse(str(error))
            return
        if self.info is None:
            self._introduced(info, raw)
        elif info.server_id == self.info.server_id:
            before = self._imports, self._exports
            self._show_permissions(info)
            self.link.is_fenced = info.fenced
            self._owner.on_news(self, info)
            if self._is_out_of_step(*before):
                self.close("the member's permissions have changed")
        elif self.is_member and not info.gateway_cmd:
            self._owner.on_gossip(self, info)

    def _introduced(self, info: ServerInfo, raw: bytes) -> None:
        if not info.server_id:
            self.refuse("its INFO has no server_id")
            return
        if info.client_id:
            self.refuse("it is a port for clients, or for leaf nodes")
            return
        if info.server_id == self._identity.server_id:
            self.is_self = self._is_quiet = True
            self._owner.on_self(self)
            self._end("it is this broker itself")
            return
        if self.dialled is None and info.server_name == self._identity.server_name:
            self.refuse(f'Remote server has a duplicate name: "{info.server_name[:200]}"')
            return
        if info.cluster and (why := self._owner.objection_to_name(info.cluster, self, is_dynamic=info.cluster_dynamic)):
            self.refuse(why, why)
            return
        url = self._url(info)
        try:
            # (now: what cannot be written costs this connection alone)
            told = words.gossip(raw, url)
        except ValueError as error:
            self.refuse(str(error))
            return
        self.info = info
        self.gossip = told if url else b""
        self.introduced_s = self._loop.time()
        if self.dialled is not None:
            if self._owner.is_known(info.server_id):
                # It does not know of this connection yet: said no word, nobody closes the wrong one.
                self.is_duplicate = self._is_quiet = True
                self._end("Duplicate Route")
                return
            self.link.send(self._owner.introduction(self) + self._owner.hello())
            if info.auth_required:
                # Its PONG says that it has taken the log-in; what comes before that counts already.
                self._is_on_trial = True
                self._send_ping()
                self.join()
        self.link.takes_headers(info.headers and self._identity.headers)
        self.link.takes_origins, self.link.names_origins = info.lnoc, info.lnocu
        self.link.only_queues_as = info.server_id if info.only_queues else ""
        self.link.is_fenced = info.fenced
        if not self._is_on_trial:
            self._owner.on_introduced(self)

    @property
    def url(self) -> str:
        """Where this member takes routes; "": nowhere."""
        return self._url(self.info) if self.info is not None else ""

    def _url(self, info: ServerInfo) -> str:
        """Where it takes routes: as it says, else the address that it has here; "": nowhere."""
        if not info.port:
            return ""
        return info.ip or f"nats-route://{Address(self.host, info.port)}/"

    def join(self) -> bool:
        """Frames of the member count from now on. False: the connection is being closed."""
        if self.link.slot < 0 and not self.link.join("route", None, ""):
            why = "there is no room for another connection to a server (31 at most)"
            self.refuse(why, at_once=self.info is None)  # (frames of it are being read)
            return False
        ours = self._owner.cluster.permissions
        self.link.set_permissions(Permissions(ours) if ours is not None else None)
        if self.info is not None:
            self._show_permissions(self.info)
        return True

    @costs_its_connection
    def take_accounts(self) -> None:
        """There are new accounts here: what the member has told of them counts from now on."""
        if not self.link.take_accounts():
            self.close("it told too much of accounts that were not known here, and has to tell it again")

    def begin(self) -> None:
        """It is the member's connection: tell it the interest here, and send it messages from now on."""
        self.is_member = self.was_member = True
        self.link.begin()
        if self.is_configured:
            self._send_ping()  # its PONG: the member has read all that

    def _show_permissions(self, info: ServerInfo) -> None:
        """The member's: it does not want what it does not import, and gives nothing that it does not export.

        It enforces them itself, and ours are enforced here.
        """
        self._imports, self._exports = words.shown_rules(info.imports), words.shown_rules(info.exports)

    def _is_out_of_step(self, imports: words.ShownRules, exports: words.ShownRules) -> bool:
        """Whether one end may have the other's interest by these rules, which the member had before, until it ends.

        What the member refused of ours it may take now. And a nats-server 2.15, which has said how many connections it
        would make, applies the present ones to only one of the members with one connection, but for INFO.
        """
        if self.info is not None and self.info.route_pool_size > 0:
            return (imports, exports) != (self._imports, self._exports)
        return exports is not None and exports != self._exports

    # ---- from the engine

    def on_error(self, raw: bytes) -> None:
        """The member refuses something, and closes the connection."""
        text = raw.decode("utf-8", "replace").strip().strip("'")
        self._why = self._why or f"Route Error: {text[:300]}"
        if _NO_DEDICATED in text.lower() or self.is_duplicate:
            self._is_quiet = True
        elif self.dialled is None or self.was_member:
            self._refusals.note("Route Error", repr(text[:300]))

    def on_pong(self) -> None:
        """A PING of ours was answered."""
        if self._pings_out:
            self.rtt_us = max(1, (time.monotonic_ns() - self._pinged_ns) // 1000)
        self._pings_out = 0
        if self._is_on_trial:
            self._is_on_trial = False
            self._owner.on_introduced(self)
        elif self.is_member and self.is_configured:
            self._owner.on_answered(self)

    def on_early(self) -> None:
        """Anything before its CONNECT; interest or a message behind that, which counts before it has joined."""
        if self.link.must_authenticate or self.dialled is not None:
            self._refuse_login()
        else:
            self.join()

    def on_interest(self) -> None:
        """The member told its first interest."""
        self._owner.on_frames(self)

    def on_loop(self, begins: bool) -> None:
        """Routes have no subject that shows loops."""

    def requestor(self) -> Document:
        """What comes by a route has followed imports at the other end."""
        raise NotImplementedError

    def on_unknown_account(self, account: bytes) -> None:
        """Interest or a message of an account that is not configured here."""
        logger.debug("%s - no account %r here", self, account[:200])

    def on_refused(self, why: str, subject: bytes) -> None:
        """An operation that has no effect."""
        self._refusals.note(f"{why}:", repr(subject))

    def on_broken(self, why: str) -> None:
        """Bytes that are no frame; the link is being closed."""
        if self.link.must_authenticate and (self._owner.is_like_newer or self._owner.cluster.user):
            self._refuse_login(at_once=True)  # (nats-server 2.9 reads on where everybody may connect)
            return
        self._why = self._why or CloseReason.PROTOCOL_VIOLATION.text
        self.link.send(b"-ERR 'Unknown Protocol Operation'\r\n")
        logger.error("%s - Router parser ERROR: %s", self, why)

    def on_closed(self, reason: int) -> None:
        """The connection has ended."""
        self._timer.cancel()
        self._login_timer.cancel()
        self.link.leave()
        why = self._why or CloseReason(reason).text
        self.is_member = False
        if self.was_member:
            who = f" - Remote: {self.info.shown}" if self._owner.is_like_newer and self.info is not None else ""
            logger.info("%s - Router connection closed: %s%s", self, why, who)
        else:
            logger.debug("%s - Router connection closed: %s", self, why)
        if not self.over.done():
            self.over.set_result(None)
        self._owner.on_ended(self, why)

    # ---- life

    @property
    def reason(self) -> str:
        """Why it has ended, or is about to; "": neither."""
        return self._why

    @property
    def has_lasted(self) -> bool:
        """Whether it was a member's for so long that it may be dialled again at once when it has ended."""
        return self.was_member and not self._is_quiet and self._loop.time() - self.introduced_s >= LASTED_S

    @property
    def is_quiet(self) -> bool:
        """Whether its end is nothing that went wrong."""
        return self._is_quiet

    def row(self, with_subs: bool) -> Generator[None, None, RouteRow]:
        """This connection on the monitoring pages, in steps, and what the member wants if that is asked for."""
        link = self.link
        subs = (yield from self._subscriptions()) if with_subs else ()
        assert self.info is not None
        return RouteRow(
            rid=self.rid,
            remote_id=self.info.server_id,
            name=self.info.server_name or self.info.server_id,
            did_solicit=self.dialled is not None,
            is_configured=self.is_configured,
            host=self.host,
            port=self.port,
            start_us=self._start_us,
            idle_us=link.idle_us,
            rtt_us=self.rtt_us,
            in_msgs=link.in_msgs,
            out_msgs=link.out_msgs,
            in_bytes=link.in_bytes,
            out_bytes=link.out_bytes,
            pending_bytes=link.pending_bytes,
            subscriptions=link.subscriptions,
            imports=self._imports,
            exports=self._exports,
            subs=subs,
        )

    def _subscriptions(self) -> Generator[None, None, tuple[SubscriptionRow, ...]]:
        """What the member wants. The keys are nats-server's: 2.15 has a letter, and the cluster of leaf nodes."""
        found = []
        room = MOST_LISTED_BYTES
        wanted = yield from self._exchange.interest_of_member(self.link.slot, MOST_ROUTE_SUBS)
        for account, subject, queue, origin in wanted:
            room -= 2 * len(subject) + 2 * len(queue)  # here, and in the key
            if room < 0:
                break
            words = [word for word in (account, subject, queue) if word]
            if self._owner.is_like_newer:
                words = [b"L", origin, *words] if origin else [b"R", *words]
            text, group, sid = (one.decode("utf-8", "replace") for one in (subject, queue, b" ".join(words)))
            found.append(SubscriptionRow(text, group, sid, 0, 0, self.rid))
        return tuple(found)

    def refuse(self, why: str, said: str = "", logged: str = "", *, at_once: bool = False) -> None:
        """Close it, with a line in the log (`why`, or `logged`), and perhaps a word to the other end.

        Whoever has connected hears of it later where many are refused, unless that is to be `at_once`.
        """
        # (who dialled tells it as a failure to connect, not at every try)
        if not self._why and (self.dialled is None or self.was_member):
            logger.error("%s - %s", self, logged or why)
        pause_s = (
            0.0 if at_once or self.dialled is not None or self.was_member else self._owner.pause_before_refusal_s()
        )
        self._why, self._is_refused = self._why or why, True
        if pause_s:
            self.link.hold_login()
            self._loop.call_later(pause_s, self._end_refused, said)
        else:
            self._end_refused(said)

    @costs_its_connection
    def _end_refused(self, said: str) -> None:
        if self.over.done():
            return
        if said:
            self.link.send(f"-ERR '{said}'\r\n".encode())
        self._end(self._why)
        self._owner.flush()

    def say_late(self, bound_s: float) -> None:
        """It did not answer a PING for which PONGs to clients wait, within this time."""
        logger.warning(
            "%s - no answer within %g s: PONGs to clients do not wait for it until it answers", self, bound_s
        )

    def close(self, why: str) -> None:
        """End it, for this reason."""
        self._end(why)

    def fall_silent(self, why: str) -> None:
        """Nothing is sent any more, as the other end has been told; when it closes, this is the reason."""
        self._why = self._why or why
        self.link.fall_silent()

    def give_way(self) -> None:
        """Close it, as it has not said who it is, and too many have not."""
        self._why = "it had not said who it is"
        self.link.drop()

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self.link.end()

    def reload(self, ping_interval_s: float, ping_max: int) -> None:
        """After a reload: ping so often, and wait for so many answers. It ends if its certificate is refused now."""
        if self._tls is not None and (objection := self._owner.objection_to_certificate(self._tls, self)):
            self.close(objection)
        interval_s = min(ping_interval_s, LONGEST_PING_S)
        is_other = interval_s != self._ping_interval_s
        self._ping_interval_s, self._ping_max = interval_s, ping_max
        if is_other and self._pinged_ns:  # (the first ping comes soon)
            self._timer.cancel()
            self._timer = self._loop.call_later(interval_s, self._ping)

    @costs_its_connection
    def _ping(self) -> None:
        if self.link.is_silent:
            return
        is_alive = self._signs.since_last_look(self.socket)
        if self._pings_out >= self._ping_max and is_alive:  # (by nats-server, too: it does not ping who is active)
            self._timer = self._loop.call_later(self._ping_interval_s, self._ping)
        elif self._pings_out >= self._ping_max:
            self.link.send(b"-ERR 'Stale Connection'\r\n")
            self._end("Stale Connection")
        elif not self._has_started or (self.dialled is not None and self.info is None):  # (CONNECT comes first)
            self._timer = self._loop.call_later(min(FIRST_PING_S, self._ping_interval_s), self._ping)
        else:
            self._send_ping()
            self._timer = self._loop.call_later(self._ping_interval_s, self._ping)
        self._owner.flush()

    def _send_ping(self) -> None:
        self._pings_out += 1
        self._pinged_ns = time.monotonic_ns()  # (the loop's clock counts milliseconds)
        self.link.ping()
