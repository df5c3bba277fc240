# Signals at a parent's death, names of processes, pages given back: thin wrappers. No state.

from libc.stddef cimport size_t

cdef extern from "sys/prctl.h":
    int PR_SET_PDEATHSIG
    int PR_SET_NAME
    int prctl(int option, unsigned long argument, ...) noexcept nogil

cdef extern from "sys/mman.h":
    int MADV_DONTNEED
    int madvise(void *start, size_t length, int advice) noexcept nogil
