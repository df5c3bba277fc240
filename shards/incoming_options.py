"""New options on their way into a shard: their users come in parts, and are read in turns of the loop.

50,000 users take some 0.2 s, in which the shard serves its clients and says that it lives. They are in force as a
whole, when the last has been read; what the router says behind them waits. Before that the accounts' imports, exports
and mappings change in turns, each account's as a whole. Users that are in force no more are given up in turns. Used
by the worker, for each message of the router.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.shards.boundary.control import Ping, Reload, ReloadUsers, Stop, decode_users

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterator, Sequence

    from gnatswarm.broker.options import Options, User
    from gnatswarm.shards.boundary.control import ControlMessage

# So many users are given up in one turn: a millisecond.
GIVEN_UP_AT_ONCE = 2000
# So many steps of accounts' imports, exports and mappings are gone in one turn: 5 to 10 ms.
STEPS_AT_ONCE = 400


class IncomingOptions:
    """Those of one shard; `apply` is called with options, their users and their generation.

    Before that `steps` lead to the accounts' imports and exports. They add to a set the accounts whose imported streams
    have changed, which `apply` gets, too. `then` gets the messages that have waited, and asks take() again. `users`:
    those in force at first.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        steps: Callable[[Options, set[str]], Iterator[None]],
        apply: Callable[[Options, UserIndex, int, set[str]], None],
        then: Callable[[ControlMessage], None],
        users: Sequence[User] = (),
    ) -> None:
        self._loop = loop
        self._steps = steps
        self._apply = apply
        self._then = then
        self._present = list(users)
        self._former: list[User] = []  # to be given up
        self._parts: deque[msgspec.Raw] = deque()
        self._new: list[User] = []  # read so far
        self._index = UserIndex()
        self._reload: Reload | None = None  # being read; None: it has not come
        self._behind: deque[ControlMessage] = deque()

    @property
    def are_being_read(self) -> bool:
        """Whether options have come that are not in force yet."""
        return self._reload is not None

    def take(self, message: ControlMessage) -> bool:
        """Whether this message belongs to new options or waits behind them: else it is to be handled now."""
        if self._reload is not None and not isinstance(message, (Ping, Stop)):
            self._behind.append(message)
        elif isinstance(message, ReloadUsers):
            self._parts.append(message.users)
        elif isinstance(message, Reload):
            self._reload = message
            self._read()
        else:
            return False
        return True

    def on_new_router(self) -> None:
        """There is another router: what the dead one has told by half counts for nothing."""
        parts = self._behind if self._reload is not None else self._parts
        while parts and (self._reload is None or isinstance(parts[-1], ReloadUsers)):
            parts.pop()

    def close(self) -> None:
        """Read no more: the shard ends."""
        self._parts.clear()
        self._behind.clear()
        self._reload = None

    def _read(self) -> None:
        """One turn: others are served before the next one."""
        if self._reload is None:  # the shard ends
            return
        if self._parts:
            users = decode_users(self._parts.popleft())
            self._new += users
            self._index.add(users)
        if self._parts:
            self._loop.call_soon(self._read)
            return
        options = msgspec.structs.replace(self._reload.options, users=tuple(self._new))
        listeners: set[str] = set()
        self._walk(options, listeners, self._steps(options, listeners))

    def _walk(self, options: Options, listeners: set[str], steps: Iterator[None]) -> None:
        """One turn, as _read()."""
        if self._reload is None:
            return
        if sum(1 for _ in islice(steps, STEPS_AT_ONCE)) == STEPS_AT_ONCE:
            self._loop.call_soon(self._walk, options, listeners, steps)
        else:
            self._end(options, listeners, self._reload.generation)

    def _end(self, options: Options, listeners: set[str], generation: int) -> None:
        index, self._index = self._index, UserIndex()
        is_idle = not self._former
        self._former += self._present
        self._present, self._new, self._reload = self._new, [], None
        self._apply(options, index, generation, listeners)
        if is_idle:
            self._give_up()
        while self._behind and self._reload is None:
            self._then(self._behind.popleft())

    def _give_up(self) -> None:
        """One turn: each is freed here, if nobody uses it any more."""
        del self._former[-GIVEN_UP_AT_ONCE:]
        if self._former:
            self._loop.call_soon(self._give_up)
