"""Runs of messages to one queue group of several shards: the short way delivers what the long way does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import QUIET, WITH_HEADERS, frames
from tests.support.mesh import Mesh

SHARDS = 3
# (shard, which of its clients, UNSUB max; 0: none)
members = st.lists(
    st.tuples(st.integers(0, SHARDS - 1), st.integers(0, 1), st.sampled_from([0, 0, 1, 3, 20])), max_size=6
)
# How many messages of one size in a row; how many of the members have unsubscribed before the last were read.
runs = st.lists(st.integers(1, 40), min_size=1, max_size=4)


WITHOUT_ECHO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"echo":false}\r\n'


def said(
    subscriptions: list[tuple[int, int, int]], sizes: list[int], leaves: int, reply: bytes, connect: bytes = b""
) -> list[list[bytes]]:
    """What each client was sent, when runs of so many messages were published with or without a reply."""
    mesh = Mesh(SHARDS, connect=WITH_HEADERS)
    try:
        publisher = mesh.connect(0)
        publisher.feed(connect)
        if connect:  # a member, too: it gets none of its own
            publisher.feed(b"SUB a.* q 99\r\n")
        for sid, (shard, which, most) in enumerate(subscriptions):
            client = mesh.clients[2 * shard + which]
            client.feed(b"SUB a.* q %d\r\n" % sid + (b"UNSUB %d %d\r\n" % (sid, most) if most else b""))
        mesh.settle()
        number = 0
        for run, count in enumerate(sizes):
            data = b""
            for _ in range(count):
                body = b"%0*d" % (4 + run, number)
                data += b"PUB a.b %b%d\r\n%b\r\n" % (reply, len(body), body)
                number += 1
            publisher.feed(data)
            if run == len(sizes) - 1:  # under way, when some leave
                for sid, (shard, which, _) in enumerate(subscriptions[:leaves]):
                    mesh.clients[2 * shard + which].feed(b"UNSUB %d\r\n" % sid)
            mesh.settle()
        assert all(engine.probe.reroutes.n_pending == 0 for engine in mesh.engines.values())
        got = [[frame.sid + b" " + frame.payload for frame in frames(client.take())] for client in mesh.clients]
        n_lost = sum(engine.probe.reroutes.n_lost for engine in mesh.engines.values())
        assert not (connect and got[-1])
        return [*got, [b"%d" % n_lost]]
    finally:
        mesh.close()


@settings(max_examples=150, deadline=None)
@given(members, runs, st.integers(0, 3))
def test_a_run_goes_where_its_messages_go_one_by_one(subscriptions, sizes, leaves):
    """With a reply, frames to siblings are written and read one by one."""
    assert said(subscriptions, sizes, leaves, b"") == said(subscriptions, sizes, leaves, b"r ")


@settings(max_examples=150, deadline=None)
@given(members, runs, st.integers(0, 3))
def test_the_same_of_a_publisher_that_wants_no_echo(subscriptions, sizes, leaves):
    way = subscriptions, sizes, leaves
    assert said(*way, b"", WITHOUT_ECHO) == said(*way, b"r ", WITHOUT_ECHO)


def test_a_run_of_a_publisher_without_echo_says_whose_it_is_in_each_frame():
    mesh = Mesh(2, connect=WITH_HEADERS)
    publisher, member = mesh.connect(0), mesh.clients[2]
    publisher.feed(WITHOUT_ECHO)
    member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    end = mesh.ends[0, 1]
    assert end.socket is not None
    begin = len(end.socket.sent)
    publisher.feed(b"PUB a 2\r\nhi\r\n" * 3 + b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" * 2)
    mesh.settle()
    cid = publisher.connection.cid
    frames = b"QMSG 0 0 0 %d $G a | q 2\r\nhi\r\n" % cid * 3
    frames += b"QHMG 0 0 0 %d $G a | q 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" % cid * 2
    assert bytes(end.socket.sent[begin:]).startswith(frames)
    assert member.take() == b"MSG a 1 2\r\nhi\r\n" * 3 + b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" * 2
    mesh.close()


def test_headers_cross_in_runs():
    mesh = Mesh(2, connect=WITH_HEADERS)
    member = mesh.clients[2]
    member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    mesh.clients[0].feed(b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" * 3)
    mesh.settle()
    assert member.take() == b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" * 3
    mesh.close()


def test_names_too_long_for_a_common_beginning_cross_as_well():
    mesh = Mesh(2, connect=QUIET)
    queue = b"q" * 600
    mesh.clients[2].feed(b"SUB a %b 1\r\n" % queue)
    mesh.settle()
    mesh.clients[0].feed(b"PUB a 2\r\nhi\r\n" * 3)
    mesh.settle()
    assert mesh.clients[2].take() == b"MSG a 1 2\r\nhi\r\n" * 3
    mesh.close()
