"""The Unix sockets of one shard's links: where siblings reach it, and how it reaches them.

It knows no handshake and no sibling's number: it passes new connections to `on_accepted`, and the reactor reports how a
link ended. Descriptors come from the reserve, so clients cannot take them. Used by `shards.links.links`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from gnatswarm.shards.sockets import private_socket
from gnatswarm.shards.sockets.listener import Listener

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.broker.link import SiblingLink
    from gnatswarm.shards.links.links import LinkSession
    from gnatswarm.shards.sockets.reactor import Reactor, Socket
    from gnatswarm.shards.sockets.reserve import Reserve

logger = logging.getLogger("gnatswarm.links")

BACKLOG = 128
ACCEPT_AGAIN_S = 0.1

# A link's socket should take all that one round of reading a busy client produces, or each round ends in EAGAIN.
SOCKET_BUFFER_BYTES = 1024 * 1024


class LinkSockets:
    """The link sockets of one shard, which listens at `path` from the start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reactor: Reactor, *, path: str, reserve: Reserve) -> None:
        self._loop = loop
        self._reactor = reactor
        self._path = path
        self._reserve = reserve
        self._is_closed = False
        # Takes each new connection, a sibling's or a stranger's.
        self.on_accepted: Callable[[socket.socket], None] = socket.socket.close
        self._listening = self._listen()
        self._listener = Listener(reactor, self._listening.fileno(), self._on_accept, self._on_accept_error)

    def _listen(self) -> socket.socket:
        with self._reserve.opened():
            return private_socket.listening_at(self._path, BACKLOG)

    def listen_anew(self) -> None:
        """Listen again at the same path, whose file was removed; existing links are unaffected."""
        if self._is_closed or os.path.exists(self._path):
            return
        try:
            listening = self._listen()
        except OSError as error:  # the directory was removed again: the router will send ListenAnew again
            logger.debug("cannot listen at %s: %s", self._path, error)
            return
        self._listener.close()
        self._listening.close()
        self._listening = listening
        self._listener = Listener(self._reactor, listening.fileno(), self._on_accept, self._on_accept_error)
        logger.warning("somebody removed the link socket %s; it is made again", self._path)

    def close(self) -> None:
        """Stop listening and remove the socket file; links end with the process."""
        self._is_closed = True
        self._listener.close()
        self._listening.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _on_accept(self, fd: int, _host: str, _port: int) -> None:
        sock = socket.socket(fileno=fd)
        uid = private_socket.user_of(sock)
        if uid != os.geteuid():
            logger.error("a process of user %d connected to the link socket; closing it", uid)
            sock.close()
            return
        self.on_accepted(sock)

    def _on_accept_error(self, errno: int) -> None:
        """Accept with a reserved descriptor: most likely clients have taken all other ones."""
        try:
            with self._reserve.opened():
                sock, _ = self._listening.accept()
        except BlockingIOError:
            self._listener.resume()
        except OSError:
            logger.error("cannot accept links: %s", os.strerror(errno))
            self._loop.call_later(ACCEPT_AGAIN_S, self._listener.resume)
        else:
            sock.setblocking(False)
            self._on_accept(sock.detach(), "", 0)
            self._listener.resume()

    def dial(self, path: str) -> socket.socket:
        """A connection to a sibling's link socket; OSError: none of ours listens there, or its backlog is full."""
        with self._reserve.opened():
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            private_socket.connect(sock, path)
        except OSError:
            sock.close()
            raise
        return sock

    def process_of(self, sock: socket.socket) -> int:
        """The process at the other end, for has_ended()."""
        return private_socket.process_of(sock)

    def has_ended(self, process: int) -> bool:
        """Whether it certainly has."""
        with self._reserve.opened():
            return private_socket.has_ended(process)

    def open(self, sock: socket.socket, link: SiblingLink, session: LinkSession) -> Socket:
        """Let the reactor carry a link over this connection, and tell the session when it ends."""
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, name, SOCKET_BUFFER_BYTES)
        return self._reactor.open(sock.detach(), link, session)

    def finish(self) -> None:
        """Send what was queued outside of the reactor's turn."""
        self._reactor.finish()
