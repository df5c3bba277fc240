"""The compiled engine without sockets: tests feed bytes of a client, and take the frames sent to each client.

A thin layer over probes.engine: a session in Python for each connection (as shards.clients.clients has), and a reader
of frames that shares nothing with the broker's parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gnatswarm.broker.access.connect import ClientOptions, overlay, require_object, require_sense
from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.errors import AuthorizationViolation, CloseReason, ProtocolError
from gnatswarm.broker.limits import Limits
from gnatswarm.probes.engine import Probe, ProbeSocket

QUIET = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
WITH_HEADERS = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
NO_ECHO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"echo":false}\r\n'
NO_RESPONDERS = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


class Frame(NamedTuple):
    """One frame to a client or sibling. `line` is its control line without CRLF, `body` its header and payload."""

    line: bytes
    body: bytes = b""
    header_size: int = 0

    @property
    def size(self) -> int:
        """In bytes, with each CRLF."""
        return len(self.line) + 2 + (len(self.body) + 2 if self.is_message else 0)

    @property
    def is_message(self) -> bool:
        return self.line.startswith((b"MSG ", b"HMSG ", b"RMSG ", b"QMSG ", b"QHMG "))

    @property
    def words(self) -> list[bytes]:
        return self.line.split(b" ")

    @property
    def subject(self) -> bytes:
        return self.words[1]

    @property
    def sid(self) -> bytes:
        return self.words[2]

    @property
    def reply(self) -> bytes:
        """Of a MSG or HMSG to a client; b"" for none."""
        return self.words[3] if len(self.words) == (6 if self.words[0] == b"HMSG" else 5) else b""

    @property
    def payload(self) -> bytes:
        return self.body[self.header_size :]


def frames(data: bytes, *, is_cut: bool = False) -> list[Frame]:
    """The frames in `data`, which must end at the end of a frame, unless the connection has ended within one."""
    found = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0 and is_cut:
            break
        assert end >= 0, f"cut short: {data[at:]!r}"
        line = data[at:end]
        at = end + 2
        words = line.split(b" ")
        if words[0] in (b"MSG", b"HMSG", b"RMSG", b"QMSG", b"QHMG"):
            size = int(words[-1])
            has_header = words[0] in (b"HMSG", b"QHMG")
            body = data[at : at + size]
            if is_cut and at + size + 2 > len(data):
                break
            assert len(body) == size and data[at + size : at + size + 2] == b"\r\n", f"cut short: {line!r}"
            at += size + 2
            found.append(Frame(line, body, int(words[-2]) if has_header else 0))
        else:
            found.append(Frame(line))
    return found


@dataclass
class Session:
    """The Python side of one connection: its CONNECT, a log-in by token, the errors reported to it."""

    token: str = ""
    options: ClientOptions = field(default_factory=ClientOptions)
    errors: list[ProtocolError] = field(default_factory=list)
    times_left: int = 0  # on_members_left
    waits_us: list[int] = field(default_factory=list)  # of on_publish_limited
    turns: int = 0  # of on_turn_over
    connection: ClientConnection = field(init=False)  # to be set by whoever makes it

    def on_connect(self, raw: bytes) -> None:
        options = overlay(self.options, raw)
        if self.token and options.auth_token != self.token:
            raise AuthorizationViolation
        require_sense(options)
        self.options = options
        self.connection.configure(
            verbose=options.verbose,
            pedantic=options.pedantic,
            echo=options.echo,
            headers=options.headers,
            no_responders=options.no_responders,
            protocol=options.protocol,
        )
        self.connection.authenticated()

    def on_subscriptions_due(self) -> None:
        self.connection.end_some(1_000_000)

    def on_first_operation(self) -> None:
        raise AuthorizationViolation

    def on_info(self, raw: bytes) -> None:
        require_object(raw)

    def on_error(self, error: ProtocolError) -> None:
        self.errors.append(error)

    def on_members_left(self) -> None:
        self.times_left += 1

    def on_turn_over(self) -> None:
        self.turns += 1
        self.connection.read_on()

    def on_publish_limited(self, wait_us: int) -> None:
        self.waits_us.append(wait_us)

    def on_system_request(self, subject: bytes, reply: bytes, payload: bytes) -> bool:
        return False


class EngineClient:
    """One client. `feed` sends bytes as this client, `take` returns the frames sent to it since then.

    `engine` is where its connection is: a move changes it, and the session's connection.
    """

    def __init__(self, engine: Engine, connect: bytes) -> None:
        self.engine = engine
        self._taken = 0
        self.session = Session(engine.token)
        self.socket: ProbeSocket = engine.probe.open(
            self.session,
            offers_headers=engine.offers_headers,
            must_authenticate=bool(engine.token),
        )
        self.session.connection = self.socket.connection
        if connect:
            self.feed(connect)

    @property
    def connection(self) -> ClientConnection:
        return self.session.connection

    @property
    def errors(self) -> list[type[ProtocolError]]:
        return [type(error) for error in self.session.errors]

    def feed(self, data: bytes, pieces: Iterable[int] = (), *, finish: bool = True) -> None:
        self.engine.probe.feed(self.socket, data, pieces, finish=finish)

    def take(self) -> bytes:
        data = bytes(self.socket.sent[self._taken :])
        self._taken = len(self.socket.sent)
        return data

    def talk(self, data: bytes, pieces: Iterable[int] = ()) -> bytes:
        """Feed these bytes; the frames that the client gets."""
        self.take()
        self.feed(data, pieces)
        return self.take()

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Sid and payload of the messages sent to it since the last take."""
        return [(frame.sid, frame.payload) for frame in frames(self.take()) if frame.is_message]

    def close(self) -> None:
        self.engine.probe.end(self.socket)

    @property
    def is_over(self) -> bool:
        return self.socket.is_over

    @property
    def reason(self) -> CloseReason:
        return CloseReason(self.socket.reason)


class Engine:
    """One sublist, one fan-out, and the clients on them."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        offers_headers: bool = True,
        token: str = "",
        seed: int = 1,
        room: int = 262144,
        prefers_local: bool = False,
        shard: int = -1,
    ) -> None:
        self.limits = limits or Limits()
        self.offers_headers = offers_headers
        self.token = token
        self.probe = Probe(self.limits, seed=seed, room=room, prefers_local=prefers_local, shard=shard)

    def client(self, connect: bytes = QUIET) -> EngineClient:
        return EngineClient(self, connect)

    def clients(self, count: int, connect: bytes = QUIET) -> list[EngineClient]:
        return [self.client(connect) for _ in range(count)]

    def assert_empty(self) -> None:
        """After all clients have left, the engine holds nothing for any of them."""
        held = self.probe.memory
        assert held == {
            "bytes_in_chunks": 0,
            "subscriptions": 0,
            "queue_names": 0,
            "lingering": 0,
            "dirty": False,
            "called": False,
        }
