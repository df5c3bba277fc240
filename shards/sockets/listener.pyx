# cython: language_level=3
"""Accepts connections for a reactor and calls `on_accept`, in Python, once per connection.

Not here: the listening sockets themselves (the router makes them), and who may connect (shards.clients.clients). A new
connection is read at once, before anything is sent to it: see on_event.
"""

from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EINVAL, errno
from libc.stdint cimport uint8_t, uint32_t

from gnatswarm.shards.sockets.epoll cimport EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, epoll_ctl, epoll_event
from gnatswarm.shards.sockets.reactor cimport Reactor, Socket
from gnatswarm.shards.sockets.source cimport Source

cdef extern from "<sys/socket.h>" nogil:
    enum:
        SOCK_NONBLOCK, SOCK_CLOEXEC, AF_INET, AF_INET6, IPPROTO_TCP, SHUT_RDWR
    ctypedef unsigned socklen_t
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags)
    int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
    int shutdown(int fd, int how)

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        unsigned short sin_port
        in_addr sin_addr
    struct in6_addr:
        uint8_t s6_addr[16]
    struct sockaddr_in6:
        unsigned short sin6_port
        in6_addr sin6_addr

cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *address, char *to, socklen_t size)
    unsigned short ntohs(unsigned short)

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_NODELAY

# Higher than any descriptor.
cdef int NEVER = 0x7fffffff

# At most so many connections in a row from one listener, so that a storm of them does not stop traffic.
cdef enum:
    MOST_ACCEPTS = 64
    MOST_WAITING = 4096     # in a queue (BACKLOG of router.listening.listeners)


cdef class Listener(Source):
    """A non-blocking listening socket; its descriptor stays the caller's.

    Calls `on_accept(fd, address, port)` for every new connection; the callee owns its descriptor. `on_error(errno)`:
    accepting has failed and is paused; resume() tries again. `on_full()`: a connection got a descriptor that is
    `full_at` or higher. `may_refuse`: the socket is nobody else's, so end() may have the kernel refuse connections.
    """

    def __init__(self, Reactor reactor not None, int fd, on_accept not None, on_error not None, int full_at=NEVER,
                 on_full=None, *, bint may_refuse=False):
        self.reactor = reactor
        self.on_accept = on_accept
        self.on_error = on_error
        self.on_full = on_full
        self.full_at = full_at
        self.may_refuse = may_refuse
        reactor.add(self, fd, EPOLLIN)

    cdef int on_event(self, uint32_t events) except -1:
        cdef sockaddr_storage address
        cdef socklen_t size
        cdef char text[64]
        cdef int fd, port, one = 1, _i
        cdef Socket newest
        for _i in range(MOST_ACCEPTS):
            size = sizeof(address)
            fd = accept4(self.fd, <sockaddr *>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno == EAGAIN or errno == EINTR or errno == ECONNABORTED:
                    return 0
                if errno == EINVAL:   # the router has ended it, because the broker stops
                    self.close()
                    return 0
                self.pause()
                self.on_error(errno)
                return 0
            text[0] = 0
            port = 0
            if address.ss_family == AF_INET:
                inet_ntop(AF_INET, &(<sockaddr_in *>&address).sin_addr, text, sizeof(text))
                port = ntohs((<sockaddr_in *>&address).sin_port)
            elif address.ss_family == AF_INET6:
                inet_ntop(AF_INET6, &(<sockaddr_in6 *>&address).sin6_addr, text, sizeof(text))
                port = ntohs((<sockaddr_in6 *>&address).sin6_port)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            host = text.decode("ascii")
            self.reactor.round.has_accepted = True
            self.on_accept(fd, host[7:] if host.startswith("::ffff:") else host, port)
            # A client that did not wait for INFO, or waited in the backlog, may have sent bytes: then one send has INFO
            # and all replies.
            newest = self.reactor.newest
            if newest is not None and newest.fd == fd and not newest.is_opening:
                self.reactor.serve_one(newest, EPOLLIN)
            self.reactor.newest = None
            if fd >= self.full_at:
                self.on_full()
        return 0

    cdef int set_events(self, uint32_t events) except -1:
        cdef epoll_event event
        if self.fd >= 0 and self.armed != events:
            self.armed = event.events = events
            event.data.ptr = <void *>self
            epoll_ctl(self.reactor.fd, EPOLL_CTL_MOD, self.fd, &event)
        return 0

    def pause(self):
        """Accept nothing until resume()."""
        self.set_events(0)

    def resume(self):
        self.set_events(EPOLLIN)

    def accept_waiting(self):
        """Accept those that wait in the queue, before its last descriptor is closed, which resets them."""
        cdef bint has_begun = self.reactor.begin_calls()
        try:
            self.accept_all()
        finally:
            self.reactor.end_calls(has_begun)

    def end(self):
        """Accept those that wait in the queue, and close it; where it may, others are refused from then on, although
        other processes have it open. Nothing happens in between: it would reset who came meanwhile."""
        cdef bint has_begun = self.reactor.begin_calls()
        try:
            self.accept_all()
            if self.may_refuse and self.fd >= 0:
                shutdown(self.fd, SHUT_RDWR)
            self.close()
        finally:
            self.reactor.end_calls(has_begun)

    cdef int accept_all(self) except -1:
        cdef int _i
        for _i in range(MOST_WAITING // MOST_ACCEPTS):
            self.reactor.round.has_accepted = False
            if self.fd >= 0:
                self.on_event(EPOLLIN)
            if not self.reactor.round.has_accepted:
                break
        return 0

    def close(self):
        """Remove the socket from the reactor; does not close the descriptor."""
        cdef epoll_event event
        if self.fd >= 0:
            epoll_ctl(self.reactor.fd, EPOLL_CTL_DEL, self.fd, &event)
            self.fd = -1
            self.reactor.forget(self)
