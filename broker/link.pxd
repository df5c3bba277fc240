# One sibling's frames, and what they cause.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.fanout cimport Fanout, Outcome, Publish
from gnatswarm.broker.fence cimport MeshFence
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.outbuf cimport Blob
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.repeat cimport Repeat
from gnatswarm.broker.reroutes cimport Fate, OriginLink, Reroutes
from gnatswarm.broker.routewire cimport RouteOp
from gnatswarm.broker.sublist cimport Sublist


@cython.final
cdef class SiblingLink(OriginLink):
    cdef Mesh mesh
    cdef Fanout fanout
    cdef MeshFence fence
    cdef Reroutes reroutes
    cdef object session                  # Python: on_info(bytes), on_connect(bytes), on_synchronised(), on_broken(str)
    cdef readonly bint is_joined         # INFO and CONNECT are done: it carries interest and messages
    cdef readonly uint64_t joined_us     # … since then, by the reactor's clock
    cdef readonly bint is_synchronised   # both ends have each other's whole interest
    cdef readonly bint has_left          # the sibling has said so: it is no shard any more when the link ends
    cdef bint is_new                     # see join()
    cdef bint heard_ping                 # its first PING, behind its whole interest, has come
    cdef bint heard_pong                 # it has acknowledged our whole interest
    cdef uint32_t told                   # interest in the last read
    cdef readonly uint64_t n_told        # … in all
    cdef bint tells_much                 # … there was much, and has been some since: little is read at a time
    cdef size_t last_size                # bytes of the last read
    cdef object resting                  # see rest_with()
    cdef uint64_t most_delivered         # deliveries of one read's messages, after which it rests
    cdef Sublist sublist                 # of the account named last
    cdef Repeat repeat                   # the last RMSG line, or QMSG that none has sent on, with at most one group
    cdef size_t repeat_subject_at        # in that line
    cdef size_t repeat_queue_at
    cdef size_t repeat_queue_size        # 0: it names no queue group
    cdef uint64_t repeat_publisher       # of a QMSG: who may not have it; 0: it is an RMSG
    cdef list pings_due                  # for each of its PINGs without a PONG: the orphans that it waits for
    cdef readonly uint64_t in_msgs
    cdef readonly uint64_t in_bytes
    cdef bint is_traced                  # inside of traced_message
    cdef readonly uint64_t deliveries    # to clients here, of messages that came over it

    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef Py_ssize_t message(self, const uint8_t *data, size_t size, RouteOp *op, Blob *whole) except -1
    cdef bint is_of_run(self, const RouteOp *op) noexcept
    cdef uint64_t been(self) noexcept
    cdef uint32_t single_run(self, const uint8_t *line, Publish *run) except *
    cdef Py_ssize_t traced_message(self, const uint8_t *data, size_t size, RouteOp *op, Blob *whole) except -1
    cdef uint64_t deliver(self, Sublist sublist, Entry *entry, Publish *message, RouteOp *op, bint plainly, Token shown,
                          Outcome *outcome) except? 0xFFFFFFFFFFFFFFFF
    cdef int interest(self, const uint8_t *data, const uint8_t *end, RouteOp *op, bint wanted) except -1
    cdef bint is_for_us(self, Token subject) except -1
    cdef Py_ssize_t prefix(self, const uint8_t *data, size_t size, RouteOp *op) except -1
    cdef Py_ssize_t move(self, const uint8_t *data, size_t size, RouteOp *op) except -1
    cdef int broken(self, str why) except -1
    cdef int on_ping(self) except -1
    cdef int say_pong(self) except -1
    cdef void tell_slow(self, Sublist sublist, Entry *entry) noexcept
    cdef void look_if_slow(self, Sublist sublist, Entry *entry, bint is_slow) noexcept
    cdef int on_slow(self, RouteOp *op) except -1
    cdef int on_queue_end(self, RouteOp *op) except -1
    # Nobody here got a request, the n-th message of the link: it is said when nobody takes it for its queue groups
    # either. `pending`: the messages to groups whose fate is not known; `is_nobody`: none of the others was taken.
    cdef int note_nobody(self, uint64_t number, Sublist sublist, Token subject, Token reply, bint is_nobody,
                         list pending) except -1
    cdef int on_nobody(self, RouteOp *op) except -1
    cdef int tell_asker(self, uint64_t cid, Sublist sublist, Token subject, Token reply) except -1
    cdef int check_synchronised(self) except -1
