"""What clients send that no well-behaved client sends; the broker and its other clients go on as if nothing were.

The answers to single bad operations are in tests/transcripts/; here is what takes many bytes, many connections, or
half an operation.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid

import pytest

from tests.support.wire import Client


@pytest.fixture
def subject() -> str:
    return f"bad.{uuid.uuid4().hex}"


@pytest.fixture
async def bystanders(cluster, subject):
    """Two connections that talk to each other; what they say still arrives when the test is over."""
    listener, talker = await cluster.clients(2, on_different_shards=True)
    await listener.talk(f"SUB {subject}.by 1\r\nPING\r\n", expect="PONG\r\n")
    yield
    await talker.send(f"PUB {subject}.by 5\r\nstill\r\n")
    await listener.expect(f"MSG {subject}.by 1 5\r\nstill\r\n")


@pytest.mark.parametrize("verb", ["SUB ", "PUB ", "UNSUB ", "CONNECT "])
async def test_a_line_without_end_is_cut_off(cluster, bystanders, verb):
    """A megabyte without a line end: closed with an error, long before all of it was read."""
    client = await cluster.raw()
    sending = asyncio.create_task(client.send(verb.encode() + b"x" * (1 << 20)))
    assert await client.wait_closed() in (b"-ERR 'maximum control line exceeded'\r\n", b"")
    await sending


async def test_a_line_that_comes_byte_by_byte_is_not_too_long(cluster, subject, bystanders):
    client = await cluster.client()
    await client.send_split(f"SUB {subject} 1\r\nPUB {subject} 2\r\nhi\r\n")
    await client.expect(f"MSG {subject} 1 2\r\nhi\r\n")


async def test_a_payload_that_never_comes_holds_up_nobody(cluster, subject, bystanders):
    listener = await cluster.client()
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    hanging = [await cluster.client() for _ in range(20)]
    for client in hanging:
        await client.send(f"PUB {subject} 1000000\r\n" + "x" * 1_000)
    other = await cluster.client()
    await other.talk(f"PUB {subject} 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 2\r\nhi\r\n")
    await listener.expect_quiet()
    # It may still come, a minute or an hour later.
    await hanging[0].send("x" * 999_000 + "\r\n")
    await listener.expect(f"MSG {subject} 1 1000000\r\n" + "x" * 1_000_000 + "\r\n")


async def test_resets_in_the_middle_of_a_payload_deliver_nothing(cluster, subject, bystanders):
    listener = await cluster.client()
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(100):
        client = await cluster.client()
        await client.send(f"PUB {subject} 70000\r\n" + "x" * (number * 300))
        client.reset()
    await listener.expect_quiet()


async def test_resets_before_and_during_connect(broker, cluster, bystanders):
    text = b'CONNECT {"verbose":false,"name":"gone"}\r\nPING\r\nSUB a 1\r\nPUB a 3\r\nabc\r\n'
    for length in range(len(text)):
        client = await Client.dial(broker.port)
        if length % 2:
            await client.read_info()
        await client.send(text[:length])
        client.reset()


async def test_half_a_connect_waits_for_the_rest(cluster, bystanders):
    client = await cluster.raw()
    await client.send('CONNECT {"verbose":fal')
    other = await cluster.client()
    await other.expect_quiet()
    await client.talk("se}\r\nPING\r\n", expect="PONG\r\n")


@pytest.mark.parametrize(
    "text",
    [b"{", b"}", b'{"verbose":}', b"\xff\xfe\xfd", b'{"verbose":false', b"\0\0\0\0", b'{"name":"\0"}', b"[1,2", b'"'],
    ids=repr,
)
async def test_a_connect_that_is_no_json_closes_silently(cluster, bystanders, text):
    client = await cluster.raw()
    await client.send(b"CONNECT " + text + b"\r\n")
    assert await client.wait_closed() == b""


async def test_noise_closes_with_one_error_at_most(cluster, bystanders):
    """Random bytes, from a fixed seed: always closed or still waiting for the rest of something, never stuck."""
    noise = random.Random(20220815)
    for _ in range(200):
        client = await cluster.raw()
        await client.send(noise.randbytes(noise.randrange(1, 2_000)))
        client.shut_writing()
        said = await client.wait_closed()
        assert said in (b"", b"-ERR 'Unknown Protocol Operation'\r\n")
        cluster.leave(client)


async def test_noise_after_good_operations(cluster, subject, bystanders):
    """Mutated conversations, from a fixed seed: the broker answers something well-formed, or closes."""
    noise = random.Random(20160704)
    good = (
        f'CONNECT {{"verbose":true,"headers":true}}\r\nSUB {subject}.x.* q 1\r\nPUB {subject}.x.y r 5\r\nhello\r\n'
        f"HPUB {subject}.x.y 12 14\r\nNATS/1.0\r\n\r\nhi\r\nUNSUB 1 5\r\nPING\r\n"
    ).encode()
    for _ in range(300):
        text = bytearray(good)
        for _ in range(noise.randrange(1, 4)):
            at = noise.randrange(len(text))
            match noise.randrange(3):
                case 0:
                    text[at] = noise.randrange(256)
                case 1:
                    del text[at : at + noise.randrange(1, 9)]
                case 2:
                    text[at:at] = noise.randbytes(noise.randrange(1, 9))
        client = await cluster.raw()
        await client.send(bytes(text))
        client.shut_writing()
        said = await client.wait_closed()
        assert said == b"" or said.startswith((b"+OK", b"-ERR '", b"MSG ", b"HMSG ", b"PONG")), said
        assert said == b"" or said.endswith(b"\r\n"), said
        cluster.leave(client)


async def _subscribe_many(client, subject: str, count: int, deadline_s: float) -> None:
    """SUB `count` times and prove by publishing that they are there; UNSUB them and prove that they are gone."""
    step = 5_000
    for start in range(0, count, step):
        lines = (f"SUB {subject}.{number} {number}\r\n" for number in range(start, min(start + step, count)))
        await client.send("".join(lines), deadline_s)
    await client.talk("PING\r\n", expect="PONG\r\n", deadline_s=deadline_s)
    some = [*range(0, count, max(1, count // 500)), count - 1]
    for number in some:
        await client.send(f"PUB {subject}.{number} 1\r\nx\r\n")
        await client.expect(f"MSG {subject}.{number} {number} 1\r\nx\r\n", deadline_s)
    for start in range(0, count, step):
        await client.send(
            "".join(f"UNSUB {number}\r\n" for number in range(start, min(start + step, count))), deadline_s
        )
    await client.talk("PING\r\n", expect="PONG\r\n", deadline_s=deadline_s)
    for number in some:
        await client.send(f"PUB {subject}.{number} 1\r\nx\r\n")
    await client.talk("PING\r\n", expect="PONG\r\n", deadline_s=deadline_s)


async def test_a_hundred_thousand_subscriptions_of_one_client(cluster, subject, bystanders):
    await _subscribe_many(await cluster.client(), subject, 100_000, deadline_s=30)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("GNATSWARM_SLOW") != "1", reason="opt-in: GNATSWARM_SLOW=1")
async def test_a_million_subscriptions_of_one_client(cluster, subject, bystanders):
    await _subscribe_many(await cluster.client(), subject, 1_000_000, deadline_s=300)


async def test_a_hundred_thousand_subscriptions_leave_with_their_connection(cluster, subject, bystanders):
    client = await cluster.client()
    for start in range(0, 100_000, 5_000):
        await client.send(
            "".join(f"SUB {subject}.{number}.* {number}\r\n" for number in range(start, start + 5_000)), 30
        )
    await client.talk("PING\r\n", expect="PONG\r\n", deadline_s=30)
    client.reset()
    asker = await cluster.client({"headers": True, "no_responders": True})
    await asker.talk("SUB reply 1\r\nPING\r\n", expect="PONG\r\n")
    async with asyncio.timeout(30):
        while not asker.inbox:
            await asker.send(f"PUB {subject}.99999.x reply 0\r\n\r\n")
            await asker.flush()
    assert asker.inbox.pop().raw == b"HMSG reply 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"


async def test_three_thousand_connections_at_once(cluster, subject, bystanders):
    async def connect() -> Client:
        client = await Client.connect(cluster.broker.port, {"verbose": False}, deadline_s=30)
        cluster.all.append(client)
        return client

    for _ in range(30):
        await asyncio.gather(*(connect() for _ in range(100)))
    clients = cluster.all[-3_000:]
    for client in clients[::100]:
        await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await clients[1].talk(f"PUB {subject} 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    assert await cluster.delivered(30, then_quiet=True, among=clients[::100]) == [b"hi"] * 30


async def test_a_broker_out_of_descriptors_serves_those_it_has(start_broker, cluster_of, subject):
    """With 256 descriptors 400 connections are too many; those inside go on, and when some leave others get in."""
    broker = start_broker(descriptors=256)
    cluster = cluster_of(broker)
    listener, talker = await cluster.clients(2, on_different_shards=True)
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    crowd = []
    for _ in range(400):
        client = await Client.dial(broker.port)
        cluster.all.append(client)
        crowd.append(client)
    for number in range(20):
        await talker.send(f"PUB {subject} 2\r\n{number:02}\r\n")
        await listener.expect(f"MSG {subject} 1 2\r\n{number:02}\r\n")
    assert broker.is_running
    for client in crowd:
        client.close()
    # The broker may wait a little between attempts to accept.
    late = await Client.connect(broker.port, {"verbose": False}, deadline_s=30)
    cluster.all.append(late)
    await late.talk(f"PUB {subject} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 2\r\nok\r\n")


async def test_connections_that_say_nothing_do_no_harm(cluster, broker, bystanders):
    """Port scanners and health checks: connect, and go, with and without reading INFO."""
    for number in range(200):
        client = await Client.dial(broker.port)
        if number % 3 == 0:
            await client.read_info()
        if number % 2:
            client.reset()
        else:
            client.close()
