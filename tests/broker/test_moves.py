"""Connections that move between shards of one process: what arrives, in which order, and what is refused."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from gnatswarm.broker import frozen as records
from gnatswarm.broker import moves as module
from gnatswarm.broker import options
from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.frozen import FrozenClient, OfferedClient, RecordRefused
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.rules import StreamImport
from tests.support.engine import NO_ECHO, NO_RESPONDERS, QUIET, EngineClient, frames
from tests.support.mesh import Mesh

OLD, NEW, THIRD = 0, 1, 2
# What a move from OLD to NEW needs until all shards have answered, and NEW may ask for the marks.
UNTIL_ALL_HAVE_ANSWERED = ((OLD, NEW), (NEW, OLD), (NEW, THIRD), (OLD, NEW), (THIRD, NEW))


class Host:
    """The `MovesHost` of one shard; records go to the other host at once, or wait in `kept`."""

    def __init__(self, moving: Moving, shard: int) -> None:
        self.moving = moving
        self.probe = moving.mesh.engines[shard].probe
        self.probe.moves.host = self
        self.shard = shard
        self.kept: list[tuple[int, FrozenClient, EngineClient]] = []
        self.ends: list[str] = []
        self.lost_cids: list[int] = []
        self.n_admitted = 0
        self.limits = Limits()
        self.permissions: Permissions | None = None

    def soon(self) -> None:
        """What is due is done at once, or when a test says go_on()."""
        while not self.moving.is_stepwise and self.probe.moves.go_on():
            pass

    def words_of(self, client: ClientConnection) -> bytes:
        return b"who it is"

    def hand_over(self, new: int, id: int, client: ClientConnection, frozen: FrozenClient | None) -> None:
        there = self.moving.hosts[new]
        if frozen is None:
            there.probe.moves.forget(self.shard, id, client.cid)
            return
        one = next(one for one in self.moving.mesh.clients if one.connection is client)
        self.probe.let_go(one.socket)
        client.leave()
        there.kept.append((id, frozen, one))

    def ended(self, new: int, id: int, why: str) -> None:
        self.ends.append(why)

    def admit(self, old: int, id: int, offered: OfferedClient) -> ClientConnection:
        assert offered.words == b"who it is"
        self.n_admitted += 1
        connection = self.probe.connection(offered.cid, None)
        connection.set_limits(self.limits)
        if self.permissions is not None:
            connection.enter(self.probe.sublist, self.permissions)
        return connection

    def arrived(self, old: int, id: int, client: ClientConnection, frozen: FrozenClient) -> None:
        one = next(one for _, record, one in self.kept if record is frozen)
        one.engine = self.moving.mesh.engines[self.shard]
        one.session.connection = client
        self.moving.mesh.shard_of[self.moving.mesh.clients.index(one)] = self.shard
        self.probe.take_in(one.socket, client)
        client.go_on()

    def lost(self, old: int, id: int, client: ClientConnection, frozen: FrozenClient | None, why: str) -> None:
        self.lost_cids.append(client.cid)


class Moving:
    """A mesh whose clients 0 and 1 are on shard 0, and so on."""

    def __init__(self, shards: int = 3) -> None:
        self.mesh = Mesh(shards, connect=QUIET)
        for shard, engine in self.mesh.engines.items():
            engine.probe.last_cid = 1000 * shard + 100
        self.hosts = {shard: Host(self, shard) for shard in self.mesh.engines}
        self.is_stepwise = False

    def begin(self, *clients: EngineClient, old: int = OLD, new: int = NEW) -> None:
        self.hosts[old].probe.moves.move([one.connection for one in clients], new)
        self.mesh.finish()

    def deliver(self, shard: int = NEW, old: int = OLD) -> None:
        for id, frozen, _ in self.hosts[shard].kept:
            self.hosts[shard].probe.moves.arrive(old, id, frozen)
        self.mesh.settle()

    def move(self, *clients: EngineClient, old: int = OLD, new: int = NEW) -> None:
        self.begin(*clients, old=old, new=new)
        self.mesh.settle()
        self.deliver(new, old)


def published(client: EngineClient, *payloads: str, subject: str = "a") -> None:
    client.feed(b"".join(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(p), p.encode()) for p in payloads))


def payloads(client: EngineClient) -> list[str]:
    return [payload.decode() for _, payload in client.messages()]


@pytest.fixture
def moving():
    return Moving()


def test_messages_before_between_and_behind_the_marks_arrive_once_and_in_order(moving):
    mesh = moving.mesh
    client, _, near, _, far, _ = mesh.clients
    client.feed(b"SUB a 1\r\nSUB a q 2\r\n")
    mesh.settle()
    client.take()
    published(far, "far1")
    published(near, "near1")
    moving.begin(client)
    mesh.carry_all((OLD, NEW))  # MOVE
    published(far, "far2")  # its shard has not marked
    published(near, "near2")
    while any(mesh.carry(a, b, 1 << 30) for a, b in ((NEW, THIRD), (THIRD, NEW), (OLD, NEW), (NEW, OLD))):
        published(near, f"near{near.connection.in_msgs + 1}")
        published(far, f"far{far.connection.in_msgs + 1}")
        if near.connection.in_msgs > 8:
            break
    mesh.settle()
    assert moving.hosts[NEW].kept, "it is not handed over"
    moving.deliver()
    published(far, "far99")
    published(near, "near99")
    mesh.settle()
    assert client.engine is mesh.engines[NEW]
    got = [(sid.decode(), payload.decode()) for sid, payload in client.messages()]
    for sid in "12":
        for who, publisher in (("near", near), ("far", far)):
            numbers = [int(payload[len(who) :]) for this, payload in got if this == sid and payload.startswith(who)]
            assert numbers == [*range(1, publisher.connection.in_msgs), 99]
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    mesh.close()


def test_counts_of_queue_members_are_shifted_with_the_mark(moving):
    mesh = moving.mesh
    mesh.clients[0].feed(b"SUB a q 1\r\n")
    mesh.clients[1].feed(b"SUB a q 1\r\n")
    mesh.settle()
    third = mesh.engines[THIRD].probe.moves
    assert [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)] == [2, 0]
    moving.begin(mesh.clients[0])
    for a, b in (*UNTIL_ALL_HAVE_ANSWERED, (NEW, THIRD)):
        mesh.carry(a, b, 1 << 30)
        counts = [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)]
        assert sum(counts) == 2
    assert counts == [1, 1]
    mesh.settle()
    moving.deliver()
    assert [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)] == [1, 1]
    mesh.clients[0].feed(b"UNSUB 1\r\n")
    mesh.settle()
    assert [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)] == [1, 0]
    mesh.close()


@pytest.mark.parametrize("most", [1, 3, 5])
def test_a_max_holds_over_both_shards(moving, most):
    mesh = moving.mesh
    client, other, near, *_ = mesh.clients
    client.feed(b"SUB a 1\r\nUNSUB 1 %d\r\nSUB a 2\r\n" % most)
    mesh.settle()
    client.take()
    moving.begin(client)
    published(other, "1", "2")  # before the old shard's own mark
    mesh.settle()
    published(near, "3", "4", "5", "6")  # detached
    moving.deliver()
    got = client.messages()
    assert [payload for sid, payload in got if sid == b"1"] == [b"%d" % n for n in range(1, most + 1)]
    assert [payload for sid, payload in got if sid == b"2"] == [b"%d" % n for n in range(1, 7)]
    assert client.connection.subscriptions == 1
    assert (client.connection.out_msgs, client.connection.out_bytes) == (len(got), len(got))
    mesh.close()


@pytest.mark.parametrize(
    ("most", "before", "detached", "reason"),
    [
        (6, 3, 20, CloseReason.NONE),  # at most six are detached, and three of them are taken
        (500, 0, 5, CloseReason.NONE),  # past its limit by less than what it has for a move
        (500, 0, 300, CloseReason.SLOW_CONSUMER_PENDING_BYTES),
        (500, 48, 300, CloseReason.SLOW_CONSUMER_PENDING_BYTES),
    ],
)
def test_what_is_detached_beyond_a_max_does_not_count_as_pending(moving, most, before, detached, reason):
    mesh = moving.mesh
    client, other, near, *_ = mesh.clients
    moving.hosts[NEW].limits = Limits(max_pending_bytes=100_000)
    client.feed(b"SUB a 1\r\nUNSUB 1 %d\r\n" % most)
    mesh.settle()
    moving.begin(client)
    published(other, *["x" * 30_000] * before)
    mesh.settle()
    for _ in range(detached):
        published(near, "y" * 30_000)
        mesh.engines[NEW].probe.release_stalls()
    moving.deliver()
    got = [payload[:1] for payload in payloads(client)]
    if reason is CloseReason.NONE:
        assert got == ["x"] * before + ["y"] * min(detached, most - before)
        assert client.connection.subscriptions == (most > before + detached)
    assert client.connection.close_reason == reason
    mesh.close()


def test_a_client_that_reads_is_not_closed_for_what_waits_while_it_moves(moving):
    """It could take nothing meanwhile. When it has taken that, its limit holds as before."""
    mesh = moving.mesh
    client, other, near, *_ = mesh.clients
    moving.hosts[NEW].limits = Limits(max_pending_bytes=200_000)
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.begin(client)
    published(other, *["x" * 30_000] * 5)
    mesh.settle()
    for _ in range(40):
        published(near, "y" * 30_000)
        mesh.engines[NEW].probe.release_stalls()
    moving.deliver()
    assert client.connection.close_reason == CloseReason.NONE
    assert [payload[:1] for payload in payloads(client)] == ["x"] * 5 + ["y"] * 40
    published(near, "z" * 30_000)
    mesh.settle()
    moving.hosts[NEW].probe.set_takes(client.socket, 0)
    for _ in range(12):
        published(near, "z" * 30_000)
        mesh.engines[NEW].probe.release_stalls()
    assert client.connection.close_reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES
    mesh.close()


def test_what_was_not_sent_at_the_old_shard_counts_with_what_is_detached(moving):
    mesh = moving.mesh
    client, other, near, *_ = mesh.clients
    moving.hosts[NEW].limits = Limits(max_pending_bytes=100_000)
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.hosts[OLD].probe.set_takes(client.socket, 0)
    published(other, *["x" * 30_000] * 30)
    moving.begin(client)
    mesh.settle()
    for _ in range(270):
        published(near, "y" * 30_000)
        mesh.engines[NEW].probe.release_stalls()
    moving.deliver()
    assert client.connection.close_reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES
    mesh.close()


def test_it_goes_on_in_the_middle_of_its_operations_and_its_publishes_stay_in_order(moving):
    mesh = moving.mesh
    client, listener = mesh.clients[0], mesh.clients[4]
    listener.feed(b"SUB a 1\r\n")
    mesh.settle()
    client.feed(b"PUB a 1\r\n1\r\nPUB a 1")
    moving.begin(client)
    client.feed(b"\r\n2\r\nPING\r\n")
    mesh.settle()
    assert payloads(listener) == ["1"]
    moving.deliver()
    assert payloads(listener) == ["2"]
    assert client.take() == b"PONG\r\n"
    mesh.close()


def test_what_was_not_sent_when_it_moves_comes_first(moving):
    slow, publisher = moving.mesh.clients[:2]
    slow.feed(b"SUB a 1\r\n")
    moving.mesh.settle()
    moving.hosts[OLD].probe.set_takes(slow.socket, 0)
    published(publisher, "before")
    moving.move(slow)
    published(publisher, "behind")
    moving.mesh.settle()
    moving.hosts[NEW].probe.set_takes(slow.socket, -1)
    moving.mesh.finish()
    assert payloads(slow) == ["before", "behind"]


def test_who_cannot_be_moved_is_refused_with_the_reason_and_stays(moving):
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    moves = moving.hosts[OLD].probe.moves
    client.feed(b"SUB a q 1\r\nUNSUB 1 5\r\n")
    with pytest.raises(RecordRefused, match="a queue subscription of its has a max"):
        moves.move([client.connection], NEW)
    other.feed(b"SUB b 1\r\nPING\r\n")
    with pytest.raises(RecordRefused, match="its PONG is due"):
        moves.move([other.connection], NEW)
    mesh.settle()
    other.feed(b"SUB c q 2\r\nUNSUB 2\r\n")
    with pytest.raises(RecordRefused, match="lingers"):
        moves.move([other.connection], NEW)
    mesh.settle()
    with pytest.raises(RecordRefused, match="no link to shard 9"):
        moves.move([other.connection], 9)
    with pytest.raises(RecordRefused, match="0 clients at a time"):
        moves.move([], NEW)
    moving.begin(other)
    assert moves.why_not(other.connection) == "it is moving"
    with pytest.raises(RecordRefused, match="other connections are moving"):
        moves.move([client.connection], NEW)
    mesh.settle()
    moving.deliver()
    mesh.close()


def test_clients_with_many_subscriptions_together_do_not_move_together(moving, monkeypatch):
    client, other = moving.mesh.clients[:2]
    moves = moving.hosts[OLD].probe.moves
    for one in (client, other):
        one.feed(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(10)))
    moving.mesh.settle()
    both = [client.connection, other.connection]
    monkeypatch.setattr(module, "MOST_SUBSCRIPTIONS", 19)
    assert moves.fitting(both) == 1
    with pytest.raises(RecordRefused, match="2 clients; those of 1 can move together"):
        moves.move(both, NEW)
    monkeypatch.setattr(module, "MOST_SUBSCRIPTIONS", 9)
    assert moves.fitting(both) == 1, "one with more moves alone"
    monkeypatch.setattr(module, "MOST_SUBSCRIPTIONS", 20)
    assert moves.fitting(both) == 2
    moving.move(client, other)
    assert {one.engine for one in (client, other)} == {moving.mesh.engines[NEW]}
    moving.mesh.close()


def test_what_is_done_in_one_piece_is_bounded():
    """Of 60,000 members and 30 MB it took 0.1 to 0.5 s, in which nobody was served: no machine is needed to see it."""
    assert module.SLICE_SUBS <= 64
    assert module.PART_BYTES <= 64 * 1024
    assert module.MOST_PART_BYTES <= 8 * 1024 * 1024


def test_a_client_of_whom_too_much_has_to_be_said_stays(moving, monkeypatch):
    """What the host says of clients is known when they are written down."""
    client, other = moving.mesh.clients[:2]
    words = {client.connection: b"who it is", other.connection: b"w" * 1000}
    monkeypatch.setattr(moving.hosts[OLD], "words_of", words.__getitem__)
    monkeypatch.setattr(module, "MOST_PART_BYTES", 900)
    moving.move(client, other)
    why = "more than 900 bytes have to be said of one of its subscriptions, or of its CONNECT"
    assert moving.hosts[OLD].ends == [why]
    assert not client.socket.is_held and not other.socket.is_held
    assert moving.hosts[OLD].probe.moves.why_not(other.connection) == why
    moving.move(client)
    assert client.engine is moving.mesh.engines[NEW]
    moving.mesh.close()


def test_who_was_too_large_to_move_moves_when_that_subscription_has_ended(moving, monkeypatch):
    client = moving.mesh.clients[0]
    client.feed(b"SUB small 1\r\nSUB %b 2\r\n" % (b"s" * 900))
    moving.mesh.settle()
    monkeypatch.setattr(module, "MOST_PART_BYTES", 800)
    moving.move(client)
    moves = moving.hosts[OLD].probe.moves
    assert "have to be said" in moves.why_not(client.connection)
    client.feed(b"UNSUB 2\r\n")
    moving.mesh.settle()
    assert moves.why_not(client.connection) is None
    moving.move(client)
    assert client.engine is moving.mesh.engines[NEW]
    moving.mesh.close()


def test_who_was_too_large_to_move_by_its_connect_may_move_behind_another_one(moving, monkeypatch):
    client = moving.mesh.clients[0]
    words = iter([b"w" * 1000, b"who it is"])
    monkeypatch.setattr(moving.hosts[OLD], "words_of", lambda _: next(words))
    monkeypatch.setattr(module, "MOST_PART_BYTES", 900)
    moving.move(client)
    assert "have to be said" in moving.hosts[OLD].probe.moves.why_not(client.connection)
    client.connection.configure(verbose=False, pedantic=False, echo=True, headers=True, no_responders=True, protocol=1)
    moving.move(client)
    assert client.engine is moving.mesh.engines[NEW]
    moving.mesh.close()


def test_a_move_that_is_stopped_in_time_leaves_the_client_where_it_was(moving):
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    client.take()
    moving.begin(client)
    mesh.carry_all((OLD, NEW))
    moving.hosts[OLD].probe.moves.stop()
    mesh.settle()
    assert moving.hosts[OLD].ends == ["it was stopped"]
    assert not client.socket.is_held and client.engine is mesh.engines[OLD]
    published(other, "1")
    assert payloads(client) == ["1"]
    mesh.close()


def test_a_member_that_stayed_keeps_no_message_from_others_when_it_closes(moving):
    """While it moves a member that is closing counts elsewhere, so that who was asked is not asked again."""
    mesh = moving.mesh
    stays, other = mesh.clients[2 * NEW], mesh.clients[2 * THIRD]
    for member in (stays, other):
        member.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(stays, old=NEW, new=OLD)
    moving.hosts[NEW].probe.moves.stop()
    mesh.settle()
    assert moving.hosts[NEW].ends == ["it was stopped"]
    stays.feed(b"no such operation\r\n", finish=False)  # closed at the end of the round
    end = mesh.ends[NEW, OLD]
    assert end.socket is not None
    frame = b"QMSG 1 %d 0 0 $G a | q 1\r\n7\r\n" % (1 << THIRD)  # it was there, and somebody has come since
    mesh.engines[NEW].probe.feed(end.socket, frame, finish=False)
    mesh.finish()
    mesh.settle()
    assert payloads(other) == ["7"]
    mesh.close()


def test_a_client_that_waits_for_a_slow_receiver_is_not_moved(moving):
    mesh, probe = moving.mesh, moving.hosts[OLD].probe
    client, reader = mesh.clients[:2]
    reader.connection.set_limits(Limits(max_pending_bytes=1_000_000))
    reader.feed(b"SUB a 1\r\n")
    probe.set_takes(reader.socket, 0)
    published(client, *["x" * 1000] * 700)
    assert client.socket.is_stalled
    why = "it waits for a slow receiver"
    assert probe.moves.why_not(client.connection) == why
    with pytest.raises(RecordRefused, match=why):
        probe.moves.move([client.connection], NEW)
    probe.set_takes(reader.socket, -1)
    probe.release_stalls()
    assert probe.moves.why_not(client.connection) is None
    mesh.close()


def test_a_client_that_takes_no_headers_gets_none_while_it_moves_nor_afterwards(moving):
    mesh = moving.mesh
    client = mesh.clients[0]
    publisher = mesh.engines[NEW].client(NO_RESPONDERS)
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.settle()
    for number in range(2):
        publisher.feed(b"HPUB a 12 13\r\nNATS/1.0\r\n\r\n%d\r\n" % number)
        mesh.settle()
        moving.deliver()
        assert client.engine is mesh.engines[NEW]
        assert client.take() == b"MSG a 1 1\r\n%d\r\n" % number
    publisher.close()
    mesh.close()


def test_headers_beyond_a_max_do_not_count_for_a_client_that_takes_none(moving):
    mesh = moving.mesh
    client = mesh.clients[0]
    publisher = mesh.engines[NEW].client(NO_RESPONDERS)
    client.feed(b"SUB a 1\r\nUNSUB 1 2\r\n")
    mesh.settle()
    moving.begin(client)
    published(mesh.clients[1], "one")
    mesh.settle()
    publisher.feed(b"HPUB a 12 15\r\nNATS/1.0\r\n\r\ntwo\r\nHPUB a 12 17\r\nNATS/1.0\r\n\r\nthree\r\n")
    moving.deliver()
    assert payloads(client) == ["one", "two"]
    assert (client.connection.out_msgs, client.connection.out_bytes) == (2, 6)
    publisher.close()
    mesh.close()


@pytest.mark.parametrize("takes_headers", [False, True])
def test_what_came_while_it_moved_is_left_as_it_is_but_for_headers_and_what_is_beyond_a_max(moving, takes_headers):
    mesh = moving.mesh
    client = mesh.clients[0]
    publisher = mesh.engines[NEW].client(NO_RESPONDERS)
    if takes_headers:
        client.feed(NO_RESPONDERS)
    client.feed(b"SUB a one\r\nSUB b 2\r\nUNSUB 2 2\r\nSUB c 3\r\nUNSUB 3 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.clients[1].feed(b"PUB c 1\r\n1\r\n")  # its old shard has not marked
    mesh.settle()
    header = b"NATS/1.0\r\n\r\n"
    wanted = [b"MSG c 3 1\r\n1\r\n"]
    in_full = 1
    for subject, sid, reply, head, body in (
        (b"a", b"one", b" r.1", header, b"x"),
        (b"b", b"2", b"", b"", b"MSG b 2 3\r\n"),
        (b"b", b"2", b"", header, b"y\r\n"),
        (b"a", b"one", b"", b"", b"HMSG b 2 12 15\r\n"),
        (b"b", b"", b" r", header, b"beyond"),
        (b"c", b"", b"", b"", b"beyond too"),
        (b"a", b"one", b"", b"", b""),
        (b"a", b"one", b" r.2", header, b""),
        (b"b", b"", b"", b"", b"beyond"),
        (b"a", b"one", b"", b"", b"last"),
    ):
        sizes = b"%d %d" % (len(head), len(head + body)) if head else b"%d" % len(body)
        publisher.feed(b"%bPUB %b%b %b\r\n%b\r\n" % (b"H" if head else b"", subject, reply, sizes, head + body))
        if sid and head and takes_headers:
            wanted.append(b"HMSG %b %b%b %b\r\n%b\r\n" % (subject, sid, reply, sizes, head + body))
        elif sid:
            wanted.append(b"MSG %b %b%b %d\r\n%b\r\n" % (subject, sid, reply, len(body), body))
        in_full += len(body) + (len(head) if takes_headers else 0) if sid else 0
    moving.deliver()
    assert client.take() == b"".join(wanted)
    assert (client.connection.out_msgs, client.connection.out_bytes) == (len(wanted), in_full)
    publisher.close()
    mesh.close()


def test_a_new_shard_that_takes_no_connections_refuses(moving):
    mesh = moving.mesh
    moving.hosts[NEW].probe.moves.host = None
    moving.begin(mesh.clients[0])
    mesh.settle()
    assert moving.hosts[OLD].ends == ["this shard takes no connections"]
    assert not mesh.clients[0].socket.is_held
    mesh.close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"", "an offer of version 0; this shard understands version 6"),
        (b"\0\2\x90", "an offer of version 2"),
        (b"\0\6\x90", "truncated or damaged"),
        (b"\0\6\x95\x03\x07\xc3\x91" + b"\x91" * 20_000 + b"\xc0\x90", "truncated or damaged"),  # nested too deeply
        (b"\0\6" + msgspec.msgpack.encode((3, 3, True, (), ())), "its links to other shards are not the same"),
        (b"\0\6" + msgspec.msgpack.encode((3, 7, True, (), ())), "an offer of nobody"),
        (
            b"\0\6" + msgspec.msgpack.encode((3, 7, True, ((5, b"$G"),), ())),
            "an offered client that is truncated or damaged",
        ),
        (
            b"\0\6" + msgspec.msgpack.encode((3, 7, True, ((5, b"$G", b"who it is", ((b"1", b"a..b"),)),), ())),
            "no subject",
        ),
        (
            b"\0\6" + msgspec.msgpack.encode((3, 7, True, ((5, b"$G", b"who it is", ((b"1", b"a", b"q"),)),), ())),
            "import other streams",
        ),
    ],
)
def test_a_bad_offer_is_refused_with_the_reason(moving, words, why):
    mesh = moving.mesh
    here = mesh.ends[NEW, OLD]
    before = mesh.engines[NEW].probe.memory
    assert here.socket is not None
    mesh.engines[NEW].probe.feed(here.socket, b"MOVE 5 %d\r\n%b\r\n" % (len(words), words))
    said = here.take(1 << 20)
    assert said.startswith(b"MOVED 0 5 0 ") or b"\r\nMOVED 0 5 0 " in said
    assert why.encode() in said
    assert mesh.engines[NEW].probe.memory == before
    assert here.broken == []


class Stepwise(Moving):
    """What is due for one client after the other is done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stepwise = True

    def go_on(self, shard: int) -> bool:
        return self.hosts[shard].probe.moves.go_on()

    def go_on_as_far_as(self, shard: int, steps: int = 1000) -> None:
        """So many steps of what is due there, and what they have to say is on its way."""
        while steps and self.go_on(shard):
            steps -= 1
        self.hosts[shard].probe.moves.send_on()
        self.mesh.finish()

    def go_on_everywhere_once(self) -> None:
        """A step of each shard, and what is on its way by then."""
        for shard in self.mesh.engines:
            self.go_on_as_far_as(shard, 1)
        self.mesh.carry_all(*self.mesh.ends)

    def go_on_everywhere(self) -> None:
        """All that is due, and all that is on its way, until there is no more."""
        while sum(self.go_on(shard) for shard in self.mesh.engines) or self.mesh.is_busy():
            self.mesh.settle()


