"""Nothing between shards is ever dropped, memory stays bounded, and nobody who reads slowly holds up anybody else."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.support import swarm
from tests.support.wire import Client

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")

# Small kernel buffers on the reading side, so that what a client does not read stays with the broker.
RECEIVE_BYTES = 16_384
MEGABYTE = 1 << 20
# A reader that is not scheduled for two seconds counts as one that reads nothing, and stalls nobody. So that an
# overloaded machine does not make it a slow consumer, no publisher is further ahead than this: under max_pending
# (64 MB), and over the half of it at which the broker begins to make publishers wait.
MOST_AHEAD_BYTES = 56 * MEGABYTE


class Flood:
    """One publisher that never waits and one reader that reads `bytes_per_s` at most; both know the next number."""

    def __init__(self, publisher: Client, reader: Client, subject: str, payload_bytes: int, bytes_per_s: int) -> None:
        self.publisher = publisher
        self.reader = reader
        self.subject = subject.encode()
        self.filling = b"." * (payload_bytes - 10)
        self.payload_bytes = payload_bytes
        self.most_ahead = MOST_AHEAD_BYTES // (payload_bytes + len(f"MSG {subject} 1 {payload_bytes}\r\n\r\n"))
        self.bytes_per_s = bytes_per_s
        self.sent = self.got = 0
        self.is_over = False

    async def subscribe(self) -> None:
        await self.reader.talk(b"SUB %b 1\r\nPING\r\n" % self.subject, expect="PONG\r\n")

    async def publish(self) -> None:
        head = b"PUB %b %d\r\n" % (self.subject, self.payload_bytes)
        count = max(1, 200_000 // self.payload_bytes)
        while not self.is_over:
            if self.sent - self.got + count > self.most_ahead:
                await asyncio.wait([self.reading], timeout=0.005)
                continue
            numbers = range(self.sent, self.sent + count)
            await self.publisher.send(
                b"".join(b"%b%010d%b\r\n" % (head, number, self.filling) for number in numbers), deadline_s=60
            )
            self.sent += count
            await asyncio.sleep(0)  # a send that the kernel takes at once does not let the others run
        await self.publisher.flush(deadline_s=60)

    async def read(self) -> None:
        """At its pace until the publisher is done, then as fast as it can until everything is here."""
        loop = asyncio.get_running_loop()
        prefix = b"MSG %b 1 %d\r\n" % (self.subject, self.payload_bytes)
        size = len(prefix) + self.payload_bytes + 2
        began, taken = loop.time(), 0
        while not (self.is_over and self.got == self.sent and self.publishing.done()):
            if not self.is_over and taken > self.bytes_per_s * (loop.time() - began):
                await asyncio.wait([self.publishing], timeout=0.005)  # its pace
                continue
            try:
                async with asyncio.timeout(0.5):
                    data = await self.reader.read_units(size)
            except TimeoutError:
                continue
            taken += len(data)
            for at in range(0, len(data), size):
                expected = prefix + b"%010d" % self.got
                assert data[at : at + len(expected)] == expected, (
                    f"after {self.got} messages came {data[at : at + 60]!r}"
                )
                self.got += 1

    def start(self) -> list[asyncio.Task[None]]:
        self.publishing = asyncio.create_task(self.publish())
        self.reading = asyncio.create_task(self.read())
        return [self.publishing, self.reading]


async def flood_both_ways(broker, cluster, subject: str, seconds: float, payload_bytes: int) -> None:
    """Every shard floods the next one, and is flooded; each reader takes a few megabytes a second."""
    shards = broker.kind.shards
    pids = await swarm.pids(broker)
    before = {shard: swarm.resident_bytes(pid) for shard, pid in pids.items()}
    floods = []
    for number in range(max(2, shards)):
        publisher = await cluster.client_on(number)
        reader = await cluster.client_on(number + 1, receive_bytes=RECEIVE_BYTES)
        floods.append(Flood(publisher, reader, f"{subject}.{number}", payload_bytes, 4 * MEGABYTE))
        await floods[-1].subscribe()
    tasks = [task for flood in floods for task in flood.start()]
    most = dict(before)
    until = time.monotonic() + seconds
    moved_at, last = time.monotonic(), [0] * len(floods)
    while time.monotonic() < until:
        await asyncio.wait(tasks, timeout=0.25, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        for shard, pid in pids.items():
            most[shard] = max(most[shard], swarm.resident_bytes(pid))
        now = [flood.got for flood in floods]
        if all(a > b for a, b in zip(now, last, strict=True)):
            moved_at, last = time.monotonic(), now
        assert time.monotonic() - moved_at < 30, f"somebody's messages stand still: {now}"
    for flood in floods:
        flood.is_over = True
    async with asyncio.timeout(90):
        await asyncio.gather(*tasks)
    assert all(flood.got == flood.sent > 100 for flood in floods)
    # Per reader: max_pending is 64 MB, of which a reader that takes bytes gets half before its feeders wait; a link
    # holds 4 MB. The rest is room for the allocator.
    grown = {shard: most[shard] - before[shard] for shard in pids}
    readers_each = max(2, shards) // shards
    assert max(grown.values()) < (readers_each * 64 + 64) * MEGABYTE, {k: v >> 20 for k, v in grown.items()}


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")
async def test_shards_that_flood_each_other_with_slow_readers_on_all_sides(start_broker, cluster_of, subject):
    broker = start_broker()
    # Both sizes, on either number of shards.
    payload_bytes = {2: 100, 4: 10_000}[broker.kind.shards]
    await flood_both_ways(broker, cluster_of(broker), subject, 3.0, payload_bytes)


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")
@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("GNATSWARM_SLOW") != "1", reason="opt-in: GNATSWARM_SLOW=1")
async def test_shards_that_flood_each_other_for_minutes(start_broker, cluster_of, subject):
    broker = start_broker()
    await flood_both_ways(broker, cluster_of(broker), subject, 180.0, 5_000)


@pytest.mark.parametrize("shards", [(0, 0), (0, 1)], ids=["same", "different"])
async def test_forty_megabytes_to_oneself_before_reading(start_broker, cluster_of, subject, shards):
    """On the subscriber's own connection, and from another on another shard, before a byte is read."""
    broker = start_broker()
    cluster = cluster_of(broker)
    reader = await cluster.client_on(shards[0])
    writer = reader if shards[0] == shards[1] else await cluster.client_on(shards[1])
    await reader.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    body = b"x" * 65_536
    count = 640
    for _ in range(count):
        await writer.send(f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\n", deadline_s=30)
    if writer is not reader:
        await writer.flush(deadline_s=30)
    whole = f"MSG {subject} 1 {len(body)}\r\n".encode() + body + b"\r\n"
    for _ in range(count):
        assert await reader.read_bytes(len(whole), deadline_s=30) == whole
    await reader.expect_quiet()


@pytest.mark.parametrize("shard", [0, 1], ids=["same", "different"])
async def test_a_slow_consumer_is_closed_and_named_and_others_are_not_affected(
    start_broker, cluster_of, subject, shard
):
    broker = start_broker(config='max_pending: 8MB\nwrite_deadline: "5s"\n')
    cluster = cluster_of(broker)
    publisher = await cluster.client_on(0)
    slow = await cluster.client_on(shard, receive_bytes=RECEIVE_BYTES)
    await slow.talk(f"SUB {subject} 77\r\nPING\r\n", expect="PONG\r\n")
    healthy = [await cluster.client_on(shard), await cluster.client_on(shard + 1)]
    for client in healthy:
        await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    body = b"x" * 65_536
    whole = f"MSG {subject} 1 {len(body)}\r\n".encode() + body + b"\r\n"

    async def publish() -> None:
        for _ in range(400):
            await publisher.send(f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\n", deadline_s=30)
        await publisher.flush(deadline_s=30)

    async def read(client: Client) -> None:
        for _ in range(400):
            assert await client.read_bytes(len(whole), deadline_s=30) == whole

    await asyncio.gather(publish(), *(read(client) for client in healthy))
    found = await asyncio.to_thread(broker.log.wait_line, "Slow Consumer", 20.0)
    assert f"cid:{slow.info['client_id']}" in found.string
    assert f'subscription "{subject}" (sid 77, ' in found.string
    assert b"-ERR" not in await slow.wait_closed(20)
    for client in healthy:
        await client.expect_quiet()


@pytest.mark.parametrize("shard", [0, 1], ids=["same", "different"])
@pytest.mark.parametrize("payload_bytes", [128, 60_000])
async def test_a_fence_does_not_wait_for_what_a_slow_reader_has_to_read(
    start_broker, cluster_of, subject, shard, payload_bytes
):
    """One client is flooded and reads a little at a time; another's PING on the publisher's shard passes it.

    The 4 MB of a link alone are 16 s of reading: in the second that a fence may take, the reader does not get far.
    """
    broker = start_broker()
    cluster = cluster_of(broker)
    publisher, fencing = await cluster.client_on(0), await cluster.client_on(0)
    slow = await cluster.client_on(shard, receive_bytes=RECEIVE_BYTES)
    flood = Flood(publisher, slow, subject, payload_bytes, MEGABYTE // 4)
    await flood.subscribe()
    tasks = flood.start()
    # The publisher is made to wait: it gets rid of little more than the reader takes.
    async with asyncio.timeout(30):
        before = -MEGABYTE
        while flood.sent - before > 4 * MEGABYTE // payload_bytes:
            before = flood.sent
            await asyncio.wait(tasks, timeout=0.5)
    read_bytes = 0
    for number in range(2):
        since = flood.got
        await fencing.talk(f"SUB {subject}.f{number} {number}\r\nPING\r\n", expect="PONG\r\n", deadline_s=30)
        read_bytes = max(read_bytes, (flood.got - since) * payload_bytes)
    flood.is_over = True
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert read_bytes < 2 * MEGABYTE


async def test_a_fence_beside_a_reader_that_takes_nothing(start_broker, cluster_of, subject):
    """It stalls nobody: fences pass, although it is not closed."""
    broker = start_broker(config='write_deadline: "120s"\n')
    cluster = cluster_of(broker)
    publisher, fencing = await cluster.client_on(0), await cluster.client_on(0)
    dead = await cluster.client_on(1, receive_bytes=RECEIVE_BYTES)
    await dead.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    body = b"x" * 65_536
    for number in range(40):
        await publisher.send((f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\n") * 20, deadline_s=20)
        await fencing.talk(f"SUB {subject}.f{number} {number}\r\nPING\r\n", expect="PONG\r\n", deadline_s=30)
    await publisher.flush(deadline_s=30)
    assert not [line for line in broker.log.lines if "Slow Consumer" in line]


async def test_a_flood_to_one_client_does_not_hold_up_the_link_for_others(start_broker, cluster_of, subject):
    """Beside a slow reader's flood, request and reply over the same two shards go on."""
    broker = start_broker()
    cluster = cluster_of(broker)
    publisher, asker = await cluster.client_on(0), await cluster.client_on(0)
    slow, answers = await cluster.client_on(1, receive_bytes=RECEIVE_BYTES), await cluster.client_on(1)
    flood = Flood(publisher, slow, subject, 10_000, 2 * MEGABYTE)
    await flood.subscribe()
    await answers.talk(f"SUB {subject}.ask 1\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk(f"SUB {subject}.answer 1\r\nPING\r\n", expect="PONG\r\n")
    tasks = flood.start()
    for _ in range(4):
        await asker.send(f"PUB {subject}.ask {subject}.answer 1\r\n?\r\n")
        await answers.expect(f"MSG {subject}.ask 1 {subject}.answer 1\r\n?\r\n", deadline_s=30)
        await answers.send(f"PUB {subject}.answer 1\r\n!\r\n")
        await asker.expect(f"MSG {subject}.answer 1 1\r\n!\r\n", deadline_s=30)
    flood.is_over = True
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    assert flood.got == flood.sent
