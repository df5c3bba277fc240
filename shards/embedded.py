"""A shard embedded in another program, on a thread and an event loop of its own.

It does not use the program's loop. So the broker works with any loop (asyncio's, uvloop's, none), works while the
program blocks, and outlives a loop, which tests with a loop each need. All embedded shards of a process share one
thread, because all TLS connections read through one buffer (`shards.sockets.layered`); the thread starts with the
first shard and ends with the last. The program's signal handlers, logging handlers and limits are left unchanged.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.descriptor_headroom import DescriptorHeadroom

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.shards.shard import Shard

logger = logging.getLogger("gnatswarm.shard")

# Starting or ending a shard takes milliseconds; a thread that needs longer than this hangs.
CALL_DEADLINE_S = 10.0
# Of the match cache, read in one step.
STEP_SLOTS = 4096
# Clients are heard out before a shard ends, for a second at most.
LOOK_AGAIN_S = 0.01

Result = TypeVar("Result")


class EmbeddedFailed(Exception):
    """An unexpected error in the thread of the embedded shards; the text says which."""


class EmbeddedShard:
    """Serves from its construction until close(), on copies of the caller's listening sockets.

    Methods may be called from any thread except its own; they wait until that thread has done the work.
    """

    def __init__(
        self,
        options: Options,
        fds: Iterable[int],
        websocket_fds: Iterable[int],
        *,
        server_id: str,
        server_name: str,
        port: int,
        websocket_port: int = 0,
    ) -> None:
        self.page = Page.create()
        self._shard: Shard | None = None
        # Copies of the listening sockets, until the shard has them.
        self._copies: list[int] = []

        def make() -> None:
            from gnatswarm.shards.shard import Shard

            self._shard = Shard(
                options,
                number=0,
                page=self.page,
                headroom=DescriptorHeadroom(lambda has_headroom: None),  # there is no other shard to steer to
                server_id=server_id,
                server_name=server_name,
                host=options.host,
                port=port,
                websocket_port=websocket_port,
            )
            self._copies = []
            self._shard.listen(*copies)

        try:
            copies = self._copied(fds), self._copied(websocket_fds)
            self._thread = _SharedThread.join_in(self)
            try:
                self._thread.call(make)
            except BaseException:
                self.close()
                raise
        except BaseException:
            for fd in self._copies:
                os.close(fd)
            self.page.close()
            raise

    def _copied(self, fds: Iterable[int]) -> list[int]:
        copies = []
        for fd in fds:
            copies.append(os.dup(fd))
            self._copies.append(copies[-1])
        return copies

    @property
    def failure(self) -> str:
        """The error that ended it early; "": there was none."""
        return self._thread.failure

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._shard is None

    def reload(self, options: Options) -> None:
        """Apply new options; those that cannot change at run time must have their old values."""
        done = threading.Event()
        users = UserIndex(options.users)
        self._thread.call(lambda: self._live().reload(options, done.set, users=users))
        done.wait(CALL_DEADLINE_S)

    def disconnect(self, first_cid: int) -> int:
        """Disconnect all clients whose id is `first_cid` or higher; returns how many."""

        def disconnect() -> int:
            closed: list[int] = []
            self._live().clients.disconnect(first_cid, closed.append)  # at once: nobody comes from another shard
            return closed[0]

        return self._thread.call(disconnect)

    def published(self, most: int) -> dict[str, int]:
        """Messages by subject since its answer was cached, the most frequent first; without inboxes."""

        def read() -> dict[str, int]:
            from gnatswarm.broker import census

            found: dict[str, int] = {}
            mesh = self._live().mesh
            for name in mesh.account_names():
                at = 0
                while True:
                    rows, _, at = census.cached_entries(mesh.account(name), at, STEP_SLOTS, 1, b"_INBOX.")
                    for subject, msgs, *_rest in rows:
                        found[subject] = found.get(subject, 0) + msgs
                    if not at:
                        break
            return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:most])

        return self._thread.call(read)

    def close(self) -> None:
        """Disconnect all clients and end the shard. Does nothing when it has ended already."""
        self._thread.leave(self)

    def leave_to_parent(self) -> None:
        """In a child after fork(): be closed already, and keep no copy of a listening socket."""
        if self._shard is not None:
            self._shard.leave_listening_to_parent()

    def is_unheard(self) -> bool:
        """Whether clients that have closed, or are over their publish_limits, are being heard out; called as end()."""
        if self._shard is None:
            return False
        self._shard.accept_waiting()
        clients = self._shard.clients
        return len(clients.hear_out(list(clients.open.values()))) < len(clients.open)

    def end(self) -> None:
        """Close the shard; called by the shared thread on itself."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.close()

    def _live(self) -> Shard:
        if self._shard is None:
            raise EmbeddedFailed(self.failure or "the broker has been stopped")
        return self._shard


