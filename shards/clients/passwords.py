"""Compares passwords with bcrypt hashes, in one helper thread: one takes a tenth of a second, by design of bcrypt.

At most MOST_WAITING comparisons wait; hosts take turns, so that a client guessing passwords delays mostly its own
host. A client over that limit is refused and may try again. Clients with the same hash and password share one
comparison, though not who they are: users may have the same hash. Results are kept (broker.access.auth.Verdicts), so a
reconnect needs none. Called by the clients.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from gnatswarm.shards.boundary.owners import owner_of

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from gnatswarm.broker.access.auth import HashedPassword, Verdicts

logger = logging.getLogger("gnatswarm.clients")

# A new client has two seconds to log in: at 100 ms each some twenty are compared in time.
MOST_WAITING = 64
# bcrypt uses only the first 72 bytes of a password, here and in nats-server.
BCRYPT_BYTES = 72
SAID_EVERY_S = 1.0
# So many clients that have waited for one comparison are answered in one turn of the loop: some 50 to 90 us each.
ANSWERED_AT_ONCE = 100


class WaitingClient(Protocol):
    """A client whose log-in waits."""

    host: str

    @property
    def is_gone(self) -> bool:
        """Whether the client has been closed, so that no answer is needed."""

    def on_compared(self, question: HashedPassword, is_same: bool | None) -> None:
        """The result of its own question; None: refused, too many were waiting, or it could not be compared."""


def is_same(password: str, hashed: str) -> bool:
    """One comparison, 50 ms or more. False also for a hash that bcrypt cannot read."""
    import bcrypt

    try:
        return bcrypt.checkpw(password.encode("utf-8", "surrogatepass")[:BCRYPT_BYTES], hashed.encode())
    except ValueError:
        return False


class Passwords:
    """The comparisons of one shard."""

    def __init__(self, verdicts: Verdicts) -> None:
        self._verdicts = verdicts
        self._thread: ThreadPoolExecutor | None = None
        self._queues: OrderedDict[bytes, deque[bytes]] = OrderedDict()  # whose address → keys, oldest first
        self._questions: dict[bytes, HashedPassword] = {}  # by key; includes the one being compared
        self._waiters: dict[bytes, deque[tuple[WaitingClient, HashedPassword]]] = {}
        self._is_busy = False
        self._is_closed = False
        self._say_at_s = 0.0  # of the monotonic clock: not before
        self.compared = 0

    @property
    def waiting(self) -> int:
        """The number of comparisons waiting or in progress."""
        return len(self._questions)

    def close(self) -> None:
        """Compare no more, and let the thread end; a comparison that has begun ends by itself, before it."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def ask(self, question: HashedPassword, waiter: WaitingClient) -> bool:
        """Compare, and call waiter.on_compared later from the loop. False: refused, too many are waiting."""
        if question.key in self._questions:
            self._waiters[question.key].append((waiter, question))
            return True
        owner = owner_of(waiter.host)
        if len(self._questions) >= MOST_WAITING and not self._make_room(owner):
            return False
        self._questions[question.key] = question
        self._waiters[question.key] = deque([(waiter, question)])
        self._queues.setdefault(owner, deque()).append(question.key)
        self._go_on()
        return True

    def _make_room(self, owner: bytes) -> bool:
        """Refuse the newest comparison of the host with the most waiting; False if that is `owner` itself."""
        crowded = max(self._queues, key=lambda one: len(self._queues[one]), default=owner)
        if len(self._queues.get(crowded, ())) <= len(self._queues.get(owner, ())):
            return False
        key = self._queues[crowded].pop()
        if not self._queues[crowded]:
            del self._queues[crowded]
        self._answer(key, None)
        return True

    def _go_on(self) -> None:
        while self._queues and not self._is_busy and not self._is_closed:
            owner, queue = self._queues.popitem(last=False)
            key = queue.popleft()
            if queue:
                self._queues[owner] = queue  # this host's turn comes last now
            if all(waiter.is_gone for waiter, _ in self._waiters[key]):
                del self._questions[key], self._waiters[key]
                continue
            try:
                work = self._begun(self._questions[key])
            except (ImportError, OSError, RuntimeError) as error:  # no descriptor to load it with, or no thread
                self._say(error)
                asyncio.get_running_loop().call_soon(self._answer, key, None)
                continue
            self._is_busy = True
            work.add_done_callback(functools.partial(self._on_compared, key))

    def _begun(self, question: HashedPassword) -> asyncio.Future[bool]:
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, thread_name_prefix="passwords")
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, is_same, question.password, question.hashed)

    def _on_compared(self, key: bytes, work: asyncio.Future[bool]) -> None:
        self._is_busy = False
        error = work.exception()
        if error is None:
            self.compared += 1
            same = work.result() and self._questions[key].is_known
            self._verdicts.note(key, same)
            self._answer(key, same)
        else:  # bcrypt is loaded for the first one: clients may have all descriptors, or there is no memory
            self._say(error)
            self._answer(key, None)
        self._go_on()

    def _say(self, error: BaseException) -> None:
        now_s = time.monotonic()
        if now_s >= self._say_at_s:
            self._say_at_s = now_s + SAID_EVERY_S
            logger.error("Passwords cannot be compared, who logs in is refused: %s", error)

    def _answer(self, key: bytes, same: bool | None) -> None:
        del self._questions[key]
        self._tell(self._waiters.pop(key), same)

    def _tell(self, waiters: deque[tuple[WaitingClient, HashedPassword]], same: bool | None) -> None:
        """One turn: thousands may have given the same password, and other clients are served between."""
        for _ in range(min(ANSWERED_AT_ONCE, len(waiters))):
            waiter, question = waiters.popleft()
            if not waiter.is_gone:
                waiter.on_compared(question, same)
        if waiters:
            asyncio.get_running_loop().call_soon(self._tell, waiters, same)
