"""What one connection tells or sends that has no effect, and its errors, in the log: of each kind one line a second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("gnatswarm.gateway")

TELL_EVERY_S = 1.0


class Refusals:
    """The refusals of one connection, which `session` names; there are few reasons."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: object) -> None:
        self._loop = loop
        self._session = session
        self._untold: dict[str, tuple[int, str]] = {}  # reason → how many since its last line, and the last subject

    def note(self, why: str, subject: str) -> None:
        """Tell it now, or with those that follow: the reason, which ends in a colon where it is no name, and this."""
        if why in self._untold:
            self._untold[why] = self._untold[why][0] + 1, subject
            return
        logger.error("%s - %s %s", self._session, why, subject)
        self._wait(why)

    def _wait(self, why: str) -> None:
        self._untold[why] = 0, ""
        self._loop.call_later(TELL_EVERY_S, self._tell, why)

    def _tell(self, why: str) -> None:
        n, subject = self._untold.pop(why)
        if n:
            logger.error("%s - %s %s (%d since the last line)", self._session, why, subject, n)
            self._wait(why)
