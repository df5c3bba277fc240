# cython: language_level=3, boundscheck=False, wraparound=False
"""A socket with layers between the wire and the peer's protocol: a PROXY header, TLS, WebSocket, or WebSocket over TLS.

TLS is an ssl.SSLObject between two MemoryBIOs, fed from a buffer that all sockets share; WebSocket is
`shards.sockets.frames`. Imported only where one of them is configured. Invariants: plaintext is encrypted only when the
kernel has taken all earlier ciphertext, so a connection holds at most WIRE_BYTES beyond its max_pending; an idle
connection holds no buffer of ours; no handshake begins in a round after handshakes have taken MOST_OPENING_US of it,
and the bytes of the others wait in the kernel.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EINTR, EPIPE, errno
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from ssl import MemoryBIO, SSLError, SSLWantReadError, SSLZeroReturnError

from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_PROTOCOL_VIOLATION, CLOSE_READ_ERROR, CLOSE_SERVER_SHUTDOWN,
    CLOSE_SLOW_CONSUMER_PENDING_BYTES, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE, CLOSE_TLS_HANDSHAKE_FAILURE,
    CLOSE_WRITE_ERROR, OutBuf, iovec, out_call, out_condemn, out_gather, out_pending, out_take)
from gnatswarm.broker.word cimport likely, unlikely
from gnatswarm.shards.sockets.reactor cimport Reactor, Socket, note_read
from gnatswarm.shards.sockets.source cimport monotonic_us

from msgspec import structs

from gnatswarm.broker.errors import SecureConnectionRequired
from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.shards.boundary.client_hello import HANDSHAKE_FAILURE, ExpensiveHello, HelloWatch
from gnatswarm.shards.sockets.proxy_header import TIMEOUT_S, ProxyHeader, ProxyHeaderError
from gnatswarm.shards.sockets.relay import DetachedTls

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN, EPOLLOUT

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_NOSIGNAL
    Py_ssize_t recv(int fd, void *to, size_t n, int flags)
    Py_ssize_t send(int fd, const void *data, size_t n, int flags)

cdef extern from "Python.h":
    enum:
        PyBUF_READ, PyBUF_WRITE

cdef enum:
    PEER_BYTES = 262144          # the shard's read buffer (READ_BYTES of shards.sockets.reactor)
    WIRE_BYTES = 65536           # one read, and what is encrypted ahead of the kernel: some four TLS records
    # A MemoryBIO never shrinks, so a connection that was busy and is idle now still holds as much as was fed at once.
    FEED_BYTES = 16384
    RECORD_BYTES = 16384         # of plaintext, at most
    RECORD_OVERHEAD = 512        # a record's header and tag, and handshake bytes still to be sent
    MOST_PARTS = 64
    RECORD_HEADER_BYTES = 5      # the last two are the size of what follows
    # Records without data, as new keys, which cost 10 µs and more for 27 bytes: others have their turn behind so many.
    RECORDS_AT_ONCE = 64
    HANDSHAKE_RECORD = 0x16      # the first byte of a ClientHello
    MOST_OPENING_US = 2000       # handshakes of one round; one costs 0.2 ms (ECDSA) to 1 ms (RSA)
    MOST_OPENING_BYTES = 262144  # before the protocol began
    # Of who has dialled us, in the handshake: certificate chains take some KB. OpenSSL looks at all that come, whoever
    # has signed them: 0.4 ms for each of 350 bytes.
    MOST_SHAKING_BYTES = 24576
    MOST_UNSENT = 262144         # unsent answers to control frames; above that nothing is read
    # What is compressed in a round, in some 10 ms; what else it sends is not compressed. Three messages of 1 MB to 100
    # clients took 3 s, in which nothing else was done.
    MOST_COMPRESSED_BYTES = 1048576

cdef uint64_t PROLOGUE_US = int(TIMEOUT_S * 1_000_000)

# SHARED BY ALL SOCKETS: the contents are used up before the next recv() or send().
cdef uint8_t WIRE_IN[65536]
cdef uint8_t WIRE_OUT[65536]

# So many bytes were compressed in the round that began then, for all sockets.
cdef Py_ssize_t compressed_bytes = 0
cdef uint64_t compressed_since_us = 0


cdef inline object readable(const void *data, Py_ssize_t size):
    return PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)


cdef object owned(object payload, Py_ssize_t at):
    """What is behind that place. Copied where it is in the read buffer, and once only: a peer that rests takes a large
    frame in thousands of pieces."""
    cdef object view = memoryview(payload)
    return bytes(view[at:]) if view.obj is None else view[at:]


cdef bytes framed(object frames, bytes data, uint64_t round_us):
    """A frame with these bytes, compressed if that was agreed on and this round has not compressed too much."""
    global compressed_bytes, compressed_since_us
    if not frames.compresses(len(data)):
        return frames.plain_frame(data)
    if compressed_since_us != round_us:
        compressed_since_us = round_us
        compressed_bytes = 0
    if compressed_bytes >= MOST_COMPRESSED_BYTES:
        return frames.plain_frame(data)
    compressed_bytes += len(data)
    return frames.frame(data)


cdef str tls_error_text(object error):
    """OpenSSL's error text, without its source file."""
    text = getattr(error, "verify_message", "") or (error.reason or "").replace("_", " ").lower()
    if not text and "internal error" in str(error):   # its word, in TLS 1.2, for what is too short to be decrypted
        return "bad record"
    return text or str(error)


