"""The HTTP server under the monitoring pages: what it answers, refuses and survives, spoken to in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import h11
import pytest
import pytest_asyncio

from gnatswarm.router.monitoring import http_server as module
from gnatswarm.router.monitoring.http_server import (
    MOST_BODY_BYTES,
    MOST_HEAD_BYTES,
    HttpRequest,
    HttpResponse,
    HttpServer,
    text_response,
)
from gnatswarm.router.monitoring.places import Place, Places
from gnatswarm.shards.boundary import pace
from tests.support.authority import Authority
from tests.support.turns import until

WITHIN_S = 20
LONG_BYTES = 32 * 1024 * 1024  # more than the buffers of a socket


class Site:
    """A server with pages that say what they were asked, one that fails and one that is never done."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []
        self.is_slow = asyncio.Event()
        self.was_cut = False
        self.server = HttpServer(self.respond, lambda path: path == "/healthz")
        self.sock = socket.create_server(("127.0.0.1", 0))

    async def respond(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        if request.path == "/broken":
            raise RuntimeError("of the test")
        if request.path == "/slow":
            self.is_slow.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cut = True
                raise
        if request.path == "/long":
            return HttpResponse(bytes(LONG_BYTES))
        return text_response(f"page {request.path}?{request.query}")

    async def close(self) -> None:
        """Until nothing of the server runs any more: whoever closes its socket before takes it from under it."""
        self.server.close()
        acceptor = self.server._acceptor
        assert acceptor is not None
        async with asyncio.timeout(WITHIN_S):
            await asyncio.wait([acceptor, *self.server._tasks])
        self.sock.close()

    async def say(self, data: bytes) -> bytes:
        """All that is answered until the server closes."""
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(*self.sock.getsockname())
            writer.write(data)
            writer.write_eof()
            found = await reader.read()
            writer.close()
            await writer.wait_closed()
        return found


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.server.start(site.sock)
    yield site
    await site.close()


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer.split()[1])


async def test_a_page_is_answered_with_its_length_and_is_not_to_be_stored(site: Site) -> None:
    head, _, body = (await site.say(b"GET /varz?a=1 HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n")).partition(
        b"\r\n\r\n"
    )
    assert body == b"page /varz?a=1"
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 200 ok"
    assert {b"content-length: 14", b"cache-control: no-store", b"x-content-type-options: nosniff"} <= set(lines)
    assert site.asked[0].wants_html


async def test_head_has_the_length_and_no_body(site: Site) -> None:
    answer = await site.say(b"HEAD /varz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"content-length: 11" in answer.lower()
    assert answer.endswith(b"\r\n\r\n")


async def test_requests_on_one_connection_are_answered_in_their_order(site: Site) -> None:
    words = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(3))
    answer = await site.say(words)
    assert [answer.find(b"page /%d" % number) > 0 for number in range(3)] == [True] * 3
    assert answer.find(b"page /0") < answer.find(b"page /1") < answer.find(b"page /2")
    assert [one.path for one in site.asked] == ["/0", "/1", "/2"]


