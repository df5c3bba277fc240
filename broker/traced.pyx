# cython: language_level=3, boundscheck=False, wraparound=False
"""Delivers messages whose header asks for a trace, one by one, and notes what becomes of them.

It does for one message what fan-out does for runs, in the same order and with the same counts, and tells the
MessageTrace in Fanout.trace of every receiver. A sibling that the message goes to is one receiver: it is sent a header
more (Nats-Trace-Hop), and writes a document of its own. With Nats-Trace-Only nothing is sent to any client. Not here:
documents (broker.message_trace). Cost: some µs per receiver; other messages do not come here.
"""

from libc.string cimport memchr

from gnatswarm.broker.entry cimport SHARED_PREFIX, Choice, Target, choice_named, is_foreign
from gnatswarm.broker.fanout cimport (
    HERE, MOST_NAME_BYTES, MOST_QUEUES, ORIGIN_ACCOUNT, ORIGIN_CLIENT, PLAINLY, is_output_of, rewritten)
from gnatswarm.broker.interest cimport GATEWAY_NUMBER, MOST_SHARDS, Node, QueueName, Sub
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.sublist cimport count_steps, width_bucket
from gnatswarm.broker.word cimport SLACK

from gnatswarm.broker import message_trace


cdef enum:
    LINE_BYTES = 10          # "NATS/1.0\r\n"
    # What a receiver costs, as steps of matching do, with its part of the document, or without.
    STEPS_AN_EVENT = 150
    STEPS_AN_UNLISTED = 10


cdef extern from *:
    """
    /* Has a header block of n bytes a line that begins with this name of `size` bytes, the colon included? Looks for
     * line feeds before the name's first letter, 16 bytes at a time; may read GN_SLACK bytes past the end. */
    static inline int gn_has_line(const uint8_t *p, size_t n, const char *name, size_t size) {
        size_t i = 9;                       /* the line feed of "NATS/1.0\\r\\n" */
        if (n < i + 1 + size || p[9] != '\\n') return 0;
        n -= size;                          /* a line feed there is the last one */
    #if defined(__SSE2__)
        const __m128i feed = _mm_set1_epi8('\\n'), first = _mm_set1_epi8(name[0]);
        for (; i < n; i += 16) {
            __m128i here = _mm_loadu_si128((const __m128i *)(p + i));
            __m128i next = _mm_loadu_si128((const __m128i *)(p + i + 1));
            unsigned m = (unsigned)_mm_movemask_epi8(
                _mm_and_si128(_mm_cmpeq_epi8(here, feed), _mm_cmpeq_epi8(next, first)));
            for (; m; m &= m - 1) {
                size_t at = i + (size_t)__builtin_ctz(m);
                if (at < n && memcmp(p + at + 1, name, size) == 0) return 1;
            }
        }
    #else
        for (; i < n; i++)
            if (p[i] == '\\n' && p[i + 1] == (uint8_t)name[0] && memcmp(p + i + 1, name, size) == 0) return 1;
    #endif
        return 0;
    }
    """
    bint has_line "gn_has_line"(const uint8_t *, size_t, const char *, size_t) nogil


cdef bint has_parent(const uint8_t *header, size_t size) noexcept nogil:
    """Has a header block a line `traceparent`, in any case?"""
    cdef const uint8_t *end = header + size
    cdef const uint8_t *at = header + LINE_BYTES
    cdef const char *name = b'traceparent:'
    cdef int i
    if size < LINE_BYTES or header[LINE_BYTES - 1] != c'\n':
        return False
    while end - at > 12:
        i = 0
        while i < 12 and (at[i] | 0x20) == <uint8_t>name[i] | 0x20:
            i += 1
        if i == 12:
            return True
        at = <const uint8_t *>memchr(at, c'\n', end - at)
        if at == NULL:
            return False
        at += 1
    return False


cdef bint asks_for_trace(const uint8_t *header, size_t size, bint by_parent) noexcept nogil:
    return has_line(header, size, b'Nats-Trace-Dest:', 16) or (by_parent and has_parent(header, size))


cdef bint is_under_trace(const uint8_t *header, size_t size) noexcept nogil:
    return has_line(header, size, b'Nats-Trace-Hop:', 15)


cdef uint32_t untraced(const Publish *run, bint by_parent, bint by_sibling) noexcept nogil:
    cdef const uint8_t *header = run.payload
    cdef uint32_t i
    for i in range(run.count):
        if is_under_trace(header, run.header_size) if by_sibling \
                else asks_for_trace(header, run.header_size, by_parent):
            return i
        header += run.stride
    return run.count


def asks(bytes header not None, bint by_parent=False) -> bool:
    """Whether a client's header asks for a trace (for tests)."""
    cdef bytes padded = header + bytes(SLACK)
    return asks_for_trace(<const uint8_t *><const char *>padded, len(header), by_parent)


# ---- delivering


cdef bytes subject_of(Sublist sublist, const Node *node):
    cdef bytearray room = bytearray(sublist.subject_of(node, NULL, 0))
    sublist.subject_of(node, room, len(room))
    return bytes(room)


