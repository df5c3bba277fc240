# Reply prefixes that change their shard: a shard that leaves has a successor pass on the replies that are still due.
#
#   old shard                         new shard                          every other shard
#   hand_over() ── RTAKE ───────────→ keeps replies that come
#                                     ROWN ────────────────────────────→ sends replies there from now on
#   knows whose come no more ←─────────────────────────────────── RGOES  and says so to all
#                                ←─── ROWN, when all have said it
#   waits for every PONG
#   RDUE ───────────────────────────→
#   waits for every PONG, sends the
#   next, and so on
#   the last RDUE ──────────────────→ passes on what it kept, and what comes
#                                     nothing is due any more: RDROP ──→ forgets the prefix

cimport cython
from libc.stdint cimport uint64_t

from gnatswarm.broker.fence cimport FencedBatch, MeshFence
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.reroutes cimport Reroutes
from gnatswarm.broker.service_imports cimport ReplyTable, ServiceImports


cdef enum GivingPhase:
    GIVING_ASKED       # not every shard says yet that replies go to the new one
    GIVING_PASSED      # they do: what was passed on before is still to arrive
    GIVING_SENT        # the new shard is being sent all that is due, or has been


# A prefix at the shard that gives it away.
@cython.final
cdef class Giving(FencedBatch):
    cdef ReplyPrefixes prefixes
    cdef bytes prefix
    cdef int new
    cdef GivingPhase phase
    cdef bint is_taken         # the new shard has said ROWN: its siblings send it replies
    cdef ReplyTable table      # what it is still to be sent; None: nothing, or not yet


# A prefix at the shard that takes it over, until what is due has come.
@cython.final
cdef class Taking:
    cdef bytes prefix
    cdef int old
    cdef bint is_told          # the old shard knows that all siblings send their replies here


@cython.final
cdef class ReplyPrefixes:
    cdef readonly Mesh mesh
    cdef MeshFence fence
    cdef Reroutes reroutes
    cdef ServiceImports imports      # None: this shard has no accounts
    cdef dict giving                 # prefix → Giving
    cdef dict taking                 # prefix → Taking
    cdef dict known                  # prefix → (shard, times) of siblings that have said ROWN
    cdef set refused                 # shards that did not take a prefix when they were last asked
    cdef public bint is_leaving      # this shard takes none
    cdef readonly uint64_t n_given
    cdef readonly uint64_t n_taken

    cdef int send(self, int shard, bytes frame) except -1
    cdef int send_all(self, bytes frame, int but) except -1
    cdef int look(self) except -1
    cdef int begin_to_give(self, Giving giving) except -1
    cdef int give(self, Giving giving) except -1
    cdef int end_giving(self, Giving giving) except -1
    cdef int end_taking(self, Taking taking) except -1
    cdef int tell_gateway(self) except -1
    cdef int lose_owner(self, bytes prefix) except -1
