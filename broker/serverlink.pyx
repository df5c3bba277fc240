# cython: language_level=3, boundscheck=False, wraparound=False
"""One connection to another NATS server, a leaf node's or a route, and what its frames cause.

Messages and interest go through the exchange; INFO, CONNECT, errors and pings go to the session, in Python. The other
end is another program: frames that are none end the connection, and the session is told why.
"""

from gnatswarm.broker.entry cimport Entry, extras_of
from gnatswarm.broker.exchange cimport (
    ANSWERERS, PEER_HUB, PEER_LEAF, PEER_ROUTE, PeerKind, is_loop_subject, is_of_cluster, origin_of)
from gnatswarm.broker.fanout cimport (
    ANOTHER_BROKER, MOST_QUEUES, ORIGIN_CLIENT, ORIGIN_SIBLING, Outcome, Publish, fits_line, no_outcome)
from gnatswarm.broker.interest cimport SECOND_CHOICE, Node, QueueName
from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_MAXIMUM_PAYLOAD_EXCEEDED, CLOSE_NONE, CLOSE_PARSE_ERROR, CLOSE_PROTOCOL_VIOLATION,
    CLOSE_ROUTE_REMOVED, CloseReason, OutBuf, iovec, out_append, out_call, out_init, out_pending, out_release,
    outbox_release)
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.sublist cimport MOST_MATCHING, match_steps
from gnatswarm.broker.peer cimport HOLD_LOGIN, HOLD_REST, HOLD_STALL
from gnatswarm.broker.repeat cimport repeat_remember, repeat_run
from gnatswarm.broker.reroutes cimport CAME_IN, REFUSED
from gnatswarm.broker.serverwire cimport (
    DIALECT_LEAF, DIALECT_ROUTE, MOST_SERVER_QUEUES, SERVER_BAD, SERVER_CONNECT, SERVER_ERR, SERVER_IGNORED,
    SERVER_INFO, SERVER_MORE, SERVER_MSG, SERVER_PING, SERVER_PONG, SERVER_SUB, SERVER_TOO_LONG, SERVER_UNSUB,
    ServerOpKind, parse_server_op)
from gnatswarm.broker.subject cimport SUBJECT_BAD, SUBJECT_LITERAL, subject_kind
from gnatswarm.broker.table cimport MOST_KEY_BYTES
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, unlikely

from gnatswarm.broker.bounds import LARGEST_FRAME_PAYLOAD_BYTES

cdef enum:
    # Pending bytes past which publishers wait: half of the default max_pending, as in nats-server. They are on other
    # shards, and wait a tenth of a second at a time: with the mark of a link, a hub got a third of what it can take.
    SERVER_STALL_BYTES = 33554432
    MOST_MEMBERS = 999_999_999   # of a group
    # Of a server that tells much interest so many bytes are read at a time, until a read is mostly something else: what
    # passes to and from others does not wait for the milliseconds that a whole read of interest takes. Where it rests
    # in between, clients of the shards do not either: a million keeps those busy for half a second.
    TOLD_BYTES = 16384
    TOLD_BYTES_BETWEEN_RESTS = 1024
    # INFO and -ERR are the session's, in Python, at 5 to 15 µs each, as is what a leaf node may not publish; and who
    # waits for a PONG is noted, 1 µs each. Behind so many in one read others have a turn.
    MOST_WORDS_AT_ONCE = 200
    # Interest that a member has told in accounts that are not known here.
    MOST_UNTAKEN_BYTES = 16777216
    MOST_UNTAKEN_ACCOUNTS = 4096
    MOST_UNTAKEN_NAME_BYTES = 1024   # of one of them: those of which too much was told are still known by name
    UNTAKEN_LINE_BYTES = 300   # around a line, …
    UNTAKEN_COPIES = 2         # … and the words of its key are kept beside it

# In the place of more accounts than that, or of one with a longer name.
cdef bytes ANY_ACCOUNT = b""


cdef int distinct(Token *queues, int n) except -1:
    """Leaves out groups that stand twice, each of which gets the message once. Returns how many are left."""
    cdef set seen = set()
    cdef int i, left = 0
    for i in range(n):
        name = queues[i].at[:queues[i].size]
        if name not in seen:
            seen.add(name)
            queues[left] = queues[i]
            left += 1
    return left


cdef bytearray groups_of(const Entry *entry, ServerOp *op):
    """Has it name all groups of this match. The result keeps the bytes."""
    cdef bytearray room = bytearray(entry.n_choices * sizeof(Token))
    cdef Token *queues = <Token *><char *>room
    cdef uint32_t i
    for i in range(entry.n_choices):
        queues[i].at = <const uint8_t *>entry.choices[i].name + sizeof(QueueName)
        queues[i].size = entry.choices[i].name.key.size
    op.queues = queues
    op.n_queues = <int>entry.n_choices
    return room


