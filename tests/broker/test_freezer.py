"""A connection that was written down and thawed is indistinguishable from one that was not; bad records are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnatswarm.broker import frozen as records
from gnatswarm.broker import options
from gnatswarm.broker.freezer import freeze, thaw
from gnatswarm.broker.frozen import FrozenClient, FrozenReply, FrozenSubscription, RecordRefused
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.permissions import Permissions
from tests.support.engine import NO_RESPONDERS, QUIET, WITH_HEADERS, Engine, EngineClient, Session, frames
from tests.support.mesh import Mesh

BIG = 40_000  # such a message is read into a blob
RIGHTS = (
    None,
    options.Permissions(subscribe_deny=("a.b",)),
    options.Permissions(publish_allow=("a", "b"), responses=2, responses_expire_s=3.0),
)
COUNTERS = (
    *("cid", "in_msgs", "in_bytes", "out_msgs", "out_bytes", "pending_bytes", "subscriptions"),
    *("rtt_us", "pinged_us", "pings_out", "was_ponged", "is_verbose", "is_pedantic", "echoes"),
    *("wants_no_responders", "names_subject", "protocol", "must_authenticate", "offers_headers"),
)


def frozen_and_thawed(
    engine: Engine, client: EngineClient, there: Engine | None = None, permissions: Permissions | None = None
) -> None:
    """Let the client's socket go to a new connection, made from the record of the one before."""
    there = there or engine
    before = client.connection
    data = records.encoded(freeze(before))
    session: Session = client.session
    frozen = records.decoded(data)
    after = there.probe.connection(frozen.cid, session)
    after.enter(there.probe.sublist, permissions)
    session.connection = after
    socket = client.socket
    engine.probe.let_go(socket)
    before.leave()
    thaw(after, frozen)
    there.probe.take_in(socket, after)
    client.engine = there
    after.go_on()
    there.probe.finish()


class Pair:
    """The same world twice: in one, the first client is frozen and thawed when `freeze` says so."""

    def __init__(self, rights: int, connect: bytes) -> None:
        self.engines = [Engine(Limits(max_pending_bytes=500_000), seed=5) for _ in range(2)]
        self.clients = []
        for engine in self.engines:
            clients = [engine.client(connect), engine.client(WITH_HEADERS), engine.client(QUIET)]
            given_rights = RIGHTS[rights]
            self.permissions = None if given_rights is None else Permissions(given_rights)
            clients[0].connection.enter(engine.probe.sublist, self.permissions)
            self.clients.append(clients)
        self.now_us = 1_000_000

    def feed(self, who: int, data: bytes, cut: int) -> None:
        data = data.replace(b" q", b" %dq" % who)  # groups of one: which of several members gets a message, nobody says
        for engine, clients in zip(self.engines, self.clients, strict=True):
            engine.probe.feed(clients[who].socket, data, iter([cut]) if cut else ())

    def freeze(self) -> None:
        client = self.clients[1][0]
        if not client.is_over:
            frozen_and_thawed(self.engines[1], client, permissions=self.permissions)

    def each(self, what: str) -> None:
        for clients in self.clients:
            if clients[0].is_over:
                continue
            if what == "ping":
                clients[0].connection.ping()
            else:
                clients[0].connection.send_info(b"INFO {} \r\n")
        for engine in self.engines:
            engine.probe.finish()

    def takes(self, n: int) -> None:
        for engine, clients in zip(self.engines, self.clients, strict=True):
            if not clients[0].is_over:
                engine.probe.set_takes(clients[0].socket, n)

    def check(self) -> None:
        for one, other in zip(*self.clients, strict=True):
            assert one.is_over == other.is_over
            assert one.reason == other.reason
            a, b = (client.socket.queued_from(0) for client in (one, other))
            assert normal(a) == normal(b)
            assert one.socket.kept == other.socket.kept
            assert one.errors == other.errors
            for name in COUNTERS:
                assert getattr(one.connection, name) == getattr(other.connection, name), name
            # Going on with the beginning of an operation counts as activity, as after any hold.
            assert one.connection.active_us <= other.connection.active_us
        totals = [
            (probe.fanout.in_msgs, probe.fanout.in_bytes, probe.fanout.out_msgs, probe.fanout.out_bytes)
            for probe in (engine.probe for engine in self.engines)
        ]
        assert totals[0] == totals[1]


