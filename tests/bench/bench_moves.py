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
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median, quantiles

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import MoveRequest, ReloadRequest
from tests.bench.bench_shards import client_on, cpu_ns, talk
from tests.bench.measure import table
from tests.support import swarm
from tests.support.servers import HOST, Broker, Kind

IDLE_CLIENTS = int(os.environ.get("GNATSWARM_MOVED_CLIENTS", "2000"))
SUBSCRIPTIONS = 10
PAIRS = 8
MSGS = 50_000  # of each pair, in each of ROUNDS
ROUNDS = 3
BATCH = 500
PAYLOAD = b"x" * 16
MOVES = 100
GAP_S = 0.002
PACE_S = 0.001


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
        """CPU for a message, the least of some rounds."""
        return min(self._round() for _ in range(ROUNDS))

    def _round(self) -> float:
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
    """The same talkers badly spread over four shards, then placed by rules, and on one shard."""
    with Broker(Kind("one", shards=1), ["--no-stats"]) as one:
        alone = Pairs(one, 1).ns_each()
    rules = "".join(f'{{ name: "pair{n}-*", shard: {n % 4} }}\n' for n in range(PAIRS))
    with Broker(Kind("four", shards=4), ["--no-stats"], config="\n") as broker:
        pairs = Pairs(broker, 4)
        apart = pairs.ns_each()
        assert broker.directory is not None
        (broker.directory / "broker.conf").write_text(f"placement {{ rules: [\n{rules}] }}\n")
        asked(broker, ReloadRequest())
        until(lambda: sum(rule["in_place"] for rule in swarm.status(broker)["rules"]) == 2 * PAIRS)
        placed = pairs.ns_each()
    table("CPU per message of eight pairs", [("one shard", alone), ("four, badly spread", apart), ("placed", placed)])


def test_idle_connections_move() -> None:
    """CPU of a move beside that of the connection's accept, CONNECT and SUBs; and what others notice."""
    with Broker(Kind("two", shards=2), ["--no-stats"]) as broker:
        before = cpu_ns(broker)
        crowd = list(connected(broker, IDLE_CLIENTS))
        made = (cpu_ns(broker) - before) / len(crowd)
        there = {shard: row["connections"] for shard, row in swarm.rows(broker).items()}
        echo = client_on(broker, 0)
        talk(echo, b"SUB echo 1\r\nPING\r\n")
        calm = round_trips(echo, time.monotonic() + 3.0)
        calm_paced = round_trips(echo, time.monotonic() + 3.0, gap_s=PACE_S)
        before = cpu_ns(broker)
        moving = threading.Thread(target=asked, args=(broker, MoveRequest(0, 1, there[0])))
        moving.start()
        moving.join()
        moved = (cpu_ns(broker) - before) / there[0]
        # Back and forth, while somebody who stays talks: his round trips are not counted above.
        busy, rate = while_moving(broker, echo, there[0], 1)
        busy_paced, _ = while_moving(broker, echo, there[0], 0, PACE_S)
        for sock in crowd:
            sock.close()
    table("CPU per connection with ten subscriptions", [("accept, CONNECT, SUBs", made), ("move", moved)])
    for how, quiet, late in (("one after the other", calm, busy), ("every ms", calm_paced, busy_paced)):
        rows = [("calm: p99", quantiles(quiet, n=100)[98]), ("calm: median", median(quiet))]
        rows += [(f"{rate:,.0f} moves/s: median", median(late)), ("p99", quantiles(late, n=100)[98])]
        table(f"Round trips of a client that stays, {how}", [(n, t * 1e6) for n, t in rows], "µs")


def while_moving(
    broker: Broker, echo: socket.socket, clients: int, old: int, gap_s: float = 0
) -> tuple[list[float], float]:
    """Round trips while so many move from this shard to the other, and how many move in a second."""
    moving = threading.Thread(target=asked, args=(broker, MoveRequest(old, 1 - old, clients)))
    began = time.monotonic()
    moving.start()
    found = round_trips(echo, began + 60.0, moving.is_alive, gap_s=gap_s)
    moving.join()
    return found, clients / (time.monotonic() - began)


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


def round_trips(
    sock: socket.socket, until: float, condition: Callable[[], bool] = lambda: True, *, gap_s: float = 0
) -> list[float]:
    """Seconds of each message to itself, one after the other, or with pauses of that length at the mean."""
    found = []
    while time.monotonic() < until and condition():
        if gap_s:
            select.select([], [], [], random.uniform(0, 2 * gap_s))
        began = time.monotonic()
        sock.sendall(b"PUB echo 1\r\nx\r\n")
        said = b""
        while b"\r\nx\r\n" not in said:
            said += sock.recv(65536)
        found.append(time.monotonic() - began)
    return found


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
