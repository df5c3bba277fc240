"""One shard's sockets over real loopback connections: floods in small writes arrive whole, and receive buffers fit."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import select
import socket
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Tls, WebSocket
from gnatswarm.broker.sublist import Sublist
from gnatswarm.shards.sockets.frames import Frames, Rules
from gnatswarm.shards.sockets.frozen_socket import FrozenFrames, FrozenSocket
from gnatswarm.shards.sockets.gate import Gate
from gnatswarm.shards.sockets.layered import LayeredSocket
from gnatswarm.shards.sockets.listener import Listener
from gnatswarm.shards.sockets.reactor import Reactor, Socket
from gnatswarm.shards.sockets.short_timer import ShortTimer
from gnatswarm.shards.sockets.window import is_on_this_host
from tests.support.engine import QUIET, Session
from tests.support.framed import BINARY, PING, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WITHIN_S = 60
SO_BUF_LOCK = 72
RECEIVE_BUFFER_LOCKED = 2
MSG = b"MSG a 1 8\r\n%08d\r\n"


def upgraded() -> LayeredSocket:
    """A WebSocket behind its upgrade."""
    rules = Rules(WebSocket(port=1, no_tls=True, tls=Tls()), most_bytes=2 << 20, is_encrypted=False)
    gate = Gate(timeout_s=60.0, frames=lambda frozen: Frames(rules, frozen))
    return LayeredSocket(gate, FrozenSocket(opened_us=1, used_us=1, work=0, read_us=1, frames=FrozenFrames()))


class Owner:
    """Who the sockets of a test belong to."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def on_closed(self, reason: int) -> None:
        self.closed.append(reason)


class Bench:
    """A reactor, and clients connected to it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self._fanout = Fanout()
        self.sublist = Sublist(b"$G", InterestSink())
        self._fence = Fence()
        self._cids = iter(range(1, 1000))
        self.sessions: dict[int, Session] = {}  # by the number of the reactor's end
        self.sockets: dict[int, Socket] = {}  # … as are these
        self.owner = Owner()
        self.reactor = Reactor(self._fanout)

    def connect(
        self, family: int = socket.AF_INET, host: str = "127.0.0.1", *, by_websocket: bool = False
    ) -> tuple[socket.socket, int]:
        """A client's end, and the number of the reactor's. `by_websocket`: its upgrade is done."""
        with socket.create_server((host, 0), family=family) as listener:
            client = self.stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
            accepted, _ = listener.accept()
        accepted.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = accepted.detach()
        is_local = is_on_this_host(client.getpeername()[0])
        self.serve(fd, Session(), upgraded() if by_websocket else None, is_local=is_local)
        client.sendall(frame(BINARY, QUIET) if by_websocket else QUIET)
        return client, fd

    def serve(self, fd: int, session: Session, layered: LayeredSocket | None = None, *, is_local: bool = False) -> None:
        """Have this descriptor be a client's."""
        self.sessions[fd] = session
        connection = ClientConnection(self._fanout, self.sublist, self._fence, next(self._cids), Limits(), session)
        session.connection = connection
        self.sockets[fd] = self.reactor.open(fd, connection, self.owner, layered, is_local=is_local)

    def turn_until(self, holds: Callable[[], bool], *, turns: int = 1) -> None:
        """`turns`: so many between looks at the condition, without a wait for something to happen."""
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, "not within its time"
            if turns == 1:
                select.select([self.reactor.fd], [], [], 0.01)
            for _ in range(turns):
                self.reactor.turn()

    def hurry(self) -> None:
        """Until there is a crowd, its clock sees as many reads as on a machine on which nobody else works.

        It is one at 40,000 reads a second, for which this process may be given too little of the processor.
        """
        crowd = self.reactor.crowd
        if not crowd.is_gathering:
            for _ in range(1000):
                crowd.read(0, self.reactor.now_us())


@pytest.fixture
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        made = Bench(stack)
        stack.callback(made.reactor.close)  # or its hundreds of descriptors stay open in this process
        yield made


