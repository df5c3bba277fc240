"""What shards tell each other: interest that begins and ends before it was sent to a sibling is never sent."""

from __future__ import annotations

import os
import random
import time

import pytest

from gnatswarm.broker.link import SiblingLink
from gnatswarm.broker.tally import Tally
from gnatswarm.probes.sublist import preset_link_out
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from tests.support import patterns
from tests.support.engine import QUIET, frames
from tests.support.mesh import Mesh
from tests.support.swarm import resident_bytes


@pytest.fixture
def mesh():
    mesh = Mesh(2, connect=QUIET)
    yield mesh
    mesh.close()


def told(mesh: Mesh) -> bytes:
    """What shard 0 has sent to shard 1 since the last look."""
    mesh.finish()
    return mesh.ends[0, 1].take(1 << 20)


def test_a_subscription_that_ends_in_the_same_round_is_not_told(mesh):
    client = mesh.clients[0]
    words = b"".join(b"SUB inbox.%d %d\r\nUNSUB %d\r\n" % (n, n, n) for n in range(1000))
    assert client.talk(words + b"PING\r\n") == b"PONG\r\n"
    assert told(mesh) == b""


@pytest.mark.parametrize(
    ("words", "frames"),
    [
        (b"SUB a 1\r\n", b"RS+ $G a\r\n"),
        (b"SUB a 1\r\nSUB b 2\r\nUNSUB 1\r\n", b"RS+ $G a\r\nRS+ $G b\r\nRS- $G a\r\n"),
        (b"SUB a 1\r\nSUB b 2\r\nUNSUB 2\r\n", b"RS+ $G a\r\n"),
        (b"SUB a 1\r\nSUB a 2\r\nUNSUB 1\r\n", b"RS+ $G a\r\n"),
        (b"SUB a 1\r\nSUB a 2\r\nUNSUB 1\r\nUNSUB 2\r\n", b""),
        (b"SUB a 1\r\nUNSUB 1\r\nSUB a 1\r\n", b"RS+ $G a\r\n"),
        (b"SUB a q 1\r\nUNSUB 1\r\n", b"RS+ $G a q 1\r\nRS- $G a q\r\nPING\r\n"),
        (b"SUB a q 1\r\nSUB a 2\r\nUNSUB 2\r\n", b"RS+ $G a q 1\r\n"),
        (b"SUB a q 1\r\nSUB a 2\r\nUNSUB 1\r\n", b"RS+ $G a q 1\r\nRS+ $G a\r\nRS- $G a q\r\nPING\r\n"),
        (b"SUB ab 1\r\nSUB b 2\r\nUNSUB 1\r\n", b"RS+ $G ab\r\nRS+ $G b\r\nRS- $G ab\r\n"),
    ],
)
def test_what_is_told(mesh, words, frames):
    mesh.clients[0].feed(words)
    assert told(mesh) == frames


def test_a_subscription_that_was_told_is_ended_by_a_frame(mesh):
    mesh.clients[0].feed(b"SUB a 1\r\n")
    assert told(mesh) == b"RS+ $G a\r\n"
    mesh.clients[0].feed(b"UNSUB 1\r\nSUB a 1\r\nUNSUB 1\r\n")
    assert told(mesh) == b"RS- $G a\r\n"


def test_a_payload_that_looks_like_interest_is_not_taken_back(mesh):
    """The message ends where the RS+ would have ended."""
    subscriber, publisher = mesh.clients[2], mesh.clients[0]
    subscriber.feed(b"SUB wanted 1\r\n")
    mesh.settle()
    body = b"RS+ $G a"
    publisher.feed(b"SUB a 1\r\nPUB wanted %d\r\n%b\r\nUNSUB 1\r\n" % (len(body), body))
    assert told(mesh) == b"RS+ $G a\r\nRMSG $G wanted 8\r\nRS+ $G a\r\nRS- $G a\r\n"


