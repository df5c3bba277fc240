# cython: language_level=3, boundscheck=False, wraparound=False
"""The sockets of one shard: who is ready, one read each, one send per peer with something to say.

It knows bytes and descriptors, no operation of the protocol: Peers are the engine's. Its epoll set is one
descriptor of the event loop, so that everything rarer (control channel, timers, log-in) is ordinary asyncio.
Invariants: what a round appended is flushed at its end; a Source stays alive until the round in which it was closed is
over; nothing here blocks.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close as close_fd, read as read_fd

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_READ_ERROR, CLOSE_SLOW_CONSUMER_PENDING_BYTES,
    CLOSE_SLOW_CONSUMER_WRITE_DEADLINE, CLOSE_WRITE_ERROR, CloseReason, iovec, out_call, out_condemn, out_gather,
    out_pending, out_release, out_take)
from gnatswarm.broker.peer cimport HOLD_STALL
from gnatswarm.broker.word cimport SLACK, likely, unlikely
from gnatswarm.shards.sockets.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT,
    epoll_create1, epoll_ctl, epoll_event, epoll_wait)
from gnatswarm.shards.boundary.page cimport Page
from gnatswarm.shards.sockets.patience cimport Patience
from gnatswarm.shards.sockets.window cimport narrow, widen

from gnatswarm.broker import errors


cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_NONBLOCK, TFD_CLOEXEC
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)

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

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)

cdef extern from "<linux/sockios.h>" nogil:
    enum:
        SIOCOUTQ

cdef extern from "<sys/uio.h>" nogil:
    Py_ssize_t readv(int fd, const iovec *parts, int n)


cdef enum:
    BUSY_ROUND_BYTES = 16384        # a round that read so much looks again before it goes back to the event loop,
    MOST_TURN_US = 2000             # for at most so long
    MOST_UNSETTLED_BYTES = 2097152  # read in one round before what they caused is sent: bounds its latency
    LINGER_US = 1000000             # a peer that was told why it is closed has so long to read it
    FIRST_PING_US = 2000000         # after so long a client's round trip is measured (nats-server: about 2 s)
    STALL_US = 100000               # a feeder waits for a slow client at most so long at a time
    LEAVE_SLICE = 20000             # subscriptions of a gone client taken out per round: some 5 ms
    # Patience (read moderation): who writes one message per write() is read less often, not once per message.
    SMALL_READ_BYTES = 4096         # a read of at most this is small;
    # Closer than this to the one before it is quick: 50,000 writes a second. (100 µs was tried: it took in a publisher
    # paced at 20,000 a second, whose messages then came 150 µs later for no gain that it would notice.)
    QUICK_US = 20
    READS_TO_TRUST = 16             # so many small, quick reads with nothing sent in between: a patient socket
    LARGE_READ_BYTES = READ_BYTES   # it no longer writes in small pieces
    BULK_READ_BYTES = 49152         # READS_TO_TRUST more of these than of small ones: it writes in large pieces
    THIN_READ_BYTES = 512           # it no longer writes fast, if so little is there
    THIN_READS = 8                  # at so many looks in a row
    IDLE_TICKS = 4                  # looks that find nothing before the clock is stopped


cdef inline uint64_t monotonic_us() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000 + t.tv_nsec // 1000


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


cdef void flush_peer(void *owner, OutBuf *out) noexcept:
    """What the engine calls when a chunk is full."""
    if out.owner != NULL:
        (<Socket>out.owner).flush()


cdef class Source:
    """Something with a descriptor in the reactor's set."""

    def __cinit__(self):
        self.fd = -1
        self.at = -1

    cdef int on_event(self, uint32_t events) except -1:
        raise NotImplementedError


