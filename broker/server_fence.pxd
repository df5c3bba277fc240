# What waits until other servers have seen what they were told: PONGs to siblings with `fence: cluster`, and members of
# queue groups that have left.

cimport cython
from libc.stdint cimport uint64_t

from gnatswarm.broker.interest cimport MOST_SHARDS
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.reroutes cimport OriginLink


# A sibling's PING whose PONG waits; its subclasses wait for something else.
cdef class ServerWait:
    cdef OriginLink link
    cdef uint64_t number     # what the link knows it by
    cdef uint64_t since_us
    cdef uint64_t slots      # the servers that are still to answer

    # They all have, or it has waited long enough.
    cdef int on_known(self) except -1


@cython.final
cdef class ServerFence:
    cdef public bint is_on
    cdef public object on_wait                  # called when somebody waits, and nobody did: then call expire() in time
    cdef OutBuf *outs[MOST_SHARDS]              # by slot, of the servers that are waited for; borrowed
    cdef OutBuf *rears[MOST_SHARDS]             # … where a PING to them goes: behind all that they were sent
    cdef list pongs_due                         # by slot: for each PING without a PONG whether it is one of this fence
    cdef uint64_t servers                       # slots of those that are told the interest here
    cdef uint64_t members                       # … of members of the cluster, for which PONGs wait
    cdef uint64_t pinging                       # … that have not answered the fence's PING yet
    cdef readonly uint64_t late                 # … nor in time: nobody waits for them until they do
    cdef uint64_t silent                        # … that are told nothing any more: their ends stand for their PONGs
    cdef uint64_t interest_frames[MOST_SHARDS]  # RS+ and RS- sent to each
    cdef uint64_t frames_pinged[MOST_SHARDS]    # frames sent to it before the PING on its way
    cdef uint64_t frames_acked[MOST_SHARDS]     # frames that it is known to have seen
    cdef list in_flight                         # by slot: ServerWaits that the PING on its way stands for
    cdef list waiting                           # by slot: ServerWaits for the PING after it
    cdef dict waits                             # number → ServerWait, the oldest first
    cdef uint64_t last_number

    # The server is told the interest here from now on. `pongs_due` is its link's list.
    cdef int begin(self, int slot, OutBuf *out, list pongs_due, bint is_member) except -1
    # Its connection has ended: nobody waits for it.
    cdef int part(self, int slot) except -1
    # See Onward.await_servers().
    cdef uint64_t await_servers(self, OriginLink link) except? 0
    # `wait` is for all servers, so that its on_known() is called later. False: they know already.
    cdef bint await_all(self, ServerWait wait) except -1
    cdef bint await_some(self, ServerWait wait, uint64_t servers) except -1
    # The server answered a PING of the fence.
    cdef int on_pong(self, int slot) except -1
    cdef uint64_t frames_to(self, int slot) noexcept
    cdef int ping(self, int slot) except -1
    cdef int settle(self, list waits, int slot) except -1
