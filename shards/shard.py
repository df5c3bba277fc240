"""One shard in a running event loop: the engine, its sockets, its clients, and the clock that looks after them.

It knows no process, no router and no sibling: whoever made it brings the shared page and the listening sockets, links
it to others (`shards.links`) or does not, and ends it. Called by `shards.worker`, a process of its own, and by
`shards.embedded`, a thread of somebody else's.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING

from broker.advisory import Server
from broker.auth import Authenticator
from broker.errors import CloseReason
from broker.fanout import Fanout
from broker.fence import MeshFence
from broker.info import InfoTemplate, advertised
from broker.mesh import Mesh
from shards.clients import Clients
from shards.exchange import Exchange
from shards.listener import Listener
from shards.reactor import Reactor
from shards.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.options import Options
    from shards.page import Page
    from shards.room import Room

logger = logging.getLogger("gnatswarm.shard")

# Deadlines (idle, log-in, write) are looked at in tenths of all sockets, ten times a second.
SWEEP_S = 0.1
# A lag is halved in 0.7 s, so that one late timer does not make a shard look slow for long.
LAG_FADES = 0.9
# Out of descriptors: accepting is tried again after so long, as nats-server does.
ACCEPT_AGAIN_S = 1.0


class Shard:
    """Serves from its making on whom it is told to listen to; made and used on the thread of the running loop.

    `host` and `port` are what clients are told, `page` the counters of the whole broker, of which it writes its own;
    `room` hears how many clients there are.
    """

    def __init__(
        self,
        options: Options,
        *,
        number: int,
        page: Page,
        room: Room,
        server_id: str,
        server_name: str,
        host: str,
        port: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = room
        self._number = number
        self._page = page
        self._server_id = server_id
        self._server_name = server_name
        self._address = host, port
        self.fanout = Fanout(prefers_local=options.swarm.prefer_local)
        self.reactor = Reactor(self.fanout, page, number, options.limits)
        self.reactor.is_tracing = options.logging.trace
        self.mesh = self.reactor.interest = Mesh(self.fanout, number)
        self.fence = MeshFence(self.mesh)
        self.exchange = Exchange(options, self.fanout, self.mesh)
        self.clients = Clients(
            shard=number,
            options=options,
            info=self._info_template(options),
            reactor=self.reactor,
            fanout=self.fanout,
            mesh=self.mesh,
            fence=self.fence,
            page=page,
        )
        self.system = self.clients.system = System(
            reactor=self.reactor,
            fanout=self.fanout,
            mesh=self.mesh,
            page=page,
            server=Server(server_id, server_name, options),
            sessions=self.clients.open,
        )
        self.on_sweep: Callable[[float], None] = lambda passed_s: None  # ten times a second, with the time since
        self._lag_s = 0.0
        self._listeners: list[Listener] = []
        self._listening: list[int] = []
        self._loop.add_reader(self.reactor.fd, self.reactor.turn)
        self._sweep_at_s = self._loop.time() + SWEEP_S
        self._timer = self._loop.call_at(self._sweep_at_s, self._sweep)

    def listen(self, fds: Iterable[int], websocket_fds: Iterable[int]) -> None:
        """Take clients from these listening sockets, which are ours from here on."""
        doors = [(fd, self.clients.on_accept) for fd in fds]
        doors += [(fd, self.clients.on_accept_websocket) for fd in websocket_fds]
        full_at = self._room.full_at
        for fd, on_accept in doors:
            self._listeners.append(Listener(self.reactor, fd, on_accept, self._on_accept_error, full_at, self._on_full))
            self._listening.append(fd)

    def take(self, fd: int, host: str, port: int) -> None:
        """A client's connection that somebody else has accepted, which is ours from here on."""
        self.clients.on_accept(fd, host, port)
        if fd >= self._room.full_at:
            self._on_full()

    def stop_listening(self) -> None:
        """Our copies of the listening sockets too, or the kernel would go on completing connections."""
        for listener in self._listeners:
            listener.close()
        for fd in self._listening:
            os.close(fd)
        self._listeners = []
        self._listening = []

    def reload(self, options: Options) -> None:
        """New options, of which what cannot change at run time is as it was."""
        self.reactor.set_limits(options.limits)
        self.reactor.is_tracing = options.logging.trace
        self.fanout.prefer_local(options.swarm.prefer_local)
        listeners = self.exchange.configure(options)
        self.clients.reload(options, self._info_template(options), listeners)
        self.system.configure(options)

    def close(self) -> None:
        """The end within a process that goes on: nothing of it stays in the loop, and no descriptor."""
        self._timer.cancel()
        self.stop_listening()
        self.clients.close_all(CloseReason.SERVER_SHUTDOWN)
        self.clients.passwords.close()
        self.system.close()
        self._loop.remove_reader(self.reactor.fd)
        self.reactor.close()

    def _info_template(self, options: Options) -> InfoTemplate:
        host, port = advertised(options.client_advertise, *self._address)
        return InfoTemplate(
            server_id=self._server_id,
            server_name=self._server_name,
            host=host,
            port=port,
            shard=self._number,
            headers=options.headers,
            max_payload_bytes=options.limits.max_payload_bytes,
            auth_required=Authenticator(options).anonymous() is None,
            tls_required=options.tls.is_on and not options.allow_non_tls,
            tls_available=options.tls.is_on and options.allow_non_tls,
            tls_verify=options.tls.is_on and options.tls.asks_for_certificate,
        )

    def _sweep(self) -> None:
        now_s = self._loop.time()
        passed_s = now_s - self._sweep_at_s
        self._show_gauges(passed_s)
        self.on_sweep(passed_s)
        self._room.look(len(self.clients.open))
        self._sweep_at_s = now_s + SWEEP_S
        self._timer = self._loop.call_at(self._sweep_at_s, self._sweep)
        self.exchange.crossing.sweep()
        self.reactor.sweep()

    def _show_gauges(self, late_s: float) -> None:
        """On the shared page, for whoever looks; the lag is the worst of the last second or so."""
        self._lag_s = max(late_s, self._lag_s * LAG_FADES)
        self._page.store(self._number, "loop_lag_us", int(self._lag_s * 1_000_000))

    def _on_full(self) -> None:
        self._room.fill(len(self.clients.open))

    def _on_accept_error(self, number: int) -> None:
        if number == errno.EMFILE:
            self._on_full()
        logger.error("cannot accept connections: %s; trying again in %g s", os.strerror(number), ACCEPT_AGAIN_S)
        self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again)

    def _accept_again(self) -> None:
        for listener in self._listeners:
            listener.resume()
