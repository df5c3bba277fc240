# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Publishers at full speed, and subscribers that count and compare every frame they get.

One process's share of it. Publishers write ready-made frames and stay within a window of unread bytes ahead of the
slowest subscriber of their group, so that no server has a reason to drop anything. A group is one subject (or a set of
rotating ones); with `is_queue` its subscribers share the messages, otherwise each gets all.
A frame costs nanoseconds, and a write little more than its system calls, so that a server can be driven to its peak.
Therefore values that a write needs are kept, not computed: it uses no list, no clock and no division.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy, memset
from posix.unistd cimport close as close_fd, read as read_fd

from gnatswarm.loadtest.board cimport Board, board_read, board_write
from gnatswarm.loadtest.stream cimport (
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, READ_BYTES, Stream, epoll_create1,
    epoll_event, fence, now_ns, on_control_line, receive, send_all, send_some, stream_close, stream_open, wait_events,
    watch)

from gnatswarm.loadtest.errors import LoadFailed

cdef enum:
    PUBLISHER = 0x10000000       # in an event's number; the rest is an index
    WAKER = 0x20000000
    MOST_EVENTS = 256
    LEAST_WINDOW_MSGS = 10
    STEPS_A_CLOCK = 64           # writes tried and events taken between two looks at the clock
    WORD = 8                     # bytes that are compared at once
    ALONE_MS = 200               # longest wait for events if no other process runs; only for patience and time limits

# Larger than any number of messages: room if nobody subscribes, messages if only time ends the run.
cdef int64_t UNLIMITED = <int64_t>1 << 60

cdef struct Group:
    int *publishers              # OWNED: all of them, this process's or not; indices on the board
    int *subscribers             # OWNED
    int n_publishers
    int n_subscribers
    bint is_all_ours             # no other process publishes to it: the room is what we have not used, or more
    int64_t room                 # messages that may be started, as last measured

cdef struct Pub:
    int fd
    int index                    # on the board
    int group
    bint is_writable
    bint owes_pong               # the server's PING came in the middle of a frame
    bint asked                   # PING sent after the last message
    bint is_done
    char *frames                 # OWNED: `frames_bytes` bytes, written again and again
    int64_t frames_bytes
    int64_t frame_bytes
    int64_t at                   # position in `frames` of the next byte to write, …
    int64_t in_frame             # … and how many bytes of its frame are written
    int64_t begun                # messages started
    int64_t messages             # to be begun
    int64_t most_at_once         # messages in one write, at the most

cdef struct Sub:
    int fd
    int index
    int group
    char *held                   # OWNED: the beginning of a frame, at most one
    size_t held_bytes
    int64_t got


cdef int *indices(list numbers) except NULL:
    """The same as an array."""
    cdef int *found = <int *>malloc(max(1, len(numbers)) * sizeof(int))
    cdef int i
    if found == NULL:
        raise MemoryError
    for i in range(<int>len(numbers)):
        found[i] = numbers[i]
    return found


