# When the many publishers of a shard are read together (read moderation of a crowd). Decisions only: see patient_set.
#
#   prompt ──(small reads came at LEAST_RATE for LEAST_SPAN_US)──→ gathering, a look every FIRST_TICK_US
#      ↑                                                              │ ↺ twice that, up to MOST_TICK_US, where it
#      │                                                              │   brings more bytes per second
#      ├──(too few bytes per second, or reads as small as before)─────┤   tries again after a wait that doubles
#      └──(nothing comes any more)────────────────────────────────────┘

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from gnatswarm.broker.word cimport unlikely
from gnatswarm.shards.sockets.patience cimport Pace

cdef enum:
    CROWD_READS = 1024       # small reads of one measurement, at least


@cython.final
cdef class Crowd(Pace):
    cdef readonly bint is_gathering
    cdef uint64_t reads                # of the present measurement, …
    cdef uint64_t bytes_read
    cdef readonly uint32_t looks       # … while gathering: in so many looks
    cdef uint64_t since_us             # … and its start
    cdef double prompt_rate            # bytes per µs that came before it began to gather, …
    cdef double prompt_size            # … and bytes per read
    cdef double best_rate              # bytes per µs of the present tick; 0: not known
    cdef double shorter_rate           # … of half the present tick, while the present one is being tried; 0: it is not
    cdef uint64_t retry_us             # do not gather again before this time
    cdef uint64_t wait_us              # the wait after the next failure
    cdef uint64_t longer_us            # do not try a longer tick before this time
    cdef uint64_t longer_wait_us
    cdef void judge_prompt(self, uint64_t now_us) noexcept
    cdef bint has_dispersed(self, uint64_t now_us) noexcept
    cdef void judge_gathering(self, uint64_t now_us) noexcept
    cdef bint is_worth_it(self, double rate, double size) noexcept
    cdef void choose_tick(self, double rate, uint64_t now_us) noexcept
    cdef void measure_anew(self, uint64_t now_us) noexcept


# A small prompt read of a socket that nothing was sent to. Called for each, so it is inlined.
cdef inline void note_prompt_read(Crowd crowd, size_t n, uint64_t now_us) noexcept:
    crowd.reads += 1
    crowd.bytes_read += n
    if unlikely(crowd.reads >= CROWD_READS):
        crowd.judge_prompt(now_us)
