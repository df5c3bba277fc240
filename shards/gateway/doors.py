"""The ports on which other servers connect: listening sockets that the router has opened, and keeps.

So connections wait in them while one gateway is dead and the next one is started.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from gnatswarm.shards.sockets.listener import Listener

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.gateway")

# Accepting is tried again this long after an error, such as no free descriptors; as for clients.
ACCEPT_AGAIN_S = 1.0


class Doors:
    """Listening sockets, owned from open() to close()."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reactor: Reactor) -> None:
        self._loop = loop
        self._reactor = reactor
        self._open: list[tuple[str, int, Listener]] = []

    def open(self, kind: str, fd: int, on_accept: Callable[[int, str, int], None]) -> None:
        """Accept on the socket of this kind of port: `on_accept(descriptor, address, port)` owns the connection."""
        self._open.append((kind, fd, Listener(self._reactor, fd, on_accept, self._on_error)))

    def close(self, kind: str = "") -> None:
        """Accept nobody any more on ports of this kind; "": on all. A second call does nothing."""
        for door in list(self._open):
            if kind in ("", door[0]):
                door[2].close()
                os.close(door[1])
                self._open.remove(door)

    def _on_error(self, number: int) -> None:
        logger.error("cannot accept other servers: %s; trying again in %g s", os.strerror(number), ACCEPT_AGAIN_S)
        self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again)

    def _accept_again(self) -> None:
        for _kind, _fd, listener in self._open:
            listener.resume()