def test_a_payload_that_ends_where_interest_ended_in_an_earlier_round_is_not_taken_back(mesh):
    """The buffer is used again from its beginning, and looks as if nothing had been sent behind the RS+."""
    subscriber, publisher = mesh.clients[2], mesh.clients[0]
    subscriber.feed(b"SUB w 1\r\n")
    mesh.settle()
    body = b"RS+ $G a"
    message = b"RMSG $G w 8\r\n" + body + b"\r\n"
    first = b"RS+ $G bbbb\r\n"
    assert len(first + b"RS+ $G a\r\n") == len(message)
    publisher.feed(b"SUB bbbb 1\r\nSUB a 2\r\n")
    assert told(mesh) == first + b"RS+ $G a\r\n"
    publisher.feed(b"PUB w 8\r\n%b\r\nUNSUB 2\r\n" % body)
    assert told(mesh) == message + b"RS- $G a\r\n"


def test_a_ping_in_between_makes_both_be_told(mesh):
    """The fence waits behind the RS+."""
    client = mesh.clients[0]
    client.feed(b"SUB a 1\r\nPING\r\nUNSUB 1\r\nPING\r\n")
    assert client.take() == b""
    mesh.settle()
    assert client.take() == b"PONG\r\nPONG\r\n"


def test_the_end_of_a_queue_group_takes_back_nobody_elses_plain_interest(mesh):
    """One client in one write, with another member of the group on the other shard: it hears everything once."""
    client, member, publisher = mesh.clients[0], mesh.clients[2], mesh.clients[3]
    member.feed(b"SUB x q 1\r\n")
    mesh.settle()
    client.feed(b"SUB x q 1\r\nSUB x 2\r\nUNSUB 1\r\nPING\r\n")
    mesh.settle()
    assert client.take() == b"PONG\r\n"
    publisher.feed(b"PUB x 1\r\n.\r\n" * 1000)
    mesh.settle()
    assert client.take() == b"MSG x 2 1\r\n.\r\n" * 1000
    assert member.take() == b"MSG x 1 1\r\n.\r\n" * 1000


def test_a_sibling_that_tells_much_is_read_in_short_pieces_until_it_has_told_it():
    """Clients here are served in between; messages are read as before."""
    mesh = Mesh(2, connect=QUIET)
    end = mesh.ends[0, 1]
    assert end.socket is not None
    told = b"".join(b"RS+ $G told.%06d\r\n" % number for number in range(8_000))
    messages = b"RMSG $G nobody 100\r\n" + b"x" * 100 + b"\r\n"
    feed, socket = mesh.engines[0].probe.feed, end.socket

    feed(socket, told)
    assert socket.largest_read == 16_384  # the first one: then it is known that it tells much
    assert 0 < socket.last_read <= 4_096
    feed(socket, b"RS+ $G one.more\r\n")  # that was all for now, and there is more
    feed(socket, told)
    assert 2_048 < socket.largest_read <= 4_096
    feed(socket, messages)
    feed(socket, messages * 4_000)
    assert socket.largest_read > 100_000
    mesh.close()


# ---- long work, in turns

MANY = 3000


def subscribe_to_many(mesh: Mesh, client: int, queue: bytes = b"") -> None:
    words = b"".join(b"SUB many.%d%b %d\r\n" % (number, queue and b" " + queue, number) for number in range(MANY))
    mesh.clients[client].feed(words)
    mesh.settle()


def work_off(mesh: Mesh, shard: int) -> None:
    while mesh.work(shard):
        pass


@pytest.mark.parametrize("queue", [b"", b"q"])
def test_a_new_sibling_is_told_all_interest_a_little_at_a_time(mesh, queue):
    subscribe_to_many(mesh, 0, queue)
    mesh.kill(1)
    mesh.work_in_turns(0, 100)
    mesh.add(1)
    told(mesh)
    pieces = []
    while mesh.work(0):
        pieces.append(told(mesh))
    assert sum(piece.count(b"RS+ ") for piece in pieces) == MANY
    assert max(piece.count(b"RS+ ") for piece in pieces) < 300
    assert [number for number, piece in enumerate(pieces) if b"PING" in piece] == [len(pieces) - 1]


