# What one client's subscriptions hear of other accounts: a Shadow in each exporting account's sublist.

cimport cython

from broker.interest cimport Sub
from broker.sublist cimport Sublist


@cython.final
cdef class Shadows:
    cdef dict cast_by               # address of a Sub → [(address of its Shadow, StreamImport)]

    # Casts those of a subscription in `sublist`. MemoryError.
    cdef int cast(self, Sublist sublist, Sub *sub, bytes subject, bytes queue) except -1
    # What its account imports has changed.
    cdef int renew(self, Sublist sublist, Sub *sub, bytes subject, bytes queue) except -1
    # The subscription ends.
    cdef int drop(self, Sub *sub) except -1
