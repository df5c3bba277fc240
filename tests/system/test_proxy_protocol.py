"""Clients behind a load balancer that says in a PROXY header whose connections they are."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.shards.sockets.test_proxy_header import v2
from tests.support import swarm
from tests.support.authority import Authority
from tests.support.pages import Pages
from tests.support.servers import HOST
from tests.support.wire import Client

OURS = ("gnatswarm-1", "gnatswarm-2-as-2.15")
ALL = (*OURS, "nats-server-2.15")

pytestmark = pytest.mark.kinds(*ALL)

HEADERS = {
    b"PROXY TCP4 1.2.3.4 10.0.0.1 5555 4222\r\n": ("1.2.3.4", 5555),
    b"PROXY TCP6 2001:db8::1 ::1 5556 4222\r\n": ("2001:db8::1", 5556),
    v2(hosts=("1.2.3.5", "10.0.0.1"), more=b"\x03\x00\x04abcd"): ("1.2.3.5", 1111),
    b"PROXY UNKNOWN\r\n": None,
    v2(command=0x20): None,
    b"": None,
}
WRONG = {
    b"PROXY TCP4 1.2.3 10.0.0.1 5555 4222\r\n": "invalid address",
    b"PROXY TCP4 " + b"1" * 120 + b"\r\n": "v1 line too long",
    v2(kind=0x12): "only STREAM protocol supported",
    v2(command=0x31): "invalid PROXY protocol header",
}


async def test_a_client_has_the_address_that_the_header_says(start_broker, cluster_of):
    broker = start_broker(config="proxy_protocol: true\n", args=["-m", "-1"])
    broker.log.wait_line("PROXY protocol enabled for client connections")
    pages = Pages.of(broker)
    clients = cluster_of(broker)
    expected = set()
    for header, address in HEADERS.items():
        client = await clients.raw()
        assert "client_ip" not in client.info
        await client.send(header + b'CONNECT {"verbose":false}\r\nPING\r\n')
        await client.expect(b"PONG\r\n")
        expected.add(address or (HOST, client.sock.getsockname()[1]))
    shown = await pages.wait("/connz", lambda found: found["num_connections"] == len(HEADERS))
    assert {(row["ip"], row["port"]) for row in shown["connections"]} == expected


async def test_an_invalid_header_closes_the_connection_and_is_logged(start_broker, cluster_of):
    broker = start_broker(config="proxy_protocol: true\n")
    clients = cluster_of(broker)
    for header, why in WRONG.items():
        client = await clients.raw()
        await client.send(header)
        assert await client.wait_closed() == b""
        broker.log.wait_line(f"Error reading PROXY protocol header from {HOST}:[0-9]+: .*{why}")


@pytest.mark.kinds(*OURS)
async def test_the_log_names_the_client_and_one_that_says_nothing_is_closed_in_time(start_broker, cluster_of):
    """nats-server's log has the address of the load balancer."""
    broker = start_broker(config="proxy_protocol: true\n", args=["-D"])
    clients = cluster_of(broker)
    late = await clients.raw()
    await late.send(b"PROXY TCP4 1.2.3.")
    client = await clients.raw()
    await client.send(b"PROXY TCP4 1.2.3.4 10.0.0.1 5555 4222\r\nnothing\r\n")
    assert await client.wait_closed() == b"-ERR 'Unknown Protocol Operation'\r\n"
    broker.log.wait_line(r"1\.2\.3\.4:5555 - cid:\d+ - Client connection closed: Protocol Violation")
    late.shut_writing()
    assert await late.wait_closed() == b""
    broker.log.wait_line("Error reading PROXY protocol header from .*: EOF")


async def test_the_header_comes_before_the_handshake(start_broker, tmp_path):
    authority = Authority(tmp_path)
    config = f"proxy_protocol: true\ntls {{ {authority.server().lines} }}\n"
    broker = start_broker(config=config, args=["-m", "-1"])
    client = await Client.connect(broker.port)
    await client.send(v2())
    reader, writer = await asyncio.open_connection(sock=client.sock)
    await writer.start_tls(authority.client_context(), server_hostname="localhost")
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert await reader.readline() == b"PONG\r\n"
    shown = await Pages.of(broker).wait("/connz", lambda found: found["num_connections"] == 1)
    assert [(row["ip"], row["port"]) for row in shown["connections"]] == [("1.2.3.4", 1111)]
    writer.close()


@pytest.mark.parametrize("how", ["true", "'20s'"])
async def test_info_after_the_handshake_names_the_client(start_broker, tmp_path, how):
    authority = Authority(tmp_path)
    tls = f"{authority.server().lines}, handshake_first: {how}"
    broker = start_broker(config=f"proxy_protocol: true\ntls {{ {tls} }}\n")
    for header, host in HEADERS.items():
        reader, writer = await asyncio.open_connection(HOST, broker.port)
        writer.write(header)
        await writer.start_tls(authority.client_context(), server_hostname="localhost")
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        assert info["client_ip"] == (host[0] if host else HOST)
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert await reader.readline() == b"PONG\r\n"
        writer.close()


@pytest.mark.kinds(*OURS)
async def test_info_in_plain_names_nobody_before_the_header_has_come(start_broker, tmp_path):
    """A nats-server waits for the header."""
    authority = Authority(tmp_path)
    tls = f"{authority.server().lines}, handshake_first: '1ms'"
    broker = start_broker(config=f"proxy_protocol: true\ntls {{ {tls} }}\n")
    client = await Client.connect(broker.port)
    assert client.info["client_id"] == 1 and "client_ip" not in client.info
    await client.send(v2())
    reader, writer = await asyncio.open_connection(sock=client.sock)
    await writer.start_tls(authority.client_context(), server_hostname="localhost")
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert await reader.readline() == b"PONG\r\n"
    writer.close()


@pytest.mark.kinds("gnatswarm-2")
async def test_a_client_keeps_its_address_when_it_moves(start_broker, cluster_of):
    broker = start_broker(config="proxy_protocol: true\n", args=["-m", "-1"])
    client = await cluster_of(broker).raw_on(1)
    await client.send(b'PROXY TCP4 1.2.3.4 10.0.0.1 5555 4222\r\nCONNECT {"verbose":false}\r\nPING\r\n')
    await client.expect(b"PONG\r\n")
    await swarm.scale(broker, 1)
    await client.talk("PING\r\n", expect="PONG\r\n")
    [row] = Pages.of(broker).json("/connz")["connections"]
    assert (row["ip"], row["port"]) == ("1.2.3.4", 5555)
