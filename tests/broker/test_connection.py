"""One client's operations: answers and their order, errors, what is kept between reads, what is let go at the end."""

from __future__ import annotations

import pytest

from gnatswarm.broker.errors import (
    BadArguments,
    CloseReason,
    ControlLineTooLong,
    InvalidPublishSubject,
    InvalidSubject,
    MaximumPayloadViolation,
    MaximumSubscriptionsExceeded,
    PeerSaidError,
    StaleConnection,
    UnknownProtocolOperation,
)
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.rules import StreamImport
from tests.support import patterns
from tests.support.engine import NO_ECHO, NO_RESPONDERS, QUIET, WITH_HEADERS, Engine, frames

VERBOSE = b'CONNECT {"verbose":true,"pedantic":false}\r\n'
PEDANTIC = b'CONNECT {"verbose":false,"pedantic":true}\r\n'
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
BLOB = 32_768


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def client(engine):
    return engine.client()


# ---- answers and their order


def test_before_connect_a_client_is_verbose_and_pedantic(engine):
    client = engine.client(b"")
    assert client.talk(b"SUB a 1\r\n") == b"+OK\r\n"
    assert client.talk(b"PUB a.* 0\r\n\r\n") == b"-ERR 'Invalid Publish Subject'\r\n+OK\r\n"
    assert client.talk(QUIET + b"PUB a.* 0\r\n\r\n") == b""


def test_a_second_connect_holds_for_a_publish_that_repeats_the_last_one(client):
    line = b"PUB a 1\r\n1\r\n"
    assert client.talk(line * 3) == b""
    assert client.talk(VERBOSE + line * 2) == b"+OK\r\n" * 3


def test_a_verbose_client_hears_ok_before_what_the_operation_causes(engine):
    client = engine.client(VERBOSE)
    client.take()
    said = client.talk(b"SUB a 1\r\nSUB a q 2\r\nPUB a 2\r\nhi\r\nUNSUB 2\r\nPING\r\nPONG\r\n+OK\r\n")
    ok = b"+OK\r\n"
    assert said == ok + ok + ok + b"MSG a 1 2\r\nhi\r\nMSG a 2 2\r\nhi\r\n" + ok + b"PONG\r\n"


def test_a_pedantic_client_is_told_of_its_publish_subject_and_the_message_goes_out(engine):
    client = engine.client(PEDANTIC)
    listener = engine.client()
    listener.feed(b"SUB a.* 1\r\n")
    assert client.talk(b"PUB a.* 2\r\nhi\r\n") == b"-ERR 'Invalid Publish Subject'\r\n"
    assert listener.take() == b"MSG a.* 1 2\r\nhi\r\n"
    assert client.errors == [InvalidPublishSubject]
    assert client.talk(b"PUB a.* 2\r\nhi\r\n" * 2) == b"-ERR 'Invalid Publish Subject'\r\n" * 2
    assert client.talk(b"PUB a.b 2\r\nhi\r\n" * 2) == b""
    assert not client.is_over


def test_connect_twice_overlays_and_forgets_what_was_prepared_for_the_first(engine):
    client = engine.client(WITH_HEADERS)
    listener = engine.client(WITH_HEADERS)
    listener.feed(b"SUB a 1\r\n")
    line = b"HPUB a %d %d\r\n%shi\r\n" % (len(HEADER), len(HEADER) + 2, HEADER)
    client.feed(line * 2)
    assert len(frames(listener.take())) == 2
    assert client.talk(b'CONNECT {"headers":false}\r\n' + line) == b""
    assert client.is_over and client.errors == [BadArguments]


def test_echo_is_switched_by_a_second_connect_between_equal_publishes(client):
    line = b"PUB a 0\r\n\r\n"
    assert client.talk(b"SUB a 1\r\n" + line * 2).count(b"MSG") == 2
    assert client.talk(b'CONNECT {"verbose":false,"echo":false}\r\n' + line * 2) == b""


# ---- every piece of it may come alone

