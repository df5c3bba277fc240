"""One shard inside somebody else's program, on a thread and an event loop of our own.

Not on the program's loop: so a broker serves whatever that loop is (asyncio's, uvloop's, none at all), while the
program blocks, and from one loop to the next, as tests with a loop each need it. All embedded shards of a process share
one thread, because what a TLS connection reads goes through one buffer for all (`shards.layered`); it begins with the
first and ends with the last. Nothing of the program is changed: no signal handler, no logging handler, no limit.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from shards.page import Page
from shards.room import Room

if TYPE_CHECKING:
    from broker.options import Options
    from shards.shard import Shard

logger = logging.getLogger("gnatswarm.shard")

# Making or ending a shard takes milliseconds; a thread that has not done it by then hangs.
CALL_DEADLINE_S = 10.0

Result = TypeVar("Result")


class EmbeddedFailed(Exception):
    """The thread of the embedded shards met something that cannot happen; the text says what."""


class EmbeddedShard:
    """Serves from its making until close(), on listening sockets that stay the caller's.

    Every method may be called from any thread but its own, and waits for that one.
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
    ) -> None:
        self.page = Page.create()
        self._shard: Shard | None = None
        descriptors = [os.dup(fd) for fd in fds], [os.dup(fd) for fd in websocket_fds]

        def make() -> None:
            from shards.shard import Shard

            self._shard = Shard(
                options,
                number=0,
                page=self.page,
                room=Room(lambda has_room: None),  # there is no other shard to steer to
                server_id=server_id,
                server_name=server_name,
                host=options.host,
                port=port,
            )
            self._shard.listen(*descriptors)

        self._thread = _SharedThread.join_in(self)
        try:
            self._thread.call(make)
        except BaseException:
            self.close()
            raise

    @property
    def failure(self) -> str:
        """What ended it before its time; "": nothing has."""
        return self._thread.failure

    def reload(self, options: Options) -> None:
        """New options, of which what cannot change at run time is as it was."""
        self._thread.call(lambda: self._live().reload(options))

    def disconnect(self, first_cid: int) -> int:
        """End every client whose id is that or higher; how many there were."""
        return self._thread.call(lambda: self._live().clients.disconnect(first_cid))

    def close(self) -> None:
        """The end; clients are disconnected at once. Nothing when it has ended."""
        self._thread.leave(self)

    def end(self) -> None:
        """On its thread, by that: nothing of it stays."""
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

    def __init__(self) -> None:
        import uvloop

        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._shards: list[EmbeddedShard] = []
        self.failure = ""
        # A daemon: a program that forgets to stop its broker ends all the same, and atexit stops it in time.
        self._thread = threading.Thread(target=self._run, name="gnatswarm", daemon=True)
        self._thread.start()

    @classmethod
    def join_in(cls, shard: EmbeddedShard) -> _SharedThread:
        """The thread that runs, or a new one, with one more shard."""
        with cls._lock:
            thread = cls._current
            if thread is None or thread.failure:
                thread = cls._current = cls()
            thread._shards.append(shard)
            return thread

    def leave(self, shard: EmbeddedShard) -> None:
        """End this shard, and the thread with the last one."""
        with self._lock:
            if shard not in self._shards:
                return
            self._shards.remove(shard)
            is_last = not self._shards
            if is_last and _SharedThread._current is self:
                _SharedThread._current = None
        try:
            self.call(shard.end)
        finally:
            if is_last:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(CALL_DEADLINE_S)

    def call(self, work: Callable[[], Result]) -> Result:
        """Do it on the thread, and wait for what comes of it."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("called from the broker's own thread, which would wait for itself")
        answer: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # it is the caller's
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
        """Something that cannot happen has happened. A shard that went on could lose messages in silence."""
        self.failure = f"{context.get('message', 'unexpected error')}: {context.get('exception')!r}"
        logger.critical("%s", self.failure, exc_info=context.get("exception"))
        for shard in list(self._shards):
            shard.end()

    @classmethod
    def end_all(cls) -> None:
        """The program ends: every shard with it."""
        thread = cls._current
        if thread is not None:
            for shard in list(thread._shards):
                shard.close()

    @classmethod
    def forget(cls) -> None:
        """In a child after fork(): the thread did not come along, and its sockets are the parent's."""
        cls._lock = threading.Lock()
        cls._current = None


atexit.register(_SharedThread.end_all)
os.register_at_fork(after_in_child=_SharedThread.forget)
