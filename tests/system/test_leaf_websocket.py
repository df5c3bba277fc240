"""Leaf nodes that reach their hub by WebSocket: through proxies and firewalls that pass nothing else.

Both ends are tested, each with the other kind's two versions at the other end, and with itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.authority import Authority
from tests.support.framed import BINARY, CLOSE, PING, FramedClient, connect, frame, request, upgrade, websocket_port
from tests.support.leaves import Net, check_own_account, hub_port, know, payloads, subscribed
from tests.support.pipe import Pipe
from tests.support.ports import free_port
from tests.support.servers import KINDS, Broker
from tests.support.turns import until
from tests.system.test_leaf import HUBS, Start, net, start

__all__ = ["net", "start"]
# Kinds of hub and leaf node.
PAIRS = [
    *((hub, "gnatswarm-2") for hub in HUBS),
    *(("gnatswarm-2", leaf) for leaf in ("gnatswarm-2", "nats-server", "nats-server-2.15")),
]
LISTENS = r"Listening for websocket clients on wss?://\S*:(\d+)"
LEAVES = "server_name: hub\nleafnodes { host: 127.0.0.1, port: -1 }\n"
PLAIN = "host: 127.0.0.1, port: -1, no_tls: true"


@pytest.fixture(params=PAIRS, ids=" ".join)
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


def hub_of(start: Start, kind: str, websocket: str = PLAIN, leaves: str = LEAVES) -> tuple[Broker, int]:
    hub = start(kind, f"{leaves}websocket {{ {websocket} }}\n")
    return hub, int(hub.log.wait_line(LISTENS)[1])


def leaf_of(start: Start, kind: str, url: str, remote: str = "") -> Broker:
    name = f"leaf{uuid.uuid4().hex[:6]}"
    config = f'server_name: {name}\nleafnodes {{ reconnect: 1, remotes [ {{ url: "{url}"\n{remote} }} ] }}'
    return start(kind, config)


async def crosses(net: Net, hub: Broker, leaf: Broker) -> None:
    """Messages of all sizes, both ways, once and in order."""
    sizes = [0, 1, 63, 64, 65, 125, 126, 4000, 70_000, 900_000, 5]
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    for here, there in ((at_hub, at_leaf), (at_leaf, at_hub)):
        await know(here, there)
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
async def test_messages_cross(start: Start, net: Net, kinds: tuple[str, str], of_hub: str, of_remote: str) -> None:
    hub, port = hub_of(start, kinds[0], f"{PLAIN}, {of_hub}")
    async with Pipe(port) as pipe:
        leaf = leaf_of(start, kinds[1], f"ws://127.0.0.1:{pipe.port}", of_remote)
        await crosses(net, hub, leaf)
    request, _, frames = bytes(pipe.asked).partition(b"\r\n\r\n")
    response, _, _ = bytes(pipe.answered).partition(b"\r\n\r\n")
    assert request.startswith(b"GET /leafnode HTTP/1.1\r\n")
    asks_compression, asks_no_masking = (word in request for word in (b"permessage-deflate", b"Nats-No-Masking: true"))
    assert asks_compression == ("ws_compression" in of_remote)
    assert asks_no_masking == ("ws_no_masking" in of_remote)
    assert (b"permessage-deflate" in response) == (asks_compression and bool(of_hub))
    assert bool(frames[1] & 0x80) == (not asks_no_masking)  # these hubs agree


async def test_the_connection_is_made_again_after_either_end_was_lost(
    start: Start, net: Net, kinds: tuple[str, str]
) -> None:
    own = PLAIN.replace("port: -1", f"port: {free_port()}")
    hub, port = hub_of(start, kinds[0], own)
    leaf = leaf_of(start, kinds[1], f"ws://127.0.0.1:{port}")
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await know(at_hub, at_leaf)
    await subscribed(at_leaf, "x 1")
    await know(at_hub, at_leaf)
    hub.kill()
    leaf.log.wait_line("Leafnode connection closed", 20.0)
    again, _ = hub_of(start, kinds[0], own)
    publisher = await net.client(again)
    await know(publisher, at_leaf)
    await publisher.send("PUB x 1\r\ny\r\n")
    assert await payloads(at_leaf, 1) == [b"y"]


async def test_wss_is_encrypted_and_the_hubs_certificate_is_checked(
    start: Start, net: Net, kinds: tuple[str, str], authority: Authority
) -> None:
    pair = authority.server()
    tls = f"tls {{ cert_file: '{pair.cert}', key_file: '{pair.key}' }}"
    hub, port = hub_of(start, kinds[0], f"host: 127.0.0.1, port: -1, {tls}")
    leaf = leaf_of(start, kinds[1], f"wss://127.0.0.1:{port}", f"tls {{ ca_file: '{authority.path}' }}")
    await crosses(net, hub, leaf)
    stranger = leaf_of(start, kinds[1], f"wss://127.0.0.1:{port}")
    stranger.log.wait_line("TLS handshake error: .*certificate|x509: certificate signed by unknown", 20.0)


async def test_who_logs_in_by_url_is_in_its_account(start: Start, net: Net, kinds: tuple[str, str]) -> None:
    accounts = "accounts { A { users: [ {user: a, password: p} ] }, B { users: [ {user: b, password: p} ] } }\n"
    hub, port = hub_of(start, kinds[0], leaves=accounts + LEAVES)
    leaf = leaf_of(start, kinds[1], f"ws://a:p@127.0.0.1:{port}")
    at_leaf = await net.client(leaf)
    inside, outside = [await net.client(hub, **{"user": name, "pass": "p"}) for name in ("a", "b")]
    await check_own_account(at_leaf, inside, outside)
    wrong = leaf_of(start, kinds[1], f"ws://a:q@127.0.0.1:{port}")
    wrong.log.wait_line("(the hub said: |Leafnode Error ').*Authorization Violation", 20.0)


@pytest.mark.parametrize("hub_kind", HUBS)
async def test_a_hub_that_hides_its_addresses_is_connected(start: Start, net: Net, hub_kind: str) -> None:
    leaves = LEAVES.replace(" }", ", no_advertise: true }")
    hub, port = hub_of(start, hub_kind, leaves=leaves)
    leaf = leaf_of(start, "gnatswarm-2", f"ws://127.0.0.1:{port}")
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await know(at_hub, at_leaf)
    await know(at_leaf, at_hub)


@pytest.mark.parametrize("hub_kind", HUBS)
async def test_a_port_without_an_upgrade_for_leaf_nodes_is_said(start: Start, hub_kind: str) -> None:
    clients = start(hub_kind, "")
    leaf = leaf_of(start, "gnatswarm-2", f"ws://127.0.0.1:{clients.port}")
    leaf.log.wait_line("WebSocket handshake error", 20.0)
    async with Pipe(clients.port) as pipe:
        pipe.stall()
        leaf = leaf_of(start, "gnatswarm-2", f"ws://127.0.0.1:{pipe.port}")
        await until(lambda: "was not made" in leaf.log.text)


# ---- our end alone


WEBSOCKET_HUB = """server_name: hub
leafnodes { listen: "127.0.0.1:-1" }
websocket { host: 127.0.0.1, port: -1, no_tls: true }
max_payload: 1MB
accounts { A { users: [
    {user: any, password: p}
    {user: here, password: p, allowed_connection_types: [LEAFNODE_WS, STANDARD]}
    {user: tcp, password: p, allowed_connection_types: [LEAFNODE]}
] } }
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Broker]:
    broker = Broker(KINDS["gnatswarm-2"], config=WEBSOCKET_HUB + "stats: false\n")
    broker.start()
    yield broker
    broker.kill()
    print(f"the log of {broker.kind}:", broker.log.text[-6000:], sep="\n")


