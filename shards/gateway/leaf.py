"""One leaf node connection of which this broker is the leaf: the handshake, pings, and what the hub says.

The hub's first INFO was read by whoever dialled (`shards.gateway.remote`), but for a hub that is reached by WebSocket;
this session answers it with CONNECT, and passes messages when the hub has sent the INFO that says that it has accepted.
Messages and interest are the engine's (`broker.serverlink`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from gnatswarm.broker.advisory import Person
from gnatswarm.broker.errors import MaximumSubscriptionsExceeded
from gnatswarm.broker.options import Permissions as PermissionOptions
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.shards.boundary.utf8_text import utf8_text
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.credentials import log_in
from gnatswarm.shards.gateway.leaf_connection import ConnectionOwner, LeafConnection
from gnatswarm.shards.sockets.blame import costs_its_connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from ssl import SSLObject

    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.options import LeafRemote
    from gnatswarm.shards.boundary.rows import LeafRow
    from gnatswarm.shards.gateway.words import Identity, ServerInfo

logger = logging.getLogger("gnatswarm.gateway")

# A hub that has not accepted by then is none; it waits as long for CONNECT.
ACCEPT_S = 2.0
# A connection that has passed messages for so long is dialled again at once when it ends, by whichever end: a hub that
# restarts keeps its port open meanwhile. One that ends sooner would be made and ended all the time.
LASTED_S = 2.0
# Of the time in which the hub takes an answer: the rest is for the way there.
ANSWER_SHARE = 0.9
# Texts of the hub after which dialling again at once would only fail again.
_WAIT_LONG = ("loop detected", "same cluster name", "permissions violation")


def _limiting(allow: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """None where everything is allowed, so that no message is looked at."""
    return None if allow == (">",) else allow


class LeafOwner(ConnectionOwner, Protocol):
    """Who dialled."""

    def on_accepted(self, session: LeafSession) -> None:
        """The hub has accepted; messages pass."""

    def on_ended(self, session: LeafSession, reason: str, *, wait_long: bool) -> None:
        """The connection has ended."""

    @property
    def cluster_name(self) -> Callable[[], str]:
        """The present name of this broker's cluster; "": there is none."""

    @property
    def is_like_newer(self) -> bool:
        """Whether the broker behaves as nats-server 2.15."""

    def most_subscriptions(self, account: str) -> int:
        """How much interest a hub may tell to this account; 0: any."""

    def on_urls(self, info: ServerInfo) -> None:
        """The hub named the addresses of its cluster, or none."""

    def objection_to(self, info: ServerInfo) -> str:
        """Why a first INFO is none of a hub; "": it is one."""

    def objection_to_certificate(self, tls: SSLObject) -> str:
        """Why a hub with this certificate may not be connected; "": it may."""


