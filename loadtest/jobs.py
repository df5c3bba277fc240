"""The work of a generator process: each kind of scenario as a Job of the fleet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from gnatswarm.loadtest import dialing
from gnatswarm.loadtest.board import Board
from gnatswarm.loadtest.errors import LoadFailed
from gnatswarm.loadtest.flow import Flow
from gnatswarm.loadtest.handshake import Opened
from gnatswarm.loadtest.histogram import Histogram
from gnatswarm.loadtest.paced import Paced
from gnatswarm.loadtest.plan import Share
from gnatswarm.loadtest.roundtrip import RoundTrip
from gnatswarm.loadtest.wireparser import Err, Pong

# Subscriptions that are made between two PINGs: any server handles them in less than half a second.
SUBSCRIPTIONS_PER_PING = 1000


def as_words(histogram: Histogram) -> dict[str, Any]:
    """A histogram as JSON values, for other processes and for result files."""
    return {
        "count": histogram.count,
        "min_ns": histogram.min_ns,
        "max_ns": histogram.max_ns,
        "mean_ns": histogram.mean_ns,
        "pairs": histogram.pairs(),
    }


def merged(words: list[dict[str, Any]]) -> Histogram:
    """The sum of several histograms from as_words()."""
    whole = Histogram()
    for one in words:
        whole.merge(one["pairs"], one["min_ns"], one["max_ns"], one["mean_ns"])
    return whole


class Loop:
    """A compiled loop that runs one process's publishers and subscribers."""

    def __init__(self, loop: Flow | RoundTrip | Paced) -> None:
        self._loop = loop

    def run(self) -> None:
        self._loop.run()

    def result(self) -> dict[str, Any]:
        loop = self._loop
        found: dict[str, Any] = {
            "first_ns": loop.first_ns,
            "last_ns": loop.last_ns,
            "sent": loop.sent(),
            "received": loop.received(),
            "surplus": loop.surplus(),
        }
        if isinstance(loop, RoundTrip | Paced):
            found["latency"] = as_words(loop.latency)
        if isinstance(loop, Paced):
            found["service"] = as_words(loop.service)
            found["lateness"] = as_words(loop.lateness)
            found["unsent"] = loop.unsent_msgs
        return found


LOOPS: dict[str, Callable[[Board, int, Share], Flow | RoundTrip | Paced]] = {
    "flow": Flow,
    "request": RoundTrip,
    "latency": Paced,
    "churn": Paced,
}


class Dial:
    """Opens many connections at once and holds them until result() is called."""

    def __init__(
        self, family: int, address: bytes, count: int, before: bytes | Callable[[bytes], bytes], behind: bytes
    ) -> None:
        self._arguments = (family, address, count, before, behind)
        self._opened: list[int] = []
        self._took_ns = 0

    def run(self) -> None:
        self._opened, self._took_ns = dialing.dial_many(*self._arguments)

    def result(self) -> dict[str, Any]:
        return {"units": len(self._opened), "took_ns": self._took_ns}


class Subscribe:
    """Makes many subscriptions on one connection."""

    def __init__(self, opened: Opened, count: int) -> None:
        self._opened = opened
        self._count = count

    def run(self) -> None:
        for first in range(0, self._count, SUBSCRIPTIONS_PER_PING):
            numbers = range(first, min(first + SUBSCRIPTIONS_PER_PING, self._count))
            tell(self._opened, "".join(f"SUB held.{number:06d}.x {number + 1}\r\n" for number in numbers).encode())

    def result(self) -> dict[str, Any]:
        return {"units": self._count, "took_ns": 0}


class Churn:
    """Subscribes and unsubscribes repeatedly on one connection."""

    def __init__(self, board: Board, opened: Opened, seconds: float) -> None:
        self._board = board
        self._opened = opened
        self._seconds = seconds
        self._made = (0, 0)

    def run(self) -> None:
        self._made = dialing.churn(self._board, 0, self._opened.sock.fileno(), self._seconds)

    def result(self) -> dict[str, Any]:
        return {"units": self._made[0], "took_ns": self._made[1]}


def tell(opened: Opened, lines: bytes) -> None:
    """Send operations and wait until they have taken effect; LoadFailed with the server's -ERR."""
    try:
        opened.sock.sendall(lines + b"PING\r\n")
        while True:
            data = opened.sock.recv(65536)
            if not data:
                raise LoadFailed("the server closed a connection while it was being set up")
            frames = opened.parser.feed(data)
            for frame in frames:
                if isinstance(frame, Err):
                    raise LoadFailed(f"the server said {frame.text!r}")
            if any(isinstance(frame, Pong) for frame in frames) and not opened.parser.pending_bytes:
                return
    except TimeoutError:
        raise LoadFailed("the server did not answer a PING while a connection was being set up") from None
    except OSError as error:
        raise LoadFailed(f"a connection broke while it was being set up: {error.strerror or error}") from None


def numeric_address(host: str, port: int) -> tuple[int, bytes]:
    """Address family and the bytes of a sockaddr; OSError when the name is unknown."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    head = int(family).to_bytes(2, "little" if socket.htons(1) != 1 else "big") + port.to_bytes(2, "big")
    packed = socket.inet_pton(family, str(where[0]))
    if family == socket.AF_INET6:
        return family, head + bytes(4) + packed + bytes(4)
    return family, head + packed + bytes(8)
