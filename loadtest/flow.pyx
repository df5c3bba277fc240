# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Publishers at full speed, and subscribers that count and compare every frame they get.

One process's share of it. Publishers write ready-made frames and stay within a window of unread bytes ahead of the
slowest subscriber of their group, so that no server has a reason to drop anything. A group is one subject (or a set of
rotating ones); with `is_queue` its subscribers share the messages, otherwise each gets all.
Costs the generator about 5 ns per frame sent or received; that is why it can ask a server for its peak.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset
from posix.unistd cimport close as close_fd, read as read_fd

from loadtest.board cimport Board, board_read, board_write
from loadtest.stream cimport (
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, READ_BYTES, Stream, epoll_create1,
    epoll_event, fence, now_ns, on_control_line, receive, send_all, send_some, stream_close, stream_open, wait_events,
    watch)

from loadtest.errors import LoadFailed

cdef enum:
    PUBLISHER = 0x10000000       # in an event's number; the rest is an index
    WAKER = 0x20000000
    MOST_EVENTS = 256
    LEAST_WINDOW_MSGS = 10
    NEVER_WINDOWED = 0

cdef struct Pub:
    int fd
    int index                    # on the board
    int group
    bint is_writable
    bint owes_pong               # the server's PING came in the middle of a frame
    bint asked                   # PING sent behind the last message
    bint is_done
    char *frames                 # OWNED: `count` of them, written round and round
    int64_t count
    int64_t frame_bytes
    int64_t sent_bytes
    int64_t total_bytes

cdef struct Sub:
    int fd
    int index
    int group
    char *held                   # OWNED: the beginning of a frame, at most one
    size_t held_bytes
    int64_t got


