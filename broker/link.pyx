# cython: language_level=3, boundscheck=False, wraparound=False
"""One sibling's frames, and what they cause.

A message that came over a link goes to local subscriptions only (one hop); the one exception is a queue message
whose group has no member here any more: Reroutes sends it on to a shard that has one, and where nobody has, gives it
to a member that has just left. The sibling's PING is not answered before those have arrived. Whatever is no frame of
ours ends the link; its session says so.
"""

from libc.string cimport memcpy

from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_PARSE_ERROR, out_append, out_call, out_init, out_mark_dirty,
    out_pending, out_release, out_reserve)
from gnatswarm.broker.repeat cimport repeat_remember, repeat_run
from gnatswarm.broker.routewire cimport (
    ROUTE_ASK, ROUTE_CONNECT, ROUTE_INFO, ROUTE_MORE, ROUTE_MSG, ROUTE_PING, ROUTE_PONG, ROUTE_QUEUE_ACK,
    ROUTE_QUEUE_MSG, ROUTE_QUEUE_NAK, ROUTE_SLOW, ROUTE_SUB, ROUTE_UNSUB, RouteOpKind, parse_route_op)
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.fanout cimport ORIGIN_SIBLING, ORIGIN_SIBLING_ACCOUNT, Outcome, no_outcome, write_tail_head
from gnatswarm.broker.entry cimport choice_named, extras_of
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, unlikely


cdef enum:
    # A publisher held for a slow subscriber elsewhere gets one run through every 100 ms (the reactor's STALL_US). As
    # long as that finds the subscriber behind, SLOW is said again before the last one has worn off.
    SLOW_US = 300000
    SLOW_AGAIN_US = 50000


