# cython: language_level=3
"""The receive buffer of clients on this host: small at first, so that the TCP window closes.

The kernel lets a receive buffer grow to megabytes. Then the window of a local publisher with small writes never closes,
and every write costs the whole way through the kernel; when the window is closed, its writes are gathered and sent in
one piece (see shards.sockets.patience). So a new local connection starts with a small buffer, and the bound is lifted
as soon as it writes in large pieces: 1:1 with 16 B loses a third of its rate with a small buffer (measured). Bounding
it later does not work: an offered window cannot be reduced, and bytes that do not fit are dropped and sent again.
"""

cdef extern from "<sys/socket.h>" nogil:
    enum:
        SOL_SOCKET, SO_RCVBUF
    ctypedef unsigned socklen_t
    int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
    int setsockopt(int fd, int level, int name, const void *value, socklen_t size)

cdef enum:
    # What SO_RCVBUF is set to; the kernel doubles it, for its own overhead. It holds FILL_BYTES of patience.pyx in
    # writes of 180 bytes, and not much more: with 256 KiB the window hardly ever closed, with 512 never (measured).
    NARROW_BYTES = 131072
    SO_BUF_LOCK = 72        # Linux 5.14; not in every libc's headers

# Whether the kernel can lift a bound; -1: not known yet.
cdef int can_widen = -1


def is_on_this_host(str host not None) -> bool:
    """Whether a peer with this address, as accept() gives it, is on a loopback interface."""
    return host.startswith("127.") or host == "::1"


cdef bint narrow(int fd) noexcept:
    global can_widen
    cdef int value = 0
    cdef socklen_t size = sizeof(value)
    if can_widen < 0:
        can_widen = getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &value, &size) == 0
    value = NARROW_BYTES
    return can_widen and setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)) == 0


cdef void widen(int fd) noexcept:
    cdef int unlocked = 0
    setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &unlocked, sizeof(unlocked))
