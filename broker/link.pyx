# cython: language_level=3, boundscheck=False, wraparound=False
"""One sibling's frames, and what they cause.

A message that came over a link goes to local subscriptions only (one hop). The one exception is a queue message
whose group has no member here any more: broker.reroutes finds another place for it, and the sibling's PING gets no PONG
before that message has arrived. Bytes that are no valid frame end the link, and its session is told.
"""

from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from gnatswarm.broker.asked cimport Request
from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.fence cimport is_of_end
from gnatswarm.broker.interest cimport GATEWAY_NUMBER, MOST_SHARDS, NODE_LITERAL, Node, QueueGroup, Sub
from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_PARSE_ERROR, STALL_IF_TAKEN_US, OutBuf, iovec, out_append, out_call,
    out_init, out_mark_dirty, out_release, out_reserve)
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport HOLD_REST, Peer
from gnatswarm.broker.repeat cimport repeat_remember, repeat_run
from gnatswarm.broker.reroutes cimport CAME_IN, FATE_NOBODY, FATE_PENDING, FATE_TAKEN, Fate
from gnatswarm.broker.routewire cimport (
    ROUTE_ASK, ROUTE_ASK_MARK, ROUTE_BYE, ROUTE_CONNECT, ROUTE_COUNT, ROUTE_DONE, ROUTE_DROP, ROUTE_DUE, ROUTE_GOES,
    ROUTE_INFO, ROUTE_MARK, ROUTE_MORE, ROUTE_MOVE, ROUTE_MOVED, ROUTE_MSG, ROUTE_NEXT, ROUTE_NONE, ROUTE_OWN,
    ROUTE_PART, ROUTE_PING, ROUTE_PONG, ROUTE_QUEUE_ACK, ROUTE_QUEUE_END, ROUTE_QUEUE_MSG, ROUTE_QUEUE_NAK, ROUTE_SHIFT,
    ROUTE_SLOW, ROUTE_STOP, ROUTE_SUB, ROUTE_TAKE, ROUTE_UNSUB, RouteOpKind, has_words, parse_plain_message,
    parse_route_op)
from gnatswarm.broker.subject cimport SUBJECT_BAD, SUBJECT_WILDCARD, subject_kind
from gnatswarm.broker.sublist cimport MOST_MATCHING, PREFIX_BYTES, count_steps, match_steps
from gnatswarm.broker.moves cimport Moves
from gnatswarm.broker.table cimport MOST_KEY_BYTES
from gnatswarm.broker.fanout cimport (
    MOST_DELIVERED, ORIGIN_SIBLING, ORIGIN_SIBLING_ACCOUNT, PLAINLY, Onward, Outcome, Publish, no_outcome,
    rewritten)
from gnatswarm.broker.entry cimport Draft, extras_of, renamed_entry
from gnatswarm.broker.traced cimport give_traced_here, is_under_trace, untraced
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, unlikely

from gnatswarm.broker import message_trace

cdef enum:
    # A publisher held for a slow subscriber elsewhere may send one run every 100 ms (the reactor's STALL_US). While
    # such runs find the subscriber behind, SLOW is sent again before the last one ends.
    SLOW_US = 300000
    SLOW_AGAIN_US = 50000
    MOST_PATTERNS = 8   # of subscribers to one subject who are behind, that are told with it
    # A server that joins may tell a million interests. At 0.6 us each, one read of all that fits took 5 ms, in which no
    # client was served: after a read with so many, so many bytes are read at a time, until a read has none.
    MUCH_TOLD = 32
    TOLD_BYTES = 4096
    # Before it is known what comes: no more than so many bytes, or so many times what came last.
    FIRST_BYTES = 16384
    MORE_EACH_TIME = 4


cdef Token jetstream_subject(Token *reply) noexcept nogil:
    """What a message of another server's JetStream is to be seen on: what stands behind the last @ of its reply, which
    is cut off. Size 0: it is none."""
    cdef Token shown = Token(NULL, 0)
    cdef size_t at = reply.size
    if memcmp(reply.at, b'$JS.ACK.', 8) != 0:
        return shown
    while at > 8:
        at -= 1
        if reply.at[at] == c'@':
            shown.at = reply.at + at + 1
            shown.size = reply.size - at - 1
            if shown.size:
                reply.size = at
            return shown
    return shown


cdef inline bint is_bad(Token subject) noexcept:
    return subject_kind(subject.at, subject.size) == SUBJECT_BAD or subject.size > MOST_KEY_BYTES


cdef inline uint32_t targets_of(const Entry *entry) noexcept nogil:
    """How many subscriptions here it has."""
    cdef uint32_t n = entry.n_plain, i
    for i in range(entry.n_choices):
        n += entry.choices[i].n_local
    return n


cdef inline bint makes_wait(const OutBuf *out, uint64_t now) noexcept nogil:
    """Is it behind, and takes bytes?"""
    return out.is_behind and out.close_reason == CLOSE_NONE \
        and (out.max_pending == 0 or now - out.taken_us < STALL_IF_TAKEN_US)


