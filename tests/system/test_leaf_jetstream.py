"""JetStream of a hub, used by clients of a leaf node: streams, pull and push consumers, and key-value stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from tests.support.leaves import CREATED, hub_port
from tests.system.test_leaf import HUBS, Start, hub_config, leaf_config, start

__all__ = ["start"]  # the fixture


async def answers(client: Client, subject: str) -> None:
    """Returns when somebody answers requests to this subject: the hub has told its interest."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.request(subject, b"", timeout=30)
            except nats.errors.NoRespondersError:
                continue
            return


@pytest.mark.parametrize("hub_kind", HUBS)
async def test_streams_and_consumers_of_the_hub_work_through_a_leaf_node(
    start: Start, hub_kind: str, tmp_path: Path
) -> None:
    hub = start(hub_kind, hub_config(f"jetstream {{ store_dir: '{tmp_path}', max_mem: 10MB, max_file: 10MB }}\n"))
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    leaf.log.wait_line(CREATED)
    client = await nats.connect(f"nats://127.0.0.1:{leaf.port}")
    await answers(client, "$JS.API.INFO")
    jetstream = client.jetstream(timeout=30)
    await jetstream.add_stream(name="ORD", subjects=["ord.>"])
    for number in range(20):
        await jetstream.publish(f"ord.{number}", b"%d" % number)
    pull = await jetstream.pull_subscribe("ord.>", durable="d")
    found = await pull.fetch(20, timeout=30)
    # Each has the subject it was published on, and an acknowledgement that the hub understands.
    assert [(message.subject, message.data) for message in found] == [(f"ord.{n}", b"%d" % n) for n in range(20)]
    for message in found:
        await message.ack_sync(timeout=30)
    assert (await pull.consumer_info()).num_ack_pending == 0
    push = await jetstream.subscribe("ord.>", config=ConsumerConfig(deliver_policy=nats.js.api.DeliverPolicy.ALL))
    for number in range(20):
        message = await push.next_msg(timeout=30)
        assert (message.subject, message.data) == (f"ord.{number}", b"%d" % number)
        await message.ack_sync(timeout=30)
    await client.close()


@pytest.mark.parametrize("hub_kind", HUBS)
async def test_a_key_value_store_of_a_hub_with_a_domain_works(start: Start, hub_kind: str, tmp_path: Path) -> None:
    store = f"jetstream {{ domain: hub, store_dir: '{tmp_path}', max_mem: 10MB, max_file: 10MB }}\n"
    hub = start(hub_kind, hub_config(store))
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    leaf.log.wait_line(CREATED)
    client = await nats.connect(f"nats://127.0.0.1:{leaf.port}")
    at_hub = await nats.connect(f"nats://127.0.0.1:{hub.port}")
    bucket = await at_hub.jetstream(timeout=30).create_key_value(bucket="b")
    await bucket.put("k", b"1")
    await answers(client, "$JS.hub.API.INFO")
    mine = await client.jetstream(timeout=30, domain="hub").key_value("b")
    assert (await mine.get("k")).value == b"1"
    await bucket.put("k", b"2")
    assert (await mine.get("k")).value == b"2"
    await client.close()
    await at_hub.close()
