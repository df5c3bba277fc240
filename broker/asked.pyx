# cython: language_level=3, boundscheck=False, wraparound=False
"""Requests of clients here that went to siblings alone, so that a client is told when nobody has got its request.

A request may go in several frames, to several siblings: when NONE has come for each, nobody has got it. What a sibling
has acknowledged without a NONE somebody has got. Bounded: a link with many such frames is asked for an acknowledgement,
and the oldest of very many are forgotten. It knows no connection and no link, but their numbers. Cost: a few
instructions for each frame of a request that nobody here got.
"""

from cpython.ref cimport PyObject, Py_INCREF, Py_XDECREF
from libc.stdlib cimport free, malloc

from gnatswarm.broker.word cimport unlikely


cdef enum:
    FIRST_ROOM = 64
    # A link with so many frames, or bytes of requests, is to be acknowledged; some 24 KB.
    MANY_FRAMES = 1024
    MANY_BYTES = 1048576
    # 6 MB for each link: more than it has pending, and on its way, before publishers are held.
    MOST_FRAMES = 262144
    MOST_BYTES = 16777216


cdef class Request:
    """A request that went in several frames, or to another account."""


cdef class Asked:
    """The frames of such requests, by link."""

    def __dealloc__(self):
        cdef int shard
        for shard in range(MOST_SHARDS):
            self.forget(shard)

    @property
    def n_kept(self) -> int:
        """Frames that are kept, of all links."""
        cdef int shard
        return sum([self.frames[shard].count for shard in range(MOST_SHARDS)])

    cdef bint note(self, int shard, uint64_t number, uint64_t cid, Request request) noexcept:
        cdef AskedFrames *frames = &self.frames[shard]
        cdef AskedFrame *frame
        if frames.count == frames.room and not self.grow(frames):
            return False
        frame = &frames.slots[(frames.first + frames.count) & (frames.room - 1)]
        frames.count += 1
        frame.number = number
        frame.cid = cid
        frame.request = NULL
        if request is not None:
            Py_INCREF(request)
            frame.request = <PyObject *>request
            frames.text_bytes += text_bytes(request)
        while unlikely(frames.text_bytes > MOST_BYTES):
            self.drop_first(frames)
        return frames.count >= MANY_FRAMES or frames.text_bytes >= MANY_BYTES

    cdef bint grow(self, AskedFrames *frames) noexcept:
        """Make room for one more. False: there is no memory."""
        cdef uint32_t room = 2 * frames.room if frames.room else FIRST_ROOM
        cdef AskedFrame *slots
        cdef uint32_t i
        if room > MOST_FRAMES:
            self.drop_first(frames)
            return True
        slots = <AskedFrame *>malloc(room * sizeof(AskedFrame))
        if slots == NULL:
            return False
        for i in range(frames.count):
            slots[i] = frames.slots[(frames.first + i) & (frames.room - 1)]
        free(frames.slots)
        frames.slots = slots
        frames.room = room
        frames.first = 0
        return True

    cdef uint64_t take(self, int shard, uint64_t number) noexcept:
        cdef AskedFrames *frames = &self.frames[shard]
        cdef AskedFrame *frame
        cdef uint32_t low = 0, high = frames.count, middle
        cdef uint64_t cid
        self.request = None
        while low < high:
            middle = (low + high) // 2
            if frames.slots[(frames.first + middle) & (frames.room - 1)].number < number:
                low = middle + 1
            else:
                high = middle
        if low == frames.count:
            return 0
        frame = &frames.slots[(frames.first + low) & (frames.room - 1)]
        if frame.number != number:
            return 0
        cid = frame.cid
        frame.cid = 0
        if frame.request != NULL:
            self.request = <Request>frame.request
        return cid

    cdef void acknowledge(self, int shard, uint64_t number) noexcept:
        cdef AskedFrames *frames = &self.frames[shard]
        while frames.count and frames.slots[frames.first].number <= number:
            self.drop_first(frames)
        if frames.count == 0 and frames.room > MANY_FRAMES:
            self.forget(shard)

    cdef void drop_first(self, AskedFrames *frames) noexcept:
        cdef AskedFrame *frame = &frames.slots[frames.first]
        if frame.request != NULL:
            frames.text_bytes -= text_bytes(<Request>frame.request)
            Py_XDECREF(frame.request)
        frames.first = (frames.first + 1) & (frames.room - 1)
        frames.count -= 1

    cdef void forget(self, int shard) noexcept:
        cdef AskedFrames *frames = &self.frames[shard]
        while frames.count:
            self.drop_first(frames)
        free(frames.slots)
        frames.slots = NULL
        frames.room = frames.first = 0


cdef size_t text_bytes(Request request) noexcept:
    return 0 if request.subject is None else <size_t>len(request.subject) + <size_t>len(request.reply)
