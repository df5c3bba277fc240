"""Handshakes of one round stop after a while, so that connected clients are served; a refused client gets no INFO."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.broker.interest import InterestSink
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.options import Tls, WebSocket
from gnatswarm.broker.peer import Peer
from gnatswarm.broker.serverlink import ServerLink
from gnatswarm.broker.sublist import Sublist
from gnatswarm.shards.sockets.frames import FRAMES_IN_A_TURN, Frames, Rules
from gnatswarm.shards.sockets.frozen_socket import FrozenDeflate, FrozenFrames, FrozenSocket
from gnatswarm.shards.sockets.gate import Gate
from gnatswarm.shards.sockets.layered import LayeredSocket
from gnatswarm.shards.sockets.reactor import Reactor, Socket
from tests.shards.boundary.test_client_hello import client_hello, records
from tests.support.authority import Authority
from tests.support.engine import QUIET, Session
from tests.support.framed import BINARY, CLOSE, KEY, PING, PONG, deflated, frame

RATION_S = 0.002
MOST_COMPRESSED_BYTES = 1 << 20
PEER_BYTES = 262_144
PUBLISH = b"PUB a 0\r\n\r\n"
COUNT = 8
INFO = b"INFO {}\r\n"
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()
MOST_OPENING_BYTES = 262_144
MOST_SHAKING_BYTES = 24_576
RECORDS_AT_ONCE = 64
ALERT, NONE = 0x15, 0x99  # types of records; there is no such one


def work(for_s: float = RATION_S * 1.05) -> None:
    """As long as the ration of a round, by its clock."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        pass


class Opening:
    """What a connection has before the protocol: a TLS handshake or an upgrade that takes a whole ration to look at."""

    is_open = is_over = is_paused = False
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


class BadRecord(ssl.SSLError):
    reason = "WRONG_RECORD"


class Records(Shaken):
    """A TLS layer whose records are a header of five bytes and plain text; one without is a new key, as of TLS 1.3.

    An alert is the last record, and NONE is none.
    """

    def __init__(self) -> None:
        self.idle = 0
        self.is_broken = False
        self._begun = b""

    def write(self, data: memoryview) -> None:
        if self.is_broken:
            raise BadRecord
        super().write(data)

    def _has(self, size: int) -> bool:
        self._begun += self._incoming.read(size - len(self._begun))
        return len(self._begun) == size

    def read(self, room: int, to: memoryview | None = None) -> int | bytes:
        while self._has(5 if len(self._begun) < 5 else 5 + int.from_bytes(self._begun[3:5], "big")):
            size = 5 + int.from_bytes(self._begun[3:5], "big")
            if not self._has(size):
                break
            kind, data, self._begun = self._begun[0], self._begun[5:], b""
            if kind == NONE:
                self.is_broken = True
                raise BadRecord
            if kind == ALERT or data.strip(b"\0"):
                data = b"" if kind == ALERT else data
                if to is None:
                    return data
                to[: len(data)] = data
                return len(data)
            self.idle += 1
        raise ssl.SSLWantReadError


def record(data: bytes) -> bytes:
    return b"\x17\x03\x03" + len(data).to_bytes(2, "big") + data


class Doorkeeper:
    """The owner of a socket, who admits a client after its handshake, or refuses it."""

    def __init__(self, *, admits: bool) -> None:
        self._admits = admits
        self.socket: Socket | None = None
        self.reasons: list[CloseReason] = []
        self.errors: list[str] = []

    def on_wire_error(self, why: str) -> None:
        self.errors.append(why)

    def on_secured(self, tls: Shaken) -> bool:
        if not self._admits:
            assert self.socket is not None
            self.socket.kick(CloseReason.TLS_HANDSHAKE_FAILURE)
        return self._admits

    def on_closed(self, reason: int) -> None:
        self.reasons.append(CloseReason(reason))


class Turns(Session):
    """A client that is read on when the test says so."""

    is_over = False  # its turn

    def on_turn_over(self) -> None:
        self.turns += 1
        self.is_over = True


