# cython: language_level=3
"""How many bytes a client on this host may have on their way to us.

The kernel lets a receive buffer grow to megabytes. A local publisher in small writes then never finds its window
closed, and pays the way through the kernel for every write; where it closes, what it writes meanwhile goes out in one
piece (see shards.patience). So a new local connection starts with a small buffer, and gets the kernel's as soon as it
shows that it writes in large pieces: 1:1 with 16 B loses a third of its rate in a small one (measured). Bounding later
would not do: what was offered cannot be taken back, and bytes that do not fit are dropped and sent again.
"""

from libc.stdint cimport uint8_t

cdef extern from "<sys/socket.h>" nogil:
    enum:
        AF_INET, AF_INET6, SOL_SOCKET, SO_RCVBUF
    ctypedef unsigned socklen_t
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    int getpeername(int fd, sockaddr *address, socklen_t *size)
    int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
    int setsockopt(int fd, int level, int name, const void *value, socklen_t size)

cdef enum:
    # What SO_RCVBUF is set to; the kernel doubles it, for its own overhead. It holds FILL_BYTES of shards.patience in
    # writes of 180 bytes, and not much more: with 256 KiB the window hardly ever closed, with 512 never (measured).
    NARROW_BYTES = 131072
    SO_BUF_LOCK = 72        # Linux 5.14; not in every libc's headers


cdef bint is_on_this_host(sockaddr_storage *address) noexcept:
    """Loopback addresses; ::ffff:127.0.0.0/104 too."""
    cdef const uint8_t *raw = <const uint8_t *>address
    cdef int i
    if address.ss_family == AF_INET:
        return raw[4] == 127
    if address.ss_family != AF_INET6:
        return False
    for i in range(8, 18):
        if raw[i]:
            return False
    if raw[18] == 0xFF and raw[19] == 0xFF:
        return raw[20] == 127
    for i in range(18, 23):
        if raw[i]:
            return False
    return raw[23] == 1


cdef bint narrow(int fd) noexcept:
    cdef sockaddr_storage address
    cdef socklen_t size = sizeof(address)
    cdef int value = 0
    if getpeername(fd, <sockaddr *>&address, &size) < 0 or not is_on_this_host(&address):
        return False
    size = sizeof(value)
    if getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &value, &size) < 0:
        return False
    value = NARROW_BYTES
    return setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)) == 0


cdef void widen(int fd) noexcept:
    cdef int unlocked = 0
    setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &unlocked, sizeof(unlocked))
