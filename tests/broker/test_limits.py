"""Limits: their defaults are the protocol's, and each is enforced exactly at its edge."""

from __future__ import annotations

import msgspec
import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.limits import Limits
from tests.support.engine import WITH_HEADERS, Engine, frames

CHUNK = 65_536


def test_defaults_are_nats_servers():
    limits = Limits()
    assert limits.max_payload_bytes == 1_048_576
    assert limits.max_control_line_bytes == 4096
    assert limits.max_connections == 65_536
    assert limits.max_subscriptions == 0
    assert limits.max_pending_bytes == 67_108_864
    assert (limits.write_deadline_s, limits.auth_timeout_s) == (10.0, 2.0)
    assert (limits.ping_interval_s, limits.ping_max) == (120.0, 2)
    assert (limits.lame_duck_grace_s, limits.lame_duck_duration_s) == (10.0, 120.0)


def test_limits_are_frozen_and_know_their_keys():
    with pytest.raises(AttributeError):
        Limits().max_payload_bytes = 1  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"max_paylod_bytes": 1}, Limits)


@pytest.mark.parametrize("max_payload", [0, 1, 100, 40_000])
def test_a_payload_of_exactly_the_maximum_passes_and_one_byte_more_closes(max_payload):
    engine = Engine(Limits(max_payload_bytes=max_payload))
    client, listener = engine.clients(2)
    listener.feed(b"SUB a 1\r\n")
    assert client.talk(b"PUB a %d\r\n%s\r\n" % (max_payload, b"x" * max_payload)) == b""
    assert len(listener.messages()) == 1
    # Answered at the line, before the payload is there.
    assert client.talk(b"PUB a %d\r\n" % (max_payload + 1)) == b"-ERR 'Maximum Payload Violation'\r\n"
    assert client.reason == CloseReason.MAXIMUM_PAYLOAD_EXCEEDED


def test_headers_count_for_the_payload():
    engine = Engine(Limits(max_payload_bytes=20))
    client = engine.client(WITH_HEADERS)
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert client.talk(b"HPUB a 18 20\r\n%sxy\r\n" % header) == b""
    assert client.talk(b"HPUB a 18 21\r\n%sxyz\r\n" % header) == b"-ERR 'Maximum Payload Violation'\r\n"


@pytest.mark.parametrize("max_line", [20, 4096, 100_000])
def test_a_line_of_exactly_the_maximum_passes_and_one_byte_more_closes(max_line):
    engine = Engine(Limits(max_control_line_bytes=max_line, max_payload_bytes=10))
    client = engine.client(b"")
    assert client.talk(b"SUB " + b"a" * (min(max_line, 60_000) - 2) + b" 1\r\n") == b"+OK\r\n"
    assert client.talk(b"UNSUB " + b"s" * max_line + b"\r\n") == b"+OK\r\n"
    assert client.talk(b"UNSUB " + b"s" * (max_line + 1)) == b"-ERR 'maximum control line exceeded'\r\n"
    assert client.is_over


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"SUB " + b"a" * 65_001 + b" 1\r\n", b"-ERR 'Invalid Subject'\r\n"),
        (b"SUB a " + b"s" * 65_001 + b"\r\n", b""),
        (b"SUB a " + b"q" * 65_001 + b" 1\r\n", b""),
    ],
    ids=["subject", "sid", "queue"],
)
def test_what_does_not_fit_a_key_is_refused_whatever_the_line_limit(said, answer):
    client = Engine(Limits(max_control_line_bytes=131_072)).client()
    assert client.talk(said) == answer
    assert client.connection.subscriptions == 0


def test_a_publish_to_a_subject_longer_than_any_subscription_goes_to_wildcards():
    client = Engine(Limits(max_control_line_bytes=131_072)).client()
    subject = b"a." + b"x" * 70_000
    said = client.talk(b"SUB a.> 1\r\nPUB %s 2\r\nhi\r\n" % subject)
    assert said == b"MSG %s 1 2\r\nhi\r\n" % subject


def test_limits_may_change_while_a_client_is_there():
    engine = Engine()
    client = engine.client()
    client.connection.set_limits(Limits(max_payload_bytes=5))
    assert client.talk(b"PUB a 6\r\n") == b"-ERR 'Maximum Payload Violation'\r\n"


