"""What permissions cost: publishing, subscribing and delivery with and without them. `make bench` prints the tables."""

from __future__ import annotations

from functools import partial

from gnatswarm.broker import options
from gnatswarm.broker.permissions import Permissions
from tests.bench.bench_engine import filled, listener, published
from tests.bench.measure import ns_each, table
from tests.support.engine import Engine

MANY = tuple(f"other.{i}.*" for i in range(10_000))
RIGHTS = {
    "no permissions": None,
    "one allowed subject": options.Permissions(publish_allow=("bench.>",)),
    "10,000 allowed, and a deny list": options.Permissions(
        publish_allow=(*MANY, "bench.>"), publish_deny=("no.>", "*.secret"), subscribe_allow=(*MANY, "bench.>")
    ),
}


def publishing(rights: options.Permissions | None, lines: bytes) -> float:
    engine = Engine()
    publisher = engine.client()
    listener(engine, b"SUB bench.> 1\r\n")
    publisher.connection.enter(engine.probe.sublist, Permissions(rights) if rights else None)
    data = filled(lines)
    publisher.feed(data)
    return ns_each(partial(publisher.feed, data), data.count(b"PUB "))


def test_publish():
    kinds = {
        "the same line again": published(b"bench.subject", 16),
        "two lines in turn": b"".join(published(b"bench.%d" % i, 16) for i in range(2)),
        "1,000 subjects in turn": b"".join(published(b"bench.%d" % i, 16) for i in range(1000)),
    }
    for kind, lines in kinds.items():
        table(f"Publishing 1:1, {kind}; per message", [(name, publishing(one, lines)) for name, one in RIGHTS.items()])


def test_publishers_with_different_permissions_in_turn():
    """The worst case: a cached result holds the verdict for one of them, so each publish is checked again."""
    rows = []
    for name, rights in RIGHTS.items():
        engine = Engine()
        publishers = engine.clients(2)
        listener(engine, b"SUB bench.> 1\r\n")
        for publisher in publishers:
            publisher.connection.enter(engine.probe.sublist, Permissions(rights) if rights else None)
        line = published(b"bench.subject.with.more", 16)

        def in_turn(publishers=publishers, line=line):
            for _ in range(2000):
                for publisher in publishers:
                    publisher.feed(line, finish=False)
            publishers[0].feed(b"")

        rows.append((name, ns_each(in_turn, 4000)))
    table("Two publishers in turn, one message a read; per message", rows)


def test_denied_and_delivered():
    rows = []
    filters = {"no permissions": None, "wildcard, a deny list": options.Permissions(subscribe_deny=(*MANY, "bench.no"))}
    for name, rights in filters.items():
        engine = Engine()
        publisher, subscriber = engine.clients(2)
        subscriber.connection.enter(engine.probe.sublist, Permissions(rights) if rights else None)
        subscriber.feed(b"SUB bench.> 1\r\n")
        subscriber.socket.is_counting = True
        data = filled(b"".join(published(b"bench.%d" % i, 16) for i in range(1000)))
        publisher.feed(data)
        rows.append((name, ns_each(partial(publisher.feed, data), data.count(b"PUB "))))
    table("Delivering to a wildcard, 1,000 subjects in turn; per message", rows)


def test_subscribe():
    rows = []
    for name, rights in RIGHTS.items():
        engine = Engine()
        client = engine.client()
        client.connection.enter(engine.probe.sublist, Permissions(rights) if rights else None)
        data = filled(b"SUB bench.a.b 1\r\nUNSUB 1\r\n", 65_536)
        rows.append((name, ns_each(partial(client.feed, data), data.count(b"UNSUB"))))
    table("SUB and UNSUB", rows)