def receive_buffer(fd: int) -> tuple[int, bool]:
    """Its size, and whether it is kept from growing."""
    with socket.socket(fileno=fd) as there:
        size = there.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        lock = there.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
        there.detach()
    return size, bool(lock & RECEIVE_BUFFER_LOCKED)


# Writes messages one by one as fast as it can until it is told to stop, says how many, and asks whether all arrived.
_FLOOD = """
import select, socket, sys
number = 0
with socket.socket(fileno=int(sys.argv[1])) as publisher:
    while number % 1000 or not select.select([sys.stdin], [], [], 0)[0]:
        publisher.sendall(b"PUB a 8\\r\\n%08d\\r\\n" % number)
        number += 1
    publisher.sendall(b"PING\\r\\n")
    print(number)
    sys.exit(publisher.recv(100) != b"PONG\\r\\n")
"""


def test_a_flood_in_small_writes_arrives_whole_and_in_order_and_its_ping_is_answered(bench):
    """Read with patience: it lasts until that was seen."""
    publisher, _ = bench.connect()
    subscriber, _ = bench.connect()
    subscriber.sendall(b"SUB a 1\r\n")
    subscriber.setblocking(False)
    got = bytearray()
    bench.turn_until(lambda: bench.reactor.rounds > 0)

    def turn_until(holds: Callable[[], bool]) -> None:
        def looks() -> bool:
            if select.select([subscriber], [], [], 0)[0]:
                got.extend(subscriber.recv(1 << 20))
            return holds()

        bench.turn_until(looks, turns=100)

    command = [sys.executable, "-c", _FLOOD, str(publisher.fileno())]
    with subprocess.Popen(
        command, pass_fds=[publisher.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as flood:
        try:
            turn_until(lambda: bench.reactor.patient.n_sockets == 1)
            assert flood.stdin and flood.stdout
            flood.stdin.close()
            turn_until(lambda: flood.poll() is not None)
            count = int(flood.stdout.read())
            turn_until(lambda: len(got) >= count * len(MSG % 0))
        finally:
            flood.kill()
    assert flood.returncode == 0
    assert bytes(got) == b"".join(MSG % number for number in range(count))
    # The clock of those that are read with patience stops when nothing comes.
    bench.turn_until(lambda: not select.select([bench.reactor.fd], [], [], 0.05)[0])
    publisher.sendall(b"PUB a 1\r\nx\r\n")
    bench.turn_until(lambda: not bench.reactor.patient.n_sockets)


def test_a_crowd_that_writes_a_little_each_is_read_together_and_nothing_is_lost(bench):
    subscriber, _ = bench.connect()
    subscriber.sendall(b"SUB a.* 1\r\n")
    subscriber.setblocking(False)
    publishers = [bench.connect()[0] for _ in range(40)]
    bench.turn_until(lambda: bench.reactor.rounds > 0)
    got = bytearray()
    rounds = 0

    def one_each() -> None:
        nonlocal rounds
        for number, publisher in enumerate(publishers):
            publisher.sendall(b"PUB a.%02d 8\r\n%08d\r\n" % (number, rounds))
        rounds += 1

    def receive() -> bool:
        with contextlib.suppress(BlockingIOError):
            got.extend(subscriber.recv(1 << 20))
        return len(got) == rounds * len(publishers) * len(b"MSG a.00 1 8\r\n00000000\r\n")

    def is_gathered() -> bool:
        bench.hurry()
        one_each()
        receive()
        return bool(bench.reactor.gathered.n_sockets == len(publishers))

    bench.turn_until(is_gathered)
    for _ in range(200):
        one_each()
        bench.turn_until(receive)
    # Of each publisher everything came, in order; PINGs are answered as those of others are.
    for number in range(len(publishers)):
        mine = re.findall(rb"MSG a\.%02d 1 8\r\n(\d{8})\r\n" % number, got)
        assert [int(one) for one in mine] == list(range(rounds))
    publishers[0].sendall(b"PING\r\n")
    bench.turn_until(lambda: bool(select.select([publishers[0]], [], [], 0)[0]))
    # When nobody writes any more, the clock stops; who writes seldom is read at once again.
    bench.turn_until(lambda: not select.select([bench.reactor.fd], [], [], 0.05)[0])

    def is_prompt() -> bool:
        one_each()
        receive()
        return not bench.reactor.crowd.is_gathering and not bench.reactor.gathered.n_sockets

    bench.turn_until(is_prompt)
    bench.turn_until(receive)
    assert not bench.owner.closed


def test_a_look_that_takes_several_rounds_reads_each_socket_once(bench):
    """Who has written again meanwhile waits for the next: looks are no more often than the clock says."""
    publishers = [bench.connect()[0] for _ in range(3 * 64)]
    crowd = bench.reactor.crowd

    def write_on() -> None:
        for publisher in publishers:
            publisher.sendall(b"PUB a 8\r\n00000000\r\n")

    def is_gathered() -> bool:
        bench.hurry()
        write_on()
        return bool(bench.reactor.gathered.n_sockets == len(publishers) and crowd.looks == 0)

    bench.turn_until(is_gathered)
    since_us = bench.reactor.now_us()
    while crowd.looks < 10:
        write_on()
        bench.reactor.turn()
    assert bench.reactor.now_us() - since_us > 8 * crowd.tick_us
    assert not bench.owner.closed


def test_the_read_buffer_is_not_just_behind_the_beginning_of_a_page(bench):
    """The kernel would take up to three times as long to copy what another process of this host has sent."""
    assert bench.reactor.buffer_place >= 64


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.8.9.1"), (socket.AF_INET6, "::1")]
)
def test_a_local_client_starts_with_a_small_receive_buffer(bench, family, host):
    _, fd = bench.connect(family, host)
    size, is_locked = receive_buffer(fd)
    assert (size, is_locked) == (262_144, True)


def test_a_client_that_writes_in_bulk_gets_the_kernels(bench):
    client, fd = bench.connect()
    said = b"PUB a 65536\r\n%s\r\n" % (b"x" * 65536) * 4
    client.setblocking(False)
    at = 0

    def is_unlocked() -> bool:
        nonlocal at
        with contextlib.suppress(BlockingIOError):
            at = (at + client.send(said[at:])) % len(said)
        bench.reactor.turn()
        return not receive_buffer(fd)[1]

    bench.turn_until(is_unlocked)
    assert not bench.owner.closed


@pytest.mark.parametrize("ends", ["by the client", "by a protocol error"])
def test_a_closed_connection_that_somebody_else_still_has_open_is_reported_no_more(bench, ends):
    """The router has, for a moment, what it hands over: an event for it would be for a socket that is freed."""
    client, fd = bench.connect()
    bench.turn_until(lambda: bench.reactor.rounds > 0)
    elsewhere = os.dup(fd)
    try:
        if ends == "by a protocol error":
            client.sendall(b"NONSENSE\r\n")
            bench.turn_until(lambda: bool(bench.owner.closed))
        client.shutdown(socket.SHUT_WR)
        bench.turn_until(lambda: not bench.reactor.sockets())
        assert not select.select([bench.reactor.fd], [], [], 0)[0]
    finally:
        os.close(elsewhere)


def test_what_a_round_has_for_who_ends_in_it_goes_out(bench):
    """It says that it sends no more, and reads on: as another server does whose gateway is replaced."""
    publisher, _ = bench.connect()
    ending, fd = bench.connect()
    ending.sendall(b"SUB a 1\r\nPING\r\n")
    bench.turn_until(lambda: bench.sessions[fd].connection.in_msgs == 0 and readable(ending))
    assert ending.recv(100) == b"PONG\r\n"
    publisher.sendall(b"PUB a 2\r\nhi\r\n")
    ending.shutdown(socket.SHUT_WR)
    bench.turn_until(lambda: bench.owner.closed == [CloseReason.CLIENT_CLOSED])
    assert ending.recv(100) == b"MSG a 1 2\r\nhi\r\n"
    assert ending.recv(100) == b""


def readable(end: socket.socket) -> bool:
    return bool(select.select([end], [], [], 0)[0])


def test_who_has_its_error_is_closed_at_once_and_a_client_that_writes_on_hears_of_it(bench):
    client, _ = bench.connect()
    client.sendall(b"NONSENSE\r\n")
    bench.turn_until(lambda: bool(bench.owner.closed))
    bench.turn_until(lambda: not bench.reactor.sockets())  # (no deadline is looked at here)
    assert client.recv(100) == b"-ERR 'Unknown Protocol Operation'\r\n"
    with contextlib.suppress(ConnectionResetError):
        client.sendall(b"PING\r\n")  # which is answered with a reset
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sendall(b"PING\r\n")


@pytest.mark.parametrize("first", [0, 1, 40_000])
def test_a_message_that_is_too_large_is_read_to_its_end_first(bench, first):
    """Otherwise a reset could overtake the error."""
    client, _ = bench.connect()
    size = Limits().max_payload_bytes + 1
    client.sendall(b"PUB a %d\r\n" % size + bytes(first))
    bench.turn_until(lambda: bool(bench.owner.closed))
    rest = memoryview(bytes(size - first + 2))
    client.setblocking(False)

    def writes() -> bool:
        nonlocal rest
        with contextlib.suppress(BlockingIOError):
            rest = rest[client.send(rest[:50_000]) :]
        return not rest

    bench.turn_until(writes)  # nothing was reset
    bench.turn_until(lambda: not bench.reactor.sockets())
    assert client.recv(100) == b"-ERR 'Maximum Payload Violation'\r\n"
    assert client.recv(100) == b""


@pytest.mark.parametrize("was_held", [False, True])
def test_an_error_of_ours_costs_the_connection_that_made_it_and_no_other(bench, caplog, was_held):
    """Whatever a session raises for what its client has sent, but what the engine expects of it.

    `was_held`: that had been read before, and was kept.
    """
    (bad, bad_number), (good, _) = bench.connect(), bench.connect()

    def stumble(_raw: bytes) -> None:
        raise RuntimeError("of the test")

    session = bench.sessions[bad_number]
    held = []
    bad.sendall(b"PING\r\n")
    bench.turn_until(lambda: bool(select.select([bad], [], [], 0)[0]))
    if was_held:

        def hold(raw: bytes) -> None:
            held.append(raw)
            session.connection.wait()

        session.on_connect, session.on_info = hold, stumble
    else:
        session.on_connect = stumble
    bad.sendall(b"CONNECT {}\r\nINFO {}\r\nPUB a 1\r\nx\r\n")
    if was_held:
        bench.turn_until(lambda: bool(held))
        assert not bench.owner.closed
        session.connection.go_on()
        bench.reactor.finish()
    bench.turn_until(lambda: bool(bench.owner.closed))
    good.sendall(b"PING\r\n")
    bench.turn_until(lambda: bool(select.select([good], [], [], 0)[0]))
    assert good.recv(1 << 16).endswith(b"PONG\r\n")
    assert bench.owner.closed == [CloseReason.PARSE_ERROR]
    assert "its connection is closed because of an error of ours" in caplog.text
    assert "RuntimeError: of the test" in caplog.text


class Stumbling(Session):
    def on_connect(self, _raw: bytes) -> None:
        raise RuntimeError("of the test")


def test_an_error_of_ours_costs_who_spoke_before_it_was_accepted_its_connection_alone(bench, caplog):
    """As most do that come back at once; then bytes are there when the listener has accepted it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        with socket.create_connection(listening.getsockname()) as client:
            client.sendall(b"CONNECT {}\r\nPING\r\n")
            listener = Listener(
                bench.reactor, listening.fileno(), lambda fd, _host, _port: bench.serve(fd, Stumbling()), lambda _: None
            )
            bench.turn_until(lambda: bool(bench.owner.closed))
            listener.close()
    assert bench.owner.closed == [CloseReason.PARSE_ERROR]
    assert "its connection is closed because of an error of ours" in caplog.text


# ---- crowds


LITTLE = b"INFO {}\r\n"
MUCH = b"INFO {%b}\r\n" % (b" " * 1000) * 64


def busy_crowd(bench: Bench, count: int, said: bytes) -> list[int]:
    """So many clients say this, of which each line takes 4 ms; what is little, again and again.

    Returns the numbers of those whose lines were taken, as they are.
    """
    served: list[int] = []
    clients = {fd: client for client, fd in [bench.connect() for _ in range(count)]}
    bench.turn_until(lambda: all(one.connection.active_us for one in bench.sessions.values()))

    def on_info(fd: int, raw: bytes) -> None:
        served.append(fd)
        until = time.monotonic() + 0.004
        while time.monotonic() < until:
            pass
        if said is LITTLE and len(served) < 5 * count:
            clients[fd].sendall(said)

    for fd, client in clients.items():
        bench.sessions[fd].on_info = functools.partial(on_info, fd)  # type: ignore[method-assign]
        client.sendall(said)
    return served


@pytest.mark.parametrize(("said", "most", "turns"), [(LITTLE, 16, 5), (MUCH, 80, 8)], ids=["little", "much"])
def test_a_round_that_lasts_ends_and_all_have_their_turn_in_those_that_follow(bench, said, most, turns):
    """Else the event loop and others would wait for thousands. Of the first much is read in one turn."""
    served = busy_crowd(bench, 64, said)
    counts = [0]
    while len({*served}) < 64:
        assert len(served) < 64 * turns, "the same ones have had all turns"
        bench.reactor.turn()
        counts.append(len(served))
    assert max(after - before for before, after in itertools.pairwise(counts)) <= most


def gathered(bench: Bench) -> dict[int, socket.socket]:
    """Clients that are read with patience."""
    clients = {fd: client for client, fd in [bench.connect() for _ in range(64)]}

    def is_gathered() -> bool:
        bench.hurry()
        for client in clients.values():
            client.sendall(b"PUB a 8\r\n00000000\r\n")
        bench.reactor.turn()
        return bool(bench.reactor.gathered.n_sockets == len(clients))

    bench.turn_until(is_gathered)
    return clients


def test_an_error_of_ours_costs_who_is_read_with_patience_its_connection_alone(bench, caplog):
    clients = gathered(bench)
    number, bad = clients.popitem()

    def stumble(_raw: bytes) -> None:
        raise RuntimeError("of the test")

    bench.sessions[number].on_info = stumble
    bad.sendall(b"INFO {}\r\n")
    bench.turn_until(lambda: bool(bench.owner.closed))
    assert bench.owner.closed == [CloseReason.PARSE_ERROR]
    assert "its connection is closed because of an error of ours" in caplog.text


def test_a_look_at_those_who_are_read_with_patience_ends_too(bench):
    served: list[int] = []

    def on_info(fd: int, raw: bytes) -> None:
        served.append(fd)
        until = time.monotonic() + 0.004
        while time.monotonic() < until:
            pass

    for fd, client in gathered(bench).items():
        bench.sessions[fd].on_info = functools.partial(on_info, fd)
        client.sendall(LITTLE)
    counts = [0]
    while len({*served}) < 64:
        bench.reactor.turn()
        counts.append(len(served))
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 16
    assert len(served) == 64


def test_who_has_little_to_say_does_not_wait_for_all_who_have_much(bench):
    served = busy_crowd(bench, 64, MUCH)
    bystander, _ = bench.connect()
    bench.turn_until(lambda: len({*served}) >= 32)
    for _ in range(5):
        before = len(served)
        bystander.sendall(b"PING\r\n")
        bench.turn_until(lambda: readable(bystander))
        assert bystander.recv(100) == b"PONG\r\n"
        assert len(served) - before <= 12


def test_who_has_much_to_say_has_turns_beside_a_crowd_that_always_has_little(bench):
    served = busy_crowd(bench, 64, LITTLE)
    busy, fd = bench.connect()
    bench.turn_until(lambda: len(served) >= 16)
    busy.sendall(b"PUB a 0\r\n\r\n" * 1000)
    connection = bench.sessions[fd].connection
    bench.turn_until(lambda: connection.in_msgs > 0)
    assert len(served) < 64


def test_who_has_much_to_say_is_sent_what_it_is_due_before_its_turn(bench):
    """It was behind, and its socket takes more again."""
    reader, fd = bench.connect()
    publisher, _ = bench.connect()
    reader.sendall(b"SUB a 1\r\nPING\r\n")
    bench.turn_until(lambda: readable(reader))
    out = bench.sessions[fd].connection
    said = b"PUB a 1000000\r\n%b\r\n" % bytes(1_000_000) * 8
    publisher.setblocking(False)
    at = 0
    while out.out_msgs < 8:
        with contextlib.suppress(BlockingIOError):
            at += publisher.send(said[at:])
        bench.reactor.turn()
    pending = out.pending_bytes
    assert pending > 0
    served = busy_crowd(bench, 64, MUCH)
    bench.turn_until(lambda: len({*served}) >= 32)
    reader.sendall(b"PUB b 0\r\n\r\n" * 1000)
    reader.setblocking(False)
    before = len(served)
    while out.pending_bytes == pending:
        with contextlib.suppress(BlockingIOError):
            reader.recv(1 << 20)
        bench.reactor.turn()
        assert len(served) - before < 24
    assert out.in_msgs == 0


@pytest.mark.parametrize("by_websocket", [False, True])
def test_less_is_read_of_each_where_rounds_last_and_more_again_later(bench, by_websocket):
    line = b"PUB a 0\r\n\r\n"
    busy, fd = bench.connect(by_websocket=by_websocket)
    connection = bench.sessions[fd].connection

    def first_read(messages: int) -> int:
        before = int(connection.in_msgs)
        busy.sendall((frame(BINARY, line) if by_websocket else line) * messages)
        bench.turn_until(lambda: connection.in_msgs > before)
        read = int(connection.in_msgs) - before
        bench.turn_until(lambda: connection.in_msgs == before + messages)
        return read * len(line)

    served = busy_crowd(bench, 64, MUCH[: len(MUCH) // 8])
    bench.turn_until(lambda: len({*served}) >= 32)
    assert first_read(3000) <= 8192
    bench.turn_until(lambda: len(served) == 64 * 8)
    for _ in range(30):
        first_read(1)
    assert first_read(3000) > 16384


def test_clients_with_many_subscriptions_that_go_at_once_are_taken_out_in_several_rounds(bench):
    clients = [bench.connect()[0] for _ in range(4)]
    for n in range(0, 100_000, 1000):
        for client in clients:
            client.sendall(b"".join(b"SUB a.%d %d\r\n" % (sid, sid) for sid in range(n, n + 1000)))
        bench.turn_until(lambda n=n: bench.sublist.n_subs == 4 * (n + 1000))
    for client in clients:
        client.close()
    rounds = 0
    while bench.sublist.n_subs:
        bench.reactor.finish()
        bench.reactor.turn()
        rounds += 1
    assert rounds >= 2 and len(bench.owner.closed) == 4


def cut(client: socket.socket) -> None:
    """Close it by a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("by_websocket", [False, True], ids=["plain", "websocket"])
def test_who_takes_nothing_more_has_no_subscriptions_while_what_it_had_said_is_carried_out(
    bench: Bench, by_websocket: bool
) -> None:
    """As a member of a queue group it would lose what others could have had."""

    def wrapped(data: bytes) -> bytes:
        return frame(BINARY, data) if by_websocket else data

    def has_published(count: int) -> bool:
        return publishing.in_msgs == count

    gone, fd = bench.connect(by_websocket=by_websocket)
    other, other_fd = bench.connect()
    publisher, publisher_fd = bench.connect()
    session, publishing = bench.sessions[fd], bench.sessions[publisher_fd].connection
    connection, member = session.connection, bench.sessions[other_fd].connection
    gone.sendall(wrapped(b"SUB job g 1\r\nSUB job 2\r\n"))
    other.sendall(b"SUB job g 1\r\n")
    bench.turn_until(lambda: connection.subscriptions + member.subscriptions == 3)
    connection.wait()
    bench.turn_until(lambda: True)
    gone.sendall(wrapped(b"PUB x 1\r\n.\r\n" * 50 + b"SUB job g 3\r\n"))
    cut(gone)
    for count in range(1, 101):
        publisher.sendall(b"PUB job 1\r\n.\r\n")
        bench.turn_until(functools.partial(has_published, count))
    assert (connection.subscriptions, member.subscriptions) == (0, 1)
    assert bench.owner.closed == []
    other.settimeout(WITHIN_S)
    got = b""
    while got.count(b"MSG") < 99:  # (the first may be what showed that it has gone)
        got += other.recv(65536)
    connection.go_on()
    bench.reactor.finish()
    bench.turn_until(lambda: connection.in_msgs == 50)
    assert connection.subscriptions == 0  # (its end is read in a turn of its own)
    bench.turn_until(lambda: bool(bench.owner.closed))
    assert bench.owner.closed == [CloseReason.CLIENT_CLOSED]


def test_a_flood_of_pings_by_websocket_that_ends_with_a_reset_is_heard_to_its_end(bench: Bench) -> None:
    """It is not read while so many PONGs wait, and nothing tells when they never will be sent."""
    client, _ = bench.connect(by_websocket=True)
    client.setblocking(False)
    pings = frame(PING, b"z" * 125) * 500
    full = 0
    while full < 100:  # turns in a row in which the kernel took no more of them
        try:
            client.send(pings)
            full = 0
        except BlockingIOError:
            full += 1
        bench.reactor.turn()
    cut(client)
    bench.turn_until(lambda: bool(bench.owner.closed))
    assert bench.owner.closed == [CloseReason.CLIENT_CLOSED]


def test_who_waits_in_a_queue_is_accepted_before_it_is_closed() -> None:
    """They may have published, and gone; as many as a queue takes, not only those of one turn."""
    reactor = Reactor(Fanout())
    accepted: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.callback(reactor.close)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        listening.setblocking(False)

        def on_accept(fd: int, host: str, port: int) -> None:
            accepted.append(host)
            os.close(fd)

        listener = Listener(reactor, listening.fileno(), on_accept, lambda error: None)
        for _ in range(150):
            socket.create_connection(listening.getsockname()).close()
        listener.accept_waiting()
        assert accepted == ["127.0.0.1"] * 150
        listener.close()
        listener.accept_waiting()


@pytest.mark.parametrize("may_refuse", [True, False])
def test_a_listener_that_ends_accepts_who_waits_and_refuses_others_if_it_may(may_refuse: bool) -> None:
    """Another process may have it open, as router and keeper do; a service manager accepts on it later."""
    reactor = Reactor(Fanout())
    accepted: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.callback(reactor.close)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        listening.setblocking(False)

        def on_accept(fd: int, host: str, port: int) -> None:
            accepted.append(host)
            os.close(fd)

        listener = Listener(reactor, listening.fileno(), on_accept, lambda error: None, may_refuse=may_refuse)
        for _ in range(150):
            socket.create_connection(listening.getsockname()).close()
        listener.end()
        assert accepted == ["127.0.0.1"] * 150
        with pytest.raises(ConnectionRefusedError) if may_refuse else contextlib.nullcontext():
            socket.create_connection(listening.getsockname()).close()
        reactor.turn()
        assert len(accepted) == 150


def test_the_newest_connection_is_read_without_a_round(bench: Bench) -> None:
    """It was handed over, and the broker may be about to end."""
    client, fd = bench.connect()
    client.sendall(b"PUB a 1\r\nx\r\n")
    connection = bench.sessions[fd].connection
    before = len(QUIET + b"PUB a 1\r\nx\r\n")
    bench.turn_until(lambda: bench.sockets[fd].unread_bytes == before, turns=0)
    bench.reactor.read_newest(fd + 1)
    assert connection.in_msgs == 0
    client, fd = bench.connect()
    client.sendall(b"PUB a 1\r\nx\r\n")
    connection = bench.sessions[fd].connection
    bench.turn_until(lambda: bench.sockets[fd].unread_bytes == before, turns=0)
    bench.reactor.read_newest(fd)
    assert connection.in_msgs == 1


# ---- callbacks that would have another round within theirs


def call_for_data(bench, call):
    client, fd = bench.connect()
    bench.sessions[fd].on_info = call
    client.sendall(b"INFO {}\r\n")


def call_for_kept_data(bench, call):
    client, fd = bench.connect()
    session = bench.sessions[fd]
    session.on_connect, session.on_info = lambda _raw: session.connection.wait(), call
    client.sendall(b"INFO {}\r\n")
    bench.turn_until(lambda: bench.sockets[fd].unread_bytes == len(b"INFO {}\r\n"))
    session.connection.go_on()
    bench.reactor.finish()


def call_for_drained_data(bench, call):
    call_for_data(bench, call)
    *_, last = bench.sockets.values()
    last.drain()


def call_for_an_end(bench, call):
    client, _fd = bench.connect()
    told = bench.owner.on_closed

    def on_closed(reason: int) -> None:
        told(reason)
        call()

    bench.owner.on_closed = on_closed
    client.close()


def call_for_a_time(bench, call):
    def on_time():
        timer.close()
        call()

    timer = ShortTimer(bench.reactor, on_time)
    timer.start(1)


def listener_that_calls(bench, call):
    listening = bench.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listening.setblocking(False)
    bench.stack.enter_context(socket.create_connection(listening.getsockname()))

    def on_accept(fd: int, _host: str, _port: int) -> None:
        bench.serve(fd, Session())
        listener.close()
        call()

    listener = Listener(bench.reactor, listening.fileno(), on_accept, lambda _errno: None)
    return listener


def call_for_a_connection(bench, call):
    listener_that_calls(bench, call)


def call_for_one_that_waited(bench, call):
    listener_that_calls(bench, call).accept_waiting()


@pytest.mark.parametrize("does", ["finish", "close"])
@pytest.mark.parametrize(
    "arrange",
    [
        call_for_data,
        call_for_kept_data,
        call_for_drained_data,
        call_for_an_end,
        call_for_a_time,
        call_for_a_connection,
        call_for_one_that_waited,
    ],
)
def test_what_a_callback_asks_for_waits_until_all_were_called(bench, arrange, does):
    """Who is ready with it, and was closed by it, would be freed: the kernel's events name it by its address."""
    other, other_fd = bench.connect()
    seen: list[tuple[list[int], bool]] = []

    def call(*_args: object) -> None:
        if not seen:
            other.sendall(b"PING\r\n")
            bench.sockets[other_fd].kick(CloseReason.KICKED)
            getattr(bench.reactor, does)()
            seen.append((bench.owner.closed[:], bench.reactor.fd >= 0))

    arrange(bench, call)
    bench.turn_until(lambda: bool(seen))
    before, was_open = seen[0]
    assert CloseReason.KICKED not in before and was_open
    assert CloseReason.KICKED in bench.owner.closed  # when that round was over
    assert (bench.reactor.fd < 0, not bench.reactor.sockets()) == (does == "close",) * 2


@pytest.mark.parametrize("is_kept", [False, True], ids=["just read", "kept"])
def test_what_a_client_has_sent_is_its_own_where_a_callback_has_others_go_on(bench, is_kept):
    """All is read into one buffer."""
    held, held_fd = bench.connect()
    speaking, fd = bench.connect()
    connection, others = bench.sessions[fd].connection, bench.sessions[held_fd].connection

    def go_on(_raw: bytes) -> None:
        others.go_on()
        bench.reactor.finish()

    bench.turn_until(lambda: not select.select([bench.reactor.fd], [], [], 0)[0])
    bench.sessions[held_fd].on_info = lambda _raw: others.wait()
    bench.sessions[fd].on_info = go_on
    held.sendall(b"INFO {}\r\n" + b"PUB b 1\r\ny\r\n" * 100)
    bench.turn_until(lambda: bench.sockets[held_fd].unread_bytes == 1200)
    if is_kept:
        connection.wait()
    speaking.sendall(b"INFO {}\r\nPUB a 1\r\nx\r\n")
    if is_kept:
        bench.turn_until(lambda: bench.sockets[fd].unread_bytes > 0)
        connection.go_on()
        bench.reactor.finish()
    bench.turn_until(lambda: others.in_msgs > 0 and connection.in_msgs > 0)
    assert (connection.in_msgs, others.in_msgs) == (1, 100)
    assert not bench.owner.closed