class LeafSession(LeafConnection):
    """The connection to one hub; `info` is the hub's first INFO, None: it comes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        owner: LeafOwner,
        remote: LeafRemote,
        identity: Identity,
        info: ServerInfo | None,
        *,
        address: str,
        login: tuple[str, str],
        is_encrypted: bool,
        lid: int,
        ping_interval_s: float,
        ping_max: int,
    ) -> None:
        super().__init__(loop, exchange, owner, ping_interval_s=ping_interval_s, ping_max=ping_max)
        self._owner = owner
        self._identity = identity
        self._login = login
        self._is_encrypted = is_encrypted
        self._lid = lid
        self._tls: SSLObject | None = None  # None: the handshake is not done, or the connection is not encrypted
        self.remote = remote
        self.account = remote.account
        self._is_greeted = info is not None
        self._is_refused = False
        self._rules: tuple[words.Rules | None, words.Rules | None] = (None, None)  # of the hub, when it accepted
        self.info = info if info is not None else words.ServerInfo()
        self.address = address

    def __str__(self) -> str:
        return f"{self.address} - lid:{self._lid}"

    # ---- handshake

    def wait_for_info(self, timeout_s: float) -> None:
        """The first INFO has to come within this time."""
        self._timer = self._loop.call_later(timeout_s, self._miss_info, timeout_s)

    @costs_its_connection
    def _miss_info(self, timeout_s: float) -> None:
        self._end(f"no INFO within {timeout_s:g} s")
        self._owner.flush()

    @costs_its_connection
    def begin(self) -> None:
        """As start(), outside of the reactor's rounds."""
        self.start()

    def start(self) -> None:
        """Answer the hub's first INFO."""
        if self._timer is not None:
            self._timer.cancel()
        info, remote = self.info, self.remote
        content: dict[str, Any] = {
            "version": self._identity.version,
            "tls_required": self._is_encrypted,
            "server_id": self._identity.server_id,
            "name": self._identity.server_name,
            # A hub passes nothing between leaf nodes of one cluster, which has its own way for it.
            "cluster": self._owner.cluster_name() or self._identity.server_name,
            "headers": self._identity.headers,
            # A newer hub then closes an older connection of ours that it still holds.
            "remote_account": remote.account,
            "deny_pub": list(remote.deny_imports) or None,
            "is_hub": remote.hub or None,
            "isolate": remote.request_isolation or None,
            "gnatswarm": OWN_VERSION,
            "only_queues": True,
            **log_in(
                user=self._login[0],
                password=self._login[1],
                jwt=remote.jwt,
                seed=remote.seed,
                nonce=info.nonce,
            ),
        }
        self.link.send(words.line(b"CONNECT", content))
        if info.info_on_connect:
            self._timer = self._loop.call_later(ACCEPT_S, self._give_up)
        else:
            self._accepted(info)

    @costs_its_connection
    def _give_up(self) -> None:
        self._why = f"the hub did not accept within {ACCEPT_S:g} s"
        self._refuse("Stale Leaf Node Connection - Closing")
        self._owner.flush()

    def _cluster_there(self) -> str:
        """The cluster to whose other connections nothing of this one's goes; "": to all.

        What one account has from a hub and another imports would come back to the hub, which follows its own imports.
        """
        is_told_apart = self.remote.hub or self._owner.is_like_newer
        return (self.info.cluster or self.info.server_name) if is_told_apart else ""

    def _accepted(self, info: ServerInfo) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.link.takes_headers(info.headers and self._identity.headers)
        self.link.only_queues_as = info.server_id if info.only_queues else ""
        if not self.link.join(
            "leaf" if self.remote.hub else "hub",
            self.remote.account.encode("utf-8", "surrogateescape"),
            self._cluster_there(),
            is_checked=False,
            is_isolated=self.remote.isolate,
        ):
            self._end("there is no room for another connection to a server (31 at most)", wait_long=True)
            return
        self.is_accepted = True
        if not self._apply_permissions(info):
            return
        if self.remote.deny_exports:
            self.link.withhold(Permissions(PermissionOptions(publish_deny=self.remote.deny_exports)))
        self.link.max_subscriptions = self._owner.most_subscriptions(self.account)
        self.link.begin()
        self._keep_pinging()
        self._owner.on_accepted(self)
        self._owner.events.connected(self._person(), has_dialled=True)

    @property
    def _server_name(self) -> str:
        return utf8_text(self.info.server_name)

    def _person(self) -> Person:
        host = self.address.rpartition(":")[0].strip("[]")
        return Person(self._lid, host, self.account, "", "", "", "", "leafnode", self._opened_us, 0, self.rtt_us)

    def _apply_permissions(self, info: ServerInfo) -> bool:
        """What the hub allows, and what the configuration denies; False: it makes no sense, and the connection ends."""
        try:
            self._apply_rules(info)
        except (ValueError, OverflowError) as error:  # of a subject, or a number, that is none
            self._end(f"the hub's permissions make no sense: {error}")
            return False
        return True

    def _apply_rules(self, info: ServerInfo) -> None:
        """In its INFO, `export` is what a leaf may publish. ValueError, OverflowError."""
        self._rules = (info.imports, info.exports)
        exports, imports = info.exports or words.Rules(), info.imports or words.Rules()
        rules = PermissionOptions(
            publish_allow=_limiting(exports.allow),
            publish_deny=(*(exports.deny or ()), *self.remote.deny_exports),
            subscribe_allow=_limiting(imports.allow),
            subscribe_deny=(*(imports.deny or ()), *self.remote.deny_imports),
        )
        self.link.set_permissions(Permissions(rules) if rules != PermissionOptions() else None)
        answers = info.answers or words.Answers()
        # (an answer that comes too late would end the connection)
        self.link.set_answers(answers.max, max(0.0, answers.expires_s) * ANSWER_SHARE)

    def _changes_rights(self, info: ServerInfo) -> bool:
        """Whether a later INFO has other rules than the one that accepted; what it leaves out goes on."""
        imports, exports = self._rules
        return info.imports not in (None, imports) or info.exports not in (None, exports)

    # ---- from the engine

    def on_info(self, raw: bytes) -> None:
        """A later INFO: that the hub has accepted, or that something has changed."""
        try:
            info = words.read_info(raw)
        except ValueError as error:
            self._end(str(error))
            return
        if not self._is_greeted:
            objection = self._owner.objection_to(info)
            if objection:
                self._end(objection)
                return
        self._owner.on_urls(info)
        if not self._is_greeted:
            self._is_greeted, self.info = True, info
            self.start()
        elif not self.is_accepted:
            if info.connect_info or not self.info.info_on_connect:
                self._accepted(info)
        elif self._changes_rights(info):
            # What each end has told the other fits the former rules: over a new connection it fits the present ones.
            self._end("the hub has changed the rights")

    def on_connect(self, _raw: bytes) -> None:
        """A hub does not say CONNECT."""
        self._end("the hub sent CONNECT")

    def on_error(self, raw: bytes) -> None:
        """The hub has refused something; it closes the connection itself, where that ends it."""
        text = raw.decode("utf-8", "replace").strip().strip("'")
        folded = text.lower()
        if folded == MaximumSubscriptionsExceeded.text:  # the connection stays
            self._log_limit()
            return
        if any(said in folded for said in _WAIT_LONG):
            self._wait_long = True
        self._is_refused = True
        self._why = self._why or f"the hub said: {text[:300]}"
        self._refusals.note("the hub said:", text[:300])

    def on_early(self) -> None:
        """Interest or a message before the hub has accepted."""
        self._end("interest came before the hub had accepted")

    @property
    def has_lasted(self) -> bool:
        """Whether messages have passed for so long, and the hub has refused nothing, that it may be dialled at once."""
        return self.is_accepted and not self._is_refused and self._loop.time() - self.opened_s >= LASTED_S

    def _on_ended(self, why: str) -> None:
        if self.is_accepted:
            self._tell_of_end(why)
        self._owner.on_ended(self, why, wait_long=self._wait_long)

    # ---- TLS

    def on_secured(self, tls: SSLObject) -> bool:
        """The handshake is done. False: the hub's certificate is refused, and the connection is being closed."""
        self._tls = tls
        objection = self._owner.objection_to_certificate(tls)
        if objection:
            self.on_opening_failed(objection)
            self.link.end()
            return False
        if self._is_greeted:
            self.start()
        return True

    # ---- life

    @costs_its_connection
    def reload(self) -> None:
        """The rules for hubs may have changed: the connection ends if they refuse this one's certificate."""
        self.link.max_subscriptions = self._owner.most_subscriptions(self.account)
        if self._tls is not None and (objection := self._owner.objection_to_certificate(self._tls)):
            self._end(objection)

    def row(self, with_subs: bool) -> Generator[None, None, LeafRow]:
        """This connection on the monitoring pages, in steps."""
        host, _, port = self.address.rpartition(":")
        return self._row(
            self.info.shown,
            host.strip("[]"),
            int(port),
            is_spoke=not self.remote.hub,
            lid=self._lid,
            is_isolated=self.remote.isolate,
            with_subs=with_subs,
        )
