"""The router is killed under load: nobody who is connected notices, and what a router does goes on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.request
from functools import partial

import pytest

from tests.support import swarm
from tests.support.servers import Broker, session_pids, suspended
from tests.support.traffic import Traffic
from tests.support.turns import until
from tests.support.wire import Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

DEADLINE_S = 40.0
# Fewer than would end the broker, whenever they come.
DEATHS = 4


async def kill_router(broker: Broker) -> int:
    """Kill the router alone and wait until another answers; the new one's pid."""
    old = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    assert old != broker.pid
    seen = len(broker.log.lines)
    swarm.signal_shard(broker, old)
    await asyncio.to_thread(broker.log.wait_line, "The router died: killed by SIGKILL", DEADLINE_S, seen)
    new = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    assert new != old
    return int(new)


@pytest.mark.parametrize("accept", ["reuseport", "handoff"])
async def test_messages_flow_on_and_nobody_is_disconnected(start_broker, cluster_of, subject, accept):
    """Traffic fails for a message that is lost, doubled or out of order, and for a connection that is closed."""
    broker = start_broker(args=["--accept", accept])
    cluster: Cluster = cluster_of(broker)
    shards = broker.kind.shards
    publishers = [await swarm.client_on(cluster, at % shards) for at in range(3)]
    subscribers = [await swarm.client_on(cluster, (at + 1) % shards) for at in range(3)]
    before = await swarm.pids(broker)
    traffic = Traffic(publishers, subscribers, subject)
    await traffic.start()
    for _ in range(DEATHS):
        await traffic.progress(500)
        await kill_router(broker)
        await traffic.progress(500)
    assert await traffic.finish() >= 12_000
    assert await swarm.pids(broker) == before
    late = await swarm.client_on(cluster, shards - 1)
    await late.talk("PING\r\n", expect="PONG\r\n")


async def test_a_shard_that_dies_with_it_is_replaced_and_its_siblings_go_on(start_broker, cluster_of, subject):
    broker = start_broker()
    cluster = cluster_of(broker)
    victim = broker.kind.shards - 1
    publisher, subscriber = [await swarm.client_on(cluster, 0) for _ in range(2)]
    traffic = Traffic([publisher], [subscriber], subject)
    await traffic.start()
    for _ in range(DEATHS - 1):
        await traffic.progress(200)
        router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
        pid = (await swarm.pids(broker))[victim]
        os.kill(router, signal.SIGSTOP)  # so that it cannot know of the shard's death
        swarm.signal_shard(broker, pid)
        swarm.signal_shard(broker, router)
        await until(partial(_serves_anew, broker, victim, pid))
        await traffic.progress(200)
    assert await traffic.finish() >= 1_200


async def test_siblings_of_a_shard_that_dies_serve_on_while_the_router_does_nothing(start_broker, cluster_of, subject):
    """They see for themselves that it is dead: no link to it is missing, for which they would wait and end at last."""
    broker = start_broker()
    cluster = cluster_of(broker)
    victim = broker.kind.shards - 1
    before = await swarm.pids(broker)
    client = await swarm.client_on(cluster, 0)
    await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    with suspended(router):
        swarm.signal_shard(broker, before[victim])
        seen = len(broker.log.lines)
        served = asyncio.to_thread(broker.log.wait_line, f"shard 0 - Shard {victim} has ended", DEADLINE_S, seen)
        await client.talk(f"PUB {subject} 2\r\nhi\r\nPING\r\n", expect=f"MSG {subject} 1 2\r\nhi\r\nPONG\r\n")
        await served
        await client.talk(f"PUB {subject} 2\r\nhi\r\nPING\r\n", expect=f"MSG {subject} 1 2\r\nhi\r\nPONG\r\n")
    await until(partial(_serves_anew, broker, victim, before[victim]))
    after = await swarm.pids(broker)
    assert {shard: pid for shard, pid in after.items() if shard != victim} == {
        shard: pid for shard, pid in before.items() if shard != victim
    }


def _serves_anew(broker: Broker, shard: int, old_pid: int) -> bool:
    try:
        row = swarm.rows(broker)[shard]
    except (OSError, ValueError):  # the router died with the question
        return False
    return bool(row["phase"] == "ready" and row["pid"] != old_pid)


async def test_scaling_and_pages_go_on(start_broker, cluster_of):
    broker = start_broker(args=["-m", "-1"])
    cluster = cluster_of(broker)
    shards = broker.kind.shards
    port = int((await asyncio.to_thread(broker.log.wait_line, r"http monitor on \S+:(\d+)", DEADLINE_S))[1])
    clients = await cluster.clients(6)

    def first_sample() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/historyz", timeout=DEADLINE_S) as answer:
            return float(json.load(answer)["at"][0])

    since = await asyncio.to_thread(first_sample)
    for wanted in (shards + 1, shards):
        await kill_router(broker)
        assert f"{wanted} shard" in await swarm.scale(broker, wanted)

        def page() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=DEADLINE_S) as answer:
                return str(answer.read())

        found = re.search(r'"connections": ?(\d+)', await asyncio.to_thread(page))
        assert found is not None and int(found[1]) >= 1
        assert await asyncio.to_thread(first_sample) == since
    for client in clients[:1]:
        await client.talk("PING\r\n", expect_last="PONG\r\n")


