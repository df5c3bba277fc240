"""The listener groups of one broker: one for the clients' port and one for the WebSocket port, if there is one.

Each is a group of listeners (`router.listening.listeners`) with its own steering; both are grown, steered and closed
together. In the accept mode "handoff" the clients' port has one listener, on which the router accepts; WebSocket
clients are spread by the kernel in both modes. Ports for other servers have one listener each, on which the gateway
accepts; connections wait in it while the gateway is started anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Sequence

from gnatswarm.broker.options import Options
from gnatswarm.router.listening.inherited import Inherited, InheritedListeners
from gnatswarm.router.listening.listeners import ListeningSockets, Ports
from gnatswarm.router.listening.steering import Steering

log = logging.getLogger("gnatswarm.router")

# Kinds of ports for other servers, as nats-server's log lines have them.
_SHOWN = {"cluster": "route", "leafnodes": "leafnode"}


class ListenerGroups:
    """The listeners, open until close(). ListenError when an address is not available.

    `taken_over`: what is open already, to use in place of new ones.
    """

    def __init__(
        self,
        options: Options,
        shards: int,
        *,
        is_handoff: bool,
        inherited: Inherited | None = None,
        taken_over: Ports | None = None,
    ) -> None:
        self._is_handoff = is_handoff
        self.websocket_scheme = "wss" if options.websocket.tls.is_on else "ws"
        self._reads_proxy_headers = options.proxy_protocol
        self._is_tls_required = options.tls.is_on and not options.allow_non_tls
        if taken_over is None:
            passed_in = InheritedListeners(inherited.clients) if inherited is not None and inherited.clients else None
            taken_over = Ports.open(options, shards, clients=passed_in)
        self._ports = taken_over
        self.clients = taken_over.clients
        self.websocket = taken_over.websocket
        self.servers = taken_over.servers
        self.steering = Steering(self.clients.sockets)
        self._websocket_steering = Steering(self.websocket.sockets if self.websocket else [])

    def client_fds(self, shard: int) -> list[int]:
        """The descriptors on which this shard accepts clients; none: it has no listener of its own."""
        return [] if self._is_handoff else [sock.fileno() for sock in self.clients.sockets[shard : shard + 1]]

    def websocket_fds(self, shard: int) -> list[int]:
        """The descriptors on which this shard accepts WebSocket clients."""
        return [sock.fileno() for sock in self.websocket.sockets[shard : shard + 1]] if self.websocket else []

    @property
    def websocket_url(self) -> str:
        """The WebSocket URL for the log; "": there is no WebSocket port."""
        return f"{self.websocket_scheme}://{self.websocket.address}" if self.websocket else ""

    def holdings(self) -> dict[str, int]:
        """The descriptors by names, in the order in which they were opened."""
        groups = (("listener", self.clients), ("websocket", self.websocket), *self.servers.items())
        return {
            f"{name}.{number}": sock.fileno()
            for name, group in groups
            if group is not None
            for number, sock in enumerate(group.sockets)
        }

    def announce(self) -> None:
        """Log the addresses in nats-server's order: who has read the line about clients need not wait for others."""
        if self.websocket:
            log.info("Listening for websocket clients on %s", self.websocket_url)
            if self.websocket_scheme == "ws":
                log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")
        for kind, listeners in self.servers.items():
            log.info("Listening for %s connections on %s", _SHOWN[kind], listeners.address)
        log.info("Listening for client connections on %s", self.clients.address)
        if self._reads_proxy_headers:
            log.info("PROXY protocol enabled for client connections")
        if self._is_tls_required:
            log.info("TLS required for client connections")

    def steer(self, shards: Sequence[int]) -> None:
        """Send new connections to these shards only; closed ports and hand-off need no steering."""
        if not self._is_handoff and self.clients.sockets:
            self.steering.choose([shard for shard in shards if shard < len(self.clients.sockets)])
        if self.websocket and self.websocket.sockets:
            self._websocket_steering.choose([shard for shard in shards if shard < len(self.websocket.sockets)])

    def grow_to(self, shards: int) -> None:
        """Open listeners for this many shards. OSError when descriptors run out: shrink_to() is due then."""
        if not self._is_handoff:
            _grow(self.clients, self.steering, shards)
        if self.websocket:
            _grow(self.websocket, self._websocket_steering, shards)

    def grow_if_steered(self, shards: int) -> None:
        """Open listeners for a shard that runs for a while, where no connection can be lost with them.

        That shard does without where connections cannot be steered away later, or none can be opened.
        """
        with contextlib.suppress(OSError):
            if not self._is_handoff and self.steering.works:
                self.clients.grow_to(shards)
            if self.websocket and self._websocket_steering.works:
                self.websocket.grow_to(shards)

    def shrink_to(self, shards: int) -> None:
        """Close listeners of removed shards, where the kernel would otherwise still choose them."""
        if not self._is_handoff and not self.steering.works:
            self.clients.shrink_to(shards)
        if self.websocket and not self._websocket_steering.works:
            self.websocket.shrink_to(shards)

    def refuse(self, *, but: Collection[int] = ()) -> None:
        """Have new connections refused from now on: a client that a shard closes must not come to the next one.

        `but`: not those of these shards, which refuse them when they have accepted who waits. A second call follows.
        """
        self.clients.refuse(but=() if self._is_handoff else but)
        if self.websocket:
            self.websocket.refuse(but=but)
        for group in self.servers.values():
            group.refuse()

    def close(self) -> None:
        """Close all listeners; shards still hold copies until they exit."""
        self._ports.close()


def _grow(listeners: ListeningSockets, steering: Steering, shards: int) -> None:
    """OSError: not all of them are open."""
    try:
        listeners.grow_to(shards)
    finally:
        steering.choose(steering.chosen)  # nobody waits in the queue of one that is not ready
