"""The gateway: what the one process that is connected to other servers does beside its links to siblings.

It begins when this process is in step with all siblings, so that other servers are told the whole interest. It owns the
exchange; the reactor carries the connections.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from typing import TYPE_CHECKING

from gnatswarm.broker.advisory import ServerIdentity
from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.jetstream import accounts_with_jetstream
from gnatswarm.broker.options import GLOBAL_ACCOUNT, Account
from gnatswarm.shards.gateway.doors import Doors
from gnatswarm.shards.gateway.hub_contexts import HubContexts
from gnatswarm.shards.gateway.leaf_connection import LOOP_LOOK_S
from gnatswarm.shards.gateway.leaf_port import LeafPort
from gnatswarm.shards.gateway.leaving import Leaving
from gnatswarm.shards.gateway.remote import Remote
from gnatswarm.shards.gateway.rests import Rests
from gnatswarm.shards.gateway.routes import NAME_CONFLICT, Routes
from gnatswarm.shards.gateway.server_events import ServerEvents
from gnatswarm.shards.gateway.server_waits import ServerWaits
from gnatswarm.shards.gateway.words import Identity

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gnatswarm.broker.access.user_index import UserIndex
    from gnatswarm.broker.fence import MeshFence
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.options import Options
    from gnatswarm.shards.boundary.control import ControlMessage, ServerPort
    from gnatswarm.shards.boundary.rows import LeafRow, RouteRow
    from gnatswarm.shards.gateway.leaf_connection import LeafConnection
    from gnatswarm.shards.gateway.leaf_port import ArrivedLeafNode
    from gnatswarm.shards.gateway.route import RouteSession
    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.gateway")


class Gateway:
    """The connections to other servers of one broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor,
        mesh: Mesh,
        fence: MeshFence,
        options: Options,
        *,
        server_id: str,
        server_name: str,
        ports: dict[str, ServerPort],
        clients_at: tuple[str, int],
        websocket_port: int,
        known_routes: Sequence[str],
        next_id: Callable[[], int],
        next_event_number: Callable[[], int],
        tell: Callable[[ControlMessage], None],
    ) -> None:
        self._loop = loop
        self._reactor = reactor
        self._options = options
        self._identity = Identity(
            server_id, server_name, options.server_version, options.limits.max_payload_bytes, options.headers
        )
        self._events = ServerEvents(loop, tell, self._server, next_event_number)
        self.exchange = Exchange(mesh, fence)
        self.exchange.set_own_id(server_id)
        self.exchange.rest_with(Rests(reactor).rest)
        self.exchange.is_apart_by_account = options.is_like_newer
        self._mesh = mesh
        self._configure_accounts({})
        self._routes: Routes | None = None
        if "cluster" in ports:
            self._routes = Routes(
                loop,
                reactor,
                self.exchange,
                options,
                self._identity,
                ports["cluster"],
                clients_at=clients_at,
                websocket_port=websocket_port,
                known_routes=known_routes,
                next_id=next_id,
                tell=tell,
                flush=self._flush,
                events=self._events,
            )
        self._remotes: list[Remote] = []
        self._hub_contexts = HubContexts()
        self._is_started = False
        self._ports = ports
        self._websocket_port = websocket_port
        self._next_id = next_id
        self._doors = Doors(loop, reactor)
        self._leaf_port: LeafPort | None = None
        self._waits = ServerWaits(loop, self.exchange, options, self._sessions, self._flush)
        self._early: list[tuple[int, ArrivedLeafNode]] = []  # leaf nodes that came before start()
        self._renewals: deque[tuple[Iterator[None], Callable[[], None]]] = deque()  # of reloads; and when one is over
        self._opened_s: dict[str, float] = {}  # when a connection of an account was last closed because of a loop

    def start(self) -> None:
        """Accept other servers, and connect to those that the options name."""
        self._is_started = True
        acceptors: dict[str, Callable[[int, str, int], None]] = {}
        if self._routes is not None:
            acceptors["cluster"] = self._routes.on_accept
            self._routes.on_renamed = self._on_renamed
            self._routes.start()
        if "leafnodes" in self._ports:
            self._leaf_port = LeafPort(
                self._loop,
                self._reactor,
                self.exchange,
                self._identity,
                self._options,
                self._ports["leafnodes"].port,
                cluster_name=self._cluster_name,
                websocket_port=self._websocket_port,
                next_id=self._next_id,
                flush=self._flush,
                opens_loop=self._opens_loop,
                events=self._events,
            )
            acceptors["leafnodes"] = self._leaf_port.on_accept
            if self._routes is not None:
                self._routes.leaf_url = self._leaf_port.url
                self._routes.on_leaf_urls = self._leaf_port.tell_urls
        early, self._early = self._early, []
        for fd, leaf in early:
            self.take_leaf_node(fd, leaf)
        for kind, port in self._ports.items():
            self._doors.open(kind, port.fd, acceptors[kind])
        self._dial()

    def reload(
        self, options: Options, users: UserIndex, listeners: set[str], on_done: Callable[[], None] = lambda: None
    ) -> None:
        """Connect to what the new options name, and end what they do not name any more; `users` are theirs.

        `listeners`: the accounts whose stream imports have changed. on_done() is called when leaf nodes get those, and
        the passwords of all have been compared for which that is due.
        """
        former = _accounts(self._options)
        self._options = options
        self._waits.reload(options)
        if not self._is_started:
            self._configure_accounts(former)
            if self._routes is not None:
                self._routes.adopt(options)
            on_done()
            return
        wanted = list(options.leafnodes.complete_remotes)
        self._hub_contexts.reload(one.tls for one in wanted)
        for remote in list(self._remotes):
            before = remote.remote.apart_from_files
            same = next((one for one in wanted if one.apart_from_files == before), None)
            if same is not None:
                wanted.remove(same)
                remote.reload(options, same)
            else:
                self._remotes.remove(remote)
                remote.close("it was removed from the configuration")
        on_part_done = _at_second_call(on_done)
        if self._leaf_port is None:
            on_part_done()
        else:
            self._leaf_port.reload(options, users, on_part_done)
            if self._routes is not None:
                self._routes.leaf_url = self._leaf_port.url
        self._dial()
        self.exchange.forget_accounts()  # (that earlier reloads have removed)
        self._configure_accounts(former)
        if self._routes is not None:
            self._routes.reload(options, has_new_accounts=bool(_accounts(options).keys() - former.keys()))
        renewals = self.exchange.renewals({name.encode("utf-8", "surrogateescape") for name in listeners})
        self._renewals.append((renewals, on_part_done))
        if len(self._renewals) == 1:
            self._renew()

    def _renew(self) -> None:
        """One turn: other servers are served before the next one."""
        if not self._renewals:  # it ends
            return
        renewals, on_done = self._renewals[0]
        if next(renewals, self) is self:
            self._renewals.popleft()
            on_done()
        if self._renewals:
            self._loop.call_soon(self._renew)
        self._flush()

    def announce_departure(self) -> None:
        """The broker is in lame duck mode: other servers are told, and stay connected to its end."""
        self._doors.close("leafnodes")
        if self._routes is not None:
            self._routes.announce_departure()

    def take_leaf_node(self, fd: int, leaf: ArrivedLeafNode) -> None:
        """Take over a leaf node that came by WebSocket to another shard."""
        if self._leaf_port is not None:
            self._leaf_port.on_websocket(fd, leaf)
        elif self._is_started:
            os.close(fd)
        else:
            self._early.append((fd, leaf))

    def say_last_word(self, subject: str, payload: bytes) -> None:
        """Publish to other members in the system account: the broker stops, and links to its shards may end first."""
        if self._routes is not None:
            self._routes.say(self._options.system_account, subject, payload)

    def tell_again(self) -> None:
        """There is another router, which knows nothing of what was told before."""
        if self._routes is not None:
            self._routes.tell_again()

    def close(self) -> None:
        """Accept nobody any more, and end all connections."""
        self._doors.close()
        self._renewals.clear()
        if self._leaf_port is not None:
            self._leaf_port.close()
        for remote in self._remotes:
            remote.close("Server Shutdown")
        self._remotes = []
        if self._routes is not None:
            self._routes.close()
        self._events.close()

    def leave(self, within_s: float, on_done: Callable[[], None]) -> None:
        """End, and lose nothing on its way: other servers get what shards have sent, and shards what those have.

        Shards choose nobody outside any more, and have said all; then other servers are told that nothing more comes,
        and close when they have read that. After `within_s` it ends in any case.
        """
        self._leaving(on_done).begin(within_s)

    def stop(self, within_s: float, on_done: Callable[[], None]) -> None:
        """As leave(), where the broker stops: no shard sends anything more, or waits for anything."""
        self._leaving(on_done).begin_last(within_s)

    def _leaving(self, on_done: Callable[[], None]) -> Leaving:
        self._doors.close()
        for remote in self._remotes:
            remote.stop_dialling()
        if self._routes is not None:
            self._routes.stop_dialling()
        return Leaving(self._loop, self._reactor, self.exchange, self._sessions, on_done)

    def _sessions(self) -> list[RouteSession | LeafConnection]:
        found: list[RouteSession | LeafConnection] = [one.session for one in self._remotes if one.session is not None]
        if self._leaf_port is not None:
            found += self._leaf_port.sessions
        return found + (self._routes.sessions if self._routes is not None else [])

    def routes(self, with_subs: bool) -> Iterable[RouteRow | None]:
        """The routes that pass messages, for the monitoring pages; with what their members want, in steps: None."""
        return self._routes.rows(with_subs) if self._routes is not None else []

    def leafs(self, with_subs: bool) -> Iterator[LeafRow | None]:
        """The leaf node connections that pass messages, likewise; with what they subscribe to."""
        for session in [remote.session for remote in self._remotes]:
            if session is not None and session.is_accepted:
                yield (yield from session.row(with_subs))
        if self._leaf_port is not None:
            yield from self._leaf_port.rows(with_subs)

    def _configure_accounts(self, former: dict[str, Account]) -> None:
        """Other servers may name the accounts that are configured, also those that no client here uses yet."""
        options = self._options
        accounts = _accounts(options)
        for name in accounts | former:
            account = accounts.get(name) or Account(name)
            if account == former.get(name):
                continue
            wanted = {_pattern(one.to) for one in account.imports if one.is_service}
            wanted |= {_pattern(mapping.subject) for mapping in account.mappings}
            self.exchange.set_own_interest(name.encode("utf-8", "surrogateescape"), wanted)
        system = options.system_account.encode("utf-8", "surrogateescape")
        if system != self.exchange.system_account:  # (all interest is gone through, to tell other servers)
            self.exchange.set_system_account(system)

    def _dial(self) -> None:
        present = [remote.remote for remote in self._remotes]
        for remote in self._options.leafnodes.complete_remotes:
            if remote in present:
                present.remove(remote)
            else:
                self._remotes.append(
                    Remote(
                        self._loop,
                        self._reactor,
                        self.exchange,
                        remote,
                        self._identity,
                        self._options,
                        self._flush,
                        self._opens_loop,
                        self._cluster_name,
                        self._next_id,
                        self._events,
                        self._hub_contexts,
                    )
                )

    def _server(self) -> ServerIdentity:
        """The broker as it names itself in events now."""
        own = self._identity
        return ServerIdentity(own.server_id, own.server_name, self._options, self._cluster_name())

    def _cluster_name(self) -> str:
        """The present name of the cluster; "": there is none."""
        return self._routes.name if self._routes is not None else self._options.stated_cluster

    def _on_renamed(self) -> None:
        """Hubs are told the new name: between leaf nodes of two clusters they would pass what comes by a route, too."""
        for remote in self._remotes:
            remote.connect_again(NAME_CONFLICT)

    def _opens_loop(self, account: str) -> bool:
        now_s = self._loop.time()
        self._opened_s = {name: at_s for name, at_s in self._opened_s.items() if now_s - at_s < LOOP_LOOK_S}
        if account in self._opened_s:
            return False
        self._opened_s[account] = now_s
        return True

    def _flush(self) -> None:
        self._loop.call_soon(self._reactor.finish)


def _at_second_call(call: Callable[[], None]) -> Callable[[], None]:
    """What is to be called twice, and calls this then."""
    calls = iter((_do_nothing, call))
    return lambda: next(calls)()


def _do_nothing() -> None:
    """Something else is waited for."""


def _accounts(options: Options) -> dict[str, Account]:
    """Those that are configured, also where nobody wrote them down."""
    accounts = {name: Account(name) for name in (options.system_account, GLOBAL_ACCOUNT)}
    return accounts | {account.name: account for account in accounts_with_jetstream(options)}


def _pattern(subject: str) -> bytes:
    """A subject of an import or a mapping as one that can be subscribed to: its references to tokens are wildcards."""
    tokens = ["*" if re.fullmatch(r"\$\d+|{{.*}}", token) else token for token in subject.split(".")]
    return ".".join(tokens).encode("utf-8", "surrogateescape")
