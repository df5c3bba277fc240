# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Sends requests and responses: requesters with one pending request each, responders in one queue group.

One process's part. A closed loop: it measures how fast responses are when each requester waits for its response before
the next request, and says nothing about latency at a given rate (`paced` measures that).
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.unistd cimport close as close_fd

from gnatswarm.loadtest.board cimport Board, board_read, board_write
from gnatswarm.loadtest.histogram cimport Histogram
from gnatswarm.loadtest.stream cimport (
    EPOLLIN, EPOLL_CLOEXEC, Delivery, Stream, epoll_create1, epoll_event, fence, next_delivery, now_ns, send_all,
    stream_close, stream_drop, stream_fill, stream_open, wait_events, watch)

from gnatswarm.loadtest.errors import LoadFailed

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *to, size_t size, const char *format, ...)

cdef enum:
    MOST_EVENTS = 256
    LINE_BYTES = 512
    # The longest wait for events. A process that is alone knows when it is done, so it can wait long: a timer that
    # expires soon must be set for every wait, and that costs an exit from a virtual machine.
    ALONE_MS = 1000
    TOGETHER_MS = 20

cdef struct RequesterState:
    int index                    # on the board
    int64_t sent
    int64_t asked_ns
    bint is_done


@cython.final
cdef class RoundTrip:
    cdef Board board
    cdef Stream *streams         # requesters, then responders
    cdef RequesterState *requesters
    cdef int asking
    cdef int unfinished          # requesters that are not done
    cdef int answering
    cdef list responders         # their indices on the board
    cdef bytes subject
    cdef bytes inbox
    cdef int64_t messages        # per requester; 0: until the time is up
    cdef int64_t limit_ns
    cdef int64_t patience_ns
    cdef char *line              # OWNED: the request that is being built
    cdef char *answers           # OWNED: of one read
    cdef size_t answers_room
    cdef size_t payload_bytes
    cdef int epoll
    cdef readonly Histogram latency
    cdef readonly int64_t first_ns
    cdef readonly int64_t last_ns

    def __init__(self, Board board, int process, plan):
        cdef int i
        self.board = board
        self.subject = plan.subject_of(0, 0)
        self.inbox = plan.inbox
        self.messages = plan.messages
        self.limit_ns = <int64_t>(plan.limit_s * 1e9)
        self.patience_ns = <int64_t>(plan.patience_s * 1e9)
        self.payload_bytes = plan.payload_bytes
        self.latency = Histogram()
        self.responders = [index for index, _, _ in plan.subscribers]
        self.asking = len(plan.publishers)
        self.answering = len(plan.subscribers)
        self.requesters = <RequesterState *>calloc(max(1, self.asking), sizeof(RequesterState))
        self.streams = <Stream *>calloc(max(1, self.asking + self.answering), sizeof(Stream))
        self.line = <char *>malloc(LINE_BYTES + self.payload_bytes + 2)
        self.answers_room = 65536 + 2 * (LINE_BYTES + self.payload_bytes)
        self.answers = <char *>malloc(self.answers_room)
        if self.requesters == NULL or self.streams == NULL or self.line == NULL or self.answers == NULL:
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        for i, (index, _, descriptor) in enumerate([*plan.publishers, *plan.subscribers]):
            stream_open(&self.streams[i], descriptor)
            watch(self.epoll, descriptor, EPOLLIN, i)
            if i < self.asking:
                self.requesters[i].index = index

    def __dealloc__(self):
        cdef int i
        if self.streams != NULL:
            for i in range(self.asking + self.answering):
                stream_close(&self.streams[i])
        free(self.streams)
        free(self.requesters)
        free(self.line)
        free(self.answers)
        if self.epoll > 0:
            close_fd(self.epoll)

    def run(self):
        """Run until every request of every process has its response, or the time is up."""
        cdef int64_t start = now_ns()
        cdef int64_t t = start
        cdef int64_t moved_ns = start
        cdef int count, i
        cdef int wait_ms = min(ALONE_MS, self.patience_ns // 1000000) if self.board.processes == 1 else TOGETHER_MS
        cdef epoll_event events[MOST_EVENTS]
        self.first_ns = start if self.asking else 0
        self.unfinished = self.asking
        for i in range(self.asking):
            self.ask(i)
        while True:
            count = wait_events(self.epoll, events, MOST_EVENTS, wait_ms)
            for i in range(count):
                self.on_readable(<int>events[i].data.u32, t - start >= self.limit_ns)
            t = now_ns()
            if count:
                moved_ns = t
            elif self.is_complete():
                return
            elif t - moved_ns > self.patience_ns:
                raise LoadFailed(f"no answer for {self.patience_ns / 1e9:g} s, after {self.latency.count:,} of them")
            if self.asking and self.unfinished == 0 and self.is_complete():
                return

    cdef bint is_complete(self) noexcept:
        cdef int publisher
        for publisher in range(self.board.publishers):
            if not board_read(self.board.done(publisher)):
                return False
        return True

    cdef int ask(self, int i) except -1:
        cdef RequesterState *requester = &self.requesters[i]
        cdef int size
        requester.sent += 1
        size = snprintf(self.line, LINE_BYTES, b"PUB %s %s.%d.%lld %zu\r\n", <char *>self.subject, <char *>self.inbox,
                        requester.index, <long long>requester.sent, self.payload_bytes)
        memset(self.line + size, c"x", self.payload_bytes)
        memcpy(self.line + size + self.payload_bytes, b"\r\n", 2)
        requester.asked_ns = now_ns()
        send_all(self.streams[i].fd, self.line, size + self.payload_bytes + 2)
        board_write(self.board.sent(requester.index), requester.sent)
        return 0

    cdef int on_readable(self, int i, bint is_time_up) except -1:
        cdef Stream *stream = &self.streams[i]
        cdef Delivery delivery
        cdef size_t at = 0
        cdef size_t written = 0
        cdef int64_t answered = 0
        cdef Py_ssize_t size
        if stream_fill(stream) == 0:
            return 0
        while True:
            size = next_delivery(stream, at, &delivery)
            if size == 0:
                break
            at += size
            if delivery.payload == NULL:
                continue
            if delivery.payload_bytes != self.payload_bytes:
                raise LoadFailed(f"a payload of {delivery.payload_bytes} bytes came, {self.payload_bytes} were sent")
            if i < self.asking:
                self.on_answer(i, is_time_up)
                continue
            if not 0 < delivery.reply_bytes < LINE_BYTES - 32:
                raise LoadFailed("a request came without a reply subject that an answer can use")
            if written + LINE_BYTES + delivery.payload_bytes > self.answers_room:
                send_all(stream.fd, self.answers, written)
                written = 0
            memcpy(self.answers + written, b"PUB ", 4)
            memcpy(self.answers + written + 4, delivery.reply, delivery.reply_bytes)
            written += 4 + delivery.reply_bytes
            written += snprintf(self.answers + written, 32, b" %zu\r\n", delivery.payload_bytes)
            memcpy(self.answers + written, delivery.payload, delivery.payload_bytes + 2)
            written += delivery.payload_bytes + 2
            answered += 1
        if written:
            send_all(stream.fd, self.answers, written)
            at_board = self.board.got(<int>self.responders[i - self.asking])
            board_write(at_board, board_read(at_board) + answered)
        stream_drop(stream, at)
        return 0

    cdef int on_answer(self, int i, bint is_time_up) except -1:
        cdef RequesterState *requester = &self.requesters[i]
        cdef int64_t t = now_ns()
        if requester.is_done:
            raise LoadFailed("a second answer came to a request that had one")
        self.latency.add(t - requester.asked_ns, 1)
        if is_time_up or (self.messages and requester.sent >= self.messages):
            requester.is_done = True
            self.last_ns = t
            self.unfinished -= 1
            board_write(self.board.done(requester.index), 1)
            return 0
        return self.ask(i)

    def surplus(self):
        """Messages that arrive before each PONG although every request had its response; there should be none."""
        return sum([fence(self.streams[i].fd, &self.streams[i]) for i in range(self.asking + self.answering)])

    def received(self):
        """Requests by responder (index on the board)."""
        return {index: board_read(self.board.got(index)) for index in self.responders}

    def sent(self):
        """Requests by requester (index on the board)."""
        return {self.requesters[i].index: self.requesters[i].sent for i in range(self.asking)}
