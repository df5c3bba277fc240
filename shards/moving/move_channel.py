"""The way from one shard to another for clients that move: their records, each with its descriptor (SCM_RIGHTS).

A private Unix stream socket beside the shard's link socket, one connection per pair and direction, dialled by the shard
that clients leave. A frame is a 4-byte big-endian length, checked before anything is read, and a msgspec struct in
MessagePack; the first is a Hello. A HandedOver brings one descriptor with its first byte. Bytes that are not
understood end the connection, and what it had brought is closed. Not here: what the records say (shards.clients.moved).
"""

from __future__ import annotations

import array
import contextlib
import errno
import logging
import os
import socket
import struct
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.frozen import MOST_RECORD_BYTES
from gnatswarm.shards.sockets import private_socket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.shards.sockets.reserve import Reserve

logger = logging.getLogger("gnatswarm.moving")

# Increased with every change of a frame.
CHANNEL_VERSION = 2

BACKLOG = 64
READ_BYTES = 64 * 1024
# What came is passed on for so long; then others go first.
TURN_NS = 50_000
HELD_BYTES = 64 * 1024
# Sent in one turn, some 5 µs each.
FRAMES_A_TURN = 6
MOST_FRAME_BYTES = MOST_RECORD_BYTES + 1024
# Descriptors that came before their frames were complete; one more, and the other end is no shard of ours.
MOST_WAITING = 1024
# Too many descriptors are on their way for now (ETOOMANYREFS): try again.
AGAIN_S = 0.01
# Stands for a descriptor that this process could not receive, because it has too many.
NOT_RECEIVED = -1

_LENGTH = struct.Struct(">I")
_FD_BYTES = array.array("i").itemsize
_TRUNCATED = int(socket.MSG_CTRUNC)  # (of flags as numbers: Python would look each up by its name)
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)


class MoveMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of everything on the channel."""


class Hello(MoveMessage, frozen=True):
    """First: who speaks."""

    version: int  # CHANNEL_VERSION
    server_id: str
    shard: int
    boot_id: str


class HandedOver(MoveMessage, frozen=True):
    """A client of this move goes on in your shard; its descriptor comes with this."""

    move: int
    record: bytes  # shards.clients.moved.encoded


class Gone(MoveMessage, frozen=True):
    """This client of the move does not come: it has left, or is being closed."""

    move: int
    cid: int


class Ended(MoveMessage, frozen=True):
    """No more clients of this move come."""

    move: int


Message = Hello | HandedOver | Gone | Ended

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def objection_to_descriptor(fd: int) -> str:
    """Why this is not a client's connection; "" if it may be one. What one that was reset had sent is still read."""
    if fd == NOT_RECEIVED:
        return "no descriptor came with it: this process has too many"
    try:
        # (Family, type and protocol are not asked for, as they would be without these words.)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
    except OSError:
        return "its descriptor is no socket"
    try:
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_STREAM:
            return "its descriptor is no stream socket"
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return "its descriptor is a listening socket"
    finally:
        sock.detach()
    return ""


