"""A TCP proxy in front of a port that can stop forwarding, as a network does when hosts are parted.

Nothing is lost while it stalls: bytes wait, and connections stay open. It knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

READ_BYTES = 65_536
KEPT_BYTES = 4096


class Pipe:
    """Forwards connections to `target`, a port of 127.0.0.1, from `port`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0  # so far
        self.asked, self.answered = bytearray(), bytearray()  # the first bytes of both ends, of all connections

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stall(self) -> None:
        """Forward nothing from now on, either way; new connections are accepted, and stall too."""
        self._flowing.clear()

    def go_on(self) -> None:
        """Forward what has waited, and what comes."""
        self._flowing.set()

    def cut(self) -> None:
        """Reset all connections there are."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            there_reader, there = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(there)
            for source, sink, kept in ((reader, there, self.asked), (there_reader, writer, self.answered)):
                task = asyncio.create_task(self._carry(source, sink, kept))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(READ_BYTES):
                await self._flowing.wait()
                kept += data[: max(0, KEPT_BYTES - len(kept))]
                sink.write(data)
                await sink.drain()
        await self._flowing.wait()  # (the end of a connection is not heard of either)
        sink.close()
        self._writers.discard(sink)
