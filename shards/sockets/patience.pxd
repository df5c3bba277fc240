# When to read next from publishers that write in small pieces (read moderation). Decisions only: see patient_set.
#
#   prompt ──(a wait of at most MOST_FILL_US would find FILL_BYTES)──→ filling
#      ↑                                                                  │
#      └──(after LOOKS_TO_JUDGE: not enough more bytes per second)────────┘  tries again after a wait that doubles

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.word cimport unlikely

cdef enum:
    SMALL_READ_BYTES = 4096         # a read of at most this is small
    # A read closer than this to the one before is quick: 50,000 writes a second. (100 µs was tried: it included a
    # publisher paced at 20,000 a second, whose messages then came 150 µs later, without a gain that it would notice.)
    QUICK_US = 20
    READS_TO_TRUST = 16             # after so many small, quick reads with nothing sent in between, read with patience
    LARGE_READ_BYTES = 262144       # a whole read (READ_BYTES of the reactor): it no longer writes in small pieces
    BULK_READ_BYTES = 49152         # READS_TO_TRUST more of these than of small ones: it writes in large pieces
    THIN_READ_BYTES = 512           # so little at THIN_READS looks in a row: it no longer writes fast
    THIN_READS = 8


# What is known of one socket's reads.
ctypedef struct ReadHabit:
    bint is_patient          # it is in the patient set
    bint is_gathered         # it is in the set of the crowd
    bint is_narrow           # its receive buffer is bounded
    bint was_sent            # something was sent to it since its last read
    uint8_t bulk_reads       # of a narrow one: how many more large reads than small ones
    uint8_t small_reads      # quick small reads in a row; of a patient one, thin reads in a row
    uint64_t read_us         # when it was last read


# What a read shows.
cdef enum ReadFinding:
    READ_AS_BEFORE = 0
    READ_SMALL_AND_QUICK     # it may be read with patience
    READ_NOT_PATIENTLY       # patience brings nothing (more): read it at once again
    READ_IN_BULK             # it writes in large pieces: widen its receive buffer


# Notes a read of n bytes, and tells what it shows. Called for each read, so it is inlined.
cdef inline ReadFinding note_habit(ReadHabit *habit, Py_ssize_t n, uint64_t now_us) noexcept nogil:
    cdef ReadFinding finding = READ_AS_BEFORE
    if habit.is_patient:
        habit.small_reads = habit.small_reads + 1 if n < THIN_READ_BYTES else 0
        if habit.was_sent or n >= LARGE_READ_BYTES or habit.small_reads >= THIN_READS:
            finding = READ_NOT_PATIENTLY
    elif habit.is_gathered:
        if habit.was_sent or n >= BULK_READ_BYTES:
            finding = READ_NOT_PATIENTLY
    elif n <= SMALL_READ_BYTES and not habit.was_sent and now_us - habit.read_us < QUICK_US:
        habit.small_reads += 1
        if habit.small_reads >= READS_TO_TRUST:
            finding = READ_SMALL_AND_QUICK
    else:
        habit.small_reads = 0
        if unlikely(habit.is_narrow):
            if n >= BULK_READ_BYTES:
                habit.bulk_reads += 1
                if habit.bulk_reads >= READS_TO_TRUST:
                    habit.is_narrow = False
                    finding = READ_IN_BULK
            elif n <= SMALL_READ_BYTES and habit.bulk_reads:
                habit.bulk_reads -= 1
    habit.was_sent = False
    habit.read_us = now_us
    return finding


# When a set of sockets is looked at: by one of two rules, patience with single ones (below), or with a crowd (crowd).
cdef class Pace:
    cdef readonly uint32_t tick_us     # wait before the next look
    # The first publisher after a time without any.
    cdef void begin(self, uint64_t now_us) noexcept
    # One look found so many bytes in so many reads; tick_us is the wait before the next.
    cdef void after_look(self, size_t found, uint32_t reads, uint64_t now_us) noexcept
    # Nothing comes any more.
    cdef void end(self) noexcept


@cython.final
cdef class Patience(Pace):
    cdef readonly bint is_filling
    cdef double prompt_rate            # bytes per µs that came before it began to fill
    cdef uint64_t retry_us             # do not try filling again before this time
    cdef uint64_t wait_us              # the wait after the next failure
    cdef uint64_t since_us             # the present measurement: its start, …
    cdef size_t bytes_found            # … bytes found since, …
    cdef uint32_t looks                # … and number of looks
    cdef void judge(self, uint64_t now_us) noexcept
