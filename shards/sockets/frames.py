"""The server's side of one WebSocket connection: the HTTP upgrade, then frames, by the sans-I/O core of `websockets`.

Frames carry NATS as a byte stream: a client's WebSocket message may contain any piece of it, text or binary, and
fragments are passed on as they arrive. So are the pieces of a large frame, of any size, as if they were fragments: some
clients write all that they have gathered as one frame. A compressed frame is waited for whole, and bounded by
max_payload and FRAME_ROOM_BYTES, also while it is inflated. What one read has is taken in turns: a few KB may be
thousands of frames, or inflate to megabytes. The server sends one binary message per write. Imported only where a
WebSocket port is configured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from websockets.datastructures import MultipleValuesError
from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import CLIENT, CONNECTING, OPEN, Protocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.shards.sockets.cookies import credentials_of
from gnatswarm.shards.sockets.frozen_socket import FrozenDeflate, FrozenFrames

if TYPE_CHECKING:
    from websockets.extensions import ServerExtensionFactory
    from websockets.protocol import Event
    from websockets.typing import BytesLike

    from gnatswarm.broker.options import Options, WebSocket
    from gnatswarm.shards.sockets.cookies import Credentials

# A frame may hold more than one message: nats.ws puts up to 64 KB of small messages before a large one.
FRAME_ROOM_BYTES = 1024 * 1024
# Shorter messages are not compressed, as in nats-server.
LEAST_COMPRESSED_BYTES = 64
# The fastest level: compression shall save network load, not cost much CPU.
COMPRESSION_LEVEL = 1
# The longest piece of a frame's header that is read at once.
HEADER_PIECE_BYTES = 8
# A longer frame is passed on in pieces of so many bytes: a multiple of the mask's four.
PIECE_BYTES = 65536
# Of a frame's header: bits of its first byte, the bit and the longest length of its second, its size with 8 of length.
FINAL, COMPRESSED, CONTROL = 0x80, 0x40, 0x08
MASKED, LONG = 0x80, 0x7F
LONG_HEADER_BYTES, MASK_BYTES = 10, 4
# So many frames are taken in one turn, of 5 µs each, unless they had so many bytes before, inflated: 1 ms each.
FRAMES_IN_A_TURN = 200
BYTES_IN_A_TURN = 1024 * 1024

# Headers of an upgrade that are lists take 1.6 ms for each KB, in one turn; all of them together may be so long.
LISTS = ("Connection", "Upgrade", "Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol")
MOST_LIST_BYTES = 2048

# Leaf nodes ask for this path, and may ask for frames that are not masked.
LEAF_PATH = "/leafnode"
# MQTT clients ask for this one.
MQTT_PATH = "/mqtt"
NO_MASKING = "Nats-No-Masking"

_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
)

# The library logs nothing: the socket's owner logs errors.
silent = logging.getLogger("gnatswarm.websocket")
silent.setLevel(logging.CRITICAL)

_POLICY = frozenset(
    {
        CloseReason.AUTHENTICATION_TIMEOUT,
        CloseReason.AUTHENTICATION_FAILURE,
        CloseReason.AUTHENTICATION_EXPIRED,
        CloseReason.MAXIMUM_ACCOUNT_CONNECTIONS_EXCEEDED,
        CloseReason.MAXIMUM_CONNECTIONS_EXCEEDED,
        CloseReason.MAXIMUM_CONTROL_LINE_EXCEEDED,
        CloseReason.MAXIMUM_SUBSCRIPTIONS_EXCEEDED,
    }
)
_CODES = {
    CloseReason.CLIENT_CLOSED: CloseCode.NORMAL_CLOSURE,
    CloseReason.PARSE_ERROR: CloseCode.PROTOCOL_ERROR,
    CloseReason.PROTOCOL_VIOLATION: CloseCode.PROTOCOL_ERROR,
    CloseReason.BAD_CLIENT_PROTOCOL_VERSION: CloseCode.PROTOCOL_ERROR,
    CloseReason.MAXIMUM_PAYLOAD_EXCEEDED: CloseCode.MESSAGE_TOO_BIG,
    CloseReason.SERVER_SHUTDOWN: CloseCode.GOING_AWAY,
}


class Rules:
    """The rules for all connections of the port."""

    def __init__(self, websocket: WebSocket, *, most_bytes: int, is_encrypted: bool) -> None:
        self.is_encrypted = is_encrypted
        self.most_bytes = most_bytes
        self.same_origin = websocket.same_origin
        self.origins = frozenset(place_of(urlsplit(origin)) for origin in websocket.allowed_origins)
        self.cookies = websocket.cookies
        lines = [f"{name}: {value}\r\n" for name, value in websocket.headers]
        self.header_lines = "".join(lines).encode("utf-8", "surrogateescape")
        self.replaces_date = any(name.lower() == "date" for name, _ in websocket.headers)
        self.extensions: list[ServerExtensionFactory] = []
        if websocket.compression:
            # No compression window is kept between messages: it would cost some 300 KB per connection.
            self.extensions.append(
                ServerPerMessageDeflateFactory(
                    server_no_context_takeover=True,
                    client_no_context_takeover=True,
                    compress_settings={"level": COMPRESSION_LEVEL},
                )
            )

    def complaint(self, request: Request) -> str:
        """What is wrong with the Origin of a request; "": nothing."""
        if not self.same_origin and not self.origins:
            return ""
        try:
            origin = request.headers.get("Origin") or request.headers.get("Sec-WebSocket-Origin")
            host = request.headers.get("Host", "")
        except MultipleValuesError:
            return "more than one"
        if not origin:
            return ""  # not a browser; such a client could send any Origin (RFC 6455, section 1.6)
        try:
            scheme, name, port = place_of(urlsplit(origin))
            _, own_name, own_port = place_of(urlsplit(f"{'https' if self.is_encrypted else 'http'}://{host}"))
        except ValueError:
            return "not a URL"
        if self.same_origin and (name, port) != (own_name, own_port):
            return "not same origin"
        if self.origins and (scheme, name, port) not in self.origins:
            return "not in the allowed list"
        return ""


def place_of(url: SplitResult) -> tuple[str, str, int]:
    """Scheme, host and port of a URL; ValueError for an invalid port."""
    return url.scheme, url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


class Reader(StreamReader):
    """The library's reader. Shows it a large frame as fragments, and keeps the header of one that is not complete.

    `most_bytes`: of a piece. `events`: what `protocol` has read in this turn, which is over when that is enough.
    """

    def __init__(self, most_bytes: int, protocol: Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._counted = 0  # events of this turn
        self._turn_bytes = 0
        self.is_paused = False  # the turn is over, and there is more
        self.header = b""
        self._piece_bytes = min(PIECE_BYTES, most_bytes) & -MASK_BYTES
        self._large = b""  # the header of the large frame whose pieces come, without its length
        self._left = 0  # how much of it is behind the present piece

    def at_eof(self) -> Generator[None, None, bool]:
        """A frame may begin: the one before it is complete."""
        self.header = b""
        if self._left:
            self._begin_piece(0)
            return False
        buffer = self.buffer
        if buffer and self._is_turn_over():
            self.is_paused = True
            yield
        while len(buffer) < 2 and not self.eof:
            yield
        if not buffer:
            return True
        if len(buffer) < 2 or buffer[1] & LONG != LONG or buffer[0] & (COMPRESSED | CONTROL):
            return False
        size = LONG_HEADER_BYTES + (MASK_BYTES if buffer[1] & MASKED else 0)
        while len(buffer) < size and not self.eof:
            yield
        left = int.from_bytes(buffer[2:LONG_HEADER_BYTES], "big")
        if len(buffer) >= size and left > self._piece_bytes:
            self._large = bytes(buffer[:2] + buffer[LONG_HEADER_BYTES:size])
            self._left = left
            del buffer[:size]
            self._begin_piece(self._large[0] & ~FINAL)
        return False

    def begin_turn(self) -> None:
        """Its events were taken; the next ones are those of another turn."""
        self._counted = self._turn_bytes = 0
        self.is_paused = False

    def _is_turn_over(self) -> bool:
        events = self._protocol.events
        for event in events[self._counted :]:
            if isinstance(event, Frame):
                self._turn_bytes += len(event.data)
        self._counted = len(events)
        return self._counted >= FRAMES_IN_A_TURN or self._turn_bytes >= BYTES_IN_A_TURN

    def put_back(self, data: bytes) -> None:
        """What unfinished() of another reader has returned: it is read in the next turn."""
        self.feed_data(data)
        self.is_paused = len(data) > 0

    def discard(self) -> None:
        """Nothing more is read: the library calls this until at_eof() says that all has come."""
        self._left = 0
        super().discard()

    def _begin_piece(self, first: int) -> None:
        """The header of the large frame's next fragment, whose first byte is this if more follow."""
        piece = min(self._left, self._piece_bytes)
        self._left -= piece
        self.buffer[:0] = self._header(first | (0 if self._left else self._large[0] & FINAL), piece)

    def _header(self, first: int, size: int) -> bytes:
        """With eight bytes of length, whatever it is."""
        return bytes((first, self._large[1])) + size.to_bytes(8, "big") + self._large[2:]

    def unfinished(self) -> bytes:
        """What has come and was not taken, for another reader.

        The frames of other turns, or the one that is not complete, less what was passed on. While `_left` is not 0 a
        fragment has begun, and its header is read: it was put in front of the buffer whole.
        """
        header = self.header
        if self._left:  # what is left of the frame, as one
            size = int.from_bytes(header[2:LONG_HEADER_BYTES], "big") + self._left
            header = self._header(header[0] | self._large[0] & FINAL, size)
        return header + bytes(self.buffer)

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        """The next n bytes, when they are here."""
        while len(self.buffer) < n:
            if self.eof:
                raise EOFError(f"stream ends after {len(self.buffer)} bytes, expected {n} bytes")
            yield
        data = self.buffer[:n]
        del self.buffer[:n]
        if n <= HEADER_PIECE_BYTES:
            self.header += data
        return data


