"""What messages, subscriptions and connections cost a broker by the number of its shards: `make scaling`.

CPU of all its processes from /proc/*/schedstat, per published message, per SUB+UNSUB pair, or per connection, the
least of three runs; memory is the proportional one (PSS) of all processes. GNATSWARM_SHARDS: which numbers of shards.
On a machine of few cores more shards take turns, so rates say nothing here, and CPU holds what switching costs.
Clients are plain sockets in threads of this process, which is not counted.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.servers import HOST, Broker, Kind, session_pids

SHARDS = tuple(map(int, os.environ.get("GNATSWARM_SHARDS", "1 2 4 8").split()))
RUNS = 3
PAYLOAD = b"x" * 16
AHEAD_BYTES = 4 << 20
MESSAGES = 1_000_000
PAIRS = 30_000
CONNECTIONS = 500
SUBSCRIPTIONS = 10  # of each
HELD = 100_000  # subscriptions, on one connection
HELLO = b'CONNECT {"verbose":false}\r\nPING\r\n'


def cpu_ns(broker: Broker) -> int:
    """CPU time of all threads of all its processes so far."""
    total = 0
    for pid in session_pids(broker.pid):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total


def talk(sock: socket.socket, words: bytes) -> None:
    """Send these operations, and read until the PONG."""
    sock.sendall(words)
    said = b""
    while not said.endswith(b"PONG\r\n"):
        said += sock.recv(65536)


def client_on(broker: Broker, shard: int) -> socket.socket:
    """A client of that shard."""
    while True:
        sock = socket.create_connection((HOST, broker.port))
        info = b""
        while not info.endswith(b"\n"):
            info += sock.recv(65536)
        if json.loads(info[5:])["shard"] == shard:
            talk(sock, HELLO)
            return sock
        sock.close()


class Reader(threading.Thread):
    """Reads the messages to one subscriber."""

    def __init__(self, sock: socket.socket, wanted: int) -> None:
        super().__init__(daemon=True)
        self.sock, self.wanted, self.taken = sock, wanted, 0

    def run(self) -> None:
        room = bytearray(1 << 20)
        while self.taken < self.wanted:
            self.taken += self.sock.recv_into(room)


def message_ns(broker: Broker, publisher_on: int, subscribers_on: list[int]) -> float:
    """One run of 16 B messages: CPU per message that was published."""
    publisher = client_on(broker, publisher_on)
    subscribers = [client_on(broker, shard) for shard in subscribers_on]
    for sock in subscribers:
        talk(sock, b"SUB a 1\r\nPING\r\n")
    unit = len(b"MSG a 1 16\r\n") + len(PAYLOAD) + 2
    readers = [Reader(sock, MESSAGES * unit) for sock in subscribers]
    batch = (b"PUB a 16\r\n" + PAYLOAD + b"\r\n") * 2_500
    before = cpu_ns(broker)
    for reader in readers:
        reader.start()
    for sent in range(0, MESSAGES, 2_500):
        while any(sent * unit - reader.taken > AHEAD_BYTES for reader in readers):
            threading.Event().wait(0.0005)
        publisher.sendall(batch)
    for reader in readers:
        reader.join(60)
        assert reader.taken >= reader.wanted  # (or a PING more)
    used = cpu_ns(broker) - before
    for sock in [publisher, *subscribers]:
        sock.close()
    return used / MESSAGES


def pair_ns(broker: Broker, in_between: int) -> float:
    """SUB and UNSUB of ever new subjects, a PING after every 100: CPU per pair.

    `in_between`: pairs whose SUBs come before their UNSUBs.
    """
    sock = client_on(broker, 0)
    before = cpu_ns(broker)
    for first in range(0, PAIRS, 100):
        words = []
        for start in range(first, first + 100, in_between):
            numbers = range(start, start + in_between)
            words += [b"SUB _INBOX.abcdefgh.%d %d\r\n" % (number, number) for number in numbers]
            words += [b"UNSUB %d\r\n" % number for number in numbers]
        talk(sock, b"".join(words) + b"PING\r\n")
    used = cpu_ns(broker) - before
    sock.close()
    return used / PAIRS


def connection_ns(broker: Broker) -> float:
    """Connections that log in and make ten subscriptions each: CPU of one, until all shards know of it."""
    before = cpu_ns(broker)
    socks = []
    for number in range(CONNECTIONS):
        sock = socket.create_connection((HOST, broker.port))
        socks.append(sock)
        subs = b"".join(b"SUB own.%d.%d %d\r\n" % (number, sid, sid) for sid in range(SUBSCRIPTIONS))
        talk(sock, HELLO.removesuffix(b"PING\r\n") + subs + b"PING\r\n")
    used = cpu_ns(broker) - before
    for sock in socks:
        sock.close()
    return used / CONNECTIONS


def resident(broker: Broker) -> int:
    """Bytes of all its processes; what they share counts once."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in session_pids(broker.pid)]
    return sum(int(re.findall(r"^Pss: +(\d+)", text, re.MULTILINE)[0]) for text in rollups) * 1024


def interest_bytes(broker: Broker) -> float:
    """Memory of one subscription: at its shard, and of the interest at every other."""
    sock = client_on(broker, 0)
    before = resident(broker)
    for first in range(0, HELD, 1_000):
        words = [b"SUB held.%06d.x %d\r\n" % (number, number) for number in range(first, first + 1_000)]
        talk(sock, b"".join(words) + b"PING\r\n")
    grown = resident(broker) - before
    sock.close()
    return grown / HELD


def least(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(RUNS))


def test_cost_by_the_number_of_shards():
    rows: dict[str, list[str]] = {}

    def note(name: str, value: float | None, digits: int) -> None:
        rows.setdefault(name, []).append("–" if value is None else f"{value / 1_000:.{digits}f}")

    for shards in SHARDS:
        with Broker(Kind(f"gnatswarm-{shards}", shards), by_fork=False) as broker:
            note("1:1, same shard", least(partial(message_ns, broker, 0, [0])), 3)
            crossing = least(partial(message_ns, broker, 0, [shards - 1])) if shards > 1 else None
            note("1:1, different shards", crossing, 3)
            note("a subscriber on each shard", least(partial(message_ns, broker, 0, list(range(shards)))), 3)
            note("SUB+UNSUB, one after the other", least(partial(pair_ns, broker, 1)), 2)
            note("SUB+UNSUB, 100 then 100", least(partial(pair_ns, broker, 100)), 2)
            note("a connection with ten subscriptions", least(partial(connection_ns, broker)), 1)
            note("bytes of a subscription", interest_bytes(broker) * 1_000, 0)
    print("\nCPU µs of the broker for each message, pair or connection, by shards")
    print(f"  {'':<34}" + "".join(f"{shards:>9}" for shards in SHARDS))
    for name, values in rows.items():
        print(f"  {name:<34}" + "".join(f"{value:>9}" for value in values))