@cython.final
cdef class Flow:
    cdef Board board
    cdef int process
    cdef Pub *pubs
    cdef int publishers
    cdef Sub *subs
    cdef int subscribers
    cdef readonly int64_t frame_bytes        # of a delivery
    cdef size_t head_bytes                   # of a delivery up to the payload, which are compared
    cdef size_t head_words
    cdef uint64_t *expected                  # OWNED: the expected head, for the first subject
    cdef uint64_t *compared                  # OWNED: a mask of the bits that are compared
    cdef bint is_queue
    cdef int64_t write_bytes
    cdef int64_t window_msgs
    cdef int64_t limit_ns
    cdef int64_t patience_ns                 # the run fails after this long without progress
    cdef int64_t wanted_msgs                 # without publishers: how many deliveries end the run; 0: time alone
    cdef Group *groups                       # OWNED
    cdef int n_groups
    cdef bint has_news                       # deliveries came since last_ns
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
        self.expect(plan)
        self.window_msgs = max(LEAST_WINDOW_MSGS, plan.window_bytes // self.frame_bytes)
        self.pubs = <Pub *>calloc(max(1, len(plan.publishers)), sizeof(Pub))
        self.subs = <Sub *>calloc(max(1, len(plan.subscribers)), sizeof(Sub))
        self.buffer_bytes = max(READ_BYTES, 2 * self.frame_bytes)
        self.buffer = <char *>malloc(self.buffer_bytes + self.held_room() + WORD)  # room for the last whole word
        if self.pubs == NULL or self.subs == NULL or self.buffer == NULL:
            raise MemoryError
        self.make_groups(plan)
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
        if self.groups != NULL:
            for i in range(self.n_groups):
                free(self.groups[i].publishers)
                free(self.groups[i].subscribers)
        free(self.pubs)
        free(self.subs)
        free(self.groups)
        free(self.buffer)
        free(self.expected)
        free(self.compared)
        if self.epoll > 0:
            close_fd(self.epoll)

    cdef size_t held_room(self) noexcept:
        return self.frame_bytes + 65536  # or an INFO line

    cdef int expect(self, plan) except -1:
        """Set the expected head of group 0's deliveries; other groups and rotations differ in the subject's digits."""
        cdef bytes subject = plan.subject_of(0, 0)
        cdef bytes head = b"MSG %s 1 %d\r\n" % (subject, plan.payload_bytes)
        cdef size_t varying_bytes = plan.varying_bytes
        self.head_bytes = len(head)
        self.frame_bytes = len(head) + plan.payload_bytes + 2
        self.head_words = (self.head_bytes + WORD - 1) // WORD
        self.expected = <uint64_t *>calloc(self.head_words, WORD)
        self.compared = <uint64_t *>calloc(self.head_words, WORD)
        if self.expected == NULL or self.compared == NULL:
            raise MemoryError
        memcpy(self.expected, <char *>head, self.head_bytes)
        memset(self.compared, 255, self.head_bytes)
        memset(<char *>self.compared + 4 + len(subject) - varying_bytes, 0, varying_bytes)
        for i in range(self.head_words):
            self.expected[i] &= self.compared[i]
        return 0

    cdef int make_groups(self, plan) except -1:
        cdef list publishers = plan.groups_publishers
        cdef list subscribers = plan.groups_subscribers
        cdef list ours = [group for _, group, _ in plan.publishers]
        cdef int i
        self.groups = <Group *>calloc(len(publishers), sizeof(Group))
        if self.groups == NULL:
            raise MemoryError
        for i in range(<int>len(publishers)):
            self.n_groups += 1
            self.groups[i].n_publishers = len(publishers[i])
            self.groups[i].n_subscribers = len(subscribers[i])
            self.groups[i].publishers = indices(publishers[i])
            self.groups[i].subscribers = indices(subscribers[i])
            self.groups[i].is_all_ours = ours.count(i) == len(publishers[i])
        return 0

    cdef int make_frames(self, Pub *pub, plan, int group) except -1:
        cdef int64_t j, count
        cdef bytes frame
        cdef char *at
        cdef int64_t rotation = max(1, plan.subjects)
        frame = b"PUB %s %d\r\n" % (plan.subject_of(group, 0), plan.payload_bytes)
        pub.frame_bytes = len(frame) + plan.payload_bytes + 2
        pub.most_at_once = max(1, self.write_bytes // pub.frame_bytes) + 1
        count = (pub.most_at_once + rotation - 1) // rotation * rotation
        pub.frames_bytes = count * pub.frame_bytes
        pub.frames = at = <char *>malloc(pub.frames_bytes)
        if at == NULL:
            raise MemoryError
        for j in range(count):
            if j < rotation:
                frame = b"PUB %s %d\r\n" % (plan.subject_of(group, j), plan.payload_bytes)
                memcpy(at, <char *>frame, len(frame))
                memset(at + len(frame), c"x", plan.payload_bytes)
                memcpy(at + pub.frame_bytes - 2, b"\r\n", 2)
            else:
                memcpy(at, pub.frames + (j % rotation) * pub.frame_bytes, pub.frame_bytes)
            at += pub.frame_bytes
        pub.messages = plan.messages if plan.messages else UNLIMITED
        pub.is_writable = True
        return 0

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self):
        """Run until all messages were sent, or the time is up, and all that were sent have arrived."""
        cdef int64_t start = now_ns()
        cdef int64_t moved_ns = start
        cdef int64_t t = start
        cdef int steps = 0
        cdef int count, i
        cdef bint has_moved
        cdef bint is_unseen = False              # there was progress, and we have not waited since
        cdef epoll_event events[MOST_EVENTS]
        self.first_ns = start if self.publishers else 0
        while True:
            has_moved = False
            for i in range(self.publishers):
                if self.pubs[i].is_writable and not self.pubs[i].is_done and self.publish(&self.pubs[i]):
                    has_moved = True
            if is_unseen and not has_moved:
                # Before waiting: the last delivery came just now, and there may be nothing to wait for.
                is_unseen = False
                t = moved_ns = self.look_at_clock()
                if self.is_complete(t - start >= self.limit_ns):
                    return
            count = wait_events(self.epoll, events, MOST_EVENTS, 0 if has_moved else self.patience_ms())
            for i in range(count):
                if self.on_event(&events[i]):
                    has_moved = True
            if has_moved:
                if self.board.processes > 1:
                    self.board.wake_waiting(self.process)
                is_unseen = True
                steps += self.publishers + count
                if steps < STEPS_A_CLOCK:
                    continue
                steps = 0
                t = moved_ns = self.look_at_clock()
            else:
                t = now_ns()
                if self.is_complete(t - start >= self.limit_ns):
                    return
                if t - moved_ns > self.patience_ns:
                    raise LoadFailed(
                        f"nothing moved for {self.patience_ns / 1e9:g} s: {self.board.received_msgs:,} deliveries of"
                        f" {self.board.sent_msgs:,} messages sent")
            if t - start >= self.limit_ns:
                self.stop_publishing()

    cdef int64_t look_at_clock(self) noexcept:
        """The present time, which is also stored as that of the last deliveries if there are new ones."""
        cdef int64_t t = now_ns()
        if self.has_news:
            self.has_news = False
            self.last_ns = t
        return t

    cdef int patience_ms(self) noexcept:
        """How long to wait for events: other processes' progress has an eventfd, the end of a queue group does not."""
        cdef int i
        if self.board.processes == 1:
            return ALONE_MS
        board_write(self.board.waiting(self.process), 1)
        for i in range(self.publishers):
            if self.pubs[i].is_writable and not self.pubs[i].is_done:
                self.measure_room(&self.groups[self.pubs[i].group])
                if self.groups[self.pubs[i].group].room > 0:
                    return 0
        return 2

    cdef void measure_room(self, Group *group) noexcept:
        """Compute how many more messages may be on their way in this group."""
        cdef int64_t least = UNLIMITED
        cdef int64_t received = 0
        cdef int64_t sent = 0
        cdef int64_t got
        cdef int i
        if group.n_subscribers == 0:
            group.room = UNLIMITED
            return
        for i in range(group.n_subscribers):
            got = board_read(self.board.got(group.subscribers[i]))
            received += got
            if got < least:
                least = got
        for i in range(group.n_publishers):
            sent += board_read(self.board.sent(group.publishers[i]))
        group.room = (received if self.is_queue else least) + self.window_msgs - sent

    cdef bint publish(self, Pub *pub) except -1:
        """Write once, if there is something to write and room for it."""
        cdef Group *group = &self.groups[pub.group]
        cdef int64_t rest = 0                    # of a frame that was written in part
        cdef int64_t msgs = min(pub.messages - pub.begun, pub.most_at_once)
        cdef int64_t size, begun
        if pub.in_frame:
            rest = pub.frame_bytes - pub.in_frame
        elif pub.owes_pong:
            send_all(pub.fd, b"PONG\r\n", 6)
            pub.owes_pong = False
        # Deliveries only add to the room, so it is measured again only when the last value is too small.
        if group.room < msgs or not group.is_all_ours:
            self.measure_room(group)
            if group.room < msgs:
                msgs = max(0, group.room)
        size = min(rest + msgs * pub.frame_bytes, pub.frames_bytes - pub.at)
        size = min(size, max(self.write_bytes, rest if rest else pub.frame_bytes))
        if size > 0:
            size = send_some(pub.fd, pub.frames + pub.at, size)
            if size == 0:
                pub.is_writable = False
                return False
            pub.at += size
            if pub.at == pub.frames_bytes:
                pub.at = 0
            if size < rest:
                pub.in_frame += size
                return True
            size -= rest
            begun = 1 if size == pub.frame_bytes else size // pub.frame_bytes
            pub.in_frame = size - begun * pub.frame_bytes
            begun += pub.in_frame > 0
            pub.begun += begun
            group.room -= begun
            board_write(self.board.sent(pub.index), pub.begun)
            size = 1
        if pub.begun >= pub.messages and pub.in_frame == 0:
            return self.finish(pub)
        return size > 0

    cdef bint finish(self, Pub *pub) except -1:
        """All is written. If nobody subscribes, wait for a PONG: it proves that the server has read all."""
        if self.groups[pub.group].n_subscribers:
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
        """Finish messages that were written in part, and start no more."""
        cdef int i
        for i in range(self.publishers):
            self.pubs[i].messages = min(self.pubs[i].messages, self.pubs[i].begun)

    cdef bint is_complete(self, bint is_time_up) noexcept:
        cdef Group *group
        cdef int i, j
        cdef int64_t sent, got
        for i in range(self.publishers):
            if not self.pubs[i].is_done:
                return False
        for i in range(self.subscribers):
            got = self.subs[i].got
            group = &self.groups[self.subs[i].group]
            if group.n_publishers == 0:
                if is_time_up or (self.wanted_msgs and got >= self.wanted_msgs):
                    continue
                return False
            sent = 0
            for j in range(group.n_publishers):
                if not board_read(self.board.done(group.publishers[j])):
                    return False
                sent += board_read(self.board.sent(group.publishers[j]))
            if self.is_queue:
                got = 0
                for j in range(group.n_subscribers):
                    got += board_read(self.board.got(group.subscribers[j]))
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
        """Handle lines to a publisher: PING, PONG, INFO, an error. They are short and handled as they arrive."""
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
        """Read once: count the frames, and keep the incomplete one at the end."""
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
        self.has_news = True
        if self.first_ns == 0:
            self.first_ns = now_ns()
        sub.got += got
        board_write(self.board.got(sub.index), sub.got)
        return True

    cdef inline bint is_as_expected(self, const char *p) noexcept:
        cdef uint64_t differences = p[self.frame_bytes - 1] != 10
        cdef uint64_t word
        cdef size_t i
        for i in range(self.head_words):
            memcpy(&word, p + WORD * i, WORD)
            differences |= (word & self.compared[i]) ^ self.expected[i]
        return differences == 0

    # -- after it -----------------------------------------------------------------------------------------------------

    def surplus(self):
        """How many messages arrive before each subscriber's PONG in addition; there should be none."""
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
        return {self.pubs[i].index: self.pubs[i].begun for i in range(self.publishers)}
