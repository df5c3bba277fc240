# Subject transforms: rewrite a subject by a rule, such as `orders.*.*` to `o.$2.$1`.
#
#   source "a.*.b.>"   destination "x.{{partition(4,1)}}.$1.>"  →  pieces  LITERAL x · PARTITION · WILDCARD · REST
#
# Ownership: a Transform owns its pieces; their text lies in `texts`.

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum PieceKind:
    PIECE_LITERAL = 0
    PIECE_WILDCARD = 1          # the source's wildcard number …
    PIECE_PARTITION = 2         # FNV-1a (32 bits) over some wildcards, modulo `number`
    PIECE_SPLIT = 3             # a wildcard, split at each separator
    PIECE_SPLIT_LEFT = 4        # … after `number` bytes
    PIECE_SPLIT_RIGHT = 5       # … before its last `number` bytes
    PIECE_SLICE_LEFT = 6        # … every `number` bytes
    PIECE_SLICE_RIGHT = 7       # … likewise, counted from its end
    PIECE_REST = 8              # what the source's '>' matched
    PIECE_LEFT = 9              # the first `number` bytes of a wildcard, or all of it
    PIECE_RIGHT = 10            # … the last ones
    PIECE_RANDOM = 11           # a random number below `number`

cdef enum:
    MOST_RULE_TOKENS = 64       # in a source or a destination

ctypedef struct Piece:
    uint8_t kind
    uint8_t n_tokens            # PARTITION: how many; 0: it uses the whole subject
    uint8_t tokens[MOST_RULE_TOKENS]   # the subject's tokens that it uses; REST: the first one
    uint32_t number
    uint16_t text_at            # LITERAL: its text, SPLIT: the separator
    uint16_t text_size


@cython.final
cdef class Transform:
    cdef readonly bytes source
    cdef readonly bytes destination
    cdef readonly bint is_constant      # the destination is the same for every subject
    cdef readonly bint is_random        # … and is not always the same for one subject
    cdef uint64_t random_state          # of an xorshift generator; never 0
    cdef bytes texts
    cdef const uint8_t *text            # … and where they begin
    cdef size_t destination_size
    cdef Piece *pieces
    cdef int n_pieces
    cdef int n_source_tokens
    cdef uint8_t wildcards[MOST_RULE_TOKENS]   # at which token of the source each of its '*' stands
    cdef int n_wildcards
    cdef bint has_rest

    # Bytes that apply() may need for a subject of this size.
    cdef size_t room_for(self, size_t size) noexcept nogil
    # Writes the new subject to `to`; returns its size. The subject must match the source.
    cdef size_t apply(self, const uint8_t *subject, size_t size, uint8_t *to) noexcept nogil
    cdef uint32_t draw(self) noexcept nogil
    cdef int read_piece(self, bytes token, Piece *piece, bytearray texts) except -1
    cdef int use_wildcard(self, Piece *piece, object number, bytes token) except -1
