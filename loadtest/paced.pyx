# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Sends messages at a fixed rate, and measures how long each took from when it was due.

An open model: the schedule does not wait for the server. A message that could not be sent when it was due (full socket,
full window, a late generator) counts from when it was due, so that a pause of the server shows in all messages that it
delayed (no coordinated omission). Two more histograms count from the actual sending, and how late the generator was:
if that is as long as the latency, the generator was measured and not the server.
Every payload begins with both times; they are comparable on one machine only.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, timespec
from posix.unistd cimport close as close_fd, read as read_fd

from gnatswarm.loadtest.board cimport Board, board_read, board_write
from gnatswarm.loadtest.histogram cimport Histogram
from gnatswarm.loadtest.stream cimport (
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLET, EPOLL_CLOEXEC, Delivery, Stream, epoll_create1, epoll_event, fence,
    next_delivery, now_ns, send_some, stream_close, stream_drop, stream_fill, stream_open, wait_events, watch)

from gnatswarm.loadtest.errors import LoadFailed

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)

cdef enum:
    PUBLISHER = 0x10000000       # in an event's number; the rest is an index
    TIMER = 0x20000000
    MOST_EVENTS = 256
    OUT_BYTES = 65536            # of one write
    STAMP_BYTES = 16             # due, sent; nanoseconds
    # How long messages may still take after the end of the schedule.
    LINGER_MS = 10000

cdef struct Pacer:
    int index                    # on the board
    int group
    bint is_writable
    bint is_late                 # in the list of those that are
    int64_t turn_ns              # when it has its next turn
    int64_t due_ns               # of the first message that it has not sent
    int64_t sent
    size_t out_at
    size_t out_filled
    char *out                    # OWNED
    char *head                   # of its messages. BORROWED from `heads`
    size_t head_bytes