PROGRAM = (
    b"SUB a.* 1\r\nSUB a.b q 2\r\nPUB a.b 5\r\nhello\r\nPUB a.b reply 5\r\n\r\n\r\n\r\r\nPUB  a.b\t5 \n12345\r\n"
    + b"HPUB a.c %d %d\r\n%sxy\r\n" % (len(HEADER), len(HEADER) + 2, HEADER)
    + b"UNSUB 1 9\r\nPUB a.c 0\r\n\r\nPUB a.c 0\r\n\r\nPING\r\nSUB a..b 3\r\nUNSUB 2\r\nPUB a.b 1\r\nx\r\n"
    + b"PONG\r\nPING\r\n"
)
EXPECTED = (
    b"MSG a.b 1 5\r\nhello\r\nMSG a.b 2 5\r\nhello\r\n"
    + b"MSG a.b 1 reply 5\r\n\r\n\r\n\r\r\nMSG a.b 2 reply 5\r\n\r\n\r\n\r\r\n"
    + b"MSG a.b 1 5\r\n12345\r\nMSG a.b 2 5\r\n12345\r\n"
    + b"HMSG a.c 1 %d %d\r\n%sxy\r\n" % (len(HEADER), len(HEADER) + 2, HEADER)
    + b"MSG a.c 1 0\r\n\r\nMSG a.c 1 0\r\n\r\nPONG\r\n-ERR 'Invalid Subject'\r\nMSG a.b 1 1\r\nx\r\nPONG\r\n"
)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
def test_the_same_comes_out_however_the_bytes_come_in(engine, piece):
    client = engine.client(WITH_HEADERS)
    assert client.talk(PROGRAM, [piece] * len(PROGRAM)) == EXPECTED
    assert client.socket.kept == 0


def test_the_same_comes_out_wherever_it_is_cut_once(engine):
    for cut in range(1, len(PROGRAM)):
        client = engine.client(WITH_HEADERS)
        assert client.talk(PROGRAM, [cut]) == EXPECTED
        client.close()
    engine.assert_empty()