cdef class Socket(Source):
    """A connected stream socket and the Peer whose bytes it carries. Owns the descriptor."""

    cdef int on_event(self, uint32_t events) except -1:
        if events & EPOLLOUT:
            self.peer.out.is_blocked = 0
            self.flush()
            if not self.peer.out.is_blocked:
                self.arm(self.armed & ~<uint32_t>EPOLLOUT)
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            if self.is_lingering:
                self.discard()
            else:
                self.read()
        return 0

    cdef void arm(self, uint32_t events) noexcept:
        """Asks for these events. None at all takes it out of the set: the kernel reports a hang-up to whoever is in it,
        asked or not, and a held client whose peer is gone would spin."""
        cdef epoll_event event
        cdef int set_ = self.reactor.patient_fd if self.is_patient else self.reactor.fd
        if self.fd < 0 or events == self.armed:
            return
        event.events = events
        event.data.ptr = <void *>self
        epoll_ctl(set_, EPOLL_CTL_DEL if events == 0 else EPOLL_CTL_ADD if self.armed == 0 else EPOLL_CTL_MOD,
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
        if likely(n == 1):
            got = recv(self.fd, parts[0].iov_base, parts[0].iov_len, 0)
        else:
            got = readv(self.fd, parts, n)
        if likely(got > 0):
            reactor.bytes_read += got
            reactor.note_read(self, got)
            if unlikely(reactor.is_tracing):
                self.show_read(parts, n, got)
            peer.received(reactor.shared, READ_BYTES, got)
            return self.after_operations()
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        peer.close(CLOSE_CLIENT_CLOSED if got == 0 else CLOSE_READ_ERROR)
        out_call(&peer.out)
        return 0

    cdef int read_on(self) except -1:
        return 0

    cdef int after_operations(self) except -1:
        """The peer has carried out operations: is it to be closed, or not to be read for now?"""
        if unlikely(self.peer.is_closing):
            out_call(&self.peer.out)
        elif unlikely(self.peer.holds != 0):
            self.arm(self.armed & ~<uint32_t>EPOLLIN)
            if self.peer.holds & HOLD_STALL:
                self.held_us = self.reactor.box.now_us
                self.reactor.stalls += 1
                self.reactor.held.append(self)
        return 0

    cdef int discard(self) except -1:
        cdef Py_ssize_t got = recv(self.fd, self.reactor.shared, READ_BYTES, 0)
        if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
            self.close()
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
                    out_condemn(out, CLOSE_WRITE_ERROR)
                    return
                took = 0
            if took:
                if unlikely(self.reactor.is_tracing):
                    self.show_sent(parts, n, took)
                self.was_sent = True
                out.taken_us = self.reactor.box.now_us
                out_take(out, took)
            if <size_t>took < total:
                if took == 0:
                    out.taken_us = self.reactor.box.now_us
                self.block()
                return

    cdef void block(self) noexcept:
        """The kernel takes no more for now."""
        self.peer.out.is_blocked = 1
        if self.is_patient:
            self.reactor.make_impatient(self)
        self.arm(self.armed | EPOLLOUT)

    cdef void part(self, int reason) noexcept:
        pass

    cdef int check_opening(self) except -1:
        return 0

    cdef void look_whether_it_takes(self) noexcept:
        """The kernel says that there is room again only when a third of its buffer is empty, which is a second for a
        slow reader. What the other side has not acknowledged yet tells sooner whether it reads at all."""
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
        """The peer is done with: says what it still has to say, closes, and lets its owner know."""
        cdef OutBuf *out = &self.peer.out
        cdef int reason = out.close_reason
        cdef bint speaks = reason not in (CLOSE_CLIENT_CLOSED, CLOSE_WRITE_ERROR, CLOSE_READ_ERROR,
                                          CLOSE_SLOW_CONSUMER_PENDING_BYTES, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE)
        if self.is_lingering or self.fd < 0:
            return 0
        if self.is_patient:
            self.reactor.make_impatient(self)
        if speaks:
            self.flush()
        self.part(reason)
        if reason == CLOSE_SLOW_CONSUMER_PENDING_BYTES or reason == CLOSE_SLOW_CONSUMER_WRITE_DEADLINE:
            self.reactor.slow_consumers += 1
        self.owner.on_closed(reason)
        self.peer.is_closing = True
        if isinstance(self.peer, ClientConnection):
            if not (<ClientConnection>self.peer).leave(LEAVE_SLICE):
                self.reactor.leaving.append(self.peer)
        else:
            out_release(out)
        if speaks and out.close_reason != CLOSE_WRITE_ERROR:
            # close() with unread input makes the kernel send a reset, which can overtake the -ERR.
            self.is_lingering = True
            self.linger_until_us = self.reactor.box.now_us + LINGER_US
            shutdown(self.fd, SHUT_WR)
            self.arm(EPOLLIN)
        else:
            self.close()
        return 0

    cdef int close(self) except -1:
        if self.fd >= 0:
            self.peer.out.owner = NULL
            # Closing takes a connection out of the set only if nobody else has it open. The router has for a moment
            # when it hands one over, and the set would go on reporting a socket that is freed.
            self.arm(0)
            close_fd(self.fd)
            self.fd = -1
            self.reactor.forget(self)
        return 0

    def kick(self, int reason):
        """Ends this connection with a CloseReason, without a word of its own."""
        self.peer.close(<CloseReason>reason)
        out_call(&self.peer.out)

    @property
    def opened(self) -> int:
        """When it was opened, in µs of the monotonic clock."""
        return self.opened_us

    @property
    def pending_bytes(self) -> int:
        return out_pending(&self.peer.out)


cdef class Tick(Source):
    """The clock of the patient sockets."""

    cdef int on_event(self, uint32_t events) except -1:
        cdef uint64_t expirations
        read_fd(self.fd, &expirations, sizeof(expirations))   # until then a periodic timer does not run on
        return self.reactor.look_at_patient()


cdef class PatientSet(Source):
    """The set of patient sockets itself, in the ready set while the clock stands still."""

    cdef int on_event(self, uint32_t events) except -1:
        self.reactor.start_ticking()
        return self.reactor.look_at_patient()


cdef class Reactor:
    """One shard's sockets. `turn` is what the event loop calls when `fd` is readable."""

    def __cinit__(self, Fanout fanout not None, Page page, int shard, limits):
        self.fanout = fanout
        self.box = fanout.box
        self.box.flush = flush_peer
        self.box.flush_owner = NULL
        self.sources = []
        self.gone = []
        self.leaving = []
        self.held = []
        self.patience = Patience()
        self.page = page
        if page is not None:
            self.slot = page.slot(shard)
            self.base[0] = self.slot.in_msgs
            self.base[1] = self.slot.in_bytes
            self.base[2] = self.slot.out_msgs
            self.base[3] = self.slot.out_bytes
            self.base[4] = self.slot.slow_consumers
            self.base[5] = self.slot.stalls
            self.base[6] = self.slot.link_in_msgs
            self.base[7] = self.slot.link_out_msgs
        self.set_limits(limits)
        self.shared = <uint8_t *>malloc(READ_BYTES + SLACK)
        if self.shared == NULL:
            raise MemoryError
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        self.patient_fd = epoll_create1(EPOLL_CLOEXEC)
        self.tick_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.fd < 0 or self.patient_fd < 0 or self.tick_fd < 0:
            raise OSError(errno, "cannot make an epoll set")
        self.box.now_us = monotonic_us()

    def __init__(self, *args):
        self.tick = Tick()
        self.patient_set = PatientSet()
        self.add(self.tick, self.tick_fd, EPOLLIN)
        self.add(self.patient_set, self.patient_fd, EPOLLIN | EPOLLONESHOT)

    def __dealloc__(self):
        free(self.shared)
        if self.fd > 0:
            close_fd(self.fd)
        if self.patient_fd > 0:
            close_fd(self.patient_fd)
        if self.tick_fd > 0:
            close_fd(self.tick_fd)

    cdef int add(self, Source source, int fd, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.ptr = <void *>source
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "cannot watch a socket")
        source.reactor = self
        source.fd = fd
        source.armed = events
        source.at = len(self.sources)
        self.sources.append(source)
        return 0

    cdef void forget(self, Source source) noexcept:
        """Out of the list; alive until the round is over."""
        cdef Source last = self.sources.pop()
        self.gone.append(source)
        if last is not source:
            self.sources[source.at] = last
            last.at = source.at
        source.at = -1

    # ---- for the shard, in Python

    def set_limits(self, limits):
        """Deadlines (broker.limits) that hold from here on."""
        self.ping_interval_us = <uint64_t>(limits.ping_interval_s * 1e6)
        self.ping_max = limits.ping_max
        self.auth_timeout_us = <uint64_t>(limits.auth_timeout_s * 1e6)
        self.write_deadline_us = <uint64_t>(limits.write_deadline_s * 1e6)

    def open(self, int fd, Peer peer not None, owner not None, Socket socket=None, *, bint is_local=False) -> Socket:
        """Takes over a connected, non-blocking socket, into a fresh `socket` if that is to be no plain one.

        `is_local`: a client on this host, whose receive buffer may start small (shards.sockets.window).

        `owner.on_closed(reason)` is called once, when it ends.
        """
        if socket is None:
            socket = Socket()
            socket.is_narrow = is_local and narrow(fd)
        socket.peer = peer
        socket.owner = owner
        socket.opened_us = socket.read_us = socket.used_us = self.box.now_us
        self.add(socket, fd, EPOLLIN)
        peer.out.owner = <void *>socket
        peer.out.taken_us = self.box.now_us
        self.newest = socket
        return socket

    def turn(self):
        """Serves who is ready; goes on while there is much to read, for at most two milliseconds."""
        cdef epoll_event events[MOST_EVENTS]
        cdef uint64_t started = 0, now
        cdef size_t settled
        cdef int n, i
        cdef Source source
        while True:
            now = monotonic_us()
            self.box.now_us = now
            if started == 0:
                started = now
            n = epoll_wait(self.fd, events, MOST_EVENTS, 0)
            if n <= 0:
                break
            self.bytes_read = settled = 0
            self.has_accepted = False
            self.opening_us = 0
            for i in range(n):
                source = <Source>events[i].data.ptr
                if source.fd >= 0:
                    source.on_event(events[i].events)
                if self.bytes_read - settled > MOST_UNSETTLED_BYTES:
                    settled = self.bytes_read
                    self.settle()
            self.finish_round()
            self.rounds += 1
            if (self.bytes_read < BUSY_ROUND_BYTES and not self.has_accepted) or now - started > MOST_TURN_US:
                break

    def finish(self):
        """Sends what was appended from outside a turn."""
        self.box.now_us = monotonic_us()
        self.finish_round()

    def now_us(self) -> int:
        """The time that the engine was told last, in µs of the monotonic clock."""
        return self.box.now_us

    def sweep(self, double share=0.1):
        """Looks at the deadlines of a share of the sockets; called ten times a second it sees each once a second."""
        cdef Py_ssize_t n = len(self.sources), _i
        cdef Py_ssize_t todo = <Py_ssize_t>(n * share) + 64
        cdef Source source
        self.box.now_us = monotonic_us()
        if todo > n:
            todo = n
        for _i in range(todo):
            if not self.sources:
                break
            self.swept_at += 1
            if self.swept_at >= <uint64_t>len(self.sources):
                self.swept_at = 0
            source = <Source>self.sources[self.swept_at]
            if isinstance(source, Socket):
                self.check(<Socket>source)
        self.finish_round()

    def close(self):
        """Closes every connection at once; what their peers have not read may be lost. It is of no use afterwards."""
        cdef Source source
        cdef int fd
        for client in self.leaving:
            while not (<ClientConnection>client).leave(LEAVE_SLICE):
                pass
        self.leaving = []
        self.held = []
        for source in list(self.sources):
            if isinstance(source, Socket):
                (<Socket>source).peer.out.owner = NULL
                close_fd(source.fd)
                source.fd = -1
        self.sources = []
        self.gone = []
        for fd in (self.fd, self.patient_fd, self.tick_fd):
            if fd > 0:
                close_fd(fd)
        self.fd = self.patient_fd = self.tick_fd = -1

    def sockets(self) -> list:
        """Every open socket's owner."""
        return [(<Socket>source).owner for source in self.sources if isinstance(source, Socket)]

    # ---- rounds

    cdef int finish_round(self) except -1:
        """Sends what there is to send, closes who is to be closed, lets go on who waited."""
        if self.slot != NULL:
            self.publish_counters()   # before anybody can have seen what is counted, and look
        self.settle()
        if self.held:
            self.resume_held()
        if self.leaving:
            self.leaving = [client for client in self.leaving if not (<ClientConnection>client).leave(LEAVE_SLICE)]
        if self.gone:
            self.gone.clear()
        if self.slot != NULL:
            self.publish_counters()
        return 0

    cdef int settle(self) except -1:
        """Sends what was appended, and attends to who was called."""
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
            if socket.peer.is_closing or out.close_reason != CLOSE_NONE:
                socket.end()
            elif not socket.peer.holds:
                socket.peer.resume(self.shared, READ_BYTES)
                socket.after_operations()
                if not socket.peer.holds:
                    socket.arm(socket.armed | EPOLLIN)
                    socket.read_on()
        return 0

    cdef int resume_held(self) except -1:
        """Lets feeders go on whose time is up, or all of them once somebody slow has caught up."""
        cdef list waiting = self.held
        cdef Socket socket
        cdef bint all_of_them = self.box.relieved
        self.box.relieved = 0
        self.held = []
        for item in waiting:
            socket = <Socket>item
            if socket.fd < 0:
                continue
            if all_of_them or self.box.now_us - socket.held_us >= STALL_US:
                socket.peer.release(HOLD_STALL)
            else:
                self.held.append(socket)
        return self.settle()

    cdef void publish_counters(self) noexcept:
        self.slot.in_msgs = self.base[0] + self.fanout.in_msgs
        self.slot.in_bytes = self.base[1] + self.fanout.in_bytes
        self.slot.out_msgs = self.base[2] + self.fanout.out_msgs
        self.slot.out_bytes = self.base[3] + self.fanout.out_bytes
        self.slot.slow_consumers = self.base[4] + self.slow_consumers
        self.slot.stalls = self.base[5] + self.stalls
        self.slot.link_in_msgs = self.base[6] + self.fanout.link_in_msgs
        self.slot.link_out_msgs = self.base[7] + self.fanout.link_out_msgs
        if self.interest is not None:
            self.slot.subscriptions = self.interest.n_subs - self.own_subs

    # ---- deadlines

    cdef int check(self, Socket socket) except -1:
        cdef uint64_t now = self.box.now_us
        cdef OutBuf *out = &socket.peer.out
        cdef ClientConnection client
        cdef uint64_t idle, work
        if socket.is_lingering:
            if now >= socket.linger_until_us:
                socket.close()
            return 0
        if not isinstance(socket.peer, ClientConnection):
            return 0
        if socket.is_opening:
            return socket.check_opening()
        client = <ClientConnection>socket.peer
        work = client.in_msgs + out.msgs + client.subs.count
        if work != socket.work:
            socket.work = work
            socket.used_us = max(client.active_us, out.taken_us)
        if out.is_blocked and now - out.taken_us > self.write_deadline_us:
            out_condemn(out, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE)
        elif client.must_authenticate:
            if now - socket.opened_us > self.auth_timeout_us:
                client.end(errors.AuthenticationTimeout())
        elif client.holds == 0:   # who is not read cannot be stale
            idle = now - (client.active_us if client.active_us > client.pinged_us else client.pinged_us)
            if (client.rtt_us == 0 and client.pings_out == 0 and now - socket.opened_us > FIRST_PING_US) \
                    or idle > self.ping_interval_us:
                if client.pings_out >= self.ping_max:
                    client.end(errors.StaleConnection())
                else:
                    client.ping()
        return 0

    # ---- patience

    cdef void note_read(self, Socket socket, Py_ssize_t n) noexcept:
        cdef uint64_t now = self.box.now_us
        if socket.is_patient:
            socket.small_reads = socket.small_reads + 1 if n < THIN_READ_BYTES else 0
            if socket.was_sent or n >= LARGE_READ_BYTES or socket.small_reads >= THIN_READS:
                self.make_impatient(socket)
        elif n <= SMALL_READ_BYTES and not socket.was_sent and now - socket.read_us < QUICK_US:
            socket.small_reads += 1
            if socket.small_reads >= READS_TO_TRUST and isinstance(socket.peer, ClientConnection):
                self.make_patient(socket)
        else:
            socket.small_reads = 0
            if unlikely(socket.is_narrow):
                if n >= BULK_READ_BYTES:
                    socket.bulk_reads += 1
                    if socket.bulk_reads >= READS_TO_TRUST:
                        socket.is_narrow = False
                        widen(socket.fd)
                elif n <= SMALL_READ_BYTES and socket.bulk_reads:
                    socket.bulk_reads -= 1
        socket.was_sent = False
        socket.read_us = now

    cdef void make_patient(self, Socket socket) noexcept:
        cdef epoll_event event
        if socket.armed != EPOLLIN:
            return
        epoll_ctl(self.fd, EPOLL_CTL_DEL, socket.fd, &event)
        event.events = EPOLLIN
        event.data.ptr = <void *>socket
        epoll_ctl(self.patient_fd, EPOLL_CTL_ADD, socket.fd, &event)
        socket.is_patient = True
        socket.small_reads = 0
        self.n_patient += 1
        self.start_ticking()

    cdef void make_impatient(self, Socket socket) noexcept:
        cdef epoll_event event
        epoll_ctl(self.patient_fd, EPOLL_CTL_DEL, socket.fd, &event)
        event.events = socket.armed
        event.data.ptr = <void *>socket
        if socket.armed:
            epoll_ctl(self.fd, EPOLL_CTL_ADD, socket.fd, &event)
        socket.is_patient = False
        socket.small_reads = 0
        self.n_patient -= 1

    cdef void set_tick(self, uint32_t us) noexcept:
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_nsec = us * 1000
        when.it_interval.tv_nsec = us * 1000
        timerfd_settime(self.tick_fd, 0, &when, NULL)

    cdef void start_ticking(self) noexcept:
        if not self.is_ticking:
            self.is_ticking = True
            self.idle_ticks = 0
            self.patience.begin(self.box.now_us)
            self.set_tick(self.patience.tick_us)

    cdef void stop_ticking(self) noexcept:
        """The next byte from a patient socket is served at once, and starts the clock again."""
        cdef epoll_event event
        self.is_ticking = False
        self.set_tick(0)
        event.events = EPOLLIN | EPOLLONESHOT
        event.data.ptr = <void *>self.patient_set
        epoll_ctl(self.fd, EPOLL_CTL_MOD, self.patient_fd, &event)

    cdef int look_at_patient(self) except -1:
        cdef epoll_event events[MOST_EVENTS]
        cdef size_t before = self.bytes_read, found
        cdef int n = epoll_wait(self.patient_fd, events, MOST_EVENTS, 0)
        cdef int i
        cdef uint32_t tick = self.patience.tick_us
        cdef Source source
        if n <= 0:
            self.idle_ticks += 1
            if self.idle_ticks >= IDLE_TICKS and self.is_ticking:
                self.stop_ticking()
            return 0
        self.idle_ticks = 0
        for i in range(n):
            source = <Source>events[i].data.ptr
            if source.fd >= 0:
                source.on_event(events[i].events)
        found = self.bytes_read - before
        self.bytes_read = before   # the clock says when to look again, not how much there was
        self.patience.after_look(found, self.box.now_us)
        if self.patience.tick_us != tick and self.is_ticking:
            self.set_tick(self.patience.tick_us)
        return 0
