"""The engine without sockets: parsing, matching, fan-out, subscribing. `make bench` prints the tables."""

from __future__ import annotations

from functools import partial

import pytest

from gnatswarm.probes.engine import parse_all
from tests.bench.measure import ns_each, table
from tests.support.engine import QUIET, WITH_HEADERS, Engine, EngineClient

READ = 262_144  # bytes of one read
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"


def filled(operation: bytes, size: int = READ) -> bytes:
    """As many of them as one read may bring."""
    return operation * (size // len(operation))


def published(subject: bytes, size: int) -> bytes:
    return b"PUB %s %d\r\n%s\r\n" % (subject, size, b"x" * size)


def listener(engine: Engine, said: bytes, connect: bytes = QUIET) -> EngineClient:
    client = engine.client(connect)
    client.feed(said)
    client.socket.is_counting = True
    return client


def test_parser():
    lines = {
        "PUB 16 B": published(b"bench.subject", 16),
        "PUB 128 B": published(b"bench.subject", 128),
        "PUB with reply": b"PUB bench.subject _INBOX.abcdef.1 16\r\n" + b"x" * 16 + b"\r\n",
        "PUB, lower case": b"pub bench.subject 16\r\n" + b"x" * 16 + b"\r\n",
        "HPUB": b"HPUB bench.subject 18 34\r\n" + HEADER + b"x" * 16 + b"\r\n",
        "SUB": b"SUB _INBOX.abcdefghijklmnop.* 12\r\n",
        "SUB with queue": b"SUB bench.subject workers 12\r\n",
        "UNSUB": b"UNSUB 12 1\r\n",
        "PING": b"PING\r\n",
    }
    rows = []
    for name, line in lines.items():
        data = filled(line, 65_536)
        count = parse_all(data, 1)
        rows.append((name, ns_each(partial(parse_all, data, 20), 20 * count)))
    table("Parsing, per operation", rows)


def test_match_cached_and_not():
    rows = []
    for count in (1, 1000, 100_000):
        engine = Engine()
        engine.client().feed(b"SUB bench.> 1\r\n")
        subjects = [b"bench.subject.%d" % i for i in range(count)]
        times = 1_000_000 // count
        engine.probe.match_all(subjects, 2)
        before = engine.probe.builds
        each = ns_each(partial(engine.probe.match_all, subjects, times), times * count)
        missed = (engine.probe.builds - before) / (5 * times * count)
        rows.append((f"{count:,} subjects in turn ({missed:.1%} made anew)", each))
    table("Matching a subject, wildcard subscriber", rows)


def test_match_is_flat_in_the_number_of_subscriptions():
    """Each subject is looked up once, so that no match result is in the cache."""
    for kind, line in (("literal", b"SUB device.%d.status %d\r\n"), ("wildcard", b"SUB device.%d.* %d\r\n")):
        rows = []
        for count in (1000, 10_000, 100_000, 1_000_000):
            engine = Engine()
            client = engine.client()
            for start in range(0, count, 10_000):
                client.feed(b"".join(line % (i, i) for i in range(start, min(start + 10_000, count))))
            subjects = [b"device.%d.status" % (i * 7919 % count) for i in range(0, 20_000)]
            if count < len(subjects):
                subjects = [b"device.%d.status" % i for i in range(count)]
            first = ns_each(partial(engine.probe.match_all, subjects, 1), len(subjects), runs=1)
            again = ns_each(partial(engine.probe.match_all, subjects, 1), len(subjects))
            rows += [(f"{count:>9,} {kind}, made", first), (f"{count:>9,} {kind}, cached", again)]
        table(f"Matching among many {kind} subscriptions", rows[::2] + rows[1::2])


@pytest.mark.parametrize("size", [16, 128, 4096])
def test_publish_and_fan_out(size):
    rows = []
    for receivers in (0, 1, 10, 1000):
        engine = Engine()
        publisher = engine.client()
        kept = [listener(engine, b"SUB bench.subject 1\r\n") for _ in range(receivers)]
        data = filled(published(b"bench.subject", size), READ if receivers < 1000 else 32_768)
        count = data.count(b"PUB ")
        each = ns_each(partial(publisher.feed, data), count * max(receivers, 1))
        rows.append((f"1:{receivers}", each))
        assert all(client.socket.taken for client in kept)
    table(f"Publishing {size} B: read, parsed, in every buffer; per delivery", rows)


def test_publish_of_every_kind():
    variants = {
        "the same line again": (QUIET, b"SUB > 1\r\n", [published(b"bench.subject", 16)]),
        "two lines in turn": (QUIET, b"SUB > 1\r\n", [published(b"a.%d" % i, 16) for i in range(2)]),
        "1,000 subjects in turn, wildcard": (QUIET, b"SUB > 1\r\n", [published(b"a.%d" % i, 16) for i in range(1000)]),
        "sizes in turn": (QUIET, b"SUB > 1\r\n", [published(b"a", i) for i in range(10, 30)]),
        "with reply, each another": (QUIET, b"SUB > 1\r\n", [b"PUB a r.%d 2\r\nhi\r\n" % i for i in range(1000)]),
        "not canonical": (QUIET, b"SUB > 1\r\n", [b"PUB a  16\r\n" + b"x" * 16 + b"\r\n"]),
        "verbose": (b'CONNECT {"pedantic":false}\r\n', b"SUB > 1\r\n", [published(b"a", 16)]),
        "header": (WITH_HEADERS, b"SUB > 1\r\n", [b"HPUB a 18 34\r\n" + HEADER + b"x" * 16 + b"\r\n"]),
        "queue group of 4": (QUIET, b"".join(b"SUB a q %d\r\n" % i for i in range(4)), [published(b"a", 16)]),
    }
    rows = []
    for name, (connect, subscription, lines) in variants.items():
        engine = Engine()
        publisher = engine.client(connect)
        publisher.socket.is_counting = True
        listener(engine, subscription, connect)
        data = filled(b"".join(lines))
        count = data.count(b"UB a") + data.count(b"UB bench")
        publisher.feed(data)
        rows.append((name, ns_each(partial(publisher.feed, data), count)))
    header_stripped = Engine()
    publisher = header_stripped.client(WITH_HEADERS)
    listener(header_stripped, b"SUB a 1\r\n")
    data = filled(b"HPUB a 18 34\r\n" + HEADER + b"x" * 16 + b"\r\n")
    rows.append(("header, stripped", ns_each(partial(publisher.feed, data), data.count(b"HPUB"))))
    table("Publishing 1:1, per message", rows)


def test_request_and_reply():
    """An inbox for every request: SUB, publish with reply, answer, UNSUB."""
    engine = Engine()
    service, client = engine.clients(2)
    service.feed(b"SUB service 1\r\n")
    rounds = 2000
    asked = [
        b"SUB _INBOX.%d 7\r\nUNSUB 7 1\r\nPUB service _INBOX.%d 16\r\n%s\r\n" % (i, i, b"x" * 16) for i in range(rounds)
    ]
    answers = [b"PUB _INBOX.%d 16\r\n%s\r\n" % (i, b"x" * 16) for i in range(rounds)]
    for each in (service, client):
        each.socket.is_counting = True

    def work() -> None:
        for question, answer in zip(asked, answers, strict=True):
            client.feed(question)
            service.feed(answer)

    def ping() -> None:
        for _ in range(2 * rounds):
            client.feed(b"PING\r\n")

    rows = [("two reads of a PING", ns_each(ping, rounds)), ("inbox, request, answer", ns_each(work, rounds))]
    table("Request and reply, per round", rows)


def test_subscribing():
    rows = []
    for name, line in (
        ("literal", b"SUB _INBOX.%d 1\r\nUNSUB 1\r\n"),
        ("wildcard", b"SUB _INBOX.%d.* 1\r\nUNSUB 1\r\n"),
        ("queue", b"SUB a.%d q 1\r\nUNSUB 1\r\n"),
    ):
        engine = Engine()
        client = engine.client()
        data = b"".join(line % i for i in range(5000))
        rows.append((f"{name}, alone", ns_each(partial(client.feed, data), 5000)))
        client.feed(b"".join(b"SUB x.%d s%d\r\n" % (i, i) for i in range(100_000)))
        rows.append((f"{name}, beside 100,000", ns_each(partial(client.feed, data), 5000)))
    table("SUB and UNSUB, per pair", rows)


def test_churn_beside_a_steady_subject():
    rows = []
    churns = {
        "none": b"",
        "literal": b"SUB _INBOX.%d 9\r\nUNSUB 9\r\n",
        "_INBOX.x.*": b"SUB _INBOX.%d.* 9\r\nUNSUB 9\r\n",
        "*.x": b"SUB *.%d 9\r\nUNSUB 9\r\n",
    }
    for name, line in churns.items():
        engine = Engine()
        client = engine.client()
        listener(engine, b"SUB steady.subject 1\r\n")
        data = b"".join((line % i if line else b"") + published(b"steady.subject", 16) for i in range(2000))
        before = engine.probe.builds
        each = ns_each(partial(client.feed, data), 2000)
        rows.append((f"{name}: {(engine.probe.builds - before) / 10_000:.2f} answers made", each))
    table("A publish with a SUB and UNSUB before it, per publish", rows)