def test_what_changes_while_a_sibling_is_told_interest_is_known_there_in_the_end(mesh):
    client = mesh.clients[0]
    subscribe_to_many(mesh, 0)
    mesh.kill(1)
    mesh.work_in_turns(0, 50)
    mesh.add(1)
    dice = random.Random(1)
    left = set(range(MANY))
    while mesh.work(0):
        for number in dice.sample(sorted(left), 10):
            client.feed(b"UNSUB %d\r\n" % number)
            left.remove(number)
        number = MANY + len(left)
        client.feed(b"SUB more.%d q %d\r\nUNSUB %d\r\nSUB more.%d %d\r\n" % (number, number, number, number, number))
    mesh.settle()
    assert mesh.is_in_step(1)
    publisher = mesh.connect(1)
    publisher.feed(b"".join(b"PUB many.%d 0\r\n\r\n" % number for number in range(MANY)))
    mesh.settle()
    got = {int(frame.line.split(b" ")[1].split(b".")[1]) for frame in frames(client.take())}
    assert got == left


def test_a_pong_waits_until_a_sibling_knows_what_it_is_being_told(mesh):
    subscribe_to_many(mesh, 0)
    mesh.kill(1)
    mesh.work_in_turns(0, 100)
    mesh.add(1)
    client = mesh.clients[0]
    client.feed(b"SUB late 9999\r\nPING\r\n")
    while mesh.work(0):
        assert client.take() == b""
        mesh.carry_all((1, 0))
    mesh.settle()
    assert client.take() == b"PONG\r\n"


def test_nobody_waits_for_a_new_process_before_it_has_been_told_everything(mesh):
    """Nobody can publish there before; then everybody does."""
    subscribe_to_many(mesh, 0)
    client = mesh.clients[0]
    client.feed(b"SUB jobs q 9998\r\n")
    mesh.kill(1)
    mesh.work_in_turns(0, 100)
    mesh.add(1, is_new=True)
    client.feed(b"SUB late 9999\r\nUNSUB 9998\r\nPING\r\n")
    assert client.take() == b"PONG\r\n"
    work_off(mesh, 0)
    client.feed(b"SUB later 10000\r\nPING\r\n")
    assert client.take() == b""
    mesh.settle()
    assert client.take() == b"PONG\r\n"
    publisher = mesh.connect(1)
    publisher.feed(b"PUB late 0\r\n\r\nPUB later 0\r\n\r\nPUB jobs 0\r\n\r\n")
    mesh.settle()
    assert [frame.line.split(b" ")[1] for frame in frames(client.take())] == [b"late", b"later"]


def test_nobody_waits_for_a_new_gateway_before_it_has_been_told_everything(mesh):
    """It connects to no other server before; then it is waited for."""
    subscribe_to_many(mesh, 0)
    client = mesh.clients[0]
    mesh.work_in_turns(0, 100)
    mesh.add(GATEWAY_NUMBER, is_new=True)
    client.feed(b"SUB late 9999\r\nPING\r\n")
    mesh.carry_all((0, 1), (1, 0))
    assert client.take() == b"PONG\r\n"
    work_off(mesh, 0)
    client.feed(b"SUB later 10000\r\nPING\r\n")
    mesh.carry_all((0, 1), (1, 0))
    assert client.take() == b""
    mesh.settle()
    assert client.take() == b"PONG\r\n"


def test_a_link_that_breaks_while_its_sibling_is_told_interest_tells_it_all_again(mesh):
    client = mesh.clients[0]
    subscribe_to_many(mesh, 0)
    mesh.work_in_turns(0, 100)
    mesh.break_link(0, 1)
    client.feed(b"PING\r\n")
    for _ in range(5):
        assert mesh.work(0)
        mesh.settle()
    mesh.break_link(0, 1)
    work_off(mesh, 0)
    mesh.settle()
    assert mesh.is_in_step(1)
    assert client.take() == b"PONG\r\n"
    mesh.clients[2].feed(b"".join(b"PUB many.%d 0\r\n\r\n" % number for number in range(MANY)))
    mesh.settle()
    assert len(frames(client.take())) == MANY


