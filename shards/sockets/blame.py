"""An error of ours in a callback that is for one connection alone, as a timer's: it costs that connection.

So it is in a round of the reactor; anywhere else the event loop would end the process, with all other connections.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from gnatswarm.shards.sockets.reactor import Socket

logger = logging.getLogger("gnatswarm.sockets")


class Connected(Protocol):
    """A session; `socket` None: it has none yet, or none any more."""

    socket: Socket | None


Session = TypeVar("Session", bound=Connected)
Given = ParamSpec("Given")


def costs_its_connection(
    callback: Callable[Concatenate[Session, Given], None],
) -> Callable[Concatenate[Session, Given], None]:
    """Wrap a session's method: an Exception in it is logged, and closes the connection of that session."""

    @functools.wraps(callback)
    def guarded(session: Session, /, *given: Given.args, **named: Given.kwargs) -> None:
        try:
            callback(session, *given, **named)
        except Exception:
            if session.socket is not None:
                session.socket.blame()
            else:
                logger.exception("%s - an error of ours for a connection that has gone", session)

    return guarded
