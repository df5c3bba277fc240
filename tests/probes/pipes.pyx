# cython: language_level=3, boundscheck=False, wraparound=False
"""What the simulation does hundreds of times in each schedule, compiled: links as pipes, and who has news.

It decides nothing. Reads probes.engine's sockets; tests.simulation.swarm and .world call it.
"""

from libc.string cimport memchr

from gnatswarm.broker.outbuf cimport out_pending
from gnatswarm.probes.engine cimport ProbeSocket

# What stands in front of a payload, whose size is the last word of the line.
cdef tuple WITH_PAYLOAD = (b"RMSG", b"HMSG", b"XMSG", b"XHMG", b"QMSG", b"QHMG", b"XQMG", b"XQHG", b"MOVE ", b"MARKQ",
                           b"MOVED", b"RDUE ")


cdef class FrameReader:
    """Reads the control lines of the frames in a byte stream between shards."""

    cdef bytes rest

    def __cinit__(self):
        self.rest = b""

    def lines(self, bytes data not None) -> list:
        """The control lines of the frames that are complete now."""
        return self.read(data, False)

    def frames(self, bytes data not None) -> list:
        """The control lines of the frames that are complete now, and what stands behind each: header and payload."""
        return self.read(data, True)

    cdef list read(self, bytes data, bint with_bodies):
        cdef bytes all_of_it = self.rest + data if self.rest else data
        cdef const char *start = all_of_it
        cdef const char *end
        cdef Py_ssize_t size = len(all_of_it), at = 0, after
        cdef bytes line
        cdef list found = []
        while at < size:
            end = <const char *>memchr(start + at, c"\n", size - at)
            if end == NULL:
                break
            assert end > start + at and (end - 1)[0] == c"\r", f"a bare line feed: {all_of_it[at:at + 200]!r}"
            line = start[at:end - 1 - start]
            after = end + 1 - start
            if line.startswith(WITH_PAYLOAD):
                after += int(line[line.rindex(b" ") + 1:]) + 2
                if after > size:
                    break
            found.append((line, start[end + 1 - start:after - 2] if after - 2 > end - start else b"") if with_bodies
                         else line)
            at = after
        self.rest = start[at:size]
        return found


cdef class Pipe:
    """One end of a link's byte stream. `process.is_alive`: whether the process that it is in lives."""

    cdef public object process
    cdef public Pipe other           # the other end
    cdef public ProbeSocket socket   # None: not open yet
    cdef public Py_ssize_t carried   # bytes of ours that the other end has read
    cdef public bint is_cut          # bytes that were not carried are lost

    @property
    def on_its_way(self) -> int:
        return 0 if self.socket is None or self.is_cut else len(self.socket.sent) - self.carried

    @property
    def is_open(self) -> bool:
        return self.socket is not None and not self.socket.is_over and self.process.is_alive

    def take(self, Py_ssize_t most) -> bytes:
        """At most so many bytes that were not carried."""
        cdef bytearray sent = self.socket.sent
        cdef Py_ssize_t n = min(most, len(sent) - self.carried)
        cdef const char *start = <char *>sent
        cdef bytes data = start[self.carried:self.carried + n]
        self.carried += n
        return data


def busy_pipes(list pipes not None) -> tuple:
    """(Those from which the other end has something to read: bytes, or their end; whether there are any to forget)."""
    cdef Pipe pipe
    cdef ProbeSocket mine, there
    cdef bint is_open, is_over = False
    cdef list busy = []
    for pipe in pipes:
        mine, there = pipe.socket, pipe.other.socket
        is_open = mine is not None and not mine.is_over and pipe.process.is_alive
        if there is None or there.is_over or not pipe.other.process.is_alive:
            is_over |= not is_open
        elif pipe.is_cut or (mine is not None and (not is_open or len(mine.sent) > pipe.carried)):
            busy.append(pipe)
    return busy, is_over


def is_over(Pipe pipe not None) -> bool:
    """Whether neither end of its stream is open."""
    return not pipe.is_open and not pipe.other.is_open


def count_words(list lines not None, counts not None):
    """Add the first word of each line to the counts."""
    cdef bytes line
    cdef Py_ssize_t n
    cdef str word
    for line in lines:
        n = line.find(b" ")
        word = (line if n < 0 else line[:n]).decode()
        counts[word] += 1


cdef class Sight:
    """What has been seen of a client's socket: `queued` bytes were looked at, of which it had been sent `sent`."""

    cdef public object whose
    cdef public ProbeSocket socket
    cdef public size_t queued
    cdef public size_t sent
    cdef public bint is_watched      # look at it again in any case


def with_news(list sights not None) -> list:
    """Those whose socket has been sent or is to be sent more, or is over; and those that are watched."""
    cdef Sight sight
    cdef ProbeSocket socket
    cdef size_t sent
    cdef list found = []
    for sight in sights:
        socket = sight.socket
        sent = len(socket.sent)
        if sight.is_watched or socket.is_over or sent != sight.sent or (
                sent + out_pending(&socket.peer.out) != sight.queued):
            found.append(sight)
    return found
