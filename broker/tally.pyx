# cython: language_level=3, boundscheck=False, wraparound=False
"""Counts per subject in one window, bounded.

Exact for up to `most` subjects, or fewer where the tallies of many accounts have too much together. Beyond twice as
many, the lighter half is added to `other` at once (a constant cost per subject), and a subject that comes back gets an
error bound, the most that it may have had before. As in Misra and Gries' summaries, every subject heavier than some
total/most has a row, and row + error is never less than the truth. The sum of rows and `other` is always exact.
One-time subjects (`_INBOX.…`) are folded into one row by rule. It knows no clock and no cache: the sublist adds to it,
the shard's recorder empties it.
"""

from libc.stdint cimport uint16_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from gnatswarm.broker.table cimport slot_item, table_find, table_free, table_init, table_insert
from gnatswarm.broker.word cimport SLACK, hash_bytes

ctypedef long long int64

cdef enum:
    # A row's key size is 16 bits wide; subjects of this length are not worth one anyway.
    MOST_TALLIED_SUBJECT = 4096

tallies_bytes = n_filled = 0

FOLDED_AS[:] = [b"_INBOX.>", b"_R_.>", b"$JS.ACK.>"]
FOLDED_SIZE[:] = [8, 5, 9]


cdef inline uint32_t mixed(uint32_t hash) noexcept nogil:
    """A different hash (MurmurHash3's finalizer). A match cache is harvested in the order of its hashes: with those the
    rows of one harvest would all belong in the same few slots, and each look-up would probe past the earlier ones."""
    hash ^= hash >> 16
    hash *= <uint32_t>0x85EBCA6B
    hash ^= hash >> 13
    hash *= <uint32_t>0xC2B2AE35
    return hash ^ (hash >> 16)