class Unmasked(Protocol):
    """The library's state of an open connection on which neither end masks its frames."""

    def __init__(self, most_bytes: int) -> None:
        # The side decides what the library expects, and how it sends: a server's frames are never masked.
        super().__init__(CLIENT, state=OPEN, max_size=(None, most_bytes), logger=silent)

    def send_frame(self, frame: Frame) -> None:
        """Send a frame of the protocol's own: pong or close."""
        self.writes.append(frame.serialize(mask=False, extensions=self.extensions))


class Frames:
    """The WebSocket state of one connection."""

    __slots__ = (
        "_protocol",
        "_reader",
        "_rules",
        "close_reason",
        "credentials",
        "error",
        "is_leaf",
        "is_masked",
        "is_open",
        "is_over",
    )

    def __init__(self, rules: Rules, frozen: FrozenFrames | None = None, *, is_masked: bool = True) -> None:
        """`frozen`: of a connection whose upgrade was done elsewhere. RecordRefused: it contradicts itself."""
        self._rules = rules
        self._protocol: Protocol = (
            ServerProtocol(
                extensions=rules.extensions or None,
                state=CONNECTING if frozen is None else OPEN,
                max_size=(None, rules.most_bytes),
                logger=silent,
            )
            if is_masked
            else Unmasked(rules.most_bytes)
        )
        self._read_in_turns(rules.most_bytes)
        self.is_open = False  # the upgrade is done
        self.is_leaf = False  # … by a leaf node, which is the gateway's
        self.is_masked = is_masked  # the other end's frames
        self.is_over = False  # nothing more is read
        self.error = ""  # the client's error that ended it; "": none
        self.close_reason = CloseReason.CLIENT_CLOSED
        self.credentials: Credentials | None = None  # of cookies in its upgrade, until they are taken
        if frozen is not None:
            self._thaw(frozen)

    def _read_in_turns(self, most_bytes: int) -> None:
        """Have the library's state use our reader."""
        self._reader = self._protocol.reader = Reader(most_bytes, self._protocol)
        self._protocol.parser = self._protocol.parse()
        next(self._protocol.parser)

    @property
    def is_paused(self) -> bool:
        """Whether a turn is over, and more has come: call receive() again, with nothing, when others had theirs."""
        return self._reader.is_paused and not self.is_over

    def allow(self, most_bytes: int) -> None:
        """From now on compressed frames may have so many bytes."""
        self._protocol.max_fragment_size = most_bytes

    def freeze(self) -> FrozenFrames:
        """This state, as a record. RecordRefused: it has none now."""
        protocol = self._protocol
        if self.is_over or not self.is_open or protocol.state is not OPEN:
            raise RecordRefused("its WebSocket layer is not open")
        deflate: FrozenDeflate | None = None
        for one in protocol.extensions:
            assert isinstance(one, PerMessageDeflate)
            if one.decode_cont_data:
                raise RecordRefused("it is sending a compressed message in fragments")
            deflate = FrozenDeflate(one.remote_max_window_bits, one.local_max_window_bits)
        return FrozenFrames(self._reader.unfinished(), protocol.current_size, deflate)

    def _thaw(self, frozen: FrozenFrames) -> None:
        self.is_open = True
        if frozen.deflate is not None:
            self._protocol.extensions = [_deflate(frozen.deflate)]
        self._protocol.current_size = frozen.message_bytes
        self._reader.put_back(frozen.partial)

    def receive(self, data: memoryview | bytes) -> list[BytesLike]:
        """Take bytes from the client; returns pieces of its NATS stream. Call take_answer() afterwards.

        One turn: see is_paused.
        """
        protocol = self._protocol
        self._reader.begin_turn()
        protocol.receive_data(bytes(data))
        events = protocol.events_received()
        if not self.is_open:
            events = self._open(events)
            if not self.is_open:
                return []
        payloads: list[BytesLike] = []
        for event in events:
            assert isinstance(event, Frame)
            if event.opcode is Opcode.CLOSE:
                self.is_over = True
            elif event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT) and event.data:
                payloads.append(event.data)
        if protocol.parser_exc is not None and not self.is_over:
            self.is_over = True
            self.error = str(protocol.parser_exc) or type(protocol.parser_exc).__name__
            self.close_reason = CloseReason.PROTOCOL_VIOLATION
        return payloads

    def take_answer(self) -> bytes:
        """Bytes to send to the client: the response to the upgrade, pongs, a close frame."""
        return b"".join(self._protocol.data_to_send())

    def compresses(self, size: int) -> bool:
        """Whether so many bytes are worth it, and the other end has agreed."""
        return bool(self._protocol.extensions) and size > LEAST_COMPRESSED_BYTES

    def frame(self, data: bytes) -> bytes:
        """A piece of the server's NATS stream as a WebSocket message, compressed where compresses() says so."""
        extensions = list(self._protocol.extensions) if self.compresses(len(data)) else None
        return Frame(Opcode.BINARY, data).serialize(mask=False, extensions=extensions)

    def plain_frame(self, data: bytes) -> bytes:
        """The same, and never compressed."""
        return Frame(Opcode.BINARY, data).serialize(mask=False)

    def farewell(self, reason: int) -> bytes:
        """A close frame for a CloseReason, or the answer to the other end's; b"" when one was sent already."""
        if self._protocol.state is not OPEN:
            return self.take_answer()
        why = CloseReason(reason)
        code = CloseCode.POLICY_VIOLATION if why in _POLICY else _CODES.get(why, CloseCode.INTERNAL_ERROR)
        self._protocol.send_close(code, why.text)
        return self.take_answer()

    def _open(self, events: list[Event]) -> list[Event]:
        """Handle the HTTP request: complete, incomplete or invalid. Returns events that came behind it."""
        protocol = self._protocol
        assert isinstance(protocol, ServerProtocol)
        if not events:
            if protocol.handshake_exc is not None:
                self._refuse(str(protocol.handshake_exc.__cause__ or protocol.handshake_exc))
                if not any(protocol.writes):
                    protocol.writes.insert(0, _BAD_REQUEST)
            return []
        request = events[0]
        assert isinstance(request, Request)
        complaint = self._rules.complaint(request)
        is_ahead = len(events) > 1 or bool(protocol.reader.buffer) or protocol.parser_exc is not None
        protocol.writes.clear()  # pongs and a close frame: no frame may be answered before the request is
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1 or not hosts[0]:
            response = protocol.reject(HTTPStatus.BAD_REQUEST, "Bad Request\n")
            self._refuse("'Host' missing in request")
        elif sum(len(value) for name in LISTS for value in request.headers.get_all(name)) > MOST_LIST_BYTES:
            response = protocol.reject(HTTPStatus.BAD_REQUEST, "Bad Request\n")
            self._refuse(f"more than {MOST_LIST_BYTES} bytes of {', '.join(LISTS)}")
        elif _path_of(request).endswith(MQTT_PATH):
            response = protocol.reject(HTTPStatus.NOT_FOUND, "Not Found\n")
            self._refuse("MQTT is not offered")
        elif complaint:
            response = protocol.reject(HTTPStatus.FORBIDDEN, "Forbidden\n")
            self._refuse(f"origin not allowed: {complaint}")
        else:
            if _asks_for_websocket(request):
                del request.headers["Upgrade"]  # the library takes no list
                request.headers["Upgrade"] = "websocket"
            response = protocol.accept(request)
            if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                if is_ahead:
                    self._refuse("client sent data before handshake is complete")
                    return []
                self.is_open = True
                path = _path_of(request)
                self.is_leaf = path.startswith(f"{LEAF_PATH}/") or path.endswith(LEAF_PATH)
                if self.is_leaf and request.headers.get_all(NO_MASKING) == ["true"]:
                    self.is_masked = False
                    response.headers[NO_MASKING] = "true"
                elif not self.is_leaf and any(self._rules.cookies):
                    self.credentials = credentials_of(request.headers.get_all("Cookie"), self._rules.cookies)
                if self._rules.replaces_date:
                    del response.headers["Date"]
            else:
                self._refuse(str(protocol.handshake_exc))
                response.headers["Sec-WebSocket-Version"] = "13"
        if not self.is_open:
            protocol.writes.append(response.serialize())  # (a frame behind the request may have ended the protocol)
            return []
        protocol.send_response(response)
        if self._rules.header_lines:
            # (not by response.headers: how these are encoded depends on the library's version)
            protocol.writes[-1] = protocol.writes[-1].removesuffix(b"\r\n") + self._rules.header_lines + b"\r\n"
        return []

    def _refuse(self, why: str) -> None:
        self.is_over = True
        self.error = why


