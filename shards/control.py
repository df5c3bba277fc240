"""The control channel between the router and one shard: its messages, their framing, and an end of it in asyncio.

Messages are msgspec structs in MessagePack, each behind a 4-byte big-endian length of at most 16 MiB; bytes that are
anything else close the channel with one error and are never skipped. It carries no client bytes, and no descriptors:
those are inherited at exec, and in the accept mode "handoff" go over a socket pair of their own. Called by the router
and by the shard; `Framer` is the part without a socket.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from broker.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

# Raised with every change of a message. Router and shards come from one installation; a mismatch is an upgrade under
# a running broker, and the shard says so instead of guessing.
CONTROL_VERSION = 7

# The largest thing sent is one shard's page of ten thousand connections with all their subscriptions.
MAX_FRAME_BYTES = 16 * 1024 * 1024

# What one end may have queued for the other. A peer that leaves four full frames unread is not reading.
MAX_PENDING_BYTES = 4 * MAX_FRAME_BYTES

READ_BYTES = 64 * 1024

_LENGTH = struct.Struct(">I")


class ControlError(Exception):
    """The other end of a control channel broke its rules; the channel is of no further use."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of everything on the channel: an array whose first element is the class name."""


class Peer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A shard whose link socket listens."""

    shard: int  # 0..63
    boot_id: str  # changes with every start of that shard
    path: str  # its link socket, absolute


# ---- router → shard ----


class Boot(Message, frozen=True):
    """First message, once: who the shard is, and everything it needs. Descriptors are inherited under these numbers."""

    version: int  # CONTROL_VERSION of the router
    shard: int  # 0..63
    shards: int  # how many there are meant to be now; it may change later
    server_id: str
    server_name: str  # never empty
    boot_id: str  # unique for this start of this shard
    options: Options
    host: str  # address clients were told, as in the options
    port: int  # bound port, never -1 or 0
    listener_fds: list[int]  # listening already, shared with the router; empty in accept mode "handoff"
    websocket_fds: list[int]  # likewise, for WebSocket clients; empty: there is no port for them
    handoff_fd: int  # SOCK_SEQPACKET end on which accepted sockets arrive (shards.handoff); -1: none
    page_fd: int  # shards.page.Page.attach
    link_dir: str  # bind <link_dir>/<shard>.<boot_id>.sock here
    created_us: int  # when the broker started, µs since 1970; for `start` in /varz
    router_pid: int  # os.getppid() that differs means that the router died before PR_SET_PDEATHSIG was set
    stats_dir: str = ""  # where statistics are written, made already; "": nowhere


class Ping(Message, frozen=True):
    """Are you alive? Answered from the event loop with the same number."""

    seq: int


class Peers(Message, frozen=True):
    """Every shard that is linked, the receiver included; sent whole on every change."""

    peers: list[Peer]


class Reload(Message, frozen=True):
    """New options; what cannot change at run time is as it was."""

    options: Options


class ReopenLog(Message, frozen=True):
    """Log files were renamed: open them anew."""


class LogLevel(Message, frozen=True):
    """Say more or less from now on."""

    debug: bool
    trace: bool


class Steered(Message, frozen=True):
    """Whether new connections are steered to this shard from now on."""

    on: bool


class Drain(Message, frozen=True):
    """Leave: accept until the queue was empty for a second, ldm INFO, flush, close in deadline_s, Drained, exit 0."""

    deadline_s: float


class LameDuck(Message, frozen=True):
    """The whole broker leaves: as Drain, but clients are closed spread over duration_s once grace_s has passed."""

    grace_s: float
    duration_s: float


class Stop(Message, frozen=True):
    """Flush what can be flushed at once, close every client, exit 0."""


class Disconnect(Message, frozen=True):
    """End every client of yours whose id is first_cid or higher; answered by Disconnected."""

    first_cid: int


class Snapshot(Message, frozen=True):
    """Answer this monitoring request for your own clients."""

    seq: int
    page: str  # one of shards.rows.QUERIES
    query: str  # that query, as JSON


class SystemReply(Message, frozen=True):
    """The answer to SystemRequest(seq): publish it, if it is not empty."""

    seq: int
    payload: bytes


class SystemEvent(Message, frozen=True):
    """Publish this in the system account, if anybody wants it."""

    subject: str
    payload: bytes
    is_last_word: bool = False  # siblings are about to stop: to subscribers of this shard alone, at once


# ---- shard → router ----


class Linked(Message, frozen=True):
    """My link socket listens at path."""

    path: str


class Ready(Message, frozen=True):
    """I hold the whole interest of every peer I was told of, and accept connections. Sent once per boot."""


class InStep(Message, frozen=True):
    """Whether I have a link to every living sibling. Not said of links that are made again within a moment."""

    on: bool


class HasRoom(Message, frozen=True):
    """Whether I have descriptors for more clients. Said while a few are left, for who comes before it is heard."""

    on: bool


class Pong(Message, frozen=True):
    """Alive."""

    seq: int


class Fatal(Message, frozen=True):
    """I cannot go on, and starting me again would end the same way."""

    reason: str


class Reloaded(Message, frozen=True):
    """The options of the last Reload hold here from now on."""


class Disconnected(Message, frozen=True):
    """The clients that Disconnect meant are gone."""

    clients: int  # how many there were


class Drained(Message, frozen=True):
    """Every client is gone; I exit now."""


class SnapshotReply(Message, frozen=True):
    """One part of the answer to Snapshot(seq), in order. No body and the last: the question made no sense."""

    seq: int
    body: bytes  # shards.rows: the page's part, in MessagePack
    is_last: bool = True


class SystemRequest(Message, frozen=True):
    """A client asks the broker something; answered by SystemReply(seq), with or without a payload."""

    seq: int
    account: str  # the asker's
    subject: str
    body: bytes


class AccountChanged(Message, frozen=True):
    """A connection of this account has come or gone, and somebody wants to know how many there are."""

    account: str


ToShard = (
    Boot
    | Ping
    | Peers
    | Reload
    | ReopenLog
    | LogLevel
    | Steered
    | Drain
    | LameDuck
    | Stop
    | Disconnect
    | Snapshot
    | SystemReply
    | SystemEvent
)
ToRouter = (
    Linked
    | Ready
    | InStep
    | HasRoom
    | Pong
    | Fatal
    | Reloaded
    | Disconnected
    | Drained
    | SnapshotReply
    | SystemRequest
    | AccountChanged
)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """One frame. ControlError when the message is over MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ControlError(f"control message {type(message).__name__} has {len(body)} bytes, over {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Framer:
    """Bytes in, messages out; no socket. Holds at most one incomplete frame.

    `expected` is the union of what the other end may say: ToShard or ToRouter. After an error the framer stays
    broken: every later feed raises the same error.
    """

    def __init__(self, expected: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(expected)
        self._buffer = bytearray()
        self._error: ControlError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """The messages that are whole now. ControlError on a frame that is too long, undecodable or unexpected."""
        if self._error is not None:
            raise self._error
        messages: list[Message] = []
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise self._broken(f"control frame of {length} bytes, over {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            try:
                messages.append(self._decoder.decode(bytes(memoryview(buffer)[start + _LENGTH.size : end])))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._broken(f"undecodable control message: {error}") from None
            start = end
        del buffer[:start]
        return messages

    def end(self) -> None:
        """The stream has ended. ControlError when that was inside a frame."""
        if self._error is None and self._buffer:
            raise self._broken(f"control channel ended inside a frame, after {len(self._buffer)} bytes of it")

    def _broken(self, text: str) -> ControlError:
        self._error = ControlError(text)
        self._buffer.clear()
        return self._error


class Channel:
    """One end of the control channel on a running event loop; owns the socket.

    `on_message` gets every message in order. `on_closed` is called exactly once: with None when the other end closed
    between two frames or close() was called here, else with the reason. Neither is called from the constructor or
    from send(). send() never blocks: what the socket does not take waits here, up to MAX_PENDING_BYTES.
    """

    def __init__(
        self,
        sock: socket.socket,
        expected: object,
        on_message: Callable[[Message], None],
        on_closed: Callable[[ControlError | None], None],
    ) -> None:
        # Here and not above: the router encodes Boot and starts its shards before it has paid for asyncio.
        import asyncio

        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._framer = Framer(expected)
        self._on_message = on_message
        self._on_closed = on_closed
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._is_closed = False
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def pending_bytes(self) -> int:
        """Bytes sent here and not yet taken by the socket."""
        return self._pending_bytes

    @property
    def is_closed(self) -> bool:
        """True from the moment no message can be sent any more."""
        return self._is_closed

    def send(self, message: Message) -> None:
        """Queue one message; after the end of the channel nothing happens, on_closed has said so."""
        if self._is_closed:
            return
        frame = memoryview(encode(message))
        if self._pending_bytes + len(frame) > MAX_PENDING_BYTES:
            self._finish_soon(ControlError(f"the other end left {self._pending_bytes} bytes unread"))
            return
        was_idle = not self._pending
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if was_idle:
            self._flush()
            if self._pending and not self._is_closed:
                self._loop.add_writer(self._fd, self._on_writable)

    def close(self) -> None:
        """Close at once. What the socket has not taken is lost; what it has, the other end can still read."""
        self._finish(None)

    def close_silently(self) -> None:
        """As close(), without calling on_closed."""
        if not self._is_closed:
            self._shut()

    def read_to_end(self) -> None:
        """Deliver now what the other end, which is dead, said last; then on_closed."""
        while not self._is_closed and self._on_readable():
            pass

    def _flush(self) -> None:
        while self._pending:
            frame = self._pending[0]
            try:
                sent = self._sock.send(frame, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
                    self._finish_soon(ControlError(f"cannot write to the control channel: {error}"))
                    return
                # The other end is gone. What it said before is still to be read, and then the end of the
                # stream: the reader reports it, so that a Fatal is not lost to a write that came after it.
                self._pending.clear()
                self._pending_bytes = 0
                return
            self._pending_bytes -= sent
            if sent == len(frame):
                self._pending.popleft()
            else:
                self._pending[0] = frame[sent:]

    def _on_writable(self) -> None:
        self._flush()
        if not self._pending and not self._is_closed:
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> bool:
        """Read once. False when there was nothing to read."""
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            # An end of the stream as well: a Unix socket says so when its peer died with bytes unread.
            data = b""
        except OSError as error:
            self._finish(ControlError(f"cannot read from the control channel: {error}"))
            return False
        try:
            if data:
                messages = self._framer.feed(data)
            else:
                self._framer.end()
                messages = []
        except ControlError as error:
            self._finish(error)
            return False
        for message in messages:
            if self._is_closed:
                return False
            self._on_message(message)
        if not data:
            self._finish(None)
        return bool(data)

    def _finish_soon(self, error: ControlError) -> None:
        # The caller of send() is in the middle of something: tell it on the next turn.
        self._shut()
        self._loop.call_soon(self._on_closed, error)

    def _finish(self, error: ControlError | None) -> None:
        if not self._is_closed:
            self._shut()
            self._on_closed(error)

    def _shut(self) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._pending.clear()
        self._pending_bytes = 0
