# cython: language_level=3, boundscheck=False, wraparound=False
"""One sibling's frames, and what they cause.

A message that came over a link goes to local subscriptions only (one hop). The one exception is a queue message
whose group has no member here any more: broker.reroutes finds another place for it, and the sibling's PING gets no PONG
before that message has arrived. Bytes that are no valid frame end the link, and its session is told.
"""

from libc.string cimport memcpy

from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_PARSE_ERROR, out_append, out_call, out_init, out_mark_dirty,
    out_pending, out_release, out_reserve)
from gnatswarm.broker.repeat cimport repeat_remember, repeat_run
from gnatswarm.broker.reroutes cimport FATE_NOBODY, FATE_PENDING, FATE_TAKEN, Fate
from gnatswarm.broker.routewire cimport (
    ROUTE_ASK, ROUTE_CONNECT, ROUTE_INFO, ROUTE_MORE, ROUTE_MSG, ROUTE_PING, ROUTE_PONG, ROUTE_QUEUE_ACK,
    ROUTE_QUEUE_MSG, ROUTE_QUEUE_NAK, ROUTE_SLOW, ROUTE_SUB, ROUTE_UNSUB, RouteOpKind, parse_route_op)
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.fanout cimport (
    ORIGIN_SIBLING, ORIGIN_SIBLING_ACCOUNT, Outcome, Publish, no_outcome, write_tail_head)
from gnatswarm.broker.entry cimport extras_of
from gnatswarm.broker.word cimport hash_bytes, likely, unlikely


cdef enum:
    # A publisher held for a slow subscriber elsewhere may send one run every 100 ms (the reactor's STALL_US). While
    # such runs find the subscriber behind, SLOW is sent again before the last one ends.
    SLOW_US = 300000
    SLOW_AGAIN_US = 50000


cdef class SiblingLink(OriginLink):
    """The engine's side of one link; `session` is its Python side."""

    def __cinit__(self, Mesh mesh not None, MeshFence fence not None, Reroutes reroutes not None,
                  session not None):
        self.session = session
        self.mesh = mesh
        self.fanout = mesh.fanout
        self.fence = fence
        self.reroutes = reroutes
        self.shard = -1
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
        cdef bint is_reply
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
        is_reply = unlikely(entry.crosses) and op.kind == ROUTE_MSG and extras_of(entry).is_reply
        if op.is_plain and whole == NULL and not is_reply and not op.is_across:
            repeat_remember(&self.repeat, sublist, entry, data, op.line_size, &message)
        self.in_msgs += 1
        self.in_bytes += op.size
        no_outcome(&outcome)
        if unlikely(is_reply):   # (requests were handled where they were published)
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
        if unlikely(op.id != 0):   # one queue, and its sender waits for QACK or QNAK
            fate = FATE_TAKEN
            if orphans:
                fate = self.reroutes.place(self, sublist, op.subject, op.queues[0], &message, op.id, op.visited)
                outcome.deliveries += fate == FATE_TAKEN   # (to a member here)
            if fate != FATE_PENDING:
                self.acknowledge(op.id, fate == FATE_TAKEN)
        else:
            queue = 0
            while unlikely(orphans != 0):
                if orphans & 1:
                    fate = self.reroutes.place(self, sublist, op.subject, op.queues[queue], &message, 0, op.visited)
                    outcome.deliveries += fate == FATE_TAKEN   # (to a member here)
                    if fate == FATE_NOBODY:
                        self.reroutes.n_lost += 1
                orphans >>= 1
                queue += 1
        self.deliveries += outcome.deliveries
        return total

    cdef void tell_slow(self, Sublist sublist, Entry *entry) noexcept:
        """A subscriber here is behind. The link never waits, because it serves others too: the sibling makes the
        publishers of this subject wait."""
        cdef const uint8_t *account = sublist.account
        cdef size_t account_size = len(sublist.account)
        cdef uint64_t now = self.out.box.now_us
        cdef uint8_t *to
        if now - entry.slow_told_us < SLOW_AGAIN_US:
            return
        entry.slow_told_us = now
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
        """A subscriber on the sibling is behind: publishers to this subject wait, until SLOW_US after the last SLOW."""
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
        """Reply at once, or when the pending queue messages that came before it have arrived."""
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
        """A pending queue message of this sibling has arrived, or is lost: send each PONG that waited for it."""
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
        """INFO and CONNECT are done: the link carries interest and messages from now on."""
        self.shard = shard
        self.is_joined = True
        self.mesh.join(shard, &self.out)
        self.fence.ping(shard)

    def leave(self, *, bint is_broken=False):
        """The socket is closed: drop the sibling's interest. A second call does nothing.

        is_broken: the sibling may live, so fences wait for its next link; MeshFence.doubt() or gone() follows.
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
        """Ends the link; the session is told why."""
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
