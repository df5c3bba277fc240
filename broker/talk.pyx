# cython: language_level=3, boundscheck=False, wraparound=False
"""What one client has said and heard since it was asked last, by subject, bounded.

Exact while the subjects fit into `most` lines. A subject beyond them is counted by nobody here: the client's own totals
have it, so whoever adds up the lines knows the rest. One in sixteen such runs takes the place of the line with the
fewest messages, so that a heavy subject that comes late gets one (sample and hold: Estan and Varghese, 2002). After
MOST_MISSES of them only every SAMPLED-th run is looked at, and counts as so many. One-time subjects share a line, as in
a tally. Cost: nothing in a run, some 60 instructions where the subject changes, a quarter of that in samples.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from gnatswarm.broker.tally cimport FOLDED_AS, FOLDED_SIZE, folded_as
from gnatswarm.broker.word cimport likely

cdef uint64_t FOLDED_KEY = 0x9E3779B97F4A7C15

cdef enum:
    FIRST_SLOTS = 4
    MOST_MISSES = 64
    SAMPLED = 16


cdef Talk *talk_new(uint32_t most) noexcept:
    cdef Talk *talk = <Talk *>calloc(1, sizeof(Talk))
    if talk != NULL:
        talk.most = most
    return talk


cdef void lines_clear(Lines *lines) noexcept:
    cdef uint32_t i
    if lines.slots != NULL:
        for i in range(lines.mask + 1):
            free(lines.slots[i].text)
        free(lines.slots)
    lines.slots = NULL
    lines.mask = lines.count = lines.misses = 0


cdef void talk_clear(Talk *talk) noexcept:
    lines_clear(&talk.said)
    lines_clear(&talk.heard)
    talk.line = NULL
    talk.subject = 0
    talk.skips = 0


cdef void talk_free(Talk *talk) noexcept:
    if talk != NULL:
        talk_clear(talk)
        free(talk)


cdef inline uint32_t home_of(uint64_t key) noexcept nogil:
    return <uint32_t>((key ^ key >> 32) * <uint64_t>0x9E3779B97F4A7C15 >> 40)


cdef inline Line *slot_of(const Lines *lines, uint64_t key) noexcept:
    """The line with this key, or the free slot where it belongs."""
    cdef uint32_t i = home_of(key) & lines.mask
    while lines.slots[i].key != key and lines.slots[i].key != 0:
        i = (i + 1) & lines.mask
    return &lines.slots[i]


cdef bint lines_widen(Lines *lines) noexcept:
    """Twice the slots. False: no memory, and nothing has changed."""
    cdef Lines wide
    cdef uint32_t i
    wide.mask = lines.mask * 2 + 1 if lines.slots != NULL else FIRST_SLOTS - 1
    wide.slots = <Line *>calloc(<size_t>wide.mask + 1, sizeof(Line))
    if wide.slots == NULL:
        return False
    if lines.slots != NULL:
        for i in range(lines.mask + 1):
            if lines.slots[i].key:
                slot_of(&wide, lines.slots[i].key)[0] = lines.slots[i]
        free(lines.slots)
    lines.slots = wide.slots
    lines.mask = wide.mask
    return True


cdef void drop_lightest(Lines *lines) noexcept:
    """The line with the fewest messages gives up its place. Those behind it in its run of slots move up."""
    cdef uint32_t i, at = 0, home
    cdef bint is_found = False
    for i in range(lines.mask + 1):
        if lines.slots[i].key and (not is_found or lines.slots[i].msgs < lines.slots[at].msgs):
            at = i
            is_found = True
    free(lines.slots[at].text)
    i = at
    while True:
        i = (i + 1) & lines.mask
        if lines.slots[i].key == 0:
            break
        home = home_of(lines.slots[i].key) & lines.mask
        if ((i - home) & lines.mask) >= ((i - at) & lines.mask):
            lines.slots[at] = lines.slots[i]
            at = i
    lines.slots[at].key = 0
    lines.slots[at].text = NULL
    lines.count -= 1


cdef Line *line_new(Lines *lines, uint32_t most, uint64_t key, const uint8_t *text, size_t size, const uint8_t *more,
                    size_t more_size, bint has_more) noexcept:
    """A line for this text, which has none; NULL: there is no room, or no memory."""
    cdef Line *line
    cdef uint8_t *kept
    if size + more_size > MOST_TALK_BYTES:
        return NULL
    if lines.count >= most:
        lines.misses += 1
        if <uint32_t>(lines.misses * <uint32_t>0x9E3779B1) >> 28:   # (no rhythm of subjects escapes it)
            return NULL
        drop_lightest(lines)
    elif (lines.slots == NULL or lines.count * 2 >= lines.mask + 1) and not lines_widen(lines):
        return NULL
    kept = <uint8_t *>malloc(size + 1 + more_size)
    if kept == NULL:
        return NULL
    memcpy(kept, text, size)
    if has_more:
        kept[size] = c' '
        if more_size:   # (else it may be NULL)
            memcpy(kept + size + 1, more, more_size)
        size += 1 + more_size
    line = slot_of(lines, key)
    line.key = key
    line.msgs = line.payload_bytes = line.requests = 0
    line.text = kept
    line.size = <uint32_t>size
    lines.count += 1
    return line


cdef inline void talk_count(Talk *talk, uint64_t msgs, uint64_t payload_bytes) noexcept:
    """The run's messages so far go to its line."""
    cdef uint64_t n = msgs - talk.from_msgs, size = payload_bytes - talk.from_bytes
    if talk.line != NULL:
        if talk.said.misses > MOST_MISSES:
            n *= SAMPLED
            size *= SAMPLED
        talk.line.msgs += n
        talk.line.payload_bytes += size
        if talk.is_request:
            talk.line.requests += n
    talk.from_msgs = msgs
    talk.from_bytes = payload_bytes


