# cython: language_level=3, boundscheck=False, wraparound=False
"""Client connections that move from one shard to another: nothing lost, doubled or out of order.

Every shard that publishes changes over at a moment of its own, its mark, which it writes on its links to the old and
to the new shard. The old one delivers what came before the mark, the new one what comes behind it, into the output
of a connection without a socket, which goes out behind the old one's. With its mark a shard also shifts the counts of
queue members. Records and descriptors travel elsewhere: the host (MovesHost) hands them over. Up to the marks a
move can be stopped and nothing has changed; behind them it goes on, or the connections are closed. No cost while
nothing moves; a client that moves is not read, and each of its subscriptions has a max, so that fan-out looks twice.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from gnatswarm.broker.freezer cimport put_state, put_subscription, subscription_of, unsent_of, why_not
from gnatswarm.broker.interest cimport NO_MAX, SUB_MARKED, QueueName, Sub
from gnatswarm.broker.outbuf cimport (
    CLOSE_NONE, CLOSE_ROUTE_REMOVED, CLOSE_SLOW_CONSUMER_PENDING_BYTES, MOVING_GONE, MOVING_IN, MOVING_NOT,
    MOVING_OUT, CloseReason, OutBuf, out_append, out_call, out_condemn, out_mark_clean, out_mark_dirty, out_most,
    out_pending, out_take)
from gnatswarm.broker.peer cimport HOLD_MOVE, HOLD_STALL, Peer
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.sublist cimport Sublist
from gnatswarm.broker.table cimport slot_item
from gnatswarm.broker.word cimport SLACK

import msgspec

from gnatswarm.broker import freezer, frozen as records

# Clients in one batch, and their subscriptions: a batch is read in one go, and other clients wait for that.
MOST_CLIENTS = 256
MOST_SUBSCRIPTIONS = 65_536
# … and of those, members of queue groups: their counts are shifted in one piece, at some 5 µs each on three shards.
MOST_MEMBERS = 4096
# … and the bytes of their subjects, queue names and sids, with the shifts of queue members. An offer is written and
# read in one piece, 5 ms for each MB in all. The rest of it is for what the host says of each client, which its
# CONNECT bounds.
MOST_SUBSCRIPTION_BYTES = 10 * 1024 * 1024
MOST_OFFER_BYTES = 14 * 1024 * 1024
# What takes some µs for each subscription is done for so many in one go_on(): 0.1 to 0.2 ms. A client with 50,000
# would keep others waiting for 0.1 s otherwise, several times.
SLICE_SUBS = 64
ALL = 0xFFFFFFFF
# A client with more unsent bytes is not moved: they are copied, and it would be silent for longer.
MOST_UNSENT_BYTES = 1_048_576

cdef enum:
    # MessagePack around the fields of a FrozenSubscription and of a Shift: at most 5 bytes for each text, 9 for each
    # number, and 1 for the list.
    SUBSCRIPTION_BYTES = 34
    SHIFT_BYTES = 25


cdef list subs_of(ClientConnection client):
    """The addresses of its subscriptions."""
    cdef uint32_t i
    if client.subs.slots == NULL:
        return []
    return [<size_t>slot_item(client.subs.slots[i]) for i in range(client.subs.mask + 1) if client.subs.slots[i]]


cdef list places_of(ClientConnection client):
    """(sublist, address) of each of its subscriptions, and of their shadows in other accounts."""
    cdef list found = []
    for address in subs_of(client):
        found.append((client.sublist, address))
        if client.shadows is not None:
            for shadow, stream in client.shadows.cast_by.get(address, ()):
                found.append((stream.exporter, shadow))
    return found


cdef bytes subject_of(Sublist sublist, const Sub *sub):
    cdef size_t size = sublist.subject_of(sub.node, NULL, 0)
    cdef bytearray room = bytearray(size + SLACK)
    sublist.subject_of(sub.node, <uint8_t *><char *>room, size)
    return bytes(room[:size])


cdef bint has_members(ClientConnection client) noexcept:
    """Whether one of its subscriptions is in a queue group. (Then its shadows can be, too, and no others.)"""
    cdef Sub *sub
    cdef uint32_t i
    if client.subs.slots == NULL:
        return False
    for i in range(client.subs.mask + 1):
        sub = <Sub *>slot_item(client.subs.slots[i])
        if sub != NULL and sub.group != NULL:
            return True
    return False


cdef uint32_t count_members(ClientConnection client) noexcept:
    """How many of its subscriptions are in queue groups."""
    cdef Sub *sub
    cdef uint32_t i, n = 0
    if client.subs.slots == NULL:
        return 0
    for i in range(client.subs.mask + 1):
        sub = <Sub *>slot_item(client.subs.slots[i])
        n += sub != NULL and sub.group != NULL
    return n


cdef size_t shift_bytes(size_t account_size, size_t subject_size, size_t queue_size) noexcept:
    """At most so many bytes has the Shift of a queue group in an offer."""
    return account_size + subject_size + queue_size + SHIFT_BYTES


cdef size_t offer_bytes(ClientConnection client) except? 0:
    """At most so many bytes have its subscriptions in an offer, and the shifts that they cause."""
    cdef Sublist exporter
    cdef Sub *sub
    cdef Sub *shadow
    cdef size_t found = 0, size
    cdef uint32_t i
    if client.subs.slots == NULL:
        return 0
    for i in range(client.subs.mask + 1):
        sub = <Sub *>slot_item(client.subs.slots[i])
        if sub == NULL:
            continue
        size = client.sublist.subject_of(sub.node, NULL, 0)
        found += sub.key.size + size + SUBSCRIPTION_BYTES
        if sub.group == NULL:
            continue
        found += sub.group.name.key.size
        found += shift_bytes(len(client.sublist.account), size, sub.group.name.key.size)
        if client.shadows is not None:
            for address, stream in client.shadows.cast_by.get(<size_t>sub, ()):
                exporter = stream.exporter
                shadow = <Sub *><size_t>address
                found += shift_bytes(len(exporter.account), exporter.subject_of(shadow.node, NULL, 0),
                                     sub.group.name.key.size)
    return found


cdef int count_member(ClientConnection client, const Sub *sub, bytes subject, bytes queue, dict members) except -1:
    """Count a member of a queue group, and its shadows."""
    cdef Sub *shadow
    key = (client.sublist.account, subject, queue)
    members[key] = members.get(key, 0) + 1
    if client.shadows is not None:
        for address, stream in client.shadows.cast_by.get(<size_t>sub, ()):
            shadow = <Sub *><size_t>address
            if shadow.group != NULL:
                key = ((<Sublist>stream.exporter).account, subject_of(stream.exporter, shadow),
                       (<uint8_t *>shadow.group.name + sizeof(QueueName))[:shadow.group.name.key.size])
                members[key] = members.get(key, 0) + 1
    return 0


cdef tuple shifts_of(dict members):
    return tuple([records.Shift(*key, n) for key, n in sorted(members.items())])


cdef dict queues_of(ClientConnection client):
    """sid → queue group, of its queue subscriptions."""
    cdef Sub *sub
    cdef dict found = {}
    for address in subs_of(client):
        sub = <Sub *><size_t>address
        if sub.group != NULL:
            found[(<uint8_t *>sub + sizeof(Sub))[:sub.key.size]] = \
                (<uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size]
    return found


cdef bint has_bounded_member(ClientConnection client) noexcept:
    cdef Sub *sub
    cdef uint32_t i
    if client.subs.slots == NULL:
        return False
    for i in range(client.subs.mask + 1):
        sub = <Sub *>slot_item(client.subs.slots[i])
        if sub != NULL and sub.group != NULL and sub.max_msgs:
            return True
    return False


cdef void set_maxima(ClientConnection client, bint moves) noexcept:
    """While it moves each subscription has a max, so that fan-out looks at where it is."""
    cdef Sub *sub
    cdef uint32_t i
    if client.subs.slots == NULL:
        return
    for i in range(client.subs.mask + 1):
        sub = <Sub *>slot_item(client.subs.slots[i])
        if sub == NULL:
            continue
        if moves and sub.max_msgs == 0:
            sub.max_msgs = NO_MAX
        elif not moves and sub.max_msgs == NO_MAX:
            sub.max_msgs = 0


cdef int change_entries(ClientConnection client) except -1:
    """What matches its subscriptions is looked up anew: it takes, or does not take, what is published here."""
    cdef Sub *sub
    cdef uint32_t i
    if client.subs.slots == NULL:
        return 0
    for i in range(client.subs.mask + 1):
        sub = <Sub *>slot_item(client.subs.slots[i])
        if sub == NULL:
            continue
        client.sublist.node_changed(sub.node)
        if client.shadows is not None:
            for shadow, stream in client.shadows.cast_by.get(<size_t>sub, ()):
                (<Sublist>stream.exporter).node_changed((<Sub *><size_t>shadow).node)
    return 0


cdef int credit(Sub *sub, uint64_t before) except -1:
    """It has had so many messages at its old shard."""
    count_as_harvested(sub, before)
    sub.delivered += before
    return 0


cdef int count_as_harvested(Sub *sub, uint64_t n) except -1:
    """The old shard's statistics have these deliveries: see Sub."""
    cdef uint8_t *at = <uint8_t *>sub + sizeof(Sub) + sub.key.size
    cdef uint64_t before
    if sub.group != NULL:
        memcpy(&before, at, sizeof(before))
        before += n
        memcpy(at, &before, sizeof(before))
        at += sizeof(before)
    if sub.key.flags & SUB_MARKED:
        memcpy(&before, at, sizeof(before))
        before += n
        memcpy(at, &before, sizeof(before))
    return 0


