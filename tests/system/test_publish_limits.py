"""Publish limits hold for all clients of a user on all shards: they wait and lose nothing, or get an error."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable

import pytest

from tests.support.pages import Pages
from tests.support.servers import Broker
from tests.support.wire import Cluster
from tests.system.test_log_in import reload

pytestmark = pytest.mark.kinds("gnatswarm-2")
Start = Callable[..., Broker]

# bob's clients may publish forty messages at once, and then one per second.
CONFIG = """
system_account: S
accounts {
  S: { users: [ { user: sys, password: s } ] }
  A: {
    users: [
      { user: ann, password: a, publish_limits: { messages: 400, burst: "50ms", stall: "0s" } }
      { user: bob, password: b, publish_limits: { messages: 1, burst: "40s", stall: "200ms" } }
      { user: cal, password: d, publish_limits: { messages: 1, burst: "1h", stall: "0s" } }
      { user: all, password: c }
    ]
    publish_limits: { bytes: 1MB }
  }
}
"""


def user(name: str, password: str) -> dict[str, str]:
    return {"user": name, "pass": password}


async def test_limits_are_the_brokers_on_all_shards(
    start_broker: Start, cluster_of: Callable[[Broker], Cluster]
) -> None:
    broker = start_broker(args=["-m", "-1", "--no-stats"], config=CONFIG)
    pages = Pages.of(broker)
    cluster = cluster_of(broker)
    watch, system = await asyncio.gather(
        cluster.client(connect=user("all", "c")), cluster.client(connect=user("sys", "s"))
    )
    await watch.talk("SUB t.> 1\r\nPING\r\n", expect="PONG\r\n")
    await system.talk("SUB $SYS.ACCOUNT.A.DISCONNECT 1\r\nPING\r\n", expect="PONG\r\n")

    # Nothing is lost, doubled or reordered, though both have to wait.
    anns = await cluster.clients(2, on_different_shards=True, connect=user("ann", "a"))
    for n, ann in enumerate(anns):
        await ann.send("".join(f"PUB t.{n} {len(str(i))}\r\n{i}\r\n" for i in range(60)) + "PING\r\n")
    for ann in anns:
        await ann.expect("PONG\r\n")
    await watch.talk("PING\r\n", expect_last="PONG\r\n")
    inbox, watch.inbox = watch.inbox, []
    heard: dict[str, list[int]] = {"t.0": [], "t.1": []}
    for message in inbox:
        heard[message.subject].append(int(message.payload))
    assert heard == {"t.0": list(range(60)), "t.1": list(range(60))}

    # Forty messages over both shards, not forty on each; then an error.
    bobs = await cluster.clients(2, on_different_shards=True, connect=user("bob", "b"))
    for bob in bobs:
        await bob.send("PUB t.bob 1\r\nx\r\n" * 100)
    for bob in bobs:
        await bob.expect_line("-ERR 'Publish Rate Exceeded'")
        assert await bob.wait_closed() == b""
    async with asyncio.timeout(30):
        while len(watch.inbox) < 40:  # those of the other shard may come late
            await watch.talk("PING\r\n", expect_last="PONG\r\n")
    await watch.talk("PING\r\n", expect_last="PONG\r\n")
    assert len(watch.inbox) < 75

    page = await asyncio.to_thread(pages.json, "/deniedz")
    waits = {entry["user"]: entry["waits"] for entry in page["denied"]}
    assert set(waits) == {"ann", "bob"} and waits["ann"] >= 2 and waits["bob"] >= 2
    text = (await asyncio.to_thread(pages.get, "/metrics")).text
    counts = re.findall(r'gnatswarm_publish_limited_total\{account="A",user="bob",shard="\d"\} (\d+)\n', text)
    assert sum(map(int, counts)) == waits["bob"]
    connz = await asyncio.to_thread(pages.json, "/connz?auth=1")
    by_user = {one["authorized_user"]: one.get("publish_waits", 0) for one in connz["connections"]}
    assert by_user["ann"] >= 1 and by_user["all"] == 0
    closed = await asyncio.to_thread(pages.json, "/connz?state=closed&auth=1")
    reasons = [one["reason"] for one in closed["connections"] if one["cid"] in {bob.info["client_id"] for bob in bobs}]
    assert reasons == ["Publish Rate Exceeded"] * 2
    async with asyncio.timeout(30):
        while sum(b"Publish Rate Exceeded" in one.payload for one in system.inbox) < 2:
            await system.talk("PING\r\n", expect_last="PONG\r\n")
    events = [json.loads(one.payload) for one in system.inbox]
    assert [event["client"]["user"] for event in events if event["reason"] == "Publish Rate Exceeded"] == ["bob"] * 2
    assert 'Publish limit of User "bob" reached' in broker.log.text and "Publish Rate Exceeded" in broker.log.text

    # A reload lifts it, also for who waits: cal's first hour is used up, and the rest would come one by one.
    cals = await cluster.clients(2, on_different_shards=True, connect=user("cal", "d"))
    for cal in cals:
        await cal.send("PUB t.cal 1\r\nx\r\n" * 3700 + "PING\r\n")
    await asyncio.to_thread(broker.log.wait_line, 'Publish limit of User "cal" reached')
    raised = CONFIG.replace('messages: 1, burst: "1h"', 'messages: 1M, burst: "1s"')
    await reload(broker, raised.replace('publish_limits: { messages: 1, burst: "40s", stall: "200ms" }', ""))
    for cal in cals:
        await cal.expect("PONG\r\n")
    [bob] = await cluster.clients(1, connect=user("bob", "b"))
    await bob.talk("PUB t.again 1\r\nx\r\n" * 100 + "PING\r\n", expect="PONG\r\n")


async def test_what_was_sent_is_carried_out_though_the_broker_stops(
    start_broker: Start, cluster_of: Callable[[Broker], Cluster]
) -> None:
    """By clients that have closed, and one that has not, on either shard, for a subscriber on either."""
    broker = start_broker(args=["--no-stats"], config=CONFIG.replace('"200ms"', '"0s"'))
    cluster = cluster_of(broker)
    watching = await cluster.clients(2, on_different_shards=True, connect=user("all", "c"))
    for watch in watching:
        await watch.talk("SUB t 1\r\nPING\r\n", expect="PONG\r\n")
    bobs = [
        *await cluster.clients(2, on_different_shards=True, connect=user("bob", "b")),
        *await cluster.clients(2, on_different_shards=True, connect=user("bob", "b")),
    ]
    for bob in bobs:
        await bob.send("PUB t 1\r\nx\r\n" * 500)
    for bob in bobs[1:]:
        bob.close()
    broker.send_signal(signal.SIGTERM)
    for watch in watching:
        assert (await watch.wait_closed()).count(b"MSG t 1 1\r\nx\r\n") == 2000
