"""`make demo`: a broker of several shards, clients that do something worth looking at, ingest, and the report.

Writes build/demo/: the statistics, the Parquet tables, report.html. Takes about a minute, most of it Spark's.
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
from pathlib import Path

OUT = Path("build/demo")
SECONDS = 12.0
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


def start_broker() -> tuple[subprocess.Popen[str], int]:
    """On any free port, with windows of one second."""
    command = [sys.executable, "-P", "-m", "router", "-a", "127.0.0.1", "-p", "-1", "--shards", str(SHARDS)]
    broker = subprocess.Popen(
        [*command, "--stats-dir", str(OUT / "stats"), "--stats-window", "1s"], stderr=subprocess.PIPE, text=True
    )
    assert broker.stderr is not None
    port = 0
    for line in broker.stderr:
        if found := re.search(r"Listening for client connections on \S*:(\d+)", line):
            port = int(found[1])
        if "Server is ready" in line:
            threading.Thread(target=broker.stderr.read, daemon=True).start()
            return broker, port
    raise SystemExit("the broker did not start")


def work(port: int) -> None:
    """Prices fan out wide, orders go to a queue group, metrics reach nobody, requests come one at a time."""
    chance = random.Random(1)
    readers = []
    for i in range(24):
        reader = Client(port, f"ticker-{i}")
        reader.say(b"SUB prices.> 1\r\n" if i < 12 else b"SUB prices.%d.* 1\r\n" % (i % 6))
        readers.append(reader)
    for i in range(6):
        worker = Client(port, f"worker-{i}")
        worker.say(b"SUB orders.* workers 1\r\n")
        readers.append(worker)
    for reader in readers:
        reader.read_on()
    prices, orders, metrics = Client(port, "exchange"), Client(port, "shop"), Client(port, "probe")
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        burst = [b"PUB prices.%d.eur 24\r\n%024d\r\n" % (min(5, int(chance.expovariate(0.7))), n) for n in range(300)]
        prices.say(b"".join(burst))
        orders.say(
            b"".join(b"PUB orders.%s 40\r\n%040d\r\n" % (chance.choice([b"new", b"paid"]), n) for n in range(80))
        )
        metrics.say(
            b"PUB metrics.host1.cpu 8\r\n12345678\r\n" * 40 + b"PUB _INBOX.%d 0\r\n\r\n" % chance.getrandbits(32)
        )


def main() -> int:
    """The demo; its exit code."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    broker, port = start_broker()
    print(f"a broker of {SHARDS} shards on port {port}; {SECONDS:.0f} s of work …", flush=True)
    try:
        work(port)
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(20)
    for job in (
        ["ingest", "--stats-dir", str(OUT / "stats"), "--out", str(OUT / "tables")],
        ["report", "--from-parquet", str(OUT / "tables"), "--out", str(OUT / "report.html")],
    ):
        print(f"gnatswarm {' '.join(job)}", flush=True)
        done = subprocess.run([sys.executable, "-P", "-m", f"spark.jobs.{job[0]}", *job[1:]], check=False)
        if done.returncode:
            return done.returncode
    print(json.dumps({"report": str((OUT / "report.html").resolve())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
