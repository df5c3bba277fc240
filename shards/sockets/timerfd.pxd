# timerfd(2) as the reactor's sources call it. No state.

from posix.time cimport timespec

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_NONBLOCK, TFD_CLOEXEC
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)
