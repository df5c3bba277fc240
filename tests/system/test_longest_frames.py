"""Operations at the limits of their clients break no link between shards, whatever is added to them on their way."""

from __future__ import annotations

import pytest

from tests.support import swarm
from tests.support.servers import Broker
from tests.support.wire import Client, Cluster
from tests.system.test_log_in import reload

pytestmark = pytest.mark.kinds("gnatswarm-2", "nats-server")
OURS = pytest.mark.kinds("gnatswarm-2")

CONFIG = """
max_control_line: 131072
max_payload: 64MB
max_pending: 256MB
lame_duck_grace_period: 60s  # of which clients of a shard that leaves have a part, to move
lame_duck_duration: 120s
accounts {
  A { users: [{user: a, password: x}]
      imports: [{stream: {account: E, subject: "exporter.side.>"}, to: "p.>"}, {service: {account: E, subject: svc}}] }
  E { users: [{user: e, password: x}], exports: [{stream: "exporter.side.>"}, {service: svc}]
      mappings: { "m.*": "z.{{wildcard(1)}}.{{wildcard(1)}}.{{wildcard(1)}}" } }
}
"""
LARGEST = 64 * 1024 * 1024


@pytest.fixture
def broker(start_broker):
    return start_broker(config=CONFIG)


@pytest.fixture
def cluster(broker, cluster_of):
    return cluster_of(broker)


async def on(cluster: Cluster, shard: int, user: str = "e") -> Client:
    keys = {"headers": True, "no_responders": True, "pedantic": False, "user": user, "pass": "x"}
    return await cluster.client_on(shard, keys)


def broken(broker: Broker) -> list[str]:
    """What the log says of links that broke."""
    return [line for line in broker.log.text.splitlines() if "link to shard" in line]


async def test_a_request_of_the_largest_payload_crosses_accounts_and_shards(broker, cluster):
    """It has one more header line then."""
    responder, requestor = await on(cluster, 1, "e"), await on(cluster, 0, "a")
    await responder.talk("SUB svc 1\r\nPING\r\n", expect="PONG\r\n")
    await requestor.talk("SUB inbox 1\r\nPING\r\n", expect="PONG\r\n")
    await requestor.send(b"PUB svc inbox %d\r\n" % LARGEST + bytes(LARGEST) + b"\r\n", 60.0)
    (request,) = await responder.messages(1, 60.0)
    assert (len(request.payload), b"Nats-Request-Info" in request.raw[:200]) == (LARGEST, True)
    await responder.talk(f"PUB {request.reply} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    assert [frame.payload for frame in await requestor.messages(1)] == [b"ok"]
    assert not broken(broker)


@OURS
async def test_a_subscription_too_long_in_the_exporting_account_is_refused(broker, cluster):
    """nats-server takes it."""
    publisher, subscriber = await on(cluster, 1, "e"), await on(cluster, 0, "a")
    fits = "t" * (65_000 - len("exporter.side."))
    await subscriber.talk(f"SUB p.{fits}t 1\r\nPING\r\n", expect="-ERR 'Invalid Subject'\r\nPONG\r\n")
    await subscriber.talk(f"SUB p.{fits} 2\r\nPING\r\n", expect="PONG\r\n")
    await publisher.talk(
        f"PUB exporter.side.{fits} 1\r\nx\r\nPUB exporter.side.{fits}t 1\r\ny\r\nPING\r\n", expect="PONG\r\n"
    )
    await subscriber.flush()
    assert [(frame.sid, frame.payload) for frame in subscriber.inbox] == [("2", b"x")]
    assert not broken(broker)


@OURS
async def test_a_subscription_that_a_reload_makes_too_long_in_the_exporting_account_is_logged(broker, cluster):
    publisher, subscriber = await on(cluster, 1), await on(cluster, 0, "a")
    subject = "r." + "t" * (65_000 - 2)
    await subscriber.talk(f"SUB {subject} 1\r\nSUB r.x 2\r\nPING\r\n", expect="PONG\r\n")
    await reload(broker, CONFIG.replace('"p.>"', '"r.>"'))
    broker.log.wait_line("1 of its subscriptions hear nothing of an import: their subjects are too long")
    await publisher.talk("PUB exporter.side.x 1\r\nx\r\nPING\r\n", expect="PONG\r\n")
    assert [frame.sid for frame in await subscriber.flush()] == ["2"]
    assert not broken(broker)


async def test_a_mapping_may_repeat_what_a_client_wrote(broker, cluster):
    subscriber, publisher = await on(cluster, 1), await on(cluster, 0)
    await subscriber.talk("SUB z.> 1\r\nPING\r\n", expect="PONG\r\n")
    await publisher.talk(f"PUB m.{'a' * 60_000} 1\r\nx\r\nPING\r\n", expect="PONG\r\n")
    await subscriber.flush()
    assert [len(frame.subject) for frame in subscriber.inbox] == [180_004]
    if cluster.broker.kind.is_oracle:
        return
    await publisher.talk(
        f"PUB m.{'a' * 100_000} 1\r\nx\r\nPING\r\n", expect="-ERR 'Invalid Publish Subject'\r\nPONG\r\n"
    )
    await subscriber.flush()
    assert len(subscriber.inbox) == 1
    assert not broken(broker)


@OURS
async def test_clients_with_as_long_subscriptions_as_there_are_move(broker, cluster):
    """One has 67 MB of them, more than a frame between shards has, and two have 9 MB each."""
    crowd = [await on(cluster, 1) for _ in range(6)]
    subject = "s" * 64_000
    for client, n in zip(crowd, (1050, 140, 140, 1, 1, 1), strict=True):
        await client.send("".join(f"SUB {subject}.{sid} {sid}\r\n" for sid in range(n)), 60.0)
        await client.flush(60.0)
    publisher = await on(cluster, 0)
    await swarm.scale(broker, 1)
    await publisher.talk(f"PUB {subject}.0 1\r\nx\r\nPING\r\n", expect="PONG\r\n")
    for client in crowd:
        assert [(frame.sid, frame.payload) for frame in await client.flush()] == [("0", b"x")]
    assert not broken(broker)
