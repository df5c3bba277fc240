# cython: language_level=3
"""How many bytes a client on this host may have on their way to us.

The kernel lets a receive buffer grow to megabytes. A local publisher in small writes then never finds its window
closed, and pays the way through the kernel for every write; where it closes, what it writes meanwhile goes out in one
piece (see shards.patience). So a new local connection starts with a small buffer, and gets the kernel's as soon as it
shows that it writes in large pieces: 1:1 with 16 B loses a third of its rate in a small one (measured). Bounding later
would not do: what was offered cannot be taken back, and bytes that do not fit are dropped and sent again.
"""

cdef extern from "<sys/socket.h>" nogil:
    enum:
        SOL_SOCKET, SO_RCVBUF
    ctypedef unsigned socklen_t
    int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
    int setsockopt(int fd, int level, int name, const void *value, socklen_t size)

cdef enum:
    # What SO_RCVBUF is set to; the kernel doubles it, for its own overhead. It holds FILL_BYTES of shards.patience in
    # writes of 180 bytes, and not much more: with 256 KiB the window hardly ever closed, with 512 never (measured).
    NARROW_BYTES = 131072
    SO_BUF_LOCK = 72        # Linux 5.14; not in every libc's headers

# Whether a bound can be taken back here; -1: nobody has asked yet.
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
