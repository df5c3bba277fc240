# Something with a descriptor in an epoll set of the reactor.
#
# An epoll set holds a Source by its address. BORROWED BY THE KERNEL: the reactor's list keeps it until it was taken out
# of the set and the round is over.

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef inline uint64_t monotonic_us() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000 + t.tv_nsec // 1000


# What one round of the reactor has done so far. The reactor owns it.
ctypedef struct Round:
    size_t bytes_read
    bint has_accepted        # a new connection is about to send something
    bint is_due              # somebody is to be called in the next round, which is to come at once
    uint64_t opening_us      # spent on handshakes
    uint32_t may_leave       # so many subscriptions of clients that go may still be taken out
    bint is_cut              # it is over, though others are ready
    bint is_long             # rounds last too long: who has little to say is served first (serve_crowd), and …
    uint32_t cycle           # … of those with much it is noted who has had a turn in this cycle, …
    uint64_t cycle_us        # … which began then
    uint32_t few_cycle       # … as it is of those with little
    uint32_t most_bytes      # so much is read of each client


cdef class Source:
    cdef int fd              # -1: closed
    cdef int set_fd          # the epoll set that it is in
    cdef uint32_t armed      # the epoll events it is in the set for
    cdef int at              # its index in reactor.sources; -1: not there
    cdef uint32_t cycle      # of long rounds: the last in which it had a turn with much, …
    cdef uint32_t few_cycle  # … and with little
    cdef uint32_t looked     # of a patient set: the number of the last look that read it
    cdef int on_event(self, uint32_t events) except -1
    cdef int on_event_alone(self, uint32_t events) except -1
