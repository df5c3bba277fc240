# cython: language_level=3
"""Reply permissions (allow_responses): a client may publish to the reply subjects of messages that it got.

One object per client with this permission, for as long as its permissions stay the same.
"""


cdef class ReplyPermissions:
    """`most` replies to each message (negative: no limit), within `expire_us` of it (0: at any time)."""

    def __cinit__(self, int most, uint64_t expire_us):
        self.replies = {}
        self.most = most
        self.expire_us = expire_us

    cdef void expect(self, const uint8_t *reply, size_t size, uint64_t now_us) noexcept:
        cdef bytes subject = reply[:size]
        self.replies.pop(subject, None)   # insert it again at the end: oldest first
        self.replies[subject] = (now_us, 0)
        if len(self.replies) > MOST_REPLIES:
            del self.replies[next(iter(self.replies))]

    cdef bint may_reply(self, const uint8_t *reply, size_t size, uint64_t now_us) except -1:
        cdef bytes subject = reply[:size]
        found = self.replies.get(subject)
        if found is None:
            return False
        when, n = found
        if self.expire_us and now_us - when > self.expire_us:
            del self.replies[subject]
            return False
        n += 1
        if self.most > 0 and n >= self.most:
            del self.replies[subject]   # that was the last one
        else:
            self.replies[subject] = (when, n)
        return True
