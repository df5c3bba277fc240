# Client connections that move from one shard to another, in batches.
#
#   old shard                         new shard                          every other shard
#   move() -- MOVE, MPART … --------→ on_offer(): detached connections, whose subscriptions take nothing yet;
#          ←- MNEXT, for each part --- MSHIFT, for each part -----------→ knows which counts of members are to shift
#                                       waits for every sibling's PONG
#   its own mark ←-------- MARKQ ---← takes what is published here ----→ MARKQ: counts of members are shifted
#   takes nothing more of who marked ←-------- MARK -------------------- its mark, on both links
#                                     takes what comes behind a mark ←-- MARK
#   has all marks: subscriptions end,  has all marks: counts them in ---→ MDONE, for each part, and MOVED: they tell
#   MDONE …, MOVED; waits for every      MDONE …, MOVED                      the shifted counts themselves
#   PONG
#   hand_over(record) --- host ------→ arrive(record): old output, then what was detached

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.fence cimport FencedBatch, MeshFence
from gnatswarm.broker.interest cimport GroupShift, ShiftState, Sub
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.reroutes cimport OriginLink, Reroutes
from gnatswarm.broker.sublist cimport Sublist

cdef enum Phase:
    PHASE_PREPARING    # old: its clients are written down, and offered. New: their connections are made. Some of one in
    #                    each go_on()
    PHASE_WAITING      # old: offered. New: siblings have not all answered. Nothing has changed, and it can be stopped
    PHASE_MARKING      # marks are asked for: it goes on to its end, or the connections are closed
    PHASE_ENDING       # all marks are here. Old: its subscriptions end. New: queue groups count its members. Some of it
    #                    in each go_on()
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
    cdef set deaf               # old: cids of those that were closed, or whose other end was: they take nothing more
    cdef list todo              # what go_on() has still to do in this phase: cids, or parts of the offer
    cdef uint32_t at            # of the last in todo, which slot of its subscriptions is next, which offered one, or
    #                             which shift
    cdef dict members           # of this part: (account, subject, queue) → members of queue groups

    cdef int set_takes(self, uint64_t takes_from) except -1
    cdef int look_whether_marked(self) except -1
    cdef int on_all_marked(self) except -1
    cdef bint has_work(self) except -1
    cdef int work(self) except -1
    cdef int end(self, str why, bint in_doubt) except -1


# A client as it was offered, and what has become of its subscriptions since then.
@cython.final
cdef class Written:
    cdef ClientConnection client
    cdef uint64_t out_msgs      # its out.msgs when that began
    cdef dict delivered         # address of a subscription → its messages by then, if there were any
    cdef set bounded            # sids of those with a max; those that have ended here otherwise are taken out
    cdef list counts            # FrozenCount each, of those with more messages than by then; not those of MCOUNT


@cython.final
cdef class Leaving(Batch):
    cdef list part              # of the offer, not sent yet: (cid, account, words, encoded_subscription()s) each
    cdef list part_members      # … (Written, sids of its members of queue groups) each
    cdef uint32_t part_subs     # … how many subscriptions
    cdef size_t part_bytes      # … and about how many bytes of them, and of the shifts that they will cause
    cdef list parts             # those with members that were sent: (number of shifts, part_members)
    cdef bint has_begun         # a part was sent
    cdef uint32_t unheard       # … how many, for which the new shard has not said MNEXT
    cdef dict written           # cid → Written
    cdef set gone               # cids of clients that have left
    cdef set open               # moves of others that this shard had marked when this one began, and are not over
    cdef bint is_fenced
    cdef size_t unanswered_bytes   # of the clients' requests to which nobody responds
    cdef str given_up           # why it ends as soon as its subscriptions have ended; None: it does not
    cdef int write_next(self) except -1
    cdef bint is_written(self, Written written, uint32_t most) except -1
    cdef int offer(self) except -1
    cdef bytes sid_of(self, const Sub *sub)
    cdef int write(self, Written written, Sub *sub, list subscriptions, list sids) except -1
    cdef int end_next(self, uint32_t most) except -1
    cdef uint32_t end_some(self, Written written, uint32_t most) except? 0
    cdef int end_members(self, Written written, list sids) except -1
    cdef int end_one(self, Written written, Sub *sub) except -1
    cdef int say_counts(self, Written written) except -1
    cdef int say_ended(self, Written written) except -1
    cdef int look_whether_ready(self) except -1
    cdef int hand_next(self) except -1
    cdef int let_stay(self, ClientConnection client) except -1


# A subscription with a max, of which its old shard has delivered so many messages before.
ctypedef struct Bounded:
    Sub *sub
    uint64_t before
    uint64_t max_msgs


