"""A PONG is a fence over the whole broker: what a client sent before its PING has taken effect on every shard."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support import swarm

ALL = ("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server")
SEVERAL = ("gnatswarm-2", "gnatswarm-4")
pytestmark = pytest.mark.kinds(*ALL)

# More than a fence needs on a machine that does something else; far less than a hung one takes.
FENCE_DEADLINE_S = 30.0


async def test_a_subscription_is_there_for_whoever_publishes_next(place, subject):
    """2,000 times, between clients in turn, with nothing between the PONG and the publish on another connection."""
    clients = await place(4)
    for number in range(2_000):
        subscriber, publisher = clients[number % 4], clients[(number + 1 + number // 4 % 3) % 4]
        await subscriber.talk(f"SUB {subject}.{number} {number}\r\nPING\r\n", expect="PONG\r\n")
        await publisher.send(f"PUB {subject}.{number} 1\r\nx\r\n")
        await subscriber.expect(f"MSG {subject}.{number} {number} 1\r\nx\r\n")


@pytest.mark.parametrize("pattern", ["*", ">", "*.{n}", "{n}.>"])
async def test_a_wildcard_subscription_is_there_too(place, subject, pattern):
    subscriber, publisher = await place(2)
    for number in range(300):
        mine = f"{subject}.{pattern.format(n=number)}"
        await subscriber.talk(f"SUB {mine} {number}\r\nPING\r\n", expect="PONG\r\n")
        sent = {"*": f"{number}", ">": f"{number}.a", "*.{n}": f"a.{number}", "{n}.>": f"{number}.a.b"}[pattern]
        await publisher.send(f"PUB {subject}.{sent} 1\r\nx\r\n")
        await subscriber.expect(f"MSG {subject}.{sent} {number} 1\r\nx\r\n")
        await subscriber.talk(f"UNSUB {number}\r\nPING\r\n", expect="PONG\r\n")


async def test_a_queue_membership_is_there_too(place, subject):
    subscriber, publisher = await place(2)
    for number in range(500):
        await subscriber.talk(f"SUB {subject} q{number % 7} {number}\r\nPING\r\n", expect="PONG\r\n")
        await publisher.send(f"PUB {subject} 1\r\nx\r\n")
        await subscriber.expect(f"MSG {subject} {number} 1\r\nx\r\n")
        await subscriber.talk(f"UNSUB {number}\r\nPING\r\n", expect="PONG\r\n")


async def test_what_was_unsubscribed_is_gone_for_whoever_publishes_next(place, subject):
    subscriber, publisher = await place(2)
    for number in range(500):
        await subscriber.talk(f"SUB {subject} {number}\r\nPING\r\n", expect="PONG\r\n")
        await subscriber.talk(f"UNSUB {number}\r\nPING\r\n", expect="PONG\r\n")
        await publisher.talk(f"PUB {subject} 1\r\nx\r\nPING\r\n", expect="PONG\r\n")
        await subscriber.expect_quiet()


async def test_no_responder_is_seen_after_the_responders_unsubscribe_was_acknowledged(place, subject):
    """The publisher's own shard must have forgotten it, or it would wait for an answer that never comes."""
    responder, asker = await place(2, {"headers": True, "no_responders": True})
    await asker.talk(f"SUB {subject}.r 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(300):
        await responder.talk(f"SUB {subject} {number}\r\nPING\r\n", expect="PONG\r\n")
        await asker.talk(f"PUB {subject} {subject}.r 1\r\n?\r\nPING\r\n", expect="PONG\r\n")
        await responder.expect(f"MSG {subject} {number} {subject}.r 1\r\n?\r\n")
        await responder.talk(f"UNSUB {number}\r\nPING\r\n", expect="PONG\r\n")
        await asker.send(f"PUB {subject} {subject}.r 1\r\n?\r\n")
        await asker.expect(f"HMSG {subject}.r 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")


async def test_what_was_published_before_the_ping_is_delivered_before_the_pong(place, subject):
    """Once the publisher has its PONG, the answer to a subscriber's PING comes behind the messages."""
    publisher, *subscribers = await place(4)
    for subscriber in subscribers:
        await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(500):
        words = b"".join(b"PUB %b 6\r\n%06d\r\n" % (subject.encode(), number * 10 + n) for n in range(3))
        await publisher.talk(words + b"PING\r\n", expect="PONG\r\n")
        for subscriber in subscribers:
            expected = b"".join(b"MSG %b 1 6\r\n%06d\r\n" % (subject.encode(), number * 10 + n) for n in range(3))
            await subscriber.talk(b"PING\r\n", expect=expected + b"PONG\r\n")


async def test_forty_clients_fence_at_once(place, subject):
    """Each asks its neighbour to publish the moment it has its PONG, 50 times."""
    clients = await place(40)

    async def rounds(at: int) -> None:
        mine, neighbour = clients[at], clients[(at + 1) % len(clients)]
        for number in range(50):
            name = f"{subject}.{at}.{number}"
            await mine.send(f"SUB {name} {number}\r\nUNSUB {number} 1\r\nPING\r\n")
            await pongs[at].get()
            await neighbour.send(f"PUB {name} 1\r\nx\r\n")
            await messages[at].get()

    async def read(at: int) -> None:
        while True:
            frame = await clients[at].read_frame(deadline_s=60)
            await (pongs if frame.verb == "PONG" else messages)[at].put(None)

    pongs: list[asyncio.Queue[None]] = [asyncio.Queue() for _ in clients]
    messages: list[asyncio.Queue[None]] = [asyncio.Queue() for _ in clients]
    readers = [asyncio.create_task(read(at)) for at in range(len(clients))]
    async with asyncio.timeout(60):
        await asyncio.gather(*(rounds(at) for at in range(len(clients))))
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)