@cython.final
cdef class Flow:
    cdef Board board
    cdef int process
    cdef Pub *pubs
    cdef int publishers
    cdef Sub *subs
    cdef int subscribers
    cdef readonly int64_t frame_bytes        # of a delivery
    cdef char *expected                      # OWNED: a delivery as it must look, for the first subject
    cdef size_t head_bytes                   # of `expected` that are compared: up to the payload
    cdef size_t varying_at                   # where a rotating subject's digits are; they are not compared
    cdef size_t varying_bytes
    cdef bint is_queue
    cdef int64_t write_bytes
    cdef int64_t window_msgs
    cdef int64_t limit_ns
    cdef int64_t patience_ns                 # nothing moved for so long: the run is given up
    cdef int64_t wanted_msgs                 # without publishers: how many deliveries end the run; 0: time alone
    cdef list groups_pubs                    # group → board indices of its publishers
    cdef list groups_subs
    cdef readonly int64_t first_ns
    cdef readonly int64_t last_ns
    cdef char *buffer                        # OWNED
    cdef size_t buffer_bytes
    cdef int epoll

    def __init__(self, Board board, int process, plan):
        """`plan`: a FlowPlan; its publishers and subscribers that are this process's come with descriptors."""
        cdef int i
        self.board = board
        self.process = process
        self.is_queue = plan.is_queue
        self.write_bytes = plan.write_bytes
        self.limit_ns = <int64_t>(plan.limit_s * 1e9)
        self.patience_ns = <int64_t>(plan.patience_s * 1e9)
        self.wanted_msgs = plan.wanted_msgs
        self.groups_pubs = plan.groups_publishers
        self.groups_subs = plan.groups_subscribers
        self.expect(plan)
        self.window_msgs = max(LEAST_WINDOW_MSGS, plan.window_bytes // self.frame_bytes)
        self.pubs = <Pub *>calloc(max(1, len(plan.publishers)), sizeof(Pub))
        self.subs = <Sub *>calloc(max(1, len(plan.subscribers)), sizeof(Sub))
        self.buffer_bytes = max(READ_BYTES, 2 * self.frame_bytes)
        self.buffer = <char *>malloc(self.buffer_bytes + self.held_room())
        if self.pubs == NULL or self.subs == NULL or self.buffer == NULL:
            raise MemoryError
        for index, group, descriptor in plan.publishers:
            i = self.publishers
            self.publishers += 1
            self.pubs[i].fd, self.pubs[i].index, self.pubs[i].group = descriptor, index, group
            self.make_frames(&self.pubs[i], plan, group)
        for index, group, descriptor in plan.subscribers:
            i = self.subscribers
            self.subscribers += 1
            self.subs[i].fd, self.subs[i].index, self.subs[i].group = descriptor, index, group
            self.subs[i].held = <char *>malloc(self.held_room())
            if self.subs[i].held == NULL:
                raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        for i in range(self.publishers):
            watch(self.epoll, self.pubs[i].fd, EPOLLIN | EPOLLOUT | EPOLLET, PUBLISHER + i)
        for i in range(self.subscribers):
            watch(self.epoll, self.subs[i].fd, EPOLLIN, i)
        if board.processes > 1:
            watch(self.epoll, board.wakers[process], EPOLLIN, WAKER)

    def __dealloc__(self):
        cdef int i
        if self.pubs != NULL:
            for i in range(self.publishers):
                free(self.pubs[i].frames)
        if self.subs != NULL:
            for i in range(self.subscribers):
                free(self.subs[i].held)
        free(self.pubs)
        free(self.subs)
        free(self.buffer)
        free(self.expected)
        if self.epoll > 0:
            close_fd(self.epoll)

    cdef size_t held_room(self) noexcept:
        return self.frame_bytes + 65536  # or an INFO line

    cdef int expect(self, plan) except -1:
        """What a delivery of group 0 looks like; other groups' and other rotations' subjects differ in their digits."""
        cdef bytes subject = plan.subject_of(0, 0)
        cdef bytes head = b"MSG %s 1 %d\r\n" % (subject, plan.payload_bytes)
        self.head_bytes = len(head)
        self.frame_bytes = len(head) + plan.payload_bytes + 2
        self.varying_bytes = plan.varying_bytes
        self.varying_at = 4 + len(subject) - plan.varying_bytes
        self.expected = <char *>malloc(self.head_bytes)
        if self.expected == NULL:
            raise MemoryError
        memcpy(self.expected, <char *>head, self.head_bytes)
        return 0

    cdef int make_frames(self, Pub *pub, plan, int group) except -1:
        cdef int64_t j
        cdef bytes frame
        cdef char *at
        cdef int64_t rotation = max(1, plan.subjects)
        frame = b"PUB %s %d\r\n" % (plan.subject_of(group, 0), plan.payload_bytes)
        pub.frame_bytes = len(frame) + plan.payload_bytes + 2
        pub.count = max(1, self.write_bytes // pub.frame_bytes) + 1
        pub.count = (pub.count + rotation - 1) // rotation * rotation
        pub.frames = at = <char *>malloc(pub.count * pub.frame_bytes)
        if at == NULL:
            raise MemoryError
        for j in range(pub.count):
            if j < rotation:
                frame = b"PUB %s %d\r\n" % (plan.subject_of(group, j), plan.payload_bytes)
                memcpy(at, <char *>frame, len(frame))
                memset(at + len(frame), c"x", plan.payload_bytes)
                memcpy(at + pub.frame_bytes - 2, b"\r\n", 2)
            else:
                memcpy(at, pub.frames + (j % rotation) * pub.frame_bytes, pub.frame_bytes)
            at += pub.frame_bytes
        pub.total_bytes = plan.messages * pub.frame_bytes if plan.messages else 1 << 62
        pub.is_writable = True
        return 0

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self):
        """Until every message was sent and has come, or the time is up and all that was sent has come."""
        cdef int64_t start = now_ns()
        cdef int64_t moved_ns = start
        cdef int64_t t = start
        cdef int count, i
        cdef bint has_moved
        cdef epoll_event events[MOST_EVENTS]
        self.first_ns = start if self.publishers else 0
        while True:
            has_moved = False
            for i in range(self.publishers):
                if self.pubs[i].is_writable and not self.pubs[i].is_done and self.publish(&self.pubs[i]):
                    has_moved = True
            count = wait_events(self.epoll, events, MOST_EVENTS, 0 if has_moved else self.patience_ms())
            for i in range(count):
                if self.on_event(&events[i]):
                    has_moved = True
            t = now_ns()
            if has_moved:
                moved_ns = t
                self.board.wake_waiting(self.process)
            elif self.is_complete(t - start >= self.limit_ns):
                return
            elif t - moved_ns > self.patience_ns:
                raise LoadFailed(
                    f"nothing moved for {self.patience_ns / 1e9:g} s: {self.board.received_msgs:,} deliveries of"
                    f" {self.board.sent_msgs:,} messages sent")
            if t - start >= self.limit_ns:
                self.stop_publishing()

    cdef int patience_ms(self) noexcept:
        """How long to wait for events: others' progress has an eventfd, the end of a queue group has not."""
        cdef int i
        if self.board.processes == 1:
            return 20
        board_write(self.board.waiting(self.process), 1)
        for i in range(self.publishers):
            if self.pubs[i].is_writable and not self.pubs[i].is_done and self.room(&self.pubs[i]) > 0:
                return 0
        return 2

    cdef int64_t room(self, Pub *pub) noexcept:
        """How many messages more may be on their way in this group."""
        cdef int64_t least = <int64_t>1 << 62
        cdef int64_t received = 0
        cdef int64_t sent = 0
        cdef int64_t got
        cdef int index
        cdef list subs = <list>self.groups_subs[pub.group]
        if not subs:
            return least
        for index in subs:
            got = board_read(self.board.got(index))
            received += got
            if got < least:
                least = got
        for index in <list>self.groups_pubs[pub.group]:
            sent += board_read(self.board.sent(index))
        return (received if self.is_queue else least) + self.window_msgs - sent

    cdef bint publish(self, Pub *pub) except -1:
        """One write, if there is anything to write and room for it."""
        cdef int64_t limit = pub.total_bytes
        cdef int64_t whole = pub.frame_bytes * pub.count
        cdef int64_t started = (pub.sent_bytes + pub.frame_bytes - 1) // pub.frame_bytes
        cdef int64_t room = max(0, self.room(pub))
        cdef int64_t at = pub.sent_bytes % whole
        cdef int64_t size
        cdef bint is_between = pub.sent_bytes % pub.frame_bytes == 0
        if pub.owes_pong and is_between:
            send_all(pub.fd, b"PONG\r\n", 6)
            pub.owes_pong = False
        if room < <int64_t>1 << 60:
            limit = min(limit, (started + room) * pub.frame_bytes)
        size = min(limit - pub.sent_bytes, whole - at)
        size = min(size, max(self.write_bytes, pub.frame_bytes - at % pub.frame_bytes))
        if size > 0:
            size = send_some(pub.fd, pub.frames + at, size)
            if size == 0:
                pub.is_writable = False
                return False
            pub.sent_bytes += size
            board_write(self.board.sent(pub.index), (pub.sent_bytes + pub.frame_bytes - 1) // pub.frame_bytes)
        if pub.sent_bytes >= pub.total_bytes:
            return self.finish(pub)
        return size > 0

    cdef bint finish(self, Pub *pub) except -1:
        """Everything is written. Where nobody subscribes a PONG says that the server has read it."""
        if <list>self.groups_subs[pub.group]:
            self.declare_done(pub)
        elif not pub.asked:
            pub.asked = True
            send_all(pub.fd, b"PING\r\n", 6)
        else:
            return False
        return True

    cdef void declare_done(self, Pub *pub) noexcept:
        pub.is_done = True
        board_write(self.board.done(pub.index), 1)
        self.board.wake_all(self.process)

    cdef void stop_publishing(self) noexcept:
        """What is begun is finished; nothing more is begun."""
        cdef int i
        cdef Pub *pub
        for i in range(self.publishers):
            pub = &self.pubs[i]
            pub.total_bytes = min(
                pub.total_bytes, (pub.sent_bytes + pub.frame_bytes - 1) // pub.frame_bytes * pub.frame_bytes)

    cdef bint is_complete(self, bint is_time_up) except -1:
        cdef int i, index
        cdef int64_t sent, got
        for i in range(self.publishers):
            if not self.pubs[i].is_done:
                return False
        for i in range(self.subscribers):
            got = self.subs[i].got
            publishers = <list>self.groups_pubs[self.subs[i].group]
            if not publishers:
                if is_time_up or (self.wanted_msgs and got >= self.wanted_msgs):
                    continue
                return False
            sent = 0
            for index in publishers:
                if not board_read(self.board.done(index)):
                    return False
                sent += board_read(self.board.sent(index))
            if self.is_queue:
                got = 0
                for index in <list>self.groups_subs[self.subs[i].group]:
                    got += board_read(self.board.got(index))
            if got < sent:
                return False
        return True

    cdef bint on_event(self, epoll_event *event) except -1:
        cdef uint32_t number = event.data.u32
        cdef char count[8]
        if number == WAKER:
            read_fd(<int>self.board.wakers[self.process], count, 8)
            return True
        if number < PUBLISHER:
            return self.on_deliveries(&self.subs[number])
        if event.events & EPOLLOUT:
            self.pubs[number - PUBLISHER].is_writable = True
        if event.events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            self.on_words(&self.pubs[number - PUBLISHER])
        return True

    cdef int on_words(self, Pub *pub) except -1:
        """What a server says to a publisher: PING, PONG, INFO, an error. Short lines, so taken as they come."""
        cdef Py_ssize_t size
        while True:
            size = receive(pub.fd, self.buffer, self.buffer_bytes)
            if size == 0:
                return 0
            for line in (<bytes>self.buffer[:size]).split(b"\r\n"):
                if line == b"PING":
                    pub.owes_pong = True
                    pub.is_writable = True
                elif line == b"PONG" and pub.asked:
                    self.last_ns = now_ns()
                    self.declare_done(pub)
                elif line.startswith(b"-ERR"):
                    raise LoadFailed(f"the server said to a publisher: {line.decode('utf-8', 'replace')}")

    cdef bint on_deliveries(self, Sub *sub) except -1:
        """One read: count the frames in it, and keep the beginning of the one that is not whole."""
        cdef char *p = self.buffer
        cdef char *end
        cdef char *line_end
        cdef size_t frame = self.frame_bytes
        cdef int64_t got = 0
        cdef Py_ssize_t size
        if sub.held_bytes:
            memcpy(p, sub.held, sub.held_bytes)
        size = receive(sub.fd, p + sub.held_bytes, self.buffer_bytes)
        if size == 0:
            return False
        end = p + sub.held_bytes + size
        while p < end:
            if p[0] == c"M":
                if <size_t>(end - p) < frame:
                    break
                if not self.is_as_expected(p):
                    raise LoadFailed(f"a delivery that nobody should get: {(<bytes>p[:min(self.head_bytes, 80)])!r}")
                p += frame
                got += 1
            else:
                line_end = <char *>memchr(p, 10, end - p)
                if line_end == NULL or line_end == p:
                    break
                on_control_line(sub.fd, p, line_end - 1 - p)
                p = line_end + 1
        sub.held_bytes = end - p
        if sub.held_bytes > self.held_room():
            raise LoadFailed("the server sent a line without an end")
        memcpy(sub.held, p, sub.held_bytes)
        if got == 0:
            return False
        self.last_ns = now_ns()
        if self.first_ns == 0:
            self.first_ns = self.last_ns
        sub.got += got
        board_write(self.board.got(sub.index), sub.got)
        return True

    cdef inline bint is_as_expected(self, const char *p) noexcept:
        cdef size_t behind = self.varying_at + self.varying_bytes
        return (p[self.frame_bytes - 1] == 10 and memcmp(p, self.expected, self.varying_at) == 0
                and memcmp(p + behind, self.expected + behind, self.head_bytes - behind) == 0)

    # -- after it -----------------------------------------------------------------------------------------------------

    def surplus(self):
        """How many messages more come before each subscriber's PONG; there should be none."""
        cdef Stream stream
        cdef int64_t extra = 0
        cdef int i
        for i in range(self.subscribers):
            stream_open(&stream, self.subs[i].fd)
            try:
                if self.subs[i].held_bytes <= stream.room:
                    memcpy(stream.data, self.subs[i].held, self.subs[i].held_bytes)
                    stream.filled = self.subs[i].held_bytes
                extra += fence(self.subs[i].fd, &stream)
            finally:
                stream_close(&stream)
        return extra

    def received(self):
        """Deliveries by subscriber (index on the board)."""
        return {self.subs[i].index: self.subs[i].got for i in range(self.subscribers)}

    def sent(self):
        """Messages by publisher (index on the board)."""
        return {self.pubs[i].index: self.pubs[i].sent_bytes // self.pubs[i].frame_bytes for i in range(self.publishers)}
