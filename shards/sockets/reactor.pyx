# cython: language_level=3, boundscheck=False, wraparound=False
"""The sockets of one shard: who is ready, one read each, one send per peer with something to say.

It moves bytes between descriptors and the engine's Peers, and knows no operation of the protocol. Everything rarer
(control channel, timers, log-in) is ordinary asyncio: loop_wait has the event loop wait in its epoll set. Not here:
deadlines and pings (deadlines), patience with small writes (patience, patient_set), TLS and WebSocket (layered).
Invariants: what a round appended is flushed at its end; a Source stays alive until the end of the round in which it was
closed; nothing here blocks.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EPIPE, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.unistd cimport close as close_fd

from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_PARSE_ERROR, CLOSE_READ_ERROR, CLOSE_SLOW_CONSUMER_PENDING_BYTES,
    CLOSE_SLOW_CONSUMER_WRITE_DEADLINE, CLOSE_WRITE_ERROR, CloseReason, MOVING_NOT, iovec, out_append_all, out_call,
    out_condemn, out_gather, out_mark_clean, out_pending, out_release, out_take)
from gnatswarm.broker.peer cimport HOLD_STALL, merge_freed
from gnatswarm.broker.word cimport SLACK, likely, unlikely
from gnatswarm.shards.sockets.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT,
    epoll_create1, epoll_ctl, epoll_event, epoll_wait)
from gnatswarm.shards.sockets.page_counters cimport publish_counters
from gnatswarm.shards.sockets.patience cimport Patience, READ_IN_BULK, READ_NOT_PATIENTLY, READ_SMALL_AND_QUICK
from gnatswarm.shards.sockets.patient_set cimport Tick, new_patient_set
from gnatswarm.shards.sockets.source cimport monotonic_us
from gnatswarm.shards.sockets.window cimport narrow, widen

import logging
from collections import deque

from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.shards.sockets.frozen_socket import FrozenSocket


cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_NOSIGNAL, SHUT_WR
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    Py_ssize_t recv(int fd, void *to, size_t n, int flags)
    Py_ssize_t send(int fd, const void *data, size_t n, int flags)
    Py_ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int shutdown(int fd, int how)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **found, size_t alignment, size_t size)

cdef extern from "<sys/ioctl.h>" nogil:
    enum:
        FIONREAD
    int ioctl(int fd, unsigned long request, ...)

cdef extern from "<poll.h>" nogil:
    enum:
        POLLERR, POLLHUP, POLLRDHUP
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout_ms)

cdef extern from "<linux/sockios.h>" nogil:
    enum:
        SIOCOUTQ

cdef extern from "<sys/uio.h>" nogil:
    Py_ssize_t readv(int fd, const iovec *parts, int n)


cdef enum:
    BUSY_ROUND_BYTES = 16384        # after a round that read this much, another follows before the event loop,
    MOST_TURN_US = 2000             # for at most this long
    MOST_UNSETTLED_BYTES = 2097152  # read in one round before what they caused is sent: bounds its latency
    # A round that lasts this long ends. In those that follow the loop, links and clients with little to say do not wait
    # for thousands with much.
    ROUND_US = 20000
    FEW_BYTES = 2048                # so much is little
    FEW_US = 12000                  # of a round for those with little, …
    MANY_US = 5000                  # … and at least this for those with much
    CYCLE_US = 100000               # who have a turn within this: else less is read of each, …
    AS_MANY_CLIENTS = 32            # … and of a link, which speaks for many, as of so many clients
    LOOK_BYTES = 32768              # after so much, a look at the clock
    FLUSHES_BETWEEN_LOOKS = 8       # … and after the output of so many
    ALIVE_US = 250000               # who sends for longer says so
    LINGER_US = 1000000             # a peer that was sent an error has this long to read it
    # Servers that say nothing more and are still being sent what waited, at a time: as many as can be connected. Who
    # came, said that, and hardly read, again and again, would have any number of descriptors and of full buffers.
    MOST_EMPTYING = 31
    FIN_BYTES = 1                   # what shutdown() adds to the unacknowledged bytes
    # Where in a page the read buffer begins. The kernel copies with "rep movsb", which takes up to three times as long
    # on AMD Zen where the target is 1 to 63 bytes further in its page than the source, and what was sent on this host
    # begins a page. malloc() put the buffer 16 bytes into one: 4 KiB took 3.2 us to read and send on instead of 1.9.
    READ_BUFFER_AT = 2048
    PAGE_BYTES = 4096
    DRAIN_READS = 64                # of a connection that is about to be closed
    STALL_US = 100000               # a sender waits for a slow receiver at most this long at a time
    RESUME_US = 5000                # of a round for those who have
    # Subscriptions of clients that go: some 1.5 µs each. So many are taken out in a round, and of clients with more, or
    # of a crowd that goes at once, a few at a time behind the rounds that follow.
    LEAVE_AT_ONCE = 2000
    LEAVE_FEW = 500
    LEAVE_US = 2000
    LEAVE_LATER_US = 20000          # where the next round may be a tenth of a second away (has_wait)


logger = logging.getLogger("gnatswarm.sockets")


cdef bytes joined(iovec *parts, int n, Py_ssize_t size):
    """The first `size` bytes of some parts."""
    cdef list pieces = []
    cdef Py_ssize_t take
    cdef int i
    for i in range(n):
        take = min(size, <Py_ssize_t>parts[i].iov_len)
        pieces.append((<uint8_t *>parts[i].iov_base)[:take])
        size -= take
    return b"".join(pieces)


cdef uint8_t *read_buffer() except NULL:
    cdef void *pages = NULL
    if posix_memalign(&pages, PAGE_BYTES, READ_BUFFER_AT + READ_BYTES + SLACK):
        raise MemoryError
    return <uint8_t *>pages + READ_BUFFER_AT


cdef inline bint has_much(int fd) noexcept nogil:
    """Whether a client has much to say: its bytes that wait to be read."""
    cdef int n = 0
    return ioctl(fd, FIONREAD, &n) == 0 and n > FEW_BYTES


cdef void flush_peer(void *owner, OutBuf *out) noexcept:
    """What the engine calls when a chunk is full."""
    if out.owner != NULL:
        (<Socket>out.owner).flush()


cdef class Socket(Source):
    """A connected stream socket and the Peer whose bytes it carries. Owns the descriptor."""

    cdef int on_event_alone(self, uint32_t events) except -1:
        return self.reactor.serve_one(self, events)

    cdef int on_event(self, uint32_t events) except -1:
        if events & EPOLLOUT:
            self.peer.out.is_blocked = 0
            self.flush()
            if unlikely(self.is_emptying):
                return self.close_if_empty()
            if not self.peer.out.is_blocked:
                self.arm(self.armed & ~<uint32_t>EPOLLOUT)
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            if self.is_lingering:
                self.discard()
            elif unlikely(self.is_emptying):   # it reads no more, either
                self.close()
            else:
                self.read()
        return 0

    cdef void arm(self, uint32_t events) noexcept:
        """Ask for these events. 0 takes it out of the set: the kernel reports a hang-up to every member, asked or not,
        and would report a held client whose peer is gone without end."""
        cdef epoll_event event
        if self.fd < 0 or events == self.armed:
            return
        event.events = events
        event.data.ptr = <void *>self
        epoll_ctl(self.set_fd, EPOLL_CTL_DEL if events == 0 else EPOLL_CTL_ADD if self.armed == 0 else EPOLL_CTL_MOD,
                  self.fd, &event)
        self.armed = events

    cdef int read(self) except -1:
        cdef iovec parts[2]
        cdef Reactor reactor = self.reactor
        cdef Peer peer = self.peer
        cdef int n = peer.read_parts(reactor.shared, READ_BYTES, parts)
        cdef Py_ssize_t got
        if n == 0:
            self.arm(self.armed & ~<uint32_t>EPOLLIN)
            return 0
        if unlikely(reactor.round.most_bytes < <uint32_t>READ_BYTES):
            reactor.read_less(peer, &parts[n - 1])
        if likely(n == 1):
            got = recv(self.fd, parts[0].iov_base, parts[0].iov_len, 0)
        else:
            got = readv(self.fd, parts, n)
        if likely(got > 0):
            reactor.round.bytes_read += got
            if likely(got != reactor.round.most_bytes or got == READ_BYTES):   # (else there may be more)
                note_read(self, got)
            if unlikely(reactor.is_tracing):
                self.show_read(parts, n, got)
            peer.received(reactor.shared, READ_BYTES, got)
            return self.after_operations()
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        self.has_input_ended = got == 0
        peer.close(CLOSE_CLIENT_CLOSED if got == 0 else CLOSE_READ_ERROR)
        out_call(&peer.out)
        return 0

    cdef int read_on(self) except -1:
        return 0

    cdef int after_operations(self) except -1:
        """The peer has carried out operations: have it closed, or stop reading it, where it asks for that."""
        if unlikely(self.peer.is_closing):
            out_call(&self.peer.out)
        elif unlikely(self.peer.holds != 0):
            self.arm(self.armed & ~<uint32_t>EPOLLIN)
            if self.peer.holds & HOLD_STALL:
                self.held_us = self.reactor.box.now_us
                self.reactor.stalls += 1
                self.reactor.held.append(self)
        return 0

    cdef void change_patience(self, ReadFinding finding) noexcept:
        if finding == READ_SMALL_AND_QUICK:
            if isinstance(self.peer, ClientConnection):
                self.habit.is_patient = self.reactor.patient.admit(self)
                self.habit.small_reads = 0
        elif finding == READ_NOT_PATIENTLY:
            self.read_promptly()
        elif finding == READ_IN_BULK:
            widen(self.fd)

    cdef bint goes_on_later(self) noexcept:
        """Whether its peer has kept more than the beginning of an operation, perhaps: it is held, or was until now."""
        return self.peer.holds != 0 or self.peer.out.is_called != 0

    cdef void gather(self) noexcept:
        cdef Reactor reactor = self.reactor
        if not reactor.gathered.n_sockets and reactor.crowd.has_dispersed(reactor.box.now_us):
            return
        if isinstance(self.peer, ClientConnection):
            self.habit.is_gathered = reactor.gathered.admit(self)

    cdef void read_promptly(self) noexcept:
        if self.habit.is_patient:
            self.reactor.patient.dismiss(self)
        elif self.habit.is_gathered:
            self.reactor.gathered.dismiss(self)
        self.habit.is_patient = self.habit.is_gathered = False
        self.habit.small_reads = 0

    cdef int discard(self) except -1:
        cdef Py_ssize_t got = recv(self.fd, self.reactor.shared, READ_BYTES, 0)
        if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
            return self.close()
        if got > 0:
            self.peer.still_coming -= min(self.peer.still_coming, <size_t>got)
        return self.close_if_heard()

    cdef int close_if_heard(self) except -1:
        """Close a lingering socket as soon as no reset can overtake the peer's last bytes.

        close() with unread input makes the kernel send a reset. So: the peer's kernel has acknowledged everything, no
        input waits, and none of an announced message is still to come. What comes later is answered with a reset.
        """
        cdef int unacknowledged = 0, unread = 0
        if self.peer.still_coming == 0 and ioctl(self.fd, FIONREAD, &unread) == 0 and unread == 0 \
                and ioctl(self.fd, SIOCOUTQ, &unacknowledged) == 0 and unacknowledged <= FIN_BYTES:
            return self.close()
        return 0

    cdef void flush(self) noexcept:
        cdef iovec parts[MOST_PARTS]
        cdef msghdr message
        cdef OutBuf *out = &self.peer.out
        cdef Py_ssize_t took
        cdef size_t total
        cdef int n, i
        if self.fd < 0 or self.is_lingering:
            return
        if out.is_blocked:
            if out.is_behind:
                self.look_whether_it_takes()
            return
        while out.head != NULL:
            n = out_gather(out, parts, MOST_PARTS)
            if n == 0:
                out_take(out, 0)
                break
            if likely(n == 1):
                total = parts[0].iov_len
                took = send(self.fd, parts[0].iov_base, total, MSG_NOSIGNAL)
            else:
                total = 0
                for i in range(n):
                    total += parts[i].iov_len
                memset(&message, 0, sizeof(message))
                message.msg_iov = parts
                message.msg_iovlen = n
                took = sendmsg(self.fd, &message, MSG_NOSIGNAL)
            if took < 0:
                if errno == EINTR:
                    continue
                if errno != EAGAIN:
                    if not self.hears_out(errno):
                        out_condemn(out, CLOSE_WRITE_ERROR)
                    return
                took = 0
            if took:
                if unlikely(self.reactor.is_tracing):
                    self.show_sent(parts, n, took)
                self.habit.was_sent = True
                out.taken_us = self.reactor.box.now_us
                out_take(out, took)
            if <size_t>took < total:
                if took == 0:
                    out.taken_us = self.reactor.box.now_us
                self.block()
                return

    cdef bint hears_out(self, int error) noexcept:
        """Nothing more can be sent. What the other end had said before it closed is read, and the end after it.

        A client has no subscriptions any more then: as a member of a queue group it would take what others could have.
        Of one that moves, shards have agreed on them: what it is sent waits until it goes on, in whichever shard.
        """
        cdef OutBuf *out = &self.peer.out
        if self.is_emptying:
            out_release(out)
            out_call(out)
            return True
        if error not in (EPIPE, ECONNRESET):
            return False
        if not isinstance(self.peer, ClientConnection):
            out.is_blocked = 1
        elif not out.is_deaf:
            if out.close_reason != CLOSE_NONE:
                return False
            if out.moving != MOVING_NOT:
                out.is_blocked = 1
                self.arm(self.armed & ~<uint32_t>EPOLLOUT)
                return True
            out.is_deaf = 1
            out.is_blocked = 0
            out_condemn(out, CLOSE_CLIENT_CLOSED)   # (attend() goes on, behind the fan-out that this may be in)
        self.arm(self.armed & ~<uint32_t>EPOLLOUT)
        return True

    cdef bint must_end(self) noexcept:
        """Whether the peer is to be closed now: not where it takes nothing more, and is heard out."""
        return self.peer.is_closing or (self.peer.out.close_reason != CLOSE_NONE and not self.peer.out.is_deaf)

    cdef int hear_out(self) except -1:
        """Go on with a client that has become deaf."""
        self.is_heard_out = True
        return (<ClientConnection>self.peer).become_deaf()

    cdef void block(self) noexcept:
        """The kernel takes no more for now."""
        self.peer.out.is_blocked = 1
        self.read_promptly()
        self.arm(self.armed | EPOLLOUT)

    cdef void part(self, int reason) noexcept:
        pass

    cdef int check_opening(self) except -1:
        return 0

    cdef void look_whether_it_takes(self) noexcept:
        """Note whether a blocked peer still reads. The kernel reports room only when a third of its buffer is empty,
        which takes a slow reader a second; unacknowledged bytes show it sooner."""
        cdef int unacknowledged = 0
        if ioctl(self.fd, SIOCOUTQ, &unacknowledged) == 0:
            if unacknowledged < self.unacknowledged:
                self.peer.out.taken_us = self.reactor.box.now_us
            self.unacknowledged = unacknowledged

    cdef int show_read(self, iovec *parts, int n, Py_ssize_t size) except -1:
        """Shows the owner what came in, for a trace."""
        if isinstance(self.peer, ClientConnection):
            self.owner.on_bytes_in(joined(parts, n, size))
        return 0

    cdef void show_sent(self, iovec *parts, int n, Py_ssize_t size) noexcept:
        """Shows the owner what went out, for a trace."""
        if isinstance(self.peer, ClientConnection):
            self.owner.on_bytes_out(joined(parts, n, size))

    cdef int end(self) except -1:
        """Send the peer's last bytes, unless it cannot take them; close the socket, and tell its owner."""
        cdef OutBuf *out = &self.peer.out
        cdef int reason = out.close_reason
        cdef bint speaks = reason not in (CLOSE_CLIENT_CLOSED, CLOSE_WRITE_ERROR, CLOSE_READ_ERROR,
                                          CLOSE_SLOW_CONSUMER_PENDING_BYTES, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE)
        if self.is_lingering or self.fd < 0:
            return 0
        if self.is_emptying:
            return self.close_if_empty()
        self.read_promptly()
        if speaks:
            self.flush()
        elif self.has_input_ended and reason == CLOSE_CLIENT_CLOSED and not isinstance(self.peer, ClientConnection) \
                and self.reactor.n_emptying < MOST_EMPTYING:
            self.flush()
            if out.is_blocked and self.has_unsent():
                return self.empty(reason)
        self.part(reason)
        if reason == CLOSE_SLOW_CONSUMER_PENDING_BYTES or reason == CLOSE_SLOW_CONSUMER_WRITE_DEADLINE:
            self.reactor.slow_consumers += 1
        self.owner.on_closed(reason)
        self.peer.is_closing = True
        if isinstance(self.peer, ClientConnection):
            self.reactor.release(<ClientConnection>self.peer)
        else:
            out_release(out)
        if speaks and out.close_reason != CLOSE_WRITE_ERROR:
            self.is_lingering = True
            self.linger_until_us = self.reactor.box.now_us + LINGER_US
            shutdown(self.fd, SHUT_WR)
            self.arm(EPOLLIN)
            self.close_if_heard()
        else:
            self.close()
        return 0

    cdef bint has_unsent(self) noexcept:
        return out_pending(&self.peer.out) != 0

    cdef int empty(self, int reason) except -1:
        cdef OutBuf *out = &self.peer.out
        cdef OutBuf rest   # (its owner releases the peer's)
        memset(&rest, 0, sizeof(rest))
        rest.box = out.box
        out_append_all(&rest, out)
        out_mark_clean(&rest)
        self.owner.on_closed(reason)
        self.peer.is_closing = True
        out_release(out)
        out.close_reason = CLOSE_NONE
        out_append_all(out, &rest)
        out.limit = out.pos
        out.close_reason = reason
        out.is_behind = 0
        out.box.relieved = 1   # (nobody waits for it any more)
        self.is_emptying = True
        self.reactor.n_emptying += 1
        self.arm(EPOLLOUT)
        return 0

    cdef int close_if_empty(self) except -1:
        if not (self.peer.out.is_blocked and self.has_unsent()):   # (or it cannot be sent)
            self.part(self.peer.out.close_reason)
            self.close()
        return 0

    cdef int close(self) except -1:
        if self.fd >= 0:
            self.reactor.n_emptying -= self.is_emptying
            self.peer.out.owner = NULL
            # Closing takes a connection out of the set only if no other process has it open. The router has, for a
            # moment, when it hands one over; then the set would go on reporting a socket that is freed.
            self.arm(0)
            close_fd(self.fd)
            self.fd = -1
            self.reactor.forget(self)
        return 0

    def kick(self, int reason):
        """End this connection with this CloseReason; no error is sent."""
        self.peer.close(<CloseReason>reason)
        out_call(&self.peer.out)

    def drain(self):
        """Read what has come, also the end; at most DRAIN_READS times, because the other end may still send."""
        cdef bint has_begun = self.reactor.begin_calls()
        try:
            self.read_to_end()
        finally:
            self.reactor.end_calls(has_begun)

    cdef int read_to_end(self) except -1:
        cdef size_t before
        self.peer.resume(self.reactor.shared, READ_BYTES)   # what was read before, and waited
        for _ in range(DRAIN_READS):
            if self.fd < 0 or self.must_end():
                return 0
            before = self.reactor.round.bytes_read
            self.read()
            if self.reactor.round.bytes_read == before:
                return 0
        return 0

    @property
    def is_hung_up(self) -> bool:
        """Whether the other end has closed; also of a connection that is not read now, which nobody is told of."""
        cdef pollfd look
        look.fd = self.fd
        look.events = POLLRDHUP
        look.revents = 0
        return poll(&look, 1, 0) > 0 and (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0

    @property
    def unread_bytes(self) -> int:
        """What has come and is not carried out: it is still in the kernel, or its peer is held, or goes on soon."""
        cdef int unread = 0
        if self.fd < 0 or ioctl(self.fd, FIONREAD, &unread) < 0:
            unread = 0
        return unread + (self.peer.partial_size if self.goes_on_later() else 0)

    def end_sending(self) -> bool:
        """Tell the other end that nothing more comes; what it sends is read on. False: something is not sent yet."""
        if self.fd >= 0:
            if out_pending(&self.peer.out):
                return False
            shutdown(self.fd, SHUT_WR)
        return True

    def blame(self):
        """As Reactor.blame(), for this one, in a callback of the loop: it is closed at once, or at the round's end."""
        self.reactor.blame(self)
        self.reactor.finish()

    def freeze(self):
        """This socket as a record (a FrozenSocket), beside what its peer has; nothing changes. RecordRefused: it is
        closing."""
        if self.fd < 0 or self.is_lingering or self.peer.is_closing:
            raise RecordRefused("it is being closed")
        return FrozenSocket(
            opened_us=self.opened_us, used_us=self.used_us, work=self.work, read_us=self.habit.read_us,
            is_narrow=self.habit.is_narrow, bulk_reads=self.habit.bulk_reads,
            small_reads=0 if self.habit.is_patient else self.habit.small_reads)

    def detach(self) -> int:
        """Take the descriptor out of the reactor, open as it is; the caller owns it. The owner is told nothing."""
        cdef int fd = self.fd
        if fd < 0 or self.is_lingering:
            raise ValueError("the socket is closed, or being closed")
        self.read_promptly()
        self.peer.out.owner = NULL
        self.arm(0)
        self.fd = -1
        self.reactor.forget(self)
        return fd

    @property
    def opened(self) -> int:
        """When it was opened, in µs of the monotonic clock."""
        return self.opened_us

    @property
    def pending_bytes(self) -> int:
        return out_pending(&self.peer.out)


cdef class Reactor:
    """One shard's sockets. `turn` is what the event loop calls when `fd` is readable."""

    def __cinit__(self, Fanout fanout not None, PageCounters counters=None, *, bint is_tracing=False):
        self.fanout = fanout
        self.counters = counters
        self.is_tracing = is_tracing
        self.box = fanout.box
        self.box.flush = flush_peer
        self.box.flush_owner = NULL
        self.sources = []
        self.gone = []
        self.leaving = deque()
        self.links = []
        self.round.most_bytes = READ_BYTES
        self.round.cycle = 1    # (sources begin with 0)
        self.held = []
        self.resuming = deque()
        self.shared = read_buffer()
        self.crowded = <epoll_event *>malloc(MOST_IN_CROWD * sizeof(epoll_event))
        if self.crowded == NULL:
            raise MemoryError
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "cannot make an epoll set")
        self.patient = new_patient_set(Patience(), self.fd, &self.round, self.box)
        self.crowd = Crowd()
        self.gathered = new_patient_set(self.crowd, self.fd, &self.round, self.box)
        self.read_clock()

    def __init__(self, *_args, **_named):
        cdef Tick tick
        cdef PatientSet patient
        for patient in (self.patient, self.gathered):
            tick = Tick()
            tick.patient = patient
            self.add(tick, patient.tick_fd, EPOLLIN)
            self.add(patient, patient.fd, EPOLLIN)

    def __dealloc__(self):
        if self.shared != NULL:
            free(self.shared - READ_BUFFER_AT)
        free(self.crowded)
        if self.fd > 0:
            close_fd(self.fd)

    cdef int add(self, Source source, int fd, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.ptr = <void *>source
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "cannot watch a socket")
        source.fd = fd
        source.set_fd = self.fd
        source.armed = events
        source.at = len(self.sources)
        self.sources.append(source)
        return 0

    cdef void forget(self, Source source) noexcept:
        """Remove it from the list; it stays alive until the round is over."""
        cdef Source last = self.sources.pop()
        self.gone.append(source)
        if isinstance(source, Socket) and not isinstance((<Socket>source).peer, ClientConnection):
            self.links.remove(source)
        if last is not source:
            self.sources[source.at] = last
            last.at = source.at
        source.at = -1

    # ---- for the shard, in Python

    def open(self, int fd, Peer peer not None, owner not None, Socket socket=None, *, bint is_local=False) -> Socket:
        """Take over a connected, non-blocking descriptor. `socket`: a new one of a subclass; None: make a plain one.

        `is_local`: a client on this host, whose receive buffer may start small (shards.sockets.window).
        `owner.on_closed(reason)` is called once, when the connection ends.
        """
        if socket is None:
            socket = Socket()
            socket.habit.is_narrow = is_local and narrow(fd)
        socket.reactor = self
        socket.peer = peer
        socket.owner = owner
        socket.opened_us = socket.habit.read_us = socket.used_us = self.box.now_us
        self.add(socket, fd, EPOLLIN)
        if not isinstance(peer, ClientConnection):
            self.links.append(socket)
        peer.out.owner = <void *>socket
        peer.out.taken_us = self.box.now_us
        self.newest = socket
        return socket

    def read_newest(self, int fd):
        """Read the connection that was opened last, if it has this descriptor, as the listener does that accepts one.

        Its client may not have waited for INFO: a broker that stops just now would close it unheard.
        """
        cdef Socket newest = self.newest
        cdef bint has_begun = self.begin_calls()
        try:
            if newest is not None and newest.fd == fd and not newest.is_opening:
                self.serve_one(newest, EPOLLIN)
            self.newest = None
        finally:
            self.end_calls(has_begun)

    def put(self, int fd, Peer peer not None, owner not None, frozen not None, Socket socket=None) -> Socket:
        """Take over the descriptor of a connection that had another socket, here or in another shard.

        As open(), with what is known of it (a FrozenSocket); `socket`: a LayeredSocket of that record, or None. Its
        output is sent, and its kept input is carried out, when the round is over: call finish().
        """
        cdef uint64_t taken_us = peer.out.taken_us
        if socket is None:
            socket = Socket()
        self.open(fd, peer, owner, socket)
        self.newest = None
        peer.out.taken_us = taken_us
        peer.out.is_blocked = 0
        socket.opened_us = frozen.opened_us
        socket.used_us = frozen.used_us
        socket.work = frozen.work
        socket.habit.read_us = frozen.read_us
        socket.habit.is_narrow = frozen.is_narrow
        socket.habit.small_reads = frozen.small_reads
        socket.habit.bulk_reads = frozen.bulk_reads
        if peer.holds:
            socket.arm(0)
        socket.flush()
        out_call(&peer.out)
        return socket

    cpdef release(self, ClientConnection client):
        """Take the subscriptions of a client out that this reactor serves no more: as many as others can wait for."""
        cdef uint32_t most = 0 if self.leaving else self.round.may_leave   # (who went before comes first)
        self.round.may_leave -= min(self.round.may_leave, client.subs.count)
        if not client.leave(most):
            self.leaving.append(client)

    cdef int go_on_leaving(self) except -1:
        """Take out subscriptions of clients that have gone, for a while. If there are more, a round comes at once."""
        cdef uint64_t until_us = monotonic_us() + (LEAVE_US if self.has_wait else LEAVE_LATER_US)
        while self.leaving:
            if (<ClientConnection>self.leaving[0]).leave(LEAVE_FEW):
                self.leaving.popleft()
            if monotonic_us() >= until_us:
                break
        if self.leaving and self.has_wait:
            self.round.is_due = True
        return 0

    def turn(self):
        """Serve the sources that are ready; repeat while there is much to read, for at most two milliseconds.

        For a loop that watches `fd`, where none waits in it (loop_wait).
        """
        cdef epoll_event events[MOST_EVENTS]
        cdef uint64_t started = 0, now
        cdef int n
        while True:
            self.read_clock()
            now = self.box.now_us
            if started == 0:
                started = now
            n = epoll_wait(self.fd, events, MOST_EVENTS, 0)
            if n <= 0:
                break
            self.serve_ready(events, n)
            if self.round.is_cut or now - started > MOST_TURN_US or (
                    self.round.bytes_read < BUSY_ROUND_BYTES and not self.round.has_accepted):
                break

    cdef int serve(self, epoll_event *events, int n) except -1:
        self.read_clock()
        return self.serve_ready(events, n)

    cdef int serve_ready(self, epoll_event *events, int n) except -1:
        """One round."""
        self.round.bytes_read = 0
        self.round.has_accepted = False
        self.round.opening_us = 0
        self.round.may_leave = LEAVE_AT_ONCE
        self.is_serving = self.is_busy = True
        self.n_ready = n
        try:
            if unlikely(self.round.is_long):
                self.serve_crowd()
            else:
                self.serve_events(events, n)
            if self.round.is_due:
                self.call_due()
            self.finish_round()
        finally:
            self.is_serving = self.is_busy = False
        self.rounds += 1
        if unlikely(self.is_ending):
            self.close()
        return 0

    cdef int serve_events(self, epoll_event *events, int n) except -1:
        cdef uint64_t began_us = self.box.now_us
        cdef size_t settled = 0, looked = 0
        cdef Source source = None
        cdef int i = 0
        self.round.is_cut = False
        while i < n:
            try:
                while i < n:
                    source = <Source>events[i].data.ptr
                    i += 1
                    if source.fd >= 0:
                        source.on_event(events[i - 1].events)
                    if self.round.bytes_read - settled > MOST_UNSETTLED_BYTES:
                        settled = self.round.bytes_read
                        self.settle()
                    if unlikely(i & 7 == 0 or self.round.bytes_read - looked > LOOK_BYTES) and i < n:
                        looked = self.round.bytes_read
                        if monotonic_us() - began_us > ROUND_US:
                            self.round.is_cut = True   # (epoll reports those that are left once more)
                            self.round.is_long = True
                            self.round.few_cycle += 1
                            self.round.cycle += 1
                            self.round.cycle_us = self.box.now_us
                            n = i
            except Exception:
                if not isinstance(source, Socket) or not (<Socket>source).peer.on_failure():
                    raise
                self.give_up(<Socket>source)
        return 0

    cdef int call_due(self) except -1:
        cdef Source source
        if self.n_ready:
            self.settle()   # who is due may take a while
        source = self.due
        self.set_due(None)
        if source is not None:      # (or it was closed, or started anew, while others were attended to)
            source.on_event(0)
        return 0

    cdef int serve_crowd(self) except -1:
        """One round where the last one was too long: those with little to say first, links, and then those with much.

        Of all that are ready, not of those that the kernel reports first: it puts who is reported behind all others, so
        somebody with little would be behind thousands. Long rounds are over when one takes a quarter of its time, and
        as much is read of each client as before.
        """
        cdef Round *round = &self.round
        cdef uint64_t began_us = monotonic_us()
        cdef uint64_t now_us
        cdef int n_many
        cdef int n = max(0, epoll_wait(self.fd, self.crowded, MOST_IN_CROWD, 0))
        self.n_ready = n
        round.is_cut = False
        n_many = self.serve_few(self.crowded, n, began_us + FEW_US)
        self.settle()
        self.serve_links()
        self.serve_many(self.crowded, n_many, max(began_us + ROUND_US, monotonic_us() + MANY_US))
        now_us = monotonic_us()
        if round.is_cut:
            if now_us - round.cycle_us > CYCLE_US:
                round.most_bytes = max(<uint32_t>FEW_BYTES, round.most_bytes // 4)
        elif now_us - began_us < ROUND_US // 4:
            if round.most_bytes == READ_BYTES:
                round.is_long = False
            round.most_bytes = min(<uint32_t>READ_BYTES, 2 * round.most_bytes)
        return 0

    cdef int serve_few(self, epoll_event *events, int n, uint64_t until_us) except -1:
        """Serve those who have little to say. The events of clients with much, and their number, are left.

        Where the time is not enough for all, those come next who have not had a turn since it was.
        """
        cdef Round *round = &self.round
        cdef bint is_over = False, are_left = False
        cdef Source source
        cdef uint32_t ready
        cdef int n_many = 0
        for i in range(n):
            source = <Source>events[i].data.ptr
            ready = events[i].events
            if source.fd < 0:
                continue
            if isinstance(source, Socket) and ready & EPOLLIN:
                if not isinstance((<Socket>source).peer, ClientConnection):
                    ready &= ~<uint32_t>EPOLLIN     # (serve_links)
                elif round.cycle - source.cycle <= 1 or has_much(source.fd):   # (the former: has had, and has the rest)
                    events[n_many].data.ptr = <void *>source
                    events[n_many].events = ready & ~<uint32_t>EPOLLOUT
                    n_many += 1
                    ready &= EPOLLOUT
            if not ready:
                continue
            if source.few_cycle == round.few_cycle:   # it has had its turn, and others were left
                round.is_cut = True
                continue
            if is_over:
                round.is_cut = are_left = True
                continue
            source.few_cycle = round.few_cycle
            self.serve_one(source, ready)
            is_over = monotonic_us() > until_us
        if not are_left:
            round.few_cycle += 1
        return n_many

    cdef int serve_links(self) except -1:
        """Siblings and other servers speak for many: they have a turn in each round, not one in each cycle."""
        cdef uint64_t began_us = monotonic_us()
        cdef Socket socket
        for item in list(self.links):
            socket = <Socket>item
            if socket.fd >= 0 and socket.armed & EPOLLIN:
                self.serve_one(socket, EPOLLIN)
            if socket.fd >= 0:   # behind the others
                self.links.remove(socket)
                self.links.append(socket)
            if monotonic_us() - began_us > ROUND_US:
                break
        return 0

    cdef int serve_many(self, epoll_event *events, int n, uint64_t until_us) except -1:
        """Serve clients with much to say: those first who have not had a turn in this cycle."""
        cdef Round *round = &self.round
        cdef size_t settled = round.bytes_read
        cdef Source source
        for i in range(n):
            source = <Source>events[i].data.ptr
            if source.fd < 0 or source.cycle == round.cycle:
                round.is_cut = True
                continue
            source.cycle = round.cycle
            self.serve_one(source, events[i].events)
            if round.bytes_read - settled > MOST_UNSETTLED_BYTES:
                settled = round.bytes_read
                self.settle()
            if i + 1 < n and monotonic_us() > until_us:
                round.is_cut = True
                return 0
        round.cycle += 1
        round.cycle_us = monotonic_us()
        return 0

    cdef int serve_one(self, Source source, uint32_t events) except -1:
        try:
            source.on_event(events)
        except Exception:
            if not isinstance(source, Socket) or not (<Socket>source).peer.on_failure():
                raise
            self.give_up(<Socket>source)
        return 0

    cdef uint32_t most_of(self, Peer peer) noexcept:
        return self.round.most_bytes * (1 if isinstance(peer, ClientConnection) else AS_MANY_CLIENTS)

    cdef void read_less(self, Peer peer, iovec *part) noexcept:
        """Others wait for long. (A large payload costs no more than the copy.)"""
        cdef bint is_shared = self.shared <= <uint8_t *>part.iov_base < self.shared + READ_BYTES
        cdef uint32_t most = self.most_of(peer)
        if is_shared and part.iov_len > most:
            part.iov_len = most

    cdef int give_up(self, Socket socket) except -1:
        """What this client or server sent is an error here, which costs its connection and nothing else."""
        logger.exception("%s - its connection is closed because of an error of ours", socket.owner)
        if socket.fd >= 0:
            socket.peer.close(CLOSE_PARSE_ERROR)
            out_call(&socket.peer.out)
        return 0

    def blame(self, Socket socket not None):
        """An error of ours is being handled, in what is done for this client or server alone: it costs that one its
        connection, as in a round. It is raised again where it costs more: a sibling's."""
        if not socket.peer.on_failure():
            raise
        self.give_up(socket)

    cdef void set_due(self, Source source) noexcept:
        self.due = source
        # (A timer that ends does not put off those for whom a round is to come at once.)
        self.round.is_due = source is not None or self.has_wait and (len(self.leaving) > 0 or len(self.resuming) > 0)

    def finish(self):
        """Sends what was appended from outside a turn. Where the reactor is closed it does nothing.

        From a callback of the reactor's: when it has called all that it is about to. Before that the read buffer is
        in use, and sockets that it will still look at must live.
        """
        if self.fd < 0:
            return
        if self.is_busy:
            self.is_unfinished = True
            return
        self.read_clock()
        self.is_busy = True
        try:
            self.finish_round()
        finally:
            self.is_busy = False
        if self.is_ending:
            self.close()

    cdef bint begin_calls(self) noexcept:
        if self.is_busy:
            return False
        self.is_busy = True
        self.is_unfinished = False
        return True

    cdef int end_calls(self, bint has_begun) except -1:
        if not has_begun:
            return 0
        self.is_busy = False
        if self.is_unfinished or self.is_ending:
            self.finish()
        return 0

    cdef void read_clock(self) noexcept:
        self.box.now_us = monotonic_us()

    @property
    def buffer_place(self) -> int:
        """Where in its page the read buffer begins."""
        return <size_t>self.shared % PAGE_BYTES

    def now_us(self) -> int:
        """The time that the engine was told last, in µs of the monotonic clock."""
        return self.box.now_us

    def close(self):
        """Close every connection at once; output that is not sent yet may be lost. Nothing works afterwards.

        From a callback of the reactor's: when it has called all that it is about to, and that was sent.
        """
        cdef Source source
        if self.is_busy:
            self.is_ending = True
            return
        while self.leaving:
            (<ClientConnection>self.leaving.popleft()).leave()
        self.held = []
        self.resuming.clear()
        for source in list(self.sources):
            if isinstance(source, Socket):
                (<Socket>source).peer.out.owner = NULL
                close_fd(source.fd)
                source.fd = -1
        self.sources.clear()
        self.gone = []
        self.patient.close()
        self.gathered.close()
        if self.fd > 0:
            close_fd(self.fd)
        self.fd = -1

    def sockets(self) -> list:
        """Every open socket's owner."""
        return [(<Socket>source).owner for source in self.sources if isinstance(source, Socket)]

    # ---- rounds

    cdef int finish_round(self) except -1:
        """Send queued output, close peers that end, resume peers that waited."""
        if self.counters is not None:   # before a client sees what is counted, and looks there
            publish_counters(self.counters, self.slow_consumers, self.stalls)
        self.settle()
        self.is_serving = False     # (what is appended behind this needs another round)
        if self.held or self.resuming:
            self.resume_held()
        if self.leaving:
            self.go_on_leaving()
        if self.round.may_leave <= LEAVE_AT_ONCE - LEAVE_FEW:
            merge_freed()
        self.settle()
        if self.gone:
            self.gone.clear()
        if self.counters is not None:
            publish_counters(self.counters, self.slow_consumers, self.stalls)
        return 0

    cdef int settle(self) except -1:
        """Send what was appended, and attend to peers that have called for it (out_call)."""
        while self.box.dirty != NULL or self.box.called != NULL:
            self.flush_dirty()
            self.attend()
        return 0

    cdef void flush_dirty(self) noexcept:
        cdef OutBuf *out
        while self.box.dirty != NULL:
            out = self.box.dirty
            self.box.dirty = out.next_dirty
            out.is_dirty = 0
            if out.owner != NULL:
                (<Socket>out.owner).flush()
                self.n_flushed += 1
                if unlikely(self.n_flushed % FLUSHES_BETWEEN_LOOKS == 0):
                    self.look_how_long()

    cdef void look_how_long(self) noexcept:
        """A message of 8 MB takes 6 ms for each subscriber; a router that hears nothing meanwhile thinks us hung."""
        cdef uint64_t now_us = monotonic_us()
        if now_us - max(self.box.now_us, self.alive_us) >= ALIVE_US:
            self.alive_us = now_us
            if self.on_long_flush is not None:
                self.on_long_flush()

    cdef int attend(self) except -1:
        cdef OutBuf *out
        cdef Socket socket
        while self.box.called != NULL:
            out = self.box.called
            self.box.called = out.next_called
            out.is_called = 0
            if out.owner == NULL:
                continue
            socket = <Socket>out.owner
            if socket.must_end():
                socket.end()
                continue
            try:
                if unlikely(out.is_blocked and not socket.armed & EPOLLOUT) and not socket.peer.holds:
                    out.is_blocked = 0      # (it took nothing while it moved, and stays)
                    socket.flush()
                if unlikely(out.is_deaf) and not socket.is_heard_out:
                    socket.hear_out()
                if not socket.peer.holds:
                    socket.peer.resume(self.shared, READ_BYTES)
                    socket.after_operations()
                    if not socket.peer.holds:
                        socket.arm(socket.armed | EPOLLIN)
                        socket.read_on()
            except Exception:
                if not socket.peer.on_failure():
                    raise
                self.give_up(socket)
        return 0

    cdef int resume_held(self) except -1:
        """Resume peers that have waited for STALL_US, or all of them if a slow receiver has caught up.

        Thousands may have waited, and have kept what they go on with: it is done for a while, then others have a round.
        """
        cdef list waiting = self.held
        cdef Socket socket
        cdef bint all_of_them = self.box.relieved
        cdef uint64_t until_us = monotonic_us() + RESUME_US
        self.box.relieved = 0
        self.held = []
        for item in waiting:
            socket = <Socket>item
            if all_of_them or self.box.now_us - socket.held_us >= STALL_US:
                self.resuming.append(socket)
            elif socket.fd >= 0:
                self.held.append(socket)
        while self.resuming:
            socket = self.resuming.popleft()
            if socket.fd >= 0:
                socket.peer.release(HOLD_STALL)
                self.attend()
            if self.has_wait and monotonic_us() >= until_us:
                break
        if self.resuming:
            self.round.is_due = True
        return self.settle()