cdef bytes without(bytes output, dict most):
    """Output of messages alone, with at most so many of some sids; counts them down."""
    cdef list kept = []
    cdef Py_ssize_t at = 0, line_end, end
    while at < len(output):
        line_end = output.find(b"\r\n", at)
        if line_end < 0:   # the beginning of a message that was beyond its limit, and was not taken
            kept.append(output[at:])
            break
        words = output[at:line_end].split(b" ")
        end = line_end + 2 + int(words[len(words) - 1]) + 2
        left = most.get(words[2])
        if left is None or left > 0:
            kept.append(output[at:end])
            if left is not None:
                most[words[2]] = left - 1
        at = end
    return b"".join(kept)


cdef bytes bare(bytes output, uint64_t *cut):
    """Output of messages alone for a client that knows no headers; adds to `cut` the bytes of those."""
    cdef list kept = []
    cdef Py_ssize_t at = 0, line_end, body, end, header
    while at < len(output):
        line_end = output.find(b"\r\n", at)
        if line_end < 0:
            kept.append(output[at:])
            break
        words = output[at:line_end].split(b" ")
        body = line_end + 2
        end = body + int(words[len(words) - 1]) + 2
        if words[0] == b"HMSG":
            header = int(words[len(words) - 2])
            cut[0] += <uint64_t>header
            body += header
            words = [b"MSG", *words[1:len(words) - 2], b"%d" % (end - body - 2)]
            kept.append(b" ".join(words) + b"\r\n")
            at = body
        kept.append(output[at:end])
        at = end
    return b"".join(kept)


cdef object bounded(members):
    """A count of queue members, as a frame can tell it. (A count and its shift come over different links.)"""
    return min(max(0, members), 999_999_999)


cdef class Batch(FencedBatch):
    """Connections that move together."""

    cdef int set_takes(self, uint64_t takes_from) except -1:
        """Take messages of these shards from now on."""
        cdef ClientConnection client
        cdef uint64_t own = <uint64_t>1 << self.moves.mesh.shard
        cdef bint is_shut = not takes_from & own
        for item in self.clients.values():
            client = <ClientConnection>item
            client.out.takes_from = takes_from
            if client.out.is_shut != is_shut:
                client.out.is_shut = is_shut
                change_entries(client)
        return 0

    cdef int look_whether_marked(self) except -1:
        cdef object _keep = self
        if self.phase == PHASE_MARKING and not self.shards & ~self.marked:
            self.phase = PHASE_MARKED
            self.on_all_marked()
        return 0

    cdef int on_all_marked(self) except -1:
        raise NotImplementedError

    cdef int work(self) except -1:
        raise NotImplementedError

    cdef int end(self, str why, bint in_doubt) except -1:
        raise NotImplementedError


cdef class Written:
    """A client that is being written down, or was."""

    def __cinit__(self, ClientConnection client not None, bytes words not None, bint was_torn):
        self.client = client
        self.words = words
        self.subscriptions = []
        self.n = client.subs.count
        self.was_torn = was_torn
        self.out_msgs = client.out.msgs
        self.members = {}
        self.delivered = {}
        self.bounded = set()
        self.counts = []


