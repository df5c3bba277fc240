"""What it costs to move connections, what others notice of it, and what placement by rules gains.

CPU is of all processes of the broker, from /proc/*/schedstat; clients are plain sockets of this process, which is not
counted. Only ratios within one run mean anything. GNATSWARM_MOVED_CLIENTS: how many idle connections move (2,000).
"""

from __future__ import annotations

import os
import random
import re
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median, quantiles

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import MoveRequest, ReloadRequest
from tests.bench.bench_shards import client_on, cpu_ns, resident, talk
from tests.bench.measure import table
from tests.support import swarm
from tests.support.servers import HOST, Broker, Kind

IDLE_CLIENTS = int(os.environ.get("GNATSWARM_MOVED_CLIENTS", "2000"))
SUBSCRIPTIONS = 10
PAIRS = 8
MSGS = 50_000  # of each pair, in each round
PAIRS_ROUNDS = 41
BATCH = 500
PAYLOAD = b"x" * 16
MOVES = 100
GAP_S = 0.002
PACE_S = 0.0005
STAYERS_IDLE = 3000
STAYERS_ROUNDS = 5
ROUND_S = 1.2
BURN_S = 0.0001


def named(broker: Broker, shard: int, name: str) -> socket.socket:
    """A client of this name on that shard."""
    sock = client_on(broker, shard)
    talk(sock, b'CONNECT {"verbose":false,"name":"%s"}\r\nPING\r\n' % name.encode())
    return sock


