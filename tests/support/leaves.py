"""Leaf nodes and hubs in tests: clients of several brokers, and waiting until interest is known on the other side.

A message that crosses has to find interest there, and nobody tells when it does; so `know` sends probes until one
arrives.
"""

from __future__ import annotations

import asyncio
import json
import uuid

from tests.support.servers import Broker
from tests.support.wire import Client

LISTENS = r"Listening for leafnode connections on \S*:(\d+)"
CREATED = r"Leafnode connection created"


class Net:
    """Clients of several brokers, closed in the end."""

    def __init__(self) -> None:
        self.all: list[Client] = []

    async def client(self, broker: Broker, **words: object) -> Client:
        client = await Client.connect(broker.port, None)
        self.all.append(client)
        keys = {"verbose": False, "headers": True, "no_responders": True, "protocol": 1, **words}
        await client.talk(f"CONNECT {json.dumps(keys)}\r\nPING\r\n", expect_last="PONG\r\n")
        return client


def hub_port(hub: Broker) -> int:
    return int(hub.log.wait_line(LISTENS)[1])


async def know(publisher: Client, subscriber: Client, *, queue: str = "") -> None:
    """Returns when what `subscriber` has subscribed to before is known where `publisher` is.

    But for a nats-server whose leaf node connection is just being made: it forgets a subscription that comes between
    its collecting those that it is going to tell, and its telling (2.9.10: in 1 to 2 of 100 connections under load,
    whoever its hub is). So its probe is another one each second, and who has to be sure calls this before and after.

    No probe comes after it has returned (a subscriber of `>` would take one for a message): the last one has come.
    """
    is_forgetful = "gnatswarm" not in subscriber.info
    clock = asyncio.get_running_loop().time
    subjects: list[str] = []
    subscribed_s = sent_s = 0.0
    sent = 0

    def seen() -> set[bytes]:
        return {frame.payload for frame in subscriber.inbox if frame.subject in subjects}

    async with asyncio.timeout(60):
        while not sent or b"%d" % sent not in seen():
            if not subjects or (is_forgetful and not seen() and clock() >= subscribed_s + 1.0):
                subscribed_s = clock()
                subjects.append(f"probe.{uuid.uuid4().hex[:12]}")
                await subscriber.send(f"SUB {subjects[-1]} {queue} probe{len(subjects)}\r\n")
                await subscriber.flush()
            # Once one has come, the others are on their way; a second is for those that a broken connection took.
            if not seen() or clock() >= sent_s + 1.0:
                sent, sent_s = sent + 1, clock()
                payload = str(sent)
                await publisher.send(f"PUB {subjects[-1]} {len(payload)}\r\n{payload}\r\n")
                await publisher.flush()
            await subscriber.flush()
    unsubscribe = "".join(f"UNSUB probe{n}\r\n" for n in range(1, len(subjects) + 1))
    await subscriber.talk(unsubscribe + "PING\r\n", expect_last="PONG\r\n")
    subscriber.inbox = [frame for frame in subscriber.inbox if frame.subject not in subjects]


async def subscribed(client: Client, *lines: str) -> None:
    await client.talk("".join(f"SUB {line}\r\n" for line in lines) + "PING\r\n", expect_last="PONG\r\n")


async def payloads(client: Client, count: int) -> list[bytes]:
    return [frame.payload for frame in await client.messages(count, 40)]


async def check_own_account(at_leaf: Client, inside: Client, outside: Client) -> None:
    """A leaf node's client hears of the hub's who is in its account, and not who is outside."""
    await know(inside, at_leaf)
    await subscribed(at_leaf, "own 1")
    await know(inside, at_leaf)
    await outside.send("PUB own 1\r\nx\r\n")
    await outside.flush()
    await inside.send("PUB own 1\r\ny\r\n")
    assert await payloads(at_leaf, 1) == [b"y"]


async def check_request(asker: Client, service: Client, subject: str, queue: str = "") -> None:
    """A request of one reaches the other, who is in this queue group, and so does the answer back."""
    await subscribed(service, f"{subject} {queue} 9")
    await subscribed(asker, "inbox.* 1")
    await know(asker, service)
    await know(service, asker)
    await asker.send(f"PUB {subject} inbox.1 2\r\nhi\r\n")
    (request,) = await service.messages(1, 20)
    assert (request.payload, request.reply) == (b"hi", "inbox.1")
    await service.send(f"PUB {request.reply} 3\r\nyes\r\n")
    assert await payloads(asker, 1) == [b"yes"]
    await service.talk("UNSUB 9\r\nPING\r\n", expect_last="PONG\r\n")
    await asker.talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")


async def check_no_responders(asker: Client) -> None:
    """A request that nobody on either side would answer gets a 503."""
    await subscribed(asker, "none 1")
    await asker.send("PUB nobody.there none 0\r\n\r\n")
    (answer,) = await asker.messages(1)
    assert answer.headers.startswith(b"NATS/1.0 503")