cdef uint64_t nth(uint64_t *values, uint32_t n, uint32_t k) noexcept nogil:
    """The k-th smallest (from 0) of n values, which are reordered; quickselect with the middle value as pivot."""
    cdef int64 low = 0, high = <int64>n - 1, i, j
    cdef uint64_t pivot, value
    while low < high:
        pivot = values[(low + high) // 2]
        i = low
        j = high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                value = values[i]
                values[i] = values[j]
                values[j] = value
                i += 1
                j -= 1
        if <int64>k <= j:
            high = j
        elif <int64>k >= i:
            low = i
        else:
            break
    return values[k]


cdef class Tally:
    """The counts of one account's subjects since it was emptied last."""

    def __cinit__(self, uint32_t most):
        if most == 0:
            raise ValueError("a tally needs room for one subject")
        self.most = most
        table_init(&self.rows, sizeof(Row))

    def __dealloc__(self):
        self.drop_rows()

    cdef void drop_rows(self) noexcept:
        cdef uint32_t i
        if self.rows.slots != NULL:
            for i in range(self.rows.mask + 1):
                if self.rows.slots[i]:
                    self.drop_row(<Row *>slot_item(self.rows.slots[i]))
        table_free(&self.rows)

    cdef void drop_row(self, Row *row) noexcept:
        self.add_bytes(-<int64>(sizeof(Row) + row.key.size))
        free(row)

    cdef void add_bytes(self, int64 size) noexcept:
        """Of rows, or less."""
        global tallies_bytes, n_filled
        n_filled -= self.row_bytes != 0
        self.row_bytes += <size_t>size
        tallies_bytes += <size_t>size
        n_filled += self.row_bytes != 0

    cdef bint is_surplus(self) noexcept:
        """All tallies together have too much, and this one has more than its share."""
        return tallies_bytes > MOST_TALLIES_BYTES and self.row_bytes > MOST_TALLIES_BYTES // (n_filled + 1)

    cdef void add(self, const uint8_t *subject, size_t size, uint32_t hash, const Counts *counts) noexcept:
        cdef Row *row
        cdef int rule = -1
        if size > MOST_TALLIED_SUBJECT:
            counts_add(&self.other, counts)
            return
        if size and (subject[0] == c'_' or subject[0] == c'$'):
            rule = folded_as(subject, size)
            if rule >= 0:
                if self.folded[rule] != NULL:   # a request makes one of these, so it may not cost a search
                    counts_add(&self.folded[rule].counts, counts)
                    return
                subject = <const uint8_t *>FOLDED_AS[rule]
                size = FOLDED_SIZE[rule]
                hash = <uint32_t>0x9E3779B9 * <uint32_t>(rule + 1)   # (nothing else has these subjects)
        hash = mixed(hash)
        row = <Row *>table_find(&self.rows, subject, size, hash)
        if row != NULL:
            counts_add(&row.counts, counts)
            if rule >= 0:
                self.folded[rule] = row
            return
        if self.rows.count >= 2 * self.most:
            self.purge(self.most)
        elif self.rows.count > 1 and self.is_surplus():
            self.purge(self.rows.count // 2)
        row = NULL if self.rows.count >= 2 * self.most else <Row *>malloc(sizeof(Row) + size)
        if row == NULL:
            counts_add(&self.other, counts)
            return
        memset(row, 0, sizeof(Row))
        row.key.hash = hash
        row.key.size = <uint16_t>size
        row.error = self.floor
        row.counts = counts[0]
        memcpy(<uint8_t *>row + sizeof(Row), subject, size)
        if not table_insert(&self.rows, &row.key):
            free(row)
            counts_add(&self.other, counts)
            return
        self.add_bytes(sizeof(Row) + size)
        if rule >= 0:
            self.folded[rule] = row

    cdef void purge(self, uint32_t keep) noexcept:
        cdef Table kept
        cdef Row *row
        cdef uint64_t *weights
        cdef uint64_t least, weight
        cdef uint32_t n = 0, ties, i
        if self.rows.count <= keep:
            return
        # Made when it is needed: of ten thousand accounts hardly any has so many subjects, and each has a tally.
        weights = <uint64_t *>calloc(self.rows.count, sizeof(uint64_t))
        if weights == NULL:
            return
        memset(self.folded, 0, sizeof(self.folded))
        for i in range(self.rows.mask + 1):
            if self.rows.slots[i]:
                row = <Row *>slot_item(self.rows.slots[i])
                weights[n] = counts_weight(&row.counts) + row.error
                n += 1
        # Rows heavier than `least` stay, and as many of those equal to it as there is room for.
        least = nth(weights, n, n - keep)
        ties = keep
        for i in range(n):
            if weights[i] > least:
                ties -= 1
        if least > self.floor:
            self.floor = least
        table_init(&kept, sizeof(Row))
        for i in range(self.rows.mask + 1):
            if not self.rows.slots[i]:
                continue
            row = <Row *>slot_item(self.rows.slots[i])
            weight = counts_weight(&row.counts) + row.error
            if (weight > least or (weight == least and ties > 0)) and table_insert(&kept, &row.key):
                if weight == least:
                    ties -= 1
            else:
                counts_add(&self.other, &row.counts)
                self.drop_row(row)
        free(weights)
        table_free(&self.rows)
        self.rows = kept

    # ---- for the recorder, in Python

    def settle(self) -> tuple:
        """End the window: keeps at most `most` rows to be read. Returns (total, other), each as in `read`."""
        cdef Counts total = self.other
        cdef uint32_t i
        if self.rows.slots != NULL:
            for i in range(self.rows.mask + 1):
                if self.rows.slots[i]:
                    counts_add(&total, &(<Row *>slot_item(self.rows.slots[i])).counts)
        self.purge(self.most)
        return counts_row(&total), counts_row(&self.other)

    def read(self, uint32_t start, uint32_t slots, bint is_exact=False) -> tuple:
        """([(subject, error, msgs, bytes, deliveries, bytes out, unwanted, frames to, messages from siblings, widest,
        misses)], next) of so many slots; next is 0 after the last. `is_exact`: bytes of a subject that are not UTF-8
        are surrogates, so that no two subjects have the same text."""
        cdef list found = []
        cdef str errors = "surrogateescape" if is_exact else "replace"
        cdef bytes subject
        cdef Row *row
        cdef uint64_t end
        cdef uint32_t i
        if self.rows.slots == NULL:
            return found, 0
        end = min(<uint64_t>start + slots, <uint64_t>self.rows.mask + 1)
        for i in range(start, <uint32_t>end):
            if self.rows.slots[i]:
                row = <Row *>slot_item(self.rows.slots[i])
                subject = (<uint8_t *>row + sizeof(Row))[:row.key.size]
                found.append((subject.decode("utf-8", errors), row.error) + counts_row(&row.counts))
        return found, 0 if end > self.rows.mask else end

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return self.rows.count == 0 and self.other.msgs == 0 and self.other.deliveries == 0 \
            and self.other.link_in == 0 and self.other.link_out == 0

    @property
    def other_msgs(self) -> int:
        """Messages so far on subjects without a row."""
        return self.other.msgs

    def note(self, bytes subject not None, uint64_t msgs, uint64_t deliveries=0, uint64_t link_in=0):
        """Counts as a sublist does (for tests)."""
        cdef Counts counts
        memset(&counts, 0, sizeof(Counts))
        counts.msgs = msgs
        counts.deliveries = deliveries
        counts.link_in = link_in
        self.add(subject, len(subject), <uint32_t>hash_bytes(subject + bytes(SLACK), len(subject), 1), &counts)

    @property
    def count(self) -> int:
        """How many rows there are now."""
        return self.rows.count

    @property
    def longest_probe(self) -> int:
        """The longest distance, in slots, between a row and its home slot."""
        cdef uint32_t i, longest = 0
        if self.rows.slots != NULL:
            for i in range(self.rows.mask + 1):
                if self.rows.slots[i]:
                    longest = max(longest, (i - slot_item(self.rows.slots[i]).hash) & self.rows.mask)
        return longest


cdef tuple counts_row(const Counts *counts):
    return (counts.msgs, counts.payload_bytes, counts.deliveries, counts.out_bytes, counts.unwanted, counts.link_out,
            counts.link_in, counts.widest, counts.misses)