class Held(Session):
    """A client that is held by its second CONNECT."""

    def on_connect(self, raw: bytes) -> None:
        if self.options.name:
            self.connection.wait()
        self.options.name = "known"


class Stumbling(Held):
    """Its INFO is an error of ours."""

    def on_info(self, raw: bytes) -> None:
        raise RuntimeError("of the test")


class LastWords:
    """Hears what another server says before it closes the connection."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def on_error(self, raw: bytes) -> None:
        self.said.append(raw)


class HeldWords(LastWords):
    """Its link is held by the first of them."""

    link: ServerLink

    def on_error(self, raw: bytes) -> None:
        super().on_error(raw)
        if len(self.said) == 1:
            self.link.wait()


class Bench:
    """A reactor with a plain client that is in, and clients that are not."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._fanout = Fanout()
        self._sublist = Sublist(b"$G", InterestSink())
        self._fence = Fence()
        self._cids = iter(range(1, 100))
        self.failures: list[str] = []  # of handshakes
        self.expects_close = False
        self.closed: list[CloseReason] = []
        self.framed: Socket | None = None  # of reach_by_websocket
        self.reactor = Reactor(self._fanout)
        stack.callback(self.reactor.close)
        self.plain = self.connect(None)
        self.plain.sendall(QUIET)
        self.reactor.turn()

    def on_closed(self, reason: int) -> None:
        self.closed.append(CloseReason(reason))
        assert self.failures or self.expects_close, f"closed: {reason}"

    def on_opening_failed(self, why: str, is_upgrade: bool) -> None:
        self.failures.append(why)

    def on_wire_error(self, why: str) -> None:
        assert self.expects_close, why

    def connect(self, gate: Gate | None, keeper: Doorkeeper | None = None) -> socket.socket:
        """A client's end. `keeper`: the owner of the other end, where INFO is waiting."""
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        theirs.setblocking(False)
        connection = self._new_connection(Session())
        layered = None if gate is None else LayeredSocket(gate)
        opened = self.reactor.open(theirs.detach(), connection, keeper or self, layered)
        if keeper is not None:
            keeper.socket = opened
            connection.send(INFO)
        return ours

    def _new_connection(self, session: Session) -> ClientConnection:
        connection = ClientConnection(self._fanout, self._sublist, self._fence, next(self._cids), Limits(), session)
        session.connection = connection
        return connection

    def connect_plainly(self, session: Session) -> socket.socket:
        """The end of a client that is in."""
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        theirs.setblocking(False)
        self.reactor.open(theirs.detach(), self._new_connection(session), self, None)
        ours.sendall(QUIET)
        self.reactor.turn()
        return ours

    def connect_by_tls(self, layer: Records, session: Session) -> socket.socket:
        """The end of a client whose handshake is done."""
        ours = self.reach_by_tls(layer, self._new_connection(session))
        ours.sendall(record(QUIET))
        self.reactor.turn()
        return ours

    def connect_by_websocket(self, session: Session) -> socket.socket:
        """The end of a client whose upgrade is done, and who may compress."""
        ours = self.reach_by_websocket(self._new_connection(session))
        ours.sendall(frame(BINARY, QUIET))
        self.reactor.turn()
        return ours

    def reach_by_tls(
        self, layer: Records, peer: Peer, gate: Gate | None = None, keeper: Doorkeeper | None = None
    ) -> socket.socket:
        """The other end of a connection whose handshake is done."""
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        theirs.setblocking(False)
        gate = gate or Gate(timeout_s=60.0, context=layer)  # type: ignore[arg-type]
        keeper = self.keeper = keeper or Doorkeeper(admits=True)
        keeper.socket = self.reactor.open(theirs.detach(), peer, keeper, LayeredSocket(gate))
        ours.sendall(b"\x16\0\0\0\0")
        self.reactor.turn()
        return ours

    def reach_by_websocket(self, peer: Peer) -> socket.socket:
        """The other end of a connection whose upgrade is done, and which may be compressed."""
        ours, theirs = socket.socketpair()
        self._stack.enter_context(ours)
        theirs.setblocking(False)
        websocket = WebSocket(port=1, no_tls=True, tls=Tls(), compression=True)
        rules = Rules(websocket, most_bytes=2 << 20, is_encrypted=False)
        gate = Gate(timeout_s=60.0, frames=lambda frozen: Frames(rules, frozen))
        frozen = FrozenSocket(
            opened_us=1, used_us=1, work=0, read_us=1, frames=FrozenFrames(deflate=FrozenDeflate(15, 15))
        )
        self.framed = self.reactor.open(theirs.detach(), peer, self, LayeredSocket(gate, frozen))
        return ours

    def connect_by_both(self, session: Session) -> socket.socket:
        """The end of a client whose handshake and upgrade are done."""
        layer = Records()
        websocket = WebSocket(port=1, no_tls=False, tls=Tls())
        rules = Rules(websocket, most_bytes=2 << 20, is_encrypted=True)
        gate = Gate(timeout_s=60.0, context=layer, frames=lambda frozen: Frames(rules, frozen))  # type: ignore[arg-type]
        ours = self.reach_by_tls(layer, self._new_connection(session), gate)
        ours.sendall(record(UPGRADE))
        self.reactor.turn()
        ours.sendall(record(frame(BINARY, QUIET)))
        self.reactor.turn()
        return ours

    def dial_server(self, session: LastWords) -> ServerLink:
        """This end of a leaf node's connection."""
        link = ServerLink(Exchange(Mesh(self._fanout, 0)), session, is_route=False)  # type: ignore[arg-type]
        assert link.join("hub", b"$G", "")
        return link

    def serve_another(self) -> None:
        self.plain.sendall(b"PING\r\n")
        self.reactor.turn()
        assert self.plain.recv(100, socket.MSG_DONTWAIT) == b"PONG\r\n"


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
    # (A round that a busy machine interrupts for long ends early, and may come to none of them.)
    for _ in range(100 * COUNT):
        before = len(looks)
        if before == COUNT:
            break
        bench.plain.sendall(b"PING\r\n")
        bench.reactor.turn()
        assert len(looks) <= before + 1
    bench.reactor.turn()
    assert len(looks) == COUNT
    assert bench.plain.recv(10_000, socket.MSG_DONTWAIT).count(b"PONG") >= COUNT
    assert not select.select([bench.reactor.fd], [], [], 0)[0]


