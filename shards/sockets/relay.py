"""The TLS of connections that others serve: decrypts and encrypts for them, at last as a process of its own.

The keys of a TLS connection live in the process that shook hands. So its client moves without them: the new shard gets
one end of a socket pair as the client's connection, and this carries the bytes between the other end and the client.
A leaf node that came by WebSocket is such a client, and the gateway its shard, from its first moment on.
It knows no operation of the protocol, and no subscription. Invariants: plaintext is read from a shard only when the
client's kernel has taken everything before, and ciphertext from a client only when the shard's end has, so each side
feels how slow the other is, and a connection holds at most MOST_UNSENT_BYTES; the end of either side reaches the other
behind all bytes; also where this process ends a client, which has closed perhaps, but for what is beyond
MOST_KEPT_BYTES. Called by the worker, and by `shards.clients.clients` when a client or a leaf node goes.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
from ssl import SSLError, SSLWantReadError
from typing import TYPE_CHECKING, NamedTuple

from gnatswarm.broker.frozen import RecordRefused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from ssl import MemoryBIO, SSLObject

logger = logging.getLogger("gnatswarm.relay")

# A MemoryBIO never shrinks: an idle connection holds as much as was fed to it at once.
FEED_BYTES = 16384
RECORD_BYTES = 16384  # of plaintext, at most
# Answers to a client's key updates, which it does not read; above that nothing more is read from it.
MOST_UNSENT_BYTES = 262144
# A client whose shard has closed it has this long to take its last bytes, as in the reactor.
LINGER_S = 1.0
STEP_S = 0.05
# Others have their turn after so many reads of one connection.
READS_AT_ONCE = 4
# Of a client that is ended and has not closed, so much of what it has sent is kept for its shard at most, …
MOST_KEPT_BYTES = 1024 * 1024
# … and of all together.
MOST_KEPT_OF_ALL = 64 * 1024 * 1024
# Where nothing has come for so long, nothing is on its way: a kernel that had no room for more looks again by then.
DRY_S = 0.25
KEEP_ON_S = 2.0


class DetachedTls(NamedTuple):
    """A TLS connection without its client: what `LayeredSocket.detach_tls` leaves."""

    fd: int
    tls: SSLObject
    incoming: MemoryBIO
    outgoing: MemoryBIO
    read: bytes  # ciphertext that was read, and is not in `incoming` yet
    unsent: bytes  # ciphertext that the kernel has not taken


class Relay:
    """All of one process. `key`: the boot id of this process, by which shards know whose clients they have.

    `on_changed` is called when a client has come or gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, key: str, on_changed: Callable[[], None]) -> None:
        self._loop = loop
        self.key = key
        self._on_changed = on_changed
        self._streams: dict[int, _Stream] = {}  # by descriptor
        self._to_end: list[_Stream] | None = None
        self._kept = _Kept()

    @property
    def connections(self) -> int:
        """How many clients and leaf nodes it carries."""
        return len(self._streams)

    @property
    def carried(self) -> str:
        """Who they are, for the log."""
        leaf_nodes = sum(one.is_leaf_node for one in self._streams.values())
        clients = len(self._streams) - leaf_nodes
        kinds = [f"{clients} clients that have moved"] if clients else []
        return " and ".join(kinds + [f"{leaf_nodes} leaf nodes"] * bool(leaf_nodes))

    def make_pair(self) -> tuple[socket.socket, socket.socket]:
        """(the shard's end, ours) for one more client. RecordRefused: there are no descriptors left."""
        try:
            shards, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise RecordRefused(f"no relay for its TLS: {error.strerror}") from None
        shards.setblocking(False)
        ours.setblocking(False)
        return shards, ours

    def take(self, label: str, left: DetachedTls, ours: socket.socket, *, is_leaf_node: bool = False) -> None:
        """Carry the bytes of this connection from now on; `label` is its other end in log lines."""
        client = socket.socket(fileno=left.fd)
        client.setblocking(False)
        stream = self._streams[left.fd] = _Stream(
            self._loop, label, left, client, ours, self._on_ended, self._kept, is_leaf_node=is_leaf_node
        )
        stream.attend(stream.go_on)
        self._on_changed()

    def dismiss(self, within_s: float) -> None:
        """End all connections one by one in the second half of this time; their clients have been told."""
        if self._to_end is None:
            self._to_end = list(self._streams.values())
            began_s = self._loop.time()
            self._loop.call_later(within_s / 2, self._end_some, began_s + within_s / 2, within_s / 2, 0)

    def _end_some(self, since_s: float, spread_s: float, ended: int) -> None:
        assert self._to_end is not None
        share = 1.0 if spread_s <= 0 else min(1.0, (self._loop.time() - since_s) / spread_s)
        until = int(share * len(self._to_end))
        for stream in self._to_end[ended:until]:
            stream.attend(stream.end_input)
        if share < 1.0:
            self._loop.call_later(STEP_S, self._end_some, since_s, spread_s, until)

    def _on_ended(self, fd: int) -> None:
        del self._streams[fd]
        self._on_changed()

    def close(self) -> None:
        """Close everything at once."""
        for stream in list(self._streams.values()):
            stream.close()


