# Requests of clients here that went to siblings alone: nobody is known to have got them, or that nobody has.
#
# NONE names a frame by its number on the link, which both ends count. So each frame is one entry, from when it is
# written until the sibling has acknowledged it.

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from gnatswarm.broker.interest cimport MOST_SHARDS


# A request that went in several frames, or to another account. Others need none: NONE says which request it is.
@cython.final
cdef class Request:
    cdef uint32_t left          # frames of which no NONE has come
    cdef bytes account          # as the client published it; None: as NONE says
    cdef bytes subject
    cdef bytes reply


# One frame that was sent to a sibling.
ctypedef struct AskedFrame:
    uint64_t number             # of the messages on the link: this was the n-th
    uint64_t cid                # whose request it is; 0: NONE has come
    PyObject *request           # a Request, or NULL


ctypedef struct AskedFrames:
    AskedFrame *slots           # a ring, in the order of their numbers
    uint32_t room               # a power of two
    uint32_t first
    uint32_t count
    size_t text_bytes           # of their requests


@cython.final
cdef class Asked:
    cdef AskedFrames frames[MOST_SHARDS]
    cdef Request request        # of the frame that take() found last; None: it has none

    # Keeps a frame, the latest of its link; `request` None: it is the only frame. True: there are many, so that the
    # link is to be acknowledged.
    cdef bint note(self, int shard, uint64_t number, uint64_t cid, Request request) noexcept
    # NONE of this frame has come: whose request it is. 0: nobody waits for it.
    cdef uint64_t take(self, int shard, uint64_t number) noexcept
    # The sibling has acknowledged so many messages.
    cdef void acknowledge(self, int shard, uint64_t number) noexcept
    # The link is gone: what was on its way counts as delivered.
    cdef void forget(self, int shard) noexcept
    cdef bint grow(self, AskedFrames *frames) noexcept
    cdef void drop_first(self, AskedFrames *frames) noexcept
