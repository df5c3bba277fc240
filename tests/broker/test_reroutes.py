"""Queue messages that find no member where they were sent: who gets them instead, and who is told when."""

from __future__ import annotations

from typing import Any

import pytest

from gnatswarm.broker import options, rules
from gnatswarm.broker.options import Options
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.service_imports import ServiceImports
from tests.support.engine import NO_ECHO, QUIET, WITH_HEADERS, EngineClient, frames
from tests.support.mesh import Mesh, of_account
from tests.support.traces import AllWanted


@pytest.fixture
def make():
    made = []

    def make(shards: int = 2, connect: bytes = QUIET) -> Mesh:
        made.append(Mesh(shards, connect=connect))
        return made[-1]

    yield make
    for mesh in made:
        mesh.settle()
        assert all(engine.probe.reroutes.n_pending == 0 for engine in mesh.engines.values())
        mesh.close()


def echoless(mesh: Mesh, shard: int) -> EngineClient:
    """A client more, which wants none of what it publishes."""
    mesh.clients.append(mesh.engines[shard].client(NO_ECHO))
    return mesh.clients[-1]


def client_of(mesh: Mesh, shard: int, which: int = 0) -> EngineClient:
    return mesh.clients[2 * shard + which]


def publish(mesh: Mesh, shard: int, *numbers: int, subject: bytes = b"a") -> None:
    bodies = [b"%d" % number for number in numbers]
    client_of(mesh, shard).feed(b"".join(b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body) for body in bodies))


def sent_to_the_last_member(mesh: Mesh) -> tuple[EngineClient, EngineClient]:
    """The only member, on shard 1, and a new one, on shard 2: shard 0 has sent a message to the first before it knew.

    The message has not arrived. Shard 1 knows of the new member.
    """
    old, new = client_of(mesh, 1), client_of(mesh, 2)
    old.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1)
    new.feed(b"SUB a q 1\r\n")
    mesh.carry_all((2, 1))
    return old, new


def got(client: EngineClient) -> list[int]:
    return [int(frame.payload) for frame in frames(client.take()) if frame.is_message]


def on_wire(mesh: Mesh, a: int, b: int) -> bytes:
    """What shard a has sent to shard b, and b has not read."""
    mesh.finish()
    end = mesh.ends[a, b]
    assert end.socket is not None
    return bytes(end.socket.sent[end.carried :])


# ---- members that have unsubscribed


def test_a_member_that_unsubscribes_takes_what_siblings_sent_before_they_knew(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1, 2)
    member.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.carry_all((0, 1))
    assert member.take() == b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n"
    mesh.carry_all((1, 0))
    publish(mesh, 0, 3)  # now it knows
    mesh.settle()
    assert member.take() == b"PONG\r\n"


def test_lingering_ends_although_its_client_never_pings(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\nUNSUB 1\r\n")
    assert on_wire(mesh, 1, 0).endswith(b"RS- $G a q\r\nPING\r\n")
    mesh.settle()
    assert mesh.engines[1].probe.memory["lingering"] == 0


def test_a_current_member_comes_before_one_that_has_left(make):
    mesh = make(3)
    leaver, stays = client_of(mesh, 1), client_of(mesh, 2)
    for member in (leaver, stays):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, *range(10))
    leaver.feed(b"UNSUB 1\r\n")
    mesh.settle()
    assert got(leaver) == []
    assert sorted(got(stays)) == list(range(10))


def test_a_current_member_here_comes_before_one_that_has_left(make):
    mesh = make()
    leaver, stays = client_of(mesh, 1), client_of(mesh, 1, 1)
    for member in (leaver, stays):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, *range(10))
    leaver.feed(b"UNSUB 1\r\n")
    mesh.settle()
    assert got(leaver) == []
    assert got(stays) == list(range(10))