class Outgoing:
    """The sending end. `on_closed` is called once when it ends by itself; descriptors not yet sent are closed then.

    `wait_turn` is called when there is something to send, and the callee calls send_some() until that has sent
    everything; None: it is sent at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        hello: Hello,
        on_closed: Callable[[Outgoing], None],
        wait_turn: Callable[[Outgoing], None] | None = None,
    ) -> None:
        """OSError: no shard listens there, or it is too busy."""
        self._loop = loop
        self._on_closed = on_closed
        self._wait_turn: Callable[[Outgoing], None] | None = None
        self._has_asked = False  # for its turn
        self._pending: deque[tuple[memoryview, int]] = deque()  # with -1, or the descriptor to send with the first byte
        self._held_bytes = 0  # of messages that wait for the next
        self._is_waiting = False
        self.is_closed = False
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            private_socket.connect(self._sock, path)
        except OSError:
            self._sock.close()
            raise
        loop.add_reader(self._sock.fileno(), self._on_readable)
        self.send(hello)
        self._wait_turn = wait_turn

    def send(self, message: Message, fd: int = NOT_RECEIVED, *, is_last: bool = True) -> None:
        """Queue a message; a descriptor belongs to this from now on, whether it can be sent or not.

        `is_last` False: it waits for the next, up to HELD_BYTES, so that the other end is woken once for all.
        """
        frame = bytearray(_LENGTH.size)  # (a record may have 64 MB that are half read: a copy takes 20 ms and more)
        _encoder.encode_into(message, frame, _LENGTH.size)
        length = len(frame) - _LENGTH.size
        if self.is_closed or length > MOST_FRAME_BYTES:
            if fd >= 0:
                os.close(fd)
            return
        _LENGTH.pack_into(frame, 0, length)
        self._pending.append((memoryview(frame), fd))
        self._held_bytes += length
        if not self._is_waiting and (is_last or self._held_bytes >= HELD_BYTES):
            self._begin()

    def flush(self) -> None:
        """Send everything, also what waits for the next message or a turn."""
        if not self._is_waiting:
            self._flush(sys.maxsize)

    def send_some(self) -> bool:
        """Send a little; False: there is nothing more, and `wait_turn` is called when there is."""
        self._flush(FRAMES_A_TURN)
        self._has_asked = bool(self._pending) and not self._is_waiting
        return self._has_asked

    @property
    def is_sending(self) -> bool:
        """Whether the kernel has not taken everything."""
        return bool(self._pending)

    @property
    def unsent_descriptors(self) -> int:
        """How many wait to be sent, and are open here until then."""
        return sum(fd >= 0 for _, fd in self._pending)

    def close(self) -> None:
        """End it; what was not sent is lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, fd in self._pending:
            if fd >= 0:
                os.close(fd)
        self._pending.clear()

    def _begin(self) -> None:
        """The kernel may take something."""
        self._is_waiting = False
        if self._wait_turn is None:
            self.flush()
        elif not self._has_asked and not self.is_closed:
            self._has_asked = True
            self._wait_turn(self)

    def _flush(self, most: int) -> None:
        """Send so many frames, as far as the kernel takes them."""
        if self.is_closed:
            return
        self._held_bytes = 0
        while self._pending and most > 0:
            most -= 1
            frame, fd = self._pending[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
            try:
                sent = self._sock.sendmsg([frame], rights, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._is_waiting = True
                self._loop.add_writer(self._sock.fileno(), self._on_writable)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    self._is_waiting = True
                    self._loop.call_later(AGAIN_S, self._begin)
                else:
                    self._fail()
                return
            if fd >= 0:
                os.close(fd)
            if sent == len(frame):
                self._pending.popleft()
            else:
                self._pending[0] = frame[sent:], NOT_RECEIVED

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._begin()

    def _on_readable(self) -> None:
        """The other end says nothing; it has closed."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            with contextlib.suppress(ConnectionResetError):
                self._sock.recv(READ_BYTES)
            self._fail()

    def _fail(self) -> None:
        if not self.is_closed:
            self.close()
            self._loop.call_soon(self._on_closed, self)


class Incoming:
    """The receiving end of one connection.

    `on_message` gets each message, and the descriptor of a HandedOver (NOT_RECEIVED: it is lost), which is the
    callee's then. `on_closed` is called once at the end, with what was wrong, or "". `wait_turn` is called when
    something has come, and the callee calls take() until that has taken everything; None: it is read at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_message: Callable[[Incoming, Message, int], None],
        on_closed: Callable[[Incoming, str], None],
        wait_turn: Callable[[Incoming], None] | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._wait_turn = wait_turn
        self._buffer = bytearray()
        self._room = memoryview(bytearray(READ_BYTES))
        self._fds: deque[int] = deque()
        self.hello: Hello | None = None
        self._is_closed = False
        loop.add_reader(sock.fileno(), self._on_readable)

    def finish(self) -> None:
        """End it when everything that has come is read; on_closed is called."""
        while not self._is_closed and self._read():
            pass
        self._end("")

    def close(self) -> None:
        """End it, and close what nobody has taken; on_closed is not called."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for fd in self._fds:
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
        self._buffer.clear()

    def take(self) -> bool:
        """Read once; False: there is nothing more, and `wait_turn` is called when there is."""
        if self._is_closed:
            return False
        if self._read():
            return True
        if not self._is_closed:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        return False

    def _on_readable(self) -> None:
        if self._wait_turn is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._wait_turn(self)
            return
        until_ns = time.monotonic_ns() + TURN_NS
        while not self._is_closed and self._read():
            if time.monotonic_ns() >= until_ns:
                self._loop.call_soon(self._on_readable)  # (uvloop reports a reset connection once)
                return

    def _read(self) -> bool:
        """Read once; False: nothing has come."""
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into(
                [self._room], socket.CMSG_SPACE(4 * _FD_BYTES), _CLOSED_ON_EXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(os.strerror(error.errno or 0))
            return False
        came = 0
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i", payload[: len(payload) - len(payload) % _FD_BYTES])
                self._fds.extend(fds)
                came += len(fds)
        if flags & _TRUNCATED and came == 0:
            self._fds.append(NOT_RECEIVED)
        if not size:
            self._end("it ended inside a record" if self._buffer else "")
            return False
        self._buffer += self._room[:size]
        why = self._take_frames()
        if why or len(self._fds) > MOST_WAITING:
            self._end(why or "descriptors came without their records")
        return True

    def _take_frames(self) -> str:
        """Pass on the frames that are complete; returns what is wrong with the next, or ""."""
        start = 0
        buffer = self._buffer
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MOST_FRAME_BYTES:
                return f"a frame of {length:,} bytes; at most {MOST_FRAME_BYTES:,} are taken"
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            try:
                message = _decoder.decode(memoryview(buffer)[start + _LENGTH.size : end])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return f"a frame that is not understood: {error}"
            start = end
            if isinstance(message, Hello) != (self.hello is None):
                return "a Hello out of place"
            fd = NOT_RECEIVED
            if isinstance(message, Hello):
                self.hello = message
            elif isinstance(message, HandedOver):
                if not self._fds:
                    return "a record without its descriptor"
                fd = self._fds.popleft()
            self._on_message(self, message, fd)
            if self._is_closed:
                return ""
        del buffer[:start]
        return ""

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._on_closed(self, why)


class Door:
    """Where siblings hand clients over: listens at `path` from the start. OSError: it cannot.

    `reserve`: from which it accepts, because clients may have taken all other descriptors.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        on_accepted: Callable[[socket.socket], None],
        *,
        reserve: Reserve,
    ) -> None:
        self._loop = loop
        self._reserve = reserve
        self._path = path
        self._on_accepted = on_accepted
        self._is_closed = False
        self._listening = self._listen()

    def _listen(self) -> socket.socket:
        listening = private_socket.listening_at(self._path, BACKLOG)
        self._loop.add_reader(listening.fileno(), self._on_readable)
        return listening

    def listen_anew(self) -> None:
        """Listen again at the same path, if its file was removed; OSError is ignored, this is called again.

        Nothing once this is closed: the router may miss the file before it hears why.
        """
        if self._is_closed or os.path.exists(self._path):
            return
        with contextlib.suppress(OSError), self._reserve.opened():
            before, self._listening = self._listening, self._listen()
            self._loop.remove_reader(before.fileno())
            before.close()
            logger.warning("somebody removed the socket for moving clients %s; it is made again", self._path)

    def close(self) -> None:
        """Listen no more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _on_readable(self) -> None:
        try:
            with self._reserve.opened():
                sock, _ = self._listening.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED):
                logger.error("cannot take clients from other shards: %s", os.strerror(error.errno or 0))
                # The connection stays in the queue; without a pause it would be reported without end.
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(1.0, self._listen_on, self._listening)
            return
        sock.setblocking(False)
        uid = private_socket.user_of(sock)
        if uid != os.geteuid():
            logger.error("a process of user %d connected to the socket for moving clients; closing it", uid)
            sock.close()
            return
        self._on_accepted(sock)

    def _listen_on(self, listening: socket.socket) -> None:
        if listening is self._listening and listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._on_readable)
