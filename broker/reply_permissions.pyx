# cython: language_level=3
"""Reply permissions (allow_responses): a client may publish to the reply subjects of messages that it got.

One object per client with this permission, for as long as its permissions stay the same.
"""

from itertools import islice


cdef enum:
    # What was taken out at the beginning of a dictionary is in the way of each look for its oldest: one at a time took
    # 7 us for each message, up to 16, and 0.36 without. So a sixteenth goes at once, of their number or their bytes.
    DROPPED_AT_ONCE = 1024
    DROPPED_BYTES = 131072


cdef bint exceeds(ReplyPermissions self, Py_ssize_t most, size_t most_bytes) except -1:
    return len(self.replies) > most or (self.subject_bytes > most_bytes and len(self.replies) > 1)


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
        while exceeds(self, MOST_REPLIES, MOST_REPLY_BYTES):
            for subject in list(islice(self.replies, DROPPED_AT_ONCE)):
                if not exceeds(self, MOST_REPLIES - DROPPED_AT_ONCE, MOST_REPLY_BYTES - DROPPED_BYTES):
                    break
                self.drop(subject)
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
