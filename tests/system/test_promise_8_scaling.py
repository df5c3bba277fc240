"""Shards are added and removed while clients talk: nobody who stays loses anything, who cannot move is told first."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import pytest

from tests.support import swarm
from tests.support.traffic import Traffic
from tests.support.wire import Client, Closed

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

# A shard that leaves has ten seconds for its clients.
LEAVE_DEADLINE_S = 60.0
# A queue subscription with a max stays where it is, and its client.
CANNOT_MOVE = "SUB never.published workers 9\r\nUNSUB 9 9\r\n"
# Or two, where a client is there that does not leave before it has to.
SOON = 'lame_duck_grace_period: "2s"\n'


@pytest.fixture
def swarmed(start_broker, cluster_of):
    broker = start_broker()
    return broker, cluster_of(broker)


@pytest.fixture
def soon_swarmed(start_broker, cluster_of):
    broker = start_broker(config=SOON)
    return broker, cluster_of(broker)


async def serving(broker) -> list[int]:
    rows = await asyncio.to_thread(swarm.rows, broker)
    return sorted(shard for shard, row in rows.items() if row["phase"] == "ready")


async def wait_serving(broker, shards: list[int], deadline_s: float = LEAVE_DEADLINE_S) -> None:
    until = time.monotonic() + deadline_s
    while (now := await serving(broker)) != shards:
        assert time.monotonic() < until, f"shards {now} serve, not {shards}"


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4")
async def test_new_shards_get_new_connections_at_once(swarmed, subject):
    """Traffic runs on; clients of a new shard reach everybody, and are reached."""
    broker, cluster = swarmed
    before = broker.kind.shards
    traffic = Traffic(await cluster.clients(2, True), await cluster.clients(2, True), subject)
    await traffic.start()
    assert str(before + 2) in await swarm.scale(broker, before + 2)
    old = await cluster.client()
    await old.talk(f"SUB {subject}.to.old 1\r\nPING\r\n", expect="PONG\r\n")
    for shard in (before, before + 1):
        new = await swarm.client_on(cluster, shard)
        assert new.info["server_id"] == old.info["server_id"]
        await new.talk(f"SUB {subject}.to.new{shard} 2\r\nPING\r\n", expect="PONG\r\n")
        await old.send(f"PUB {subject}.to.new{shard} 1\r\na\r\n")
        await new.expect(f"MSG {subject}.to.new{shard} 2 1\r\na\r\n")
        await new.send(f"PUB {subject}.to.old 1\r\nb\r\n")
        await old.expect(f"MSG {subject}.to.old 1 1\r\nb\r\n")
    await traffic.progress(500)
    await traffic.finish()


async def test_clients_of_the_shards_that_stay_notice_nothing(soon_swarmed, subject):
    broker, cluster = soon_swarmed
    before = broker.kind.shards
    stay = list(range(before - 1))
    publishers = [await swarm.client_on(cluster, stay[at % len(stay)]) for at in range(2)]
    subscribers = [await swarm.client_on(cluster, stay[at % len(stay)]) for at in range(2)]
    leaving = await swarm.client_on(cluster, before - 1)
    await leaving.talk(f"SUB {subject}.* 1\r\n{CANNOT_MOVE}PING\r\n", expect="PONG\r\n")
    traffic = Traffic(publishers, subscribers, subject)
    await traffic.start()
    await traffic.progress(300)
    # It reads what comes, and leaves when it is closed.
    reading = asyncio.create_task(leaving.wait_closed(LEAVE_DEADLINE_S))
    await swarm.scale(broker, before - 1)
    await reading
    assert await serving(broker) == stay
    await traffic.progress(300)
    await swarm.scale(broker, before)
    await traffic.progress(300)
    await traffic.finish()
    assert await serving(broker) == [*stay, before - 1]


async def test_who_has_to_leave_is_told_by_info_and_served_until_it_goes(swarmed, subject):
    """A lame-duck INFO to clients that know such; they move over by themselves and nothing is lost on the way."""
    broker, cluster = swarmed
    last = broker.kind.shards - 1
    leaving = await swarm.client_on(cluster, last, {"protocol": 1})
    old = await swarm.client_on(cluster, last, {"protocol": 0})
    stays = await swarm.client_on(cluster, 0)
    for client in (leaving, old):
        await client.talk(f"SUB {subject} 1\r\n{CANNOT_MOVE}PING\r\n", expect="PONG\r\n")
    scaling = asyncio.create_task(swarm.scale(broker, last))
    told = (await leaving.expect_line(r"INFO (.*) ", deadline_s=LEAVE_DEADLINE_S))[1]
    assert json.loads(told)["ldm"] is True
    assert json.loads(told)["client_id"] == leaving.info["client_id"]
    # Served as before.
    await stays.talk(f"PUB {subject} 1\r\na\r\nPING\r\n", expect="PONG\r\n")
    for client in (leaving, old):
        await client.expect(f"MSG {subject} 1 1\r\na\r\n")
    # New ones do not come here any more.
    moved = [await cluster.client() for _ in range(30)]
    assert all(client.shard < last for client in moved)
    await moved[0].talk(f"SUB {subject} 2\r\nPING\r\n", expect="PONG\r\n")
    leaving.close()
    old.close()
    assert str(last) in await scaling
    assert await serving(broker) == list(range(last))
    await stays.talk(f"PUB {subject} 1\r\nb\r\nPING\r\n", expect="PONG\r\n")
    await moved[0].expect(f"MSG {subject} 2 1\r\nb\r\n")


async def test_a_shard_without_clients_leaves_soon(start_broker):
    """It keeps accepting until its queue was empty for a second, then goes: long before its time is over."""
    broker = start_broker(config='lame_duck_grace_period: "300s"\nlame_duck_duration: "600s"\n')
    await swarm.scale(broker, broker.kind.shards - 1)  # (which waits for less than a minute)
    assert not [line for line in broker.log.lines if "in time" in line]


async def test_a_client_that_stays_is_closed_when_its_time_is_over(soon_swarmed, subject):
    broker, cluster = soon_swarmed
    last = broker.kind.shards - 1
    stubborn = await swarm.client_on(cluster, last)
    await stubborn.talk(f"SUB {subject} 1\r\n{CANNOT_MOVE}PING\r\n", expect="PONG\r\n")
    scaling = asyncio.create_task(swarm.scale(broker, last))
    rest = await stubborn.wait_closed(LEAVE_DEADLINE_S)
    assert b"-ERR" not in rest
    await scaling
    assert await serving(broker) == list(range(last))


async def assert_nobody_is_reset(broker) -> None:
    """Clients connect without pause while shards come and go: each gets its INFO and its PONG, or an orderly INFO."""
    shards = broker.kind.shards
    is_over = False
    served = [0]
    failures: list[str] = []

    async def knock() -> None:
        while not is_over:
            try:
                client = await Client.dial(broker.port)
                try:
                    await client.read_info()
                    await client.talk('CONNECT {"verbose":false}\r\nPING\r\n', expect_last="PONG\r\n")
                    served[0] += 1
                finally:
                    client.close()
            except (Closed, OSError, TimeoutError, AssertionError) as error:
                failures.append(repr(error))

    knocking = [asyncio.create_task(knock()) for _ in range(4)]
    for wanted in (shards - 1, shards + 1, 1, shards):
        await swarm.scale(broker, wanted)
        assert await serving(broker) == list(range(wanted))
    is_over = True
    await asyncio.gather(*knocking)
    assert not failures, f"{len(failures)} of {served[0]}: {failures[:3]}"
    assert served[0] > 100


async def test_no_accepted_connection_is_reset_by_scaling(start_broker):
    await assert_nobody_is_reset(start_broker(args=["--accept", "reuseport"]))


@pytest.mark.kinds("gnatswarm-2")  # one router hands over, to any number of shards
async def test_no_connection_that_is_handed_over_is_reset_by_scaling(start_broker):
    await assert_nobody_is_reset(start_broker(args=["--accept", "handoff"]))


async def test_signals_add_and_remove_one_shard(swarmed):
    broker, _ = swarmed
    shards = broker.kind.shards
    broker.send_signal(signal.SIGTTIN)
    await wait_serving(broker, list(range(shards + 1)))
    broker.send_signal(signal.SIGTTOU)
    await wait_serving(broker, list(range(shards)))
    broker.send_signal(signal.SIGTTOU)
    await wait_serving(broker, list(range(shards - 1)))
    broker.send_signal(signal.SIGTTIN)
    await wait_serving(broker, list(range(shards)))


async def test_queue_messages_are_not_lost_while_the_swarm_grows_and_shrinks(swarmed, subject):
    """Members on the shards that stay; the group is counted exactly."""
    broker, cluster = swarmed
    last = broker.kind.shards - 1
    publishers = [await swarm.client_on(cluster, 0) for _ in range(2)]
    members = [await swarm.client_on(cluster, at % max(1, last)) for at in range(3)]
    traffic = Traffic(publishers, members, subject, queue="q")
    await traffic.start()
    for wanted in (last, last + 2, last + 1):
        await swarm.scale(broker, wanted)
        await traffic.progress(300)
    await traffic.finish()
