# The PONG fence: a client's PONG promises that every sibling has seen what the client sent before its PING.
#
# Links are FIFO, so a route PING behind it and its PONG prove it. Per link one PING is in flight and one waits;
# all the clients that ask meanwhile share the one that waits.

cimport cython
from libc.stdint cimport uint8_t, uint64_t

from gnatswarm.broker.connection cimport ClientConnection, Fence
from gnatswarm.broker.lingering cimport Former
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.interest cimport MOST_SHARDS, Sub


# Connections that move together: their old shard waits for siblings before it hands them over, the new one before it
# asks siblings for marks (broker.moves).
cdef class FencedBatch:
    # Every sibling has seen what it was sent when the wait began, or is gone.
    cdef int on_fenced(self) except -1


# Who waits for siblings: a client for its PONG, or a former member of a queue group for its end.
@cython.final
cdef class Waiter:
    cdef ClientConnection client   # None: it is gone, or `former` or `batch` waits
    cdef Former former
    cdef FencedBatch batch
    cdef bint awaits_formers       # its former members count as one of links_left
    cdef int links_left            # acknowledgements that are still to come
    cdef uint64_t published        # siblings that were sent messages of it


# The numbers of QEND are above those of messages that are sent on (broker.reroutes).
cdef inline bint is_of_end(uint64_t number) noexcept nogil:
    return number >> 62 != 0


@cython.final
cdef class MeshFence(Fence):
    cdef Mesh mesh
    cdef list in_flight            # per shard: Waiters that the PING on its way stands for
    cdef list waiting              # per shard: Waiters for the PING after it
    cdef dict due                  # client → its Waiter
    cdef uint8_t is_pinging[MOST_SHARDS]
    cdef uint64_t frames_pinged[MOST_SHARDS]   # frames sent to it before the PING on its way
    cdef uint64_t msgs_pinged[MOST_SHARDS]     # … messages alone
    cdef uint64_t frames_acked[MOST_SHARDS]    # frames it is known to have seen
    cdef uint64_t refused_before               # fanout.link_refused, as of the last link that ended
    cdef uint64_t lossy                        # siblings whose link broke with frames on their way
    cdef dict ending               # number of a QEND → the Former for which it is
    cdef uint64_t last_end

    cdef uint64_t unawaited        # siblings that nobody waits for yet: see begin()

    # A link has joined, and its sibling is being told all interest: who waits for it waits for ping(), behind that.
    # `is_new`: nobody there can publish or subscribe before it has heard all, so nobody has to wait.
    cdef int begin(self, int shard, bint is_new) except -1
    cdef int ping(self, int shard) except -1
    # on_fenced() follows, at once where there are no siblings.
    cdef int fence_batch(self, FencedBatch batch) except -1
    # … without siblings at which nobody is connected yet.
    cdef int fence_served(self, FencedBatch batch) except -1
    cdef int fence_these(self, FencedBatch batch, uint64_t left) except -1
    # QACK of a QEND came: other servers have been told that a member of a queue group has left.
    cdef int on_ended(self, uint64_t number) except -1
    # A sibling's PONG came.
    cdef int on_pong(self, int shard) except -1
    # A sibling's link is gone, but the sibling may live: waiters wait for its next link. Call it before mesh.part().
    cdef int on_break(self, int shard) except -1
    # A sibling is gone: nobody waits for it.
    cdef int on_part(self, int shard) except -1
    cdef int acknowledge(self, list waiters) except -1
    cdef Waiter wait_for_touched(self, ClientConnection client, uint64_t more, Waiter waiter)
    # The waiter waits for one more acknowledgement: that of this sibling.
    cdef int wait_for(self, int shard, Waiter waiter) except -1
    cdef int settle(self, Waiter waiter) except -1
    cdef int tell_gateway(self, bytes account, bytes subject, Former former) except -1
    cdef int end_all(self, int shard) except -1
    # Ends a former member if every sibling and other servers know that it has left, and no message promised to it is on
    # its way.
    cdef int look_at(self, Former former) except -1
    cdef int end_former(self, Former former) except -1