def normal(data: bytes) -> list[tuple[bytes, bytes]]:
    """Frames in order; those of one message to several subscriptions of a client have none among themselves."""
    found: list[list[tuple[bytes, bytes]]] = [[]]
    for frame in frames(data, is_cut=True):
        if found[-1] and not (frame.is_message and found[-1][-1][1] == frame.body):
            found.append([])
        found[-1].append((frame.line, frame.body if frame.is_message else b""))
    return [one for run in found for one in sorted(run)]


subjects = st.sampled_from(["a", "b", "a.b", "a.c"])
patterns = st.sampled_from(["a", "b", "a.*", ">", "a.b", "_I.>"])
sids = st.integers(1, 6)


def publish(subject: str, size: int, reply: str) -> bytes:
    return f"PUB {subject} {reply} ".encode() + b"%d\r\n%b\r\n" % (size, b"x" * size)


def header_publish(subject: str, size: int) -> bytes:
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode(), len(header), len(header) + size, header, b"x" * size)


words = st.one_of(
    st.builds("SUB {} {}\r\n".format, patterns, sids).map(str.encode),
    st.builds("SUB {0} q{1} {1}\r\n".format, patterns, sids).map(str.encode),
    st.builds("UNSUB {}\r\n".format, sids).map(str.encode),
    st.builds("UNSUB {} {}\r\n".format, sids, st.integers(1, 4)).map(str.encode),
    st.builds(publish, subjects, st.sampled_from([0, 5, BIG]), st.sampled_from(["", "_I.1", "_I.2"])),
    st.builds(publish, st.sampled_from(["_I.1", "_I.2"]), st.just(3), st.just("")),
    st.builds(header_publish, subjects, st.sampled_from([0, 7])),
    st.just(b"PING\r\n"),
    st.just(b"PONG\r\n"),
)
# (what, who or how much, bytes, where to cut them: the rest is fed as the next step)
steps = st.one_of(
    st.tuples(st.just("feed"), st.integers(0, 2), words, st.one_of(st.just(0), st.integers(1, BIG))),
    st.tuples(st.just("freeze"), st.just(0), st.just(b""), st.just(0)),
    st.tuples(st.sampled_from(["ping", "info"]), st.just(0), st.just(b""), st.just(0)),
    st.tuples(st.just("takes"), st.sampled_from([-1, 0, 10]), st.just(b""), st.just(0)),
    st.tuples(st.just("pass"), st.integers(1, 2_000_000), st.just(b""), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(steps, min_size=5, max_size=60), st.integers(0, 2), st.sampled_from([QUIET, WITH_HEADERS, NO_RESPONDERS])
)
def test_a_thawed_connection_is_indistinguishable(steps, rights, connect):
    pair = Pair(rights, connect)
    rest = [b"", b"", b""]
    number = 0
    for what, who, data, cut in steps:
        if what == "feed":
            number += 1
            data = rest[who] + data.replace(b"x" * 3, b"%03d" % number, 1)
            # Sometimes the operation is cut, and the client may be frozen in the middle of it.
            at = min(cut, len(data)) if cut else len(data)
            rest[who] = data[at:]
            pair.feed(who, data[:at], 0 if cut % 2 else 7)
        elif what == "freeze":
            pair.freeze()
        elif what == "takes":
            pair.takes(who)
        elif what == "pass":
            pair.now_us += who
            for engine in pair.engines:
                engine.probe.set_clock(pair.now_us)
        else:
            pair.each(what)
        pair.check()
    pair.freeze()
    for who in range(3):
        pair.feed(who, rest[who] + b"PUB a 3\r\nend\r\nPING\r\n", 0)
    pair.takes(-1)
    pair.check()
    for engine, clients in zip(pair.engines, pair.clients, strict=True):
        for client in clients:
            client.close()
        engine.assert_empty()


def a_record(**changes: object) -> FrozenClient:
    base = FrozenClient(cid=1, account=b"$G", subscriptions=(FrozenSubscription(b"1", b"a"),))
    return msgspec.structs.replace(base, **changes)


def test_a_client_goes_to_another_engine_in_the_middle_of_a_big_message():
    here, there = Engine(), Engine()
    client, listener = here.client(), there.client()
    listener.feed(b"SUB big 1\r\n")
    message = b"PUB big %d\r\n%b\r\n" % (BIG, b"y" * BIG)
    client.feed(b"SUB a 7\r\nUNSUB 7 3\r\nPUB a 1\r\n1\r\n" + message[:20_000])
    frozen_and_thawed(here, client, there)
    here.assert_empty()
    client.feed(message[20_000:] + b"PUB a 1\r\n2\r\nPUB a 1\r\n3\r\nPUB a 1\r\n4\r\n")
    assert listener.messages() == [(b"1", b"y" * BIG)]
    assert client.messages() == [(b"7", b"1"), (b"7", b"2"), (b"7", b"3")]
    assert client.connection.in_msgs == 5 and client.connection.subscriptions == 0


def test_an_info_that_is_due_goes_with_its_client():
    here, there = Engine(), Engine()
    client = here.client(b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\n')
    client.connection.send_info(b"INFO {}\r\n")
    assert client.take() == b""
    frozen_and_thawed(here, client, there)
    assert client.talk(b"PING\r\n") == b"PONG\r\nINFO {}\r\n"


def test_what_was_unsent_goes_out_first():
    here, there = Engine(), Engine()
    client, feeder = here.client(), there.client()
    client.feed(b"SUB a 7\r\n")
    here.probe.set_takes(client.socket, 5)
    client.feed(b"PUB a 3\r\none\r\n")
    frozen_and_thawed(here, client, there)
    feeder.feed(b"PUB a 3\r\ntwo\r\n")
    there.probe.set_takes(client.socket, -1)
    assert client.messages() == [(b"7", b"one"), (b"7", b"two")]


def test_whoever_asks_may_have_a_reply_subject_of_any_length():
    """It is not a name that the client gave: that of a subscription has 65,000 bytes at most."""
    here, there = Engine(), Engine()
    service, asks = here.client(), here.client()
    rights = Permissions(options.Permissions(responses=1))
    service.connection.enter(here.probe.sublist, rights)
    for client in (asks, service):
        client.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
    service.feed(b"SUB svc 1\r\n")
    reply = b"r" * 70_000
    asks.feed(b"PUB svc %b 0\r\n\r\n" % reply)
    service.take()
    frozen_and_thawed(here, service, there, rights)
    service.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
    assert service.talk(b"PUB %b 0\r\n\r\n" % reply) == b""
    assert b"-ERR" in service.talk(b"PUB %b 0\r\n\r\n" % reply)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, -1])
