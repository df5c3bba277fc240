"""A short trial holds, and its clients would see what did not."""

from __future__ import annotations

import asyncio
import functools
import random
import signal

import pytest

from tests.soak.talkers import Account, Bulk, Talker, lost_jobs
from tests.soak.trial import World, played
from tests.support.servers import KINDS, WAIT_DEADLINE_S, Broker
from tests.support.wire import Client


async def nobody() -> Client:
    raise ConnectionRefusedError


def listener(**written: int) -> Talker:
    """One that subscribed when talker 1 had written so much."""
    return Talker(0, "plain", nobody, Account(), floor={1: written.get("at", 1)})


@pytest.mark.parametrize(
    ("came", "doubtful", "faults"),
    [
        ([1, 2, 3], set(), 0),
        ([2, 3], set(), 0),  # the first was on its way when it subscribed
        ([3], set(), 1),
        ([2, 4], set(), 1),
        ([2, 4], {3}, 0),
        ([2, 2], set(), 1),
        ([2, 4, 3], {3}, 1),
    ],
)
def test_what_is_missing_or_twice_or_out_of_order_is_a_fault(came: list[int], doubtful: set[int], faults: int) -> None:
    talker = listener()
    talker.account.doubtful[1] = doubtful
    for number in came:
        talker.on_number(1, number)
    assert len(talker.account.faults) == faults


def test_a_queue_message_may_be_lost_with_a_connection_that_ends_and_not_otherwise() -> None:
    account = Account(job_sent={1: (0, True), 2: (0, True), 3: (0, False)}, jobs={1: 1})
    assert lost_jobs(account) == [2]
    account.breaks = 1
    assert lost_jobs(account) == []


def test_bodies_of_all_sizes_are_their_numbers_and_pieces_are_the_whole() -> None:
    bulk = Bulk(random.Random(1))
    bodies = [bulk.body(number) for number in range(200)]
    assert list(map(int, bodies)) == list(range(200))
    assert min(map(len, bodies)) == 10 and max(map(len, bodies)) > 100_000
    cuts = [[piece for piece, _ in bulk.pieces(body)] for body in [b"", *bodies]]
    assert [b"".join(pieces) for pieces in cuts] == [b"", *bodies]
    assert {1, 2, 5} <= set(map(len, cuts))


def test_a_talker_hears_that_it_is_to_leave() -> None:
    """So that it drains, as it does for a shard that leaves. Who does not say `protocol` is told nothing later."""

    async def told(broker: Broker) -> None:
        talker = Talker(0, "plain", functools.partial(Client.connect, broker.port), Account())
        await talker.connect()
        broker.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(WAIT_DEADLINE_S):
            while not talker.is_told_to_leave:
                await talker.fence()
        await talker.finish()

    with Broker(KINDS["gnatswarm-1"], config='lame_duck_grace_period: "30s"\nlame_duck_duration: "60s"\n') as broker:
        asyncio.run(told(broker))
        broker.kill()


def test_a_short_trial() -> None:
    world = World(shards=2, accept="reuseport", has_gateway=False, has_clock=False)
    assert played("short", seconds=5.0, rounds=4, world=world) == ""
