"""Clients that do not read: what is kept for them is bounded, they are closed in the end, and others do not suffer."""

from __future__ import annotations

import asyncio
import re

import pytest

PAYLOAD = b"x" * 65_536
MESSAGE = b"PUB flood 65536\r\n" + PAYLOAD + b"\r\n"

# Small kernel buffers on the reading side, so that what a client does not read stays with the broker.
RECEIVE_BYTES = 16_384


async def never_reads(cluster, subject: str = "flood"):
    client = await cluster.client(receive_bytes=RECEIVE_BYTES)
    await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    return client


async def flood(publisher, megabytes: int) -> None:
    for _ in range(megabytes * 16):
        await publisher.send(MESSAGE, deadline_s=30)
    await publisher.flush(deadline_s=30)


async def drain_until_closed(client) -> int:
    """Read all there is; how much came before the server closed."""
    return len(await client.wait_closed(deadline_s=20))


async def test_a_client_over_max_pending_is_closed_without_an_error_line_and_logged(start_broker, cluster_of):
    broker = start_broker(config='max_pending: 4MB\nwrite_deadline: "2s"\n')
    cluster = cluster_of(broker)
    slow = await never_reads(cluster)
    publisher = await cluster.client()
    await flood(publisher, 32)
    found = await asyncio.to_thread(broker.log.wait_line, "Slow Consumer", 20.0)
    assert re.search(r"Slow Consumer", found.string)
    rest = await slow.wait_closed(deadline_s=20)
    assert b"-ERR" not in rest
    assert len(rest) < 16 << 20
    await publisher.expect_quiet()


async def test_the_others_get_everything_while_one_does_not_read(start_broker, cluster_of):
    broker = start_broker(config='max_pending: 4MB\nwrite_deadline: "5s"\n')
    cluster = cluster_of(broker)
    slow = await never_reads(cluster)
    healthy, publisher = await cluster.clients(2, on_different_shards=True)
    await healthy.talk("SUB flood 7\r\nPING\r\n", expect="PONG\r\n")
    flooding = asyncio.create_task(flood(publisher, 32))
    expected = b"MSG flood 7 65536\r\n" + PAYLOAD + b"\r\n"
    for _ in range(32 * 16):
        assert await healthy.read_bytes(len(expected), deadline_s=30) == expected
    await flooding
    await healthy.expect_quiet()
    await drain_until_closed(slow)


async def test_unrelated_traffic_goes_on_while_one_does_not_read(start_broker, cluster_of):
    broker = start_broker(config='max_pending: 4MB\nwrite_deadline: "5s"\n')
    cluster = cluster_of(broker)
    await never_reads(cluster)
    publisher, one, other = await cluster.clients(3, on_different_shards=True)
    await one.talk("SUB quiet 1\r\nPING\r\n", expect="PONG\r\n")
    flooding = asyncio.create_task(flood(publisher, 16))
    for number in range(100):
        await other.send(f"PUB quiet 3\r\n{number:03}\r\n")
        await one.expect(f"MSG quiet 1 3\r\n{number:03}\r\n")
    await flooding


async def test_memory_stays_bounded_by_max_pending(start_broker, cluster_of):
    """Five clients that read nothing, 8 MB each at most, under 160 MB each of traffic."""
    broker = start_broker(config='max_pending: 8MB\nwrite_deadline: "2s"\n')
    cluster = cluster_of(broker)
    publisher = await cluster.client()
    await publisher.talk(MESSAGE + b"PING\r\n", expect="PONG\r\n")
    before_bytes = broker.resident_bytes()
    for _ in range(5):
        await never_reads(cluster)
    most_bytes = 0
    for _ in range(20):
        await flood(publisher, 8)
        most_bytes = max(most_bytes, broker.resident_bytes())
    # 5 × 8 MB are allowed; twice that for buffers in flight and an allocator's slack. Unbounded it would be 800 MB.
    assert most_bytes - before_bytes < 120 << 20


async def test_a_client_that_takes_nothing_runs_into_the_write_deadline(start_broker, cluster_of):
    """Below max_pending, but with bytes waiting for longer than write_deadline."""
    broker = start_broker(config='write_deadline: "500ms"\n')
    cluster = cluster_of(broker)
    slow = await never_reads(cluster)
    publisher = await cluster.client()
    await flood(publisher, 16)
    await asyncio.to_thread(broker.log.wait_line, "Slow Consumer", 20.0)
    await drain_until_closed(slow)


async def test_a_slow_consumer_that_is_closed_does_not_come_back_in_a_queue_group(start_broker, cluster_of):
    broker = start_broker(config='max_pending: 2MB\nwrite_deadline: "1s"\n')
    cluster = cluster_of(broker)
    slow = await cluster.client(receive_bytes=RECEIVE_BYTES)
    await slow.talk("SUB flood 1\r\nSUB jobs q 2\r\nPING\r\n", expect="PONG\r\n")
    publisher, worker = await cluster.clients(2)
    await worker.talk("SUB jobs q 1\r\nPING\r\n", expect="PONG\r\n")
    await flood(publisher, 16)
    await asyncio.to_thread(broker.log.wait_line, "Slow Consumer", 20.0)
    await drain_until_closed(slow)
    # Closed is closed: from the next publish on, the other member gets every message.
    await publisher.send(b"PUB jobs 1\r\nx\r\n" * 100)
    await publisher.flush()
    assert await cluster.delivered(100, then_quiet=True, among=[worker]) == [b"x"] * 100


@pytest.mark.parametrize("pause_messages", [1, 16, 256])
async def test_a_client_that_reads_in_fits_and_starts_gets_everything(cluster, pause_messages):
    """It falls behind by up to 16 MB, below max_pending, and is not punished."""
    subject = f"fits.{pause_messages}"
    reader = await cluster.client(receive_bytes=RECEIVE_BYTES)
    await reader.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    publisher = await cluster.client()
    expected = f"MSG {subject} 1 {len(PAYLOAD)}\r\n".encode() + PAYLOAD + b"\r\n"
    for _ in range(256 // pause_messages):
        text = f"PUB {subject} {len(PAYLOAD)}\r\n".encode() + PAYLOAD + b"\r\n"
        await publisher.talk(text * pause_messages + b"PING\r\n", expect="PONG\r\n", deadline_s=30)
        for _ in range(pause_messages):
            assert await reader.read_bytes(len(expected), deadline_s=30) == expected
    await reader.expect_quiet()