@pytest.mark.parametrize("most", [20, 16_384])
def test_a_handshake_with_an_expensive_key_share_fails_before_tls_has_it(bench: Bench, most: int) -> None:
    """By ffdhe8192 each took 190 ms, in which nobody else was served."""
    layer = Records()
    gate = Gate(timeout_s=60.0, context=layer)  # type: ignore[arg-type]
    wire = records(client_hello(0x0104), most)
    client = bench.connect(gate)
    client.sendall(wire)
    bench.reactor.turn()
    assert bench.failures == ["the client wants to exchange keys by ffdhe8192, which takes long"]
    assert client.recv(1000, socket.MSG_DONTWAIT).endswith(b"\x15\x03\x03\x00\x02\x02\x28")
    assert client.recv(1000, socket.MSG_DONTWAIT) == b""
    bench.serve_another()


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


@pytest.mark.parametrize(
    ("gate", "most", "why"),
    [
        (tls, MOST_SHAKING_BYTES, f"more than {MOST_SHAKING_BYTES} bytes in the handshake"),
        (upgrade, MOST_OPENING_BYTES, "too much before the end of the handshake"),
    ],
)
def test_a_handshake_takes_a_bounded_number_of_bytes(
    bench: Bench, gate: Callable[[list[int]], Gate], most: int, why: str
) -> None:
    client = bench.connect(gate([]))
    client.setblocking(False)
    sent = 0
    while not bench.failures and sent < 2 * most:
        with contextlib.suppress(BlockingIOError):
            sent += client.send(b"\x16" * 4096)
        bench.reactor.turn()
    assert bench.failures == [why]
    assert sent > most


