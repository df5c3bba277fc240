"""One subscription of a client: passes its messages to a callback, or queues them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnatswarm.loadtest.errors import Disconnected, RequestTimeout
from gnatswarm.loadtest.message import Message

if TYPE_CHECKING:
    from gnatswarm.loadtest.natswire import Client


@dataclass
class Subscription:
    """A subscription. Without a callback its messages are queued for `next()`."""

    client: Client = field(repr=False)
    sid: int
    subject: str
    queue: str
    callback: Callable[[Message], None] | None = field(repr=False)
    max_messages: int = 0  # 0: no limit
    delivered: int = 0
    _messages: deque[Message] = field(default_factory=deque, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _losses: int = field(default=0, repr=False)  # connections that ended while somebody waited

    def next(self, timeout_s: float = 5.0) -> Message:
        """The next message. RequestTimeout if none arrives, Disconnected if the connection ends before one does.

        A client that connects again is waited for, if its connection has ended before.
        """
        with self.client.while_waiting(self), self._changed:
            losses = self._losses

            def is_over() -> bool:
                return bool(self._messages) or self._losses != losses or self.client.has_ended

            if not self._changed.wait_for(is_over, timeout_s):
                raise RequestTimeout(f"nothing on {self.subject} within {timeout_s} s")
            if self._messages:
                return self._messages.popleft()
        raise Disconnected(str(self.client.closed_because))

    def unsubscribe(self, max_messages: int = 0) -> None:
        """Unsubscribe; as Client.unsubscribe."""
        self.client.unsubscribe(self, max_messages)

    def deliver(self, message: Message) -> None:
        """Called by the client for each message."""
        if self.callback is None:
            with self._changed:
                self._messages.append(message)
                self._changed.notify()
        else:
            self.callback(message)

    def on_disconnect(self) -> None:
        """Called by the client when a connection has ended while `next()` waits."""
        with self._changed:
            self._losses += 1
            self._changed.notify_all()

    def subscribe_lines(self) -> bytes:
        """The lines that subscribe; after a reconnect, earlier deliveries are subtracted from the maximum."""
        queue_word = f"{self.queue} " if self.queue else ""
        line = f"SUB {self.subject} {queue_word}{self.sid}\r\n"
        if self.max_messages:
            line += f"UNSUB {self.sid} {self.max_messages - self.delivered}\r\n"
        return line.encode()
