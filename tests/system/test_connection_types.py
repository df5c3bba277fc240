"""Users that may come by some kinds of connection only: over TCP, over WebSocket, or by none that there is here."""

from __future__ import annotations

import pytest

from tests.support.framed import connect, upgrade, websocket_port
from tests.system.test_log_in import OTHER, PAIR, reload, signature

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server")

CONFIG = """
websocket { host: 127.0.0.1, port: -1, no_tls: true }
accounts { A { users: [
  {user: both, password: p}
  {user: plain, password: p, allowed_connection_types: [standard]}
  {user: web, password: p, connection_types: WEBSOCKET}
  {user: hashed, password: "$2a$04$dS0DF26BvPJEYRyxdJSeXuH.nqifPysKaVIeW.aJ/k1.HCAIHoxKO", clients: ["WEBSOCKET"]}
  {user: elsewhere, password: p, allowed_connection_types: ["MQTT", "LEAFNODE"]}
] } }
"""
BY_KEY = f"""
websocket {{ host: 127.0.0.1, port: -1, no_tls: true }}
authorization {{ users: [
  {{nkey: {PAIR.public_key.decode()}, allowed_connection_types: [standard]}}
  {{nkey: {OTHER.public_key.decode()}, allowed_connection_types: ["WEBSOCKET"]}}
] }}
"""
STANDARD = {"both": True, "plain": True, "web": False, "hashed": False, "elsewhere": False}
WEBSOCKET = {"both": True, "plain": False, "web": True, "hashed": True, "elsewhere": False}


def password(user: str) -> str:
    return "secret" if user == "hashed" else "p"


async def test_each_user_comes_by_its_own_kinds_alone(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    cluster = cluster_of(broker)
    port = websocket_port(broker)
    for shard in (0, 1):
        for user, may in STANDARD.items():
            client = await cluster.raw_on(shard)
            await client.send(f'CONNECT {{"verbose":true,"user":"{user}","pass":"{password(user)}"}}\r\n')
            if may:
                await client.expect(b"+OK\r\n")
            else:
                assert await client.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
        for user, may in WEBSOCKET.items():
            framed = await upgrade(port)
            await framed.say(f'CONNECT {{"verbose":true,"user":"{user}","pass":"{password(user)}"}}\r\n'.encode())
            await framed.expect(b"+OK\r\n" if may else b"-ERR 'Authorization Violation'\r\n")
            framed.close()


async def test_a_user_by_nkey_comes_by_its_own_kinds_alone(start_broker, cluster_of):
    broker = start_broker(config=BY_KEY)
    cluster = cluster_of(broker)
    port = websocket_port(broker)

    def words(pair, nonce):
        key = pair.public_key.decode()
        return f'CONNECT {{"verbose":true,"nkey":"{key}","sig":"{signature(pair, nonce)}"}}\r\n'

    for shard in (0, 1):
        for pair, may in ((PAIR, True), (OTHER, False)):
            client = await cluster.raw_on(shard)
            await client.send(words(pair, client.info["nonce"]))
            if may:
                await client.expect(b"+OK\r\n")
            else:
                assert await client.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
        for pair, may in ((PAIR, False), (OTHER, True)):
            framed = await upgrade(port)
            await framed.say(words(pair, framed.info["nonce"]).encode())
            await framed.expect(b"+OK\r\n" if may else b"-ERR 'Authorization Violation'\r\n")
            framed.close()


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_a_no_auth_user_of_another_kind_is_nobody(start_broker, cluster_of):
    """nats-server lets a plain client be that user until it says CONNECT."""
    broker = start_broker(config=CONFIG + "no_auth_user: web\n")
    cluster = cluster_of(broker)
    for shard in (0, 1):
        client = await cluster.raw_on(shard)
        assert client.info["auth_required"] is True
        await client.send("PING\r\n")
        assert await client.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
    framed = await connect(websocket_port(broker))
    await framed.flush()
    framed.close()


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_a_reload_closes_who_came_by_what_is_not_allowed_any_more(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    cluster = cluster_of(broker)
    clients = [await cluster.client_on(shard, {"user": "both", "pass": "p"}) for shard in (0, 1)]
    stays = [await cluster.client_on(shard, {"user": "plain", "pass": "p"}) for shard in (0, 1)]
    await reload(broker, CONFIG.replace("{user: both, password: p}", "{user: both, password: p, clients: WEBSOCKET}"))
    for client in clients:
        assert await client.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
    for client in stays:
        await client.talk("PING\r\n", expect="PONG\r\n")
