"""What subscribers notice of an upgrade under load, beside a control that starts as many processes.

100 publishers and 100 subscribers, pair by pair, 50,000 messages a second together, if the machine can. Each message
has the next number of its pair: one that is lost, doubled or out of order ends the run. A gap is the time between two
reads of a subscriber's socket that brought something.
"""

from __future__ import annotations

import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import FollowRequest, UpgradeRequest
from tests.bench.bench_shards import client_on, talk
from tests.bench.measure import table
from tests.support.servers import Broker, Kind, session_pids

PAIRS = 100
MSGS_PER_S = 50_000
BEAT_S = 0.02
CALM_S = 5.0
ROUNDS = 3
MOST_GAP_S = 0.05  # of a subscriber, over the control
NUMBER = re.compile(rb"^(\d{16})\r\n", re.MULTILINE)
MESSAGE = b"PUB p%d 16\r\n%016d\r\n"


class Load:
    """Numbers from each publisher to its subscriber."""

    def __init__(self, broker: Broker) -> None:
        self.publishers = [client_on(broker, n % 2) for n in range(PAIRS)]
        self.subscribers = [client_on(broker, n // 2 % 2) for n in range(PAIRS)]
        for n, sock in enumerate(self.subscribers):
            talk(sock, b"SUB p%d 1\r\nPING\r\n" % n)
        self.sent = [0] * PAIRS
        self.read = [0] * PAIRS
        self.longest = [0.0] * PAIRS
        self.wrong: list[str] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._listen)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        each = int(MSGS_PER_S * BEAT_S / PAIRS)
        due = time.monotonic()
        while not self._is_over.is_set():
            for n, sock in enumerate(self.publishers):
                first = self.sent[n]
                sock.sendall(b"".join([MESSAGE % (n, number) for number in range(first, first + each)]))
                self.sent[n] += each
            due = max(due + BEAT_S, time.monotonic() - BEAT_S)
            self._is_over.wait(max(0.0, due - time.monotonic()))

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        for n, sock in enumerate(self.subscribers):
            selector.register(sock, selectors.EVENT_READ, n)
        rest = [b""] * PAIRS
        heard_s = [time.monotonic()] * PAIRS
        while not (self._is_over.is_set() and self.read == self.sent) and not self.wrong:
            for key, _ in selector.select(1.0):
                n = key.data
                data = self.subscribers[n].recv(1 << 18)
                now = time.monotonic()
                self.longest[n] = max(self.longest[n], now - heard_s[n])
                heard_s[n] = now
                if not data:
                    self.wrong.append(f"subscriber {n} is disconnected")
                    return
                text = rest[n] + data
                numbers = [int(number) for number in NUMBER.findall(text)]
                rest[n] = text.rpartition(b"\r\n")[2]
                expected = self.read[n]
                if numbers != list(range(expected, expected + len(numbers))):
                    self.wrong.append(f"subscriber {n}: {numbers[:5]}… instead of {expected}…")
                    return
                self.read[n] += len(numbers)

    def gaps(self) -> list[float]:
        """The longest of each subscriber since the last call."""
        found, self.longest = self.longest, [0.0] * PAIRS
        return found

    def finish(self) -> None:
        """Every message arrives, once and in order."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.wrong, self.wrong
        assert self.read == self.sent


def upgraded(broker: Broker, program: str) -> str:
    """What the last router says."""
    request: UpgradeRequest | FollowRequest = UpgradeRequest(program)
    while True:
        try:
            reply = exchange(find(broker.pid, broker.port), request, 60.0, lambda text: None)
            return reply.text or reply.error
        except (ConnectionAbortedError, ConnectionResetError):
            request = FollowRequest()


def test_gaps_of_subscribers_in_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "gnatswarm"
    path.write_text(f"#!{sys.executable} -P\nimport sys\nfrom gnatswarm.router.cli import main\nsys.exit(main())\n")
    path.chmod(0o755)
    idle = "import asyncio, ssl, uvloop, gnatswarm.router.cli, gnatswarm.shards.worker, sys; sys.stdin.read()"
    with Broker(Kind("two", shards=2), ["--no-stats"]) as broker:
        load = Load(broker)
        try:
            threading.Event().wait(1.0)
            load.gaps()
            began, before = time.monotonic(), sum(load.read)
            gaps: dict[str, list[list[float]]] = {"control": [], "calm": [], "upgrade": []}
            for _ in range(ROUNDS):
                threading.Event().wait(CALM_S)
                gaps["calm"].append(load.gaps())
                old, at = set(session_pids(broker.pid)), time.monotonic()
                assert upgraded(broker, str(path)) == f"upgraded to {path}"
                took = time.monotonic() - at
                gaps["upgrade"].append(load.gaps())
                # Those that are there now, one shard more meanwhile, the keeper, and the program that was asked first.
                started = len(set(session_pids(broker.pid)) - old) + 3
                processes = []
                for _ in range(started):
                    processes.append(subprocess.Popen([sys.executable, "-c", idle], stdin=subprocess.PIPE))
                    threading.Event().wait(took / started)
                gaps["control"].append(load.gaps())
                for process in processes:
                    process.communicate()
            rate = (sum(load.read) - before) / (time.monotonic() - began)
        finally:
            load.finish()
        for sock in [*load.publishers, *load.subscribers]:
            assert isinstance(sock, socket.socket)
            sock.close()
    print(f"\n{rate:,.0f} messages a second; the upgrade took {took:.1f} s; {started} processes in the control")
    typical = {kind: median(median(of) for of in rounds) for kind, rounds in gaps.items()}
    longest = {kind: median(max(of) for of in rounds) for kind, rounds in gaps.items()}
    for name, found in ("of a subscriber", typical), ("of all subscribers", longest):
        table(f"The longest gap {name}, median of {ROUNDS}", [(kind, gap * 1000) for kind, gap in found.items()], "ms")
    assert typical["upgrade"] <= typical["control"] + MOST_GAP_S
