# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Makes connections as fast as one process can, and subscribes and unsubscribes repeatedly.

Connections are made in batches. All of a batch have their first PONG before the next begins, so that the listen
backlog never overflows. (Starting one for each PONG was tried: it is no faster, and the server gains less from serving
many at once.) Nothing is read beyond what a log-in needs.
"""

from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t
from libc.string cimport memcpy, strlen
from posix.unistd cimport close as close_fd

from gnatswarm.loadtest.board cimport Board, board_write
from gnatswarm.loadtest.stream cimport (
    Delivery, Stream, next_delivery, now_ns, send_all, stream_close, stream_drop, stream_fill, stream_open,
    wait_readable)

from gnatswarm.loadtest.errors import LoadFailed

import os

cdef extern from "<string.h>" nogil:
    void *memmem(const void *data, size_t size, const void *wanted, size_t wanted_size)

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *to, size_t size, const char *format, ...)

cdef extern from "<poll.h>" nogil:
    enum:
        POLLIN
    struct pollfd:
        int fd
        short events
    int poll(pollfd *fds, unsigned long n, int timeout_ms)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        SOCK_STREAM, SOCK_CLOEXEC, SOL_SOCKET, SO_SNDTIMEO, MSG_DONTWAIT
    struct sockaddr:
        pass
    int socket(int family, int kind, int protocol)
    int connect(int fd, const sockaddr *address, unsigned size)
    int setsockopt(int fd, int level, int name, const void *value, unsigned size)
    Py_ssize_t recv(int fd, void *to, size_t n, int flags)

cdef extern from "<sys/time.h>" nogil:
    struct timeval:
        long tv_sec
        long tv_usec

cdef enum:
    BATCH = 64                   # connections that are made at once
    ANSWER_MS = 5000
    ANSWER_BYTES = 16384         # INFO and PONG fit
    PAIRS = 100                  # SUB and UNSUB between two PINGs
    BATCHES_AHEAD = 2


def dial_many(int family, bytes address, int count, object before, bytes behind):
    """Open `count` connections and log each in with `before`, its number, `behind`.

    The bytes sent must end in PING. `before` is bytes, or a function that makes them from the INFO line: to sign the
    server's nonce a client must read INFO first, which costs each connection a round trip and a signature.
    Returns descriptors and nanoseconds; LoadFailed if the server refuses a connection.
    """
    cdef list opened = []
    cdef int64_t start = now_ns()
    cdef int first, number, fd
    try:
        for first in range(0, count, BATCH):
            for number in range(first, min(first + BATCH, count)):
                fd = dial(family, address, number)
                opened.append(fd)
                greeting = before if type(before) is bytes else before(read_info(fd, number))
                hello = <bytes>greeting + str(number).encode() + behind
                send_all(fd, <char *>hello, len(hello))
            for number in range(first, min(first + BATCH, count)):
                wait_pong(<int>opened[number], number)
    except BaseException:
        for fd in opened:
            close_fd(fd)
        raise
    return opened, now_ns() - start


cdef int dial(int family, bytes address, int number) except -1:
    """Connect, within ANSWER_MS. Nagle's algorithm stays on: each connection sends only once, so nothing is delayed."""
    cdef timeval patience
    cdef int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)
    if fd < 0:
        raise LoadFailed(f"connection {number + 1:,} could not be made: {os.strerror(errno).lower()} (see ulimit -n)")
    patience.tv_sec, patience.tv_usec = ANSWER_MS // 1000, 0
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience))
    if connect(fd, <const sockaddr *><char *>address, len(address)) < 0:
        why = os.strerror(errno).lower()
        close_fd(fd)
        raise LoadFailed(f"connection {number + 1:,} could not be made: {why}")
    return fd


cdef int wait_pong(int fd, int number) except -1:
    wait_answer(fd, number, b"PONG\r\n")
    return 0


cdef bytes read_info(int fd, int number):
    """The first line that the server sends."""
    return wait_answer(fd, number, b"\r\n").partition(b"\r\n")[0]


cdef bytes wait_answer(int fd, int number, const char *wanted):
    """Read until `wanted` is in the bytes; returns them."""
    cdef char answer[ANSWER_BYTES]
    cdef Py_ssize_t filled = 0
    cdef Py_ssize_t got
    cdef size_t wanted_size = strlen(wanted)
    cdef pollfd one
    while memmem(answer, filled, wanted, wanted_size) == NULL:
        got = recv(fd, answer + filled, ANSWER_BYTES - filled, MSG_DONTWAIT)
        if got < 0 and errno == EAGAIN:
            one.fd, one.events = fd, POLLIN
            if poll(&one, 1, ANSWER_MS) > 0:
                continue
        if got > 0:
            filled += got
        if memmem(answer, filled, b"-ERR", 4) != NULL:
            text = (<bytes>answer[:filled]).partition(b"-ERR")[2].split(b"\r\n")[0]
            raise LoadFailed(f"the server refused connection {number + 1:,}: {text.decode('utf-8', 'replace').strip()}")
        if got <= 0 or filled == ANSWER_BYTES:
            why = "closed it" if got == 0 else f"did not answer within {ANSWER_MS // 1000} s"
            raise LoadFailed(f"the server took connection {number + 1:,} and {why} (its own descriptor limit?)")
    return answer[:filled]


def churn(Board board, int index, int descriptor, double seconds):
    """Subscribe to a new subject and unsubscribe, repeatedly; PING after every hundred, at most two of them unanswered.

    Returns how many pairs were acknowledged, and the nanoseconds that took; counts pairs on the board.
    """
    cdef char out[PAIRS * 80 + 16]
    cdef Stream stream
    cdef int64_t start = now_ns()
    cdef int64_t limit_ns = <int64_t>(seconds * 1e9)
    cdef int64_t sent = 0
    cdef int64_t done = 0
    stream_open(&stream, descriptor)
    try:
        while True:
            while sent - done < BATCHES_AHEAD and now_ns() - start < limit_ns:
                send_all(descriptor, out, churn_lines(out, sent))
                sent += 1
            if done == sent:
                return done * PAIRS, now_ns() - start
            done += pongs(&stream)
            board_write(board.sent(index), done * PAIRS)
    finally:
        stream_close(&stream)


cdef size_t churn_lines(char *out, int64_t batch) noexcept:
    cdef size_t size = 0
    cdef int pair
    cdef long long sid
    for pair in range(PAIRS):
        sid = batch * PAIRS + pair + 10
        size += snprintf(out + size, 80, b"SUB churn.%09lld.x %lld\r\nUNSUB %lld\r\n", sid, sid, sid)
    memcpy(out + size, b"PING\r\n", 6)
    return size + 6


cdef int pongs(Stream *stream) except -1:
    """Read once, waiting if necessary; returns the number of PONGs."""
    cdef Delivery delivery
    cdef int count = 0
    cdef size_t at = 0
    cdef Py_ssize_t size
    wait_readable(stream.fd)
    stream_fill(stream)
    while True:
        size = next_delivery(stream, at, &delivery)
        if size == 0:
            stream_drop(stream, at)
            return count
        count += size == 6 and stream.data[at] == c"P" and stream.data[at + 1] == c"O"
        at += size
