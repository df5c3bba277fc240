"""Requests to another account are answered though the shard that they were made on has left in order meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import RestartRequest
from tests.support import swarm
from tests.support.servers import Broker
from tests.support.wire import Client
from tests.system.test_imports_exports import CONFIG, asked, on, subjects

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

RESTART_S = 60.0


@pytest.fixture
def exchange_of_accounts(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    return broker, cluster_of(broker)


async def restart(broker: Broker) -> str:
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RestartRequest(), RESTART_S)
    assert not reply.error, reply.error
    return reply.text


async def wait_gone(broker: Broker, shard: int) -> None:
    async with asyncio.timeout(swarm.SCALE_DEADLINE_S):
        while shard in await swarm.pids(broker):
            pass


async def request(responder: Client, asker: Client, words: str) -> str:
    """Ask, and return where the answer goes."""
    await asker.talk(f"{words}\r\nPING\r\n", expect="PONG\r\n")
    _, reply = await asked(responder)
    return reply


@pytest.mark.parametrize("leaves", ["the asker's shard", "the responder's shard"])
async def test_an_answer_comes_though_a_shard_has_left_since_the_request(exchange_of_accounts, leaves):
    broker, cluster = exchange_of_accounts
    last = broker.kind.shards - 1
    stays, goes = ("a", "b") if leaves == "the asker's shard" else ("b", "a")
    clients = {stays: await on(cluster, stays, 0), goes: await on(cluster, goes, last)}
    responder, asker = clients["a"], clients["b"]
    await responder.talk("SUB req.> 1\r\nSUB st.x 2\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk("SUB in 1\r\nSUB many 2\r\nPING\r\n", expect="PONG\r\n")
    single = await request(responder, asker, "PUB loc in 2\r\nhi")
    many = await request(responder, asker, "PUB st.x many 2\r\nhi")
    assert int(single[4:6], 16) == int(many[4:6], 16) == (last if goes == "b" else 0)
    await responder.talk(f"PUB {many} 1\r\n1\r\nPING\r\n", expect="PONG\r\n")
    await swarm.scale(broker, last)
    await wait_gone(broker, last)
    answers = f"PUB {single} 2\r\nok\r\nPUB {single} 5\r\nagain\r\nPUB {many} 1\r\n2\r\nPUB {many} 0\r\n\r\n"
    await responder.talk(f"{answers}PUB {many} 4\r\nlate\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(asker) == [("many", "2", b"1"), ("in", "1", b"ok"), ("many", "2", b"2"), ("many", "2", b"")]


async def test_a_stream_of_answers_goes_on_in_order_while_all_shards_are_replaced(exchange_of_accounts):
    """One responder on each shard, and one who has asked; each answers while requests and prefixes change hands."""
    broker, cluster = exchange_of_accounts
    shards = broker.kind.shards
    asker = await on(cluster, "b", shards - 1)
    await asker.send("SUB in.* 1\r\n")
    responders = [await on(cluster, "a", shard) for shard in range(shards)]
    replies = []
    for n, responder in enumerate(responders):
        await responder.talk("SUB st.x 1\r\nPING\r\n", expect="PONG\r\n")
        replies.append(await request(responder, asker, f"PUB st.x in.{n} 0\r\n"))
        await responder.talk("UNSUB 1\r\nPING\r\n", expect="PONG\r\n")
    is_over = asyncio.Event()

    async def stream(responder: Client, reply: str) -> int:
        n = 0
        while not is_over.is_set():
            n += 1
            await responder.talk(f"PUB {reply} {len(str(n))}\r\n{n}\r\nPING\r\n", expect="PONG\r\n")
        await responder.talk(f"PUB {reply} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
        return n

    streaming = [asyncio.create_task(stream(*one)) for one in zip(responders, replies, strict=True)]
    assert f"{shards} shards" in await restart(broker)
    is_over.set()
    sent = [await one for one in streaming]
    got = await subjects(asker)
    for n, last in enumerate(sent):
        assert last > 10
        assert [payload for subject, _, payload in got if subject == f"in.{n}"] == [
            *(b"%d" % number for number in range(1, last + 1)),
            b"",
        ]


async def test_shards_do_not_wait_for_a_request_that_nobody_answers(exchange_of_accounts):
    """Its threshold is two minutes; a restart of all shards is over long before."""
    broker, cluster = exchange_of_accounts
    responder, asker = await on(cluster, "a", 0), await on(cluster, "b", broker.kind.shards - 1)
    await responder.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk("SUB in 1\r\nPING\r\n", expect="PONG\r\n")
    reply = await request(responder, asker, "PUB loc in 2\r\nhi")
    seen = len(broker.log.lines)
    await restart(broker)
    assert not [line for line in broker.log.lines[seen:] if "[WRN]" in line or "[ERR]" in line]
    await responder.talk(f"PUB {reply} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(asker) == [("in", "1", b"ok")]
