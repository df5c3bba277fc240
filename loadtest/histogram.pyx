# cython: language_level=3, cdivision=True
"""A histogram of durations in nanoseconds: every value within 0.1 %, 270 KB, a record in a few nanoseconds.

After HdrHistogram by Gil Tene. It does not measure; the caller decides when a duration starts.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    int __builtin_clzll(unsigned long long x) noexcept nogil


cdef inline int slot_of(int64_t value_ns) noexcept nogil:
    cdef int bucket
    if value_ns < 2 * STEPS:
        return <int>value_ns
    bucket = 63 - __builtin_clzll(<unsigned long long>value_ns) - 10
    if bucket >= BUCKETS:
        return COUNTS - 1
    return bucket * STEPS + <int>(value_ns >> bucket)


cdef inline int64_t highest_in(int slot) noexcept nogil:
    """The largest value that is counted in this slot."""
    cdef int bucket
    if slot < 2 * STEPS:
        return slot
    bucket = slot // STEPS - 1
    return ((<int64_t>(slot - bucket * STEPS) + 1) << bucket) - 1


@cython.final
cdef class Histogram:
    def __cinit__(self):
        self.counts = <int64_t *>calloc(COUNTS, sizeof(int64_t))
        if self.counts == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.counts)

    cdef void add(self, int64_t value_ns, int64_t times) noexcept:
        if value_ns < 0:
            value_ns = 0
        self.counts[slot_of(value_ns)] += times
        if self.count == 0 or value_ns < self.min_ns:
            self.min_ns = value_ns
        if value_ns > self.max_ns:
            self.max_ns = value_ns
        self.count += times
        self.total_ns += <double>value_ns * times

    def record(self, int64_t value_ns, int64_t times=1):
        """Count a duration; a negative one as 0."""
        self.add(value_ns, times)

    def record_corrected(self, int64_t value_ns, int64_t interval_ns):
        """Count a duration, and those of messages that were due every `interval_ns` while it lasted."""
        self.add(value_ns, 1)
        if interval_ns > 0:
            while value_ns > interval_ns:
                value_ns -= interval_ns
                self.add(value_ns, 1)

    @property
    def mean_ns(self):
        """The mean; 0 when nothing was recorded."""
        return self.total_ns / self.count if self.count else 0.0

    def at(self, double percent):
        """The duration that `percent` (0 to 100) of all do not exceed, in ns; 0 when nothing was recorded."""
        if not self.count:
            return 0
        if not 0 <= percent <= 100:
            raise ValueError(f"not a percentage: {percent}")
        cdef int64_t wanted = <int64_t>(self.count * (percent / 100.0) + 0.5)
        cdef int64_t seen = 0
        cdef int slot
        if wanted < 1:
            wanted = 1
        for slot in range(COUNTS):
            seen += self.counts[slot]
            if seen >= wanted:
                return min(highest_in(slot), self.max_ns)
        return self.max_ns

    def pairs(self):
        """[largest value of a slot, count] for every slot with a count; the argument of `merge`."""
        return [[highest_in(slot), self.counts[slot]] for slot in range(COUNTS) if self.counts[slot]]

    def merge(self, pairs, int64_t min_ns, int64_t max_ns, double mean_ns):
        """Add the counts of another histogram."""
        cdef int64_t value, times, added = 0
        cdef bint was_empty = self.count == 0
        for value, times in pairs:
            self.counts[slot_of(value)] += times
            added += times
        if added:
            self.min_ns = min_ns if was_empty else min(self.min_ns, min_ns)
            self.max_ns = max(self.max_ns, max_ns)
            self.count += added
            self.total_ns += mean_ns * added

    def __len__(self):
        return self.count

    def __bool__(self):
        return self.count > 0
