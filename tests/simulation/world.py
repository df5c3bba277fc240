"""The logical broker in one process, its clients, and every step that may happen to them.

Shards come, leave and die, links break, connections open and close; bytes between shards move when a step says so, in
pieces of any size, and so does what the router and its shards say to each other. Some clients read slowly. What
clients did and got is kept as a history, on which the promises are checked at the end; the promises of back-pressure
are checked at once.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from gnatswarm.broker import interest as interests
from gnatswarm.broker import service_imports
from gnatswarm.broker import sublist as sublists
from gnatswarm.broker.allowance import Allowance
from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.frozen import OfferedClient, RecordRefused
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.message_trace import DISABLED
from gnatswarm.broker.options import Options
from gnatswarm.broker.permissions import Permissions
from gnatswarm.probes.engine import ProbeSocket, set_step_cost
from gnatswarm.probes.pipes import Sight, client_frames, relieved, with_news
from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary import control
from gnatswarm.shards.clients import moved
from gnatswarm.shards.clients.imports_exports import ImportsExports
from tests.simulation import promises
from tests.simulation.crowds import Crowd
from tests.simulation.history import NEVER, Message, Subscription
from tests.simulation.logins import Login, LoginClient, Owner, Wishes, connect_line, options_with_users, user_name
from tests.simulation.promises import History
from tests.simulation.rates import Rates
from tests.simulation.schedule import (
    ANEW,
    BOUNDS,
    BRIEF,
    BY_ACCOUNT,
    EAGER,
    GRADUAL,
    GROWS,
    LASTING,
    LIMITED,
    LOCAL,
    MODEST,
    MOST_SHARDS_HERE,
    NO_ECHO,
    PARTIAL,
    RATED,
    RESET,
    STOPS,
    TRACED,
    VERBOSE,
    Schedule,
    Step,
)
from tests.simulation.servers import Door, Server, Servers
from tests.simulation.stops import Stop
from tests.simulation.swarm import ALL, End, Process, Swarm
from tests.simulation.tenants import LATE_ACCOUNT, RIGHTS, Tenants, View, matches, may_publish, may_subscribe
from tests.simulation.traces import Traces, header_of, lines_of
from tests.support.engine import Engine, EngineClient, frames

QUEUES = ("", *promises.QUEUES)
MOST_CLIENTS = 24
MOST_IN_ALL = 150  # of those who come in a long world, where so many may be there at one time
# A buffer asks how much is pending when a chunk of 64 KiB is full, or for each message that is shared (32 KiB): limits
# and sizes are such that few messages make somebody slow.
SIZES = (0, 3000, 12000, 33000, 33000)
VOLLEY_BYTES = 12000
FIRST_SLOT = 32  # of other servers, among the numbers of shards: broker.exchange
SECOND_CHOICE = 0x80000000  # added to the number of members at leaf nodes: broker.interest
LIMITS = Limits(max_pending_bytes=200_000), Limits(max_pending_bytes=300_000)
CAPACITIES = (-1, 20_000, 40_000)  # bytes that a link's socket takes; -1: all
LINK_MARKS = (40_000, 0, 70_000)
TAKES = (1, 5_000, 40_000, 120_000, -1)
LARGEST_BYTES = 35_000  # a message with its control line
# A larger message asks the buffer of each receiver for room, so the broker must notice a receiver that is behind.
TELLING_BYTES = 2048
STILL_TAKES_US = 2_000_000
SLOW_US = 300_000
MOST_SLOW_BYTES = 100  # the most of a SLOW frame that was carried in part
SLOW_AGAIN_US = 50_000
FORGOTTEN = "account forgotten, and named again"
LIKE_A_FRAME = b"RS+ "  # so begins what some payloads have behind their number
MIMIC_BYTES = 20  # of the message before one of these
# What a world with BOUNDS allows, and how long its names are: a queue's with that of a subject just fits a line.
LARGEST_PAYLOAD = 40_000
LONGEST_LINE = 131_072
LONG = "x" * 64_990
MANY_ERRORS = 450  # in one write: more than Python is asked for in two turns of a client
KNOWN_ERRORS = (
    b"maximum subscriptions exceeded",
    b"Permissions Violation",
    b"Slow Consumer",
    b"Invalid Publish Subject",
    b"Invalid Subject",
)
STEP_COSTS = 60_000, 26_000, 9_000  # of making an entry: in worlds with BRIEF, where 50,000 are a turn
LEAST_WAIT_S = 0.005  # as shards.clients.allowances
MOST_ROUNDS = 200  # of half a second each, within which everything must have recovered

REFUSALS = (
    CloseReason.CLIENT_CLOSED,
    CloseReason.AUTHENTICATION_FAILURE,
    CloseReason.MAXIMUM_PAYLOAD_EXCEEDED,
    CloseReason.MAXIMUM_CONTROL_LINE_EXCEEDED,
)
COMPILED = [Permissions(one) if one is not None else None for one in RIGHTS]


def number_in(body: bytes) -> int:
    """The number of the message with this header and payload."""
    return int(body.partition(LIKE_A_FRAME)[0].split()[-1])


@dataclass(slots=True)
class Person:
    """One client, and what it knows."""

    number: int
    process: Process
    client: EngineClient
    account: str
    rights: int
    subscriptions: list[Subscription] = field(default_factory=list)  # all that it ever had
    inbox: Subscription | None = None  # the present one of them where it gets answers, and the 503 of its requests
    wishes: Wishes = field(default_factory=Wishes)
    expected: deque[str] = field(default_factory=deque)  # what it is to be told, in order, in worlds with VERBOSE
    coming: Login | None = None  # its session at the shard to which it moves
    rest: bytes = b""  # of a message that it has begun to send
    user: int = 0  # its number, in worlds where clients log in
    is_refused: bool = False  # its CONNECT was to be refused
    unacked: list[Message] = field(default_factory=list)  # what it sent since its last PONG
    is_gone: bool = False
    is_slow: bool = False  # takes bytes only when a step says so
    unread: deque[tuple[int, str, bytes, int]] = field(default_factory=deque)  # (where it ends, what, reply, message)
    is_asking: bool = False  # its PONG is not queued yet
    is_first: bool = False  # … and is for a PING before CONNECT
    is_waiting: bool = False  # it has not read its PONG
    backlog: deque[int] = field(default_factory=deque)  # messages that it sent and the broker did not take yet
    taken: int = 0  # messages that the broker took
    to_answer: list[tuple[str, int]] = field(default_factory=list)
    reads: dict[str, tuple[int, int]] = field(default_factory=dict)  # reply → (when it was queued, µs; answers since)
    asked_us: dict[str, int] = field(default_factory=dict)  # … to what came while it moved → when that was published
    errors: int = 0
    limits: Limits = field(default_factory=Limits)
    moves_since: int = NEVER  # the step at which its present move began
    moves_to: Process | None = None  # where that leads, or would have led if its connection had not closed
    is_on_its_way: bool = False  # neither shard has its socket
    was_reset: bool = False  # while it moved: it says nothing more, and what it said is still to be read
    moved_at: int = NEVER  # the step at which its last move began
    detached_to: int = 0  # bytes queued for it when that was over
    rate: Allowance | None = None  # what it may publish
    newest: Message | None = None  # of what it was sent, the one that was published last
    detached_pending: int = 0  # of those, how many its new shard had not sent, if it is to be closed for them
    socket: ProbeSocket = field(init=False)
    sight: Sight = field(default_factory=Sight)  # what we have looked at of what it was sent

    def __post_init__(self) -> None:
        self.socket = self.sight.socket = self.client.socket  # whichever shard it is at
        self.sight.whose = self

    @property
    def is_read(self) -> bool:
        """Whether the broker reads from it now, and it may send anything."""
        is_busy = self.is_waiting or self.backlog or self.rest or self.socket.is_held or self.was_reset
        return not (self.is_gone or self.is_on_its_way or is_busy or self.is_limited)

    @property
    def is_limited(self) -> bool:
        """Whether it has published as much as it may for now."""
        return self.rate is not None and not self.rate.look(self.process.swarm.now_us)[0]

    def believed_at(self, process: Process) -> bool:
        """Whether siblings may send that shard what is for it; it may have closed while it moved there."""
        return self.process is process or (self.is_gone and self.moves_to is process)


class World:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        """A narrow world has few subjects and fewer clients, so that they meet each other more often."""
        self.schedule = schedule
        self.rng = Random(schedule.seed)
        self.now = 0
        self.is_grown = False
        self.tenants = self.arranged(0)
        self.history = History(self.tenants)
        self.seen: Counter[str] = Counter()  # named situations that it has covered
        self.people: list[Person] = []
        self.traces = Traces(self.who_has)
        self.present: list[Sight] = []  # of those who are not gone
        self.is_bursting = False
        self.looked_us = 0  # when clients were looked at last
        self.slow_told: dict[tuple[int, str, str], int] = {}
        self.said_slow: dict[tuple[int, int, str], int] = {}  # (who, to whom, subject) → when
        # (to whom, account, pattern) → until when, over which link, and who has subscribed to the pattern there
        self.slow_patterns: dict[tuple[int, str, str], tuple[int, End, list[tuple[Person, Subscription]]]] = {}
        self.imports: dict[int, ImportsExports] = {}
        is_narrow = schedule.is_narrow
        if schedule.has("accounts"):
            self.subjects: tuple[str, ...] = ("b", "a.b") if is_narrow else ("a", "b", "a.b", "c", "m")
            self.patterns: tuple[str, ...] = (
                ("b", "x.*", "*.b", ">")
                if is_narrow
                else ("a", "b", "a.*", ">", "*.b", "*", "x.*", "c", ">", "_INBOX.>", "_INBOX.>")
            )
        else:
            self.subjects = ("a",) if is_narrow else ("a", "b", "a.b")
            self.patterns = ("a", "a", "*") if is_narrow else ("a", "b", "a.*", ">", "*.b", "*")
        is_slow = schedule.has("slow")
        self.limits = LIMITS[schedule.seed % 2] if is_slow else Limits()
        self.queues = QUEUES
        if schedule.has(BOUNDS):
            self.limits = Limits(
                max_payload_bytes=LARGEST_PAYLOAD,
                max_control_line_bytes=LONGEST_LINE,
                max_subscriptions=3 + schedule.seed % 4,
            )
            long = f"a.{LONG}" if schedule.has("accounts") else f"{LONG}.b"
            self.subjects = (*self.subjects, long)
            self.patterns = (*self.patterns, long, ">")
            self.queues = ("", "q", f"r{LONG}")
        self.swarm = Swarm(
            schedule.shards,
            seed=schedule.seed,
            limits=self.limits,
            configure=self.configure,
            capacity=CAPACITIES[schedule.seed % 3] if is_slow else -1,
            link_mark=LINK_MARKS[schedule.seed % 5 % 3] if is_slow else 0,
            has_gateway=schedule.has("servers"),
            is_fenced=schedule.has("fenced"),
            rests=schedule.has("rests"),
            own_interest=lambda: self.tenants.own_interest(),
            prefers_local=schedule.has(LOCAL),
            is_brief=schedule.has(BRIEF),
            is_gradual=schedule.has(GRADUAL),
            is_by_account=schedule.has(BY_ACCOUNT),
        )
        self.rates = Rates() if schedule.has(RATED) else None
        self.servers: Servers | None = None
        if schedule.has("servers"):
            self.servers = Servers(self.swarm, schedule.seed, self.history, schedule.has)
            self.swarm.servers = self.servers
        self.swarm.on_end = self.on_end
        self.swarm.movers = self
        self.swarm.n_answers_due = self.n_answers_due
        self.published_at: dict[int, Process] = {}  # message → where
        self.keepers: dict[bytes, list[Process]] = {}  # prefix of replies → whose death loses them
        self.last_left: Process | None = None  # whose client was the last to unsubscribe
        self.ended = 0  # processes that have ended without leaving in order
        self.dying: list[Process] = []  # dead, and some sibling does not know it yet
        self.swarm.on_frames = self.on_frames
        self.swarm.on_break = self.on_break
        self.owners: dict[int, Owner] = {}
        self.rights_of: dict[str, int] = {}  # of users that do not have those of their number any more, by name
        self.variant = 0  # of the last reload
        self.is_renewing = False  # since the last reload of imports not everything has arrived
        # Accounts of clients that may still be counted: they were lost on their way, or with their shard, and the
        # router has not looked since.
        self.counted_still: list[str] = []
        each = 1 if is_narrow and schedule.seed % 2 else 2
        self.crowd: Crowd | None = None
        if schedule.has(LIMITED):
            n = each * len(self.swarm.shards)
            first = self.tenants.accounts[0]
            n_first = -(-n // len(self.tenants.accounts))
            self.crowd = Crowd(n + schedule.seed % 5, first, n_first + schedule.seed % 3)
            self.swarm.on_forgotten = self.crowd.forget
            self.swarm.on_tick = self.crowd.settle
        for process in self.swarm.shards:
            for _ in range(each):
                self.come(process)
        self.swarm.settle()
        self.swarm.seen.clear()

    def configure(self, engine: Engine) -> None:
        """Give a new shard its accounts. Random names come from the seed."""
        if self.schedule.has("direct"):
            engine.probe.send_directly()
        mesh = engine.probe.mesh
        if self.schedule.has(TRACED) and mesh is not None and mesh.shard != control.GATEWAY_NUMBER:
            self.traces.begin(engine.probe, self.tenants.options())
        if self.tenants.crossings:
            service_imports.os = self  # type: ignore[attr-defined]
            assert mesh is not None
            for number, name in enumerate(self.tenants.accounts):
                engine.probe.seed(mesh.account(name.encode()), self.schedule.seed + number)
            made = ImportsExports(self.tenants.options(), engine.probe.fanout, mesh)
            self.imports[id(engine)] = made

    def forget_accounts(self, engine: Engine) -> None:
        """Those that nobody has, as after a reload that has removed them; they are named again.

        Which they are depends on when Python has forgotten their clients; what follows in the schedule does not.
        """
        mesh = engine.probe.mesh
        assert mesh is not None
        before = mesh.account_names()
        mesh.forget_accounts(set())
        left = mesh.account_names()
        self.seen[FORGOTTEN] += len(before) - len(left)
        for number, name in enumerate(map(str.encode, self.tenants.accounts)):
            if name in left:
                engine.probe.begin_choices(mesh.account(name), self.schedule.seed + number)
            elif name in before:
                engine.probe.seed(mesh.account(name), self.schedule.seed + number)

    def who_has(self, cid: int) -> tuple[int, str]:
        """The number of the client with this id, and its account."""
        person = next((one for one in self.people if one.client.connection.cid == cid), None)
        return (-1, "") if person is None else (person.number, person.account)

    def arranged(self, variant: int) -> Tenants:
        """The accounts, and what passes between them after a reload to this variant."""
        return Tenants(
            self.schedule.seed if self.schedule.has("accounts") else 0,
            has_third=self.schedule.has("third"),
            is_chunked=self.schedule.has("chunked"),
            is_weighted=self.schedule.has("weighted"),
            allows_trace=self.schedule.has(TRACED) and self.schedule.seed % 2 == 1,
            variant=variant,
            is_grown=self.is_grown,
        )

    def urandom(self, n: int) -> bytes:
        """Replaces os.urandom."""
        return self.rng.randbytes(n)

    def run(self) -> None:
        """AssertionError where a promise does not hold."""
        set_step_cost(STEP_COSTS[self.schedule.seed % 3] if self.schedule.has(BRIEF) else 1)
        sublists.os = interests.os = self if self.schedule.has(GROWS) else os  # type: ignore[attr-defined]
        try:
            for step in self.schedule.steps:
                self.step(step)
            self.finish()
        finally:
            set_step_cost(1)
            sublists.os = interests.os = os  # type: ignore[attr-defined]

    # ---- clients

    @property
    def subscriptions(self) -> list[Subscription]:
        return self.history.subscriptions

    @property
    def messages(self) -> list[Message]:
        return self.history.messages

    @property
    def has_room(self) -> bool:
        """Whether one client more may come."""
        if self.schedule.has(LASTING):
            return len(self.present) < MOST_CLIENTS and len(self.people) < MOST_IN_ALL
        return len(self.people) < MOST_CLIENTS

    def one_of(self, number: int) -> Person:
        """The client that a step means; in a lasting world one of those who are there, if any are."""
        people = self.people
        if self.schedule.has(LASTING):
            people = [one for one in people if not one.is_gone] or people
        return people[number % len(people)]

    def come(self, process: Process, account: str = "") -> bool:
        """Open a connection. Each has an inbox, where it also gets the 503 of its requests. False: there are enough."""
        number = len(self.people)
        wishes = Wishes(
            echo=not (self.schedule.has(NO_ECHO) and number % 3 != 2),
            headers=not (self.schedule.has(MODEST) and number % 4 == 1),
            no_responders=not (self.schedule.has(MODEST) and number % 2 == 1),
            verbose=self.schedule.has(VERBOSE) and number % 3 != 1,
            pedantic=self.schedule.has(VERBOSE) and number % 2 == 0,
        )
        account = account or self.tenants.accounts[number % len(self.tenants.accounts)]
        if self.crowd is not None and not self.is_counted(self.crowd, number, account, process):
            return False
        user = rights = self.rng.randrange(len(RIGHTS)) if self.schedule.has("rights") else 0
        is_eager = self.schedule.has(EAGER) and number % 4 < 3
        client: EngineClient
        if self.schedule.has(ANEW):
            rights = self.rights_of.get(user_name(account, user), user)
            line = connect_line(wishes, user_name(account, user))
            client = LoginClient(process.engine, self.owner_of(process), b"" if is_eager else line)
        else:
            line = connect_line(wishes)
            client = process.engine.client(b"" if is_eager else line)
            mesh = process.engine.probe.mesh
            assert mesh is not None
            client.connection.enter(mesh.account(account.encode()), COMPILED[rights])
        process.clients.add(client)
        person = Person(number, process, client, account, rights, limits=self.limits, wishes=wishes, user=user)
        if self.schedule.has(BRIEF) and not isinstance(client.session, Login):
            client.session.on_turn_over = lambda: person.process.on_turn_over(client.session)  # type: ignore[method-assign]
        if self.rates is not None:
            self.limit(person, self.rates)
        person.taken = client.connection.in_msgs
        self.people.append(person)
        self.present.append(person.sight)
        self.history.rights[number] = [(self.now, rights)]
        if is_eager:
            self.begin(person, line)
            return True
        self.expect(person, "+OK")
        self.subscribe(person, f"_INBOX.{number}.*", "")
        person.inbox = person.subscriptions[-1]
        return True

    def limit(self, person: Person, rates: Rates) -> None:
        """It may publish only so much from now on, at whichever shard it is."""
        client = person.client

        def wait(wait_us: int) -> None:
            self.seen["client waits for publish_limits"] += 1
            connection, process = client.connection, person.process

            def again() -> None:
                if client.connection is connection and not (person.is_gone or person.is_on_its_way):
                    connection.publish_again()
                    process.probe.finish()

            process.loop.call_later(max(wait_us / 1e6, LEAST_WAIT_S), again)

        person.rate = rates.of(person.number)
        client.session.on_publish_limited = wait  # type: ignore[method-assign]
        client.connection.allow(person.rate)

    def begin(self, person: Person, connect: bytes) -> None:
        """CONNECT and more in one write, perhaps PING before it where nobody logs in; all that in pieces."""
        rng = Random(f"eager {self.schedule.seed} {person.number}")
        words: list[bytes] = []
        if not self.schedule.has(ANEW) and rng.random() < 0.4:
            self.seen["PING before CONNECT"] += 1
            self.expect(person, "PONG")
            person.is_first = person.is_asking = person.is_waiting = True
            words.append(b"PING\r\n")
        self.expect(person, "+OK")
        words += [connect, self.wanted(person, f"_INBOX.{person.number}.*", "")]
        person.inbox = person.subscriptions[-1]
        for _ in range(rng.randrange(4)):
            pattern, queue = rng.choice(self.patterns), rng.choice(self.queues)
            # (Of those in the same write it is not known here which are too many.)
            if (not queue or self.may_queue(person.account)) and not self.has_too_many(person, more=1):
                words.append(self.wanted(person, pattern, queue))
        for _ in range(rng.randrange(4)):
            words.append(self.publish(person, rng.choice(self.subjects), 0, wants_answer=rng.random() < 0.5))
        if not person.is_asking and rng.random() < 0.4:
            self.expect(person, "PONG")
            person.is_asking = person.is_waiting = True
            words.append(b"PING\r\n")
        size = sum(len(one) for one in words)
        pieces = iter([rng.randrange(1, size) for _ in range(6)]) if rng.random() < 0.7 else []
        self.seen["more in the same write as CONNECT"] += 1
        self.feed_in_turns(person, b"".join(words), finish=rng.random() < 0.5, pieces=pieces)
        if not person.is_gone and not person.socket.is_held:
            errors = person.client.session.errors
            assert len(errors) == person.errors, f"client {person.number}: {errors}"

    def is_counted(self, crowd: Crowd, number: int, account: str, process: Process) -> bool:
        """Count a client that comes, if there are not too many: those whose shard's death nobody knows count, too."""
        self.swarm.turn()
        self.look()
        there = [one.account for one in self.people if not one.is_gone]
        possible = crowd.may_come(there, account, self.counted_still)
        refused = crowd.come(number, account, process.number)
        assert refused in possible, f"client {number} is refused by {refused or 'nobody'}, and not by {possible}"
        if refused:
            self.seen[f"the {refused} has enough clients"] += 1
        return not refused

    def owner_of(self, process: Process) -> Owner:
        """What the sessions of a shard share, where clients log in for themselves."""
        found = self.owners.get(id(process))
        if found is None:
            found = Owner(
                process.engine.probe,
                self.options_with_users(),
                is_like_newer=self.is_like_newer,
                ends_at_once=1 + self.schedule.seed % 3,
                call_soon=process.loop.call_soon,
                on_turn_over=process.on_turn_over,
            )
            self.owners[id(process)] = found
        return found

    def options_with_users(self) -> Options:
        """What a shard's sessions log in by."""
        return options_with_users(self.tenants.options(), self.tenants.accounts, self.limits, self.rights_of)

    @property
    def is_like_newer(self) -> bool:
        """Whether a second CONNECT ends subscriptions, as with nats-server 2.15."""
        return self.schedule.seed % 4 != 0

    def subscribe(self, person: Person, pattern: str, queue: str, *, finish: bool = True) -> None:
        self.say(person, self.wanted(person, pattern, queue), finish=finish)

    def wanted(self, person: Person, pattern: str, queue: str) -> bytes:
        """The bytes of a SUB; it counts as sent from here on."""
        sub = Subscription(person.number, len(self.subscriptions) + 1, pattern, queue, person.account, at=self.now)
        self.subscriptions.append(sub)
        person.subscriptions.append(sub)
        if self.has_too_many(person) and may_subscribe(person.rights, pattern):
            sub.left_at = sub.left_acked_at = self.now
            person.errors += 1
            self.seen["too many subscriptions"] += 1
            self.expect(person, "-ERR 'maximum subscriptions exceeded")
        elif not may_subscribe(person.rights, pattern):
            sub.left_at = sub.left_acked_at = self.now
            person.errors += 1
            self.seen["SUB denied"] += 1
            self.expect(person, "-ERR 'Permissions Violation for Subscription")
        else:
            self.expect(person, "+OK")
        return f"SUB {pattern} {queue} {sub.sid}\r\n".encode()

    def has_too_many(self, person: Person, more: int = 0) -> bool:
        """Whether it has more than max_subscriptions, with so many more."""
        if not self.schedule.has(BOUNDS):
            return False
        self.look()
        return sum(one.left_at == NEVER for one in person.subscriptions) + more > self.limits.max_subscriptions

    def say(self, person: Person, words: bytes, *, finish: bool = True) -> None:
        """Not to finish: the round goes on, so that the next operations fall into the same one."""
        if words.startswith(b"PING"):
            self.expect(person, "PONG")
        elif words.startswith(b"UNSUB"):
            self.expect(person, "+OK")
            before = self.queued_for_siblings(person.process)
            person.client.feed(words, finish=False)
            self.seen["take-back"] += self.queued_for_siblings(person.process) < before
            words = b""
        person.client.feed(words, finish=finish and not self.is_bursting)
        self.look()
        if not person.is_gone:
            errors = person.client.session.errors
            if len(errors) < person.errors and self.schedule.has(BRIEF) and person.socket.is_held:
                return  # it rests, and is told later
            assert len(errors) == person.errors, f"client {person.number}: {errors}"

    def expect(self, person: Person, word: str) -> None:
        """It is to be told this next."""
        if self.schedule.has(VERBOSE) and (word != "+OK" or person.wishes.verbose):
            person.expected.append(word)

    def check_told_in_order(self, person: Person, line: bytes) -> None:
        """What a client is told comes in the order of its operations."""
        if b"Slow Consumer" in line or b"(sid " in line or person.client.socket.close_reason:
            return  # nobody asked for that
        assert person.expected, f"client {person.number} is told {line!r}, for nothing"
        word = person.expected.popleft()
        assert line.startswith(word.encode()), f"client {person.number} is told {line!r} instead of {word}"
        self.seen[line.decode() if line == b"+OK" else line.decode().split("'")[1] if b"'" in line else "PONG"] += 1

    def queued_for_siblings(self, process: Process) -> int:
        return sum(end.socket.queued for end in self.swarm.ends if end.process is process and end.socket is not None)

    def look(self) -> None:
        """Look at what clients were sent since the last look, and what they have read of it."""
        for sight in with_news(self.present):
            person: Person = sight.whose
            if person.is_on_its_way:
                continue
            socket = person.socket
            is_closing = socket.is_over or socket.close_reason != 0
            if person.moves_since != NEVER and not person.client.connection.is_moving and not is_closing:
                person.moves_since, person.moves_to = NEVER, None  # it stays
                if person.was_reset:
                    self.takes_again(person)
            if person.backlog:
                self.note_taken(person)
            if socket.queued != sight.queued:
                at = sight.queued
                data = socket.queued_from(at)
                sight.queued += len(data)
                for frame in client_frames(data, at, socket.close_reason != 0, sight):
                    self.on_queued(person, *frame)
            sight.sent = len(socket.sent)
            if person.unread:
                self.note_read(person, sight.sent)
            sight.is_watched = bool(person.backlog) or person.moves_since != NEVER
            if socket.is_over:
                self.on_closed(person)
        if self.servers is not None:
            self.servers.look()
        self.looked_us = self.swarm.now_us

    def note_read(self, person: Person, size: int) -> None:
        """Note what it has read by now: so many bytes."""
        while person.unread and person.unread[0][0] <= size:
            _, what, reply, number = person.unread.popleft()
            if what == "PONG":
                person.is_waiting = False
            else:
                person.to_answer.append((reply.decode(), number))

    def note_taken(self, person: Person) -> None:
        """Note which messages the broker has taken by now."""
        taken = person.client.connection.in_msgs
        while person.taken < taken:
            person.taken += 1
            message = self.messages[person.backlog.popleft()]
            message.at = self.now
            message.at_us = self.swarm.now_us
            self.published_at[message.number] = person.process
            if message.said_at != self.now:
                message.near_by = frozenset()  # who is there now has not been looked at
            made = self.imports.get(id(person.process.engine))
            if made is not None and message.wants_answer:
                message.kept_with = made.service_imports.reply_prefix
                self.keepers.setdefault(message.kept_with, [person.process])

    def note_near_by(self, message: Message, publisher: Person) -> None:
        """Note which members of queue groups are on the publisher's shard, and which move, or may be there still."""
        near_by: set[int] = set()
        moving: set[int] = set()
        is_echoless = not publisher.wishes.echo
        for one in self.people:
            moving |= {sub.sid for sub in one.subscriptions if sub.anew_until == NEVER}
            members = {sub.sid for sub in one.subscriptions if sub.queue and sub.left_at == NEVER}
            if one.is_gone or (one is publisher and is_echoless):
                continue
            if one.moves_since != NEVER or one.is_on_its_way or one.client.connection.is_moving:
                moving |= members
            elif one.process is publisher.process:
                near_by |= members
        message.near_by, message.moving = frozenset(near_by), frozenset(moving)
        self.seen["member near by"] += bool(near_by)

    def on_queued(
        self, person: Person, end: int, line: bytes, sid: int, number: int, subject: bytes, reply: bytes, header: bytes
    ) -> None:
        if sid:
            sub = self.subscriptions[sid - 1]
            assert sub.client == person.number, f"{sub}: what it asked for came to client {person.number}"
            if line:
                self.on_no_responders(person, int(subject.split(b".")[2]))
            else:
                self.check_header(person, sub, self.messages[number], header)
                self.on_message(person, sub, end, number, subject, reply)
            return
        if self.schedule.has(VERBOSE):
            self.check_told_in_order(person, line)
        if line == b"PONG":
            person.unread.append((end, "PONG", b"", 0))
            self.on_pong(person)
        elif line != b"+OK" or not person.wishes.verbose:
            assert line.startswith(b"-ERR"), line
            assert person.is_refused or any(word in line for word in KNOWN_ERRORS), line

    def check_header(self, person: Person, sub: Subscription, message: Message, header: bytes) -> None:
        """Check that a message has the header with which it was published, where its receiver knows headers."""
        account = sub.account
        self.seen["header"] += bool(header)
        self.seen["header left out"] += header != message.header and not header
        if self.schedule.has(ANEW) and not header:
            return  # it may have been given to who it was before
        if person.wishes.headers:
            is_whole = message.account == account or not message.is_traced
            if message.is_outside and message.subject.startswith("_R_"):
                is_whole = False  # an answer to another account is traced there no further, whatever it says
            elif message.is_traced and sub.queue and self.servers is not None and DISABLED in header:
                is_whole = False  # it has been to other servers, or was on its way to them, and came back
                self.seen["traced message that came back from other servers"] += 1
            lines = [lines_of(one, with_destination=is_whole) for one in (header, message.header)]
            assert lines[0] == lines[1], f"{message} came to client {person.number} with {header!r}"
            if message.is_traced and not is_whole and message.subject.startswith("_R_"):
                assert DISABLED in header, f"{message} may be traced in account {account}"
        else:
            # (what it was given before a second CONNECT it may read behind that)
            assert not header or self.schedule.has(ANEW), f"client {person.number} knows no headers, and got {header!r}"

    def on_pong(self, person: Person) -> None:
        assert person.is_asking, f"client {person.number} did not ask for a PONG"
        # (Of one that was closed since, as a slow consumer, other servers know that too by now.)
        is_checked = self.servers is not None and self.swarm.is_fenced and not person.is_first
        if is_checked and person.client.reason is CloseReason.NONE:
            assert self.servers is not None
            self.servers.check_fenced(person.number, person.subscriptions, person.unacked)
        person.is_asking = False
        if person.is_first:  # what it has said stands behind that PING
            person.is_first = False
            return
        for sub in person.subscriptions:
            sub.acked_at = min(sub.acked_at, self.now)
            if sub.left_at != NEVER:
                sub.left_acked_at = min(sub.left_acked_at, self.now)
        for message in person.unacked:
            if message.at != NEVER:
                message.acked_at = self.now
                message.acked_us = self.swarm.now_us
        person.unacked = [message for message in person.unacked if message.at == NEVER]

    def on_no_responders(self, person: Person, number: int) -> None:
        message = self.messages[number]
        assert message.wants_answer and message.client == person.number
        assert message.nobody_at == NEVER, f"{message}: told twice that nobody responds"
        message.nobody_at = self.now
        self.seen["503"] += 1

    def check_overtaken(self, person: Person, sub: Subscription, message: Message) -> None:
        """Check that nothing that was published behind a message's PONG has come before it (but to queue groups)."""
        newest = person.newest
        if sub.queue or message.is_outside or message.at == NEVER:
            return
        if newest is None or newest.at <= message.at:
            person.newest = message
        else:
            assert newest.at <= message.acked_at, f"client {person.number} got {newest} before {message}, on {sub}"

    def on_message(
        self, person: Person, sub: Subscription, end: int, number: int, subject: bytes, reply: bytes
    ) -> None:
        message = self.messages[number]
        assert number not in sub.got, f"{sub}: {message} twice"
        self.check_overtaken(person, sub, message)
        # What was detached at its new shard counted as delivered there.
        sub.got[number] = self.now
        if end <= person.detached_to and message.at != NEVER:  # (its publisher is looked at later)
            sub.got[number] = max(message.at, person.moved_at)
        if len(sub.got) >= sub.most:
            sub.left_at = min(sub.left_at, self.now)
        if self.schedule.has("weighted"):
            self.note_destination(message, person, sub.account, subject.decode())
        if message.account != sub.account:
            self.seen["service crossing" if reply.startswith(b"_R_") else "account crossing"] += 1
        if reply and sub.account == person.account:  # (else it has become somebody else since)
            person.unread.append((end, "request", reply, number))
            if RIGHTS[person.rights] is not None:
                person.reads[reply.decode()] = (self.swarm.now_us, 0)
                if end <= person.detached_to:
                    person.asked_us[reply.decode()] = message.at_us
                elif self.looked_us < self.swarm.now_us:  # (it rested, and came while time passed)
                    person.asked_us[reply.decode()] = self.looked_us

    def note_destination(self, message: Message, person: Person, account: str, subject: str) -> None:
        """Note to which destination of a weighted mapping a message went: to the same for everybody."""
        to = self.tenants.mapped(message.account, message.subject)
        if len(to) > 1 and not message.crosses_reload:
            chosen = [one for one in to if self.tenants.heard(View("A", one, is_across=False), account) == subject]
            assert chosen, f"client {person.number} got {message} as {subject}"
            assert message.chosen in ("", chosen[0]), f"{message} went to {message.chosen}, and to {chosen[0]}"
            message.chosen = chosen[0]
            self.seen[f"weighted mapping to {chosen[0]}"] += 1

    def on_closed(self, person: Person) -> None:
        """The broker has closed it, or it has left."""
        reason = person.client.reason
        is_in_doubt = any(one.may_be_lost or one.was_in_doubt for one in person.unacked)
        if reason is CloseReason.SLOW_CONSUMER_PENDING_BYTES:
            self.seen["slow consumer"] += 1
            pending = max(len(person.client.socket.unsent), person.detached_pending)
            assert pending + LARGEST_BYTES > LIMITS[0].max_pending_bytes, f"{person}: closed with {pending} pending"
        elif reason is CloseReason.ROUTE_REMOVED:  # a shard that dies disconnects its own clients alone
            self.seen["closed in doubt"] += 1
            if person.moves_since == NEVER:
                assert is_in_doubt, f"client {person.number} is closed, and no link broke with what it had sent"
            else:
                is_excused = self.seen["link break"] or self.ended or person.process.host.was_too_late
                assert is_excused, f"client {person.number} is closed because it moved"
                self.seen["move closed"] += 1
        elif person.is_refused:
            assert reason in REFUSALS, reason
        else:
            assert reason is CloseReason.CLIENT_CLOSED, f"client {person.number}: {reason}"
            if person.was_reset:
                self.note_taken(person)
                # (Also who is in doubt is closed, whose first reason was that it had gone.)
                is_excused = self.ended or is_in_doubt or person.process.departure is not None
                assert not person.backlog or is_excused, f"client {person.number} was not heard to its end"
                self.seen["heard out where it went"] += person.moved_at != NEVER
                self.seen["heard out where it stayed"] += person.moved_at == NEVER
        if self.crowd is not None:
            self.crowd.go(person.number, person.process.number)
        self.go(person)

    def go(self, person: Person) -> None:
        """Its connection is closed."""
        if person.backlog:
            self.note_taken(person)
        person.is_gone = True
        person.rest = b""
        self.present.remove(person.sight)
        person.is_waiting = False
        person.backlog.clear()
        for sub in self.subscriptions:
            if sub.client == person.number:
                # What had been detached goes with it, where that was too much for it.
                if sub.deaf_until == NEVER:
                    sub.lost_from = person.moved_at if person.detached_pending else person.moves_since
                sub.gone_at = min(sub.gone_at, self.now)
                sub.anew_until = min(sub.anew_until, self.now)
                sub.left_at = min(sub.left_at, self.now)
                if person.moves_to is not None and not person.moves_to.is_alive:
                    sub.shard_died_at = min(sub.shard_died_at, self.now)  # siblings may take it to be there
        for message in person.unacked:
            message.is_orphaned = True

    def on_end(self, process: Process) -> None:
        """A shard's process has ended, with its clients."""
        if process.gateway is not None and self.servers is not None:
            self.servers.on_gateway_ended(has_left=process.has_left)
        self.count(process)
        self.look()
        self.ended += not process.has_left
        self.dying.append(process)
        for prefix, keepers in self.keepers.items():
            if process in keepers and (process.left_due or not process.has_left):
                self.lose_requests(prefix)
        for person in self.people:
            if person.believed_at(process):
                for sub in self.subscriptions:
                    if sub.client == person.number:
                        sub.shard_died_at = min(sub.shard_died_at, self.now)
            if person.process is process and not person.is_gone:
                self.counted_still.append(person.account)
                self.go(person)

    def lose_requests(self, prefix: bytes) -> None:
        """Nobody may rely on replies with this prefix any more."""
        for message in self.messages:
            if message.kept_with == prefix:
                message.lost_at = min(message.lost_at, self.now)

    def on_prefix(self, line: bytes, end: End) -> None:
        """A frame about replies that are handed over has been read."""
        there = end.other.process
        verb, prefix, *words = line.split(b" ")
        keepers = self.keepers.setdefault(prefix, [])
        if verb == b"RTAKE" and there not in keepers:
            keepers.append(there)
        elif verb == b"RDROP" and len(keepers) > 1 and keepers[-1] is end.process:
            keepers.pop()
        elif verb == b"RDUE" and words[0] == b"1":
            keepers[:] = [there]

    def on_break(self, sent_on: list[bytes], lost: list[bytes]) -> None:
        """A shard has noticed that a link broke over which it had sent these queue messages on, and sent these."""
        for body in sent_on:
            self.messages[number_in(body)].is_lost_on_its_way = True
        for body in lost:
            self.messages[number_in(body)].was_on_broken_link = True
        for message in self.messages:
            message.was_in_doubt |= message.acked_at == NEVER

    # ---- promises of back-pressure

    def on_frames(self, end: End, lines: list[bytes]) -> None:
        """Frames that have just been read at the other end."""
        for line in lines:
            if line.startswith((b"RTAKE ", b"RDROP ", b"RDUE ")):
                self.on_prefix(line, end)
            if line.startswith(b"SLOW "):
                _, account, subject = line.decode().split(" ")
                self.said_slow[id(end.process), id(end.other.process), subject] = self.swarm.now_us
                until_us = self.slow_told[id(end.other.process), account, subject] = self.swarm.now_us + SLOW_US
                if "*" in subject or ">" in subject:
                    whose = [
                        (one, sub)
                        for one in self.people
                        if one.process is end.process and one.account == account
                        for sub in one.subscriptions
                        if sub.pattern == subject and sub.left_at == sub.most == NEVER
                    ]
                    self.slow_patterns[id(end.other.process), account, subject] = until_us, end, whose

    def behind(self, process: Process) -> list[tuple[Person, int]]:
        """Clients there that are past their mark, still take bytes, and how much was queued for them."""
        now_us = self.swarm.now_us
        return [
            (one, one.client.socket.queued)
            for one in self.people
            if one.process is process
            and one.is_slow
            and not one.is_gone
            and one.client.socket.is_behind
            and one.client.socket.pending > LIMITS[1].max_pending_bytes // 2
            and now_us - one.client.socket.taken_us < STILL_TAKES_US
        ]

    def check_hold(
        self, person: Person, message: Message, behind: list[tuple[Person, int]], links: list[tuple[End, int]]
    ) -> None:
        """Check that a client that has just fed a receiver that is behind has to wait."""
        if person.is_gone or message.is_denied or message.at == NEVER:
            return
        socket = person.client.socket
        if message.size > TELLING_BYTES:
            for other, queued in behind:
                if not other.is_gone and other.client.socket.queued - queued > TELLING_BYTES:
                    self.seen["hold for a client"] += 1
                    assert socket.is_stalled or other is person, f"{person.number} feeds {other.number} and is not held"
            for end, queued in links:
                assert end.socket is not None
                if end.is_open and end.socket.queued - queued > TELLING_BYTES:
                    self.seen["hold for a link"] += 1
                    assert socket.is_stalled, f"{person.number} feeds a link that is behind and is not held"
        subject, *others = self.tenants.mapped(message.account, message.subject)
        if others:
            return
        if self.swarm.now_us < self.slow_told.get((id(person.process), message.account, subject), 0):
            self.seen["hold by SLOW"] += 1
            assert socket.is_stalled, f"{person.number} feeds {subject}, of which a sibling said SLOW, and is not held"

        for (whose, account, pattern), (until_us, end, subscribers) in self.slow_patterns.items():
            if whose != id(person.process) or account != message.account or self.swarm.now_us >= until_us:
                continue
            if not (matches(pattern, subject) and end.is_open and end.other.is_open and not end.is_cut):
                continue
            if any(
                sub.left_at == sub.most == sub.anew_at == NEVER and self.stays_at(one, end.process)
                for one, sub in subscribers
            ):
                self.seen["hold by SLOW of a pattern"] += 1
                assert socket.is_stalled, f"{person.number} feeds {pattern}, of which a sibling said SLOW: {subject}"

    def stays_at(self, person: Person, process: Process) -> bool:
        """Whether this client is at that shard, and does not move."""
        return person.process is process and not person.is_gone and person.moves_since == NEVER

    def check_hold_across(self, person: Person, message: Message, before: list[tuple[End, int]]) -> None:
        """Check that a client waits if it has just sent a request for another account of which a sibling said SLOW."""
        if person.is_gone or message.is_denied or message.at == NEVER:
            return
        for view in self.tenants.views(message.account, message.subject)[1:]:
            if self.swarm.now_us >= self.slow_told.get((id(person.process), view.account, view.subject), 0):
                continue
            word = f"MG {view.account} {view.subject} ", f"SG {view.account} {view.subject} "
            sent = b"".join(end.socket.queued_from(queued) for end, queued in before if end.socket and end.is_open)
            if any(one.encode() in sent for one in word):
                self.seen["hold by SLOW, across"] += 1
                assert person.client.socket.is_stalled, f"{person.number} feeds {view}, of which a sibling said SLOW"

    def check_told(self, end: End, behind: list[tuple[Person, int]]) -> None:
        """Check that a shard has said SLOW lately after it gave a sibling's messages to a client that is behind."""
        back = end.other
        way = id(back.process), id(end.process)
        assert back.socket is not None
        for line in re.findall(rb"SLOW \S+ \S+\r\n", back.socket.queued_from(max(0, back.read_here - MOST_SLOW_BYTES))):
            self.said_slow[*way, line.split()[2].decode()] = self.swarm.now_us
        for person, queued in behind:
            if person.is_gone or not back.is_open or person.client.socket.queued - queued <= TELLING_BYTES:
                continue
            if back.link is not None and self.swarm.now_us - back.link.joined_us <= SLOW_AGAIN_US:
                continue  # it may have been said before it joined, to the shard that had its number
            socket = person.client.socket
            for frame in frames(socket.queued_from(queued), is_cut=socket.close_reason != 0):
                if not frame.is_message or frame.size <= TELLING_BYTES or self.subscriptions[int(frame.sid) - 1].queue:
                    continue
                if self.published_at.get(number_in(frame.payload), person.process) is person.process:
                    continue  # its publisher is on this shard, and went on when the link was in step
                self.seen["told SLOW"] += 1
                said = [at for (*which, _), at in self.said_slow.items() if tuple(which) == way]
                assert said and self.swarm.now_us - max(said) <= SLOW_AGAIN_US, (
                    f"{person.number} is behind, and no SLOW is said"
                )

    # ---- what may happen

    def tick(self) -> None:
        """What happens from here on is later than what has happened."""
        self.now += 1
        if self.servers is not None:
            self.servers.now = self.now

    def step(self, step: Step) -> None:
        """One step; what cannot happen now does not."""
        self.tick()
        alone = ALONE.get(step.kind)
        if alone is not None:
            alone(self, step)
        else:
            person = self.one_of(step.who)
            if step.kind in OF_SOCKETS:
                if not person.is_gone and not person.is_on_its_way and not person.was_reset:
                    OF_SOCKETS[step.kind](self, person, step)
            elif person.is_read:
                OF_CLIENTS[step.kind](self, person, step)
        self.relieve()
        self.look()
        if self.dying:
            self.look_who_knows()

    def look_who_knows(self) -> None:
        """Whether the siblings of a dead shard know by now that it is dead."""
        for process in list(self.dying):
            if not any(end.other.process is process and end.is_joined for end in self.swarm.ends):
                self.dying.remove(process)
                if process.gateway is not None and self.servers is not None and not process.has_left:
                    self.servers.lose()  # what was sent to it since it died
                for sub in self.subscriptions:
                    if not sub.is_outside and self.people[sub.client].believed_at(process):
                        sub.death_known_at = self.now

    def relieve(self) -> None:
        """Do what a reactor does when a receiver has caught up."""
        if relieved(self.swarm.probes):
            for process in self.swarm.alive:
                if process.probe.is_relieved:
                    process.probe.release_stalls()

    def do_carry(self, step: Step) -> None:
        """Bytes of one link arrive: one, some or all of them, read in pieces."""
        if (self.swarm.is_brief or self.swarm.is_gradual) and step.which % 5 == 0:
            resting = [one for one in self.swarm.alive if one.loop.is_resting]
            if resting:
                resting[step.much % len(resting)].serve_others()
                self.look()
        busy = self.swarm.busy_ends()
        if busy:
            end = busy[step.who % len(busy)]
            behind = self.behind(end.other.process) if self.schedule.has("slow") else []
            most = (1, 7, 40, ALL)[step.much % 4]
            if self.schedule.has(PARTIAL) and step.much % 4 == 3:
                most = max(1, end.on_its_way - step.which % 6)
            self.swarm.carry(end, most, [] if step.which % 3 else iter([1, 2, 5]))
            if behind:
                self.check_told(end, behind)

    def do_settle(self, step: Step) -> None:
        """Everything arrives. Where all shards are linked they all know then what everybody wants, and who has gone."""
        self.swarm.settle()
        self.look()
        if self.swarm.is_whole:
            self.is_renewing = False
            self.count_all()
            for person in self.people:
                if person.is_gone or person.backlog or person.socket.unread_bytes:  # (it may be held since its SUB)
                    continue
                if person.moves_since == NEVER:
                    for sub in person.subscriptions:
                        sub.acked_at = min(sub.acked_at, self.now)
            for sub in self.subscriptions:
                if sub.gone_at != NEVER:
                    sub.left_acked_at = min(sub.left_acked_at, self.now)
                if sub.lost_from != NEVER:
                    sub.lost_until = min(sub.lost_until, self.now)
            self.note_settled()

    def count_all(self) -> None:
        """Everything has arrived, and the router looks: each client is counted, once."""
        if self.crowd is not None:
            self.crowd.settle()
            self.counted_still.clear()
            self.crowd.check((one.process.number, one.account) for one in self.people if not one.is_gone)

    def note_settled(self) -> None:
        """Everything has arrived and everybody is linked: what goes to other servers and comes from them is checked."""
        if self.dying:
            self.look_who_knows()
        if (
            self.servers is not None
            and not self.servers.is_held
            and not any(
                one.backlog or one.is_waiting or one.moves_since != NEVER or one.socket.is_held
                for one in self.people
                if not one.is_gone
            )
        ):
            self.servers.settled()

    def do_tell(self, step: Step) -> None:
        """Deliver one message between the router and a shard."""
        self.swarm.tell(step.who)

    def do_pass(self, step: Step) -> None:
        """Let time pass: clients that waited for a slow one go on, and regular checks are made."""
        self.swarm.pass_s((0.02, 0.06, 0.15, 0.4)[step.much % 4])
        for process in self.swarm.alive:
            if step.much % 4 >= 2:
                process.engine.probe.release_stalls()
            made = self.imports.get(id(process.engine))
            if made is not None:
                made.service_imports.sweep()
                self.forget_accounts(process.engine)

    def do_sub(self, person: Person, step: Step) -> None:
        pattern = self.patterns[step.which % len(self.patterns)]
        queue = self.queues[step.much % len(self.queues)]
        if self.schedule.has("third") and person.account == "C" and not self.schedule.has("queues"):
            queue = ""
        self.subscribe(person, pattern, queue, finish=step.who % 3 != 0)

    def current(self, person: Person) -> list[Subscription]:
        return [one for one in person.subscriptions if one is not person.inbox and one.left_at == NEVER]

    def do_unsub(self, person: Person, step: Step) -> None:
        mine = self.current(person)
        if mine:
            sub = mine[-1] if step.which % 2 else mine[step.which % len(mine)]
            sub.left_at = self.now
            self.last_left = person.process
            self.say(person, b"UNSUB %d\r\n" % sub.sid, finish=step.which % 3 != 0)

    def do_max(self, person: Person, step: Step) -> None:
        """UNSUB with a max, after so many messages more."""
        self.swarm.turn()  # then we know how many it has had
        self.look()
        mine = self.current(person)
        if mine and person.is_read:
            sub = mine[step.which % len(mine)]
            sub.most = max(len(sub.got) + step.much % 3, 1)
            if sub.most <= len(sub.got):
                sub.left_at = self.now
            self.say(person, b"UNSUB %d %d\r\n" % (sub.sid, sub.most), finish=step.who % 3 != 0)

    def publish(
        self,
        person: Person,
        subject: str,
        size: int,
        *,
        wants_answer: bool = False,
        answers: int = -1,
        ending: bytes = b"",
    ) -> bytes:
        """The bytes of the PUB; the message counts as sent from here on. `ending`: of its payload."""
        number = len(self.messages)
        message = Message(number, person.number, subject, person.account, size=size, answers=answers)
        message.is_past_break = self.servers is not None and self.servers.has_link_broken
        message.wants_answer = wants_answer
        message.said_at = self.now
        if self.schedule.has(LOCAL) and not subject.startswith("_R_"):
            self.note_near_by(message, person)
        message.is_echoless = not person.wishes.echo
        message.hears_nobody = person.wishes.no_responders
        message.crosses_reload = message.may_be_lost = self.is_renewing
        assert person.inbox is not None
        message.inbox = person.inbox.sid
        self.messages.append(message)
        person.unacked.append(message)
        person.backlog.append(number)
        person.sight.is_watched = True
        # (Without a choice where there are permissions.)
        mapped = self.tenants.mapped(person.account, subject)[0]
        has_header = self.gives_header(person, message)
        # (Where traces go is looked at first: an answer that goes nowhere for that uses no permission.)
        may_trace = not message.is_traced or may_publish(person.rights, f"t.{number:06d}")
        if not may_trace or not (may_publish(person.rights, mapped) or self.may_answer(person, mapped)):
            message.is_denied = True
            person.errors += 1
            self.seen["PUB denied"] += 1
            self.expect(person, "-ERR 'Permissions Violation for Publish")
        else:
            self.expect(person, "+OK")
        if size == LARGEST_PAYLOAD:
            size = message.size = size - len(message.header)
        body = b"%d" % number
        body += b" " * (size - len(body) - len(ending)) + ending
        reply = b"_INBOX.%d.%d " % (person.number, number) if wants_answer else b""
        if has_header:
            header = message.header
            whole = len(header) + len(body)
            return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject.encode(), reply, len(header), whole, header, body)
        return b"PUB %b %b%d\r\n%b\r\n" % (subject.encode(), reply, len(body), body)

    def gives_header(self, person: Person, message: Message) -> bool:
        """Whether it is published with a header, which it gets here."""
        number = message.number
        if not person.wishes.headers:
            return False
        if self.schedule.has(TRACED):
            is_only = number % 5 == 0 and not message.wants_answer and message.answers < 0
            message.is_traced = number % 4 < 2
            message.is_only = message.is_traced and is_only
            message.header = header_of(number, asks=message.is_traced, is_only=is_only)
            self.seen["traced"] += message.is_traced
            self.seen["traced only"] += message.is_only
        elif self.schedule.has(MODEST) and self.servers is None and number % 3 == 0:
            message.header = b"NATS/1.0\r\nNumber: %d\r\n\r\n" % number
        return bool(message.header)

    def may_answer(self, person: Person, subject: str) -> bool:
        """Whether its reply permissions allow this publish; each use counts."""
        rights = RIGHTS[person.rights]
        if rights is None or not rights.responses or subject not in person.reads:
            return False
        when_us, n = person.reads[subject]
        if rights.responses_expire_s and self.swarm.now_us - when_us > rights.responses_expire_s * 1e6:
            del person.reads[subject]
            return False
        if 0 < rights.responses <= n + 1:
            del person.reads[subject]
        else:
            person.reads[subject] = (when_us, n + 1)
        self.seen["reply permission"] += 1
        return True

    def say_publish(self, person: Person, words: bytes, *, finish: bool) -> None:
        message = self.messages[-1]
        is_slow = self.schedule.has("slow")
        if not is_slow:
            self.say(person, words, finish=finish)
            return
        behind = self.behind(person.process)
        before = [(end, end.socket.queued) for end in self.swarm.ends if end.process is person.process and end.socket]
        links = [
            (end, end.socket.queued)
            for end in (self.swarm.ends if self.swarm.link_mark else ())
            if end.process is person.process
            and end.is_open
            and end.socket is not None
            and end.socket.is_behind
            and end.socket.pending > self.swarm.link_mark
        ]
        self.say(person, words, finish=finish)
        self.check_hold(person, message, behind, links)
        self.check_hold_across(person, message, before)

    def do_pub(self, person: Person, step: Step, *, wants_answer: bool = False) -> None:
        subject = self.subjects[step.which % len(self.subjects)]
        size = SIZES[(step.which + step.much) % len(SIZES)] if self.schedule.has("slow") else 0
        if self.schedule.has(BOUNDS) and step.much % 4 == 0:
            size = LARGEST_PAYLOAD
            self.seen["largest payload"] += 1
        for _ in range(1 + step.much % 3):
            if not person.is_read:
                break
            words = self.publish(person, subject, size, wants_answer=wants_answer)
            if self.schedule.has(PARTIAL) and step.which % 3:
                self.say_part(person, words, step)
            else:
                self.say_publish(person, words, finish=step.who % 3 != 0)

    def say_part(self, person: Person, words: bytes, step: Step) -> None:
        """A message but for its end: nothing but bytes of it follows until it is whole."""
        line = words.index(b"\n") + 1
        ends = (1, line - 2, line - 1, line, line + 1, len(words) - 4, len(words) - 3, len(words) - 2, len(words) - 1)
        at = max(1, min(ends[(step.who + step.much) % len(ends)], len(words) - 1))
        person.rest = words[at:]
        self.seen["message in parts"] += 1
        person.client.feed(words[:at], finish=step.who % 3 != 0)
        self.look()

    def do_drip(self, step: Step) -> None:
        """More bytes come of a message, or one."""
        there = [one for one in self.people if one.rest and not one.is_gone and not one.is_on_its_way]
        if there:
            person = self.one_of(step.who)
            self.send_more(person if person in there else there[step.who % len(there)], (1, 1, 2, ALL)[step.much % 4])

    def send_more(self, person: Person, most: int) -> None:
        data, person.rest = person.rest[:most], person.rest[most:]
        self.seen["end of a message in parts, elsewhere"] += not person.rest and person.moved_at != NEVER
        person.client.feed(data)
        self.look()

    def do_request(self, person: Person, step: Step) -> None:
        self.do_pub(person, step, wants_answer=True)

    def do_answer(self, person: Person, step: Step) -> None:
        """Answer one of the requests that it has read, possibly once more."""
        if person.to_answer:
            at = step.which % len(person.to_answer)
            reply, number = person.to_answer[at] if step.much % 4 == 0 else person.to_answer.pop(at)
            rights = RIGHTS[person.rights]
            asked_us = person.asked_us.get(reply, self.swarm.now_us)
            if rights and 0 < rights.responses_expire_s * 1e6 < self.swarm.now_us - asked_us:
                return  # its time began when its shard had the request, at a moment that is not known here
            words = self.publish(person, reply, 0, answers=number)
            self.say_publish(person, words, finish=step.who % 3 != 0)
            self.seen["answer"] += 1
            self.seen["answer to be followed"] += self.tenants.is_chunked and reply.startswith("_R_")
            if step.much % 2 and person.is_read:
                self.do_ping(person, step)

    def do_volley(self, person: Person, step: Step) -> None:
        """Publish many messages with the same control line in one write: the broker handles them as a run."""
        size = VOLLEY_BYTES if self.schedule.has("slow") and step.which % 2 else 8
        subject = self.subjects[step.which % len(self.subjects)]
        words = [self.publish(person, subject, size) for _ in range(2 + step.much % 9)]
        pieces = [] if step.who % 2 else iter([20_000, 30_000])
        person.client.feed(b"".join(words), pieces, finish=step.who % 3 != 0)
        self.look()
        self.seen["volley"] += 1

    def do_ping(self, person: Person, step: Step) -> None:
        person.is_asking = person.is_waiting = True
        self.say(person, b"PING\r\n")
        if person.is_asking:
            self.seen["fence"] += 1

    def do_burst(self, person: Person, step: Step) -> None:
        """Several operations in one write."""
        rng = Random(f"{step.who} {step.which} {step.much}")
        self.is_bursting = True
        for _ in range(2 + rng.randrange(4)):
            kind = rng.choice(("sub", "sub", "unsub", "pub", "request"))
            if person.is_read:
                OF_CLIENTS[kind](self, person, Step(kind, person.number, rng.randrange(24), rng.randrange(24)))
        self.is_bursting = False
        if step.which % 2 and person.is_read:
            self.do_ping(person, step)

    def do_rights(self, person: Person, step: Step) -> None:
        """Reload its permissions."""
        self.swarm.turn()
        self.look()
        if not person.is_read or not self.schedule.has("rights"):
            return
        rights = step.which % len(RIGHTS)
        if rights == person.rights:
            return
        if self.schedule.has(ANEW):
            self.reload_user(person, rights)
            return
        person.rights = rights
        person.reads.clear()
        self.history.rights[person.number].append((self.now, rights))
        connection = person.client.connection
        mesh = person.process.engine.probe.mesh
        assert mesh is not None
        self.seen["rights of who lingers reloaded"] += connection.lingers
        connection.enter(mesh.account(person.account.encode()), COMPILED[rights])
        should: set[int] = set()
        for sub in self.subscriptions:
            if sub.client != person.number:
                continue
            if may_subscribe(rights, sub.pattern):
                continue  # (if it has left, it lingers on)
            if sub.left_at == NEVER:
                should.add(sub.sid)
                sub.left_at = self.now
            if sub.queue:
                sub.gone_at = min(sub.gone_at, self.now)  # it does not linger any more
        ended: set[int] = set()
        while connection.is_ending:  # what is not allowed gets nothing meanwhile
            ended |= {int(sid) for _, sid, _ in connection.end_some(1)}
            self.swarm.turn()
        assert ended == should, f"the reload ends {ended}, not {should}"
        self.seen["rights reloaded"] += 1
        self.swarm.turn()

    def do_regrade(self, step: Step) -> None:
        """Reload the permissions of all clients that linger: most of them get such as allow what they take."""
        free = [
            number
            for number, one in enumerate(RIGHTS)
            if one is None or not (one.subscribe_allow or one.subscribe_deny)
        ]
        for person in self.people:
            if person.is_read and person.client.connection.lingers:
                others = [number for number in free if number != person.rights]
                which = step.which if step.much % 4 == 0 else others[(step.which + person.number) % len(others)]
                self.do_rights(person, step._replace(which=which))

    def reload_user(self, person: Person, rights: int) -> None:
        """Reload the rights of its user, on all shards at once: of all its clients, if all of them are read."""
        present = [one for one in self.people if not one.is_gone]
        which = person.account, person.user
        clients = [one for one in present if (one.account, one.user) == which]
        for one in present:
            assert isinstance(one.client.session, Login)
            if one.client.connection.is_ending or (one in clients and not one.is_read):
                return
            if one.moves_since != NEVER or one.is_on_its_way or one.client.session._entering is not None:
                return  # (its rights are read when it arrives, or enters)
            if one.client.session.admission is None:
                return  # (… or logs in)
        self.rights_of[user_name(*which)] = rights
        for process in self.swarm.alive:
            if process.gateway is None:
                self.owner_of(process).reload(self.options_with_users())
        for one in present:
            assert isinstance(one.client.session, Login)
            if one not in clients:
                self.owner_of(one.process).readmit(one.client.session)
                continue
            one.rights = rights
            one.reads.clear()
            self.history.rights[one.number].append((self.now, rights))
            n = one.client.connection.subscriptions
            self.seen["rights of who lingers reloaded"] += one.client.connection.lingers
            self.owner_of(one.process).readmit(one.client.session)
            ended = 0
            for sub in one.subscriptions:
                if may_subscribe(rights, sub.pattern):
                    continue  # (if it has left, it lingers on)
                if sub.left_at == NEVER:
                    ended += 1
                    sub.left_at = self.now
                if sub.queue:
                    sub.gone_at = min(sub.gone_at, self.now)  # it does not linger any more
            while one.client.connection.is_ending:  # what is not allowed gets nothing meanwhile
                one.client.session.end_some(1)
                self.swarm.turn()
            assert n - one.client.connection.subscriptions == ended, f"the reload does not end {ended} of {one.number}"
        self.seen["rights of a user reloaded"] += 1
        self.swarm.turn()

    def do_connect(self, person: Person, step: Step) -> None:
        """It sends CONNECT again, often as somebody else, and more in the same write."""
        if not self.schedule.has(ANEW):
            return
        self.swarm.turn()
        self.look()
        if not person.is_read:
            return
        rng = Random(f"connect {step.who} {step.which} {step.much}")
        account, user = person.account, person.user
        if self.schedule.has("rights") and rng.random() < 0.6:
            user = rng.randrange(len(RIGHTS))
        if self.is_like_newer and rng.random() < 0.5:
            account = rng.choice(self.tenants.accounts)
        rights = self.rights_of.get(user_name(account, user), user)
        hears_nobody = rng.random() < 0.7
        wishes = person.wishes._replace(
            echo=self.servers is not None or rng.random() < 0.6,
            no_responders=hears_nobody,
            headers=hears_nobody or not self.schedule.has(MODEST) or rng.random() < 0.5,
            verbose=self.schedule.has(VERBOSE) and rng.random() < 0.5,
            pedantic=self.schedule.has(VERBOSE) and rng.random() < 0.5,
        )
        is_good = rng.random() > 0.06
        others = [one for one in self.tenants.accounts if one != person.account]
        if not is_good and not self.is_like_newer and others and rng.random() < 0.5:
            # 2.9 refuses who has subscriptions and wants another account.
            line = connect_line(wishes, user_name(rng.choice(others), user))
        else:
            line = connect_line(wishes, user_name(account, user), is_good=is_good)
        if not is_good:
            person.is_refused = True
            self.expect(person, "-ERR 'Authorization Violation")
            self.seen["anew, refused"] += 1
            person.client.feed(line)
            self.swarm.turn()
            self.look()
            return  # (it may wait until nothing of its lingers any more)
        self.seen["anew"] += 1
        self.seen["anew, in another account"] += account != person.account
        is_other = account != person.account or RIGHTS[rights] is not RIGHTS[person.rights]
        assert isinstance(person.client.session, Login)
        person.client.session.on_entered = lambda: self.on_entered(person, rights, is_other)
        if account != person.account:
            person.to_answer.clear()
            person.unread = deque(one for one in person.unread if one[1] == "PONG")
        person.account, person.user, person.rights = account, user, rights
        person.wishes = wishes
        self.expect(person, "+OK")
        words = [line]
        if self.is_like_newer:
            self.seen["anew, and without subscriptions"] += len(person.subscriptions) > 1
            for sub in person.subscriptions:
                if sub.anew_at == NEVER:
                    sub.anew_at, sub.anew_until = self.now, NEVER
                sub.left_at = min(sub.left_at, self.now)
            self.last_left = person.process
            words.append(self.wanted(person, f"_INBOX.{person.number}.*", ""))
            person.inbox = person.subscriptions[-1]
        for _ in range(rng.randrange(3)):
            pattern, queue = rng.choice(self.patterns), rng.choice(self.queues)
            is_full = self.has_too_many(person, more=1)  # (else it is known too late, by the rights that it has then)
            if may_subscribe(rights, pattern) and (not queue or self.may_queue(account)) and not is_full:
                words.append(self.wanted(person, pattern, queue))
        for _ in range(rng.randrange(3)):
            subject = rng.choice(self.subjects)
            if self.schedule.has(TRACED) and RIGHTS[rights] is not None:
                break  # (whether it may be traced would be known only later)
            if may_publish(rights, self.tenants.mapped(account, subject)[0]):
                words.append(self.publish(person, subject, 0, wants_answer=rng.random() < 0.5))
        if rng.random() < 0.4:
            self.expect(person, "PONG")
            person.is_asking = person.is_waiting = True
            words.append(b"PING\r\n")
        self.say(person, b"".join(words), finish=step.who % 3 != 0)
        self.seen["anew, when siblings know"] += not person.is_gone and person.client.session._entering is not None
        if step.much % 3 == 0 and person.is_read:
            self.do_ping(person, step)

    def do_ask(self, person: Person, step: Step) -> None:
        """A request with an inbox of its own, which ends by a max."""
        number = len(self.messages)
        most = 1 + step.much % 2
        words = [self.wanted(person, f"_INBOX.{person.number}.{number}", "")]
        sub = person.subscriptions[-1]
        if step.which % 3:
            sub.most = most
            self.expect(person, "+OK")
            words.append(b"UNSUB %d %d\r\n" % (sub.sid, most))
        self.say(person, b"".join(words), finish=False)
        if person.is_read:
            subject = self.subjects[step.much % len(self.subjects)]
            self.say_publish(person, self.publish(person, subject, 0, wants_answer=True), finish=step.who % 3 != 0)
        self.seen["inbox with a max"] += 1

    def do_exceed(self, person: Person, step: Step) -> None:
        """A control line as long as it may be; or that, or a payload, is longer by a byte, and the client is closed."""
        if not self.schedule.has(BOUNDS):
            return
        if step.much % 6:
            if self.schedule.has("accounts"):
                return
            words = self.publish(person, "z.b", 8)
            room = LONGEST_LINE - (words.index(b"\r\n") - words.index(b" ") - 1)
            message = self.messages[-1]
            message.subject = f"z{'z' * room}.b"
            self.seen["longest line"] += 1
            self.say(person, words.replace(b"z.b", message.subject.encode(), 1), finish=step.who % 3 != 0)
            return
        person.is_refused = True
        person.errors += 1
        self.seen["too large"] += 1
        if step.which % 2:
            self.expect(person, "-ERR 'Maximum Payload Violation")
            words = b"PUB a %d\r\n" % (LARGEST_PAYLOAD + 1)
        else:
            self.expect(person, "-ERR 'maximum control line exceeded")
            words = b"PUB %b 1\r\n1\r\n" % (b"a" * (LONGEST_LINE - 1))
        person.client.feed(words, [] if step.who % 2 else iter([70_000, 61_000, 5]))
        self.look()
        assert person.is_gone, f"client {person.number} stays with what is too large"

    def do_odd(self, person: Person, step: Step) -> None:
        """It says what is wrong, once or very often, and more in the same write."""
        if not self.schedule.has(VERBOSE):
            return
        times = MANY_ERRORS if step.much % 4 == 0 else 1 + step.much % 3
        words: list[bytes] = []
        is_full = self.has_too_many(person, more=1)
        for number in range(times):
            if step.which % 3 == 0 and self.servers is None and not self.schedule.has("accounts"):
                if times == MANY_ERRORS and number > 2:
                    break
                if may_publish(person.rights, "a.*"):
                    if person.wishes.pedantic:
                        person.errors += 1
                        self.expect(person, "-ERR 'Invalid Publish Subject")
                    words.append(self.publish(person, "a.*", 0))
                continue
            person.errors += 1
            if not may_subscribe(person.rights, "a..b"):
                self.expect(person, "-ERR 'Permissions Violation for Subscription")
            else:
                self.expect(person, f"-ERR '{'maximum subscriptions' if is_full else 'Invalid Subject'}")
            words.append(b"SUB a..b odd\r\n")
        self.seen["many errors"] += times == MANY_ERRORS
        if step.who % 2:
            words.append(self.publish(person, self.subjects[step.which % len(self.subjects)], 0))
        self.feed_in_turns(person, b"".join(words), finish=step.who % 3 != 0)
        if step.which % 2 and person.is_read:
            self.do_ping(person, step)

    def feed_in_turns(self, person: Person, words: bytes, *, finish: bool, pieces: Iterable[int] = ()) -> None:
        """A write that may take several turns."""
        person.client.feed(words, pieces, finish=finish and not self.is_bursting)
        self.swarm.turn()
        self.look()

    def on_entered(self, person: Person, rights: int, is_other: bool) -> None:
        """Its CONNECT holds from now on."""
        self.look()  # what it has been sent by now was for who it was
        self.history.rights[person.number].append((self.now, rights))
        person.limits = self.limits
        if is_other:
            person.reads.clear()
        for sub in person.subscriptions:
            sub.anew_until = min(sub.anew_until, self.now)
        if self.is_like_newer:
            return
        for sub in person.subscriptions:
            if sub.left_at == NEVER and not may_subscribe(rights, sub.pattern):
                sub.left_at = self.now
                if sub.queue:
                    sub.gone_at = min(sub.gone_at, self.now)  # it does not linger

    def may_queue(self, account: str) -> bool:
        """Whether clients of this account become members of queue groups here."""
        return not (self.schedule.has("third") and account == "C" and not self.schedule.has("queues"))

    def do_reload(self, step: Step) -> None:
        """Reload mappings and stream imports, on all shards at once while everything is in step.

        What was published and not acknowledged before is promised to nobody.
        """
        self.swarm.settle()
        self.look()
        if not self.schedule.has("accounts") or not self.swarm.is_whole:
            return
        self.variant = step.which % 8 & (6 if self.schedule.has("rights") else 7)
        # Permissions are those for the destination: which is that would not be known while it is on its way.
        self.tenants = self.arranged(self.variant)
        self.history.reloads.append((self.now, self.tenants))
        for message in self.messages:
            if message.acked_at == NEVER:
                message.crosses_reload = message.may_be_lost = True
        for process in self.swarm.alive:
            changed = self.imports[id(process.engine)].configure(self.tenants.options())
            for person in self.at(process):
                if person.account in changed:
                    person.client.connection.listen_anew()
                    self.renew(person, process)
            process.engine.probe.finish()
        if self.is_renewing:
            self.seen["imports reloaded in turns"] += 1
            return
        if self.servers is not None:
            self.servers.reload(self.tenants)
            self.seen["imports reloaded with servers"] += bool(self.servers.doors)
        self.swarm.settle()
        self.look()
        self.seen["imports reloaded"] += 1

    def do_grow(self, step: Step) -> None:
        """One process after the other is given another account, and clients come there at once."""
        self.do_settle(step)
        if self.is_grown or self.servers is None or not self.schedule.has(GROWS) or not self.swarm.is_whole:
            return
        self.is_grown = True
        self.tenants = self.arranged(self.variant)
        self.history.reloads.append((self.now, self.tenants))
        self.servers.take_account()
        rng = Random(f"grow {step.who} {step.which} {step.much}")
        for process in rng.sample(self.swarm.alive, len(self.swarm.alive)):
            self.imports[id(process.engine)].configure(self.tenants.options())
            mesh = process.engine.probe.mesh
            assert mesh is not None
            mesh.account(LATE_ACCOUNT.encode())
            if process.gateway is not None:
                process.gateway.configure()
                process.gateway.take_accounts()
            elif (
                self.has_room
                and rng.random() < 0.7
                and process in self.swarm.ready
                and self.come(process, LATE_ACCOUNT)
                and self.people[-1].is_read
            ):
                self.subscribe(self.people[-1], rng.choice(self.patterns), rng.choice(self.queues))
            for end in self.swarm.busy_ends():
                if rng.random() < 0.5 and end.other.is_open:
                    self.swarm.carry(end, ALL)
            self.look()
        self.seen["account grown"] += 1

    def renew(self, person: Person, process: Process) -> None:
        """Its subscriptions follow what its account imports now: at once, or, in a world with BRIEF, in turns."""
        connection = person.client.connection
        while connection.is_ending and not connection.is_closing:
            connection.end_some(2)
            if self.schedule.has(BRIEF) and self.servers is None:
                self.is_renewing = True
                process.loop.rest_until(lambda: self.renew(person, process))
                return

    def do_limits(self, person: Person, step: Step) -> None:
        """Reload the limit of what may wait for it."""
        if self.schedule.has("slow"):
            person.limits = LIMITS[step.which % 2]
            person.client.connection.set_limits(person.limits)
            self.seen["limits reloaded"] += 1

    def do_slow(self, person: Person, step: Step) -> None:
        """Let it stop reading until a step lets it read; or take another client, which has subscriptions."""
        if self.schedule.has("slow"):
            wanting = {
                one.client
                for one in self.subscriptions
                if one.left_at == NEVER and one.pattern[0] != "_" and not one.is_outside
            }
            if wanting and person.number not in wanting:
                person = self.people[sorted(wanting)[step.which % len(wanting)]]
            if person.is_on_its_way:
                return
            person.is_slow = True
            person.process.engine.probe.set_takes(person.client.socket, 0)

    def do_take(self, person: Person, step: Step) -> None:
        """Let it read some bytes, or from now on everything."""
        slow = [one for one in self.people if one.is_slow and not one.is_gone and not one.is_on_its_way]
        if slow:
            person = slow[step.who % len(slow)]
            was_behind = person.client.socket.is_behind
            n = TAKES[step.much % len(TAKES)]
            person.process.engine.probe.finish()  # first ends the round in which it was given too much
            person.is_slow = n >= 0
            socket = person.client.socket
            person.process.engine.probe.set_takes(socket, n)
            if was_behind and not socket.is_over and not socket.is_behind:
                self.seen["caught up"] += 1
            elif was_behind and not socket.is_over:
                assert socket.pending >= LIMITS[0].max_pending_bytes // 4, (
                    "it has caught up, and still counts as behind"
                )

    def do_go(self, person: Person, step: Step) -> None:
        """A connection is closed; seldom, or nobody is left to be promised anything."""
        if step.much < 8:
            self.look()
            person.client.close()
            self.look()

    def do_come(self, step: Step) -> None:
        """Connect to a shard that accepts clients, often one that has just begun to. The client may publish at once."""
        ready = self.swarm.ready
        if ready and self.has_room:
            if step.which % 2:
                ready = [min(ready, key=lambda one: one.clients.accepted)]
            has_come = self.come(ready[step.who % len(ready)])
            if has_come and step.much % 2 and self.people[-1].is_read:
                self.do_pub(self.people[-1], step)

    def do_break(self, step: Step) -> None:
        """A link ends with what is on its way, and is made again."""
        ends = self.open_ends()
        resting = [end for end in ends if end.rests] if step.which % 3 else []
        self.sever(resting or ends, step)

    def sever(self, ends: list[End], step: Step) -> None:
        """Break one of these links."""
        if ends:
            for message in self.messages:
                message.may_be_lost |= message.acked_at == NEVER
            end = ends[step.who % len(ends)]
            for prefix, keepers in self.keepers.items():
                if len(keepers) > 1 and {end.process, end.other.process} == set(keepers):
                    self.lose_requests(prefix)
            self.swarm.cut(end)
            self.seen["link break"] += 1
            if self.servers is not None:
                self.servers.on_break()

    def do_kill(self, step: Step) -> None:
        """Kill a shard with its clients; the router starts it again."""
        alive = self.swarm.shards
        if len(alive) > 2 and step.much < 8:
            alive[step.who % len(alive)].die()
            self.seen["kill"] += 1

    def do_fall(self, step: Step) -> None:
        """Kill a shard that is leaving."""
        leaving = [one for one in self.swarm.shards if one.departure is not None]
        if leaving and len(self.swarm.shards) > 2:
            leaving[step.who % len(leaving)].die()
            self.seen["kill of a shard that leaves"] += 1

    def do_late(self, step: Step) -> None:
        """Connect to a shard that is leaving: the connection was in its listener's queue, or on its way there."""
        leaving = [one for one in self.swarm.shards if one.departure is not None and not one.has_drained]
        if leaving and self.has_room:
            self.come(leaving[step.who % len(leaving)])
            self.seen["late connection"] += 1

    def do_gather(self, step: Step) -> None:
        """Clients of several shards become members of one queue group."""
        account = self.one_of(step.who).account
        places: dict[int, Person] = {}
        for person in self.people:
            if person.is_read and person.account == account:
                places.setdefault(person.process.number, person)
        pattern, queue = self.patterns[step.which % len(self.patterns)], self.queues[1 + step.much % 2]
        if self.schedule.has("third") and account == "C" and not self.schedule.has("queues"):
            return
        for person in places.values():
            self.subscribe(person, pattern, queue)

    def do_desert(self, step: Step) -> None:
        """Somebody publishes to a queue group, and its members unsubscribe at once, or all but one of them."""
        groups: dict[tuple[str, str], list[Subscription]] = {}
        for person in self.people:
            if person.is_read:
                for sub in self.current(person):
                    if sub.queue:
                        groups.setdefault((person.account, sub.queue), []).append(sub)
        spread = [one for one in groups.values() if len({self.people[sub.client].process for sub in one}) > 1]
        publishers = [one for one in self.people if one.is_read]
        if not spread or not publishers:
            return
        members = max(spread, key=lambda group: len({self.people[sub.client].process for sub in group}))
        account = members[0].account
        wanted = [n for n, subject in enumerate(self.subjects) if matches(members[0].pattern, subject)]
        publisher = publishers[step.who % len(publishers)]
        if publisher.account != account:
            publisher = next(one for one in publishers if one.account == account)
        for number in range(2 + step.which % 4):
            if publisher.is_read:
                self.do_pub(publisher, Step("pub", 3 * (number % 2), (wanted or [0])[0], step.much))
        for sub in members[step.much % 2 :]:
            person = self.people[sub.client]
            if person.is_read and sub.left_at == NEVER:
                sub.left_at = self.now
                self.say(person, b"UNSUB %d\r\n" % sub.sid)
                self.last_left = person.process
        if publisher.is_read and step.which % 3:
            self.do_ping(publisher, step)
        self.seen["group deserted"] += 1

    def do_sever(self, step: Step) -> None:
        """Break a link of the shard whose client was the last to unsubscribe."""
        ends = [end for end in self.swarm.ends if end.is_open and end.other.is_open and not end.is_cut]
        near = [end for end in ends if end.process is self.last_left]
        self.sever(near or ends, step)

    def do_tear(self, step: Step) -> None:
        """The link between two shards breaks while a client is on its way from one to the other, and both notice."""
        for _ in range(60):
            ways = [way for way, words in self.swarm.words.items() if any(one.client is not None for one in words)]
            busy = self.swarm.busy_ends()
            if ways or not (busy or self.swarm.words):
                break
            if busy:
                self.swarm.carry(busy[step.who % len(busy)], ALL)
            else:
                self.swarm.hand(step.who)
            self.look()
        if not ways:
            return
        way = ways[step.who % len(ways)]
        ends = [one for one in self.open_ends() if (one.process, one.other.process) == way]
        if ends:
            self.sever(ends[:1], step)
            for end in (ends[0], ends[0].other):
                if end.other.is_open:
                    self.swarm.carry(end, ALL)
            self.look()
            self.seen["link breaks with a client on its way"] += 1

    def do_bereave(self, step: Step) -> None:
        """A shard dies, and a sibling whose link rests on what it has sent hears at once that it is not listed."""
        ends = [end for end in self.swarm.ends if end.rests and end.link is not None and end.link.is_resting]
        ends = [end for end in ends if end.other.is_open and end.other.process.gateway is None]
        if not ends or len(self.swarm.shards) <= 2 or not self.swarm.has_router:
            return
        end = ends[step.who % len(ends)]
        end.other.process.die()
        self.swarm.hear_of_death(end.other.process, end.process)
        self.seen["kill"] += 1

    def do_chase(self, step: Step) -> None:
        """A queue message is sent on, because members leave, while their links to the last member's shard are late.

        Its publisher moves, or asks for a PONG, before it arrives there; or the link over which it is to go is broken.
        """
        account = self.one_of(step.who).account
        if self.schedule.has("third") and account == "C":
            return
        self.do_settle(step)
        places: dict[int, Person] = {}
        for person in self.people:
            if person.is_read and person.account == account:
                places.setdefault(person.process.number, person)
        if len(places) < 3:
            return
        turn = step.which % len(places)
        publisher, last, *others = [*places.values()][turn:] + [*places.values()][:turn]
        way = step.much % 4  # 0: it moves; 1: a link breaks
        others = others[:1] if way < 2 else others
        subject = step.much // 4 % len(self.subjects)
        for person in (last, *others):
            self.subscribe(person, self.subjects[subject], self.queues[1 + step.who % 2])
        self.do_settle(step)
        self.tick()  # they are there, for all to know, …
        if not publisher.is_read:
            return
        old, from_others = publisher.process, {person.process for person in others}
        self.do_pub(publisher, Step("pub", 1, subject, 0))
        self.tick()  # … and were when it was published
        for person in others:
            sub = person.subscriptions[-1]
            if person.is_read and sub.left_at == NEVER:
                sub.left_at = self.now
                self.say(person, b"UNSUB %d\r\n" % sub.sid)
        self.tick()
        if way == 0:
            elsewhere = [one for one in self.swarm.ready if one not in (old, last.process)]
            elsewhere = [one for one in elsewhere if one not in from_others] or elsewhere
            if elsewhere and not publisher.is_gone:
                self.begin_move(old, elsewhere[step.who % len(elsewhere)], [publisher], 1)
        elif way == 1:
            there = {others[0].process, last.process}
            self.sever([one for one in self.open_ends() if {one.process, one.other.process} == there], step)
        elif publisher.is_read:
            self.do_ping(publisher, step)
        rng = Random(f"chase {step.who} {step.which} {step.much}")
        self.carry_around(last.process, from_others, rng)
        if publisher.is_read:
            self.tick()
            self.do_ping(publisher, step)
            self.carry_around(last.process, from_others, rng)
        self.seen["message chased"] += 1

    def carry_around(self, late: Process, senders: set[Process], rng: Random) -> None:
        """Much arrives, in any order, but nothing at one shard that is from these others."""
        for _ in range(80):
            busy = [
                end for end in self.swarm.busy_ends() if end.other.process is not late or end.process not in senders
            ]
            if self.swarm.words and (not busy or rng.random() < 0.3):
                self.swarm.hand(rng.randrange(24))
            elif busy:
                self.swarm.carry(busy[rng.randrange(len(busy))], ALL)
            else:
                break
            self.look()

    def open_ends(self) -> list[End]:
        return [end for end in self.swarm.ends if end.is_open and end.other.is_open and not end.is_cut]

    def do_owe(self, step: Step) -> None:
        """An answer comes to the shard that knows who asked, which has lost its link to where the asker is now."""
        due: list[tuple[Person, int, Process]] = []
        for person in self.people:
            for at, (reply, number) in enumerate(person.to_answer if person.is_read else ()):
                keepers = self.keepers.get(self.messages[number].kept_with, [])
                if self.messages[number].is_outside:
                    continue
                asker = self.people[self.messages[number].client]
                if reply.startswith("_R_") and keepers and len({keepers[-1], person.process, asker.process}) == 3:
                    due.append((person, at, keepers[-1]))
        if not due:
            return
        person, at, keeper = due[step.who % len(due)]
        asker = self.people[self.messages[person.to_answer[at][1]].client]
        ends = [one for one in self.open_ends() if one.process is asker.process and one.other.process is keeper]
        if not ends or asker.is_on_its_way:
            return
        self.sever(ends, step)
        self.swarm.carry(ends[0], ALL)  # … and notices
        self.look()
        if not person.is_read:
            return
        self.do_answer(person, Step("answer", 1, at, 3))
        others = {one for one in self.swarm.alive if one is not asker.process}
        self.carry_around(asker.process, others, Random(f"owe {step.who} {step.which} {step.much}"))
        self.seen["answer while a link is missing"] += 1

    def do_mimic(self, person: Person, step: Step) -> None:
        """A subscription ends directly behind a message whose payload ends as its frame did, at the same byte.

        That of the link's buffer, which had another message before that frame.
        """
        if self.servers is not None or self.schedule.has("slow"):
            return
        self.swarm.settle()
        self.look()
        if not person.is_read:
            return
        subject, pattern = self.subjects[step.which % len(self.subjects)], f"mimic.{person.number}"
        frame = b"%b%b %b" % (LIKE_A_FRAME, person.account.encode(), pattern.encode())
        self.say_publish(person, self.publish(person, subject, MIMIC_BYTES), finish=False)
        self.subscribe(person, pattern, "")
        sub = person.subscriptions[-1]
        if not person.is_read or sub.left_at != NEVER:
            return
        words = self.publish(person, subject, MIMIC_BYTES + len(frame) + 2, ending=frame)
        self.say_publish(person, words, finish=False)
        if person.is_read:
            sub.left_at = self.now
            self.say(person, b"UNSUB %d\r\n" % sub.sid)
            self.swarm.turn()
        self.seen["payload like a frame"] += 1

    def do_boot(self, step: Step) -> None:
        """Request one shard more."""
        if self.swarm.has_router and self.swarm.join(MOST_SHARDS_HERE):
            self.seen["join"] += 1

    def do_recant(self, step: Step) -> None:
        """A shard that is being started is not wanted any more; then the router dies, and has not read that it serves.

        (A shard retires when it serves: connections may wait in its listener's queue.)
        """
        swarm = self.swarm
        if not swarm.has_router or not swarm.join(MOST_SHARDS_HERE):
            return
        starting = [number for number, state in swarm.states.items() if state.phase is Phase.STARTING]
        if not starting:
            return
        number = starting[step.who % len(starting)]
        process = swarm.processes[number]
        rng = Random(f"recant {step.who} {step.which} {step.much}")
        told_at = step.much % 12
        for turn in range(200):
            if turn == told_at:
                swarm.leave(number)
            has_said_so = any(isinstance(one, control.Ready) for one in process.outbox)
            if not process.is_alive or (has_said_so and turn >= told_at):
                break
            busy = swarm.busy_ends()
            if busy and rng.random() < 0.5:
                swarm.carry(busy[rng.randrange(len(busy))], ALL)
            elif not has_said_so:
                swarm.tell(rng.randrange(24))
            self.look()
        if swarm.has_router:
            swarm.lose_router(is_late=step.which % 6 == 0)
        self.seen["shard recanted"] += 1

    def do_leave(self, step: Step) -> None:
        """Retire one shard; or one that is leaving, and was wanted again meanwhile."""
        again = [one for one in self.swarm.shards if self.swarm.is_wanted_again(one.number)]
        if again and self.swarm.has_router:
            self.seen["not wanted after all"] += 1
            self.swarm.leave(again[step.who % len(again)].number)
            return
        ready = self.swarm.ready
        if self.swarm.has_router and len(ready) > 2 and step.much < 8:
            self.swarm.leave(ready[step.who % len(ready)].number)

    def do_router(self, step: Step) -> None:
        """The router dies."""
        if self.swarm.has_router:
            self.swarm.lose_router(is_late=step.which % 3 == 0)

    def do_adopt(self, step: Step) -> None:
        """Another router takes over."""
        if not self.swarm.has_router:
            self.swarm.adopt()

    # ---- other servers

    def do_dial(self, step: Step) -> None:
        """Another server connects."""
        if self.servers is not None:
            self.servers.dial(self.servers.all[step.who % len(self.servers.all)])

    def do_hang(self, step: Step) -> None:
        """The connection to another server ends."""
        if self.servers is not None and step.much < 8:
            server = self.servers.all[step.who % len(self.servers.all)]
            self.seen["connection to a server ended"] += server.door is not None
            if server.door is not None and step.which % 2:
                self.seen["connection to a server ended within a round"] += self.carry_to_gateway(server.door, step)
            self.servers.hang_up(server)

    def carry_to_gateway(self, door: Door, step: Step) -> bool:
        """The gateway reads of one shard after a connection to another server has broken, before it is done with it."""
        busy = [one for one in self.swarm.busy_ends() if one.other.process is door.gateway.process]
        if self.servers is None or not busy or not door.is_open:
            return False
        end = busy[step.which // 2 % len(busy)]
        self.servers.lose_with(door)
        door.break_off()
        self.swarm.carry(end, ALL)
        return True

    def do_replace(self, step: Step) -> None:
        """The gateway's process ends in order, and another one follows."""
        gateway = self.swarm.gateway
        if gateway is not None and gateway.process.is_alive and self.swarm.has_router:
            self.swarm.replace_gateway()

    def do_fell(self, step: Step) -> None:
        """The gateway's process is killed."""
        gateway = self.swarm.gateway
        if gateway is not None and gateway.process.is_alive and step.much < 8:
            gateway.process.die()
            self.seen["gateway died"] += 1

    def do_over(self, step: Step) -> None:
        """Bytes of a connection to another server arrive, in one direction."""
        if self.servers is not None:
            self.servers.carry(step.who, (1, 9, 60, ALL)[step.much % 4])

    def do_there(self, step: Step) -> None:
        """The user of another server subscribes, unsubscribes, publishes or answers; or its server asks for a PONG."""
        if self.servers is None:
            return
        server = self.servers.all[step.who % len(self.servers.all)]
        what = step.which % 12
        if what < 2:
            self.servers.subscribe(server, self.patterns[step.much % len(self.patterns)], "")
        elif what < 4:
            queue = self.queues[1 + step.much % 2]
            self.servers.subscribe(server, self.patterns[step.much % len(self.patterns)], queue)
        elif what < 6 and server.current:
            self.servers.unsubscribe(server, server.current[step.much % len(server.current)])
        elif what == 6:
            self.servers.ping(server)
        elif what == 7 and server.to_answer:
            reply, number = server.to_answer.pop(step.much % len(server.to_answer))
            self.servers.publish(server, reply, answers=number)
            self.seen["answer of another server"] += 1
        else:
            self.publish_there(server, self.subjects[step.much % len(self.subjects)], wants_answer=what == 11)

    def do_serve(self, step: Step) -> None:
        """Somebody subscribes to a service that another account imports: a client, or a user of another server."""
        services = [one for one in self.tenants.crossings if one.is_service]
        if self.servers is None or not services:
            return
        one = services[step.which % len(services)]
        queue = QUEUES[step.much % len(QUEUES)]
        there = [server for server in self.servers.all if server.account == one.exporter]
        here = [person for person in self.people if person.account == one.exporter and person.is_read]
        if there and (step.who % 2 or not here):
            self.servers.subscribe(there[step.who // 2 % len(there)], one.subject, queue)
        elif here:
            self.subscribe(here[step.who // 2 % len(here)], one.subject, queue)

    def do_seek(self, step: Step) -> None:
        """The user of another server, or a client, asks for a service of another account."""
        services = [one for one in self.tenants.crossings if one.is_service]
        if self.servers is None or not services:
            return
        one = services[step.which % len(services)]
        there = [server for server in self.servers.all if server.account == one.importer]
        here = [person for person in self.people if person.account == one.importer and person.is_read]
        if there and (step.who % 3 or not here):
            self.publish_there(there[step.who // 3 % len(there)], one.to, wants_answer=True)
        elif here:
            self.say_publish(
                here[step.who // 3 % len(here)],
                self.publish(here[step.who // 3 % len(here)], one.to, 0, wants_answer=True),
                finish=True,
            )

    def do_reply(self, step: Step) -> None:
        """Requests are answered, by clients and by users of other servers."""
        if self.servers is None:
            return
        for server in self.servers.all:
            if server.to_answer and step.which % 4:
                reply, number = server.to_answer.pop()
                self.servers.publish(server, reply, answers=number)
                self.seen["answer of another server"] += 1
        for person in self.people:
            if person.is_read and person.to_answer:
                self.do_answer(person, Step("answer", 1, len(person.to_answer) - 1, 1 + 2 * (step.much % 2)))

    def publish_there(self, server: Server, subject: str, *, wants_answer: bool) -> None:
        """Publish at another server, perhaps a request."""
        assert self.servers is not None
        self.servers.publish(server, subject, wants_answer=wants_answer and len(self.tenants.accounts) > 1)

    def do_reach(self, step: Step) -> None:
        """Everything between the gateway and other servers arrives, and nothing between shards."""
        if self.servers is not None:
            self.servers.carry_all()

    def do_within(self, step: Step) -> None:
        """What is on its way between shards arrives, and nothing between the gateway and other servers."""
        for end in self.swarm.busy_ends():
            if end.other.is_open:
                self.swarm.carry(end, ALL)

    def do_lag(self, step: Step) -> None:
        """What is on its way between shards arrives, but over one link."""
        ends = self.open_ends()
        late = ends[step.who % len(ends)] if ends else None
        for _ in range(1 + step.much % 4):
            for end in self.swarm.busy_ends():
                if end.other.is_open and end is not late:
                    self.swarm.carry(end, ALL)
            self.look()

    def do_quit(self, step: Step) -> None:
        """The users of all members of the cluster unsubscribe from everything."""
        if self.servers is not None:
            for server in self.servers.all:
                for sub in list(server.current) if server.kind == "route" else []:
                    self.servers.unsubscribe(server, sub)

    def do_flood(self, step: Step) -> None:
        """The user of another server publishes more than a link's socket takes, where it does not take everything."""
        if self.servers is not None:
            server = self.servers.all[step.who % len(self.servers.all)]
            for _ in range(1 + step.which % 5):
                self.servers.publish(server, self.subjects[step.much % len(self.subjects)], size=VOLLEY_BYTES)

    # ---- moves

    def do_move(self, step: Step) -> None:
        """Some clients of one shard begin to move to another."""
        alive = self.swarm.ready
        if len(alive) < 2:
            return
        old = alive[step.who % len(alive)]
        new = [one for one in alive if one is not old][step.which % (len(alive) - 1)]
        here = self.at(old)
        self.begin_move(old, new, here[step.which % max(1, len(here)) :], 1 + step.much % 4)

    def at(self, process: Process) -> list[Person]:
        """Who has a connection there."""
        return [one for one in self.people if one.process is process and not one.is_gone and not one.is_on_its_way]

    def begin_move(self, old: Process, new: Process, wanted: list[Person], most: int) -> None:
        """At most so many of those who can move begin to."""
        chosen: list[Person] = []
        for person in wanted:
            why = old.links.moves.why_not(person.client.connection) or self.objection(person.client) or None
            if why is None and len(chosen) < most:
                chosen.append(person)
            elif why is not None:
                self.seen["cannot move"] += 1
        try:
            old.host.move([one.client.connection for one in chosen], new)
        except RecordRefused:
            self.seen["move refused"] += 1
            return
        self.seen["move"] += 1
        self.seen["moves at once"] += sum(one.links.moves.is_leaving for one in self.swarm.alive) > 1
        self.seen["slow client moves"] += any(one.is_slow for one in chosen)
        self.seen["client that waits for publish_limits moves"] += any(one.is_limited and one.backlog for one in chosen)

    def do_hop(self, step: Step) -> None:
        """One client begins to move; the same numbers mean the same client."""
        person = self.one_of(step.who)
        others = [one for one in self.swarm.ready if one is not person.process]
        if others and not person.is_gone and not person.is_on_its_way:
            self.begin_move(person.process, others[step.which % len(others)], [person], 1)

    def do_reset(self, step: Step) -> None:
        """The connection of a client that moves is reset, behind messages that nobody has read yet."""
        if not self.schedule.has(RESET):
            return
        moving = [
            one
            for one in self.people
            if not (one.is_gone or one.is_on_its_way or one.rest or one.was_reset or one.socket.close_reason)
            and one.client.connection.is_moving
        ]
        if not moving:
            return
        person = moving[step.who % len(moving)]
        subject = self.subjects[step.which % len(self.subjects)]
        for _ in range(1 + step.much % 3):
            person.client.feed(self.publish(person, subject, 0))
        person.was_reset = True
        for sub in person.subscriptions:
            sub.deaf_from = min(person.moves_since, self.now)
        person.process.engine.probe.reset(person.client.socket)
        person.process.host.look_at(person.client)
        self.seen["reset while it moves"] += 1

    def do_empty(self, step: Step) -> None:
        """All clients of a shard begin to move to another."""
        alive = self.swarm.ready
        if len(alive) > 1:
            old = alive[step.who % len(alive)]
            new = [one for one in alive if one is not old][step.which % (len(alive) - 1)]
            self.begin_move(old, new, self.at(old), MOST_CLIENTS)

    def do_rush(self, step: Step) -> None:
        """A client connects, subscribes in one write, perhaps publishes, and moves at once."""
        ready = self.swarm.ready
        if len(ready) < 2 or not self.has_room or not self.come(ready[step.who % len(ready)]):
            return
        person = self.people[-1]
        for n in range(1 + step.much % 3):
            if person.is_read:
                self.do_sub(person, Step("sub", 3, step.which + n, step.much // 3 + n))
        if step.which % 2 and person.is_read:
            self.do_pub(person, Step("pub", 3, step.which, step.much))
        self.do_hop(Step("hop", person.number, step.which, 0))

    def do_bring(self, step: Step) -> None:
        """Some of what is on its way arrives, in any order, while somebody moves."""
        rng = Random(f"bring {step.who} {step.which} {step.much}")
        for _ in range(4 + 6 * step.who):
            if not (
                self.swarm.words
                or any(one.links.moves.is_leaving or one.links.reply_prefixes.is_busy for one in self.swarm.alive)
            ):
                break
            if self.swarm.words and rng.random() < 0.3:
                self.do_hand(Step("hand", rng.randrange(24), 0, 0))
            else:
                self.do_carry(Step("carry", rng.randrange(24), 1 + rng.randrange(2), 2 + step.much % 2))
            self.look()

    def do_retire(self, step: Step) -> None:
        """Retire one shard, whose clients move to the others; often one to which clients are just moving."""
        ready = self.swarm.ready
        if self.swarm.has_router and len(ready) > 2:
            targets = [one for one in ready if one.links.moves.n_arriving]
            chosen = targets if targets and step.much % 2 else ready
            self.swarm.leave(chosen[step.who % len(chosen)].number, moves=True)

    def do_hand(self, step: Step) -> None:
        """One record, or other word of a move, arrives."""
        self.swarm.hand(step.who)

    def do_entrust(self, step: Step) -> None:
        """A shard has another one pass on the replies that are due, as one that leaves."""
        alive = self.swarm.ready
        if len(alive) < 2:
            return
        due = [one for one in alive if self.n_answers_due(one)] or alive
        old = due[step.who % len(due)]
        new = [one.number for one in alive if one is not old]
        turn = step.which % len(new)
        old.links.reply_prefixes.hand_over(new[turn:] + new[:turn])
        old.engine.probe.finish()

    def do_stop(self, step: Step) -> None:
        """A move has taken too long."""
        moving = [one for one in self.swarm.alive if one.links.moves.is_leaving]
        if moving:
            one = moving[step.who % len(moving)]
            one.links.moves.stop()
            one.engine.probe.finish()

    def n_answers_due(self, process: Process) -> int:
        """How many requests to other accounts may still get an answer through this shard."""
        made = self.imports.get(id(process.engine))
        return 0 if made is None else made.service_imports.waiting

    def person_of(self, client: EngineClient) -> Person:
        return next(one for one in self.people if one.client is client)

    def words_of(self, client: EngineClient) -> bytes:
        """Who it is: for admit(). Its move begins."""
        person = self.person_of(client)
        words = b"%d" % person.number
        if isinstance(client.session, Login):
            words += b" " + moved.encoded_session(client.session.freeze())
        person.moves_since, person.moves_to = self.now, person.process.host.there
        self.history.moved.add(person.number)
        person.sight.is_watched = True
        for sub in self.subscriptions:
            if sub.client == person.number and sub.left_at == NEVER:
                self.seen["member moves"] += bool(sub.queue)
                self.seen["max moves"] += sub.most != NEVER
        return words

    def objection(self, client: EngineClient) -> str:
        """Why its session cannot be moved now; "": it can."""
        return client.session.objection_to_freezing() if isinstance(client.session, Login) else ""

    def goes_on(self, client: EngineClient, connection: ClientConnection) -> None:
        """It is at its new shard, as this connection."""
        person = self.person_of(client)
        if person.coming is not None:
            person.coming.errors = client.session.errors
            client.session, person.coming = person.coming, None  # type: ignore[assignment]
        client.session.connection = connection

    def forget_expected(self, process: Process) -> None:
        """One that was to come does not."""
        if self.crowd is not None:
            self.crowd.expect_no_more(process.number)

    def admit(self, process: Process, offered: OfferedClient) -> ClientConnection:
        """Make a connection for a client that is to come."""
        number, _, who = offered.words.partition(b" ")
        person = self.people[int(number)]
        if who:
            person.coming = self.owner_of(process).expect(offered.cid, moved.decoded_session(who))
            person.coming.connection.set_limits(person.limits)
            return person.coming.connection
        if self.crowd is not None:
            self.crowd.expect(process.number)
        mesh = process.engine.probe.mesh
        assert mesh is not None
        sublist = mesh.account(offered.account)
        connection = process.engine.probe.connection(offered.cid, person.client.session, sublist=sublist)
        connection.enter(sublist, COMPILED[person.rights])
        connection.set_limits(person.limits)
        connection.allow(person.rate)
        return connection

    def takes_no_more(self, client: EngineClient) -> None:
        """The shard that it moves to has heard that its connection has ended, and the other one knows it."""
        person = self.person_of(client)
        if person.moves_since == NEVER:
            return  # it stays
        for sub in person.subscriptions:
            if sub.deaf_from != NEVER and sub.deaf_until == NEVER:
                sub.deaf_until, sub.lost_from = self.now, sub.deaf_from
                self.seen["takes no more while it moves"] += 1

    def takes_again(self, person: Person) -> None:
        """It has not moved, and takes what it is sent until its shard has read to the end."""
        for sub in person.subscriptions:
            sub.deaf_until = NEVER

    def on_way(self, client: EngineClient, there: Process) -> None:
        """Its socket is on its way: if the new shard dies, it is lost with it."""
        person = self.person_of(client)
        if self.crowd is not None:
            self.crowd.pass_on(person.number, person.process.number)
        person.is_on_its_way = True
        person.process = there

    def arrived(self, client: EngineClient, process: Process, pending: int) -> None:
        """Its socket is at its new shard, where so many bytes waited for it."""
        person = self.person_of(client)
        assert person.process is process and not person.is_gone
        assert client.socket.queued >= person.sight.queued, f"client {person.number}: what waited for it is lost"
        if self.crowd is not None:
            self.crowd.take(person.number, process.number)
        person.is_on_its_way = False
        person.moved_at = person.moves_since
        person.detached_to = client.socket.queued
        person.detached_pending = pending if client.connection.close_reason else 0
        person.moves_since, person.moves_to = NEVER, None
        self.seen["arrived"] += 1

    def lost(self, client: EngineClient) -> None:
        """The new shard has closed it."""
        person = self.person_of(client)
        assert self.seen["link break"] or self.ended, f"client {person.number} is lost because it moved"
        if self.crowd is not None:
            self.crowd.doubt()
            self.counted_still.append(person.account)
        self.seen["move closed"] += 1
        if not person.is_gone:
            self.go(person)

    def check_counts(self) -> None:
        """Each shard knows how many members each queue group has at each other, and here. No move has left anything."""
        outside = range(FIRST_SLOT, 63)
        for here in self.swarm.alive:
            for sublist in here.engine.probe.mesh.sublists():  # type: ignore[union-attr]
                wrong = here.engine.probe.miscounted(sublist)
                assert not wrong, f"shard {here.number} tells wrongly of its own members: {wrong}"
        for person in self.people:
            if not person.is_gone:
                left = person.process.engine.probe.left_of_moves(person.client.connection)
                assert not left, f"client {person.number} does not move, but for {left}"
                had = person.sight.msgs, person.sight.payload_bytes
                counted = person.client.connection.out_msgs, person.client.connection.out_bytes
                assert counted == had, f"client {person.number} has had {had} messages and bytes, counted {counted}"
        for here in self.swarm.alive:
            for sublist in here.engine.probe.mesh.sublists():  # type: ignore[union-attr]
                found = here.engine.probe.groups(sublist)
                for there in self.swarm.alive:
                    if there is here:
                        continue
                    mesh = there.engine.probe.mesh
                    assert mesh is not None
                    told = there.engine.probe.groups(mesh.account(sublist.account))
                    for name in found.keys() | told.keys():
                        knows = found.get(name, (0, {}))[1].get(there.number, 0)
                        has, members = told.get(name, (0, {}))
                        if there.gateway is not None:
                            found_there = [n for slot, n in members.items() if slot in outside]
                            has = sum(n for n in found_there if not n & SECOND_CHOICE)
                            if not has and found_there:
                                has = SECOND_CHOICE | 1
                                self.seen["members of second choice alone"] += 1
                        assert knows == has, (
                            f"shard {here.number} counts {knows} members of {name} at {there.number}, which has {has}"
                        )

    def check_staying(self) -> None:
        """Shards that are not wanted leave in the end."""
        for _ in range(MOST_ROUNDS):
            if not self.swarm.staying:
                return
            self.swarm.settle()
            self.swarm.pass_s(0.5)
            self.look()
        raise AssertionError(f"not wanted, and not gone: shards {self.swarm.staying}")

    # ---- the end

    def finish(self) -> None:
        """Everything arrives, and everybody who is left asks for a PONG and gets it."""
        self.tick()
        if not self.swarm.has_router:
            self.swarm.adopt()
        self.swarm.settle()
        self.look()
        self.rest()
        assert not any(one.is_waiting for one in self.people if not one.is_gone), "a fence did not pass in the end"
        assert not any(one.was_reset for one in self.people if not one.is_gone), "who was reset is still there"
        for person in self.people:
            if not person.is_gone:
                assert not person.backlog and not person.client.socket.is_held, f"{person} waits for ever"
                person.is_asking = person.is_waiting = True
                self.say(person, b"PING\r\n")
        self.tick()
        self.rest()
        assert not any(one.is_waiting for one in self.people if not one.is_gone), "a PONG did not come in the end"
        assert not any(one.is_on_its_way for one in self.people if not one.is_gone), "a client did not arrive"
        for person in self.people:
            assert person.is_gone or not person.is_refused, f"client {person.number} stays, and was to be refused"
            assert person.is_gone or not person.expected, f"client {person.number} was not told {person.expected}"
        self.note_settled()
        self.count_all()
        self.check_counts()
        self.check_staying()
        promises.check(self.history)
        for message in self.messages if self.schedule.has(TRACED) else ():
            self.traces.check(message, self.subscriptions)
            self.seen["trace in another account"] = self.traces.n_across
            self.seen["several documents"] += len(self.traces.documents.get(message.number, ())) > 1
        if self.schedule.has(STOPS):
            Stop(self).run()
        for process in self.swarm.alive:
            self.count(process)
        self.seen.update(self.swarm.seen)
        self.close()

    def rest(self) -> None:
        """Run until nothing is on its way, nobody waits or is slow, and all shards are linked."""
        for _ in range(MOST_ROUNDS):
            self.quicken()
            for person in self.people:
                if person.rest and not person.is_gone and not person.is_on_its_way:
                    self.send_more(person, ALL)
            self.swarm.settle()
            self.look()
            for process in self.swarm.alive:
                process.engine.probe.release_stalls()
            self.swarm.settle()
            self.look()
            is_held = any(one.backlog or one.client.socket.is_held for one in self.people if not one.is_gone)
            is_slow = any(one.is_slow for one in self.people if not one.is_gone)
            if self.swarm.is_whole and not (is_held or is_slow or (self.servers is not None and self.servers.is_held)):
                return
            self.swarm.pass_s(0.5)
        raise AssertionError("the broker does not come to rest")

    def quicken(self) -> None:
        """Nobody is slow any more, but those who are on their way to another shard: they are later."""
        for person in self.people:
            if not person.is_gone and person.is_slow and not person.is_on_its_way:
                person.is_slow = False
                person.process.engine.probe.finish()
                person.process.engine.probe.set_takes(person.client.socket, -1)

    def close(self) -> None:
        """Let all clients leave; then no shard may hold anything for any of them."""
        for person in self.people:
            if not person.is_gone:
                person.client.close()
        self.swarm.settle()
        for process in self.swarm.alive:
            assert process.links.reroutes.n_pending == 0
            for sublist in process.engine.probe.mesh.sublists():  # type: ignore[union-attr]
                assert sublist.n_subs == 0, f"{sublist.account!r} holds {sublist.n_subs} subscriptions"
        if self.servers is not None:
            for server in self.servers.all:
                self.servers.hang_up(server)
            self.swarm.settle()
        for end in self.swarm.ends:
            if end.is_open:
                end.end()
        for process in self.swarm.alive:
            process.engine.assert_empty()

    def count(self, process: Process) -> None:
        """What a shard's engine has to say of itself."""
        reroutes = process.links.reroutes
        self.seen["re-route"] += reroutes.n_sent_on
        self.seen["linger"] += reroutes.n_lingered
        self.seen["nobody anywhere"] += reroutes.n_lost
        self.seen["reply kept back"] += reroutes.n_kept_back
        moves = process.links.moves
        self.seen["handed over"] += moves.n_moved
        self.seen["move stopped"] += moves.n_stopped
        self.seen["move lost"] += moves.n_lost
        self.seen["replies handed over"] += process.links.reply_prefixes.n_taken


ALONE: dict[str, Callable[[World, Step], None]] = {
    "carry": World.do_carry,
    "settle": World.do_settle,
    "tell": World.do_tell,
    "pass": World.do_pass,
    "come": World.do_come,
    "break": World.do_break,
    "kill": World.do_kill,
    "boot": World.do_boot,
    "leave": World.do_leave,
    "dial": World.do_dial,
    "hang": World.do_hang,
    "fell": World.do_fell,
    "replace": World.do_replace,
    "flood": World.do_flood,
    "quit": World.do_quit,
    "within": World.do_within,
    "lag": World.do_lag,
    "reach": World.do_reach,
    "over": World.do_over,
    "serve": World.do_serve,
    "seek": World.do_seek,
    "reply": World.do_reply,
    "there": World.do_there,
    "router": World.do_router,
    "adopt": World.do_adopt,
    "move": World.do_move,
    "hop": World.do_hop,
    "reset": World.do_reset,
    "empty": World.do_empty,
    "rush": World.do_rush,
    "bring": World.do_bring,
    "retire": World.do_retire,
    "fall": World.do_fall,
    "late": World.do_late,
    "gather": World.do_gather,
    "desert": World.do_desert,
    "regrade": World.do_regrade,
    "sever": World.do_sever,
    "chase": World.do_chase,
    "tear": World.do_tear,
    "drip": World.do_drip,
    "bereave": World.do_bereave,
    "owe": World.do_owe,
    "recant": World.do_recant,
    "entrust": World.do_entrust,
    "hand": World.do_hand,
    "stop": World.do_stop,
    "reload": World.do_reload,
    "grow": World.do_grow,
}
# Steps that are possible whether or not the broker reads from this client.
OF_SOCKETS: dict[str, Callable[[World, Person, Step], None]] = {
    "slow": World.do_slow,
    "take": World.do_take,
    "limits": World.do_limits,
    "go": World.do_go,
}
OF_CLIENTS: dict[str, Callable[[World, Person, Step], None]] = {
    "sub": World.do_sub,
    "unsub": World.do_unsub,
    "max": World.do_max,
    "pub": World.do_pub,
    "request": World.do_request,
    "answer": World.do_answer,
    "volley": World.do_volley,
    "ping": World.do_ping,
    "burst": World.do_burst,
    "mimic": World.do_mimic,
    "rights": World.do_rights,
    "connect": World.do_connect,
    "ask": World.do_ask,
    "exceed": World.do_exceed,
    "odd": World.do_odd,
}
