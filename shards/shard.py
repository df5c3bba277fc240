"""One shard in a running event loop: the engine, its sockets, its clients, and its timers.

It knows nothing of processes, router and siblings: its owner supplies the shared page and the listening sockets,
links it to siblings (`shards.links.links`) if there are any, and ends it. The owner is `shards.worker` in a process of
its own, or `shards.embedded` on a thread of another program.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from gnatswarm.broker.access.auth import Authenticator, for_websocket
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.advisory import ServerIdentity
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.info import InfoTemplate, advertised, cluster_name
from gnatswarm.broker.mesh import Mesh
from gnatswarm.shards.boundary.control import ClusterNews
from gnatswarm.shards.clients.clients import Clients
from gnatswarm.shards.clients.imports_exports import ImportsExports
from gnatswarm.shards.clients.message_tracing import MessageTracing
from gnatswarm.shards.clients.system import System
from gnatswarm.shards.sockets.deadlines import Deadlines
from gnatswarm.shards.sockets.listener import Listener
from gnatswarm.shards.sockets.lookout import SWEEP_S, Lookout
from gnatswarm.shards.sockets.loop_wait import LoopWait
from gnatswarm.shards.sockets.page_counters import PageCounters
from gnatswarm.shards.sockets.reactor import Reactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gnatswarm.broker.options import Options
    from gnatswarm.shards.boundary.control import ControlMessage
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.boundary.rows import ConnectionRow
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.descriptor_headroom import DescriptorHeadroom

logger = logging.getLogger("gnatswarm.shard")

# The shown lag is halved in 0.7 s, so that one late timer does not make a shard look slow for long.
LAG_FADES = 0.9
# Accepting is tried again this long after an error, such as no free descriptors; as in nats-server.
ACCEPT_AGAIN_S = 1.0
# So many requests of a client that is gone are forgotten in one turn, with an event for each: some 10 us.
FORGOTTEN_AT_ONCE = 500
# Accounts that a reload has removed are forgotten when their clients have gone, also at siblings: looked at after it, …
FORGET_S = 5.0
FORGET_AGAIN_S = 60.0


def _shortest_ping_interval_s(options: Options) -> float:
    """That of the clients that are pinged most often."""
    general_s, of_websocket_s = options.limits.ping_interval_s, options.websocket.ping_interval_s
    return min(general_s, of_websocket_s or general_s) if options.websocket.port else general_s


class Shard:
    """Serves clients from listen() or take() on; made and used on the thread of the running loop.

    `host` and `port` are sent to clients in INFO; with 2.15's ways those who came by WebSocket are told
    `websocket_port`, 0: there is none. `page` is the shared page, on which it writes its own counters; `headroom` is
    told the number of clients. `tell` sends a message to the router, if there is one. `on_sweep` is called ten times a
    second with the lateness of the timer in seconds, `on_slow` for each slow consumer that was closed,
    `on_client_closed` for every client that has left, `on_client_moved` for every one that goes on in another shard.
    `has_clients`: False for the gateway, which takes no requests to the system account either.
    """

    def __init__(
        self,
        options: Options,
        *,
        number: int,
        page: Page,
        headroom: DescriptorHeadroom,
        server_id: str,
        server_name: str,
        host: str,
        port: int,
        websocket_port: int = 0,
        tell: Callable[[ControlMessage], None] | None = None,
        on_sweep: Callable[[float], None] | None = None,
        on_slow: Callable[[ConnectionRow], None] | None = None,
        on_client_closed: Callable[[ClientSession], None] | None = None,
        on_client_moved: Callable[[ClientSession], None] | None = None,
        has_clients: bool = True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._headroom = headroom
        self._number = number
        self._page = page
        self._server_id = server_id
        self._server_name = server_name
        self._address = host, port
        self._websocket_port = websocket_port
        self._options = options
        self._users = UserIndex(options.users)
        self._news = ClusterNews(cluster_name(options.cluster.name, server_id)) if options.cluster.port else None
        self.fanout = Fanout(prefers_local=options.sharding.prefer_local)
        self.mesh = Mesh(self.fanout, number)
        self.counters = PageCounters(page, number, self.fanout, self.mesh)
        self.reactor = Reactor(self.fanout, self.counters, is_tracing=options.logging.trace)
        self._deadlines = Deadlines(self.reactor, options.limits, options.websocket, options.leafnodes, options.cluster)
        self.fence = MeshFence(self.mesh)
        self.imports_exports = ImportsExports(
            options,
            self.fanout,
            self.mesh,
            server_name=server_name,
            cluster=self._cluster_name,
        )
        sessions: dict[int, ClientSession] = {}
        self.system = System(
            reactor=self.reactor,
            counters=self.counters,
            fanout=self.fanout,
            mesh=self.mesh,
            page=page,
            server=ServerIdentity(server_id, server_name, options, self._cluster_name),
            sessions=sessions,
            tell=tell,
            may_answer=has_clients,
        )
        services = self.imports_exports.service_imports
        services.clock_ns = time.monotonic_ns
        services.describe, services.on_latency = self.system.describe, self.system.on_latency
        services.on_measured_reply = self.system.tell_responder
        services.system_account = options.system_account.encode()
        self.system.own_reply_prefix = lambda: services.reply_prefix
        self._tracing: MessageTracing | None = None
        if options.is_like_newer and options.headers and has_clients:
            self._tracing = MessageTracing(options, self.mesh, self.system, sessions)
            self.fanout.tracing = self._tracing
        self.clients = Clients(
            shard=number,
            options=options,
            users=self._users,
            info=self._info_template(options),
            reactor=self.reactor,
            fanout=self.fanout,
            mesh=self.mesh,
            fence=self.fence,
            page=page,
            system=self.system,
            sessions=sessions,
            on_slow=on_slow or (lambda row: None),
            on_closed=self._on_client_closed,
            on_moved=on_client_moved or (lambda session: None),
        )
        self._tell_client_closed = on_client_closed or (lambda session: None)
        self._on_sweep = on_sweep or (lambda late_s: None)
        self._lag_s = 0.0
        self._listeners: list[Listener] = []
        self._listening: list[int] = []
        self._wait = LoopWait.begin(self._loop, self.reactor)
        if self._wait is None:
            self._loop.add_reader(self.reactor.fd, self.reactor.turn)
        self._lookout = Lookout(
            self._loop,
            self._deadlines.sweep,
            self._deadlines.go_on,
            ping_interval_s=_shortest_ping_interval_s(options),
        )
        self._sweep_at_s = self._loop.time() + SWEEP_S
        self._timer = self._loop.call_at(self._sweep_at_s, self._sweep)
        self._forget_at_s = math.inf  # _forget_accounts()
        # The configured accounts, while others are looked at again and again.
        self._named: tuple[set[str], set[bytes]] | None = None

    def listen(self, fds: Iterable[int], websocket_fds: Iterable[int], *, may_refuse: bool = False) -> None:
        """Accept clients from these listening sockets, and own them from now on.

        `may_refuse`: the first are nobody else's either, and end_listening() has them refuse connections.
        """
        sockets = [(fd, self.clients.on_accept, may_refuse) for fd in fds]
        sockets += [(fd, self.clients.on_accept_websocket, True) for fd in websocket_fds]
        for fd, on_accept, refuses in sockets:
            self._listening.append(fd)
            on_error, full_at = self._on_accept_error, self._headroom.full_at
            listener = Listener(self.reactor, fd, on_accept, on_error, full_at, self._on_full, may_refuse=refuses)
            self._listeners.append(listener)

    def take(self, fd: int, host: str, port: int) -> None:
        """Take over a client's connection that another process has accepted, and own it from now on."""
        self.clients.on_accept(fd, host, port)
        self.reactor.read_newest(fd)
        if fd >= self._headroom.full_at:
            self._on_full()

    def accept_waiting(self) -> None:
        """Accept those that wait in the queues: stop_listening() follows."""
        for listener in self._listeners:
            listener.accept_waiting()
        self.reactor.finish()

    def end_listening(self) -> None:
        """The broker ends: accept those that wait in the queues, and nobody any more."""
        for listener in self._listeners:
            listener.end()
        self.stop_listening()
        self.reactor.finish()

    def stop_listening(self) -> None:
        """Close our copies of the listening sockets too: the kernel completes connections while one is open."""
        for listener in self._listeners:
            listener.close()
        for fd in self._listening:
            os.close(fd)
        self._listeners = []
        self._listening = []

    def leave_listening_to_parent(self) -> None:
        """In a child after fork(): close the copies of listening sockets; the parent serves on."""
        for fd in self._listening:
            os.close(fd)
        self._listening = []

    def on_cluster_news(self, news: ClusterNews) -> None:
        """Clients are to be told this of the cluster, unless they know."""
        before, line = self._news, self._news_for_clients()
        if before is not None and not news.is_settled:
            news = msgspec.structs.replace(
                news,
                own_urls=news.own_urls or before.own_urls,
                urls=sorted({*before.urls, *news.urls}),
                own_websocket_urls=news.own_websocket_urls or before.own_websocket_urls,
                websocket_urls=sorted({*before.websocket_urls, *news.websocket_urls}),
            )
        self._news = news
        self.imports_exports.set_cluster(news.name)
        self.system.set_cluster(news.name, news.members)
        if self._news_for_clients() != line:
            self.clients.announce(self._info_template(self._options))

    @property
    def _cluster_name(self) -> str:
        return self._news.name if self._news is not None else self._options.stated_cluster

    def _news_for_clients(self) -> dict[str, Any]:
        """The values of INFO that are about the cluster."""
        news = self._news
        if news is None:
            return {"cluster": self._cluster_name}
        return {
            "cluster": news.name,
            "connect_urls": [*news.own_urls, *news.urls],
            "other_urls": news.urls,
            "websocket_urls": [*news.own_websocket_urls, *news.websocket_urls],
            "other_websocket_urls": news.websocket_urls,
        }

    def reload(
        self,
        options: Options,
        on_done: Callable[[], None] | None = None,
        *,
        users: UserIndex | None = None,
        listeners: set[str] | None = None,
    ) -> None:
        """Apply new options; those that cannot change at run time must have their old values.

        on_done() is called when they hold for all clients that there are. `users`: theirs, if they are known already.
        `listeners`: where `imports_exports` has been through its steps, the accounts whose stream imports have changed.
        """
        self._options = options
        self._named = None
        self._users = users if users is not None else UserIndex(options.users)
        self._deadlines.set_limits(options.limits, options.websocket, options.leafnodes, options.cluster)
        self._lookout.set_interval(_shortest_ping_interval_s(options))
        self.reactor.is_tracing = options.logging.trace
        self.fanout.prefer_local(options.sharding.prefer_local)
        if listeners is None:
            listeners = self.imports_exports.configure(options)
        on_reloaded = functools.partial(self._on_reloaded, on_done)
        self.clients.reload(options, self._users, self._info_template(options), listeners, on_reloaded)
        self.system.configure(options)
        if self._news is None:
            self.imports_exports.set_cluster(self._cluster_name)
            self.system.set_cluster(self._cluster_name, 0)
        self.imports_exports.service_imports.system_account = options.system_account.encode()
        if self._tracing is not None:
            self._tracing.configure(options)

    def _on_reloaded(self, then: Callable[[], None] | None) -> None:
        """The options hold for all clients; those of accounts that were removed are being closed."""
        self._forget_accounts(FORGET_S)
        if then is not None:
            then()

    def _forget_accounts(self, again_s: float) -> None:
        """Those that are not configured any more, and that nobody has; if there are others, again after this time.

        Python keeps clients that have gone for a while.
        """
        if self._named is None:  # (25 ms for 50,000)
            names = self._options.account_names
            self._named = names, {name.encode("utf-8", "surrogateescape") for name in names}
        names, named = self._named
        left = self.mesh.forget_accounts(named)
        gone = self.clients.closed.by_account.keys() - names
        if gone:
            gone.difference_update(name.decode("utf-8", "surrogateescape") for name in self.mesh.account_names())
            self.clients.closed.forget(gone)
        if left:
            self._forget_at_s = self._loop.time() + again_s
        else:
            self._forget_at_s, self._named = math.inf, None

    def close(self) -> None:
        """End the shard in a process that continues: leaves nothing in the loop, and no open descriptor."""
        self._timer.cancel()
        self._lookout.close()
        self.stop_listening()
        self.clients.close_all(CloseReason.SERVER_SHUTDOWN)
        self.clients.passwords.close()
        self.system.close()
        self.leave_loop()
        self.reactor.close()

    def leave_loop(self) -> None:
        """Serve no sockets from now on, because the loop, or the shard, ends. A second call does nothing."""
        if self._wait is None:
            self._loop.remove_reader(self.reactor.fd)
        else:
            self._wait.end()

    def _info_template(self, options: Options) -> InfoTemplate:
        host, port = advertised(options.client_advertise, *self._address)
        websocket_address = (options.websocket.host, self._websocket_port) if options.is_like_newer else None
        log_in = Authenticator(options, users=self._users)
        websocket_log_in = Authenticator(for_websocket(options), users=self._users)
        return InfoTemplate(
            server_id=self._server_id,
            server_name=self._server_name,
            host=host,
            port=port,
            shard=self._number,
            headers=options.headers,
            max_payload_bytes=options.limits.max_payload_bytes,
            auth_required=log_in.anonymous() is None or log_in.has_guests,
            has_users=log_in.is_required,
            websocket_address=websocket_address,
            websocket_auth_required=websocket_log_in.anonymous() is None or websocket_log_in.has_guests,
            websocket_has_users=websocket_log_in.is_required,
            tls_required=options.tls.is_on and not options.allow_non_tls,
            tls_available=options.tls.is_on and options.allow_non_tls,
            tls_verify=options.tls.is_on and options.tls.asks_for_certificate,
            version=options.server_version,
            **self._news_for_clients(),
        )

    def _on_client_closed(self, session: ClientSession) -> None:
        self._forget_requests(session.connection.cid)
        self._tell_client_closed(session)

    def _forget_requests(self, cid: int) -> None:
        """Others are served between the ends of a client's requests to measured services."""
        if not self.imports_exports.service_imports.on_client_gone(cid, FORGOTTEN_AT_ONCE):
            self._loop.call_soon(self._forget_requests, cid)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        passed_s = now_s - self._sweep_at_s
        self._show_gauges(passed_s)
        self._on_sweep(passed_s)
        self._headroom.look(len(self.clients.open))
        self._sweep_at_s = now_s + SWEEP_S
        self._timer = self._loop.call_at(self._sweep_at_s, self._sweep)
        self.imports_exports.service_imports.sweep()
        self._lookout.on_sweep()
        if now_s >= self._forget_at_s:
            self._forget_accounts(FORGET_AGAIN_S)
        if not self.mesh.is_trimming:
            self._trim_caches()

    def _trim_caches(self) -> None:
        """Others are served between its steps."""
        if self.mesh.trim_caches():
            self._loop.call_soon(self._trim_caches)

    def _show_gauges(self, late_s: float) -> None:
        """Write gauges to the shared page; the lag shown is about the worst of the last second."""
        self._lag_s = max(late_s, self._lag_s * LAG_FADES)
        self._page.store(self._number, "loop_lag_us", int(self._lag_s * 1_000_000))

    def _on_full(self) -> None:
        self._headroom.fill(len(self.clients.open))

    def _on_accept_error(self, number: int) -> None:
        if number == errno.EMFILE:
            self._on_full()
        logger.error("cannot accept connections: %s; trying again in %g s", os.strerror(number), ACCEPT_AGAIN_S)
        self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again)

    def _accept_again(self) -> None:
        for listener in self._listeners:
            listener.resume()