@pytest.mark.parametrize("shards", [3, 4])
def test_nothing_is_lost_where_all_members_leave_at_once(make, shards):
    mesh = make(shards)
    members = [client_of(mesh, shard) for shard in range(1, shards)]
    for member in members:
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, *range(50))
    for member in members:
        member.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.settle()
    assert sorted(number for member in members for number in got(member)) == list(range(50))
    assert sum(engine.probe.reroutes.n_lost for engine in mesh.engines.values()) == 0


def test_a_member_that_logs_in_anew_takes_what_siblings_sent_before_they_knew(make):
    """Its subscriptions end one after the other, and it is told when nothing comes for its groups any more."""
    mesh = make(2)
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\nSUB b 2\r\nSUB a r 3\r\nSUB a q 4\r\n")
    mesh.settle()
    publish(mesh, 0, *range(20))
    connection = member.connection
    connection.hold_login()
    connection.end_subscriptions()
    for left in (3, 2, 1, 0):
        assert connection.end_some(1) == []
        assert connection.subscriptions == left
    assert (connection.is_ending, connection.lingers, member.session.times_left) == (False, True, 0)
    mesh.settle()
    assert sorted(got(member)) == sorted([*range(20), *range(20)]), "each group takes each message"
    assert (connection.lingers, member.session.times_left) == (False, 1)


@pytest.mark.parametrize(
    ("permissions", "gets"),
    [
        (None, [1, 2]),
        (options.Permissions(subscribe_allow=("a.*",)), [1, 2]),
        (options.Permissions(subscribe_deny=("b",)), [1, 2]),
        (options.Permissions(subscribe_deny=("a.x",)), [1]),  # of what it has subscribed to, that is not delivered
        (options.Permissions(subscribe_allow=("b",)), [1]),
    ],
)
@pytest.mark.parametrize("account", [b"$G", b"I"])
@pytest.mark.parametrize("has_others", [False, True])
def test_a_member_that_has_left_takes_what_its_new_permissions_allow(make, permissions, gets, account, has_others):
    """A reload may change them while a message of a sibling is on its way; also one that its account imports."""
    mesh = make()
    for engine in mesh.engines.values():
        accounts = engine.probe.mesh
        accounts.account(b"I").streams = [rules.StreamImport(accounts.account(b"$G"), b"a.*", b"a.*")]
    old = Permissions(options.Permissions(subscribe_deny=("c",)))
    member = of_account(mesh, 1, account)
    member.connection.enter(mesh.engines[1].probe.mesh.account(account), old)
    member.feed(b"SUB a.* q 1\r\n" + b"SUB a.y 2\r\n" * has_others)
    mesh.settle()
    publish(mesh, 0, 1, subject=b"a.x")
    member.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.carry_all((0, 1))
    publish(mesh, 0, 2, subject=b"a.x")
    member.connection.enter(
        mesh.engines[1].probe.mesh.account(account), None if permissions is None else Permissions(permissions)
    )
    mesh.settle()
    assert got(member) == gets
    member.connection.end_some(9)
    mesh.settle()
    assert (member.connection.is_ending, member.connection.lingers) == (False, False)


def test_what_was_sent_on_comes_back_to_a_member_that_has_left_if_the_other_is_gone(make):
    """Its siblings knew already that it had left, but not that nobody else was there."""
    mesh = make(3)
    leaver, closes = sent_to_the_last_member(mesh)
    leaver.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.carry_all((1, 0), (1, 2), (0, 1))  # 1 sends it on to 2, and has not heard from it
    closes.close()
    mesh.finish()
    mesh.carry_all((2, 1))
    assert leaver.take() == b"", "a PONG may not come before what may still be given to its client"
    mesh.settle()
    assert leaver.take() == b"MSG a 1 1\r\n1\r\nPONG\r\n"


