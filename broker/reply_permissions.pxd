# Reply permissions (allow_responses): a client may publish to the reply subjects of messages that it got.

cimport cython
from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    # Messages that a client may still reply to; beyond that the oldest permission is dropped.
    MOST_REPLIES = 16384


@cython.final
cdef class ReplyPermissions:
    cdef dict replies             # reply subject → (when, replies so far), oldest first
    cdef int most                 # replies to each; negative: no limit
    cdef uint64_t expire_us       # after the message; 0: never

    # The client got a message that it may reply to.
    cdef void expect(self, const uint8_t *reply, size_t size, uint64_t now_us) noexcept
    # Counts one more reply; False: it is not allowed.
    cdef bint may_reply(self, const uint8_t *reply, size_t size, uint64_t now_us) except -1
