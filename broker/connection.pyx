# cython: language_level=3, boundscheck=False, wraparound=False
"""One client's operations, and what they cause.

It knows the protocol of a client and nothing of sockets, clocks or log-in rules: CONNECT goes to its Python
`session`, errors are sent to the client and reported to the session. The time is the outbox's now_us.
Cost of a publish that repeats the last line: one comparison, and fan-out.
"""

from libc.stdlib cimport calloc, free

from gnatswarm.broker.asked cimport Request
from gnatswarm.broker.reply_permissions cimport ReplyPermissions
from gnatswarm.broker.outbuf cimport (
    BLOB_BYTES, CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_READ_ERROR, MOVING_OUT, out_append, out_call, out_init,
    out_release)
from gnatswarm.broker.parser cimport (
    OP_BAD_ARGUMENTS, OP_CONNECT, OP_ERR, OP_HPUB, OP_INFO, OP_LINE_TOO_LONG, OP_MORE, OP_PING, OP_PONG,
    OP_PUB, OP_SUB, OP_UNKNOWN, OP_UNSUB, OpKind, Token, parse_op,
    parse_plain_publish)
from gnatswarm.broker.allowance cimport Allowance
from gnatswarm.broker.peer cimport HOLD_ENDING, HOLD_FENCE, HOLD_LOGIN, HOLD_RATE, HOLD_STALL, merge_freed
from gnatswarm.broker.permissions cimport Permissions
from gnatswarm.broker.repeat cimport Repeat, repeat_remember, repeat_run
from gnatswarm.broker.subject cimport SUBJECT_BAD, is_publishable, subject_kind
from gnatswarm.broker.interest cimport (
    GATEWAY_NUMBER, MOST_SHARDS, NODE_LITERAL, NO_MAX, SUB_FORMER, Node, QueueName, node_key, take_marked)
from gnatswarm.broker.tally cimport FOLDED_AS, FOLDED_SIZE, folded_as
from gnatswarm.broker.table cimport (
    MOST_KEY_BYTES, slot_item, table_find, table_free, table_init, table_insert, table_remove)
from gnatswarm.broker.fanout cimport MOST_DELIVERED, ORIGIN_CLIENT, Outcome, add_outcome, fits_line, no_outcome
from gnatswarm.broker.shadows cimport Shadows
from gnatswarm.broker.sublist cimport MOST_MATCHING, count_steps, match_steps
from gnatswarm.broker.entry cimport extras_of, prefix_size_of
from gnatswarm.broker.talk cimport (
    MOST_TALK_BYTES, heard_rows, said_rows, talk_clear, talk_free, talk_hear, talk_new, talk_settle, talk_turn)
from gnatswarm.broker.traced cimport asks_for_trace, give_traced, untraced
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, same_bytes, unlikely

from gnatswarm.broker import errors, message_trace


cdef enum:
    # The generated reply subject of a measured request: prefix, table, random part, "m".
    MEASURED_BYTES = 36
    # What a sibling may still send to a client when it is told that this one is behind: up to a link's mark (4 MiB),
    # and the buffers of its socket.
    OVERSHOOT_BYTES = 6815744
    # So many operations of one client for which Python is asked, of some 4 µs each, are carried out in a turn.
    MOST_SLOW = 200
    ALL_SUBS = 0xFFFFFFFF   # at once, whatever it takes
    # Deliveries that are not counted in a turn, of a message or a run.
    FEW_DELIVERIES = 8


cdef bint is_reserved(Token subject, bint as_reply) noexcept:
    """Is it one of the subjects that a server uses for its own replies?"""
    if subject.size > 5 and same_bytes(subject.at, <const uint8_t *>b'_GR_.', 5):
        return True
    return as_reply and subject.size > 4 and same_bytes(subject.at, <const uint8_t *>b'_R_.', 4)


cdef Token seen_there(Token subject) noexcept:
    """The subject that it has in the other cluster, if it is an answer to a request from one."""
    cdef int words = 0
    cdef size_t i
    if subject.size > 5 and same_bytes(subject.at, <const uint8_t *>b'_GR_.', 5):
        for i in range(subject.size - 1):
            words += subject.at[i] == c'.'
            if words == 3:   # _GR_.<cluster>.<server>.<subject>
                return Token(subject.at + i + 1, subject.size - i - 1)
    return subject


cdef bint answers_clusters(Sublist sublist) noexcept:
    """Whether another server takes answers to requests from other clusters, to which it is connected by gateways."""
    cdef const Node *node = sublist.node_at(<const uint8_t *>b'_GR_.>', 6)
    return node != NULL and (node.remote >> GATEWAY_NUMBER) & 1


cdef inline bint is_measured_reply(const Op *op) noexcept:
    """Is it on a reply subject that ServiceImports generated for a request whose reply they measure?"""
    return op.subject.size == MEASURED_BYTES and op.subject.at[MEASURED_BYTES - 1] == c'm' \
        and same_bytes(op.subject.at, <const uint8_t *>b'_R_.', 4)


cdef inline bint asks_system(const Op *op) noexcept:
    """Is it a request that the broker itself may reply to?"""
    return op.reply.size and op.subject.size > 9 and same_bytes(op.subject.at, <const uint8_t *>b'$SYS.REQ.', 9)


cdef class Fence:
    """Lets every PING pass: a broker of one shard."""

    cdef bint passes(self, ClientConnection client) noexcept:
        return True

    cdef void forget(self, ClientConnection client) noexcept:
        pass

    cdef uint64_t unheard(self) noexcept:
        return 0

    cdef Former former_of(self, ClientConnection client, Sub *sub):
        return None

    cdef int linger(self, Former former) except -1:
        return 0

    cdef int end_formers(self, ClientConnection client, const uint8_t *sid, size_t size) except -1:
        return 0

    cdef int review_formers(self, ClientConnection client) except -1:
        return 0

    cdef int on_former_finished(self, Sub *sub) except -1:
        return 0

    cdef void on_ended_moving(self, ClientConnection client) noexcept:
        pass

    cdef int keep_moving(self, ClientConnection client) except -1:
        return 0

    cdef int on_many_asked(self, int shard) except -1:
        return 0

    cdef int note_publisher(self, ClientConnection client, uint64_t publisher) except -1:
        return 0


cdef inline void note_outcome(ClientConnection self, const Entry *entry, Publish *message, Outcome outcome,
                              const uint64_t *before) noexcept:
    """Note what the PONG waits for, and whether a slow subscriber holds the client; tell it of no responders. `before`:
    see note_unanswered()."""
    self.published |= outcome.touched
    if unlikely(outcome.deliveries > FEW_DELIVERIES):
        self.note_many(outcome.deliveries)
    if unlikely(outcome.stalls or entry.slow_until_us > self.out.box.now_us):
        self.holds |= HOLD_STALL
    if unlikely(outcome.deliveries == 0) and message.reply.size and self.wants_no_responders:
        self.note_unanswered(entry, message.reply, outcome.touched, before)


