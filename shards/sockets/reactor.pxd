# The sockets of one shard: who is ready, one read each, one send per peer with something to say.
#
#   loop_wait ── epoll set `fd` ─┬ clients, links, listeners        (level-triggered)
#                                ├ two patient_sets: publishers in small writes, and a crowd of them
#                                └ uvloop's own set
#
# Around it: loop_wait (who waits in the set; where it cannot, the set is a descriptor of the event loop), page_counters
# (what it counts, on the page), deadlines (which look at its sockets), listener, layered.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.fanout cimport Fanout
from gnatswarm.broker.outbuf cimport OutBuf, Outbox, iovec
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.word cimport unlikely
from gnatswarm.shards.sockets.crowd cimport Crowd, note_prompt_read
from gnatswarm.shards.sockets.epoll cimport epoll_event
from gnatswarm.shards.sockets.page_counters cimport PageCounters
from gnatswarm.shards.sockets.patience cimport (
    READ_AS_BEFORE, READ_NOT_PATIENTLY, SMALL_READ_BYTES, ReadFinding, ReadHabit, note_habit)
from gnatswarm.shards.sockets.patient_set cimport PatientSet
from gnatswarm.shards.sockets.source cimport Round, Source

cdef enum:
    # One read of this size instead of 16 KiB costs 1.7 to 2 times less per small message (measured: see
    # deploy/decisions). It is shared, so it costs once per shard.
    READ_BYTES = 262144
    MOST_EVENTS = 256
    MOST_IN_CROWD = 4096     # events of a round that would be long
    MOST_PARTS = 64          # iovecs of one gathering write


# The peer's bytes go over the wire as they are. Subclass: shards.sockets.layered, where they do not.
cdef class Socket(Source):
    cdef Reactor reactor
    cdef Peer peer
    cdef readonly object owner   # Python: on_closed(reason), once
    cdef ReadHabit habit
    cdef bint is_lingering       # everything was sent; input is thrown away until the peer has it all, or closes
    cdef bint has_input_ended    # the other end sends nothing more; it may still read
    cdef bint is_emptying        # so its owner has been told, and another server is sent what waited for it, and closed
    cdef bint is_opening         # a handshake comes before the protocol: no log-in deadline, no pings yet
    cdef bint is_heard_out       # the peer is deaf (OutBuf.is_deaf), and has been told so
    cdef uint64_t opened_us
    cdef readonly uint64_t used_us     # when it was last used: messages and subscriptions, not pings …
    cdef readonly uint64_t work        # … as of this count of them
    cdef uint64_t linger_until_us
    cdef uint64_t held_us        # since when the peer is held (HOLD_STALL)
    cdef int unacknowledged      # bytes in the kernel's send queue when it was last looked at
    cdef int read(self) except -1
    # The peer may be read again: goes on with input that a layer has kept.
    cdef int read_on(self) except -1
    cdef int after_operations(self) except -1
    cdef void change_patience(self, ReadFinding finding) noexcept
    cdef bint goes_on_later(self) noexcept
    # It is one of a crowd: read it with the others.
    cdef void gather(self) noexcept
    # Patience with it ends, of either kind.
    cdef void read_promptly(self) noexcept
    cdef int read_to_end(self) except -1
    cdef int discard(self) except -1
    cdef int close_if_heard(self) except -1
    # Whether something waits to be sent, also in a layer.
    cdef bint has_unsent(self) noexcept
    # Tells the owner of the end, and goes on to send what waits.
    cdef int empty(self, int reason) except -1
    cdef int close_if_empty(self) except -1
    cdef int show_read(self, iovec *parts, int n, Py_ssize_t size) except -1
    cdef void show_sent(self, iovec *parts, int n, Py_ssize_t size) noexcept
    cdef void flush(self) noexcept
    cdef bint hears_out(self, int error) noexcept
    cdef bint must_end(self) noexcept
    cdef int hear_out(self) except -1
    cdef void look_whether_it_takes(self) noexcept
    cdef void block(self) noexcept
    # The peer's last bytes are sent: a layer sends its own.
    cdef void part(self, int reason) noexcept
    # Checks the deadline of a handshake (is_opening).
    cdef int check_opening(self) except -1
    cdef void arm(self, uint32_t events) noexcept
    cdef int end(self) except -1
    cdef int close(self) except -1


