"""The cost of monitoring to the shards: their CPU while they are scraped, and the longest that a page holds a loop.

A real broker with 2 shards and 10,000 connections, each with a subscription. CPU is what the kernel counted for each
process (/proc/PID/schedstat, ns), with and without scrapes in the same run. The longest hold is measured twice: inside
the shard, as CPU time between two turns of the loop (it logs that at debug level), and from outside, as the longest
round trip of a PING beside the page, which has the machine's own noise in it: see the row without any page.
"""

from __future__ import annotations

import http.client
import multiprocessing
import multiprocessing.connection
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.pages import Pages
from tests.support.servers import HOST, KINDS, Broker
from tests.support.swarm import rows

CONNECTIONS = 10_000
SCRAPES = 20
LOOKS = 20
HOLD = re.compile(r"(\w+) took (\d+) slices, the longest of ([\d.]+) ms CPU")


def on_cpu_ns(pid: int) -> int:
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0])


def dial(words: bytes) -> tuple[socket.socket, int]:
    """A connection on which these operations were sent, and its shard."""
    sock = socket.create_connection((HOST, PORT[0]), timeout=30)
    info = b""
    while not info.endswith(b"\n"):
        info += sock.recv(4096)
    sock.sendall(b'CONNECT {"verbose":false,"name":"bench"}\r\n' + words)
    found = re.search(rb'"shard":(\d+)', info)
    return sock, int(found[1]) if found else 0


PORT = [0]


def probe(port: int, pipe: multiprocessing.connection.Connection) -> None:
    """Sends PINGs to shard 0 without a pause; reports the longest round trips on request."""
    PORT[0] = port
    while True:
        sock, shard = dial(b"")
        if shard == 0:
            break
        sock.close()
    longest: list[float] = []
    pipe.send("ready")
    while True:
        began = time.perf_counter()
        sock.sendall(b"PING\r\n")
        answer = b""
        while not answer.endswith(b"PONG\r\n"):
            answer += sock.recv(4096)
        longest.append(time.perf_counter() - began)
        if pipe.poll():
            if pipe.recv() == "stop":
                return
            longest.sort()
            pipe.send((len(longest), longest[len(longest) // 2], longest[int(len(longest) * 0.99)], longest[-1]))
            longest = []


@pytest.fixture(scope="module")
def crowded() -> Iterator[tuple[Broker, Pages]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 500:
        pytest.skip(f"{CONNECTIONS} connections need as many descriptors, there are {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    broker = Broker(KINDS["gnatswarm-2"], args=["-m", "-1", "-D"], by_fork=False).start()
    PORT[0] = broker.port
    held = []
    try:
        for at in range(CONNECTIONS):
            held.append(dial(b"SUB device.%d.> 1\r\nPUB device.%d.a 1\r\nx\r\n" % (at, at))[0])
        pages = Pages.of(broker)
        until = time.monotonic() + 30
        while pages.json("/varz")["subscriptions"] < CONNECTIONS:
            assert time.monotonic() < until
        yield broker, pages
    finally:
        for sock in held:
            sock.close()
        broker.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_scraping_every_second(crowded):
    broker, pages = crowded
    processes = {f"shard {shard}": row["pid"] for shard, row in rows(broker).items()} | {"router": broker.pid}
    pause = threading.Event()
    connection = http.client.HTTPConnection(HOST, pages.port)

    def spent(paths: tuple[str, ...]) -> tuple[dict[str, int], float]:
        before, began = {name: on_cpu_ns(pid) for name, pid in processes.items()}, time.monotonic()
        for at in range(SCRAPES):
            for path in paths:
                connection.request("GET", path)
                assert connection.getresponse().read()
            pause.wait(max(0.0, began + at + 1 - time.monotonic()))
        return {name: on_cpu_ns(pid) - before[name] for name, pid in processes.items()}, time.monotonic() - began

    rest, rest_s = spent(())
    shown = [("nothing", rest, rest_s)]
    for paths in (("/varz",), ("/metrics",), ("/varz", "/metrics")):
        shown.append((" and ".join(paths), *spent(paths)))
    print(f"\nCPU in % of a core, {CONNECTIONS:,} connections, each page once a second for {SCRAPES} s")
    print(f"  {'asked for':<28}" + "".join(f"{name:>10}" for name in processes))
    for what, used, took_s in shown:
        print(f"  {what:<28}" + "".join(f"{used[name] / took_s / 1e7:>10.3f}" for name in processes))
    _what, used, took_s = shown[-1]
    for name in processes:
        if name.startswith("shard"):
            assert used[name] / took_s - rest[name] / rest_s < 0.01 * 1e9, f"{name}: more than 1 % of a core"


def test_the_longest_that_a_page_holds_a_loop(crowded):
    broker, pages = crowded
    here, there = multiprocessing.Pipe()
    prober = multiprocessing.get_context("spawn").Process(target=probe, args=(broker.port, there), daemon=True)
    prober.start()
    assert here.recv() == "ready"

    def beside(path: str) -> tuple[int, tuple[int, float, float, float], list[float]]:
        here.send("say")
        here.recv()
        start, size = len(broker.log.lines), 0
        for _ in range(LOOKS):
            size = len(pages.get(path).body) if path else 0
            if not path:
                threading.Event().wait(0.1)
        here.send("say")
        found = here.recv()
        lines = [HOLD.search(line) for line in broker.log.lines[start:]]
        return size, found, [float(line[3]) for line in lines if line]

    try:
        results = [
            (path, *beside(path))
            for path in (
                "",
                f"/connz?limit={CONNECTIONS}",
                f"/connz?limit={CONNECTIONS}&subs=detail&sort=bytes_to",
                f"/subsz?subs=1&limit={CONNECTIONS}",
                "/subjectz?limit=1000",
                "/slowz",
            )
        ]
    finally:
        here.send("stop")
        prober.join(10)
    print(
        f"\nThe longest hold of a loop, {CONNECTIONS:,} connections on 2 shards, each page {LOOKS} times in a row, ms"
    )
    print(f"  {'page':<46}{'KB':>8}{'CPU in one go':>15}{'PING p50':>10}{'p99':>8}{'max':>8}")
    for path, size, (_count, half, most, longest), holds in results:
        inside = f"{max(holds):.2f}" if holds else "-"
        print(
            f"  {path or 'none':<46}{size // 1000:>8}{inside:>15}"
            f"{half * 1e3:>10.2f}{most * 1e3:>8.2f}{longest * 1e3:>8.2f}"
        )
    for path, _size, _pings, holds in results:
        if path.startswith("/connz"):
            assert holds
            assert max(holds) < 2.0, f"{path} held a loop for {max(holds)} ms"