def test_one_client_is_written_down_made_handed_over_or_goes_on_in_each_turn():
    moving = Stepwise()
    mesh = moving.mesh
    clients = [mesh.clients[0], mesh.clients[1], mesh.connect(OLD)]
    mesh.settle()
    new = moving.hosts[NEW].probe.moves
    moving.begin(*clients)
    assert [moving.go_on(OLD) for _ in range(4)] == [True, True, True, False]
    mesh.carry_all((OLD, NEW))
    assert new.n_arriving == 3
    made = []
    while moving.go_on(NEW):
        made.append(moving.hosts[NEW].n_admitted)
    assert made == [1, 2, 3]
    mesh.settle()
    handed = []
    while moving.go_on(OLD):
        handed.append(len(moving.hosts[NEW].kept))
    assert handed == [1, 2, 3]
    moving.deliver()
    arrived = []
    while moving.go_on(NEW):
        arrived.append(sum(one.engine is mesh.engines[NEW] for one in clients))
    assert arrived == [1, 2, 3]
    mesh.close()


@pytest.mark.parametrize("stays", [False, True], ids=["it moves", "its move fails"])
def test_a_client_that_moves_is_told_of_a_request_that_finds_nobody_meanwhile(moving, stays):
    """The request is read when the old shard has no subscription of the asker any more, or just before."""
    mesh = moving.mesh
    asker, responder = mesh.clients[0], mesh.clients[5]
    asker.feed(NO_RESPONDERS + b"SUB inbox 9\r\n")
    responder.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB a inbox 1\r\n2\r\n")
    moving.begin(asker)
    if stays:
        moving.hosts[OLD].probe.moves.stop()
    else:
        mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED, (NEW, OLD), (NEW, THIRD), (THIRD, OLD))
        assert not asker.connection.subscriptions, "all have marked"
    mesh.settle()
    moving.deliver()
    assert asker.engine is mesh.engines[OLD if stays else NEW]
    asker.feed(b"PING\r\n")
    mesh.settle()
    assert asker.take() == b"HMSG inbox 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPONG\r\n"


