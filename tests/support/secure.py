"""A client over TLS with the minimum of the protocol; every wait has a deadline."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.pages import Pages
from tests.support.servers import HOST, Broker

DEADLINE_S = 40.0
CONNECT = b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":1}\r\n'


@dataclass
class SecureClient:
    """One connection after its handshake. `info` is the server's first INFO."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def tls(self) -> ssl.SSLObject:
        found: ssl.SSLObject = self.writer.get_extra_info("ssl_object")
        return found

    @property
    def shard(self) -> int:
        return int(self.info.get("shard", 0))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.drain()

    async def line(self) -> bytes:
        """The next line; the broker's own pings are skipped."""
        while True:
            async with asyncio.timeout(DEADLINE_S):
                found = await self.reader.readuntil(b"\r\n")
            if found != b"PING\r\n":
                return found

    async def expect(self, expected: bytes) -> None:
        """Exactly this comes next."""
        for wanted in expected.splitlines(keepends=True):
            assert await self.line() == wanted

    async def read(self, size: int, deadline_s: float = DEADLINE_S) -> bytes:
        async with asyncio.timeout(deadline_s):
            return await self.reader.readexactly(size)

    async def message(self) -> tuple[bytes, bytes]:
        """The next MSG: its line, its payload."""
        line = await self.line()
        assert line.startswith(b"MSG "), line
        payload = await self.read(int(line.split()[-1]) + 2)
        return line, payload[:-2]

    async def flush(self) -> None:
        await self.send(b"PING\r\n")
        await self.expect(b"PONG\r\n")

    async def rest(self, deadline_s: float = DEADLINE_S) -> bytes:
        """The remaining bytes until the server closes."""
        async with asyncio.timeout(deadline_s):
            try:
                return await self.reader.read()
            except (ConnectionError, ssl.SSLError) as error:
                return repr(error).encode()

    def close(self) -> None:
        self.writer.close()


async def read_info(reader: asyncio.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S):
        line = await reader.readuntil(b"\r\n")
    assert line.startswith(b"INFO {"), line
    return dict(orjson.loads(line[5:]))


async def dial(port: int, context: ssl.SSLContext, *, first: bool = False, name: str = "localhost") -> SecureClient:
    """Read INFO, then do the handshake; `first`: the handshake comes before INFO."""
    async with asyncio.timeout(DEADLINE_S):
        if first:
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name)
            return SecureClient(reader, writer, await read_info(reader))
        reader, writer = await asyncio.open_connection(HOST, port)
        info = await read_info(reader)
        await writer.start_tls(context, server_hostname=name)
        return SecureClient(reader, writer, info)


async def connect(port: int, context: ssl.SSLContext, *, line: bytes = CONNECT, first: bool = False) -> SecureClient:
    """The same, after CONNECT."""
    client = await dial(port, context, first=first)
    await client.send(line)
    await client.flush()
    return client


async def spread(port: int, context: ssl.SSLContext, shards: int) -> list[SecureClient]:
    """One logged-in client on each shard."""
    found: dict[int, SecureClient] = {}
    for _ in range(200):
        client = await connect(port, context)
        if client.shard in found:
            client.close()
        else:
            found[client.shard] = client
        if len(found) == shards:
            return [found[shard] for shard in sorted(found)]
    raise AssertionError(f"200 connections met shards {sorted(found)} alone")


async def said(broker: Broker, pattern: str, deadline_s: float = DEADLINE_S, since: int = 0) -> str:
    """The log line that contains this text, from line number `since` on."""
    return (await asyncio.to_thread(broker.log.wait_line, pattern, deadline_s, since)).string


async def connections(broker: Broker, state: str) -> list[dict[str, Any]]:
    """The rows of /connz, of a broker with monitoring pages."""
    answer = await asyncio.to_thread(Pages.of(broker).get, f"/connz?state={state}")
    return list(answer.json["connections"])