@pytest.mark.parametrize(
    ("wire", "msgs", "most"),
    [
        (frame(BINARY, PUBLISH) * 2000, 2000, FRAMES_IN_A_TURN),
        (frame(BINARY, deflated(PUBLISH * 180_000), reserved=0x40), 180_000, 2 * PEER_BYTES // len(PUBLISH)),
        (frame(BINARY, deflated(PUBLISH * 18_000), reserved=0x40) * 20, 360_000, 2 * PEER_BYTES // len(PUBLISH)),
    ],
    ids=["many frames", "a large compressed frame", "compressed frames"],
)
def test_what_came_in_frames_is_carried_out_in_turns_and_others_are_served_between_them(
    bench: Bench, wire: bytes, msgs: int, most: int
) -> None:
    session = Turns()
    assert len(wire) < 65_536  # one read
    bench.connect_by_websocket(session).sendall(wire)
    bench.reactor.turn()
    done = [session.connection.in_msgs]
    while session.is_over:
        bench.serve_another()
        assert session.connection.in_msgs == done[-1]
        session.is_over = False
        session.connection.read_on()
        bench.reactor.finish()
        done.append(session.connection.in_msgs)
    assert done[-1] == msgs
    assert max(after - before for before, after in zip([0, *done], done, strict=False)) <= most


def test_a_round_compresses_so_much_and_sends_the_rest_as_it_is(bench: Bench) -> None:
    """To every client, in that round: large messages to many would take seconds, in which nobody else is served."""
    clients = [bench.connect_by_websocket(Session()) for _ in range(COUNT)]
    for client in clients:
        client.sendall(frame(BINARY, b"SUB a 1\r\n"))
    bench.reactor.turn()
    size = MOST_COMPRESSED_BYTES // 3 + 100
    bench.plain.setblocking(False)
    for _ in range(2):
        left = b"PUB a %d\r\n%b\r\n" % (size, b"x" * size)
        while left:
            left = left[bench.plain.send(left) :]
            bench.reactor.turn()
        bench.reactor.turn()
        # (behind a frame with the beginning of the line)
        first = [client.recv(10, socket.MSG_DONTWAIT)[9] for client in clients]
        assert sorted(first) == [0x80 | BINARY] * (COUNT - 3) + [0xC0 | BINARY] * 3
        for client in clients:
            with contextlib.suppress(BlockingIOError):
                while client.recv(1 << 20, socket.MSG_DONTWAIT):
                    bench.reactor.turn()


def test_who_waits_for_a_word_hears_it_while_a_round_sends_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router would think the shard hung, and end it with all its clients."""
    clients = [bench.connect_by_websocket(Session()) for _ in range(30)]
    for client in clients:
        client.sendall(frame(BINARY, b"SUB a 1\r\n"))
    bench.reactor.turn()
    plain = Frames.plain_frame
    calls: list[int] = []
    sent: list[None] = []

    def slow(frames: Frames, data: bytes) -> bytes:
        work(0.02)
        sent.append(None)
        return plain(frames, data)

    bench.reactor.on_long_flush = lambda: calls.append(len(sent))
    bench.plain.sendall(PUBLISH)
    bench.reactor.turn()
    assert calls == []
    monkeypatch.setattr(Frames, "plain_frame", slow)
    bench.plain.sendall(PUBLISH)
    bench.reactor.turn()
    assert calls
    assert 0 < calls[0] < len(sent) == len(clients)


NEW_KEY = record(b"\0" * 22)  # 27 bytes, as of TLS 1.3


@pytest.mark.parametrize("pieces", [1, 7], ids=["at once", "in pieces"])
def test_new_keys_of_a_connection_are_taken_in_turns_and_others_are_served_between_them(
    bench: Bench, pieces: int
) -> None:
    """Each costs some 30 µs: the 2,400 of one read were 77 ms in which nobody else was served."""
    layer, session = Records(), Turns()
    client = bench.connect_by_tls(layer, session)
    wire = NEW_KEY * 1000 + record(PUBLISH) + NEW_KEY * 1000 + record(PUBLISH)
    size = len(wire) // pieces + 1
    assert size * pieces < 65_536  # one read each
    for at in range(0, len(wire), size):
        before = layer.idle
        client.sendall(wire[at : at + size])
        bench.reactor.turn()
        most = layer.idle - before
        while session.is_over:
            bench.serve_another()
            before, session.is_over = layer.idle, False
            session.connection.read_on()
            bench.reactor.finish()
            most = max(most, layer.idle - before)
        assert most <= 2 * RECORDS_AT_ONCE
    assert (layer.idle, session.connection.in_msgs) == (2000, 2)


def test_short_records_with_data_are_taken_in_one_turn(bench: Bench) -> None:
    layer, session = Records(), Turns()
    client = bench.connect_by_tls(layer, session)
    client.sendall(record(PUBLISH) * 1000)
    bench.reactor.turn()
    assert (session.is_over, session.connection.in_msgs) == (False, 1000)


def test_an_error_of_ours_in_frames_that_were_kept_costs_their_connection_and_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    session = Stumbling()
    client = bench.connect_by_websocket(session)
    client.sendall(frame(BINARY, b"CONNECT {}\r\n") + frame(BINARY, b"INFO {}\r\n"))
    bench.reactor.turn()
    session.connection.go_on()
    bench.expects_close = True
    bench.reactor.finish()
    bench.reactor.turn()
    bench.serve_another()
    assert bench.closed == [CloseReason.PARSE_ERROR]
    assert "its connection is closed because of an error of ours" in caplog.text


class NotGreeted(Doorkeeper):
    """Its INFO, which waits for a PROXY header, is an error of ours."""

    def on_greeting_due(self, is_known: bool) -> None:
        raise RuntimeError("of the test")


def test_an_error_of_ours_in_info_that_is_sent_in_plain_costs_its_connection_and_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(timeout_s=60.0, context=Shaken(), is_silent=True, reads_proxy_header=True)  # type: ignore[arg-type]
    keeper = NotGreeted(admits=True)
    client = bench.connect(gate, keeper)
    layered = keeper.socket
    assert isinstance(layered, LayeredSocket)
    layered.speak_first()
    assert client.recv(1) == b"" and keeper.reasons == [CloseReason.PARSE_ERROR]
    bench.serve_another()
    assert "its connection is closed because of an error of ours" in caplog.text


END_OF_TLS = bytes([ALERT]) + record(b"\1\0")[1:]
END_OF_FRAMES = frame(CLOSE, (1000).to_bytes(2, "big"))


@pytest.mark.parametrize("layer", ["tls", "websocket", "both", "both, without a close frame"])
def test_what_a_client_sent_before_it_ended_is_carried_out_though_it_was_held_meanwhile(
    bench: Bench, layer: str
) -> None:
    """As it is behind a PING that other shards answer: the rest and the end came in one read."""
    session = Held()
    words = b"PUB a 0\r\n\r\nCONNECT {}\r\n" + PUBLISH * COUNT
    bench.expects_close = True
    if layer == "tls":
        client, wire = bench.connect_by_tls(Records(), session), record(words) + END_OF_TLS
    elif layer == "websocket":
        client, wire = bench.connect_by_websocket(session), frame(BINARY, words) + END_OF_FRAMES
    else:
        client, wire = bench.connect_by_both(session), record(frame(BINARY, words))
        wire += (b"" if "without" in layer else record(END_OF_FRAMES)) + END_OF_TLS
    client.sendall(wire)
    bench.reactor.turn()
    assert (session.connection.in_msgs, session.connection.is_closing) == (1, False)
    session.connection.go_on()
    bench.reactor.finish()
    assert (session.connection.in_msgs, session.connection.is_closing) == (1 + COUNT, True)
    bench.reactor.turn()
    bench.serve_another()


@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "held"])
@pytest.mark.parametrize("end", [END_OF_FRAMES, frame(3, b"")], ids=["close", "error"])
def test_nothing_comes_behind_a_close_frame_and_all_answers_before_it(
    bench: Bench, end: bytes, *, is_held: bool
) -> None:
    """RFC 6455, section 5.5.1: also where the close frame came in one read with what is answered."""
    session = Held()
    client = bench.connect_by_websocket(session)
    bench.expects_close = True
    words = (b"CONNECT {}\r\n" if is_held else b"") + b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n"
    client.sendall(frame(BINARY, words) + frame(PING, b"z") + end)
    bench.reactor.turn()
    session.connection.go_on()
    bench.reactor.finish()
    bench.reactor.turn()
    data, opcodes, stream = client.recv(1000), [], b""
    while data:
        opcodes.append(data[0] & 15)
        stream += data[2 : 2 + data[1]] if data[0] & 15 == BINARY else b""
        data = data[2 + data[1] :]
    assert stream.replace(b"+OK\r\n", b"") == b"MSG a 1 2\r\nhi\r\nPONG\r\n"
    assert opcodes.count(CLOSE) == 1 and opcodes[-1] == CLOSE and PONG in opcodes


@pytest.mark.parametrize("layer", ["plain", "tls", "websocket"])
def test_what_a_client_sent_is_carried_out_though_it_takes_no_answer(bench: Bench, layer: str) -> None:
    """It closed with a PONG unread, as who publishes and leaves does, while others had not answered its last PING."""
    session = Held()
    wrap: Callable[[bytes], bytes]
    if layer == "plain":
        client, wrap = bench.connect_plainly(session), bytes
    elif layer == "tls":
        client, wrap = bench.connect_by_tls(Records(), session), record
    else:
        client, wrap = bench.connect_by_websocket(session), lambda data: frame(BINARY, data)
    bench.expects_close = True
    client.sendall(wrap(b"PUB a 0\r\n\r\nCONNECT {}\r\n" + PUBLISH * COUNT))
    bench.reactor.turn()
    assert session.connection.in_msgs == 1
    client.sendall(wrap(PUBLISH * COUNT))
    client.close()
    session.connection.send(b"PONG\r\n")
    session.connection.go_on()
    bench.reactor.finish()
    for _ in range(2):  # the end is read in a turn of its own
        bench.reactor.turn()
    assert (session.connection.in_msgs, session.connection.is_closing) == (1 + 2 * COUNT, True)
    bench.reactor.turn()
    bench.serve_another()


@pytest.mark.parametrize("layer", ["tls", "websocket"])
def test_what_another_server_said_before_it_ended_is_read_by_who_writes_to_it_first(bench: Bench, layer: str) -> None:
    """Why it ended, above all."""
    session = LastWords()
    link = bench.dial_server(session)
    ours = bench.reach_by_tls(Records(), link) if layer == "tls" else bench.reach_by_websocket(link)
    wrap = record if layer == "tls" else lambda data: frame(BINARY, data)
    ours.sendall(wrap(b"-ERR 'first'\r\n") + wrap(b"-ERR 'last'\r\n"))
    ours.close()
    link.send(b"PING\r\n")
    bench.reactor.finish()
    assert not session.said
    bench.expects_close = True
    bench.reactor.turn()
    assert [words.strip() for words in session.said] == [b"'first'", b"'last'"]
    bench.reactor.turn()
    assert not select.select([bench.reactor.fd], [], [], 0)[0]


class Secured:
    """The other end of a real TLS connection, on the same thread as the reactor."""

    def __init__(
        self, bench: Bench, link: ServerLink, keeper: Doorkeeper, authority: Authority, version: ssl.TLSVersion
    ) -> None:
        pair = authority.server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        context.maximum_version = version
        self._bench = bench
        self.sock, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = authority.client_context().wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        layered = LayeredSocket(Gate(timeout_s=60.0, context=context))
        keeper.socket = bench.reactor.open(theirs.detach(), link, keeper, layered)
        self.tried(self.tls.do_handshake)
        self.tried(self.tls.do_handshake)

    def tried(self, step: Callable[[], object]) -> object:
        """Do this, and pass on what both have to say; None: there is more to be read first."""
        found: object = None
        with contextlib.suppress(ssl.SSLWantReadError):
            found = step()
        self.sock.sendall(self._outgoing.read())
        self._bench.reactor.turn()
        with contextlib.suppress(BlockingIOError):
            self._incoming.write(self.sock.recv(65536, socket.MSG_DONTWAIT))
        return found


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_is_told_the_end_by_tls_is_read_until_it_ends(
    bench: Bench, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    session = LastWords()
    link, keeper = bench.dial_server(session), Doorkeeper(admits=True)
    other = Secured(bench, link, keeper, Authority(tmp_path), version)
    link.send(b"-ERR 'ours'\r\n")
    bench.reactor.finish()
    assert keeper.socket is not None and keeper.socket.end_sending()
    other.tried(lambda: None)
    assert other.tried(lambda: other.tls.read(100)) == b"-ERR 'ours'\r\n"
    assert other.tried(lambda: other.tls.read(100)) == b""  # close_notify
    other.tried(lambda: other.tls.write(b"-ERR 'theirs'\r\n"))
    assert [words.strip() for words in session.said] == [b"'theirs'"] and not keeper.reasons
    other.tls.write(b"-ERR 'last'\r\n")
    other.tried(other.tls.unwrap)
    bench.reactor.turn()
    assert [words.strip() for words in session.said] == [b"'theirs'", b"'last'"]
    assert keeper.reasons == [CloseReason.CLIENT_CLOSED]
    other.sock.close()


def test_a_server_that_is_told_the_end_by_a_close_frame_is_read_until_it_ends(bench: Bench) -> None:
    session = LastWords()
    link = bench.dial_server(session)
    ours = bench.reach_by_websocket(link)
    bench.reactor.turn()
    opened = bench.framed
    assert opened is not None
    link.send(b"-ERR 'ours'\r\n")
    assert not opened.end_sending()  # something is not sent yet
    bench.reactor.finish()
    assert opened.end_sending()
    came = ours.recv(1000)
    assert came.startswith(bytes([0x82, 13]) + b"-ERR 'ours'\r\n" + bytes([0x80 | CLOSE]))
    bench.expects_close = True
    ours.sendall(frame(BINARY, b"-ERR 'theirs'\r\n"))
    bench.reactor.turn()
    assert not link.is_closing
    ours.sendall(frame(BINARY, b"-ERR 'last'\r\n") + END_OF_FRAMES)
    bench.reactor.turn()
    assert [words.strip() for words in session.said] == [b"'theirs'", b"'last'"]
    assert bench.closed == [CloseReason.CLIENT_CLOSED]
    assert ours.recv(1000) == b""  # no second close frame


def test_the_end_is_not_told_by_tls_before_what_has_come_is_read(bench: Bench) -> None:
    """OpenSSL drops it where it looks for the other end's close_notify."""
    session = HeldWords()
    session.link = link = bench.dial_server(session)
    layer, keeper = Records(), Doorkeeper(admits=True)
    rules = Rules(WebSocket(port=1, no_tls=False, tls=Tls()), most_bytes=2 << 20, is_encrypted=True)
    gate = Gate(timeout_s=60.0, context=layer, frames=lambda frozen: Frames(rules, frozen))  # type: ignore[arg-type]
    ours = bench.reach_by_tls(layer, link, gate, keeper)
    ours.sendall(record(UPGRADE))
    bench.reactor.turn()
    ours.sendall(record(frame(BINARY, b"-ERR 'first'\r\n")) + record(frame(BINARY, b"-ERR 'last'\r\n")))
    bench.reactor.turn()
    assert len(session.said) == 1 and keeper.socket is not None
    assert not keeper.socket.end_sending()
    link.go_on()
    bench.reactor.finish()
    assert len(session.said) == 2 and keeper.socket.end_sending()
    bench.reactor.turn()
    ours.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while ours.recv(65536):
            pass
    ours.sendall(record(frame(PING, b"?")) + record(frame(BINARY, b"-ERR 'behind a ping'\r\n")))
    bench.reactor.turn()
    assert len(session.said) == 3  # and no pong: TLS encrypts nothing behind its close_notify
    with pytest.raises(BlockingIOError):
        ours.recv(1)


@pytest.mark.parametrize("layer", ["tls", "both"])
@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "held"])
def test_what_came_before_a_bad_record_is_carried_out_and_nothing_behind_it(
    bench: Bench, layer: str, *, is_held: bool
) -> None:
    """It is closed with its reason then. TLS encrypts nothing for it meanwhile."""
    session = Held()
    connect = bench.connect_by_tls if layer == "tls" else lambda _, session: bench.connect_by_both(session)
    wrap = record if layer == "tls" else lambda data: record(frame(BINARY, data))
    client, keeper = connect(Records(), session), bench.keeper
    words = b"PUB a 0\r\n\r\n" + (b"CONNECT {}\r\n" if is_held else b"")
    bad = bytes([NONE]) + record(b"?")[1:]
    client.sendall(wrap(words) + wrap(PUBLISH * COUNT) + bad + wrap(PUBLISH))
    bench.reactor.turn()
    if is_held:
        assert (session.connection.in_msgs, keeper.reasons) == (1, [])
        session.connection.go_on()  # (behind it comes the record that is none)
        session.connection.wait()
        session.connection.send(b"PONG\r\n")
        bench.reactor.finish()
        session.connection.go_on()
        bench.reactor.finish()
    assert session.connection.in_msgs == 1 + COUNT
    assert keeper.reasons == [CloseReason.READ_ERROR] and keeper.errors == ["wrong record"]
    bench.reactor.turn()
    bench.serve_another()


