"""The listener groups of one broker: one for the clients' port and one for the WebSocket port, if there is one.

Each is a group of listeners (`router.listening.listeners`) with its own steering; both are grown, steered and closed
together. In the accept mode "handoff" the clients' port has one listener, on which the router accepts; WebSocket
clients are spread by the kernel in both modes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gnatswarm.broker.options import Options
from gnatswarm.router.listening.inherited import Inherited, InheritedListeners
from gnatswarm.router.listening.listeners import ListenError, Listeners, ListeningSockets
from gnatswarm.router.listening.steering import Steering

log = logging.getLogger("gnatswarm.router")


class ListenerGroups:
    """The listeners, open until close(). ListenError when an address is not available."""

    def __init__(self, options: Options, shards: int, *, is_handoff: bool, inherited: Inherited | None = None) -> None:
        self._is_handoff = is_handoff
        self.websocket_scheme = "wss" if options.websocket.tls.is_on else "ws"
        self._is_tls_required = options.tls.is_on and not options.allow_non_tls
        self.clients: ListeningSockets
        if inherited is not None and inherited.clients:
            self.clients = InheritedListeners(inherited.clients)
        else:
            self.clients = Listeners(options.host, options.port, 1 if is_handoff else shards)
        self.websocket: Listeners | None = None
        if options.websocket.port:
            try:
                self.websocket = Listeners(options.websocket.host, options.websocket.port, shards)
            except ListenError:
                self.clients.close()
                raise
        self.steering = Steering(self.clients.sockets)
        self._websocket_steering = Steering(self.websocket.sockets if self.websocket else [])

    def client_fds(self, shard: int) -> list[int]:
        """The descriptors on which this shard accepts clients."""
        return [] if self._is_handoff else [self.clients.sockets[shard].fileno()]

    def websocket_fds(self, shard: int) -> list[int]:
        """The descriptors on which this shard accepts WebSocket clients."""
        return [self.websocket.sockets[shard].fileno()] if self.websocket else []

    @property
    def websocket_url(self) -> str:
        """The WebSocket URL for the log; "": there is no WebSocket port."""
        return f"{self.websocket_scheme}://{self.websocket.address}" if self.websocket else ""

    def announce(self) -> None:
        """Log the addresses."""
        log.info("Listening for client connections on %s", self.clients.address)
        if self._is_tls_required:
            log.info("TLS required for client connections")
        if self.websocket:
            log.info("Listening for websocket clients on %s", self.websocket_url)
            if self.websocket_scheme == "ws":
                log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def steer(self, shards: Sequence[int]) -> None:
        """Send new connections to these shards only; closed ports and hand-off need no steering."""
        if not self._is_handoff and self.clients.sockets:
            self.steering.choose(shards)
        if self.websocket and self.websocket.sockets:
            self._websocket_steering.choose(shards)

    def grow_to(self, shards: int) -> None:
        """Open listeners for this many shards. OSError when descriptors run out."""
        if not self._is_handoff:
            self.clients.grow_to(shards)
        if self.websocket:
            self.websocket.grow_to(shards)

    def shrink_to(self, shards: int) -> None:
        """Close listeners of removed shards, where the kernel would otherwise still choose them."""
        if not self._is_handoff and not self.steering.works:
            self.clients.shrink_to(shards)
        if self.websocket and not self._websocket_steering.works:
            self.websocket.shrink_to(shards)

    def close(self) -> None:
        """Close all listeners; shards still hold copies until they exit."""
        self.clients.close()
        if self.websocket:
            self.websocket.close()
