# The wait of the event loop, done in the reactor's epoll set.
#
#   uv_run ─┬ timers, callbacks
#           ├ prepare: LoopWait ── epoll_wait ── the reactor's set ─┬ clients, links, listeners: served here
#           │                                                       └ the loop's own set: it is wanted
#           └ poll the loop's own set, without waiting

from gnatswarm.shards.sockets.reactor cimport Reactor
from gnatswarm.shards.sockets.source cimport Source


cdef class LoopEvents(Source):
    cdef bint is_ready       # set by the round that saw it


cdef class LoopWait:
    cdef Reactor reactor
    cdef object loop
    cdef void *uv_loop
    cdef void *hook          # from malloc: a Hook; NULL: stopped. FREED BY LIBUV'S CALLBACK, NOT HERE
    cdef LoopEvents events
    cdef int serve(self, void *ready, int n) except -1
    cdef void on_error(self, object error) noexcept