cdef bint finds_nodes(Sublist sublist, const Entry *entry) noexcept:
    """Looks for the nodes that the entry's subject meets, as they are now: sublist.found. False: no memory."""
    cdef Draft draft
    draft.subject = entry.text
    draft.size = entry.subject_size
    draft.hash = entry.hash
    sublist.n_found = 0
    return sublist.gather(&draft)


cdef bint has_behind(const Node *node, uint64_t now) noexcept nogil:
    """Does one of its subscribers here make publishers wait?"""
    cdef const QueueGroup *group = node.groups
    cdef const Sub *sub = node.subs
    while sub != NULL:
        if makes_wait(sub.out, now):
            return True
        sub = sub.next
    while group != NULL:
        sub = group.members
        while sub != NULL:
            if makes_wait(sub.out, now):
                return True
            sub = sub.next
        group = group.next
    return False


cdef int patterns_behind(Sublist sublist, const Entry *entry, uint64_t now, const Node **found) noexcept:
    """The patterns, at most MOST_PATTERNS, to which those of its subscribers subscribe who make publishers wait. Of an
    imported stream it is the one in this account: a client may have a thousand, which nobody looks through."""
    cdef uint32_t i
    cdef int n = 0
    if not finds_nodes(sublist, entry):
        return 0
    for i in range(sublist.n_found):
        if n < <int>MOST_PATTERNS and sublist.found[i].key.kind != NODE_LITERAL and has_behind(sublist.found[i], now):
            found[n] = sublist.found[i]
            n += 1
    return n


cdef bint is_wanted_by(const Node *node, uint64_t slots) noexcept nogil:
    """Is any of these interested in the node's subject, plainly or for a queue group?"""
    cdef const QueueGroup *group = node.groups
    cdef uint32_t i
    if node.remote & slots:
        return True
    while group != NULL:
        for i in range(group.n_remote):
            if (slots >> group.remote[i].shard) & 1:
                return True
        group = group.next
    return False


cdef int servers_patterns_behind(Onward onward, Sublist sublist, const Entry *entry, uint64_t now,
                                 const Node **found) noexcept:
    """The same of other servers."""
    cdef uint64_t behind = 0
    cdef const OutBuf *out
    cdef uint32_t i
    cdef int slot, n = 0
    for slot in range(MOST_SHARDS):
        out = onward.output(slot)
        if out != NULL and makes_wait(out, now):
            behind |= <uint64_t>1 << slot
    if behind == 0 or not finds_nodes(sublist, entry):
        return 0
    for i in range(sublist.n_found):
        if n < <int>MOST_PATTERNS and sublist.found[i].key.kind != NODE_LITERAL \
                and is_wanted_by(sublist.found[i], behind):
            found[n] = sublist.found[i]
            n += 1
    return n


cdef bint say_slow(SiblingLink link, Sublist sublist, Entry *entry) noexcept:
    """Say it of the entry's subject, or pattern. False: that was said lately."""
    cdef const uint8_t *account = sublist.account
    cdef size_t account_size = len(sublist.account)
    cdef uint64_t now = link.out.box.now_us
    cdef uint8_t *to
    if now - entry.slow_told_us >= SLOW_AGAIN_US or entry.slow_told_us < link.joined_us:
        entry.slow_told_us = now   # (whoever was told before this link joined may be another process)
        entry.slow_told_to = 0
    elif (entry.slow_told_to >> link.shard) & 1:
        return False
    entry.slow_told_to |= <uint64_t>1 << link.shard
    to = out_reserve(&link.out, account_size + entry.subject_size + 8)
    if to == NULL:
        return False
    memcpy(to, b'SLOW ', 5)
    memcpy(to + 5, account, account_size)
    to[5 + account_size] = c' '
    memcpy(to + 6 + account_size, entry.text, entry.subject_size)
    memcpy(to + 6 + account_size + entry.subject_size, b'\r\n', 2)
    link.out.pos += 8 + account_size + entry.subject_size
    out_mark_dirty(&link.out)
    return True


