"""A small HTTP/1.1 server for pages that are read and never written: h11's rules on asyncio's streams.

GET and HEAD alone; bounded in connections, in what a request may weigh and in how long anybody may take. Knows no
page: `respond(request)` makes the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import NamedTuple

import h11

from router.secure_door import streams_past_handshake

logger = logging.getLogger("gnatswarm.monitor")

# Dashboards, scrapers and people; each costs some 100 KB while it is open.
MOST_CONNECTIONS = 128
MOST_HEAD_BYTES = 16 * 1024
MOST_BODY_BYTES = 64 * 1024
READ_BYTES = 16 * 1024
WRITE_BYTES = 256 * 1024
# A scraper that comes every minute keeps its connection.
IDLE_DEADLINE_S = 75.0
HEAD_DEADLINE_S = 10.0
# For WRITE_BYTES at a time: who reads slower than that is not reading.
WRITE_DEADLINE_S = 20.0
# Out of descriptors: accepting is tried again after so long.
ACCEPT_AGAIN_S = 1.0


class Request(NamedTuple):
    """What was asked for."""

    path: str  # as it came, percent signs included
    query: str  # behind the first "?"
    headers: dict[str, str]  # lower-case names; the last of equal ones

    @property
    def wants_html(self) -> bool:
        """Whether a browser asks."""
        return "text/html" in self.headers.get("accept", "")


class Response(NamedTuple):
    """What is answered."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


Respond = Callable[[Request], Awaitable[Response]]


def text_response(text: str, status: int = 200, *headers: tuple[str, str]) -> Response:
    """Plain words, as for an error."""
    return Response(text.encode(), "text/plain; charset=utf-8", status, headers)


class HttpServer:
    """Serves one listening socket, which it owns."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._server: asyncio.Server | None = None
        self._acceptor: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, sock: socket.socket, context: Callable[[], ssl.SSLContext] | None = None) -> None:
        """From here on requests are answered; over TLS where there is a context, asked for at each connection."""
        if context is None:
            self._server = await asyncio.start_server(self._on_connection, sock=sock, limit=READ_BYTES, backlog=128)
        else:
            sock.setblocking(False)
            self._acceptor = asyncio.get_running_loop().create_task(self._accept(sock, context))

    def close(self) -> None:
        """Stop at once; answers under way are cut off."""
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            self._acceptor.cancel()
        for task in self._tasks:
            task.cancel()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            writer.close()
        else:
            self._work(self._serve(reader, writer))

    async def _accept(self, listening: socket.socket, context: Callable[[], ssl.SSLContext]) -> None:
        """Connections count from before their handshake: they hold a descriptor and buffers."""
        while True:
            try:
                sock, _address = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:
                logger.error("cannot accept monitoring connections: %s", os.strerror(error.errno or 0))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._tasks) >= MOST_CONNECTIONS:
                sock.close()
            else:
                self._work(self._serve_secure(sock, context()))

    async def _serve_secure(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        streams = await streams_past_handshake(sock, context, limit=READ_BYTES, deadline_s=HEAD_DEADLINE_S)
        if streams is not None:
            await self._serve(*streams)

    def _work(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a monitoring page failed", exc_info=task.exception())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        try:
            while True:
                async with asyncio.timeout(IDLE_DEADLINE_S) as deadline:
                    request = await _read_request(connection, reader, deadline)
                if request is None:
                    break
                await self._answer(connection, writer, request)
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    break
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            with contextlib.suppress(OSError, TimeoutError, h11.LocalProtocolError):
                await _write(
                    connection, writer, text_response("400 Bad Request", error.error_status_hint), is_head=False
                )
        except (OSError, TimeoutError):
            pass  # gone, or too slow: nobody is left to tell
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, connection: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request) -> None:
        method = request.method.decode("ascii")
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        if method not in ("GET", "HEAD"):
            response = text_response("405 method not allowed", 405, ("allow", "GET, HEAD"))
        else:
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
            try:
                response = await self._respond(Request(path, query, headers))
            except Exception:
                # A fault of ours. The operator's log has it; whoever asked learns no more than that.
                logger.exception("the page %s failed", path)
                response = text_response("500 internal server error", 500)
        await _write(connection, writer, response, is_head=method == "HEAD")


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, deadline: asyncio.Timeout
) -> h11.Request | None:
    """The next request, its body thrown away; None when there is none any more. Once begun it has to come soon."""
    request: h11.Request | None = None
    body_bytes = 0
    is_begun = False
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                return request
            connection.receive_data(await reader.read(READ_BYTES))
            if not is_begun:
                is_begun = True
                deadline.reschedule(asyncio.get_running_loop().time() + HEAD_DEADLINE_S)
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body_bytes += len(event.data)
            if body_bytes > MOST_BODY_BYTES:
                raise h11.RemoteProtocolError("a body is of no use here", 413)
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:  # closed, or paused
            return None


async def _write(
    connection: h11.Connection, writer: asyncio.StreamWriter, response: Response, *, is_head: bool
) -> None:
    headers = [
        ("content-type", response.content_type),
        ("content-length", str(len(response.body))),
        ("date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        *response.headers,
    ]
    data = connection.send(h11.Response(status_code=response.status, headers=headers, reason=_reason(response.status)))
    writer.write(data or b"")
    if not is_head:
        body = memoryview(response.body)
        for at in range(0, len(body), WRITE_BYTES):
            writer.write(connection.send(h11.Data(data=bytes(body[at : at + WRITE_BYTES]))) or b"")
            async with asyncio.timeout(WRITE_DEADLINE_S):
                await writer.drain()
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await writer.drain()


_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def _reason(status: int) -> bytes:
    return _REASONS.get(status, "").encode()
