"""A delivered message, as callbacks get it, and header blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gnatswarm.loadtest.word import is_text

if TYPE_CHECKING:
    from gnatswarm.loadtest.natswire import Client, Subscription

HEADER_LINE = b"NATS/1.0"


class Message:
    """A message of a subscription. `payload` is bytes; `reply` is "" if no response is wanted."""

    __slots__ = ("_header_block", "client", "payload", "reply", "subject", "subscription")

    def __init__(
        self, client: Client, subscription: Subscription, subject: str, reply: str, header_block: bytes, payload: bytes
    ) -> None:
        self.client = client
        self.subscription = subscription
        self.subject = subject
        self.reply = reply
        self.payload = payload
        self._header_block = header_block

    @property
    def headers(self) -> dict[str, str]:
        """Headers by name, in the case as sent; of several with one name the last. {} if there are none."""
        found: dict[str, str] = {}
        for line in self._header_block.split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                found[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
        return found

    @property
    def status(self) -> int:
        """The status in the first header line (503: no responders); 0 if there is none."""
        word = self._header_block[len(HEADER_LINE) :].lstrip(b" ")[:3]
        return int(word) if word.isdigit() else 0

    def respond(self, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish to `reply`; ValueError if there is none."""
        if not self.reply:
            raise ValueError(f"the message on {self.subject} wants no answer")
        self.client.publish(self.reply, payload, headers=headers)

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, {self.payload[:40]!r}, reply={self.reply!r})"


def header_block(headers: Mapping[str, str]) -> bytes:
    """The header block for HPUB; ValueError if a name or value contains a line break or another invalid character."""
    lines = [HEADER_LINE]
    for name, value in headers.items():
        is_broken = any(forbidden in name for forbidden in ":\r\n ") or "\r" in value or "\n" in value
        if not name or is_broken or not is_text(name + value):
            raise ValueError(f"not a header: {name!r}: {value!r}")
        lines.append(f"{name}: {value}".encode())
    return b"\r\n".join((*lines, b"", b""))
