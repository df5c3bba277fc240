"""The session of one client: its CONNECT options, its identity, and what is logged about it.

The engine's ClientConnection executes its operations; this file handles what happens once per connection or CONNECT.
What all clients of a shard share comes from the `SessionOwner`.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from gnatswarm.broker.access.auth import NOBODY, Admission, Authenticator, HashedPassword
from gnatswarm.broker.access.certificate_names import CertificateNames, names_of
from gnatswarm.broker.access.connect import (
    ClientOptions,
    keeps_credentials,
    overlay,
    require_object,
    require_sense,
    who_claims,
)
from gnatswarm.broker.errors import (
    AuthenticationTimeout,
    AuthorizationViolation,
    CloseReason,
    MaximumAccountConnectionsExceeded,
    PermissionsViolation,
    ProtocolError,
    subscription_revoked,
)
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.broker.options import STANDARD, WEBSOCKET
from gnatswarm.broker.quoted import quoted
from gnatswarm.shards.boundary.logs import TRACE
from gnatswarm.shards.boundary.wall_clock import wall_offset_us
from gnatswarm.shards.clients.moved import FrozenAdmission, FrozenSession, FrozenTls
from gnatswarm.shards.sockets.blame import costs_its_connection
from gnatswarm.shards.sockets.reactor import Socket

if TYPE_CHECKING:
    from ssl import SSLObject

    from gnatswarm.broker.access.auth import Identity
    from gnatswarm.broker.access.user_index import UserIndex
    from gnatswarm.broker.allowance import Allowance
    from gnatswarm.broker.connection import ClientConnection
    from gnatswarm.broker.permissions import Permissions
    from gnatswarm.broker.trace import Tracer
    from gnatswarm.shards.clients.account_census import AccountCensus
    from gnatswarm.shards.clients.certificate_rule import CertificateRule
    from gnatswarm.shards.clients.passwords import Passwords
    from gnatswarm.shards.clients.rights import Rights
    from gnatswarm.shards.sockets.cookies import Credentials
    from gnatswarm.shards.sockets.frozen_socket import FrozenSocket
    from gnatswarm.shards.sockets.layered import LayeredSocket
    from gnatswarm.shards.sockets.relay import Relay

logger = logging.getLogger("gnatswarm.clients")

# A client can violate its permissions as fast as it can write: log one line a second.
VIOLATIONS_EVERY_US = 1_000_000
# A reload can end a million subscriptions of a client: the same.
REVOKED_EVERY_S = 1.0
# So many subscriptions are looked at in one turn, where permissions change or a client logs in anew: up to 5 ms.
LOOKED_AT_ONCE = 1000

NOT_CONNECTED = ClientOptions()
# A clock that has moved by so much against the monotonic one was set. By less it is adjusted all the time.
CLOCK_SET_US = 1_000_000


class SessionOwner(Protocol):
    """What a session uses of the shard's `Clients`; a reload may change the attributes."""

    authenticators: dict[str, Authenticator]  # the log-in rules, by kind
    rights: Rights
    users: UserIndex
    has_nkeys: bool  # some user has one
    maps_certificates: frozenset[str]  # kinds whose certificate selects the user
    keeps_names: frozenset[str]  # … or may do so, if it turns out to be a leaf node
    certificate_rules: dict[str, CertificateRule | None]
    is_like_newer: bool
    relay: Relay | None

    @property
    def census(self) -> AccountCensus:
        """Counts connections by account."""

    @property
    def passwords(self) -> Passwords:
        """Compares passwords with hashes."""

    def new_connection(self, session: ClientSession, cid: int, *, must_authenticate: bool) -> ClientConnection:
        """The engine's side of a new session."""

    def new_tracers(self) -> tuple[Tracer, Tracer]:
        """Two tracers of a client: incoming, outgoing."""

    def greet(self, session: ClientSession, *, is_known: bool) -> None:
        """Queue its first INFO, with its address if that is known."""

    def note_failed_handshake(self) -> None:
        """A connection failed before the NATS protocol began."""

    def note_refused(self) -> None:
        """A log-in failed."""

    def info_of_connected(self, session: ClientSession) -> bytes:
        """The INFO line for a client that has logged in; b"": it is told nothing."""

    def allowance_of(self, session: ClientSession, user: str, account: str) -> Allowance | None:
        """What it may publish as this user; None: as much as it wants to, or it is being heard out."""

    def end_soon(self, session: ClientSession) -> None:
        """Subscriptions of its, or a log-in that waits for their end, are due: end_some() follows until none is."""

    def on_publish_limited(self, session: ClientSession, wait_us: int) -> None:
        """The client has to wait, because of publish_limits: publish_again() follows after this time."""

    def on_other_publish_limits(self, session: ClientSession) -> None:
        """The client has other publish_limits than before."""

    def on_turn_over(self, session: ClientSession) -> None:
        """The client has had its turn, and is not read: read_on() of its connection follows behind others."""

    def note_denied(self, account: str, user: str, *, is_publish: bool) -> None:
        """Permissions did not allow a publish, or a subscription."""

    def on_connected(self, session: ClientSession, before: str = "", *, is_announced: bool = True) -> None:
        """It has logged in; `before`: the account in which it was until now. `is_announced`: there is an event."""

    def on_refused(self, session: ClientSession) -> None:
        """The client's log-in was refused; it is about to be closed."""

    def on_system_request(self, session: ClientSession, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """The client publishes to $SYS.REQ.…. True: the broker answers, perhaps beside other subscribers."""

    def on_leaf_node(self, session: ClientSession) -> None:
        """It is no client, but a leaf node that came by WebSocket, and is held."""

    def on_closed(self, session: ClientSession) -> None:
        """The session has ended; its subscriptions are removed."""

    def finish_soon(self) -> None:
        """Flush soon what was queued outside of a turn of the reactor."""


class _Revoked:
    """What the log has not said yet of a client's subscriptions that a reload has ended."""

    __slots__ = ("logged_s", "n", "sid", "subject")

    def __init__(self) -> None:
        self.n = 0
        self.subject = self.sid = b""  # of the latest
        self.logged_s = 0.0  # by the monotonic clock


class ClientSession:
    """One client: its connection, its CONNECT options, its user."""

    __slots__ = (
        "_asking",
        "_clients",
        "_entering",
        "_gave_refused_token",
        "_limited_us",
        "_revoked",
        "_violated_us",
        "_violations",
        "account",
        "admission",
        "began_us",
        "came_from",
        "claimed",
        "connect",
        "connection",
        "cookies",
        "counted_at",
        "ended_s",
        "full_account",
        "gave_token",
        "host",
        "kind",
        "moved_us",
        "names",
        "needs_greeting",
        "nonce",
        "port",
        "reason",
        "relay",
        "socket",
        "started_s",
        "stated",
        "tls_cipher_suite",
        "tls_version",
        "tracers",
        "user",
        "was_refused",
    )

    def __init__(
        self,
        clients: SessionOwner,
        cid: int,
        host: str,
        port: int,
        *,
        kind: str,
        nonce: bytes,
        must_authenticate: bool,
    ) -> None:
        self._clients = clients
        self.connection = clients.new_connection(self, cid, must_authenticate=must_authenticate)
        self.host = host
        self.port = port
        self.kind = kind
        self.tls_version = self.tls_cipher_suite = ""
        self.relay = ""  # the boot id of the process that has its TLS; "": this one, or it has none
        self.names: CertificateNames | None = None  # of its certificate, with verify_and_map
        self.started_s = time.time()
        self.began_us = time.monotonic_ns() // 1000  # the same, by the clock that nobody sets
        self.ended_s = 0.0
        self.came_from = -1  # the shard that it has moved from; -1: it was accepted here
        self.moved_us = 0  # when
        self.connect = NOT_CONNECTED
        self.cookies: Credentials | None = None  # for its first CONNECT
        self.user = ""
        self.account = ""
        self.full_account = ""  # that of its CONNECT, which had no room for it; "": it had
        self.counted_at = -1  # its account's place on the page; -1: it is not counted
        self.claimed = ""  # the user or nkey that it claimed to be, admitted or not
        self.was_refused = False  # and never admitted
        self.needs_greeting = False  # INFO waits for its PROXY header
        self.stated = ("", "", "")  # name, language and version in its CONNECT, admitted or not
        self.nonce = nonce
        self.gave_token = False  # in its last CONNECT
        self.admission: Admission | None = None
        self._gave_refused_token = False  # in the CONNECT that was refused
        self._asking: ClientOptions | None = None  # the CONNECT whose password is being compared
        self._entering: tuple[ClientOptions, Admission] | None = None  # the CONNECT that waits for subscriptions to end
        self._revoked: _Revoked | None = None
        self._limited_us = 0  # when the log last said that it is limited
        self._violated_us = 0
        self._violations = 0  # since the last log line about them
        self.reason = CloseReason.NONE
        self.socket: Socket | None = None
        self.tracers: tuple[Tracer, Tracer] | None = None

    def __str__(self) -> str:
        text = f"{self.host}:{self.port} - {'wid' if self.kind == 'websocket' else 'cid'}:{self.connection.cid}"
        is_like_newer = self._clients.is_like_newer
        # nats-server 2.9 names the program from the first CONNECT on, 2.15 once a CONNECT was accepted.
        if is_like_newer and self.admission is None:
            return text
        name, language, version = self.stated
        program = ":".join(part for part in (version and f"v{version}", language, name) if part)
        if program:
            text += f" - {quoted(program)}"
        return f"{text} - {quoted(f'{self.account}/{self._identity}')}" if is_like_newer and self._identity else text

    @property
    def _identity(self) -> str:
        """Who logged in, and how, as in the log of nats-server 2.15; "": without credentials."""
        if self.connect.nkey:
            return f"nkey:{self.connect.nkey}"
        if self.user or self.connect.user:
            return f"user:{self.user or self.connect.user}"
        return "token" if self.gave_token else ""

    @property
    def login(self) -> str:
        """By what it has logged in, for the monitoring pages; "": it needed nothing, or has not logged in."""
        if self.admission is None:
            return ""
        if self.admission.is_anonymous:
            return "no_auth_user"
        if self.names is not None:
            return "certificate"
        if self.admission.is_nkey:
            return "nkey"
        if self.gave_token:
            return "token"
        return "password" if self.user else ""

    @property
    def shown_user(self) -> str:
        """Its user; of who was not admitted the name that it claimed, whoever it was before it said so."""
        return self.claimed if self.was_refused else self.user or self.claimed

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of JSON log lines about this client. If it was not admitted, `user` is the name that it claimed."""
        found: dict[str, object] = {
            "cid": self.connection.cid,
            "address": f"{self.host}:{self.port}",
            "kind": self.kind,
        }
        if self.shown_user:
            found["user"] = self.shown_user
        if self.account:
            found["account"] = self.account
        return found

    def on_secured(self, tls: SSLObject) -> bool:
        """The TLS handshake has succeeded. False: its certificate is refused, and the connection is being closed."""
        rule = self._clients.certificate_rules[self.kind]
        objection = rule.objection(tls) if rule is not None else ""
        if objection:
            self.on_opening_failed(objection, is_upgrade=False)
            if self.socket is not None:
                self.socket.kick(CloseReason.TLS_HANDSHAKE_FAILURE)
            return False
        from gnatswarm.broker.access import ciphers

        version, suite = tls.version() or "", tls.cipher()
        self.tls_version = sys.intern(version.removeprefix("TLSv"))
        self.tls_cipher_suite = sys.intern(ciphers.server_name(suite[0] if suite else ""))
        if self.kind in self._clients.keeps_names:
            self.names = names_of(tls.getpeercert() or {})
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - TLS version %s, cipher suite %s", self, self.tls_version, self.tls_cipher_suite)
        return True

    def on_opening_failed(self, why: str, is_upgrade: bool) -> None:
        """The TLS handshake or the WebSocket upgrade has failed; on_closed follows."""
        self._clients.note_failed_handshake()
        logger.error("%s - %s handshake error: %s", self, "websocket" if is_upgrade else "TLS", _harmless(why))

    def on_leaf_node(self) -> None:
        """The WebSocket upgrade was one for leaf nodes."""
        self.connection.wait()
        self._clients.on_leaf_node(self)

    def on_cookies(self, credentials: Credentials) -> None:
        """The WebSocket upgrade has cookies with credentials, for a CONNECT that leaves them out."""
        self.cookies = credentials

    def on_wire_error(self, why: str) -> None:
        """The client sent an invalid TLS record or WebSocket frame; on_closed follows."""
        logger.error("%s - read error: %s", self, _harmless(why))

    def on_write_deadline(self) -> None:
        """It has taken nothing for write_deadline, and stays (write_timeout: retry)."""
        logger.warning("%s - Slow Consumer Detected: write deadline exceeded; it stays", self)

    def on_proxied(self, host: str, port: int) -> None:
        """A load balancer's PROXY header says whose connection this is."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s - Client address %s:%d by PROXY protocol", self, host, port)
        self.host, self.port = host, port

    def on_greeting_due(self, is_known: bool) -> None:
        """INFO, which is sent after the handshake, is to be queued: it is known whose connection this is, or not."""
        if self.needs_greeting:
            self.needs_greeting = False
            self._clients.greet(self, is_known=is_known)

    def on_proxy_refused(self, why: str) -> None:
        """Its PROXY header is invalid, or did not come; on_closed follows."""
        self._clients.note_failed_handshake()
        logger.warning("Error reading PROXY protocol header from %s:%d: %s", self.host, self.port, _harmless(why))

    def on_connect(self, raw: bytes) -> None:
        """A CONNECT line has arrived. Raises ProtocolError when it is invalid or refused."""
        options = overlay(self.connect, raw)
        try:
            self._examine(options)
        except ProtocolError:
            self._remember(options)
            raise

    def _examine(self, options: ClientOptions) -> None:
        if self.kind in self._clients.maps_certificates:
            options.user = self._mapped_user(options.user)
        elif self.cookies is not None and self.admission is None:
            user, password, token = self.cookies
            options.user = options.user or user
            options.password = options.password or password
            options.auth_token = options.auth_token or token
        self.claimed = options.user or options.nkey
        self.stated = (options.name, options.lang, options.version)
        outcome = self._admitted_as_before(options)
        if outcome is None:
            outcome = self._rules.examine(options, self.nonce, self.connection_type)
        if not isinstance(outcome, HashedPassword):
            self._log_in(options, outcome)
        elif self._clients.passwords.ask(outcome, self):
            self._asking = options
            self.connection.hold_login()
        else:
            raise AuthenticationTimeout

    def _admitted_as_before(self, options: ClientOptions) -> Admission | HashedPassword | None:
        """A later CONNECT without credentials overlays the earlier one, whose secrets we do not have any more."""
        before = self.admission
        if before is None or not keeps_credentials(self.connect, options):
            return None
        identity = self._rules.readmit(before)
        return None if identity is None else msgspec.structs.replace(before, identity=identity)

    def _remember(self, options: ClientOptions) -> None:
        """Keep a refused CONNECT for the monitoring pages, without its secrets."""
        self._gave_refused_token = bool(options.auth_token)
        options.auth_token = options.password = options.jwt = options.sig = ""
        self.connect = options
        self.cookies = None

    def _mapped_user(self, claimed: str) -> str:
        """The user of its certificate, whatever its CONNECT says. AuthorizationViolation: it is none of our users."""
        user = self._clients.users.of_certificate(self.names) if self.names else None
        if user is None:
            raise AuthorizationViolation
        if claimed and claimed != user:
            logger.warning("User %s found in connect proto, but user required from cert", quoted(claimed))
        return user

    @property
    def _rules(self) -> Authenticator:
        """The log-in rules of its port."""
        return self._clients.authenticators[self.kind]

    @property
    def _who_was_refused(self) -> str:
        """Whom the log says that it claimed to be; "": nobody. 2.9 names what its configuration asks for."""
        connect = self.connect
        if not self._clients.is_like_newer:
            if self._clients.has_nkeys:
                return f"Nkey {quoted(connect.nkey)}"
            return f"User {quoted(connect.user)}" if self._clients.users.names else ""
        return who_claims(connect.nkey, connect.user, has_token=self.gave_token or self._gave_refused_token)

    @property
    def connection_type(self) -> str:
        """Its type, as in the option `allowed_connection_types`."""
        return WEBSOCKET if self.kind == "websocket" else STANDARD

    @property
    def is_gone(self) -> bool:
        """Whether the client has been closed, so that the result of its log-in is not needed."""
        return bool(self.reason) or self.connection.is_closing

    @costs_its_connection
    def on_compared(self, question: HashedPassword, is_same: bool | None) -> None:
        """The result of comparing its password with the hash; None: not compared, because too many were waiting."""
        options, self._asking = self._asking, None
        if options is None:
            return
        error: ProtocolError | None = None
        try:
            if is_same is None:
                raise AuthenticationTimeout
            identity = self._rules.admitted(question) if is_same else None
            if identity is None:
                raise AuthorizationViolation
            self._log_in(options, msgspec.structs.replace(question.admission, identity=identity))
        except ProtocolError as why:
            self._remember(options)
            error = why
        if self._entering is None:
            self.connection.log_in_decided(error)
        self._clients.finish_soon()

    def _log_in(self, options: ClientOptions, admission: Admission) -> None:
        require_sense(options, offers_headers=self.connection.offers_headers)
        connection = self.connection
        if self._clients.is_like_newer and self.admission is not None:
            connection.end_subscriptions()
            self.end_some(LOOKED_AT_ONCE)
        if connection.is_ending or connection.lingers:
            # (Until all shards know that it has left its queue groups, what they send to them is for who it was.)
            self._entering = options, admission
            connection.hold_login()
            self._clients.end_soon(self)
        elif not self._clients.rights.are_at_hand(admission.identity.permissions):
            # In its turn: hundreds of clients may log in at once, each with thousands of permissions of its own.
            self._entering = options, admission
            connection.hold_login()
            self._clients.end_soon(self)
        else:
            self._become(options, admission)

    def on_members_left(self) -> None:
        """No member of a queue group that it was lingers any more, and its log-in is held."""
        if self._entering is not None:
            self._clients.end_soon(self)

    def _go_on_entering(self) -> None:
        """Nothing is left of its earlier subscriptions: log it in, if the present rules still admit it."""
        entering, self._entering = self._entering, None
        if entering is None or self.is_gone:
            return
        options, admission = entering
        error: ProtocolError | None = None
        try:
            identity = self._rules.readmit(admission)
            if identity is None:
                raise AuthorizationViolation
            self._become(options, msgspec.structs.replace(admission, identity=identity))
        except ProtocolError as why:
            self._remember(options)
            error = why
        self.connection.log_in_decided(error)

    def on_first_operation(self) -> None:
        """It begins with something else than CONNECT: it is the no_auth_user, if there is one. ProtocolError.

        Not before: its CONNECT may say that it is somebody else, and until then it is counted for no account.
        """
        identity = self._rules.anonymous(self.connection_type)
        if identity is None:
            raise AuthorizationViolation
        self.enter(identity)
        self.admission = Admission(identity, is_anonymous=True, kind=self.connection_type)
        self.cookies = None
        self.connection.authenticated()
        self._clients.on_connected(self, is_announced=self._clients.is_like_newer)

    def _become(self, options: ClientOptions, admission: Admission) -> None:
        is_first = self.admission is None
        is_like_newer = self._clients.is_like_newer
        before = "" if is_first else self.account
        told = b"" if is_first else self._clients.info_of_connected(self)
        self.enter(admission.identity)
        self.end_some(LOOKED_AT_ONCE)
        self.cookies = None
        # Do not keep the secrets; `admission` has what a reload needs to check them again.
        self.admission = admission
        self.gave_token = bool(options.auth_token) or (self.gave_token and keeps_credentials(self.connect, options))
        options.auth_token = options.password = options.jwt = options.sig = ""
        self.connect = options
        self.connection.configure(
            verbose=options.verbose,
            pedantic=options.pedantic,
            echo=options.echo,
            headers=options.headers,
            no_responders=options.no_responders,
            protocol=options.protocol,
            names_subject=is_like_newer,
        )
        self.connection.authenticated()
        # (A PONG before CONNECT does not count: nobody knew then whether the client understands a second INFO.)
        if options.protocol and (is_first or not self.connection.was_ponged):
            info = self._clients.info_of_connected(self)
            if info:
                self.connection.send_info_after_pong(info)
            else:  # nor is an earlier CONNECT's sent
                self.connection.take_back_info(told)
        if is_first and self.socket is not None:
            # As on nats-server: how long it took to send CONNECT, until its first PONG tells better.
            self.connection.estimate_rtt(max(0, time.monotonic_ns() // 1000 - self.socket.opened))
        if before != self.account:
            self._clients.on_connected(self, before)

    def enter(self, identity: Identity) -> None:
        """Give the client this identity. AuthorizationViolation when it cannot change to it."""
        rights = self._clients.rights
        permissions = rights.permissions(identity.permissions)
        held = self.connection.subscriptions
        if held and identity.account != self.account:
            raise AuthorizationViolation  # or its subscriptions would hear another account's messages
        try:
            self._clients.census.move(self, identity.account, rights.most_connections(identity.account))
        except MaximumAccountConnectionsExceeded:
            self.full_account = identity.account
            raise
        self._enter(identity, permissions)

    def reenter(self, identity: Identity) -> bool:
        """After a reload: give the same user its new permissions. False when its account has changed."""
        if identity.account != self.account:
            return False
        rights = self._clients.rights
        self._clients.census.stay(self, rights.most_connections(identity.account))
        self._enter(identity, rights.permissions(identity.permissions))
        return True

    def _enter(self, identity: Identity, permissions: Permissions | None) -> None:
        rights = self._clients.rights
        self.connection.enter(rights.sublist(identity.account), permissions)
        self.connection.set_limits(rights.limits(identity.account))
        is_new_rate = self.connection.allow(self._clients.allowance_of(self, identity.user, identity.account))
        self.user = identity.user
        self.account = identity.account
        if is_new_rate:
            self._clients.on_other_publish_limits(self)
        if self.connection.is_ending:
            self._clients.end_soon(self)

    def on_subscriptions_due(self) -> None:
        """It takes nothing more, and is only heard out: its subscriptions end."""
        self.end_some(LOOKED_AT_ONCE)
        if self.connection.is_ending:
            self._clients.end_soon(self)

    def end_some(self, most: int) -> None:
        """End what is due of its next `most` subscriptions, and tell it; behind the last, go on with its log-in."""
        names_queue = self._clients.is_like_newer
        was_renewing = self.connection.is_renewing
        ended = self.connection.end_some(most)
        if was_renewing and not self.connection.is_ending and self.connection.n_unheard:
            logger.error(
                "%s - %d of its subscriptions hear nothing of an import: their subjects are too long in that account",
                self,
                self.connection.n_unheard,
            )
        if ended:
            errors = [
                subscription_revoked(subject, sid, queue if names_queue else b"") for subject, sid, queue in ended
            ]
            self.connection.send(b"".join([error.wire for error in errors]))
            self._revoked = self._revoked or _Revoked()
            self._revoked.n += len(ended)
            self._revoked.subject, self._revoked.sid, _ = ended[-1]
        if self._revoked is not None and self._revoked.n:
            self._note_revoked(self._revoked)
        if not self.connection.is_ending and not self.connection.lingers:
            self._go_on_entering()

    def _note_revoked(self, revoked: _Revoked) -> None:
        now_s = time.monotonic()
        if self.connection.is_ending and now_s - revoked.logged_s < REVOKED_EVERY_S:
            return
        what = f"{quoted(revoked.subject)} (sid {quoted(revoked.sid)})"
        more = f" ({revoked.n} since the last line)" if revoked.n > 1 else ""
        logger.info("%s - Removed sub %s, not authorized%s", self, what, more)
        revoked.n, revoked.logged_s = 0, now_s

    @property
    def has_ended(self) -> bool:
        """Whether the other end has closed, though not all that it sent may have been read."""
        return self.socket is not None and self.socket.is_hung_up

    @property
    def has_tls_here(self) -> bool:
        """Whether the keys of its TLS are in this process, which must stay as its relay when it moves."""
        return bool(self.tls_version) and not self.relay

    def freeze_socket(self) -> FrozenSocket:
        """Its socket as a record, without its TLS; as freeze()."""
        if self.socket is None:
            raise RecordRefused("it is being closed")
        if not self.has_tls_here:
            return self.socket.freeze()
        layered: LayeredSocket = self.socket  # type: ignore[assignment]  # no other has TLS
        return layered.freeze_behind_tls()

    def _frozen_tls(self) -> FrozenTls | None:
        if not self.tls_version:
            return None
        here = self._clients.relay
        relay = self.relay or (here.key if here is not None else "")
        return FrozenTls(version=self.tls_version, cipher_suite=self.tls_cipher_suite, relay=relay, names=self.names)

    def objection_to_freezing(self) -> str:
        """Why freeze() or freeze_socket() would be refused now; "": neither would be."""
        if self.socket is None or self.is_gone:
            return "it is being closed"
        if self.has_tls_here and self._clients.relay is None:
            return "it has TLS, whose keys stay in the process that made them"
        if self._asking is not None or self._entering is not None:
            return "its log-in is being checked"
        if self.connection.is_ending:
            return "subscriptions of its are being ended"
        if self.cookies is not None or self.present_identity() is None:
            return "it has not logged in yet"
        if type(self.socket) is not Socket:  # (a plain one is refused where the session is)
            try:
                self.freeze_socket()
            except RecordRefused as error:
                return str(error)
        return ""

    def present_identity(self) -> Identity | None:
        """Whom the present rules take it for; None: they would not admit it."""
        rules = self._rules
        return rules.anonymous(self.connection_type) if self.admission is None else rules.readmit(self.admission)

    def start_s(self, offset_us: int) -> float:
        """When it connected, since 1970. Has the clock been set since, by the clock as it is now.

        `offset_us`: what to add to a monotonic time to get µs since 1970.
        """
        now_us = self.began_us + offset_us
        return now_us / 1e6 if abs(now_us - self.started_s * 1e6) >= CLOCK_SET_US else self.started_s

    def freeze(self) -> FrozenSession:
        """Who the client is, as a record; nothing changes. RecordRefused, with the reason, where it has none now."""
        if why := self.objection_to_freezing():
            raise RecordRefused(why)
        identity = self.present_identity()
        assert identity is not None
        admission: FrozenAdmission | None = None
        if self.admission is not None:
            admission = FrozenAdmission(
                name=self.admission.name,
                proof=self.admission.proof,
                proof_key=self.admission.proof_key,
                hashed=self._rules.hash_of(self.admission),
                is_anonymous=self.admission.is_anonymous,
                is_nkey=self.admission.is_nkey,
                kind=self.admission.kind,
            )
        return FrozenSession(
            kind="websocket" if self.kind == "websocket" else "nats",
            host=self.host,
            port=self.port,
            started_s=self.start_s(wall_offset_us()),
            user=self.user,
            account=self.account,
            claimed=self.claimed,
            stated=self.stated,
            nonce=self.nonce,
            gave_token=self.gave_token,
            connect=None if self.connect is NOT_CONNECTED else self.connect,
            admission=admission,
            rights=self._clients.rights.digest(identity.permissions, identity.account),
            violations=self._violations,
            violated_us=self._violated_us,
            tls=self._frozen_tls(),
        )

    def thaw(self, frozen: FrozenSession) -> None:
        """Make a new session what the record says, with the rights that its user has here.

        RecordRefused: its user cannot log in here, or has another account; a reload is under way. The caller forgets
        the session then. It is counted for no account here: see Clients.take_over.
        """
        rules = self._rules
        if frozen.admission is not None:
            said = frozen.admission
            admission = Admission(
                identity=NOBODY,
                name=said.name,
                proof=said.proof,
                proof_key=said.proof_key,
                is_anonymous=said.is_anonymous,
                is_nkey=said.is_nkey,
                kind=said.kind,
            )
            if said.hashed:
                rules.vouch(admission, said.hashed)
            identity = rules.readmit(admission)
            if identity is not None:
                self.admission = msgspec.structs.replace(admission, identity=identity)
        else:
            identity = rules.anonymous(self.connection_type)
        if identity is None or identity.account != frozen.account:
            raise RecordRefused("its user may not log in here, or has another account: the configurations differ")
        if self._clients.rights.digest(identity.permissions, identity.account) != frozen.rights:
            raise RecordRefused("its permissions or limits are different here: a reload is under way")
        if frozen.tls is not None:
            self.tls_version, self.tls_cipher_suite = frozen.tls.version, frozen.tls.cipher_suite
            self.relay, self.names = frozen.tls.relay, frozen.tls.names
        self.started_s = frozen.started_s
        self.began_us = int(frozen.started_s * 1_000_000) - wall_offset_us()
        self.claimed = frozen.claimed
        self.stated = frozen.stated
        self.gave_token = frozen.gave_token
        self.connect = frozen.connect or NOT_CONNECTED
        self._violations = frozen.violations
        self._violated_us = frozen.violated_us
        self.account = identity.account
        self._enter(identity, self._clients.rights.permissions(identity.permissions))

    def on_info(self, raw: bytes) -> None:
        """An INFO line has arrived: it is ignored if it is valid. Raises BadArguments."""
        require_object(raw)

    def on_system_request(self, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """The client publishes to $SYS.REQ.…. True: the broker answers, perhaps beside other subscribers."""
        return self._clients.on_system_request(self, subject, reply, payload)

    def on_publish_limited(self, wait_us: int) -> None:
        """Its user or account has published as much as it may: the client is not read for this time."""
        self._clients.on_publish_limited(self, wait_us)
        now_us = self.connection.active_us
        if self._limited_us and now_us - self._limited_us < VIOLATIONS_EVERY_US:
            return
        self._limited_us = now_us
        logger.warning("%s - Publish limit of %s reached: reading it more slowly", self, self._shown_user)

    def on_turn_over(self) -> None:
        """It has had its turn: Python is asked for all that it sends. Others are served before it is read on."""
        self._clients.on_turn_over(self)

    def on_error(self, error: ProtocolError) -> None:
        """The client broke the protocol; it was sent the error, or will be closed without one."""
        if isinstance(error, AuthorizationViolation | AuthenticationTimeout):
            self._clients.note_refused()
        if isinstance(error, AuthorizationViolation):
            self.was_refused = self.admission is None
            self._clients.on_refused(self)
            who = self._who_was_refused
            logger.error("%s - authentication error%s", self, f" - {who}" if who else "")
        elif isinstance(error, PermissionsViolation):
            self._note_violation(error)
        elif error.closes:
            logger.error("%s - %s", self, error.logged)
        else:
            logger.debug("%s - %s", self, error.text)

    @property
    def _shown_user(self) -> str:
        """Its user, as in nats-server's log; before log-in the user that it claimed to be."""
        if self.connect.nkey:
            return f"Nkey {quoted(self.connect.nkey)}"
        return f"User {quoted(self.user or self.claimed or 'N/A')}"

    def _note_violation(self, error: PermissionsViolation) -> None:
        user = self.connect.nkey or self.user
        self._clients.note_denied(self.account, user, is_publish=error.deed.startswith("Publish"))
        self._violations += 1
        now_us = self.connection.active_us
        if self._violated_us and now_us - self._violated_us < VIOLATIONS_EVERY_US:
            return
        more = f" ({self._violations} since the last line)" if self._violations > 1 else ""
        who = "" if self._clients.is_like_newer else f"{self._shown_user}, "  # 2.15 begins the line with it
        logger.error("%s - %s - %s%s%s", self, error.deed, who, error.about, more)
        self._violated_us = now_us
        self._violations = 0

    def on_bytes_in(self, data: bytes) -> None:
        """Tracing is on: the client has sent this."""
        self._trace(0, data)

    def on_bytes_out(self, data: bytes) -> None:
        """Tracing is on: the client was sent this."""
        self._trace(1, data)

    def _trace(self, direction: int, data: bytes) -> None:
        if self.tracers is None:
            self.tracers = self._clients.new_tracers()
        for line in self.tracers[direction].feed(data):
            logger.log(TRACE, "%s - %s", self, line)

    def on_closed(self, reason: int) -> None:
        """The connection has ended."""
        self.reason = CloseReason(reason)
        self.ended_s = time.time()
        self._asking = self._entering = None
        self._clients.on_closed(self)


def _harmless(text: str) -> str:
    """Safe for a log line: a library's error text may contain bytes of the peer."""
    short = text[:200]
    return short if short.isprintable() else repr(short)
