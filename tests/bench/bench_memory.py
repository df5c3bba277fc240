"""What a subscription holds, and what an idle connection: resident memory of a process made for each measurement."""

from __future__ import annotations

from functools import partial

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.sublist import Sublist
from tests.bench.measure import bytes_each, table
from tests.support.engine import Engine

SUBSCRIPTIONS = 100_000
CONNECTIONS = 20_000


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
