# When clients are pinged, and when sockets are closed because time is up.

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from gnatswarm.shards.sockets.reactor cimport Reactor, Socket


@cython.final
cdef class Deadlines:
    cdef Reactor reactor
    cdef uint64_t swept_at             # index in reactor.sources: where the next sweep begins
    cdef Py_ssize_t n_due              # sockets that are still to be checked in this sweep
    cdef uint64_t ping_interval_us
    cdef uint64_t websocket_ping_interval_us   # of WebSocket clients, like the next
    cdef uint64_t websocket_auth_timeout_us
    cdef uint32_t ping_max             # a client with so many unanswered pings is closed
    cdef uint64_t auth_timeout_us
    cdef uint64_t write_deadline_us
    cdef bint retries_writes           # a client past its write deadline is told of, and stays
    cdef uint64_t server_deadline_us[2]   # the same of connections to other servers: leaf nodes', and routes
    cdef bint closes_servers[2]        # … what waits for one has to be taken within it; else: anything
    cdef dict slow                     # cid of such a client → when it last took bytes

    cdef int check(self, Socket socket, uint64_t now_us) except -1
    cdef bint is_server_late(self, Socket socket, uint64_t now_us) noexcept
