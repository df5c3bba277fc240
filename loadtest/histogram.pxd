# A histogram of durations with three significant digits, in fixed memory (HDR: log buckets of linear steps).
#
#   0 .. 2047 ns                  one count each
#   2^k .. 2^(k+1)-1, k >= 11     1024 counts each: a step of 2^(k-10) ns

from libc.stdint cimport int64_t

cdef enum:
    STEPS = 1024
    BUCKETS = 33                        # up to 2^43 ns, 2.4 hours; longer durations count as that
    COUNTS = (BUCKETS + 1) * STEPS

cdef class Histogram:
    cdef int64_t *counts
    cdef readonly int64_t count
    cdef readonly int64_t max_ns
    cdef readonly int64_t min_ns
    cdef double total_ns
    cdef void add(self, int64_t value_ns, int64_t times) noexcept
