"""What is no request is answered so, and the operator's socket serves the next one."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from gnatswarm.router.supervision import operator_server
from gnatswarm.router.supervision.operator_server import OperatorServer, Say
from gnatswarm.router.supervision.operator_socket import (
    MAX_REQUEST_BYTES,
    AnyRequest,
    Reply,
    StatusRequest,
    WhyRequest,
    decode_reply,
    encode_request,
)
from tests.support.clock_loop import ClockLoop

DEADLINE_S = 30.0


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
        # (from Python 3.12 on so many levels are read)
        (b'{"a":' + b"[" * 4000 + b"\n", "recursion|truncated"),
        (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b',"type":"PortsRequest"}\n', "recursion|unknown field `a`"),
    ],
)
async def test_what_is_no_request_is_answered_with_the_reason(path: str, line: bytes, why: str) -> None:
    assert len(line) < MAX_REQUEST_BYTES
    reply = decode_reply(await said_to(path, line))
    assert reply.error.startswith("not a request: ")
    assert re.search(why, reply.error)
    assert decode_reply(await said_to(path, encode_request(StatusRequest()))).text == "StatusRequest"


async def test_an_error_that_nobody_expected_is_answered_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who heard nothing would ask the next router how it went on, which knows nothing of it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "failing"))
    listening.listen()
    server = OperatorServer()

    async def answer(request: AnyRequest, say: Say) -> Reply:
        raise KeyError("nobody expected \udcff")

    await server.serve(listening, answer)
    reply = decode_reply(await said_to(str(tmp_path / "failing"), encode_request(StatusRequest())))
    server.close()
    assert reply == Reply(error=r"an unexpected error, the log says more: KeyError('nobody expected \udcff')")
    assert "StatusRequest could not be answered" in caplog.text and "Traceback" in caplog.text


async def test_a_request_that_is_too_long_is_not_answered(path: str) -> None:
    assert await said_to(path, b"[" * (4 * MAX_REQUEST_BYTES) + b"\n") == b""
    assert decode_reply(await said_to(path, encode_request(StatusRequest()))).text == "StatusRequest"


def test_an_operator_who_leaves_before_the_answer_leaves_no_traceback(tmp_path: Path) -> None:
    """On the router's loop: a closed uvloop transport raises where one of asyncio only warns."""
    failures: list[dict[str, object]] = []

    async def leave_early() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "operator"))
        listening.listen()
        asked, answered = asyncio.Event(), asyncio.Event()
        transports: list[asyncio.WriteTransport] = []

        async def answer(request: AnyRequest, say: Say) -> Reply:
            asked.set()
            while not transports[0].is_closing():  # until a line could not be sent
                say("still at it")
                await asyncio.sleep(0)
            answered.set()
            return Reply(text="done")

        class Watched(OperatorServer):
            async def _on_operator(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                transports.append(writer.transport)
                await super()._on_operator(reader, writer)

        server = Watched()
        await server.serve(listening, answer)
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "operator"))
        writer.write(encode_request(StatusRequest()))
        async with asyncio.timeout(DEADLINE_S):
            await asked.wait()
            writer.close()
            await answered.wait()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(leave_early())
    assert failures == []


def test_a_command_that_does_not_run_for_a_while_before_it_asks_is_answered() -> None:
    loop = ClockLoop()
    reader = asyncio.StreamReader(loop=loop)
    reading = loop.create_task(operator_server._request_line(reader))
    loop.pass_s(0.0)
    loop.pass_s(20.0)
    assert not reading.done()
    reader.feed_data(encode_request(StatusRequest()))
    loop.pass_s(0.0)
    assert reading.result() == encode_request(StatusRequest())
    loop.close()


async def test_an_operator_who_says_nothing_is_named_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnatswarm.router.supervision.operator_server.REQUEST_DEADLINE_S", 0.1)
    reader, writer = await asyncio.open_unix_connection(path)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    assert "not readable: nothing came" in caplog.text


@pytest.mark.parametrize(
    ("subject", "why"), [("a" * MAX_REQUEST_BYTES, "too long: 4,1.. bytes as JSON, at most 4,096"), ("\udcff", "UTF-8")]
)
def test_a_request_that_would_not_be_read_is_not_sent(subject: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encode_request(WhyRequest(subject))
