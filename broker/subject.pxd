# Subject rules (NATS client protocol): tokens separated by '.', none empty; in a subscription '*' is a
# whole token and matches one, '>' a whole last token and matches one or more.

from libc.stdint cimport uint8_t, uint32_t

# A subscription subject is one of these.
cdef enum SubjectKind:
    SUBJECT_BAD = 0       # an empty token, or '>' before the end
    SUBJECT_LITERAL = 1   # no wildcard token
    SUBJECT_WILDCARD = 2

# What `subject` may be in a SUB. '*' and '>' inside a longer token are ordinary characters.
cdef SubjectKind subject_kind(const uint8_t *subject, size_t size) noexcept nogil

# May `subject` be published to in pedantic mode: no empty token, no wildcard token.
cdef bint is_publishable(const uint8_t *subject, size_t size) noexcept nogil

# Has `subject` an empty token (it then matches nothing)?
cdef bint has_empty_token(const uint8_t *subject, size_t size) noexcept nogil

# Does `pattern` (well-formed) match the published `subject` (no empty token)?
cdef bint subject_matches(const uint8_t *pattern, size_t pattern_size,
                          const uint8_t *subject, size_t subject_size) noexcept nogil
