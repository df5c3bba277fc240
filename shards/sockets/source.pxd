# Something with a descriptor in an epoll set of the reactor.
#
# An epoll set holds a Source by its address. BORROWED BY THE KERNEL: the reactor's list keeps it until it was taken out
# of the set and the round is over.

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

# What one round of the reactor has done so far. The reactor owns it.
ctypedef struct Round:
    size_t bytes_read
    bint has_accepted        # a new connection is about to send something
    bint is_due              # somebody is to be called in the next round, which is to come at once
    uint64_t opening_us      # spent on handshakes
    uint32_t may_leave       # so many subscriptions of clients that go may still be taken out
    # Where rounds were too long:
    bint is_cut              # it is over, though others are ready
    bint is_long             # rounds are: it is noted who has had a turn in this cycle, the number of …
    uint32_t cycle
    uint64_t cycle_us        # … which began then
    int most_events          # so many of those that are ready are served in a round, …
    uint32_t most_bytes      # … and so much is read of each client


cdef class Source:
    cdef int fd              # -1: closed
    cdef int set_fd          # the epoll set that it is in
    cdef uint32_t armed      # the epoll events it is in the set for
    cdef int at              # its index in reactor.sources; -1: not there
    cdef uint32_t cycle      # of the reactor's rounds: the last in which it had a turn
    cdef uint32_t looked     # of a patient set: the number of the last look that read it
    cdef int on_event(self, uint32_t events) except -1
