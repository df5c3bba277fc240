# cython: language_level=3, boundscheck=False, wraparound=False
"""Queue messages on their way to another shard, because their group had no member where they were sent.

A member that unsubscribes while messages are on their way to it leaves them without one. Each goes to a current member
on another shard, is kept while a sibling's interest is not all known, and goes to a former member (broker.lingering)
only when no shard has a current one: here, on a shard that it was sent on to, on the one that published it, or on one
of which the gateway knows that it lingers there until other servers know. It is acknowledged to the link that it came
over, and until then that link holds its sibling's PINGs. Reroutes know that link as an OriginLink and read no frames.
No cost without such messages.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr

from gnatswarm.broker.entry cimport choice_named, is_foreign
from gnatswarm.broker.fanout cimport (
    ANY_SHARD, ORIGIN_ACCOUNT, ORIGIN_SIBLING_ACCOUNT, Fanout, is_output_of, no_outcome, rewritten)
from gnatswarm.broker.interest cimport GATEWAY_NUMBER, NO_MAX
from gnatswarm.broker.outbuf cimport CLOSE_NONE, OutBuf, out_append
from gnatswarm.broker.parser cimport parse_number
from gnatswarm.broker.peer cimport HOLD_REPLY
from gnatswarm.broker.sublist cimport OWNER_AWAITED, PREFIX_BYTES
from gnatswarm.broker.traced cimport asks_for_trace, is_under_trace
from gnatswarm.broker.word cimport SLACK, hash_bytes, unlikely

from gnatswarm.broker import message_trace


cdef bint read_sent(const uint8_t *at, const uint8_t *end, Sent *to) noexcept:
    cdef const uint8_t *line_end = <const uint8_t *>memchr(at, c"\n", end - at)
    cdef const uint8_t *space
    cdef Token words[6]
    cdef int n = 0, sizes
    cdef int64_t size, header_size
    if line_end == NULL:
        return False
    line_end -= 1   # to its CR
    to.at = at
    while n < 6:
        space = <const uint8_t *>memchr(at, c" ", line_end - at)
        words[n] = Token(at, (line_end if space == NULL else space) - at)
        n += 1
        if space == NULL:
            break
        at = space + 1
    sizes = 2 if to.at[0] == c"H" else 1
    if n < 3 + sizes:
        return False
    header_size = parse_number(words[n - 2]) if sizes == 2 else 0
    size = parse_number(words[n - 1])
    to.subject = words[1]
    to.sid = words[2]
    to.reply = words[3] if n == 4 + sizes else Token(NULL, 0)
    to.payload = line_end + 2
    to.header_size = <size_t>header_size
    to.size = <size_t>size
    if size < 0 or header_size < 0 or end - to.payload < size + 2:
        return False
    to.end = to.payload + size + 2
    return True


cdef class OriginLink(Peer):
    """The link that a queue message came over."""

    def __cinit__(self):
        self.shard = -1
        self.orphans = set()

    cdef int acknowledge(self, uint64_t id, bint is_taken) except -1:
        raise NotImplementedError

    cdef int on_settled(self, uint64_t id) except -1:
        raise NotImplementedError

    cdef int tell_nobody(self, uint64_t number, Sublist sublist, Token subject, Token reply) except -1:
        return 0

    cdef int wait_for_more(self, uint64_t first, uint64_t since, uint64_t last) except -1:
        return 0


cdef class NoLink(OriginLink):
    """No link."""

    cdef int on_settled(self, uint64_t id) except -1:
        self.orphans.discard(id)
        return 0


cdef uint64_t members_elsewhere(Fanout fanout, const Entry *entry, uint32_t first, uint32_t n,
                                uint64_t visited) noexcept:
    """How many members n of the entry's weights are, on siblings that are not in a mask."""
    cdef uint64_t members = 0
    cdef uint32_t w
    for w in range(first, first + n):
        if not (visited >> entry.weights[w].shard) & 1 and fanout.links[entry.weights[w].shard] != NULL:
            members += entry.weights[w].members
    return members


cdef bint has_member_on_the_move(Entry *entry, const Choice *choice) noexcept:
    """Whether a member takes nothing more, but counts until its move to another shard is over."""
    cdef const OutBuf *out
    cdef uint32_t i
    for i in range(choice.first, choice.first + choice.n_local):
        out = entry.targets[i].out
        if out.hung_up or out.close_reason != CLOSE_NONE and entry.targets[i].sub.max_msgs == NO_MAX:
            return True
    return False


