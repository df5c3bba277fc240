"""A leaf node that came by WebSocket with TLS stays connected when the shard that encrypts for it leaves."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import AnyRequest, Reply, RestartRequest, ScaleRequest
from tests.support import swarm
from tests.support.authority import Authority, Pair
from tests.support.framed import CLOSE, FramedClient, connect, frame, upgrade, websocket_port
from tests.support.leaves import Net, subscribed
from tests.support.servers import Broker
from tests.system.test_leaf import Start, net, start
from tests.system.test_leaf_websocket import LEAVES, until_said

__all__ = ["net", "start"]

DEADLINE_S = 60.0

Hub = Callable[[int], Broker]


@pytest.fixture
def hub(start: Start, server: Pair) -> Hub:
    """A hub with so many shards, whose log says who came to which."""
    config = f"{LEAVES}websocket {{ host: 127.0.0.1, port: -1, tls {{\n{server.lines}\n}} }}\ndebug: true\n"
    return lambda shards: start(f"gnatswarm-{shards}", config)


async def ask(hub: Broker, request: AnyRequest) -> Reply:
    reply = await asyncio.to_thread(exchange, find(hub.pid, hub.port), request, DEADLINE_S, lambda text: None)
    assert not reply.error, reply
    return reply


async def leaf_by(shard: int, hub: Broker, context: ssl.SSLContext) -> FramedClient:
    """A leaf node without interest whose TLS is in this shard."""
    while True:
        lines = len(hub.log.lines)
        leaf = await upgrade(websocket_port(hub), context=context, path="/leafnode")
        await leaf.say(f"CONNECT {json.dumps({'version': '2.9.10', 'headers': True, 'name': 'hand'})}\r\n".encode())
        await until_said(leaf, b"LS+ $LDS.")
        came = hub.log.wait_line(r"shard (\d) - \S+ - wid:\d+ - Client connection created", start=lines)
        if int(came[1]) == shard:
            return leaf
        leaf.close()


async def numbers_cross(leaf: FramedClient, hub: Broker, net: Net, during: AnyRequest) -> None:
    """While the hub does this, numbered messages go both ways: none is lost, and all come in order."""
    client = await net.client(hub)
    await subscribed(client, "up 1")
    await until_said(leaf, b"LS+ up\r\n")
    await leaf.say(b"LS+ down\r\nPING\r\n")
    await until_said(leaf, b"PONG\r\n")
    leaf.stream.clear()
    doing = asyncio.create_task(ask(hub, during))
    sent = 0
    while not doing.done() or sent < 100:
        await leaf.say(b"LMSG up 6\r\n%06d\r\n" % sent)
        assert [frame.payload for frame in await client.messages(1, DEADLINE_S)] == [b"%06d" % sent]
        await client.send(b"PUB down 6\r\n%06d\r\n" % sent)
        await leaf.expect(b"LMSG down 6\r\n%06d\r\n" % sent)
        sent += 1
    await doing


async def test_no_message_is_lost_where_shards_become_fewer_and_the_relay_ends_with_the_leaf_node(
    hub: Hub, net: Net, authority: Authority
) -> None:
    broker = hub(2)
    leaf = await leaf_by(1, broker, authority.client_context())
    await numbers_cross(leaf, broker, net, ScaleRequest(1))
    assert "relay" in broker.log.wait_line("No shard any more: encrypting for 1 leaf nodes").string
    (relay,) = (await asyncio.to_thread(swarm.status, broker))["relays"]
    assert (relay["shard"], relay["clients"]) == (1, 1)
    assert 3500 < relay["ends_in_s"] <= 3600
    leaf.close()
    broker.log.wait_line("The relay of shard 1, process [0-9]+, has ended .exit code 0")
    assert "Traceback" not in broker.log.text


@pytest.mark.parametrize(("relay_s", "carried"), [(60.0, "1 clients that have moved and 1"), (0.0, "1")])
async def test_a_restart_ends_the_connection_with_the_gateway_and_not_before(
    hub: Hub, net: Net, authority: Authority, relay_s: float, carried: str
) -> None:
    """Also one by which clients with TLS are told to reconnect. Their relay serves leaf nodes, too.

    What the leaf node sends until it has read the end is not lost.
    """
    broker = hub(1)
    context = authority.client_context()
    clients = [await connect(websocket_port(broker), context=context)] * bool(relay_s)
    leaf = await leaf_by(0, broker, context)
    local = await net.client(broker)
    await subscribed(local, "up 1")
    await until_said(leaf, b"LS+ up\r\n")
    restarting = asyncio.create_task(ask(broker, RestartRequest(relay_s)))
    while leaf.closed is None:
        assert await leaf.read_frame(DEADLINE_S) >= 0
    await leaf.say(b"LMSG up 4\r\nlast\r\n")
    await leaf.send(frame(CLOSE, (1001).to_bytes(2, "big")))
    leaf.close()
    assert [one.payload for one in await local.messages(1, DEADLINE_S)] == [b"last"]
    await restarting
    lines = broker.log.lines
    (left,) = [at for at, line in enumerate(lines) if f"No shard any more: encrypting for {carried} leaf nodes" in line]
    (closed,) = [at for at, line in enumerate(lines) if "Leafnode connection closed" in line]
    assert left < closed
    for client in clients:
        client.close()
    broker.log.wait_line("relay [0-9]+ - All connections with TLS have ended")
    broker.log.wait_line("The relay of shard 0, process [0-9]+, has ended .exit code 0")
    assert "Traceback" not in broker.log.text