cdef bint is_too_long(size_t account_size, const ServerOp *op) noexcept nogil:
    """Whether frames to others have no room for it: each part as a sibling's frames have it, so all of it that a
    gnatswarm sends."""
    cdef int i
    for i in range(op.n_queues):
        if op.queues[i].size > MOST_KEY_BYTES:
            return True
    return not fits_line(account_size, op.subject.size, op.reply.size)


cdef bytes only(dict held):
    """The one origin of these members; b"": some are of no leaf node, or of another cluster's."""
    return next(iter(held)) if len(held) == 1 else b""


cdef class DuePong(FencedBatch):
    """A PING of another server: its PONG says that all shards here know what came before it."""

    cdef int on_fenced(self) except -1:
        self.link.acked_msgs = self.in_msgs
        if self.link.is_in_doubt and (self.link.is_fenced or self.was_fenced):   # (a reload may have ended that)
            self.link.close(CLOSE_ROUTE_REMOVED)
            out_call(&self.link.out)
            return 0
        self.link.is_in_doubt = False   # (it may say later that it is fenced)
        if not self.link.is_silent:
            self.link.append(b'PONG\r\n', 6)
        return 0


cdef class ServerLink(Peer):
    """The engine's side of one connection; `session` is its Python side."""

    def __cinit__(self, Exchange exchange not None, session not None, *, bint is_route):
        self.exchange = exchange
        self.mesh = exchange.mesh
        self.fanout = exchange.fanout
        self.session = session
        self.dialect = DIALECT_ROUTE if is_route else DIALECT_LEAF
        self.slot = -1
        self.loop_subject = self.origin = b""
        self.only_queues_as = ""
        self.pongs_due = []
        self.untaken = {}
        self.max_payload_bytes = LARGEST_FRAME_PAYLOAD_BYTES
        out_init(&self.out, self.fanout.box, 0)
        self.out.peer = <void *>self
        out_init(&self.behind, self.fanout.box, 0)
        self.behind.is_blocked = 1   # (it is never sent from there)
        self.out.takes_headers = self.behind.takes_headers = True

    def __dealloc__(self):
        if self.behind.box != NULL:
            out_release(&self.behind)
            outbox_release(self.behind.box)

    cdef void close(self, CloseReason reason) noexcept:
        if self.slot >= 0 and not self.is_closing:
            self.exchange.end_telling(self.slot)
        Peer.close(self, reason)

    cdef void append(self, const uint8_t *data, size_t n) noexcept:
        cdef OutBuf *out = self.exchange.rear(self.slot) if self.slot >= 0 else &self.out
        if out != NULL:
            out_append(out, data, n)
            if out != &self.out:
                self.exchange.check_behind(self.slot)

    cdef int broken(self, str why) except -1:
        self.session.on_broken(why)   # (it may have a last word)
        self.close(CLOSE_PARSE_ERROR)
        return 0

    cdef bint on_failure(self) noexcept:
        self.exchange.origin = b""
        self.exchange.onward = ~<uint64_t>0
        self.exchange.split_before = None
        return True

    cdef int read_parts(self, uint8_t *shared, size_t room, iovec *parts) noexcept:
        if unlikely(self.much_told != 0):
            room = min(room, self.partial_size + (
                TOLD_BYTES_BETWEEN_RESTS if self.may_rest() else TOLD_BYTES))
        return Peer.read_parts(self, shared, room, parts)

    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + size
        cdef Publish message
        cdef Outcome outcome
        cdef uint64_t most_steps = match_steps + MOST_MATCHING
        cdef uint32_t n = 0
        cdef Py_ssize_t done
        self.active_us = self.out.box.now_us
        self.exchange.origin = self.origin
        self.fanout.from_shard = ANOTHER_BROKER
        self.told_bytes = 0
        self.n_words = 0
        while p < end:
            if self.sublist is not None:
                n = repeat_run(&self.repeat, self.sublist, self.fanout, p, end, ORIGIN_SIBLING, &message)
            if likely(n):
                p += n * message.stride
                self.in_lines += n
                self.in_msgs += n
                self.in_bytes += <uint64_t>n * message.size
                self.exchange.in_msgs += n
                self.exchange.in_bytes += <uint64_t>n * message.size
                no_outcome(&outcome)
                self.exchange.forward(self.sublist, self.repeat.entry, &message, self.exchange.reach(self.slot), True,
                                      NULL, 0, &outcome)
                if unlikely(self.exchange.is_link_behind):
                    self.hold()
            else:
                done = self.operate(p, end - p, whole)
                if done == 0:
                    break
                p += done
                if unlikely(match_steps > most_steps or self.n_words >= <uint32_t>MOST_WORDS_AT_ONCE):
                    self.rest()
            if unlikely(self.holds or self.is_closing):
                break
        self.exchange.origin = b""
        if unlikely(self.told_bytes > self.exchange.much_told_bytes or self.much_told != 0):
            self.slow_down(p - data)
        return p - data

    cdef int slow_down(self, size_t size) except -1:
        """Of the last `size` bytes much is interest, or was so of those before."""
        if 2 * self.told_bytes < size:
            self.much_told = 0
            return 0
        self.much_told += self.told_bytes
        if self.told_bytes and self.may_rest() and not self.is_closing:
            self.holds |= HOLD_REST
            self.exchange.rest(self)
        return 0

    cdef bint rest(self) except -1:
        if self.exchange.rest is None or self.is_closing:
            return False
        if not self.holds & HOLD_REST:
            self.holds |= HOLD_REST
            self.exchange.rest(self)
        return True

    cdef bint may_rest(self) noexcept:
        return self.exchange.rest is not None and self.much_told > self.exchange.bytes_without_rest

    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        cdef Token tokens[MOST_SERVER_QUEUES + 9]
        cdef ServerOp op
        cdef ServerOpKind kind
        op.names_origins = self.names_origins
        kind = parse_server_op(data, size, self.dialect, tokens, &op)
        if kind == SERVER_MORE:
            return 0
        self.in_lines += 1
        if unlikely(self.must_authenticate) and kind != SERVER_CONNECT and kind != SERVER_TOO_LONG \
                and kind != SERVER_BAD:
            self.session.on_early()
            return size
        if kind == SERVER_MSG:
            if unlikely(self.slot < 0):
                self.session.on_early()
            if self.slot >= 0 and not self.is_closing:
                return self.message(data, size, &op, whole)
        if kind == SERVER_SUB or kind == SERVER_UNSUB:
            if self.slot < 0:
                self.session.on_early()
            if self.slot >= 0 and not self.is_closing:
                if unlikely(self.is_spare):
                    self.session.on_interest()
                self.interest(data, data + size, &op, kind == SERVER_SUB)
        elif kind == SERVER_PING:
            self.on_ping()
        elif kind == SERVER_PONG:
            self.on_pong()
        elif kind == SERVER_INFO:
            self.n_words += 1
            self.session.on_info(op.argument.at[:op.argument.size])
        elif kind == SERVER_CONNECT:
            self.session.on_connect(op.argument.at[:op.argument.size])
        elif kind == SERVER_ERR:
            self.n_words += 1
            self.session.on_error(op.argument.at[:op.argument.size])
        elif kind == SERVER_IGNORED:
            pass
        elif kind == SERVER_TOO_LONG:
            self.broken("a line or a payload over the limit: " + repr(data[:min(size, 60)]))
        elif kind == SERVER_MSG:
            if not self.is_closing:
                self.broken("a message before the connection was made")
        else:
            self.broken("no frame of a server: " + repr(data[:min(size, 60)]))
        return size if self.is_closing else op.line_size

    cdef void hold(self) noexcept:
        """A shard is behind with what it is sent: read nothing for a moment. Never because a subscriber or another
        server is: this connection serves all others, too, and has the word of what they want. Who is too slow is closed
        at its max_pending, as by nats-server, which makes nobody but clients wait."""
        self.exchange.is_link_behind = False
        self.holds |= HOLD_STALL

    cdef int on_ping(self) except -1:
        """Reply when every sibling here knows what it has sent."""
        cdef DuePong due
        self.n_words += 1
        if self.is_silent:
            return 0
        if self.slot < 0 or self.exchange.siblings_fence is None:
            self.append(b'PONG\r\n', 6)
            return 0
        due = DuePong()
        due.link = self
        due.in_msgs = self.in_msgs
        due.was_fenced = self.is_fenced
        return self.exchange.siblings_fence.fence_served(due)

    cdef int on_pong(self) except -1:
        self.n_words += 1
        if self.pongs_due and self.pongs_due.pop(0):
            return self.exchange.fence.on_pong(self.slot)
        self.session.on_pong()
        return 0

    cdef Sublist sublist_of(self, ServerOp *op):
        if self.account is not None:
            return self.account
        return self.mesh.known(op.account.at, op.account.size)

    cdef int interest(self, const uint8_t *data, const uint8_t *end, ServerOp *op, bint wanted) except -1:
        cdef Sublist sublist = self.sublist_of(op)
        cdef const uint8_t *at = op.subject.at
        cdef size_t size = op.subject.size
        cdef bint was_wanted
        self.told_bytes += op.line_size
        if sublist is None:
            self.keep_untaken(data, op, wanted)
            self.session.on_unknown_account(op.account.at[:op.account.size])
            return 0
        if unlikely(len(self.untaken) != 0) and sublist.account in self.untaken:
            self.take_untaken(sublist.account)
        sublist.expect_next(data, op.subject.at - data, op.line_size, end)
        if subject_kind(at, size) == SUBJECT_BAD or size > MOST_KEY_BYTES:
            self.session.on_refused("bad subject", op.subject.at[:min(op.subject.size, 200)])
            return 0
        if op.n_queues and op.queues[0].size > MOST_KEY_BYTES:
            self.session.on_refused("bad queue group", op.queues[0].at[:200])
            return 0
        if is_loop_subject(at, size) and op.subject.at[:op.subject.size] == self.loop_subject:
            self.session.on_loop(wanted)
            return 0
        if wanted and not self.may_hear(at, size):
            if self.is_checked:   # (others know what goes to them, or need not)
                self.session.on_refused("Subscription", op.subject.at[:op.subject.size])
            return 0
        if self.names_origins and (op.origin.size or unlikely((self.exchange.splitting >> self.slot) & 1)) \
                and self.add_up(sublist, op, wanted):
            return 0
        if op.n_queues and op.members == 0:
            wanted = False
        was_wanted = self.knows(sublist, op)   # (each change of a weight is told, and what ends may have been refused)
        if wanted and not was_wanted and unlikely(self.max_subscriptions != 0) \
                and self.subscriptions >= self.max_subscriptions and not is_loop_subject(at, size):
            self.session.on_refused("Limit", op.subject.at[:op.subject.size])
            return 0
        self.subscriptions += <int>wanted - <int>was_wanted
        if op.n_queues:
            sublist.set_remote_queue(self.slot, at, size, op.queues[0].at, op.queues[0].size,
                                     self.weighed(sublist, op) if wanted else 0)
        else:
            sublist.set_remote(self.slot, at, size, wanted)
        if self.account is not None and unlikely(sublist.stream_imports is not None) and not is_loop_subject(at, size):
            if self.exchange.follow_streams(
                    self.slot, op.subject.at[:size], op.queues[0].at[:op.queues[0].size] if op.n_queues else b"",
                    0 if not wanted else op.members if op.n_queues else 1):
                self.session.on_refused("too long in the account that it is imported from", op.subject.at[:200])
        return 0

    cdef int keep_untaken(self, const uint8_t *line, ServerOp *op, bint wanted) except -1:
        """Interest in an account that is not known here, and may be soon: members are reloaded one by one."""
        cdef bytes account = op.account.at[:op.account.size], before
        cdef dict lines
        if op.account.size > MOST_UNTAKEN_NAME_BYTES \
                or (account not in self.untaken and len(self.untaken) >= MOST_UNTAKEN_ACCOUNTS):
            account = ANY_ACCOUNT
        lines = self.untaken.setdefault(account, {})
        if lines is None:
            return 0
        cdef bytes kept = line[:op.line_size], subject = op.subject.at[:op.subject.size]
        cdef bytes queue = op.queues[0].at[:op.queues[0].size] if op.n_queues else b""
        # (who does not name origins tells ends without them, of its own and of its leaf nodes' interest alike)
        key = (op.origin.at[:op.origin.size] if op.origin.size and self.names_origins else b"", subject, queue)
        before = lines.pop(key, None)
        if before is not None and op.origin.size and not self.names_origins and before[:1].upper() == b"R":
            kept = b"RS+ %b %b" % (account, subject)   # (its own are among them: see weighed())
            kept += b" %b %d\r\n" % (queue, op.members) if op.n_queues else b"\r\n"
        if before is not None:
            self.untaken_bytes -= UNTAKEN_COPIES * len(before) + UNTAKEN_LINE_BYTES
        if wanted and account != ANY_ACCOUNT:
            lines[key] = kept
            self.untaken_bytes += UNTAKEN_COPIES * len(kept) + UNTAKEN_LINE_BYTES
        if account == ANY_ACCOUNT or self.untaken_bytes > MOST_UNTAKEN_BYTES:
            self.forget_untaken(account)
        elif not lines:
            del self.untaken[account]
        return 0

    cdef int forget_untaken(self, bytes account) except -1:
        for one in (<dict>self.untaken[account]).values():
            self.untaken_bytes -= UNTAKEN_COPIES * len(<bytes>one) + UNTAKEN_LINE_BYTES
        self.untaken[account] = None
        return 0

    cdef bint take_untaken(self, bytes account) except -1:
        cdef bytes padded
        cdef const uint8_t *at
        lines = self.untaken[account]
        if lines is None:
            return False
        self.forget_untaken(account)
        del self.untaken[account]
        for line in lines.values():
            padded = <bytes>line + bytes(SLACK)
            at = padded
            self.in_lines -= 1
            self.operate(at, len(<bytes>line), NULL)
        return True

    cdef bint knows(self, Sublist sublist, ServerOp *op) noexcept:
        """Whether it has told this interest."""
        cdef const Node *node
        if op.n_queues:
            return sublist.remote_members(self.slot, op.subject.at, op.subject.size, op.queues[0].at,
                                          op.queues[0].size) != 0
        node = sublist.node_at(op.subject.at, op.subject.size)
        return node != NULL and (node.remote >> self.slot) & 1

    cdef uint32_t weighed(self, Sublist sublist, ServerOp *op) noexcept:
        """A group's members: second choice if they are at a leaf node. nats-server 2.9 counts its own and its leaf
        nodes' together, and names an origin with each change that one of those made: they are leaf nodes' if all had
        one."""
        cdef uint32_t before
        if op.origin.size and self.second_choice == 0:
            before = sublist.remote_members(self.slot, op.subject.at, op.subject.size, op.queues[0].at,
                                            op.queues[0].size)
            if before == 0 or before & SECOND_CHOICE:
                return op.members | SECOND_CHOICE
        return op.members | self.second_choice

    cdef int add_up(self, Sublist sublist, ServerOp *op, bint wanted) except -1:
        """The member's own interest and that of its leaf nodes' clusters are told apart; here they are one. False: it
        has only its own in this."""
        cdef bytes origin = op.origin.at[:op.origin.size] if op.origin.size else b""
        cdef bytes subject = op.subject.at[:op.subject.size]
        cdef bytes queue = op.queues[0].at[:op.queues[0].size] if op.n_queues else b""
        cdef const uint8_t *name = queue
        cdef const Node *node
        cdef uint32_t own
        cdef dict apart = self.exchange.told_apart[self.slot]
        cdef dict held = apart.get((sublist.account, subject, queue)), before
        if held is None:
            if not op.origin.size:
                return False
            held = {}
            if queue:
                own = sublist.remote_members(self.slot, op.subject.at, op.subject.size, name, len(queue))
            else:
                node = sublist.node_at(op.subject.at, op.subject.size)
                own = node != NULL and (node.remote >> self.slot) & 1
            if own:
                held[b""] = own
        before = dict(held)
        if wanted and (op.members or not queue):
            held[origin] = op.members if queue else 1
        else:
            held.pop(origin, None)
        self.subscriptions += <int>len(held) - <int>len(before)
        if held:
            apart[sublist.account, subject, queue] = held
            self.exchange.splitting |= <uint64_t>1 << self.slot
        if queue:
            # (whose members it is that get something of all that are there, the member itself decides)
            own = held.get(b"", 0) or min(sum(held.values()), MOST_MEMBERS)
            self.exchange.split_before = before
            sublist.set_remote_queue(self.slot, op.subject.at, op.subject.size, name, len(queue),
                                     own if b"" in held or not held else own | SECOND_CHOICE)
            self.exchange.split_before = None
        elif before and held:
            self.exchange.resplit(self.slot, sublist, op.subject.at, op.subject.size, only(before), only(held))
        else:
            if before:   # (so that it is not told that ends what it has not been told)
                apart[sublist.account, subject, queue] = before
            sublist.set_remote(self.slot, op.subject.at, op.subject.size, bool(held))
        if not held or (len(held) == 1 and b"" in held):
            apart.pop((sublist.account, subject, queue), None)
            if not apart:
                self.exchange.splitting &= ~(<uint64_t>1 << self.slot)
        return True

    cdef bint may_hear(self, const uint8_t *subject, size_t size) noexcept:
        """Whether any message that this interest is in may pass: where none may, it is none. What a pattern matches in
        part is filtered when there are messages, and so is what a hub does not allow now, because it may later."""
        cdef Permissions permissions = self.exchange.permissions[self.slot]
        if self.dialect == DIALECT_LEAF and not self.is_checked:
            permissions = self.withheld
        if permissions is None or is_loop_subject(subject, size):
            return True
        if subject_kind(subject, size) == SUBJECT_LITERAL:
            return permissions.may_publish(subject, size)
        return self.is_checked or permissions.may_publish_partly(subject, size)

    cdef Py_ssize_t message(self, const uint8_t *data, size_t size, ServerOp *op, Blob *whole) except -1:
        cdef size_t total = op.line_size + op.size + 2
        cdef Publish message
        cdef Sublist sublist
        cdef Entry *entry
        cdef Permissions permissions
        cdef Outcome outcome
        cdef Token answerers
        cdef bytearray _names   # (keeps its bytes)
        cdef bint is_reply, is_random, is_mapped = False
        cdef bint says_been = op.only_queues
        cdef bint names_groups = op.n_queues > 0
        if unlikely(says_been) and op.been.size and op.been.at[0] == c'+':   # for plain interest, too
            op.only_queues = False
        if op.size > self.max_payload_bytes:
            self.session.on_refused("Payload", op.subject.at[:min(op.subject.size, 200)])
            self.close(CLOSE_MAXIMUM_PAYLOAD_EXCEEDED)
            return size
        if size < total:
            self.needs = total
            self.in_lines -= 1
            return 0
        if data[total - 2] != c'\r' or data[total - 1] != c'\n':
            self.broken("a payload without its end")
            return size
        sublist = self.sublist_of(op)
        if sublist is None:
            self.session.on_unknown_account(op.account.at[:op.account.size])
            return total
        if unlikely(op.line_size > MOST_KEY_BYTES) and is_too_long(len(sublist.account), op):
            self.session.on_refused("too long to be passed on", op.subject.at[:min(op.subject.size, 200)])
            return total
        if sublist is not self.sublist:
            self.sublist = sublist
            self.repeat.line_size = 0
        if unlikely(sublist.account == self.exchange.system_account) and not op.only_queues:
            # One shard of this broker answers, whatever groups there are besides: see Exchange.tell_queue().
            if op.n_queues == 0:
                op.queues = &answerers
            op.queues[op.n_queues].at = ANSWERERS   # (behind the last group stood the size)
            op.queues[op.n_queues].size = 5
            op.n_queues += 1
            op.is_plain = False
        if unlikely(op.n_queues > 1):
            op.n_queues = distinct(op.queues, op.n_queues)
        self.in_msgs += 1
        self.in_bytes += op.size
        self.exchange.in_msgs += 1
        self.exchange.in_bytes += op.size
        permissions = self.exchange.permissions[self.slot]
        if permissions is not None and self.is_kept_out(permissions, op):
            return size if self.is_closing else total
        if unlikely((self.exchange.answering >> self.slot) & 1) and op.reply.size and not self.is_checked:
            self.exchange.expect_answer(self.slot, op.reply.at, op.reply.size)   # (of one that allows us answers)
        if unlikely(is_of_cluster(op.reply.at, op.reply.size)):
            self.exchange.expect_for_cluster(self.slot, op.reply.at, op.reply.size)
        if not self.make_message(data, total, op, whole, &message):
            self.broken("no memory for a message")
            return size
        if unlikely(says_been):
            message.publisher = self.exchange.publisher_in(op.been)
        entry = sublist.find(op.subject.at, op.subject.size,
                             hash_bytes(op.subject.at, op.subject.size, sublist.seed))
        if entry == NULL:
            self.broken("no memory for a match")
            return size
        self.exchange.been = CAME_IN
        if unlikely(op.only_queues):
            self.exchange.been |= self.exchange.slots_of(op.been)
        no_outcome(&outcome)
        if unlikely(entry.extras_at) and self.follows_imports and extras_of(entry).mapping >= 0:
            entry = self.fanout.gate.map(sublist, entry, &is_random)
            if entry == NULL:
                return total   # dropped by the mapping
            is_mapped = True
            if not fits_line(len(sublist.account), entry.subject_size, op.reply.size):
                self.session.on_refused("too long to be passed on when it is mapped", entry.text[:200])
                return total
            if not op.only_queues:   # who sent it chose among the groups of another subject; of these nobody has yet
                _names = groups_of(entry, op)
                names_groups = False
        is_reply = unlikely(entry.crosses) and extras_of(entry).is_reply
        if op.is_plain and whole == NULL and not op.origin.size and not entry.crosses and permissions is None \
                and not is_mapped:
            repeat_remember(&self.repeat, sublist, entry, data, op.line_size, &message)
        if unlikely(entry.crosses) and (is_reply or self.follows_imports) and not op.only_queues:
            entry = self.deliver_across(sublist, entry, &message, is_reply, &outcome)
            if entry == NULL:
                self.broken("no memory for a match")
                return size
        self.forward(sublist, entry, &message, op, names_groups, &outcome)
        if unlikely(self.exchange.is_link_behind):
            self.hold()
        return total

    cdef bint is_kept_out(self, Permissions permissions, ServerOp *op) except -1:
        """Whether permissions keep its message from us; a leaf node is told, and may be closed for it."""
        if not self.is_checked:
            return permissions.keeps_out(op.subject.at, op.subject.size, NULL, 0)
        if not permissions.may_subscribe(op.subject.at, op.subject.size, NULL, 0) \
                and not is_loop_subject(op.subject.at, op.subject.size) \
                and not is_of_cluster(op.subject.at, op.subject.size) \
                and not ((self.exchange.answering >> self.slot) & 1
                         and self.exchange.may_answer(self.slot, op.subject.at, op.subject.size)):
            self.n_words += 1
            self.session.on_refused("Publish", op.subject.at[:op.subject.size])
            return True
        return False

    cdef bint make_message(self, const uint8_t *data, size_t total, ServerOp *op, Blob *whole,
                           Publish *message) noexcept:
        """The frame as fan-out takes it. False: no memory for a tail that has to be rewritten."""
        cdef const uint8_t *tail = op.subject.at + op.subject.size
        message.origin = ORIGIN_SIBLING
        message.publisher = 0
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
            return True
        return self.fanout.rewrite_tail(message)

    cdef Entry *deliver_across(self, Sublist sublist, Entry *entry, Publish *message, bint is_reply,
                               Outcome *outcome) except? NULL:
        """Deliver to other accounts. (What a shard's clients publish has followed the imports there; what comes from
        outside has not.) Returns the entry, looked up again because that may have made others; NULL: no memory."""
        cdef bytes subject = entry.text[:entry.subject_size] + bytes(SLACK)
        cdef const uint8_t *at = subject
        cdef size_t size = entry.subject_size
        message.origin = ORIGIN_CLIENT
        if not is_reply:
            self.exchange.onward = self.exchange.reach(self.slot)
        if self.follows_imports:
            self.fanout.gate.asker = self.session
        if self.exchange.is_apart_by_account:   # (members would keep it from leaf nodes of the cluster it came from)
            self.exchange.origin = b""
        self.fanout.gate.leave(sublist, entry, message, None, outcome)
        self.fanout.gate.asker = None
        self.exchange.origin = self.origin
        self.exchange.onward = ~<uint64_t>0
        message.origin = ORIGIN_SIBLING
        return sublist.find(at, size, hash_bytes(at, size, sublist.seed))

    cdef int forward(self, Sublist sublist, Entry *entry, Publish *message, ServerOp *op, bint names_groups,
                     Outcome *outcome) except -1:
        """To everybody who is to get it from this server: as many groups at a time as a frame to a sibling names, or as
        have no more bytes together than the longest name."""
        cdef uint64_t reach, orphans, spared = 0
        cdef int at = 0, n
        cdef size_t name_bytes
        if unlikely(op.origin.size):   # a leaf node of that cluster has it already
            spared = self.exchange.leaves_in(sublist).get(op.origin.at[:op.origin.size], 0)
        reach = self.exchange.reach(self.slot) & ~spared
        while True:
            n = 0
            name_bytes = 0
            while at + n < op.n_queues and n < <int>MOST_QUEUES \
                    and (n == 0 or name_bytes + op.queues[at + n].size <= MOST_KEY_BYTES):
                name_bytes += op.queues[at + n].size
                n += 1
            orphans = self.exchange.forward(sublist, entry, message, reach, at == 0 and not op.only_queues,
                                            op.queues + at, n, outcome)
            if unlikely(orphans) and names_groups:
                orphans = self.send_to_formers(sublist, op.subject, message, op.queues + at, n, orphans)
                if unlikely(orphans) and self.exchange.kinds[self.slot] != PEER_LEAF:
                    self.send_on(sublist, entry, message, op.queues + at, n, orphans, spared, outcome)
            at += n
            if at >= op.n_queues:
                break
        return 0

    cdef uint64_t send_to_formers(self, Sublist sublist, Token subject, Publish *message, Token *queues, int n,
                                  uint64_t orphans) except? 0xFFFFFFFFFFFFFFFF:
        """To who has left these groups here, and lingers until their server knows: that is surer than another server,
        whose members may have left, too. Returns the groups for which there is none."""
        cdef int i
        for i in range(n):
            if (orphans >> i) & 1 and self.exchange.send_to_former(sublist, subject, queues[i], message, 0, 0,
                                                                   self.exchange.been) >= 0:
                orphans &= ~(<uint64_t>1 << i)
        return orphans

    cdef int send_on(self, Sublist sublist, Entry *entry, Publish *message, Token *queues, int n, uint64_t orphans,
                     uint64_t spared, Outcome *outcome) except -1:
        """Groups without a member here that may have it: where the last one has gone before their server knew, or where
        those that are left may not have it. Another server has members, or nobody gets it. That may be where it came
        from: that nobody is left here is on its way there, before this frame. Or it is a leaf node of the cluster that
        it came from, which was `spared`: of a group it is one member that gets it. What a hub has sent goes back."""
        cdef uint64_t told = self.exchange.feeds(self.slot) & ~spared
        cdef uint64_t others = self.exchange.of_kind[<int>PEER_ROUTE] | spared
        cdef bint is_of_hub = self.exchange.kinds[self.slot] == PEER_HUB
        cdef uint64_t been = self.exchange.been
        cdef int i
        if is_of_hub:
            others = <uint64_t>1 << self.slot
        for i in range(n):
            if (orphans >> i) & 1:
                if self.exchange.has_members(entry, queues[i], told):
                    if is_of_hub:   # (each of its leaf nodes would send it back)
                        continue
                    self.exchange.been |= REFUSED
                self.exchange.forward(sublist, entry, message, others, False, queues + i, 1, outcome)
                self.exchange.been = been
        return 0

    # ---- for the session

    def join(self, str kind not None, bytes account, str cluster not None, *, bint is_checked=True,
             bint is_isolated=False) -> bool:
        """Take a place in the exchange: frames count from now on. `kind`: "route", "leaf" or "hub"; `account`: that of
        a leaf node connection, or None; `cluster`: the other end's, "": none. Nothing goes from one leaf node, or one
        hub, to another of the same cluster (leaf nodes: and account, if that `is_apart_by_account`). A leaf node
        connection that `is_checked` was accepted here: its rights are looked at here, a hub's as well as a leaf node's,
        and it is told when it does what it may not. One that `is_isolated` hears nothing of leaf nodes' interest.
        False: there is no place left."""
        cdef PeerKind peer = PEER_ROUTE if kind == "route" else PEER_LEAF if kind == "leaf" else PEER_HUB
        if account is not None:
            self.account = self.mesh.account(account)
            self.loop_subject = self.exchange.loop_subject(account)
        self.origin = origin_of(peer, cluster)
        if peer != PEER_ROUTE:
            self.second_choice = SECOND_CHOICE
        self.follows_imports = peer != PEER_ROUTE
        self.is_checked = is_checked and peer != PEER_ROUTE
        self.slot = self.exchange.join(peer, self.dialect, &self.out, self.account, cluster, self.is_checked,
                                       is_isolated)
        return self.slot >= 0

    def begin(self, size_t max_pending_bytes=0, uint32_t max_payload_bytes=LARGEST_FRAME_PAYLOAD_BYTES):
        """Tell it the interest here, and send it messages from now on. With more than max_pending_bytes unsent it is
        closed as a slow consumer, 0: never; but what it is told now counts as half of that, if it is more. It may not
        send a message of more than max_payload_bytes."""
        self.out.stall_mark = SERVER_STALL_BYTES
        self.max_payload_bytes = max_payload_bytes
        if self.loop_subject:
            self.send(b"LS+ " + self.loop_subject + b"\r\n")
        if self.takes_origins:
            self.exchange.takes_origin |= <uint64_t>1 << self.slot
            if self.names_origins:
                self.exchange.tells_apart |= <uint64_t>1 << self.slot
        self.exchange.set_id(self.slot, self.only_queues_as)
        self.behind.max_pending = max_pending_bytes
        self.behind.stall_mark = max_pending_bytes // 2 or <size_t>SERVER_STALL_BYTES
        self.exchange.begin(self.slot, self.pongs_due, &self.behind)
        if max_pending_bytes:
            self.out.max_pending = max(max_pending_bytes, 2 * out_pending(&self.out))
            self.out.stall_mark = self.out.max_pending // 2

    def interest_told(self, size_t most):
        """In steps: what it has told, of a leaf node connection, as Exchange.interest_told()."""
        return self.exchange.interest_told(self.slot, most)

    def take_accounts(self) -> bool:
        """There may be accounts in which it has told interest before they were known here. False: that was more than is
        kept, so it has to tell everything again, over another connection."""
        for account in [one for one in self.untaken if one in self.mesh.accounts]:
            if not self.take_untaken(account):
                return False
        return ANY_ACCOUNT not in self.untaken

    def hush(self):
        """Send it neither messages nor interest any more; what it sends counts."""
        self.exchange.end_telling(self.slot)
        self.exchange.told &= ~(<uint64_t>1 << self.slot)

    def fall_silent(self):
        """Send nothing any more, not even a PONG, as the sending half of the connection is closed; read on."""
        self.is_silent = True

    def limit_payloads(self, uint32_t max_payload_bytes):
        """It may send no larger ones from now on: those of a line that repeats neither."""
        self.repeat.line_size = 0
        self.max_payload_bytes = max_payload_bytes

    def set_permissions(self, permissions):
        """Compiled Permissions: what it may be told (subscribe) and sent (publish); None: everything."""
        self.repeat.line_size = 0
        self.exchange.set_permissions(self.slot, permissions)

    def withhold(self, permissions):
        """Compiled Permissions, of a connection to a hub: what they do not let be published is never sent there."""
        self.withheld = permissions

    def set_answers(self, int most, double expire_s, *, bint tells=False):
        """Which answers it may give to what it was sent, or we to what a hub sent: as Exchange.set_answers()."""
        self.exchange.set_answers(self.slot, most, expire_s, tells)

    def leave(self):
        """The connection has ended: drop its interest. A second call does nothing."""
        if self.out.close_reason == CLOSE_NONE:
            self.out.close_reason = CLOSE_CLIENT_CLOSED
        if self.slot >= 0:
            self.exchange.part(self.slot)
            self.slot = -1
        out_release(&self.out)
        out_release(&self.behind)
        self.forget_input()

    def doubt(self) -> bool:
        """Its part of Exchange.doubt()."""
        self.is_in_doubt |= self.in_msgs != self.acked_msgs
        return bool(self.is_in_doubt)

    def has_rested(self):
        """Read on, after Exchange.rest_with()'s call."""
        self.release(HOLD_REST)

    def hold_login(self):
        """Its CONNECT is being checked: carry out nothing until log_in_decided()."""
        self.holds |= HOLD_LOGIN

    def log_in_decided(self):
        """Resume after hold_login()."""
        self.release(HOLD_LOGIN)

    def ping(self):
        """Send PING, unless nothing may be sent; the session is told of its PONG."""
        if not self.is_silent:
            self.pongs_due.append(False)
            self.append(b'PING\r\n', 6)

    def send(self, bytes data not None):
        """Queue bytes as they are, unless nothing may be sent."""
        if not self.is_silent:
            self.append(data, len(data))

    def end(self):
        """Close it, after sending what is queued."""
        self.close(CLOSE_PROTOCOL_VIOLATION)
        out_call(&self.out)

    def drop(self):
        """Close it at once; what is queued is not sent."""
        self.close(CLOSE_CLIENT_CLOSED)
        out_call(&self.out)

    def takes_headers(self, bint takes):
        """Whether messages with headers may be sent to it; without, headers are cut off."""
        self.out.takes_headers = self.behind.takes_headers = takes

    @property
    def idle_us(self) -> int:
        """How long it has sent nothing."""
        return max(0, self.out.box.now_us - self.active_us) if self.active_us else 0
