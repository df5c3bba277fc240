"""A PONG waits until every sibling has acknowledged everything that the client relies on."""

from __future__ import annotations

import pytest

from tests.support.engine import NO_RESPONDERS, QUIET
from tests.support.mesh import Mesh


@pytest.fixture
def make():
    made = []

    def make(shards: int = 2, *, connect: bytes = QUIET) -> Mesh:
        made.append(Mesh(shards, connect=connect))
        return made[-1]

    yield make
    for mesh in made:
        mesh.settle()
        mesh.close()


def test_a_second_subscriber_waits_for_the_interest_that_was_told_for_the_first(make):
    mesh = make()
    first, second, publisher = mesh.clients[0], mesh.clients[1], mesh.clients[2]
    first.feed(b"SUB a 1\r\n")
    assert second.talk(b"SUB a 1\r\nPING\r\n") == b""
    mesh.carry_all((0, 1), (1, 0))
    assert second.take() == b"PONG\r\n"
    publisher.feed(b"PUB a 2\r\nhi\r\n")
    mesh.settle()
    assert second.take() == b"MSG a 1 2\r\nhi\r\n"


def test_a_second_subscriber_does_not_wait_for_what_siblings_have_acknowledged(make):
    mesh = make()
    first, second = mesh.clients[0], mesh.clients[1]
    first.feed(b"SUB a 1\r\nPING\r\n")
    mesh.settle()
    # A message on its way is nobody's interest.
    mesh.clients[2].feed(b"SUB elsewhere 1\r\n")
    mesh.settle()
    first.feed(b"PUB elsewhere 2\r\nhi\r\n")
    assert second.talk(b"SUB a 1\r\nPING\r\n") == b"PONG\r\n"


def test_the_end_by_unsub_max_is_fenced(make):
    """The client's PONG comes when no shard counts it as a subscriber any more, so that a request gets a 503."""
    mesh = make(connect=NO_RESPONDERS)
    responder, requestor = mesh.clients[0], mesh.clients[2]
    requestor.feed(b"SUB inbox 9\r\n")
    responder.feed(b"SUB a 1\r\nUNSUB 1 1\r\nPING\r\n")
    mesh.settle()
    assert responder.take() == b"PONG\r\n"
    requestor.feed(b"PUB a 1\r\n1\r\n")
    mesh.carry_all((1, 0))
    assert responder.take() == b"MSG a 1 1\r\n1\r\n"
    assert responder.talk(b"PING\r\n") == b""
    mesh.carry_all((0, 1))
    assert requestor.talk(b"PUB a inbox 1\r\n2\r\n") == b"HMSG inbox 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    mesh.settle()
    assert responder.take() == b"PONG\r\n"


def test_an_end_by_unsub_max_while_a_pong_is_due_is_fenced_by_that(make):
    """Who has its last message, and behind it a PONG, relies on that."""
    mesh = make(connect=NO_RESPONDERS)
    responder, requestor = mesh.clients[0], mesh.clients[2]
    requestor.feed(b"SUB inbox 9\r\n")
    responder.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    requestor.feed(b"PUB a 1\r\n1\r\n")
    mesh.finish()  # it is on its way …
    assert responder.talk(b"SUB other 2\r\nPING\r\n") == b""
    mesh.carry_all((0, 1))  # … and behind it the PONG for the new subscription
    mesh.carry_all((1, 0))
    assert responder.take() == b"MSG a 1 1\r\n1\r\n"
    mesh.carry_all((0, 1))
    assert requestor.talk(b"PUB a inbox 1\r\n2\r\n") == b"HMSG inbox 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    mesh.settle()
    assert responder.take() == b"PONG\r\n"


def test_a_publisher_does_not_wait_for_the_end_of_anothers_subscription(make):
    """A publisher's PONG waits for what it sent, and not for what the end of somebody's subscription caused."""
    mesh = make()
    subscriber, publisher = mesh.clients[0], mesh.clients[1]
    subscriber.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    assert publisher.talk(b"PUB a 1\r\n1\r\nPING\r\n") == b"PONG\r\n"
    assert subscriber.take() == b"MSG a 1 1\r\n1\r\n"
    assert subscriber.talk(b"PING\r\n") == b""


