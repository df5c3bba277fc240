# A socket whose bytes on the wire are not the peer's: TLS, WebSocket, or the one in the other.
#
#   kernel ── recv ──→ WIRE_IN ── TLS ──→ [ frames ] ──→ Peer          what comes while the peer is held waits in `kept`
#   OutBuf ──→ [ frames ] ── TLS ──→ WIRE_OUT ── send ──→ kernel       what the kernel does not take waits in `unsent`
#
#              first byte is no handshake, and plain clients are let in
#   QUIET ─→ WAITS ────────────────────────────────────────────────────────────→ PLAIN
#      └───────┴──→ SHAKES ──→ UPGRADES (WebSocket) ──→ OPEN
# QUIET holds INFO back (handshake_first); WAITS has sent it in plain. Only PLAIN and OPEN speak the peer's protocol.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from broker.outbuf cimport iovec
from shards.reactor cimport Socket

cdef enum Stage:
    QUIET = 0
    WAITS = 1
    SHAKES = 2
    UPGRADES = 3
    PLAIN = 4
    OPEN = 5

cdef class LayeredSocket(Socket):
    cdef object gate           # shards.gate.Gate: what is asked for, and the deadline; None once it is past
    cdef object tls            # ssl.SSLObject; None: the wire is not encrypted (yet)
    cdef object incoming       # ssl.MemoryBIO, like the next
    cdef object outgoing
    cdef object frames         # shards.frames.Frames; None: no WebSocket
    cdef object unsent         # bytes
    cdef Py_ssize_t unsent_at
    cdef list kept             # pieces of input, of the form that `take` takes
    cdef Stage stage
    cdef size_t opening_bytes  # read before the protocol began

    cdef int take(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef int take_kept(self) except -1
    cdef int begin_tls(self) except -1
    cdef int shake(self) except -1
    cdef int decrypt(self) except -1
    cdef int unframe(self, object data) except -1
    cdef int feed(self, object payload) except -1
    cdef int become_open(self) except -1
    cdef int become_plain(self) except -1
    cdef int fail(self, str why, object error) except -1
    cdef bint may_take(self) noexcept
    cdef int encode(self) except -1
    cdef Py_ssize_t encrypt(self, const uint8_t *data, Py_ssize_t size, Py_ssize_t at) except -1
    cdef int queue_outgoing(self) except -1
    cdef int queue(self, bytes data) except -1
    cdef bint send_unsent(self) noexcept
    cdef void drop(self) noexcept
