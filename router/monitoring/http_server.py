"""A small HTTP/1.1 server for read-only pages: h11 on asyncio's streams.

Only GET and HEAD; the number of connections (`router.monitoring.places` says which one is cut), the size of a request
and all times are bounded. It knows no pages: `respond(request)` makes the response, `is_vital(path)` tells which paths
are served even when all ordinary places are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import unquote

import h11

from gnatswarm.router.monitoring.places import RESERVED, Doing, Place, Places
from gnatswarm.router.monitoring.tls_streams import Reader, Streams, Writer, streams_past_handshake
from gnatswarm.shards.boundary.pace import Pace

logger = logging.getLogger("gnatswarm.monitor")

# Dashboards, scrapers and people; each costs some 100 KB while it is open.
MOST_CONNECTIONS = 128
# Connections may use a quarter of the process's descriptors: the shards' channels need some too.
SHARE_OF_DESCRIPTORS = 4
MOST_HEAD_BYTES = 16 * 1024
MOST_BODY_BYTES = 64 * 1024
# A piece of a body, however short, counts as so many bytes: h11 takes some 10 µs for each, which may be six bytes.
LEAST_PIECE_BYTES = 64
READ_BYTES = 16 * 1024
WRITE_BYTES = 256 * 1024
# A scraper that asks every minute keeps its connection.
IDLE_DEADLINE_S = 75.0
# For a whole request, from the connection's begin (over TLS: once for the handshake, once from its end); for a later
# request from its first byte. Sending slowly does not extend it.
HEAD_DEADLINE_S = 5.0
# For each WRITE_BYTES: a client that reads more slowly is cut.
WRITE_DEADLINE_S = 20.0
# Of pages that are being taken, all together: 100 MB of /connz for each of those who read slowly would be gigabytes. …
MOST_UNTAKEN_BYTES = 256 * 1024 * 1024
# … A page of this size is always sent, and so is a longer one if it is the only one.
SMALL_PAGE_BYTES = 256 * 1024
# Few per turn of the loop, so that a new connection is read before a crowd behind it can push it out; but more than
# one, because a crowd comes faster, and a full backlog costs a newcomer a second.
ACCEPTED_IN_A_TURN = 4
# When descriptors run out, accepting is tried again after this long, …
ACCEPT_AGAIN_S = 1.0
# … or this long if a connection was cut, whose descriptor is free after the next turns of the loop.
AFTER_CUT_S = 0.02
CUTS_SAID_EVERY_S = 60.0
AGAIN = ("retry-after", "1")
ABSOLUTE = re.compile(r"https?://(?P<host>[^/?]*)", re.IGNORECASE)
NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpRequest(NamedTuple):
    """One request."""

    path: str  # decoded; other bytes than UTF-8 as surrogates
    query: str  # after the first "?"
    headers: dict[str, str]  # lower-case names; the last of equal ones

    @property
    def wants_html(self) -> bool:
        """Whether the client is a browser."""
        return "text/html" in self.headers.get("accept", "")


class HttpResponse(NamedTuple):
    """One response."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


Respond = Callable[[HttpRequest], Awaitable[HttpResponse]]


def text_response(text: str, status: int = 200, *headers: tuple[str, str]) -> HttpResponse:
    """A response in plain text, as for an error."""
    return HttpResponse(text.encode(), "text/plain; charset=utf-8", status, headers)