def test_the_pong_of_a_member_that_has_left_waits_for_what_was_sent_on_after_its_ping(make):
    """The siblings have acknowledged its PING, and a message may still come back to it."""
    mesh = make(3)
    leaver, closes = sent_to_the_last_member(mesh)
    leaver.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.carry_all((1, 2), (2, 1), (1, 2))  # two PINGs: what lingers has its own
    mesh.carry_all((0, 1), (2, 1))  # sent on to 2, behind both
    closes.close()
    mesh.carry_all((1, 0), (0, 1), (1, 0), (0, 1))
    assert leaver.take() == b""
    mesh.settle()
    assert leaver.take() == b"MSG a 1 1\r\n1\r\nPONG\r\n"


@pytest.mark.parametrize("other", ["has had its max", "is gone"])
def test_what_finds_nobody_goes_back_to_the_members_of_the_shard_that_published_it(make, other):
    """The first choice has closed its connection, the second takes no more, and the third has left meanwhile."""
    mesh = make(3)
    closes, second, leaver = client_of(mesh, 1), client_of(mesh, 2), client_of(mesh, 0)
    for member in (closes, second, leaver):
        member.feed(b"SUB a q 1\r\n")
    if other == "has had its max":
        second.feed(b"UNSUB 1 1\r\n")
    mesh.settle()
    closes.close()
    if other == "is gone":
        second.close()
    mesh.finish()
    publish(mesh, 0, *range(60))
    leaver.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.carry_all((0, 2), (0, 1))
    mesh.settle()
    received = frames(leaver.take())
    assert not received[-1].is_message, "its PONG comes last"
    mine = [int(frame.payload) for frame in received if frame.is_message]
    theirs = [] if other == "is gone" else got(second)
    assert sorted(mine + theirs) == list(range(60))
    assert len(theirs) <= 1
    assert sum(engine.probe.reroutes.n_lost for engine in mesh.engines.values()) == 0


