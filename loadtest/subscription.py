"""One subscription of a client: passes its messages to a callback, or queues them."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnatswarm.loadtest.errors import RequestTimeout
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
    _messages: queues.SimpleQueue[Message] = field(default_factory=queues.SimpleQueue, repr=False)

    def next(self, timeout_s: float = 5.0) -> Message:
        """The next message; RequestTimeout if none arrives."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queues.Empty:
            raise RequestTimeout(f"nothing on {self.subject} within {timeout_s} s") from None

    def unsubscribe(self, max_messages: int = 0) -> None:
        """Unsubscribe; as Client.unsubscribe."""
        self.client.unsubscribe(self, max_messages)

    def deliver(self, message: Message) -> None:
        """Called by the client for each message."""
        if self.callback is None:
            self._messages.put(message)
        else:
            self.callback(message)

    def subscribe_lines(self) -> bytes:
        """The lines that subscribe; after a reconnect, earlier deliveries are subtracted from the maximum."""
        queue_word = f"{self.queue} " if self.queue else ""
        line = f"SUB {self.subject} {queue_word}{self.sid}\r\n"
        if self.max_messages:
            line += f"UNSUB {self.sid} {self.max_messages - self.delivered}\r\n"
        return line.encode()