@pytest.mark.parametrize("size", [BLOB - 40, BLOB - 12, BLOB, BLOB + 1, 70_000, 300_000, 1_048_576])
@pytest.mark.parametrize("piece", [1460, 4096, 65_536, 2_000_000])
@pytest.mark.parametrize("receivers", [1, 3])
def test_big_payloads_arrive_whole(engine, size, piece, receivers):
    payload = bytes(range(256)) * (size // 256) + b"e" * (size % 256)
    publisher, *listeners = engine.clients(1 + receivers)
    for listener in listeners:
        listener.feed(b"SUB a.> 1\r\n")
    pieces = [piece] * (3 * size // piece + 3)
    publisher.feed(b"PUB a.b r %d\r\n%s\r\nPUB a.c 2\r\nhi\r\n" % (size, payload), pieces)
    for listener in listeners:
        first, second = frames(listener.take())
        assert (first.line, first.body) == (b"MSG a.b 1 r %d" % size, payload)
        assert (second.line, second.body) == (b"MSG a.c 1 2", b"hi")
    assert engine.probe.memory["bytes_in_chunks"] == 0


def test_a_big_payload_repeated_is_delivered_every_time(engine):
    publisher, first, second = engine.clients(3)
    first.feed(b"SUB a 1\r\n")
    second.feed(b"SUB a 1\r\n")
    payload = b"x" * 40_000
    line = b"PUB a 40000\r\n" + payload + b"\r\n"
    publisher.feed(line * 6, [40_000, 100_000, 17])  # whole in the read buffer, and in a blob
    for listener in (first, second):
        assert [frame.body for frame in frames(listener.take())] == [payload] * 6


def test_a_wrong_end_of_a_big_payload_is_seen_at_the_same_byte_however_it_comes_in(engine):
    """The real server notices it one byte earlier; a big payload is checked when it is complete."""
    said = b"PUB a 40000\r\n" + b"x" * 40_001
    for pieces in ([], [30_000], [1000] * 50):
        client = engine.client()
        assert client.talk(said, pieces) == b"" and not client.is_over
        assert client.talk(b"x") == b"-ERR 'Unknown Protocol Operation'\r\n" and client.is_over


def test_a_remembered_line_is_looked_up_again_once_its_answer_was_evicted(engine):
    """Without that, its match result would be read after it was freed; only the debug build certainly detects that."""
    publisher, listener, crowd = engine.client(), engine.client(), engine.client()
    listener.feed(b"SUB a 1\r\n")
    publisher.feed(b"PUB a 1\r\n1\r\n" * 2)
    for number in range(engine.probe.cached, 40_000):
        crowd.feed(b"PUB %s.%d 0\r\n\r\n" % (b"x" * 2000, number))
    before = engine.probe.builds
    publisher.feed(b"PUB a 1\r\n2\r\n" * 2)
    assert listener.messages() == [(b"1", b"1")] * 2 + [(b"1", b"2")] * 2
    assert engine.probe.builds - before <= 1


def test_a_big_operation_that_never_ends_holds_its_size_and_no_more(engine, client):
    client.feed(b"PUB a 1000000\r\n" + b"x" * 500_000, [10_000] * 100)
    assert client.socket.kept == 15 + 500_000
    assert engine.probe.memory["bytes_in_chunks"] == 15 + 1_000_000 + 2
    client.close()
    engine.assert_empty()


def test_nothing_is_kept_of_a_client_that_left_though_its_session_lives_on(engine, client):
    connection = client.connection
    client.feed(b"SUB a 1\r\nPUB a 100\r\nabc")
    assert client.socket.kept == 14
    client.close()
    assert client.socket.kept == 0
    assert connection.pending_bytes == 0
    engine.assert_empty()


# ---- errors


PROTOCOL_VIOLATION = CloseReason.PROTOCOL_VIOLATION
UNKNOWN = b"-ERR 'Unknown Protocol Operation'\r\n"
TOO_LONG = b"-ERR 'maximum control line exceeded'\r\n"
TOO_BIG = b"-ERR 'Maximum Payload Violation'\r\n"


@pytest.mark.parametrize(
    ("said", "answer", "error", "reason"),
    [
        (b"X", UNKNOWN, UnknownProtocolOperation, PROTOCOL_VIOLATION),
        (b"PUB a 2\r\nabc", UNKNOWN, UnknownProtocolOperation, PROTOCOL_VIOLATION),
        (b"PUB a 2\r\nab\rX", UNKNOWN, UnknownProtocolOperation, PROTOCOL_VIOLATION),
        (b"PUB a 40000\r\n" + b"x" * 40_001, UNKNOWN, UnknownProtocolOperation, PROTOCOL_VIOLATION),
        (b"SUB a\r\n", b"", BadArguments, PROTOCOL_VIOLATION),
        (b"PUB a b\r\n", b"", BadArguments, PROTOCOL_VIOLATION),
        (b"CONNECT {\r\n", b"", BadArguments, PROTOCOL_VIOLATION),
        (b"INFO x\r\n", b"", BadArguments, PROTOCOL_VIOLATION),
        (b"HPUB a 0 0\r\n\r\n", b"", BadArguments, PROTOCOL_VIOLATION),
        (b"-ERR 'x'\r\n", b"", PeerSaidError, CloseReason.PARSE_ERROR),
        (b"SUB " + b"a" * 5000, TOO_LONG, ControlLineTooLong, CloseReason.MAXIMUM_CONTROL_LINE_EXCEEDED),
        (b"PUB a 1048577\r\n", TOO_BIG, MaximumPayloadViolation, CloseReason.MAXIMUM_PAYLOAD_EXCEEDED),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, bytes) else None,
)
def test_an_error_that_closes_is_the_last_thing_said_and_done(engine, said, answer, error, reason):
    listener = engine.client()
    listener.feed(b"SUB a 1\r\n")
    client = engine.client()
    assert client.talk(b"PUB a 1\r\n1\r\n" + said + b"\r\nPUB a 1\r\n2\r\nPING\r\n") == answer
    assert client.errors == [error]
    assert client.is_over and client.reason == reason
    assert listener.messages() == [(b"1", b"1")]
    assert client.talk(b"PING\r\n") == b""


def test_nothing_is_sent_behind_the_last_word(engine):
    """Others may publish to a client between its error and the end of the round."""
    client, publisher = engine.clients(2)
    client.feed(b"SUB a 1\r\n")
    client.feed(b"PUB a 1\r\n1\r\nBOGUS\r\n", finish=False)
    publisher.feed(b"PUB a 1\r\n2\r\n", finish=False)
    engine.probe.finish()
    assert client.take() == b"MSG a 1 1\r\n1\r\n-ERR 'Unknown Protocol Operation'\r\n"
    assert client.is_over


@pytest.mark.parametrize("subject", [b".", b"a.", b".a", b"a..b", b">.a"])
def test_a_bad_subject_leaves_the_client_and_the_sid_free(client, subject):
    assert client.talk(b"SUB " + subject + b" 1\r\n") == b"-ERR 'Invalid Subject'\r\n"
    assert client.errors == [InvalidSubject]
    assert client.talk(b"SUB a 1\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"


def test_an_error_from_outside_the_stream_is_said_and_closes(engine, client):
    client.connection.end(StaleConnection())
    engine.probe.finish()
    assert client.take() == b"-ERR 'Stale Connection'\r\n"
    assert client.is_over and client.reason == CloseReason.STALE_CONNECTION


# ---- log-in

GOOD = b'CONNECT {"verbose":false,"auth_token":"s3cret"}\r\n'
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.parametrize(
    "first", [b"PING\r\n", b"PUB a 0\r\n\r\n", b"SUB a 1\r\n", b"P", b"\r\n", b"INFO {}\r\n", b"X"]
)
def test_anything_but_connect_first_is_a_violation(first):
    client = Engine(token="s3cret").client(b"")
    assert client.talk(first + GOOD) == VIOLATION
    assert client.is_over and client.reason == CloseReason.AUTHENTICATION_FAILURE


def test_the_right_token_opens_the_rest():
    client = Engine(token="s3cret").client(b"")
    assert client.talk(GOOD + b"PING\r\n", [1] * 200) == b"PONG\r\n"
    assert not client.connection.must_authenticate


@pytest.mark.parametrize("connect", [b"CONNECT {}\r\n", b'CONNECT {"auth_token":"wrong"}\r\nPING\r\n'])
def test_the_wrong_token_closes(connect):
    client = Engine(token="s3cret").client(b"")
    assert client.talk(connect) == VIOLATION
    assert client.is_over


def test_headers_that_are_not_offered_are_not_taken():
    client = Engine(offers_headers=False).client(WITH_HEADERS)
    assert client.talk(b"HPUB a 0 0\r\n\r\n") == b""
    assert client.is_over and client.errors == [BadArguments]


# ---- subscriptions


def test_a_sid_in_use_keeps_its_first_subject(client):
    assert client.talk(b"SUB a 1\r\nSUB b 1\r\nPUB b 0\r\n\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"
    assert client.connection.subscriptions == 1


@pytest.mark.parametrize(
    ("unsub", "more"), [(b"UNSUB 1", 0), (b"UNSUB 1 0", 0), (b"UNSUB 1 2", 0), (b"UNSUB 1 3", 1), (b"UNSUB 1 5", 3)]
)
def test_unsub_counts_from_the_sub(client, unsub, more):
    publish = b"PUB a 0\r\n\r\n"
    client.feed(b"SUB a 1\r\n" + publish * 2)
    assert client.talk(unsub + b"\r\n" + publish * 10).count(b"MSG") == more
    assert client.connection.subscriptions == 0
    assert client.talk(b"SUB b 1\r\nPUB b 0\r\n\r\n").count(b"MSG") == 1  # the sid is free again


def test_max_reached_by_one_message_for_many_subscriptions_ends_them_all(engine):
    client, publisher = engine.clients(2)
    client.feed(b"".join(b"SUB a %d\r\nUNSUB %d 2\r\n" % (i, i) for i in range(100)))
    publisher.feed(b"PUB a 0\r\n\r\n" * 3)
    assert len(client.messages()) == 200
    assert client.connection.subscriptions == 0
    assert engine.probe.memory["subscriptions"] == 0


def test_max_subscriptions_is_the_clients_own_and_stays_open():
    engine = Engine(Limits(max_subscriptions=2))
    client, other = engine.clients(2)
    assert client.talk(b"SUB a 1\r\nSUB a 2\r\nSUB a 3\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert client.errors == [MaximumSubscriptionsExceeded]
    assert other.talk(b"SUB a 1\r\n") == b""
    assert client.talk(b"UNSUB 1\r\nSUB a 3\r\n") == b""


def test_a_client_that_leaves_in_slices_gets_nothing_more_and_leaves_nothing(engine):
    client, publisher = engine.clients(2)
    client.feed(b"".join(b"SUB a %d\r\n" % i for i in range(1000)))
    connection = client.connection
    assert not connection.leave(1)
    publisher.feed(b"PUB a 0\r\n\r\n")
    assert client.take() == b""
    assert engine.probe.leave_in_slices(client.socket, 100) == 10
    publisher.close()
    engine.assert_empty()


# ---- no responders


def test_a_request_that_nobody_takes_is_answered_on_its_reply_subject(engine):
    client = engine.client(NO_RESPONDERS)
    status = b"NATS/1.0 503\r\n\r\n"
    said = client.talk(b"SUB r.* 7\r\nPUB nobody r.1 2\r\nhi\r\nPUB nobody r.2 2\r\nhi\r\nPING\r\n")
    assert said == b"HMSG r.1 7 16 16\r\n%s\r\nHMSG r.2 7 16 16\r\n%s\r\nPONG\r\n" % (status, status)


@pytest.mark.parametrize(
    ("connect", "subscription", "publish"),
    [
        (WITH_HEADERS, b"SUB r 1", b"PUB nobody r 0"),  # did not ask for it
        (NO_RESPONDERS, b"SUB r 1", b"PUB nobody 0"),  # no reply subject
        (NO_RESPONDERS, b"SUB other 1", b"PUB nobody r 0"),  # not subscribed to it
        (NO_RESPONDERS, b"SUB r q 1", b"PUB nobody r 0"),  # as a queue member only
        (NO_RESPONDERS, b"SUB > 1", b"PUB x nobody 0"),  # somebody took it: itself
    ],
)
def test_no_answer_where_there_is_none_to_give(engine, connect, subscription, publish):
    client = engine.client(connect)
    assert b"503" not in client.talk(subscription + b"\r\n" + publish + b"\r\n\r\n")


def test_a_responder_at_a_sibling_is_a_responder(engine):
    client = engine.client(NO_RESPONDERS)
    engine.probe.link(3)
    engine.probe.set_remote(3, b"service")
    assert client.talk(b"SUB r 1\r\nPUB service r 0\r\n\r\n") == b""
    engine.probe.unlink(3)
    assert b"503" in client.talk(b"PUB service r 0\r\n\r\n")


# ---- pings and INFO


def test_a_ping_of_ours_is_answered_and_timed(engine, client):
    connection = client.connection
    engine.probe.set_clock(5_000_000)
    connection.ping()
    engine.probe.finish()
    assert client.take() == b"PING\r\n"
    assert connection.pings_out == 1
    engine.probe.set_clock(5_000_750)
    client.feed(b"PONG\r\n")
    assert (connection.pings_out, connection.rtt_us, connection.active_us) == (0, 750, 5_000_750)
    engine.probe.set_clock(9_000_000)
    client.feed(b"PONG\r\n")  # nobody asked
    assert connection.rtt_us == 750


def test_an_unasked_info_waits_for_the_first_pong_and_goes_only_to_those_who_know_it(engine):
    old, new = engine.client(), engine.client(b'CONNECT {"verbose":false,"protocol":1}\r\n')
    for client in (old, new):
        client.connection.send_info(b"INFO {1} \r\n")
        client.connection.send_info(b"INFO {2} \r\n")
    assert (old.talk(b"PING\r\n"), new.talk(b"PING\r\n")) == (b"PONG\r\n", b"PONG\r\nINFO {2} \r\n")
    new.connection.send_info(b"INFO {3} \r\n")
    assert new.talk(b"PING\r\n") == b"INFO {3} \r\nPONG\r\n"


# ---- counters


def test_counters_of_a_client_are_payload_and_header_bytes(engine):
    publisher, listener = engine.clients(2, WITH_HEADERS)
    listener.feed(b"SUB a 1\r\nSUB a 2\r\n")
    publisher.feed(b"PUB a 5\r\nhello\r\n" * 3 + b"HPUB a 18 20\r\n%shi\r\n" % HEADER)
    assert (publisher.connection.in_msgs, publisher.connection.in_bytes) == (4, 35)
    assert (listener.connection.out_msgs, listener.connection.out_bytes) == (8, 70)
    fanout = engine.probe.fanout
    assert (fanout.in_msgs, fanout.in_bytes, fanout.out_msgs, fanout.out_bytes) == (4, 35, 8, 70)


# ---- turns


def test_others_have_their_turn_while_subjects_meet_many_patterns_that_do_not_match(client):
    client.feed(patterns.subscriptions())
    client.feed(patterns.publishes(300) + b"PING\r\n")
    assert client.take() == b"PONG\r\n"
    assert client.connection.in_msgs == 300
    assert client.session.turns >= 300 * patterns.STEPS // 100_000


@pytest.mark.parametrize("queue", [b"", b" q%d"], ids=["plain", "groups"])
@pytest.mark.parametrize("subject", [b"a", b"a.%d"], ids=["runs", "subjects"])
def test_others_have_their_turn_while_messages_go_to_many(engine, queue, subject):
    subscriber, publisher = engine.client(), engine.client()
    subscriber.feed(b"".join(b"SUB >%b %d\r\n" % (queue and queue % sid, sid) for sid in range(1000)))
    publisher.feed(b"".join(b"PUB %b 0\r\n\r\n" % (subject % n if b"%" in subject else subject) for n in range(500)))
    assert publisher.connection.in_msgs == 500
    assert subscriber.take().count(b"MSG ") == 500_000
    assert publisher.session.turns >= 500_000 // 200_000


def test_others_have_their_turn_while_requests_find_nobody_and_many_listen_to_the_reply(engine):
    others, asker = engine.client(), engine.client(NO_RESPONDERS)
    others.feed(b"".join(b"SUB inbox %d\r\n" % sid for sid in range(2000)))
    asker.feed(b"SUB inbox 9\r\n" + b"PUB nobody inbox 0\r\n\r\n" * 300)
    assert asker.take().count(b"503") == 300
    assert asker.session.turns >= 300 * 2000 // 100_000


class Importing:
    """A client whose account imports streams of these subjects; `exporter` is the account that they are of."""

    def __init__(self, subjects: list[bytes]) -> None:
        engine = Engine(shard=0)
        mesh = engine.probe.mesh
        assert mesh is not None
        self.exporter, importer = mesh.account(b"E"), mesh.account(b"I")
        importer.streams = [StreamImport(self.exporter, subject, subject) for subject in subjects]
        self.client = engine.client()
        self.client.connection.enter(importer, None)


def test_a_subscription_is_compared_with_few_of_many_imported_streams():
    importing = Importing([b"s.%d.*" % n for n in range(2000)])
    client = importing.client
    client.feed(b"".join(b"SUB s.%d.x %d\r\n" % (sid, sid) for sid in range(400)) + b"PING\r\n")
    assert client.take() == b"PONG\r\n" and client.session.turns == 0
    assert importing.exporter.n_subs == 400


def test_others_have_their_turn_while_subscriptions_to_many_imported_streams_begin_and_end():
    importing = Importing([b"s.%d" % n for n in range(2000)])
    exporter, client = importing.exporter, importing.client
    client.feed(b"".join(b"SUB > %d\r\n" % sid for sid in range(10)))
    assert exporter.n_subs == 20_000
    begun, client.session.turns = client.session.turns, 0
    client.feed(b"".join(b"UNSUB %d\r\n" % sid for sid in range(10)))
    assert exporter.n_subs == 0
    assert begun >= 10 and client.session.turns >= 5


def test_others_have_their_turn_while_subscriptions_that_meet_none_of_many_imported_streams_are_compared_with_all():
    """1,500 streams and 3,000 such subscriptions in one write took 3.5 s, and the router ended the shard as hung."""
    importing = Importing([b"s.%d" % n for n in range(2000)])
    client = importing.client
    client.feed(b"".join(b"SUB *.x%b %d\r\n" % (b" q" if sid % 2 else b"", sid) for sid in range(100)))
    begun, client.session.turns = client.session.turns, 0
    assert begun >= 50 and importing.exporter.n_subs == 0
    client.feed(b"".join(b"UNSUB %d\r\n" % sid for sid in range(100)))
    assert client.connection.subscriptions == client.session.turns == 0


def test_who_subscribes_to_many_imported_streams_is_let_go_in_turns():
    importing = Importing([b"s.%d" % n for n in range(2000)])
    client = importing.client
    client.feed(b"".join(b"SUB > %d\r\n" % sid for sid in range(10)))
    turns = 1
    while not client.connection.leave(1000):
        turns += 1
    assert turns >= 5 and importing.exporter.n_subs == 0


def test_others_have_their_turn_while_subjects_meet_many_subscriptions_that_get_nothing(engine):
    client = engine.client(NO_ECHO)
    client.feed(b"".join(b"SUB > %d\r\n" % sid for sid in range(2000)))
    client.feed(patterns.publishes(300) + b"PING\r\n")
    assert client.take() == b"PONG\r\n"
    assert client.session.turns >= 300 * 2000 // 100_000
