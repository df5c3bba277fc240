"""/stacksz shows where every process is, also one that does not answer."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.support.pages import Pages
from tests.support.wire import Client


@pytest.mark.kinds("gnatswarm-2", "nats-server")
async def test_the_page_has_the_stacks_of_every_process(start_broker, kind):
    broker = start_broker(args=["-m", "-1"])
    answer = await asyncio.to_thread(Pages.of(broker).get, "/stacksz")
    assert answer.status == 200 and "[running]:" in answer.text
    if kind.is_oracle:
        return
    pages = Pages.of(broker)
    pids = [shard["pid"] for shard in pages.json("/shardz")["shards"]]
    assert f"keeper {broker.pid} [running]:" in answer.text
    assert f"router {pages.json('/shardz')['router']['pid']} [running]:" in answer.text
    for number, pid in enumerate(pids):
        own = answer.text[answer.text.index(f"shard {number} {pid} [running]:") :]
        assert f"thread {pid} [kernel]: state " in own
        assert "shards/worker.py:" in own and "shards/monitoring/snapshots.py:" in own


@pytest.mark.kinds("gnatswarm-2")
async def test_a_shard_that_does_not_answer_is_shown_as_the_kernel_sees_it(start_broker):
    broker = start_broker(args=["-m", "-1"])
    pages = Pages.of(broker)
    pid = pages.json("/shardz")["shards"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    text = (await asyncio.to_thread(pages.get, "/stacksz")).text
    assert f"shard 1 {pid} [does not answer]:" in text
    assert "shard 0 " in text and "shards/worker.py:" in text


@pytest.mark.kinds("gnatswarm-1", "nats-server")
async def test_a_list_without_subscriptions_has_the_fields_of_one_with_some(start_broker):
    broker = start_broker(args=["-m", "-1"])
    pages = Pages.of(broker)
    empty = pages.json("/subsz?subs=1")
    client = await Client.connect(broker.port, {"verbose": False})
    await client.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    full = await pages.wait(
        "/subsz?subs=1", lambda page: len(page["subscriptions_list"]) > len(empty["subscriptions_list"])
    )
    client.close()
    assert [*empty] == [*full]
    assert (empty["offset"], empty["limit"], empty["total"]) == (0, 1024, len(empty["subscriptions_list"]))
