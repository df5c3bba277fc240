"""Input that was an error of ours costs nothing but its connection: each of these ended a shard or the gateway once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support import swarm
from tests.support.leaves import hub_port
from tests.support.servers import HOST, KINDS, Broker
from tests.support.wire import Client

HALF = "\\ud800"  # of a surrogate pair
UPGRADE = (
    "GET {} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
WITH_SYSTEM = """
system_account: SYS
accounts { A { users: [{user: a, password: a}] }, SYS { users: [{user: s, password: s}] } }
"""


class Start:
    """Starts brokers of two shards, which end with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, config: str = "") -> Broker:
        return self._stack.enter_context(Broker(KINDS["gnatswarm-2-as-2.15"], config=f"stats: false\n{config}"))


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield Start(stack)


async def said(port: int, data: bytes, until: bytes = b"") -> bytes:
    """What is answered up to these bytes, or to the end."""
    reader, writer = await asyncio.open_connection(HOST, port)
    found = b""
    async with asyncio.timeout(20):
        writer.write(data)
        while not until or until not in found:
            more = await reader.read(1 << 16)
            if not more:
                break
            found += more
    writer.close()
    return found


async def check_nobody_died(broker: Broker) -> None:
    """All processes are those that were started, and serve."""
    client = await Client.connect(broker.port, connect={"user": "a", "pass": "a", "verbose": False})
    await client.flush()
    rows = (await asyncio.to_thread(swarm.status, broker))["shards"]
    assert [(row["phase"], row["starts"]) for row in rows] == [("ready", 1)] * len(rows)
    assert " died" not in broker.log.text and "Traceback" not in broker.log.text
    client.close()


@pytest.mark.parametrize("target", ["//[", "http://[x/", "//a:b@[/mqtt", "/?//[", "*"])
async def test_a_websocket_upgrade_of_any_target(start: Start, target: str):
    broker = start(config="websocket { listen: '127.0.0.1:-1', no_tls: true }\n")
    port = int(broker.log.wait_line(r"Listening for websocket clients on ws://\S*:(\d+)")[1])
    assert (await said(port, UPGRADE.format(target).encode(), b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
    await check_nobody_died(broker)


@pytest.mark.parametrize("users", ["", "authorization { users: [{user: a, password: a}] }\n"], ids=["open", "users"])
async def test_names_that_no_log_line_can_have(start: Start, users: str):
    broker = start(config=f"log_format: json\ndebug: true\ntrace: true\n{users}")
    connect = f'CONNECT {{"user":"{HALF}","pass":"{HALF}","name":"{HALF}","nkey":"{HALF}","lang":"{HALF}"}}\r\n'
    answer = await said(broker.port, f"{connect}PUB _GR_.x 0\r\n\r\nBOGUS\r\n".encode())
    assert b"-ERR" in answer
    await check_nobody_died(broker)
    broker.log.wait_line("\N{REPLACEMENT CHARACTER}")


async def test_a_trace_of_a_client_with_such_a_name(start: Start):
    broker = start()
    words = f'CONNECT {{"headers":true,"verbose":false,"name":"{HALF}"}}\r\nSUB t.d 1\r\n'.encode()
    header = b"NATS/1.0\r\nNats-Trace-Dest: t.d\r\n\r\n"
    words += b"HPUB a %d %d\r\n%b\r\n" % (len(header), len(header), header)
    assert b"MSG t.d" in await said(broker.port, words, b"MSG t.d")
    await check_nobody_died(broker)


@pytest.mark.parametrize("subject", [b"$SYS.REQ.SERVER.PING", b"$SYS.REQ.SERVER.PING.VARZ"])
async def test_a_request_to_the_system_account_with_headers(start: Start, subject: bytes):
    broker = start(config=WITH_SYSTEM)
    words = b'CONNECT {"headers":true,"verbose":false,"user":"s","pass":"s"}\r\nSUB r 1\r\n'
    words += b"HPUB %b r 19 21\r\nNATS/1.0\r\nA: bc\r\n\r\n{}\r\n" % subject
    assert b"MSG r 1 " in await said(broker.port, words, b'"server"')
    await check_nobody_died(broker)


@pytest.mark.parametrize("body", [b"\xff", b"foo \xff", b"foo\xff.> q\xfe"])
@pytest.mark.parametrize("cluster", ["", "cluster { name: c, listen: '127.0.0.1:-1' }\n"], ids=["alone", "cluster"])
async def test_subscribers_of_a_subject_that_is_no_text(start: Start, body: bytes, cluster: str):
    broker = start(config=WITH_SYSTEM + cluster)
    words = b'CONNECT {"verbose":false,"user":"s","pass":"s"}\r\nSUB r 1\r\n'
    words += b"PUB $SYS.DEBUG.SUBSCRIBERS r %d\r\n%b\r\n" % (len(body), body)
    assert (await said(broker.port, words, b"\r\n0\r\n")).endswith(b"MSG r 1 1\r\n0\r\n")
    await check_nobody_died(broker)


@pytest.mark.parametrize(
    "words", [{"deny_pub": [" ", " a", "a b", "", "ok"]}, {"version": "9" * 5000 + ".9.9"}], ids=["deny", "version"]
)
async def test_a_leaf_node_s_connect(start: Start, words: dict[str, object]):
    broker = start(config="leafnodes { listen: '127.0.0.1:-1', min_version: '2.8.0' }\n")
    connect = {"name": "l", "server_id": "NL", "version": "2.10.0"} | words
    await said(hub_port(broker), b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n", b"PONG\r\n")
    await check_nobody_died(broker)


@pytest.mark.parametrize(
    "words",
    [
        {"export": {"allow": [""]}},
        {"export": {"allow": ["a..b"]}},
        {"import": {"deny": [" "]}},
        {"gnatswarm": "0.1.0", "answers": {"max": 2**40, "expires_s": 1}},
    ],
    ids=["allow nothing", "allow no subject", "deny a blank", "too many answers"],
)
async def test_a_hub_s_info(start: Start, words: dict[str, object]):
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "NX", "server_name": "x", "version": "2.10.0", "headers": True, "info_on_connect": True}
        info |= {"leafnode_urls": ["127.0.0.1:1"], "client_id": 7}
        writer.write(b"INFO " + json.dumps(info).encode() + b" \r\n")
        writer.write(b"INFO " + json.dumps(info | {"connect_info": True} | words).encode() + b" \r\nPING\r\n")
        while await reader.read(1 << 16):
            pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    broker = start(config=f"leafnodes {{ remotes: [{{ url: 'nats://127.0.0.1:{port}' }}] }}\n")
    async with asyncio.timeout(20):
        await ended.wait()
    broker.log.wait_line("the hub's permissions make no sense: ")
    await check_nobody_died(broker)
    server.close()
