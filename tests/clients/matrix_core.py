"""What `nats-core`, the next Python client of NATS, can do with a broker: one check a run. See test_clients.py.

python matrix_core.py CHECK        NATS_URL, NATS_TOKEN, NATS_USER, NATS_PASSWORD, NATS_CA

Run by a Python of its own: the client wants 3.13.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

import nats.client as nats
from given import DEADLINE_S, NUMBERS, options  # type: ignore[import-not-found]

SETTLED_S = 10.0


async def connect(**more: Any) -> Any:
    return await nats.connect(
        os.environ["NATS_URL"], **options() | {"reconnect_max_attempts": 200, "timeout": 5.0, **more}
    )


async def settle(client: Any) -> None:
    """The server has seen what the client sent: its PING is answered."""
    await client.flush()
    await client.rtt(SETTLED_S)


async def publish_numbers(client: Any, subject: str) -> None:
    for number in NUMBERS:
        await client.publish(subject, number)
    await settle(client)


async def pubsub() -> None:
    one, other = await connect(), await connect()
    subscription = await one.subscribe("pubsub.*")
    await settle(one)
    await publish_numbers(other, "pubsub.core")
    assert [(await subscription.next(DEADLINE_S)).data for _ in NUMBERS] == NUMBERS
    await one.close()
    await other.close()


async def queue() -> None:
    members = [await connect(), await connect()]
    got: tuple[list[bytes], list[bytes]] = [], []
    for member, mine in zip(members, got, strict=True):
        subscription = await member.subscribe("queue", queue="workers")
        subscription.add_callback(lambda message, mine=mine: mine.append(message.data))
        await settle(member)
    publisher = await connect()
    await publish_numbers(publisher, "queue")
    for member in members:
        await settle(member)
        await member.drain()
    assert sorted([*got[0], *got[1]], key=int) == NUMBERS
    assert got[0] and got[1]
    await publisher.close()


async def request() -> None:
    one, other = await connect(), await connect()
    subscription = await one.subscribe("service")
    await settle(one)

    async def serve() -> None:
        async for message in subscription:
            await one.publish(message.reply, b"re " + message.data)

    serving = asyncio.create_task(serve())
    answers = await asyncio.gather(*(other.request("service", number, timeout=DEADLINE_S) for number in NUMBERS))
    assert [answer.data for answer in answers] == [b"re " + number for number in NUMBERS]
    try:
        await other.request("nobody", b"", timeout=DEADLINE_S)
    except nats.NoRespondersError:
        pass
    else:
        raise AssertionError("a request that nobody answers fails at once")
    serving.cancel()
    await one.close()
    await other.close()


async def headers() -> None:
    client = await connect()
    subscription = await client.subscribe("headers")
    await client.publish("headers", b"body", headers={"Kind": "test"})
    message = await subscription.next(DEADLINE_S)
    assert message.data == b"body"
    assert message.headers.asdict() == {"Kind": ["test"]}
    await client.close()


async def drain() -> None:
    one, other = await connect(), await connect()
    got: list[bytes] = []
    subscription = await one.subscribe("drain")
    subscription.add_callback(lambda message: got.append(message.data))
    await settle(one)
    await publish_numbers(other, "drain")
    await settle(one)
    await one.drain()
    assert got == NUMBERS
    assert one.status == nats.ClientStatus.CLOSED
    await other.close()


async def reconnect() -> None:
    client = await connect()
    client.add_reconnected_callback(lambda: print("RECONNECTED", flush=True))
    subscription = await client.subscribe("reconnect")
    await settle(client)
    print("READY", flush=True)
    while True:
        message = await subscription.next(6 * DEADLINE_S)
        print("GOT", message.data.decode(), flush=True)
        if message.data == b"last":
            break
    await client.close()


async def refused() -> None:
    said = ""
    try:
        await connect(allow_reconnect=False)
    except ConnectionError as error:
        said = str(error).lower()
    assert "authorization violation" in said, said


CHECKS = {check.__name__: check for check in (pubsub, queue, request, headers, drain, reconnect, refused)}

if __name__ == "__main__":
    logging.disable()  # it logs to standard error what it also raises
    asyncio.run(CHECKS[sys.argv[1]]())
    print("OK")
