"""The logical broker in one process, its clients, and every step that may happen to them.

Shards come and die, links break, connections open and close; bytes between shards move when a step says so, in pieces
of any size. What clients did and got is kept as a history, on which the promises are checked at the end.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.simulation import promises
from tests.simulation.history import NEVER, Message, Subscription
from tests.simulation.schedule import MOST_SHARDS_HERE, Schedule, Step
from tests.support.engine import NO_RESPONDERS, frames
from tests.support.mesh import Mesh

SUBJECTS = ("a", "b", "a.b")
PATTERNS = ("a", "b", "a.*", ">", "*.b", "*")
QUEUES = ("", *promises.QUEUES)
MOST_CLIENTS = 24
ALL = 1 << 30


class World:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        """In a narrow world there is one subject, and fewer clients, who meet each other more often."""
        self.schedule = schedule
        is_narrow = schedule.is_narrow
        each = 1 if is_narrow and schedule.seed % 2 else 2
        self.mesh = Mesh(schedule.shards, seed=schedule.seed, clients_each=each, connect=NO_RESPONDERS)
        self.subjects = SUBJECTS[:1] if is_narrow else SUBJECTS
        self.patterns = ("a", "a", "*") if is_narrow else PATTERNS
        self.now = 0
        self.subscriptions: list[Subscription] = []
        self.messages: list[Message] = []
        self.waiting: set[int] = set()  # clients whose PONG is due
        self.gone: set[int] = set()
        self.booting: set[int] = set()  # shards that take no clients before they are in step
        self.is_bursting = False
        self.seen: Counter[str] = Counter()  # named situations that it has covered
        self._totals: dict[int, Counter[str]] = {}  # of shards that died
        for at in range(len(self.mesh.clients)):
            self.greet(at)

    def run(self) -> None:
        """AssertionError where a promise does not hold."""
        for step in self.schedule.steps:
            self.step(step)
        self.finish()

    # ---- clients

    def greet(self, at: int) -> None:
        """Each hears of requests that nobody responds to on an inbox of its own, sid 0."""
        self.mesh.clients[at].feed(b"SUB _INBOX.%d.* 0\r\n" % at)

    def say(self, client: int, words: bytes, *, finish: bool = True) -> None:
        """Does not finish: the round continues, so that the next operations belong to it."""
        self.mesh.clients[client].feed(words, finish=finish and not self.is_bursting)
        self.look()

    def look(self) -> None:
        """Reads what clients were sent since the last look."""
        for at, client in enumerate(self.mesh.clients):
            for frame in frames(client.take()):
                if frame.line == b"PONG":
                    self.on_pong(at)
                elif frame.sid == b"0":
                    self.on_no_responders(at, int(frame.subject.split(b".")[2]))
                else:
                    assert frame.is_message, frame.line
                    self.on_message(at, int(frame.sid), int(frame.payload))
            if client.is_over and at not in self.gone:
                self.go(at)

    def on_pong(self, client: int) -> None:
        assert client in self.waiting, f"client {client} did not ask for a PONG"
        self.waiting.discard(client)
        for sub in self.subscriptions:
            if sub.client == client:
                sub.acked_at = min(sub.acked_at, self.now)
                if sub.left_at != NEVER:
                    sub.left_acked_at = min(sub.left_acked_at, self.now)
        for message in self.messages:
            if message.client == client:
                message.acked_at = min(message.acked_at, self.now)

    def on_no_responders(self, client: int, number: int) -> None:
        message = self.messages[number]
        assert message.wants_answer and message.client == client
        assert message.nobody_at == NEVER, f"{message}: told twice that nobody responds"
        message.nobody_at = self.now
        self.seen["503"] += 1

    def on_message(self, client: int, sid: int, number: int) -> None:
        sub = self.subscriptions[sid - 1]
        assert sub.client == client, f"{sub}: what it asked for came to client {client}"
        sub.got.append((number, self.now))
        if len(sub.got) >= sub.most:
            sub.left_at = min(sub.left_at, self.now)

    def go(self, at: int) -> None:
        """Its connection is closed."""
        self.gone.add(at)
        self.waiting.discard(at)
        for sub in self.subscriptions:
            if sub.client == at:
                sub.gone_at = self.now
                sub.left_at = min(sub.left_at, self.now)
        for message in self.messages:
            if message.client == at and message.acked_at == NEVER:
                message.is_orphaned = True

    def is_read(self, client: int) -> bool:
        """Whether the broker reads this client now."""
        return client not in self.gone and client not in self.waiting and not self.mesh.is_held(client)

    # ---- what may happen

    def step(self, step: Step) -> None:
        """One step; what cannot happen now does not."""
        self.now += 1
        if step.kind in ("carry", "settle", "break", "kill", "boot", "come"):
            getattr(self, f"do_{step.kind}")(step)
        else:
            client = step.who % len(self.mesh.clients)
            if self.is_read(client):
                getattr(self, f"do_{step.kind}")(client, step)
        self.look()

    def do_carry(self, step: Step) -> None:
        """Bytes of one link arrive: one, some or all of them, read in pieces."""
        pairs = list(self.mesh.ends)
        if pairs:
            a, b = pairs[step.who % len(pairs)]
            self.mesh.carry(a, b, (1, 7, 40, ALL)[step.much % 4], [] if step.which % 3 else iter([1, 2, 5]))

    def do_settle(self, step: Step) -> None:
        """Everything arrives."""
        self.mesh.settle()

    def do_sub(self, client: int, step: Step) -> None:
        sid = len(self.subscriptions) + 1
        pattern = self.patterns[step.which % len(self.patterns)]
        queue = QUEUES[step.much % len(QUEUES)]
        self.subscriptions.append(Subscription(client, sid, pattern, queue))
        self.say(client, f"SUB {pattern} {queue} {sid}\r\n".encode(), finish=step.who % 3 != 0)

    def current(self, client: int) -> list[Subscription]:
        return [one for one in self.subscriptions if one.client == client and one.left_at == NEVER]

    def do_unsub(self, client: int, step: Step) -> None:
        mine = self.current(client)
        if mine:
            sub = mine[-1] if step.which % 2 else mine[step.which % len(mine)]
            sub.left_at = self.now
            self.say(client, b"UNSUB %d\r\n" % sub.sid, finish=step.which % 3 != 0)

    def do_max(self, client: int, step: Step) -> None:
        """UNSUB with a max, after so many messages more."""
        self.mesh.finish()  # so that we know how many it has had
        self.look()
        mine = self.current(client)
        if mine and self.is_read(client):
            sub = mine[step.which % len(mine)]
            sub.most = max(len(sub.got) + step.much % 3, 1)
            if sub.most <= len(sub.got):
                sub.left_at = self.now
            self.say(client, b"UNSUB %d %d\r\n" % (sub.sid, sub.most), finish=step.who % 3 != 0)

    def do_pub(self, client: int, step: Step, *, wants_answer: bool = False) -> None:
        subject = self.subjects[step.which % len(self.subjects)]
        for _ in range(1 + step.much % 3):
            if not self.is_read(client):
                break
            number = len(self.messages)
            self.messages.append(Message(number, client, subject, self.now, wants_answer=wants_answer))
            body = b"%d" % number
            reply = b"_INBOX.%d.%d " % (client, number) if wants_answer else b""
            words = b"PUB %b %b%d\r\n%b\r\n" % (subject.encode(), reply, len(body), body)
            self.say(client, words, finish=step.who % 3 != 0)

    def do_request(self, client: int, step: Step) -> None:
        self.do_pub(client, step, wants_answer=True)

    def do_ping(self, client: int, step: Step) -> None:
        self.waiting.add(client)
        self.say(client, b"PING\r\n")
        if client in self.waiting:
            self.seen["fence"] += 1

    def do_burst(self, client: int, step: Step) -> None:
        """Several operations in one write."""
        rng = Random(f"{step.who} {step.which} {step.much}")
        self.is_bursting = True
        for _ in range(2 + rng.randrange(4)):
            kind = rng.choice(("sub", "sub", "unsub", "pub", "request"))
            if self.is_read(client):
                getattr(self, f"do_{kind}")(client, Step(kind, client, rng.randrange(24), rng.randrange(24)))
        self.is_bursting = False
        if step.which % 2 and self.is_read(client):
            self.do_ping(client, step)

    def do_go(self, client: int, step: Step) -> None:
        """A connection is closed; seldom, or nobody is left to be promised anything."""
        if step.much < 8:
            self.mesh.clients[client].close()
            self.go(client)

    def do_come(self, step: Step) -> None:
        """A new connection, to a shard that takes clients."""
        self.look_who_is_ready()
        ready = [shard for shard in self.mesh.alive if shard not in self.booting and shard not in self.mesh.held]
        if ready and len(self.mesh.clients) < MOST_CLIENTS:
            self.mesh.connect(ready[step.who % len(ready)])
            self.greet(len(self.mesh.clients) - 1)

    def do_break(self, step: Step) -> None:
        """A link ends with what is on its way, and is made again."""
        pairs = list(self.mesh.ends)
        if pairs:
            for message in self.messages:
                message.may_be_lost |= message.acked_at == NEVER
            self.mesh.break_link(*pairs[step.who % len(pairs)])
            self.seen["link break"] += 1

    def do_kill(self, step: Step) -> None:
        """A shard dies with its clients."""
        if len(self.mesh.alive) > 2 and step.much < 8:
            shard = sorted(self.mesh.alive)[step.who % len(self.mesh.alive)]
            self.count(shard)
            self.booting.discard(shard)
            for sub in self.subscriptions:
                if self.mesh.shard_of[sub.client] == shard:
                    sub.shard_died_at = min(sub.shard_died_at, self.now)
            self.mesh.kill(shard)
            self.look()
            self.seen["shard killed"] += 1

    def do_boot(self, step: Step) -> None:
        """A new shard is linked to the others, or a dead one's successor; it takes clients once it is in step."""
        free = [shard for shard in range(MOST_SHARDS_HERE) if shard not in self.mesh.alive]
        if free:
            shard = free[step.who % len(free)]
            self.mesh.add(shard)
            self.booting.add(shard)
            self.seen["shard booted"] += 1

    def look_who_is_ready(self) -> None:
        self.booting = {shard for shard in self.booting if not self.mesh.is_in_step(shard)}

    # ---- the end

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
        assert not self.waiting, "a PONG did not come although everything arrived"
        promises.check(self.subscriptions, self.messages)
        for shard in self.mesh.alive:
            self.count(shard)
        self.mesh.close()

    def count(self, shard: int) -> None:
        """Add a shard's counters to what the schedule has covered."""
        reroutes = self.mesh.engines[shard].probe.reroutes
        self.seen["sent on"] += reroutes.n_sent_on
        self.seen["lingering member took it"] += reroutes.n_lingered
        self.seen["nobody anywhere"] += reroutes.n_lost
