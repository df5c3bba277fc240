"""Clients are pinged, and closed when they do not log in, answer or read in time."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gnatswarm.broker import options
from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.options import Cluster, LeafNodes
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.serverlink import ServerLink
from gnatswarm.broker.sublist import Sublist
from gnatswarm.probes.engine import replies_allowed
from gnatswarm.shards.sockets.deadlines import Deadlines
from gnatswarm.shards.sockets.reactor import Reactor, Socket
from tests.support.engine import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WITHIN_S = 20
SOON_S = 0.02
SOON = Limits(ping_interval_s=SOON_S, ping_max=2, auth_timeout_s=SOON_S, write_deadline_s=SOON_S)
NEVER = Limits(ping_interval_s=3600.0, ping_max=2, auth_timeout_s=3600.0, write_deadline_s=3600.0)
LEAST_SWEPT = 64


class Client:
    """A client's end, and what the shard has of it."""

    def __init__(self, there: socket.socket, connection: ClientConnection) -> None:
        self.there = there
        self.connection = connection
        self.socket: Socket | None = None
        self.closed: list[int] = []
        self.got = b""
        self.slow = 0

    def on_closed(self, reason: int) -> None:
        self.closed.append(reason)

    def on_write_deadline(self) -> None:
        self.slow += 1

    def take(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            while data := self.there.recv(1 << 16):
                self.got += data
        return self.got


class Bench:
    """A reactor and its deadlines."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._fanout = Fanout()
        self._sublist = Sublist(b"$G", InterestSink())
        self._fence = Fence()
        self.reactor = Reactor(self._fanout)
        stack.callback(self.reactor.close)
        self.deadlines = Deadlines(self.reactor, SOON)

    def connect(self, *, must_authenticate: bool = False) -> Client:
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        for end in (ours, theirs):
            end.setblocking(False)
        session = Session()
        limits = msgspec.structs.replace(SOON, max_pending_bytes=1 << 30)
        connection = session.connection = ClientConnection(
            self._fanout, self._sublist, self._fence, 1, limits, session, must_authenticate=must_authenticate
        )
        client = Client(ours, connection)
        client.socket = self.reactor.open(theirs.detach(), connection, client)
        return client

    def tell(self, client: Client, said: bytes) -> None:
        """The client sends this, and the reactor reads it."""
        client.there.sendall(said)
        self.reactor.turn()

    def sweep_until(self, holds: Callable[[], bool], share: float = 1.0) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, "not within its time"
            self.deadlines.sweep(share)
            self.reactor.turn()

    def sweep_for(self, microseconds: int) -> None:
        """Sweep as long as that, by the reactor's clock."""
        self.reactor.turn()
        begun_us = self.reactor.now_us()
        self.sweep_until(lambda: self.reactor.now_us() - begun_us > microseconds)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(stack)


def test_a_client_that_does_not_log_in_is_closed_in_time(bench):
    client = bench.connect(must_authenticate=True)
    bench.sweep_until(lambda: bool(client.closed))
    assert client.closed == [CloseReason.AUTHENTICATION_TIMEOUT]
    assert client.take() == b"-ERR 'Authentication Timeout'\r\n"


def test_an_error_of_ours_at_one_client_s_deadline_costs_that_client_alone(bench, monkeypatch, caplog):
    bad, good = (bench.connect(must_authenticate=True) for _ in range(2))
    monkeypatch.setattr(Session, "on_error", lambda self, error: 1 // 0 if self.connection is bad.connection else None)
    bench.sweep_until(lambda: bool(bad.closed and good.closed))
    assert (bad.closed, good.closed) == ([CloseReason.PARSE_ERROR], [CloseReason.AUTHENTICATION_TIMEOUT])
    assert "its connection is closed because of an error of ours" in caplog.text


def test_a_client_that_has_logged_in_is_not(bench):
    client = bench.connect(must_authenticate=True)
    bench.tell(client, QUIET)
    bench.sweep_until(lambda: b"PING" in client.take())
    assert not client.closed


def test_a_client_that_answers_no_ping_is_stale_after_as_many_as_it_may_miss(bench):
    client = bench.connect()
    bench.tell(client, QUIET)
    bench.sweep_until(lambda: bool(client.closed))
    assert client.closed == [CloseReason.STALE_CONNECTION]
    assert client.take() == b"PING\r\n" * SOON.ping_max + b"-ERR 'Stale Connection'\r\n"


def test_a_client_that_answers_stays(bench):
    client = bench.connect()
    bench.tell(client, QUIET)
    for pings in range(1, 2 * SOON.ping_max + 2):
        bench.sweep_until(lambda count=pings: client.take() == b"PING\r\n" * count)
        bench.tell(client, b"PONG\r\n")
    assert not client.closed
    assert client.connection.pings_out == 0


def test_who_has_said_nothing_has_no_round_trip_to_measure(bench):
    bench.deadlines.set_limits(NEVER)
    silent, client = bench.connect(), bench.connect()
    bench.tell(client, QUIET)
    bench.sweep_until(lambda: client.take() == b"PING\r\n")
    assert silent.take() == b""


def test_a_client_that_is_not_read_is_not_pinged(bench):
    client = bench.connect()
    bench.tell(client, QUIET)
    client.connection.wait()
    bench.sweep_for(int(3 * SOON_S * 1e6))
    assert client.take() == b""
    client.connection.go_on()
    bench.sweep_until(lambda: client.take() == b"PING\r\n")


def test_new_limits_hold_from_the_next_sweep_on(bench):
    client = bench.connect()
    bench.tell(client, QUIET)
    bench.deadlines.set_limits(NEVER)
    bench.sweep_for(int(3 * SOON_S * 1e6))
    assert client.take() == b""
    bench.deadlines.set_limits(SOON)
    bench.sweep_until(lambda: client.take() == b"PING\r\n")


def test_a_client_that_takes_nothing_for_the_write_deadline_is_closed(bench):
    slow, publisher = bench.connect(), bench.connect()
    bench.tell(slow, QUIET + b"SUB a 1\r\n")
    bench.tell(publisher, QUIET)
    while not slow.connection.pending_bytes:  # until the kernel takes no more
        bench.tell(publisher, b"PUB a 16384\r\n%s\r\n" % (b"x" * 16384))
    bench.sweep_until(lambda: bool(slow.closed))
    assert slow.closed == [CloseReason.SLOW_CONSUMER_WRITE_DEADLINE]
    assert bench.reactor.slow_consumers == 1


def test_with_retry_it_stays_and_is_told_of_once_each_time_it_takes_nothing(bench):
    limits = msgspec.structs.replace(NEVER, write_deadline_s=SOON_S, write_timeout="retry")
    bench.deadlines.set_limits(limits)
    slow, publisher = bench.connect(), bench.connect()
    bench.tell(slow, QUIET + b"SUB a 1\r\n")
    bench.tell(publisher, QUIET)
    sent = 0
    for times in (1, 2):
        while not slow.connection.pending_bytes:
            bench.tell(publisher, b"PUB a 16384\r\n%s\r\n" % (b"x" * 16384))
            sent += 1
        bench.sweep_until(lambda times=times: slow.slow == times)
        bench.sweep_for(int(3 * SOON_S * 1e6))
        assert (slow.slow, slow.closed, bench.reactor.slow_consumers) == (times, [], times)
        while slow.connection.pending_bytes:
            slow.take()
            bench.reactor.turn()
    slow.take()
    assert slow.got.count(b"MSG a 1 16384\r\n") == sent


def test_who_was_told_why_it_is_closed_has_a_second_to_read_it(bench):
    client = bench.connect()
    bench.tell(client, b"NONSENSE\r\n")
    assert client.closed
    begun_us = bench.reactor.now_us()
    bench.sweep_until(lambda: not bench.reactor.sockets())
    assert bench.reactor.now_us() - begun_us >= 1_000_000
    assert client.take() == b"-ERR 'Unknown Protocol Operation'\r\n"


def test_sweeps_with_small_shares_reach_every_socket(bench):
    clients = [bench.connect() for _ in range(3 * LEAST_SWEPT)]
    bench.reactor.turn()
    begun_us = bench.reactor.now_us()
    while bench.reactor.now_us() - begun_us <= SOON_S * 1e6:  # a ping is due for each
        bench.reactor.turn()
    pinged = []
    for _ in range(4):  # (the reactor has four sources of its own)
        is_more = bench.deadlines.sweep(0.0)
        while is_more:
            is_more = bench.deadlines.go_on()
        pinged.append(sum(client.connection.pings_out for client in clients))
    assert LEAST_SWEPT - 4 <= pinged[0] <= LEAST_SWEPT
    assert pinged[1] <= 2 * LEAST_SWEPT
    assert all(client.connection.pings_out for client in clients)


def test_few_clients_are_pinged_in_one_turn(bench):
    """The others come at once, but behind what else the shard has to do."""
    clients = [bench.connect() for _ in range(100)]
    bench.reactor.turn()
    begun_us = bench.reactor.now_us()
    while bench.reactor.now_us() - begun_us <= SOON_S * 1e6:
        bench.reactor.turn()
    pinged = []
    is_more = bench.deadlines.sweep(1.0)
    while is_more:
        pinged.append(sum(client.connection.pings_out for client in clients))
        is_more = bench.deadlines.go_on()
    assert pinged == [32, 64, 96]
    assert all(client.connection.pings_out == 1 for client in clients)


def test_pings_are_no_use_of_a_connection_and_messages_are(bench):
    client = bench.connect()
    assert client.socket is not None
    bench.tell(client, QUIET)
    bench.sweep_until(lambda: client.take() == b"PING\r\n")
    bench.tell(client, b"PONG\r\nPING\r\n")
    bench.sweep_for(1000)
    assert (client.socket.work, client.socket.used_us) == (0, client.socket.opened)
    bench.tell(client, b"PUB a 1\r\nx\r\nSUB a 1\r\n")
    bench.sweep_for(1000)
    assert client.socket.work == 2
    assert client.socket.used_us > client.socket.opened


def test_what_a_client_may_answer_no_more_is_forgotten_though_nothing_comes(bench: Bench) -> None:
    client, asks = bench.connect(), bench.connect()
    rights = options.Permissions(subscribe_allow=(">",), responses=1, responses_expire_s=SOON_S)
    bench.deadlines.set_limits(NEVER)
    client.connection.enter(bench._sublist, Permissions(rights))
    bench.tell(client, QUIET + b"SUB svc 1\r\n")
    bench.tell(asks, QUIET + b"PUB svc r 0\r\n\r\nPUB svc s 0\r\n\r\n")
    assert replies_allowed(client.connection) == 2
    bench.sweep_until(lambda: replies_allowed(client.connection) == 0)


class Server:
    """Another server's end, and what the shard has of it; it is sent more than it takes."""

    def __init__(self, bench: Bench, stack: contextlib.ExitStack, *, is_route: bool, waiting: int) -> None:
        self.there, theirs = socket.socketpair()
        stack.enter_context(self.there)
        for end in (self.there, theirs):
            end.setblocking(False)
        self.closed: list[int] = []
        exchange = Exchange(Mesh(bench._fanout, 0))
        self.link = ServerLink(exchange, self, is_route=is_route)  # type: ignore[arg-type]
        self.socket = bench.reactor.open(theirs.detach(), self.link, self)
        self.link.send(b"x" * waiting)
        bench.reactor.turn()

    def on_closed(self, reason: int) -> None:
        self.closed.append(reason)


@pytest.fixture
def serves(bench: Bench) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def serve(*, is_route: bool, waiting: int = 1 << 20, **words: object) -> Server:
            leafnodes, cluster = LeafNodes(), Cluster()
            if is_route:
                cluster = msgspec.structs.replace(cluster, **words)
            else:
                leafnodes = msgspec.structs.replace(leafnodes, **words)
            bench.deadlines.set_limits(NEVER, None, leafnodes, cluster)
            return Server(bench, stack, is_route=is_route, waiting=waiting)

        yield serve


@pytest.mark.parametrize("is_route", [True, False])
@pytest.mark.parametrize("write_timeout", ["default", "retry", "close"])
def test_another_server_that_takes_nothing_is_closed_after_its_own_write_deadline(
    bench: Bench, serves: Callable[..., Server], is_route: bool, write_timeout: str
) -> None:
    server = serves(is_route=is_route, write_deadline_s=SOON_S, write_timeout=write_timeout)
    bench.sweep_until(lambda: bool(server.closed))
    assert server.closed == [CloseReason.SLOW_CONSUMER_WRITE_DEADLINE]


@pytest.mark.parametrize("is_route", [True, False])
def test_the_write_deadline_of_routes_is_not_that_of_leaf_nodes(
    bench: Bench, serves: Callable[..., Server], is_route: bool
) -> None:
    server = serves(is_route=is_route)
    other = {"leafnodes" if is_route else "cluster": (LeafNodes if is_route else Cluster)(write_deadline_s=SOON_S)}
    bench.deadlines.set_limits(NEVER, **other)  # type: ignore[arg-type]
    bench.sweep_for(round(5e6 * SOON_S))
    assert not server.closed


@pytest.mark.parametrize("is_route", [True, False])
def test_another_server_that_says_nothing_more_is_sent_what_waits_for_it(
    bench: Bench, serves: Callable[..., Server], is_route: bool
) -> None:
    server = serves(is_route=is_route, waiting=1 << 20)
    server.there.shutdown(socket.SHUT_WR)
    bench.sweep_until(lambda: bool(server.closed))
    assert server.closed == [CloseReason.CLIENT_CLOSED]
    server.link.send(b"y")
    got = b""

    def has_ended() -> bool:
        nonlocal got
        with contextlib.suppress(BlockingIOError):
            while data := server.there.recv(1 << 16):
                got += data
            return True
        return False

    bench.sweep_until(has_ended)
    assert got == b"x" * (1 << 20)
    assert len(server.closed) == 1
    assert not bench.reactor.sockets()


def test_so_many_servers_that_say_nothing_more_are_sent_what_waits_for_them(
    bench: Bench, serves: Callable[..., Server]
) -> None:
    """One that connects, says so, and hardly reads, again and again, has not any number of full buffers."""
    served = []
    for _ in range(40):
        served.append(serves(is_route=False, waiting=1 << 19))
        served[-1].there.shutdown(socket.SHUT_WR)
        bench.reactor.turn()
    bench.sweep_until(lambda: all(one.closed for one in served))
    assert len(bench.reactor.sockets()) == bench.reactor.n_emptying == 31
    served[0].there.close()
    bench.sweep_until(lambda: bench.reactor.n_emptying == 30)
    last = serves(is_route=False, waiting=1 << 19)
    last.there.shutdown(socket.SHUT_WR)
    bench.sweep_until(lambda: bool(last.closed))
    assert len(bench.reactor.sockets()) == bench.reactor.n_emptying == 31


@pytest.mark.parametrize("is_gone", [True, False])
def test_another_server_that_does_not_read_it_is_closed_after_its_write_deadline(
    bench: Bench, serves: Callable[..., Server], is_gone: bool
) -> None:
    """And one that has gone at once."""
    server = serves(is_route=True, **{} if is_gone else {"write_deadline_s": SOON_S})
    server.there.shutdown(socket.SHUT_WR)
    bench.sweep_until(lambda: bool(server.closed))
    assert bench.reactor.sockets()
    if is_gone:
        server.there.close()
    bench.sweep_until(lambda: not bench.reactor.sockets())
    assert server.closed == [CloseReason.CLIENT_CLOSED]
    assert bench.reactor.slow_consumers == int(not is_gone)


def stays(bench: Bench, server: Server, read: Callable[[], None]) -> bool | None:
    """Whether it stays for three of its write deadlines, while it reads; None: this test was held up meanwhile."""
    bench.reactor.turn()
    begun_us = before_us = bench.reactor.now_us()
    while bench.reactor.now_us() - begun_us < 3e6 * DEADLINE_S and not server.closed:
        read()
        bench.deadlines.sweep(1.0)
        bench.reactor.turn()
        now_us = bench.reactor.now_us()
        if now_us - before_us > 5e5 * DEADLINE_S:
            return None
        before_us = now_us
    return not server.closed


DEADLINE_S = 0.1


@pytest.mark.parametrize("is_route", [True, False])
@pytest.mark.parametrize("write_timeout", ["default", "retry", "close"])
@pytest.mark.parametrize("takes_all", [False, True])
def test_where_all_that_waits_is_to_be_taken_who_takes_too_little_of_it_is_closed(
    bench: Bench, serves: Callable[..., Server], is_route: bool, write_timeout: str, takes_all: bool
) -> None:
    """More waits when that has been taken: that has its own time."""
    last_us = 0

    def read() -> None:
        nonlocal last_us
        taken, now_us = 0, bench.reactor.now_us()
        if not takes_all and now_us - last_us < 1000:
            return
        # (Also where this process is not given a processor for some milliseconds.)
        most = 1 << 21 if takes_all else min(now_us - last_us, 50_000) // 1000 << 12
        last_us = now_us
        with contextlib.suppress(BlockingIOError):
            while taken < most:
                taken += len(server.there.recv(1 << 16 if takes_all else 1 << 12))
        server.link.send(b"x" * taken)

    found = None
    while found is None:
        # More than it takes in that time, 4 KiB in each millisecond, or less.
        waiting = 1 << (20 if takes_all else 24)
        words = {"write_deadline_s": DEADLINE_S, "write_timeout": write_timeout}
        server = serves(is_route=is_route, waiting=waiting, **words)
        found = stays(bench, server, read)
    assert found is (takes_all or write_timeout != "close")


@pytest.mark.parametrize("does", ["finish", "close"])
def test_who_is_told_of_a_slow_client_may_have_the_reactor_finish_or_close(bench: Bench, does: str) -> None:
    """It does so when all were told: the sweep goes through its sockets."""
    limits = msgspec.structs.replace(NEVER, write_deadline_s=SOON_S, write_timeout="retry")
    bench.deadlines.set_limits(limits)
    slow, publisher = bench.connect(), bench.connect()
    bench.tell(slow, QUIET + b"SUB a 1\r\n")
    bench.tell(publisher, QUIET)
    while not slow.connection.pending_bytes:
        bench.tell(publisher, b"PUB a 60000\r\n%s\r\n" % bytes(60_000))
    seen: list[tuple[list[int], bool]] = []

    def on_write_deadline() -> None:
        assert publisher.socket is not None
        publisher.socket.kick(CloseReason.KICKED)
        getattr(bench.reactor, does)()
        seen.append((publisher.closed[:], bench.reactor.fd >= 0))

    slow.on_write_deadline = on_write_deadline  # type: ignore[method-assign]
    bench.sweep_until(lambda: bool(seen))
    assert seen == [([], True)]
    assert publisher.closed == [CloseReason.KICKED]
    assert (bench.reactor.fd < 0) == (does == "close")