class _Kept:
    """What is kept of clients that are ended, of all connections of a relay."""

    bytes = 0


class _Stream:
    """One connection."""

    __slots__ = (
        "_bytes_read",
        "_client",
        "_client_events",
        "_fd",
        "_has_told_client",
        "_has_told_shard",
        "_incoming",
        "_is_client_gone",
        "_is_ending",
        "_is_input_over",
        "_is_output_over",
        "_kept",
        "_label",
        "_loop",
        "_on_ended",
        "_outgoing",
        "_own_kept_bytes",
        "_shard",
        "_shard_events",
        "_tls",
        "_to_client",
        "_to_shard",
        "is_leaf_node",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        label: str,
        left: DetachedTls,
        client: socket.socket,
        shard: socket.socket,
        on_ended: Callable[[int], None],
        kept: _Kept,
        *,
        is_leaf_node: bool = False,
    ) -> None:
        self.is_leaf_node = is_leaf_node
        self._loop = loop
        self._kept = kept
        self._label = label  # the client in log lines
        self._fd = left.fd
        self._client = client
        self._shard = shard
        self._tls, self._incoming, self._outgoing = left.tls, left.incoming, left.outgoing
        self._on_ended = on_ended
        self._to_client = bytearray(left.unsent)
        self._to_shard = bytearray()
        self._client_events = self._shard_events = (False, False)  # whether it is read, and written
        self._is_input_over = False  # nothing more comes from the client
        self._is_ending = False  # it is ended: what has come is read, though the shard has not taken what came before
        self._bytes_read = 0  # since then, …
        self._own_kept_bytes = 0  # … and of these in `kept`
        self._is_output_over = False  # nothing more comes from the shard: it has closed its end
        self._is_client_gone = False  # nothing more can be sent to the client
        self._has_told_client = self._has_told_shard = False  # of the end of the other side
        if left.read:
            self._incoming.write(left.read)

    def attend(self, work: Callable[..., None], *given: object) -> None:
        """Do this for it: every callback of the loop comes here. An error of ours costs this connection alone."""
        try:
            work(*given)
        except Exception:
            logger.exception("%s - its connection is closed because of an error of ours", self._label)
            self.close()

    def go_on(self) -> None:
        """Begin with what was read before."""
        self._decrypt()
        self._settle()

    def end_input(self) -> None:
        """Read the client no more than what it has sent by now: its shard closes it behind that, and we follow.

        One that has closed is carried on as before, to its end.
        """
        if not self._is_input_over and not self._is_ending and not self._has_hung_up:
            self._is_ending = True
            self._look_whether_dry(-1, self._loop.time() + KEEP_ON_S)
        self._settle()

    @property
    def _has_hung_up(self) -> bool:
        """Whether the client has closed, though not all that it sent may have been read."""
        look = select.poll()
        look.register(self._client, select.POLLRDHUP)
        return bool(look.poll(0))

    def _look_whether_dry(self, read_before: int, until_s: float) -> None:
        """End the input if nothing has come since the last look, or for long enough."""
        if not self._is_ending or self._is_input_over or self._client.fileno() < 0:
            return
        if self._bytes_read == read_before or self._loop.time() >= until_s:
            self._cut()
            self._settle()
        else:
            self._loop.call_later(DRY_S, self.attend, self._look_whether_dry, self._bytes_read, until_s)

    def _keep(self, size: int) -> None:
        """So much more has come of a client that is ended."""
        self._bytes_read += size
        self._own_kept_bytes += size
        self._kept.bytes += size
        if self._bytes_read >= MOST_KEPT_BYTES or self._kept.bytes >= MOST_KEPT_OF_ALL:
            self._cut()

    def _keep_nothing(self) -> None:
        self._kept.bytes -= self._own_kept_bytes
        self._own_kept_bytes = 0

    def _cut(self) -> None:
        """Read no more of it, unless it has closed by now: then it ends by itself."""
        self._is_ending = False
        self._is_input_over = self._is_input_over or not self._has_hung_up

    def close(self) -> None:
        """Close both ends at once."""
        if self._client.fileno() < 0:
            return
        self._watch(False, False, False, False)
        self._keep_nothing()
        self._client.close()
        self._shard.close()
        self._on_ended(self._fd)

    # ---- from the client

    def _on_client_readable(self) -> None:
        """Read until nothing comes: uvloop reports a connection that was reset once, whatever is left to be read."""
        for _ in range(READS_AT_ONCE):
            if not self._client_events[0] or not self._read_client():
                return
        self._loop.call_soon(self.attend, self._on_client_readable)

    def _read_client(self) -> bool:
        """Read once; False: nothing has come, or it has ended."""
        try:
            data = self._client.recv(FEED_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._lose_client()
            data = b""
        if self._is_output_over:  # it still talks, or has closed as well
            if not data:
                self.close()
            return bool(data)
        if data:
            self._incoming.write(data)
            self._decrypt()
            if self._is_ending:
                self._keep(len(data))
        else:
            self._is_input_over = True
        self._settle()
        return bool(data)

    def _decrypt(self) -> None:
        while not self._is_input_over:
            try:
                data = self._tls.read(RECORD_BYTES)
            except SSLWantReadError:
                break
            except SSLError as error:
                logger.error("%s - read error: %s", self._label, error.reason or error)
                data = b""
            if data:
                self._to_shard += data
            else:  # close_notify
                self._is_input_over = True
        self._to_client += self._outgoing.read()  # an alert, or the response to a key update

    # ---- from the shard

    def _on_shard_readable(self) -> None:
        """As `_on_client_readable`: a shard that was killed has reset its end where it had not read everything."""
        for _ in range(READS_AT_ONCE):
            if not self._shard_events[0] or not self._read_shard():
                return
        self._loop.call_soon(self.attend, self._on_shard_readable)

    def _read_shard(self) -> bool:
        """Read once; False: nothing has come, or it has ended."""
        try:
            data = self._shard.recv(RECORD_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if data:
            self._encrypt(data)
        else:
            self._end_output()
        self._settle()
        return bool(data)

    def _encrypt(self, data: bytes) -> None:
        if self._is_client_gone:
            return
        try:
            self._tls.write(data)
        except SSLError as error:
            logger.error("%s - write error: %s", self._label, error.reason or error)
            self._is_input_over = True
            self._lose_client()
        self._to_client += self._outgoing.read()

    def _end_output(self) -> None:
        """The shard has closed the client: so do we, behind its last bytes."""
        self._is_output_over = self._is_input_over = True
        self._to_shard.clear()
        with contextlib.suppress(SSLError):  # the client has not sent its close_notify, and need not
            self._tls.unwrap()
        self._to_client += self._outgoing.read()
        self._loop.call_later(LINGER_S, self.close)

    # ---- both

    def _lose_client(self) -> None:
        """Nothing can be sent to it. What it had sent before is still read."""
        self._is_client_gone = True
        self._to_client.clear()

    def _settle(self) -> None:
        """Send what can be sent, say that an end has come, and watch for what follows."""
        if self._client.fileno() < 0:
            return
        if self._to_client and not self._is_client_gone and not self._send(self._client, self._to_client):
            self._lose_client()
        if self._is_client_gone:
            self._to_client.clear()
        if self._to_shard and not self._is_output_over and not self._send(self._shard, self._to_shard):
            self._to_shard.clear()  # it has closed, which its end will say
        if not self._to_shard:
            self._keep_nothing()
        if self._is_output_over:
            if self._is_client_gone:
                self.close()
                return
            if not self._to_client and not self._has_told_client:
                self._has_told_client = True
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_WR)
        elif self._is_input_over and not self._to_shard and not self._has_told_shard:
            self._has_told_shard = True
            with contextlib.suppress(OSError):
                self._shard.shutdown(socket.SHUT_WR)
        may_read = not self._is_input_over and (self._is_ending or not self._to_shard)
        reads_client = may_read and len(self._to_client) <= MOST_UNSENT_BYTES
        lingers = self._is_output_over and not self._to_client
        self._watch(
            reads_client or lingers,
            bool(self._to_client),
            not self._is_output_over and not self._to_client,
            bool(self._to_shard) and not self._is_output_over,
        )

    def _send(self, sock: socket.socket, data: bytearray) -> bool:
        """Send what the kernel takes, and remove that from `data`; False: the other end is gone."""
        try:
            while data:
                del data[: sock.send(data, socket.MSG_NOSIGNAL)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return False
        return True

    def _watch(self, reads_client: bool, writes_client: bool, reads_shard: bool, writes_shard: bool) -> None:
        self._client_events = self._watch_one(
            self._client, self._client_events, (reads_client, writes_client), self._on_client_readable
        )
        self._shard_events = self._watch_one(
            self._shard, self._shard_events, (reads_shard, writes_shard), self._on_shard_readable
        )

    def _watch_one(
        self,
        sock: socket.socket,
        before: tuple[bool, bool],
        wanted: tuple[bool, bool],
        on_readable: Callable[[], None],
    ) -> tuple[bool, bool]:
        if wanted[0] != before[0]:
            if wanted[0]:
                self._loop.add_reader(sock.fileno(), self.attend, on_readable)
            else:
                self._loop.remove_reader(sock.fileno())
        if wanted[1] != before[1]:
            if wanted[1]:
                self._loop.add_writer(sock.fileno(), self.attend, self._settle)
            else:
                self._loop.remove_writer(sock.fileno())
        return wanted
