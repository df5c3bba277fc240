# A time of some µs, after which somebody is called.

cimport cython

from gnatswarm.shards.sockets.reactor cimport Reactor
from gnatswarm.shards.sockets.source cimport Source


@cython.final
cdef class ShortTimer(Source):
    cdef Reactor reactor
    cdef object call
    cdef bint is_set         # the kernel's timer
    cdef void set(self, long ns) noexcept
