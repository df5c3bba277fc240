"""JetStream of other members of the cluster, used by clients of a member without it as of a nats-server without it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from tests.support.turns import until
from tests.system.test_cluster import Start, cluster_config, is_meshed, route_port, start

__all__ = ["start"]  # the fixture

ACCOUNTS = """
accounts { APP { jetstream: enabled, users: [{user: app, password: app}] }
           NONE { users: [{user: nobody, password: nobody}] }
           SYS { users: [{user: s, password: s}] } }
system_account: SYS
"""


async def answers_with_a_leader(client: Client) -> None:
    """Returns when JetStream's servers have elected a leader; before that they answer nothing, or errors."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
                if b'"error"' not in (await client.request("$JS.API.INFO", b"", timeout=0.1)).data:
                    return


@pytest.mark.parametrize(
    ("kind", "member", "accounts", "login"),
    [
        ("nats-server", "gnatswarm-2", "", ""),
        ("nats-server-2.15", "gnatswarm-1", ACCOUNTS, "app:app@"),
        ("nats-server-2.15", "nats-server", ACCOUNTS, "app:app@"),
    ],
)
async def test_streams_consumers_and_stores_work_from_a_member_without_jetstream(
    start: Start, kind: str, member: str, accounts: str, login: str, tmp_path: Path
) -> None:
    # The first has no streams; it is the seed that the others know.
    first = start(member, cluster_config("without", more=accounts))
    seed = route_port(first)
    brokers = [first]
    for number in range(2):
        store = f"jetstream {{ store_dir: '{tmp_path}/{number}', max_mem: 10MB, max_file: 10MB }}\n"
        brokers.append(start(kind, cluster_config(f"with{number}", (seed,), store + accounts)))
    await until(lambda: is_meshed(brokers))
    client = await nats.connect(f"nats://{login}127.0.0.1:{first.port}")
    await answers_with_a_leader(client)
    jetstream = client.jetstream(timeout=30)
    config = StreamConfig(name="ORD", subjects=["ord.>"], num_replicas=2, storage=StorageType.MEMORY)
    config.allow_direct = True
    await jetstream.add_stream(config)
    for number in range(20):
        await jetstream.publish(f"ord.{number}", b"%d" % number)
    pull = await jetstream.pull_subscribe("ord.>", durable="d")
    found = await pull.fetch(20, timeout=30)
    assert [(message.subject, message.data) for message in found] == [(f"ord.{n}", b"%d" % n) for n in range(20)]
    for message in found:
        await message.ack_sync(timeout=30)
    assert (await pull.consumer_info()).num_ack_pending == 0
    push = await jetstream.subscribe("ord.>", config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL))
    for number in range(20):
        message = await push.next_msg(timeout=30)
        assert (message.subject, message.data) == (f"ord.{number}", b"%d" % number)
        await message.ack_sync(timeout=30)
    assert (await jetstream.get_msg("ORD", 3)).data == b"2"
    assert (await jetstream.get_msg("ORD", 3, direct=True)).data == b"2"
    bucket = await jetstream.create_key_value(bucket="b")
    await bucket.put("k", b"1")
    assert (await bucket.get("k")).value == b"1"
    objects = await jetstream.create_object_store(bucket="o")
    await objects.put("big", b"x" * 300_000)
    assert (await objects.get("big")).data == b"x" * 300_000
    await jetstream.delete_stream("ORD")
    await client.close()
    if accounts:  # an account without JetStream has none through the cluster either
        client = await nats.connect(f"nats://nobody:nobody@127.0.0.1:{first.port}")
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("$JS.API.INFO", b"", timeout=30)
        await client.close()
