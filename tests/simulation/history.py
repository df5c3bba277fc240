"""What clients did and got: subscriptions and messages, with the steps at which things happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.model import matches

NEVER = 1 << 60


@dataclass
class Subscription:
    """One SUB. All `…_at` are numbers of steps."""

    client: int
    sid: int
    pattern: str
    queue: str
    acked_at: int = NEVER  # the PONG behind its SUB came
    left_at: int = NEVER  # UNSUB, its max was reached, or its client went
    left_acked_at: int = NEVER  # the PONG behind that came
    gone_at: int = NEVER  # its client went
    shard_died_at: int = NEVER  # the shard that it was on died, whether it was there still or not
    most: int = NEVER  # UNSUB max
    got: list[tuple[int, int]] = field(default_factory=list)  # (message, step)

    def has_seen(self, message: Message) -> bool:
        """Whether it matches, and every shard knew of it when the message was published."""
        return self.acked_at < message.at < self.left_at and matches(self.pattern, message.subject)

    def must_have(self, message: Message) -> bool:
        """Whether it also stayed until the end."""
        return self.has_seen(message) and self.left_at == NEVER and self.most == NEVER

    def is_over_for(self, message: Message) -> bool:
        """Whether it does not match, or every shard knew of its end when the message was published."""
        return self.left_acked_at < message.at or not matches(self.pattern, message.subject)


@dataclass
class Message:
    """One PUB. Its payload is its number."""

    number: int
    client: int
    subject: str
    at: int
    acked_at: int = NEVER  # the PONG behind it came
    may_be_lost: bool = False  # a link broke while it was not acknowledged
    wants_answer: bool = False  # it has a reply subject
    nobody_at: int = NEVER  # its publisher was told that nobody responds
    is_orphaned: bool = False  # its publisher went before it was acknowledged

    @property
    def is_promised(self) -> bool:
        """Whether its publisher could rely on its delivery."""
        return self.acked_at != NEVER or not (self.may_be_lost or self.is_orphaned)
