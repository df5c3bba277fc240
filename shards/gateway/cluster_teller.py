"""When clients are told what has changed in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gnatswarm.shards.boundary.control import ClusterNews

# Changes within this time of the last word are told together.
TOGETHER_S = 0.02


class ClusterTeller:
    """Tells a member that is new at once, as nats-server does, unless something was told just now; all else together.

    A client that connects behind such a word hears of that member in its first INFO and of nothing more. Who leaves is
    often back at once. `news`: what there is to tell. `tell`: called with it where it is not what was told last;
    not before begin().
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, news: Callable[[], ClusterNews], tell: Callable[[ClusterNews], None]
    ) -> None:
        self._loop = loop
        self._news = news
        self._tell = tell
        self._told: ClusterNews | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._has_begun = False
        self._is_closed = False

    def begin(self) -> None:
        """Say the first word, unless it has been said."""
        if not self._has_begun:
            self._has_begun = True
            self.changed()

    def changed(self) -> None:
        """Something may have changed."""
        if self._gathering is None and self._has_begun and not self._is_closed:
            self._gather()
            self._loop.call_soon(self._tell_of_newcomers)

    def forget(self) -> None:
        """Tell it again: to another router."""
        self._told = None
        self.changed()

    def close(self) -> None:
        """Tell no more."""
        self._is_closed = True
        self._end_gathering()

    def _end_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _gather(self) -> None:
        self._gathering = self._loop.call_later(TOGETHER_S, self._tell_all)

    def _tell_of_newcomers(self) -> None:
        news = self._news()
        if self._told is None:
            self._say(news)
            self._end_gathering()  # those that connect at once are told of at once, too
        elif news.members > self._told.members:
            self._say(news)

    def _tell_all(self) -> None:
        self._gathering = None
        if self._say(self._news()):
            self._gather()

    def _say(self, news: ClusterNews) -> bool:
        if self._is_closed or news == self._told:
            return False
        self._told = news
        self._tell(news)
        return True