@cython.final
cdef class Paced:
    cdef Board board
    cdef Stream *streams         # publishers, then subscribers
    cdef Pacer *pacers
    cdef int publishers
    cdef int subscribers
    cdef list subscriber_indices
    cdef list groups_publishers  # of each group, those of other processes included
    cdef list groups_subscribers
    cdef list heads              # of each group's messages
    cdef int *late               # OWNED. Publishers with due messages that wait for a socket or for the window
    cdef int n_late
    cdef int turn                # the publisher whose turn is next; they have the same interval, so turns go round
    cdef size_t payload_bytes
    cdef size_t frame_bytes
    cdef int64_t interval_ns     # between one publisher's messages
    cdef int64_t duration_ns
    cdef int64_t window_msgs
    cdef int64_t start_ns
    cdef int epoll
    cdef int timer
    cdef readonly Histogram latency      # from when it was due
    cdef readonly Histogram service      # from when it was sent
    cdef readonly Histogram lateness     # from due to sent
    cdef readonly int64_t unsent_msgs    # due and never sent
    cdef readonly int64_t first_ns
    cdef readonly int64_t last_ns

    def __init__(self, Board board, int process, plan):
        cdef int i
        cdef bytes head
        self.board = board
        self.payload_bytes = max(STAMP_BYTES, plan.payload_bytes)
        self.groups_publishers, self.groups_subscribers = plan.groups_publishers, plan.groups_subscribers
        self.heads = [b"PUB %s %d\r\n" % (plan.subject_of(group, 0), self.payload_bytes)
                      for group in range(len(self.groups_publishers))]
        self.frame_bytes = len(self.heads[0]) + self.payload_bytes + 2
        self.interval_ns = max(1, <int64_t>(1e9 * board.publishers / plan.rate_per_s))
        self.duration_ns = <int64_t>(plan.limit_s * 1e9)
        self.window_msgs = max(10, plan.window_bytes // self.frame_bytes)
        self.latency, self.service, self.lateness = Histogram(), Histogram(), Histogram()
        self.publishers, self.subscribers = len(plan.publishers), len(plan.subscribers)
        self.subscriber_indices = [index for index, _, _ in plan.subscribers]
        self.pacers = <Pacer *>calloc(max(1, self.publishers), sizeof(Pacer))
        self.streams = <Stream *>calloc(max(1, self.publishers + self.subscribers), sizeof(Stream))
        self.late = <int *>calloc(max(1, self.publishers), sizeof(int))
        if self.pacers == NULL or self.streams == NULL or self.late == NULL:
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        watch(self.epoll, self.timer, EPOLLIN, TIMER)
        for i, (index, group, descriptor) in enumerate([*plan.publishers, *plan.subscribers]):
            stream_open(&self.streams[i], descriptor)
            if i < self.publishers:
                watch(self.epoll, descriptor, EPOLLIN | EPOLLOUT | EPOLLET, PUBLISHER + i)
                head = self.heads[group]
                self.pacers[i].head, self.pacers[i].head_bytes = head, len(head)
                self.pacers[i].index, self.pacers[i].group = index, group
                self.pacers[i].is_writable = True
                self.pacers[i].out = <char *>malloc(OUT_BYTES + self.frame_bytes)
                if self.pacers[i].out == NULL:
                    raise MemoryError
            else:
                watch(self.epoll, descriptor, EPOLLIN, i)

    def __dealloc__(self):
        cdef int i
        if self.streams != NULL:
            for i in range(self.publishers + self.subscribers):
                stream_close(&self.streams[i])
        if self.pacers != NULL:
            for i in range(self.publishers):
                free(self.pacers[i].out)
        free(self.streams)
        free(self.pacers)
        free(self.late)
        if self.epoll > 0:
            close_fd(self.epoll)
        if self.timer > 0:
            close_fd(self.timer)

    def run(self):
        """Run the whole schedule, and wait until all that was sent has arrived."""
        cdef int count, i
        cdef int64_t t = now_ns()
        cdef epoll_event events[MOST_EVENTS]
        cdef bint is_over = False
        self.start_ns = self.first_ns = t
        for i in range(self.publishers):
            # Spread over one interval, as independent clients would be.
            self.pacers[i].due_ns = t + self.interval_ns * self.pacers[i].index // self.board.publishers
            self.pacers[i].turn_ns = self.pacers[i].due_ns
        while True:
            self.send_all_due(t, is_over)
            if not is_over and t - self.start_ns >= self.duration_ns:
                is_over = True
                self.end_schedule(t)
            if is_over and (self.is_complete() or t - self.start_ns > self.duration_ns + <int64_t>LINGER_MS * 1000000):
                return
            if not is_over:
                self.set_timer()
            # Who is late may wait for the window: other processes' progress is no event.
            count = wait_events(self.epoll, events, MOST_EVENTS, 2 if is_over or self.n_late else 100)
            for i in range(count):
                self.on_event(&events[i])
            t = now_ns()

    cdef int send_all_due(self, int64_t t, bint is_over) except -1:
        """Send what is due by now: of those that are late, and of those whose turn has come."""
        cdef int n = self.n_late, i, at
        cdef Pacer *pacer
        self.n_late = 0
        for at in range(n):
            i = self.late[at]
            self.pacers[i].is_late = False
            self.send_due(i, is_over)
        while self.publishers and not is_over:
            pacer = &self.pacers[self.turn]
            if pacer.turn_ns > t:
                return 0
            pacer.turn_ns += self.interval_ns
            if not pacer.is_late:
                self.send_due(self.turn, is_over)
            self.turn = (self.turn + 1) % self.publishers
        return 0

    cdef void set_timer(self) noexcept:
        cdef itimerspec when
        cdef int64_t due = self.start_ns + self.duration_ns
        if self.publishers:
            due = min(due, self.pacers[self.turn].turn_ns)
        memset(&when, 0, sizeof(when))
        when.it_value.tv_sec = due // 1000000000
        when.it_value.tv_nsec = due % 1000000000
        timerfd_settime(self.timer, TFD_TIMER_ABSTIME, &when, NULL)

    cdef int64_t room(self, int group) except? -1:
        """How many messages a group's publishers may be ahead of its slowest subscriber, still."""
        cdef int64_t least = <int64_t>1 << 62
        cdef int64_t sent = 0
        cdef int i
        cdef list subscribers = self.groups_subscribers[group]
        for i in subscribers:
            least = min(least, board_read(self.board.got(i)))
        for i in <list>self.groups_publishers[group]:
            sent += board_read(self.board.sent(i))
        return least + self.window_msgs - sent if subscribers else least

    cdef int send_due(self, int i, bint is_over) except -1:
        """Send what is due of one publisher, and note whether that was not everything."""
        cdef Pacer *pacer = &self.pacers[i]
        cdef int64_t t = now_ns()
        cdef int64_t end = self.start_ns + self.duration_ns
        cdef int64_t room = self.room(pacer.group)
        cdef Py_ssize_t written
        while True:
            if pacer.out_at < pacer.out_filled:
                if not pacer.is_writable:
                    break
                written = send_some(self.streams[i].fd, pacer.out + pacer.out_at, pacer.out_filled - pacer.out_at)
                if written == 0:
                    pacer.is_writable = False
                    break
                pacer.out_at += written
                continue
            pacer.out_at = pacer.out_filled = 0
            while (not is_over and pacer.due_ns <= t and pacer.due_ns < end and room > 0
                   and pacer.out_filled < OUT_BYTES - self.frame_bytes):
                self.append(pacer, t)
                room -= 1
            if pacer.out_filled == 0:
                break
            board_write(self.board.sent(pacer.index), pacer.sent)
        if not pacer.is_late and (pacer.out_at < pacer.out_filled or (pacer.due_ns <= t and not is_over)):
            pacer.is_late = True
            self.late[self.n_late] = i
            self.n_late += 1
        return 0

    cdef void append(self, Pacer *pacer, int64_t t) noexcept:
        cdef char *to = pacer.out + pacer.out_filled
        memcpy(to, pacer.head, pacer.head_bytes)
        to += pacer.head_bytes
        memcpy(to, &pacer.due_ns, 8)
        memcpy(to + 8, &t, 8)
        memset(to + STAMP_BYTES, c"x", self.payload_bytes - STAMP_BYTES)
        memcpy(to + self.payload_bytes, b"\r\n", 2)
        self.lateness.add(t - pacer.due_ns, 1)
        pacer.out_filled += self.frame_bytes
        pacer.due_ns += self.interval_ns
        pacer.sent += 1

    cdef void end_schedule(self, int64_t t) noexcept:
        """Count messages that were due and never sent, and add the time that they have waited to the latencies."""
        cdef int i
        cdef int64_t end = self.start_ns + self.duration_ns
        for i in range(self.publishers):
            while self.pacers[i].due_ns < end:
                self.unsent_msgs += 1
                self.latency.add(t - self.pacers[i].due_ns, 1)
                self.pacers[i].due_ns += self.interval_ns
            board_write(self.board.done(self.pacers[i].index), 1)

    cdef bint is_complete(self) noexcept:
        cdef int64_t sent
        cdef int i, group
        for i in range(self.board.publishers):
            if not board_read(self.board.done(i)):
                return False
        for group in range(len(self.groups_publishers)):
            sent = 0
            for i in <list>self.groups_publishers[group]:
                sent += board_read(self.board.sent(i))
            for i in <list>self.groups_subscribers[group]:
                if board_read(self.board.got(i)) < sent:
                    return False
        for i in range(self.publishers):
            if self.pacers[i].out_at < self.pacers[i].out_filled:
                return False
        return True

    cdef int on_event(self, epoll_event *event) except -1:
        cdef int number = event.data.u32
        cdef char count[8]
        if number == TIMER:
            read_fd(self.timer, count, 8)
            return 0
        if number >= PUBLISHER:
            if event.events & EPOLLOUT:
                self.pacers[number - PUBLISHER].is_writable = True
            if event.events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                # Read all: this descriptor is edge-triggered.
                while self.read(&self.streams[number - PUBLISHER], -1):
                    pass
            return 0
        self.read(&self.streams[number], <int>self.subscriber_indices[number - self.publishers])
        return 0

    cdef bint read(self, Stream *stream, int index) except -1:
        """Read once; False: there was nothing to read."""
        cdef Delivery delivery
        cdef int64_t stamps[2]
        cdef int64_t t
        cdef int64_t got = 0
        cdef size_t at = 0
        cdef Py_ssize_t size
        if stream_fill(stream) == 0:
            return False
        t = now_ns()
        while True:
            size = next_delivery(stream, at, &delivery)
            if size == 0:
                break
            at += size
            if delivery.payload == NULL:
                continue
            if delivery.payload_bytes != self.payload_bytes:
                raise LoadFailed(f"a payload of {delivery.payload_bytes} bytes came, {self.payload_bytes} were sent")
            memcpy(stamps, delivery.payload, STAMP_BYTES)
            self.latency.add(t - stamps[0], 1)
            self.service.add(t - stamps[1], 1)
            got += 1
        stream_drop(stream, at)
        if got and index >= 0:
            self.last_ns = t
            board_write(self.board.got(index), board_read(self.board.got(index)) + got)
        return True

    def surplus(self):
        """Messages that arrive before each subscriber's PONG although all had arrived; there should be none."""
        return sum([fence(self.streams[self.publishers + i].fd, &self.streams[self.publishers + i])
                    for i in range(self.subscribers)])

    def received(self):
        """Deliveries by subscriber (index on the board)."""
        return {index: board_read(self.board.got(index)) for index in self.subscriber_indices}

    def sent(self):
        """Messages by publisher (index on the board)."""
        return {self.pacers[i].index: self.pacers[i].sent for i in range(self.publishers)}
