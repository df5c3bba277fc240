"""One leaf node connection of which this broker is the hub: its log-in, its rights, and what the leaf node says.

The leaf node is told INFO at once, answers with CONNECT, and passes messages when the second INFO has told it its
account and its rights. Its rights hold here, whatever it thinks of them: what it may not do ends the connection, as in
nats-server since 2.14. Called by the `LeafPort` that has accepted it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gnatswarm.broker.access.auth import Admission, Authenticator, HashedPassword
from gnatswarm.broker.access.certificate_names import names_of
from gnatswarm.broker.access.connect import ClientOptions, who_claims
from gnatswarm.broker.advisory import Person
from gnatswarm.broker.bounds import LARGEST_FRAME_PAYLOAD_BYTES
from gnatswarm.broker.errors import AuthorizationViolation, CloseReason, MaximumSubscriptionsExceeded
from gnatswarm.broker.options import LEAFNODE, LEAFNODE_WS
from gnatswarm.broker.options import Permissions as PermissionOptions
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.quoted import quoted
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.shards.boundary.utf8_text import utf8_text
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.leaf_connection import ConnectionOwner, LeafConnection
from gnatswarm.shards.sockets.blame import costs_its_connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from ssl import SSLObject

    from gnatswarm.broker.access.auth import Identity
    from gnatswarm.broker.access.certificate_names import CertificateNames
    from gnatswarm.broker.access.user_index import UserIndex
    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.limits import Limits
    from gnatswarm.shards.boundary.rows import LeafRow
    from gnatswarm.shards.clients.certificate_rule import CertificateRule
    from gnatswarm.shards.clients.passwords import Passwords
    from gnatswarm.shards.gateway.words import LeafConnect
    from gnatswarm.shards.sockets.frames import Frames

logger = logging.getLogger("gnatswarm.gateway")

# A compressed WebSocket frame may hold more than one message, and what is over max_payload is to be answered.
FRAME_ROOM_BYTES = 1024 * 1024
_MOST_DENIED = 1024
CLIENT_AT_PORT = "attempted to connect to leaf node port"
SAME_CLUSTER = "remote leafnode has same cluster name"
# Its cluster's name stands in frames to members of our cluster (broker.serverwire.MOST_ORIGIN_BYTES).
MOST_CLUSTER_NAME_BYTES = 1024
LONG_CLUSTER_NAME = f"remote leafnode has a cluster name of more than {MOST_CLUSTER_NAME_BYTES} bytes"
# What nats-server calls the end of a connection, to which it has said this.
_REASONS = {CLIENT_AT_PORT: "Incorrect Port", SAME_CLUSTER: "Cluster Names Identical"}
# As nats-server, which counts them apart from clients but says the same.
MAX_LEAFNODES = "maximum account active connections exceeded"


def _is_subject(text: str) -> bool:
    """Whether a leaf node may name this as what it does not want."""
    return text.split() == [text] and is_valid_subscription(text.encode("utf-8", "replace"))


class HubOwner(ConnectionOwner, Protocol):
    """The port that has accepted it; a reload may change the attributes."""

    authenticator: Authenticator
    is_encrypted: bool
    asks_for_certificate: bool
    certificate_rule: CertificateRule | None
    users: UserIndex
    maps_certificates: bool
    maps_by_websocket: bool
    limits: Limits
    login_timeout_s: float
    min_version: str
    is_like_newer: bool
    takes_headers: bool
    isolates: bool

    @property
    def passwords(self) -> Passwords:
        """Compares passwords with hashes."""

    def compares_anew(self, session: HubSession, admission: Admission) -> bool:
        """Whether its password, plain before a reload, is compared with a hash now: reload() follows."""

    @property
    def cluster_name(self) -> Callable[[], str]:
        """The present name of this broker's cluster; "": there is none."""

    def info(self, session: HubSession) -> dict[str, Any]:
        """The content of INFO for this leaf node."""

    def account_of(self, identity: Identity) -> str:
        """The account here of a leaf node that was admitted so."""

    def most_subscriptions(self, account: str) -> int:
        """How much interest one leaf node of this account may tell; 0: any."""

    def is_full(self, session: HubSession) -> bool:
        """Whether its account has as many leaf nodes as it may."""

    def on_accepted(self, session: HubSession) -> None:
        """It passes messages; connections that it replaces are to be closed."""

    def on_ended(self, session: HubSession) -> None:
        """The connection has ended."""


