# Reply permissions (allow_responses): a client may publish to the reply subjects of messages that it got.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    # Messages that a client may still reply to, and their reply subjects; beyond that the oldest permissions are
    # dropped. (An inbox has some 50 bytes; who makes up long ones, of 64 KB, would take 1 GB of whom it asks.)
    MOST_REPLIES = 16384
    MOST_REPLY_BYTES = 2097152
    EXPECTED_A_LOOK = 64   # messages, after which the oldest permissions are looked at


@cython.final
cdef class ReplyPermissions:
    cdef dict replies             # reply subject → (when, replies so far), oldest first
    cdef size_t subject_bytes     # of all of them
    cdef uint32_t n_expected      # messages that it got
    cdef int most                 # replies to each; negative: no limit
    cdef uint64_t expire_us       # after the message; 0: never

    # The client got a message that it may reply to.
    cdef void expect(self, const uint8_t *reply, size_t size, uint64_t now_us) noexcept
    # Its permissions of before it moved here: they are older than those that it has got meanwhile.
    cdef int put_before(self, dict older) except -1
    # Drops so many of the oldest at most, if their time is up.
    cdef int drop_expired(self, int most, uint64_t now_us) except -1
    cdef int drop(self, bytes subject) except -1
    cdef int drop_surplus(self) except -1
    # Counts one more reply; False: it is not allowed.
    cdef bint may_reply(self, const uint8_t *reply, size_t size, uint64_t now_us) except -1
