# cython: language_level=3, boundscheck=False, wraparound=False
"""Delivers messages whose header asks for a trace, one by one, and notes what becomes of them.

It does for one message what fan-out does for runs, in the same order and with the same counts, and tells the
MessageTrace in Fanout.trace of every receiver. A sibling that the message goes to is one receiver: it is sent a header
more (Nats-Trace-Hop), and writes a document of its own. With Nats-Trace-Only nothing is sent to any client. Not here:
documents (broker.message_trace). Cost: some µs per receiver; other messages do not come here.
"""

from libc.string cimport memchr

from gnatswarm.broker.entry cimport Choice, Target, choice_named, is_foreign
from gnatswarm.broker.fanout cimport (
    HERE, MOST_NAME_BYTES, MOST_QUEUES, ORIGIN_ACCOUNT, ORIGIN_CLIENT, rewritten)
from gnatswarm.broker.interest cimport MOST_SHARDS, Node, QueueName, Sub
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.sublist cimport width_bucket

from gnatswarm.broker import message_trace


cdef enum:
    LINE_BYTES = 10          # "NATS/1.0\r\n"
    # The shard that is connected to other servers (router.supervision.broker).
    GATEWAY_NUMBER = 63


cdef inline bint is_named(const uint8_t *at, const uint8_t *end, const char *name, size_t size,
                          uint8_t any_case) noexcept nogil:
    """Does the line begin with this name and a colon? `any_case`: 0x20, and the name is of lower-case letters; or 0."""
    cdef size_t i
    if <size_t>(end - at) <= size or at[size] != c':':
        return False
    for i in range(size):
        if at[i] | any_case != <uint8_t>name[i]:
            return False
    return True


cdef bint has_line(const uint8_t *header, size_t size, const char *name, size_t name_size,
                   uint8_t any_case) noexcept nogil:
    """Has a header block a line with this name? See is_named()."""
    cdef const uint8_t *end = header + size
    cdef const uint8_t *at = header + LINE_BYTES
    if size < LINE_BYTES or header[LINE_BYTES - 1] != c'\n':
        return False
    while at < end:
        if at[0] | any_case == <uint8_t>name[0] and is_named(at, end, name, name_size, any_case):
            return True
        at = <const uint8_t *>memchr(at, c'\n', end - at)
        if at == NULL:
            return False
        at += 1
    return False


cdef bint asks_for_trace(const uint8_t *header, size_t size, bint by_parent) noexcept nogil:
    return has_line(header, size, b'Nats-Trace-Dest', 15, 0) \
        or (by_parent and has_line(header, size, b'traceparent', 11, 0x20))


cdef bint is_under_trace(const uint8_t *header, size_t size) noexcept nogil:
    return has_line(header, size, b'Nats-Trace-Hop', 14, 0)


cdef uint32_t untraced(const Publish *run, bint by_parent, bint by_sibling) noexcept nogil:
    cdef const uint8_t *header = run.payload
    cdef uint32_t i
    for i in range(run.count):
        if is_under_trace(header, run.header_size) if by_sibling \
                else asks_for_trace(header, run.header_size, by_parent):
            return i
        header += run.stride
    return run.count


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
    cdef bytes shown
    cdef bint is_followed = cid != 0   # (the broker's own subscriptions are nobody's business)
    cdef bytes queue = b"" if sub.group == NULL else name_of(sub.group.name)
    cdef bytes subject = subject_of(sublist, sub.node)
    if target.out == avoided:
        error = message_trace.NO_ECHO
    elif not trace.is_only and not fanout.send_target(entry, target, publish):
        error = message_trace.AUTO_UNSUBSCRIBED if sub.max_msgs and sub.delivered >= sub.max_msgs \
            else message_trace.CLIENT_CLOSED
    if is_followed and is_foreign(entry, i):
        shown = entry.text[target.prefix_at + 5:target.prefix_at + target.prefix_size].split(b" ")[0]
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


cdef int shard_of(Fanout fanout, Sublist sublist, const Entry *entry, const Choice *choice, uint64_t *pick) noexcept:
    """Whose member of a group gets it, each equally likely: a sibling's number, or HERE with the member's place."""
    cdef uint32_t w, shard = 0
    pick[0] = sublist.random() % choice.n_members
    if pick[0] < choice.n_own or (fanout.prefers_local and choice.n_own):
        return HERE
    pick[0] -= choice.n_own
    for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
        shard = entry.weights[w].shard
        if pick[0] < entry.weights[w].members:
            break
        pick[0] -= entry.weights[w].members
    return <int>shard if fanout.links[shard] != NULL else HERE


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
        else:
            header = message_trace.with_line(header, message_trace.HOP, trace.sent_on(shard))
        _room = rewritten(&other, publish, header, publish.reply)
        sent |= <uint64_t>1 << shard
        if shard not in groups:
            fanout.send_plain_link(link, entry, &other)
            continue
        n = 0
        name_bytes = 0
        only_queues = False
        for name in groups[shard]:
            if n == MOST_QUEUES or (n and name_bytes + <size_t>len(name) > MOST_NAME_BYTES):
                fanout.send_queued(link, entry, queues, n, &other, only_queues, 0, 0)
                only_queues = True
                n = 0
                name_bytes = 0
            queues[n] = Token(<const uint8_t *><bytes>name, len(name))
            name_bytes += <size_t>len(name)
            n += 1
        fanout.send_queued(link, entry, queues, n, &other, only_queues, 0, 0)
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
        shard = shard_of(fanout, sublist, entry, choice, &pick)
        if shard == HERE:
            n += give_one(fanout, sublist, entry, choice, pick, publish, avoided)
        else:
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
                and give_one(fanout, sublist, entry, choice, fanout.pick + q, publish, NULL):
            n += 1
        elif not fanout.trace.is_only:
            orphans |= <uint64_t>1 << q
    fanout.pick += 1
    if sublist.tally is not None:
        sublist.link_widths[width_bucket(n)] += 1
        entry.counts.widest = max(n, entry.counts.widest)
    entry.counts.link_in += 1
    fanout.link_in_msgs += 1
    count(fanout, entry, publish, n)
    conclude(fanout, sublist, entry, n, outcome)
    return orphans
