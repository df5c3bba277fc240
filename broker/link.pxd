# One sibling's frames, and what they cause.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.fanout cimport Fanout, Publish
from gnatswarm.broker.fence cimport MeshFence
from gnatswarm.broker.lingering cimport Former
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.outbuf cimport Blob
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.repeat cimport Repeat
from gnatswarm.broker.routewire cimport RouteOp
from gnatswarm.broker.entry cimport Choice, Entry
from gnatswarm.broker.sublist cimport Sublist


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
    # QACK or QNAK.
    cdef int acknowledge(self, uint64_t id, bint is_taken) except -1
    cdef int on_settled(self, uint64_t id) except -1
    cdef int check_synchronised(self) except -1


# What became of a queue message that found no member where it was sent.
cdef enum Fate:
    FATE_TAKEN
    FATE_PENDING       # on its way to another sibling, or waits for a link to be in step: its origin hears on_settled()
    FATE_NOBODY        # there is nobody anywhere


# One that is pending.
@cython.final
cdef class Orphan:
    cdef uint64_t id                     # here
    cdef SiblingLink origin              # it came over this one
    cdef uint64_t id_there               # origin's, who waits for QACK or QNAK; 0: it does not
    cdef int shard                       # where it was sent; -1: it waits for a link to be in step
    cdef Former former                   # takes it if nobody else does; None: there is none
    # What a second try needs; tail None: there will be none.
    cdef Sublist sublist
    cdef bytes subject
    cdef bytes queue
    cdef bytes reply
    cdef bytes tail
    cdef size_t payload_at               # in the tail
    cdef uint32_t header_size
    cdef uint32_t size
    cdef uint64_t visited

    cdef int keep(self, Sublist sublist, Token subject, Token queue, const Publish *message) except -1
    # The message again. VALID AS LONG AS THIS IS.
    cdef void fill(self, Publish *message) noexcept


# Queue messages that found no member where they were sent, on their way to a shard that has one.
@cython.final
cdef class Reroutes:
    cdef Mesh mesh
    cdef MeshFence fence
    cdef uint64_t last_id
    cdef dict pending                    # id here → Orphan
    cdef readonly uint64_t n_sent_on
    cdef readonly uint64_t n_lingered    # taken by a former member
    cdef readonly uint64_t n_lost        # no member anywhere

    # Finds a place for a message to one queue group that found nobody here: a current member elsewhere; where the word
    # of a sibling is still to come, later; a former member.
    cdef Fate place(self, SiblingLink origin, Sublist sublist, Token subject, Token queue, Publish *message,
                    uint64_t id_there, uint64_t visited) except *
    cdef Fate try_place(self, Orphan orphan, Sublist sublist, Token subject, Token queue, Publish *message,
                        bint may_leave) except *
    cdef bint send_away(self, Orphan orphan, Sublist sublist, Entry *entry, Choice *choice, Token queue,
                        Publish *message) except *
    cdef bint give_to_former(self, Sublist sublist, Token subject, Token queue, Publish *message) noexcept
    cdef void count_delivery(self, Sublist sublist, Token subject, const Publish *message) noexcept
    cdef int ask(self, SiblingLink origin, uint64_t shards) except -1
    # QACK or QNAK came.
    cdef int settled(self, uint64_t id, bint is_taken) except -1
    cdef int conclude(self, Orphan orphan, bint is_taken) except -1
    # The links are as they should be, or one of them will not come back: what waited for that goes on.
    cdef int on_step(self) except -1
    cdef int on_part(self, int shard) except -1
