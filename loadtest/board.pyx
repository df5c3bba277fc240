# cython: language_level=3, boundscheck=False, wraparound=False
"""Counters that the generator's processes share during a run: messages sent, done, received; who waits.

Anonymous shared memory, made before the processes are forked. Publishers read the subscribers' counters to stay within
the window; the progress bar reads all. Each counter has one writer.
"""

import mmap
import os

from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport write as write_fd


cdef class Board:
    def __init__(self, int publishers, int subscribers, int processes):
        cdef Py_ssize_t slots = (2 * publishers + subscribers + processes + 1) * STRIDE
        cdef unsigned char[::1] view
        self.publishers = publishers
        self.subscribers = subscribers
        self.processes = processes
        self.memory = mmap.mmap(-1, slots * sizeof(int64_t))
        view = self.memory
        self.view = view
        self.slots = <int64_t *>&view[0]
        self.wakers = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(processes)]

    def close(self):
        """Close the descriptors; the memory is freed with the object."""
        while self.wakers:
            os.close(self.wakers.pop())

    cdef void wake_waiting(self, int but) noexcept:
        """Wake the processes that are waiting, except the process `but`."""
        cdef uint64_t one = 1
        cdef int process
        if self.processes == 1:
            return
        for process in range(self.processes):
            if process != but and board_read(self.waiting(process)):
                board_write(self.waiting(process), 0)
                write_fd(<int>self.wakers[process], &one, sizeof(one))

    cdef void wake_all(self, int but) noexcept:
        cdef int process
        for process in range(self.processes):
            board_write(self.waiting(process), 1)
        self.wake_waiting(but)

    @property
    def sent_msgs(self):
        """Messages sent by all publishers so far."""
        return sum([board_read(self.sent(publisher)) for publisher in range(self.publishers)])

    @property
    def received_msgs(self):
        """Messages delivered to all subscribers so far."""
        return sum([board_read(self.got(subscriber)) for subscriber in range(self.subscribers)])
