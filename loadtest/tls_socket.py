"""A TLS connection that one thread reads while another one writes.

OpenSSL does not allow that: a read and a write of one connection at the same moment break it. Here they take turns, and
neither waits for the network in its turn.
"""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Argument = TypeVar("Argument")
Outcome = TypeVar("Outcome")


class TlsSocket:
    """What `socket.socket` has of the same names, over an `ssl.SSLSocket`, which it takes over, with its timeout."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._timeout_s = sock.gettimeout()
        self._turn = threading.Lock()
        sock.setblocking(False)

    def recv(self, size: int) -> bytes:
        """At most so many bytes; b"": the other end has closed it. TimeoutError, or another OSError."""
        return self._in_turns(self._sock.recv, size)

    def sendall(self, data: bytes) -> None:
        """Send it all. TimeoutError when nothing was taken for as long as the timeout, or another OSError.

        Several threads must not send at the same time: their data would be mixed.
        """
        rest = memoryview(data)
        while rest:
            rest = rest[self._in_turns(self._sock.send, rest) :]

    def shutdown(self, how: int) -> None:
        """End the connection: whoever waits for it hears of it."""
        with self._turn:
            self._sock.shutdown(how)

    def close(self) -> None:
        with self._turn:
            self._sock.close()

    def _in_turns(self, act: Callable[[Argument], Outcome], argument: Argument) -> Outcome:
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            with self._turn:
                try:
                    return act(argument)
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            self._wait(event, until)

    def _wait(self, event: int, until: float | None) -> None:
        fd = self._sock.fileno()
        if fd < 0:
            raise OSError("the connection is closed")
        poll = select.poll()
        poll.register(fd, event)
        left_ms = None if until is None else max(0, until - time.monotonic()) * 1000
        if not poll.poll(left_ms):
            raise TimeoutError("timed out")