def test_a_member_that_has_left_takes_no_more_than_its_max(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\nUNSUB 1 3\r\n")
    mesh.settle()
    publish(mesh, 0, *range(5))
    member.feed(b"UNSUB 1\r\n")
    mesh.settle()
    assert got(member) == [0, 1, 2]


def test_a_member_that_has_had_its_max_does_not_linger(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1)
    mesh.settle()
    publish(mesh, 0, 2)
    member.feed(b"UNSUB 1 1\r\n")
    mesh.settle()
    assert got(member) == [1]


@pytest.mark.parametrize("has_neighbour", [False, True])
@pytest.mark.parametrize("joins_late", [False, True])
@pytest.mark.parametrize("shards", [2, 3])
def test_nothing_comes_back_to_who_published_it_and_wants_no_echo(make, *, shards, joins_late, has_neighbour):
    """The member that it was sent to leaves; the publisher is one too, or has become one meanwhile."""
    mesh = make(shards)
    publisher, neighbour, leaver = echoless(mesh, 0), client_of(mesh, 0), client_of(mesh, 1)
    leaver.feed(b"SUB a q 1\r\n")
    if not joins_late:
        publisher.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publisher.feed(b"".join(b"PUB a 2\r\n%02d\r\n" % number for number in range(20)))
    if joins_late:
        publisher.feed(b"SUB a q 1\r\n")
    if has_neighbour:
        neighbour.feed(b"SUB a q 1\r\n")
    mesh.carry_all((0, 2)) if shards == 3 else None
    leaver.feed(b"UNSUB 1\r\nPING\r\n")
    mesh.settle()
    assert got(publisher) == []
    by_neighbour, by_leaver = got(neighbour), got(leaver)
    assert sorted(by_neighbour + by_leaver) == list(range(20))
    assert bool(by_neighbour) == (has_neighbour and not joins_late)
    assert sum(engine.probe.reroutes.n_lost for engine in mesh.engines.values()) == 0


def test_who_sends_a_message_on_says_that_its_publisher_here_may_not_have_it(make):
    """Other servers take this broker for a place with members, and would send it back for ever."""
    mesh = make(3)
    publisher, leaver, other = echoless(mesh, 0), client_of(mesh, 1), client_of(mesh, 2)
    for member in (publisher, leaver):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB a 1\r\nx\r\n" * 20)
    mesh.finish()
    other.feed(b"SUB a q 1\r\n")
    mesh.carry_all((2, 0))
    leaver.feed(b"UNSUB 1\r\n")
    mesh.carry_all((0, 1))
    mesh.carry_all((1, 0))
    sent_on = [line for line in on_wire(mesh, 0, 2).split(b"\r\n") if line.startswith(b"QMSG")]
    assert len(sent_on) == 20
    assert all(line.split()[3:5] == [b"2", b"%d" % publisher.connection.cid] for line in sent_on)
    mesh.settle()
    assert (got(publisher), len(other.take())) == ([], 20 * len(b"MSG a 1 1\r\nx\r\n"))


def test_plain_subscriptions_hear_once_what_goes_to_a_group_for_all_but_its_publisher(make):
    mesh = make(3)
    publisher, member, both = echoless(mesh, 0), client_of(mesh, 1), client_of(mesh, 2)
    publisher.feed(b"SUB a q 1\r\nSUB a 2\r\n")
    member.feed(b"SUB a q 1\r\n")
    both.feed(b"SUB a q 1\r\nSUB a 2\r\nSUB a r 3\r\n")
    mesh.settle()
    publisher.feed(b"".join(b"PUB a 2\r\n%02d\r\n" % number for number in range(40)))
    mesh.settle()
    assert got(publisher) == []
    sids: dict[bytes, list[int]] = {b"1": [], b"2": [], b"3": []}
    for frame in frames(both.take()):
        if frame.is_message:
            sids[frame.line.split()[2]].append(int(frame.payload))
    assert sids[b"2"] == sids[b"3"] == list(range(40))
    assert sorted(sids[b"1"] + got(member)) == list(range(40))
    assert min(len(sids[b"1"]), 40 - len(sids[b"1"])) > 0


def test_a_closed_connection_takes_nothing(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1)
    member.feed(b"UNSUB 1\r\n")
    member.close()
    mesh.settle()
    assert got(member) == []
    assert mesh.engines[1].probe.reroutes.n_lost == 1


def test_others_have_their_turn_while_a_client_joins_and_leaves_a_group_again_and_again(make):
    mesh = make()
    client = client_of(mesh, 0)
    client.feed(b"SUB a q 1\r\nUNSUB 1\r\n" * 1000 + b"PING\r\n")
    mesh.settle()
    assert client.take() == b"PONG\r\n"
    assert client.session.turns == 5


def test_a_sid_that_is_used_again_is_the_new_subscription_alone(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1)
    member.feed(b"UNSUB 1\r\nSUB b 1\r\n")
    mesh.settle()
    assert member.take() == b""


def test_a_wildcard_member_that_has_left_hears_what_it_subscribed_to_alone(make):
    mesh = make()
    member = client_of(mesh, 1)
    member.feed(b"SUB a.* q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1, subject=b"a.x")
    member.feed(b"UNSUB 1\r\n")
    mesh.carry_all((0, 1))
    mesh.engines[1].probe.feed(mesh.ends[1, 0].socket, b"RMSG $G b.x | q 1\r\n2\r\n")
    assert member.take() == b"MSG a.x 1 1\r\n1\r\n"


# ---- messages that are sent on


def test_the_pong_of_a_sibling_waits_for_what_it_sent_on(make):
    mesh = make(3)
    publisher = client_of(mesh, 0)
    leaver, stays = sent_to_the_last_member(mesh)
    leaver.feed(b"UNSUB 1\r\n")
    assert publisher.talk(b"PING\r\n") == b""
    mesh.carry_all((0, 1), (1, 0))
    assert publisher.take() == b"", "it is on its way"
    mesh.carry_all((1, 2))
    assert got(stays) == [1]
    mesh.carry_all((2, 1), (1, 0))
    assert publisher.take() == b"PONG\r\n"


def test_a_message_that_is_sent_on_twice_is_acknowledged_when_it_has_arrived(make):
    mesh = make(4)
    publisher = client_of(mesh, 0)
    first, second = sent_to_the_last_member(mesh)
    first.feed(b"UNSUB 1\r\n")
    publisher.feed(b"PING\r\n")
    mesh.carry_all((0, 1))  # 1 → 2
    client_of(mesh, 3).feed(b"SUB a q 1\r\n")
    mesh.carry_all((3, 2))
    second.feed(b"UNSUB 1\r\n")
    mesh.carry_all((1, 2))  # 2 → 3
    assert b"QACK" not in on_wire(mesh, 2, 1)
    mesh.carry_all((2, 1), (1, 0))
    assert publisher.take() == b""
    mesh.carry_all((2, 3))
    assert got(client_of(mesh, 3)) == [1]
    mesh.carry_all((3, 2), (2, 1), (1, 0))
    assert publisher.take() == b"PONG\r\n"


def test_what_was_sent_on_to_a_shard_that_dies_holds_nobody(make):
    mesh = make(3)
    publisher = client_of(mesh, 0)
    first, _ = sent_to_the_last_member(mesh)
    first.feed(b"UNSUB 1\r\n")
    publisher.feed(b"PING\r\n")
    mesh.carry_all((0, 1), (1, 0))
    assert publisher.take() == b""
    mesh.kill(2)
    mesh.carry_all((1, 0))
    assert publisher.take() == b"PONG\r\n"


def test_who_is_asked_while_a_link_is_made_again_waits_for_what_that_sibling_says(make):
    """A member is on a shard whose link is out of step: the message waits until it is in step, and is not lost."""
    mesh = make(3)

    def break_and_ask():
        mesh.break_link(1, 2)
        mesh.carry_all((0, 1), (1, 0))

    check_that_the_message_waits(mesh, break_and_ask)


def test_who_is_asked_while_a_link_is_missing_waits_for_the_next_one(make):
    """As above; nobody has dialled again yet."""
    mesh = make(3)
    check_that_the_message_waits(mesh, lambda: mesh.break_link(1, 2, meanwhile=lambda: mesh.carry_all((0, 1), (1, 0))))


def check_that_the_message_waits(mesh, break_and_ask):
    """The member on shard 1 has left when it gets twenty messages, and the link to that on shard 2 breaks."""
    publisher, leaver, stays = client_of(mesh, 0), client_of(mesh, 1), client_of(mesh, 2)
    for member in (leaver, stays):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, *range(20))
    publisher.feed(b"PING\r\n")
    leaver.close()
    break_and_ask()
    assert publisher.take() == b""
    mesh.settle()
    assert publisher.take() == b"PONG\r\n"
    assert sorted(got(stays)) == list(range(20))


def test_what_waits_for_a_link_has_its_reply_subject_when_it_is_sent_on(make):
    mesh = make(3)
    publisher, leaver, stays = client_of(mesh, 0), client_of(mesh, 1), client_of(mesh, 2)
    leaver.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publisher.feed(b"PUB a inbox 1\r\n1\r\n")
    leaver.close()
    stays.feed(b"SUB a q 1\r\n")
    mesh.break_link(1, 2)
    mesh.settle()
    assert stays.take() == b"MSG a 1 inbox 1\r\n1\r\n"


def test_who_waits_for_a_link_that_will_not_come_back_goes_on(make):
    mesh = make(3)
    publisher, leaver = client_of(mesh, 0), client_of(mesh, 1)
    leaver.feed(b"SUB a q 1\r\n")
    mesh.settle()
    publish(mesh, 0, 1)
    publisher.feed(b"PING\r\n")
    leaver.close()
    mesh.break_link(1, 2)
    mesh.carry_all((0, 1), (1, 0))
    assert publisher.take() == b""
    mesh.kill(2)
    mesh.carry_all((1, 0), (0, 1), (1, 0))  # (shard 0 has nobody for it either)
    assert publisher.take() == b"PONG\r\n"
    assert mesh.engines[1].probe.reroutes.n_lost == 1


def test_a_message_that_is_sent_on_goes_where_it_has_not_been(make):
    """A shard that was visited had no member when the message came there; it may be known as one that has some."""
    mesh = make(4)
    visited, other = client_of(mesh, 1), client_of(mesh, 2)
    for member in (visited, other):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    end = mesh.ends[0, 3]
    assert end.socket is not None
    for number in range(20):
        frame = b"QMSG %d %d 0 0 $G a | q 2\r\n%02d\r\n" % (number + 1, 1 << 1 | 1 << 3, number)
        mesh.engines[0].probe.feed(end.socket, frame)
    mesh.settle()
    assert (got(visited), got(other)) == ([], list(range(20)))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_member_whose_connection_is_closing_is_promised_nothing(make, is_first):
    """The promise is another former member's, which stays for it."""
    mesh = make(3)
    closing, lingers, other = client_of(mesh, 1), client_of(mesh, 1, 1), client_of(mesh, 2)
    for member in (closing, lingers, other):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    frame = b"QMSG 1 0 0 0 $G a | q 1\r\n7\r\n"
    for member in (closing, lingers) if is_first else (lingers, closing):
        member.feed(b"UNSUB 1\r\n", finish=False)
    closing.feed(b"no such operation\r\n", finish=False)  # closed at the end of the round
    end = mesh.ends[1, 0]
    assert end.socket is not None
    mesh.engines[1].probe.feed(end.socket, frame, finish=False)  # sent on to the other, which leaves meanwhile
    other.feed(b"UNSUB 1\r\n")
    other.close()
    mesh.finish()
    mesh.carry_all((1, 0), (0, 1))
    mesh.settle()
    assert got(lingers) == [7]


# ---- answers of a service in another account


def with_a_service(mesh: Mesh) -> None:
    """B imports the service s of A, on all shards."""
    for shard, engine in mesh.engines.items():
        there = engine.probe.mesh
        assert there is not None
        engine.probe.fanout.gate = crossing = ServiceImports(engine.probe.fanout, shard)
        there.set_reply_prefix(crossing.reply_prefix)
        a, b = there.account(b"A"), there.account(b"B")
        b.set_rules([], [rules.ServiceImport(b, a, b"s", b"s", rules.RESPONSE_KINDS["singleton"], 120_000_000)])


class Documents:
    """In the place of a shard's System: keeps the subjects of documents about traced messages."""

    def __init__(self) -> None:
        self.places: list[tuple[str, bytes]] = []

    def named(self) -> dict[str, str]:
        return {}

    def say_soon(self, account: str, subject: bytes, _document: bytes, _header: bytes) -> None:
        self.places.append((account, subject))


def test_a_traced_answer_that_waited_is_not_traced_in_the_other_account(make):
    """Its responder would choose a subject there that it may not publish to."""
    mesh = make(3, WITH_HEADERS)
    with_a_service(mesh)
    told: Any = Documents()
    for engine in mesh.engines.values():
        engine.probe.fanout.tracing = AllWanted(Options(), engine.probe.mesh, told, {})
    responder = of_account(mesh, 1, b"A", b"SUB s 1\r\nPING\r\n")
    listener = of_account(mesh, 2, b"B", b"SUB inbox 1\r\n")
    of_account(mesh, 0, b"B", b"PUB s inbox 1\r\n?\r\n")
    (request,) = [frame for frame in frames(responder.take()) if frame.is_message]
    mesh.break_link(0, 2)
    block = b"NATS/1.0\r\nNats-Trace-Dest: chosen\r\n\r\n"
    responder.feed(b"HPUB %b %d %d\r\n%b5\r\n" % (request.reply, len(block), len(block) + 1, block))
    mesh.settle()
    (answer,) = [frame for frame in frames(listener.take()) if frame.is_message]
    assert answer.payload == b"5"
    assert b"Nats-Trace-Dest: trace disabled\r\n" in answer.body
    assert set(told.places) == {("A", b"chosen")}


def test_an_answer_that_asks_for_no_trace_goes_on_as_it_was_published(make):
    """Its destination is no subject."""
    mesh = make(2, WITH_HEADERS)
    with_a_service(mesh)
    told: Any = Documents()
    for engine in mesh.engines.values():
        engine.probe.fanout.tracing = AllWanted(Options(), engine.probe.mesh, told, {})
    responder = of_account(mesh, 1, b"A", b"SUB s 1\r\nPING\r\n")
    asker = of_account(mesh, 0, b"B", b"SUB inbox 1\r\nPUB s inbox 1\r\n?\r\n")
    (request,) = [frame for frame in frames(responder.take()) if frame.is_message]
    block = b"NATS/1.0\r\nNats-Trace-Dest: a.*\r\nA: b\r\n\r\n"
    responder.feed(b"HPUB %b %d %d\r\n%b5\r\n" % (request.reply, len(block), len(block) + 1, block))
    mesh.settle()
    (answer,) = [frame for frame in frames(asker.take()) if frame.is_message]
    assert answer.body == block + b"5"


def test_the_pong_of_who_answers_comes_behind_an_answer_that_waits_for_a_link(make):
    """From where it was asked the answer goes on to a shard whose interest is not known just then."""
    mesh = make(3)
    with_a_service(mesh)
    responder = of_account(mesh, 1, b"A", b"SUB s 1\r\nPING\r\n")
    listener = of_account(mesh, 2, b"B", b"SUB inbox 1\r\n")
    of_account(mesh, 0, b"B", b"PUB s inbox 1\r\n?\r\n")
    (request,) = [frame for frame in frames(responder.take()) if frame.is_message]
    mesh.break_link(0, 2)
    responder.feed(b"PUB %b 1\r\n5\r\nPING\r\n" % request.reply)
    mesh.carry_all((1, 0), (0, 1))
    assert responder.take() == b"", "its answer waits"
    mesh.carry_all((2, 0))
    assert b" inbox " in on_wire(mesh, 0, 2)
    mesh.carry_all((0, 1))
    assert responder.take() == b"", "its answer has not arrived"
    mesh.carry_all((0, 2))
    assert got(listener) == [5]
    mesh.carry_all((2, 0), (0, 1))
    assert responder.take() == b"PONG\r\n"


def test_an_answer_does_not_wait_for_a_shard_that_was_just_started(make):
    """Nobody has asked there; to tell it all takes a while."""
    mesh = make(3)
    with_a_service(mesh)
    responder = of_account(mesh, 1, b"A", b"SUB s 1\r\nPING\r\n")
    asker = of_account(mesh, 0, b"B", b"SUB inbox 1\r\nPUB s inbox 1\r\n?\r\n")
    mesh.settle()
    (request,) = [frame for frame in frames(responder.take()) if frame.is_message]
    mesh.clients[0].feed(b"".join(b"SUB x.%d %d\r\n" % (n, n) for n in range(100)))
    mesh.settle()
    mesh.work_in_turns(0, 10)
    mesh.add(3, is_new=True)
    responder.feed(b"PUB %b 1\r\n5\r\nPING\r\n" % request.reply)
    mesh.settle()
    assert not mesh.ends[0, 3].is_synchronised
    assert (got(asker), responder.take()) == ([5], b"PONG\r\n")
    while not mesh.ends[0, 3].is_synchronised:
        mesh.work(0)
        mesh.settle()