@pytest.mark.kinds("gnatswarm-2")
async def test_alarms_hold_since_when_they_did(start_broker, cluster_of):
    config = "authorization { users: [ { user: a, password: b, permissions: { publish: ok } } ] }"
    broker = start_broker(args=["-m", "-1"], config=config)
    port = int((await asyncio.to_thread(broker.log.wait_line, r"http monitor on \S+:(\d+)", DEADLINE_S))[1])

    def denied() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/alarmz", timeout=DEADLINE_S) as answer:
            page = json.load(answer)
        return [page["watched_since"], *(one["since"] for one in page["alarms"] if one["alert"] == "GnatswarmDenied")]

    await asyncio.to_thread(denied)  # what counters are compared with
    [client] = await cluster_of(broker).clients(1, connect={"user": "a", "pass": "b"})
    await client.talk(
        "PUB no 0\r\n\r\nPING\r\n", expect="-ERR 'Permissions Violation for Publish to \"no\"'\r\nPONG\r\n"
    )
    await until(lambda: len(denied()) == 2)
    before = await asyncio.to_thread(denied)
    await kill_router(broker)
    assert await asyncio.to_thread(denied) == before


async def test_a_request_to_the_system_account_is_answered_by_the_next_router(start_broker, cluster_of):
    broker = start_broker(config="accounts { SYS: { users: [ {user: admin, password: s} ] } }\nsystem_account: SYS\n")
    [admin] = await cluster_of(broker).clients(1, connect={"user": "admin", "pass": "s"})
    await admin.talk("SUB answer 1\r\nPING\r\n", expect="PONG\r\n")
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    os.kill(router, signal.SIGSTOP)
    await admin.talk("PUB $SYS.REQ.SERVER.PING answer 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    swarm.signal_shard(broker, router)
    await admin.expect_line(r"MSG answer 1 \d+", DEADLINE_S)
    assert '"server"' in (await admin.expect_line(".*"))[0]


async def test_counters_never_fall(start_broker, cluster_of, subject):
    broker = start_broker(args=["-m", "-1"])
    [client] = await cluster_of(broker).clients(1)
    port = int((await asyncio.to_thread(broker.log.wait_line, r"http monitor on \S+:(\d+)", DEADLINE_S))[1])

    def counted() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=DEADLINE_S) as answer:
            found = re.search(rb'"in_msgs": ?(\d+)', answer.read())
        assert found is not None
        return int(found[1])

    await client.talk(b"PUB %b 2\r\nhi\r\n" % subject.encode() * 100 + b"PING\r\n", expect="PONG\r\n")
    assert await asyncio.to_thread(counted) == 100
    await kill_router(broker)
    await client.talk(b"PUB %b 2\r\nhi\r\n" % subject.encode() * 100 + b"PING\r\n", expect="PONG\r\n")
    assert await asyncio.to_thread(counted) == 200


@pytest.mark.kinds("gnatswarm-2")
async def test_a_broker_that_is_stopped_while_its_router_is_gone_leaves_no_file(start_broker, tmp_path):
    """Also if the main process is killed, and the router is what is left to clean up."""
    for stop, code in ((signal.SIGTERM, 1), (signal.SIGKILL, -signal.SIGKILL)):
        broker = start_broker(args=["-P", str(tmp_path / "broker.pid"), "--ports_file_dir", str(tmp_path)])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.pid", f"gnatswarm_{broker.pid}.ports"]
        router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
        if stop == signal.SIGTERM:
            os.kill(router, signal.SIGSTOP)  # it cannot stop the broker
        os.kill(broker.pid, stop)
        if stop == signal.SIGTERM:
            await until(partial(_has_taken_signals, broker.pid))
            swarm.signal_shard(broker, router)
        assert await asyncio.to_thread(broker.process.wait, DEADLINE_S) == code
        await until(lambda: not list(tmp_path.iterdir()))


async def test_a_pid_file_of_another_broker_stays(start_broker, tmp_path):
    path = tmp_path / "broker.pid"
    broker = start_broker(args=["-P", str(path)])
    path.write_text("1")
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    os.kill(router, signal.SIGSTOP)
    os.kill(broker.pid, signal.SIGTERM)
    await until(partial(_has_taken_signals, broker.pid))
    swarm.signal_shard(broker, router)
    assert await asyncio.to_thread(broker.process.wait, DEADLINE_S) == 1
    assert path.read_text() == "1"


def _has_taken_signals(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as stream:
        pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", stream.read(), re.MULTILINE)
    return not any(int(mask, 16) for mask in pending)


async def test_the_gateway_stays_too(start_broker):
    broker = start_broker(config='leafnodes { remotes: [ { url: "nats-leaf://127.0.0.1:1" } ] }\n')
    # It serves: one that does not yet ends with the router. The broker was ready without it.
    await asyncio.to_thread(broker.log.wait_line, "gateway - Error trying to connect as leafnode")
    before = set(session_pids(broker.pid))
    old = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    new = await kill_router(broker)
    assert set(session_pids(broker.pid)) == before - {old} | {new}
    assert len(before) == broker.kind.shards + 3  # the gateway, router and keeper
