"""What is no request is answered so, and the operator's socket serves the next one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnatswarm.router.supervision.operator_socket import (
    MAX_REQUEST_BYTES,
    AnyRequest,
    OperatorServer,
    Reply,
    Say,
    StatusRequest,
    decode_reply,
    encode_request,
)

DEADLINE_S = 10.0


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "operator"))
    listening.listen()
    server = OperatorServer()

    async def answer(request: AnyRequest, say: Say) -> Reply:
        return Reply(text=type(request).__name__)

    await server.serve(listening, answer)
    yield str(tmp_path / "operator")
    server.close()


async def said_to(path: str, data: bytes) -> bytes:
    """Everything that comes back."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        said = await reader.read()
    writer.close()
    return said


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello\n", "malformed"),
        (b'{"type":"ScaleRequest"}\n', "shards"),
        (b'{"type":"ScaleRequest","shards":"many"}\n', "shards"),
        (b'{"type":"ScaleRequest","shards":2,"more":1}\n', "more"),
        (b'{"type":"NoRequest"}\n', "NoRequest"),
        (b'{"type":"WhyRequest","subject":"\xff"}\n', "utf-8"),
        (b'{"a":' + b"[" * 4000 + b"\n", "recursion"),
        (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b',"type":"PortsRequest"}\n', "recursion"),
    ],
)
async def test_what_is_no_request_is_answered_with_the_reason(path: str, line: bytes, why: str) -> None:
    assert len(line) < MAX_REQUEST_BYTES
    reply = decode_reply(await said_to(path, line))
    assert reply.error.startswith("not a request: ")
    assert why in reply.error
    assert decode_reply(await said_to(path, encode_request(StatusRequest()))).text == "StatusRequest"


async def test_a_request_that_is_too_long_is_not_answered(path: str) -> None:
    assert await said_to(path, b"[" * (4 * MAX_REQUEST_BYTES) + b"\n") == b""
    assert decode_reply(await said_to(path, encode_request(StatusRequest()))).text == "StatusRequest"
