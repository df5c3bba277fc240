"""Who gets what, in which order, with several connections."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import pytest


@pytest.fixture
def subject() -> str:
    return f"delivery.{uuid.uuid4().hex}"


def pub(subject: str, payload: bytes | str | int, reply: str = "") -> bytes:
    body = payload if isinstance(payload, bytes) else str(payload).encode()
    return b"PUB %b %b%d\r\n%b\r\n" % (subject.encode(), f"{reply} ".encode() if reply else b"", len(body), body)


async def test_each_publishers_messages_arrive_in_its_order(cluster, subject):
    """Four publishers at once, on different shards, and two subscribers: each sees each publisher in order."""
    subscribers = await cluster.clients(2, on_different_shards=True)
    publishers = await cluster.clients(4, on_different_shards=True)
    count = 2_000
    for subscriber in subscribers:
        await subscriber.talk(f"SUB {subject}.* 1\r\nPING\r\n", expect="PONG\r\n")

    async def publish(number: int) -> None:
        for start in range(0, count, 100):
            await publishers[number].send(b"".join(pub(f"{subject}.{number}", at) for at in range(start, start + 100)))
        await publishers[number].flush()

    await asyncio.gather(*(publish(number) for number in range(len(publishers))))
    for subscriber in subscribers:
        seen: dict[str, list[int]] = {}
        for message in await subscriber.messages(count * len(publishers), deadline_s=20):
            seen.setdefault(message.subject, []).append(int(message.payload))
        assert seen == {f"{subject}.{number}": list(range(count)) for number in range(len(publishers))}
        await subscriber.expect_quiet()


async def test_order_holds_across_subjects_of_one_publisher(cluster, subject):
    subscriber, publisher = await cluster.clients(2, on_different_shards=True)
    await subscriber.talk(f"SUB {subject}.> 1\r\nSUB {subject}.0 2\r\nUNSUB 2\r\nPING\r\n", expect="PONG\r\n")
    await publisher.send(b"".join(pub(f"{subject}.{number % 50}", number) for number in range(2_000)))
    assert [int(message.payload) for message in await subscriber.messages(2_000)] == list(range(2_000))


async def test_a_hundred_connections_each_get_every_message_once(cluster, subject):
    subscribers = await cluster.clients(100)
    for subscriber in subscribers:
        await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    publisher = await cluster.client()
    await publisher.send(b"".join(pub(subject, number) for number in range(50)))
    await publisher.flush()
    for subscriber in subscribers:
        assert [int(message.payload) for message in await subscriber.messages(50)] == list(range(50))
        await subscriber.expect_quiet()


async def test_a_pong_makes_the_subscription_visible_to_every_other_connection(cluster, subject):
    clients = await cluster.clients(4, on_different_shards=True)
    for number in range(200):
        subscriber, publisher = clients[number % 4], clients[(number * 7 + 1 + number // 4) % 4]
        await subscriber.talk(f"SUB {subject}.{number} {number}\r\nPING\r\n", expect="PONG\r\n")
        await publisher.send(pub(f"{subject}.{number}", number))
        await subscriber.expect(f"MSG {subject}.{number} {number} {len(str(number))}\r\n{number}\r\n")


async def test_a_pong_makes_the_unsubscription_visible_to_every_other_connection(cluster, subject):
    subscriber, publisher = await cluster.clients(2, on_different_shards=True)
    for number in range(100):
        await subscriber.talk(f"SUB {subject} {number}\r\nPING\r\n", expect="PONG\r\n")
        await subscriber.talk(f"UNSUB {number}\r\nPING\r\n", expect="PONG\r\n")
        await publisher.talk(pub(subject, number) + b"PING\r\n", expect="PONG\r\n")
        await subscriber.expect_quiet()


async def test_a_publishers_pong_means_that_its_messages_are_queued_everywhere(cluster, subject):
    subscriber, publisher = await cluster.clients(2, on_different_shards=True)
    await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(100):
        await publisher.talk(pub(subject, f"{number:03}") + b"PING\r\n", expect="PONG\r\n")
        await subscriber.talk(b"PING\r\n", expect=f"MSG {subject} 1 3\r\n{number:03}\r\nPONG\r\n")


async def test_a_reply_published_by_a_responder_reaches_the_requester(cluster, subject):
    requester, responder = await cluster.clients(2, on_different_shards=True)
    await responder.talk(f"SUB {subject}.ask 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(100):
        # No flush between SUB and the request: one connection's operations are in order, its inbox counts too.
        inbox = f"{subject}.inbox.{number}"
        await requester.send(
            f"SUB {inbox} {number}\r\nUNSUB {number} 1\r\n".encode() + pub(f"{subject}.ask", "?", inbox)
        )
        [request] = await responder.messages(1)
        assert request.reply == inbox
        await responder.send(pub(request.reply, f"!{number}"))
        [answer] = await requester.messages(1)
        assert (answer.subject, answer.payload) == (inbox, f"!{number}".encode())


async def test_echo_false_holds_back_only_the_publishers_own_copy(cluster, subject):
    silent = await cluster.client({"echo": False})
    other = await cluster.client()
    for client in (silent, other):
        await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await silent.send(b"".join(pub(subject, f"s{number}") for number in range(10)))
    await silent.flush()
    await other.send(b"".join(pub(subject, f"o{number}") for number in range(10)))
    await other.flush()
    assert await cluster.delivered(10, then_quiet=True, among=[silent]) == [f"o{n}".encode() for n in range(10)]
    await other.flush()
    assert {message.payload for message in other.inbox} == {f"{c}{n}".encode() for c in "so" for n in range(10)}


async def test_a_queue_group_spreads_messages_evenly(cluster, subject):
    """Chi-square over the counts of 8 members; a fair choice exceeds 45 (7 degrees of freedom) once in 10 million."""
    members = await cluster.clients(8, on_different_shards=True)
    for member in members:
        await member.talk(f"SUB {subject} workers 1\r\nPING\r\n", expect="PONG\r\n")
    publishers = await cluster.clients(2, on_different_shards=True)
    total = 8_000
    for publisher in publishers:
        share = total // len(publishers)
        for start in range(0, share, 500):
            await publisher.send(b"".join(pub(subject, number) for number in range(start, start + 500)))
        await publisher.flush()
    counts = []
    for member in members:
        await member.flush()
        counts.append(len(member.inbox))
    assert sum(counts) == total
    expected = total / len(members)
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    assert chi_square < 45, f"uneven: {counts}"


async def test_a_queue_group_counts_members_not_connections(cluster, subject):
    """A connection with three memberships gets three times as much as one with one."""
    one, three = await cluster.clients(2, on_different_shards=True)
    await one.talk(f"SUB {subject} workers 1\r\nPING\r\n", expect="PONG\r\n")
    await three.talk(
        f"SUB {subject} workers 1\r\nSUB {subject} workers 2\r\nSUB {subject} workers 3\r\nPING\r\n", expect="PONG\r\n"
    )
    publisher = await cluster.client()
    total = 4_000
    await publisher.send(b"".join(pub(subject, number) for number in range(total)))
    await publisher.flush()
    for client in (one, three):
        await client.flush()
    assert len(one.inbox) + len(three.inbox) == total
    counts = [len(one.inbox), *Counter(message.sid for message in three.inbox).values()]
    assert sum((count - total / 4) ** 2 / (total / 4) for count in counts) < 40, f"uneven: {counts}"


async def test_queue_groups_and_plain_subscribers_each_get_their_own_copy(cluster, subject):
    plain = await cluster.clients(3, on_different_shards=True)
    red = await cluster.clients(3, on_different_shards=True)
    blue = await cluster.clients(2, on_different_shards=True)
    for client in plain:
        await client.talk(f"SUB {subject}.> 1\r\nPING\r\n", expect="PONG\r\n")
    for number, client in enumerate(red):
        pattern = [f"{subject}.*", f"{subject}.x", f"{subject}.>"][number]
        await client.talk(f"SUB {pattern} red 1\r\nPING\r\n", expect="PONG\r\n")
    for client in blue:
        await client.talk(f"SUB {subject}.x blue 1\r\nPING\r\n", expect="PONG\r\n")
    publisher = await cluster.client()
    await publisher.send(b"".join(pub(f"{subject}.x", number) for number in range(100)))
    await publisher.flush()
    everything = [str(number).encode() for number in range(100)]
    for client in plain:
        assert await cluster.delivered(100, then_quiet=True, among=[client]) == everything
    for group in (red, blue):
        assert sorted(await cluster.delivered(100, then_quiet=True, among=group)) == sorted(everything)


async def test_a_queue_member_that_left_gets_nothing_and_nothing_is_lost(cluster, subject):
    stays, leaves, publisher = await cluster.clients(3, on_different_shards=True)
    for client in (stays, leaves):
        await client.talk(f"SUB {subject} q 1\r\nPING\r\n", expect="PONG\r\n")
    await publisher.send(b"".join(pub(subject, number) for number in range(100)))
    await publisher.flush()
    await leaves.talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")
    await publisher.send(b"".join(pub(subject, number) for number in range(100, 200)))
    await publisher.flush()
    await leaves.expect_quiet()
    await stays.flush()
    got = [int(message.payload) for client in (stays, leaves) for message in client.inbox]
    assert sorted(got) == list(range(200))
    assert all(int(message.payload) < 100 for message in leaves.inbox)


async def test_a_client_may_write_forty_megabytes_to_itself_before_it_reads(start_broker, cluster_of, subject):
    """On a busy machine the writing takes longer than a slow reader has by default, 10 s (seen on nats-server)."""
    cluster = cluster_of(start_broker(config='write_deadline: "60s"\n'))
    client = await cluster.client()
    await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    payload, count = b"x" * 65_536, 640
    for _ in range(count):
        await client.send(pub(subject, payload), deadline_s=30)
    await client.send(b"PING\r\n", deadline_s=30)
    expected = f"MSG {subject} 1 {len(payload)}\r\n".encode() + payload + b"\r\n"
    for _ in range(count):
        assert await client.read_bytes(len(expected), deadline_s=30) == expected
    await client.expect(b"PONG\r\n", deadline_s=30)


async def test_large_and_small_messages_keep_their_order(cluster, subject):
    subscriber, publisher = await cluster.clients(2, on_different_shards=True)
    await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    sizes = [0, 1, 300_000, 7, 32_768, 32_767, 2, 1_048_576, 3, 65_536, 0, 262_144, 5] * 3
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]

    async def publish() -> None:
        for payload in payloads:
            await publisher.send(pub(subject, payload))

    task = asyncio.create_task(publish())
    got = [message.payload for message in await subscriber.messages(len(payloads), deadline_s=20)]
    await task
    assert got == payloads


async def test_a_subscription_is_gone_when_its_connection_is(cluster, subject):
    """Behaviour tells: a request on its subject gets `no responders`."""
    asker = await cluster.client({"headers": True, "no_responders": True})
    await asker.talk(f"SUB {subject}.reply 1\r\nPING\r\n", expect="PONG\r\n")
    for _ in range(20):
        subscriber = await cluster.client()
        await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
        subscriber.close()
        async with asyncio.timeout(30):
            while True:
                await asker.send(pub(subject, "?", f"{subject}.reply"))
                await asker.flush()
                if asker.inbox:
                    break
        assert asker.inbox.pop().raw.endswith(b"NATS/1.0 503\r\n\r\n\r\n")
        assert not asker.inbox


async def test_a_thousand_connections_that_come_and_go_leave_nothing_behind(start_broker, cluster_of, subject):
    """A broker for at most 20 connections serves 1,000, one batch after the other, and then still exactly 20."""
    broker = start_broker(config="max_connections: 20\n")
    cluster = cluster_of(broker)

    async def admitted():
        """A connection that is not refused; the broker may notice a moment late that the last batch has gone."""
        async with asyncio.timeout(30):
            while True:
                client = await cluster.raw()
                await client.send('CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
                line = await client.read_line()
                if line == b"PONG\r\n":
                    return client
                assert line == b"-ERR 'maximum connections exceeded'\r\n"
                cluster.leave(client)

    for batch in range(100):
        clients = [await admitted() for _ in range(10)]
        for number, client in enumerate(clients):
            await client.send(f"SUB {subject}.{batch} {number}\r\nSUB {subject}.* q {number}q\r\nPING\r\n")
            await client.expect("PONG\r\n")
        cluster.leave(*clients)
    last = [await admitted() for _ in range(20)]
    refused = await cluster.raw()
    await refused.expect("-ERR 'maximum connections exceeded'\r\n")
    assert await refused.wait_closed() == b""
    asker = last[0]
    await asker.talk("SUB reply 1\r\nPING\r\n", expect="PONG\r\n")
    for batch in (0, 42, 99):
        async with asyncio.timeout(30):
            while not asker.inbox:
                await asker.send(pub(f"{subject}.{batch}", "?", "reply"))
                await asker.flush()
        assert asker.inbox.pop().raw == b"HMSG reply 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
        assert not asker.inbox


async def test_client_ids_are_unique_and_the_server_is_one(cluster):
    clients = await cluster.clients(8, on_different_shards=True)
    assert len({client.info["client_id"] for client in clients}) == 8
    for key in ("server_id", "server_name", "version", "max_payload", "port"):
        assert len({client.info[key] for client in clients}) == 1, key
