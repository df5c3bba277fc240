"""With `fence: cluster` a PONG promises what other members know, too; one that does not answer holds it for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from tests.support.engine import EngineClient, frames
from tests.support.members import Members, RouteEnd

Make = Callable[..., Members]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Members] = []

    def build(members: int = 2, *, seed: int = 1, fenced: bool = True) -> Members:
        made.append(Members(members, seed=seed, fenced=fenced))
        return made[-1]

    yield build
    for cluster in made:
        cluster.settle()
        cluster.close()


def has_pong(client: EngineClient) -> bool:
    return b"PONG\r\n" in client.take()


def test_a_pong_waits_for_every_other_member(make: Make) -> None:
    cluster = make(3)
    client = cluster.members[0].clients[0]
    client.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(2,))
    assert not has_pong(client)
    cluster.carry((-1, 0, 2))
    assert not has_pong(client)
    cluster.settle()
    assert has_pong(client)


def test_without_it_a_pong_waits_for_no_other_member(make: Make) -> None:
    cluster = make(2, fenced=False)
    client = cluster.members[0].clients[0]
    client.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(1,))
    assert has_pong(client)


def test_a_member_answers_a_ping_when_all_its_shards_know(make: Make) -> None:
    cluster = make(2, fenced=False)
    end = cluster.routes[0, 1]
    end.link.ping()
    cluster.carry((-1, 0, 1))
    cluster.carry((-1, 1, 0))
    assert end.pongs == 0
    cluster.settle()
    assert end.pongs == 1


@pytest.mark.parametrize("asks", ["before", "after", "and relies on none then"])
def test_a_member_whose_messages_a_broken_link_may_have_lost_gets_no_pong(make: Make, asks: str) -> None:
    cluster = make(2, fenced=False)
    subscriber, mesh = cluster.members[1].clients[0], cluster.members[1].mesh
    there, here = cluster.routes[0, 1], cluster.routes[1, 0]
    here.link.is_fenced = True
    subscriber.feed(b"SUB a 1\r\n")
    cluster.settle()
    cluster.members[0].clients[0].feed(b"PUB a 1\r\nx\r\n")
    cluster.members[0].mesh.settle()
    if asks != "after":
        there.link.ping()
    cluster.carry((-1, 0, 1))
    here.link.is_fenced = asks != "and relies on none then"  # its clients wait for the PONG to this PING all the same
    assert mesh.break_link(GATEWAY_NUMBER, 0) == 1
    cluster.settle()
    if asks == "after":
        assert not here.link.is_closing
        there.link.ping()
        cluster.settle()
    assert (subscriber.messages(), there.pongs, here.link.is_closing) == ([], 0, True)


def test_a_server_that_relies_on_no_pong_stays_connected_when_a_link_breaks(make: Make) -> None:
    """Also when it says later that it does: by then it has had its PONG."""
    cluster = make(2, fenced=False)
    subscriber, mesh = cluster.members[1].clients[0], cluster.members[1].mesh
    there, here = cluster.routes[0, 1], cluster.routes[1, 0]
    subscriber.feed(b"SUB a 1\r\n")
    cluster.settle()
    cluster.members[0].clients[0].feed(b"PUB a 1\r\nx\r\n")
    cluster.members[0].mesh.settle()
    cluster.carry((-1, 0, 1))
    assert mesh.break_link(GATEWAY_NUMBER, 0) == 1
    cluster.settle()
    for is_fenced in (False, True):
        here.link.is_fenced = is_fenced
        there.link.ping()
        cluster.settle()
    assert (there.pongs, here.link.is_closing) == (2, False)


@pytest.mark.parametrize("shard", [0, 1])
def test_a_broken_link_puts_no_member_in_doubt_whose_messages_are_acknowledged(make: Make, shard: int) -> None:
    """Interest alone was on its way when the link broke; it is told anew."""
    cluster = make(2, fenced=False)
    subscriber, mesh = cluster.members[1].clients[0], cluster.members[1].mesh
    there = cluster.routes[0, 1]
    cluster.routes[1, 0].link.is_fenced = True
    subscriber.feed(b"SUB a 1\r\n")
    cluster.settle()
    cluster.members[0].clients[0].feed(b"PUB a 1\r\nx\r\n")
    cluster.members[0].mesh.settle()
    there.link.ping()
    cluster.settle()
    cluster.members[0].clients[0].feed(b"SUB b 1\r\n")
    cluster.members[0].mesh.settle()
    cluster.carry((-1, 0, 1))
    there.link.ping()
    assert mesh.break_link(GATEWAY_NUMBER, shard) == 0
    cluster.settle()
    assert ([body for _, body in subscriber.messages()], there.pongs) == ([b"x"], 2)


def test_interest_that_another_client_caused_is_waited_for(make: Make) -> None:
    """The second subscriber is on another shard, and its interest is no news to the other member."""
    cluster = make(2)
    first, second = cluster.members[0].clients[0], cluster.members[0].clients[-1]
    first.feed(b"SUB a 1\r\n")
    cluster.settle(but=(1,))
    second.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(1,))
    assert not has_pong(second)
    cluster.settle()
    assert has_pong(second)


def test_a_member_that_does_not_answer_is_waited_for_once(make: Make) -> None:
    cluster = make(3)
    client = cluster.members[0].clients[0]
    fence = cluster.members[0].exchange.fence
    client.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(2,))
    now_us = cluster.members[0].mesh.engines[0].probe.now_us
    assert fence.expire(now_us + 100, 1000) == ([], 1000)
    assert not has_pong(client)
    late = cluster.routes[0, 2].link.slot
    assert fence.expire(now_us + 1000, 1000) == ([late], 0)
    assert fence.late == 1 << late
    cluster.settle(but=(2,))
    assert has_pong(client)
    # Nobody waits for it any more, but for the others …
    client.feed(b"SUB b 2\r\nPING\r\n")
    cluster.settle(but=(1, 2))
    assert not has_pong(client)
    cluster.settle(but=(2,))
    assert has_pong(client)
    # … until it has answered.
    cluster.settle()
    assert fence.late == 0
    client.feed(b"SUB c 3\r\nPING\r\n")
    cluster.settle(but=(2,))
    assert not has_pong(client)


def test_a_member_that_goes_away_is_not_waited_for(make: Make) -> None:
    cluster = make(3)
    client = cluster.members[0].clients[0]
    client.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(2,))
    assert not has_pong(client)
    cluster.cut(0, 2)
    cluster.settle()
    assert has_pong(client)


def test_who_comes_in_the_place_of_a_member_that_was_late_is_waited_for(make: Make) -> None:
    cluster = make(3)
    member = cluster.members[0]
    client, engine = member.clients[0], member.mesh.engines[member.gateway]
    client.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(2,))
    late = cluster.routes[0, 2].link.slot
    assert member.exchange.fence.expire(engine.probe.now_us + 1000, 1000) == ([late], 0)
    cluster.settle(but=(2,))
    assert has_pong(client)
    cluster.cut(0, 2)
    end = RouteEnd(engine, member.exchange)
    assert end.link.slot == late
    end.link.begin()
    client.feed(b"SUB b 2\r\nPING\r\n")
    cluster.settle()
    assert not has_pong(client)
    engine.probe.feed(end.socket, b"PONG\r\n")
    cluster.settle()
    assert has_pong(client)
    end.link.leave()


def test_a_pong_for_a_message_means_that_it_is_queued_for_clients_of_other_members(make: Make) -> None:
    cluster = make(2)
    publisher, subscriber = cluster.members[0].clients[0], cluster.members[1].clients[0]
    subscriber.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle()
    subscriber.take()
    publisher.feed(b"PUB a 1\r\nx\r\nPING\r\n")
    while not has_pong(publisher):
        assert sum(cluster.carry(way, 7) for way in cluster.ways)
    assert subscriber.take() == b"MSG a 1 1\r\nx\r\n"


@dataclass
class Person:
    client: EngineClient
    asked: set[bytes] = field(default_factory=set)  # subjects behind which there is a PING
    knows: set[bytes] = field(default_factory=set)  # … that had its PONG
    is_waiting: bool = False
    got: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    wanted: set[bytes] = field(default_factory=set)
    sent: list[tuple[Person, bytes]] = field(default_factory=list)

    def look(self) -> None:
        for frame in frames(self.client.take()):
            if frame.is_message:
                self.got[frame.payload] += 1
            elif frame.line == b"PONG":
                self.is_waiting = False
                self.knows |= self.asked
                for other, payload in self.sent:
                    other.look()
                    assert other.got[payload] == 1, (payload, "is not queued, and its publisher has a PONG")
                self.sent.clear()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_order_of_bytes_who_has_a_pong_gets_what_any_member_publishes_next(make: Make, seed: int) -> None:
    rng = Random(seed)
    cluster = make(2 + seed % 2, seed=1000 + seed)
    people = [Person(client) for member in cluster.members for client in member.clients]
    published = 0
    for _ in range(300):
        person = rng.choice(people)
        subject = rng.choice((b"a", b"b", b"c", b"d"))
        step = rng.random()
        if step < 0.15 and not person.is_waiting and subject not in person.asked:
            person.asked.add(subject)
            person.is_waiting = True
            person.client.feed(b"SUB %b %b\r\nPING\r\n" % (subject, subject))
        elif step < 0.3 and not person.is_waiting:
            published += 1
            payload = b"%d" % published
            for other in people:
                other.look()
                if subject in other.knows:
                    other.wanted.add(payload)
                    person.sent.append((other, payload))
            person.is_waiting = True
            person.client.feed(b"PUB %b %d\r\n%b\r\nPING\r\n" % (subject, len(payload), payload))
        else:
            cluster.carry(rng.choice(cluster.ways), rng.choice((1, 5, 20, 1000)))
        person.look()
    cluster.settle()
    for person in people:
        person.look()
        assert not person.is_waiting
        assert {payload: person.got[payload] for payload in person.wanted} == dict.fromkeys(person.wanted, 1)
        assert all(count == 1 for count in person.got.values())
    assert cluster.waits and published


def test_a_ping_on_its_way_stands_for_no_frames_behind_it(make: Make) -> None:
    cluster = make(2)
    first, second = cluster.members[0].clients[0], cluster.members[0].clients[-1]  # on different shards
    inner = [way for way in cluster.ways if way[0] >= 0]

    def within_members() -> None:
        while sum(cluster.carry(way) for way in inner):
            pass

    first.feed(b"SUB a 1\r\nPING\r\n")
    within_members()
    end = cluster.routes[0, 1]
    asked = len(end.socket.sent) - end.carried  # up to the first PING
    second.feed(b"SUB b 1\r\nPING\r\n")
    within_members()
    cluster.carry((-1, 0, 1), asked)
    within_members()
    cluster.carry((-1, 1, 0))
    within_members()
    assert has_pong(first)
    assert not has_pong(second)
    cluster.settle()
    assert has_pong(second)


def test_a_server_that_is_told_nothing_any_more_is_waited_for_until_its_connection_ends(make: Make) -> None:
    """The gateway leaves. Neither what was acknowledged before nor a PONG that was due stands for what comes now."""
    cluster = make(2)
    first, second, third = cluster.members[0].clients[:3]
    first.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle()
    assert has_pong(first)  # all is acknowledged
    cluster.members[0].exchange.hush()
    third.feed(b"SUB b 1\r\nPING\r\n")
    cluster.settle()
    assert not has_pong(third)
    cluster.cut(0, 1)
    cluster.settle()
    assert has_pong(third)
    assert not has_pong(second)


def test_a_pong_from_before_says_nothing_of_what_a_server_was_not_told(make: Make) -> None:
    cluster = make(2)
    first, second = cluster.members[0].clients[0], cluster.members[0].clients[-1]
    first.feed(b"SUB a 1\r\nPING\r\n")
    cluster.settle(but=(1,))  # the PING is on its way
    end = cluster.routes[0, 1]
    cluster.members[0].exchange.hush()
    end.link.fall_silent()
    said = end.socket.queued
    second.feed(b"SUB b 1\r\nPING\r\n")
    cluster.settle()
    assert has_pong(first) and not has_pong(second)
    assert end.socket.queued == said  # nothing is written behind the end
    cluster.cut(0, 1)
    cluster.settle()
    assert has_pong(second)


def test_a_pong_waits_for_a_member_that_is_yet_to_be_told(make: Make) -> None:
    """Nothing was written to it so far: what others want comes first, and the client's subject is ahead of that."""
    cluster = make(1)
    member = cluster.members[0]
    gateway = member.mesh.engines[GATEWAY_NUMBER]
    first = RouteEnd(gateway, member.exchange)
    first.link.begin()
    gateway.probe.feed(first.socket, b"".join(b"RS+ $G many.%d\r\n" % n for n in range(300)))
    cluster.settle()
    member.mesh.work_in_turns(GATEWAY_NUMBER, 5)
    late = RouteEnd(gateway, member.exchange)
    late.link.begin()
    gateway.probe.finish()
    client = member.clients[0]
    client.feed(b"SUB late 1\r\nPING\r\n")

    def answered() -> bool:
        for one in (first, late):
            cluster.settle()
            n = bytes(one.socket.sent).count(b"PING\r\n")
            gateway.probe.feed(one.socket, b"PONG\r\n" * (n - one.pongs))
            one.pongs = n
        cluster.settle()
        return has_pong(client)

    while not answered():
        assert b"PING" not in bytes(late.socket.sent)
        assert member.mesh.work(GATEWAY_NUMBER)
        gateway.probe.finish()
    assert b"RS+ $G late\r\n" in bytes(late.socket.sent)
