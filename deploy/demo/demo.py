"""`make demo`: a broker of several shards, clients that do something worth looking at, ingest, and the report.

Then placement: pairs that talk to each other, spread by chance; what `gnatswarm place` promises of their statistics;
and what came true when they are connected again, and have been moved to where the rules say. Writes build/demo/: the
statistics, the Parquet tables, report.html, every answer as Parquet and CSV, the plots as PNG, placement.conf. Takes
two minutes, most of them Spark's.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

OUT = Path("build/demo")
SECONDS = 12.0
PAIRS_SECONDS = 4.0
PLACED_WITHIN_S = 30.0
PAIRS = ("hall", "kitchen", "cellar", "attic", "garden", "garage", "porch", "study", "lobby")
SHARDS = 3


class Client:
    """A plain NATS client: says things, reads nothing unless told to."""

    def __init__(self, port: int, name: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(20)
        self.sock.sendall(b'CONNECT {"verbose":false,"name":"%s"}\r\n' % name.encode())
        self.say(b"")

    def say(self, operations: bytes) -> None:
        """Until the broker has done all of it."""
        self.sock.sendall(operations + b"PING\r\n")
        seen = b""
        while b"PONG\r\n" not in seen:  # a PING of the broker's own may follow it
            seen = seen[-5:] + self.sock.recv(1 << 16)

    def read_on(self) -> None:
        """In a thread, until the connection ends."""

        def read() -> None:
            self.sock.settimeout(None)
            try:
                while self.sock.recv(1 << 18):
                    pass
            except OSError:
                pass

        threading.Thread(target=read, daemon=True).start()


def start_broker(stats: str = "stats", more: str = "") -> tuple[subprocess.Popen[str], int]:
    """On any free port, with windows of one second; who leaves 4 MB unread is slow."""
    config = OUT / "broker.conf"
    config.write_text(f"max_pending: 4MB\n{more}", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "gnatswarm", "-c", str(config), "-a", "127.0.0.1", "-p", "-1"]
    broker = subprocess.Popen(
        [*command, "--shards", str(SHARDS), "--stats-dir", str(OUT / stats), "--stats-window", "1s"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert broker.stderr is not None
    port = 0
    said = []
    for line in broker.stderr:
        said.append(line)
        if found := re.search(r"Listening for client connections on \S*:(\d+)", line):
            port = int(found[1])
        if "Server is ready" in line:
            threading.Thread(target=broker.stderr.read, daemon=True).start()
            return broker, port
    raise SystemExit("the broker did not start:\n" + "".join(said))


def reading(port: int, name: str, subscription: bytes) -> Client:
    """A client that wants something, and reads it."""
    client = Client(port, name)
    client.say(b"SUB %s 1\r\n" % subscription)
    client.read_on()
    return client


def work(port: int) -> None:
    """What an operator would want to know of."""
    chance = random.Random(1)
    for i in range(24):  # prices fan out wide; some subjects much more than others
        reading(port, f"ticker-{i}", b"prices.>" if i < 12 else b"prices.%d.*" % (i % 6))
    for i in range(6):
        reading(port, f"worker-{i}", b"orders.* workers")
    for i in range(2):
        reading(port, f"biller-{i}", b"orders.paid billing")
    sleeper = Client(port, "archive")  # subscribes to all prices, and never reads
    sleeper.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sleeper.say(b"SUB prices.> 1\r\n")
    prices, orders, probe = Client(port, "exchange"), Client(port, "shop"), Client(port, "probe")
    started = time.monotonic()
    has_more_billers = False
    while (now := time.monotonic() - started) < SECONDS:
        burst = [b"PUB prices.%d.eur 24\r\n%024d\r\n" % (min(5, int(chance.expovariate(0.7))), n) for n in range(300)]
        prices.say(b"".join(burst))
        orders.say(
            b"".join(b"PUB orders.%s 40\r\n%040d\r\n" % (chance.choice([b"new", b"paid"]), n) for n in range(80))
        )
        # Metrics that nobody collects any more, and replies to somebody who has gone.
        probe.say(b"PUB metrics.host1.cpu 8\r\n12345678\r\n" * 40 + b"PUB _INBOX.%d 0\r\n\r\n" % chance.getrandbits(32))
        if not has_more_billers and now > SECONDS / 2:
            has_more_billers = True
            for i in range(2, 4):
                reading(port, f"biller-{i}", b"orders.paid billing")


def pairs(port: int, *, has_rules: bool) -> None:
    """Each thermometer has one display, which reads it; they talk once all are where rules say, if there are any."""
    for room in PAIRS:
        reading(port, f"display-{room}", b"temperature.%s" % room.encode())
    thermometers = [Client(port, f"thermometer-{room}") for room in PAIRS]
    if has_rules:
        wait_until_placed(port, 2 * len(PAIRS))
    started = time.monotonic()
    while time.monotonic() - started < PAIRS_SECONDS:
        for room, thermometer in zip(PAIRS, thermometers, strict=True):
            thermometer.say(b"PUB temperature.%s 4\r\n21.5\r\n" % room.encode() * 50)


def wait_until_placed(port: int, clients: int) -> None:
    """Until each of so many clients is on the shard where rules say."""
    until = time.monotonic() + PLACED_WITHIN_S
    while time.monotonic() < until:
        command = [sys.executable, "-P", "-m", "gnatswarm", "status", "--json", "-p", str(port)]
        rules = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["rules"]
        if sum(rule["in_place"] for rule in rules) == clients:
            return
        time.sleep(0.2)
    print(f"not all clients were where they belong after {PLACED_WITHIN_S:.0f} s", flush=True)


def act(deed: Callable[[int], None], seconds: float, stats: str = "stats", more: str = "") -> None:
    """Start a broker, have this done, stop it."""
    broker, port = start_broker(stats, more)
    print(f"a broker of {SHARDS} shards on port {port}; {seconds:.0f} s of work …", flush=True)
    try:
        deed(port)
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(20)


def run(*job: str) -> int:
    """`gnatswarm JOB…`; its exit code."""
    print(f"gnatswarm {' '.join(job)}", flush=True)
    command = [sys.executable, "-P", "-m", f"gnatswarm.spark.jobs.{job[0]}", *job[1:]]
    return subprocess.run(command, check=False).returncode


def placement() -> int:
    """Pairs before and after; the exit code."""
    rules = OUT / "placement.conf"
    act(partial(pairs, has_rules=False), PAIRS_SECONDS, "before")
    if code := run("place", "--stats-dir", str(OUT / "before"), "--out", str(rules)):
        return code
    # By chance they may have been well placed: then there is no file.
    if not rules.exists():
        return 0
    act(partial(pairs, has_rules=True), PAIRS_SECONDS, "after", f'include "{rules.name}"\n')
    return run("place", "--stats-dir", str(OUT / "after"), "--check", str(rules))


def main() -> int:
    """The demo; its exit code."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    act(work, SECONDS)
    for job in (
        ["ingest", "--stats-dir", str(OUT / "stats"), "--out", str(OUT / "tables")],
        [
            "report",
            "--from-parquet",
            str(OUT / "tables"),
            "--out",
            str(OUT / "report.html"),
            "--tables",
            str(OUT / "answers"),
            "--png",
            str(OUT / "plots"),
        ],
    ):
        if code := run(*job):
            return code
    if code := placement():
        return code
    print(json.dumps({"report": str((OUT / "report.html").resolve())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
