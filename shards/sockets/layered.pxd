# A socket with layers between the wire and the peer's protocol: TLS, WebSocket, or WebSocket over TLS.
#
#   kernel ── recv ──→ WIRE_IN ── TLS ──→ [ frames ] ──→ Peer          input waits in `kept` while the peer is held
#   OutBuf ──→ [ frames ] ── TLS ──→ WIRE_OUT ── send ──→ kernel       output that the kernel does not take: `unsent`
#
#              the first byte is no handshake, and plain clients are allowed
#   QUIET ─→ WAITS ────────────────────────────────────────────────────────────→ PLAIN
#      └───────┴──→ SHAKES ──→ UPGRADES (WebSocket) ──→ OPEN
# With a PROXY header (Gate.reads_proxy_header) the connection is QUIET or WAITS until the header is over.
# QUIET holds INFO back (handshake_first); WAITS has sent it in plain. Only PLAIN and OPEN speak the peer's protocol.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.outbuf cimport iovec
from gnatswarm.shards.sockets.reactor cimport Socket

cdef enum Stage:
    QUIET = 0
    WAITS = 1
    SHAKES = 2
    UPGRADES = 3
    PLAIN = 4
    OPEN = 5

cdef class LayeredSocket(Socket):
    cdef object prologue       # shards.sockets.proxy_header.ProxyHeader; None: none is expected, or it is over
    cdef object gate           # shards.sockets.gate.Gate; None once it is passed
    cdef object hello          # shards.sockets.client_hello.HelloWatch; None: no handshake that the other end begins
    cdef object tls            # ssl.SSLObject; None: the wire is not encrypted, or not yet
    cdef object incoming       # ssl.MemoryBIO, like the next
    cdef object outgoing
    cdef object frames         # shards.sockets.frames.Frames; None: no WebSocket
    cdef object unsent         # bytes
    cdef Py_ssize_t unsent_at
    # Input not yet given to the peer: (is it as on the wire, bytes). What `frames` has, if it is paused, comes between.
    cdef list kept
    cdef bint has_said_end     # we have said so: nothing is sent behind it
    cdef bint has_ended        # the other end has said so (close_notify), behind all that it sent
    cdef bint broken           # a record was none: it is closed once what came before is carried out
    cdef Stage stage
    cdef size_t opening_bytes  # read before the protocol began
    cdef size_t shaking_bytes  # of a TLS handshake
    cdef size_t fed            # bytes of frames that the peer was given in this turn
    # Where in a TLS record the wire is: bytes of its header, and what is left of it (of the size alone, while it comes)
    cdef int header_at
    cdef Py_ssize_t record_left
    cdef int records_read      # that had data, since they were counted last
    cdef int idle_records      # that had none, in this turn

    cdef int thaw(self, gate, frozen) except -1
    cdef int take(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef Py_ssize_t cut(self, const uint8_t *data, Py_ssize_t size, int *records) noexcept
    cdef int take_kept(self) except -1
    cdef int take_prologue(self, bytes data) except -1
    cdef int refuse_prologue(self, str why) except -1
    cdef int begin_tls(self) except -1
    cdef bint watch(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef int shake(self) except -1
    cdef int decrypt(self) except -1
    cdef int end_broken(self, str why) except -1
    cdef int unframe(self, object data) except -1
    cdef int answer(self) except -1
    cdef bint is_paused(self) except -1
    cdef int go_on(self) except -1
    cdef int give_way(self) except -1
    cdef int end_if_over(self) except -1
    cdef int say_end(self, int reason) except -1
    cdef void say_last(self, int reason) noexcept
    cdef int feed(self, object payload) except -1
    cdef int become_open(self) except -1
    cdef int ask_for_upgrade(self) except -1
    cdef int become_plain(self) except -1
    cdef int fail(self, str why, object error) except -1
    cdef bint may_take(self) noexcept
    cdef int encode(self) except -1
    cdef Py_ssize_t encrypt(self, const uint8_t *data, Py_ssize_t size, Py_ssize_t at) except -1
    cdef int queue_outgoing(self) except -1
    cdef int queue(self, bytes data) except -1
    cdef bint send_unsent(self) noexcept
    cdef void stop_sending(self, int error) noexcept
    cdef void drop(self) noexcept