def test_a_pong_of_a_sibling_stands_for_what_was_sent_before_its_ping_alone(make):
    mesh = make()
    asker, publisher, subscriber = mesh.clients[0], mesh.clients[1], mesh.clients[2]
    subscriber.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    asker.feed(b"SUB a 1\r\nPING\r\n")
    mesh.finish()
    published = mesh.ends[0, 1].carried  # where the message will begin
    waiting = len(mesh.ends[0, 1].socket.sent) - published
    publisher.feed(b"PUB wanted 2\r\nhi\r\n")
    mesh.carry(0, 1, waiting)
    mesh.carry_all((1, 0))
    assert asker.take() == b"PONG\r\n"
    assert publisher.talk(b"PING\r\n") == b"", "its message has not arrived"
    mesh.carry_all((0, 1))
    assert subscriber.take() == b"MSG wanted 1 2\r\nhi\r\n"
    mesh.carry_all((1, 0))
    assert publisher.take() == b"PONG\r\n"


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_pong_waits_for_every_sibling(make, last):
    mesh = make(4)
    client = mesh.clients[0]
    assert client.talk(b"SUB a 1\r\nPING\r\n") == b""
    for sibling in (1, 2, 3):
        if sibling != last:
            mesh.carry_all((0, sibling), (sibling, 0))
    assert client.take() == b""
    mesh.carry_all((0, last), (last, 0))
    assert client.take() == b"PONG\r\n"


def test_a_dead_sibling_is_not_waited_for(make):
    mesh = make(3)
    client = mesh.clients[0]
    assert client.talk(b"SUB a 1\r\nPING\r\n") == b""
    mesh.carry_all((0, 1), (1, 0))
    mesh.kill(2)
    assert client.take() == b"PONG\r\n"


def test_what_a_closing_link_refused_is_not_acknowledged(make):
    """A link that is about to be closed takes no more frames. A publisher must not get its PONG for what it refused."""
    mesh = make()
    publisher, subscriber = mesh.clients[0], mesh.clients[2]
    subscriber.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    mesh.ends[0, 1].link.end("of the test")  # the socket is closed at the end of the round
    publisher.feed(b"PUB wanted 2\r\nhi\r\nPING\r\n", finish=False)
    assert mesh.break_link(0, 1) == 1
    mesh.settle()
    assert subscriber.take() == b""
    assert publisher.is_over and b"PONG" not in publisher.take()


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_dead_shard_was_sent_puts_nobody_in_doubt_when_the_link_to_its_successor_breaks(make, waits):
    mesh = make(3)
    publisher, neighbour, subscriber, other = (mesh.clients[number] for number in (0, 1, 2, 4))
    subscriber.feed(b"SUB wanted 1\r\n")
    other.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB wanted 2\r\nhi\r\n")
    if waits:
        assert publisher.talk(b"PING\r\n") == b"", "two siblings have to know"
    mesh.kill(1)
    mesh.add(1)
    mesh.settle_but((0, 2))
    neighbour.feed(b"SUB anything 1\r\n")  # the link to the successor breaks with this on its way
    assert mesh.break_link(0, 1) == 0
    mesh.settle()
    if not waits:
        publisher.feed(b"PING\r\n")
        mesh.settle()
    assert publisher.take() == b"PONG\r\n"
    assert other.take() == b"MSG wanted 1 2\r\nhi\r\n"


def test_who_is_in_doubt_stays_so_when_the_shard_dies(make):
    mesh = make()
    publisher, subscriber = mesh.clients[0], mesh.clients[2]
    subscriber.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB wanted 2\r\nhi\r\n")
    assert mesh.break_link(0, 1) == 1
    mesh.settle()
    mesh.kill(1)
    publisher.feed(b"PING\r\n")
    assert publisher.is_over and b"PONG" not in publisher.take()


def test_nobody_is_in_doubt_of_what_was_acknowledged_for_somebody_else(make):
    mesh = make()
    publisher, neighbour, subscriber = mesh.clients[:3]
    subscriber.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB wanted 2\r\nhi\r\n")
    neighbour.feed(b"PUB wanted 2\r\nho\r\nPING\r\n")
    mesh.settle()
    assert neighbour.take() == b"PONG\r\n"
    assert mesh.break_link(0, 1) == 0
    mesh.settle()
    publisher.feed(b"PING\r\n")
    mesh.settle()
    assert publisher.take() == b"PONG\r\n" and not publisher.is_over


def test_who_published_to_a_dead_shards_successor_is_in_doubt_when_that_link_breaks(make):
    mesh = make()
    publisher, subscriber = mesh.clients[0], mesh.clients[2]
    subscriber.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB wanted 2\r\nhi\r\n")
    mesh.kill(1)
    mesh.add(1)
    mesh.settle()
    mesh.connect(1).feed(b"SUB wanted 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB wanted 2\r\nho\r\n")
    assert mesh.break_link(0, 1) == 1
    mesh.settle()
    publisher.feed(b"PING\r\n")
    assert publisher.is_over and b"PONG" not in publisher.take()
