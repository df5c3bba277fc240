# cython: language_level=3, boundscheck=False, wraparound=False
"""Subject rules: what may be published to, what may be subscribed to, what matches what.

Pure functions over bytes; nothing is stored here. Source: the NATS client protocol, and nats-server 2.9.10 where
it is silent: a published subject with an empty token is accepted and matches nothing, not even '>'.
"""

from libc.string cimport memchr, memcmp


cdef SubjectKind subject_kind(const uint8_t *subject, size_t size) noexcept nogil:
    cdef const uint8_t *token = subject
    cdef const uint8_t *subject_end = subject + size
    cdef const uint8_t *token_end
    cdef SubjectKind kind = SUBJECT_LITERAL
    while True:
        token_end = <const uint8_t *>memchr(token, c'.', subject_end - token)
        if token_end == NULL:
            token_end = subject_end
        if token_end - token <= 1:
            if token_end == token:
                return SUBJECT_BAD
            if token[0] == c'*':
                kind = SUBJECT_WILDCARD
            elif token[0] == c'>':
                if token_end != subject_end:
                    return SUBJECT_BAD
                kind = SUBJECT_WILDCARD
        if token_end == subject_end:
            return kind
        token = token_end + 1


cdef bint is_publishable(const uint8_t *subject, size_t size) noexcept nogil:
    return subject_kind(subject, size) == SUBJECT_LITERAL


cdef bint has_empty_token(const uint8_t *subject, size_t size) noexcept nogil:
    cdef size_t i
    if size == 0 or subject[0] == c'.' or subject[size - 1] == c'.':
        return True
    for i in range(1, size):
        if subject[i] == c'.' and subject[i - 1] == c'.':
            return True
    return False


cdef bint subject_matches(const uint8_t *pattern, size_t pattern_size,
                          const uint8_t *subject, size_t subject_size) noexcept nogil:
    cdef const uint8_t *pattern_end = pattern + pattern_size
    cdef const uint8_t *subject_end = subject + subject_size
    cdef const uint8_t *p
    cdef const uint8_t *s
    while True:
        if pattern_end - pattern == 1 and pattern[0] == c'>':
            return True
        p = <const uint8_t *>memchr(pattern, c'.', pattern_end - pattern)
        s = <const uint8_t *>memchr(subject, c'.', subject_end - subject)
        if p == NULL:
            p = pattern_end
        if s == NULL:
            s = subject_end
        if not (p - pattern == 1 and pattern[0] == c'*'):
            if p - pattern != s - subject or memcmp(pattern, subject, p - pattern) != 0:
                return False
        if p == pattern_end or s == subject_end:
            return p == pattern_end and s == subject_end
        pattern = p + 1
        subject = s + 1


def is_valid_subscription(bytes subject not None) -> bool:
    """May a client subscribe to this subject? (SUB; whitespace has already been split off.)"""
    return subject_kind(subject, len(subject)) != SUBJECT_BAD


def is_valid_publish(bytes subject not None) -> bool:
    """May a pedantic client publish to this subject?"""
    return is_publishable(subject, len(subject))


def is_literal(bytes subject not None) -> bool:
    """Is it a valid subscription subject without wildcard tokens?"""
    return subject_kind(subject, len(subject)) == SUBJECT_LITERAL


def matches(bytes pattern not None, bytes subject not None) -> bool:
    """Does a subscription to `pattern` get what is published to `subject`?"""
    if subject_kind(pattern, len(pattern)) == SUBJECT_BAD or has_empty_token(subject, len(subject)):
        return False
    return subject_matches(pattern, len(pattern), subject, len(subject))
