# cython: language_level=3
"""What one client's subscriptions hear of other accounts: a Shadow in each exporting account's sublist.

The Shadow points at the same out-buffer and says which subject the client sees. So delivering costs nothing more,
siblings hear of the interest in the exporting account, and the client's permissions and UNSUB max hold. Made for
clients of accounts that import streams; cost of a SUB there: some 2 µs for each import that it overlaps.
"""

from broker.rules cimport StreamImport


cdef class Shadows:
    """Those of one client."""

    def __cinit__(self):
        self.cast_by = {}

    cdef int cast(self, Sublist sublist, Sub *sub, bytes subject, bytes queue) except -1:
        cdef StreamImport stream
        cdef void *renaming
        cdef Sub *shadow
        cdef bytes wanted
        cdef list cast = None
        for item in sublist.streams:
            stream = <StreamImport>item
            wanted = stream.wanted(subject)
            if wanted is None:
                continue
            renaming = <void *>stream.renaming if stream.renaming is not None else NULL
            shadow = stream.exporter.insert_shadow(sub, renaming, wanted, len(wanted), queue, len(queue))
            if shadow == NULL:
                raise MemoryError
            if cast is None:
                cast = self.cast_by[<size_t>sub] = []
            cast.append((<size_t>shadow, stream))   # keeps the renaming alive
        return 0

    cdef int renew(self, Sublist sublist, Sub *sub, bytes subject, bytes queue) except -1:
        before = self.cast_by.pop(<size_t>sub, ())
        if sublist.streams is not None:
            self.cast(sublist, sub, subject, queue)
        for address, stream in before:   # now: interest that goes on must not end in between
            (<StreamImport>stream).exporter.remove(<Sub *><size_t>address)
        return 0

    cdef int drop(self, Sub *sub) except -1:
        for address, stream in self.cast_by.pop(<size_t>sub, ()):
            (<StreamImport>stream).exporter.remove(<Sub *><size_t>address)
        return 0
