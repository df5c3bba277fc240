# The counters that the processes of one run share. One writer each; a cache line each.

cimport cython
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <stdint.h>
    static inline int64_t board_read(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline void board_write(int64_t *at, int64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    """
    int64_t board_read(const int64_t *at) noexcept nogil
    void board_write(int64_t *at, int64_t value) noexcept nogil

cdef enum:
    STRIDE = 8                   # int64s: 64 bytes


@cython.final
cdef class Board:
    cdef object memory           # mmap; keeps `slots` valid
    cdef object view
    cdef int64_t *slots
    cdef readonly int publishers
    cdef readonly int subscribers
    cdef readonly int processes
    cdef readonly list wakers    # an eventfd per process
    cdef void wake_waiting(self, int but) noexcept
    cdef void wake_all(self, int but) noexcept

    cdef inline int64_t *sent(self, int publisher) noexcept:
        return self.slots + STRIDE * publisher

    cdef inline int64_t *done(self, int publisher) noexcept:
        return self.slots + STRIDE * (self.publishers + publisher)

    cdef inline int64_t *got(self, int subscriber) noexcept:
        return self.slots + STRIDE * (2 * self.publishers + subscriber)

    cdef inline int64_t *waiting(self, int process) noexcept:
        return self.slots + STRIDE * (2 * self.publishers + self.subscribers + process)
