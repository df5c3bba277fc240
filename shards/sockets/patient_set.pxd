# The sockets that are read with patience: an epoll set of their own, looked at when its clock ticks.
#
#   ready set ─┬─ Tick: a timerfd, while it ticks ──────────────────────┐
#              └─ PatientSet: the set itself, while the clock stands ───┴→ look(): read who has something

cimport cython
from libc.stdint cimport uint32_t

from gnatswarm.broker.outbuf cimport Outbox
from gnatswarm.shards.sockets.patience cimport Pace
from gnatswarm.shards.sockets.source cimport Round, Source


@cython.final
cdef class Tick(Source):
    cdef PatientSet patient


@cython.final
cdef class PatientSet(Source):
    cdef readonly Pace pace            # when to look
    cdef readonly uint32_t n_sockets
    cdef int ready_fd                  # the reactor's epoll set. BORROWED, like the next two: the reactor outlives this
    cdef Round *round
    cdef Outbox *box                   # has the time
    cdef int tick_fd
    cdef bint is_ticking
    cdef uint32_t idle_ticks           # looks in a row that found nothing
    cdef bint is_looking               # a look that takes several rounds goes on with the next
    cdef uint32_t number               # of the present look, or the last
    cdef uint32_t reads                # what it has found so far
    cdef size_t found

    # A source of the ready set is read with patience from here on. False: not, because it waits for other events too.
    cdef bint admit(self, Source source) noexcept
    # It is back in the ready set.
    cdef void dismiss(self, Source source) noexcept
    cdef int look(self) except -1
    cdef void finish_look(self) noexcept
    # Tick after first_us, and every `us` then; us 0: not at all.
    cdef void set_tick(self, uint32_t us, uint32_t first_us) noexcept
    cdef void start_ticking(self) noexcept
    cdef void stop_ticking(self) noexcept
    cdef void close(self) noexcept


# An empty set; its descriptors are not in the ready set yet. OSError.
cdef PatientSet new_patient_set(Pace pace, int ready_fd, Round *round, Outbox *box)
