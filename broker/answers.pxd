# What a client may publish because it was asked: the reply subjects of messages it got (allow_responses).

cimport cython
from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    # Messages that a client may still answer; past that the oldest may not be any more.
    MOST_REPLIES = 16384


@cython.final
cdef class Answers:
    cdef dict replies             # reply subject → (when, answers so far), oldest first
    cdef int most                 # answers to each; negative: no limit
    cdef uint64_t expire_us       # after the message; 0: never

    # It got a message that may be answered.
    cdef void expect(self, const uint8_t *reply, size_t size, uint64_t now_us) noexcept
    # Counts an answer, if there may be one more.
    cdef bint may_answer(self, const uint8_t *reply, size_t size, uint64_t now_us) except -1