cdef bytes name_of(const QueueName *name):
    return (<const uint8_t *>name + sizeof(QueueName))[:name.key.size]


cdef bint give(Fanout fanout, Sublist sublist, Entry *entry, uint32_t i, Publish *publish, OutBuf *avoided) except -1:
    """The message to target i, and a note of it. False: it was not taken."""
    cdef Target *target = &entry.targets[i]
    cdef Sub *sub = target.sub
    cdef object trace = fanout.trace
    cdef object cid = getattr(<Peer>target.out.peer, "cid", 0)
    cdef object error = ""
    cdef bytes shown, queue, subject
    cdef bint is_followed = cid != 0   # (the broker's own subscriptions are nobody's business)
    if trace.is_full:
        trace.unlisted += is_followed
        is_followed = False
    if is_followed:   # (now: the subscription may end)
        queue = b"" if sub.group == NULL else name_of(sub.group.name)
        subject = subject_of(sublist, sub.node)
    if target.out == avoided or (publish.publisher and sub.group != NULL
                                 and is_output_of(target.out, publish.publisher)):
        error = message_trace.NO_ECHO
    elif not trace.is_only and not fanout.send_target(entry, target, publish):
        error = message_trace.AUTO_UNSUBSCRIBED if sub.max_msgs and sub.delivered >= sub.max_msgs \
            else message_trace.CLIENT_CLOSED
    if is_followed and is_foreign(entry, i):
        shown = entry.text[target.prefix_at + 5:target.prefix_at + (target.prefix_size & ~SHARED_PREFIX)].split(b" ")[0]
        is_followed = trace.exported(cid, sublist.account, entry.text[:entry.subject_size], shown)
    if is_followed:
        trace.delivered(cid, subject, queue, error)
    return not error


cdef bint give_one(Fanout fanout, Sublist sublist, Entry *entry, const Choice *choice, uint64_t start,
                   Publish *publish, OutBuf *avoided) except -1:
    """To one of a group's members here, beginning with the start-th. False: none takes it."""
    cdef uint32_t i, at
    for i in range(choice.n_local):
        at = choice.first + <uint32_t>((start + i) % choice.n_local)
        if publish.origin >= ORIGIN_ACCOUNT and is_foreign(entry, at):
            continue
        if give(fanout, sublist, entry, at, publish, avoided):
            return True
    return False


cdef uint32_t give_plainly(Fanout fanout, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided) except? 0:
    cdef uint32_t n = 0, i
    for i in range(entry.n_plain):
        if publish.origin < ORIGIN_ACCOUNT or not is_foreign(entry, i):
            n += give(fanout, sublist, entry, i, publish, avoided)
    return n


cdef int shard_of(Fanout fanout, Sublist sublist, const Entry *entry, const Choice *choice, bint but_here,
                  uint64_t *pick) noexcept:
    """Whose member of a group gets it, each equally likely: a sibling's number, or HERE with the member's place.

    `but_here`: none here takes it. HERE: nobody has another."""
    cdef uint32_t w, shard = 0
    pick[0] = sublist.random() % choice.n_members
    if but_here:
        if choice.n_remote == 0:
            return HERE
        pick[0] = choice.n_own
        if choice.n_members > choice.n_own:   # (else there are members of second choice alone)
            pick[0] += sublist.random() % (choice.n_members - choice.n_own)
    elif pick[0] < choice.n_own or (fanout.prefers_local and choice.n_own):
        return HERE
    pick[0] -= choice.n_own
    for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
        shard = entry.weights[w].shard
        if pick[0] < entry.weights[w].members:
            break
        pick[0] -= entry.weights[w].members
    return <int>shard if fanout.links[shard] != NULL else HERE


cdef bytearray with_hop(object trace, Publish *other, const Publish *publish, int shard):
    """The message for this sibling: each frame has a hop of its own, and a document."""
    cdef bytes header = publish.payload[:publish.header_size]
    return rewritten(other, publish, message_trace.with_line(header, message_trace.HOP, trace.sent_on(shard)),
                     publish.reply)