def test_a_truncated_record_is_refused(size):
    data = records.encoded(a_record())
    with pytest.raises(RecordRefused, match=r"truncated|without a version"):
        records.decoded(data[:size])


def test_a_record_of_another_version_is_refused():
    data = records.encoded(a_record())
    with pytest.raises(RecordRefused, match="of version 7; this broker understands version 6"):
        records.decoded(b"\0\7" + data[2:])


def test_an_oversized_record_is_refused_unseen(monkeypatch):
    monkeypatch.setattr(records, "MOST_RECORD_BYTES", 50)
    with pytest.raises(RecordRefused, match="at most 50 are taken"):
        records.decoded(records.encoded(a_record(unsent=b"x" * 60)))


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_damaged_record_is_refused_or_read(noise, at):
    data = records.encoded(a_record(unread=b"PUB a 1", replies=(FrozenReply(b"r", 1, 2),)))
    try:
        frozen = records.decoded(data[:at] + noise + data[at + len(noise) :])
    except RecordRefused:
        return
    records.check(frozen)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 2}, "a record of version 2"),
        ({"cid": 9}, "a record of client 9, not of client 1"),
        ({"account": b"OTHER"}, "account"),
        ({"unsent": b"x" * 1001}, "1,001 bytes are unsent; max_pending is 1,000"),
        ({"subscriptions": (FrozenSubscription(b"1", b"a"), FrozenSubscription(b"1", b"b"))}, "different sids"),
        ({"subscriptions": (FrozenSubscription(b"1", b"a..b"),)}, "no subject"),
        ({"subscriptions": (FrozenSubscription(b"1", b"a", b"", 5, 5),)}, "had 5 messages of at most 5"),
        ({"unread": b"PUB", "half_read_bytes": 3}, "half read"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_and_nothing_changes(changes, why):
    engine = Engine(Limits(max_pending_bytes=1000))
    connection = engine.probe.connection(1, None)
    before = [getattr(connection, name) for name in COUNTERS]
    with pytest.raises(RecordRefused, match=why):
        thaw(connection, a_record(**changes))
    assert [getattr(connection, name) for name in COUNTERS] == before
    engine.assert_empty()
    thaw(connection, a_record())
    assert connection.subscriptions == 1


def test_a_connection_in_use_takes_no_record():
    engine = Engine()
    connection = engine.probe.connection(1, None)
    thaw(connection, a_record())
    with pytest.raises(RecordRefused, match="in use"):
        thaw(connection, a_record())


def test_who_has_not_logged_in_or_is_being_closed_is_not_written_down():
    engine = Engine(token="t")
    client = engine.client(b"")
    with pytest.raises(RecordRefused, match="not logged in"):
        freeze(client.connection)
    other = Engine().client()
    other.feed(b"NONSENSE\r\n", finish=False)
    with pytest.raises(RecordRefused, match="being closed"):
        freeze(other.connection)
    waiting = Engine().client().connection
    waiting.wait()
    with pytest.raises(RecordRefused, match="link between shards is missing"):
        freeze(waiting)


def test_whose_subscriptions_are_being_ended_is_not_written_down():
    client = Engine().client()
    client.feed(b"SUB a 1\r\n")
    client.connection.end_subscriptions()
    with pytest.raises(RecordRefused, match="are being ended"):
        freeze(client.connection)
    client.connection.end_some(1)
    assert not freeze(client.connection).subscriptions


def test_who_waits_for_siblings_is_not_written_down():
    mesh = Mesh(2, clients_each=0, connect=QUIET)
    client = mesh.connect(0)
    client.feed(b"SUB a q 1\r\nPING\r\n")
    with pytest.raises(RecordRefused, match="its PONG is due"):
        freeze(client.connection)
    mesh.settle()
    assert freeze(client.connection).subscriptions
    client.feed(b"UNSUB 1\r\n")
    with pytest.raises(RecordRefused, match="a queue subscription that it has ended lingers"):
        freeze(client.connection)
    mesh.settle()
    assert not freeze(client.connection).subscriptions
    mesh.close()


def test_what_its_connect_asked_for_holds_on():
    here, there = Engine(), Engine()
    client = here.client(b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\n')
    client.feed(b"SUB a 7\r\n")
    frozen_and_thawed(here, client, there)
    client.feed(b"PUB a 1\r\nx\r\n")
    assert client.messages() == []
    assert not client.connection.echoes


def test_input_that_was_read_is_carried_out_at_once():
    here, there = Engine(), Engine()
    client, listener = here.client(), there.client()
    listener.feed(b"SUB a 1\r\n")
    frozen = freeze(client.connection)
    frozen = msgspec.structs.replace(frozen, unread=b"PUB a 1\r\nx\r\n")
    after = there.probe.connection(frozen.cid, client.session)
    client.session.connection = after
    here.probe.let_go(client.socket)
    thaw(after, frozen)
    there.probe.take_in(client.socket, after)
    client.engine = there
    there.probe.finish()
    assert listener.messages() == [(b"1", b"x")]
