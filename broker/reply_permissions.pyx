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
        if self.replies.pop(subject, None) is None:   # insert it again at the end: oldest first
            self.subject_bytes += size
        self.replies[subject] = (now_us, 0)
        self.n_expected += 1
        if self.n_expected % EXPECTED_A_LOOK == 0:
            self.drop_expired(2 * EXPECTED_A_LOOK, now_us)
        self.drop_surplus()

    cdef int put_before(self, dict older) except -1:
        older = {subject: told for subject, told in older.items() if subject not in self.replies}
        older.update(self.replies)
        self.replies = older
        self.subject_bytes = sum(map(len, older))
        return self.drop_surplus()

    cdef int drop_expired(self, int most, uint64_t now_us) except -1:
        cdef list expired = []
        if self.expire_us == 0 or not self.replies:
            return 0
        for subject, (when, _n) in self.replies.items():
            if now_us - <uint64_t>when <= self.expire_us or len(expired) == most:
                break
            expired.append(subject)
        for subject in expired:
            self.drop(subject)
        return 0

    cdef int drop(self, bytes subject) except -1:
        del self.replies[subject]
        self.subject_bytes -= <size_t>len(subject)
        return 0

    cdef int drop_surplus(self) except -1:
        while len(self.replies) > MOST_REPLIES or (self.subject_bytes > MOST_REPLY_BYTES and len(self.replies) > 1):
            self.drop(next(iter(self.replies)))
        return 0

    cdef bint may_reply(self, const uint8_t *reply, size_t size, uint64_t now_us) except -1:
        cdef bytes subject = reply[:size]
        found = self.replies.get(subject)
        if found is None:
            return False
        when, n = found
        if self.expire_us and now_us - when > self.expire_us:
            self.drop(subject)
            return False
        n += 1
        if self.most > 0 and n >= self.most:
            self.drop(subject)   # that was the last one
        else:
            self.replies[subject] = (when, n)
        return True