cdef Request request_of(ClientConnection self, const Entry *entry, Token reply, uint32_t frames):
    """A request that went in so many frames; None: there is no memory."""
    cdef Request request
    try:
        request = Request()
        request.left = frames
        if entry.crosses:
            request.account = self.sublist.account
            request.subject = entry.text[:entry.subject_size]
            request.reply = reply.at[:reply.size]
    except MemoryError:
        return None
    return request


cdef inline void note_matching(ClientConnection self) noexcept:
    """An entry may have been made: its turn may be over."""
    if unlikely(match_steps > self.most_steps):
        self.n_slow = MOST_SLOW


cdef list fitting(list rows, uint64_t msgs):
    """The rows, which samples may have made too large together, scaled to what the client has said."""
    cdef uint64_t found = sum([row[1] for row in rows])
    if found <= msgs:
        return rows
    return [(subject, n * msgs // found, size * msgs // found, requests * msgs // found)
            for subject, n, size, requests in rows if n * msgs >= found]


cdef tuple heard_row(Sublist sublist, Sub *sub, uint64_t n):
    cdef uint8_t subject[MOST_TALK_BYTES]
    cdef size_t size = sublist.subject_of(sub.node, subject, MOST_TALK_BYTES)
    cdef str queue = ""
    if size > MOST_TALK_BYTES:
        return "", "", n
    if sub.group != NULL:
        queue = (<uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size].decode("utf-8", "replace")
    return folded_text(subject, size).decode("utf-8", "replace"), queue, n


cdef bytes folded_text(const uint8_t *subject, size_t size):
    """The name under which a subject is counted."""
    cdef int rule = folded_as(subject, size)
    return subject[:size] if rule < 0 else FOLDED_AS[rule][:FOLDED_SIZE[rule]]


cdef inline bint may_publish_next(const uint8_t *p, const uint8_t *end) noexcept:
    """Whether an operation begins here that publishes: PUB or HPUB, as far as two bytes tell."""
    return end - p >= 2 and ((p[0] | 0x20 == c'p' and p[1] | 0x20 == c'u') or p[0] | 0x20 == c'h')


# ---- the steps of publish()


cdef inline bint is_whole(ClientConnection self, const uint8_t *data, size_t size, size_t total,
                          const Op *op) noexcept:
    """Is the message complete and valid? If not, incomplete() finds out why."""
    return op.size <= self.max_payload_bytes and size >= total \
        and data[total - 2] == c'\r' and data[total - 1] == c'\n' \
        and (op.kind != OP_HPUB or self.out.takes_headers)


cdef inline bint may_be_reserved(Token subject) noexcept:
    """Quicker than is_reserved(): an inbox is not."""
    return subject.at[0] == c'_' and subject.at[1] != c'I'


cdef inline bint is_plainly_permitted(ClientConnection self, const Op *op, const Entry *entry) noexcept:
    """May it be published, as far as is known without the rules? If not, is_permitted() asks them."""
    return (self.permissions is None or (entry != NULL and entry.permitted == self.permissions.id)) \
        and not may_be_reserved(op.subject) and (op.reply.size == 0 or not may_be_reserved(op.reply))


cdef inline bint make_message(ClientConnection self, const uint8_t *data, size_t total, const Op *op,
                              const uint8_t *tail, Blob *whole, Publish *message) noexcept:
    """The operation as fan-out takes it; a tail in an unusual form is rewritten with single blanks, as
    nats-server does. False: no memory for that."""
    message.origin = ORIGIN_CLIENT
    message.publisher = 0 if likely(self.echoes) else self.cid
    message.reply = op.reply
    message.header_size = op.header_size
    message.size = op.size
    message.blob = whole
    message.count = 1
    message.stride = total
    message.payload = data + op.line_size
    message.tail = tail
    message.tail_size = total - (tail - data)
    if likely(op.is_canonical and (op.kind == OP_PUB or op.header_size)):
        return True
    return self.fanout.rewrite_tail(message)


cdef inline bint is_clear(ClientConnection self, Publish *run, uint32_t *n) noexcept:
    """Cuts a run with headers before the first message whose header asks for a trace. False: nothing is left."""
    if self.fanout.tracing is None:
        return True
    n[0] = run.count = untraced(run, self.sublist.traces_parents, False)
    return n[0] != 0


cdef inline void remember(ClientConnection self, Entry *entry, const uint8_t *line, size_t line_size,
                          const Publish *message) noexcept:
    """The next line may be the same again: see repeat.pxd."""
    if self.repeat == NULL:
        self.repeat = <Repeat *>calloc(1, sizeof(Repeat))
    if self.repeat != NULL:
        repeat_remember(self.repeat, self.sublist, entry, line, line_size, message)


cdef size_t mark_of(size_t max_pending) noexcept:
    """Pending bytes past which publishers wait: half of the most, or as much less as siblings may still be sending
    when they are told."""
    cdef size_t mark = max_pending // 2
    if max_pending > OVERSHOOT_BYTES:
        mark = min(mark, max(max_pending // 8, max_pending - <size_t>OVERSHOOT_BYTES))
    return mark


cdef class ClientConnection(Peer):
    """The engine's side of one client. The owner of its socket feeds it, and sends what it queues."""

    cdef void say(self, const char *line, size_t size) noexcept:
        out_append(&self.out, <const uint8_t *>line, size)

    cdef void ok(self) noexcept:
        if self.is_verbose:
            self.say(b'+OK\r\n', 5)

    cdef int fail(self, object error) except -1:
        """Send the error, report it to the session, and close if errors of its class do."""
        cdef bytes wire = error.wire
        self.n_slow += 1
        if wire:
            self.say(wire, len(wire))
        if self.session is not None:
            self.session.on_error(error)
        if error.closes:
            self.close(error.reason)
        return 0

    def __cinit__(self, Fanout fanout not None, Sublist sublist not None, Fence fence not None, uint64_t cid,
                  limits, session=None, *, bint offers_headers=True, bint must_authenticate=False):
        self.fanout = fanout
        self.sublist = sublist
        self.fence = fence
        self.cid = cid
        self.session = session
        out_init(&self.out, fanout.box, 0)
        self.out.peer = <void *>self
        self.set_limits(limits)
        self.is_verbose = self.is_pedantic = self.echoes = True   # until CONNECT says otherwise
        self.offers_headers = offers_headers
        self.must_authenticate = must_authenticate
        self.active_us = fanout.box.now_us
        if fanout.talk_lines:
            self.talk = talk_new(fanout.talk_lines)
        table_init(&self.subs, sizeof(Sub))

    def __dealloc__(self):
        table_free(&self.subs)
        free(self.repeat)
        talk_free(self.talk)

    # ---- bytes in

    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + size
        cdef Publish message
        cdef uint32_t n
        cdef Py_ssize_t done
        cdef bint has_logged_in = False   # here, so that its allowance counts from now on
        self.active_us = self.out.box.now_us
        self.has_spoken = True
        self.n_slow = self.n_delivered = 0
        self.most_steps = match_steps + MOST_MATCHING
        if unlikely(self.allowance is not None):
            return self.consume_limited(data, size, whole)
        while p < end:
            n = repeat_run(self.repeat, self.sublist, self.fanout, p, end, ORIGIN_CLIENT, &message)
            if likely(n) and (message.header_size == 0 or likely(is_clear(self, &message, &n))):
                p += n * message.stride
                self.deliver(self.repeat.entry, &message)
            else:
                done = self.operate(p, end - p, whole)
                if done == 0:
                    break
                p += done
                if unlikely(self.allowance is not None):   # it has just logged in
                    if self.in_msgs == 1 and not has_logged_in:   # by that message
                        self.allowance.charge(1, self.in_bytes, self.out.box.now_us)
                    has_logged_in = True
                    # (What else it sends is carried out: who logs in waits for a PONG.)
                    if not self.holds and not self.is_closing and may_publish_next(p, end):
                        return p - data + self.consume_limited(p, end - p, whole)
            if unlikely(self.n_slow >= MOST_SLOW):
                self.give_way()
            if unlikely(self.holds or self.is_closing):
                break
        return p - data

    cdef Py_ssize_t consume_limited(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        """The same slice by slice, as far as its allowance goes; a message that was read as a whole is always taken."""
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + size
        cdef Allowance allowance = self.allowance   # (a CONNECT may change it)
        cdef Publish message
        cdef uint64_t msgs, payload_bytes
        cdef size_t room
        cdef uint32_t n
        cdef Py_ssize_t done
        while p < end:
            room = end - p
            if whole == NULL:
                room = min(room, allowance.room(self.out.box.now_us))
                if room == 0:
                    self.wait_for_allowance()
                    break
            msgs = self.in_msgs
            payload_bytes = self.in_bytes
            n = repeat_run(self.repeat, self.sublist, self.fanout, p, p + room, ORIGIN_CLIENT, &message)
            if n and (message.header_size == 0 or is_clear(self, &message, &n)):
                p += n * message.stride
                self.deliver(self.repeat.entry, &message)
            else:
                done = self.operate(p, end - p, whole)
                if done == 0:
                    break
                p += done
            if self.n_slow >= MOST_SLOW:
                self.give_way()
            if self.in_msgs != msgs:
                allowance.charge(self.in_msgs - msgs, self.in_bytes - payload_bytes, self.out.box.now_us)
            if self.holds or self.is_closing:
                break
        return p - data

    cdef int wait_for_allowance(self) except -1:
        """Stop reading it for now; or close it, if it has waited for too long."""
        cdef Allowance allowance = self.allowance
        cdef uint64_t now_us = self.out.box.now_us, wait_us = allowance.wait_us(now_us)
        # At least a second: a client that is resumed late has not had a break.
        if self.limited_us == 0 or now_us > self.limited_until_us + max(allowance.burst_us, <uint64_t>1000000):
            self.limited_us = now_us
        if allowance.stall_us:
            if now_us - self.limited_us >= allowance.stall_us:
                return self.fail(errors.PublishRateExceeded())
            wait_us = min(wait_us, self.limited_us + allowance.stall_us - now_us)
        self.limited_until_us = now_us + wait_us
        self.publish_waits += 1
        self.holds |= HOLD_RATE
        if self.session is not None:
            self.session.on_publish_limited(wait_us)
        return 0

    def estimate_rtt(self, uint64_t rtt_us):
        """Until its first PONG comes, take this for its round trip."""
        if self.rtt_us == 0:
            self.rtt_us = max(<uint64_t>1, rtt_us)

    def allow(self, Allowance allowance):
        """It may publish so much from now on; None: as much as it wants to. True: it had another allowance before."""
        if allowance is self.allowance:
            return False
        if self.allowance is not None:
            self.limited_us = 0   # how long it has waited counts for that one
        self.allowance = allowance
        return True

    def publish_again(self):
        """The time that on_publish_limited() said is over."""
        self.release(HOLD_RATE)

    cdef bint rest(self) except -1:
        self.give_way()
        return self.holds != 0

    cdef int give_way(self) except -1:
        self.n_slow = self.n_delivered = 0
        self.most_steps = match_steps + MOST_MATCHING
        if self.session is not None and not self.is_closing and not self.holds & HOLD_RATE:
            self.holds |= HOLD_RATE
            self.session.on_turn_over()
        return 0

    def read_on(self):
        """Others have been served since on_turn_over()."""
        self.release(HOLD_RATE)

    cdef bint on_failure(self) noexcept:
        self.fanout.trace = None
        return True

    cdef int resume(self, uint8_t *shared, size_t room) except -1:
        """Input that was read before shows no activity now."""
        cdef uint64_t active_us = self.active_us
        Peer.resume(self, shared, room)
        self.active_us = active_us
        return 0

    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        """Carry out one operation. Returns its size in bytes; 0: it is not complete."""
        cdef Op op
        cdef OpKind kind
        if self.must_authenticate and data[0] | 0x20 != c'c':
            self.n_slow += 1
            try:
                self.session.on_first_operation()
            except errors.ProtocolError as error:
                self.fail(error)
                return size
        if parse_plain_publish(data, size, self.max_line_bytes, &op):
            return self.publish(data, size, &op, whole)
        kind = parse_op(data, size, self.max_line_bytes, &op)
        if kind == OP_PUB or kind == OP_HPUB:
            return self.publish(data, size, &op, whole)
        if kind == OP_MORE:
            return 0
        if kind == OP_SUB:
            self.subscribe(&op)
        elif kind == OP_UNSUB:
            self.unsubscribe(&op)
        elif kind == OP_PING:
            if self.touched | self.published | self.n_formers == 0 or self.fence.passes(self):
                self.release_pong()
            else:   # effects of its later operations must not overtake the PONG
                self.holds |= HOLD_FENCE
        elif kind == OP_PONG:
            if self.pings_out:
                self.pings_out = 0
                self.rtt_us = self.out.box.now_us - self.pinged_us
        elif kind == OP_CONNECT:
            self.n_slow += 1
            try:
                self.session.on_connect(op.argument.at[:op.argument.size] if op.argument.size else b'')
            except errors.ProtocolError as error:
                self.fail(error)
            else:
                if not self.holds & HOLD_LOGIN:
                    self.ok()
        elif kind == OP_UNKNOWN:
            self.fail(errors.UnknownProtocolOperation())
        elif kind == OP_LINE_TOO_LONG:
            self.fail(errors.ControlLineTooLong())
        elif kind == OP_BAD_ARGUMENTS:
            self.fail(errors.BadArguments())
        elif kind == OP_ERR:
            self.fail(errors.PeerSaidError())
        elif kind == OP_INFO:
            self.n_slow += 1
            try:
                self.session.on_info(op.argument.at[:op.argument.size] if op.argument.size else b'')
            except errors.ProtocolError as error:
                self.fail(error)
        # +OK is ignored
        self.wait_if_it_feeds_the_slow()   # (a sibling may read more slowly than it is told of subscriptions)
        return size if self.is_closing else op.line_size

    # ---- publishing

    cdef Py_ssize_t publish(self, const uint8_t *data, size_t size, Op *op, Blob *whole) except -1:
        cdef size_t total = op.line_size + op.size + 2
        cdef const uint8_t *tail = op.subject.at + op.subject.size
        cdef Publish message
        cdef Entry *entry
        cdef uint64_t hash
        cdef bint once = False, is_mapped_by_chance = False, is_wrong = False
        if unlikely(not is_whole(self, data, size, total, op)):
            return self.incomplete(data, size, total, op)
        if unlikely(op.subject.at[0] == c'$') and not self.is_asking and asks_system(op) and self.session is not None:
            return self.publish_request(data, size, op, whole)
        if unlikely(op.subject.at[0] == c'_') and is_measured_reply(op) and self.session is not None:
            tell = getattr(self.fanout.gate, "on_measured_reply", None)   # (a gate that measures has it)
            if tell is not None:
                tell(self.session, op.subject.at[:op.subject.size])
        if unlikely(op.header_size != 0) and self.fanout.tracing is not None and not self.is_traced \
                and asks_for_trace(data + op.line_size, op.header_size, self.sublist.traces_parents):
            self.n_slow += 8   # (some 30 µs)
            return self.publish_traced(data, size, op, whole)
        if unlikely(self.is_pedantic) and not is_publishable(op.subject.at, op.subject.size):
            self.fail(errors.InvalidPublishSubject())
            is_wrong = True
        hash = hash_bytes(op.subject.at, op.subject.size, self.sublist.seed)
        entry = self.sublist.peek(op.subject.at, op.subject.size, hash)
        if unlikely(entry == NULL or entry.extras_at) and self.sublist.n_mappings:
            # Its permissions are asked about the subject that it goes to, as on nats-server.
            if not self.map_subject(op, &hash, &entry, &is_mapped_by_chance):
                self.ok()
                self.count_refused(op)   # a mapping sends it nowhere
                return total
            if unlikely(not fits_line(len(self.sublist.account), op.subject.size, op.reply.size)):
                self.refuse(op, errors.InvalidPublishSubject())   # the mapping repeats a wildcard
                return total
        if unlikely(not is_plainly_permitted(self, op, entry)) and not self.is_permitted(op, entry, &once):
            return total
        if unlikely(self.is_verbose):
            self.ok()
        if unlikely(self.talk != NULL):
            if self.talk.skips and self.talk.line == NULL:   # most of many runs on many subjects are not looked at
                self.talk.skips -= 1
            else:
                self.turn_to(op, hash)
        self.published_to = hash
        if not make_message(self, data, total, op, tail, whole, &message):
            self.close(CLOSE_READ_ERROR)
            return size
        if unlikely(entry == NULL):
            entry = self.sublist.build(op.subject.at, op.subject.size, hash)
            if entry == NULL:
                self.close(CLOSE_READ_ERROR)
                return size
            note_matching(self)
        if self.permissions is not None and not once:
            entry.permitted = self.permissions.id
        if unlikely(entry.crosses):
            self.n_slow += 1
            self.deliver_across(op, hash, entry, &message)
            return total
        if unlikely(op.header_size != 0) and self.fanout.trace is not None:
            self.deliver_traced(entry, &message)
            return total
        if message.tail == tail and whole == NULL and not is_mapped_by_chance \
                and not (self.is_verbose or is_wrong or once) \
                and not (op.reply.size and self.wants_no_responders):   # each of which may need its own words
            remember(self, entry, data, op.line_size, &message)
        self.deliver(entry, &message)
        return total

    cdef Py_ssize_t incomplete(self, const uint8_t *data, size_t size, size_t total, const Op *op) except -1:
        """An incomplete message (returns 0), or an invalid one (sends its error)."""
        if op.size > self.max_payload_bytes:
            self.still_coming = total - min(size, total)
            if op.header_size and self.fanout.tracing is not None and self.session is not None \
                    and size >= op.line_size + op.header_size \
                    and asks_for_trace(data + op.line_size, op.header_size, self.sublist.traces_parents):
                self.trace_refused(data, op)
            self.fail(errors.MaximumPayloadViolation(op.size, self.max_payload_bytes))
        elif op.kind == OP_HPUB and not self.out.takes_headers:
            self.fail(errors.BadArguments())
        elif size >= total:
            self.fail(errors.UnknownProtocolOperation())
        elif size == total - 1 and total < BLOB_BYTES and data[size - 1] != c'\r':   # (a big one is looked at whole)
            self.fail(errors.UnknownProtocolOperation())
        else:
            self.needs = total
            return 0
        return size

    cdef bint is_permitted(self, Op *op, Entry *entry, bint *once) except -1:
        """May it be published? If not, the client is sent the error. `once`: see may_publish()."""
        if self.permissions is not None and (entry == NULL or entry.permitted != self.permissions.id) \
                and not self.may_publish(op, entry, once):
            self.refuse(op, errors.publish_violation(op.subject.at[:op.subject.size]))
            return False
        if op.subject.at[0] == c'_' and is_reserved(op.subject, False) and not answers_clusters(self.sublist):
            self.refuse(op, errors.publish_violation(op.subject.at[:op.subject.size]))
            return False
        if op.reply.size and op.reply.at[0] == c'_' and is_reserved(op.reply, True):
            self.refuse(op, errors.reply_violation(op.reply.at[:op.reply.size]))
            return False
        return True

    cdef bint map_subject(self, Op *op, uint64_t *hash, Entry **entry, bint *is_random) noexcept:
        """Apply the mapping of the subject, if there is one. False: the message is dropped.

        `op.subject` then points at the entry's own subject; the original name is not needed any more.
        """
        if entry[0] == NULL:
            entry[0] = self.sublist.build(op.subject.at, op.subject.size, hash[0])
            note_matching(self)
        if entry[0] == NULL:
            return False
        if entry[0].extras_at and extras_of(entry[0]).mapping >= 0:
            entry[0] = self.fanout.gate.map(self.sublist, entry[0], is_random)
            if entry[0] == NULL:
                return False
            hash[0] = entry[0].hash
            op.subject.at = entry[0].text
            op.subject.size = entry[0].subject_size
        return True

    cdef int deliver_across(self, Op *op, uint64_t hash, Entry *entry, Publish *message) except -1:
        """Deliver to other accounts, then here. Looks the entry up again, because the first may have made others."""
        cdef bytes subject = op.subject.at[:op.subject.size] + bytes(SLACK)
        cdef const uint8_t *at = subject
        cdef size_t size = op.subject.size
        cdef Outcome outcome
        cdef Outcome here
        cdef uint64_t unwanted
        cdef uint64_t before[MOST_SHARDS]
        cdef bint is_wanted
        no_outcome(&outcome)
        if message.reply.size and self.wants_no_responders:
            self.fanout.note_numbers(before)
        self.fanout.gate.leave(self.sublist, entry, message, self, &outcome)
        entry = self.sublist.find(at, size, hash)
        note_matching(self)
        if entry == NULL:
            self.close(CLOSE_READ_ERROR)
            return 0
        unwanted = entry.counts.unwanted
        self.in_msgs += 1
        self.in_bytes += message.size
        is_wanted = outcome.deliveries or outcome.touched   # (even if nobody gets it here)
        if unlikely(self.fanout.trace is not None):
            no_outcome(&here)
            give_traced(self.fanout, self.sublist, entry, message, NULL if self.echoes else &self.out, &here)
        else:
            here = self.fanout.deliver(self.sublist, entry, message, NULL if self.echoes else &self.out)
        add_outcome(&outcome, &here)
        if is_wanted:
            entry.counts.unwanted = <uint32_t>min(unwanted, <uint64_t>entry.counts.unwanted)
        note_outcome(self, entry, message, outcome, before)
        return 0

    cdef Py_ssize_t publish_request(self, const uint8_t *data, size_t size, Op *op, Blob *whole) except -1:
        """A request that the broker itself may reply to, beside other receivers."""
        cdef bint wants_no_responders = self.wants_no_responders
        cdef Py_ssize_t done
        cdef bint may = self.permissions is None or self.permissions.may_publish(op.subject.at, op.subject.size)
        self.n_slow += 1
        if may and self.session.on_system_request(
                op.subject.at[:op.subject.size], op.reply.at[:op.reply.size],
                data[op.line_size + op.header_size:op.line_size + op.size]):
            self.wants_no_responders = False   # the broker responds, even if nobody subscribes
        self.is_asking = True
        done = self.publish(data, size, op, whole)
        self.is_asking = False
        self.wants_no_responders = wants_no_responders
        if self.repeat != NULL:
            self.repeat.line_size = 0   # the next one is a request too
        return done

    cdef Py_ssize_t publish_traced(self, const uint8_t *data, size_t size, Op *op, Blob *whole) except -1:
        """A message whose header asks for a trace: what becomes of it is published, too."""
        cdef object tracing = self.fanout.tracing
        cdef object trace = None
        cdef bytes place
        cdef Py_ssize_t done
        if self.session is not None:
            trace = tracing.begin(self.cid, self.sublist.account, op.subject.at[:op.subject.size],
                                  data[op.line_size:op.line_size + op.header_size], op.size)
        if trace is not None:
            place = trace.place
            if not trace.is_by_parent and self.permissions is not None \
                    and not self.permissions.may_publish(place, len(place)):
                self.refuse(op, errors.publish_violation(place))
                return op.line_size + op.size + 2
        self.is_traced = True
        self.fanout.trace = trace
        try:
            done = self.publish(data, size, op, whole)
        finally:
            self.is_traced = False
            self.fanout.trace = None
        if trace is not None:
            tracing.end(trace)
        return done

    cdef int trace_refused(self, const uint8_t *data, const Op *op) except -1:
        """A traced message that is too large. Of a header that came behind its line nothing is known."""
        cdef object trace = self.fanout.tracing.begin(
            self.cid, self.sublist.account, op.subject.at[:op.subject.size],
            data[op.line_size:op.line_size + op.header_size], op.size)
        if trace is not None:
            trace.refused(message_trace.TOO_LARGE)
            self.fanout.tracing.end(trace)
        return 0

    cdef int deliver_traced(self, Entry *entry, Publish *message) except -1:
        cdef Outcome outcome
        cdef uint64_t before[MOST_SHARDS]
        no_outcome(&outcome)
        if message.reply.size and self.wants_no_responders:
            self.fanout.note_numbers(before)
        self.in_msgs += 1
        self.in_bytes += message.size
        give_traced(self.fanout, self.sublist, entry, message, NULL if self.echoes else &self.out, &outcome)
        note_outcome(self, entry, message, outcome, before)
        return 0

    cdef bint may_publish(self, Op *op, Entry *entry, bint *once) except -1:
        """Ask the permissions. Sets `once` where it is allowed as a reply only, so that the next one is asked again."""
        cdef Token subject = seen_there(op.subject)
        if self.permissions.may_publish(subject.at, subject.size):
            return True
        once[0] = True
        return self.reply_permissions is not None \
            and self.reply_permissions.may_reply(op.subject.at, op.subject.size, self.out.box.now_us)

    cdef void on_kept_from(self, uint64_t publisher) noexcept:
        self.fence.note_publisher(self, publisher)

    cdef void on_request(self, const uint8_t *reply, size_t size) noexcept:
        if self.reply_permissions is not None:
            self.reply_permissions.expect(reply, size, self.out.box.now_us)

    cdef int refuse(self, Op *op, object error) except -1:
        self.count_refused(op)
        if self.fanout.trace is not None:
            self.fanout.trace.refused(error.text)
        return self.fail(error)

    cdef void count_refused(self, Op *op) noexcept:
        """A publish that goes nowhere. It counts as received, as on nats-server."""
        self.in_msgs += 1
        self.in_bytes += op.size
        if self.talk != NULL:   # it is part of no run
            self.talk.from_msgs += 1
            self.talk.from_bytes += op.size
        self.fanout.in_msgs += 1
        self.fanout.in_bytes += op.size
        self.fanout.refused_msgs += 1
        self.fanout.refused_bytes += op.size

    cdef void turn_to(self, const Op *op, uint64_t hash) noexcept:
        """The next messages are on this subject."""
        cdef bint is_request = op.reply.size != 0
        if hash == self.talk.subject and is_request == self.talk.is_request:
            return
        talk_turn(self.talk, hash, op.subject.at, op.subject.size, is_request, self.in_msgs, self.in_bytes)
        if self.repeat != NULL:   # (it may not be replaced by this line, and would then count in it)
            self.repeat.line_size = 0

    cdef void hear(self, Sub *sub) noexcept:
        """A subscription ends: keep what it has heard since the last time."""
        cdef uint64_t n = take_marked(sub)
        cdef uint8_t text[MOST_TALK_BYTES]
        cdef const uint8_t *subject = text
        cdef QueueName *name
        cdef size_t size
        if n == 0:
            return
        if sub.node.key.kind == NODE_LITERAL:
            subject = node_key(sub.node)
            size = sub.node.key.size
        else:
            size = self.sublist.subject_of(sub.node, text, MOST_TALK_BYTES)
        if size > MOST_TALK_BYTES:
            return
        if sub.group == NULL:
            talk_hear(self.talk, subject, size, NULL, 0, n)
        else:
            name = sub.group.name
            talk_hear(self.talk, subject, size, <uint8_t *>name + sizeof(QueueName), name.key.size, n)

    cdef int deliver(self, Entry *entry, Publish *message) noexcept:
        cdef Outcome outcome
        if likely(self.echoes):
            outcome = self.fanout.deliver(self.sublist, entry, message, NULL)
        else:
            message.publisher = self.cid
            outcome = self.fanout.deliver(self.sublist, entry, message, &self.out)
        self.in_msgs += message.count
        self.in_bytes += <uint64_t>message.count * message.size
        note_outcome(self, entry, message, outcome, NULL)
        return 0

    cdef void wait_if_it_feeds_the_slow(self) noexcept:
        """Hold the client if a receiver of something other than a delivery is behind: itself, or a sibling."""
        if unlikely(self.out.box.stalling != NULL):
            self.out.box.stalling = NULL
            self.holds |= HOLD_STALL

    cdef void note_many(self, uint32_t deliveries) noexcept:
        self.n_delivered += deliveries
        if self.n_delivered > MOST_DELIVERED:
            self.n_slow = MOST_SLOW

    cdef void note_unanswered(self, const Entry *entry, Token reply, uint64_t shards, const uint64_t *before) noexcept:
        if shards:
            self.note_asked(entry, reply, shards, before)
        elif self.tell_no_responders(Token(entry.text, entry.subject_size), reply):
            self.wait_if_it_feeds_the_slow()

    cdef void note_asked(self, const Entry *entry, Token reply, uint64_t shards, const uint64_t *before) noexcept:
        """Nothing where it went to other servers, too: what they do with it nobody is told."""
        cdef OutBuf *link
        cdef Request request = None
        cdef uint64_t rest = shards, number, frames = 0
        cdef int shard = 0
        if (shards >> GATEWAY_NUMBER) & 1:
            return
        if before == NULL and entry.n_choices and self.fanout.is_split:
            before = self.fanout.before
        while rest:
            if rest & 1:
                link = self.fanout.links[shard]
                if link == NULL or link.close_reason != CLOSE_NONE:   # (it may not have taken a frame)
                    return
                frames += 1 if before == NULL else link.msgs - before[shard]
            rest >>= 1
            shard += 1
        if frames > 1 or entry.crosses:
            request = request_of(self, entry, reply, <uint32_t>frames)
            if request is None:
                return
        shard = 0
        while shards:
            if shards & 1:
                link = self.fanout.links[shard]
                number = link.msgs - 1 if before == NULL else before[shard]
                while number < link.msgs:
                    number += 1
                    if self.fanout.asked.note(shard, number, self.cid, request):
                        self.fence.on_many_asked(shard)
            shards >>= 1
            shard += 1

    cdef bint on_nobody(self, Token asked, Token reply) noexcept:
        cdef bint is_told = self.wants_no_responders and self.tell_no_responders(asked, reply)
        self.out.box.stalling = NULL   # (it is not the one that is being read: nobody would resume it)
        return is_told

    cdef bint tell_no_responders(self, Token asked, Token reply) noexcept:
        cdef bytes subject, told   # copied: looking for the reply's entry may free it
        cdef const uint8_t *prefix
        cdef Entry *entry
        cdef uint32_t i
        if self.names_subject:
            subject = asked.at[:asked.size]
        entry = self.sublist.find(reply.at, reply.size, hash_bytes(reply.at, reply.size, self.sublist.seed))
        if entry == NULL:
            return False
        count_steps(entry.n_plain)
        note_matching(self)
        for i in range(entry.n_plain):   # a member of a queue group is not told, as on nats-server
            if entry.targets[i].out == &self.out:
                prefix = entry.text + entry.targets[i].prefix_at
                out_append(&self.out, prefix, prefix_size_of(entry, &entry.targets[i]))
                if self.names_subject:
                    told = b' %d %d\r\nNATS/1.0 503\r\nNats-Subject: %b\r\n\r\n\r\n' % (
                        32 + len(subject), 32 + len(subject), subject)
                    self.say(told, len(told))
                else:
                    self.say(b' 16 16\r\nNATS/1.0 503\r\n\r\n\r\n', 26)
                return True
        return False

    # ---- subscribing

    cdef bint may_subscribe(self, Op *op) noexcept:
        if op.queue.size == 5 and same_bytes(op.queue.at, <const uint8_t *>b'_sys_', 5):   # the system's own
            return self.is_own
        return self.permissions is None or self.permissions.may_subscribe(
            op.subject.at, op.subject.size, op.queue.at if op.queue.size else NULL, op.queue.size)

    cdef bint has_too_many_tokens(self, const Op *op) noexcept:
        cdef size_t i, n_tokens = 1
        for i in range(op.subject.size):
            n_tokens += op.subject.at[i] == b'.'
        return n_tokens > self.max_subject_tokens

    cdef int subscribe(self, Op *op) except -1:
        cdef uint32_t hash
        cdef Sub *sub
        if unlikely(self.out.is_deaf):
            return 0
        # In nats-server's order: permissions, tokens; at the limit each SUB is an error; a sid in use is not looked at.
        if not self.may_subscribe(op):
            return self.fail(errors.subscription_violation(op.subject.at[:op.subject.size],
                                                           op.queue.at[:op.queue.size] if op.queue.size else b'',
                                                           op.sid.at[:op.sid.size]))
        if unlikely(self.max_subject_tokens and self.has_too_many_tokens(op)):
            return self.fail(errors.too_many_tokens(op.subject.at[:op.subject.size], op.sid.at[:op.sid.size]))
        if self.max_subs and self.subs.count >= self.max_subs:
            return self.fail(errors.MaximumSubscriptionsExceeded())
        if op.sid.size > MOST_KEY_BYTES or op.queue.size > MOST_KEY_BYTES:
            return self.fail(errors.BadArguments())
        hash = <uint32_t>hash_bytes(op.sid.at, op.sid.size, self.sublist.seed)
        if table_find(&self.subs, op.sid.at, op.sid.size, hash) == NULL:
            if subject_kind(op.subject.at, op.subject.size) == SUBJECT_BAD or op.subject.size > MOST_KEY_BYTES:
                return self.fail(errors.InvalidSubject())
            if unlikely(self.n_formers):   # the sid belongs to the new subscription from now on
                self.fence.end_formers(self, op.sid.at, op.sid.size)
            sub = self.sublist.insert(&self.out, op.subject.at, op.subject.size, op.queue.at, op.queue.size,
                                      op.sid.at, op.sid.size, hash, &self.touched)
            if sub == NULL:
                self.close(CLOSE_READ_ERROR)
                return 0
            if not table_insert(&self.subs, &sub.key):
                self.sublist.remove(sub, &self.touched)
                self.close(CLOSE_READ_ERROR)
                return 0
            if unlikely(self.sublist.stream_imports is not None):
                if self.shadows is None:
                    self.shadows = Shadows()
                if self.shadows.cast(self.sublist, sub, op.subject.at[:op.subject.size],
                                     op.queue.at[:op.queue.size] if op.queue.size else b'', &self.touched):
                    self.end_subscription(sub)   # not half of it: it would hear nothing of that import
                    return self.fail(errors.InvalidSubject())
                note_matching(self)
            # Siblings may have been told of this interest for somebody else, and not have heard it yet.
            self.touched |= self.fence.unheard()
        self.ok()
        return 0

    cdef int unsubscribe(self, Op *op) except -1:
        cdef uint32_t hash = <uint32_t>hash_bytes(op.sid.at, op.sid.size, self.sublist.seed)
        cdef Sub *sub = <Sub *>table_find(&self.subs, op.sid.at, op.sid.size, hash)
        if sub != NULL:
            if <uint64_t>op.max_msgs > sub.delivered:
                self.bounded_members += sub.group != NULL and sub.max_msgs == 0
                sub.max_msgs = op.max_msgs
            elif sub.group == NULL or op.max_msgs > 0:   # (the latter: it has had all that it wanted)
                self.end_subscription(sub)
            else:
                self.retire(sub)
            note_matching(self)
        self.ok()
        return 0

    cdef int retire(self, Sub *sub) except -1:
        cdef Former former = self.fence.former_of(self, sub)
        self.end_subscription(sub)
        if former is not None:
            self.n_slow += 1
            self.fence.linger(former)
        return 0

    cdef void end_subscription(self, Sub *sub) noexcept:
        if self.talk != NULL:
            self.hear(sub)
        if unlikely(self.shadows is not None):
            self.shadows.drop(sub, &self.touched)
        if unlikely(sub.max_msgs != 0) and sub.group != NULL and sub.max_msgs != NO_MAX:
            self.bounded_members -= 1
        table_remove(&self.subs, &sub.key)
        self.sublist.remove(sub, &self.touched)
        self.is_too_large = False   # (it may have been for this one)
        if unlikely(self.out.moving == MOVING_OUT):
            self.fence.on_ended_moving(self)
        if unlikely(self.ending != ENDING_NONE) and self.subs.slots != NULL:
            # The table has put others from behind it in its place: at most those up to the next empty slot.
            while self.end_at and self.subs.slots[self.end_at - 1]:
                self.end_at -= 1

    cdef void on_finished(self, Sub *sub) noexcept:
        # Siblings are told of the end. This client's PONG waits for that, not the publisher's.
        if unlikely(sub.key.kind == SUB_FORMER):
            self.fence.on_former_finished(sub)
            return
        if unlikely(self.out.has_surplus):   # it takes no more; its end comes when its old shard has told what it took
            return
        self.end_subscription(sub)

    # ---- PONG

    cdef void release_pong(self) noexcept:
        self.say(b'PONG\r\n', 6)
        self.was_ponged = True
        if self.info_due is not None:
            if self.protocol >= 1:   # (of its last CONNECT)
                self.say(self.info_due, len(self.info_due))
            self.info_due = None

    # ---- for the session and the owner of the socket

    def configure(self, *, bint verbose, bint pedantic, bint echo, bint headers, bint no_responders, int protocol,
                  bint names_subject=False):
        """What a good CONNECT asked for. `names_subject`: 503 says which subject was asked."""
        self.names_subject = names_subject
        self.is_verbose = verbose
        self.is_pedantic = pedantic
        self.echoes = echo
        self.out.takes_headers = headers and self.offers_headers
        self.wants_no_responders = no_responders
        self.is_too_large = False
        self.protocol = protocol
        if self.repeat != NULL:
            self.repeat.line_size = 0

    def set_limits(self, limits):
        """Use these limits (broker.limits) from now on."""
        self.out.max_pending = limits.max_pending_bytes
        self.out.stall_mark = mark_of(limits.max_pending_bytes)
        self.max_line_bytes = limits.max_control_line_bytes
        self.max_payload_bytes = limits.max_payload_bytes
        self.max_subs = limits.max_subscriptions
        self.max_subject_tokens = limits.max_subject_tokens
        if self.repeat != NULL:   # (nobody looks at the size of a line that repeats)
            self.repeat.line_size = 0

    def authenticated(self):
        """Every operation is allowed from now on."""
        self.must_authenticate = False

    def hold_login(self):
        """Its CONNECT is being checked: send nothing and carry out nothing until log_in_decided()."""
        self.holds |= HOLD_LOGIN

    def log_in_decided(self, error=None):
        """The result of a held CONNECT: send +OK or the error, and resume."""
        if error is None:
            self.ok()
        else:
            self.fail(error)
        self.release(HOLD_LOGIN)
        out_call(&self.out)

    def enter(self, Sublist sublist not None, Permissions permissions):
        """Use this account's subscriptions and these permissions from now on (None: everything is allowed).

        Subscriptions that they do not allow get nothing from now on. While `is_ending`, the client is held: call
        end_some(), which ends them. ValueError: a client with subscriptions cannot change its account. While the client
        moves to another shard nothing changes: that one gives it the rights that hold when it arrives.
        """
        if self.out.moving == MOVING_OUT:   # its next shard gives it the rights that hold then
            return
        if sublist is not self.sublist:
            if self.subs.count:
                raise ValueError("a client with subscriptions cannot change its account")
            self.sublist = sublist
        elif permissions is self.permissions:
            return
        self.permissions = permissions
        self.out.is_narrowing = self.subs.count and permissions is not None
        self.set_filter()
        self.reply_permissions = None
        if permissions is not None and permissions.responses:
            self.reply_permissions = ReplyPermissions(permissions.responses, permissions.responses_expire_us)
        self.out.may_reply = self.reply_permissions is not None
        if self.repeat != NULL:
            self.repeat.line_size = 0
        if self.n_formers:
            self.fence.review_formers(self)
        if self.subs.count:
            self.sublist.forget_entries()
            if self.shadows is not None:
                self.shadows.forget_entries()
            if permissions is not None:
                self.begin_ending(ENDING_DENIED)
            elif self.ending == ENDING_DENIED:
                self.finish_ending()

    cdef void set_filter(self) noexcept:
        self.out.filter = NULL
        if self.permissions is not None and (self.permissions.subscribe_deny is not None or self.out.is_narrowing):
            self.out.filter = <void *>self.permissions

    def listen_anew(self):
        """The stream imports of its account have changed (Sublist.streams): its subscriptions follow, some at a time.

        While `is_ending`, the client is held: call end_some(). Behind the last, `n_unheard` says how often one hears
        nothing of an import, because the exporter's subject is too long for a key.
        """
        if self.subs.count and not self.is_closing and self.out.moving != MOVING_OUT:
            if self.shadows is None:
                self.shadows = Shadows()
            self.is_renewing = True
            self.n_unheard = 0
            self.begin_ending(ENDING_RENEWED)

    def end_subscriptions(self):
        """End all of them, members of queue groups as by UNSUB. While `is_ending`, the client is held: call end_some().
        """
        if self.subs.count:
            self.begin_ending(ENDING_ALL)

    cdef int become_deaf(self) except -1:
        out_release(&self.out)
        if self.subs.count:
            self.begin_ending(ENDING_GONE)
            self.session.on_subscriptions_due()
        return 0

    cdef void begin_ending(self, Ending which) noexcept:
        if which > self.ending:
            self.ending = which
        self.end_at = 0
        self.holds |= HOLD_ENDING

    def end_some(self, uint32_t most) -> list:
        """Look at so many subscriptions, and end or renew those that are to. Behind the last it is held no more.

        (subject, sid, queue or b"") of each that the permissions do not allow.
        """
        cdef uint8_t[MOST_KEY_BYTES + SLACK] subject
        cdef const uint8_t *queue
        cdef size_t size, queue_size
        cdef uint64_t most_steps = match_steps + MOST_MATCHING   # for what they get of other accounts
        cdef list ended = []
        cdef Sub *sub
        cdef uint32_t at
        if self.ending == ENDING_NONE:
            return ended
        while self.subs.slots != NULL and self.end_at <= self.subs.mask:   # (a table that is empty has no slots)
            if not self.subs.slots[self.end_at]:
                self.end_at += 1
                continue
            if most == 0 or match_steps > most_steps:
                merge_freed()
                return ended
            most -= 1
            at = self.end_at
            sub = <Sub *>slot_item(self.subs.slots[at])
            if self.ending >= ENDING_ALL:
                if sub.group == NULL or self.ending == ENDING_GONE:
                    self.end_subscription(sub)
                else:
                    self.retire(sub)
                self.end_at = at   # where the table may have put another one
                continue
            queue = NULL if sub.group == NULL else <uint8_t *>sub.group.name + sizeof(QueueName)
            queue_size = 0 if sub.group == NULL else sub.group.name.key.size
            size = self.sublist.subject_of(sub.node, subject, MOST_KEY_BYTES)
            if self.ending == ENDING_RENEWED:
                self.n_unheard += self.renew(sub, subject[:size], queue[:queue_size])
                self.end_at += 1
                continue
            if self.permissions.may_subscribe(subject, size, queue, queue_size):
                self.end_at += 1
                continue
            ended.append((subject[:size], (<uint8_t *>sub + sizeof(Sub))[:sub.key.size], queue[:queue_size]))
            self.end_subscription(sub)
            self.end_at = at
        self.finish_ending()
        return ended

    cdef int renew(self, Sub *sub, bytes subject, bytes queue) except -1:
        return self.shadows.renew(self.sublist, sub, subject, queue, &self.touched)

    cdef void finish_ending(self) noexcept:
        self.out.is_narrowing = False
        self.set_filter()
        if self.is_renewing and self.ending != ENDING_RENEWED:
            self.ending = ENDING_RENEWED
            self.end_at = self.n_unheard = 0
            return
        self.is_renewing = False
        self.ending = ENDING_NONE
        self.release(HOLD_ENDING)

    cdef int on_members_left(self) except -1:
        if self.holds & HOLD_LOGIN and self.session is not None:
            self.session.on_members_left()
        return 0

    @property
    def is_ending(self) -> bool:
        """Whether subscriptions are still to end: see end_some()."""
        return self.ending != ENDING_NONE

    @property
    def lingers(self) -> bool:
        """Whether members of queue groups that have left may still get messages."""
        return self.n_formers != 0

    def send_info(self, bytes line not None):
        """Send another INFO: only to clients with protocol 1 or higher, and not before their first PONG."""
        if self.protocol < 1:
            return
        if self.was_ponged:
            self.say(line, len(line))
        else:
            self.info_due = line

    def send_info_after_pong(self, bytes line not None):
        """The same behind its next PONG, whichever that is."""
        if self.protocol >= 1:
            self.info_due = line

    def take_back_info(self, bytes line not None):
        """If this INFO waits for a PONG, it is not sent."""
        if self.info_due == line:
            self.info_due = None

    def send(self, bytes data not None):
        """Queues bytes as they are."""
        self.say(data, len(data))

    def post(self, bytes operation not None):
        """Carry out a complete operation of the broker's own, at once, without waiting for slow receivers."""
        cdef bytes padded = operation + bytes(SLACK)
        self.is_own = True
        self.carry_out(padded, len(operation))
        self.holds = 0

    def ping(self):
        """Asks whether the client is still there."""
        self.pings_out += 1
        self.pinged_us = self.out.box.now_us
        self.say(b'PING\r\n', 6)

    def end(self, object error not None):
        """Closes with an error that came from outside the byte stream (a timeout, a reload)."""
        self.fail(error)
        out_call(&self.out)

    def leave(self, uint32_t most_subs=ALL_SUBS) -> bool:
        """The socket is closed: remove what the engine has of this client.

        False: more than `most_subs` subscriptions were left, or their ends cost as much, so call it again (a million
        take half a second).
        """
        cdef uint64_t most_steps = match_steps + MOST_MATCHING if most_subs != ALL_SUBS else <uint64_t>-1
        if self.out.close_reason == CLOSE_NONE:
            self.out.close_reason = CLOSE_CLIENT_CLOSED
        out_release(&self.out)
        if unlikely(self.out.moving == MOVING_OUT):
            self.fence.keep_moving(self)
            return True
        self.ending = ENDING_NONE
        self.forget_input()   # the session of a closed client is kept for /connz, and this with it
        while self.subs.slots != NULL and self.left_at <= self.subs.mask:
            if self.subs.slots[self.left_at]:
                if most_subs == 0 or match_steps > most_steps:
                    merge_freed()
                    return False
                most_subs -= 1
                if unlikely(self.shadows is not None):
                    self.shadows.drop(<Sub *>slot_item(self.subs.slots[self.left_at]), &self.touched)
                self.sublist.remove(<Sub *>slot_item(self.subs.slots[self.left_at]), &self.touched)
            self.left_at += 1
        table_free(&self.subs)
        self.fence.forget(self)
        if self.repeat != NULL:
            free(self.repeat)
            self.repeat = NULL
        return True

    # ---- what it says and hears

    def take_talk(self) -> tuple | None:
        """What it said and heard since the last call; None: nothing, or nobody counts.

        (is it the first call?, (messages in, bytes in, messages out, bytes out), [(subject published to, messages,
        bytes, requests)], [(subject, queue, messages) of subscriptions that have ended]). heard() has the others.
        """
        cdef Talk *talk = self.talk
        cdef uint64_t[4] now
        cdef bint was_known
        cdef int i
        if talk == NULL:
            return None
        now = [self.in_msgs, self.in_bytes, self.out.msgs, self.out.payload_bytes]
        if talk.is_known and now[0] == talk.told[0] and now[2] == talk.told[2]:
            return None
        talk_settle(talk, self.in_msgs, self.in_bytes)
        counts = (now[0] - talk.told[0], now[1] - talk.told[1], now[2] - talk.told[2], now[3] - talk.told[3])
        said = fitting(said_rows(talk), counts[0]) if counts[0] else []
        heard = heard_rows(talk) if counts[2] else []
        talk_clear(talk)
        if self.repeat != NULL:   # the next message begins a run
            self.repeat.line_size = 0
        was_known = talk.is_known
        talk.is_known = True
        for i in range(4):
            talk.told[i] = now[i]
        return not was_known, counts, said, heard

    def heard(self, uint32_t start, uint32_t slots) -> tuple:
        """([(subject, queue, messages since the last call)], next) of so many slots of its subscriptions.

        `next` is 0 after the last. Subscriptions without any are left out.
        """
        cdef list rows = []
        cdef uint64_t end
        cdef uint32_t i
        cdef uint64_t n
        cdef Sub *sub
        if self.talk == NULL or self.subs.slots == NULL or start > self.subs.mask:
            return rows, 0
        end = min(<uint64_t>start + slots, <uint64_t>self.subs.mask + 1)
        for i in range(start, <uint32_t>end):
            if self.subs.slots[i]:
                sub = <Sub *>slot_item(self.subs.slots[i])
                n = take_marked(sub) if sub.delivered else 0
                if n:
                    rows.append(heard_row(self.sublist, sub, n))
        return rows, 0 if end > self.subs.mask else end

    @property
    def is_moving(self) -> bool:
        """Whether it moves to another shard, or comes from one."""
        return self.out.moving != 0

    @property
    def subscriptions(self) -> int:
        return self.subs.count

    @property
    def close_reason(self) -> int:
        return self.out.close_reason