@pytest.mark.parametrize("ends", [False, True])
def test_a_client_with_many_subscriptions_moves_in_many_turns(ends):
    """What was delivered on either shard counts for each subscription, also for one that ends in the middle."""
    moving = Stepwise()
    mesh = moving.mesh
    client, near, far, *_ = mesh.clients
    client.feed(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(250)))
    client.feed(b"UNSUB 0 3\r\nUNSUB 2 2\r\nUNSUB 4 2\r\n")
    for engine in mesh.engines.values():
        engine.probe.moves.slice_subs = 10
    mesh.settle()
    for n in (0, 2, 4, 100, 249):
        published(near, "before", subject=f"s.{n}")
    moving.begin(client)
    written = made = 0
    for _ in range(60):
        if moving.go_on(OLD):
            written += 1
            if written == 5 and ends:
                published(near, "the last", subject="s.2")
            published(near, "while it is written down", subject="s.100")
        mesh.carry_all((OLD, NEW))
        if moving.go_on(NEW):
            made += 1
        for shard in (OLD, NEW):
            mesh.engines[shard].probe.moves.send_on()
        mesh.finish()
        mesh.carry_all((NEW, OLD))
    assert (written, made) == (25, 25), "ten in each"
    mesh.settle()
    published(far, "behind the marks", subject="s.4")
    ended = 0
    while moving.go_on(OLD):
        ended += 1
        published(near, "while its subscriptions end", subject="s.100")
    assert ended in (24, 25), "ten have ended with the last mark"
    mesh.settle()
    moving.go_on_everywhere()
    moving.deliver()
    settled = 0
    while moving.go_on(NEW):
        settled += 1
        published(near, "while it is settled", subject="s.100")
        mesh.settle()
    assert settled == 25
    published(near, "behind it", "once more", "no more", subject="s.0")
    published(far, "behind it", "no more", subject="s.2")
    published(far, "no more", subject="s.4")
    published(far, "behind it", subject="s.249")
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    got = Counter(sid.decode() for sid, _ in client.messages())
    assert got == {"0": 3, "2": 2, "4": 2, "249": 2, "100": 1 + written + ended + settled}
    assert client.connection.subscriptions == 247
    assert mesh.engines[OLD].probe.sublist.n_subs == 0
    mesh.close()


def test_a_client_with_many_subscriptions_to_imported_streams_moves_in_many_turns():
    moving = Stepwise()
    mesh = moving.mesh
    client = mesh.clients[0]
    for engine in mesh.engines.values():
        accounts = engine.probe.mesh
        assert accounts is not None
        exporter = accounts.account(b"E")
        accounts.account(b"$G").streams = [StreamImport(exporter, b"s.%d" % n, b"s.%d" % n) for n in range(2000)]
    client.feed(b"".join(b"SUB > %d\r\n" % sid for sid in range(10)))
    mesh.settle()
    moving.begin(client)
    turns = dict.fromkeys(mesh.engines, 0)
    for _ in range(100):
        for shard in mesh.engines:
            turns[shard] += moving.go_on(shard)
        mesh.settle()
        moving.deliver()
    assert client.engine is mesh.engines[NEW] and client.connection.subscriptions == 10
    assert turns[OLD] >= 5 and turns[NEW] >= 5
    mesh.close()