class HubSession(LeafConnection):
    """The connection of one leaf node; `nonce` is what it may sign."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        owner: HubOwner,
        *,
        lid: int,
        host: str,
        port: int,
        nonce: bytes,
        reached: str,
        frames: Frames | None,
        names: CertificateNames | None,
        ping_interval_s: float,
        ping_max: int,
    ) -> None:
        super().__init__(loop, exchange, owner, ping_interval_s=ping_interval_s, ping_max=ping_max)
        self.link.must_authenticate = True
        self._owner = owner
        self._frames = frames  # it came by WebSocket
        self.lid = lid
        self.host = host
        self.port = port
        self.nonce = nonce
        self.reached = reached  # our address to which it has connected
        self.connect: LeafConnect | None = None
        self.admission: Admission | None = None
        self._names = names  # in its certificate, by WebSocket
        self._tls: SSLObject | None = None  # None: not encrypted, or not yet, or by another shard, for WebSocket
        self._user = ""
        self._is_gone = False
        self._is_announced = False
        self._is_isolated = False

    def __str__(self) -> str:
        address = f"[{self.host}]" if ":" in self.host else self.host
        return f"{address}:{self.port} - {'lid_ws' if self.is_websocket else 'lid'}:{self.lid}"

    @property
    def is_websocket(self) -> bool:
        """Whether it came to the WebSocket port."""
        return self._frames is not None

    # ---- handshake

    @costs_its_connection
    def greet(self) -> None:
        """Begin: say who we are, and wait for CONNECT. With TLS it follows on this, or precedes it."""
        self.link.send(words.line(b"INFO", {**self._owner.info(self), "info_on_connect": True}))
        self._timer = self._loop.call_later(self._owner.login_timeout_s, self._give_up)

    def announce(self) -> None:
        """Tell the log of it, once."""
        if not self._is_announced:
            self._is_announced = True
            logger.info("%s - Leafnode connection created", self)

    def give_way(self) -> None:
        """Close it, as it has not logged in, and too many have not."""
        self._why = "it had not logged in"
        self.link.drop()

    @costs_its_connection
    def _give_up(self) -> None:
        logger.error("%s - Authentication Timeout", self)
        self._refuse("Authentication Timeout")
        self._owner.flush()

    def on_connect(self, raw: bytes) -> None:
        """The leaf node says who it is."""
        if self.connect is not None:
            self._refuse("Unexpected CONNECT")
            return
        try:
            connect = words.read_leaf_connect(raw)
        except ValueError as error:
            logger.error("%s - %s", self, error)
            self._end(CloseReason.PROTOCOL_VIOLATION.text)
            return
        self.connect = connect
        if certificate_objection := self._certificate_objection():  # (the rules may be newer than the handshake)
            logger.error("%s - %s", self, certificate_objection)
            self._refuse_login()
            return
        objection = self._objection(connect)
        if objection:
            logger.error("%s - %s", self, objection)
            self._refuse(objection)
            self._why = _REASONS.get(objection, objection)
            return
        try:
            self._examine(connect)
        except AuthorizationViolation:
            self._refuse_login()

    def _objection(self, connect: LeafConnect) -> str:
        """Why this is no leaf node that may connect, whoever it is; "": it is one."""
        if connect.lang:
            return CLIENT_AT_PORT
        if connect.gateway:
            name = connect.gateway[: words.MOST_SHOWN]
            return f"Rejecting connection from gateway {quoted(name)} on the leafnode port"
        if connect.cluster and connect.cluster == self._owner.cluster_name():
            return SAME_CLUSTER
        if len((connect.cluster or connect.name).encode()) > MOST_CLUSTER_NAME_BYTES:
            return LONG_CLUSTER_NAME
        least = self._owner.min_version
        if least and not words.is_at_least(connect.version, least):
            return f'connection rejected since minimum version required is "{least}"'
        return ""

    def _examine(self, connect: LeafConnect) -> None:
        given = ClientOptions(
            user=connect.user,
            password=connect.password,
            # (a URL with a token has it in the place of a user's name)
            auth_token=connect.auth_token or (connect.user if not connect.password else ""),
            nkey=connect.nkey,
            sig=connect.sig,
        )
        if self._is_mapped:
            user = self._mapped_user()
            if user is None:
                raise AuthorizationViolation
            if connect.user and connect.user != user:
                claimed = quoted(connect.user[: words.MOST_SHOWN])
                logger.warning("User %s found in connect proto, but user required from cert", claimed)
            given.user = user
        self._user = given.user or given.nkey
        outcome = self._owner.authenticator.examine(given, self.nonce, LEAFNODE_WS if self.is_websocket else LEAFNODE)
        if not isinstance(outcome, HashedPassword):
            self._log_in(outcome)
        elif self._owner.passwords.ask(outcome, self):
            self.link.hold_login()
        else:
            self._give_up()

    @property
    def _is_mapped(self) -> bool:
        """Whether its certificate selects its user."""
        return self._owner.maps_by_websocket if self.is_websocket else self._owner.maps_certificates

    def _mapped_user(self) -> str | None:
        """The user that its certificate selects; None: none."""
        names = names_of(self._tls.getpeercert() or {}) if self._tls is not None else self._names
        return self._owner.users.of_certificate(names) if names else None

    def _certificate_objection(self) -> str:
        """Why it could not connect to the port with its certificate, as the rules are now; "": it could."""
        owner, tls = self._owner, self._tls
        if self.is_websocket or not owner.is_encrypted:
            return ""
        if tls is None:
            return "connection not encrypted"
        if owner.asks_for_certificate and not tls.getpeercert(binary_form=True):
            return "client didn't provide a certificate"
        return owner.certificate_rule.objection(tls) if owner.certificate_rule is not None else ""

    @property
    def is_gone(self) -> bool:
        """Whether it has been closed, so that the result of its log-in is not needed."""
        return self._is_gone

    @costs_its_connection
    def on_compared(self, question: HashedPassword, is_same: bool | None) -> None:
        """The result of comparing its password with the hash; None: not compared, because too many were waiting."""
        identity = self._owner.authenticator.admitted(question) if is_same else None
        if is_same is None:
            self._give_up()
        elif identity is not None:
            self._log_in(msgspec.structs.replace(question.admission, identity=identity))
        else:
            self._refuse_login()
        self.link.log_in_decided()
        self._owner.flush()

    def _refuse_login(self) -> None:
        connect = self.connect or words.LeafConnect()
        user, nkey = connect.user[: words.MOST_SHOWN], connect.nkey[: words.MOST_SHOWN]
        if self._owner.is_like_newer:
            who = who_claims(nkey, user, has_token=bool(connect.auth_token))
        else:
            who = f"User {quoted(user or nkey)}"
        logger.error("%s - authentication error%s", self, f" - {who}" if who else "")
        self._refuse("Authorization Violation")
        self._why = CloseReason.AUTHENTICATION_FAILURE.text
        self._owner.events.refused(self._person())

    @property
    def _server_name(self) -> str:
        return utf8_text(self.connect.name) if self.connect is not None else ""

    def _person(self) -> Person:
        connect = self.connect or words.LeafConnect()
        user, name, version = (utf8_text(text) for text in (self._user, connect.name, connect.version))
        return Person(
            self.lid, self.host, self.account, user, name, "", version, "leafnode", self._opened_us, 0, self.rtt_us
        )

    def _log_in(self, admission: Admission) -> None:
        """Its credentials are good: it gets an account and rights, and passes messages."""
        connect = self.connect
        assert connect is not None
        if self._timer is not None:
            self._timer.cancel()
        self.admission = admission
        self.account = self._owner.account_of(admission.identity)
        # Do not keep the secrets; `admission` has what a reload needs to check them again.
        self.connect = msgspec.structs.replace(connect, password="", auth_token="", jwt="", sig="")
        if self._owner.is_full(self):
            logger.error("%s - %s (account %s)", self, MAX_LEAFNODES, quoted(self.account))
            self._refuse(MAX_LEAFNODES)
            self._why = CloseReason.MAXIMUM_ACCOUNT_CONNECTIONS_EXCEEDED.text
            return
        name = connect.cluster or connect.name
        kind = "hub" if connect.is_hub else "leaf"
        account = self.account.encode("utf-8", "surrogateescape")
        self._is_isolated = self._owner.isolates or connect.isolate
        if not self.link.join(kind, account, name, is_isolated=self._is_isolated):
            logger.error("%s - no place for another connection to a server: there are 31 at most", self)
            self._refuse("maximum connections exceeded")
            return
        self.is_accepted = True
        self.link.must_authenticate = False
        self.announce()
        if self._frames is not None:
            self._frames.allow(LARGEST_FRAME_PAYLOAD_BYTES + FRAME_ROOM_BYTES)
        self.link.takes_headers(connect.headers and self._owner.takes_headers)
        self.link.only_queues_as = connect.server_id if connect.only_queues else ""
        self._apply(admission.identity)
        self._owner.on_accepted(self)
        limits = self._owner.limits
        self.link.max_subscriptions = self._owner.most_subscriptions(self.account)
        self.link.begin(limits.max_pending_bytes, limits.max_payload_bytes)
        self._keep_pinging()
        self._owner.events.connected(self._person())

    def _apply(self, identity: Identity) -> None:
        """Give the leaf node these rights, and tell it."""
        rights = identity.permissions or PermissionOptions()
        if rights.responses and rights.publish_allow is None:  # it may only answer requests, as a client
            rights = msgspec.structs.replace(rights, publish_allow=())
        self._tell(rights)
        denied = self.connect.deny_pub or () if self.connect is not None else ()
        denied = tuple(one for one in denied[:_MOST_DENIED] if _is_subject(one))
        # The engine's rules are ours: what we may publish to the leaf node is what it may subscribe to.
        rules = PermissionOptions(
            publish_allow=rights.subscribe_allow,
            publish_deny=(*rights.subscribe_deny, *denied),
            subscribe_allow=rights.publish_allow,
            subscribe_deny=rights.publish_deny,
        )
        self.link.set_permissions(Permissions(rules) if rules != PermissionOptions() else None)
        self.link.set_answers(rights.responses, max(0.0, rights.responses_expire_s), tells=self._is_gnatswarm)

    def _tell(self, rights: PermissionOptions) -> None:
        content = {**self._owner.info(self), "connect_info": True, "remote_account": self.account}
        for key, allow, deny in (
            ("import", rights.subscribe_allow, rights.subscribe_deny),
            ("export", rights.publish_allow, rights.publish_deny),
        ):
            if allow is not None or deny:
                content[key] = words.Rules(allow, deny or None)
        if self._is_gnatswarm:
            content["only_queues"] = True
            if rights.responses:
                content["answers"] = words.Answers(rights.responses, max(0.0, rights.responses_expire_s))
        self.link.send(words.line(b"INFO", content))

    @costs_its_connection
    def tell_urls(self) -> None:
        """The addresses of the cluster have changed."""
        self.link.send(words.line(b"INFO", self._owner.info(self)))

    @property
    def _is_gnatswarm(self) -> bool:
        # nats-server as a leaf node sends nothing that `export` does not have, and so no answers.
        return self.connect is not None and bool(self.connect.gnatswarm)

    @costs_its_connection
    def reload(self) -> None:
        """The rules for log-ins have changed: it is closed if it would not be here under these.

        It stays as it was while its password is compared with a hash: then it comes here again.
        So it is if its rights or its isolation have changed, and comes back: then each end has told the other all that
        it may be told and no more, and nothing that was on its way is a violation of rights of which the leaf node had
        not heard.
        """
        if self.connect is None:
            return
        objection = self._certificate_objection()
        if not objection and self._is_mapped and self._mapped_user() != self._user:
            objection = "its certificate selects another user, or none"
        if objection:
            logger.error("%s - the configuration does not admit it any more: %s", self, objection)
            self._refuse("Authorization Violation")
            return
        if self.admission is None:
            return
        identity = self._owner.authenticator.readmit(self.admission)
        if identity is None and self._owner.compares_anew(self, self.admission):
            return
        if identity is None or self._owner.account_of(identity) != self.account:
            logger.error("%s - the configuration does not admit it any more", self)
            self._refuse("Authorization Violation")
            return
        if (self._owner.isolates or self.connect.isolate) != self._is_isolated:
            logger.info("%s - the configuration changes whether it is isolated: it has to connect again", self)
            self._end("Isolation Changed")
            return
        if identity.permissions != self.admission.identity.permissions:
            logger.info("%s - the configuration changes its rights: it has to connect again", self)
            self._end("Permissions Changed")
            return
        self.admission = msgspec.structs.replace(self.admission, identity=identity)
        self.link.max_subscriptions = self._owner.most_subscriptions(self.account)
        self.link.limit_payloads(self._owner.limits.max_payload_bytes)

    def is_replaced_by(self, other: HubSession) -> bool:
        """Whether the other is the same leaf node's next connection for the same account."""
        mine, theirs = self.connect, other.connect
        return (
            mine is not None
            and theirs is not None
            and bool(mine.name)
            and (mine.name, mine.cluster, mine.remote_account) == (theirs.name, theirs.cluster, theirs.remote_account)
            and self.account == other.account
        )

    def replace(self) -> None:
        """A newer connection of the same leaf node is here."""
        text = "Duplicate Remote LeafNode Connection"
        logger.error("%s - %s", self, text)
        self._refuse(text)

    # ---- from the engine

    def on_info(self, raw: bytes) -> None:
        """A leaf node's INFO says nothing that is used here."""

    def on_error(self, raw: bytes) -> None:
        """The leaf node has refused something; where that ends the connection it closes it."""
        text = raw.decode("utf-8", "replace").strip().strip("'")
        if text.lower() == MaximumSubscriptionsExceeded.text:  # of interest that it was told; the connection stays
            self._log_limit()
            return
        self._refusals.note("Leafnode Error", quoted(text[:300]))
        self._why = self._why or (text[:300] if "loop detected" in text.lower() else "")

    def on_early(self) -> None:
        """Something else than CONNECT came first."""
        self._refuse_login()

    def on_refused(self, why: str, subject: bytes) -> None:
        """The leaf node did what it may not."""
        shown = quoted(subject[:200])
        if why in ("Publish", "Subscription"):
            if self.connect is not None and self.connect.is_hub:
                return  # as in nats-server, whose hubs tell all their interest: it has no effect
            logger.error("%s - %s Violation on %s - Check other side configuration", self, why, shown)
            self._refuse(f"Permissions Violation for {why} to {shown}")
            self._why = CloseReason.PROTOCOL_VIOLATION.text
        elif why == "Payload":
            logger.error("%s - maximum payload exceeded on %s", self, shown)
            self._refuse("Maximum Payload Violation")
            self._why = CloseReason.MAXIMUM_PAYLOAD_EXCEEDED.text
        else:
            super().on_refused(why, subject)

    def on_broken(self, why: str) -> None:
        """Bytes that are no frame."""
        if self.is_accepted:
            logger.error("%s - Leafnode parser ERROR: %s", self, why)
            self._refuse("Unknown Protocol Operation")
            self._why = CloseReason.PROTOCOL_VIOLATION.text
        else:
            self._refuse_login()

    def _on_ended(self, why: str) -> None:
        self._is_gone = True
        who = ""
        if self.is_accepted and self.connect is not None:
            who = f" - Remote: {self.connect.shown}" if self._owner.is_like_newer else ""
            self._tell_of_end(why)
        account = "" if self._owner.is_like_newer else f" account: {self.account}"
        level = logging.INFO if self._is_announced else logging.DEBUG
        logger.log(level, "%s - Leafnode connection closed: %s%s%s", self, why, account, who)
        self._owner.on_ended(self)

    # ---- TLS

    def on_secured(self, tls: SSLObject) -> bool:
        """The handshake is done. False: its certificate is refused, and the connection is being closed."""
        self._tls = tls
        objection = self._certificate_objection()
        if objection:
            self.on_opening_failed(objection)
            self.link.end()
            return False
        return True

    def on_opening_failed(self, why: str, _is_upgrade: bool = False) -> None:
        """The handshake failed."""
        logger.error("%s - TLS leafnode handshake error: %s", self, why)
        self._why = CloseReason.TLS_HANDSHAKE_FAILURE.text

    # ---- life

    def row(self, with_subs: bool) -> Generator[None, None, LeafRow]:
        """This connection on the monitoring pages, in steps."""
        name = self.connect.shown if self.connect is not None else ""
        is_spoke = self.connect is not None and self.connect.is_hub
        return self._row(
            name,
            self.host,
            self.port,
            is_spoke=is_spoke,
            lid=self.lid,
            is_isolated=self._is_isolated,
            with_subs=with_subs,
        )
