"""Publish limits: what a user's clients publish never exceeds burst and rate but by one message, and is not lost."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.allowance import Allowance
from gnatswarm.broker.errors import PublishRateExceeded
from gnatswarm.broker.freezer import freeze, thaw
from tests.support.engine import QUIET, WITH_HEADERS, Engine, EngineClient

BEGIN_US = 1_000_000_000
SLICE_BYTES, LEAST_MESSAGE = 16_384, 9
MESSAGE = b"PUB a 4\r\nabcd\r\n"


def allowance(messages: int = 0, size: int = 0, burst_s: float = 1.0, stall_s: float = 0.0) -> Allowance:
    words = (ctypes.c_uint64 * 2)()
    at = ctypes.addressof(words)
    buckets = [(at, messages, burst_s, False), (at + 8, size, burst_s, True)]
    return Allowance([one for one in buckets if one[1]], words, stall_s=stall_s)


@given(
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 40)), max_size=60),
    st.sampled_from([1, 7, 1000, 100_000]),
    st.sampled_from([0.01, 0.5, 2.0]),
)
def test_no_time_is_too_short_to_be_limited(steps: list[tuple[int, int]], rate: int, burst_s: float):
    """Several shards take what is allowed; in any stretch of time it is a burst, the rate, and one message more."""
    limits = allowance(rate, burst_s=burst_s)
    now, taken = BEGIN_US, [(BEGIN_US, 0)]
    for wait_us, wanted in steps:
        now += wait_us
        room, left_us = limits.look(now)
        assert (room == 0) == (left_us > 0)
        while wanted and room:
            n = min(wanted, max(room // LEAST_MESSAGE, 1))
            limits.publish(n, 0, now)
            taken.append((now, n))
            wanted -= n
            room, left_us = limits.look(now)
        if not room:
            assert limits.look(now + left_us)[0] and not limits.look(now + left_us - 2)[0]
    for i, (since, _n) in enumerate(taken):
        for j, (until, _m) in enumerate(taken[i:], i):
            sent = sum(n for _at, n in taken[i : j + 1])
            assert sent <= rate * (burst_s + (until - since) / 1e6) + 1 + 1e-6 * sent
    assert all(before <= after for (before, _), (after, _n) in pairwise(taken))


def test_what_is_not_used_is_not_saved_up_and_bytes_count_too():
    limits = allowance(size=1000, burst_s=0.5)
    assert limits.look(BEGIN_US) == (500, 0)
    limits.publish(1, 2000, BEGIN_US)
    assert limits.look(BEGIN_US) == (0, 1_500_001)
    assert limits.look(BEGIN_US + 1_600_000)[0] == 100
    assert limits.look(BEGIN_US + 100_000_000)[0] == 500
    assert allowance(1 << 30).look(BEGIN_US)[0] == SLICE_BYTES
    for bad in [(0, 0, 1.0, False)], [(0, 1, 0.0, False)], [(0, 1, 1.0, False)] * 5:
        with pytest.raises(ValueError, match=r"a rate of|at most 4"):
            Allowance(bad, None)


def limited(engine: Engine, limits: Allowance) -> tuple[EngineClient, EngineClient]:
    publisher, subscriber = engine.client(QUIET), engine.client(QUIET)
    subscriber.talk(b"SUB > 1\r\n")
    engine.probe.set_clock(BEGIN_US)
    publisher.connection.allow(limits)
    return publisher, subscriber


@pytest.mark.parametrize("piece", [1, 13, 100_000])
def test_a_client_over_its_limit_waits_and_loses_nothing(piece: int):
    engine = Engine()
    publisher, subscriber = limited(engine, allowance(10, burst_s=0.5))
    data = MESSAGE * 3 + b"PUB b 1\r\nx\r\n" + MESSAGE * 8 + b"PING\r\n"
    publisher.feed(data, [piece] * (len(data) // piece))
    assert len(subscriber.messages()) == 5 and publisher.socket.is_held
    assert publisher.session.waits_us == [1] and publisher.connection.publish_waits == 1
    got, now = 5, BEGIN_US
    while publisher.socket.is_held:
        now += 250_000
        engine.probe.set_clock(now)
        publisher.connection.publish_again()
        engine.probe.finish()
        new = len(subscriber.messages())
        assert new <= 3
        got += new
    assert got == 12 and publisher.take().endswith(b"PONG\r\n") and not publisher.errors


def go_on(engine: Engine, publisher: EngineClient, now_us: int, more: bytes = b"") -> None:
    """The clock has this time, and whoever waits looks again."""
    engine.probe.set_clock(now_us)
    publisher.connection.publish_again()
    engine.probe.finish()
    publisher.feed(more)


def test_a_wait_without_a_break_ends_with_an_error():
    engine = Engine()
    publisher, subscriber = limited(engine, allowance(10, burst_s=0.1, stall_s=2.0))
    for ms in range(0, 2000, 250):
        go_on(engine, publisher, BEGIN_US + ms * 1000, MESSAGE * 100)
        assert publisher.socket.is_held and not publisher.errors
    go_on(engine, publisher, BEGIN_US + 2_000_000)
    assert publisher.errors == [PublishRateExceeded] and publisher.is_over
    assert publisher.take().endswith(b"-ERR 'Publish Rate Exceeded'\r\n")
    assert 0 < len(subscriber.messages()) <= 1 + 20 + 1


def test_under_other_limits_the_wait_begins_again():
    engine = Engine()
    publisher, _subscriber = limited(engine, allowance(10, burst_s=0.1, stall_s=2.0))
    for ms in range(0, 3500, 250):
        if ms == 1500:
            assert publisher.connection.allow(allowance(10, burst_s=0.1, stall_s=2.0))
        go_on(engine, publisher, BEGIN_US + ms * 1000, MESSAGE * 100)
        assert publisher.socket.is_held and not publisher.errors
    go_on(engine, publisher, BEGIN_US + 3_500_000)
    assert publisher.errors == [PublishRateExceeded]


def test_after_a_break_the_wait_begins_again():
    engine = Engine()
    publisher, subscriber = limited(engine, allowance(10, burst_s=0.1, stall_s=2.0))
    for begin_us in (BEGIN_US, BEGIN_US + 4_000_000):
        go_on(engine, publisher, begin_us, MESSAGE * 3)
        for ms in (500, 1000, 1500):
            go_on(engine, publisher, begin_us + ms * 1000)
        assert not publisher.socket.is_held and not publisher.errors
    assert len(subscriber.messages()) == 6


def test_a_big_message_is_taken_as_a_whole_and_paid_for_later():
    engine = Engine()
    publisher, subscriber = limited(engine, allowance(size=10_000, burst_s=0.1))
    big = b"PUB a 100000\r\n" + bytes(100_000) + b"\r\n"
    publisher.feed(big + MESSAGE, [70_000, 100])
    assert [len(payload) for _sid, payload in subscriber.messages()] == [100_000]
    assert publisher.socket.is_held and publisher.session.waits_us == [9_900_001]


def test_clients_of_one_user_share_what_is_allowed_and_a_reload_lifts_it():
    engine = Engine()
    limits = allowance(4, burst_s=1.0)
    publisher, subscriber = limited(engine, limits)
    second = engine.client(WITH_HEADERS)
    second.connection.allow(limits)
    publisher.feed(MESSAGE * 3)
    second.feed(MESSAGE * 3)
    assert len(subscriber.messages()) == 4 and not publisher.socket.is_held and second.socket.is_held
    second.connection.allow(None)
    second.connection.publish_again()
    engine.probe.finish()
    second.feed(MESSAGE * 100)
    assert len(subscriber.messages()) == 102 and not second.socket.is_held


def test_a_client_that_moves_goes_on_waiting():
    engine = Engine()
    publisher, subscriber = limited(engine, allowance(1, stall_s=3.0))
    publisher.feed(MESSAGE * 3)
    frozen = freeze(publisher.connection)
    assert (frozen.publish_waits, frozen.limited_us, frozen.unread) == (1, BEGIN_US, MESSAGE * 2)
    after = engine.probe.connection(frozen.cid, publisher.session)
    after.enter(engine.probe.sublist, None)
    thaw(after, frozen)
    assert (after.publish_waits, freeze(after).limited_us) == (1, BEGIN_US)
    assert len(subscriber.messages()) == 1