async def by_hand(
    hub: Broker, connect: dict[str, Any] | None = None, *more: str, path: str = "/leafnode"
) -> FramedClient:
    framed = await upgrade(websocket_port(hub), *more, path=path)
    if connect is not None:
        await framed.say(f"CONNECT {json.dumps({'version': '2.9.10', 'headers': True, **connect})}\r\n".encode())
    return framed


async def until_said(framed: FramedClient, words: bytes) -> bytes:
    while words not in framed.stream:
        assert await framed.read_frame() >= 0, (words, bytes(framed.stream))
    return bytes(framed.stream)


ANY = {"name": "hand", "user": "any", "pass": "p"}
A = {"user": "any", "pass": "p"}


@pytest.mark.parametrize("path", ["/leafnode", "/leafnode?a=b", "/leafnode/more", "/in/front/leafnode"])
async def test_info_names_the_websocket_port_and_asks_for_no_tls(hub: Broker, path: str) -> None:
    leaf = await by_hand(hub, ANY, path=path)
    assert leaf.info["ws_connect_urls"] == [f"127.0.0.1:{websocket_port(hub)}"]
    assert leaf.info["leafnode_urls"] and leaf.info["nonce"] and "tls_required" not in leaf.info
    assert b'"remote_account":"A"' in await until_said(leaf, b"LS+ $LDS.")
    leaf.close()


