# When to read next from publishers that write in small pieces (read moderation).
#
#   prompt ──(a wait of at most MOST_FILL_US would find FILL_BYTES)──→ filling
#      ↑                                                                  │
#      └──(after LOOKS_TO_JUDGE: not enough more bytes per second)────────┘  tries again after a wait that doubles

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t


@cython.final
cdef class Patience:
    cdef readonly uint32_t tick_us     # wait before the next look
    cdef readonly bint is_filling
    cdef double prompt_rate            # bytes per µs that came before it began to fill
    cdef uint64_t retry_us             # do not try filling again before this time
    cdef uint64_t wait_us              # the wait after the next failure
    cdef uint64_t since_us             # the present measurement: its start, …
    cdef size_t bytes_found            # … bytes found since, …
    cdef uint32_t looks                # … and number of looks
    cdef void begin(self, uint64_t now_us) noexcept
    cdef void after_look(self, size_t found, uint64_t now_us) noexcept
    cdef void judge(self, uint64_t now_us) noexcept
