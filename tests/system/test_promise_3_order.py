"""A publisher's messages reach each subscriber in the order they were published in, whatever shards they are on."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.traffic import Traffic

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server")


async def test_order_holds_under_load(place, subject):
    """Four publishers without pauses, four subscribers."""
    publishers, subscribers = await place(4), await place(4)
    traffic = Traffic(publishers, subscribers, subject)
    await traffic.start()
    await traffic.progress(3_000)
    assert await traffic.finish() >= 12_000


async def test_order_holds_over_mixed_subjects_and_sizes(place, subject):
    """Each publisher changes subject, size, reply and header all the time.

    Subscribers by wildcard see all of its messages in one order, those of a single subject theirs.
    """
    count = 600
    publishers = await place(3, {"headers": True})
    everything = await place(3, {"headers": True})
    singles = await place(3, {"headers": True})
    for client in everything:
        await client.talk(f"SUB {subject}.> 1\r\nPING\r\n", expect="PONG\r\n")
    for at, client in enumerate(singles):
        await client.talk(f"SUB {subject}.*.{at} 1\r\nPING\r\n", expect="PONG\r\n")
    chance = random.Random(7)
    sizes = (0, 1, 15, 16, 100, 1_000, 5_000, 32_700, 32_768, 40_000, 70_000)
    plans = [[(chance.randrange(3), chance.choice(sizes), chance.random()) for _ in range(count)] for _ in publishers]

    def publication(who: int, number: int) -> bytes:
        about, size, how = plans[who][number]
        body = b"%d/%d/" % (who, number) + b"." * size
        name = f"{subject}.{who}.{about}".encode()
        if how < 0.6:
            return b"PUB %b %d\r\n%b\r\n" % (name, len(body), body)
        if how < 0.8:
            return b"PUB %b answers.%d %d\r\n%b\r\n" % (name, number, len(body), body)
        head = b"NATS/1.0\r\nA: b\r\n\r\n"
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (name, len(head), len(head) + len(body), head, body)

    async def publish(who: int) -> None:
        for start in range(0, count, 20):
            await publishers[who].send(b"".join(publication(who, n) for n in range(start, start + 20)), deadline_s=30)
        await publishers[who].flush(deadline_s=30)

    def numbers_of(frames, who: int) -> list[tuple[int, int]]:
        found = []
        for frame in frames:
            writer, number, _ = frame.payload.split(b"/", 2)
            if int(writer) == who:
                found.append((int(number), len(frame.payload)))
        return found

    publishing = asyncio.gather(*(publish(who) for who in range(3)))
    wanted = [sum(about == at for plan in plans for about, _, _ in plan) for at in range(3)]
    frames = await asyncio.gather(
        *(client.messages(3 * count, deadline_s=60) for client in everything),
        *(client.messages(wanted[at], deadline_s=60) for at, client in enumerate(singles)),
    )
    await publishing
    for who in range(3):
        sent = [(n, size + len(b"%d/%d/" % (who, n)), about) for n, (about, size, _) in enumerate(plans[who])]
        for got in frames[:3]:
            assert numbers_of(got, who) == [(n, size) for n, size, _ in sent]
        for at, got in enumerate(frames[3:]):
            assert numbers_of(got, who) == [(n, size) for n, size, about in sent if about == at]
    for client in everything + singles:
        await client.expect_quiet()


async def test_order_holds_while_other_subscriptions_come_and_go(place, subject):
    """Interest at the publishers' shard changes between any two messages; a steady subscriber notices nothing."""
    publishers, subscribers, churners = await place(2), await place(2), await place(2)
    traffic = Traffic(publishers, subscribers, subject)
    await traffic.start()

    async def churn(client, kind: str) -> None:
        for number in range(250):
            pattern = {"literal": f"{subject}.00", "wildcard": f"{subject}.>"}[kind]
            await client.send(f"SUB {pattern} {number}\r\nPING\r\n")
            await client.read_until_pong(20)
            await client.send(f"UNSUB {number}\r\nPING\r\n")
            await client.read_until_pong(20)
            client.inbox.clear()

    await asyncio.gather(*(churn(client, kind) for client, kind in zip(churners, ("literal", "wildcard"), strict=True)))
    await traffic.finish()
