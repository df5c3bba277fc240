"""What clients did and got: subscriptions and messages, with the steps at which things happened."""

from __future__ import annotations

from dataclasses import dataclass, field

NEVER = 1 << 60


@dataclass(slots=True)
class Subscription:
    """One SUB. All `…_at` are numbers of steps; what a client got counts from when it was queued for it."""

    client: int
    sid: int
    pattern: str
    queue: str
    account: str = "$G"
    at: int = 0  # the SUB was sent
    acked_at: int = NEVER  # the PONG behind its SUB came
    left_at: int = NEVER  # UNSUB, its max was reached, or its client went
    left_acked_at: int = NEVER  # the PONG behind that came, or its client went and all siblings know it
    gone_at: int = NEVER  # its client went
    shard_died_at: int = NEVER  # the shard that it was on died, whether it was there still or not
    death_known_at: int = NEVER  # … and every sibling knew it
    most: int = NEVER  # UNSUB max
    is_outside: bool = False  # of a user of another server; acked_at: since when everybody knows it, without a break
    cut_offs: list[int] = field(default_factory=list)  # … when the connection to that server ended
    is_at_gnatswarm: bool = False  # … which knows QMSG
    is_second: bool = False  # … of a leaf node: it gets what nobody else of its queue group can
    anew_at: int = NEVER  # its client sent CONNECT again, which ends it, …
    anew_until: int = 0  # … and has by then
    lost_from: int = NEVER  # its client moved from here on, and was closed with what had been detached for it
    lost_until: int = NEVER  # … and when everything had arrived after that, with all shards linked
    deaf_from: int = NEVER  # its client was reset while it moved; what it was sent from here on may be lost, …
    deaf_until: int = NEVER  # … until both its shards knew that
    got: dict[int, int] = field(default_factory=dict)  # message → step

    def is_cut_off(self, message: Message) -> bool:
        """Whether its server's connection had ended by then, and not everybody knew it again."""
        return any(at <= message.acked_at for at in self.cut_offs) and not self.has_seen(message)

    def has_seen(self, message: Message) -> bool:
        """Whether it was there, for all to know, when the message was published."""
        return self.acked_at < message.at < self.left_at

    @property
    def taken_until(self) -> int:
        """When its shard knew that its client takes nothing any more."""
        return min(self.gone_at, self.deaf_until)

    def is_lost_on(self, message: Message) -> bool:
        """Whether its client may have been sent the message when it took nothing any more."""
        return self.deaf_from <= message.acked_at and message.at <= self.taken_until

    def must_have(self, message: Message) -> bool:
        """Whether, besides, it stayed."""
        return self.has_seen(message) and self.left_at == NEVER and self.most == NEVER

    def is_over_for(self, message: Message) -> bool:
        """Whether everybody knew, when the message was published, that it does not want it."""
        return self.left_acked_at < message.at


@dataclass(slots=True)
class Message:
    """One PUB. Its payload is its number."""

    number: int
    client: int
    subject: str
    account: str = "$G"
    said_at: int = NEVER  # when it was sent
    at: int = NEVER  # when the broker took it
    at_us: int = 0
    size: int = 0  # of the payload
    header: bytes = b""  # with which it was published
    is_traced: bool = False  # it asks for a trace, …
    is_only: bool = False  # … and to be delivered to nobody
    near_by: frozenset[int] = frozenset()  # sids of subscriptions on its publisher's shard, where these are preferred
    moving: frozenset[int] = frozenset()  # … of clients that were moving then
    acked_at: int = NEVER  # the PONG behind it came
    acked_us: int = 0
    may_be_lost: bool = False  # a link broke while it was not acknowledged
    is_past_break: bool = False  # a link had broken when it was published, and not all had arrived since
    was_on_broken_link: bool = False  # a link broke with it
    was_in_doubt: bool = False  # a shard noticed that a link had broken before it was acknowledged
    is_lost_on_its_way: bool = False  # it was being sent on, as a queue message, over a link that broke
    wants_answer: bool = False  # it has a reply subject
    inbox: int = 0  # sid of the subscription to which its publisher has answers sent; 0: it is another server's user
    is_echoless: bool = False  # its publisher wanted none of what it published
    hears_nobody: bool = True  # its publisher wanted to be told where nobody responds
    nobody_at: int = NEVER  # its publisher was told that nobody responds
    is_orphaned: bool = False  # its publisher went before it was acknowledged
    is_denied: bool = False  # its publisher may not publish it
    answers: int = -1  # the request that it is an answer to
    crosses_reload: bool = False  # imports and mappings were reloaded before it was acknowledged
    chosen: str = ""  # the destination of a weighted mapping to which it went, if it came to anybody
    kept_with: bytes = b""  # of a request to another account: the prefix of the replies to it
    is_outside: bool = False  # a user of another server published it; acked_at: when it had arrived everywhere
    is_of_leaf: bool = False  # … at a leaf node, which follows no imports
    # Queue groups, with their accounts, for which that server left the choice to our broker, …
    named: frozenset[tuple[str, str]] = frozenset()
    sent_on: frozenset[tuple[str, str]] = frozenset()  # … or another one, where it had gone first
    unsent: frozenset[str] = frozenset()  # accounts in which it sent our broker nothing, as nobody wanted it there
    near: frozenset[int] = frozenset()  # users of servers that it reached without us
    knows_no_origins: bool = False  # its server was not told which members are in its own leaf node's cluster
    is_lost_outside: bool = False  # a connection to another server, or the gateway, ended while it was on its way
    is_late: bool = False  # a server did not answer a PING in time while it may have been on its way
    lost_at: int = NEVER  # of such a request: when a shard died with it, or while it was being handed over

    @property
    def is_promised(self) -> bool:
        """Whether its publisher may rely on it in the end."""
        return self.acked_at != NEVER or not (self.may_be_lost or self.is_orphaned)
