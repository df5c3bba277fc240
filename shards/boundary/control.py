"""The control channel between the router and one shard: messages, framing, and one end of it for asyncio.

A frame is a 4-byte big-endian length of at most 16 MiB and a msgspec struct in MessagePack. Any other bytes close the
channel with an error; nothing is skipped. The channel carries no client data and no descriptors: a shard inherits
its descriptors at its start, and in the accept mode "handoff" accepted sockets use a socket pair of their own. A router
that replaces a dead one gives the shard a new channel, so no half of a frame is left. Used by the router and by the
shard; `Framer` is the part without a socket.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gnatswarm.broker.options import Options, User
from gnatswarm.shards.boundary.rows import Query

# Increased with every change of a message. Router and shards come from one installation; versions differ when that was
# upgraded under a running broker. The shard then reports it and does not start.
CONTROL_VERSION = 34

# The process that is connected to other servers has this number among the shards.
GATEWAY_NUMBER = 63

# The largest things sent are options (`broker.bounds` has their most), and parts of pages.
MAX_FRAME_BYTES = 16 * 1024 * 1024

# How much may wait to be sent to the other end. One that leaves four full frames unread has stopped reading.
MAX_PENDING_BYTES = 4 * MAX_FRAME_BYTES

READ_BYTES = 64 * 1024

# So many users are in one message, and fewer if they have long permissions. A shard serves clients between two of them:
# each takes it 2 to 5 ms.
USERS_AT_ONCE = 1000
USERS_BYTES = 256 * 1024

_LENGTH = struct.Struct(">I")


class ControlError(Exception):
    """The other end of a control channel broke the rules; the channel cannot be used any more."""


class ControlMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of everything on the channel: an array whose first element is the class name."""


class LinkedShard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A shard that siblings can dial."""

    shard: int  # 0..63
    boot_id: str  # changes with every start of that shard
    path: str  # its link socket, absolute


class ClusterNews(ControlMessage, frozen=True):
    """What clients are told of the cluster: from the gateway to the router, and from there to every shard.

    URLs of clients are host:port; `own` ones are empty while no other member has been connected. The next
    gateway is given it, too.
    """

    name: str  # of the cluster
    own_urls: list[str] = []  # of clients
    urls: list[str] = []  # of clients of other members
    own_websocket_urls: list[str] = []
    websocket_urls: list[str] = []
    members: int = 0  # other members that are connected
    is_settled: bool = True  # False: the gateway has just begun; URLs told before stay
    routes: list[str] = []  # where those members take routes, host:port, for the next gateway


class ServerPort(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A port on which other servers connect."""

    fd: int  # listening already, shared with the router
    host: str  # as in the options
    port: int  # bound port, never -1 or 0


# ---- router → shard ----


class Boot(ControlMessage, frozen=True):
    """First message, sent once: the shard's identity and all it needs. Descriptors are inherited with these numbers."""

    version: int  # CONTROL_VERSION of the router
    shard: int  # 0..63
    shards: int  # configured number of shards; it may change later
    server_id: str
    server_name: str  # never empty
    boot_id: str  # unique for this start of this shard
    options: Options
    host: str  # as in the options
    port: int  # bound port, never -1 or 0
    listener_fds: list[int]  # listening already, shared with the router; empty in accept mode "handoff"
    websocket_fds: list[int]  # likewise, for WebSocket clients; empty without a WebSocket port
    may_refuse: bool  # listener_fds are no service manager's, so they may be shut down
    handoff_fd: int  # SOCK_SEQPACKET end on which accepted sockets arrive (shards.boundary.handoff); -1: none
    page_fd: int  # shards.boundary.page.Page.attach
    link_dir: str  # bind <link_dir>/<shard>.<boot_id>.sock here
    created_us: int  # when the broker started, µs since 1970; for `start` in /varz
    keeper_pid: int  # when os.getppid() differs, the keeper died before PR_SET_PDEATHSIG was set
    is_gateway: bool = False  # no shard of clients, but the process that is connected to other servers
    stats_dir: str = ""  # existing directory for statistics; "": none are written
    generation: int = 0  # of the options: how often they were reloaded before
    server_ports: dict[str, ServerPort] = {}  # the gateway's, by kind: "cluster", "leafnodes"
    websocket_port: int = 0  # bound port; 0: none
    cluster: ClusterNews | None = None  # what the gateway told last


class Ping(ControlMessage, frozen=True):
    """Are you alive? The event loop answers with Pong and the same number; what sends for long does so meanwhile."""

    seq: int