class _SharedThread:
    """The thread, its loop, and the shards on it."""

    _lock = threading.Lock()
    _current: _SharedThread | None = None
    # In a child after fork(), what is the parent's: never to be cleared away there.
    _left: ClassVar[list[tuple[_SharedThread, list[EmbeddedShard]]]] = []

    def __init__(self) -> None:
        import uvloop

        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._shards: list[EmbeddedShard] = []
        self.failure = ""
        # A daemon thread: a program that forgets to stop its broker can still exit; atexit then stops the broker.
        self._thread = threading.Thread(target=self._run, name="gnatswarm", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the program may have no more threads
            self._loop.close()
            raise
        except BaseException:  # interrupted: it runs, or is about to
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    @classmethod
    def join_in(cls, shard: EmbeddedShard) -> _SharedThread:
        """Add a shard to the running thread, or to a new one; returns the thread."""
        with cls._lock:
            thread = cls._current
            if thread is None or thread.failure:
                thread = cls._current = cls()
            thread._shards.append(shard)
            return thread

    def leave(self, shard: EmbeddedShard) -> None:
        """End this shard, and after the last one the thread."""
        with self._lock:
            if shard not in self._shards:
                return
            self._shards.remove(shard)
            is_last = not self._shards
            if is_last and _SharedThread._current is self:
                _SharedThread._current = None
        try:
            until_s = time.monotonic() + CALL_DEADLINE_S
            while not self.failure and self.call(shard.is_unheard) and time.monotonic() < until_s:
                time.sleep(LOOK_AGAIN_S)
        finally:  # also where the program is interrupted meanwhile
            try:
                self.call(shard.end)
            finally:
                if is_last:
                    self._loop.call_soon_threadsafe(self._loop.stop)
                    self._thread.join(CALL_DEADLINE_S)

    def call(self, work: Callable[[], Result]) -> Result:
        """Call `work` on the thread, wait for it, and return its result or raise its exception."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("called from the broker's own thread, which would wait for itself")
        answer: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # raised again in the caller
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return answer.result(CALL_DEADLINE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An unexpected error: end all shards, because a shard that continued could lose messages silently."""
        self.failure = f"{context.get('message', 'unexpected error')}: {context.get('exception')!r}"
        logger.critical("%s", self.failure, exc_info=context.get("exception"))
        for shard in list(self._shards):
            shard.end()

    @classmethod
    def end_all(cls) -> None:
        """End all shards because the program exits."""
        thread = cls._current
        if thread is not None:
            for shard in list(thread._shards):
                shard.close()

    @classmethod
    def forget(cls) -> None:
        """In a child after fork(): the thread does not exist there, and the sockets are the parent's."""
        cls._lock = threading.Lock()
        thread, cls._current = cls._current, None
        if thread is not None:
            cls._left.append((thread, thread._shards))
            for shard in thread._shards:
                shard.leave_to_parent()
            thread._shards = []  # so that close() has nothing to do


atexit.register(_SharedThread.end_all)
os.register_at_fork(after_in_child=_SharedThread.forget)
