# Stream imports of one client's subscriptions: a Shadow in each exporting account's sublist.

cimport cython
from libc.stdint cimport uint64_t

from gnatswarm.broker.interest cimport Sub
from gnatswarm.broker.sublist cimport Sublist


# What a subscription costs beside its account's imports, in steps of a look-up (see match_steps).
cdef enum:
    STEPS_A_LOOK = 15     # for an import that may overlap
    STEPS_A_SHADOW = 50   # for one that it gets, from when it begins, and until it ends


@cython.final
cdef class Shadows:
    cdef set exporters              # Sublists in which there are any, or were
    cdef dict cast_by               # address of a Sub → [(address of its Shadow, StreamImport)]

    # Makes the Shadows of a subscription in `sublist`; `told` gains the siblings that hear of it. Returns of how many
    # imports it hears nothing, because the exporter's subject is longer than MOST_KEY_BYTES. MemoryError.
    cdef int cast(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, uint64_t *told) except -1
    cdef int cast_into(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, bint is_former,
                       uint64_t *told) except -1
    # The account's stream imports have changed. Returns the same.
    cdef int renew(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, uint64_t *told) except -1
    # Makes those of a former queue member: they get messages sent to the group before it left.
    cdef int cast_former(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, uint64_t *told) except -1
    cdef int drop_former(self, Sub *sub, uint64_t *told) except -1
    # What their client may have has changed: answers of the exporting accounts are made anew.
    cdef int forget_entries(self) except -1
    cdef int forget_former_entries(self) except -1
    # Removes them at the subscription's end.
    cdef int drop(self, Sub *sub, uint64_t *told) except -1
    cdef int end(self, cast, uint64_t *told) except -1
