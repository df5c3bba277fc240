# cython: language_level=3, boundscheck=False, wraparound=False
"""A timer for less than a millisecond, which is the least that the event loop has.

It calls from within a round of the reactor, at whose end what was appended is sent. Who has much to do in small
pieces rests with it between them: a process that only lets its sockets be served in between still keeps the processor,
and others that are woken on it wait for the scheduler's slice, 1 to 3 ms. Cost: three system calls for each time, and
on a virtual machine some 30 µs; none for a start of 0 µs, where the loop waits in the reactor's set.
"""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC
from posix.unistd cimport close as close_fd, read as read_fd

from gnatswarm.shards.sockets.epoll cimport EPOLL_CTL_DEL, EPOLLIN, epoll_ctl, epoll_event
from gnatswarm.shards.sockets.timerfd cimport (
    TFD_CLOEXEC, TFD_NONBLOCK, itimerspec, timerfd_create, timerfd_settime)


cdef class ShortTimer(Source):
    """One timer of a reactor. OSError: there is no descriptor for it."""

    def __init__(self, Reactor reactor not None, call not None):
        cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if fd < 0:
            raise OSError(errno, "cannot make a timer")
        self.reactor = reactor
        self.call = call
        reactor.add(self, fd, EPOLLIN)

    def start(self, int us):
        """Call once, after so many µs (0 to 999,999); what was started before is forgotten. 0: in the next round, which
        comes at once, behind what is ready then. Nothing once it is closed."""
        cdef Source due = self.reactor.due
        cdef bint is_due = us == 0 and self.reactor.has_wait and (due is None or due is self)
        if self.fd < 0:
            return
        if due is self or is_due:
            self.reactor.set_due(self if is_due else None)
        if self.is_set or not is_due:
            self.set(0 if is_due else max(1, us * 1000))

    cdef void set(self, long ns) noexcept:
        """Have the kernel wake us; 0: not any more."""
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_nsec = ns
        timerfd_settime(self.fd, 0, &when, NULL)
        self.is_set = ns > 0

    def close(self):
        """Call no more; before the reactor is closed. A second call does nothing."""
        cdef epoll_event event
        if self.fd >= 0:
            if self.reactor.due is self:
                self.reactor.set_due(None)
            epoll_ctl(self.reactor.fd, EPOLL_CTL_DEL, self.fd, &event)
            close_fd(self.fd)
            self.fd = -1
            self.reactor.forget(self)

    cdef int on_event(self, uint32_t events) except -1:
        cdef uint64_t expirations
        if events == 0:
            self.call()
            return 0
        self.reactor.n_ready -= 1
        if read_fd(self.fd, &expirations, sizeof(expirations)) > 0:   # (or it was started anew meanwhile)
            self.is_set = False
            if self.reactor.due is None:
                self.reactor.set_due(self)      # behind what else is ready
            elif self.reactor.due is not self:
                self.call()
        return 0
