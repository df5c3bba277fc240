# cython: language_level=3, boundscheck=False, wraparound=False
"""One connection of the compiled generator: sends, receives, and finds deliveries in the received bytes.

Shares no code with the broker's parser, and trusts nothing: an invalid operation, an -ERR and the end of the connection
are a LoadFailed with one line of text. Knows no scenario.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memmove
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from gnatswarm.loadtest.errors import LoadFailed

import os

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_NOSIGNAL, MSG_DONTWAIT
    Py_ssize_t recv(int fd, void *to, size_t n, int flags)
    Py_ssize_t send(int fd, const void *data, size_t n, int flags)

cdef extern from "<poll.h>" nogil:
    enum:
        POLLIN, POLLOUT
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout_ms)


cdef int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef object lost(str doing):
    return LoadFailed(f"the server closed a connection while {doing}: {os.strerror(errno).lower()}")


cdef int wait_readable(int fd) except -1:
    """Wait until there is something to read; LoadFailed after STUCK_MS."""
    return wait_fd(fd, POLLIN)


cdef int wait_fd(int fd, short events) except -1:
    cdef pollfd one
    one.fd, one.events, one.revents = fd, events, 0
    if poll(&one, 1, STUCK_MS) == 0:
        raise LoadFailed(f"the server neither takes nor sends anything for {STUCK_MS // 1000} s")
    return 0


cdef int send_all(int fd, const char *data, size_t size) except -1:
    """Send all bytes, waiting while the socket is full."""
    cdef Py_ssize_t sent
    while size:
        sent = send_some(fd, data, size)
        if sent == 0:
            wait_fd(fd, POLLOUT)
        data += sent
        size -= sent
    return 0


cdef Py_ssize_t send_some(int fd, const char *data, size_t size) except -1:
    """Send what the socket takes now; returns the number of bytes."""
    cdef Py_ssize_t sent = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
    if sent < 0:
        if errno == EAGAIN or errno == EINTR:
            return 0
        raise lost("sending")
    return sent


cdef Py_ssize_t receive(int fd, char *to, size_t size) except -2:
    """Receive what is there now; returns the number of bytes."""
    cdef Py_ssize_t got = recv(fd, to, size, MSG_DONTWAIT)
    if got > 0:
        return got
    if got == 0:
        raise LoadFailed("the server closed a connection of the run (a slow consumer? its log may say)")
    if errno == EAGAIN or errno == EINTR:
        return 0
    raise lost("receiving")


cdef int on_control_line(int fd, const char *line, size_t size) except -1:
    """Handle a line without CRLF that is no message: answer PING, raise -ERR. CONTROL_PONG or CONTROL_OTHER."""
    if size == 4 and memcmp(line, b"PONG", 4) == 0:
        return CONTROL_PONG
    if size == 4 and memcmp(line, b"PING", 4) == 0:
        send_all(fd, b"PONG\r\n", 6)
        return CONTROL_OTHER
    if (size == 3 and memcmp(line, b"+OK", 3) == 0) or (size >= 5 and memcmp(line, b"INFO ", 5) == 0):
        return CONTROL_OTHER
    if size >= 4 and memcmp(line, b"-ERR", 4) == 0:
        raise LoadFailed(f"the server said {line[:size].decode('utf-8', 'replace')}")
    raise LoadFailed(f"the server sent what is no operation: {line[:min(size, 60)]!r}")


cdef int watch(int epoll, int fd, uint32_t events, uint32_t number) except -1:
    cdef epoll_event event
    event.events = events
    event.data.u32 = number
    if epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0:
        raise OSError(errno, os.strerror(errno))
    return 0


cdef int wait_events(int epoll, epoll_event *events, int most, int timeout_ms) except -1:
    cdef int count = epoll_wait(epoll, events, most, timeout_ms)
    if count < 0:
        if errno == EINTR:
            return 0
        raise OSError(errno, os.strerror(errno))
    return count


# ------------------------------------------------------------------------------------------- frames of any size

cdef int stream_open(Stream *stream, int fd) except -1:
    stream.fd = fd
    stream.filled = 0
    stream.room = READ_BYTES // 4
    stream.data = <char *>malloc(stream.room)
    if stream.data == NULL:
        raise MemoryError
    return 0


cdef void stream_close(Stream *stream) noexcept:
    free(stream.data)
    stream.data = NULL


cdef Py_ssize_t stream_fill(Stream *stream) except -2:
    """Read once, after the bytes already buffered; returns the number of bytes."""
    cdef Py_ssize_t got
    cdef char *larger
    if stream.filled == stream.room:
        larger = <char *>realloc(stream.data, stream.room * 2)
        if larger == NULL:
            raise MemoryError
        stream.data = larger
        stream.room *= 2
    got = receive(stream.fd, stream.data + stream.filled, stream.room - stream.filled)
    stream.filled += got
    return got


cdef void stream_drop(Stream *stream, size_t size) noexcept:
    """Drop the first `size` bytes."""
    stream.filled -= size
    if stream.filled and size:
        memmove(stream.data, stream.data + size, stream.filled)


cdef Py_ssize_t next_delivery(Stream *stream, size_t at, Delivery *delivery) except -1:
    """The size of the frame that begins at `at`; 0: it is incomplete. Control lines are handled here.

    `delivery.payload` is NULL if the frame was not a message.
    """
    cdef const char *start = stream.data + at
    cdef const char *line_end = <const char *>memchr(start, 10, stream.filled - at)
    cdef const char *word
    cdef const char *p
    cdef size_t size = 0
    cdef int words = 0
    cdef const char *begins[5]
    cdef size_t lengths[5]
    delivery.payload = NULL
    if line_end == NULL:
        return 0
    if start[0] != c"M":
        if line_end == start or (line_end - 1)[0] != 13:
            raise LoadFailed("the server sent a line that does not end in CRLF")
        on_control_line(stream.fd, start, line_end - 1 - start)
        return line_end + 1 - start
    # MSG subject sid [reply] size
    word = p = start
    while p < line_end and words < 5:
        if p[0] == 32 or p[0] == 13:
            begins[words] = word
            lengths[words] = p - word
            words += 1
            word = p + 1
        p += 1
    if words < 4 or lengths[0] != 3 or p != line_end or (line_end - 1)[0] != 13:
        raise LoadFailed(f"the server sent a bad message line: {start[:min(line_end - start, 60)]!r}")
    p = begins[words - 1]
    while p < line_end - 1:
        if not 48 <= p[0] <= 57 or size > 1 << 40:
            raise LoadFailed(f"the server sent a bad message size: {start[:min(line_end - start, 60)]!r}")
        size = size * 10 + (p[0] - 48)
        p += 1
    if stream.filled - at < <size_t>(line_end + 1 - start) + size + 2:
        return 0
    if line_end[1 + size] != 13 or line_end[2 + size] != 10:
        raise LoadFailed("a payload does not end where its message line says")
    delivery.subject = begins[1]
    delivery.subject_bytes = lengths[1]
    delivery.reply = begins[3]
    delivery.reply_bytes = lengths[3] if words == 5 else 0
    delivery.payload = line_end + 1
    delivery.payload_bytes = size
    return (line_end + 1 - start) + size + 2


cdef int fence(int fd, Stream *stream) except -1:
    """PING, read up to its PONG, return the number of messages before it. `stream` must hold any incomplete frame."""
    cdef Delivery delivery
    cdef Py_ssize_t size
    cdef size_t at = 0
    cdef int messages = 0
    cdef bint is_pong
    send_all(fd, b"PING\r\n", 6)
    while True:
        while True:
            is_pong = stream.filled - at >= 6 and memcmp(stream.data + at, b"PONG\r\n", 6) == 0
            size = next_delivery(stream, at, &delivery)
            if size == 0:
                break
            at += size
            messages += delivery.payload != NULL
            if is_pong:
                stream_drop(stream, at)
                return messages
        stream_drop(stream, at)
        at = 0
        if stream_fill(stream) == 0:
            wait_fd(fd, POLLIN)