cdef class SiblingLink(Peer):
    """The engine's side of one link; `session` is its Python side."""

    def __cinit__(self, Mesh mesh not None, MeshFence fence not None, Reroutes reroutes not None):
        self.mesh = mesh
        self.fanout = mesh.fanout
        self.fence = fence
        self.reroutes = reroutes
        self.shard = -1
        self.orphans = set()
        self.pings_due = []
        out_init(&self.out, self.fanout.box, 0)
        self.out.peer = <void *>self

    cdef int broken(self, str why) except -1:
        self.close(CLOSE_PARSE_ERROR)
        self.session.on_broken(why)
        return 0

    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + size
        cdef Publish message
        cdef Outcome outcome
        cdef uint32_t n = 0
        cdef Py_ssize_t done
        while p < end:
            if self.sublist is not None:
                n = repeat_run(&self.repeat, self.sublist, p, end, ORIGIN_SIBLING, &message)
            if likely(n):
                p += n * message.stride
                self.in_msgs += n
                self.in_bytes += <uint64_t>n * message.size
                no_outcome(&outcome)
                self.fanout.deliver_here(self.sublist, self.repeat.entry, &message, True, NULL, 0, &outcome)
                self.deliveries += outcome.deliveries
                if unlikely(outcome.stalls):
                    self.tell_slow(self.sublist, self.repeat.entry)
            else:
                done = self.operate(p, end - p, whole)
                if done == 0:
                    break
                p += done
            if unlikely(self.holds or self.is_closing):
                break
        return p - data

    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef RouteOp op
        cdef RouteOpKind kind = parse_route_op(data, size, &op)
        if kind == ROUTE_MORE:
            return 0
        if not self.is_joined and kind != ROUTE_INFO and kind != ROUTE_CONNECT:
            self.broken("the first frames must be INFO and CONNECT")
        elif kind == ROUTE_MSG or kind == ROUTE_QUEUE_MSG:
            return self.message(data, size, &op, whole)
        elif kind == ROUTE_SUB or kind == ROUTE_UNSUB:
            self.interest(&op, kind == ROUTE_SUB)
        elif kind == ROUTE_PING:
            self.on_ping()
        elif kind == ROUTE_PONG:
            self.heard_pong = True
            self.fence.on_pong(self.shard)
            self.check_synchronised()
        elif kind == ROUTE_SLOW:
            self.on_slow(&op)
        elif kind == ROUTE_QUEUE_ACK:
            self.reroutes.settled(op.id, True)
        elif kind == ROUTE_QUEUE_NAK:
            self.reroutes.settled(op.id, False)
        elif kind == ROUTE_ASK:
            self.acknowledge(op.id, True)
        elif kind == ROUTE_INFO:
            self.session.on_info(op.argument.at[:op.argument.size])
        elif kind == ROUTE_CONNECT:
            self.session.on_connect(op.argument.at[:op.argument.size])
        else:
            self.broken("no frame of a sibling: " + repr(data[:min(size, 40)]))
        return size if self.is_closing else op.line_size

    cdef int interest(self, RouteOp *op, bint wanted) except -1:
        cdef Sublist sublist = self.mesh.sublist_of(op.account.at, op.account.size)
        if subject_kind(op.subject.at, op.subject.size) == SUBJECT_BAD or op.subject.size > 65000:
            return self.broken("bad subject in RS")
        if op.n_queues:
            sublist.set_remote_queue(self.shard, op.subject.at, op.subject.size, op.queues[0].at, op.queues[0].size,
                                     op.members if wanted else 0)
        else:
            sublist.set_remote(self.shard, op.subject.at, op.subject.size, wanted)
        return 0

    cdef Py_ssize_t message(self, const uint8_t *data, size_t size, RouteOp *op, Blob *whole) except -1:
        cdef size_t total = op.line_size + op.size + 2
        cdef const uint8_t *tail = op.subject.at + op.subject.size
        cdef Publish message
        cdef Sublist sublist = self.sublist
        cdef Entry *entry
        cdef uint8_t *to
        cdef size_t head
        cdef uint64_t orphans
        cdef Outcome outcome
        cdef bint is_answer
        cdef int queue
        cdef Fate fate
        if size < total:
            self.needs = total
            return 0
        if data[total - 2] != c'\r' or data[total - 1] != c'\n':
            self.broken("a payload without its end")
            return size
        if sublist is None or op.account.size != <size_t>len(sublist.account) \
                or op.account.at[:op.account.size] != sublist.account:
            sublist = self.mesh.sublist_of(op.account.at, op.account.size)
            self.sublist = sublist
            self.repeat.line_size = 0
        message.origin = ORIGIN_SIBLING_ACCOUNT if op.is_across else ORIGIN_SIBLING
        message.reply = op.reply
        message.header_size = op.header_size
        message.size = op.size
        message.payload = data + op.line_size
        message.blob = whole
        message.count = 1
        message.stride = total
        if likely(op.is_plain):
            message.tail = tail
            message.tail_size = total - (tail - data)
        else:
            to = self.fanout.scratch_for(op.reply.size + 32 + op.size + 2)
            if to == NULL:
                self.broken("no memory for a message")
                return size
            head = write_tail_head(to, op.reply, op.header_size != 0, op.header_size, op.size)
            memcpy(to + head, message.payload, op.size + 2)
            message.tail = to
            message.tail_size = head + op.size + 2
            message.payload = to + head
            message.blob = NULL
        entry = sublist.find(op.subject.at, op.subject.size,
                             hash_bytes(op.subject.at, op.subject.size, sublist.seed))
        if entry == NULL:
            self.broken("no memory for a match")
            return size
        is_answer = unlikely(entry.crosses) and op.kind == ROUTE_MSG and extras_of(entry).is_reply
        if op.is_plain and whole == NULL and not is_answer and not op.is_across:
            repeat_remember(&self.repeat, sublist, entry, data, op.line_size, &message)
        self.in_msgs += 1
        self.in_bytes += op.size
        no_outcome(&outcome)
        if unlikely(is_answer):   # (requests were seen to where they were published)
            self.fanout.gate.leave(sublist, entry, &message, 0, &outcome)
            self.reroutes.ask(self, outcome.touched)
            entry = sublist.find(op.subject.at, op.subject.size,
                                 hash_bytes(op.subject.at, op.subject.size, sublist.seed))
            if entry == NULL:
                self.broken("no memory for a match")
                return size
        orphans = self.fanout.deliver_here(sublist, entry, &message, op.kind == ROUTE_MSG, op.queues, op.n_queues,
                                           &outcome)
        message.origin = ORIGIN_SIBLING
        if unlikely(outcome.stalls):
            self.tell_slow(sublist, entry)
        if op.kind == ROUTE_MSG:
            op.id = op.visited = 0
        if unlikely(op.id != 0):   # one queue, and its sender waits to hear
            fate = FATE_TAKEN
            if orphans:
                fate = self.reroutes.place(self, sublist, op.subject, op.queues[0], &message, op.id, op.visited)
                outcome.deliveries += fate == FATE_TAKEN   # (by somebody here)
            if fate != FATE_PENDING:
                self.acknowledge(op.id, fate == FATE_TAKEN)
        else:
            queue = 0
            while unlikely(orphans != 0):
                if orphans & 1:
                    fate = self.reroutes.place(self, sublist, op.subject, op.queues[queue], &message, 0, op.visited)
                    outcome.deliveries += fate == FATE_TAKEN   # (by somebody here)
                    if fate == FATE_NOBODY:
                        self.reroutes.n_lost += 1
                orphans >>= 1
                queue += 1
        self.deliveries += outcome.deliveries
        return total

    cdef void tell_slow(self, Sublist sublist, Entry *entry) noexcept:
        """A subscriber here is behind. The link itself never waits, it has others to serve: the sibling lets the
        publishers of this subject wait."""
        cdef const uint8_t *account = sublist.account
        cdef size_t account_size = len(sublist.account)
        cdef uint64_t now = self.out.box.now_us
        cdef uint8_t *to
        if now - entry.slow_told_us >= SLOW_AGAIN_US:
            entry.slow_told_us = now
            entry.slow_told_to = 0
        elif (entry.slow_told_to >> self.shard) & 1:
            return
        entry.slow_told_to |= <uint64_t>1 << self.shard
        to = out_reserve(&self.out, account_size + entry.subject_size + 8)
        if to != NULL:
            memcpy(to, b'SLOW ', 5)
            memcpy(to + 5, account, account_size)
            to[5 + account_size] = c' '
            memcpy(to + 6 + account_size, entry.text, entry.subject_size)
            memcpy(to + 6 + account_size + entry.subject_size, b'\r\n', 2)
            self.out.pos += 8 + account_size + entry.subject_size
            out_mark_dirty(&self.out)

    cdef int on_slow(self, RouteOp *op) except -1:
        """A subscriber over there is behind: who publishes to it here waits, until it is not said again."""
        cdef Sublist sublist = self.mesh.sublist_of(op.account.at, op.account.size)
        cdef Entry *entry
        if sublist is None:
            return self.broken("unknown account " + repr(op.account.at[:op.account.size]))
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
        """Answered when everything that came before it has arrived: at once, but for messages being sent on."""
        if self.orphans:
            self.pings_due.append(set(self.orphans))
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
        """A queue message of this sibling that was sent on has arrived, or is lost."""
        self.orphans.discard(id)
        for ids in self.pings_due:
            ids.discard(id)
        while self.pings_due and not self.pings_due[0]:
            self.pings_due.pop(0)
            self.say_pong()
        return 0

    cdef int check_synchronised(self) except -1:
        if not self.is_synchronised and self.heard_ping and self.heard_pong:
            self.is_synchronised = True
            self.mesh.out_of_step &= ~(<uint64_t>1 << self.shard)
            self.reroutes.on_step()
            self.session.on_synchronised()
        return 0

    # ---- for the session and the owner of the socket

    def join(self, int shard):
        """INFO and CONNECT are done: from here on it carries interest and messages."""
        self.shard = shard
        self.is_joined = True
        self.mesh.join(shard, &self.out)
        self.fence.ping(shard)

    def leave(self, *, bint is_broken=False):
        """The socket is gone: what the sibling wanted counts no more. Twice is harmless.

        is_broken: it may live, and fences that need it wait for its next link (MeshFence.doubt or gone follows).
        """
        if self.out.close_reason == CLOSE_NONE:
            self.out.close_reason = CLOSE_CLIENT_CLOSED
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
        out_release(&self.out)
        self.forget_input()

    def send(self, bytes data not None):
        """Queues bytes as they are."""
        out_append(&self.out, data, len(data))

    def end(self, str why not None):
        """Ends the link; the session hears why."""
        self.broken(why)
        out_call(&self.out)

    @property
    def pending_bytes(self) -> int:
        return out_pending(&self.out)

    @property
    def is_behind(self) -> bool:
        """Whether publishers that feed it are to wait."""
        return self.out.is_behind

    @property
    def out_msgs(self) -> int:
        return self.out.msgs

    @property
    def out_bytes(self) -> int:
        return self.out.payload_bytes


