# Clients and siblings without sockets: the engine as tests, fuzzers and benches drive it. No shard loads this.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.connection cimport ClientConnection, Fence
from gnatswarm.broker.fanout cimport Fanout
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.moves cimport Moves
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.reroutes cimport Reroutes
from gnatswarm.broker.sublist cimport Sublist

cdef enum:
    PROBE_READ_BYTES = 262144   # the reactor's


# What a socket is to a peer: takes what it is to be sent, and remembers it.
cdef class ProbeSocket:
    cdef Probe probe
    cdef Peer peer
    cdef readonly bytearray sent
    cdef size_t unread_at            # how much of `unread` was read
    cdef bytearray unread            # what waits while the peer is held
    cdef Py_ssize_t takes            # bytes that the kernel takes from now on; -1: all
    cdef public bint is_counting     # what it is sent is counted, not remembered: for benches
    cdef readonly uint64_t taken     # bytes that it was sent
    cdef readonly size_t last_read   # bytes
    cdef readonly size_t largest_read   # … of those of the last feed()
    cdef readonly bint is_over       # closed, and its peer has left
    cdef readonly int reason         # why: CloseReason
    cdef readonly bint is_reset      # the other end has gone: it takes nothing, and what it had sent is to be read
    cdef bint is_heard_out           # its peer was told so
    cdef readonly bytes unsent       # when it was closed, what waited for the kernel to take it
    cdef void flush(self) noexcept
    cdef void refuse(self) noexcept
    cdef bytes waiting(self, size_t skip)
    cdef int pump(self, pieces) except -1


cdef class ProbeLink(Peer):
    pass


cdef class Probe:
    cdef readonly Fanout fanout
    cdef readonly Sublist sublist
    cdef readonly Fence fence
    cdef readonly Mesh mesh          # None: it has no siblings
    cdef readonly Reroutes reroutes
    cdef readonly Moves moves
    cdef uint8_t *shared
    cdef size_t room
    cdef list sockets
    cdef dict links                  # shard → ProbeSocket
    cdef object limits
    cdef public uint64_t last_cid    # client ids go on from here
    cdef bint is_brief               # see rest_often()
    cdef int end_if_read(self, ProbeSocket socket) except -1
