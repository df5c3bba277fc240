# cython: language_level=3, boundscheck=False, wraparound=False
"""The sockets that are read with patience: an epoll set of their own, looked at when its clock ticks.

Who writes one message per write() is read less often, not once per message. `patience` decides who and when; here it is
done. The clock stops when looks find nothing, and the next byte is then served at once. A patient socket is still
the reactor's; only the set that reports it is another.
"""

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC
from posix.unistd cimport close as close_fd, read as read_fd

from gnatswarm.shards.sockets.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, epoll_create1, epoll_ctl,
    epoll_event, epoll_wait)
from gnatswarm.shards.sockets.source cimport monotonic_us
from gnatswarm.shards.sockets.timerfd cimport (
    TFD_CLOEXEC, TFD_NONBLOCK, itimerspec, timerfd_create, timerfd_settime)


cdef enum:
    MOST_EVENTS = 64                # sockets read in one round; a look at more goes on in the next, …
    MOST_US = 5000                  # … as one does that lasts: others have a round
    IDLE_TICKS = 4                  # looks that find nothing before the clock is stopped


cdef class Tick(Source):
    """The clock of the patient sockets."""

    cdef int on_event(self, uint32_t events) except -1:
        cdef uint64_t expirations
        read_fd(self.fd, &expirations, sizeof(expirations))   # a periodic timer continues only when it was read
        return self.patient.look()


cdef PatientSet new_patient_set(Pace pace, int ready_fd, Round *round, Outbox *box):
    cdef PatientSet patient = PatientSet.__new__(PatientSet)
    patient.pace = pace
    patient.ready_fd = ready_fd
    patient.round = round
    patient.box = box
    return patient


cdef class PatientSet(Source):
    """The set itself. It is in the ready set while the clock stands still, for the first byte."""

    def __cinit__(self):
        self.tick_fd = -1
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        self.tick_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.fd < 0 or self.tick_fd < 0:
            raise OSError(errno, "cannot make the set of patient sockets")

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        """Closes its own descriptors; the sockets are the reactor's."""
        if self.fd >= 0:
            close_fd(self.fd)
        if self.tick_fd >= 0:
            close_fd(self.tick_fd)
        self.fd = self.tick_fd = -1

    cdef int on_event(self, uint32_t events) except -1:
        self.start_ticking()
        return self.look()

    cdef bint admit(self, Source source) noexcept:
        cdef epoll_event event
        if source.armed != EPOLLIN:
            return False
        epoll_ctl(self.ready_fd, EPOLL_CTL_DEL, source.fd, &event)
        event.events = EPOLLIN
        event.data.ptr = <void *>source
        epoll_ctl(self.fd, EPOLL_CTL_ADD, source.fd, &event)
        source.set_fd = self.fd
        self.n_sockets += 1
        self.start_ticking()
        return True

    cdef void dismiss(self, Source source) noexcept:
        cdef epoll_event event
        epoll_ctl(self.fd, EPOLL_CTL_DEL, source.fd, &event)
        event.events = source.armed
        event.data.ptr = <void *>source
        if source.armed:
            epoll_ctl(self.ready_fd, EPOLL_CTL_ADD, source.fd, &event)
        source.set_fd = self.ready_fd
        self.n_sockets -= 1

    cdef void set_tick(self, uint32_t us, uint32_t first_us) noexcept:
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_nsec = first_us * 1000 + (1 if us else 0)   # (0 would stop it)
        when.it_interval.tv_nsec = us * 1000
        timerfd_settime(self.tick_fd, 0, &when, NULL)

    cdef void start_ticking(self) noexcept:
        cdef epoll_event event
        if not self.is_ticking:
            self.is_ticking = True
            self.idle_ticks = 0
            self.is_looking = False
            self.pace.begin(self.box.now_us)
            self.set_tick(self.pace.tick_us, self.pace.tick_us)
            # (Not only disarmed: each packet for one of its sockets would still ask the ready set whether it is.)
            epoll_ctl(self.ready_fd, EPOLL_CTL_DEL, self.fd, &event)

    cdef void stop_ticking(self) noexcept:
        """The next byte from a patient socket is served at once, and starts the clock again."""
        cdef epoll_event event
        self.is_ticking = False
        self.pace.end()
        self.set_tick(0, 0)
        event.events = EPOLLIN
        event.data.ptr = <void *>self
        epoll_ctl(self.ready_fd, EPOLL_CTL_ADD, self.fd, &event)

    cdef int look(self) except -1:
        """Reads patient sockets that have something, each once; then the clock is set by what was found.

        What comes meanwhile waits for the next look: else a crowd that never pauses would be read without a pause.
        """
        cdef epoll_event events[MOST_EVENTS]
        cdef size_t before = self.round.bytes_read
        cdef int n = epoll_wait(self.fd, events, MOST_EVENTS, 0)
        cdef int i
        cdef bint was_all = n < MOST_EVENTS
        cdef uint64_t began_us = monotonic_us()
        cdef Source source
        if n <= 0 and not self.is_looking:
            self.idle_ticks += 1
            if self.idle_ticks >= IDLE_TICKS and self.is_ticking:
                self.stop_ticking()
            return 0
        self.idle_ticks = 0
        if not self.is_looking:
            self.is_looking = True
            self.number += 1
            self.found = self.reads = 0
        for i in range(n):
            source = <Source>events[i].data.ptr
            if source.looked == self.number:   # epoll reports who has been read behind all others
                was_all = True
                continue
            source.looked = self.number
            if source.fd >= 0:
                self.reads += 1
                source.on_event_alone(events[i].events)
            if i & 7 == 7 and i + 1 < n and monotonic_us() - began_us > MOST_US:
                was_all = False
                break
        self.found += self.round.bytes_read - before
        self.round.bytes_read = before   # the clock says when to look again, not how much there was
        if was_all:
            self.finish_look()
        elif self.is_ticking:
            self.set_tick(self.pace.tick_us, 0)
        return 0

    cdef void finish_look(self) noexcept:
        cdef uint32_t tick = self.pace.tick_us
        cdef bint took_rounds = self.reads > MOST_EVENTS
        self.is_looking = False
        self.pace.after_look(self.found, self.reads, self.box.now_us)
        if self.is_ticking and (took_rounds or self.pace.tick_us != tick):
            self.set_tick(self.pace.tick_us, self.pace.tick_us)