class HttpServer:
    """Serves one listening socket, which the caller closes."""

    def __init__(self, respond: Respond, is_vital: Callable[[str], bool]) -> None:
        self._respond = respond
        self._is_vital = is_vital
        self._acceptor: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._places = Places(min(MOST_CONNECTIONS, max(1, descriptors // SHARE_OF_DESCRIPTORS - RESERVED)))
        self._turn = asyncio.Lock()
        self._untaken_bytes = 0  # of pages that are not small
        self._cuts_said = 0  # cuts already logged
        self._cuts_said_s = -CUTS_SAID_EVERY_S

    async def start(self, sock: socket.socket, context: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Start serving; over TLS if `context` is given, which is called for each connection."""
        sock.setblocking(False)
        self._acceptor = asyncio.get_running_loop().create_task(self._accept(sock, context))

    def close(self) -> None:
        """Stop at once; responses in progress are cut off."""
        if self._acceptor is not None:
            self._acceptor.cancel()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, listening: socket.socket, context: Callable[[], ssl.SSLContext] | None) -> None:
        """Accept connections; each takes a place before its TLS handshake, as it holds a descriptor and buffers."""
        accepted = 0
        while True:
            try:
                sock, address = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:
                if error.errno in NO_ROOM and self._places.cut_one():
                    await asyncio.sleep(AFTER_CUT_S)
                    continue
                logger.error("cannot accept monitoring connections: %s", os.strerror(error.errno or 0))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            try:
                self._admit(sock, str(address[0]), context)
            except Exception:  # an error of ours: it must not be the last connection that is accepted
                logger.exception("a monitoring connection is not served")
                sock.close()
            accepted += 1
            if accepted % ACCEPTED_IN_A_TURN == 0:
                await asyncio.sleep(0)

    def _admit(self, sock: socket.socket, address: str, context: Callable[[], ssl.SSLContext] | None) -> None:
        place = Place(address, lambda: task.cancel())
        task = asyncio.get_running_loop().create_task(self._hold(place, sock, context))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_gone(done, place, sock))
        self._places.take(place)
        self._say_cuts()

    def _on_gone(self, task: asyncio.Task[None], place: Place, sock: socket.socket) -> None:
        self._tasks.discard(task)
        self._places.leave(place)
        sock.close()  # if it was cut before it had a transport
        if not task.cancelled() and task.exception() is not None:
            logger.error("a monitoring page failed", exc_info=task.exception())

    def _say_cuts(self) -> None:
        now_s = time.monotonic()
        if self._places.cuts == self._cuts_said or now_s < self._cuts_said_s + CUTS_SAID_EVERY_S:
            return
        logger.warning(
            "Monitoring has too many connections (%d places, or one address's share): "
            "the oldest ones without a request are closed",
            self._places.most,
        )
        self._cuts_said, self._cuts_said_s = self._places.cuts, now_s

    async def _hold(self, place: Place, sock: socket.socket, context: Callable[[], ssl.SSLContext] | None) -> None:
        if context is None:
            streams: Streams | None = await _plain_streams(sock)
        else:
            streams = await streams_past_handshake(sock, context(), deadline_s=HEAD_DEADLINE_S)
        if streams is not None:
            await self._serve(place, *streams)

    async def _serve(self, place: Place, reader: Reader, writer: Writer) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        try:
            place.turn(Doing.ASKING)
            while True:
                wait_s = HEAD_DEADLINE_S if place.doing is Doing.ASKING else IDLE_DEADLINE_S
                async with asyncio.timeout(wait_s) as deadline:
                    request = await _read_request(connection, reader, deadline, place, self._wait_turn)
                if request is None:
                    break
                place.turn(Doing.ANSWERING)
                # (a read may hold hundreds of requests)
                await self._wait_turn()
                await self._answer(connection, writer, request, place)
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    break
                connection.start_next_cycle()
                place.turn(Doing.IDLE)
            await _close(writer, place)
        except h11.RemoteProtocolError as error:
            with contextlib.suppress(OSError, TimeoutError, h11.LocalProtocolError):
                status = error.error_status_hint
                refusal = text_response(f"{status} {_REASONS.get(status, 'Bad Request')}", status)
                await _write(connection, writer, refusal, place, is_head=False)
                await _close(writer, place)
        except (OSError, TimeoutError):
            pass  # the client is gone, or too slow
        finally:
            # Not close(), which keeps the descriptor until the peer has read the rest, however long that takes.
            writer.transport.abort()

    async def _wait_turn(self) -> None:
        """Wait until this turn of the loop is ours: one read or one page in each, because the router does other work.

        A read takes up to 20 ms, if it is all of short headers, or of short pieces of a body.
        """
        async with self._turn:
            await asyncio.sleep(0)

    async def _answer(self, connection: h11.Connection, writer: Writer, request: h11.Request, place: Place) -> None:
        method = request.method.decode("ascii")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        path, query = _target_of(request, headers)
        if place.is_reserved and not self._is_vital(path) and not self._places.leave_reserve(place):
            response = text_response("503 too many connections, try again", 503, AGAIN)
        elif method not in ("GET", "HEAD"):
            response = text_response("405 method not allowed", 405, ("allow", "GET, HEAD"))
        else:
            try:
                response = await self._respond(HttpRequest(path, query, headers))
            except Exception:
                # A bug of ours: details go only to the log, not to the client.
                logger.exception("the page %s failed", path)
                response = text_response("500 internal server error", 500)
        if place.is_reserved:  # free it for the next newcomer
            response = response._replace(headers=(*response.headers, ("connection", "close")))
        size = len(response.body) if len(response.body) > SMALL_PAGE_BYTES and method != "HEAD" else 0
        if size and self._untaken_bytes and self._untaken_bytes + size > MOST_UNTAKEN_BYTES:
            response, size = text_response("503 too many long pages are being read, try again", 503, AGAIN), 0
        self._untaken_bytes += size
        try:
            await _write(connection, writer, response, place, is_head=method == "HEAD")
        finally:
            self._untaken_bytes -= size


async def _plain_streams(sock: socket.socket) -> Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _read_request(
    connection: h11.Connection,
    reader: Reader,
    deadline: asyncio.Timeout,
    place: Place,
    wait_turn: Callable[[], Awaitable[None]],
) -> h11.Request | None:
    """The next request, without its body; None at the end. Once begun it must be complete within HEAD_DEADLINE_S."""
    request: h11.Request | None = None
    body_bytes = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                return request
            if connection.trailing_data[0] and place.doing is Doing.IDLE:
                _begin(place, deadline)  # a part of this request came with the last one
            data = await reader.read(READ_BYTES)
            if place.doing is Doing.IDLE:
                _begin(place, deadline)
            await wait_turn()
            connection.receive_data(data)
        elif isinstance(event, h11.Request):
            if not event.http_version.startswith(b"1."):
                raise h11.RemoteProtocolError("another version of HTTP", 505)
            request = event
        elif isinstance(event, h11.Data):
            body_bytes += max(len(event.data), LEAST_PIECE_BYTES)
            if body_bytes > MOST_BODY_BYTES:
                raise h11.RemoteProtocolError("a body is of no use here", 413)
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:  # closed, or paused
            return None


def _target_of(request: h11.Request, headers: dict[str, str]) -> tuple[str, str]:
    """Its path, decoded, and its query. An absolute target, as proxies send it, says the host, too."""
    target = request.target.decode("latin-1")
    absolute = ABSOLUTE.match(target)
    if absolute:
        headers["host"] = absolute["host"] or headers.get("host", "")
        target = "/" + target[absolute.end() :].removeprefix("/")
    path, _, query = target.partition("?")
    if not (path.startswith("/") or path == "*") or NO_ESCAPE.search(path):
        raise h11.RemoteProtocolError("no target of a request", 400)
    return unquote(path, errors="surrogateescape"), query


def _begin(place: Place, deadline: asyncio.Timeout) -> None:
    place.turn(Doing.ASKING)
    deadline.reschedule(asyncio.get_running_loop().time() + HEAD_DEADLINE_S)


async def _close(writer: Writer, place: Place) -> None:
    """Close the connection when the peer has read everything, or has had enough time for it."""
    place.turn(Doing.TAKING)
    writer.close()
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await writer.wait_closed()


async def _write(
    connection: h11.Connection, writer: Writer, response: HttpResponse, place: Place, *, is_head: bool
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
        pace = Pace()  # a peer that reads as fast as it is written to would hold the loop for the whole page
        for at in range(0, len(body), WRITE_BYTES):
            writer.write(connection.send(h11.Data(data=bytes(body[at : at + WRITE_BYTES]))) or b"")
            place.turn(Doing.TAKING)
            async with asyncio.timeout(WRITE_DEADLINE_S):
                await writer.drain()
            await pace()
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    place.turn(Doing.TAKING)
    async with asyncio.timeout(WRITE_DEADLINE_S):
        await writer.drain()


_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


def _reason(status: int) -> bytes:
    return _REASONS.get(status, "").encode()
