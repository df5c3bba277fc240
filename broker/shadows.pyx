# cython: language_level=3
"""Stream imports of one client's subscriptions: a Shadow in each exporting account's sublist.

The Shadow points to the same out-buffer and has the subject that the client sees. So delivery costs nothing extra,
siblings are told of interest in the exporting account, and the client's permissions and UNSUB max hold. Used only for
clients of accounts with stream imports; a SUB there costs some 2 µs for each import that it overlaps.
"""

from gnatswarm.broker.rules cimport StreamImport
from gnatswarm.broker.sublist cimport count_steps
from gnatswarm.broker.table cimport MOST_KEY_BYTES


cdef class Shadows:
    """The Shadows of one client."""

    def __cinit__(self):
        self.cast_by = {}
        self.exporters = set()

    cdef int cast(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, uint64_t *told) except -1:
        return self.cast_into(sublist, sub, subject, queue, False, told)

    cdef int cast_former(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, uint64_t *told) except -1:
        return self.cast_into(sublist, sub, subject, queue, True, told)

    cdef int cast_into(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, bint is_former,
                       uint64_t *told) except -1:
        cdef StreamImport stream
        cdef Sublist exporter
        cdef void *renaming
        cdef Sub *shadow
        cdef bytes wanted
        cdef list streams = sublist.streams_meeting(subject)
        cdef list cast = None
        cdef int n_unheard = 0
        count_steps(len(streams) * STEPS_A_LOOK)
        for item in streams:
            stream = <StreamImport>item
            wanted = stream.wanted(subject)
            if wanted is None:
                continue
            if len(wanted) > MOST_KEY_BYTES:
                n_unheard += 1
                continue
            renaming = <void *>stream.renaming if stream.renaming is not None else NULL
            exporter = stream.exporter
            self.exporters.add(exporter)
            if is_former:
                exporter = exporter.former_members()
            shadow = exporter.insert_shadow(sub, renaming, wanted, len(wanted), queue, len(queue), told)
            if shadow == NULL:
                raise MemoryError
            count_steps(STEPS_A_SHADOW)
            if cast is None:
                cast = self.cast_by[<size_t>sub] = []
            cast.append((<size_t>shadow, stream))   # keeps the renaming alive
        return n_unheard

    cdef int renew(self, Sublist sublist, Sub *sub, bytes subject, bytes queue, uint64_t *told) except -1:
        cdef int n_unheard = 0
        before = self.cast_by.pop(<size_t>sub, ())
        if sublist.stream_imports is not None:
            n_unheard = self.cast(sublist, sub, subject, queue, told)
        self.end(before, told)   # now: interest that goes on must not end in between
        return n_unheard

    cdef int forget_entries(self) except -1:
        for exporter in self.exporters:
            (<Sublist>exporter).forget_entries()
        return 0

    cdef int forget_former_entries(self) except -1:
        for exporter in self.exporters:
            (<Sublist>exporter).former_members().forget_entries()
        return 0

    cdef int drop(self, Sub *sub, uint64_t *told) except -1:
        self.end(self.cast_by.pop(<size_t>sub, ()), told)
        return 0

    cdef int end(self, cast, uint64_t *told) except -1:
        count_steps(len(cast) * STEPS_A_SHADOW)
        for address, stream in cast:
            (<StreamImport>stream).exporter.remove(<Sub *><size_t>address, told)
        return 0

    cdef int drop_former(self, Sub *sub, uint64_t *told) except -1:
        for address, stream in self.cast_by.pop(<size_t>sub, ()):
            (<StreamImport>stream).exporter.former.remove(<Sub *><size_t>address, told)
        return 0
