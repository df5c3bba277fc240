# Signals at a parent's death, and names of processes: thin wrappers of prctl(2). No state.

cdef extern from "sys/prctl.h":
    int PR_SET_PDEATHSIG
    int PR_SET_NAME
    int prctl(int option, unsigned long argument, ...) noexcept nogil