@pytest.mark.parametrize("end", ["close", "wrong"])
async def test_what_ends_a_connection_behind_much_interest_ends_it(hub: Broker, end: str) -> None:
    """Interest that is more than it is read without rests, in one large frame: what comes behind it is kept, too."""
    leaf = await by_hand(hub, ANY)
    await until_said(leaf, b"LS+ $LDS.")
    told = b"".join(b"LS+ told.%06d.some.subject\r\n" % number for number in range(60_000))
    last = frame(CLOSE, (1000).to_bytes(2, "big")) if end == "close" else frame(3, b"an opcode that is none")
    leaf.writer.write(frame(BINARY, told) + last)
    async with asyncio.timeout(20.0):
        while await leaf.reader.read(65536):
            pass
    leaf.close()


@pytest.mark.parametrize("hub_kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_a_leaf_node_that_says_nothing_more_is_sent_what_waits_for_it(
    start: Start, net: Net, hub_kind: str
) -> None:
    """Its close frame says that; the hub's comes behind the last message."""
    hub, port = hub_of(start, hub_kind)
    leaf = await upgrade(port, path="/leafnode")
    connect = {"version": "2.9.10", "headers": True, "name": "hand"}
    await leaf.say(f"CONNECT {json.dumps(connect)}\r\nLS+ out\r\nPING\r\n".encode())
    await until_said(leaf, b"PONG\r\n")
    client = await net.client(hub)
    await client.send(b"PUB out 20000\r\n%b\r\n" % (b"y" * 20_000) * 1000)  # more than the kernel takes
    await client.flush()
    await leaf.send(frame(CLOSE, (1000).to_bytes(2, "big")))
    assert (await leaf.rest()).count(b"y" * 20_000) == 1000
    assert leaf.closed is not None
    leaf.close()


async def test_a_user_may_be_for_leaf_nodes_by_websocket_alone(hub: Broker, net: Net) -> None:
    for user, answer in (("here", b"LS+"), ("tcp", b"-ERR 'Authorization Violation'")):
        leaf = await by_hand(hub, {"user": user, "pass": "p"})
        await until_said(leaf, answer)
        leaf.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", hub_port(hub))
    await reader.readline()
    writer.write(b'CONNECT {"version":"2.9.10","user":"here","pass":"p"}\r\n')
    assert b"-ERR 'Authorization Violation'" in await reader.read()
    await net.client(hub, **{"user": "here", "pass": "p"})


async def test_frames_are_not_masked_if_the_leaf_node_asks_for_that(hub: Broker, net: Net) -> None:
    client = await net.client(hub, **A)
    await subscribed(client, "bare.> 1")
    leaf = await by_hand(hub, None, "Nats-No-Masking: true")
    assert b"\r\nNats-No-Masking: true\r\n" in leaf.answer
    words = f"CONNECT {json.dumps(ANY)}\r\n".encode()
    await leaf.send(frame(BINARY, words, masked=False))
    await until_said(leaf, b"LS+ bare.>\r\n")
    body = b"x" * 200_000
    await leaf.send(frame(BINARY, b"LMSG bare.x %d\r\n%b\r\n" % (len(body), body), masked=False))
    assert await payloads(client, 1) == [body]
    await leaf.send(frame(PING, b"hi", masked=False))
    while not leaf.pongs:
        assert await leaf.read_frame() >= 0
    assert leaf.pongs == [b"hi"]  # (read_frame refuses masked frames)
    await leaf.send(frame(BINARY, b"LMSG bare.x 0\r\n\r\n"))
    await leaf.rest()  # a masked one ends it
    assert leaf.closed is not None
    masked = await by_hand(hub, ANY, "Nats-No-Masking: false")
    assert b"No-Masking" not in masked.answer
    await until_said(masked, b"LS+")
    masked.close()


