"""A slow subscriber makes publishers on other shards wait too: its shard sends SLOW to theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gnatswarm.broker import census, rules
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.service_imports import ServiceImports
from tests.support.engine import QUIET, EngineClient
from tests.support.mesh import Mesh

SLOW_US = 300_000  # a SLOW has worn off
SLOW_AGAIN_US = 50_000  # earlier than this it is not said again
PENDING = Limits(max_pending_bytes=1_000_000)  # half of it is a reader's mark
SIZE = 1000
BODY = b"x" * SIZE
ENOUGH = 700  # of them are past the mark, and not past the whole


class Swarm:
    """Three shards of accounts A and B (which imports of A), and what they tell each other."""

    def __init__(self) -> None:
        self.mesh = Mesh(3, connect=QUIET)
        for shard, engine in self.mesh.engines.items():
            mesh = engine.probe.mesh
            assert mesh is not None
            engine.probe.fanout.gate = crossing = ServiceImports(engine.probe.fanout, shard)
            mesh.set_reply_prefix(crossing.reply_prefix)
            a, b = mesh.account(b"A"), mesh.account(b"B")
            kind = rules.RESPONSE_KINDS["stream"]
            b.set_rules([], [rules.ServiceImport(b, a, b"service", b"service", kind, 120_000_000)])
            b.streams = [
                rules.StreamImport(a, b"stream", b"stream"),
                rules.StreamImport(a, b"streams.>", b"from.a.>"),
            ]

    def client(self, shard: int, account: bytes, words: bytes = b"") -> EngineClient:
        """A client that has sent these operations, after every shard has received their effects."""
        engine = self.mesh.engines[shard]
        client = engine.client(QUIET)
        self.mesh.clients.append(client)
        self.mesh.shard_of.append(shard)
        assert engine.probe.mesh is not None
        client.connection.enter(engine.probe.mesh.account(account), None)
        client.connection.set_limits(PENDING)
        client.feed(words)
        self.mesh.settle()
        return client

    def stop_reading(self, client: EngineClient) -> None:
        client.engine.probe.set_takes(client.socket, 0)

    def pass_time(self, us: int) -> None:
        """Advance the time of all shards; held publishers may continue once, as in a reactor."""
        for engine in self.mesh.engines.values():
            engine.probe.set_clock(engine.probe.now_us + us)
            engine.probe.release_stalls()

    def said_slow(self, shard: int, to: int) -> list[bytes]:
        """Carry everything from one shard to another; returns the SLOW frames among it."""
        end = self.mesh.ends[shard, to]
        self.mesh.finish()
        assert end.socket is not None
        said = bytes(end.socket.sent[end.carried :])
        self.mesh.carry(shard, to, 1 << 30)
        return [line for line in said.split(b"\r\n") if line.startswith(b"SLOW ")]

    def close(self) -> None:
        for client in self.mesh.clients:
            client.engine.probe.set_takes(client.socket, -1)
        for engine in self.mesh.engines.values():
            engine.probe.release_stalls()
        self.mesh.settle()
        self.mesh.close()


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    swarm = Swarm()
    yield swarm
    swarm.close()


def publish(subject: bytes, body: bytes = BODY) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)


def is_held(client: EngineClient) -> bool:
    return client.socket.is_held


def feed_a_run(swarm: Swarm, publisher: EngineClient) -> None:
    """All with one line, so that the link takes them as runs; but for the first, which it remembers."""
    frame = len(b"RMSG A stream %d\r\n" % SIZE) + SIZE + 2
    publisher.feed(publish(b"stream"))
    assert swarm.mesh.carry(0, 1, frame)
    assert swarm.said_slow(1, 0) == []
    publisher.feed(publish(b"stream") * ENOUGH)
    assert swarm.mesh.carry(0, 1, 1 << 30, [200 * frame] * 10)


def feed_one_by_one(swarm: Swarm, publisher: EngineClient) -> None:
    """Each line differs from the one before."""
    publisher.feed(b"".join(publish(b"stream", BODY + b"y" * (number % 2)) for number in range(ENOUGH)))
    assert swarm.mesh.carry(0, 1, 1 << 30)


@pytest.mark.parametrize("words", [b"SUB stream 1\r\n", b"SUB stream q 1\r\n"], ids=["plain", "queue"])
@pytest.mark.parametrize("account", [b"A", b"B"], ids=["own", "imported"])
@pytest.mark.parametrize("feed", [feed_a_run, feed_one_by_one])
def test_a_publisher_elsewhere_waits_for_a_subscriber_that_is_behind(
    swarm: Swarm, feed: Callable[[Swarm, EngineClient], None], account: bytes, words: bytes
) -> None:
    reader, publisher = swarm.client(1, account, words), swarm.client(0, b"A")
    other = swarm.client(0, b"A")
    swarm.stop_reading(reader)
    feed(swarm, publisher)
    assert not is_held(publisher)
    assert swarm.said_slow(1, 0) == [b"SLOW A stream"]
    publisher.feed(publish(b"stream"))
    other.feed(publish(b"elsewhere"))
    assert is_held(publisher) and not is_held(other)  # who does not feed it has nothing to wait for
    swarm.mesh.settle()
    assert not reader.is_over


def test_slow_is_said_again_as_long_as_it_is_true_but_not_for_each_message(swarm: Swarm) -> None:
    reader, publisher = swarm.client(1, b"A", b"SUB stream 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    feed_one_by_one(swarm, publisher)
    assert swarm.said_slow(1, 0) == [b"SLOW A stream"]
    for us, expected in ((SLOW_AGAIN_US - 1, []), (1, [b"SLOW A stream"]), (1, [])):
        swarm.pass_time(us)
        publisher.feed(publish(b"stream", BODY * 10))  # more than there is room for in what is queued already
        swarm.mesh.carry(0, 1, 1 << 30)
        assert swarm.said_slow(1, 0) == expected
    # When it has caught up nobody says anything, and the last word wears off.
    swarm.pass_time(0)
    reader.engine.probe.set_takes(reader.socket, -1)
    publisher.feed(publish(b"stream"))
    assert is_held(publisher)
    swarm.pass_time(SLOW_US)
    publisher.feed(publish(b"stream"))
    assert not is_held(publisher)
    swarm.mesh.settle()


@pytest.mark.parametrize("pattern", [b"stream.*", b"stream.>", b">"])
@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "queue"])
def test_a_publisher_waits_whose_messages_each_have_a_subject_of_their_own(
    swarm: Swarm, pattern: bytes, queue: bytes
) -> None:
    """A SLOW for a subject comes when nobody publishes to it any more; so the subscriber's pattern is told."""
    reader, publisher = swarm.client(1, b"A", b"SUB %b %b 1\r\n" % (pattern, queue)), swarm.client(0, b"A")
    elsewhere, other = swarm.client(1, b"B", b"SUB stream.other 1\r\n"), swarm.client(0, b"B")
    known = b"stream.known"
    publisher.feed(publish(known))
    swarm.mesh.settle()
    swarm.stop_reading(reader)
    publisher.feed(b"".join(publish(b"stream.%d" % number) for number in range(ENOUGH)))
    assert not is_held(publisher)
    swarm.mesh.carry(0, 1, 1 << 30)
    assert swarm.said_slow(1, 0).count(b"SLOW A " + pattern) == 1
    for subject in (b"stream.new", known):
        publisher.feed(publish(subject))
        assert is_held(publisher), subject
        swarm.pass_time(SLOW_US // 3)
        assert not is_held(publisher)
    other.feed(publish(b"stream.other"))
    assert not is_held(other)
    swarm.pass_time(SLOW_US)
    publisher.feed(publish(b"stream.newer") + publish(known))
    assert not is_held(publisher)
    swarm.mesh.settle()
    assert elsewhere.messages() and not reader.is_over


def test_so_does_one_to_whom_the_subscriber_of_another_account_listens(swarm: Swarm) -> None:
    """By another subject there; the pattern is told as it is in the publisher's account."""
    reader, publisher = swarm.client(1, b"B", b"SUB from.a.*.x 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    publisher.feed(b"".join(publish(b"streams.%d.x" % number) for number in range(ENOUGH)))
    swarm.mesh.carry(0, 1, 1 << 30)
    assert swarm.said_slow(1, 0).count(b"SLOW A streams.*.x") == 1
    publisher.feed(publish(b"streams.new.x"))
    assert is_held(publisher)
    swarm.pass_time(SLOW_US // 3)
    publisher.feed(publish(b"streams.new.y"))
    assert not is_held(publisher)


def test_so_does_one_whom_that_subscriber_hears_by_two_imports(swarm: Swarm) -> None:
    """By one of the subject alone, and by one of a pattern."""
    for engine in swarm.mesh.engines.values():
        assert engine.probe.mesh is not None
        a, b = engine.probe.mesh.account(b"A"), engine.probe.mesh.account(b"B")
        b.streams = [rules.StreamImport(a, subject, subject) for subject in (b"stream.one", b"stream.*")]
    reader, publisher = swarm.client(1, b"B", b"SUB > 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    publisher.feed(publish(b"stream.one") * (ENOUGH // 2))  # each comes twice
    swarm.mesh.carry(0, 1, 1 << 30)
    assert swarm.said_slow(1, 0) == [b"SLOW A stream.one", b"SLOW A stream.*"]
    publisher.feed(publish(b"stream.two"))
    assert is_held(publisher)


def test_a_pattern_is_told_again_as_long_as_its_subscriber_is_behind(swarm: Swarm) -> None:
    reader, publisher = swarm.client(1, b"A", b"SUB stream.* 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    publisher.feed(b"".join(publish(b"stream.%d" % number) for number in range(ENOUGH)))
    swarm.mesh.carry(0, 1, 1 << 30)
    assert swarm.said_slow(1, 0).count(b"SLOW A stream.*") == 1
    for us, expected in ((SLOW_AGAIN_US - 1, 0), (1, 1), (1, 0)):
        swarm.pass_time(us)
        publisher.feed(publish(b"stream.%d" % us, BODY * 10))
        swarm.mesh.carry(0, 1, 1 << 30)
        assert swarm.said_slow(1, 0).count(b"SLOW A stream.*") == expected
    swarm.pass_time(SLOW_US - SLOW_AGAIN_US)  # the first word has worn off, not the second one
    publisher.feed(publish(b"stream.new"))
    assert is_held(publisher)


def test_a_publisher_of_small_messages_with_subjects_of_their_own_waits_as_long(swarm: Swarm) -> None:
    """They have room in what is queued already, so that nobody asks how much that is."""
    reader, publisher = swarm.client(1, b"A", b"SUB stream.* 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    publisher.feed(b"".join(publish(b"stream.%d" % number) for number in range(ENOUGH)))
    swarm.mesh.carry(0, 1, 1 << 30)
    swarm.said_slow(1, 0)
    for number in range(3 * SLOW_US // SLOW_AGAIN_US):
        publisher.feed(publish(b"stream.small%d" % number, b"x"))
        assert is_held(publisher), number
        swarm.mesh.carry(0, 1, 1 << 30)
        swarm.said_slow(1, 0)
        swarm.pass_time(SLOW_AGAIN_US)


def test_what_is_told_of_a_pattern_that_nobody_subscribes_to_any_more_holds_nobody(swarm: Swarm) -> None:
    reader, publisher = swarm.client(1, b"A", b"SUB stream.* 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    publisher.feed(b"".join(publish(b"stream.%d" % number) for number in range(ENOUGH)))
    reader.feed(b"UNSUB 1\r\n")
    swarm.mesh.settle()
    publisher.feed(publish(b"stream.new"))
    assert not is_held(publisher)


def test_what_was_counted_of_a_subject_stays_counted_where_publishers_wait(swarm: Swarm) -> None:
    reader, publisher = swarm.client(1, b"A", b"SUB stream.* 1\r\n"), swarm.client(0, b"A")
    swarm.stop_reading(reader)
    mesh = swarm.mesh.engines[0].probe.mesh
    assert mesh is not None
    for said in range(1, 4):
        publisher.feed(publish(b"stream.1") * ENOUGH)
        swarm.mesh.carry(0, 1, 1 << 30)
        if said == 1:
            assert b"SLOW A stream.*" in swarm.said_slow(1, 0)
        rows = census.cached_entries(mesh.account(b"A"), 0, 1 << 20, 1, b"")[0]
        assert [row[:2] for row in rows] == [("stream.1", ENOUGH * said)]
        swarm.pass_time(SLOW_US)


@pytest.mark.parametrize("words", [b"SUB service 1\r\n", b"SUB service q 1\r\n"], ids=["plain", "queue"])
def test_who_asks_a_service_waits_for_a_responder_elsewhere_that_is_behind(swarm: Swarm, words: bytes) -> None:
    responder, asker = swarm.client(1, b"A", words), swarm.client(0, b"B")
    swarm.stop_reading(responder)
    asker.feed(publish(b"service") * ENOUGH)
    swarm.mesh.carry(0, 1, 1 << 30)
    assert not is_held(asker)
    assert swarm.said_slow(1, 0) == [b"SLOW A service"]
    asker.feed(publish(b"service"))
    assert is_held(asker)
    swarm.pass_time(SLOW_US)
    asker.feed(publish(b"nothing.of.the.kind"))
    assert not is_held(asker)


@pytest.mark.parametrize("at", [0, 2], ids=["where it asked", "on a third shard"])
def test_who_answers_waits_for_an_asker_that_is_behind(swarm: Swarm, at: int) -> None:
    """The answers come to the asker's shard, and from there to whoever listens in its account."""
    responder, asker = swarm.client(1, b"A", b"SUB service 1\r\n"), swarm.client(0, b"B")
    listener = swarm.client(at, b"B", b"SUB inbox 1\r\n")
    asker.feed(b"PUB service inbox 0\r\n\r\n")
    swarm.mesh.settle()
    reply = next(line.split()[3] for line in responder.take().split(b"\r\n") if b"MSG service" in line)
    swarm.stop_reading(listener)
    answers = b"".join(publish(reply, BODY + b"y" * (number % 2)) for number in range(ENOUGH))
    responder.feed(answers)
    swarm.mesh.carry(1, 0, 1 << 30)
    if at == 2:
        swarm.mesh.carry(0, 2, 1 << 30)
        assert swarm.said_slow(2, 0) == [b"SLOW B inbox"]
        assert swarm.said_slow(0, 1) == []
        responder.feed(publish(reply))
        swarm.mesh.carry(1, 0, 1 << 30)
    assert swarm.said_slow(0, 1) == [b"SLOW A " + reply]
    assert not is_held(responder)
    responder.feed(publish(reply))
    assert is_held(responder)


@pytest.fixture
def behind(swarm: Swarm) -> Iterator[Swarm]:
    """Shard 0's link to shard 1 is behind."""
    swarm.client(1, b"A", b"SUB far 1\r\n")
    publisher = swarm.client(0, b"A")
    end = swarm.mesh.ends[0, 1]
    assert end.socket is not None and end.link is not None
    end.engine.probe.set_takes(end.socket, 0)
    end.socket.set_stall_mark(10_000)
    publisher.feed(publish(b"far") * 100)
    swarm.mesh.finish()
    assert end.link.is_behind and is_held(publisher)
    yield swarm
    end.engine.probe.set_takes(end.socket, -1)


def test_who_publishes_here_does_not_wait_for_a_link_that_was_told_of_a_client_that_went(behind: Swarm) -> None:
    goes = behind.client(0, b"A", b"".join(b"SUB inbox.%d %d\r\n" % (number, number) for number in range(500)))
    while is_held(goes):
        behind.pass_time(SLOW_US)
    assert goes.connection.subscriptions == 500
    publisher = behind.client(0, b"A")
    goes.close()
    behind.mesh.finish()
    publisher.feed(publish(b"near"))
    assert not is_held(publisher)


def test_a_sibling_is_not_told_slow_because_its_pongs_wait(behind: Swarm) -> None:
    """Who is behind is the link, with the answers to the sibling's own PINGs."""
    reader = behind.client(0, b"A", b"SUB near 1\r\n")
    end = behind.mesh.ends[0, 1]
    assert end.socket is not None
    pongs = end.socket.queued_from(0).count(b"PONG\r\n")
    end.engine.probe.feed(end.socket, b"PING\r\n" * 400 + b"RMSG A near 1\r\nx\r\n")
    assert reader.messages() == [(b"1", b"x")]
    queued = end.socket.queued_from(0)
    assert queued.count(b"PONG\r\n") == pongs + 400 and b"SLOW" not in queued