@cython.final
cdef class Reactor:
    cdef readonly Fanout fanout
    cdef Outbox *box
    cdef readonly int fd               # the epoll set: for the event loop to watch
    cdef readonly PatientSet patient   # publishers in small writes
    cdef readonly Crowd crowd
    cdef readonly PatientSet gathered  # while the crowd is gathering: the publishers that it consists of
    cdef uint8_t *shared               # the read buffer
    cdef epoll_event *crowded          # events of a long round
    cdef list sources                  # every Source that is open
    cdef list gone                     # Sources closed in this round
    cdef readonly int n_emptying       # Sockets that are emptying
    cdef object leaving                # a deque of gone clients whose subscriptions are being taken out
    cdef list links                    # Sockets of others than clients
    cdef list held                     # Sockets whose peers wait for a slow receiver
    cdef object resuming               # a deque of those that need wait no more
    cdef Round round
    cdef Source due                    # … who that is: a ShortTimer
    cdef bint has_wait                 # rounds come at once where somebody is due (loop_wait)
    cdef readonly int n_ready          # how many were, in this round or the last, other than a ShortTimer
    cdef readonly bint is_serving      # in a round: what is appended now is sent when it ends
    # Callbacks are being called: what they ask for that would begin another round in this one is put off to its end.
    cdef bint is_busy
    cdef bint is_unfinished            # it was finish() (not noted of rounds, which end so anyhow), …
    cdef bint is_ending                # … or close()
    cdef Socket newest                 # the one that was opened last, until its listener has read it
    # Owners of client sockets are shown all bytes: on_bytes_in, on_bytes_out. Public, because a reload changes it.
    cdef public bint is_tracing
    # Python: called while the output of a round takes long to send, each ALIVE_US; None: nobody waits for that.
    cdef public object on_long_flush
    cdef uint32_t n_flushed
    cdef uint64_t alive_us             # when it was called last
    cdef PageCounters counters         # None: there is no page
    cdef readonly uint64_t rounds
    cdef readonly uint64_t stalls
    cdef readonly uint64_t slow_consumers

    cdef int add(self, Source source, int fd, uint32_t events) except -1
    # One round: serves what epoll_wait() has reported of the set `fd`, now.
    cdef int serve(self, epoll_event *events, int n) except -1
    cdef int serve_ready(self, epoll_event *events, int n) except -1
    cdef int serve_events(self, epoll_event *events, int n) except -1
    # A round where rounds last too long.
    cdef int serve_crowd(self) except -1
    cdef int serve_few(self, epoll_event *events, int n, uint64_t until_us) except -1
    cdef int serve_links(self) except -1
    cdef int serve_many(self, epoll_event *events, int n, uint64_t until_us) except -1
    cdef int serve_one(self, Source source, uint32_t events) except -1
    # So many bytes are read of it at once.
    cdef uint32_t most_of(self, Peer peer) noexcept
    cdef void read_less(self, Peer peer, iovec *part) noexcept
    cdef int call_due(self) except -1
    cdef int give_up(self, Socket socket) except -1
    # Call its on_event(0) in the next round; None: nobody's.
    cdef void set_due(self, Source source) noexcept
    cdef void forget(self, Source source) noexcept
    cdef int attend(self) except -1
    cdef void flush_dirty(self) noexcept
    cdef void look_how_long(self) noexcept
    cdef int finish_round(self) except -1
    # Around callbacks outside a round. False: they are called within one, or from another of these.
    cdef bint begin_calls(self) noexcept
    cdef int end_calls(self, bint has_begun) except -1
    cpdef release(self, ClientConnection client)
    cdef int go_on_leaving(self) except -1
    cdef int settle(self) except -1
    cdef int resume_held(self) except -1
    # Tells the engine the time.
    cdef void read_clock(self) noexcept


cdef inline void note_read(Socket socket, Py_ssize_t n) noexcept:
    """n bytes were read."""
    cdef Reactor reactor = socket.reactor
    cdef bint may_wait = n <= SMALL_READ_BYTES and not socket.habit.was_sent
    cdef ReadFinding finding = note_habit(&socket.habit, n, reactor.box.now_us)
    if unlikely(socket.habit.is_gathered):
        if finding == READ_NOT_PATIENTLY or not reactor.crowd.is_gathering:
            socket.read_promptly()
    elif unlikely(finding != READ_AS_BEFORE):
        socket.change_patience(finding)
    elif may_wait and not socket.habit.is_patient:
        if reactor.crowd.is_gathering:
            socket.gather()
        else:
            note_prompt_read(reactor.crowd, n, reactor.box.now_us)
