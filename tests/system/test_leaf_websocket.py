"""A leaf node of a hub that is reached by WebSocket: through proxies and firewalls that pass nothing else."""

from __future__ import annotations

import uuid

import pytest

from tests.support.authority import Authority
from tests.support.leaves import Net, know, payloads, subscribed
from tests.support.pipe import Pipe
from tests.support.servers import Broker
from tests.support.turns import until
from tests.system.test_leaf import Start, hub_kind, net, start

__all__ = ["hub_kind", "net", "start"]
LISTENS = r"Listening for websocket clients on wss?://\S*:(\d+)"
LEAVES = "server_name: hub\nleafnodes { host: 127.0.0.1, port: -1 }\n"
PLAIN = "host: 127.0.0.1, port: -1, no_tls: true"


def hub_of(start: Start, kind: str, websocket: str = PLAIN, leaves: str = LEAVES) -> tuple[Broker, int]:
    hub = start(kind, f"{leaves}websocket {{ {websocket} }}\n")
    return hub, int(hub.log.wait_line(LISTENS)[1])


def leaf_of(start: Start, url: str, remote: str = "") -> Broker:
    name = f"leaf{uuid.uuid4().hex[:6]}"
    config = f'server_name: {name}\nleafnodes {{ reconnect: "50ms", remotes [ {{ url: "{url}"\n{remote} }} ] }}'
    return start("gnatswarm-2", config)


async def crosses(net: Net, hub: Broker, leaf: Broker) -> None:
    """Messages of all sizes, both ways, once and in order."""
    sizes = [0, 1, 63, 64, 65, 125, 126, 4000, 70_000, 900_000, 5]
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    for here, there in ((at_hub, at_leaf), (at_leaf, at_hub)):
        await subscribed(there, "many 1", "sized 2")
        await know(here, there)
        await here.send("".join(f"PUB many {len(str(n))}\r\n{n}\r\n" for n in range(2000)))
        assert await payloads(there, 2000) == [b"%d" % n for n in range(2000)]
        for size in sizes:
            await here.send(b"PUB sized %d\r\n%b\r\n" % (size, b"ab" * (size // 2) + b"c" * (size % 2)))
        assert [len(payload) for payload in await payloads(there, len(sizes))] == sizes
        await there.talk("UNSUB 1\r\nUNSUB 2\r\nPING\r\n", expect_last="PONG\r\n")


@pytest.mark.parametrize(
    ("of_hub", "of_remote"),
    [
        ("", ""),
        ("", "ws_compression: true"),
        ("compression: true", "ws_compression: true"),
        ("compression: true", "ws_no_masking: true, ws_compression: true"),
    ],
    ids=["plain", "compression is refused", "compressed", "compressed and not masked"],
)
async def test_messages_cross(start: Start, net: Net, hub_kind: str, of_hub: str, of_remote: str) -> None:
    hub, port = hub_of(start, hub_kind, f"{PLAIN}, {of_hub}")
    async with Pipe(port) as pipe:
        leaf = leaf_of(start, f"ws://127.0.0.1:{pipe.port}", of_remote)
        await crosses(net, hub, leaf)
    request, _, frames = bytes(pipe.asked).partition(b"\r\n\r\n")
    response, _, _ = bytes(pipe.answered).partition(b"\r\n\r\n")
    assert request.startswith(b"GET /leafnode HTTP/1.1\r\n")
    asks_compression, asks_no_masking = (word in request for word in (b"permessage-deflate", b"Nats-No-Masking: true"))
    assert asks_compression == ("ws_compression" in of_remote)
    assert asks_no_masking == ("ws_no_masking" in of_remote)
    assert (b"permessage-deflate" in response) == (asks_compression and bool(of_hub))
    assert bool(frames[1] & 0x80) == (not asks_no_masking)  # these hubs agree


async def test_the_connection_is_made_again_after_either_end_was_lost(start: Start, net: Net, hub_kind: str) -> None:
    hub, port = hub_of(start, hub_kind)
    leaf = leaf_of(start, f"ws://127.0.0.1:{port}")
    at_leaf = await net.client(leaf)
    await subscribed(at_leaf, "x 1")
    await know(await net.client(hub), at_leaf)
    hub.kill()
    leaf.log.wait_line("Leafnode connection to .* closed", 20.0)
    again, _ = hub_of(start, hub_kind, PLAIN.replace("port: -1", f"port: {port}"))
    publisher = await net.client(again)
    await know(publisher, at_leaf)
    await publisher.send("PUB x 1\r\ny\r\n")
    assert await payloads(at_leaf, 1) == [b"y"]


async def test_wss_is_encrypted_and_the_hubs_certificate_is_checked(
    start: Start, net: Net, hub_kind: str, authority: Authority
) -> None:
    pair = authority.server()
    tls = f"tls {{ cert_file: '{pair.cert}', key_file: '{pair.key}' }}"
    hub, port = hub_of(start, hub_kind, f"host: 127.0.0.1, port: -1, {tls}")
    leaf = leaf_of(start, f"wss://127.0.0.1:{port}", f"tls {{ ca_file: '{authority.path}' }}")
    await crosses(net, hub, leaf)
    stranger = leaf_of(start, f"wss://127.0.0.1:{port}")
    stranger.log.wait_line("TLS handshake error: .*certificate", 20.0)


async def test_who_logs_in_by_url_is_in_its_account(start: Start, net: Net, hub_kind: str) -> None:
    accounts = "accounts { A { users: [ {user: a, password: p} ] }, B { users: [ {user: b, password: p} ] } }\n"
    hub, port = hub_of(start, hub_kind, leaves=accounts + LEAVES)
    leaf = leaf_of(start, f"ws://a:p@127.0.0.1:{port}")
    at_leaf = await net.client(leaf)
    inside, outside = [await net.client(hub, **{"user": name, "pass": "p"}) for name in ("a", "b")]
    await subscribed(at_leaf, "own 1")
    await know(inside, at_leaf)
    await outside.send("PUB own 1\r\nx\r\n")
    await outside.flush()
    await inside.send("PUB own 1\r\ny\r\n")
    assert await payloads(at_leaf, 1) == [b"y"]
    wrong = leaf_of(start, f"ws://a:q@127.0.0.1:{port}")
    wrong.log.wait_line("the hub said: Authorization Violation", 20.0)


async def test_a_port_without_an_upgrade_for_leaf_nodes_is_said(start: Start, hub_kind: str) -> None:
    clients = start(hub_kind, "")
    leaf_of(start, f"ws://127.0.0.1:{clients.port}").log.wait_line("WebSocket handshake error", 20.0)
    async with Pipe(clients.port) as pipe:
        pipe.stall()
        leaf = leaf_of(start, f"ws://127.0.0.1:{pipe.port}")
        await until(lambda: "was not made" in leaf.log.text)