cdef class SiblingLink(OriginLink):
    """The engine's side of one link; `session` is its Python side."""

    def __cinit__(self, Mesh mesh not None, MeshFence fence not None, Reroutes reroutes not None,
                  session not None):
        self.session = session
        self.mesh = mesh
        self.fanout = mesh.fanout
        self.fence = fence
        self.reroutes = reroutes
        self.pings_due = []
        self.most_delivered = MOST_DELIVERED
        out_init(&self.out, self.fanout.box, 0)
        self.out.peer = <void *>self

    cdef int broken(self, str why) except -1:
        self.close(CLOSE_PARSE_ERROR)
        self.session.on_broken(why)
        return 0

    cdef int read_parts(self, uint8_t *shared, size_t room, iovec *parts) noexcept:
        if unlikely(self.tells_much):
            room = min(room, self.partial_size + TOLD_BYTES)
        else:
            room = min(room, self.partial_size + max(<size_t>FIRST_BYTES, MORE_EACH_TIME * self.last_size))
        return Peer.read_parts(self, shared, room, parts)

    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + size
        cdef Publish message
        cdef Outcome outcome
        cdef uint64_t most_steps = match_steps + MOST_MATCHING, deliveries = self.deliveries
        cdef uint32_t n = 0
        cdef Py_ssize_t done
        self.fanout.from_shard = self.shard
        self.last_size = size
        self.told = 0
        while p < end:
            if self.sublist is not None:
                n = repeat_run(&self.repeat, self.sublist, self.fanout, p, end, ORIGIN_SIBLING, &message)
            if unlikely(n != 0 and message.header_size != 0) and self.fanout.tracing is not None:
                n = message.count = untraced(&message, False, True)
            if likely(n):
                if self.repeat_queue_size or unlikely(message.reply.size != 0):
                    n = self.single_run(p, &message)
                else:
                    no_outcome(&outcome)
                    self.fanout.deliver_here(self.sublist, self.repeat.entry, &message, True, NULL, 0, &outcome)
                    self.deliveries += outcome.deliveries
                    if unlikely(outcome.stalls or self.repeat.entry.slow_told_us != 0):
                        self.look_if_slow(self.sublist, self.repeat.entry, outcome.stalls)
                p += n * message.stride
                self.in_msgs += n
                self.in_bytes += <uint64_t>n * message.size
            else:
                done = self.operate(p, end - p, whole)
                if done == 0:
                    break
                p += done
                if unlikely(match_steps > most_steps):
                    self.rest()
            if unlikely(self.deliveries - deliveries > self.most_delivered):
                self.rest()
            if unlikely(self.holds or self.is_closing):
                break
        if unlikely(self.told > MUCH_TOLD):
            self.tells_much = True
        elif self.told == 0:
            self.tells_much = False
        return p - data

    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef RouteOp op
        cdef RouteOpKind kind
        if likely(parse_plain_message(data, size, &op) and self.is_joined):
            return self.message(data, size, &op, whole)
        kind = parse_route_op(data, size, &op)
        if kind == ROUTE_MORE:
            return 0
        if not self.is_joined and kind != ROUTE_INFO and kind != ROUTE_CONNECT:
            self.broken("the first frames must be INFO and CONNECT")
        elif kind == ROUTE_MSG or kind == ROUTE_QUEUE_MSG:
            return self.message(data, size, &op, whole)
        elif kind == ROUTE_SUB or kind == ROUTE_UNSUB:
            self.interest(data, data + size, &op, kind == ROUTE_SUB)
        elif kind == ROUTE_PING:
            self.on_ping()
        elif kind == ROUTE_PONG:
            self.heard_pong = True
            self.fence.on_pong(self.shard)
            self.check_synchronised()
        elif kind == ROUTE_SLOW:
            self.on_slow(&op)
        elif kind == ROUTE_NONE:
            self.on_nobody(&op)
        elif kind == ROUTE_QUEUE_ACK:
            if unlikely(is_of_end(op.id)):
                self.fence.on_ended(op.id)
            else:
                self.reroutes.settled(op.id, True)
        elif kind == ROUTE_QUEUE_NAK:
            self.reroutes.settled(op.id, False)
        elif kind == ROUTE_ASK:
            self.acknowledge(op.id, True)
        elif kind == ROUTE_QUEUE_END:
            self.on_queue_end(&op)
        elif kind == ROUTE_INFO:
            self.session.on_info(op.argument.at[:op.argument.size])
        elif kind == ROUTE_CONNECT:
            self.session.on_connect(op.argument.at[:op.argument.size])
        elif kind == ROUTE_BYE:
            self.has_left = True
        elif ROUTE_MOVE <= kind <= ROUTE_MOVED and self.mesh.moves is not None:
            return self.move(data, size, &op)
        elif ROUTE_TAKE <= kind <= ROUTE_DUE and self.mesh.prefixes is not None:
            return self.prefix(data, size, &op)
        else:
            self.broken("no frame of a sibling: " + repr(data[:min(size, 40)]))
        return size if self.is_closing else op.line_size

    cdef int on_queue_end(self, RouteOp *op) except -1:
        """A member there has left, and lingers until other servers know."""
        if is_bad(op.subject):
            return self.broken("bad subject in QEND")
        if self.fanout.onward is None or not self.fanout.onward.on_left(
                self, self.mesh.sublist_of(op.account.at, op.account.size), op.id, op.subject, op.queues[0]):
            self.acknowledge(op.id, True)
        return 0

    cdef int interest(self, const uint8_t *data, const uint8_t *end, RouteOp *op, bint wanted) except -1:
        cdef Sublist sublist = self.mesh.sublist_of(op.account.at, op.account.size)
        self.told += 1
        self.n_told += 1
        sublist.expect_next(data, op.subject.at - data, op.line_size, end)
        if is_bad(op.subject):
            return self.broken("bad subject in RS")
        if op.n_queues:
            sublist.set_remote_queue(self.shard, op.subject.at, op.subject.size, op.queues[0].at, op.queues[0].size,
                                     op.members if wanted else 0)
        else:
            sublist.set_remote(self.shard, op.subject.at, op.subject.size, wanted)
        return 0

    cdef Py_ssize_t move(self, const uint8_t *data, size_t size, RouteOp *op) except -1:
        """A frame about connections that move: broker.moves knows what it means."""
        cdef size_t total = op.line_size
        cdef bytes words = b""
        if has_words(op.kind):
            total += op.size + 2
            if size < total:
                self.needs = total
                return 0
            if data[total - 1] != c'\n' or data[total - 2] != c'\r':
                self.broken("a payload without its end")
                return size
            words = data[op.line_size:total - 2]
        try:
            if op.kind == ROUTE_MOVE:
                self.mesh.moves.on_offer(self.shard, op.id, words)
            elif op.kind == ROUTE_PART:
                self.mesh.moves.on_part_of_offer(self.shard, op.id, words)
            elif op.kind == ROUTE_NEXT:
                self.mesh.moves.on_next_wanted(self.shard, op.id)
            elif op.kind == ROUTE_COUNT:
                self.mesh.moves.on_counts(self.shard, op.id, words)
            elif op.kind == ROUTE_STOP:
                self.mesh.moves.on_stop(self.shard, op.id)
            elif op.kind == ROUTE_SHIFT:
                self.told += MUCH_TOLD   # (each takes longer than an RS+)
                self.mesh.moves.on_shifts(self.shard, op.old_shard, op.id, words)
            elif op.kind == ROUTE_DONE:
                self.told += MUCH_TOLD
                self.mesh.moves.on_counted(self.shard, op.old_shard, op.id, op.members)
            elif op.kind == ROUTE_ASK_MARK:
                self.mesh.moves.on_mark_wanted(self.shard, op.old_shard, op.id, op.members)
            elif op.kind == ROUTE_MARK:
                self.mesh.moves.on_mark(self.shard, op.old_shard, op.id)
            else:
                self.mesh.moves.on_moved(self.shard, op.old_shard, op.id, op.members, words)
        except ValueError as error:
            self.broken(str(error))
            return size
        return size if self.is_closing else total

    cdef Py_ssize_t prefix(self, const uint8_t *data, size_t size, RouteOp *op) except -1:
        """A frame about the replies that are due to a shard that leaves: broker.reply_prefixes knows what it means."""
        cdef bytes prefix = op.subject.at[:op.subject.size]
        cdef size_t total = op.line_size
        if op.kind == ROUTE_TAKE:
            self.mesh.prefixes.on_wanted(self.shard, prefix, op.id)
        elif op.kind == ROUTE_OWN:
            self.mesh.prefixes.on_own(self.shard, prefix, op.id)
        elif op.kind == ROUTE_GOES:
            self.mesh.prefixes.on_goes(self.shard, prefix, op.old_shard)
        elif op.kind == ROUTE_DROP:
            self.mesh.prefixes.on_dropped(self.shard, prefix)
        else:
            total += op.size + 2
            if size < total:
                self.needs = total
                return 0
            if data[total - 1] != c'\n' or data[total - 2] != c'\r':
                self.broken("a payload without its end")
                return size
            try:
                self.mesh.prefixes.on_due(self.shard, prefix, op.members, data[op.line_size:total - 2])
            except ValueError as error:
                self.broken(str(error))
                return size
        return size if self.is_closing else total

    cdef uint64_t deliver(self, Sublist sublist, Entry *entry, Publish *message, RouteOp *op, bint plainly, Token shown,
                          Outcome *outcome) except? 0xFFFFFFFFFFFFFFFF:
        """To the subscriptions here; they see it on the subject `shown`, where that is not empty."""
        cdef Entry *renamed
        cdef uint64_t orphans
        if unlikely(self.fanout.trace is not None):
            return give_traced_here(self.fanout, sublist, entry, message, plainly, op.queues, op.n_queues, outcome)
        if likely(shown.size == 0):
            return self.fanout.deliver_here(sublist, entry, message, plainly, op.queues, op.n_queues, outcome)
        renamed = renamed_entry(entry, shown.at, shown.size)
        if renamed == NULL:
            return 0
        orphans = self.fanout.deliver_here(sublist, renamed, message, plainly, op.queues, op.n_queues, outcome)
        entry.counts.link_in += renamed.counts.link_in
        entry.counts.deliveries += renamed.counts.deliveries
        entry.counts.out_bytes += renamed.counts.out_bytes
        free(renamed)
        return orphans

    cdef Py_ssize_t message(self, const uint8_t *data, size_t size, RouteOp *op, Blob *whole) except -1:
        cdef size_t total = op.line_size + op.size + 2
        cdef Publish message
        cdef Sublist sublist = self.sublist
        cdef Entry *entry
        cdef uint64_t orphans
        cdef Outcome outcome
        cdef bint is_reply, plainly = op.kind == ROUTE_MSG
        cdef int queue, n_nobody = 0
        cdef uint64_t number, last_id
        cdef list pending = None
        cdef Fate fate
        cdef Token shown = Token(NULL, 0)
        cdef bint is_traced_outside = False
        cdef Publish written
        cdef bytearray _room   # (keeps its bytes)
        if size < total:
            self.needs = total
            return 0
        if data[total - 2] != c'\r' or data[total - 1] != c'\n':
            self.broken("a payload without its end")
            return size
        if unlikely(op.header_size != 0) and self.fanout.tracing is not None and not self.is_traced \
                and is_under_trace(data + op.line_size, op.header_size):
            if self.shard != GATEWAY_NUMBER:
                return self.traced_message(data, size, op, whole)
            is_traced_outside = True
            op.tail = NULL   # what is delivered has another header
        if sublist is None or op.account.size != <size_t>len(sublist.account) \
                or memcmp(op.account.at, <const uint8_t *>sublist.account, op.account.size) != 0:
            sublist = self.mesh.sublist_of(op.account.at, op.account.size)
            self.sublist = sublist
            self.repeat.line_size = 0
        if unlikely(op.reply.size > 8) and op.reply.at[0] == c'$' and self.shard == GATEWAY_NUMBER:
            shown = jetstream_subject(&op.reply)
            if shown.size:
                op.tail = NULL   # what is sent on has another reply
        message.origin = ORIGIN_SIBLING_ACCOUNT if op.is_across else ORIGIN_SIBLING
        message.publisher = 0 if op.kind == ROUTE_MSG else op.publisher
        message.reply = op.reply
        message.header_size = op.header_size
        message.size = op.size
        message.payload = data + op.line_size
        message.blob = whole
        message.count = 1
        message.stride = total
        if likely(op.tail != NULL):
            message.tail = op.tail
            message.tail_size = total - (op.tail - data)
        elif unlikely(is_traced_outside):
            # Not by this broker: a shard that it is sent on to would trace it, and nobody has looked whether its
            # publisher may publish where that goes, nor whether it is to be delivered. (Other servers hear where it
            # has been: their documents say whose they continue.)
            written = message
            _room = rewritten(&message, &written, message_trace.without_line(
                written.payload[:written.header_size], message_trace.HOP), written.reply)
        elif not self.fanout.rewrite_tail(&message):
            self.broken("no memory for a message")
            return size
        entry = sublist.find(op.subject.at, op.subject.size,
                             hash_bytes(op.subject.at, op.subject.size, sublist.seed))
        if entry == NULL:
            self.broken("no memory for a match")
            return size
        if unlikely(not plainly):
            plainly = (op.been & PLAINLY) != 0
            op.been &= ~<uint64_t>PLAINLY
        is_reply = unlikely(entry.crosses) and plainly and extras_of(entry).is_reply
        if op.tail != NULL and op.n_queues <= 1 and (op.kind == ROUTE_MSG or self.is_of_run(op)) \
                and whole == NULL and not is_reply and not op.is_across:
            repeat_remember(&self.repeat, sublist, entry, data, op.line_size, &message)
            self.repeat_subject_at = op.subject.at - data
            self.repeat_queue_size = op.queues[0].size if op.n_queues else 0
            self.repeat_publisher = message.publisher
            self.repeat_queue_at = op.queues[0].at - data if op.n_queues else 0
        self.in_msgs += 1
        self.in_bytes += op.size
        number = self.in_msgs
        no_outcome(&outcome)
        if unlikely(is_reply) and not self.is_for_us(op.subject):
            is_reply = False
        elif unlikely(is_reply):   # (requests were handled where they were published)
            last_id = self.reroutes.last_id
            self.reroutes.answer(self, sublist, op.subject, entry, &message, &outcome)
            is_reply = outcome.touched != 0 or self.reroutes.last_id != last_id   # it goes on, or waits
            entry = sublist.find(op.subject.at, op.subject.size,
                                 hash_bytes(op.subject.at, op.subject.size, sublist.seed))
            if entry == NULL:
                self.broken("no memory for a match")
                return size
        if op.kind == ROUTE_MSG:
            op.id = op.visited = 0
            op.been = self.been()
        elif self.fanout.onward is not None:
            self.fanout.onward.been = op.been
        orphans = self.deliver(sublist, entry, &message, op, plainly, shown, &outcome)
        if unlikely(outcome.stalls or entry.slow_told_us != 0):
            self.look_if_slow(sublist, entry, outcome.stalls)
        if unlikely(op.id != 0):   # one queue, and its sender waits for QACK or QNAK
            fate = FATE_TAKEN
            if orphans:
                fate = self.reroutes.place(self, sublist, op.subject, op.queues[0], &message, op.id, op.visited,
                                           op.been)
                outcome.deliveries += fate == FATE_TAKEN   # (to a member here)
            if fate != FATE_PENDING:
                self.acknowledge(op.id, fate == FATE_TAKEN)
        else:
            queue = 0
            while unlikely(orphans != 0):
                if orphans & 1:
                    fate = self.reroutes.place(self, sublist, op.subject, op.queues[queue], &message, 0, op.visited,
                                               op.been)
                    outcome.deliveries += fate == FATE_TAKEN   # (to a member here)
                    if fate == FATE_NOBODY:
                        self.reroutes.n_lost += 1
                        n_nobody += 1
                    elif fate == FATE_PENDING:
                        pending = [] if pending is None else pending
                        pending.append(self.reroutes.last_id)
                orphans >>= 1
                queue += 1
            if unlikely(outcome.deliveries == 0) and op.reply.size and not is_reply:
                self.note_nobody(number, sublist, op.subject, op.reply, n_nobody == op.n_queues, pending)
        self.deliveries += outcome.deliveries
        return total

    cdef int note_nobody(self, uint64_t number, Sublist sublist, Token subject, Token reply, bint is_nobody,
                         list pending) except -1:
        if self.fanout.onward is not None or self.shard == GATEWAY_NUMBER:
            return 0
        if pending is not None:
            self.reroutes.note_request(pending, number)
        elif is_nobody:
            self.tell_nobody(number, sublist, subject, reply)
        return 0

    cdef int tell_nobody(self, uint64_t number, Sublist sublist, Token subject, Token reply) except -1:
        cdef bytes frame = b"NONE %d %s %s %s\r\n" % (
            number, sublist.account, subject.at[:subject.size], reply.at[:reply.size])
        out_append(&self.out, frame, len(frame))
        return 0

    cdef int on_nobody(self, RouteOp *op) except -1:
        """A frame of a request of a client here has reached nobody there. Whose it is listens to the reply."""
        cdef uint64_t cid
        cdef Request request
        cdef bytes subject, reply
        if is_bad(op.subject) or is_bad(op.reply):
            return self.broken("bad subject in NONE")
        cid = self.fanout.asked.take(self.shard, op.id)
        request = self.fanout.asked.request
        if cid == 0:
            return 0
        if request is not None:
            request.left -= 1
            if request.left:
                return 0
        if op.reply.at[0] == c'_':   # (it may be a generated one)
            self.fanout.gate.on_nobody(op.reply.at[:op.reply.size])
        if request is None or request.subject is None:
            return self.tell_asker(cid, self.mesh.sublist_of(op.account.at, op.account.size), op.subject, op.reply)
        subject = request.subject + bytes(SLACK)
        reply = request.reply + bytes(SLACK)
        return self.tell_asker(cid, self.mesh.account(request.account), Token(subject, len(request.subject)),
                               Token(reply, len(request.reply)))

    cdef int tell_asker(self, uint64_t cid, Sublist sublist, Token subject, Token reply) except -1:
        cdef Entry *entry = sublist.find(reply.at, reply.size, hash_bytes(reply.at, reply.size, sublist.seed))
        cdef ClientConnection asker = None
        cdef OutBuf *out
        cdef uint32_t i, n = 0 if entry == NULL else entry.n_plain
        count_steps(n)
        for i in range(n):
            out = entry.targets[i].out
            if out.peer != NULL and isinstance(<Peer>out.peer, ClientConnection) \
                    and (<ClientConnection>out.peer).cid == cid:
                asker = <ClientConnection>out.peer
                break
        if asker is None and self.mesh.moves is not None:
            self.mesh.moves.note_nobody(cid, sublist, subject.at[:subject.size], reply.at[:reply.size])
        elif asker is not None and asker.sublist is sublist:
            asker.on_nobody(subject, reply)
        return 0

    cdef Py_ssize_t traced_message(self, const uint8_t *data, size_t size, RouteOp *op, Blob *whole) except -1:
        """A message that the sibling has traced: what becomes of it here is published, too."""
        cdef object trace = self.fanout.tracing.begin_here(
            self.shard, op.account.at[:op.account.size], op.subject.at[:op.subject.size],
            data[op.line_size:op.line_size + op.header_size], op.size)
        cdef Py_ssize_t done
        self.is_traced = True
        self.fanout.trace = trace
        try:
            done = self.message(data, size, op, whole)
        finally:
            self.is_traced = False
            self.fanout.trace = None
        if trace is not None:
            self.fanout.tracing.end(trace)
        return done

    cdef bint is_for_us(self, Token subject) except -1:
        """Whether a message on a reply subject is to be passed on here, not only delivered to who subscribes to it."""
        return self.mesh.prefixes is None or self.mesh.prefixes.takes(self.shard, subject.at[:PREFIX_BYTES])

    cdef uint32_t single_run(self, const uint8_t *line, Publish *run) except *:
        """A run of messages for one queue group, one by one: each may go to another member. Or of requests: nobody may
        get the last ones. Returns how many were delivered: fewer than all where a delivery has changed who is
        interested."""
        cdef Sublist sublist = self.sublist
        cdef Entry *entry = self.repeat.entry
        cdef Token subject = Token(line + self.repeat_subject_at, entry.subject_size)
        cdef Token queue = Token(line + self.repeat_queue_at, self.repeat_queue_size)
        cdef uint64_t orphans
        cdef Publish message = run[0]
        cdef Outcome outcome
        cdef Fate fate
        cdef list pending
        cdef uint32_t n = 0
        message.count = 1
        message.publisher = self.repeat_publisher
        while True:
            no_outcome(&outcome)
            pending = None
            orphans = self.fanout.deliver_here(sublist, entry, &message, message.publisher == 0, &queue,
                                               queue.size != 0, &outcome)
            if unlikely(outcome.stalls or entry.slow_told_us != 0):
                self.look_if_slow(sublist, entry, outcome.stalls)
            if unlikely(orphans != 0):
                fate = self.reroutes.place(self, sublist, subject, queue, &message, 0, 0, self.been())
                outcome.deliveries += fate == FATE_TAKEN   # (to a member here)
                if fate == FATE_NOBODY:
                    self.reroutes.n_lost += 1
                elif fate == FATE_PENDING:
                    pending = [self.reroutes.last_id]
            self.deliveries += outcome.deliveries
            n += 1
            if unlikely(outcome.deliveries == 0) and message.reply.size:
                self.note_nobody(self.in_msgs + n, sublist, subject, message.reply, True, pending)
            if n == run.count or self.repeat.epoch != sublist.cache_epoch or not sublist.is_current(entry):
                return n
            message.tail += run.stride
            message.payload += run.stride

    cdef bint is_of_run(self, const RouteOp *op) noexcept:
        """A QMSG as a publisher's shard writes it, where the publisher wants no echo."""
        return op.id == 0 and op.visited == 0 and op.been == 0 and op.publisher != 0 and self.fanout.onward is None \
            and self.shard != GATEWAY_NUMBER

    cdef uint64_t been(self) noexcept:
        """Where a message was that the sibling has not sent on: the gateway has no clients."""
        return CAME_IN if self.shard == GATEWAY_NUMBER else 0

    cdef void look_if_slow(self, Sublist sublist, Entry *entry, bint is_slow) noexcept:
        """A subscriber is behind, or was when this was said last: small messages fill its last chunk without anybody
        asking how much is pending, and who publishes them must not go on because SLOW was not said again."""
        cdef uint64_t now = self.out.box.now_us
        cdef uint32_t i
        if not is_slow:
            if now - entry.slow_told_us < SLOW_AGAIN_US:
                return
            if now - entry.slow_told_us > 2 * SLOW_US:
                entry.slow_told_us = 0
                return
            for i in range(targets_of(entry)):
                if makes_wait(entry.targets[i].out, now):
                    is_slow = True
                    break
        if is_slow:
            self.tell_slow(sublist, entry)

    cdef void tell_slow(self, Sublist sublist, Entry *entry) noexcept:
        """A subscriber here is behind. The link never waits, because it serves others too: the sibling makes the
        publishers of this subject wait, and of all that matches the subscriber's pattern. (Where each message has a
        subject of its own, its SLOW comes when nobody publishes to that any more.)"""
        cdef uint8_t[MOST_KEY_BYTES + SLACK] subject
        cdef const Node *patterns[MOST_PATTERNS]
        cdef int n = 0, i
        cdef size_t size
        if not say_slow(self, sublist, entry):
            return
        if self.fanout.onward is not None:
            n = servers_patterns_behind(self.fanout.onward, sublist, entry, self.out.box.now_us, patterns)
        else:
            n = patterns_behind(sublist, entry, self.out.box.now_us, patterns)
        for i in range(n):
            size = sublist.subject_of(patterns[i], subject, MOST_KEY_BYTES)
            entry = sublist.find(subject, size, hash_bytes(subject, size, sublist.seed))
            if entry != NULL and say_slow(self, sublist, entry):
                (<object>sublist).note_slow(subject[:size], False)

    cdef int on_slow(self, RouteOp *op) except -1:
        """A subscriber on the sibling is behind: publishers to this subject, or to all that match this pattern, wait
        until SLOW_US after the last SLOW."""
        cdef Sublist sublist = self.mesh.sublist_of(op.account.at, op.account.size)
        cdef Entry *entry
        if sublist is None:
            return self.broken("unknown account " + repr(op.account.at[:op.account.size]))
        if subject_kind(op.subject.at, op.subject.size) == SUBJECT_WILDCARD:
            (<object>sublist).note_slow(op.subject.at[:op.subject.size], True)
        entry = sublist.find(op.subject.at, op.subject.size,
                             hash_bytes(op.subject.at, op.subject.size, sublist.seed))
        if entry != NULL:
            entry.slow_until_us = self.out.box.now_us + SLOW_US
        return 0

    cdef int acknowledge(self, uint64_t id, bint is_taken) except -1:
        cdef bytes frame = (b"QACK %d\r\n" if is_taken else b"QNAK %d\r\n") % id
        out_append(&self.out, frame, len(frame))
        return 0

    cdef int on_ping(self) except -1:
        """Reply at once, or when the pending queue messages that came before it have arrived, all siblings have marked
        the moves to here that this one has, and other servers know what they were told before it, where PONGs promise
        that."""
        cdef object marks = None
        cdef uint64_t wait = 0
        cdef uint64_t bit = <uint64_t>1 << self.shard
        if unlikely(not self.mesh.told_all & bit):   # the first one
            self.mesh.told_all |= bit
            self.reroutes.on_step()   # (our PONG waits for what waits for that)
        if unlikely(self.fanout.onward is not None) and self.heard_ping:
            wait = self.fanout.onward.await_servers(self)
        if unlikely(self.mesh.moves is not None and bool((<Moves>self.mesh.moves).arriving)):
            marks = (<Moves>self.mesh.moves).await_marks(self)
        if self.orphans or wait or marks or self.pings_due:
            ids = set(self.orphans)
            if marks:
                ids.update(marks)
            if wait:
                ids.add(wait)
            self.pings_due.append(ids)
        else:
            self.say_pong()
        return 0

    cdef int say_pong(self) except -1:
        out_append(&self.out, b'PONG\r\n', 6)
        if not self.heard_ping:
            self.heard_ping = True
            self.check_synchronised()
        return 0

    cdef int on_settled(self, uint64_t id) except -1:
        """A pending queue message of this sibling has arrived, or is lost: send each PONG that waited for it."""
        self.orphans.discard(id)
        for ids in self.pings_due:
            ids.discard(id)
        while self.pings_due and not self.pings_due[0]:
            self.pings_due.pop(0)
            self.say_pong()
        return 0

    cdef int wait_for_more(self, uint64_t first, uint64_t since, uint64_t last) except -1:
        for ids in self.pings_due:
            if first in ids:
                ids.update(range(since + 1, last + 1))
        return 0

    cdef int check_synchronised(self) except -1:
        if not self.is_synchronised and self.heard_ping and self.heard_pong:
            self.is_synchronised = True
            self.mesh.out_of_step &= ~(<uint64_t>1 << self.shard)
            self.reroutes.on_step()
            self.session.on_synchronised()
            if self.mesh.moves is not None:
                self.mesh.moves.on_step()
        return 0

    # ---- for the session and the owner of the socket

    def join(self, int shard, *, bint is_new=False):
        """INFO and CONNECT are done: the link carries interest and messages from now on, or, while connections move
        from here or to here, as soon as they have: every shard that publishes then takes part in a move. Not before
        what the last link to that shard has told is dropped.

        is_new: the process at its other end was not linked with this one before.
        """
        self.is_new = self.is_new or is_new
        if self.out.close_reason != CLOSE_NONE:   # (it has waited, and has broken meanwhile)
            return
        if self.mesh.defers(self, shard) or (self.mesh.moves is not None and self.mesh.moves.defers(self, shard)):
            return
        self.shard = self.fanout.from_shard = shard
        self.is_joined = True
        self.joined_us = self.out.box.now_us
        if self.mesh.moves is not None:   # in front of counts that are without those that have moved
            self.send(self.mesh.moves.last_word())
        if self.mesh.prefixes is not None:
            self.send(self.mesh.prefixes.words())
        # (So it is for a gateway: it connects to other servers when it has heard all.)
        self.fence.begin(shard, self.is_new)
        if self.is_new:
            self.mesh.newcomers |= <uint64_t>1 << shard
        self.mesh.join(shard, &self.out, self.has_told)

    def has_told(self):
        """The sibling has been sent this shard's whole interest."""
        if self.shard == GATEWAY_NUMBER and self.mesh.prefixes is not None:
            self.send(self.mesh.prefixes.due_interest())
        self.fence.ping(self.shard)

    def join_no_more(self):
        """It has been let go of: if its join() waits, nothing comes of it."""
        if self.mesh.moves is not None:
            self.mesh.moves.forget_link(self)
        self.mesh.forget_link(self)

    def leave(self, *, bint is_broken=False):
        """The socket is closed: drop the sibling's interest. A second call does nothing.

        is_broken: the sibling may live, so fences wait for its next link; MeshFence.doubt() or gone() follows.
        """
        if self.out.close_reason == CLOSE_NONE:
            self.out.close_reason = CLOSE_CLIENT_CLOSED
        self.join_no_more()
        if self.is_joined:
            self.is_joined = False
            if is_broken:
                self.fence.on_break(self.shard)
            self.mesh.part(self.shard)
            if not is_broken:
                self.fence.on_part(self.shard)
            self.reroutes.on_part(self.shard)
            if is_broken:
                self.mesh.out_of_step |= <uint64_t>1 << self.shard
            else:
                self.mesh.out_of_step &= ~(<uint64_t>1 << self.shard)
                self.reroutes.on_step()
            if self.mesh.moves is not None:
                self.mesh.moves.on_part(self.shard, is_broken)
            if self.mesh.prefixes is not None:
                self.mesh.prefixes.on_part(self.shard)
        out_release(&self.out)
        self.forget_input()

    def rest_with(self, resting):
        """`resting(link)` calls has_rested() when clients were served; None: it rests no more, and goes on at once."""
        self.resting = resting
        if resting is None:
            self.release(HOLD_REST)

    cdef bint rest(self) except -1:
        if self.resting is None or self.is_closing:
            return False
        if not self.holds & HOLD_REST:
            self.holds |= HOLD_REST
            self.resting(self)
        return True

    @property
    def is_resting(self) -> bool:
        """Whether it is to be read on when clients were served."""
        return self.holds & HOLD_REST != 0

    def has_rested(self):
        """Clients were served meanwhile."""
        self.release(HOLD_REST)

    def send(self, bytes data not None):
        """Queues bytes as they are."""
        out_append(&self.out, data, len(data))

    def end(self, str why not None):
        """Ends the link; the session is told why."""
        self.broken(why)
        out_call(&self.out)

    @property
    def is_unheard(self) -> bool:
        """Whether its other end may not have joined yet: what the last link told is still being dropped there, or
        connections move. Nothing has come that a link begins with when it has joined."""
        return self.n_told == 0 and not self.heard_ping

    @property
    def is_behind(self) -> bool:
        """Whether publishers that feed it are to wait."""
        return self.out.is_behind
