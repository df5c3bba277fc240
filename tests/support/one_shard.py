"""One shard in a test's event loop, with clients on socket pairs: tests a shard's Python code without a process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from gnatswarm.broker.options import Options
from gnatswarm.shards.boundary.control import ControlMessage
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.descriptor_headroom import DescriptorHeadroom
from gnatswarm.shards.shard import Shard

WITHIN_S = 20


class Client:
    """One end of a connection whose other end the shard was given."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.said = b""
        self.is_over = False

    async def wait(self, wanted: bytes) -> bytes:
        """Everything received since the last wait, up to these bytes or to the end of the connection."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WITHIN_S):
            while wanted not in self.said:
                try:
                    data = await loop.sock_recv(self._sock, 65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    self.is_over = True
                    break
                self.said += data
        found, self.said = self.said, b""
        return found

    async def talk(self, data: bytes, wanted: bytes = b"PONG\r\n") -> bytes:
        """What the shard says to that, up to these bytes, but for a first PING of its own: where this takes a while."""
        await asyncio.get_running_loop().sock_sendall(self._sock, data)
        return (await self.wait(wanted)).removeprefix(b"PING\r\n")

    def send(self, data: bytes) -> None:
        """As much as the kernel takes at once."""
        self._sock.sendall(data)

    def has_heard(self) -> bytes:
        """What has come by now, and was not waited for; it is not taken."""
        try:
            return self.said + self._sock.recv(65536, socket.MSG_PEEK)
        except BlockingIOError:
            return self.said

    def end_sending(self) -> None:
        """It sends nothing more, and goes on listening."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()


class OneShard:
    """The shard, its shared page, and its clients."""

    def __init__(
        self, options: Options, *, tell: Callable[[ControlMessage], None] | None = None, beside: OneShard | None = None
    ) -> None:
        """`tell`: what it says to the router; None: it has none. `beside`: it is the next shard on that one's page."""
        self.page: Page = Page.create() if beside is None else beside.page
        self._owns_page = beside is None
        self.shard = Shard(
            options,
            number=0 if beside is None else 1,
            page=self.page,
            headroom=DescriptorHeadroom(lambda has_headroom: None),
            server_id="N",
            server_name="N",
            host="127.0.0.1",
            port=4222,
            tell=tell,
        )
        self._clients: list[Client] = []

    def connect(self, *, websocket: bool = False) -> Client:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        client = Client(ours)
        self._clients.append(client)
        if websocket:
            self.shard.clients.on_accept_websocket(theirs.detach(), "127.0.0.1", 1)
        else:
            self.shard.take(theirs.detach(), "127.0.0.1", 1)
        self.shard.reactor.finish()
        return client

    def close(self) -> None:
        """Shards beside this one are closed before."""
        for client in self._clients:
            client.close()
        self.shard.close()
        if self._owns_page:
            self.page.close()
