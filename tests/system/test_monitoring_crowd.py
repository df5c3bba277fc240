"""Whoever fills the monitoring port with connections keeps nobody out, least of all a probe that restarts brokers."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest

from gnatswarm.router.monitoring.http_server import MOST_CONNECTIONS
from gnatswarm.router.monitoring.places import RESERVED
from tests.support.authority import Authority, Pair
from tests.support.pages import Pages
from tests.support.servers import HOST, Broker
from tests.support.wire import Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2")

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = b'{"status":"ok"}'
CLOSED_WITHIN_S = 20.0


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """The tests' own limit; the broker raises its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=["http", "https"])
def pages(
    request: pytest.FixtureRequest, start_broker: Callable[..., Broker], server: Pair, authority: Authority
) -> Pages:
    """Of a broker that serves them plain, or over TLS."""
    if request.param == "http":
        return Pages.of(start_broker(args=["-m", "-1"]))
    broker = start_broker(config=f"tls {{\n {server.lines}\n}}\nhttps: -1\n")
    return Pages.of(broker, context=authority.client_context())


def connected(pages: Pages, count: int) -> list[socket.socket]:
    return [socket.create_connection((HOST, pages.port), timeout=CLOSED_WITHIN_S) for _ in range(count)]


@contextlib.contextmanager
def crowd(pages: Pages, count: int) -> Iterator[list[socket.socket]]:
    """So many connections at once that say nothing."""
    found: list[socket.socket] = []
    try:
        for _ in range(count):
            found += connected(pages, 1)
        yield found
    finally:
        for sock in found:
            sock.close()


async def assert_served(pages: Pages) -> None:
    for path in ("/healthz", "/metrics", "/varz", "/connz"):
        assert (await asyncio.to_thread(pages.get, path)).status == 200


def answered(sock: socket.socket) -> bytes:
    """What comes for a request, whole."""
    sock.sendall(REQUEST)
    said = b""
    while not said.endswith(ANSWER):
        data = sock.recv(4096)
        assert data, f"closed behind {said!r}"
        said += data
    return said


@pytest.mark.parametrize("count", [128, 256, 1000])
async def test_silent_connections_keep_no_probe_out(pages, many_descriptors, count):
    def look() -> None:
        with crowd(pages, count):
            for _ in range(3):
                for path in ("/healthz", "/metrics", "/varz", "/connz"):
                    assert pages.get(path).status == 200

    await asyncio.to_thread(look)
    await assert_served(pages)


@pytest.mark.parametrize("begin", [b"GET /healthz HTTP/1.1\r\nHost: ", b"\x16\x03\x01\x02\x00\x01"])
async def test_connections_whose_bytes_trickle_keep_no_probe_out_and_are_closed(pages, many_descriptors, begin):
    def trickle() -> None:
        with crowd(pages, 256) as crowded:
            for byte in begin:
                for sock in crowded:
                    with contextlib.suppress(OSError):
                        sock.sendall(bytes((byte,)))
                for path in ("/healthz", "/metrics"):
                    assert pages.get(path).status == 200
            for sock in crowded:
                with contextlib.suppress(ConnectionError):
                    while sock.recv(4096):
                        pass  # until it is closed: a TimeoutError says that it was not

    await asyncio.to_thread(trickle)


async def test_one_that_trickles_without_a_crowd_is_closed_too(pages):
    def trickle() -> bool:
        with connected(pages, 1)[0] as sock:
            sock.settimeout(0.2)
            for _ in range(int(CLOSED_WITHIN_S / 0.2)):
                try:
                    sock.sendall(b"\x16" if pages.scheme == "https" else b"G")
                    if not sock.recv(4096):
                        return True
                except TimeoutError:
                    continue
                except ConnectionError:
                    return True
            return False

    assert await asyncio.to_thread(trickle)


async def test_handshakes_that_end_in_silence_keep_no_probe_out(start_broker, server, authority, many_descriptors):
    broker = start_broker(config=f"tls {{\n {server.lines}\n}}\nhttps: -1\n")
    pages = Pages.of(broker, context=authority.client_context())
    context = authority.client_context()

    def look() -> None:
        secure: list[ssl.SSLSocket] = []
        try:
            for plain in connected(pages, 200):
                with contextlib.suppress(OSError):  # it gave way already
                    secure.append(context.wrap_socket(plain, server_hostname="localhost"))
            assert secure
            assert pages.get("/healthz").status == 200
            assert pages.get("/metrics").status == 200
        finally:
            for sock in secure:
                sock.close()

    await asyncio.to_thread(look)


async def test_who_is_kept_alive_is_not_cut_for_a_silent_crowd(start_broker, many_descriptors):
    pages = Pages.of(start_broker(args=["-m", "-1"]))

    def look() -> None:
        (regular,) = connected(pages, 1)
        with regular:
            answered(regular)
            with crowd(pages, 400):
                assert pages.get("/healthz").status == 200
                answered(regular)
            answered(regular)

    await asyncio.to_thread(look)


async def test_connections_that_were_answered_and_stay_keep_no_probe_out(start_broker, many_descriptors):
    pages = Pages.of(start_broker(args=["-m", "-1"]))

    def look() -> None:
        with crowd(pages, 0) as crowded:
            for _ in range(300):
                crowded += connected(pages, 1)
                answered(crowded[-1])
            for path in ("/healthz", "/metrics", "/connz"):
                assert pages.get(path).status == 200

    await asyncio.to_thread(look)


async def test_pages_that_nobody_reads_take_no_place_from_the_probe(start_broker, cluster_of, many_descriptors):
    """Everybody in an ordinary place is being answered: the reserve answers whoever asks for health."""
    broker = start_broker(args=["-m", "-1"])
    pages, cluster = Pages.of(broker), cluster_of(broker)
    assert isinstance(cluster, Cluster)
    client = await cluster.client()
    await client.send("".join(f"SUB some.quite.long.subject.{at} {at}\r\n" for at in range(10_000)))
    await client.flush()
    big = REQUEST.replace(b"/healthz", b"/connz?subs=detail")

    def look() -> None:
        found = []
        try:
            for _ in range(MOST_CONNECTIONS + RESERVED):
                sock = socket.socket()
                found.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.settimeout(CLOSED_WITHIN_S)
                sock.connect((HOST, pages.port))
                sock.sendall(big)
                if len(found) % 40 == 0:
                    assert pages.get("/healthz").status == 200
            for path in ("/healthz", "/metrics", "/varz"):
                assert pages.get(path).status == 200
        finally:
            for sock in found:
                sock.close()

    await asyncio.to_thread(look)


async def test_a_broker_of_few_descriptors_answers_its_probe(start_broker):
    pages = Pages.of(start_broker(args=["-m", "-1"], descriptors=100))

    def look() -> None:
        with crowd(pages, 400):
            for path in ("/healthz", "/metrics"):
                assert pages.get(path).status == 200

    await asyncio.to_thread(look)
