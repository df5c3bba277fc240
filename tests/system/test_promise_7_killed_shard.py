"""Killing a shard disconnects its own clients and nobody else; the others lose, double and reorder nothing."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support import swarm
from tests.support.traffic import Traffic
from tests.support.wire import Client, Closed, Frame

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

# What a killed shard's clients may take to notice, and its successor to serve, on a loaded machine.
DEADLINE_S = 40.0


@pytest.fixture
def swarmed(start_broker, cluster_of):
    broker = start_broker()
    return broker, cluster_of(broker)


async def others(cluster, victim: int, count: int, **options) -> list[Client]:
    """So many clients spread over all shards but one."""
    shards = [shard for shard in range(cluster.broker.kind.shards) if shard != victim]
    return [await swarm.client_on(cluster, shards[at % len(shards)], **options) for at in range(count)]


@pytest.mark.parametrize("payload_bytes", [10, 5_000])
async def test_clients_of_other_shards_notice_nothing(swarmed, subject, payload_bytes):
    """Three kills while messages flow between the others, and to the killed shard as well."""
    broker, cluster = swarmed
    victim = broker.kind.shards - 1
    publishers, subscribers = await others(cluster, victim, 3), await others(cluster, victim, 3)
    traffic = Traffic(publishers, subscribers, subject, payload_bytes=payload_bytes)
    await traffic.start()
    for _ in range(3):
        # Somebody there gets all of it too, so that the links to it are full of messages when it dies.
        doomed = await swarm.client_on(cluster, victim)
        await doomed.talk(f"SUB {subject}.* 1\r\nPING\r\n", expect_last="PONG\r\n")
        await traffic.progress(500)
        await swarm.kill(broker, victim)
        await doomed.wait_closed(DEADLINE_S)
        await traffic.progress(500)
    assert await traffic.finish() >= 9_000


async def test_the_shard_comes_back_with_its_siblings_interest(swarmed, subject):
    """Who comes to the new shard reaches everybody at once, and is reached, without anybody else subscribing anew."""
    broker, cluster = swarmed
    victim = 1
    witnesses = await others(cluster, victim, 4)
    for at, witness in enumerate(witnesses):
        words = [f"SUB {subject}.w{at} 1", f"SUB {subject}.*.x 2", f"SUB {subject}.all 3", f"SUB {subject}.q group 4"]
        await witness.talk("\r\n".join(words) + "\r\nPING\r\n", expect="PONG\r\n")
    for _ in range(3):
        await swarm.kill(broker, victim)
        back = await swarm.client_on(cluster, victim)
        for at, witness in enumerate(witnesses):
            await back.talk(f"PUB {subject}.w{at} 1\r\na\r\nPING\r\n", expect="PONG\r\n")
            await witness.expect(f"MSG {subject}.w{at} 1 1\r\na\r\n")
        await back.talk(f"PUB {subject}.y.x 1\r\nb\r\nPUB {subject}.all 1\r\nc\r\nPING\r\n", expect="PONG\r\n")
        for witness in witnesses:
            await witness.expect(f"MSG {subject}.y.x 2 1\r\nb\r\nMSG {subject}.all 3 1\r\nc\r\n")
        await back.talk(f"PUB {subject}.q 1\r\nd\r\n".encode() * 50 + b"PING\r\n", expect="PONG\r\n")
        payloads = await cluster.delivered(50, then_quiet=True, among=witnesses)
        assert payloads == [b"d"] * 50
        await back.talk(f"SUB {subject}.back 9\r\nPING\r\n", expect="PONG\r\n")
        for witness in witnesses:
            await witness.send(f"PUB {subject}.back 1\r\ne\r\n")
            await back.expect(f"MSG {subject}.back 9 1\r\ne\r\n")
        back.close()


async def test_what_the_dead_subscribed_to_is_forgotten(swarmed, subject):
    """The killed shard's clients were the only responders and queue members: the others know at once."""
    broker, cluster = swarmed
    victim = broker.kind.shards - 1
    [asker] = await others(cluster, victim, 1, connect={"headers": True, "no_responders": True})
    [stays] = await others(cluster, victim, 1)
    await asker.talk(f"SUB inbox.{subject} 1\r\nPING\r\n", expect="PONG\r\n")
    doomed = await swarm.client_on(cluster, victim)
    await doomed.talk(f"SUB {subject} 1\r\nSUB {subject}.q q 2\r\nPING\r\n", expect="PONG\r\n")
    await stays.talk(f"SUB {subject}.q q 2\r\nPING\r\n", expect="PONG\r\n")
    await swarm.kill(broker, victim)
    await doomed.wait_closed(DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        while not asker.inbox:
            await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\nPING\r\n", expect_last="PONG\r\n")
    assert asker.inbox[0].raw == f"HMSG inbox.{subject} 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n".encode()
    await asker.talk(f"PUB {subject}.q 1\r\nx\r\n".encode() * 200 + b"PING\r\n", expect="PONG\r\n")
    assert await cluster.delivered(200, then_quiet=True, among=[stays]) == [b"x"] * 200


async def test_a_connection_that_waits_in_a_killed_shards_backlog_is_served(swarmed):
    """The shard is stopped, connections pile up in its listener's queue, it is killed: its successor takes them."""
    broker, cluster = swarmed
    victim = (await swarm.pids(broker))[1]
    swarm.signal_shard(broker, victim, signal.SIGSTOP)
    waiting = [await Client.dial(broker.port, deadline_s=DEADLINE_S) for _ in range(40)]
    cluster.all += waiting
    swarm.signal_shard(broker, victim, signal.SIGKILL)
    shards = []
    for client in waiting:
        async with asyncio.timeout(DEADLINE_S):
            shards.append((await client.read_info())["shard"])
        await client.talk('CONNECT {"verbose":false}\r\nPING\r\n', expect="PONG\r\n")
    assert 1 in shards, "none of the connections waited for the killed shard: this run shows nothing"


async def test_a_shard_that_is_killed_again_and_again_does_not_disturb_the_others(swarmed, subject):
    broker, cluster = swarmed
    publishers, subscribers = await others(cluster, 0, 2), await others(cluster, 0, 2)
    traffic = Traffic(publishers, subscribers, subject)
    await traffic.start()
    killed: set[int] = set()
    async with asyncio.timeout(60):
        while len(killed) < 3:
            pid = (await swarm.pids(broker)).get(0)
            if pid and pid not in killed:  # it backs off: some looks find it still away
                swarm.signal_shard(broker, pid)
                killed.add(pid)
            await traffic.progress(200)
    await swarm.client_on(cluster, 0)
    await traffic.finish()


async def test_a_shard_killed_in_the_middle_of_big_frames(swarmed, subject):
    """Messages of 700 KB are on their way to it and from it; half of one is never taken for a whole one."""
    broker, cluster = swarmed
    victim = broker.kind.shards - 1
    publishers, subscribers = await others(cluster, victim, 2), await others(cluster, victim, 2)
    [witness] = await others(cluster, victim, 1)
    await witness.talk(f"SUB from.{subject} 1\r\nPING\r\n", expect="PONG\r\n")
    body = b"y" * 700_000
    sent = f"PUB from.{subject} {len(body)}\r\n".encode() + body + b"\r\n"
    whole = f"MSG from.{subject} 1 {len(body)}\r\n".encode() + body + b"\r\n"

    async def pour(client: Client) -> None:
        try:
            for _ in range(60):
                await client.send(sent, deadline_s=DEADLINE_S)
                await client.flush(deadline_s=DEADLINE_S)
        except Closed:
            return  # killed

    async def witness_on(pouring: asyncio.Task[None]) -> list[Frame]:
        """All that comes meanwhile: who does not read for seconds is closed."""
        frames = []
        while not pouring.done():
            frames += await witness.flush(DEADLINE_S)
        return frames

    traffic = Traffic(publishers, subscribers, subject, payload_bytes=700_000, batch=5)
    await traffic.start()
    for _ in range(2):
        reader, writer = [await swarm.client_on(cluster, victim) for _ in range(2)]
        await reader.talk(f"SUB {subject}.* 1\r\nPING\r\n", expect_last="PONG\r\n")
        reading = asyncio.create_task(reader.wait_closed(60))
        pouring = asyncio.create_task(pour(writer))
        for _ in range(3):
            assert await witness.read_bytes(len(whole), deadline_s=DEADLINE_S) == whole
        witnessing = asyncio.create_task(witness_on(pouring))
        await traffic.progress(5)
        await swarm.kill(broker, victim)
        await reading
        await pouring
        assert all(frame.raw == whole for frame in await witnessing)
        # Whole ones may still come, and then none; the successor's frames begin with a first byte.
        assert all(frame.raw == whole for frame in await witness.flush(DEADLINE_S))
        witness.inbox.clear()
        back = await swarm.client_on(cluster, victim)
        await back.talk(f"PUB from.{subject} 1\r\nz\r\nPING\r\n", expect="PONG\r\n")
        await witness.expect(f"MSG from.{subject} 1 1\r\nz\r\n")
        await traffic.progress(5)
    await traffic.finish(60)


async def test_one_log_line_says_that_it_died(swarmed):
    broker, cluster = swarmed
    before = len(broker.log.lines)
    await swarm.kill(broker, 1)
    await swarm.client_on(cluster, 1)
    lines = [line for line in broker.log.lines[before:] if "[ERR]" in line or "[WRN]" in line or "Traceback" in line]
    assert len(lines) == 1, lines
    assert "Shard 1 died: killed by SIGKILL" in lines[0]
