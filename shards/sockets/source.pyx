# cython: language_level=3
"""Something with a descriptor in an epoll set of the reactor: socket, listener, or the clock of patient sockets.

The base class and what all of them share. Not here: the sets themselves (reactor, patient_set).
"""


cdef class Source:
    """One descriptor; subclasses handle its events."""

    def __cinit__(self):
        self.fd = -1
        self.set_fd = -1
        self.at = -1

    cdef int on_event(self, uint32_t events) except -1:
        raise NotImplementedError

    cdef int on_event_alone(self, uint32_t events) except -1:
        """The same, at nobody else's cost: what it raises ends it alone, if it can."""
        return self.on_event(events)
