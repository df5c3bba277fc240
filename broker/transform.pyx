# cython: language_level=3, boundscheck=False, wraparound=False
"""Subject transforms: rewrite a subject by a rule of the configuration, a mapping or an import under another name.

The destination's tokens are literal, `$1` or `{{wildcard(1)}}`, `{{partition(buckets,1,2)}}`, `{{split(1,-)}}`,
`{{splitFromLeft(1,2)}}`, `{{splitFromRight(1,2)}}`, `{{sliceFromLeft(1,2)}}`, `{{sliceFromRight(1,2)}}`, and a last `>`
if the source has one; as in nats-server 2.10 and later also `{{partition(buckets)}}`, over the whole subject,
`{{left(1,2)}}`, `{{right(1,2)}}` and `{{random(buckets)}}`. Source: nats-server 2.9.10 and 2.15.1, by comparing their
results. Cost: one pass over the subject. Meaningless rules that nats-server accepts ($0, no bucket, an empty separator)
are errors here.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.word cimport decimal

import os
import re

_FUNCTION = re.compile(rb"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}\Z")
_REFERENCE = re.compile(rb"\$[+-]?[0-9]{1,10}\Z")
# Each word of a name may begin with a capital letter, and has no other, as in nats-server.
_SPELLED = re.compile(
    "[wW]ildcard|[pP]artition|[rR]andom|[lL]eft|[rR]ight|[sS]plit|[sS](plit|lice)[fF]rom([lL]eft|[rR]ight)")
_WRONG_ARGUMENT = "invalid mapping destination: function argument is invalid or in the wrong format in "
_KINDS = {
    "wildcard": PIECE_WILDCARD,
    "partition": PIECE_PARTITION,
    "split": PIECE_SPLIT,
    "splitfromleft": PIECE_SPLIT_LEFT,
    "splitfromright": PIECE_SPLIT_RIGHT,
    "slicefromleft": PIECE_SLICE_LEFT,
    "slicefromright": PIECE_SLICE_RIGHT,
    "left": PIECE_LEFT,
    "right": PIECE_RIGHT,
    "random": PIECE_RANDOM,
}


class TransformError(ValueError):
    """An invalid rule; the text says why."""


cdef class Transform:
    """`source` to `destination`. TransformError: they do not fit together.

    `is_mapping`: as in nats-server 2.10 and later, a mapping need not use each `*` of its source.
    """

    def __cinit__(self, bytes source not None, bytes destination not None, *, bint is_mapping=False):
        cdef list given = source.split(b".")
        cdef list wanted = destination.split(b".")
        cdef bytearray texts = bytearray()
        cdef int i, made = 0
        if subject_kind(source, len(source)) == SUBJECT_BAD:
            raise TransformError(f"invalid subject {_shown(source)}")
        if not destination or b"" in wanted or b">" in wanted[:len(wanted) - 1]:
            raise TransformError(f"invalid subject {_shown(destination)}")
        if len(given) > MOST_RULE_TOKENS or len(wanted) > MOST_RULE_TOKENS or len(destination) > 0xFFFF:
            raise TransformError(f"more than {MOST_RULE_TOKENS} tokens")
        self.source = source
        self.destination = destination
        self.destination_size = len(destination)
        self.n_source_tokens = len(given)
        self.has_rest = given[self.n_source_tokens - 1] == b">"
        for i in range(self.n_source_tokens):
            if given[i] == b"*":
                self.wildcards[self.n_wildcards] = <uint8_t>i
                self.n_wildcards += 1
        if (wanted[len(wanted) - 1] == b">") != self.has_rest:
            raise TransformError(f"{_shown(source)} and {_shown(destination)} do not both end in >")
        if b"*" in wanted:
            raise TransformError(f"invalid subject {_shown(destination)}, write $1 for what the first * matched")
        self.pieces = <Piece *>calloc(len(wanted), sizeof(Piece))
        if self.pieces == NULL:
            raise MemoryError
        self.n_pieces = len(wanted)
        for i in range(self.n_pieces):
            self.read_piece(wanted[i], &self.pieces[i], texts)
            made += self.pieces[i].kind != PIECE_LITERAL and self.pieces[i].kind != PIECE_REST
        if made < self.n_wildcards and not is_mapping:
            raise TransformError(
                f"invalid mapping destination: not using all of the token wildcard(s) in {_shown(destination)}")
        self.is_constant = made == 0 and not self.has_rest
        if self.is_random:
            self.random_state = int.from_bytes(os.urandom(8), "little") | 1
        self.texts = bytes(texts)
        self.text = self.texts

    def __dealloc__(self):
        free(self.pieces)

    cdef int read_piece(self, bytes token, Piece *piece, bytearray texts) except -1:
        cdef list arguments
        if token == b">":
            piece.kind = PIECE_REST
            piece.tokens[0] = <uint8_t>(self.n_source_tokens - 1)
            return 0
        if _REFERENCE.match(token):
            piece.kind = PIECE_WILDCARD
            return self.use_wildcard(piece, int(token[1:]), token)
        if token[:2] != b"{{":
            piece.text_at = <uint16_t>len(texts)
            piece.text_size = <uint16_t>len(token)
            texts += token
            return 0
        found = _FUNCTION.match(token)
        if found is None:
            raise TransformError(f"invalid mapping destination: not a function: {_shown(token)}")
        name = found[1].decode("ascii", "replace")
        kind = _KINDS[name.lower()] if _SPELLED.fullmatch(name) else None
        if kind is None:
            raise TransformError(f"invalid mapping destination: unknown function in {_shown(token)}")
        arguments = [argument.strip() for argument in found[2].split(b",")] if found[2].strip() else []
        piece.kind = kind
        least = 1 if kind in (PIECE_WILDCARD, PIECE_PARTITION, PIECE_RANDOM) else 2
        if len(arguments) < least:
            raise TransformError(
                f"invalid mapping destination: not enough arguments passed to the function in {_shown(token)}")
        if len(arguments) > (MOST_RULE_TOKENS if kind == PIECE_PARTITION else least):
            raise TransformError(
                f"invalid mapping destination: too many arguments passed to the function in {_shown(token)}")
        if kind == PIECE_PARTITION or kind == PIECE_RANDOM:
            self.is_random |= kind == PIECE_RANDOM
            piece.number = _number(arguments[0], 1, token)
            for argument in arguments[1:]:
                self.use_wildcard(piece, _number(argument, 0, token), token)
            return 0
        self.use_wildcard(piece, _number(arguments[0], 0, token), token)
        if kind == PIECE_SPLIT:
            if not arguments[1]:
                raise TransformError(f"invalid mapping destination: an empty separator in {_shown(token)}")
            if b" " in arguments[1]:
                raise TransformError(_WRONG_ARGUMENT + _shown(token))
            piece.text_at = <uint16_t>len(texts)
            piece.text_size = <uint16_t>len(arguments[1])
            texts += arguments[1]
        elif kind != PIECE_WILDCARD:
            piece.number = _number(arguments[1], 1, token)
        return 0

    cdef int use_wildcard(self, Piece *piece, object number, bytes token) except -1:
        if not 1 <= number <= self.n_wildcards:
            raise TransformError(
                f"invalid mapping destination: wildcard index out of range in {_shown(token)}: [{number}]")
        piece.tokens[piece.n_tokens] = self.wildcards[<int>number - 1]
        piece.n_tokens += 1
        return 0

    def reversed(self) -> Transform:
        """The inverse transform. TransformError unless it has only literal tokens, each `*` once, and `>`."""
        cdef list given = self.source.split(b".")
        cdef list wanted = self.destination.split(b".")
        cdef int i, place = 0
        for i in range(self.n_pieces):
            if self.pieces[i].kind == PIECE_WILDCARD:
                place += 1
                if not given[self.pieces[i].tokens[0]] == b"*":
                    raise TransformError(f"{_shown(self.destination)} has a wildcard twice")
                given[self.pieces[i].tokens[0]] = b"$%d" % place
                wanted[i] = b"*"
            elif self.pieces[i].kind not in (PIECE_LITERAL, PIECE_REST):
                raise TransformError(f"{_shown(self.destination)} has a function that cannot be undone")
        return Transform(b".".join(wanted), b".".join(given))

    cdef size_t room_for(self, size_t size) noexcept nogil:
        # a slice of one byte doubles its token; a number has at most ten digits; a dot behind each piece
        return <size_t>self.n_pieces * (2 * size + 12) + self.destination_size

    cdef size_t apply(self, const uint8_t *subject, size_t size, uint8_t *to) noexcept nogil:
        cdef const uint8_t *starts[MOST_RULE_TOKENS + 1]
        cdef const uint8_t *end = subject + size
        cdef const uint8_t *at = subject
        cdef uint8_t *begun = to
        cdef Piece *piece
        cdef size_t n
        cdef int i
        for i in range(self.n_source_tokens):   # token i is starts[i] to the dot before starts[i + 1]
            starts[i] = at
            at = <const uint8_t *>memchr(at, c'.', end - at) if at < end else NULL
            at = end + 1 if at == NULL else at + 1
        starts[self.n_source_tokens] = at
        for i in range(self.n_pieces):
            piece = &self.pieces[i]
            if i:
                to[0] = c'.'
                to += 1
            if piece.kind == PIECE_LITERAL:
                memcpy(to, self.text + piece.text_at, piece.text_size)
                to += piece.text_size
                continue
            if piece.kind == PIECE_RANDOM:
                to += decimal(to, self.draw() % piece.number)
                continue
            at = starts[piece.tokens[0]]
            if piece.kind == PIECE_REST:
                n = end - at
                memcpy(to, at, n)
                to += n
                continue
            n = starts[piece.tokens[0] + 1] - 1 - at
            if piece.kind == PIECE_WILDCARD:
                memcpy(to, at, n)
                to += n
            elif piece.kind == PIECE_PARTITION:
                to += decimal(to, partition_of(piece, starts, subject, size))
            elif piece.kind == PIECE_LEFT or piece.kind == PIECE_RIGHT:
                if piece.number < n:
                    at += 0 if piece.kind == PIECE_LEFT else n - piece.number
                    n = piece.number
                memcpy(to, at, n)
                to += n
            elif piece.kind == PIECE_SPLIT:
                to = write_split(to, at, n, self.text + piece.text_at, piece.text_size)
            elif piece.kind == PIECE_SPLIT_LEFT or piece.kind == PIECE_SPLIT_RIGHT:
                if piece.number < n:
                    to = write_parts(to, at, n, piece.number if piece.kind == PIECE_SPLIT_LEFT else n - piece.number, n)
                else:
                    to = write_parts(to, at, n, n, n)
            elif piece.number < n:
                to = write_parts(to, at, n, (n % piece.number or piece.number) if piece.kind == PIECE_SLICE_RIGHT
                                 else piece.number, piece.number)
            else:
                to = write_parts(to, at, n, n, n)
        return to - begun

    cdef uint32_t draw(self) noexcept nogil:
        """A random number (xorshift64*)."""
        cdef uint64_t x = self.random_state
        x ^= x >> 12
        x ^= x << 25
        x ^= x >> 27
        self.random_state = x
        return <uint32_t>((x * <uint64_t>2685821657736338717) >> 32)

    def __call__(self, bytes subject not None) -> bytes:
        """The transformed subject; `subject` must match the source."""
        cdef bytearray room = bytearray(self.room_for(len(subject)))
        return bytes(room[:self.apply(subject, len(subject), <uint8_t *><char *>room)])


cdef str _shown(bytes text):
    return text.decode("utf-8", "replace")


def _number(bytes text, least, bytes token):
    if not re.fullmatch(rb"\+?[0-9]{1,10}", text) or not least <= int(text) <= 0x7FFFFFFF:
        raise TransformError(_WRONG_ARGUMENT + _shown(token))
    return int(text)


cdef uint32_t partition_of(const Piece *piece, const uint8_t **starts, const uint8_t *subject,
                           size_t size) noexcept nogil:
    cdef uint32_t hash = 2166136261
    cdef const uint8_t *at
    cdef int i
    if not piece.n_tokens:
        at = subject
        while at < subject + size:
            hash = (hash ^ at[0]) * <uint32_t>16777619
            at += 1
    for i in range(piece.n_tokens):
        at = starts[piece.tokens[i]]
        while at < starts[piece.tokens[i] + 1] - 1:
            hash = (hash ^ at[0]) * <uint32_t>16777619
            at += 1
    return hash % piece.number


cdef uint8_t *write_parts(uint8_t *to, const uint8_t *at, size_t n, size_t first, size_t each) noexcept nogil:
    """Writes a token in parts separated by dots: `first` bytes, then `each` bytes at a time."""
    cdef size_t part = first
    while n:
        part = n if part > n else part
        memcpy(to, at, part)
        to += part
        at += part
        n -= part
        part = each
        if n:
            to[0] = c'.'
            to += 1
    return to


cdef uint8_t *write_split(uint8_t *to, const uint8_t *at, size_t n, const uint8_t *separator,
                          size_t separator_size) noexcept nogil:
    """Writes a token with dots in place of separators; no dot for an empty part."""
    cdef const uint8_t *end = at + n
    cdef bint has_part = False, dot_due = False
    while at < end:
        if <size_t>(end - at) >= separator_size and memcmp(at, separator, separator_size) == 0:
            dot_due = has_part
            at += separator_size
            continue
        if dot_due:
            to[0] = c'.'
            to += 1
            dot_due = False
        has_part = True
        to[0] = at[0]
        to += 1
        at += 1
    return to