cdef bint refuses_here(Entry *entry, const Choice *choice, const Publish *message) noexcept:
    """Whether a member here may not have it: by its permissions, because it came from a third account, or because it
    has published it and wants no echo."""
    cdef uint32_t i
    if choice.keeps_out:
        return True
    if message.origin >= ORIGIN_ACCOUNT or message.publisher:
        for i in range(choice.first, choice.first + choice.n_local):
            if message.origin >= ORIGIN_ACCOUNT and is_foreign(entry, i):
                return True
            if message.publisher and is_output_of(entry.targets[i].out, message.publisher):
                return True
    return False


cdef bint is_traced(Fanout fanout, Sublist sublist, const Publish *message) except -1:
    """Does the shard that it goes to tell of it? (Else it goes on as it is, whatever its publisher wrote.)"""
    return fanout.tracing is not None and is_under_trace(message.payload, message.header_size) \
        and asks_for_trace(message.payload, message.header_size, sublist.traces_parents) \
        and message_trace.may_lead_somewhere(message.payload[:message.header_size])


cdef class Orphan:
    """A queue message that found no member where it was sent, and is pending."""

    cdef int keep(self, Sublist sublist, Token subject, Token queue, const Publish *message) except -1:
        self.sublist = sublist
        self.subject = subject.at[:subject.size]
        self.queue = queue.at[:queue.size]
        self.reply = message.reply.at[:message.reply.size] if message.reply.size else b""
        self.payload_at = message.payload - message.tail
        self.header_size = message.header_size
        self.size = message.size
        self.published_by = message.origin
        self.publisher = message.publisher
        self.tail = message.tail[:message.tail_size] + bytes(SLACK)
        return 0

    cdef bint may_go_back(self) noexcept:
        if self.origin.shard == GATEWAY_NUMBER and self.been & REFUSED:   # other servers have been asked once
            return False
        return self.id_there == 0 and not self.has_gone_back and self.origin.shard >= 0 and not self.origin.is_closing

    cdef void fill(self, Publish *message) noexcept:
        cdef const uint8_t *tail = self.tail
        cdef const uint8_t *reply = self.reply
        message.origin = self.published_by
        message.publisher = self.publisher
        message.count = 1
        message.tail = tail
        message.tail_size = message.stride = len(self.tail) - SLACK
        message.payload = tail + self.payload_at
        message.reply = Token(reply, len(self.reply))
        message.header_size = self.header_size
        message.size = self.size
        message.blob = NULL


