"""What a message costs that comes from another server or goes to one, beside nats-server for the same hop.

Pairs of servers, both of one kind or mixed, run at once, and are measured in turns. A publisher on one has a subscriber
on the other: the CPU of the first server for each message is that of the way out, the CPU of the second that of the way
in. It is that of all threads of all their processes, from /proc/*/schedstat, the least of GNATSWARM_ROUNDS (3).
The publisher writes PER_TICK messages every TICK_S, so that all servers have the same rate and reads of the same size;
on a busy machine it comes later, but never writes more at a time. Only ratios within one run mean anything.

GNATSWARM_INTERESTS: how many are told anew to a server that joins (1,000,000).
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles

import pytest

from tests.bench.bench_shards import HELLO, Reader, cpu_ns
from tests.bench.measure import table
from tests.support.leaves import CREATED as LEAF_CREATED
from tests.support.servers import HOST, KINDS, Broker, BrokerUnavailable

ROUNDS = int(os.environ.get("GNATSWARM_ROUNDS", "3"))
INTERESTS = int(os.environ.get("GNATSWARM_INTERESTS", "1000000"))
OURS, OLD, NEW = "gnatswarm-1", "nats-server", "nats-server-2.15"
PAIRS = ((OLD, OLD), (OURS, OURS), (NEW, NEW), (OURS, OLD), (OURS, NEW))
TICK_S = 0.002
# Bytes of a payload, messages in a tick, and messages in a round: at most 250,000, 200,000 and 20,000 a second.
SIZES = ((16, 500, 250_000), (128, 400, 200_000), (4096, 40, 20_000))
AHEAD_BYTES = 4 << 20
SATURATING = 2_000_000
SUBSCRIBED_AT_ONCE = 5_000
GAP_S = 0.0005
CALM_S = 3.0
ASKED = 20, 100, 1000  # so many subjects at a time, until all are known
GATEWAY = r"^\[(\d+)\].* gateway - "


def line_of(broker: Broker, of: str) -> int:
    """The port that the log names for other servers."""
    return int(broker.log.wait_line(rf"Listening for {of} connections on \S*:(\d+)")[1])


def config(name: str, by: str, to: int | None) -> str:
    """A member of a cluster, or a hub and its leaf node; `to`: the port to connect to, None: it listens."""
    if by == "route":
        routes = f"nats://{HOST}:{to}" if to else ""
        block = f"cluster {{ name: hop, listen: '{HOST}:-1', routes: [{routes}] }}"
    elif to:
        block = f"leafnodes {{ remotes: [ {{ url: nats://{HOST}:{to} }} ] }}"
    else:
        block = f"leafnodes {{ listen: '{HOST}:-1' }}"
    return f"server_name: {name}\n{block}\n"


def started(kind: str, text: str) -> Broker:
    """A server of this kind, as a user starts it."""
    try:
        return Broker(KINDS[kind], config=text + "stats: false\n" * kind.startswith("gnat"), by_fork=False).start()
    except BrokerUnavailable as error:
        pytest.skip(str(error))


@dataclass
class Pair:
    """Two servers; `by`: what connects them."""

    first: Broker
    second: Broker
    by: str

    @property
    def both_ways(self) -> tuple[tuple[Broker, Broker], tuple[Broker, Broker]]:
        return (self.first, self.second), (self.second, self.first)

    def name_of(self, broker: Broker) -> str:
        """The kind, and its place where the two ends have different ones."""
        place = "" if self.by == "route" else " (hub)" if broker is self.first else " (leaf)"
        return broker.kind.name + place


@contextlib.contextmanager
def pairs(by: str) -> Iterator[list[Pair]]:
    """All PAIRS, connected."""
    with contextlib.ExitStack() as running:
        found = []
        for here, there in PAIRS:
            first = running.enter_context(started(here, config("first", by, None)))
            port = line_of(first, "route" if by == "route" else "leafnode")
            second = running.enter_context(started(there, config("second", by, port)))
            second.log.wait_line("Route connection created" if by == "route" else LEAF_CREATED)
            found.append(Pair(first, second, by))
        yield found


def talk(sock: socket.socket, words: bytes) -> None:
    """Send these operations, and read until the PONG; a PING of the server may be behind it."""
    sock.sendall(words)
    said = b""
    while b"PONG\r\n" not in said:
        said += sock.recv(65536)


def client(broker: Broker) -> socket.socket:
    """A client that is logged in."""
    sock = socket.create_connection((HOST, broker.port))
    while not sock.recv(65536).endswith(b"\n"):
        pass
    talk(sock, HELLO)
    return sock


def known(publisher: socket.socket, subscriber: socket.socket, subject: bytes) -> None:
    """Returns when messages from the one arrive at the other."""
    subscriber.settimeout(0.05)
    said = b""
    while b"MSG" not in said:
        talk(publisher, b"PUB %s 0\r\n\r\nPING\r\n" % subject)
        with contextlib.suppress(TimeoutError):
            said += subscriber.recv(65536)
    subscriber.settimeout(None)
    talk(publisher, b"PING\r\n")
    with contextlib.suppress(BlockingIOError):
        while True:
            subscriber.setblocking(False)
            assert subscriber.recv(65536)
    subscriber.setblocking(True)


@dataclass
class Hop:
    """What one round took: CPU in ns for each message, of the server it came to first and of the other one."""

    out_ns: float
    in_ns: float
    gateway_out_ns: float  # of the gateways alone; 0: there is none
    gateway_in_ns: float
    rate: float  # messages a second


def gateway_ns(broker: Broker) -> int:
    """CPU of its gateway so far; 0: it has none."""
    found = re.findall(GATEWAY, broker.log.text, re.MULTILINE)
    tasks = Path(f"/proc/{found[-1]}/task").iterdir() if found else ()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def used_ns(source: Broker, target: Broker) -> list[int]:
    """CPU of both servers, and of their gateways."""
    return [cpu_ns(source), cpu_ns(target), gateway_ns(source), gateway_ns(target)]


def hop(source: Broker, target: Broker, size: int, per_tick: int, msgs: int, tick_s: float = TICK_S) -> Hop:
    """One round: messages from a client of `source` to a client of `target`. `tick_s` 0: as fast as it goes."""
    publisher, subscriber = client(source), client(target)
    subject = b"hop.%06d" % random.randrange(1_000_000)
    talk(subscriber, b"SUB %s 1\r\nPING\r\n" % subject)
    known(publisher, subscriber, subject)
    unit = len(b"MSG %s 1 %d\r\n" % (subject, size)) + size + 2
    reader = Reader(subscriber, msgs * unit)
    batch = (b"PUB %s %d\r\n" % (subject, size) + b"x" * size + b"\r\n") * per_tick
    before = used_ns(source, target)
    began = due = time.monotonic()
    reader.start()
    pause = threading.Event()
    for sent in range(0, msgs, per_tick):
        while sent * unit - reader.taken > AHEAD_BYTES:
            pause.wait(0.0005)
        if tick_s:
            due = max(due + tick_s, time.monotonic())
            pause.wait(due - time.monotonic())
        publisher.sendall(batch)
    reader.join(120)
    took_s = time.monotonic() - began
    assert reader.taken >= reader.wanted  # (or a PING more)
    used = [(now - then) / msgs for now, then in zip(used_ns(source, target), before, strict=True)]
    publisher.close()
    subscriber.close()
    return Hop(used[0], used[1], used[2], used[3], msgs / took_s)


def least(rounds: list[Hop]) -> Hop:
    return Hop(
        min(one.out_ns for one in rounds),
        min(one.in_ns for one in rounds),
        min(one.gateway_out_ns for one in rounds),
        min(one.gateway_in_ns for one in rounds),
        max(one.rate for one in rounds),
    )


@pytest.mark.parametrize("by", ["route", "leaf"])
def test_a_message_crosses(by: str) -> None:
    with pairs(by) as running:
        for size, per_tick, msgs in SIZES:
            found: dict[tuple[str, str], list[Hop]] = {}
            for _ in range(ROUNDS):
                for pair in running:
                    for source, target in pair.both_ways:
                        which = pair.name_of(source), pair.name_of(target)
                        found.setdefault(which, []).append(hop(source, target, size, per_tick, msgs))
            results = [(source, target, least(rounds)) for (source, target), rounds in found.items()]
            rates = [one.rate for _, _, one in results]
            table(
                f"{size} bytes in by a {by}, to a client; CPU of the server that it came to, per message",
                [(f"{target} from {source}", one.in_ns) for source, target, one in results],
            )
            table(
                f"{size} bytes out by a {by}; CPU of the server that it came from, per message",
                [(f"{source} to {target}", one.out_ns) for source, target, one in results],
            )
            print(f"  from {min(rates):,.0f} to {max(rates):,.0f} messages a second")


def test_what_one_gateway_carries() -> None:
    """Messages of 16 bytes as fast as they come: how many a gateway passes on for a second of its own CPU."""
    rows = []
    with contextlib.ExitStack() as running:
        first = running.enter_context(started(OURS, config("first", "route", None)))
        second = running.enter_context(started(OURS, config("second", "route", line_of(first, "route"))))
        second.log.wait_line("Route connection created")
        for source, target, way in ((first, second, "there"), (second, first, "back")):
            fastest = least([hop(source, target, 16, 2_500, SATURATING, 0) for _ in range(ROUNDS)])
            rows.append((f"{way}, the gateway that sends", 1e3 / fastest.gateway_out_ns))
            rows.append((f"{way}, the gateway that receives", 1e3 / fastest.gateway_in_ns))
    table("16 bytes, a gateway's messages for each second of its CPU", rows, "million")


def test_a_broker_with_nobody_to_tell() -> None:
    """A message between two clients of one broker: alone, a member without others, a hub without leaf nodes."""
    rows = []
    with contextlib.ExitStack() as running:
        brokers = [
            (name, running.enter_context(started(OURS, text)))
            for name, text in (
                ("alone", "\n"),
                ("cluster", config("one", "route", None)),
                ("hub", config("one", "leaf", None)),
            )
        ]
        found: dict[str, list[Hop]] = {}
        for _ in range(ROUNDS):
            for name, broker in brokers:
                found.setdefault(name, []).append(hop(broker, broker, 16, 2_500, SATURATING, 0))
        rows = [(name, least(rounds).out_ns) for name, rounds in found.items()]
    table("16 bytes from one client to another of the same broker, CPU for each", rows)


def round_trips(publisher: socket.socket, subscriber: socket.socket, asked: Connection) -> None:
    """What the process of RoundTrips does. Whatever it is asked, it says how long each took since the last time."""
    unit = len(b"MSG here 1 1\r\nx\r\n")
    taken_s: list[float] = []
    gc.disable()
    with contextlib.suppress(EOFError):
        while True:
            if asked.poll(GAP_S):
                asked.recv()
                asked.send(taken_s)
                taken_s = []
            began = time.perf_counter()
            publisher.sendall(b"PUB here 1\r\nx\r\n")
            got = 0
            while got < unit:
                said = subscriber.recv(65536)
                if said == b"PING\r\n":
                    subscriber.sendall(b"PONG\r\n")
                else:
                    got += len(said)
            taken_s.append(time.perf_counter() - began)


class RoundTrips:
    """Messages from one client of a server to another of it, one after the other: how long each took.

    In a process of its own, which waits for nothing else in this one.
    """

    def __init__(self, broker: Broker) -> None:
        self._clients = client(broker), client(broker)
        talk(self._clients[1], b"SUB here 1\r\nPING\r\n")
        process = multiprocessing.get_context("fork")
        self._ask, asked = process.Pipe()
        self._process = process.Process(target=round_trips, args=(*self._clients, asked), daemon=True)

    def start(self) -> None:
        self._process.start()
        for one in self._clients:
            one.close()

    def taken(self) -> list[float]:
        """Those since the last call."""
        self._ask.send(None)
        taken: list[float] = self._ask.recv()
        return taken

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def p99_ms(taken_s: list[float]) -> float:
    return quantiles(taken_s, n=100)[98] * 1e3


def wait_all_known(publisher: socket.socket, subscriber: socket.socket) -> None:
    """Returns when messages on a thousand subjects, chosen anew each time, have all arrived.

    Until a few do, only a few are sent, and after some have not, fewer again: a thousand cost a millisecond or more, in
    which the server does nothing else. (With a thousand every 50 ms towards the end they were half of what p99 saw.)
    """
    number = 0
    said = b""
    level = 0
    subscriber.settimeout(0.05)
    while True:
        number += 1
        asked = random.sample(range(INTERESTS), ASKED[level])
        talk(publisher, b"".join(b"PUB told.%07d 7\r\n%07d\r\n" % (one, number) for one in asked) + b"PING\r\n")
        try:
            while True:
                got = subscriber.recv(1 << 20)
                assert got, "the server closed the subscriber"
                if b"PING\r\n" in got:
                    subscriber.sendall(b"PONG\r\n")
                said = said[-100_000:] + got
                if said.count(b"\r\n%07d\r\n" % number) == len(asked):
                    level += 1
                    break
        except TimeoutError:
            level = max(0, level - 1)
        if level == len(ASKED):
            subscriber.settimeout(None)
            return


@dataclass
class Joined:
    """How long it took until a server that joined knew all interest, each server's CPU, and their clients' p99."""

    took_s: float
    teller_s: float
    joiner_s: float
    calm_ms: tuple[float, float]
    told_ms: tuple[float, float]


def joined(teller_kind: str, joiner_kind: str) -> Joined:
    """A server without others has all the interest when another one joins it."""
    with contextlib.ExitStack() as running:
        brokers = []
        for name, kind in (("teller", teller_kind), ("joiner", joiner_kind)):
            brokers.append(started(kind, config(name, "route", None)))
            running.callback(brokers[-1].kill)  # (with a million subscriptions nats-server takes long to stop)
        teller, joiner = brokers
        subscriber, publisher = client(teller), client(joiner)
        for first in range(0, INTERESTS, SUBSCRIBED_AT_ONCE):
            some = range(first, min(first + SUBSCRIBED_AT_ONCE, INTERESTS))
            talk(subscriber, b"".join(b"SUB told.%07d %d\r\n" % (one, one) for one in some) + b"PING\r\n")
        trips = [RoundTrips(teller), RoundTrips(joiner)]
        for one in trips:
            one.start()
        threading.Event().wait(CALM_S)
        calm = [one.taken() for one in trips]
        assert joiner.directory is not None
        text = config("joiner", "route", line_of(teller, "route")) + "stats: false\n" * joiner_kind.startswith("gnat")
        (joiner.directory / "broker.conf").write_text(text)
        joiner.send_signal(signal.SIGHUP)
        joiner.log.wait_line("Route connection created", 30)
        began, before = time.monotonic(), (cpu_ns(teller), cpu_ns(joiner))
        wait_all_known(publisher, subscriber)
        took_s, used = time.monotonic() - began, (cpu_ns(teller) - before[0], cpu_ns(joiner) - before[1])
        told = [one.taken() for one in trips]
        for one in trips:
            one.close()
        return Joined(took_s, used[0] / 1e9, used[1] / 1e9, *((p99_ms(a), p99_ms(b)) for a, b in (calm, told)))


def test_interest_is_told_anew() -> None:
    pairs_of = ((OLD, OLD), (OURS, OURS), (OURS, OLD), (OLD, OURS))
    found: dict[tuple[str, str], list[Joined]] = {}
    for _ in range(ROUNDS):
        for pair in pairs_of:
            found.setdefault(pair, []).append(joined(*pair))
    rows = [(f"{joiner} hears of {teller}", rounds) for (teller, joiner), rounds in found.items()]
    table(f"{INTERESTS:,} interests until all are known", [(n, min(one.took_s for one in r)) for n, r in rows], "s")
    table("CPU of the one that tells", [(n, min(one.teller_s for one in r)) for n, r in rows], "s")
    table("CPU of the one that hears", [(n, min(one.joiner_s for one in r)) for n, r in rows], "s")
    for side, name in enumerate(("tells", "hears")):
        print(f"\np99 of round trips at the one that {name}: calm, meanwhile (the median of the rounds)")
        for what, rounds in rows:
            calm = median(one.calm_ms[side] for one in rounds)
            told = median(one.told_ms[side] for one in rounds)
            print(f"  {what:<44}{calm:9.2f} ms{told:9.2f} ms   {told / calm:6.2f}x")
