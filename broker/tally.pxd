# What was counted per subject in one window, bounded: exact up to a number of subjects, heavy hitters beyond.
#
#   Entry.counts (sublist) ──── evicted, rebuilt, or harvested ────→ Tally: subject → Row, and `other`
#
# Ownership: the Tally owns its rows; the subject stands behind the struct.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from broker.table cimport Keyed, Table

# Of one subject on one shard. One cache line.
ctypedef struct Counts:
    uint64_t msgs            # from clients of this shard
    uint64_t payload_bytes
    uint64_t deliveries      # to clients of this shard, whoever published
    uint64_t out_bytes
    uint64_t unwanted        # of msgs: went to nobody, here or elsewhere
    uint64_t link_out        # frames to siblings
    uint64_t link_in         # messages from siblings
    uint32_t widest          # subscribers here that one message reached
    uint32_t misses          # times the match was not cached

ctypedef struct Row:
    Keyed key
    uint64_t error           # at most so many messages more, counted while it had no row
    Counts counts


cdef enum:
    N_FOLDED = 3                 # kinds of subjects that are used once: see tally.pyx


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
    cdef readonly uint32_t most      # rows that a window ends with; twice as many while it lasts
    cdef Table rows
    cdef Counts other                # of subjects that have no row (any more)
    cdef Row *folded[N_FOLDED]       # the rows of one-time subjects, by their rule; NULL: to be looked for
    cdef uint64_t floor              # no subject without a row has a greater weight than this
    cdef uint64_t *weights           # scratch: room for 2 * most

    # Counts what happened on a subject; one of the folded kinds is counted under its rule's name.
    cdef void add(self, const uint8_t *subject, size_t size, uint32_t hash, const Counts *counts) noexcept
    cdef void drop_rows(self) noexcept
    # Leaves the `keep` heaviest rows; the others go to `other`.
    cdef void purge(self, uint32_t keep) noexcept