cdef class LayeredSocket(Socket):
    """For Reactor.open(); `gate` says what must happen before the protocol begins.

    `frozen` (a FrozenSocket): the connection had another socket, and nothing happens before its protocol goes on.

    `owner` is told on_secured(the SSLObject), on_opening_failed(why, is_upgrade), on_wire_error(text), on_leaf_node()
    when a leaf node has upgraded, on_cookies(credentials) when a client has whose cookies have some, and with a PROXY
    header on_proxied(host, port) or on_proxy_refused(why), and on_greeting_due(whether it came) when INFO is to be
    queued, where that is sent only after the handshake. on_secured returns False if it has refused and closed the
    connection: then the protocol does not begin.
    """

    def __cinit__(self, gate, frozen=None):
        self.kept = None
        if frozen is not None:
            self.thaw(gate, frozen)
            return
        self.gate = gate
        self.is_opening = True
        if gate.reads_proxy_header:
            self.prologue = ProxyHeader()
        if gate.frames is not None:
            self.frames = gate.frames(None)
            self.stage = SHAKES if gate.context is not None else UPGRADES
        else:
            self.stage = SHAKES if gate.server_hostname else QUIET if gate.is_silent else WAITS

    # ---- between shards

    def freeze(self):
        """This socket as a record. RecordRefused, with the reason, where it has none now; with TLS it never has."""
        if self.tls is not None or self.stage == SHAKES:
            raise RecordRefused("it has TLS, whose keys stay in the process that made them")
        if self.is_opening:
            raise RecordRefused("its handshake is not done")
        return structs.replace(
            Socket.freeze(self),
            frames=self.frames.freeze() if self.frames is not None else None,
            kept=b"".join([bytes(data) for _, data in self.kept]) if self.kept else b"",
            unsent=self.unsent[self.unsent_at:] if self.unsent is not None else b"")

    def freeze_behind_tls(self):
        """What is between TLS and the peer, as a record, for a client whose TLS stays here. RecordRefused."""
        if self.tls is None or self.is_opening:
            raise RecordRefused("its handshake is not done")
        if self.has_ended or self.broken:
            raise RecordRefused("it has closed its connection")
        return structs.replace(
            Socket.freeze(self),
            frames=self.frames.freeze() if self.frames is not None else None,
            kept=b"".join([bytes(data) for is_wire, data in self.kept if not is_wire]) if self.kept else b"")

    def freeze_upgraded(self):
        """As freeze_behind_tls(), with TLS or without, of a leaf node whose upgrade is just done. RecordRefused."""
        if self.frames is None or not self.frames.is_open:
            raise RecordRefused("its upgrade is not done")
        return structs.replace(
            Socket.freeze(self),
            frames=self.frames.freeze(),
            unsent=self.unsent[self.unsent_at:] if self.unsent is not None and self.tls is None else b"")

    @property
    def is_hung_up(self) -> bool:
        """Also where a layer has said so: who ends TLS may wait for the answer before it closes."""
        return self.has_ended or self.broken or (self.frames is not None and self.frames.is_over) \
            or Socket.is_hung_up.__get__(self)

    @property
    def unread_bytes(self) -> int:
        """With what a layer has; of frames that are paused nobody knows how much."""
        kept = sum([len(data) for _, data in self.kept]) if self.kept else 0
        if self.tls is not None and self.goes_on_later() and not self.broken:
            kept += self.incoming.pending
        return kept + self.is_paused() + Socket.unread_bytes.__get__(self)

    @property
    def has_tls(self) -> bool:
        """Whether the wire is encrypted."""
        return self.tls is not None

    @property
    def has_frames(self) -> bool:
        """Whether its bytes come in WebSocket frames."""
        return self.frames is not None

    @property
    def is_masked(self) -> bool:
        """Whether the WebSocket frames that come are masked."""
        return self.frames is not None and self.frames.is_masked

    def allow_frames(self, size_t most_bytes):
        """From now on compressed WebSocket frames of the other end may have so many bytes."""
        if self.frames is not None:
            self.frames.allow(most_bytes)

    def detach_tls(self) -> DetachedTls:
        """Take the connection with its TLS out of the reactor, as detach(); freeze_behind_tls() has the rest."""
        cdef bytes read = b"".join([data for is_wire, data in self.kept if is_wire]) if self.kept else b""
        cdef bytes unsent = self.unsent[self.unsent_at:] if self.unsent is not None else b""
        cdef object left
        fd = Socket.detach(self)
        left = DetachedTls(fd, self.tls, self.incoming, self.outgoing, read, unsent + self.outgoing.read())
        self.drop()
        return left

    cdef int thaw(self, gate, frozen) except -1:
        self.stage = PLAIN
        if frozen.frames is not None:
            self.stage = OPEN
            self.frames = gate.frames(frozen.frames)
        if frozen.kept:
            self.kept = [(False, frozen.kept)]
        if frozen.unsent:
            self.unsent = frozen.unsent
        return 0

    # ---- bytes in

    cdef bint may_take(self) noexcept:
        return not (self.peer.holds or self.peer.is_closing or self.fd < 0 or self.is_lingering)

    cdef int read(self) except -1:
        cdef Reactor reactor = self.reactor
        cdef Py_ssize_t got
        self.fed = self.idle_records = 0
        if unlikely(self.kept is not None or self.is_paused()) and self.may_take():
            self.read_on()
        if self.stage == PLAIN and self.kept is None:
            return Socket.read(self)
        if self.broken or not self.may_take() or (
                self.unsent is not None and self.armed & EPOLLOUT   # (without: who hears out)
                and len(self.unsent) - self.unsent_at > MOST_UNSENT):
            self.arm(self.armed & ~<uint32_t>EPOLLIN)
            return 0
        if self.is_opening and reactor.round.opening_us > MOST_OPENING_US:
            return 0   # epoll reports it again in the next round
        got = recv(self.fd, WIRE_IN, min(<uint32_t>WIRE_BYTES, reactor.most_of(self.peer)), 0)
        if likely(got > 0):
            reactor.round.bytes_read += got
            if self.is_opening:
                self.opening_bytes += got
                if self.opening_bytes > MOST_OPENING_BYTES:
                    return self.fail("too much before the end of the handshake", None)
            elif got != reactor.round.most_bytes:   # (else there may be more)
                note_read(self, got)
            return self.take(WIRE_IN, got)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if self.prologue is not None and self.prologue.has_begun:   # (an empty connection is a health check)
            return self.refuse_prologue("EOF")
        if self.is_opening and self.stage != WAITS and self.stage != QUIET:
            return self.fail("EOF" if got == 0 else "the connection was reset", None)
        self.has_input_ended = got == 0
        self.peer.close(CLOSE_CLIENT_CLOSED if got == 0 else CLOSE_READ_ERROR)
        out_call(&self.peer.out)
        return 0

    cdef int take(self, const uint8_t *data, Py_ssize_t size) except -1:
        """Bytes from the wire."""
        cdef Py_ssize_t piece
        cdef int records
        if unlikely(self.prologue is not None):
            return self.take_prologue((<const char *>data)[:size])
        if self.stage == QUIET or self.stage == WAITS:
            if data[0] == HANDSHAKE_RECORD:
                self.begin_tls()
            elif self.gate.allows_plain:
                self.become_plain()
            else:
                return self.fail("first record does not look like a TLS handshake", SecureConnectionRequired())
        if self.stage == PLAIN:
            return self.feed(readable(data, size))
        if self.stage == SHAKES and self.tls is None:
            self.begin_tls()
        if self.tls is None:
            return self.unframe(readable(data, size))
        while size:
            piece = self.cut(data, min(size, <Py_ssize_t>FEED_BYTES), &records)
            if self.stage == SHAKES and not self.watch(data, piece):
                return 0
            self.incoming.write(readable(data, piece))
            data += piece
            size -= piece
            if self.stage == SHAKES:
                self.shake()
            if self.stage > SHAKES:
                self.records_read = 0
                self.decrypt()
            if self.broken or not self.may_take():
                break
            self.idle_records += max(0, records - self.records_read)
            if unlikely(self.idle_records >= RECORDS_AT_ONCE):
                self.idle_records = 0
                if self.give_way():
                    break
        if size and self.peer.holds and not self.broken:
            if self.kept is None:
                self.kept = []
            self.kept.append((True, (<const char *>data)[:size]))
        return 0

    cdef Py_ssize_t cut(self, const uint8_t *data, Py_ssize_t size, int *records) noexcept:
        """How much of it is fed at once; `records` says how many end in that."""
        cdef Py_ssize_t at = 0, step
        records[0] = 0
        while at < size and records[0] < RECORDS_AT_ONCE:
            if self.header_at < RECORD_HEADER_BYTES:
                if self.header_at >= RECORD_HEADER_BYTES - 2:
                    self.record_left = self.record_left << 8 | data[at]
                self.header_at += 1
                at += 1
            step = min(size - at, self.record_left) if self.header_at == RECORD_HEADER_BYTES else 0
            self.record_left -= step
            at += step
            if self.header_at == RECORD_HEADER_BYTES and self.record_left == 0:
                self.header_at = 0
                records[0] += 1
        return at

    cdef int read_on(self) except -1:
        self.fed = self.idle_records = 0
        self.take_kept()
        self.go_on()
        if self.tls is not None and self.stage > SHAKES and self.may_take():
            self.decrypt()
        return self.end_if_over()

    cdef int take_kept(self) except -1:
        cdef list kept
        cdef bytes wire
        if self.kept is None or not self.may_take():
            return 0
        kept, self.kept = self.kept, None
        for i, (is_wire, data) in enumerate(kept):
            if is_wire and self.may_take():
                self.go_on()
            if is_wire and self.may_take():
                self.decrypt()   # the bytes in the BIO came before these
            if is_wire and self.broken:
                continue
            if not self.may_take():
                self.kept = (self.kept or []) + kept[i:]
                return 0
            if is_wire:
                wire = data
                self.take(<const uint8_t *>PyBytes_AS_STRING(wire), PyBytes_GET_SIZE(wire))
            else:
                self.feed(data)
        return self.end_if_over()

    # ---- the PROXY header

    cdef int take_prologue(self, bytes data) except -1:
        cdef bytes rest
        try:
            rest = self.prologue.feed(data)
        except ProxyHeaderError as error:
            return self.refuse_prologue(str(error))
        if rest is None:
            return 0
        if self.prologue.address is not None:
            self.owner.on_proxied(*self.prologue.address)
        self.prologue = None
        if self.gate.context is None:
            self.become_plain()
        else:
            self.opened_us = self.reactor.box.now_us   # the handshake's time starts now
            if self.stage == QUIET:
                self.owner.on_greeting_due(True)
        if not rest:
            return 0
        return self.take(<const uint8_t *>PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))

    cdef int refuse_prologue(self, str why) except -1:
        self.prologue = None
        self.owner.on_proxy_refused(why)
        self.peer.close(CLOSE_PROTOCOL_VIOLATION)
        out_call(&self.peer.out)
        return 0

    # ---- TLS

    cdef int begin_tls(self) except -1:
        self.stage = SHAKES
        self.incoming = MemoryBIO()
        self.outgoing = MemoryBIO()
        if not self.gate.server_hostname:
            self.hello = HelloWatch()
        self.tls = self.gate.context.wrap_bio(
            self.incoming, self.outgoing, server_side=not self.gate.server_hostname,
            server_hostname=self.gate.server_hostname or None)
        return 0

    cdef bint watch(self, const uint8_t *data, Py_ssize_t size) except -1:
        """Whether TLS may have these bytes, of a handshake. 0: it has failed."""
        if self.hello is None:   # of who has dialled
            return 1
        self.shaking_bytes += size
        if self.shaking_bytes > MOST_SHAKING_BYTES:
            self.fail(f"more than {MOST_SHAKING_BYTES} bytes in the handshake", None)
            return 0
        try:
            self.hello.look((<const char *>data)[:size])
        except ExpensiveHello as error:
            self.outgoing.write(HANDSHAKE_FAILURE)
            self.queue_outgoing()
            self.fail(str(error), None)
            return 0
        return 1

    cdef int shake(self) except -1:
        cdef uint64_t started = monotonic_us()
        cdef str why = None
        try:
            self.tls.do_handshake()
        except SSLWantReadError:
            self.queue_outgoing()
            return 0
        except (SSLError, OSError) as error:
            why = tls_error_text(error) if isinstance(error, SSLError) else str(error)
        finally:
            self.reactor.round.opening_us += monotonic_us() - started
        self.queue_outgoing()   # the last handshake messages, or an alert
        if why is not None:
            return self.fail(why, None)
        if not self.owner.on_secured(self.tls):
            return 0   # refused: no byte of the peer's protocol is sent
        if self.frames is not None:
            self.stage = UPGRADES
            return self.ask_for_upgrade()
        return self.become_open()

    cdef int decrypt(self) except -1:
        """Decrypt all complete records and give their contents to the peer."""
        cdef iovec parts[2]
        cdef Py_ssize_t room, total, got
        cdef char *at
        cdef int n, i
        cdef bint is_over = False, is_dry = False
        cdef str why = ""
        cdef object tls = self.tls, incoming = self.incoming
        if self.broken:
            return self.end_if_over()
        if self.frames is not None:
            return self.decrypt_frames()
        while not is_dry and not is_over and self.may_take():
            if not tls.pending() and not incoming.pending:
                break
            n = self.peer.read_parts(self.reactor.shared, PEER_BYTES, parts)
            if n == 0:
                break
            total = 0
            try:
                for i in range(n):
                    room = parts[i].iov_len
                    at = <char *>parts[i].iov_base
                    while room:
                        got = tls.read(room, PyMemoryView_FromMemory(at, room, PyBUF_WRITE))
                        if got == 0:
                            is_over = True   # close_notify
                            break
                        self.records_read += 1
                        total += got
                        at += got
                        room -= got
                        if not incoming.pending and not tls.pending():
                            is_dry = True
                            break
                    if is_dry or is_over:
                        break
            except SSLWantReadError:
                is_dry = True
            except SSLZeroReturnError:   # close_notify, where we have sent ours
                is_over = True
            except SSLError as error:
                is_dry = self.broken = True
                why = tls_error_text(error)
            if total:
                if unlikely(self.reactor.is_tracing):
                    self.show_read(parts, n, total)
                self.peer.received(self.reactor.shared, PEER_BYTES, total)
                self.after_operations()
        if self.broken:
            return self.end_broken(why)
        if is_over:
            self.has_ended = True
        elif self.outgoing.pending:   # a response to a key update
            self.queue_outgoing()
        return self.end_if_over()

    cdef int end_broken(self, str why) except -1:
        """A record was none. The peer carries out what came before it, and takes nothing more: TLS encrypts no more."""
        cdef OutBuf *out = &self.peer.out
        self.queue_outgoing()   # an alert
        self.owner.on_wire_error(why)
        self.end_if_over()
        if not self.peer.is_closing and self.hears_out(EPIPE) and out.is_deaf:
            out.close_reason = CLOSE_READ_ERROR
        return 0

    def decrypt_frames(self):
        """Like decrypt(), with WebSocket between TLS and the peer."""
        cdef object data = None
        while self.may_take() and (self.tls.pending() or self.incoming.pending):
            try:
                data = self.tls.read(RECORD_BYTES)
            except SSLWantReadError:
                break
            except SSLZeroReturnError:   # see decrypt()
                data = b""
            except SSLError as error:
                self.broken = True
                return self.end_broken(tls_error_text(error))
            if not data:
                self.has_ended = True
                return self.end_if_over()
            self.records_read += 1
            self.unframe(data)
        if self.outgoing is not None and self.outgoing.pending:
            self.queue_outgoing()
        return 0

    # ---- WebSocket

    cdef int unframe(self, object data) except -1:
        """Take bytes of the WebSocket layer: the upgrade, or frames."""
        cdef object payload
        cdef bint was_open = self.frames.is_open
        cdef uint64_t started
        if not was_open:
            started = monotonic_us()
            payloads = self.frames.receive(data)
            self.reactor.round.opening_us += monotonic_us() - started
        else:
            payloads = self.frames.receive(data)
        self.answer()
        if not was_open:
            if self.frames.is_over:
                return self.fail(self.frames.error, None)
            if not self.frames.is_open:
                return 0
            if self.frames.is_leaf:
                self.owner.on_leaf_node()   # its client is held, so nothing is read or sent here any more
                return 0
            if self.frames.credentials is not None:
                self.owner.on_cookies(self.frames.credentials)
                self.frames.credentials = None
            self.become_open()
        while True:
            for i, payload in enumerate(payloads):
                if not self.may_take():
                    if self.peer.holds:
                        self.kept = (self.kept or []) + [(False, rest) for rest in payloads[i:]]
                    break
                self.feed(payload)
            if not self.is_paused() or not self.may_take() or self.give_way():
                break
            payloads = self.frames.receive(b"")   # nobody would read it on
            self.answer()
        return self.end_if_over()

    cdef int answer(self) except -1:
        """Send the response to an upgrade, or pongs. Behind a close frame nothing is sent (RFC 6455, section 5.5.1): it
        waits for what the operations before the other end's have caused, until part()."""
        cdef object answer = None if self.frames.is_over and self.frames.is_open else self.frames.take_answer()
        if answer and not self.has_said_end:
            self.queue(answer)
        return 0

    cdef bint is_paused(self) except -1:
        return self.frames is not None and self.frames.is_paused

    cdef int go_on(self) except -1:
        """Take the next turn of frames that have come."""
        if self.is_paused() and self.may_take():
            self.unframe(b"")
        return 0

    cdef int give_way(self) except -1:
        """Hold the peer until others had their turn. 0: nobody would read it on."""
        if not self.peer.rest():
            return 0
        self.after_operations()
        return 1

    cdef int end_if_over(self) except -1:
        """Close a connection whose other end has ended it, or has sent wrong frames or records, when the peer has
        carried out what came before."""
        cdef bint is_over = self.frames is not None and self.frames.is_over
        if not (is_over or self.has_ended or self.broken):
            return 0
        if self.peer.is_closing or self.peer.holds or self.kept or self.is_paused():
            return 0
        if is_over:
            if self.frames.error:
                self.owner.on_wire_error(self.frames.error)
            self.flush()
        self.has_input_ended = is_over or self.has_ended
        self.peer.close(self.frames.close_reason if is_over else
                        CLOSE_READ_ERROR if self.broken else CLOSE_CLIENT_CLOSED)
        out_call(&self.peer.out)
        return 0

    cdef int feed(self, object payload) except -1:
        """Copy bytes of the peer's protocol to where the peer wants them."""
        cdef const uint8_t[::1] data = payload
        cdef iovec parts[2]
        cdef Py_ssize_t at = 0, size = data.shape[0], total, piece
        cdef int n, i
        while at < size:
            if unlikely(self.fed >= PEER_BYTES) and self.frames is not None and self.may_take():
                self.give_way()
            n = self.peer.read_parts(self.reactor.shared, PEER_BYTES, parts)
            if n == 0:
                if self.peer.holds:
                    self.kept = (self.kept or []) + [(False, owned(payload, at))]
                return 0
            total = 0
            for i in range(n):
                piece = min(size - at, <Py_ssize_t>parts[i].iov_len)
                if piece == 0:
                    break
                memcpy(parts[i].iov_base, &data[at], piece)
                at += piece
                total += piece
            self.fed += total
            if unlikely(self.reactor.is_tracing):
                self.show_read(parts, n, total)
            self.peer.received(self.reactor.shared, PEER_BYTES, total)
            self.after_operations()
        return 0

    # ---- stages

    cdef int become_open(self) except -1:
        self.stage = OPEN
        self.is_opening = False
        self.gate = self.hello = None
        self.opened_us = self.reactor.box.now_us   # the log-in timeout starts now
        self.flush()
        return 0

    cdef int ask_for_upgrade(self) except -1:
        """Of who has dialled; who was dialled has nothing to say yet."""
        cdef bytes request = self.frames.take_answer()
        if request:
            self.queue(request)
        return 0

    cdef int become_plain(self) except -1:
        self.stage = PLAIN
        self.is_opening = False
        self.gate = None
        self.opened_us = self.reactor.box.now_us
        self.flush()
        return 0

    def connect(self):
        """We have dialled: begin the handshake, or ask for the upgrade."""
        if self.stage == UPGRADES:
            self.ask_for_upgrade()
        else:
            self.begin_tls()
            self.shake()

    def speak_first(self):
        """The client has not begun a handshake: send INFO in plain. An error of ours in that costs this connection."""
        if self.stage == QUIET and self.fd >= 0 and not self.is_lingering:
            try:
                if self.prologue is not None:
                    self.owner.on_greeting_due(False)
            except Exception:
                self.blame()
            self.stage = WAITS
            self.flush()

    cdef int check_opening(self) except -1:
        if self.prologue is not None:
            if self.reactor.box.now_us - self.opened_us <= PROLOGUE_US:
                return 0
            return self.refuse_prologue("timeout")
        if self.reactor.box.now_us - self.opened_us <= <uint64_t>self.gate.timeout_us:
            return 0
        if self.stage == WAITS or self.stage == QUIET:
            if self.gate.allows_plain:
                return self.become_plain()
            return self.fail("timeout", SecureConnectionRequired())
        return self.fail("timeout", None)

    cdef int fail(self, str why, object error) except -1:
        """The handshake or upgrade has failed. `error` is sent in plain, if nothing was encrypted yet."""
        self.owner.on_opening_failed(why, self.stage == UPGRADES)
        if self.stage == WAITS:
            if error is not None:
                (<object>self.peer).send(error.wire)
            Socket.flush(self)
        self.peer.close(CLOSE_PROTOCOL_VIOLATION if self.stage == UPGRADES else CLOSE_TLS_HANDSHAKE_FAILURE)
        out_call(&self.peer.out)
        return 0

    # ---- bytes out

    cdef void flush(self) noexcept:
        cdef OutBuf *out = &self.peer.out
        if self.stage == PLAIN or (self.stage == WAITS and self.tls is None):
            Socket.flush(self)
            return
        if self.fd < 0 or out.is_blocked or self.is_lingering:
            return
        if self.broken:
            self.send_unsent()
            return
        try:
            while self.send_unsent() and self.stage == OPEN and out.head != NULL and self.encode():
                pass
        except Exception as error:   # noexcept: the caller could not handle it
            self.owner.on_wire_error(str(error))
            out_condemn(out, CLOSE_WRITE_ERROR)

    cdef int encode(self) except -1:
        """Encode and send one write of the peer's output; what the kernel does not take is `unsent`. 0: give up."""
        cdef iovec parts[MOST_PARTS]
        cdef OutBuf *out = &self.peer.out
        cdef int n = out_gather(out, parts, MOST_PARTS), i
        cdef Py_ssize_t size = 0, taken = 0, at, piece, took
        cdef bytes frame
        if n == 0:
            out_take(out, 0)
            return 1
        if self.frames is not None:
            for i in range(n):
                piece = min(<Py_ssize_t>parts[i].iov_len, WIRE_BYTES - taken)
                memcpy(&WIRE_OUT[taken], parts[i].iov_base, piece)
                taken += piece
                if taken == WIRE_BYTES:
                    break
            frame = framed(self.frames, PyBytes_FromStringAndSize(<char *>WIRE_OUT, taken), self.reactor.box.now_us)
            if unlikely(self.reactor.is_tracing):
                self.show_sent(parts, n, taken)
            out_take(out, taken)
            self.queue(frame)
            return 1
        for i in range(n):
            at = 0
            while at < <Py_ssize_t>parts[i].iov_len and size + RECORD_BYTES + RECORD_OVERHEAD <= WIRE_BYTES:
                piece = min(<Py_ssize_t>parts[i].iov_len - at, <Py_ssize_t>RECORD_BYTES)
                size = self.encrypt(<const uint8_t *>parts[i].iov_base + at, piece, size)
                at += piece
                taken += piece
            if size + RECORD_BYTES + RECORD_OVERHEAD > WIRE_BYTES:
                break
        if unlikely(self.reactor.is_tracing):
            self.show_sent(parts, n, taken)
        took = send(self.fd, WIRE_OUT, size, MSG_NOSIGNAL)
        if took < 0:
            if errno != EAGAIN and errno != EINTR:
                self.stop_sending(errno)
                return 0
            took = 0
        self.habit.was_sent = True
        if took:
            out.taken_us = self.reactor.box.now_us
        if took < size:
            self.unsent = PyBytes_FromStringAndSize(<char *>WIRE_OUT + took, size - took)
            self.unsent_at = 0
        out_take(out, taken)
        return 1

    cdef Py_ssize_t encrypt(self, const uint8_t *data, Py_ssize_t size, Py_ssize_t at) except -1:
        """Encrypt `data` as one record into WIRE_OUT[at:]; returns where the next record begins."""
        cdef bytes wire
        cdef Py_ssize_t n
        self.tls.write(readable(data, size))
        wire = self.outgoing.read()
        n = PyBytes_GET_SIZE(wire)
        if at + n > WIRE_BYTES:
            raise ValueError("a record is larger than TLS allows")
        memcpy(&WIRE_OUT[at], PyBytes_AS_STRING(wire), n)
        return at + n

    cdef int queue_outgoing(self) except -1:
        """Send the TLS layer's own messages."""
        cdef bytes wire = self.outgoing.read()
        if wire:
            self.unsent = wire if self.unsent is None else self.unsent[self.unsent_at:] + wire
            self.unsent_at = 0
            self.send_unsent()
        return 0

    cdef int queue(self, bytes data) except -1:
        """Send a frame, or the response to an upgrade."""
        cdef Py_ssize_t at
        cdef list records
        if self.tls is not None:
            records = []
            for at in range(0, PyBytes_GET_SIZE(data), RECORD_BYTES):   # one by one: see FEED_BYTES
                self.tls.write(data[at:at + RECORD_BYTES])
                records.append(self.outgoing.read())
            data = b"".join(records)
        self.unsent = data if self.unsent is None else self.unsent[self.unsent_at:] + data
        self.unsent_at = 0
        self.send_unsent()
        return 0

    cdef bint send_unsent(self) noexcept:
        """True: the kernel has taken everything."""
        cdef OutBuf *out = &self.peer.out
        cdef Py_ssize_t took, size
        if self.unsent is None:
            return True
        if out.is_blocked or self.fd < 0:
            return False
        while True:
            size = PyBytes_GET_SIZE(self.unsent) - self.unsent_at
            took = send(self.fd, PyBytes_AS_STRING(self.unsent) + self.unsent_at, size, MSG_NOSIGNAL)
            if took < 0:
                if errno == EINTR:
                    continue
                if errno != EAGAIN:
                    self.stop_sending(errno)
                    return False
                took = 0
            self.habit.was_sent = True
            if took:
                out.taken_us = self.reactor.box.now_us
            if took == size:
                self.unsent = None
                self.unsent_at = 0
                if self.may_take():   # reading may have stopped because of MOST_UNSENT
                    self.arm(self.armed | <uint32_t>EPOLLIN)
                return True
            self.unsent_at += took
            if took == 0:
                out.taken_us = self.reactor.box.now_us
            self.block()
            return False

    cdef void stop_sending(self, int error) noexcept:
        self.unsent = None
        if not self.hears_out(error):
            out_condemn(&self.peer.out, CLOSE_WRITE_ERROR)
        elif self.may_take():   # (reading may have stopped because of MOST_UNSENT; nobody attends to another server)
            self.arm(self.armed | <uint32_t>EPOLLIN)

    # ---- the end

    def end_sending(self) -> bool:
        """As Socket's, in the words of the layers: a close frame, close_notify. The socket itself says nothing: a relay
        that has the TLS of this connection takes that for the end of both directions."""
        if self.stage == PLAIN:
            return Socket.end_sending(self)
        if self.fd < 0:
            return True
        if out_pending(&self.peer.out) or self.unsent is not None:
            return False
        if self.tls is not None and (self.tls.pending() or self.incoming.pending):
            return False   # (OpenSSL drops data that it finds when it looks for the other end's close_notify)
        self.say_end(CLOSE_SERVER_SHUTDOWN)
        return True

    cdef int say_end(self, int reason) except -1:
        """A close frame, once, and close_notify."""
        if self.frames is not None and not self.has_said_end:
            last = self.frames.farewell(reason)
            if last:
                self.queue(last)
        if self.tls is not None:
            try:
                self.tls.unwrap()
            except SSLError:
                pass   # the other end has not sent its close_notify, and need not
            self.queue_outgoing()
        self.has_said_end = True
        return 0

    cdef bint has_unsent(self) noexcept:
        return self.unsent is not None or Socket.has_unsent(self)

    cdef int close_if_empty(self) except -1:
        if not self.has_said_end and not (self.peer.out.is_blocked and self.has_unsent()):
            self.say_last(self.peer.out.close_reason)   # (there may be no room for that, either)
        return Socket.close_if_empty(self)

    cdef void part(self, int reason) noexcept:
        self.say_last(reason)
        self.drop()

    cdef void say_last(self, int reason) noexcept:
        """Send close frame and close_notify, if the socket still takes them."""
        try:
            if reason not in (CLOSE_WRITE_ERROR, CLOSE_READ_ERROR, CLOSE_SLOW_CONSUMER_PENDING_BYTES,
                              CLOSE_SLOW_CONSUMER_WRITE_DEADLINE) and self.stage == OPEN and self.unsent is None:
                self.say_end(reason)
        except Exception as error:
            self.owner.on_wire_error(str(error))

    cdef void drop(self) noexcept:
        self.is_opening = False
        self.tls = self.incoming = self.outgoing = self.frames = self.unsent = self.kept = self.gate = None
        self.hello = None
        self.prologue = None
