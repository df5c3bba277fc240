"""What is kept of closed connections is bounded by memory, whatever they have said."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import msgspec
import pytest_asyncio

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Options
from gnatswarm.shards.boundary.rows import ConnectionRow
from gnatswarm.shards.clients.closed import (
    LEAST_BYTES,
    MEAN_ROW_BYTES,
    MOST_SLOW,
    SUBSCRIPTIONS_TEXT,
    Closed,
    busiest_and_some,
    unpacked,
)
from tests.support.one_shard import OneShard
from tests.support.turns import until

MOST = 200
# A wide character makes Python keep four bytes for each.
LONG = "n" * 3500 + "\N{BEETLE}"


@pytest_asyncio.fixture
async def house() -> AsyncIterator[OneShard]:
    one = OneShard(Options(limits=Limits(max_closed_clients=MOST)))
    yield one
    one.close()


async def come_and_go(house: OneShard, said: str, subjects: list[str]) -> None:
    client = house.connect()
    words = "".join(f"SUB {subject} {sid}\r\n" for sid, subject in enumerate(subjects))
    await client.talk(f'CONNECT {{"verbose":false,"name":"{said}"}}\r\n{words}PING\r\n'.encode())
    client.close()
    await until(lambda: not house.shard.clients.open)


def taken_by(row: ConnectionRow) -> int:
    own = [field for field in msgspec.structs.astuple(row) if field and field not in range(257)]
    return sys.getsizeof(row) + sum(map(sys.getsizeof, own))


async def test_rows_that_take_much_memory_are_fewer(house: OneShard) -> None:
    latest = house.shard.clients.closed.latest
    for n in range(MOST):
        await come_and_go(house, f"{n} {LONG}", [])
    assert LEAST_BYTES - 20_000 < latest.bytes <= LEAST_BYTES
    assert [row.name for row in latest] == [f"{n} {LONG}" for n in range(MOST - len(latest), MOST)]
    assert sum(map(taken_by, latest)) <= latest.bytes


async def test_ordinary_rows_are_as_many_as_may_be(house: OneShard) -> None:
    closed = house.shard.clients.closed
    subjects = [f"orders.europe.{n}.created" for n in range(20)]
    await come_and_go(house, "billing", subjects)
    size = closed.latest.bytes
    assert taken_by(closed.latest.newest) <= size <= MEAN_ROW_BYTES
    shown = unpacked(closed.latest.newest)
    assert (shown.subscriptions, sorted(sub.subject for sub in shown.subs)) == (20, sorted(subjects))
    assert {sub.cid for sub in shown.subs} == {1} and shown.packed_subs == b""


async def test_of_long_subscriptions_some_are_kept_and_the_short_ones_between_them(house: OneShard) -> None:
    long = ["s" * 3000 + str(n) for n in range(10)]
    short = [f"s.{n}" for n in range(10)]
    await come_and_go(house, "", [subject for pair in zip(long, short, strict=True) for subject in pair])
    shown = unpacked(house.shard.clients.closed.latest.newest)
    kept = {sub.subject for sub in shown.subs}
    assert shown.subscriptions == 20
    assert kept > set(short) and len(kept & set(long)) == 2
    assert sum(len(sub.subject) + len(sub.sid) for sub in shown.subs) <= SUBSCRIPTIONS_TEXT


async def test_a_slow_consumer_is_kept_with_the_subscription_that_is_to_blame(house: OneShard) -> None:
    client = house.connect()
    quiet = "".join(f"SUB quiet.{sid} {sid}\r\n" for sid in range(1000))
    await client.talk(f'CONNECT {{"verbose":false}}\r\n{quiet}SUB busy b\r\nPUB busy 0\r\n\r\nPING\r\n'.encode())
    (session,) = house.shard.clients.open.values()
    for most_text, first in ((100, "busy"), (4, None)):
        found = busiest_and_some(session.connection, 64, most_text)
        assert (found[0][0] if found else None) == first
        assert sum(len(text) for fields in found for text in fields[:3]) <= most_text
    found = busiest_and_some(session.connection, 4096, 100_000)
    assert found[0] == ("busy", "", "b", 1, 0)
    assert len(found) == len({fields[2] for fields in found}) == 1001


def test_more_memory_is_for_more_rows() -> None:
    closed = Closed(1)
    row = msgspec.structs.replace(SOMEBODY, name="x" * 1000)
    sizes = []
    for most in (1, 100_000):
        closed.set_most(most)
        for _ in range(2 * LEAST_BYTES // MEAN_ROW_BYTES):
            closed.latest.add(row, MEAN_ROW_BYTES)
        sizes.append(closed.latest.bytes)
    assert sizes[0] == MEAN_ROW_BYTES
    assert sizes[1] > LEAST_BYTES
    for _ in range(2 * MOST_SLOW):
        closed.slow.add(row, 2 * MEAN_ROW_BYTES)
    assert closed.slow.bytes <= MOST_SLOW * MEAN_ROW_BYTES


SOMEBODY = ConnectionRow(1, "127.0.0.1", 1, 0, 0, 0, "", 0, 0, 0, 0, 0, 0, 0, "", "", "", "")