def _path_of(request: Request) -> str:
    """The path of its target, which anybody may have written: nothing in it is an error."""
    return request.path.partition("?")[0]


def _asks_for_websocket(request: Request) -> bool:
    """Whether it is one of the protocols in `Upgrade` (RFC 6455, section 4.2.1)."""
    names = ",".join(request.headers.get_all("Upgrade")).split(",")
    return any(name.strip().lower() == "websocket" for name in names)


def _deflate(frozen: FrozenDeflate) -> PerMessageDeflate:
    return PerMessageDeflate(
        remote_no_context_takeover=True,
        local_no_context_takeover=True,
        remote_max_window_bits=frozen.client_window_bits,
        local_max_window_bits=frozen.server_window_bits,
        compress_settings={"level": COMPRESSION_LEVEL},
    )


def most_frame_bytes(options: Options) -> int:
    """How many bytes a client's compressed frame may have, inflated."""
    return options.limits.max_payload_bytes + FRAME_ROOM_BYTES


def frames_factory(options: Options) -> Callable[[FrozenFrames | None], Frames]:
    """A function that makes the WebSocket state of a connection: a new one's (None), or one that moves."""
    rules = Rules(options.websocket, most_bytes=most_frame_bytes(options), is_encrypted=options.websocket.tls.is_on)
    return lambda frozen: Frames(rules, frozen)