cdef uint64_t send_on(Fanout fanout, Entry *entry, Publish *publish, uint64_t shards, dict groups) except? 0:
    """To siblings with plain interest, and to those with a chosen member: each gets a hop of its own."""
    cdef Publish other
    cdef bytearray _room   # (keeps its bytes)
    cdef Token queues[MOST_QUEUES]
    cdef object trace = fanout.trace
    cdef uint64_t sent = 0
    cdef int shard, n
    cdef size_t name_bytes
    cdef bint only_queues
    cdef uint64_t been
    cdef OutBuf *link
    cdef bytes header
    for shard in range(MOST_SHARDS):
        link = fanout.links[shard]
        if link == NULL or not ((shards >> shard) & 1 or shard in groups):
            continue
        header = publish.payload[:publish.header_size]
        if shard == GATEWAY_NUMBER:   # other servers are told of no trace, and nothing comes back from them
            trace.left(shard)
            if trace.is_only:
                continue
            header = message_trace.with_line(header, message_trace.DESTINATION, message_trace.DISABLED)
            _room = rewritten(&other, publish, header, publish.reply)
        else:
            _room = with_hop(trace, &other, publish, shard)
        sent |= <uint64_t>1 << shard
        only_queues = publish.publisher != 0 and shard in groups
        been = PLAINLY if only_queues and shard == GATEWAY_NUMBER else 0   # (to other servers one frame serves both)
        if shard not in groups or (only_queues and not been and (shards >> shard) & 1):
            fanout.send_plain_link(link, entry, &other)
        if shard not in groups:
            continue
        if only_queues and not been and (shards >> shard) & 1:
            _room = with_hop(trace, &other, publish, shard)
        n = 0
        name_bytes = 0
        for name in groups[shard]:
            if n == MOST_QUEUES or (n and name_bytes + <size_t>len(name) > MOST_NAME_BYTES):
                fanout.send_queued(link, entry, queues, n, &other, only_queues, 0, 0, been)
                been = 0
                if shard != GATEWAY_NUMBER:
                    _room = with_hop(trace, &other, publish, shard)
                only_queues = True
                n = 0
                name_bytes = 0
            queues[n] = Token(<const uint8_t *><bytes>name, len(name))
            name_bytes += <size_t>len(name)
            n += 1
        fanout.send_queued(link, entry, queues, n, &other, only_queues, 0, 0, been)
    return sent


cdef void count(Fanout fanout, Entry *entry, const Publish *publish, uint32_t n) noexcept:
    """What was delivered of it here: nothing, if it is only traced."""
    if fanout.trace.is_only:
        return
    entry.counts.deliveries += n
    entry.counts.out_bytes += <uint64_t>n * publish.size
    fanout.out_msgs += n
    fanout.out_bytes += <uint64_t>n * publish.size


cdef int conclude(Fanout fanout, Sublist sublist, Entry *entry, uint32_t n, Outcome *outcome) except -1:
    count_steps(entry.n_plain * (STEPS_AN_UNLISTED if fanout.trace.is_full else STEPS_AN_EVENT))
    if (entry.counts.msgs | entry.counts.deliveries | entry.counts.link_in | entry.counts.link_out) >> 31:
        sublist.book(entry)
    if fanout.n_finished:
        fanout.finish()
    outcome.deliveries += n
    if fanout.box.stalling != NULL:
        fanout.box.stalling = NULL
        outcome.stalls = True
    return 0


cdef int give_traced(Fanout fanout, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                     Outcome *outcome) except -1:
    cdef uint64_t frames = fanout.link_out_msgs, pick
    cdef uint32_t n, i
    cdef dict groups = {}
    cdef Choice *choice
    cdef int shard
    publish.blob = NULL
    n = give_plainly(fanout, sublist, entry, publish, avoided)
    for i in range(entry.n_choices):
        choice = &entry.choices[i]
        if choice.n_members == 0:
            continue
        shard = shard_of(fanout, sublist, entry, choice, False, &pick)
        if shard == HERE:
            if give_one(fanout, sublist, entry, choice, pick, publish, avoided):
                n += 1
                continue
            shard = shard_of(fanout, sublist, entry, choice, True, &pick)
        if shard != HERE:
            groups.setdefault(shard, []).append(name_of(choice.name))
    outcome.touched |= send_on(fanout, entry, publish, entry.remote, groups)
    count(fanout, entry, publish, n)
    if publish.origin == ORIGIN_CLIENT:
        entry.counts.msgs += 1
        entry.counts.payload_bytes += publish.size
        fanout.in_msgs += 1
        fanout.in_bytes += publish.size
        if sublist.tally is not None:
            sublist.widths[width_bucket(n)] += 1
            entry.counts.widest = max(n, entry.counts.widest)
            entry.counts.unwanted += n == 0 and outcome.touched == 0
    entry.counts.link_out += <uint32_t>(fanout.link_out_msgs - frames)
    return conclude(fanout, sublist, entry, n, outcome)


cdef uint64_t give_traced_here(Fanout fanout, Sublist sublist, Entry *entry, Publish *publish, bint plainly,
                               const Token *queues, int n_queues, Outcome *outcome) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t orphans = 0
    cdef uint32_t n = 0
    cdef Choice *choice
    cdef int q
    publish.blob = NULL
    if plainly:
        n = give_plainly(fanout, sublist, entry, publish, NULL)
    for q in range(n_queues):
        choice = choice_named(entry, queues[q])
        if choice != NULL and choice.n_local \
                and give_one(fanout, sublist, entry, choice, sublist.random(), publish, NULL):
            n += 1
        elif not fanout.trace.is_only:
            orphans |= <uint64_t>1 << q
    if sublist.tally is not None:
        sublist.link_widths[width_bucket(n)] += 1
        entry.counts.widest = max(n, entry.counts.widest)
    entry.counts.link_in += 1
    fanout.link_in_msgs += 1
    count(fanout, entry, publish, n)
    conclude(fanout, sublist, entry, n, outcome)
    return orphans