class LinkedShards(ControlMessage, frozen=True):
    """All shards whose link sockets listen, the receiver included; the whole list is sent after every change."""

    shards: list[LinkedShard]


class ListenAnew(ControlMessage, frozen=True):
    """The file of your link socket is gone: listen at its path again, so that siblings can dial you."""


class PartLink(ControlMessage, frozen=True):
    """For tests: break your link to this shard, and dial it no more for a time; answered by Parted."""

    shard: int
    for_s: float  # 0: dial it again


class ReloadUsers(ControlMessage, frozen=True):
    """Some of the users of the Reload that follows. Nothing changes before that."""

    users: msgspec.Raw  # for decode_users()


class Reload(ControlMessage, frozen=True):
    """New options; those that cannot change at run time have their old values. They follow ReloadUsers."""

    options: Options  # without users: those have come before
    generation: int = 0  # how often they were reloaded, this time included


class ReopenLog(ControlMessage, frozen=True):
    """Log files were renamed: open them again."""


class Drain(ControlMessage, frozen=True):
    """Retire this shard within deadline_s.

    Accept until the accept queue was empty for a second, move clients to the shards in `to`, send INFO with ldm to
    those that cannot move, flush and close, send Drained, exit 0.
    """

    deadline_s: float
    to: list[int] = []  # []: nobody is moved
    relay_s: float = 0.0  # > 0: clients with TLS move too; stay for so long to encrypt for them, as for leaf nodes


class RelaysEnd(ControlMessage, frozen=True):
    """To shards: send INFO with ldm to your clients whose TLS is in these processes, which end soon."""

    boot_ids: list[str]


class EndRelay(ControlMessage, frozen=True):
    """To a relay: your clients have been told. Close them one by one in the second half of this time, and exit 0."""

    within_s: float


class MoveAway(ControlMessage, frozen=True):
    """Move so many of your clients to each of these shards, within a time; answered by Moved."""

    to: list[tuple[int, int]]  # (shard, clients)
    within_s: float


class Places(ControlMessage, frozen=True):
    """Where clients belong now, by placement rule; sent again whenever it changes."""

    generation: int  # of the options whose rules these are; a shard with others waits for the next
    shards: list[int]  # by rule: the shard of its clients; -1: they stay where they are


class LameDuck(ControlMessage, frozen=True):
    """The whole broker is ending: as Drain, but after grace_s clients are closed one by one over duration_s."""

    grace_s: float
    duration_s: float


class Stop(ControlMessage, frozen=True):
    """Carry out what clients had sent that have closed or are over their limits, close every client, exit 0."""


class Disconnect(ControlMessage, frozen=True):
    """Disconnect your clients whose id is first_cid or higher; answered by Disconnected."""

    first_cid: int


class Snapshot(ControlMessage, frozen=True):
    """Answer this monitoring query for your own clients; answered by SnapshotReply."""

    seq: int
    query: Query


class SystemReply(ControlMessage, frozen=True):
    """The reply to SystemRequest(seq): publish it unless it is empty."""

    seq: int
    payload: bytes


class SystemEvent(ControlMessage, frozen=True):
    """Publish this in the system account if it has a subscriber there."""

    subject: str
    payload: bytes
    is_last_word: bool = False  # siblings are about to stop: publish at once, to this shard's own subscribers only


# ---- shard → router ----


class Awake(ControlMessage, frozen=True):
    """My program is read: I am ready for Boot. The first message of each process."""


class Linked(ControlMessage, frozen=True):
    """My link socket listens at path."""

    path: str


class Ready(ControlMessage, frozen=True):
    """I have the complete interest of every shard in LinkedShards, and accept connections. Sent once per boot."""


class Resumed(ControlMessage, frozen=True):
    """Where I stand, to a router that has taken me over: the first message on the channel that it gave me."""

    is_in_step: bool
    has_headroom: bool
    generation: int  # of the options that hold here
    leaves_within_s: float = -1.0  # I was told to Drain or LameDuck, and have this long; negative: I was not
    has_drained: bool = False


class InStep(ControlMessage, frozen=True):
    """Whether I have a link to every living sibling. Not sent for a link that is restored within 50 ms."""

    on: bool


class HasHeadroom(ControlMessage, frozen=True):
    """Whether I have descriptors for more clients. Sent while some are left, for connections already on their way."""

    on: bool


class Pong(ControlMessage, frozen=True):
    """I am alive; answers Ping(seq)."""

    seq: int


class Fatal(ControlMessage, frozen=True):
    """I cannot run, and a restart would fail in the same way, or not (`may_pass`): it is to be tried again soon."""

    reason: str
    may_pass: bool = False


