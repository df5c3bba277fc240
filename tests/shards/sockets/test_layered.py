"""Handshakes of one round stop after a while, so that connected clients are served; a refused client gets no INFO."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import pytest

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.sublist import Sublist
from gnatswarm.shards.sockets.gate import Gate
from gnatswarm.shards.sockets.layered import LayeredSocket
from gnatswarm.shards.sockets.reactor import Reactor, Socket
from tests.support.engine import QUIET, Session

RATION_S = 0.002
COUNT = 8
INFO = b"INFO {}\r\n"
MOST_OPENING_BYTES = 262_144


def work() -> None:
    """As long as the ration of a round, by its clock."""
    until = time.monotonic() + RATION_S * 1.05
    while time.monotonic() < until:
        pass


class Opening:
    """What a connection has before the protocol: a TLS handshake or an upgrade that takes a whole ration to look at."""

    is_open = is_over = False
    error = ""

    def __init__(self, looks: list[int]) -> None:
        self._looks = looks

    def do_handshake(self) -> None:
        self._looks.append(1)
        work()
        raise ssl.SSLWantReadError

    def receive(self, data: memoryview) -> list[bytes]:
        assert bytes(data)
        self._looks.append(1)
        work()
        return []

    def take_answer(self) -> bytes:
        return b""

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool, server_hostname: str | None
    ) -> Opening:
        return self


class Shaken:
    """A TLS layer that shakes hands at the client's first bytes, and then encrypts nothing."""

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool, server_hostname: str | None
    ) -> Shaken:
        self._incoming, self._outgoing = incoming, outgoing
        return self

    def do_handshake(self) -> None:
        self._incoming.read()
        self._outgoing.write(b"shaken ")

    def pending(self) -> int:
        return 0

    def write(self, data: memoryview) -> None:
        self._outgoing.write(data)

    def unwrap(self) -> None:
        raise ssl.SSLError


class Doorkeeper:
    """The owner of a socket, who admits a client after its handshake, or refuses it."""

    def __init__(self, *, admits: bool) -> None:
        self._admits = admits
        self.socket: Socket | None = None
        self.reasons: list[CloseReason] = []

    def on_secured(self, tls: Shaken) -> bool:
        if not self._admits:
            assert self.socket is not None
            self.socket.kick(CloseReason.TLS_HANDSHAKE_FAILURE)
        return self._admits

    def on_closed(self, reason: int) -> None:
        self.reasons.append(CloseReason(reason))


class Bench:
    """A reactor with a plain client that is in, and clients that are not."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._fanout = Fanout()
        self._sublist = Sublist(b"$G", InterestSink())
        self._fence = Fence()
        self._cids = iter(range(1, 100))
        self.failures: list[str] = []  # of handshakes
        self.reactor = Reactor(self._fanout)
        stack.callback(self.reactor.close)
        self.plain = self.connect(None)
        self.plain.sendall(QUIET)
        self.reactor.turn()

    def on_closed(self, reason: int) -> None:
        assert self.failures, f"closed: {reason}"

    def on_opening_failed(self, why: str, is_upgrade: bool) -> None:
        self.failures.append(why)

    def connect(self, gate: Gate | None, keeper: Doorkeeper | None = None) -> socket.socket:
        """A client's end. `keeper`: the owner of the other end, where INFO is waiting."""
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        theirs.setblocking(False)
        session = Session()
        connection = ClientConnection(self._fanout, self._sublist, self._fence, next(self._cids), Limits(), session)
        session.connection = connection
        layered = None if gate is None else LayeredSocket(gate)
        opened = self.reactor.open(theirs.detach(), connection, keeper or self, layered)
        if keeper is not None:
            keeper.socket = opened
            connection.send(INFO)
        return ours


@pytest.fixture
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(stack)


def tls(looks: list[int]) -> Gate:
    return Gate(timeout_s=60.0, context=Opening(looks))  # type: ignore[arg-type]


def upgrade(looks: list[int]) -> Gate:
    return Gate(timeout_s=60.0, frames=lambda frozen: Opening(looks))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("gate", [tls, upgrade])
def test_a_round_has_time_for_few_handshakes_and_the_others_are_not_forgotten(
    bench: Bench, gate: Callable[[list[int]], Gate]
) -> None:
    looks: list[int] = []
    for _ in range(COUNT):
        bench.connect(gate(looks)).sendall(b"\x16 or the beginning of a request")
    for turn in range(1, COUNT + 1):
        bench.plain.sendall(b"PING\r\n")
        bench.reactor.turn()
        assert bench.plain.recv(100, socket.MSG_DONTWAIT) == b"PONG\r\n"
        assert len(looks) == turn
    bench.reactor.turn()
    assert len(looks) == COUNT
    assert not select.select([bench.reactor.fd], [], [], 0)[0]


@pytest.mark.parametrize("admits", [True, False])
def test_info_that_waits_for_the_handshake_is_not_sent_to_a_client_that_is_refused_after_it(
    bench: Bench, admits: bool
) -> None:
    keeper = Doorkeeper(admits=admits)
    gate = Gate(timeout_s=60.0, context=Shaken(), is_silent=True)  # type: ignore[arg-type]
    client = bench.connect(gate, keeper)
    bench.reactor.turn()
    client.sendall(b"\x16")
    bench.reactor.turn()
    assert client.recv(100, socket.MSG_DONTWAIT) == (b"shaken " + INFO if admits else b"shaken ")
    if not admits:
        assert client.recv(100, socket.MSG_DONTWAIT) == b""
    assert keeper.reasons == ([] if admits else [CloseReason.TLS_HANDSHAKE_FAILURE])


@pytest.mark.parametrize("gate", [tls, upgrade])
def test_a_handshake_takes_a_bounded_number_of_bytes(bench: Bench, gate: Callable[[list[int]], Gate]) -> None:
    client = bench.connect(gate([]))
    client.setblocking(False)
    sent = 0
    while not bench.failures and sent < 2 * MOST_OPENING_BYTES:
        with contextlib.suppress(BlockingIOError):
            sent += client.send(b"\x16" * 4096)
        bench.reactor.turn()
    assert bench.failures == ["too much before the end of the handshake"]
    assert sent > MOST_OPENING_BYTES