REFUSED: list[tuple[str, dict[str, Any] | None, bytes, bytes, str]] = [
    ("a client", {"lang": "js", "name": "x"}, b"", b"attempted to connect to leaf node port", "closed"),
    ("no credentials", {"name": "x"}, b"", b"Authorization Violation", 'authentication error - User ""'),
    ("wrong password", {"user": "any", "pass": "q"}, b"", b"Authorization Violation", "authentication error"),
    ("interest first", None, b"LS+ a\r\n", b"Authorization Violation", "authentication error"),
    ("garbage", ANY, b"garbage\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("max_payload", ANY, b"LMSG a 2000000\r\n", b"Maximum Payload Violation", "maximum payload exceeded"),
]


async def test_what_a_leaf_node_may_not_say_ends_its_connection_with_a_reason(hub: Broker, net: Net) -> None:
    client = await net.client(hub, **A)
    await subscribed(client, "own 1")
    for name, login, words, answer, logged in REFUSED:
        lines = len(hub.log.lines)
        leaf = await by_hand(hub, login)
        if words:
            await leaf.say(words)
        assert b"-ERR '" + answer in await leaf.rest(), name
        assert leaf.closed is not None, name
        hub.log.wait_line(r"lid_ws:\d+ - Leafnode connection closed", start=lines)
        assert logged in "\n".join(hub.log.lines[lines:]), name
    lines = len(hub.log.lines)
    # Frames that are none, or too large before the log-in.
    for login, words in (
        (None, frame(BINARY, b"x" * 2_000_000)),
        (None, frame(BINARY, b"PING\r\n", masked=False)),
        (ANY, frame(BINARY, b"PING\r\n", reserved=0x40)),
        (ANY, frame(BINARY, b"PING\r\n", masked=False)),
    ):
        leaf = await by_hand(hub, login)
        with contextlib.suppress(ConnectionError):  # it may be closed before it has all
            await leaf.send(words)
        await leaf.rest()
    silent = await by_hand(hub)
    assert b"-ERR 'Authentication Timeout'" in await silent.rest()
    # A leaf node that has logged in may send frames of any size.
    leaf = await by_hand(hub, ANY)
    await until_said(leaf, b"LS+ own\r\n")
    await leaf.say(b"LMSG own 500000\r\n" + b"y" * 500_000 + b"\r\nLMSG own 999999\r\n" + b"z" * 999_999 + b"\r\n")
    assert [len(body) for body in await payloads(client, 2)] == [500_000, 999_999]
    leaf.close()
    assert "Traceback" not in hub.log.text and "exited" not in hub.log.text


async def test_a_broker_that_is_no_hub_says_so(start: Start) -> None:
    broker = start("gnatswarm-1", f"websocket {{ {PLAIN} }}\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", websocket_port(broker))
    writer.write(request(websocket_port(broker), path="/leafnode"))
    assert (await reader.read()).startswith(b"HTTP/1.1 101 ")
    broker.log.wait_line("Not configured to accept leaf node connections")
    assert (await connect(websocket_port(broker))).info["server_id"]


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("kind", ["nats-server", "gnatswarm-1"])
async def test_leaf_nodes_come_back_after_the_gateway_or_their_shard_was_killed(
    start: Start, net: Net, authority: Authority, kind: str, scheme: str
) -> None:
    pair = authority.server()
    tls = f"host: 127.0.0.1, port: -1, tls {{ cert_file: '{pair.cert}', key_file: '{pair.key}' }}"
    hub = start("gnatswarm-1", f"{LEAVES}websocket {{ {tls if scheme == 'wss' else PLAIN} }}\ndebug: true\n")
    trust = f"tls {{ ca_file: '{authority.path}' }}" if scheme == "wss" else ""
    leaf = leaf_of(start, kind, f"{scheme}://127.0.0.1:{websocket_port(hub)}", trust)
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await know(at_hub, at_leaf)
    await subscribed(at_leaf, "x 1")
    await know(at_hub, at_leaf)
    for victim in (r"Gateway is process (\d+)", r"Shard 0 is process (\d+)"):
        lines = len(hub.log.lines)
        os.kill(int(hub.log.wait_line(victim)[1]), signal.SIGKILL)
        if scheme == "wss" or "Gateway" in victim:  # the shard that accepted it encrypts for it
            await asyncio.to_thread(hub.log.wait_line, "Leafnode connection created", 20.0, lines)
        else:  # without TLS it has nothing to do with that shard
            await asyncio.to_thread(hub.log.wait_line, "Shard 0 is process", 20.0, lines)
        publisher = await net.client(hub)
        await know(publisher, at_leaf)
        await publisher.send("PUB x 1\r\ny\r\n")
        assert await payloads(at_leaf, 1) == [b"y"]
    assert "Traceback" not in hub.log.text + leaf.log.text