cdef class Leaving(Batch):
    """At the old shard."""

    cdef int write_next(self) except -1:
        """Write down some subscriptions of one client; behind the last of all, they are offered to the new shard."""
        cdef Moves moves = self.moves
        cdef object cid = self.todo[len(self.todo) - 1]
        cdef object _keep = self
        cdef ClientConnection client = <ClientConnection>self.clients[cid]
        cdef Written written = self.written.get(cid)
        cdef uint32_t most = moves.slice_subs
        cdef bint is_torn
        try:
            if cid in self.gone or client.is_closing or client.out.close_reason != CLOSE_NONE:
                raise records.RecordRefused("it is being closed")
            is_torn = written is not None and client.subs.count != written.n
            if written is None or is_torn:   # it is not read; but one that has had its max has ended
                words = moves.host.words_of(client) if written is None else written.words
                written = self.written[cid] = Written(client, words, is_torn)
                self.at = 0
            if not self.is_written(written, ALL if written.was_torn else most):
                return 0
            self.append(written)
        except records.RecordRefused as error:
            why = str(error)
            if len(self.clients) == 1:
                return self.end(why, False)
            del self.clients[cid]
            self.written.pop(cid, None)
            self.let_stay(client)
        self.todo.pop()
        self.at = 0
        return 0 if self.todo else self.offer()

    cdef int append(self, Written written) except -1:
        """This one is written down, and part of the offer. RecordRefused: that has no room for it."""
        cdef ClientConnection client = written.client
        cdef object one = records.encoded_client(records.OfferedClient(
            client.cid, client.sublist.account, written.words, tuple(written.subscriptions)))
        cdef size_t size = memoryview(one).nbytes
        for account, subject, queue in written.members:
            size += shift_bytes(len(account), len(subject), len(queue))
        if self.offered_bytes + size > <size_t>MOST_OFFER_BYTES:
            raise records.RecordRefused(f"it takes {size:,} bytes of an offer of at most {MOST_OFFER_BYTES:,}")
        self.offered_bytes += size
        self.offered.append(one)
        written.subscriptions = None
        return 0

    cdef bint is_written(self, Written written, uint32_t most) except -1:
        """Write down so many subscriptions; whether all are."""
        cdef ClientConnection client = written.client
        cdef Sub *sub
        while client.subs.slots != NULL and self.at <= client.subs.mask:
            sub = <Sub *>slot_item(client.subs.slots[self.at])
            if client.subs.slots[self.at]:
                if most == 0:
                    return False
                most -= 1
                one = subscription_of(client, sub)
                written.subscriptions.append(records.encoded_subscription(one))
                if sub.delivered:
                    written.delivered[<size_t>sub] = sub.delivered
                if one.max_msgs:
                    written.bounded.add(one.sid)
                else:
                    sub.max_msgs = NO_MAX
                if sub.group != NULL:
                    count_member(client, sub, one.subject, one.queue, written.members)
            self.at += 1
        return True

    cdef int offer(self) except -1:
        """All are written down."""
        cdef Moves moves = self.moves
        if moves.mesh.out_of_step or not (moves.mesh.up >> self.new) & 1:
            return self.end("its links to other shards have changed", False)
        self.phase = PHASE_WAITING
        self.marked = 0
        self.shards = moves.mesh.up | <uint64_t>1 << self.old
        for written in self.written.values():
            for key, n in (<Written>written).members.items():
                self.members[key] = self.members.get(key, 0) + n
        self.shifts = shifts_of(self.members)
        words = records.encoded_offer(records.Offer(records.MOVE_RECORD_VERSION, self.shards, tuple(self.offered),
                                                    self.shifts))
        self.offered = None
        return moves.send(self.new, b"MOVE %d %d\r\n%b\r\n" % (self.id, len(words), words))

    cdef int on_all_marked(self) except -1:
        """Nothing comes here for them any more: their subscriptions end."""
        cdef object _keep = self
        self.phase = PHASE_ENDING
        self.at = 0
        self.todo = list(reversed(self.clients))
        self.end_next(self.moves.slice_subs)
        return self.moves.begin_work(self) if self.phase == PHASE_ENDING else 0

    cdef int end_next(self, uint32_t most) except -1:
        """End so many subscriptions; behind the last of all, say so.

        Members of queue groups end all at once, as they are said to be gone: a count that another one tells in between
        would be without them, and then they would be subtracted from it again."""
        cdef Moves moves = self.moves
        while self.todo:
            most -= self.end_some(<Written>self.written[self.todo[len(self.todo) - 1]], False, most)
            if most == 0:
                return 0
            self.todo.pop()
            self.at = 0
        for cid in self.clients:
            self.at = 0
            self.end_some(<Written>self.written[cid], True, ALL)
            (<ClientConnection>self.clients[cid]).out.moving = MOVING_GONE
        self.phase = PHASE_MARKED
        moves.last_over = self.id
        moves.send_all(b"MOVED %d %d 1 0\r\n\r\n" % (self.old, self.id))
        moves.fence.fence_batch(self)
        return moves.look_at_links()

    cdef uint32_t end_some(self, Written written, bint members, uint32_t most) except? 0:
        """End at most so many subscriptions of a client, those in no queue group or (`members`) all, and note what was
        delivered; how many. Fewer than `most`: there are no more."""
        cdef ClientConnection client = written.client
        cdef Sub *sub
        cdef list ending = []
        cdef uint32_t slot = self.at
        cdef bytes sid
        while client.subs.slots != NULL and slot <= client.subs.mask and <uint32_t>len(ending) < most:
            sub = <Sub *>slot_item(client.subs.slots[slot])
            if client.subs.slots[slot] and (members or sub.group == NULL):
                if not ending:   # (where one is taken out, others move back; hardly ever to before it)
                    self.at = slot
                ending.append(<size_t>sub)
            slot += 1
        client.out.moving = MOVING_GONE
        for address in ending:
            sub = <Sub *><size_t>address
            if sub.max_msgs != NO_MAX:
                written.bounded.discard((<uint8_t *>sub + sizeof(Sub))[:sub.key.size])
            if client.out.msgs != written.out_msgs:   # or they are what was written down
                if sub.delivered != <uint64_t>written.delivered.get(address, 0):
                    sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
                    written.counts.append(records.FrozenCount(sid, sub.delivered))
            client.end_subscription(sub)
        client.out.moving = MOVING_OUT   # until the last has ended: a client that goes meanwhile is kept
        return <uint32_t>len(ending)

    cdef int on_fenced(self) except -1:
        self.is_fenced = True
        return self.look_whether_ready()

    cdef int look_whether_ready(self) except -1:
        """Hand them over, if siblings have seen everything that they have caused, and no publisher among them overtakes
        what it sent before: a move that this shard had marked must be marked by the next one too."""
        cdef Moves moves = self.moves
        if self.phase != PHASE_MARKED or not self.is_fenced or self.open or moves.mesh.out_of_step:
            return 0
        self.phase = PHASE_HANDING
        for item in self.clients.values():
            (<ClientConnection>item).touched = (<ClientConnection>item).published = 0
        self.todo = list(reversed(self.clients))
        return moves.begin_work(self)

    cdef int hand_next(self) except -1:
        """Hand one client over; behind the last, the move is over."""
        cdef Moves moves = self.moves
        cdef object cid = self.todo.pop()
        cdef object frozen = None
        cdef Written written
        cdef object _keep = self   # (it is the moves' no more, before this is over)
        cdef ClientConnection client = <ClientConnection>self.clients.pop(cid)
        if cid in self.gone:
            client.leave()
        elif client.is_closing or client.out.close_reason != CLOSE_NONE:
            client.release(HOLD_MOVE)
            out_call(&client.out)
        elif client.is_in_doubt:
            client.close(CLOSE_ROUTE_REMOVED)
            client.release(HOLD_MOVE)
            moves.n_lost += 1
        else:
            client.holds = 0   # (of its holds, none matters to its next shard)
            written = self.written[cid]
            frozen = msgspec.structs.replace(freezer.freeze(client), counts=tuple(written.counts),
                                             ended=tuple(sorted(written.bounded)))
            client.holds = HOLD_MOVE
            moves.n_moved += 1
        moves.host.hand_over(self.new, self.id, client, frozen)
        if not self.todo:
            self.phase = PHASE_OVER
            moves.leaving = None
            moves.host.ended(self.new, self.id, "")
            moves.look_at_links()
        return 0

    cdef int work(self) except -1:
        if self.phase == PHASE_PREPARING:
            return self.write_next()
        return self.end_next(self.moves.slice_subs) if self.phase == PHASE_ENDING else self.hand_next()

    cdef int end(self, str why, bint in_doubt) except -1:
        """The clients stay, or (once marks were asked for) are closed. In doubt: the new shard may have asked for
        marks; then queue messages that it was sent are lost, and members of queue groups are closed."""
        cdef ClientConnection client
        cdef Moves moves = self.moves
        cdef object _keep = self
        cdef bint is_marking = self.phase == PHASE_MARKING, is_marked
        if self.phase == PHASE_OVER:
            return 0
        if self.phase == PHASE_ENDING:   # others have marked: it goes on to its end
            self.end_next(ALL)
        is_marked = self.phase > PHASE_WAITING
        in_doubt = in_doubt and self.phase != PHASE_PREPARING   # (then the new shard has heard of nobody)
        self.phase = PHASE_OVER
        self.todo = []
        moves.leaving = None
        moves.last_over = self.id
        if is_marked:
            self.set_takes(~<uint64_t>0)
        if is_marking or (in_doubt and not is_marked):
            moves.send_all(b"MOVED %d %d 0 0\r\n\r\n" % (self.old, self.id))
        elif is_marked and moves.mesh.up >> self.new & 1:   # the others know that they have moved
            moves.send(self.new, b"MOVED %d %d 0 0\r\n\r\n" % (self.old, self.id))
        for cid, item in list(self.clients.items()):
            client = <ClientConnection>item
            if cid not in self.gone and (is_marked or (in_doubt and has_members(client))):
                client.close(CLOSE_ROUTE_REMOVED)
                out_call(&client.out)
                moves.n_lost += 1
            self.let_stay(client)
        if not is_marked:
            moves.n_stopped += 1
        moves.host.ended(self.new, self.id, why)
        return moves.look_at_links()

    cdef int let_stay(self, ClientConnection client) except -1:
        """It moves no more: it is read again, or leaves if its connection has ended."""
        client.out.moving = MOVING_NOT
        set_maxima(client, False)
        client.release(HOLD_MOVE)
        if client.cid in self.gone:
            client.leave()
        return 0