async def test_nothing_is_answered_behind_connection_close(site: Site) -> None:
    answer = await site.say(
        b"GET /0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert b"page /0" in answer
    assert b"page /1" not in answer


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://broker:8222/varz?a=%31", "/varz", "broker:8222"),
        (b"HTTP:///varz?a=%31", "/varz", "x"),
        (b"http://broker?a=%31", "/", "broker"),
        (b"/%76arz?a=%31", "/varz", "x"),
        (b"/%0d%0a?a=%31", "/\r\n", "x"),
    ],
    ids=["absolute", "without a host", "without a path", "with an escape", "with line breaks"],
)
async def test_a_target_may_be_absolute_and_have_escapes(site: Site, target: bytes, path: str, host: str) -> None:
    await site.say(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    (asked,) = site.asked
    assert (asked.path, asked.query, asked.headers["host"]) == (path, "a=%31", host)


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS"])
async def test_pages_are_only_read(site: Site, method: bytes) -> None:
    answer = await site.say(method + b" /varz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(answer) == 405
    assert b"allow: get, head" in answer.lower()
    assert site.asked == []


@pytest.mark.parametrize(
    ("words", "refused_with"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"GET /varz HTTP/1.1\r\n\r\n", 400),
        (b"GET varz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /varz%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /varz HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /varz HTTP/1.1\r\nHost: x\r\nContent-Length: a\r\n\r\n", 400),
        (b"GET /varz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2 * MOST_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n" + b"x" * (MOST_BODY_BYTES + 1), 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000, 413),
    ],
    ids=[
        "no request line",
        "no host",
        "no path",
        "no escape",
        "another version",
        "length of no number",
        "head too large",
        "body too large",
        "body in too many pieces",
    ],
)
async def test_what_is_no_request_is_refused(site: Site, words: bytes, refused_with: int) -> None:
    assert status(await site.say(words)) == refused_with
    assert site.asked == []


async def test_a_small_body_is_thrown_away(site: Site) -> None:
    answer = await site.say(
        b"GET /0 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert b"page /0" in answer
    assert b"page /1" in answer


async def test_a_page_that_fails_says_nothing_of_why(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    answer = await site.say(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(answer) == 500
    assert b"of the test" not in answer
    assert "the page /broken failed" in caplog.text


async def test_half_a_request_is_answered_with_nothing(site: Site) -> None:
    assert await site.say(b"") == b""
    assert site.asked == []


async def test_a_later_request_that_does_not_end_is_cut_long_before_an_idle_connection_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(WITHIN_S):
        reader, writer = await asyncio.open_connection(*site.sock.getsockname())
        writer.write(b"GET /0 HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"page /0?")
        monkeypatch.setattr(module, "HEAD_DEADLINE_S", 0.01)
        assert module.IDLE_DEADLINE_S > WITHIN_S
        writer.write(b"GET /1 HTTP")
        assert await reader.read() == b""
        writer.close()
    assert [one.path for one in site.asked] == ["/0"]


async def test_when_all_places_are_being_answered_only_vital_pages_are_served(site: Site) -> None:
    site.server._places = Places(1)
    async with asyncio.timeout(WITHIN_S):
        _, writer = await asyncio.open_connection(*site.sock.getsockname())
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await site.is_slow.wait()
    assert status(await site.say(b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n")) == 503
    assert status(await site.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")) == 200
    assert [one.path for one in site.asked] == ["/slow", "/healthz"]
    writer.close()


async def test_after_close_nobody_is_answered(site: Site) -> None:
    site.server.close()
    reader, writer = await asyncio.open_connection(*site.sock.getsockname())
    writer.write(b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n")
    await site.close()
    # The kernel resets what nobody has accepted.
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), WITHIN_S)
    assert site.asked == []
    writer.close()


async def test_a_page_that_is_being_made_is_cut_off_by_close(site: Site) -> None:
    reader, writer = await asyncio.open_connection(*site.sock.getsockname())
    writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(site.is_slow.wait(), WITHIN_S)
    await site.close()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
    assert site.was_cut
    writer.close()


ASK = b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_socket_that_cannot_be_accepted_is_said_and_the_next_one_is(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ACCEPT_AGAIN_S", 0.0)
    await lose_one(site, monkeypatch)
    assert status(await site.say(ASK)) == 200
    assert "cannot accept monitoring connections: Too many open files" in caplog.text


async def test_an_error_of_ours_for_a_new_connection_costs_that_one_and_others_are_accepted(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was any more, and nobody heard why."""
    with monkeypatch.context() as broken:
        broken.setattr(site.server, "_admit", lambda *_: 1 // 0)
        with socket.create_connection(site.sock.getsockname(), WITHIN_S) as one:
            assert await asyncio.to_thread(one.recv, 1) == b""
    assert status(await site.say(ASK)) == 200
    assert "a monitoring connection is not served" in caplog.text


async def test_whoever_asks_for_nothing_gives_way_when_descriptors_run_out(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "AFTER_CUT_S", 0.0)
    reader, writer = await asyncio.open_connection(*site.sock.getsockname())
    writer.write(ASK)
    await asyncio.wait_for(reader.readuntil(b"page /varz?"), WITHIN_S)  # and then it is idle
    await lose_one(site, monkeypatch)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
    assert status(await site.say(ASK)) == 200
    assert "cannot accept" not in caplog.text
    writer.close()


async def lose_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection comes for which there is no descriptor; those before and after it are accepted."""
    loop = asyncio.get_running_loop()
    accept, lost = loop.sock_accept, asyncio.Event()

    async def sock_accept(listening: socket.socket) -> tuple[socket.socket, object]:
        accepted: tuple[socket.socket, object] = await accept(listening)
        if not lost.is_set():
            accepted[0].close()
            lost.set()
            raise OSError(errno.EMFILE, "of the test")
        return accepted

    monkeypatch.setattr(loop, "sock_accept", sock_accept)
    assert status(await site.say(ASK)) == 200  # by the call that waits already
    with socket.create_connection(site.sock.getsockname()):
        await asyncio.wait_for(lost.wait(), WITHIN_S)


async def test_pages_over_tls_and_a_handshake_that_fails(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    site = Site()
    await site.server.start(site.sock, lambda: context)
    address = site.sock.getsockname()
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(*address, ssl=ssl.create_default_context(), server_hostname="localhost")
    reader, writer = await asyncio.open_connection(
        *address, ssl=authority.client_context(), server_hostname="localhost"
    )
    writer.write(b"GET /varz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"page /varz?" in await asyncio.wait_for(reader.read(), WITHIN_S)
    writer.close()
    await site.close()


async def test_requests_that_come_together_are_answered_in_turns_of_their_own(site: Site):
    """Otherwise connections that send requests without end keep the router from everything else."""
    loop = asyncio.get_running_loop()
    between: list[int] = []  # how many pages there were, in each turn of the loop

    def look() -> None:
        between.append(len(site.asked))
        loop.call_soon(look)

    look()
    many = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 100
    answers = await asyncio.gather(*(site.say(many) for _ in range(5)))
    assert [answer.count(b"HTTP/1.1 200") for answer in answers] == [100] * 5
    assert max(after - before for before, after in itertools.pairwise(between)) == 1


async def test_what_was_read_is_looked_at_in_turns_of_its_own(site: Site, monkeypatch: pytest.MonkeyPatch):
    """A read of short headers, or of short pieces of a body, takes milliseconds: the router does other work, too."""
    loop = asyncio.get_running_loop()
    looked_at: list[int] = []  # bytes, of each read
    between: list[int] = []  # how many reads there were, in each turn of the loop

    class Connection(h11.Connection):
        def receive_data(self, data: bytes) -> None:
            looked_at.append(len(data))
            super().receive_data(data)

    def look() -> None:
        between.append(len(looked_at))
        loop.call_soon(look)

    monkeypatch.setattr(h11, "Connection", Connection)
    look()
    body = bytes(MOST_BODY_BYTES // 2)
    long = b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answers = await asyncio.gather(*(site.say(long) for _ in range(5)))
    assert [status(answer) for answer in answers] == [200] * 5
    assert sum(looked_at) == 5 * len(long)
    assert max(after - before for before, after in itertools.pairwise(between)) == 1


async def test_long_pages_that_nobody_takes_are_not_kept_without_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNTAKEN_BYTES", LONG_BYTES + 1)
    slow: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection(*site.sock.getsockname(), limit=1)
        writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await until(lambda: len(site.asked) > len(slow))
        slow.append((reader, writer))
    assert b"HTTP/1.1 200" in await slow[0][0].read(12)
    for reader, writer in slow[1:]:
        assert status(await asyncio.wait_for(reader.read(), WITHIN_S)) == 503
        writer.close()
    assert status(await site.say(b"HEAD /long HTTP/1.1\r\nHost: x\r\n\r\n")) == 200
    assert status(await site.say(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n")) == 200
    slow[0][1].transport.abort()
    await until(lambda: site.server._untaken_bytes == 0)
    monkeypatch.setattr(module, "MOST_UNTAKEN_BYTES", 1)
    answer = await site.say(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(answer) == 200 and len(answer) > LONG_BYTES


async def test_others_have_their_turn_while_a_long_page_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)

    class Reads:
        """Somebody who takes all that is written."""

        taken = 0

        def write(self, data: bytes) -> None:
            self.taken += len(data)

        async def drain(self) -> None:
            pass

    writer, connection = Reads(), h11.Connection(h11.SERVER)
    connection.receive_data(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    connection.next_event()
    place = Place("127.0.0.1", lambda: False)
    writing = asyncio.ensure_future(
        module._write(connection, writer, HttpResponse(bytes(LONG_BYTES)), place, is_head=False)  # type: ignore[arg-type]
    )
    turns = 0

    def is_written() -> bool:
        nonlocal turns
        turns += 1
        return writing.done()

    await until(is_written)
    assert writer.taken > LONG_BYTES
    assert turns > LONG_BYTES / module.WRITE_BYTES
