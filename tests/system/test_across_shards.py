"""What a client may rely on holds as well when the other client is on another shard: max, echo, headers, sizes."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.pages import Pages

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server")


async def test_unsub_max_is_exact_with_publishers_on_other_shards(place, subject):
    subscriber, *publishers = await place(4)
    for most in (1, 2, 7, 100):
        await subscriber.talk(f"SUB {subject} {most}\r\nUNSUB {most} {most}\r\nPING\r\n", expect="PONG\r\n")
        for publisher in publishers:
            await publisher.send(f"PUB {subject} 1\r\nx\r\n" * 60)
        await asyncio.gather(*(publisher.flush() for publisher in publishers))
        await subscriber.flush()
        assert [message.sid for message in subscriber.inbox] == [str(most)] * most
        subscriber.inbox.clear()


async def test_echo_false_holds_back_the_publishers_own_copy_only(place, subject):
    silent, *others = await place(4, {"echo": False})
    for client in (silent, *others):
        await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await silent.talk(f"PUB {subject} 1\r\nx\r\n".encode() * 20 + b"PING\r\n", expect="PONG\r\n")
    for other in others:
        await other.talk("PING\r\n", expect=f"MSG {subject} 1 1\r\nx\r\n" * 20 + "PONG\r\n")


async def test_headers_reach_who_takes_them_and_are_stripped_for_others(place, subject):
    publisher, with_headers = await place(2, {"headers": True})
    [without] = await place(1)
    for client in (with_headers, without):
        await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    head = b"NATS/1.0\r\nA: b\r\n\r\n"
    for size in (0, 1, 1_000, 32_767, 32_768, 100_000):
        body = b"z" * size
        total = len(head) + size
        name = subject.encode()
        await publisher.talk(
            b"HPUB %b r %d %d\r\n%b%b\r\nPING\r\n" % (name, len(head), total, head, body), expect="PONG\r\n"
        )
        await with_headers.expect(b"HMSG %b 1 r %d %d\r\n%b%b\r\n" % (name, len(head), total, head, body))
        await without.expect(b"MSG %b 1 r %d\r\n%b\r\n" % (name, size, body))


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_payloads_of_every_size_arrive_byte_for_byte(start_broker, cluster_of, subject):
    cluster = cluster_of(start_broker(config="max_payload: 8MB\n"))
    publisher, *subscribers = await cluster.clients(3, on_different_shards=True)
    for subscriber in subscribers:
        await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    pattern = bytes(range(256)) * 32_768
    sizes = (1, 2, 255, 256, 4_095, 32_767, 32_768, 65_535, 65_536, 262_144, 262_145, 1 << 20, 5_000_001, 8 << 20)
    for size in sizes:
        body = pattern[: size - 1] + b"\n"
        sending = asyncio.create_task(
            publisher.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), size, body), deadline_s=30)
        )
        expected = b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), size, body)
        for subscriber in subscribers:
            assert await subscriber.read_bytes(len(expected), deadline_s=30) == expected
        await sending


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")
async def test_one_message_to_a_thousand_subscriptions_spread_over_the_shards(cluster, subject):
    clients = await cluster.clients(40, on_different_shards=True)
    for client in clients:
        words = "".join(f"SUB {subject} {sid}\r\n" for sid in range(25))
        await client.talk(words + "PING\r\n", expect="PONG\r\n")
    publisher = await cluster.client()
    for number in range(20):
        await publisher.send(f"PUB {subject} 3\r\n{number:03}\r\n")
    await publisher.flush()
    for client in clients:
        await client.flush()
        got = [(message.payload, message.sid) for message in client.inbox]
        assert sorted(got) == sorted((b"%03d" % number, str(sid)) for number in range(20) for sid in range(25))
        assert [payload for payload, _ in got] == sorted(payload for payload, _ in got)


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")
async def test_a_message_goes_to_each_other_shard_once_whatever_the_number_of_subscribers_there(
    start_broker, cluster_of, subject
):
    broker = start_broker(args=["-m", "-1"])
    cluster, pages = cluster_of(broker), Pages.of(broker)
    publisher = await cluster.client_on(0)
    clients = await cluster.clients(4 * broker.kind.shards, on_different_shards=True)
    for client in clients:
        patterns = [subject, f"{subject} q", "s.*", "s.> q", "s.> other"]
        words = "".join(f"SUB {pattern} {sid}\r\n" for sid, pattern in enumerate(patterns))
        await client.talk(words + "PING\r\n", expect="PONG\r\n")
    await publisher.talk(f"PUB {subject} 1\r\nx\r\n".encode() * 200 + b"PING\r\n", expect="PONG\r\n")
    for client in clients:
        await client.flush()
    # Two plain subscriptions each, and one member of each of two groups.
    assert sum(len(client.inbox) for client in clients) == 200 * (2 * len(clients) + 2)
    sent = {(link["shard"], link["remote_shard"]): link["out_msgs"] for link in pages.json("/shardz")["links"]}
    assert sent == {pair: 200 if pair[0] == 0 else 0 for pair in sent}
    assert len(sent) == broker.kind.shards * (broker.kind.shards - 1)