@pytest.mark.parametrize("slice_subs", [1, 2, 64])
@pytest.mark.parametrize("seed", range(20))
def test_messages_between_the_steps_arrive_once_in_order_and_at_most_so_many(seed, slice_subs):
    rng = random.Random(seed)
    moving = Stepwise()
    mesh = moving.mesh
    for engine in mesh.engines.values():
        engine.probe.moves.slice_subs = slice_subs
    client, other, near, _, far, _ = mesh.clients
    client.feed(b"SUB a 1\r\nSUB a.* 2\r\nSUB b 3\r\nUNSUB 3 4\r\n")
    other.feed(b"SUB a 1\r\n")
    mesh.settle()
    sent: Counter[tuple[EngineClient, str]] = Counter()
    moving.begin(client, other)
    for _ in range(200):
        who = rng.choice((near, far))
        subject = rng.choice(("a", "a.b", "b"))
        sent[who, subject] += 1
        published(who, f"{'near' if who is near else 'far'}{sent[who, subject]}", subject=subject)
        shard = rng.choice((OLD, NEW, THIRD))
        if rng.random() < 0.5:
            moving.go_on(shard)
        else:
            mesh.carry(*rng.choice([pair for pair in mesh.ends if shard in pair]), rng.choice((20, 1 << 30)))
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    got = [(sid.decode(), payload.decode()) for sid, payload in client.messages()]
    for sid, subject in (("1", "a"), ("2", "a.b")):
        for name, who in (("near", near), ("far", far)):
            here = [int(payload[len(name) :]) for this, payload in got if this == sid and payload.startswith(name)]
            assert here == [*range(1, sent[who, subject] + 1)]
    assert sum(this == "3" for this, _ in got) == 4
    mesh.close()


def test_a_client_that_goes_while_others_are_written_down_is_left_out():
    moving = Stepwise()
    mesh = moving.mesh
    goes, stays = mesh.clients[:2]
    for one in goes, stays:
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(goes, stays)
    goes.close()
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert stays.engine is mesh.engines[NEW]
    third = mesh.engines[THIRD].probe.moves
    assert [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)] == [0, 1]
    mesh.close()


def test_a_move_of_clients_that_have_all_gone_ends():
    moving = Stepwise()
    moving.begin(moving.mesh.clients[0])
    moving.mesh.clients[0].close()
    moving.go_on_everywhere()
    assert moving.hosts[OLD].ends == ["it is being closed"]
    assert all(engine.probe.moves.is_idle for engine in moving.mesh.engines.values())
    moving.mesh.close()


def test_a_move_that_is_stopped_before_it_is_offered_is_heard_of_by_nobody():
    moving = Stepwise()
    mesh = moving.mesh
    client = mesh.clients[0]
    client.feed(b"SUB a q 1\r\n")
    mesh.settle()
    client.take()
    moving.begin(client, mesh.clients[1])
    moving.go_on(OLD)
    moving.hosts[OLD].probe.moves.stop()
    assert moving.hosts[OLD].ends == ["it was stopped"]
    assert not moving.go_on(OLD)
    assert not mesh.is_busy()
    published(mesh.clients[1], "1")
    assert payloads(client) == ["1"]
    mesh.close()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_new_shard_that_dies_before_it_is_offered_clients_costs_nobody(steps):
    moving = Stepwise()
    mesh = moving.mesh
    clients = mesh.clients[:2]
    for one in clients:
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(*clients)
    for _ in range(steps):
        moving.go_on(OLD)
    mesh.kill(NEW)
    moving.go_on_everywhere()
    assert moving.hosts[OLD].ends == ["the link to its new shard ended"]
    assert not any(one.is_over or one.socket.is_held for one in clients)
    mesh.close()


def test_an_old_shard_that_dies_while_connections_are_made_leaves_nothing_at_the_new_one():
    moving = Stepwise()
    mesh = moving.mesh
    mesh.clients[0].feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(*mesh.clients[:2])
    while moving.go_on(OLD):
        pass
    mesh.carry_all((OLD, NEW))
    assert moving.go_on(NEW)
    mesh.kill(OLD)
    moving.go_on_everywhere()
    assert moving.hosts[NEW].probe.moves.is_idle
    assert moving.hosts[NEW].probe.moves.n_arriving == 0
    mesh.close()


def test_a_new_shard_that_dies_while_clients_are_handed_over_costs_these_alone():
    moving = Stepwise()
    mesh = moving.mesh
    first, second, third = [*mesh.clients[:2], mesh.connect(OLD)]
    mesh.settle()
    moving.begin(first, second)
    while not moving.hosts[NEW].kept:
        moving.go_on(OLD)
        moving.go_on(NEW)
        mesh.settle()
    mesh.kill(NEW)
    moving.go_on_everywhere()
    assert second.is_over and second.reason is CloseReason.ROUTE_REMOVED
    assert not third.is_over
    assert moving.hosts[OLD].probe.moves.is_idle
    assert (moving.hosts[OLD].probe.moves.n_moved, moving.hosts[OLD].probe.moves.n_lost) == (1, 1)
    mesh.clients.remove(first)
    mesh.close()


@pytest.mark.parametrize("shifts", [b"", b"\xc1", records.encoded_shifts(()) + b"x"])
def test_shifts_that_cannot_be_read_end_the_link(moving, shifts):
    here = moving.mesh.ends[THIRD, NEW]
    assert here.socket is not None
    moving.mesh.engines[THIRD].probe.feed(here.socket, b"MSHIFT 0 5 %d\r\n%b\r\n" % (len(shifts), shifts))
    assert here.broken and "MSHIFT" in here.broken[0]


def test_the_connections_are_closed_where_the_new_shard_dies_behind_the_marks(moving):
    mesh = moving.mesh
    client = mesh.clients[0]
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED, (NEW, OLD))
    assert client.connection.is_moving
    mesh.kill(NEW)
    mesh.settle()
    assert client.is_over and client.reason is CloseReason.ROUTE_REMOVED
    assert moving.hosts[OLD].ends == ["the link to its new shard ended"]
    assert moving.hosts[OLD].probe.moves.is_idle
    mesh.close()


def test_a_third_shard_that_dies_counts_as_having_marked(moving):
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    client.take()
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED, (NEW, OLD))
    mesh.kill(THIRD)
    published(other, "1")
    mesh.settle()
    moving.deliver()
    assert payloads(client) == ["1"] and client.engine is mesh.engines[NEW]
    mesh.close()


def test_a_publisher_goes_on_only_when_siblings_have_what_it_sent(moving):
    mesh = moving.mesh
    publisher, listener = mesh.clients[0], mesh.clients[4]
    listener.feed(b"SUB a 1\r\n")
    mesh.settle()
    listener.take()
    published(publisher, "1")
    moving.begin(publisher)
    others = [pair for pair in mesh.ends if pair != (OLD, THIRD)]
    while sum(mesh.carry(a, b, 1 << 30) for a, b in others):
        pass
    assert not moving.hosts[NEW].kept, "what it publishes at its next shard would overtake the first"
    mesh.settle()
    moving.deliver()
    published(publisher, "2")
    mesh.settle()
    assert payloads(listener) == ["1", "2"]
    mesh.close()


def test_what_comes_behind_one_mark_and_before_the_last_is_detached(moving):
    mesh = moving.mesh
    client, far = mesh.clients[0], mesh.clients[4]
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED, (NEW, THIRD))  # the third shard has read MARKQ, the old one has not
    published(far, "1")
    mesh.carry_all((THIRD, NEW))
    mesh.settle()
    moving.deliver()
    assert payloads(client) == ["1"] and client.engine is mesh.engines[NEW]
    mesh.close()


def published_behind_a_mark(moving: Moving, late: int) -> tuple[EngineClient, EngineClient]:
    """(the subscriber, who moves; a publisher on a shard that has marked that, with a PING behind its message).

    Everything else has arrived, but what the new shard says to the late one of four.
    """
    mesh = moving.mesh
    client, far = mesh.clients[0], mesh.clients[2 * THIRD]
    client.feed(b"SUB a 1\r\n")
    mesh.settle()
    far.take()
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED, (NEW, 3), (3, NEW), (NEW, THIRD))  # the third shard has read MARKQ
    published(far, "1")
    far.feed(b"PING\r\n")
    mesh.settle_but((NEW, late))
    return client, far


@pytest.mark.parametrize("unmarked", [OLD, 3], ids=["the old shard", "another one"])
def test_what_is_published_behind_a_pong_comes_behind_what_that_acknowledged(unmarked):
    """Also where the publisher's shard has marked the move, and that of the next one has not heard of it yet."""
    moving = Moving(4)
    mesh = moving.mesh
    client, far = published_behind_a_mark(moving, unmarked)
    late = mesh.clients[2 * unmarked + 1]
    assert far.take() == b"", "a PONG, and not all have marked"
    published(late, "2")
    mesh.settle()
    assert far.take() == b"PONG\r\n"
    published(late, "3")
    mesh.settle()
    moving.deliver()
    assert [one for one in payloads(client) if one != "2"] == ["1", "3"]
    mesh.close()


@pytest.mark.parametrize("dead", [3, OLD], ids=["one that has not marked", "the old one"])
def test_a_pong_that_waits_for_marks_comes_when_a_shard_dies(dead):
    moving = Moving(4)
    _client, far = published_behind_a_mark(moving, dead)
    assert far.take() == b""
    moving.mesh.kill(dead)
    moving.mesh.settle()
    assert far.take() == b"PONG\r\n"


def test_a_max_that_both_shards_reach_together_ends_the_subscription(moving):
    mesh = moving.mesh
    client, other, near = mesh.clients[:3]
    client.feed(b"SUB a 1\r\nUNSUB 1 3\r\n")
    mesh.settle()
    published(other, "1", "2")
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED)
    published(near, "3")  # behind the mark of its own shard
    mesh.settle()
    moving.deliver()
    assert payloads(client) == ["1", "2", "3"]
    assert client.connection.subscriptions == 0
    mesh.close()


def test_each_shard_counts_what_it_delivered(moving):
    mesh = moving.mesh
    for engine in mesh.engines.values():
        engine.probe.tally(1000, 8)
    client = mesh.connect(OLD)
    client.feed(b"SUB a 1\r\nSUB b q 2\r\n")
    mesh.settle()
    for subject in "ab":
        published(mesh.clients[0], "1", "2", "3", subject=subject)
    moving.move(client)
    assert client.engine is mesh.engines[NEW]
    rows, _ = client.connection.heard(0, 100)
    assert rows == []
    for subject in "ab":
        published(mesh.clients[2], "4", subject=subject)
    rows, _ = client.connection.heard(0, 100)
    assert sorted(rows) == [("a", "", 1), ("b", "q", 1)]
    mesh.close()