class Pairs:
    """Eight talkers, each with a listener of its own."""

    def __init__(self, broker: Broker, shards: int) -> None:
        self.broker = broker
        self.talkers = [named(broker, n % shards, f"pair{n}-talker") for n in range(PAIRS)]
        self.listeners = [named(broker, (n + 1) % shards, f"pair{n}-listener") for n in range(PAIRS)]
        for n, sock in enumerate(self.listeners):
            talk(sock, f"SUB pair.{n} 1\r\nPING\r\n".encode())

    def ns_each(self) -> float:
        """CPU for a message, of one round."""
        waiting = {sock: MSGS * (len(b"MSG pair.0 1 16\r\n") + len(PAYLOAD) + 2) for sock in self.listeners}

        def read() -> None:
            selector = selectors.DefaultSelector()
            for sock in waiting:
                selector.register(sock, selectors.EVENT_READ)
            room = bytearray(1 << 20)
            while any(left > 0 for left in waiting.values()):
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    waiting[key.fileobj] -= key.fileobj.recv_into(room)

        reader = threading.Thread(target=read)
        before = cpu_ns(self.broker)
        reader.start()
        for _ in range(MSGS // BATCH):
            for n, sock in enumerate(self.talkers):
                sock.sendall((b"PUB pair.%d 16\r\n" % n + PAYLOAD + b"\r\n") * BATCH)
        reader.join()
        return (cpu_ns(self.broker) - before) / (MSGS * PAIRS)


def test_pairs_that_talk_across_shards_and_together() -> None:
    """The same talkers on one shard, badly spread over four, and placed there by rules: by turns, beside each other."""
    rules = "".join(f'{{ name: "pair{n}-*", shard: {n % 4} }}\n' for n in range(PAIRS))
    with (
        Broker(Kind("one", shards=1), ["--no-stats"]) as one,
        Broker(Kind("four", shards=4), ["--no-stats"]) as four,
        Broker(Kind("four", shards=4), ["--no-stats"], config="\n") as ruled,
    ):
        sides = {
            "one shard": Pairs(one, 1),
            "four, badly spread": Pairs(four, 4),
            "placed": Pairs(ruled, 4),
        }
        assert ruled.directory is not None
        (ruled.directory / "broker.conf").write_text(f"placement {{ rules: [\n{rules}] }}\n")
        asked(ruled, ReloadRequest())
        until(lambda: sum(rule["in_place"] for rule in swarm.status(ruled)["rules"]) == 2 * PAIRS)
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(PAIRS_ROUNDS):
            for name, pairs in sides.items():
                found[name].append(pairs.ns_each())
    table("CPU per message of eight pairs, medians", [(name, median(values)) for name, values in found.items()])
    for name, values in list(found.items())[1:]:
        ratios = [value / alone for value, alone in zip(values, found["one shard"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(f"  {name}: {middle:.2f} times one shard's of the same round; the middle half {low:.2f} to {high:.2f}")


def test_idle_connections_move() -> None:
    """CPU of a move beside that of the connection's accept, CONNECT and SUBs, and its time and memory."""
    with Broker(Kind("two", shards=2), ["--no-stats"]) as broker:
        empty = resident(broker)
        before = cpu_ns(broker)
        crowd = list(connected(broker, IDLE_CLIENTS))
        made = (cpu_ns(broker) - before) / len(crowd)
        there = {shard: row["connections"] for shard, row in swarm.rows(broker).items()}
        settled = resident(broker)
        before, began = cpu_ns(broker), time.monotonic()
        assert asked(broker, MoveRequest(0, 1, there[0])).startswith(f"{there[0]} clients moved")
        moved, took = (cpu_ns(broker) - before) / there[0], time.monotonic() - began
        assert {shard: row["connections"] for shard, row in swarm.rows(broker).items()} == {0: 0, 1: len(crowd)}
        behind = resident(broker)
        for number in range(len(crowd)):  # nothing is stuck: each has its subscriptions, and is read
            talk(crowd[number], f"PUB idle.{number}.{number % SUBSCRIPTIONS} 1\r\nx\r\nPING\r\n".encode())
        for sock in crowd:
            sock.close()
    table("CPU per connection with ten subscriptions", [("accept, CONNECT, SUBs", made), ("move", moved)])
    rows = [("before any", empty), (f"{len(crowd):,} connections", settled), ("after the move", behind)]
    table("Memory of the broker", [(name, size / 1e6) for name, size in rows], "MB")
    print(f"  {there[0]:,} moved in {took:.1f} s")


def test_clients_that_stay() -> None:
    """Round trips of clients that do not move, while others do.

    On the old, the new and a third shard: calm, while idle connections move from one shard to the other, and while
    processes beside the broker take the processor time that moving took. Where the machine has other work, its
    scheduler decides about the p99: then run this under `chrt -f 1`.
    """
    with Broker(Kind("three", shards=3), ["--no-stats"]) as broker:
        crowd = list(connected(broker, STAYERS_IDLE))
        there = swarm.rows(broker)[0]["connections"]
        stayers = [client_on(broker, shard) for shard in range(3)]
        for number, sock in enumerate(stayers):
            talk(sock, f"SUB echo{number} 1\r\nPING\r\n".encode())
        found: dict[str, list[list[float]]] = {kind: [[], [], []] for kind in ("calm", "moves", "burnt")}
        old, share, n_moved, moving_s = 0, 0.0, 0, 0.0
        for number in range(STAYERS_ROUNDS):
            used, calm_s = cpu_ns(broker), time.monotonic()
            at_once(stayers, found["calm"], calm_s + ROUND_S)
            idle_share = (cpu_ns(broker) - used) / 1e9 / (time.monotonic() - calm_s)
            moving = threading.Thread(target=asked, args=(broker, MoveRequest(old, 1 - old, there)))
            used, began = cpu_ns(broker), time.monotonic()
            moving.start()
            at_once(stayers, found["moves"], began + 60.0, moving.is_alive)
            moving.join()
            took = time.monotonic() - began
            share = max(share, (cpu_ns(broker) - used) / 1e9 / took - idle_share) if number else share
            n_moved, moving_s, old = n_moved + there, moving_s + took, 1 - old
            with burners(share or 0.2):
                at_once(stayers, found["burnt"], time.monotonic() + ROUND_S)
        for sock in crowd:
            sock.close()
    print(f"\n{n_moved / moving_s:,.0f} moves a second; burnt: {share:.2f} of a processor")
    for number, shard in enumerate(("old and new", "new and old", "third")):
        rows = [(f"{kind}: {name}", at(trips[number]) * 1e6)
                for name, at in (("median", median), ("p99", p99)) for kind, trips in found.items()]  # fmt: skip
        table(f"Round trips of a client that stays on the {shard} shard", rows[3:] + rows[:3], "µs")


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def at_once(
    socks: list[socket.socket], found: list[list[float]], until: float, condition: Callable[[], bool] = lambda: True
) -> None:
    """Round trips of these clients by turns, with random pauses of PACE_S at the mean."""
    while time.monotonic() < until and condition():
        for number, sock in enumerate(socks):
            select.select([], [], [], random.uniform(0, 2 * PACE_S))
            found[number].append(round_trip(sock, b"echo%d" % number))


@contextmanager
def burners(share: float) -> Iterator[None]:
    """Two processes that take so much of one processor together, in pieces of BURN_S."""
    code = f"""
import select, time
while True:
    began = time.perf_counter()
    while time.perf_counter() - began < {BURN_S}:
        pass
    select.select([], [], [], {BURN_S * (2 / share - 1)})
"""
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_busy_client_moves() -> None:
    """How long a client that gets a message every other millisecond hears nothing while it moves."""
    with Broker(Kind("three", shards=3), ["--no-stats"]) as broker:
        listener = named(broker, 0, "listener")
        talk(listener, b"SUB tick 1\r\nPING\r\n")
        publisher = client_on(broker, 2)
        echo = client_on(broker, 2)
        talk(echo, b"SUB echo 1\r\nPING\r\n")
        is_over = threading.Event()
        arrived: list[float] = []

        def publish() -> None:
            while not is_over.wait(GAP_S):
                publisher.sendall(b"PUB tick 1\r\nx\r\n")

        def listen() -> None:
            while not is_over.is_set():
                if select.select([listener], [], [], 0.5)[0]:
                    listener.recv(65536)
                    arrived.append(time.monotonic())

        threads = [threading.Thread(target=publish), threading.Thread(target=listen)]
        for thread in threads:
            thread.start()
        trips = round_trips(echo, time.monotonic() + 3.0)
        calm = gaps(arrived, 0.0, time.monotonic())
        silences = []
        for n in range(MOVES):
            began = time.monotonic()
            reply = asked(broker, MoveRequest(n % 2, 1 - n % 2, 1))
            assert reply.startswith("1 clients moved"), reply
            silences.append(max(gaps(arrived, began - GAP_S, time.monotonic() + GAP_S)))
        is_over.set()
        for thread in threads:
            thread.join()
    rows = [
        ("round trip: median", median(trips)), ("round trip: p99", quantiles(trips, n=100)[98]),
        ("gap without a move: median", median(calm)), ("gap without a move: p99", quantiles(calm, n=100)[98]),
        ("longest gap at a move: median", median(silences)),
        ("longest gap at a move: p99", quantiles(silences, n=100)[98]),
    ]  # fmt: skip
    table("Silence of a client with a message every 2 ms", [(name, value * 1e6) for name, value in rows], "µs")


def gaps(arrived: list[float], since: float, until: float) -> list[float]:
    """The times between arrivals."""
    found = [at for at in arrived if since <= at <= until]
    return [after - before for before, after in pairwise(found)] or [0.0]


def round_trips(sock: socket.socket, until: float) -> list[float]:
    """Seconds of each message to itself, one after the other."""
    found = []
    while time.monotonic() < until:
        found.append(round_trip(sock, b"echo"))
    return found


def round_trip(sock: socket.socket, subject: bytes) -> float:
    """Seconds of a message to itself."""
    began = time.monotonic()
    sock.sendall(b"PUB %b 1\r\nx\r\n" % subject)
    said = b""
    while b"\r\nx\r\n" not in said:
        said += sock.recv(65536)
    return time.monotonic() - began


def connected(broker: Broker, clients: int) -> Iterator[socket.socket]:
    """So many clients with subscriptions of their own."""
    for n in range(clients):
        sock = socket.create_connection((HOST, broker.port))
        words = "".join(f"SUB idle.{n}.{i} {i}\r\n" for i in range(SUBSCRIPTIONS))
        talk(sock, b'CONNECT {"verbose":false}\r\n' + words.encode() + b"PING\r\n")
        yield sock


def asked(broker: Broker, request: MoveRequest | ReloadRequest) -> str:
    """What the broker says to this."""
    reply = exchange(find(broker.pid, broker.port), request)
    assert not reply.error, reply.error
    return re.sub(r"\s+", " ", reply.text)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
