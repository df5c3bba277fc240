# Client connections that move from one shard to another, in batches.
#
#   old shard                         new shard                          every other shard
#   move() -- MOVE -----------------→ on_offer(): detached connections, whose subscriptions take nothing yet;
#                                       waits for every sibling's PONG
#   its own mark ←-------- MARKQ ---← takes what is published here ----→ MARKQ: counts of members are shifted
#   takes nothing more of who marked ←-------- MARK -------------------- its mark, on both links
#                                     takes what comes behind a mark ←-- MARK
#   has all marks: subscriptions end,  has all marks: counts them in
#   MOVED; waits for every PONG        MOVED
#   hand_over(record) --- host ------→ arrive(record): old output, then what was detached

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.fence cimport FencedBatch, MeshFence
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.reroutes cimport Reroutes

cdef enum Phase:
    PHASE_PREPARING    # old: its clients are written down. New: their connections are made. Some of one in each go_on()
    PHASE_WAITING      # old: offered. New: siblings have not all answered. Nothing has changed, and it can be stopped
    PHASE_MARKING      # marks are asked for: it goes on to its end, or the connections are closed
    PHASE_ENDING       # old: all marks are here; its subscriptions end, some in each go_on()
    PHASE_MARKED       # all marks are here. Old: waits for siblings. New: waits for records
    PHASE_HANDING      # old: its clients are handed over, one in each go_on()
    PHASE_OVER


# One batch, at its old or at its new shard.
cdef class Batch(FencedBatch):
    cdef Moves moves
    cdef readonly int old
    cdef readonly int new
    cdef readonly uint64_t id
    cdef Phase phase
    cdef uint64_t shards        # that take part, a bit each
    cdef uint64_t marked        # of those, who has marked or is dead
    cdef uint64_t broken        # of those, whose link broke: dead or alive, nobody knows yet
    cdef dict clients           # cid → ClientConnection
    cdef list todo              # what go_on() has still to do in this phase: cids, or clients as they were offered
    cdef uint32_t at            # of the last in todo, which slot of its subscriptions is next, or which offered one
    cdef dict members           # (account, subject, queue) → members of queue groups among their subscriptions
    cdef tuple shifts

    cdef int set_takes(self, uint64_t takes_from) except -1
    cdef int look_whether_marked(self) except -1
    cdef int on_all_marked(self) except -1
    cdef int work(self) except -1
    cdef int end(self, str why, bint in_doubt) except -1


# A client as it was offered, and what has become of its subscriptions since then.
@cython.final
cdef class Written:
    cdef ClientConnection client
    cdef bytes words            # of the host
    cdef list subscriptions     # encoded_subscription() each, until it is offered
    cdef uint32_t n             # how many there were when that began
    cdef bint was_torn          # one ended meanwhile: all were written down anew
    cdef uint64_t out_msgs      # its out.msgs when that began
    cdef dict members           # as of the batch
    cdef dict delivered         # address of a subscription → its messages by then, if there were any
    cdef set bounded            # sids of those with a max; those that have ended here otherwise are taken out
    cdef list counts            # FrozenCount each, of those with more messages than by then


@cython.final
cdef class Leaving(Batch):
    cdef list offered           # those that are written down, as encoded_client(), until all are
    cdef dict written           # cid → Written
    cdef set gone               # cids of clients that have left
    cdef size_t offered_bytes   # of those, and of the shifts that they will cause
    cdef set open               # moves of others that this shard had marked when this one began, and are not over
    cdef bint is_fenced
    cdef int write_next(self) except -1
    cdef int append(self, Written written) except -1
    cdef bint is_written(self, Written written, uint32_t most) except -1
    cdef int offer(self) except -1
    cdef int end_next(self, uint32_t most) except -1
    cdef uint32_t end_some(self, Written written, bint members, uint32_t most) except? 0
    cdef int look_whether_ready(self) except -1
    cdef int hand_next(self) except -1
    cdef int let_stay(self, ClientConnection client) except -1


@cython.final
cdef class Arriving(Batch):
    cdef dict records           # cid → FrozenClient that came before the last mark
    cdef object coming          # the OfferedClient that is being made, or None
    cdef dict offered           # cid → {sid: (messages, max)} of subscriptions with messages or a max
    cdef dict told              # of the client that is being settled: sid → messages at its old shard; None: nobody
    cdef list bounded           # … addresses of its subscriptions with a max
    cdef int admit_next(self) except -1
    cdef ClientConnection admit(self, one)
    cdef int subscribe(self, ClientConnection client, one) except -1
    cdef int settle(self, uint64_t cid, frozen) except -1
    cdef int put_in_order(self, uint64_t cid, frozen) except -1


# A sibling's move that this shard has marked: how it has changed the counts of queue members.
@cython.final
cdef class Mark:
    cdef int new
    cdef tuple shifts
    cdef bint shifts_old        # the old shard's counts are still less by the shifts
    cdef bint shifts_new        # the new shard's are still more
    cdef bint is_open           # the new shard has not said that all have marked


@cython.final
cdef class Moves:
    cdef readonly Mesh mesh
    cdef MeshFence fence
    cdef Reroutes reroutes
    cdef public object host
    cdef public uint32_t slice_subs      # of these, so many are written down, made, ended or settled in one go_on()
    cdef Leaving leaving        # None: nobody leaves
    cdef dict arriving          # (old, id) → Arriving
    cdef list at_work           # batches with something to do in go_on()
    cdef dict marks             # (old, id) → Mark
    cdef dict over              # old → highest id of its moves that it has said are over
    cdef dict told              # (shard, account, subject, queue) → members that the shard told of, while shifted
    cdef dict shifted           # … → (sum of shifts, how many)
    cdef dict publishers        # cid of a client that comes → {number of a message: its publisher, who wants no echo}
    cdef list waiting_links     # links that join when no move is in a phase that they would disturb
    cdef uint64_t held_back     # links to which go_on() has appended what is not sent yet
    cdef uint64_t last_id
    cdef uint64_t last_over              # … of those of this shard, that are over
    cdef readonly uint64_t n_moved       # clients that were handed over
    cdef readonly uint64_t n_arrived
    cdef readonly uint64_t n_stopped     # batches that ended with their clients where they were
    cdef readonly uint64_t n_lost        # clients that were closed because a shard or a link ended in the middle

    cdef int begin_work(self, Batch batch) except -1
    cdef uint64_t dirty_links(self) noexcept
    cdef void hold_back(self, uint64_t links) noexcept
    cdef int send(self, int shard, bytes frame) except -1
    cdef int send_all(self, bytes frame) except -1
    cdef int end_marks_before(self, int old, uint64_t id, bint is_counted) except -1
    cdef int mark(self, int old, int new, uint64_t id, tuple shifts) except -1
    cdef int shift(self, int shard, tuple shifts, int sign) except -1
    cdef int unshift(self, int shard, tuple shifts, int sign, bint is_counted) except -1
    cdef int apply(self, tuple key) except -1
    cdef int leave(self, ClientConnection client) except -1
    cdef int drop(self, Arriving batch, uint64_t cid) except -1
    cdef int close_mark(self, tuple key) except -1
    cdef int look_at_links(self) except -1
