"""How evenly real shards get connections in both accept modes, and how many are accepted per second.

Spread: connections are made one after the other by a client that waits for each INFO, which names its shard; max/mean
over the shards, averaged over repetitions, each on a broker without other connections. Rate: 10,000 log-ins in batches
of 64 by the compiled dialler, one process, on the same machine: compare modes, not machines. CPU: of router and
shards, from /proc, for those.
"""

from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path

import pytest

from gnatswarm.loadtest.dialing import dial_many
from tests.support import swarm
from tests.support.servers import HOST, Broker, Kind

REPETITIONS = {2: 20, 10: 12, 100: 5}
MANY = 10_000
HELLO = (b'CONNECT {"verbose":false,"name":"c', b'"}\r\nPING\r\n')


def max_over_mean(counts: list[int]) -> float:
    return max(counts) / (sum(counts) / len(counts))


def spread_of(broker: Broker, count: int, shards: int) -> float:
    """Max ÷ mean of the shards' counts of this many connections, which are closed afterwards."""
    counts = [0] * shards
    opened = []
    for _ in range(count):
        sock = socket.create_connection((HOST, broker.port))
        opened.append(sock)
        counts[json.loads(sock.makefile("rb").readline()[5:])["shard"]] += 1
    for sock in opened:
        sock.close()
    while swarm.status(broker)["connections"]:
        pass
    return max_over_mean(counts)


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def rate_of(broker: Broker, shards: int) -> tuple[float, float, float, float]:
    """Max/mean, connections per second, and CPU of router and shards for each in µs."""
    processes = [row["pid"] for row in swarm.rows(broker).values()]
    before = cpu_s(broker.pid), sum(map(cpu_s, processes))
    address = bytes([2, 0]) + broker.port.to_bytes(2, "big") + socket.inet_aton(HOST) + bytes(8)
    descriptors, ns = dial_many(socket.AF_INET, address, MANY, *HELLO)
    after = cpu_s(broker.pid), sum(map(cpu_s, processes))
    counts = [row["connections"] for row in swarm.rows(broker).values()]
    assert sum(counts) == MANY
    for fd in descriptors:
        os.close(fd)
    used = [(b - a) / MANY * 1e6 for a, b in zip(before, after, strict=True)]
    return max_over_mean(counts), MANY / (ns / 1e9), used[0], used[1]


@pytest.mark.parametrize("shards", [2, 4])
def test_spread_and_rate_of_both_modes(shards):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < MANY + 1_000:
        pytest.skip(f"{MANY} connections need more than {hard} descriptors")
    print(f"\nMax/mean of connections over {shards} shards, connections per second, CPU µs per connection")
    print(f"  {'mode':<12}" + "".join(f"{count:>8}" for count in (*REPETITIONS, MANY)) + "     per s  router  shards")
    for mode in ("reuseport", "handoff"):
        with Broker(Kind(f"gnatswarm-{shards}", shards), args=["--accept", mode], by_fork=False) as broker:
            spreads = [
                sum(spread_of(broker, count, shards) for _ in range(times)) / times
                for count, times in REPETITIONS.items()
            ]
            runs = sorted((rate_of(broker, shards) for _ in range(3)), key=lambda run: run[1])
            spread, rate, router, shard = runs[1]
            row = "".join(f"{value:8.2f}" for value in (*spreads, spread))
            print(f"  {mode:<12}{row}{rate:10,.0f}{router:8.1f}{shard:8.1f}")