async def test_a_verbose_clients_oks_stay_behind_its_pong(place, subject):
    subscriber, verbose = await place(2)
    await verbose.talk('CONNECT {"verbose":true}\r\n', expect="+OK\r\n")
    await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(300):
        await verbose.talk(
            f"PUB {subject} 1\r\na\r\nPING\r\nPUB {subject} 1\r\nb\r\nSUB {subject}.x {number}\r\nPING\r\nPING\r\n"
            f"UNSUB {number}\r\nPUB {subject} 1\r\nc\r\nPING\r\n",
            expect="+OK\r\nPONG\r\n+OK\r\n+OK\r\nPONG\r\nPONG\r\n+OK\r\n+OK\r\nPONG\r\n",
        )
        await subscriber.talk(
            "PING\r\n", expect="".join(f"MSG {subject} 1 1\r\n{letter}\r\n" for letter in "abc") + "PONG\r\n"
        )


async def test_pings_in_a_row_are_answered_in_a_row(place, subject):
    """Operations and PINGs in one segment: one PONG each, its own messages before it, byte for byte."""
    other, client = await place(2)
    await other.talk(f"SUB {subject}.> 1\r\nPING\r\n", expect="PONG\r\n")
    count = 200
    sent = "".join(
        f"SUB {subject}.{n} {n}\r\nPING\r\nPUB {subject}.{n} 2\r\nhi\r\nPING\r\nPING\r\n" for n in range(count)
    )
    expected = "".join(f"PONG\r\nMSG {subject}.{n} {n} 2\r\nhi\r\nPONG\r\nPONG\r\n" for n in range(count))
    for _ in range(3):
        await client.talk(sent, expect=expected)
        await client.talk("".join(f"UNSUB {n}\r\n" for n in range(count)) + "PING\r\n", expect="PONG\r\n")
    await other.talk(
        "PING\r\n", expect="".join(f"MSG {subject}.{n} 1 2\r\nhi\r\n" for n in range(count)) * 3 + "PONG\r\n"
    )


async def test_a_client_that_leaves_while_its_pong_is_due_disturbs_nobody(place, subject, cluster):
    witness, subscriber = await place(2)
    await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(100):
        [leaver] = await place(1)
        await leaver.send(f"SUB {subject}.x {number}\r\nPUB {subject} 3\r\n{number:03}\r\nPING\r\nPING\r\n")
        if number % 2:
            leaver.reset()
        else:
            leaver.close()
        cluster.all.remove(leaver)
        await witness.talk(f"SUB {subject}.w.{number} {number}\r\nPING\r\n", expect="PONG\r\n")
    # A reset may throw away what had not been read; an orderly end may not.
    await subscriber.flush()
    got = {int(message.payload) for message in subscriber.inbox}
    assert got >= set(range(0, 100, 2)), "what a client wrote before it left was lost"


@pytest.mark.kinds(*SEVERAL)
async def test_a_fence_does_not_hang_when_a_sibling_is_killed(start_broker, cluster_of, subject):
    """Fences in a tight loop while shards are killed, one after the other."""
    broker = start_broker()
    cluster = cluster_of(broker)
    last = broker.kind.shards - 1
    fencing = [await cluster.client_on(0) for _ in range(3)]
    is_over = False
    rounds = [0] * len(fencing)

    async def fence(at: int) -> None:
        while not is_over:
            await fencing[at].talk(
                f"SUB {subject}.{at}.{rounds[at]} {rounds[at]}\r\nPING\r\nUNSUB {rounds[at]}\r\nPING\r\n",
                expect="PONG\r\nPONG\r\n",
                deadline_s=FENCE_DEADLINE_S,
            )
            rounds[at] += 1

    tasks = [asyncio.create_task(fence(at)) for at in range(len(fencing))]
    for number in range(4):
        await swarm.kill(broker, last if number % 2 else 1)
        back = await swarm.client_on(cluster, last if number % 2 else 1)
        # It has its siblings' interest, and they have its own.
        await back.talk(f"SUB {subject}.back 1\r\nPING\r\n", expect="PONG\r\n")
        before = list(rounds)
        async with asyncio.timeout(FENCE_DEADLINE_S):
            while any(now < then + 20 for now, then in zip(rounds, before, strict=True)):
                await back.expect_quiet()
    is_over = True
    await asyncio.gather(*tasks)


@pytest.mark.kinds(*SEVERAL)
async def test_a_sibling_that_hangs_is_replaced_and_the_fence_goes_on(start_broker, cluster_of, subject):
    broker = start_broker()
    cluster = cluster_of(broker)
    client = await cluster.client_on(0)
    hung = (await swarm.pids(broker))[1]
    swarm.signal_shard(broker, hung, signal.SIGSTOP)
    await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n", deadline_s=FENCE_DEADLINE_S)
    back = await swarm.client_on(cluster, 1)
    await back.send(f"PUB {subject} 1\r\nx\r\n")
    await client.expect(f"MSG {subject} 1 1\r\nx\r\n")
    assert (await swarm.pids(broker))[1] != hung
