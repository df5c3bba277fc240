# One sibling's frames, and what they cause.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from broker.fanout cimport Fanout, Publish
from broker.fence cimport MeshFence
from broker.mesh cimport Mesh
from broker.outbuf cimport Blob
from broker.peer cimport Peer
from broker.repeat cimport Repeat
from broker.routewire cimport RouteOp
from broker.sublist cimport Choice, Entry, Sublist


@cython.final
cdef class SiblingLink(Peer):
    cdef Mesh mesh
    cdef Fanout fanout
    cdef MeshFence fence
    cdef Reroutes reroutes
    cdef public object session           # Python: on_info(bytes), on_connect(bytes), on_synchronised(), on_broken(str)
    cdef readonly int shard              # the sibling's number; -1: not known yet
    cdef readonly bint is_joined         # INFO and CONNECT are done: it carries interest and messages
    cdef readonly bint is_synchronised   # the sibling has acknowledged our whole interest, and its own is here
    cdef bint heard_ping                 # it asked for an acknowledgement of its whole interest
    cdef bint heard_pong
    cdef Sublist sublist                 # of the account named last
    cdef Repeat repeat                   # the last plain RMSG line: see repeat.pxd
    cdef set orphans                     # ids of its queue messages that are on their way to another sibling
    cdef list pings_due                  # per PING of it that waits for some of those: which
    cdef readonly uint64_t in_msgs
    cdef readonly uint64_t in_bytes
    cdef readonly uint64_t deliveries    # to clients here, of what came over it

    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef Py_ssize_t message(self, const uint8_t *data, size_t size, RouteOp *op, Blob *whole) except -1
    cdef int interest(self, RouteOp *op, bint wanted) except -1
    cdef int broken(self, str why) except -1
    cdef int on_ping(self) except -1
    cdef int say_pong(self) except -1
    cdef void tell_slow(self, Sublist sublist, Entry *entry) noexcept
    cdef int on_slow(self, RouteOp *op) except -1
    cdef int acknowledge(self, uint64_t id) except -1
    cdef int on_settled(self, uint64_t id, uint64_t id_there) except -1
    cdef int check_synchronised(self) except -1


# Queue messages that found no member where they were sent, on their way to a shard that has one.
@cython.final
cdef class Reroutes:
    cdef Mesh mesh
    cdef uint64_t last_id
    cdef dict waiting                    # id here → (SiblingLink it came over, id there or 0, shard it went to)
    cdef readonly uint64_t n_sent_on
    cdef readonly uint64_t n_lost        # no member anywhere

    # A queue of op that found nobody here. True: sent on, `origin` hears on_settled() later; False: nobody anywhere.
    cdef bint send_on(self, SiblingLink origin, Sublist sublist, RouteOp *op, int queue,
                      Publish *message, uint64_t visited) except *
    cdef int ask(self, SiblingLink origin, uint64_t shards) except -1
    cdef int settled(self, uint64_t id) except -1
    cdef int on_part(self, int shard) except -1