def test_who_is_told_interest_is_told_no_more_than_it_reads():
    """A message, or who waits for a PONG, would wait behind all of it."""
    mesh = Mesh(2, connect=QUIET)
    mesh.clients[0].feed(b"".join(b"SUB %d.%b %d\r\n" % (number, b"x" * 200, number) for number in range(MANY)))
    mesh.settle()
    mesh.work_in_turns(0, 100)
    mesh.break_link(0, 1)
    end = mesh.ends[0, 1]
    assert end.socket is not None and end.link is not None
    probe = mesh.engines[0].probe
    probe.set_takes(end.socket, 0)
    while mesh.work(0):
        pass
    assert 262_144 <= end.link.pending_bytes < 400_000
    assert probe.mesh is not None and probe.mesh.go_on() == 0.001
    probe.set_takes(end.socket, 1 << 30)
    work_off(mesh, 0)
    mesh.settle()
    assert mesh.is_in_step(1)
    mesh.close()


def test_a_request_that_only_a_dead_sibling_has_taken_gets_503_before_all_its_interest_is_dropped():
    mesh = Mesh(2, connect=b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
    for queue in (b"", b"q"):
        subscribe_to_many(mesh, 2, queue)
        client = mesh.clients[0]
        client.feed(b"SUB inbox 1\r\n")
        for number in range(0, MANY, 20):  # (the others are not in the match cache)
            client.feed(b"PUB many.%d inbox 0\r\n\r\n" % number)
        mesh.settle()
        assert client.take() == b""
        mesh.work_in_turns(0, 100)
        mesh.kill(1)
        for number in range(0, MANY, 10):
            client.feed(b"PUB many.%d inbox 0\r\n\r\n" % number)
            assert b" 503\r\n" in client.take()
            mesh.work(0)
        work_off(mesh, 0)
        mesh.add(1)
        mesh.settle()
        mesh.connect(1)
        mesh.clients[2] = mesh.clients.pop()
        mesh.shard_of.pop()
    mesh.close()


def test_a_queue_message_goes_to_no_dead_sibling_whose_interest_is_being_dropped():
    mesh = Mesh(3, connect=QUIET)
    subscribe_to_many(mesh, 2, b"q")
    member = mesh.clients[4]
    member.feed(b"SUB many.* q 1\r\n")
    mesh.settle()
    mesh.clients[0].feed(b"".join(b"PUB many.%d 0\r\n\r\n" % number for number in range(0, MANY, 2)))
    mesh.settle()
    assert 0 < len(frames(member.take())) < MANY // 2
    mesh.work_in_turns(0, 100)
    mesh.kill(1)
    mesh.clients[0].feed(b"".join(b"PUB many.%d 0\r\n\r\n" % number for number in range(MANY)))
    mesh.settle()
    assert len(frames(member.take())) == MANY
    work_off(mesh, 0)
    mesh.close()


def test_the_next_link_waits_until_what_the_last_one_told_is_dropped(mesh):
    """Or old interest would be taken for new, or new for old."""
    client, publisher = mesh.clients[2], mesh.clients[0]
    subscribe_to_many(mesh, 2)
    mesh.work_in_turns(0, 100)
    mesh.break_link(0, 1)
    client.connection.go_on()
    client.feed(b"".join(b"UNSUB %d\r\n" % number for number in range(0, MANY, 2)))
    link = mesh.ends[0, 1].link
    assert link is not None
    n = 0
    while not link.is_joined:
        mesh.settle()
        assert mesh.work(0)
        n += 1
    assert n > MANY / 300
    work_off(mesh, 0)
    mesh.settle()
    publisher.feed(b"".join(b"PUB many.%d 0\r\n\r\n" % number for number in range(MANY)))
    mesh.settle()
    assert len(frames(client.take())) == MANY / 2


def test_a_link_that_ends_while_it_waits_for_that_joins_no_more(mesh):
    subscribe_to_many(mesh, 2)
    mesh.work_in_turns(0, 100)
    mesh.break_link(0, 1)
    first = mesh.ends[0, 1].link
    mesh.break_link(0, 1)
    work_off(mesh, 0)
    mesh.settle()
    assert first is not None and not first.is_joined
    assert mesh.is_in_step(1)


def test_a_link_whose_messages_go_to_many_rests(mesh):
    subscriber, publisher = mesh.clients[2], mesh.clients[0]
    resting: list[SiblingLink] = []
    mesh.ends[1, 0].link.rest_with(resting.append)
    subscriber.feed(b"".join(b"SUB a %d\r\n" % sid for sid in range(1000)))
    mesh.settle()
    publisher.feed(b"PUB a 0\r\n\r\n" * 500)
    mesh.settle()
    rests = 0
    while resting:
        rests += 1
        resting.pop().has_rested()
        mesh.settle()
    assert subscriber.take().count(b"MSG ") == 500_000
    assert rests >= 500_000 // 200_000


@pytest.mark.parametrize("count", [15, 16, 17, 100, 1000])
def test_each_of_many_groups_at_a_sibling_gets_one(mesh, count):
    subscriber, publisher = mesh.clients[2], mesh.clients[0]
    sids = random.Random(count).sample(range(count), count)
    subscriber.feed(b"".join(b"SUB a q%d %d\r\nSUB a q%d %d\r\n" % (n, n, n, n + count) for n in sids))
    mesh.settle()
    publisher.feed(b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\n")
    mesh.settle()
    got = [(int(sid) % count, payload) for sid, payload in subscriber.messages()]
    assert sorted(got) == [(n, payload) for n in range(count) for payload in (b"1", b"2")]


def test_a_message_to_many_groups_at_a_sibling_costs_the_same_for_each(mesh):
    """With thousands of them, one message to each had the sibling killed as hung."""
    subscriber, publisher = mesh.clients[2], mesh.clients[0]

    def cost(subject: bytes, groups: int) -> float:
        subscriber.feed(b"".join(b"SUB %b q%d %b%d\r\n" % (subject, n, subject, n) for n in range(groups)))
        mesh.settle()
        spent = []
        for _ in range(3):
            publisher.feed(b"PUB %b 0\r\n\r\n" % subject * (8000 // groups))
            began = time.thread_time()
            mesh.settle()
            spent.append(time.thread_time() - began)
            assert subscriber.take().count(b"MSG ") == 8000
        return min(spent)

    few, many = cost(b"few", 64), cost(b"many", 8000)
    assert many < 5 * few  # (it was 30 times as much)


def test_a_link_whose_messages_take_long_to_match_rests_and_they_stay_in_order(mesh):
    subscriber, publisher = mesh.clients[2], mesh.clients[0]
    resting: list[SiblingLink] = []
    mesh.ends[1, 0].link.rest_with(resting.append)
    subscriber.feed(b"SUB > 0\r\n" + patterns.subscriptions())
    mesh.settle()
    publisher.feed(patterns.publishes(200))
    mesh.settle()
    rests = 0
    while resting:
        rests += 1
        resting.pop().has_rested()
        mesh.settle()
    assert [int(frame.payload) for frame in frames(subscriber.take())] == list(range(200))
    assert rests >= 200 * patterns.STEPS // 100_000


def test_an_account_that_nobody_uses_takes_little_memory():
    """Each shard has all accounts of the configuration: 64 KB of a tally and 40 KB of counters were in each."""
    mesh = Mesh(1, connect=QUIET)
    shard = mesh.engines[0].probe.mesh
    assert shard is not None
    shard.tally(4096)
    before = resident_bytes(os.getpid())
    accounts = [shard.account(b"A%d" % number) for number in range(3000)]
    assert resident_bytes(os.getpid()) - before < len(accounts) * 12 * 1024
    mesh.close()


def test_counts_of_a_subject_are_booked_before_they_overflow(mesh):
    """Those of frames to siblings grow faster than any other, where there are many shards."""
    sublist = mesh.engines[0].probe.mesh.account(b"$G")
    sublist.count_into(Tally(10))
    mesh.connect(1).feed(b"SUB a 1\r\n")
    mesh.settle()
    preset_link_out(sublist, b"a", 2**31 - 2)
    for booked in (0, 1):
        mesh.clients[0].feed(b"PUB a 0\r\n\r\n")
        mesh.settle()
        assert sublist.tally.count == booked
    ((_subject, _error, msgs, *_rest, link_out, _link_in, _widest, _misses),), _next = sublist.tally.read(0, 100)
    assert (msgs, link_out) == (2, 2**31)
