# One non-blocking connection of the generator: sending, receiving, and the frames that are not of one fixed size.
#
# A Delivery points into the caller's buffer: VALID UNTIL THE NEXT READ.

from libc.stdint cimport int64_t, uint32_t

cdef enum:
    READ_BYTES = 262144          # one recv
    CONTROL_PONG = 1
    CONTROL_OTHER = 0
    # A connection that accepts no bytes for this long has failed.
    STUCK_MS = 10000

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN, EPOLLOUT, EPOLLET, EPOLLERR, EPOLLHUP, EPOLL_CLOEXEC
        EPOLL_CTL_ADD
    ctypedef union epoll_data_t:
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int most, int timeout_ms)

ctypedef struct Delivery:
    const char *subject
    size_t subject_bytes
    const char *reply
    size_t reply_bytes           # 0: none
    const char *payload
    size_t payload_bytes

ctypedef struct Stream:
    int fd
    char *data                   # OWNED: made by stream_open, freed by stream_close
    size_t filled
    size_t room

cdef int64_t now_ns() noexcept nogil
cdef int wait_readable(int fd) except -1
cdef int send_all(int fd, const char *data, size_t size) except -1
cdef Py_ssize_t send_some(int fd, const char *data, size_t size) except -1
cdef Py_ssize_t receive(int fd, char *to, size_t size) except -2
cdef int on_control_line(int fd, const char *line, size_t size) except -1
cdef int watch(int epoll, int fd, uint32_t events, uint32_t number) except -1
cdef int wait_events(int epoll, epoll_event *events, int most, int timeout_ms) except -1
cdef int stream_open(Stream *stream, int fd) except -1
cdef void stream_close(Stream *stream) noexcept
cdef Py_ssize_t stream_fill(Stream *stream) except -2
cdef Py_ssize_t next_delivery(Stream *stream, size_t at, Delivery *delivery) except -1
cdef void stream_drop(Stream *stream, size_t size) noexcept
cdef int fence(int fd, Stream *stream) except -1
