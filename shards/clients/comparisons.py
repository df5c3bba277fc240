"""Comparisons of passwords with their hashes for which a reload waits: it brings hashes of what was plain before.

Whom the new rules do not admit as far as is known stays as it was until then: its password was right until now. They
are made one after another, so who logs in has its turn between them; of all with the same password and hash once.
Used by the clients of a shard, and by the port for leaf nodes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gnatswarm.broker.access.auth import HashedPassword
    from gnatswarm.shards.clients.passwords import Passwords

# A reload waits for so many, of 0.1 s each; other clients log in again (of leaf nodes there are fewer). One that cannot
# be made, because too much waits to be compared, is tried again so often.
MOST_COMPARISONS = 40
COMPARE_AGAIN_S = 0.1
COMPARE_ATTEMPTS = 50

Session = TypeVar("Session")


class _Comparison(Generic[Session]):
    """One of them, and who waits for it, in their order."""

    __slots__ = ("_on_done", "attempts", "question", "sessions")

    # Turns go by host: behind the log-ins of its clients' own host it would wait for minutes.
    host = "reload"

    def __init__(self, question: HashedPassword, on_done: Callable[[_Comparison[Session], bool | None], None]) -> None:
        self.question = question
        self.sessions: dict[Session, None] = {}
        self.attempts = 0
        self._on_done = on_done

    @property
    def is_gone(self) -> bool:
        """Never: where all have gone it is made all the same, because others are behind it."""
        return False

    def on_compared(self, _question: HashedPassword, is_same: bool | None) -> None:
        """It is made, or could not be."""
        self._on_done(self, is_same)


class Comparisons(Generic[Session]):
    """Those of the reloads that are not over. `look_again` gets who has waited for one: the rules know more now."""

    def __init__(self, passwords: Passwords, look_again: Callable[[Collection[Session]], None]) -> None:
        self._passwords = passwords
        self._look_again = look_again
        self._waiting: dict[bytes, _Comparison[Session]] = {}  # by their key, the one being made first
        self._is_comparing = False
        self._impossible: set[bytes] = set()  # keys

    @property
    def are_over(self) -> bool:
        """Whether nobody waits."""
        return not self._waiting

    def wait_for(self, question: HashedPassword, session: Session) -> bool:
        """Whether the session waits for this one now. False: it could not be made, or there are too many."""
        if question.key in self._impossible:
            return False
        comparison = self._waiting.get(question.key)
        if comparison is None:
            if len(self._waiting) >= MOST_COMPARISONS:
                return False
            comparison = self._waiting[question.key] = _Comparison(question, self._on_compared)
        comparison.sessions[session] = None
        self._go_on()
        return True

    def end(self) -> None:
        """The reloads are over: the next one tries again what could not be compared."""
        self._impossible.clear()

    def _go_on(self) -> None:
        if not self._is_comparing and self._waiting:
            self._is_comparing = True
            self._compare(next(iter(self._waiting.values())))

    def _compare(self, comparison: _Comparison[Session]) -> None:
        comparison.attempts += 1
        if not self._passwords.ask(comparison.question, comparison):
            asyncio.get_running_loop().call_soon(self._on_compared, comparison, None)

    def _on_compared(self, comparison: _Comparison[Session], is_same: bool | None) -> None:
        """Where it could not be made, it is as if it was not the same."""
        loop = asyncio.get_running_loop()
        if is_same is None and comparison.attempts < COMPARE_ATTEMPTS and not self._impossible:
            loop.call_later(COMPARE_AGAIN_S, self._compare, comparison)
            return
        key = comparison.question.key
        del self._waiting[key]
        self._is_comparing = False
        if is_same is None:
            self._impossible.add(key)
        self._look_again(comparison.sessions.keys())
        loop.call_soon(self._go_on)  # (not now: another client's log-in may have brought this about)