def test_a_third_shard_whose_end_is_known_only_later_closes_nobody(moving):
    """Its link ends before the router says that it is dead; marks were asked for meanwhile."""
    mesh = moving.mesh
    client = mesh.clients[0]
    client.feed(b"SUB a 1\r\nSUB a q 2\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED)
    end = mesh.ends.pop((OLD, THIRD))
    end.link.leave(is_broken=True)
    end.engine.probe.end(end.socket)
    mesh.carry_all((NEW, OLD))  # MARKQ
    mesh.finish()
    assert not client.is_over
    mesh.engines[OLD].probe.fence.gone(THIRD)
    mesh.kill(THIRD)
    mesh.settle()
    moving.deliver()
    assert not client.is_over and client.engine is mesh.engines[NEW]
    mesh.close()


@pytest.mark.parametrize("is_asked", [True, False], ids=["", "the old shard is asked for its mark later"])
@pytest.mark.parametrize("shard", [OLD, NEW])
def test_a_link_that_breaks_before_a_third_shards_mark_is_made_again_at_once(moving, shard, is_asked):
    """The mark does not come: the move would wait for it, and the link for the end of the move."""
    mesh = moving.mesh
    client, stays = mesh.clients[:2]
    for one in (client, stays):
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all(*UNTIL_ALL_HAVE_ANSWERED)
    if is_asked:
        mesh.carry_all((NEW, OLD))  # MARKQ
    mesh.break_link(shard, THIRD)
    mesh.settle()
    assert all(mesh.is_in_step(shard) for shard in mesh.engines)
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    assert client.is_over and client.reason is CloseReason.ROUTE_REMOVED
    assert members_known(moving, THIRD) == [1, 0]
    published(mesh.clients[4], "1")
    mesh.settle()
    assert payloads(stays) == ["1"]
    mesh.close()


def test_a_client_that_leaves_while_it_moves_leaves_nothing(moving):
    mesh = moving.mesh
    client = mesh.clients[0]
    client.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW))
    client.close()
    mesh.settle()
    assert moving.hosts[NEW].lost_cids == [client.connection.cid]
    third = mesh.engines[THIRD].probe.moves
    assert [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)] == [0, 0]
    mesh.close()


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("reply", ["", "r "])
def test_a_queue_message_that_waits_for_a_client_that_leaves_goes_to_another_member(moving, place, reply):
    mesh = moving.mesh
    client, other, near, _, far, _ = mesh.clients
    member = (other, near, far)[place % 3]
    for one in (client, member):
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW))
    for _ in range(1 + place // 3):  # some of the marks are there
        mesh.carry_all((NEW, THIRD), (NEW, OLD), (THIRD, NEW), (OLD, NEW))
    client.close()
    publishers = (mesh.clients[1], mesh.clients[3], mesh.clients[5])
    for number in range(60):
        publishers[number % 3].feed(b"PUB a %b6\r\n%06d\r\n" % (reply.encode(), number))
    mesh.settle()
    moving.deliver()
    got = [frame for frame in frames(member.take()) if frame.is_message]
    assert sorted(int(frame.payload) for frame in got) == list(range(60))
    assert {frame.reply for frame in got} == {reply.strip().encode()}
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    assert all(engine.probe.reroutes.n_pending == 0 for engine in mesh.engines.values())
    mesh.close()


UNTIL_ALL_HAVE_MARKED = ((NEW, THIRD), (NEW, OLD), (THIRD, NEW), (THIRD, OLD), (OLD, NEW), (OLD, THIRD))


def only_responder(moving: Moving, queue: bytes) -> tuple[EngineClient, list[EngineClient], EngineClient]:
    """The only subscriber of `a`, on shard OLD; who asks it, on each shard, with inbox0 and so on; another client."""
    mesh = moving.mesh
    client, askers = mesh.clients[0], [mesh.clients[one] for one in (1, 3, 5)]
    client.feed(b"SUB a %b 1\r\n" % queue)
    for number, one in enumerate(askers):
        one.feed(NO_RESPONDERS + b"SUB inbox%d 9\r\n" % number)
    other = mesh.connect(OLD)
    mesh.settle()
    return client, askers, other


@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "group"])
@pytest.mark.parametrize("before", range(1 + len(UNTIL_ALL_HAVE_ANSWERED) + len(UNTIL_ALL_HAVE_MARKED)))
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with another one"])
@pytest.mark.parametrize("way", ["is closed", "leaves"])
def test_nobody_responds_where_the_only_subscriber_was_closed_while_it_moves(moving, way, is_alone, before, queue):
    """Whichever shard is asked, and however far the move has come."""
    mesh = moving.mesh
    client, askers, other = only_responder(moving, queue)
    moving.begin(client, *([] if is_alone else [other]))
    for a, b in (UNTIL_ALL_HAVE_ANSWERED + UNTIL_ALL_HAVE_MARKED)[:before]:
        mesh.carry(a, b, 1 << 30)
    if way == "leaves":
        client.close()
    else:
        mesh.engines[OLD].probe.reset(client.socket)
    moving.hosts[OLD].probe.moves.on_hung_up(client.connection)
    for number, one in enumerate(askers):
        one.feed(b"PUB a inbox%d 1\r\n1\r\nPING\r\n" % number)
    mesh.settle()
    moving.deliver()
    for number, one in enumerate(askers):
        assert one.take() == b"HMSG inbox%d 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPONG\r\n" % number
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    third = mesh.engines[THIRD].probe.moves
    assert [third.remote_members((shard, b"$G", b"a", b"q")) for shard in (OLD, NEW)] == [0, 0]
    assert other.engine is mesh.engines[OLD if is_alone else NEW]
    mesh.close()


@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "group"])
@pytest.mark.parametrize("until", range(-1, 1 + len(UNTIL_ALL_HAVE_ANSWERED)))
def test_nobody_responds_between_the_marks_where_the_only_subscriber_had_gone_before(moving, until, queue):
    """Also where the next shard was told of that before it knew the client."""
    mesh = moving.mesh
    client, askers, other = only_responder(moving, queue)
    moving.is_stepwise = until < 0  # nobody is written down yet
    moving.begin(client, other)
    pairs = UNTIL_ALL_HAVE_ANSWERED + UNTIL_ALL_HAVE_MARKED
    until = max(until, 0)
    for a, b in pairs[:until]:
        mesh.carry(a, b, 1 << 30)
    moving.hosts[OLD].probe.moves.on_hung_up(client.connection)
    moving.is_stepwise = False
    moving.hosts[OLD].soon()
    mesh.finish()
    for a, b in pairs[until:]:
        for number, one in enumerate(askers):
            one.feed(b"PUB a inbox%d 1\r\n1\r\n" % number)
        mesh.carry(a, b, 1 << 30)
    mesh.settle()
    for number, one in enumerate(askers):
        no_one = b"HMSG inbox%d 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % number
        assert one.take() == no_one * len(pairs[until:])
    moving.deliver()
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    moving.hosts[NEW].probe.moves.end_arrivals(OLD)
    assert moving.hosts[NEW].probe.moves.gone == {}
    mesh.close()


def begun_with_one_that_has_hung_up(queue: bytes) -> tuple[Stepwise, EngineClient, EngineClient]:
    """The move of two clients of which nothing is written down; who has hung up, and another subscriber of `a`."""
    moving = Stepwise()
    mesh = moving.mesh
    leaver, other, _, _, member, _ = mesh.clients
    for one in (leaver, member):
        one.feed(b"SUB a %b 1\r\n" % queue)
    mesh.settle()
    moving.begin(leaver, other)
    moving.hosts[OLD].probe.moves.on_hung_up(leaver.connection)
    return moving, leaver, member


def test_who_has_hung_up_before_it_is_written_down_takes_nothing_of_siblings():
    """They chose its shard before they could know."""
    moving, leaver, member = begun_with_one_that_has_hung_up(b"q")
    published(moving.mesh.clients[2], *map(str, range(40)))
    moving.mesh.carry_all(*moving.mesh.ends)
    moving.mesh.carry_all(*moving.mesh.ends)
    assert payloads(leaver) == []
    assert sorted(payloads(member), key=int) == [str(n) for n in range(40)]
    moving.mesh.close()


@pytest.mark.parametrize("misses", [False, True], ids=["nothing was refused", "something was refused"])
def test_who_has_hung_up_and_stays_gets_nothing_behind_what_was_refused(misses):
    """Else it is as any client whose end is not read yet."""
    moving, leaver, _ = begun_with_one_that_has_hung_up(b"")
    mesh = moving.mesh
    if misses:
        published(mesh.clients[2], "refused")
        mesh.carry_all(*mesh.ends)
    moving.hosts[OLD].probe.moves.stop()
    moving.go_on_everywhere()
    published(mesh.clients[2], "behind")
    moving.go_on_everywhere()
    assert payloads(leaver) == ([] if misses else ["behind"])
    assert leaver.socket.is_deaf == misses
    mesh.close()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_waits_for_a_client_without_headers_that_leaves_keeps_its_header_for_another_member(moving, place):
    mesh = moving.mesh
    client = mesh.clients[0]
    member, publisher = mesh.clients[1 + 2 * place], mesh.clients[4]
    for one in (member, publisher):
        one.feed(NO_RESPONDERS)
    for one in (client, member):
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW))
    mesh.carry_all((NEW, THIRD), (NEW, OLD), (THIRD, NEW), (OLD, NEW))
    client.close()
    for number in range(60):
        publisher.feed(b"HPUB a r 12 18\r\nNATS/1.0\r\n\r\n%06d\r\n" % number)
    mesh.settle()
    moving.deliver()
    got = [frame for frame in frames(member.take()) if frame.is_message]
    assert sorted(int(frame.payload) for frame in got) == list(range(60))
    assert {(frame.header_size, frame.body[:12]) for frame in got} == {(12, b"NATS/1.0\r\n\r\n")}
    mesh.close()