class Reloaded(ControlMessage, frozen=True):
    """The options of a Reload are in force here."""

    generation: int  # of that Reload; a later one may be on its way


class Disconnected(ControlMessage, frozen=True):
    """The clients selected by Disconnect are gone."""

    clients: int  # how many there were


class Moved(ControlMessage, frozen=True):
    """What MoveAway asked for is done, as far as it can be."""

    clients: int  # that have moved
    stay: dict[str, int]  # why others could not move, and how many


class Parted(ControlMessage, frozen=True):
    """What PartLink asked for is done."""

    shard: int


class RuleMatch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Clients of one shard that match one placement rule."""

    rule: int
    clients: int
    staying: int  # of those: with TLS, which cannot move
    msgs_per_s: float  # that they publish and receive


class Matching(ControlMessage, frozen=True):
    """Which placement rules my clients match; sent while there are rules, when it has changed."""

    generation: int  # of the options whose rules these are
    rules: list[RuleMatch]  # those that some client matches


class Drained(ControlMessage, frozen=True):
    """Every client is gone; I exit now."""

    stays: bool = False  # as a relay, instead: Relays follows


class Relays(ControlMessage, frozen=True):
    """I have drained, and am no shard any more: I encrypt for clients in other shards, and for leaf nodes.

    I exit 0 when they have left.

    Sent after Drained in place of an exit, when the number has changed, and first to a router that has taken me over.
    """

    clients: int  # and leaf nodes
    ends_in_s: float  # after which they should be told to reconnect; negative: they have been


class SnapshotReply(ControlMessage, frozen=True):
    """One part of the answer to Snapshot(seq), in order; the last has no body."""

    seq: int
    body: bytes  # shards.boundary.rows: the page's part, in MessagePack
    is_last: bool = True


class SystemRequest(ControlMessage, frozen=True):
    """A request of a client to the broker; answered by SystemReply(seq), with or without a payload."""

    seq: int
    account: str  # the asker's
    subject: str
    body: bytes


class AccountChanged(ControlMessage, frozen=True):
    """A connection of this account was opened or closed, and somebody may subscribe to the number of connections."""

    account: str


class ServerEvent(ControlMessage, frozen=True):
    """An event about another server, of the gateway: have a shard publish it in the system account."""

    subject: str
    payload: bytes


ToShard = (
    Boot
    | Ping
    | LinkedShards
    | ListenAnew
    | PartLink
    | ReloadUsers
    | Reload
    | ReopenLog
    | Drain
    | RelaysEnd
    | EndRelay
    | MoveAway
    | Places
    | LameDuck
    | Stop
    | Disconnect
    | Snapshot
    | SystemReply
    | SystemEvent
    | ClusterNews
)
ToRouter = (
    Awake
    | Linked
    | Ready
    | Resumed
    | InStep
    | HasHeadroom
    | Pong
    | Fatal
    | Reloaded
    | Disconnected
    | Moved
    | Parted
    | Matching
    | Drained
    | Relays
    | SnapshotReply
    | SystemRequest
    | AccountChanged
    | ServerEvent
    | ClusterNews
)

_encoder = msgspec.msgpack.Encoder()


def users_in_parts(users: Sequence[User]) -> Iterator[ReloadUsers]:
    """What tells a shard of these users, before the Reload."""
    for at in range(0, len(users), USERS_AT_ONCE):
        yield from _in_parts(users[at : at + USERS_AT_ONCE])


def _in_parts(users: Sequence[User]) -> Iterator[ReloadUsers]:
    encoded = _encoder.encode(users)
    if len(encoded) > USERS_BYTES and len(users) > 1:
        half = len(users) // 2
        yield from _in_parts(users[:half])
        yield from _in_parts(users[half:])
    else:
        yield ReloadUsers(msgspec.Raw(encoded))


def reload_of(options: Options, generation: int) -> Reload:
    """The Reload that follows the parts with these options' users."""
    return Reload(msgspec.structs.replace(options, users=()), generation)


def decode_users(users: msgspec.Raw) -> list[User]:
    """The users of one ReloadUsers."""
    return msgspec.msgpack.decode(users, type=list[User])


