# epoll(7) as the reactor and its sources call it. No state.

from libc.stdint cimport uint32_t

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLONESHOT, EPOLL_CLOEXEC
        EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    ctypedef union epoll_data_t:
        void *ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int most, int timeout_ms)