@pytest.mark.parametrize("publishes_at", [NEW, THIRD])
@pytest.mark.parametrize("has_other", [False, True])
def test_what_waits_for_a_client_that_leaves_does_not_come_back_to_a_publisher_without_echo(
    moving, publishes_at, has_other
):
    mesh = moving.mesh
    # (The numbers of these clients are unique.)
    client, publisher, other = [mesh.clients[n] for n in ((0, 3, 4) if publishes_at == NEW else (0, 4, 5))]
    publisher.feed(NO_ECHO)
    for one in (client, publisher, other) if has_other else (client, publisher):
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW))
    mesh.carry_all((NEW, THIRD), (NEW, OLD), (THIRD, NEW), (OLD, NEW))
    mesh.carry_all((NEW, THIRD), (NEW, OLD), (THIRD, NEW), (OLD, NEW))
    client.close()
    published(publisher, *(str(number) for number in range(60)))
    mesh.settle()
    moving.deliver()
    assert publisher.messages() == []
    got = payloads(other)
    assert sorted(got, key=int) == ([str(number) for number in range(60)] if has_other else [])
    mesh.close()


def test_a_record_of_an_unknown_move_is_refused(moving):
    frozen = FrozenClient(cid=1, account=b"$G")
    assert not moving.hosts[NEW].probe.moves.arrive(OLD, 77, frozen)


def members_known(moving: Moving, shard: int) -> list[int]:
    """How many members of queue group q the old and the new shard have, as far as this one knows."""
    moves = moving.mesh.engines[shard].probe.moves
    return [moves.remote_members((there, b"$G", b"a", b"q")) for there in (OLD, NEW)]


def test_a_member_that_goes_before_the_last_mark_is_counted_with_the_others_first(moving):
    """It goes while a third shard's mark is on its way to the new one."""
    mesh = moving.mesh
    client = mesh.clients[0]
    client.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW), (NEW, OLD), (NEW, THIRD), (THIRD, NEW), (OLD, NEW))  # the new shard asks for marks
    client.close()
    mesh.settle_but((THIRD, NEW))
    assert moving.hosts[OLD].ends == [], "the new shard has answered, and has not all marks"
    mesh.settle()
    assert moving.hosts[OLD].ends == [""], "it has not been handed over"
    assert moving.hosts[NEW].lost_cids == [client.connection.cid]
    assert members_known(moving, THIRD) == [0, 0]
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    mesh.close()


@pytest.mark.parametrize("is_told_with_a_new_link", [False, True])
def test_a_move_that_was_given_up_takes_no_member_away_from_who_marks_it_late(moving, is_told_with_a_new_link):
    """The new shard's MARKQ is slower than the old one's word that nobody moves."""
    mesh = moving.mesh
    client, stays, publisher = mesh.clients[0], mesh.clients[1], mesh.clients[4]
    for one in (client, stays):
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW), (NEW, OLD), (NEW, THIRD), (THIRD, NEW))
    mesh.carry_all((OLD, NEW))  # all have answered: MARKQ
    mesh.finish()
    assert mesh.ends[NEW, THIRD].waits
    mesh.break_link(OLD, NEW)
    assert moving.hosts[OLD].ends == ["the link to its new shard ended"]
    if is_told_with_a_new_link:
        mesh.break_link(OLD, THIRD)  # with its word
    while mesh.carry(OLD, THIRD, 1 << 30) or mesh.carry(THIRD, OLD, 1 << 30):
        pass
    mesh.settle()
    assert members_known(moving, THIRD) == [1, 0]
    published(publisher, "1")
    mesh.settle()
    assert payloads(stays) == ["1"]
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    mesh.close()


def test_who_may_have_lost_messages_with_a_link_while_it_moves_is_closed(moving):
    mesh = moving.mesh
    publisher, waits, listener = mesh.clients[0], mesh.clients[1], mesh.clients[4]
    listener.feed(b"SUB a 1\r\n")
    mesh.settle()
    published(publisher, "1")
    moving.begin(publisher, waits)
    others = [pair for pair in mesh.ends if pair != (OLD, THIRD)]
    while sum(mesh.carry(a, b, 1 << 30) for a, b in others):
        pass
    assert mesh.break_link(OLD, THIRD) == 1
    mesh.settle()
    assert payloads(listener) == []
    assert publisher.is_over and publisher.reason is CloseReason.ROUTE_REMOVED
    moving.deliver()
    assert waits.talk(b"PING\r\n") == b"PONG\r\n" and waits.engine is mesh.engines[NEW]
    mesh.close()


def test_a_member_is_closed_where_its_new_shard_may_have_been_sent_its_messages(moving):
    """The old shard has heard of no mark when the new one dies; who is in no queue group stays."""
    mesh = moving.mesh
    member, plain = mesh.clients[:2]
    member.feed(b"SUB a q 1\r\n")
    plain.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.begin(member, plain)
    mesh.carry_all((OLD, NEW), (NEW, OLD), (NEW, THIRD), (THIRD, NEW), (OLD, NEW), (NEW, THIRD))
    assert members_known(moving, THIRD) == [0, 1], "the third shard sends what is for it to the new one"
    mesh.kill(NEW)
    mesh.settle()
    assert member.is_over and member.reason is CloseReason.ROUTE_REMOVED
    published(mesh.clients[4], "1")
    mesh.settle()
    assert not plain.is_over and payloads(plain) == ["1"]
    assert moving.hosts[OLD].probe.moves.is_idle
    mesh.close()


def test_a_client_may_answer_what_came_before_and_while_it_moved(moving):
    mesh = moving.mesh
    client, near, far = mesh.clients[0], mesh.clients[2], mesh.clients[4]
    rights = Permissions(options.Permissions(publish_allow=("b",), responses=1, responses_expire_s=60.0))
    client.connection.enter(mesh.engines[OLD].probe.sublist, rights)
    moving.hosts[NEW].permissions = rights
    client.feed(b"SUB a 1\r\n")
    far.feed(b"SUB reply.* 1\r\n")
    mesh.settle()
    far.feed(b"PUB a reply.1 1\r\n1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.settle()
    near.feed(b"PUB a reply.2 1\r\n2\r\n")
    moving.deliver()
    assert payloads(client) == ["1", "2"]
    for number in "123":
        published(client, number, subject=f"reply.{number}")
    mesh.settle()
    assert payloads(far) == ["1", "2"]
    mesh.close()


def known(moving: Moving, subject: bytes) -> dict[tuple[int, int], int]:
    """(shard, sibling) → members of group q on this subject that the shard believes the sibling to have."""
    shards = moving.mesh.engines
    return {
        (one, other): shards[one].probe.moves.remote_members((other, b"$G", subject, b"q"))
        for one in shards
        for other in shards
        if one != other
    }


@pytest.mark.parametrize("slice_subs", [1, 3, 64])
@pytest.mark.parametrize("seed", range(20))
def test_queue_members_go_part_by_part_and_each_message_has_one_taker(seed, slice_subs):
    rng = random.Random(seed)
    moving = Stepwise()
    mesh = moving.mesh
    for engine in mesh.engines.values():
        engine.probe.moves.slice_subs = slice_subs
        engine.probe.moves.window = 1 + seed % 3
    client, other, near, _, far, stays = mesh.clients
    groups = 12
    client.feed(b"".join(b"SUB g.%d q %d\r\nSUB p.%d 1%02d\r\n" % (n, n, n, n) for n in range(groups)))
    other.feed(b"SUB g.3 q 1\r\n")
    stays.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(0, groups, 2)))
    mesh.settle()
    sent: Counter[str] = Counter()
    moving.begin(client, other)
    for _ in range(300):
        who = rng.choice((near, far))
        subject = f"{rng.choice('gp')}.{rng.randrange(groups)}"
        name = "near" if who is near else "far"
        sent[f"{subject} {name}"] += 1
        published(who, f"{subject} {name} {sent[f'{subject} {name}']}", subject=subject)
        shard = rng.choice((OLD, NEW, THIRD))
        if rng.random() < 0.6:
            moving.go_on(shard)
        else:
            mesh.carry(*rng.choice([pair for pair in mesh.ends if shard in pair]), rng.choice((20, 1 << 30)))
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert {one.engine for one in (client, other)} == {mesh.engines[NEW]}
    got = {one: payloads(one) for one in (client, other, stays)}
    for one, heard in got.items():
        for what in sent:
            numbers = [int(text.split()[2]) for text in heard if text.startswith(f"{what} ")]
            assert numbers == sorted(numbers), (one, what)
    assert Counter(text.rsplit(" ", 1)[0] for heard in got.values() for text in heard) == sent
    assert len({text for heard in got.values() for text in heard}) == sum(sent.values())
    for n in range(groups):
        here = {OLD: 0, NEW: 1 + (n == 3), THIRD: int(n % 2 == 0)}
        assert known(moving, b"g.%d" % n) == {(a, b): here[b] for a in here for b in here if a != b}
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    mesh.close()


def lines_sent(mesh: Mesh, a: int, b: int) -> list[list[bytes]]:
    """The control lines of the frames about moves that shard a has sent to shard b."""
    found = []
    here = mesh.ends[a, b].socket
    assert here is not None
    for line in bytes(here.sent).split(b"\r\n"):
        words = line.split(b" ")
        if words[0] in (b"MOVE", b"MPART", b"MSHIFT", b"MARKQ", b"MARK", b"MDONE", b"MCOUNT", b"MNEXT", b"MOVED"):
            found.append(words)
    return found


def test_no_frame_about_a_move_is_large_and_each_shard_does_a_bounded_part_for_it(moving):
    """However many subscriptions a client has: here as many as were refused once, some with long names."""
    mesh = moving.mesh
    client = mesh.clients[0]
    n = 5000
    client.feed(b"".join(b"SUB g.%d.%b q%d %d\r\n" % (i, b"x" * (1 + i % 2000), i % 7, i) for i in range(n)))
    mesh.settle()
    moving.move(client)
    assert client.engine is mesh.engines[NEW]
    assert client.connection.subscriptions == n
    parts = [int(words[2]) for words in lines_sent(mesh, OLD, NEW) if words[0] in (b"MOVE", b"MPART")]
    shifts = [int(words[3]) for words in lines_sent(mesh, NEW, THIRD) if words[0] == b"MSHIFT"]
    assert len(parts) == len(shifts) >= n / module.SLICE_SUBS
    assert max(parts + shifts) < 2 * module.PART_BYTES + 10_000
    for old_or_new in (OLD, NEW):
        done = [int(words[3]) for words in lines_sent(mesh, old_or_new, THIRD) if words[0] == b"MDONE"]
        assert sum(done) == n
        assert max(done) <= 8 * module.SLICE_SUBS
    mesh.close()


