"""What mappings and imports make longer than its client wrote it breaks no link: it is refused where it is too long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gnatswarm.broker import rules
from gnatswarm.broker.errors import InvalidPublishSubject, InvalidSubject
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.routewire import parse_route
from gnatswarm.broker.service_imports import ServiceImports
from tests.support.engine import NO_RESPONDERS, EngineClient
from tests.support.mesh import Mesh

LONGEST_KEY = 65_000  # of LINK_PROTOCOL.md: a subject in RS+, a queue name
LONGEST_ADDRESS = 194_560  # … account, subject and reply of a message
LONGEST_LINE = 261_888  # … a line without its verb
LIMITS = Limits(max_control_line_bytes=128 * 1024)


class Swarm:
    """Two shards. Account B imports E's stream `exporter.>` as `p.>` and its service `service.*` as `s.*`.

    What is published to B's `m.*` or E's `service.*` goes to a subject with three times what the `*` stands for.
    """

    def __init__(self) -> None:
        self.mesh = Mesh(2, clients_each=0, connect=NO_RESPONDERS)
        for shard, engine in self.mesh.engines.items():
            mesh = engine.probe.mesh
            assert mesh is not None
            engine.probe.fanout.gate = crossing = ServiceImports(engine.probe.fanout, shard)
            mesh.set_reply_prefix(crossing.reply_prefix)
            self.exporter, importer = mesh.account(b"E"), mesh.account(b"B")
            kind = rules.RESPONSE_KINDS["singleton"]
            service = rules.ServiceImport(importer, self.exporter, b"service.*", b"s.*", kind, 120_000_000)
            repeats = b"z.{{wildcard(1)}}.{{wildcard(1)}}.{{wildcard(1)}}"
            importer.set_rules([rules.Mapping(b"m.*", [(repeats, 100)])], [service])
            importer.streams = [rules.StreamImport(self.exporter, b"exporter.>", b"p.>")]
            self.exporter.set_rules([rules.Mapping(b"service.*", [(repeats, 100)])], [])

    def client(self, shard: int, account: bytes, words: bytes = b"") -> EngineClient:
        client = self.mesh.connect(shard)
        mesh = self.mesh.engines[shard].probe.mesh
        assert mesh is not None
        client.connection.enter(mesh.account(account), None)
        client.connection.set_limits(LIMITS)
        client.feed(words)
        self.mesh.settle()
        return client

    def close(self) -> None:
        assert not any(end.broken for end in self.mesh.ends.values())
        self.mesh.close()


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    swarm = Swarm()
    yield swarm
    swarm.close()


@pytest.mark.parametrize("queue", [b"", b" q"])
def test_a_subscription_that_is_too_long_in_the_exporting_account_is_refused(swarm: Swarm, queue: bytes) -> None:
    """Not half of it is made: what is published here does not come either."""
    publisher = swarm.client(1, b"E")
    fits = b"t" * (LONGEST_KEY - len(b"exporter."))
    hears = swarm.client(0, b"B", b"SUB p.%b%b 1\r\n" % (fits, queue))
    refused = swarm.client(0, b"B", b"SUB p.%bt%b 1\r\nPING\r\n" % (fits, queue))
    assert refused.take() == b"-ERR 'Invalid Subject'\r\nPONG\r\n"
    assert refused.errors == [InvalidSubject] and refused.connection.subscriptions == 0
    publisher.feed(b"PUB exporter.%b 1\r\nx\r\nPUB exporter.%bt 1\r\ny\r\nPING\r\n" % (fits, fits))
    swarm.mesh.settle()
    assert publisher.take() == b"PONG\r\n"
    assert hears.messages() == [(b"1", b"x")] and refused.messages() == []
    refused.feed(b"PUB p.%bt 1\r\nz\r\n" % fits)
    assert refused.messages() == []


def test_after_a_reload_a_subscription_stays_without_an_import_in_which_it_is_too_long(swarm: Swarm) -> None:
    publisher = swarm.client(1, b"E")
    subject = b"r." + b"t" * (LONGEST_KEY - 2)
    client = swarm.client(0, b"B", b"SUB r.x 1\r\nSUB %b 2\r\n" % subject)
    for engine in swarm.mesh.engines.values():
        mesh = engine.probe.mesh
        assert mesh is not None
        mesh.account(b"B").streams = [rules.StreamImport(mesh.account(b"E"), b"exporter.>", b"r.>")]
    client.connection.listen_anew()
    while client.connection.is_ending:
        assert client.connection.end_some(1) == []
    assert client.connection.n_unheard == 1
    swarm.mesh.settle()
    publisher.feed(b"PUB exporter.x 1\r\nx\r\n")
    client.feed(b"PUB %b 1\r\ny\r\n" % subject)
    swarm.mesh.settle()
    assert sorted(client.messages()) == [(b"1", b"x"), (b"2", b"y")]


@pytest.mark.parametrize("reply", [b"", b"reply." + b"r" * 4000])
def test_a_message_that_a_mapping_makes_too_long_is_refused(swarm: Swarm, reply: bytes) -> None:
    """With its reply and account, by one byte; for the longest queue name there is room."""
    hears = [swarm.client(1, b"B", b"SUB z.> %b 1\r\n" % (b"q" * LONGEST_KEY)), swarm.client(1, b"B", b"SUB z.> 1\r\n")]
    publisher = swarm.client(0, b"B")
    size, rest = divmod(LONGEST_ADDRESS - len(b"Bz..." + reply), 3)
    mapped = b"z." + b".".join([b"m" * size] * 3)
    publisher.feed(b"PUB m.%b %b%b 1\r\nx\r\nPING\r\n" % (b"m" * size, reply, b"r" * rest * bool(reply)))
    swarm.mesh.settle()
    assert publisher.take() == b"PONG\r\n"
    assert [client.take().startswith(b"MSG %b 1 " % mapped) for client in hears] == [True, True]
    publisher.feed(b"PUB m.%b %b 1\r\nx\r\nPING\r\n" % (b"m" * (size + 1), reply))
    swarm.mesh.settle()
    assert publisher.take() == b"-ERR 'Invalid Publish Subject'\r\nPONG\r\n"
    assert publisher.errors == [InvalidPublishSubject]
    assert not any(client.take() for client in hears)


def test_a_request_that_is_too_long_in_the_exporting_account_has_no_responders(swarm: Swarm) -> None:
    responder = swarm.client(1, b"E", b"SUB z.> 1\r\n")
    requestor = swarm.client(0, b"B", b"SUB inbox 1\r\n")
    for size, reaches in ((60_000, True), (66_000, False)):
        requestor.feed(b"PUB s.%b inbox 1\r\n?\r\nPING\r\n" % (b"x" * size))
        swarm.mesh.settle()
        said = requestor.take()
        assert (b"NATS/1.0 503" in said) != reaches and said.endswith(b"PONG\r\n")
        assert len(responder.messages()) == reaches


def test_the_longest_frame_is_a_line_of_a_sibling() -> None:
    """Everything at its limit at once: of QMSG, which says most beside the names."""
    names = b"%b %b + %b" % (b"A" * 65_536, b"s" * 65_536, b"r" * (LONGEST_ADDRESS - 2 * 65_536))
    numbers = b"%d" % (2**64 - 1)
    for queues in (b"q" * LONGEST_KEY, b" ".join([b"q" * 512] * 64)):
        line = b"XQHG " + b" ".join([numbers] * 4) + b" %b %b 999999 9999999\r\n" % (names, queues)
        assert len(line) < LONGEST_LINE + 7 < 262_144  # which the read buffer has
        assert parse_route(line)["op"] == "QUEUE_MSG"