cdef class Arriving(Batch):
    """At the new shard."""

    cdef int work(self) except -1:
        cdef object cid
        if self.phase == PHASE_PREPARING:
            return self.admit_next()
        cid = self.todo[len(self.todo) - 1]
        if self.records[cid] is None:
            self.todo.pop()
            return self.moves.drop(self, cid)
        return self.settle(cid, self.records[cid])

    cdef int admit_next(self) except -1:
        """Make the connection of one client that was announced, with some of its subscriptions; behind the last, wait
        for every sibling's PONG."""
        cdef object _keep = self
        cdef ClientConnection client
        cdef uint32_t most = self.moves.slice_subs
        try:
            if self.coming is None:
                self.coming = records.decoded_client(self.todo[len(self.todo) - 1])
                self.at = 0
                client = self.admit(self.coming)
            else:
                client = <ClientConnection>self.clients[self.coming.cid]
            while self.at < <uint32_t>len(self.coming.subscriptions):
                if most == 0:
                    return 0
                most -= 1
                self.subscribe(client, records.decoded_subscription(self.coming.subscriptions[self.at]))
                self.at += 1
            self.coming = None
            self.at = 0
            self.todo.pop()
            if not self.todo and shifts_of(self.members) != self.shifts:
                raise records.RecordRefused("its accounts import other streams")
        except records.RecordRefused as error:
            return self.end(str(error), False)
        if self.todo:
            return 0
        self.phase = PHASE_WAITING
        return self.moves.fence.fence_batch(self)

    cdef ClientConnection admit(self, one):
        """A detached connection for this OfferedClient. RecordRefused."""
        cdef ClientConnection client = self.moves.host.admit(self.old, self.id, one)
        self.clients[one.cid] = client
        self.offered[one.cid] = {}
        self.moves.publishers[one.cid] = {}
        if client.sublist.account != one.account or client.cid != one.cid or client.subs.count:
            raise records.RecordRefused(f"client {one.cid} is not as it was announced")
        client.out.moving = MOVING_IN
        client.out.takes_from = 0
        client.out.is_shut = True
        client.out.has_grace = True
        client.out.takes_headers = True   # for now: another member may get what is detached for this one
        client.out.taken_us = self.moves.mesh.fanout.box.now_us
        return client

    cdef int subscribe(self, ClientConnection client, one) except -1:
        """This FrozenSubscription of a detached connection. RecordRefused."""
        cdef bytes padded = one.subject + bytes(SLACK)
        cdef Sub *sub
        if subject_kind(<const uint8_t *>padded, len(one.subject)) == SUBJECT_BAD:
            raise records.RecordRefused(f"client {client.cid}: {one.subject!r} is no subject")
        if one.max_msgs:
            client.out.has_surplus = True
        if one.max_msgs or one.delivered:
            self.offered[client.cid][one.sid] = (one.delivered, one.max_msgs)
        if one.delivered:
            one = msgspec.structs.replace(one, delivered=0,
                                          max_msgs=one.max_msgs - one.delivered if one.max_msgs else 0)
        sub = put_subscription(client, one)
        if sub.max_msgs == 0:
            sub.max_msgs = NO_MAX
        if sub.group != NULL:
            count_member(client, sub, one.subject, one.queue, self.members)
        return 0

    cdef int on_fenced(self) except -1:
        """Every sibling answers, and knows what they are interested in: ask for the marks."""
        cdef Moves moves = self.moves
        cdef uint64_t own = <uint64_t>1 << self.new
        cdef bytes shifts
        if self.phase != PHASE_WAITING:
            return 0
        if moves.mesh.out_of_step or moves.mesh.up & ~self.shards or not moves.mesh.up >> self.old & 1:
            return self.end("its links to other shards have changed", False)
        self.phase = PHASE_MARKING
        self.shards = moves.mesh.up | own
        self.marked |= own
        shifts = records.encoded_shifts(self.shifts)
        moves.mark(self.old, self.new, self.id, self.shifts)
        self.set_takes(own)
        moves.send_all(b"MARKQ %d %d %d\r\n%b\r\n" % (self.old, self.id, len(shifts), shifts))
        return self.look_whether_marked()

    cdef int on_all_marked(self) except -1:
        """Queue groups count them from now on."""
        cdef ClientConnection client
        cdef object _keep = self
        cdef Sub *sub
        self.set_takes(~<uint64_t>0)
        for item in self.clients.values():
            client = <ClientConnection>item
            client.out.moving = MOVING_NOT
            if not has_members(client):
                continue
            for _, address in places_of(client):
                sub = <Sub *><size_t>address
                if sub.group != NULL:
                    sub.group.n_members += 1
        self.moves.send_all(b"MOVED %d %d 1 0\r\n\r\n" % (self.old, self.id))
        self.moves.close_mark((self.old, self.id))
        if self.records:
            self.todo = list(reversed(self.records))
            self.moves.begin_work(self)
        return self.moves.look_at_links()

    cdef int settle(self, uint64_t cid, frozen) except -1:
        """Its record is here: credit some of its subscriptions with what they have had at the old shard. Behind the
        last, it goes on, and is in todo no more. Those with a max wait until then: what is beyond it is dropped."""
        cdef ClientConnection client = <ClientConnection>self.clients[cid]
        cdef dict offered = <dict>self.offered[cid]
        cdef uint32_t most = self.moves.slice_subs
        cdef bytes sid
        cdef Sub *sub
        if self.told is None:
            self.told = {one.sid: one.delivered for one in frozen.counts}
            self.bounded = []
            self.at = 0
        while client.subs.slots != NULL and self.at <= client.subs.mask:
            sub = <Sub *>slot_item(client.subs.slots[self.at])
            if client.subs.slots[self.at]:
                if most == 0:
                    return 0
                most -= 1
                if sub.max_msgs != NO_MAX:
                    self.bounded.append(<size_t>sub)
                else:
                    if self.told or offered:
                        sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
                        credit(sub, self.told.get(sid, offered.get(sid, (0, 0))[0]))
                    sub.max_msgs = 0
            self.at += 1
        return self.put_in_order(cid, frozen)

    cdef int put_in_order(self, uint64_t cid, frozen) except -1:
        """Old output first, then what was detached, without what is beyond a max."""
        cdef Moves moves = self.moves
        cdef ClientConnection client = <ClientConnection>self.clients.pop(cid)
        cdef OutBuf *out = &client.out
        cdef bytes detached = unsent_of(client)
        cdef bytes unsent = frozen.unsent
        cdef bytes sid
        cdef dict told = self.told
        cdef dict offered = <dict>self.offered.pop(cid)
        cdef dict most = {}
        cdef list bounded = self.bounded
        cdef list ended = []
        cdef uint64_t before = 0, dropped = 0, header_bytes = 0, msgs, max_msgs
        cdef size_t max_pending = out.max_pending, stall_mark = out.stall_mark
        cdef CloseReason reason = <CloseReason>out.close_reason
        cdef Sub *sub
        self.todo.pop()
        self.told = None
        self.at = 0
        if not self.clients:
            moves.arriving.pop((self.old, self.id), None)
            self.phase = PHASE_OVER
        for address in bounded:
            sub = <Sub *><size_t>address
            sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
            before, max_msgs = offered[sid]
            before = told.get(sid, before)
            if sid in frozen.ended or before >= max_msgs:   # its max was reached at the old shard
                dropped += sub.delivered
                most[sid] = 0
                ended.append(address)
                continue
            if before + sub.delivered >= max_msgs:
                most[sid] = max_msgs - before
                dropped += before + sub.delivered - max_msgs
                ended.append(address)
            credit(sub, before)
            sub.max_msgs = max_msgs
        if most:
            detached = without(detached, most)
        if not frozen.takes_headers:
            detached = bare(detached, &header_bytes)
            out.payload_bytes -= header_bytes
        msgs = out.msgs - dropped
        client.touched = client.published = 0   # every sibling has marked, so it knows
        out_take(out, out_pending(out))
        out.is_behind = 0
        out.has_surplus = False
        out.close_reason = CLOSE_NONE
        out.max_pending = out.stall_mark = 0
        put_state(client, frozen)
        out.msgs = msgs + <uint64_t>frozen.out_msgs
        if unsent:
            out_append(out, <const uint8_t *>unsent, len(unsent))
        if detached:
            out_append(out, <const uint8_t *>detached, len(detached))
        out.max_pending = max_pending
        out.stall_mark = stall_mark
        for address in ended:
            client.end_subscription(<Sub *><size_t>address)
        if reason != CLOSE_NONE:
            out_condemn(out, reason)
        elif max_pending and out_pending(out) > out_most(out):
            out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
        moves.n_arrived += 1
        moves.publishers.pop(cid, None)
        moves.host.arrived(self.old, self.id, client, frozen)
        return 0

    cdef int end(self, str why, bint in_doubt) except -1:
        """They do not come."""
        cdef Moves moves = self.moves
        cdef object _keep = self
        cdef bytes words = why.encode()[:1000]
        while self.phase == PHASE_MARKED and self.todo:   # they are here
            self.work()
        if self.phase == PHASE_OVER:
            return 0
        self.todo = []
        if self.phase != PHASE_MARKED:
            moves.send_all(b"MOVED %d %d 0 %d\r\n%b\r\n" % (self.old, self.id, len(words), words))
            moves.close_mark((self.old, self.id))
        elif in_doubt and moves.mesh.up >> self.old & 1:
            moves.send(self.old, b"MOVED %d %d 0 %d\r\n%b\r\n" % (self.old, self.id, len(words), words))
        self.phase = PHASE_OVER
        moves.arriving.pop((self.old, self.id), None)
        for cid, client in list(self.clients.items()):
            moves.leave(<ClientConnection>client)
            moves.host.lost(self.old, self.id, client, self.records.get(cid), why)
        return moves.look_at_links()


