# Counts per subject in one window, bounded: exact up to a number of subjects, heavy hitters beyond.
#
#   Entry.counts (sublist) ──── evicted, rebuilt, or harvested ────→ Tally: subject → Row, and `other`
#
# Ownership: the Tally owns its rows; the subject stands behind the struct.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from gnatswarm.broker.table cimport Keyed, Table

# The counts of one subject on one shard. One cache line.
ctypedef struct Counts:
    uint64_t msgs            # from clients of this shard
    uint64_t payload_bytes
    uint64_t deliveries      # to clients of this shard, whoever published
    uint64_t out_bytes
    uint64_t unwanted        # of msgs: had no subscriber on any shard
    uint64_t link_out        # frames to siblings
    uint64_t link_in         # messages from siblings
    uint32_t widest          # the most subscribers on this shard that one message reached
    uint32_t misses          # how often the match result was not cached

ctypedef struct Row:
    Keyed key
    uint64_t error           # at most this many more messages were counted in `other` while it had no row
    Counts counts


# Of all tallies: bytes of rows, and how many have some.
cdef size_t tallies_bytes
cdef size_t n_filled

cdef enum:
    # What they have together, for long: a tally that has more than its share then gives up half of its rows.
    MOST_TALLIES_BYTES = 67108864
    N_FOLDED = 3                 # kinds of subjects that are used once

# The rows of subjects that are used once, by rule.
cdef const char *FOLDED_AS[N_FOLDED]
cdef size_t FOLDED_SIZE[N_FOLDED]


cdef inline int folded_as(const uint8_t *subject, size_t size) noexcept nogil:
    """The rule of a one-time subject; -1: it is none. Sizes are constants, so the compiler compares words."""
    if size >= 7 and memcmp(subject, b"_INBOX.", 7) == 0:
        return 0
    if size >= 4 and memcmp(subject, b"_R_.", 4) == 0:
        return 1
    if size >= 8 and memcmp(subject, b"$JS.ACK.", 8) == 0:
        return 2
    return -1


cdef inline void counts_add(Counts *to, const Counts *counts) noexcept nogil:
    to.msgs += counts.msgs
    to.payload_bytes += counts.payload_bytes
    to.deliveries += counts.deliveries
    to.out_bytes += counts.out_bytes
    to.unwanted += counts.unwanted
    to.link_out += counts.link_out
    to.link_in += counts.link_in
    to.misses += counts.misses
    if counts.widest > to.widest:
        to.widest = counts.widest


cdef inline uint64_t counts_weight(const Counts *counts) noexcept nogil:
    return counts.msgs + counts.link_in


@cython.final
cdef class Tally:
    cdef readonly uint32_t most      # the most rows at a window's end; twice as many before it
    cdef Table rows
    cdef Counts other                # of subjects without a row, or no longer with one
    cdef Row *folded[N_FOLDED]       # the rows of one-time subjects, by rule; NULL: not looked up yet
    cdef readonly size_t row_bytes
    cdef uint64_t floor              # no subject without a row has a greater weight than this

    # Adds counts of a subject; a one-time subject is counted under its rule's name.
    cdef void add(self, const uint8_t *subject, size_t size, uint32_t hash, const Counts *counts) noexcept
    cdef void drop_rows(self) noexcept
    cdef void drop_row(self, Row *row) noexcept
    cdef void add_bytes(self, long long size) noexcept
    cdef bint is_surplus(self) noexcept
    # Keeps the `keep` heaviest rows; adds the others to `other`. (No memory: keeps all.)
    cdef void purge(self, uint32_t keep) noexcept