cdef void talk_resume(Talk *talk, uint64_t in_msgs, uint64_t in_bytes, uint64_t out_msgs, uint64_t out_bytes) noexcept:
    talk.from_msgs = talk.told[0] = in_msgs
    talk.from_bytes = talk.told[1] = in_bytes
    talk.told[2] += out_msgs
    talk.told[3] += out_bytes
    talk.is_known = True


cdef void talk_settle(Talk *talk, uint64_t msgs, uint64_t payload_bytes) noexcept:
    talk_count(talk, msgs, payload_bytes)
    talk.line = NULL
    talk.subject = 0


cdef void talk_turn(Talk *talk, uint64_t hash, const uint8_t *subject, size_t size, bint is_request, uint64_t msgs,
                    uint64_t payload_bytes) noexcept:
    cdef uint64_t key = hash
    cdef int rule = -1
    if talk.skips:   # the sampled run has ended, those that follow are not looked at
        talk_count(talk, msgs, payload_bytes)
        talk.line = NULL
        talk.subject = 0
        talk.skips -= 1
        return
    if size and (subject[0] == c'_' or subject[0] == c'$'):
        rule = folded_as(subject, size)
        if rule >= 0:
            key = FOLDED_KEY * <uint64_t>(rule + 1)
            if talk.line != NULL and talk.line.key == key and talk.is_request == is_request:   # the run goes on
                talk.subject = hash
                return
            subject = <const uint8_t *>FOLDED_AS[rule]
            size = FOLDED_SIZE[rule]
    if key == 0:
        key = 1
    talk_count(talk, msgs, payload_bytes)
    talk.subject = hash
    talk.is_request = is_request
    if talk.said.misses > MOST_MISSES:
        talk.looks += 1
        talk.skips = <uint32_t>(talk.looks * <uint32_t>0x9E3779B1) >> 27   # SAMPLED - 1 on average, in no rhythm
        if talk.skips > 2 * (SAMPLED - 1):
            talk.skips = SAMPLED - 1
    if likely(talk.said.slots != NULL):
        talk.line = slot_of(&talk.said, key)
        if likely(talk.line.key == key):
            return
    talk.line = line_new(&talk.said, talk.most, key, subject, size, NULL, 0, False)


cdef void talk_hear(Talk *talk, const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                    uint64_t msgs) noexcept:
    cdef uint64_t key = <uint64_t>14695981039346656037   # FNV-1a: a text here has no slack behind it
    cdef Line *line = NULL
    cdef int rule = folded_as(subject, size)
    cdef size_t i
    if rule >= 0:
        subject = <const uint8_t *>FOLDED_AS[rule]
        size = FOLDED_SIZE[rule]
    if size + queue_size > MOST_TALK_BYTES:
        return
    if rule >= 0 and queue_size == 0:
        key = FOLDED_KEY * <uint64_t>(rule + 1)
    else:
        for i in range(size):
            key = (key ^ subject[i]) * <uint64_t>1099511628211
        key = (key ^ c' ') * <uint64_t>1099511628211
        for i in range(queue_size):
            key = (key ^ queue[i]) * <uint64_t>1099511628211
    if key == 0:
        key = 1
    if talk.heard.slots != NULL:
        line = slot_of(&talk.heard, key)
    if line == NULL or line.key != key:
        line = line_new(&talk.heard, talk.most, key, subject, size, queue, queue_size, True)
    if line != NULL:
        line.msgs += msgs


cdef list said_rows(const Talk *talk):
    cdef list rows = []
    cdef const Line *line
    cdef uint32_t i
    if talk.said.slots != NULL:
        for i in range(talk.said.mask + 1):
            line = &talk.said.slots[i]
            if line.key and line.msgs:
                rows.append((line.text[:line.size].decode("utf-8", "replace"), line.msgs, line.payload_bytes,
                             line.requests))
    return rows


cdef list heard_rows(const Talk *talk):
    cdef list rows = []
    cdef const Line *line
    cdef uint32_t i
    if talk.heard.slots != NULL:
        for i in range(talk.heard.mask + 1):
            line = &talk.heard.slots[i]
            if line.key and line.msgs:
                subject, _blank, queue = line.text[:line.size].partition(b" ")
                rows.append((subject.decode("utf-8", "replace"), queue.decode("utf-8", "replace"), line.msgs))
    return rows
