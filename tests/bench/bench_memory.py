"""What a subscription holds, and what an idle connection: resident memory of a process made for each measurement.

And what a broker without clients holds, in all its processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.sublist import Sublist
from tests.bench.measure import bytes_each, table
from tests.support.engine import Engine
from tests.support.servers import HOST, KINDS, Broker, session_pids

SUBSCRIPTIONS = 100_000
CONNECTIONS = 20_000
# What no broker of ours can be without: an event loop and the formats, in a keeper, a router and two shards.
FLOOR = """
import asyncio, logging, os, ssl, sys, gc
import msgspec, orjson, uvloop
gc.freeze()
for _ in range(3):
    if os.fork() == 0:
        break
async def idle():
    print(flush=True)
    await asyncio.get_running_loop().create_future()
uvloop.run(idle())
"""
SETTLED_S, SETTLED_SHARE = 0.5, 0.005  # it changes by so little in that time


def engine_with_subscriptions(line: bytes) -> object:
    engine = Engine()
    client = engine.client()
    for start in range(0, SUBSCRIPTIONS, 10_000):
        numbers = range(start, start + 10_000)
        client.feed(b"".join(line.replace(b"N", b"%d" % i) + b" %d\r\n" % i for i in numbers))
    assert client.connection.subscriptions == SUBSCRIPTIONS
    return engine, client


def connections() -> object:
    fanout, sublist, fence, limits = Fanout(), Sublist(b"$G", InterestSink()), Fence(), Limits()
    return [ClientConnection(fanout, sublist, fence, i, limits) for i in range(CONNECTIONS)]


def clients(connect: bytes, said: bytes) -> object:
    engine = Engine()
    kept = []
    for i in range(CONNECTIONS):
        client = engine.client(connect)
        client.feed(said.replace(b"N", b"%d" % i))
        kept.append(client)
    return engine, kept


def test_memory_of_a_subscription():
    lines = [b"SUB device.N.status", b"SUB same.subject", b"SUB device.N.*", b"SUB device.N.status workers"]
    rows = [(line.decode(), bytes_each(partial(engine_with_subscriptions, line), SUBSCRIPTIONS)) for line in lines]
    table("Memory per subscription, 100,000 on one connection", rows, "B")


def test_memory_of_an_idle_connection():
    connect = b'CONNECT {"verbose":false}\r\n'
    rows = [
        ("the engine's part alone", bytes_each(connections, CONNECTIONS)),
        ("with the session and socket of a test", bytes_each(partial(clients, b"", b""), CONNECTIONS)),
        ("… and a CONNECT", bytes_each(partial(clients, connect, b""), CONNECTIONS)),
        ("… and a subscription", bytes_each(partial(clients, connect, b"SUB device.N 1\r\n"), CONNECTIONS)),
        ("… and a publish", bytes_each(partial(clients, connect, b"SUB device.N 1\r\nPUB a 1\r\nx\r\n"), CONNECTIONS)),
    ]
    table("Memory per idle connection", rows, "B")


def proportional_kb(session: int) -> int:
    """The memory of these processes, when it hardly changes any more; pages that they share count once."""
    before = -1
    while True:
        now = 0
        for pid in session_pids(session):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            now += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        if abs(now - before) <= SETTLED_SHARE * now:
            return now
        before = now
        threading.Event().wait(SETTLED_S)


def floor_kb() -> int:
    with subprocess.Popen([sys.executable, "-c", FLOOR], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        try:
            return proportional_kb(process.pid)
        finally:
            for pid in session_pids(process.pid):
                os.kill(pid, signal.SIGKILL)


def test_memory_at_rest():
    rows = [("four processes with uvloop, ssl, msgspec, orjson", floor_kb() / 1000)]
    for kind in KINDS.values():
        if not kind.is_oracle or shutil.which("nats-server"):
            with Broker(kind, by_fork=False) as broker, socket.create_connection((HOST, broker.port)) as client:
                assert client.recv(4) == b"INFO"
                rows.append((str(kind), proportional_kb(broker.pid) / 1000))
    table("Proportional memory at rest, all processes", rows, "MB")