cdef class Mark:
    """A sibling's move that this shard has marked."""


cdef class Moves:
    """The moves of one shard. `host` (a MovesHost) is set before the first; None: every offer is refused."""

    def __cinit__(self, Mesh mesh not None, MeshFence fence not None, Reroutes reroutes not None):
        self.mesh = mesh
        self.fence = fence
        self.reroutes = reroutes
        self.arriving = {}
        self.at_work = []
        self.marks = {}
        self.over = {}
        self.told = {}
        self.shifted = {}
        self.publishers = {}
        self.waiting_links = []
        self.slice_subs = SLICE_SUBS
        mesh.moves = self

    @property
    def is_leaving(self) -> bool:
        """Whether connections move away: move() then refuses others."""
        return self.leaving is not None

    @property
    def n_arriving(self) -> int:
        """Connections that have been announced, and not been handed over."""
        return sum([len((<Arriving>one).clients) + (len((<Arriving>one).todo) - ((<Arriving>one).coming is not None)
                                                    if (<Arriving>one).phase == PHASE_PREPARING else 0)
                    for one in self.arriving.values()])

    @property
    def is_idle(self) -> bool:
        """Whether no move is under way that this shard takes part in."""
        return self.leaving is None and not (self.arriving or self.marks or self.shifted or self.waiting_links)

    # ---- the old shard

    def why_not(self, ClientConnection client not None) -> str | None:
        """Why this client cannot be moved now; None: it can."""
        cdef size_t size
        cdef uint32_t members
        if client.out.moving:
            return "it is moving"
        if client.subs.count > MOST_SUBSCRIPTIONS:   # (asked again and again: look at none of so many)
            return f"it has {client.subs.count:,} subscriptions; at most {MOST_SUBSCRIPTIONS:,} are moved"
        if has_bounded_member(client):
            return "a queue subscription of its has a max"
        if out_pending(&client.out) > MOST_UNSENT_BYTES:
            return f"{out_pending(&client.out):,} bytes wait to be sent to it; at most {MOST_UNSENT_BYTES:,} are moved"
        if client.holds & HOLD_STALL:
            return "it waits for a slow receiver"
        members = count_members(client)
        if members > <uint32_t>MOST_MEMBERS:
            return f"{members:,} of its subscriptions are in queue groups; at most {MOST_MEMBERS:,} are moved"
        size = offer_bytes(client)
        if size > <size_t>MOST_SUBSCRIPTION_BYTES:
            return f"its subscriptions have {size:,} bytes; at most {MOST_SUBSCRIPTION_BYTES:,} are moved"
        return why_not(client)

    def fitting(self, list clients not None) -> int:
        """How many of these clients, from the first on, can move together: by their number and their subscriptions."""
        cdef ClientConnection client
        cdef uint64_t subs = 0, size = 0, members = 0
        cdef int n = 0
        for item in clients[:MOST_CLIENTS]:
            client = <ClientConnection?>item
            subs += client.subs.count
            size += offer_bytes(client)
            members += count_members(client)
            if subs > <uint64_t>MOST_SUBSCRIPTIONS or size > <uint64_t>MOST_SUBSCRIPTION_BYTES \
                    or members > <uint64_t>MOST_MEMBERS:
                break
            n += 1
        return n

    def move(self, list clients not None, int shard) -> int:
        """Begin to move these clients (1 to 256, and no more than are fitting()) to another shard.

        They are not read meanwhile. The host's hand_over() follows for each, or ended() says why they stay.
        Returns the id of the move. RecordRefused, with the reason: nothing has changed.
        """
        cdef Leaving batch
        cdef ClientConnection client
        cdef int n_fitting
        if self.leaving is not None:
            raise records.RecordRefused("other connections are moving away from this shard")
        if self.host is None or not 0 <= shard < 64 or not (self.mesh.up >> shard) & 1:
            raise records.RecordRefused(f"there is no link to shard {shard}")
        if self.mesh.out_of_step:
            raise records.RecordRefused("a link to another shard is not in step")
        if not 1 <= len(clients) <= MOST_CLIENTS:
            raise records.RecordRefused(f"{len(clients)} clients at a time; 1 to {MOST_CLIENTS} can move together")
        for item in clients:
            client = <ClientConnection?>item
            why = self.why_not(client)
            if why is not None:
                raise records.RecordRefused(f"client {client.cid}: {why}")
        n_fitting = self.fitting(clients)
        if n_fitting < len(clients):
            raise records.RecordRefused(f"the subscriptions of {len(clients)} clients; those of {n_fitting} can move "
                                        "together")
        self.last_id = max(self.last_id + 1, self.mesh.fanout.box.now_us)
        batch = Leaving()
        batch.moves = self
        batch.old = self.mesh.shard
        batch.new = shard
        batch.id = self.last_id
        batch.phase = PHASE_PREPARING
        batch.clients = {(<ClientConnection>one).cid: one for one in clients}
        batch.todo = list(reversed(batch.clients))
        batch.members = {}
        batch.offered = []
        batch.written = {}
        batch.gone = set()
        batch.open = {key for key, mark in self.marks.items() if (<Mark>mark).is_open}
        for item in clients:
            client = <ClientConnection>item
            client.holds |= HOLD_MOVE
            client.out.moving = MOVING_OUT
            client.out.takes_from = ~<uint64_t>0
        self.leaving = batch
        self.begin_work(batch)
        return batch.id

    def stop(self):
        """End the present move with its clients where they are, if no mark has been asked for; else it goes on."""
        if self.leaving is None:
            return
        if self.leaving.phase == PHASE_PREPARING:
            self.leaving.end("it was stopped", False)
        elif self.leaving.phase == PHASE_WAITING:
            self.send(self.leaving.new, b"MSTOP %d\r\n" % self.leaving.id)

    cdef int begin_work(self, Batch batch) except -1:
        self.at_work.append(batch)
        self.host.soon()
        return 0

    def go_on(self) -> bool:
        """Do what is due for one client that moves, where a batch has more to do for each of its clients than others
        should wait for. The host calls this in turns of its own after its soon(). False: there is no more for now.

        What it appends to links waits for whatever else is appended there, or for send_on(): for each few frames a
        sibling would be woken, and other processes would wait for it."""
        cdef Batch batch
        cdef uint64_t before
        while self.at_work:
            batch = <Batch>self.at_work[0]
            if batch.todo:
                before = self.dirty_links()
                batch.work()
                self.hold_back(self.dirty_links() & ~before)
                return True
            self.at_work.remove(batch)
        self.send_on()
        return False

    cdef uint64_t dirty_links(self) noexcept:
        cdef uint64_t found = 0
        cdef int shard
        for shard in range(64):
            if self.mesh.fanout.links[shard] != NULL and self.mesh.fanout.links[shard].is_dirty:
                found |= <uint64_t>1 << shard
        return found

    cdef void hold_back(self, uint64_t links) noexcept:
        cdef int shard
        for shard in range(64):
            if links >> shard & 1:
                out_mark_clean(self.mesh.fanout.links[shard])
        self.held_back |= links

    def send_on(self):
        """What go_on() has appended to links is sent when the round ends: where it will not be called for a while."""
        cdef int shard
        for shard in range(64):
            if self.held_back >> shard & 1 and self.mesh.fanout.links[shard] != NULL:
                out_mark_dirty(self.mesh.fanout.links[shard])
        self.held_back = 0

    def on_left(self, ClientConnection client not None):
        """A moving client's connection has ended (MeshFence.keep_moving)."""
        self.leaving.gone.add(client.cid)

    # ---- the new shard

    def on_offer(self, int old, uint64_t id, bytes words not None):
        """MOVE."""
        cdef Arriving batch = Arriving()
        batch.moves = self
        batch.old = old
        batch.new = self.mesh.shard
        batch.id = id
        batch.phase = PHASE_PREPARING
        batch.clients = {}
        batch.records = {}
        batch.todo = []
        batch.members = {}
        batch.offered = {}
        self.arriving[old, id] = batch
        try:
            offer = records.decoded_offer(words)
            batch.shards = offer.shards
            batch.shifts = offer.shifts
            if self.host is None:
                raise records.RecordRefused("this shard takes no connections")
            if self.mesh.out_of_step or offer.shards != self.mesh.up | <uint64_t>1 << self.mesh.shard:
                raise records.RecordRefused("its links to other shards are not the same")
            if not offer.clients:
                raise records.RecordRefused("an offer of nobody")
        except records.RecordRefused as error:
            batch.end(str(error), False)
            return
        batch.todo = list(reversed(offer.clients))
        self.begin_work(batch)

    def on_stop(self, int old, uint64_t id):
        """MSTOP."""
        cdef Arriving batch = self.arriving.get((old, id))
        if batch is not None and batch.phase <= PHASE_WAITING:
            batch.end("it was stopped", False)

    def arrive(self, int old, uint64_t id, frozen) -> bool:
        """A client's record is here (its descriptor is the host's). arrived() or lost() follows, in go_on(), when the
        last mark is here. False: the move is not known, and the client is lost."""
        cdef Arriving batch = self.arriving.get((old, id))
        if batch is None or frozen.cid not in batch.clients or frozen.cid in batch.records:
            return False
        try:
            records.check(frozen)
            if frozen.account != (<ClientConnection>batch.clients[frozen.cid]).sublist.account:
                raise records.RecordRefused("another account")
        except records.RecordRefused:
            return False
        batch.records[frozen.cid] = frozen
        if batch.phase == PHASE_MARKED:
            batch.todo.insert(0, frozen.cid)
            if len(batch.todo) == 1:
                self.begin_work(batch)
        return True

    def forget(self, int old, uint64_t id, uint64_t cid):
        """This client does not come: it has gone while it moved."""
        cdef Arriving batch = self.arriving.get((old, id))
        if batch is None or cid not in batch.clients or cid in batch.records:
            return
        if batch.phase != PHASE_MARKED:   # counted with the others first
            batch.records[cid] = None
            return
        self.drop(batch, cid)

    cdef int leave(self, ClientConnection client) except -1:
        """A connection does not come: other members get what is detached for it as a member of queue groups."""
        cdef dict queues = queues_of(client)
        cdef bytes output = unsent_of(client) if queues else b""
        cdef Sublist sublist = client.sublist
        cdef dict publishers = self.publishers.pop(client.cid, {})
        client.leave()
        return self.reroutes.place_output(sublist, queues, output, publishers)

    def note_publisher(self, ClientConnection client not None, uint64_t publisher):
        """The next message in the output of a client that moves is of this one, which wants no echo."""
        known = self.publishers.get(client.cid)
        if known is not None:
            known[client.out.msgs] = publisher

    cdef int drop(self, Arriving batch, uint64_t cid) except -1:
        cdef ClientConnection client = <ClientConnection>batch.clients.pop(cid)
        self.leave(client)
        self.host.lost(batch.old, batch.id, client, None, "it has gone")
        if not batch.clients:
            batch.phase = PHASE_OVER
            self.arriving.pop((batch.old, batch.id), None)
        return 0

    def end_arrivals(self, int old, uint64_t id=0):
        """The old shard hands nobody over any more, of this move or (0) of any: it has said so, or it is dead."""
        for key, batch in list(self.arriving.items()):
            if key[0] == old and id in (0, key[1]):
                for cid in [cid for cid in (<Arriving>batch).clients if cid not in (<Arriving>batch).records]:
                    if (<Arriving>batch).phase == PHASE_MARKED:
                        self.drop(<Arriving>batch, cid)
                    else:
                        (<Arriving>batch).records[cid] = None
                if (<Arriving>batch).phase != PHASE_MARKED and not any((<Arriving>batch).records.values()):
                    (<Arriving>batch).end("its old shard hands it over no more", True)

    # ---- marks

    def on_mark_wanted(self, int new, int old, uint64_t id, bytes words not None):
        """MARKQ. ValueError: it is not well-formed."""
        cdef tuple shifts = records.decoded_shifts(words)
        cdef bytes padded
        cdef bytes frame = b"MARK %d %d\r\n" % (old, id)
        cdef Leaving batch = self.leaving
        for one in shifts:
            padded = one.subject + bytes(SLACK)
            if subject_kind(<const uint8_t *>padded, len(one.subject)) == SUBJECT_BAD or not one.queue:
                raise ValueError("bad subject or queue in MARKQ")
        if (old, id) in self.marks:
            raise ValueError("MARKQ twice for one move")
        if old != self.mesh.shard:
            self.mark(old, new, id, shifts)
            self.send(new, frame)
            self.send(old, frame)
            return
        if batch is None or batch.id != id or batch.new != new or batch.marked >> old & 1:
            return
        batch.phase = PHASE_MARKING
        batch.marked |= <uint64_t>1 << old | <uint64_t>1 << new
        self.mark(old, new, id, shifts)
        batch.set_takes(~batch.marked)
        self.send(new, frame)
        # (A link that has come back waits for the end of this move, which would wait for its mark. Of another one that
        # broke nobody knows yet: on_gone() or defers() follows.)
        if any([batch.broken >> <int>shard & 1 for _, shard in self.waiting_links]):
            batch.end("a link between shards broke", True)
        else:
            batch.look_whether_marked()

    def on_mark(self, int shard, int old, uint64_t id):
        """MARK."""
        cdef Leaving leaving = self.leaving
        cdef Arriving arriving
        if old == self.mesh.shard:
            if leaving is not None and leaving.id == id and leaving.phase <= PHASE_MARKING:
                leaving.phase = PHASE_MARKING   # (the new shard's MARKQ is on its way)
                leaving.marked |= <uint64_t>1 << shard
                leaving.set_takes(~leaving.marked)
                leaving.look_whether_marked()
            return
        arriving = self.arriving.get((old, id))
        if arriving is not None and arriving.phase == PHASE_MARKING:
            arriving.marked |= <uint64_t>1 << shard
            arriving.set_takes(arriving.marked)
            arriving.look_whether_marked()

    def on_moved(self, int shard, int old, uint64_t id, bint is_counted, bytes words not None):
        """MOVED, of the old shard or of the new one."""
        cdef Mark mark = self.marks.get((old, id))
        cdef Arriving arriving = self.arriving.get((old, id))
        if shard == old:
            self.over[old] = max(self.over.get(old, 0), id)
            self.end_marks_before(old, id, is_counted)
        if mark is not None and shard == old and mark.shifts_old:
            mark.shifts_old = False
            self.unshift(shard, mark.shifts, -1, is_counted)
        elif mark is not None and shard == mark.new:
            if mark.shifts_new:
                mark.shifts_new = False
                self.unshift(shard, mark.shifts, 1, is_counted)
            mark.is_open = False
        self.close_mark((old, id))
        if is_counted:
            return
        why = words.decode("utf-8", "replace")
        if arriving is not None and shard == old:
            arriving.end("its old shard gave it up", False)
        elif self.leaving is not None and old == self.mesh.shard and self.leaving.id == id \
                and shard == self.leaving.new:
            self.leaving.end(why, False)

    cdef int end_marks_before(self, int old, uint64_t id, bint is_counted) except -1:
        """The old shard says that a move is over, and so all before it: a link that joins tells of the last alone."""
        cdef Mark mark
        for key, item in list(self.marks.items()):
            mark = <Mark>item
            if key[0] == old and key[1] < id and mark.shifts_old:
                mark.shifts_old = False
                self.unshift(old, mark.shifts, -1, is_counted)
                self.close_mark(key)
        return 0

    cdef int mark(self, int old, int new, uint64_t id, tuple shifts) except -1:
        cdef Mark mark = Mark()
        mark.new = new
        mark.shifts = shifts
        # (Where its link has ended, or it has said that this is over, the counts that it tells are without them.)
        mark.shifts_old = old != self.mesh.shard and (self.mesh.up >> old) & 1 and id > self.over.get(old, 0)
        mark.shifts_new = new != self.mesh.shard
        mark.is_open = True
        self.marks[old, id] = mark
        if mark.shifts_old:
            self.shift(old, shifts, -1)
        if mark.shifts_new:
            self.shift(new, shifts, 1)
        return 0

    cdef int close_mark(self, tuple key) except -1:
        """Forget the mark if nothing is left of it; who waited for its end goes on."""
        cdef Mark mark = self.marks.get(key)
        if mark is not None:
            if mark.new == self.mesh.shard:
                mark.is_open = False
            if not (mark.is_open or mark.shifts_old or mark.shifts_new):
                del self.marks[key]
        if self.leaving is not None and (mark is None or not mark.is_open):
            self.leaving.open.discard(key)
            self.leaving.look_whether_ready()
        return 0

    # ---- counts of queue members

    cdef int shift(self, int shard, tuple shifts, int sign) except -1:
        for one in shifts:
            key = (shard, one.account, one.subject, one.queue)
            by, times = self.shifted.get(key, (0, 0))
            if times == 0:
                self.told[key] = self.remote_members(key)
            self.shifted[key] = (by + sign * <object>one.members, times + 1)
            self.apply(key)
        self.mesh.has_shifts = bool(self.shifted)
        return 0

    cdef int unshift(self, int shard, tuple shifts, int sign, bint is_counted) except -1:
        """The shard's own counts have them from now on (is_counted), or never will."""
        for one in shifts:
            key = (shard, one.account, one.subject, one.queue)
            by, times = self.shifted[key]
            self.shifted[key] = (by - sign * <object>one.members, times - 1)
            if is_counted:
                self.told[key] += sign * <object>one.members
            self.apply(key)
            if times == 1:
                del self.shifted[key], self.told[key]
        self.mesh.has_shifts = bool(self.shifted)
        return 0

    cdef int apply(self, tuple key) except -1:
        cdef bytes subject = key[2]
        cdef bytes queue = key[3]
        cdef bytes padded = subject + bytes(SLACK)
        cdef bytes padded_queue = queue + bytes(SLACK)
        cdef Sublist sublist = self.mesh.account(key[1])
        if not sublist.set_remote_queue(key[0], <const uint8_t *>padded, len(subject), <const uint8_t *>padded_queue,
                                        len(queue), bounded(self.told[key] + self.shifted[key][0])):
            raise MemoryError
        return 0

    def remote_members(self, tuple key not None) -> int:
        """How many members of a queue group a sibling has as far as this shard knows: (shard, account, subject,
        queue)."""
        cdef bytes subject = key[2]
        cdef bytes queue = key[3]
        cdef bytes padded = subject + bytes(SLACK)
        return (<Sublist>self.mesh.account(key[1])).remote_members(key[0], <const uint8_t *>padded, len(subject),
                                                                   queue, len(queue))

    def on_count(self, int shard, bytes account, bytes subject, bytes queue, uint32_t members) -> int:
        """A sibling tells its count of queue members while it may be shifted; returns what holds here."""
        key = (shard, account, subject, queue)
        if key not in self.told:
            return members
        self.told[key] = members
        return bounded(members + self.shifted[key][0])

    # ---- links

    cdef int send(self, int shard, bytes frame) except -1:
        if self.mesh.fanout.links[shard] != NULL:
            out_append(self.mesh.fanout.links[shard], frame, len(frame))
        return 0

    cdef int send_all(self, bytes frame) except -1:
        cdef int shard
        for shard in range(64):
            if (self.mesh.up >> shard) & 1:
                self.send(shard, frame)
        return 0

    @property
    def is_busy(self) -> bool:
        """Whether a link that joined now would disturb a move."""
        return (self.leaving is not None and self.leaving.phase <= PHASE_ENDING) \
            or any([(<Arriving>one).phase <= PHASE_MARKING for one in self.arriving.values()])

    def defers(self, Peer link not None, int shard) -> bool:
        """A link is about to join. True: it is held, and joins when the moves of this shard are over.

        The sibling of a link that broke lives: what it sent to connections that move may be lost, so they are closed.
        """
        cdef uint64_t bit = <uint64_t>1 << shard
        if self.leaving is not None and self.leaving.phase == PHASE_MARKING and self.leaving.broken & bit:
            self.leaving.end("a link between shards broke", True)
        for batch in list(self.arriving.values()):
            if (<Arriving>batch).phase == PHASE_MARKING and (<Arriving>batch).broken & bit:
                (<Arriving>batch).end("a link between shards broke", True)
        if not self.is_busy:
            return False
        link.holds |= HOLD_MOVE
        self.waiting_links.append((link, shard))
        return True

    def forget_link(self, Peer link not None):
        """It has ended."""
        self.waiting_links = [one for one in self.waiting_links if one[0] is not link]

    cdef int look_at_links(self) except -1:
        while self.waiting_links and not self.is_busy:
            link, shard = self.waiting_links.pop(0)
            (<Peer>link).release(HOLD_MOVE)
            link.join(shard)
        return 0

    def last_word(self) -> bytes:
        """Which moves of this shard are over, for a link that joins: its sibling may yet be asked to mark one.

        Of a process that has moved nobody: all moves of those that had its number before.
        """
        if not self.last_over and self.leaving is None:
            self.last_over = self.mesh.fanout.box.now_us
            self.last_id = max(self.last_id, self.last_over)
        return b"MOVED %d %d 1 0\r\n\r\n" % (self.mesh.shard, self.last_over) if self.last_over else b""

    def on_step(self):
        """A link is in step."""
        if self.leaving is not None:
            self.leaving.look_whether_ready()

    def on_part(self, int shard, bint is_broken):
        """A link has ended. Broken: its sibling may live; on_gone() or a new link follows."""
        cdef uint64_t bit = <uint64_t>1 << shard
        cdef Arriving arriving
        cdef Mark mark
        for key, item in list(self.marks.items()):
            mark = <Mark>item
            if key[0] == shard:
                mark.shifts_old = False
            if mark.new == shard:
                mark.shifts_new = mark.is_open = False
            self.close_mark(key)
        for key in [key for key in self.shifted if key[0] == shard]:
            del self.shifted[key], self.told[key]
        self.mesh.has_shifts = bool(self.shifted)
        if self.leaving is not None:
            if self.leaving.new == shard:
                self.leaving.end("the link to its new shard ended", True)
            elif is_broken:
                self.leaving.broken |= bit
                self.stop()
        for item in list(self.arriving.values()):
            arriving = <Arriving>item
            if arriving.phase <= PHASE_WAITING or (arriving.phase == PHASE_MARKING and arriving.old == shard
                                                   and not arriving.marked & bit):
                arriving.end("a link between shards ended", True)
            elif is_broken:
                arriving.broken |= bit
        if not is_broken:
            self.on_gone(shard)

    def on_gone(self, int shard):
        """A sibling is dead, and counts as having marked."""
        cdef uint64_t bit = <uint64_t>1 << shard
        cdef Batch batch
        self.over.pop(shard, None)
        for item in [self.leaving, *self.arriving.values()]:
            if item is None:
                continue
            batch = <Batch>item
            batch.broken &= ~bit
            batch.marked |= bit
            if batch.phase == PHASE_MARKING:
                batch.set_takes(~batch.marked if batch is self.leaving else batch.marked)
                batch.look_whether_marked()
        self.on_step()