cdef uint64_t members_elsewhere(Fanout fanout, const Entry *entry, const Choice *choice, uint64_t visited) noexcept:
    """How many members a group has on siblings that are not in a mask."""
    cdef uint64_t members = 0
    cdef uint32_t w
    for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
        if not (visited >> entry.weights[w].shard) & 1 and fanout.links[entry.weights[w].shard] != NULL:
            members += entry.weights[w].members
    return members


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
        self.tail = message.tail[:message.tail_size] + bytes(SLACK)
        return 0

    cdef void fill(self, Publish *message) noexcept:
        cdef const uint8_t *tail = self.tail
        cdef const uint8_t *reply = self.reply
        message.origin = ORIGIN_SIBLING
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

    cdef Fate place(self, SiblingLink origin, Sublist sublist, Token subject, Token queue, Publish *message,
                    uint64_t id_there, uint64_t visited) except *:
        cdef Orphan orphan = Orphan()
        cdef Fate fate
        self.last_id += 1
        orphan.id = self.last_id
        orphan.origin = origin
        orphan.id_there = id_there
        orphan.visited = visited
        fate = self.try_place(orphan, sublist, subject, queue, message, True)
        if fate == FATE_PENDING:
            self.pending[orphan.id] = orphan
            origin.orphans.add(orphan.id)
        return fate

    cdef Fate try_place(self, Orphan orphan, Sublist sublist, Token subject, Token queue, Publish *message,
                        bint may_leave) except *:
        """`may_leave`: it was not sent away yet, or the sibling that it was sent to has a new link."""
        cdef Fanout fanout = self.mesh.fanout
        cdef Entry *entry = sublist.find(subject.at, subject.size,
                                         hash_bytes(subject.at, subject.size, sublist.seed))
        cdef Choice *choice = NULL if entry == NULL else choice_named(entry, queue)
        if choice != NULL and choice.n_local and fanout.choose_here(entry, choice, fanout.pick, message, NULL):
            self.count_delivery(sublist, subject, message)   # somebody has come meanwhile
            return FATE_TAKEN
        if may_leave:
            orphan.shard = -1
            # Out of step: a sibling lives whose members we do not know.
            if choice != NULL and self.send_away(orphan, sublist, entry, choice, queue, message) \
                    or self.mesh.out_of_step:
                if orphan.former is None:
                    orphan.former = self.mesh.formers.find(sublist, subject, queue)
                    if orphan.former is not None:   # which stays for the case that nobody else takes it
                        orphan.former.n_promised += 1
                if orphan.tail is None and (orphan.former is not None or orphan.shard < 0):
                    orphan.keep(sublist, subject, queue, message)
                return FATE_PENDING
        return FATE_TAKEN if self.give_to_former(sublist, subject, queue, message) else FATE_NOBODY

    cdef bint send_away(self, Orphan orphan, Sublist sublist, Entry *entry, Choice *choice, Token queue,
                        Publish *message) except *:
        """To a sibling with current members; False: there is none."""
        cdef Fanout fanout = self.mesh.fanout
        cdef uint64_t visited = orphan.visited | <uint64_t>1 << self.mesh.shard
        cdef uint64_t members = members_elsewhere(fanout, entry, choice, visited)
        cdef uint64_t pick
        cdef uint32_t w, shard = 0
        if members == 0 and not choice.keeps_out:
            # Who was visited and has a member now got it since: a sibling says RS- before it sends a message on. (Where
            # our word of it is old, the message comes back, and the word before it.) But where members may not have it
            # by their permissions, siblings go on believing in them: who has such members asks nobody twice, or the
            # message would go round for ever.
            visited = <uint64_t>1 << self.mesh.shard
            members = members_elsewhere(fanout, entry, choice, visited)
        if members == 0:
            return False
        pick = sublist.random() % members
        for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
            shard = entry.weights[w].shard
            if not (visited >> shard) & 1 and fanout.links[shard] != NULL:
                if pick < entry.weights[w].members:
                    break
                pick -= entry.weights[w].members
        if not fanout.send_queued(fanout.links[shard], entry, &queue, 1, message, True, orphan.id, visited):
            return False
        entry.counts.link_out += 1
        orphan.shard = shard
        self.n_sent_on += 1
        return True

    cdef bint give_to_former(self, Sublist sublist, Token subject, Token queue, Publish *message) noexcept:
        """To a member that has unsubscribed, and that siblings took for one when they sent this."""
        cdef Fanout fanout = self.mesh.fanout
        cdef Entry *entry
        cdef Choice *choice
        if sublist.former is None or sublist.former.n_subs == 0:
            return False
        entry = sublist.former.find(subject.at, subject.size,
                                    hash_bytes(subject.at, subject.size, sublist.former.seed))
        choice = NULL if entry == NULL else choice_named(entry, queue)
        if choice == NULL or not fanout.choose_here(entry, choice, fanout.pick, message, NULL):
            return False
        fanout.pick += 1
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

    cdef int ask(self, SiblingLink origin, uint64_t shards) except -1:
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

    cdef int settled(self, uint64_t id, bint is_taken) except -1:
        cdef Orphan orphan = self.pending.get(id)
        cdef Publish message
        if orphan is None:
            return 0
        if not is_taken and orphan.tail is not None:
            orphan.fill(&message)
            is_taken = FATE_TAKEN == self.try_place(
                orphan, orphan.sublist, Token(orphan.subject, len(orphan.subject)),
                Token(orphan.queue, len(orphan.queue)), &message, False)
        return self.conclude(orphan, is_taken)

    cdef int conclude(self, Orphan orphan, bint is_taken) except -1:
        del self.pending[orphan.id]
        if orphan.former is not None:
            orphan.former.n_promised -= 1
            self.fence.look_at(orphan.former)
        if orphan.id_there and not orphan.origin.is_closing:
            orphan.origin.acknowledge(orphan.id_there, is_taken)
        elif not is_taken:
            self.n_lost += 1
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
            orphan.fill(&message)
            fate = self.try_place(orphan, orphan.sublist, Token(orphan.subject, len(orphan.subject)),
                                  Token(orphan.queue, len(orphan.queue)), &message, True)
            if fate != FATE_PENDING:
                self.conclude(orphan, fate == FATE_TAKEN)
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
