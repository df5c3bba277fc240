"""Asks shards for rows of the monitoring pages: one question at a time to each shard.

A shard that dies meanwhile has no clients any more: its answer is then empty, not an error. Knows the control channel's
messages, but no pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gnatswarm.router.monitoring.page_query import BadQuery
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.control import ControlMessage, Snapshot, SnapshotReply
from gnatswarm.shards.boundary.pace import Pace

# The supervisor kills a hung shard long before; this is for a shard that still answers pings.
ANSWER_DEADLINE_S = 30.0

Part = TypeVar("Part", bound=rows.PageStruct)


class Unanswered(BadQuery):
    """A living shard does not answer."""


class ShardQuestions:
    """Asks through `send(shard, message)`, which returns whether that shard has a process."""

    def __init__(self, send: Callable[[int, ControlMessage], bool]) -> None:
        self._send = send
        self._last_seq = 0
        self._locks: dict[int, asyncio.Lock] = {}
        self._pending: dict[int, tuple[int, asyncio.Future[bool], list[bytes]]] = {}  # by seq: shard, done, bodies

    async def ask(self, shard: int, query: rows.Query, kind: type[Part]) -> list[Part]:
        """The parts of the shard's answer; [] when it has no process or dies meanwhile."""
        lock = self._locks.setdefault(shard, asyncio.Lock())
        async with lock:
            self._last_seq += 1
            seq = self._last_seq
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            bodies: list[bytes] = []
            if not self._send(shard, Snapshot(seq, query)):
                return []
            self._pending[seq] = (shard, done, bodies)
            try:
                is_whole = await asyncio.wait_for(done, ANSWER_DEADLINE_S)
            except TimeoutError:
                raise Unanswered(f"shard {shard} does not answer") from None
            finally:
                del self._pending[seq]
        if not is_whole:
            return []
        decoder = msgspec.msgpack.Decoder(kind)
        pace = Pace()
        parts = []
        for body in bodies:
            parts.append(decoder.decode(body))
            await pace()
        return parts

    def on_reply(self, shard: int, reply: SnapshotReply) -> None:
        """A part of an answer has arrived; dropped if nothing waits for it any more."""
        asked, done, bodies = self._pending.get(reply.seq, (-1, None, []))
        if asked != shard or done is None or done.done():
            return
        if reply.body:
            bodies.append(reply.body)
        if reply.is_last:
            done.set_result(True)

    def on_gone(self, shard: int) -> None:
        """The shard's process is dead."""
        for asked, done, _bodies in self._pending.values():
            if asked == shard and not done.done():
                done.set_result(False)
