"""What the Python client of NATS can do with a broker: one check a run. See test_clients.py.

python matrix.py CHECK        NATS_URL, NATS_TOKEN, NATS_USER, NATS_PASSWORD, NATS_CA
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import nats
import nats.errors
from given import DEADLINE_S, NUMBERS, options  # type: ignore[import-not-found]


async def connect(**more: Any) -> Any:
    return await nats.connect(os.environ["NATS_URL"], **options() | {"max_reconnect_attempts": 200, **more})


async def settle(client: Any) -> None:
    """Twice: the client's first PING may overtake what waits for its flusher."""
    await client.flush()
    await client.flush()


async def publish_numbers(client: Any, subject: str) -> None:
    for number in NUMBERS:
        await client.publish(subject, number)
    await settle(client)


async def pubsub() -> None:
    one, other = await connect(), await connect()
    subscription = await one.subscribe("pubsub.*")
    await settle(one)
    await publish_numbers(other, "pubsub.py")
    assert [(await subscription.next_msg(DEADLINE_S)).data for _ in NUMBERS] == NUMBERS
    await one.close()
    await other.close()


async def queue() -> None:
    members = [await connect(), await connect()]
    got: tuple[list[bytes], list[bytes]] = [], []
    for member, mine in zip(members, got, strict=True):

        async def on_message(message: Any, mine: list[bytes] = mine) -> None:
            mine.append(message.data)

        await member.subscribe("queue", queue="workers", cb=on_message)
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

    async def on_request(message: Any) -> None:
        await message.respond(b"re " + message.data)

    await one.subscribe("service", cb=on_request)
    await settle(one)
    answers = await asyncio.gather(*(other.request("service", number, timeout=DEADLINE_S) for number in NUMBERS))
    assert [answer.data for answer in answers] == [b"re " + number for number in NUMBERS]
    try:
        await other.request("nobody", timeout=DEADLINE_S)
    except nats.errors.NoRespondersError:
        pass
    else:
        raise AssertionError("a request that nobody answers fails at once")
    await one.close()
    await other.close()


async def headers() -> None:
    client = await connect()
    subscription = await client.subscribe("headers")
    await client.publish("headers", b"body", headers={"Kind": "test"})
    message = await subscription.next_msg(DEADLINE_S)
    assert (message.data, message.headers) == (b"body", {"Kind": "test"})
    await client.close()


async def drain() -> None:
    one, other = await connect(), await connect()
    got = []

    async def on_message(message: Any) -> None:
        got.append(message.data)

    await one.subscribe("drain", cb=on_message)
    await settle(one)
    await publish_numbers(other, "drain")
    await one.drain()
    assert got == NUMBERS
    assert one.is_closed
    await other.close()


async def reconnect() -> None:
    async def on_reconnected() -> None:
        print("RECONNECTED", flush=True)

    async def on_discovered() -> None:
        print("TOLD", *(url.netloc for url in client.discovered_servers), flush=True)

    async def on_lame_duck() -> None:
        print("LAMEDUCK", flush=True)

    client = await connect(
        reconnected_cb=on_reconnected, discovered_server_cb=on_discovered, lame_duck_mode_cb=on_lame_duck
    )
    subscription = await client.subscribe("reconnect")
    await settle(client)
    print("READY", flush=True)
    while True:
        message = await subscription.next_msg(6 * DEADLINE_S)
        print("GOT", message.data.decode(), flush=True)
        if message.data == b"last":
            break
    await client.close()


async def refused() -> None:
    said = ""
    try:
        await connect(allow_reconnect=False)
    except nats.errors.Error as error:
        said = str(error).lower()
    assert "authorization violation" in said, said


CHECKS = {check.__name__: check for check in (pubsub, queue, request, headers, drain, reconnect, refused)}

if __name__ == "__main__":
    asyncio.run(CHECKS[sys.argv[1]]())
    print("OK")
