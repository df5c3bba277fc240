# A listening socket in a reactor's set.

cimport cython
from libc.stdint cimport uint32_t

from gnatswarm.shards.sockets.reactor cimport Reactor
from gnatswarm.shards.sockets.source cimport Source


@cython.final
cdef class Listener(Source):
    cdef Reactor reactor
    cdef object on_accept
    cdef object on_error
    cdef object on_full
    cdef int full_at
    cdef bint may_refuse
    cdef int accept_all(self) except -1
    cdef int set_events(self, uint32_t events) except -1