def encode(message: ControlMessage) -> bytes:
    """The message as one frame. Raises ControlError when it is longer than MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ControlError(f"control message {type(message).__name__} has {len(body)} bytes, over {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decoder_of(expected: object) -> msgspec.msgpack.Decoder[ControlMessage]:
    """A decoder for one direction: ToShard or ToRouter. The first for each reads all annotations: some milliseconds."""
    return msgspec.msgpack.Decoder(expected)


class Framer:
    """Bytes in, messages out; no socket. Holds at most one incomplete frame.

    `expected` is the union of messages that the other end may send: ToShard or ToRouter. After an error every
    further feed raises the same error.
    """

    def __init__(self, expected: object) -> None:
        self._decoder = decoder_of(expected)
        self._buffer = bytearray()
        self._error: ControlError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[ControlMessage]:
        """The messages that these bytes complete. ControlError for a frame too long, undecodable or unexpected."""
        if self._error is not None:
            raise self._error
        messages: list[ControlMessage] = []
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
        """The stream has ended. ControlError when it ended inside a frame."""
        if self._error is None and self._buffer:
            raise self._broken(f"control channel ended inside a frame, after {len(self._buffer)} bytes of it")

    def _broken(self, text: str) -> ControlError:
        self._error = ControlError(text)
        self._buffer.clear()
        return self._error


class Channel:
    """One end of the control channel on a running event loop; owns the socket.

    `on_message` gets every message in order. `on_closed` is called exactly once: with None when the other end closed
    between two frames or close() was called here, else with the error. Neither is called from the constructor or
    from send(). send() never blocks: up to MAX_PENDING_BYTES are queued here until the socket takes them.
    """

    def __init__(
        self,
        sock: socket.socket,
        expected: object,
        on_message: Callable[[ControlMessage], None],
        on_closed: Callable[[ControlError | None], None],
    ) -> None:
        # Imported here because the router encodes Boot and starts its shards before it imports asyncio.
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
        self._received: deque[ControlMessage] = deque()  # and not delivered yet
        self._is_closed = False
        self._loop.add_reader(self._fd, self._on_event)

    @property
    def pending_bytes(self) -> int:
        """Bytes queued here that the socket has not taken yet."""
        return self._pending_bytes

    @property
    def is_closed(self) -> bool:
        """Whether the channel has ended; nothing can be sent then."""
        return self._is_closed

    def send(self, message: ControlMessage) -> None:
        """Queue one message. Does nothing after the end of the channel, which on_closed has reported."""
        if not self._is_closed:
            self.send_encoded(encode(message))

    def send_encoded(self, encoded: bytes) -> None:
        """As send(), for what `encode` has returned: one that many are told is encoded, and kept, once."""
        if self._is_closed:
            return
        frame = memoryview(encoded)
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
        """Close at once. Bytes still queued here are lost; the other end can read what the socket has taken."""
        self._finish(None)

    def close_silently(self) -> None:
        """Like close(), but without calling on_closed."""
        if not self._is_closed:
            self._shut()

    def answer_pings(self) -> None:
        """From within work that takes long: answer each Ping that has come at once. All else waits for the loop."""
        if self._is_closed:
            return
        try:
            data = self._sock.recv(READ_BYTES)
        except OSError:  # nothing has come, or the loop will see it
            return
        try:
            messages = self._framer.feed(data)
        except ControlError as error:
            self._loop.call_soon(self._finish, error)
            return
        for message in messages:
            if isinstance(message, Ping):
                self.send(Pong(message.seq))
            else:
                self._received.append(message)
        self._loop.call_soon(self._on_event)

    def read_to_end(self) -> None:
        """The other end is dead: deliver the last messages it sent, then call on_closed."""
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
                # The other end is gone. Its last messages and the end of the stream can still be read, and the
                # reader reports the end: so a Fatal is not lost because a later write failed.
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

    def _on_event(self) -> None:
        """Read, and again behind others until nothing comes: uvloop reports an end that died with bytes unread once."""
        if not self._is_closed and self._on_readable():
            self._loop.call_soon(self._on_event)

    def _on_readable(self) -> bool:
        """Read once. False when there was nothing to read or the channel has ended."""
        self._deliver()
        if self._is_closed:
            return False
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            # Also an end of the stream: a Unix socket reports this when its peer died with bytes unread.
            data = b""
        except OSError as error:
            self._finish(ControlError(f"cannot read from the control channel: {error}"))
            return False
        try:
            if data:
                self._received += self._framer.feed(data)
            else:
                self._framer.end()
        except ControlError as error:
            self._finish(error)
            return False
        self._deliver()
        if not data:
            self._finish(None)
        return bool(data) and not self._is_closed

    def _deliver(self) -> None:
        while self._received and not self._is_closed:
            try:
                self._on_message(self._received.popleft())
            except Exception:  # (which ends a shard, and not the router)
                self._loop.call_soon(self._on_event)
                raise

    def _finish_soon(self, error: ControlError) -> None:
        # The caller of send() does not expect on_closed during that call: report it on the loop's next turn.
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