@cython.final
cdef class Arriving(Batch):
    cdef dict records           # cid → FrozenClient that came before the last mark
    cdef object part            # the Offer that is being carried out, the last in todo, or None
    cdef list clients_left      # … of its clients, those that are not looked at yet
    cdef object coming          # … the OfferedClient that is being made, or None
    cdef object last_cid        # … who may have more subscriptions in the next part; None: nobody yet
    cdef dict counts            # cid → (sid → messages, sids that have ended): what MCOUNT said
    cdef dict offered           # cid → {sid: (messages, max)} of subscriptions with messages or a max
    cdef dict told              # of the client that is being settled: sid → messages at its old shard; None: nobody
    cdef set ended              # … sids of those that have ended there
    cdef dict most              # … sids of which so many of the messages in its output may be sent, and no more
    cdef uint64_t dropped       # … how many are not sent for what has ended there
    cdef Bounded *bounded       # … n_bounded of its subscriptions with a max
    cdef uint32_t n_bounded
    cdef uint32_t room_bounded
    cdef uint64_t number        # for which the PINGs of siblings that have marked wait, until all have
    cdef list pinging           # … links of these siblings (OriginLink)
    cdef int send_pongs(self) except -1
    cdef int admit_next(self) except -1
    cdef bint part_is_last(self) except -1
    cdef int look_at_part(self) except -1
    cdef int count_next(self, uint32_t most) except -1
    cdef ClientConnection admit(self, one)
    cdef int subscribe(self, ClientConnection client, one) except -1
    cdef int settle(self, uint64_t cid, frozen) except -1
    cdef bint settle_bounded(self, ClientConnection client, Sub *sub, dict offered) except -1
    cdef int put_in_order(self, uint64_t cid, frozen) except -1


# What is left to do of a move that is over.
cdef class Chore:
    # Do so much; whether nothing is left.
    cdef bint work(self, uint32_t most) except -1


@cython.final
cdef class Staying(Chore):
    cdef ClientConnection client
    cdef uint32_t at            # which slot of its subscriptions is next
    cdef uint32_t n_subs        # how many it had when `at` was 0
    cdef bint has_left          # its connection has ended


@cython.final
cdef class Dropping(Chore):
    cdef ClientConnection client


# A move whose counts of queue members this shard shifts from its mark on.
@cython.final
cdef class Mark:
    cdef int new
    cdef ShiftState state
    cdef GroupShift **shifts    # n of them; those before n_over are over, and freed
    cdef uint32_t n
    cdef uint32_t room
    cdef uint32_t n_over
    cdef dict accounts          # Sublist → its place; GroupShift.account is that
    cdef list sublists          # … by place
    cdef bint is_asked          # MARKQ has come, or never will
    cdef bint is_open           # the new shard has not said that all have marked

    cdef int add(self, Sublist sublist, bytes subject, bytes queue, uint32_t members, bint awaits_new) except -1
    cdef Sublist sublist_of(self, const GroupShift *shift)
    cdef bint is_heard(self) except -1
    cdef list of_each_group(self)
    cdef int change(self, uint32_t *cursor, int shard, uint32_t start, uint32_t most, bint hears) except -1
    cdef int tell_differences(self) except -1
    cdef int tell(self, uint32_t number, int shard, uint32_t *cursor, uint32_t start, uint32_t then) except -1
    cdef int count(self, uint32_t *cursor, int shard, int sign, uint32_t n) except -1
    cdef int forget(self, uint32_t most) except -1


@cython.final
cdef class Forgetting(Chore):
    cdef Mark mark


@cython.final
cdef class Moves:
    cdef readonly Mesh mesh
    cdef MeshFence fence
    cdef Reroutes reroutes
    cdef public object host
    cdef public uint32_t slice_subs      # of these, so many are written down, made, ended or settled in one go_on()
    cdef public uint32_t window          # so many parts of an offer are sent before the new shard has taken one
    cdef Leaving leaving        # None: nobody leaves
    cdef dict arriving          # (old, id) → Arriving
    cdef list at_work           # batches with something to do in go_on()
    cdef list chores            # Chores
    cdef readonly uint64_t n_slices   # how often something was done in go_on()
    cdef dict marks             # (old, id) → Mark
    cdef dict over              # old → highest id of its moves that it has said are over
    cdef readonly dict gone     # (old, id) → cids that do not come and are not here, or not yet, until the move is over
    cdef dict publishers        # cid of a client that comes → {number of a message: its publisher, who wants no echo}
    cdef list waiting_links     # links that join when no move is in a phase that they would disturb
    cdef uint64_t held_back     # links to which go_on() has appended what is not sent yet
    cdef uint64_t last_id
    cdef uint64_t last_over              # … of those of this shard, that are over
    cdef readonly uint64_t n_heard       # parts of offers that new shards have asked to go on behind
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
    cdef str why_not_of(self, ClientConnection client)
    cdef int do_or_put_off(self, Chore chore) except -1
    cdef int end_side(self, Mark mark, uint32_t *cursor, int shard, int sign, bint is_counted) except -1
    cdef Mark mark_of(self, int old, int new, uint64_t id)
    cdef list await_marks(self, OriginLink link)
    cdef Mark mark(self, int old, int new, uint64_t id)
    cdef int stage(self, int old, int new, uint64_t id, tuple shifts) except -1
    cdef int close_own(self, tuple key) except -1
    cdef int leave(self, ClientConnection client) except -1
    cdef int drop(self, Arriving batch, uint64_t cid) except -1
    cdef int close_mark(self, tuple key) except -1
    cdef int look_at_links(self) except -1
