"""Shards in one process, under any order of deliveries between them: fences, order, and queue groups.

Not a model that predicts each delivery (with several shards there is no single order of events), but the promises
themselves, looked at over all that happened: who must have got a message, by when, how often, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import QUIET, frames
from tests.support.mesh import Mesh
from tests.support.model import matches

SUBJECTS = ("a", "b", "a.b")
PATTERNS = ("a", "b", "a.*", ">", "*.b", "*")
NEVER = 1 << 60


@dataclass
class Subscription:
    """Times are numbers of steps."""

    client: int
    sid: int
    pattern: str
    queue: str
    acked_at: int = NEVER  # its SUB was fenced
    left_at: int = NEVER  # UNSUB, or its client went
    left_acked_at: int = NEVER  # and that was fenced
    got: list[tuple[int, int]] = field(default_factory=list)  # (message, step)

    def must_have(self, message: Message) -> bool:
        """Whether it was there, for all to know, when the message was published, and stayed."""
        return self.acked_at < message.at and self.left_at == NEVER and matches(self.pattern, message.subject)


@dataclass
class Message:
    number: int
    client: int
    subject: str
    at: int
    acked_at: int = NEVER
    may_be_lost: bool = False  # a link broke while it was not acknowledged


class World:
    """A mesh, and everything that happened in it."""

    def __init__(self, shards: int, seed: int) -> None:
        self.mesh = Mesh(shards, seed=seed, connect=QUIET)
        self.now = 0
        self.subscriptions: list[Subscription] = []
        self.messages: list[Message] = []
        self.waiting: set[int] = set()  # clients whose PONG is due
        self.gone: set[int] = set()
        self.n_sids = 0

    def say(self, client: int, words: bytes, *, finish: bool = True) -> None:
        """Not to finish: the round goes on, so that the next operations fall into the same one."""
        self.mesh.clients[client].feed(words, finish=finish)
        self.look()

    def look(self) -> None:
        """Reads what clients were sent since the last look."""
        for at, client in enumerate(self.mesh.clients):
            for frame in frames(client.take()):
                if frame.line == b"PONG":
                    self.waiting.discard(at)
                    self.on_pong(at)
                else:
                    assert frame.is_message, frame.line
                    [sub] = [one for one in self.subscriptions if (one.client, b"%d" % one.sid) == (at, frame.sid)]
                    sub.got.append((int(frame.payload), self.now))
            if client.is_over and at not in self.gone:
                self.go(at)

    def go(self, at: int) -> None:
        self.gone.add(at)
        self.waiting.discard(at)
        for sub in self.subscriptions:
            if sub.client == at and sub.left_at == NEVER:
                sub.left_at = self.now

    def on_pong(self, client: int) -> None:
        for sub in self.subscriptions:
            if sub.client == client:
                sub.acked_at = min(sub.acked_at, self.now)
                if sub.left_at != NEVER:
                    sub.left_acked_at = min(sub.left_acked_at, self.now)
        for message in self.messages:
            if message.client == client:
                message.acked_at = min(message.acked_at, self.now)

    # ---- what may happen

    def step(self, what: str, who: int, which: int, much: int) -> None:
        self.now += 1
        client = who % len(self.mesh.clients)
        match what:
            case "carry":
                pairs = list(self.mesh.ends)
                a, b = pairs[who % len(pairs)]
                self.mesh.carry(a, b, [1, 7, 40, 1 << 20][much % 4], [] if which % 3 else iter([1, 2, 5]))
                self.look()
            case "settle":
                self.mesh.settle()
                self.look()
            case "break":
                pairs = list(self.mesh.ends)
                for message in self.messages:
                    message.may_be_lost |= message.acked_at == NEVER
                self.mesh.break_link(*pairs[who % len(pairs)])
                self.look()
            case _ if client in self.gone or client in self.waiting or self.mesh.is_held(client):
                return  # it is not read
            case "sub":
                self.n_sids += 1
                queue = ["", "q", "r"][much % 3]
                pattern = PATTERNS[which % len(PATTERNS)]
                self.subscriptions.append(Subscription(client, self.n_sids, pattern, queue))
                self.say(client, f"SUB {pattern} {queue} {self.n_sids}\r\n".encode(), finish=who % 3 != 0)
            case "unsub":
                mine = [one for one in self.subscriptions if one.client == client and one.left_at == NEVER]
                if mine:
                    sub = mine[-1] if which % 2 else mine[which % len(mine)]
                    sub.left_at = self.now
                    self.say(client, b"UNSUB %d\r\n" % sub.sid, finish=which % 3 != 0)
            case "pub":
                for _ in range(1 + much % 3):
                    number = len(self.messages)
                    subject = SUBJECTS[which % len(SUBJECTS)]
                    self.messages.append(Message(number, client, subject, self.now))
                    body = b"%d" % number
                    self.say(client, b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(body), body), finish=who % 3 != 0)
            case "ping":
                self.waiting.add(client)
                self.say(client, b"PING\r\n")
            case "go" if much < 6:  # seldom, or nobody is left to be promised anything
                self.mesh.clients[client].close()
                self.go(client)

    def finish(self) -> None:
        """Everything arrives, and everybody who is left asks for a PONG and gets it."""
        self.now += 1
        self.mesh.settle()
        self.look()
        assert not self.waiting, "a fence did not pass although everything arrived"
        for client in range(len(self.mesh.clients)):
            if client not in self.gone:
                self.waiting.add(client)
                self.say(client, b"PING\r\n")
        self.now += 1
        self.mesh.settle()
        self.look()
        assert not self.waiting
        self.check()
        self.mesh.close()

    # ---- the promises

    def check(self) -> None:
        for sub in self.subscriptions:
            numbers = [number for number, _ in sub.got]
            assert len(set(numbers)) == len(numbers), f"{sub}: a message twice"
            assert all(matches(sub.pattern, self.messages[number].subject) for number in numbers)
            late = [number for number, _ in sub.got if self.messages[number].at > sub.left_at]
            assert not late, f"{sub}: {late} were published after it had left"
            if not sub.queue:
                self.check_plain(sub, dict(sub.got))
            for publisher in {self.messages[number].client for number in numbers} if not sub.queue else ():
                mine = [number for number in numbers if self.messages[number].client == publisher]
                assert mine == sorted(mine), f"{sub}: out of order from client {publisher}: {mine}"
        for message in self.messages:
            for queue in ("q", "r"):
                self.check_queue(message, queue)

    def check_plain(self, sub: Subscription, got: dict[int, int]) -> None:
        for message in self.messages:
            if not sub.must_have(message):
                continue
            if message.acked_at == NEVER and (message.may_be_lost or message.client in self.gone):
                continue  # its publisher was promised nothing
            assert message.number in got, f"{sub} did not get {message}"
            assert got[message.number] <= message.acked_at, f"{message} was acknowledged before {sub} got it"

    def check_queue(self, message: Message, queue: str) -> None:
        members = [one for one in self.subscriptions if one.queue == queue]
        got = [(one, at) for one in members for number, at in one.got if number == message.number]
        assert len(got) <= 1, f"{message} came to {len(got)} members of {queue}: {got}"
        if not any(member.must_have(message) for member in members) or message.may_be_lost:
            return
        if message.acked_at == NEVER and message.client in self.gone:
            return
        assert got, f"no member of {queue} got {message}"
        assert got[0][1] <= message.acked_at, f"{message} was acknowledged before {got[0][0]} got it"


def steps(*kinds: str) -> st.SearchStrategy[list[tuple[str, int, int, int]]]:
    small = st.integers(0, 23)
    return st.lists(st.tuples(st.sampled_from(kinds), small, small, small), min_size=60, max_size=150)


USUAL = ("carry",) * 5 + ("settle",) * 2 + ("sub", "sub", "unsub", "pub", "pub", "pub", "ping", "ping", "go")


@settings(max_examples=150, deadline=None)
@given(shards=st.integers(2, 4), seed=st.integers(1, 5), script=steps(*USUAL))
def test_the_promises_hold_whatever_the_order_of_deliveries(shards, seed, script):
    world = World(shards, seed)
    for step in script:
        world.step(*step)
    world.finish()


@settings(max_examples=150, deadline=None)
@given(shards=st.integers(2, 4), seed=st.integers(1, 5), script=steps(*USUAL, "break", "break"))
def test_what_was_promised_holds_though_links_break(shards, seed, script):
    world = World(shards, seed)
    for step in script:
        world.step(*step)
    world.finish()