cdef class Reroutes:
    """Queue messages on their way to another shard, because their group had no member where they were sent."""

    def __cinit__(self, Mesh mesh not None, MeshFence fence not None):
        self.mesh = mesh
        self.fence = fence
        self.pending = {}

    @property
    def n_pending(self) -> int:
        """Messages that are on their way, or wait for a link to be in step."""
        return len(self.pending)

    cdef Fate place(self, OriginLink origin, Sublist sublist, Token subject, Token queue, Publish *message,
                    uint64_t id_there, uint64_t visited, uint64_t been) except *:
        cdef Orphan orphan = Orphan()
        cdef Fate fate
        self.last_id += 1
        orphan.id = self.last_id
        orphan.origin = origin
        orphan.id_there = id_there
        orphan.visited = visited
        orphan.been = been
        fate = self.try_place(orphan, sublist, subject, queue, message, True)
        if fate == FATE_PENDING:
            self.pending[orphan.id] = orphan
            origin.orphans.add(orphan.id)
        return fate

    cdef int note_request(self, list ids, uint64_t number) except -1:
        cdef list request = [len(ids), number]
        cdef Orphan orphan
        for id in ids:
            orphan = self.pending.get(id)
            if orphan is not None:   # (else it was taken: then nobody is told)
                orphan.request = request
        return 0

    cdef int place_output(self, Sublist sublist, dict queues, bytes output, dict publishers) except -1:
        cdef NoLink nobody = NoLink()
        cdef bytes padded = output + bytes(SLACK)
        cdef const uint8_t *at = padded
        cdef const uint8_t *end = at + len(output)
        cdef Publish message
        cdef Sent one
        cdef Py_ssize_t n = 0
        if not queues:
            return 0
        message.origin = ORIGIN_SIBLING_ACCOUNT   # (nobody knows: members of third accounts may not have it)
        message.count = 1
        message.blob = NULL
        while read_sent(at, end, &one):
            at = one.end
            n += 1
            queue = queues.get(one.sid.at[:one.sid.size])
            if queue is None:
                continue
            message.publisher = publishers.get(n - 1, 0)
            message.size = one.size
            message.header_size = one.header_size
            message.payload = one.payload
            message.tail = one.sid.at + one.sid.size
            message.tail_size = message.stride = one.end - message.tail
            message.reply = one.reply
            if self.place(nobody, sublist, one.subject, Token(<const uint8_t *><bytes>queue, len(queue)), &message,
                          0, 0, 0) == FATE_NOBODY:
                self.n_lost += 1
        return 0

    cdef Fate try_place(self, Orphan orphan, Sublist sublist, Token subject, Token queue, Publish *message,
                        bint may_leave) except *:
        """`may_leave`: it was not sent away yet, or the sibling that it was sent to has a new link."""
        cdef Fanout fanout = self.mesh.fanout
        cdef Entry *entry = sublist.find(subject.at, subject.size,
                                         hash_bytes(subject.at, subject.size, sublist.seed))
        cdef Choice *choice = NULL if entry == NULL else choice_named(entry, queue)
        cdef int from_shard = fanout.from_shard
        cdef bint is_taken
        fanout.from_shard = ANY_SHARD
        is_taken = choice != NULL and choice.n_local \
            and fanout.choose_here(entry, choice, sublist.random(), message, NULL)
        fanout.from_shard = from_shard
        if is_taken:
            self.count_delivery(sublist, subject, message)   # somebody has come meanwhile
            return FATE_TAKEN
        if choice != NULL and refuses_here(entry, choice, message):
            orphan.been |= REFUSED
        if may_leave:
            orphan.shard = -1
            if choice != NULL and self.send_away(orphan, sublist, entry, choice, subject, queue, message, True) \
                    or self.unknown():
                if orphan.former is None:
                    orphan.former = self.mesh.formers.find(sublist, subject, queue)
                    if orphan.former is not None:   # which stays for the case that nobody else takes it
                        orphan.former.n_promised += 1
                if orphan.tail is None and (orphan.former is not None or orphan.shard < 0 or orphan.may_go_back()):
                    orphan.keep(sublist, subject, queue, message)
                return FATE_PENDING
        if self.give_to_former(sublist, subject, queue, message):
            return FATE_TAKEN
        if may_leave and self.mesh.formers.find(sublist, subject, queue) is not None:   # … and may not have it
            entry = sublist.find(subject.at, subject.size, hash_bytes(subject.at, subject.size, sublist.seed))
            choice = NULL if entry == NULL else choice_named(entry, queue)
            if choice != NULL and self.send_away(orphan, sublist, entry, choice, subject, queue, message, False):
                if orphan.tail is None and orphan.may_go_back():
                    orphan.keep(sublist, subject, queue, message)
                return FATE_PENDING
        if unlikely(fanout.onward is not None):
            orphan.shard = fanout.onward.send_to_former(sublist, subject, queue, message, orphan.id, orphan.visited,
                                                        orphan.been)
            if orphan.shard >= 0:
                orphan.visited |= <uint64_t>1 << orphan.shard
                if orphan.tail is None:
                    orphan.keep(sublist, subject, queue, message)
                return FATE_PENDING
        if unlikely(orphan.been & LINGERING) and orphan.may_go_back():   # who lingered here has had its max, or gone
            orphan.keep(sublist, subject, queue, message)
            if self.give_back(orphan):
                return FATE_PENDING
        return FATE_NOBODY

    cdef bint send_away(self, Orphan orphan, Sublist sublist, Entry *entry, Choice *choice, Token subject, Token queue,
                        Publish *message, bint may_linger) except *:
        """To a sibling with current members; False: there is none. `may_linger`: who lingers here is asked before
        other servers."""
        cdef Fanout fanout = self.mesh.fanout
        cdef uint64_t visited = orphan.visited | <uint64_t>1 << self.mesh.shard
        cdef uint32_t first = choice.first_remote, n = choice.n_first
        cdef uint64_t gateway = <uint64_t>1 << GATEWAY_NUMBER
        # To other servers last: they count this one as a place where it was.
        cdef uint64_t kept_from = visited | gateway
        cdef uint64_t members = members_elsewhere(fanout, entry, first, n, kept_from)
        cdef uint64_t pick
        cdef uint32_t w, shard = 0
        cdef Publish other
        cdef bytearray _room   # (keeps its bytes)
        if members == 0:
            if may_linger and unlikely(members_elsewhere(fanout, entry, first, choice.n_remote, ~gateway)) \
                    and self.mesh.formers.find(sublist, subject, queue) is not None:
                return False   # servers acknowledge nothing, and theirs may have left: who lingers here is sure
            kept_from = visited
            members = members_elsewhere(fanout, entry, first, n, kept_from)
        if members == 0 and choice.n_remote > n:   # now those of second choice
            members = members_elsewhere(fanout, entry, first + n, choice.n_remote - n, visited)
            if members:
                first += n
                n = choice.n_remote - n
        if members == 0 and not orphan.been & LINGERING and not refuses_here(entry, choice, message) \
                and not has_member_on_the_move(entry, choice):
            # Who was visited and has a member now got it since: a sibling says RS- before it sends a message on. (Where
            # our word of it is old, the message comes back, and the word before it.) But siblings also count members
            # that may not have it: a shard with such members asks nobody twice, or the message would circle for ever.
            kept_from = visited = <uint64_t>1 << self.mesh.shard
            members = members_elsewhere(fanout, entry, first, n, visited)
        if members == 0:
            return False
        pick = sublist.random() % members
        for w in range(first, first + n):
            shard = entry.weights[w].shard
            if not (kept_from >> shard) & 1 and fanout.links[shard] != NULL:
                if pick < entry.weights[w].members:
                    break
                pick -= entry.weights[w].members
        if unlikely(message.header_size != 0) and is_traced(fanout, sublist, message):
            _room = self.trace_onward(&other, message, shard)
            message = &other
        if not fanout.send_queued(fanout.links[shard], entry, &queue, 1, message, True, orphan.id, visited,
                                  orphan.been):
            return False
        entry.counts.link_out += 1
        orphan.shard = shard
        self.n_sent_on += 1
        return True

    cdef bytearray trace_onward(self, Publish *other, const Publish *message, uint32_t shard):
        """The same of a traced message, with a hop of its own. Where it had to wait, the document has left without it.
        """
        cdef object trace = self.mesh.fanout.trace
        cdef bytes header = message.payload[:message.header_size]
        if shard == GATEWAY_NUMBER:   # other servers are told of no trace
            if trace is not None:
                trace.left(shard)
            header = message_trace.with_line(header, message_trace.DESTINATION, message_trace.DISABLED)
        else:
            header = message_trace.with_line(
                header, message_trace.HOP,
                message_trace.later_hop(header, self.n_sent_on) if trace is None else trace.sent_on(shard))
        return rewritten(other, message, header, message.reply)

    cdef bint give_back(self, Orphan orphan) except -1:
        """To the shard that published it, and waited for nothing: its members may all have unsubscribed since, and then
        they linger, because its PINGs wait here for this message."""
        cdef Publish message
        cdef Publish other
        cdef bytearray _room   # (keeps its bytes)
        cdef Entry *entry
        cdef Token queue
        cdef const uint8_t *subject
        if orphan.tail is None or orphan.is_answer or not orphan.may_go_back():
            return False
        subject = orphan.subject
        queue = Token(<const uint8_t *><bytes>orphan.queue, len(orphan.queue))
        entry = orphan.sublist.find(subject, len(orphan.subject),
                                    hash_bytes(subject, len(orphan.subject), orphan.sublist.seed))
        orphan.fill(&message)
        if unlikely(message.header_size != 0) and is_traced(self.mesh.fanout, orphan.sublist, &message):
            _room = self.trace_onward(&other, &message, orphan.origin.shard)
            message = other
        if entry == NULL or not self.mesh.fanout.send_queued(&orphan.origin.out, entry, &queue, 1, &message, True,
                                                             orphan.id, <uint64_t>1 << self.mesh.shard, orphan.been):
            return False
        entry.counts.link_out += 1
        orphan.has_gone_back = True
        orphan.shard = orphan.origin.shard
        self.n_sent_on += 1
        return True

    cdef bint give_to_former(self, Sublist sublist, Token subject, Token queue, Publish *message) noexcept:
        """To a member that has unsubscribed, and that siblings took for one when they sent this."""
        cdef Fanout fanout = self.mesh.fanout
        cdef Choice *choice
        cdef Entry *entry = sublist.former_group(subject, queue, &choice)
        if entry == NULL or not fanout.choose_here(entry, choice, sublist.random(), message, NULL):
            return False
        self.n_lingered += 1
        self.count_delivery(sublist, subject, message)
        return True

    cdef void count_delivery(self, Sublist sublist, Token subject, const Publish *message) noexcept:
        """One message more was delivered here, of one that was counted when it came."""
        cdef Fanout fanout = self.mesh.fanout
        cdef Entry *entry
        if fanout.n_finished:
            fanout.finish()
        entry = sublist.find(subject.at, subject.size, hash_bytes(subject.at, subject.size, sublist.seed))
        fanout.out_msgs += 1
        fanout.out_bytes += message.size
        if entry != NULL:
            entry.counts.deliveries += 1
            entry.counts.out_bytes += message.size
            if unlikely(entry.counts.deliveries >> 31):
                sublist.book(entry)

    cdef int ask(self, OriginLink origin, uint64_t shards) except -1:
        """Something of `origin` was sent on to these siblings: its PINGs wait until that has arrived there.

        Acknowledged by its own frame, not by the link's PONG: two shards could wait for each other's for ever.
        """
        cdef bytes frame
        cdef Orphan orphan
        cdef int shard = 0
        shards &= self.mesh.up
        while shards:
            if shards & 1:
                self.last_id += 1
                frame = b"QASK %d\r\n" % self.last_id
                if out_append(self.mesh.fanout.links[shard], frame, len(frame)):
                    orphan = Orphan()
                    orphan.id = self.last_id
                    orphan.origin = origin
                    orphan.shard = shard
                    self.pending[orphan.id] = orphan
                    origin.orphans.add(orphan.id)
            shards >>= 1
            shard += 1
        return 0

    cdef int answer(self, OriginLink origin, Sublist sublist, Token subject, Entry *entry, Publish *message,
                    Outcome *outcome) except -1:
        cdef Orphan orphan
        if unlikely(self.must_wait(subject.at, subject.size)) \
                and not (self.mesh.fanout.trace is not None and self.mesh.fanout.trace.is_only):
            orphan = Orphan()
            self.last_id += 1
            orphan.id = self.last_id
            orphan.origin = origin
            orphan.shard = -1
            orphan.is_answer = True
            orphan.keep(sublist, subject, Token(NULL, 0), message)
            self.n_kept_back += self.unknown() == 0
            self.pending[orphan.id] = orphan
            origin.orphans.add(orphan.id)
            return 0
        self.mesh.fanout.gate.leave(sublist, entry, message, None, outcome)
        return self.ask(origin, outcome.touched)

    cdef uint64_t unknown(self) noexcept:
        """Siblings that live and have clients whose interest is not all known here."""
        return self.mesh.out_of_step & ~(self.mesh.newcomers | self.mesh.told_all)

    cdef bint must_wait(self, const uint8_t *subject, size_t size) except -1:
        """Who asked may be at a sibling whose interest is not known; or the shard that knows who asked is leaving, and
        has not said it yet."""
        return self.unknown() or (
            len(self.mesh.owners) and size > PREFIX_BYTES
            and self.mesh.owners.get(subject[:PREFIX_BYTES]) == OWNER_AWAITED)

    cdef bint keeps_answers(self, bytes prefix) except -1:
        cdef Orphan orphan
        for item in self.pending.values():
            orphan = <Orphan>item
            if orphan.is_answer and orphan.subject.startswith(prefix):
                return True
        return False

    cdef int keep_answer(self, Sublist sublist, bytes subject, Publish *message, object client) except -1:
        cdef Orphan orphan = Orphan()
        cdef bytes padded = subject + bytes(SLACK)
        self.last_id += 1
        orphan.id = self.last_id
        orphan.origin = NoLink()
        orphan.shard = -1
        orphan.is_answer = True
        orphan.keep(sublist, Token(<const uint8_t *>padded, len(subject)), Token(NULL, 0), message)
        self.pending[orphan.id] = orphan
        self.n_kept_back += 1
        if client is not None:
            orphan.client = client
            orphan.client.holds |= HOLD_REPLY
        return 0

    cdef int publish_kept(self, Orphan orphan) except -1:
        """Its publisher is here: its PONG waits for what the answer causes."""
        cdef ClientConnection client = orphan.client
        cdef Publish message
        cdef Outcome outcome
        cdef const uint8_t *subject = orphan.subject
        cdef Entry *entry = orphan.sublist.find(subject, len(orphan.subject),
                                                hash_bytes(subject, len(orphan.subject), orphan.sublist.seed))
        del self.pending[orphan.id]
        orphan.fill(&message)
        no_outcome(&outcome)
        if entry != NULL and entry.crosses:
            self.mesh.fanout.gate.leave(orphan.sublist, entry, &message, client, &outcome)
        if client is not None and client.out.close_reason == CLOSE_NONE:
            client.published |= outcome.touched
            client.release(HOLD_REPLY)
        return 0

    cdef int answer_now(self, Orphan orphan) except -1:
        cdef Publish message
        cdef Outcome outcome
        cdef uint64_t before = self.last_id
        cdef const uint8_t *subject = orphan.subject
        cdef Entry *entry = orphan.sublist.find(subject, len(orphan.subject),
                                                hash_bytes(subject, len(orphan.subject), orphan.sublist.seed))
        orphan.fill(&message)
        no_outcome(&outcome)
        if entry != NULL and entry.crosses:
            self.answer(orphan.origin, orphan.sublist, Token(subject, len(orphan.subject)), entry, &message,
                        &outcome)
            orphan.origin.wait_for_more(orphan.id, before, self.last_id)
        return self.conclude(orphan, True)

    cdef int settled(self, uint64_t id, bint is_taken) except -1:
        cdef Orphan orphan = self.pending.get(id)
        cdef Publish message
        cdef Fate fate = FATE_TAKEN if is_taken else FATE_NOBODY
        if orphan is None:
            return 0
        if not is_taken and orphan.tail is not None:
            orphan.fill(&message)
            fate = self.try_place(orphan, orphan.sublist, Token(orphan.subject, len(orphan.subject)),
                                  Token(orphan.queue, len(orphan.queue)), &message, False)
        return 0 if fate == FATE_PENDING else self.conclude(orphan, fate == FATE_TAKEN)

    cdef int conclude(self, Orphan orphan, bint is_taken) except -1:
        if not is_taken and self.give_back(orphan):
            return 0   # settled() follows
        del self.pending[orphan.id]
        if orphan.former is not None:
            orphan.former.n_promised -= 1
            self.fence.look_at(orphan.former)
        if orphan.id_there and not orphan.origin.is_closing:
            orphan.origin.acknowledge(orphan.id_there, is_taken)
        elif not is_taken:
            self.n_lost += 1
            if orphan.request is not None:
                orphan.request[0] -= 1
            if orphan.request is not None and orphan.request[0] == 0 and not orphan.origin.is_closing:
                orphan.origin.tell_nobody(orphan.request[1], orphan.sublist, Token(orphan.subject, len(orphan.subject)),
                                          Token(orphan.reply, len(orphan.reply)))
        if not orphan.origin.is_closing:
            orphan.origin.on_settled(orphan.id)
        return 0

    cdef int on_step(self) except -1:
        cdef Orphan orphan
        cdef Publish message
        cdef Fate fate
        for item in list(self.pending.values()):
            orphan = <Orphan>item
            if orphan.shard >= 0:
                continue
            if orphan.is_answer:
                if not self.must_wait(orphan.subject, len(orphan.subject)):
                    if isinstance(orphan.origin, NoLink):
                        self.publish_kept(orphan)
                    else:
                        self.answer_now(orphan)
                continue
            orphan.fill(&message)
            fate = self.try_place(orphan, orphan.sublist, Token(orphan.subject, len(orphan.subject)),
                                  Token(orphan.queue, len(orphan.queue)), &message, True)
            if fate != FATE_PENDING:
                self.conclude(orphan, fate == FATE_TAKEN)
        if self.mesh.prefixes is not None:
            self.mesh.prefixes.on_step()
        return 0

    def look_again(self):
        """A sibling whose link broke is dead (MeshFence.gone): what waited for its next link goes on."""
        self.on_step()

    cdef int on_part(self, int shard) except -1:
        """What a dead sibling was sent counts as arrived, as a message to a client that has just gone does."""
        cdef Orphan orphan
        for item in list(self.pending.values()):
            orphan = <Orphan>item
            if orphan.shard == shard:
                self.conclude(orphan, True)
        return 0
