"""Clients with TLS stay connected through restart and upgrade: their old process goes on to encrypt for them.

When there are fewer shards, or no time is given to relays, they are told to reconnect, and served until they do.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import (
    AnyRequest,
    FinishRequest,
    FollowRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
    UpgradeRequest,
)
from tests.support import swarm
from tests.support.framed import connect as framed_connect
from tests.support.framed import websocket_port
from tests.support.secure import SecureClient, connect, connections, said, spread
from tests.support.servers import Broker
from tests.support.traffic import Traffic
from tests.support.wire import Cluster

pytestmark = pytest.mark.kinds("gnatswarm-1")

DEADLINE_S = 30.0


async def ask(broker: Broker, request: AnyRequest) -> Reply:
    return await asyncio.to_thread(exchange, find(broker.pid, broker.port), request, DEADLINE_S, lambda text: None)


async def relays(broker: Broker) -> list[dict[str, object]]:
    return list((await asyncio.to_thread(swarm.status, broker))["relays"])


class Talk:
    """Clients with TLS that publish numbers, and a check that each of them hears all of them in order, once."""

    def __init__(self, clients: list[SecureClient], subject: str) -> None:
        self._clients = clients
        self._subject = subject.encode()
        self._sent = [0] * len(clients)
        self._got: list[list[list[int]]] = [[[] for _ in clients] for _ in clients]
        self._is_over = False
        self._pongs = [asyncio.Event() for _ in clients]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for client in self._clients:
            await client.send(b"SUB %b.* 1\r\n" % self._subject)
            await client.flush()
        self._tasks = [asyncio.create_task(self._read(at)) for at in range(len(self._clients))]
        self._publishing = [asyncio.create_task(self._publish(at)) for at in range(len(self._clients))]

    async def _publish(self, at: int) -> None:
        while not self._is_over:
            first = self._sent[at]
            lines = [b"PUB %b.%d 6\r\n%06d\r\n" % (self._subject, at, n) for n in range(first, first + 20)]
            self._pongs[at].clear()
            await self._clients[at].send(b"".join(lines) + b"PING\r\n")
            self._sent[at] += 20
            async with asyncio.timeout(DEADLINE_S):
                await self._pongs[at].wait()

    async def _read(self, at: int) -> None:
        client = self._clients[at]
        while True:
            line = await client.reader.readuntil(b"\r\n")
            if line == b"PONG\r\n":
                self._pongs[at].set()
            elif line == b"PING\r\n":
                await client.send(b"PONG\r\n")
            else:
                assert line.startswith(b"MSG "), line
                publisher = int(line.split()[1].rpartition(b".")[2])
                self._got[at][publisher].append(int(await client.reader.readexactly(8)))

    async def progress(self) -> None:
        """Everybody has published more, and heard it up to then."""
        goal = [sent + 200 for sent in self._sent]
        async with asyncio.timeout(DEADLINE_S):
            while any(len(got[who]) < n for got in self._got for who, n in enumerate(goal)):
                for task in (*self._tasks, *self._publishing):
                    if task.done():
                        task.result()
                await asyncio.wait(self._tasks, timeout=0.01)

    async def finish(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._publishing)
        async with asyncio.timeout(DEADLINE_S):
            while any(len(got[who]) < sent for got in self._got for who, sent in enumerate(self._sent)):
                await asyncio.wait(self._tasks, timeout=0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        assert self._got == [[list(range(sent)) for sent in self._sent]] * len(self._clients)


async def upgraded(broker: Broker, directory: Path) -> Reply:
    """Upgrade to a program that is this one; the last word is of another router."""
    program = directory / "gnatswarm"
    program.write_text(f"#!{sys.executable} -P\nimport sys\nfrom gnatswarm.router.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    request: AnyRequest = UpgradeRequest(str(program))
    while True:
        try:
            return await ask(broker, request)
        except (ConnectionAbortedError, ConnectionResetError):
            request = FollowRequest()


async def test_they_talk_on_through_an_upgrade_and_the_death_of_its_router(
    secure, authority, server, cluster_of, subject, tmp_path
):
    """With one over WebSocket, and clients in plain that move at the same time."""
    port = f"websocket {{ host: 127.0.0.1, port: -1, tls {{ {server.lines} }} }}\n"
    broker = secure(rest=f"allow_non_tls: true\nhttp: 127.0.0.1:-1\n{port}")
    context = authority.client_context()
    clients = [await connect(broker.port, context) for _ in range(3)]
    talk = Talk(clients, f"{subject}.tls")
    cluster: Cluster = cluster_of(broker)
    plain = Traffic(await cluster.clients(2), await cluster.clients(2), f"{subject}.plain")
    framed = await framed_connect(websocket_port(broker), context=context)
    await framed.say(b"SUB framed 1\r\nPUB framed 300000\r\n" + bytes(150_000))
    await talk.start()
    await plain.start()
    reply = await upgraded(broker, tmp_path)
    assert not reply.error
    (left,) = await relays(broker)
    assert (left["clients"], left["shard"]) == (4, 0)
    await framed.say(bytes(150_000) + b"\r\n")
    await framed.expect(b"MSG framed 1 300000\r\n" + bytes(300_000) + b"\r\n")
    assert 3500 < float(str(left["ends_in_s"])) <= 3600
    since = len(broker.log.lines)
    swarm.signal_shard(broker, (await asyncio.to_thread(swarm.status, broker))["router_pid"])
    await said(broker, "Starting http monitor", since=since)
    await talk.progress()
    assert [one["pid"] for one in await relays(broker)] == [left["pid"]]
    rows = await connections(broker, "open")
    assert [row["tls_version"] for row in rows if "tls_version" in row] == ["1.3"] * 4
    assert len(rows) == 8
    await talk.finish()
    assert await plain.finish() > 0


async def test_they_end_with_their_shard_or_when_an_operator_wants_it(secure, authority):
    broker = secure()
    context = authority.client_context()
    lost = await connect(broker.port, context)
    assert (await ask(broker, FinishRequest())).text == "no process of before serves clients with TLS"
    assert not (await ask(broker, RestartRequest())).error
    (first,) = await relays(broker)
    swarm.signal_shard(broker, (await swarm.pids(broker))[0])
    await lost.rest()
    await said(broker, f"process {first['pid']}, has ended .exit code 0")
    clients = [await connect(broker.port, context) for _ in range(3)]
    for number, client in enumerate(clients):
        await client.send(b"SUB told.%d 1\r\n" % number)
        await client.flush()
    assert not (await ask(broker, RestartRequest())).error
    finishing = asyncio.create_task(ask(broker, FinishRequest()))
    for client in clients:
        line = await client.line()
        assert line.startswith(b"INFO {") and b'"ldm":true' in line
    await clients[1].send(b"PUB told.0 2\r\nhi\r\n")
    await clients[0].expect(b"MSG told.0 1 2\r\nhi\r\n")
    (second,) = await relays(broker)
    assert (second["clients"], second["ends_in_s"]) == (3, -1.0)
    for client in clients:
        client.close()
    reply = await finishing
    assert reply.text == "1 process of before has ended", reply
    assert await relays(broker) == []


@pytest.mark.kinds("gnatswarm-2")
async def test_a_router_that_is_stopped_while_one_becomes_a_relay_costs_no_other_shard(secure, authority, subject):
    """The others hear from that shard itself that it leaves, and do not wait for a link to it."""
    broker = secure(rest="")
    talk = Talk(list(await spread(broker.port, authority.client_context(), 2)), f"{subject}.tls")
    await talk.start()
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    restarting = asyncio.create_task(ask(broker, RestartRequest()))
    await said(broker, "Leaving: 1 clients move to other shards")
    swarm.signal_shard(broker, router, signal.SIGSTOP)
    await said(broker, "No shard any more: encrypting for 1 clients that have moved")
    await talk.progress()
    swarm.signal_shard(broker, router, signal.SIGCONT)
    assert not (await restarting).error
    await talk.finish()
    assert not [line for line in broker.log.lines if "could not be made again" in line or "was killed" in line]


async def is_told(client: SecureClient) -> None:
    """The next line says that this client is to reconnect."""
    line = await client.line()
    assert line.startswith(b"INFO {"), line
    told = json.loads(line[5:])
    assert (told["ldm"], told["client_id"]) == (True, client.info["client_id"])


async def hears(client: SecureClient, publisher: SecureClient, subject: str) -> None:
    """It is served: what comes next is a message to this subject."""
    await publisher.send(b"PUB %b 2\r\nhi\r\n" % subject.encode())
    await client.expect(b"MSG %b 1 2\r\nhi\r\n" % subject.encode())


@pytest.mark.kinds("gnatswarm-2")
async def test_with_fewer_shards_they_are_told_and_those_in_plain_and_behind_relays_move(
    secure, authority, cluster_of, subject
):
    broker = secure(rest="allow_non_tls: true\n")
    context = authority.client_context()
    relayed = (await spread(broker.port, context, 2))[1]
    await relayed.send(b"SUB %b.relayed 1\r\n" % subject.encode())
    await relayed.flush()
    assert not (await ask(broker, RestartRequest())).error
    stays, told = await spread(broker.port, context, 2)
    for name, client in (("stays", stays), ("told", told)):
        await client.send(b"SUB %b.%b 1\r\n" % (subject.encode(), name.encode()))
        await client.flush()
    plain = await cluster_of(broker).client_on(1)
    await plain.talk(f"SUB {subject}.plain 1\r\nPING\r\n", expect="PONG\r\n")
    scaling = asyncio.create_task(ask(broker, ScaleRequest(1)))
    await is_told(told)
    await hears(told, stays, f"{subject}.told")
    told.close()
    assert (await scaling).text.startswith("1 shard serves")
    await hears(stays, relayed, f"{subject}.stays")  # nothing else came before that: no INFO
    await hears(relayed, stays, f"{subject}.relayed")
    await stays.send(b"PUB %b.plain 2\r\nhi\r\n" % subject.encode())
    await plain.expect(f"MSG {subject}.plain 1 2\r\nhi\r\n")
    await plain.expect_quiet()
    for client in (stays, relayed):
        await client.flush()


@pytest.mark.kinds("gnatswarm-2")
async def test_who_does_not_go_is_closed_when_its_shard_s_time_is_up(secure, authority):
    broker = secure(rest='lame_duck_grace_period: "1s"\n')
    stays, stubborn = await spread(broker.port, authority.client_context(), 2)
    scaling = asyncio.create_task(ask(broker, ScaleRequest(1)))
    await is_told(stubborn)
    await stubborn.rest(DEADLINE_S)
    assert (await scaling).text.startswith("1 shard serves")
    await stays.flush()


@pytest.mark.parametrize("relay_s", [0.0, 0.5])
async def test_when_the_time_of_relays_is_up_or_there_is_none_they_are_told(secure, authority, relay_s):
    broker = secure(rest='lame_duck_grace_period: "2s"\n')
    context = authority.client_context()
    clients = [await connect(broker.port, context) for _ in range(2)]
    for number, client in enumerate(clients):
        await client.send(b"SUB told.%d 1\r\n" % number)
        await client.flush()
    restarting = asyncio.create_task(ask(broker, RestartRequest(relay_s)))
    for client in clients:
        await is_told(client)
    await hears(clients[0], clients[1], "told.0")
    if relay_s:
        assert not (await restarting).error
        assert len(await relays(broker)) == 1
    for client in clients:
        client.close()
    assert not (await restarting).error
    if relay_s:
        await said(broker, "The relay of shard 0, process [0-9]+, has ended .exit code 0")
    assert await relays(broker) == []
    again = await connect(broker.port, context)
    await again.flush()
