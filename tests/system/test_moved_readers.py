"""A client that reads all the time is not closed as a slow consumer because it moves to another shard."""

from __future__ import annotations

import asyncio

import pytest

from tests.system.test_moving_clients import move

pytestmark = pytest.mark.kinds("gnatswarm-2")

SIZE = 4096
MOVES = 20


async def test_a_reader_with_a_small_max_pending_moves_to_and_fro_under_load(start_broker, cluster_of, subject):
    broker = start_broker(config="max_payload: 16K\nmax_pending: 100K\n")
    cluster = cluster_of(broker)
    reader, *publishers = [await cluster.raw() for _ in range(3)]
    for client in (reader, *publishers):
        await client.send('CONNECT {"verbose":false}\r\nPING\r\n')
        assert await client.read_line() == b"PONG\r\n"
    await reader.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    is_over = asyncio.Event()

    async def publishing(client) -> int:
        n = 0
        block = f"PUB {subject} {SIZE}\r\n".encode() + b"x" * SIZE + b"\r\n"
        while not is_over.is_set():
            await client.send(block * 50 + b"PING\r\n")
            assert await client.read_line() == b"PONG\r\n"
            n += 50
        return n

    async def reading() -> int:
        n = 0
        while True:
            frame = await reader.read_frame()
            if not frame.is_message:
                return n
            n += 1

    read = asyncio.create_task(reading())
    published = [asyncio.create_task(publishing(client)) for client in publishers]
    for n in range(MOVES):
        assert not (await move(broker, n % 2, 1 - n % 2, 3)).error
        assert not read.done()
    is_over.set()
    sent = sum(await asyncio.gather(*published))
    await reader.send("PING\r\n")
    assert await read == sent