def test_counts_are_shifted_by_the_mark_alone_and_stay_so_until_both_shards_tell_them():
    moving = Stepwise()
    mesh = moving.mesh
    client, publisher = mesh.clients[0], mesh.clients[4]
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(100)))
    mesh.settle()
    third = mesh.engines[THIRD].probe.moves

    def members(n: int) -> list[int]:
        return [third.remote_members((shard, b"$G", b"g.%d" % n, b"q")) for shard in (OLD, NEW)]

    moving.begin(client)
    seen = [members(0) + members(99)]
    while not client.engine.probe.moves.is_idle:
        for shard in mesh.engines:
            moving.go_on(shard)
        for pair in mesh.ends:
            mesh.carry(*pair, 10)
            if seen[-1] != members(0) + members(99):
                seen.append(members(0) + members(99))
        if moving.hosts[NEW].kept:
            break
    moving.go_on_everywhere()
    assert seen == [[1, 0, 1, 0], [0, 1, 0, 1]], "of the first and of the last in one step, and no other"
    assert members(0) + members(99) == [0, 1, 0, 1]
    published(publisher, "1", subject="g.50")
    moving.deliver()
    moving.go_on_everywhere()
    assert payloads(client) == ["1"]
    mesh.close()


def test_no_more_parts_of_an_offer_are_sent_than_may_wait():
    moving = Stepwise()
    mesh = moving.mesh
    client = mesh.clients[0]
    client.feed(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(640)))
    mesh.settle()
    moving.hosts[OLD].probe.moves.window = 3
    moving.begin(client)
    moving.go_on_as_far_as(OLD)
    before = lines_sent(mesh, OLD, NEW)
    assert [words[0] for words in before[-3:]] == [b"MOVE", b"MPART", b"MPART"]
    mesh.carry_all((OLD, NEW))
    moving.go_on_as_far_as(NEW, 2)
    mesh.carry_all((NEW, OLD))
    moving.go_on_as_far_as(OLD)
    assert len(lines_sent(mesh, OLD, NEW)) == len(before) + 2, "it has asked for two"
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    mesh.close()


@pytest.mark.parametrize("how", ["it is stopped", "its link breaks", "the new shard dies", "another link breaks"])
def test_a_move_that_is_given_up_while_it_is_offered_leaves_nothing(how):
    moving = Stepwise()
    mesh = moving.mesh
    client, other, *_ = mesh.clients
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(200)) + b"SUB p 200\r\n")
    mesh.settle()
    before = mesh.engines[NEW].probe.sublist.n_subs
    moves = moving.hosts[OLD].probe.moves
    moves.window = 1
    moving.begin(client)
    for _ in range(2):
        moving.go_on_as_far_as(OLD, 1)
        mesh.carry_all((OLD, NEW))
        moving.go_on_as_far_as(NEW, 1)
        mesh.carry_all((NEW, OLD), (NEW, THIRD))
    assert mesh.engines[NEW].probe.sublist.n_subs == before + 128
    assert not mesh.engines[THIRD].probe.moves.is_idle
    if how == "it is stopped":
        moves.stop()
    elif how == "the new shard dies":
        mesh.kill(NEW)
    else:
        mesh.break_link(*((OLD, NEW) if how == "its link breaks" else (OLD, THIRD)))
    moving.go_on_everywhere()
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    if how != "the new shard dies":
        assert mesh.engines[NEW].probe.sublist.n_subs == before
    assert not client.is_over and not client.socket.is_held
    published(other, "1", subject="g.7")
    published(other, "2", subject="g.199")
    published(other, "3", subject="p")
    moving.go_on_everywhere()
    assert payloads(client) == ["1", "2", "3"]
    if how == "the new shard dies":
        mesh.close()
        return
    moving.begin(client)
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    mesh.close()


def test_a_client_that_goes_while_it_is_offered_leaves_no_member_behind():
    """Of some of its subscriptions the new shard knows, of others not."""
    moving = Stepwise()
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(200)))
    mesh.settle()
    moving.begin(client, other)
    moving.go_on(OLD)
    client.close()
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert other.engine is mesh.engines[NEW]
    assert [engine.probe.sublist.n_subs for engine in mesh.engines.values()] == [0, 0, 0]
    for n in range(200):
        assert not any(known(moving, b"g.%d" % n).values())
    mesh.close()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (b"MARKQ 0 5 1\r\n", "MARKQ of other shifts than were sent"),
        (b"MSHIFT 0 5 %d\r\n%b\r\nMARKQ 0 5 0\r\n", "MARKQ of other shifts than were sent"),
        (b"MSHIFT 0 5 %d\r\n%b\r\nMARKQ 0 5 1\r\nMARKQ 0 5 1\r\n", "MARKQ twice"),
        (b"MARKQ 0 5 0\r\nMSHIFT 0 5 %d\r\n%b\r\n", "MSHIFT behind MARKQ"),
        (b"MSHIFT 0 5 %d\r\n%b\r\nMARKQ 0 5 1\r\nMDONE 0 5 2\r\n", "MDONE of more shifts than there are"),
        (b"MCOUNT 5 1\r\n\xc1\r\n", "bad counts in MCOUNT"),
    ],
)
def test_frames_about_a_move_that_contradict_each_other_end_the_link(moving, frames, why):
    here = moving.mesh.ends[THIRD, NEW]
    assert here.socket is not None
    shifts = records.encoded_shifts((records.Shift(b"$G", b"a", b"q", 1),))
    words = (len(shifts), shifts) if b"%b" in frames else ()
    moving.mesh.engines[THIRD].probe.feed(here.socket, frames % words)
    assert here.broken and why in here.broken[0]


def test_the_old_shards_word_of_its_last_move_holds_for_all_before_it(moving):
    """That is all that a link that joins is told: what it tells of queue members has all of their shifts."""
    mesh = moving.mesh
    for one in mesh.clients[:2]:
        one.feed(b"SUB a q 1\r\n")
    mesh.settle()
    third = mesh.engines[THIRD].probe
    from_old, from_new = mesh.ends[THIRD, OLD].socket, mesh.ends[THIRD, NEW].socket
    assert from_old is not None and from_new is not None
    shifts = records.encoded_shifts((records.Shift(b"$G", b"a", b"q", 1),))
    first = 1 << 50  # later than the one that links are told of when they join
    third.feed(from_new, b"MSHIFT 0 %d %d\r\n%b\r\nMARKQ 0 %d 1\r\n" % (first, len(shifts), shifts, first))
    assert members_known(moving, THIRD) == [1, 1]
    third.feed(from_old, b"MOVED 0 %d 1 0\r\n\r\n" % (first + 1))
    assert members_known(moving, THIRD) == [1, 1]
    third.feed(from_new, b"MOVED 0 %d 0 0\r\n\r\n" % first)
    assert members_known(moving, THIRD) == [1, 0]
    assert third.moves.is_idle
    mesh.settle()
    mesh.close()


def test_a_queue_subscription_with_a_max_keeps_its_client_until_it_has_ended(moving):
    client, other = moving.mesh.clients[:2]
    moves = moving.hosts[OLD].probe.moves
    client.feed(b"SUB a q 1\r\nUNSUB 1 2\r\nUNSUB 1 3\r\nSUB b q 2\r\nUNSUB 2 1\r\nSUB c 3\r\nUNSUB 3 7\r\n")
    moving.mesh.settle()
    why = "a queue subscription of its has a max"
    assert moves.why_not(client.connection) == why
    published(other, "1", subject="b")
    assert moves.why_not(client.connection) == why
    client.feed(b"UNSUB 1\r\n")
    moving.mesh.settle()
    assert moves.why_not(client.connection) is None
    moving.move(client)
    assert client.engine is moving.mesh.engines[NEW]
    moving.mesh.close()


def test_what_subscriptions_have_had_meanwhile_is_told_part_by_part():
    """Messages that came while they were offered, and maxima that were reached then."""
    moving = Stepwise()
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    client.feed(b"".join(b"SUB s.%d %d\r\nUNSUB %d %d\r\n" % (n, n, n, 1 + n % 3) for n in range(60)))
    client.feed(b"".join(b"SUB t.%d 1%02d\r\n" % (n, n) for n in range(60)))
    for engine in mesh.engines.values():
        engine.probe.moves.slice_subs = 5
    mesh.settle()
    moving.begin(client)
    while len(lines_sent(mesh, OLD, NEW)) < 120 / 5:
        moving.go_on_everywhere_once()
    for n in range(60):
        published(other, "1", subject=f"s.{n}")
        published(other, "1", subject=f"t.{n}")
    moving.go_on_everywhere()
    verbs = Counter(words[0] for words in lines_sent(mesh, OLD, NEW))
    assert verbs[b"MCOUNT"] > 60 / 5
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    for _ in range(3):
        for n in range(60):
            published(other, "2", subject=f"s.{n}")
    moving.go_on_everywhere()
    got = Counter(int(sid) for sid, _ in client.messages())
    assert got == {**{n: 1 + n % 3 for n in range(60)}, **{100 + n: 1 for n in range(60)}}
    assert client.connection.subscriptions == 60
    mesh.close()


def test_who_moves_waits_for_the_marks_of_another_move_and_not_for_its_counts():
    moving = Stepwise()
    mesh = moving.mesh
    client, third = mesh.clients[0], mesh.clients[4]
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(2000)))
    mesh.settle()
    moving.begin(client)
    while not any(words[0] == b"MARK" for words in lines_sent(mesh, THIRD, NEW)):
        moving.go_on_everywhere_once()
    moving.begin(third, old=THIRD, new=OLD)
    done: list[list[bytes]] = []
    while not done:
        mesh.carry_all((OLD, NEW), (THIRD, NEW), (OLD, THIRD), (THIRD, OLD), (NEW, OLD))
        moving.go_on_as_far_as(NEW, 1)
        moving.go_on_as_far_as(THIRD)
        moving.go_on_as_far_as(OLD)
        done = [words for words in lines_sent(mesh, NEW, THIRD) if words[0] == b"MDONE"]
    for _ in range(20):  # of which the new shard goes on with nothing
        mesh.carry_all(*mesh.ends)
        moving.go_on_as_far_as(THIRD)
        moving.go_on_as_far_as(OLD)
    assert moving.hosts[OLD].kept, "it has been handed over"
    assert sum(int(words[3]) for words in lines_sent(mesh, NEW, THIRD) if words[0] == b"MDONE") < 2000
    moving.deliver(OLD, THIRD)
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert [one.engine for one in (client, third)] == [mesh.engines[NEW], mesh.engines[OLD]]
    mesh.close()


