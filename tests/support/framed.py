"""A hand-made WebSocket client that can also send what no library would send. Every wait has a deadline."""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.servers import HOST, START_DEADLINE_S, Broker

DEADLINE_S = 40.0
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
# RFC 6455, section 1.3: this key, and the accept value that the server must return for it.
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
DEFLATE = "permessage-deflate; client_max_window_bits"


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    """One frame of a client."""
    head = bytes([(0x80 if fin else 0) | reserved | opcode])
    bit = 0x80 if masked else 0
    if len(data) < 126:
        head += bytes([bit | len(data)])
    elif len(data) < 65_536:
        head += bytes([bit | 126]) + struct.pack(">H", len(data))
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", len(data))
    if not masked:
        return head + data
    mask = os.urandom(4)
    whole = int.from_bytes(data, "big") ^ int.from_bytes((mask * (len(data) // 4 + 1))[: len(data)], "big")
    return head + mask + whole.to_bytes(len(data), "big")


def deflated(data: bytes) -> bytes:
    """Compress for permessage-deflate, without context takeover."""
    packer = zlib.compressobj(wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def request(port: int, *more: str, path: str = "/") -> bytes:
    """An upgrade request."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {HOST}:{port}",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def websocket_port(broker: Broker) -> int:
    """The broker's WebSocket port."""
    return int(broker.log.wait_line(r"Listening for websocket clients on wss?://\S+:(\d+)", START_DEADLINE_S)[1])


@dataclass
class FramedClient:
    """One connection. `stream` has the unread bytes of data frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    info: dict[str, Any] = field(default_factory=dict)
    answer: bytes = b""  # the server's response to the upgrade
    stream: bytearray = field(default_factory=bytearray)
    pongs: list[bytes] = field(default_factory=list)
    closed: tuple[int, bytes] | None = None  # the close frame that came
    compressed_frames: int = 0
    most_frame_bytes: int = 0

    @property
    def shard(self) -> int:
        return int(self.info.get("shard", 0))

    async def send(self, data: bytes) -> None:
        """Send these bytes as they are."""
        self.writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.drain()

    async def say(self, data: bytes) -> None:
        """Send a piece of the NATS stream, in one binary frame."""
        await self.send(frame(BINARY, data))

    async def read_frame(self, deadline_s: float | None = DEADLINE_S) -> int:
        """Read and handle the next frame; its opcode, or -1 at the end."""
        try:
            async with asyncio.timeout(deadline_s):
                first, second = await self.reader.readexactly(2)
                assert not second & 0x80, "a server does not mask"
                size = second & 0x7F
                if size == 126:
                    (size,) = struct.unpack(">H", await self.reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
                data = await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return -1
        opcode = first & 0x0F
        if opcode in (BINARY, CONTINUATION):
            self.most_frame_bytes = max(self.most_frame_bytes, size)
            if first & 0x40:
                self.compressed_frames += 1
                data = zlib.decompressobj(wbits=-15).decompress(data + b"\x00\x00\xff\xff")
            self.stream += data
        elif opcode == PONG:
            self.pongs.append(data)
        elif opcode == CLOSE:
            self.closed = (struct.unpack(">H", data[:2])[0] if data else 0, data[2:])
        return opcode

    async def expect(self, expected: bytes) -> None:
        """Exactly this comes next in the NATS stream; the broker's own pings are skipped."""
        while True:
            if self.stream.startswith(b"PING\r\n") and not expected.startswith(b"PING"):
                del self.stream[:6]
            got = bytes(self.stream[: len(expected)])
            if got == expected:
                del self.stream[: len(expected)]
                return
            assert expected.startswith(got) or b"PING\r\n".startswith(got), (got[:200], expected[:200])
            assert await self.read_frame() >= 0, f"the end came before {expected[:200]!r}"

    async def flush(self) -> None:
        await self.say(b"PING\r\n")
        await self.expect(b"PONG\r\n")

    async def rest(self) -> bytes:
        """The remaining bytes of data frames until the end."""
        while await self.read_frame() >= 0:
            pass
        return bytes(self.stream)

    def close(self) -> None:
        self.writer.close()


async def upgrade(port: int, *more: str, context: ssl.SSLContext | None = None, path: str = "/") -> FramedClient:
    """A connection after the upgrade and INFO."""
    async with asyncio.timeout(DEADLINE_S):
        name = "localhost" if context else None
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name)
        writer.write(request(port, *more, path=path))
        answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    assert ACCEPT.encode() in answer
    client = FramedClient(reader, writer, answer=answer)
    while b"\r\n" not in client.stream:
        assert await client.read_frame() == BINARY
    line, _, rest = bytes(client.stream).partition(b"\r\n")
    client.stream[:] = rest
    client.info = orjson.loads(line[5:])
    return client


async def connect(port: int, *more: str, context: ssl.SSLContext | None = None, line: bytes = b"") -> FramedClient:
    """The same, after CONNECT."""
    client = await upgrade(port, *more, context=context)
    await client.say(line or b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":1}\r\n')
    await client.flush()
    return client


async def answer_to(port: int, data: bytes) -> bytes:
    """A server's response to these bytes in place of an upgrade: complete, or up to its close."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(data)
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            return end.partial
        except ConnectionError:
            return b""
        finally:
            writer.close()