def test_a_smaller_max_payload_holds_for_a_publish_that_repeats_the_last_one():
    client = Engine().client()
    client.feed(b"SUB a 1\r\n" + b"PUB a 6\r\nbefore\r\n" * 2)
    client.connection.set_limits(Limits(max_payload_bytes=5))
    assert client.talk(b"PUB a 6\r\nbehind\r\n") == b"-ERR 'Maximum Payload Violation'\r\n"


# ---- what waits to be sent


def slow_reader(max_pending: int):
    """A reader whose kernel takes nothing, and a publisher."""
    engine = Engine(Limits(max_pending_bytes=max_pending))
    reader, publisher = engine.clients(2)
    reader.feed(b"SUB a 1\r\n")
    engine.probe.set_takes(reader.socket, 0)
    engine.probe.set_clock(engine.probe.now_us + 1_000_000)  # it took something long ago: nobody waits for it
    return engine, reader, publisher


def test_a_reader_over_max_pending_is_a_slow_consumer_and_closed_without_a_word():
    engine, reader, publisher = slow_reader(1_000_000)
    message = b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n"
    while not reader.is_over:
        assert engine.probe.memory["bytes_in_chunks"] <= 1_000_000 + 2 * CHUNK
        publisher.feed(message)
    assert reader.reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES
    assert reader.take() == b""
    assert publisher.talk(b"PING\r\n") == b"PONG\r\n"
    publisher.close()
    engine.assert_empty()


def test_a_reader_just_under_max_pending_loses_nothing():
    engine, reader, publisher = slow_reader(1_000_000)
    message = b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n"
    publisher.feed(message * 900)
    assert not reader.is_over
    engine.probe.set_takes(reader.socket, -1)
    assert len(frames(reader.take())) == 900
    assert engine.probe.memory["bytes_in_chunks"] == 0


def test_big_payloads_count_for_max_pending_too():
    _engine, reader, publisher = slow_reader(1_000_000)
    message = b"PUB a 100000\r\n" + b"x" * 100_000 + b"\r\n"
    sent = 0
    while not reader.is_over:
        publisher.feed(message, [50_000] * 10)
        sent += 100_000
    assert 900_000 <= sent <= 1_100_000
    assert reader.reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES


def test_who_feeds_a_reader_that_is_behind_and_taking_waits_and_then_goes_on():
    """A client may write far more to its own subscription than max_pending, as long as it reads."""
    engine = Engine(Limits(max_pending_bytes=1_000_000))
    reader, publisher = engine.clients(2)
    reader.feed(b"SUB a 1\r\n")
    engine.probe.set_takes(reader.socket, 1000)
    message = b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n"
    publisher.feed(message * 5000, [100_000] * 100)
    assert publisher.socket.is_held and not reader.is_over
    assert reader.socket.pending < 1_000_000
    rounds = 0
    while publisher.socket.is_held:
        engine.probe.set_takes(reader.socket, 600_000)  # it reads on
        engine.probe.release_stalls()
        rounds += 1
    engine.probe.set_takes(reader.socket, -1)
    assert 5 < rounds < 50
    assert len(frames(reader.take())) == 5000 and not reader.is_over


def test_what_comes_in_one_read_behind_a_big_message_waits_with_its_client():
    engine = Engine(Limits(max_pending_bytes=1_000_000))
    reader, publisher = engine.clients(2)
    reader.feed(b"SUB a 1\r\n")
    engine.probe.set_takes(reader.socket, 1000)
    message = b"PUB a 400000\r\n" + b"x" * 400_000 + b"\r\n"
    publisher.feed(message * 2, [50_000] * 20)
    publisher.take()
    publisher.feed(b"PUB a 100000\r\n" + b"x" * 100_000 + b"\r\nPING\r\n", [50_000])
    assert publisher.socket.is_held and not reader.is_over
    assert publisher.take() == b""
    engine.probe.set_takes(reader.socket, -1)
    engine.probe.release_stalls()
    assert publisher.take() == b"PONG\r\n"


def test_a_reader_is_no_longer_behind_once_half_of_its_mark_is_taken():
    engine = Engine(Limits(max_pending_bytes=1_000_000))
    reader, publisher = engine.clients(2)
    reader.feed(b"SUB a 1\r\n")
    engine.probe.set_takes(reader.socket, 1000)
    publisher.feed((b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n") * 900, [100_000] * 100)
    assert publisher.socket.is_held
    engine.probe.set_takes(reader.socket, 100)
    assert not engine.probe.release_stalls()
    engine.probe.set_takes(reader.socket, -1)
    assert engine.probe.release_stalls()
    assert not publisher.socket.is_held
