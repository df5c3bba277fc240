# When to look next at publishers who write in small pieces.
#
#   prompt ──(a wait of at most MOST_FILL_US would find FILL_BYTES)──→ filling
#      ↑                                                                  │
#      └──(LOOKS_TO_JUDGE later no more comes per second than before)─────┘  tries again after a wait that doubles

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t


@cython.final
cdef class Patience:
    cdef readonly uint32_t tick_us     # wait before the next look
    cdef readonly bint is_filling
    cdef double prompt_rate            # bytes per µs that came before it began to fill
    cdef uint64_t retry_us             # not before this time does it fill again, …
    cdef uint64_t wait_us              # … and so long after the next failure
    cdef uint64_t since_us             # of what is being judged: since when, …
    cdef size_t bytes_found            # … how much came, …
    cdef uint32_t looks                # … in how many looks
    cdef void begin(self, uint64_t now_us) noexcept
    cdef void after_look(self, size_t found, uint64_t now_us) noexcept
    cdef void judge(self, uint64_t now_us) noexcept
