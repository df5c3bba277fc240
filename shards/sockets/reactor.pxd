# The sockets of one shard: who is ready, one read each, one send per peer with something to say.
#
#   uvloop ── one descriptor ──→ epoll set `ready` ─┬ clients, links, listeners        (level-triggered)
#                                                   ├ tick: timerfd of the patient set
#                                                   └ epoll set `patient`: publishers in small writes
#
# A Source is in the set by address. BORROWED BY THE KERNEL: it lives until it was taken out (`sources` keeps it).

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.fanout cimport Fanout
from gnatswarm.broker.interest cimport InterestSink
from gnatswarm.broker.outbuf cimport OutBuf, Outbox, iovec
from gnatswarm.broker.peer cimport Peer
from gnatswarm.shards.boundary.page cimport ShardSlot
from gnatswarm.shards.sockets.patience cimport Patience

cdef enum:
    # One read of this size instead of 16 KiB costs 1.7 to 2 times less per small message (measured: see
    # deploy/decisions). It is shared, so it costs once per shard.
    READ_BYTES = 262144
    MOST_EVENTS = 256
    MOST_PARTS = 64          # iovecs of one gathering write


cdef class Source:
    cdef Reactor reactor
    cdef int fd                  # -1: closed
    cdef uint32_t armed          # epoll events asked for
    cdef int at                  # index in reactor.sources; -1: not there
    cdef int on_event(self, uint32_t events) except -1


# What is on the wire are the peer's bytes. Subclass: shards.sockets.layered, where they are not.
cdef class Socket(Source):
    cdef Peer peer
    cdef readonly object owner   # Python: on_closed(reason), once
    cdef bint is_patient         # in the patient set
    cdef bint is_narrow          # its receive buffer is bounded
    cdef bint was_sent           # something was sent to it since its last read
    cdef bint is_lingering       # said its last; what still comes in is thrown away until the peer closes
    cdef bint is_opening         # a handshake comes before the protocol: no log-in deadline, no pings yet
    cdef uint8_t bulk_reads      # of a narrow one: large reads in a row
    cdef uint8_t small_reads     # quick small reads in a row; of a patient one, thin reads in a row
    cdef uint64_t read_us        # when it was last read
    cdef uint64_t opened_us
    cdef readonly uint64_t used_us     # when it was last used: messages and subscriptions, not pings …
    cdef readonly uint64_t work        # … as of this count of them
    cdef uint64_t linger_until_us
    cdef uint64_t held_us        # since when its feeding waits
    cdef int unacknowledged      # bytes in the kernel's send queue when it was last looked at
    cdef int read(self) except -1
    # The peer may be read again: goes on with what has come and was not read.
    cdef int read_on(self) except -1
    cdef int after_operations(self) except -1
    cdef int discard(self) except -1
    cdef int show_read(self, iovec *parts, int n, Py_ssize_t size) except -1
    cdef void show_sent(self, iovec *parts, int n, Py_ssize_t size) noexcept
    cdef void flush(self) noexcept
    cdef void look_whether_it_takes(self) noexcept
    cdef void block(self) noexcept
    # Everything is said: what the layers below the peer have to say before the end.
    cdef void part(self, int reason) noexcept
    # Looks at the deadline of a handshake (is_opening).
    cdef int check_opening(self) except -1
    cdef void arm(self, uint32_t events) noexcept
    cdef int end(self) except -1
    cdef int close(self) except -1


@cython.final
cdef class Tick(Source):
    pass


@cython.final
cdef class PatientSet(Source):
    pass


@cython.final
cdef class Reactor:
    cdef readonly Fanout fanout
    cdef Outbox *box
    cdef readonly int fd               # the epoll set: for the event loop to watch
    cdef int patient_fd                # epoll set of patient sockets
    cdef int tick_fd                   # timerfd: when they are looked at
    cdef bint is_ticking
    cdef readonly Patience patience    # when they are looked at
    cdef uint32_t idle_ticks
    cdef readonly uint32_t n_patient
    cdef uint8_t *shared               # the read buffer
    cdef list sources                  # every Source that is open
    cdef list gone                     # Sources closed in this round
    cdef list leaving                  # gone clients whose subscriptions are being taken out, slice by slice
    cdef list held                     # Sockets whose feeding waits for somebody slow
    cdef size_t bytes_read             # in this round
    cdef Socket newest                 # the one that was opened last, until its listener has looked at it
    cdef bint has_accepted             # in this round: who was accepted is about to say something
    cdef uint64_t opening_us           # spent on handshakes in this round
    cdef public bint is_tracing        # owners of client sockets are shown all bytes: on_bytes_in, on_bytes_out
    cdef uint64_t swept_at
    cdef object page                   # keeps `slot` valid
    cdef ShardSlot *slot
    cdef uint64_t base[8]              # the slot's counters before this shard started
    cdef public InterestSink interest  # whose subscriptions are shown on the page; None: nobody's
    cdef public uint64_t own_subs      # of those the broker's own, which are not shown
    cdef uint64_t ping_interval_us
    cdef uint32_t ping_max
    cdef uint64_t auth_timeout_us
    cdef uint64_t write_deadline_us
    cdef Tick tick
    cdef PatientSet patient_set
    cdef readonly uint64_t rounds
    cdef readonly uint64_t stalls
    cdef readonly uint64_t slow_consumers

    cdef int add(self, Source source, int fd, uint32_t events) except -1
    cdef void forget(self, Source source) noexcept
    cdef int attend(self) except -1
    cdef void flush_dirty(self) noexcept
    cdef int finish_round(self) except -1
    cdef int settle(self) except -1
    cdef int look_at_patient(self) except -1
    cdef void note_read(self, Socket socket, Py_ssize_t n) noexcept
    cdef void start_ticking(self) noexcept
    cdef void stop_ticking(self) noexcept
    cdef void publish_counters(self) noexcept
    cdef int resume_held(self) except -1
    cdef int check(self, Socket socket) except -1
    cdef void make_patient(self, Socket socket) noexcept
    cdef void make_impatient(self, Socket socket) noexcept
    cdef void set_tick(self, uint32_t us) noexcept