class HeldAgain(Held):
    """Every CONNECT holds it."""

    def on_connect(self, raw: bytes) -> None:
        super().on_connect(raw)
        if self.connection.in_msgs:
            self.connection.wait()


@pytest.mark.parametrize("layer", ["tls", "both"])
def test_who_has_sent_a_bad_record_and_is_held_takes_nothing_more_and_does_not_move(bench: Bench, layer: str) -> None:
    """What came before is kept until it is held no more, in this shard."""
    session = HeldAgain()
    client = bench.connect_by_tls(Records(), session) if layer == "tls" else bench.connect_by_both(session)
    words, keeper = PUBLISH + b"CONNECT {}\r\n" + PUBLISH * COUNT, bench.keeper
    client.sendall(record(words if layer == "tls" else frame(BINARY, words)) + bytes([NONE]) + record(b"?")[1:])
    bench.reactor.turn()
    socket = keeper.socket
    assert isinstance(socket, LayeredSocket) and session.connection.in_msgs == 1 and not keeper.reasons
    was_read = layer == "tls"  # in one turn with what came before
    assert keeper.errors == ["wrong record"] * was_read
    if was_read:
        with pytest.raises(RecordRefused):
            socket.freeze_behind_tls()
        assert socket.is_hung_up
    session.connection.send(b"PONG\r\n")
    bench.reactor.finish()
    assert not keeper.reasons
    session.connection.go_on()
    bench.reactor.finish()
    assert session.connection.in_msgs == 1 + COUNT
    assert keeper.reasons == [CloseReason.READ_ERROR] and keeper.errors == ["wrong record"]


def test_the_last_word_to_a_server_that_reads_what_waits_for_it_is_not_lost(bench: Bench) -> None:
    """The kernel, which has just taken the last of that, may have no room for a close frame."""
    bench.expects_close = True
    for more in range(0, 1 << 18, 1 << 14):
        link = bench.dial_server(LastWords())
        ours = bench.reach_by_websocket(link)
        link.send(os.urandom((1 << 20) + more))
        ours.sendall(frame(CLOSE, (1000).to_bytes(2, "big")))
        bench.reactor.turn()
        assert bench.reactor.n_emptying == 1
        last = b""
        while data := ours.recv(1 << 14, socket.MSG_DONTWAIT):
            last = (last + data)[-4:]
            bench.reactor.turn()
        assert last == b"\x88\x02\x03\xe8", more
