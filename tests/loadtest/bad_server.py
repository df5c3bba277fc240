"""A NATS server of a few lines that can be told to misbehave: lose, double or disorder messages, hang up, refuse.

Load generators must notice. One thread for each connection; loopback, any free port.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

INFO = b'INFO {"server_id":"bad","version":"2.9.10","headers":true,"max_payload":1048576} \r\n'

# The number of a message (from 0) → which messages go out for it, by their number: [n] is right, [] loses it.
Delivery = Callable[[int], Iterable[int]]


def right(number: int) -> list[int]:
    return [number]


class BadServer:
    """Listens from construction on; use it in a `with`."""

    def __init__(
        self,
        delivery: Delivery = right,
        info: bytes = INFO,
        login_answer: bytes = b"PONG\r\n",
        hang_up_after: int | None = None,
        error_after: tuple[int, bytes] | None = None,
    ) -> None:
        self.delivery = delivery
        self.info = info
        self.login_answer = login_answer
        self.hang_up_after = hang_up_after
        self.error_after = error_after
        self.messages: list[bytes] = []
        self.pings = 0  # which were read: some may not be answered yet
        self.pongs = 0
        self._subscribers: list[tuple[socket.socket, bytes, bytes]] = []
        self._open: list[socket.socket] = []
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with self._lock:
                    self._open.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), sock, sock.makefile("rb") as reader:
            sock.sendall(self.info)
            is_logged_in = False
            for line in reader:
                words = line.split()
                if words[0] == b"PING":
                    self.pings += 1
                    with self._lock:  # a PONG comes behind all of a message that is just being delivered
                        sock.sendall(b"PONG\r\n" if is_logged_in else self.login_answer)
                        self.pongs += 1
                    is_logged_in = True
                elif words[0] == b"SUB":
                    with self._lock:
                        # Of wildcards only one at the end is known.
                        self._subscribers.append((sock, words[1].rstrip(b"*>"), words[-1]))
                elif words[0] == b"PUB":
                    size = int(words[-1])
                    reply = words[2] + b" " if len(words) == 4 else b""
                    self._on_message(words[1], reply, reader.read(size + 2)[:size])

    def _on_message(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        with self._lock:
            number = len(self.messages)
            self.messages.append(payload)
            if self.hang_up_after == number:
                self.hang_up()
            for sock, pattern, sid in self._subscribers:
                if subject != pattern and not (pattern.endswith(b".") and subject.startswith(pattern)):
                    continue
                if self.error_after is not None and self.error_after[0] == number:
                    sock.sendall(self.error_after[1])
                for one in self.delivery(number):
                    body = self.messages[one]
                    sock.sendall(b"MSG %s %s %s%d\r\n%s\r\n" % (subject, sid, reply, len(body), body))