@pytest.mark.parametrize("members", [10, 200])
def test_what_was_matched_before_the_mark_is_matched_again(members):
    """No message goes to a shard whose member has moved: it would be sent on, behind those that follow it."""
    moving = Stepwise()
    mesh = moving.mesh
    client, near, far = mesh.clients[0], mesh.clients[2], mesh.clients[4]
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(members)))
    mesh.settle()
    said = 0
    moving.begin(client)
    for _ in range(400):
        said += 1
        for who, name in ((near, "near"), (far, "far")):
            published(who, f"{name} {said}", subject=f"g.{members - 1}")
        moving.go_on_everywhere_once()
        if moving.hosts[NEW].kept:
            break
    moving.deliver()
    moving.go_on_everywhere()
    heard = payloads(client)
    for name in ("near", "far"):
        assert [int(one.split()[1]) for one in heard if one.startswith(name)] == list(range(1, said + 1))
    assert [engine.probe.reroutes.n_sent_on for engine in mesh.engines.values()] == [0, 0, 0]
    mesh.close()


def test_a_link_that_joins_waits_for_no_offer_of_many_parts():
    """It would wait for seconds, and with it all clients of a shard that is not in step."""
    moving = Stepwise()
    mesh = moving.mesh
    client = mesh.clients[0]
    mesh.kill(THIRD)
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(200)))
    mesh.settle()
    moving.hosts[OLD].probe.moves.window = 1
    moving.begin(client)
    moving.go_on_as_far_as(OLD)
    mesh.carry_all((OLD, NEW))
    moving.go_on_as_far_as(NEW)
    assert not moving.hosts[OLD].ends
    mesh.add(THIRD)
    assert moving.hosts[OLD].ends == ["it was stopped"]
    moving.hosts[THIRD] = Host(moving, THIRD)
    moving.go_on_everywhere()
    assert mesh.is_in_step(THIRD)
    assert known(moving, b"g.7") == {(a, b): int(b == OLD) for a in mesh.engines for b in mesh.engines if a != b}
    moving.begin(client)
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    mesh.close()


def test_a_link_that_joins_waits_for_no_offer_of_which_nothing_was_sent():
    """As for one of many parts: its client has a million subscriptions, maybe, and is written down in turns."""
    moving = Stepwise()
    mesh = moving.mesh
    client = mesh.clients[0]
    mesh.kill(THIRD)
    client.feed(b"".join(b"SUB g.%d q %d\r\n" % (n, n) for n in range(200)))
    mesh.settle()
    moving.begin(client)
    mesh.add(THIRD)
    assert moving.hosts[OLD].ends == ["it was stopped"]
    moving.hosts[THIRD] = Host(moving, THIRD)
    moving.go_on_everywhere()
    assert mesh.is_in_step(THIRD)
    client.feed(b"PING\r\n")
    mesh.settle()
    assert client.take() == b"PONG\r\n"
    mesh.close()


def test_a_client_with_few_subscriptions_does_not_wait_for_one_with_many():
    """Each move has its turns, whoever is under way longer."""
    moving = Stepwise()
    mesh = moving.mesh
    many, few = mesh.clients[0], mesh.clients[2]
    many.feed(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(500)))
    few.feed(b"SUB a 1\r\n")
    mesh.settle()
    moving.begin(many)
    moving.go_on_everywhere()
    moving.hosts[NEW].probe.moves.slice_subs = 1
    for id, frozen, _ in moving.hosts[NEW].kept:
        moving.hosts[NEW].probe.moves.arrive(OLD, id, frozen)
    moving.begin(few, old=NEW, new=OLD)
    for _ in range(40):
        moving.go_on_everywhere_once()
    assert moving.hosts[OLD].kept, "it has been handed over"
    assert many.engine is mesh.engines[OLD], "it is being settled"
    moving.deliver(OLD, NEW)
    moving.go_on_everywhere()
    assert (many.engine, few.engine) == (mesh.engines[NEW], mesh.engines[OLD])
    mesh.close()


@pytest.mark.parametrize("seed", range(10))
def test_each_subscription_is_offered_once_though_others_end_meanwhile(seed):
    """Where one is taken out of its table others move back, to before what is written down next."""
    rng = random.Random(seed)
    moving = Stepwise()
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    n = 150
    client.feed(b"".join(b"SUB s.%d %d\r\nUNSUB %d 1\r\nSUB p.%d 1%03d\r\n" % (i, i, i, i, i) for i in range(n)))
    mesh.settle()
    for engine in mesh.engines.values():
        engine.probe.moves.slice_subs = 2
    moving.begin(client)
    ends = list(range(n))
    rng.shuffle(ends)
    while ends:
        moving.go_on_everywhere_once()
        published(other, "1", subject=f"s.{ends.pop()}")
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    assert client.connection.subscriptions == n
    for i in range(n):
        published(other, "2", subject=f"p.{i}")
        published(other, "no more", subject=f"s.{i}")
    moving.go_on_everywhere()
    got = Counter(int(sid) for sid, _ in client.messages())
    assert got == {**dict.fromkeys(range(n), 1), **{1000 + i: 1 for i in range(n)}}
    mesh.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_client_that_stays_after_all_moves_with_everything_the_next_time(seed):
    """Subscriptions end while what the move has changed is taken back: others move back in their table."""
    rng = random.Random(seed)
    moving = Stepwise()
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    n = 190
    client.feed(b"".join(b"SUB s.%d %d\r\nUNSUB %d 1\r\nSUB p.%d q 1%03d\r\n" % (i, i, i, i, i) for i in range(n)))
    mesh.settle()
    moving.begin(client)
    moving.go_on_as_far_as(OLD)
    for engine in mesh.engines.values():
        engine.probe.moves.slice_subs = 1
    moving.hosts[OLD].probe.moves.stop()
    mesh.settle()
    assert len(moving.hosts[OLD].ends) == 1
    ends = list(range(n))
    rng.shuffle(ends)
    for i in ends:
        published(other, "1", subject=f"s.{i}")
        moving.go_on(OLD)
    moving.go_on_everywhere()
    assert client.engine.probe.left_of_moves(client.connection) == []
    moving.begin(client)
    moving.go_on_everywhere()
    moving.deliver()
    moving.go_on_everywhere()
    assert client.engine is mesh.engines[NEW]
    for i in range(n):
        published(other, "2", subject=f"p.{i}")
    moving.go_on_everywhere()
    got = Counter(int(sid) for sid, _ in client.messages())
    assert got == {**dict.fromkeys(range(n), 1), **{1000 + i: 1 for i in range(n)}}
    mesh.close()


def test_nothing_is_matched_by_a_group_that_was_there_for_a_move_alone(moving):
    """The match cache points at names of groups: these end with the move, while nobody subscribes or unsubscribes."""
    mesh = moving.mesh
    client, publisher = mesh.clients[0], mesh.clients[4]
    client.feed(b"SUB a q 1\r\n")
    mesh.settle()
    moving.begin(client)
    mesh.carry_all((OLD, NEW), (NEW, THIRD))  # MOVE and MSHIFT
    probe = mesh.engines[THIRD].probe
    mesh.kill(OLD)
    published(publisher, "nobody hears it")
    groups = probe.memory["queue_names"]
    builds = probe.builds
    mesh.settle()
    assert (groups, probe.memory["queue_names"]) == (1, 0)
    published(publisher, "nor this")
    assert probe.builds == builds + 1
    mesh.close()


@pytest.mark.parametrize("queue", ["", "q "])
def test_a_new_shard_that_dies_while_subscriptions_end_keeps_nobody_waiting(queue):
    """The rest of them end in turns, too; then the client is closed."""
    moving = Stepwise()
    mesh = moving.mesh
    client, other = mesh.clients[:2]
    client.feed(b"".join(b"SUB g.%d %b%d\r\n" % (n, queue.encode(), n) for n in range(1000)))
    mesh.settle()
    moving.begin(client)
    left = client.connection.subscriptions
    while client.connection.subscriptions == left:
        moving.go_on_everywhere_once()
    ended = []
    mesh.kill(NEW)
    del moving.hosts[NEW]
    while client.connection.subscriptions:
        ended.append(left - client.connection.subscriptions)
        left = client.connection.subscriptions
        assert moving.go_on(OLD)
    assert len(ended) > 1000 / 64 - 4
    assert max(ended) <= 64
    moving.go_on_everywhere()
    assert client.reason is CloseReason.ROUTE_REMOVED
    assert moving.hosts[OLD].ends == ["the link to its new shard ended"]
    assert all(engine.probe.moves.is_idle for engine in mesh.engines.values())
    assert all(not engine.probe.miscounted(engine.probe.sublist) for engine in mesh.engines.values())
    assert not any(known(moving, b"g.%d" % n)[THIRD, OLD] for n in range(1000))
    other.feed(b"SUB g.7 q 1\r\n")
    mesh.settle()
    assert known(moving, b"g.7")[THIRD, OLD] == 1
    mesh.close()


def test_a_move_goes_on_though_a_shard_that_was_just_started_is_being_told():
    """Its clients are not read meanwhile, and the old shard may have much to tell."""
    moving = Moving()
    mesh = moving.mesh
    client, other = mesh.clients[0], mesh.clients[1]
    client.feed(b"SUB a 1\r\n")
    other.feed(b"".join(b"SUB x.%d %d\r\n" % (n, n) for n in range(300)))
    mesh.settle()
    mesh.work_in_turns(OLD, 20)
    number = moving.hosts[OLD].probe.moves.move([client.connection], NEW)
    mesh.finish()
    socket = mesh.ends[OLD, NEW].socket
    assert socket is not None
    while b"MOVED 0 %d 1" % number not in bytes(socket.sent):  # all have marked it
        for way in ((OLD, NEW), (NEW, OLD), (NEW, THIRD), (THIRD, NEW), (OLD, THIRD), (THIRD, OLD)):
            mesh.carry(*way, 1 << 30)
            if b"MOVED 0 %d 1" % number in bytes(socket.sent):
                break
        mesh.finish()
    mesh.add(3, is_new=True)
    for _ in range(5):
        mesh.work(OLD)
        mesh.settle()
    assert moving.hosts[NEW].kept and not mesh.ends[OLD, 3].is_synchronised
    while not mesh.ends[OLD, 3].is_synchronised:
        mesh.work(OLD)
        mesh.settle()
