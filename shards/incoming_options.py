"""New options on their way into a shard: their users come in parts, and are read in turns of the loop.

50,000 users take some 0.2 s, in which the shard serves its clients and says that it lives. They are in force as a
whole, when the last has been read; what the router says behind them waits. Users that are in force no more are given up
in turns, too. Used by the worker, for each message of the router.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.shards.boundary.control import Ping, Reload, ReloadUsers, Stop, decode_users

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Sequence

    from gnatswarm.broker.options import Options, User
    from gnatswarm.shards.boundary.control import ControlMessage

# So many users are given up in one turn: a millisecond.
GIVEN_UP_AT_ONCE = 2000


class IncomingOptions:
    """Those of one shard. `apply` is called with options, their users and their generation.

    `then` gets the messages that have waited, and asks take() again. `users`: those in force at first.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        apply: Callable[[Options, UserIndex, int], None],
        then: Callable[[ControlMessage], None],
        users: Sequence[User] = (),
    ) -> None:
        self._loop = loop
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
        else:
            self._end(self._reload)

    def _end(self, reload: Reload) -> None:
        options = msgspec.structs.replace(reload.options, users=tuple(self._new))
        index, self._index = self._index, UserIndex()
        is_idle = not self._former
        self._former += self._present
        self._present, self._new, self._reload = self._new, [], None
        self._apply(options, index, reload.generation)
        if is_idle:
            self._give_up()
        while self._behind and self._reload is None:
            self._then(self._behind.popleft())

    def _give_up(self) -> None:
        """One turn: each is freed here, if nobody uses it any more."""
        del self._former[-GIVEN_UP_AT_ONCE:]
        if self._former:
            self._loop.call_soon(self._give_up)
