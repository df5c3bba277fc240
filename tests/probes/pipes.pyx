# cython: language_level=3, boundscheck=False, wraparound=False
"""What the simulation does hundreds of times in each schedule, compiled: links as pipes, and who has news.

It decides nothing. Reads probes.engine's sockets; tests.simulation.swarm and .world call it.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp

from gnatswarm.broker.outbuf cimport out_pending
from gnatswarm.probes.engine cimport Probe, ProbeSocket

# What stands in front of a payload, whose size is the last word of the line.
cdef tuple WITH_PAYLOAD = (b"RMSG", b"HMSG", b"XMSG", b"XHMG", b"QMSG", b"QHMG", b"XQMG", b"XQHG", b"MOVE ", b"MPART",
                           b"MCOUN", b"MSHIF", b"MOVED", b"RDUE ")


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


# Frames that the world hears of, and those that are only counted.
cdef tuple TOLD = (b"SLOW ", b"RTAKE ", b"RDROP ", b"RDUE ")
cdef tuple COUNTED = (b"QNAK ", b"QASK ", b"QEND ", b"SLOW ")


def told_of(list lines not None, counts not None) -> list:
    """The lines of which the world is told; adds the first word of some to the counts."""
    cdef bytes line
    cdef list found = []
    cdef char first
    for line in lines:
        first = (<const char *>line)[0]
        if first == c"Q" or first == c"S" or first == c"R":
            if line.startswith(COUNTED):
                counts[line[:4].decode()] += 1
            if line.startswith(TOLD):
                found.append(line)
    return found


def finish_all(list probes not None):
    """The end of a round for each of these."""
    cdef Probe probe
    for probe in probes:
        if probe.fanout.box.dirty != NULL or probe.fanout.box.called != NULL:
            probe.finish()


def relieved(list probes not None) -> bool:
    """Whether there is one where somebody who was behind is so no more."""
    cdef Probe probe
    for probe in probes:
        if probe.fanout.box.relieved:
            return True
    return False


cdef int64_t number_in(const char *at, const char *end) except -1:
    """A number with nothing but blanks behind it, or blanks and what looks like a frame."""
    cdef int64_t number = 0
    assert at < end and c"0" <= at[0] <= c"9", "no number"
    while at < end and c"0" <= at[0] <= c"9":
        number = number * 10 + at[0] - c"0"
        at += 1
    while at < end:
        if end - at > 4 and memcmp(at, b"RS+ ", 4) == 0:
            break
        assert at[0] == c" ", "no number"
        at += 1
    return number


cdef struct Word:
    const char *at
    Py_ssize_t size


def client_frames(bytes data not None, Py_ssize_t at, bint is_cut, Sight sight not None) -> list:
    """The frames that a client was sent, which must be whole unless `is_cut`. Its messages are counted in `sight`.

    (Where it ends in the stream, in which `data` is at `at`; its line, b"" for a message, b"503" for the header of
    that name, b"{" for a document; sid; number that is the payload; subject; reply; header, or the document).
    """
    cdef const char *start = data
    cdef const char *end = start + len(data)
    cdef const char *p = start
    cdef const char *newline
    cdef const char *blank
    cdef const char *body
    cdef Word[6] words
    cdef Py_ssize_t size, header
    cdef int n
    cdef bint has_header
    cdef list found = []
    while p < end:
        newline = <const char *>memchr(p, c"\n", end - p)
        if newline == NULL:
            assert is_cut, f"cut short: {data[p - start:]!r}"
            break
        assert newline > p and (newline - 1)[0] == c"\r", f"a bare line feed: {data[p - start:newline - start + 1]!r}"
        has_header = end - p > 5 and memcmp(p, b"HMSG ", 5) == 0
        if not has_header and (end - p < 4 or memcmp(p, b"MSG ", 4) != 0):
            found.append((at + newline + 1 - start, p[:newline - 1 - p], 0, 0, b"", b"", b""))
            p = newline + 1
            continue
        n = 0
        body = p
        while n < 6:
            blank = <const char *>memchr(body, c" ", newline - 1 - body)
            words[n].at = body
            words[n].size = (newline - 1 if blank == NULL else blank) - body
            n += 1
            if blank == NULL:
                break
            body = blank + 1
        assert blank == NULL and n >= 4 + has_header, f"no message: {p[:newline - p]!r}"
        size = number_in(words[n - 1].at, newline - 1)
        header = number_in(words[n - 2].at, words[n - 2].at + words[n - 2].size) if has_header else 0
        body = newline + 1
        if end - body < size + 2:
            assert is_cut, f"cut short: {p[:newline - p]!r}"
            break
        assert body[size] == c"\r" and body[size + 1] == c"\n", f"cut short: {p[:newline - p]!r}"
        if has_header and size >= 12 and memcmp(body, b"NATS/1.0 503", 12) == 0:
            found.append((at + body + size + 2 - start, b"503", number_in(words[2].at, words[2].at + words[2].size), 0,
                          words[1].at[:words[1].size], b"", body[:size]))
        elif size > header and body[header] == c"{":
            sight.msgs += 1
            sight.payload_bytes += size
            found.append((at + body + size + 2 - start, b"{", number_in(words[2].at, words[2].at + words[2].size), 0,
                          words[1].at[:words[1].size], b"", body[header:size]))
        else:
            sight.msgs += 1
            sight.payload_bytes += size
            found.append((at + body + size + 2 - start, b"", number_in(words[2].at, words[2].at + words[2].size),
                          number_in(body + header, body + size), words[1].at[:words[1].size],
                          words[3].at[:words[3].size] if n == 5 + has_header else b"", body[:header]))
        p = body + size + 2
    return found


cdef class Sight:
    """What has been seen of a client's socket: `queued` bytes were looked at, of which it had been sent `sent`."""

    cdef public object whose
    cdef public ProbeSocket socket
    cdef public size_t queued
    cdef public size_t sent
    cdef public bint is_watched      # look at it again in any case
    cdef public uint64_t msgs        # that it was sent, all told, but for those that say 503
    cdef public uint64_t payload_bytes


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
