"""Histories written by hand: each call is an event, one microsecond after the one before."""

from __future__ import annotations

from tests.histories.checker import Report, check
from tests.histories.events import (
    Began,
    Close,
    Closed,
    Ended,
    Event,
    Fault,
    Mended,
    Msg,
    Nobody,
    Odd,
    Open,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
)

STEP_NS = 1_000


class Script:
    """One history. Connections are numbers; a message is a number, too."""

    def __init__(self, *conns: int, servers: int = 1) -> None:
        self.now = 0
        self.events: list[Event] = [Began(0, "by hand", 0, len(conns), servers)]
        self.pubs: dict[int, Pub] = {}
        for conn in conns:
            self.open(conn)

    def _next(self) -> int:
        self.now += STEP_NS
        return self.now

    def open(self, conn: int, place: str = "0") -> None:
        self.events.append(Open(self._next(), conn, place))

    def sub(self, conn: int, sid: int, pattern: str, queue: str = "") -> None:
        self.events.append(Sub(self._next(), conn, sid, pattern, queue))

    def unsub(self, conn: int, sid: int, most: int = 0) -> None:
        self.events.append(Unsub(self._next(), conn, sid, most))

    def pub(self, conn: int, message: int, subject: str, *, wants_answer: bool = False, crosses: bool = False) -> None:
        self.pubs[message] = Pub(self._next(), conn, message, subject, 10, wants_answer, crosses)
        self.events.append(self.pubs[message])

    def request(self, conn: int, message: int, subject: str) -> None:
        self.pub(conn, message, subject, wants_answer=True)

    def ping(self, conn: int) -> None:
        self.events.append(Ping(self._next(), conn))

    def pong(self, conn: int) -> None:
        self.events.append(Pong(self._next(), conn))

    def fence(self, *conns: int) -> None:
        for conn in conns:
            self.ping(conn)
            self.pong(conn)

    def msg(self, conn: int, sid: int, message: int, *, subject: str = "", size: int = 10) -> None:
        self.events.append(Msg(self._next(), conn, sid, message, subject or self.pubs[message].subject, size))

    def nobody(self, conn: int, message: int) -> None:
        self.events.append(Nobody(self._next(), conn, message))

    def close(self, conn: int, how: str) -> None:
        self.events.append(Close(self._next(), conn, how))

    def closed(self, conn: int) -> None:
        self.events.append(Closed(self._next(), conn))

    def odd(self, conn: int, text: str) -> None:
        self.events.append(Odd(self._next(), conn, text))

    def fault(self, what: str, *places: str) -> None:
        self.events.append(Fault(self._next(), what, places))

    def mended(self) -> None:
        self.events.append(Mended(self._next()))

    def report(self) -> Report:
        """Let each connection ask for a last PONG, and for another one, as the generator's clients do."""
        ended = {event.conn for event in self.events if isinstance(event, Close | Closed)}
        left = [event.conn for event in self.events if isinstance(event, Open) and event.conn not in ended]
        self.fence(*left, *left)
        self.events.append(Ended(self._next()))
        return check(self.events)

    def kinds(self) -> list[str]:
        """The kinds of violations, in alphabetical order, each once."""
        return sorted(self.report().by_kind)
