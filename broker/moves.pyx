# cython: language_level=3, boundscheck=False, wraparound=False
"""Client connections that move from one shard to another: nothing lost, doubled or out of order.

Every shard that publishes changes over at a moment of its own, its mark, which it writes on its links to the old and
to the new shard. The old one delivers what came before the mark, the new one what comes behind it, into the output
of a connection without a socket, which goes out behind the old one's. With its mark a shard also shifts the counts of
queue members. Records and descriptors travel elsewhere: the host (MovesHost) hands them over. Up to the marks a
move can be stopped and nothing has changed; behind them it goes on, or the connections are closed. No cost while
nothing moves; a client that moves is not read, and each of its subscriptions has a max, so that fan-out looks twice.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdio cimport sprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from gnatswarm.broker.freezer cimport (
    put_state, put_subscription, subscription_of, tell_unanswered, unsent_of, why_not)
from gnatswarm.broker.interest cimport (
    NO_MAX, NO_SHIFT, SUB_MARKED, GroupShift, QueueGroup, QueueName, Sub, weight_of)
from gnatswarm.broker.outbuf cimport (
    CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_ROUTE_REMOVED, CLOSE_SLOW_CONSUMER_PENDING_BYTES, HUNG_UP_AND_MISSES,
    MOVING_GONE, MOVING_IN, MOVING_NOT, MOVING_OUT, NOT_HUNG_UP, CloseReason, OutBuf, out_append, out_call, out_condemn,
    out_hang_up, out_mark_clean, out_mark_dirty, out_most, out_pending, out_take)
from gnatswarm.broker.mesh cimport MeshWork
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport HOLD_MOVE, HOLD_STALL, Peer
from gnatswarm.broker.reroutes cimport OriginLink, Sent, read_sent
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.sublist cimport MOST_MATCHING, Sublist, match_steps
from gnatswarm.broker.table cimport slot_item, table_find
from gnatswarm.broker.word cimport SLACK, hash_bytes

import msgspec

from gnatswarm.broker import freezer, frozen as records

# Clients in one batch, and their subscriptions: one with more moves alone, for those that move together are silent
# together.
MOST_CLIENTS = 256
MOST_SUBSCRIPTIONS = 4096
# What takes some µs for each subscription is done for so many in one go_on(): 0.1 to 0.2 ms. A client with 50,000
# would keep others waiting for 0.1 s otherwise, several times. So many are in one part of an offer …
SLICE_SUBS = 64
# … unless they have more bytes than this, with their shifts. With the last one a frame may have 8 MiB more.
PART_BYTES = 64 * 1024
MOST_PART_BYTES = 8 * 1024 * 1024
# So many parts of an offer are on their way or wait at the new shard: its memory for them is bounded.
WINDOW = 8
# A connection that does not come is taken out in one go, if it has no more subscriptions than these.
AT_ONCE = 1024
ALL = 0xFFFFFFFF
# Of requests of the clients in one batch to which nobody responds.
MOST_UNANSWERED_BYTES = 16 * 1024 * 1024
# A client with more unsent bytes is not moved: they are copied, and it would be silent for longer.
MOST_UNSENT_BYTES = 1_048_576

cdef enum:
    # MessagePack around the fields of a Shift: at most 5 bytes for each text, 9 for each number, and 1 for the list.
    SHIFT_BYTES = 25
    # Subscriptions that are only looked at cost less than those that end.
    LOOKED_AT = 8
    # … as members that are only counted do.
    COUNTED = 8


# Above the numbers of queue messages that are sent on, below those of other servers' waits: PINGs wait for all three.
cdef uint64_t FIRST_NUMBER = <uint64_t>3 << 61
cdef uint64_t last_number = 0


cdef list subs_of(ClientConnection client):
    """The addresses of its subscriptions."""
    cdef uint32_t i
    if client.subs.slots == NULL:
        return []
    return [<size_t>slot_item(client.subs.slots[i]) for i in range(client.subs.mask + 1) if client.subs.slots[i]]


cdef bytes subject_of(Sublist sublist, const Sub *sub):
    cdef size_t size = sublist.subject_of(sub.node, NULL, 0)
    cdef bytearray room = bytearray(size + SLACK)
    sublist.subject_of(sub.node, <uint8_t *><char *>room, size)
    return bytes(room[:size])


cdef size_t count_member(ClientConnection client, const Sub *sub, bytes subject, bytes queue, dict members) except? 0:
    """Count a member of a queue group, and its shadows. Returns how many bytes their shifts have, at most."""
    cdef Sub *shadow
    cdef size_t size = count_one((client.sublist.account, subject, queue), members)
    if client.shadows is not None:
        for address, stream in client.shadows.cast_by.get(<size_t>sub, ()):
            shadow = <Sub *><size_t>address
            if shadow.group != NULL:
                size += count_one(((<Sublist>stream.exporter).account, subject_of(stream.exporter, shadow),
                                   (<uint8_t *>shadow.group.name + sizeof(QueueName))[:shadow.group.name.key.size]),
                                  members)
    return size


cdef size_t count_one(tuple key, dict members) except? 0:
    members[key] = members.get(key, 0) + 1
    return len(key[0]) + len(key[1]) + len(key[2]) + SHIFT_BYTES


cdef tuple shifts_of(dict members):
    return tuple([records.Shift(*key, n) for key, n in sorted(members.items())])


cdef dict queues_of(ClientConnection client, bytes output):
    """sid → queue group, of its queue subscriptions that have messages in this output."""
    cdef const uint8_t *at = output
    cdef const uint8_t *end = at + len(output)
    cdef Sent one
    cdef Sub *sub
    cdef bytes sid, padded
    cdef dict found = {}
    cdef set seen = set()
    while read_sent(at, end, &one):
        at = one.end
        sid = one.sid.at[:one.sid.size]
        if sid in seen:
            continue
        seen.add(sid)
        padded = sid + bytes(SLACK)
        sub = <Sub *>table_find(&client.subs, <const uint8_t *>padded, len(sid), <uint32_t>hash_bytes(
            <const uint8_t *>padded, len(sid), client.sublist.seed))
        if sub != NULL and sub.group != NULL:
            found[sid] = (<uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size]
    return found


cdef uint32_t let_maxima_go(ClientConnection client, uint32_t at, uint32_t most) noexcept:
    """While it moves each subscription has a max, so that fan-out looks at where it is. Ends that for so many; returns
    where others follow, or ALL."""
    cdef Sub *sub
    while client.subs.slots != NULL and at <= client.subs.mask:
        sub = <Sub *>slot_item(client.subs.slots[at])
        if sub != NULL:
            if most == 0:
                return at
            most -= 1
            if sub.max_msgs == NO_MAX:
                sub.max_msgs = 0
        at += 1
    return ALL


cdef int change_entries(ClientConnection client, uint32_t most) except -1:
    """What matches its subscriptions is looked up anew: it takes, or does not take, what is published here. Where there
    are more than so many, so is all that is published in its account."""
    cdef Sub *sub
    cdef uint32_t i
    if client.subs.slots == NULL:
        return 0
    if client.subs.count > most:
        client.sublist.forget_entries()
        if client.shadows is not None:
            client.shadows.forget_entries()
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


cdef bytes trimmed(bytes output, dict most, bint takes_headers, uint64_t *cut):
    """Output of messages alone, with at most so many of some sids (counts them down), and for a client that knows no
    headers without these. Adds to `cut` the bytes of payloads and headers that are left out."""
    cdef const uint8_t *at = output
    cdef const uint8_t *end = at + len(output)
    cdef const uint8_t *since = at   # what is not in `kept` yet
    cdef bytearray room = bytearray(len(output))
    cdef uint8_t *kept = room
    cdef Sent one
    cdef Token tail
    if not most and (takes_headers or b"HMSG " not in output):
        return output
    while read_sent(at, end, &one):
        at = one.end
        left = most.get(one.sid.at[:one.sid.size]) if most else None
        if left is not None and left == 0:
            cut[0] += one.size
            kept = put(kept, since, one.at)
            since = one.end
            continue
        if left is not None:
            most[one.sid.at[:one.sid.size]] = left - 1
        if not takes_headers and one.at[0] == c"H":
            cut[0] += one.header_size
            kept = put(kept, since, one.at)
            tail = one.reply if one.reply.size else one.sid
            kept = put(kept, one.at + 1, tail.at + tail.size)
            kept += sprintf(<char *>kept, " %zu\r\n", one.size - one.header_size)
            since = one.payload + one.header_size
    kept = put(kept, since, end)   # (with the beginning of a message that was beyond its limit, and was not taken)
    return bytes(room[:kept - <uint8_t *>room])


cdef inline uint8_t *put(uint8_t *to, const uint8_t *at, const uint8_t *end) noexcept:
    """The bytes from `at` to `end`; returns where others follow."""
    memcpy(to, at, end - at)
    return to + (end - at)


cdef class Batch(FencedBatch):
    """Connections that move together."""

    def __cinit__(self):
        self.deaf = set()

    cdef int set_takes(self, uint64_t takes_from) except -1:
        """Take messages of these shards from now on."""
        cdef ClientConnection client
        cdef uint64_t own = <uint64_t>1 << self.moves.mesh.shard
        cdef bint is_shut = not takes_from & own
        for item in self.clients.values():
            client = <ClientConnection>item
            if client.cid in self.deaf:
                continue
            client.out.takes_from = takes_from
            if client.out.is_shut != is_shut:
                client.out.is_shut = is_shut
                change_entries(client, self.moves.slice_subs)
        return 0

    cdef int look_whether_marked(self) except -1:
        cdef object _keep = self
        if self.phase == PHASE_MARKING and not self.shards & ~self.marked:
            self.phase = PHASE_MARKED
            self.on_all_marked()
        return 0

    cdef int on_all_marked(self) except -1:
        raise NotImplementedError

    cdef bint has_work(self) except -1:
        return len(self.todo) != 0

    cdef int work(self) except -1:
        raise NotImplementedError

    cdef int end(self, str why, bint in_doubt) except -1:
        raise NotImplementedError


cdef class Written:
    """A client that is being written down, or was."""

    def __cinit__(self, ClientConnection client not None):
        self.client = client
        self.out_msgs = client.out.msgs
        self.delivered = {}
        self.bounded = set()
        self.counts = []


cdef class Leaving(Batch):
    """At the old shard."""

    cdef bint has_work(self) except -1:
        if self.phase == PHASE_PREPARING:   # (the new shard says when it takes more)
            return len(self.todo) != 0 and self.unheard < self.moves.window
        return len(self.todo) != 0 or (self.phase == PHASE_ENDING and len(self.parts) != 0)

    cdef int write_next(self) except -1:
        """Write down some subscriptions of one client; what is a part of the offer by then is sent."""
        cdef Moves moves = self.moves
        cdef object cid = self.todo[len(self.todo) - 1]
        cdef object _keep = self
        cdef ClientConnection client = <ClientConnection>self.clients[cid]
        cdef Written written = self.written.get(cid)
        cdef uint32_t most = moves.slice_subs
        try:
            if cid in self.gone or client.is_closing or client.out.close_reason != CLOSE_NONE:
                raise records.RecordRefused("it is being closed")
            if written is None:   # (it is not read from here on)
                words = moves.host.words_of(client)
                written = self.written[cid] = Written(client)
                self.at = 0
                self.part.append((cid, client.sublist.account, words, []))
                self.part_bytes += len(words)
            elif not self.part:
                self.part.append((cid, client.sublist.account, b"", []))
            if not self.is_written(written, most) and self.part_subs < most and self.part_bytes < <size_t>PART_BYTES:
                return 0
            if self.part_bytes > <size_t>MOST_PART_BYTES:
                client.is_too_large = True   # (it is asked for again with others)
                raise records.RecordRefused(moves.why_not_of(client))
        except records.RecordRefused as error:
            why = str(error)
            if len(self.clients) == 1 or client.is_too_large:
                return self.end(why, False)
            self.at = ALL
            if written is None:   # (else the new shard hears in the end that it does not come)
                del self.clients[cid]
                self.let_stay(client)
        if self.at == ALL:
            self.todo.pop()
            self.at = 0
        if self.todo and self.part_subs < most and self.part_bytes < <size_t>PART_BYTES:
            return 0
        return self.offer()

    cdef bint is_written(self, Written written, uint32_t most) except -1:
        """Write down so many subscriptions; whether all are."""
        cdef ClientConnection client = written.client
        cdef list subscriptions = self.part[len(self.part) - 1][3]
        cdef list sids = []
        cdef Sub *sub
        cdef uint32_t looks = most * LOOKED_AT
        cdef bint is_all = True
        while client.subs.slots != NULL and self.at <= client.subs.mask:
            sub = <Sub *>slot_item(client.subs.slots[self.at])
            if sub != NULL:
                if most == 0 or looks == 0 or self.part_bytes >= <size_t>PART_BYTES:
                    is_all = False
                    break
                looks -= 1
                if sub.max_msgs != NO_MAX and not (sub.max_msgs and self.sid_of(sub) in written.bounded):
                    most -= 1
                    self.write(written, sub, subscriptions, sids)
            self.at += 1
        if sids:
            self.part_members.append((written, sids))
        if is_all:
            self.at = ALL
        return is_all

    cdef bytes sid_of(self, const Sub *sub):
        return (<const uint8_t *>sub + sizeof(Sub))[:sub.key.size]

    cdef int write(self, Written written, Sub *sub, list subscriptions, list sids) except -1:
        one = subscription_of(written.client, sub)
        encoded = records.encoded_subscription(one)
        subscriptions.append(encoded)
        self.part_subs += 1
        self.part_bytes += memoryview(encoded).nbytes
        if sub.delivered:
            written.delivered[<size_t>sub] = sub.delivered
        if one.max_msgs:
            written.bounded.add(one.sid)
        else:
            sub.max_msgs = NO_MAX
        if sub.group != NULL:
            self.part_bytes += count_member(written.client, sub, one.subject, one.queue, self.members)
            sids.append(one.sid)
        return 0

    cdef int offer(self) except -1:
        """Send what is written down."""
        cdef Moves moves = self.moves
        cdef bint is_last = not self.todo
        cdef tuple shifts = shifts_of(self.members)
        if moves.mesh.out_of_step or not (moves.mesh.up >> self.new) & 1:
            return self.end("its links to other shards have changed", False)
        if not self.has_begun:
            self.marked = 0
            self.shards = moves.mesh.up | <uint64_t>1 << self.old
        clients = [records.encoded_client(records.OfferedClient(cid, account, words, tuple(subscriptions)))
                   for cid, account, words, subscriptions in self.part]
        words = records.encoded_offer(records.Offer(records.MOVE_RECORD_VERSION, self.shards, is_last, tuple(clients),
                                                    shifts))
        verb = b"MPART" if self.has_begun else b"MOVE"
        moves.send(self.new, b"%b %d %d\r\n%b\r\n" % (verb, self.id, len(words), words))
        self.has_begun = True
        self.unheard += 1
        if self.part_members:
            self.parts.append((len(shifts), self.part_members))
        self.members = {}
        self.part = []
        self.part_members = []
        self.part_subs = 0
        self.part_bytes = 0
        if is_last:
            self.phase = PHASE_WAITING
        return 0

    cdef int on_all_marked(self) except -1:
        """Nothing comes here for them any more: their subscriptions end."""
        cdef object _keep = self
        self.phase = PHASE_ENDING
        self.at = 0
        self.todo = [cid for cid in reversed(self.clients) if cid in self.written]
        self.parts.reverse()
        self.end_next(self.moves.slice_subs)
        return self.moves.begin_work(self) if self.phase == PHASE_ENDING else 0

    cdef int end_next(self, uint32_t most) except -1:
        """End so many subscriptions; behind the last of all, say so.

        Members of queue groups end part by part as they were offered, and with each part siblings hear that they are
        gone: a count that another one tells in between would be without them, and then they would be subtracted again.
        """
        cdef Moves moves = self.moves
        cdef Written written
        while self.todo:
            written = <Written>self.written[self.todo[len(self.todo) - 1]]
            most -= self.end_some(written, most)
            if <uint32_t>len(written.counts) >= moves.slice_subs:
                self.say_counts(written)
            if self.at != ALL:
                return 0
            if <uint32_t>len(written.bounded) > moves.slice_subs:
                return self.say_ended(written)
            self.todo.pop()
            self.at = 0
        while self.parts:
            if most == 0:
                return 0
            n, members = self.parts.pop()
            for item, sids in members:
                self.end_members(<Written>item, sids)
                most -= min(most, <uint32_t>len(sids))
            moves.send_all(b"MDONE %d %d %d\r\n" % (self.old, self.id, n))
        for item in self.clients.values():
            (<ClientConnection>item).out.moving = MOVING_GONE
        self.phase = PHASE_MARKED
        moves.last_over = self.id
        moves.send_all(b"MOVED %d %d 1 0\r\n\r\n" % (self.old, self.id))
        if self.given_up is not None:
            return self.end(self.given_up, True)
        moves.fence.fence_batch(self)
        return moves.look_at_links()

    cdef uint32_t end_some(self, Written written, uint32_t most) except? 0:
        """End at most so many subscriptions of a client that are in no queue group; how many. `at` is ALL behind the
        last."""
        cdef ClientConnection client = written.client
        cdef Sub *sub
        cdef list ending = []
        cdef uint32_t n_ended = 0
        cdef uint64_t most_steps = match_steps + MOST_MATCHING   # for what they got of other accounts
        cdef uint32_t slot = self.at, looks = most * LOOKED_AT
        while client.subs.slots != NULL and slot <= client.subs.mask and <uint32_t>len(ending) < most and looks:
            sub = <Sub *>slot_item(client.subs.slots[slot])
            if sub != NULL:
                looks -= 1
                if sub.group == NULL:
                    if not ending:   # (where one is taken out, others move back)
                        self.at = slot
                    ending.append(<size_t>sub)
            slot += 1
        if not ending:
            self.at = ALL if client.subs.slots == NULL or slot > client.subs.mask else slot
        client.out.moving = MOVING_GONE
        for address in ending:
            if match_steps > most_steps:
                break
            self.end_one(written, <Sub *><size_t>address)
            n_ended += 1
        client.out.moving = MOVING_OUT   # until the last has ended: a client that goes meanwhile is kept
        return n_ended

    cdef int end_members(self, Written written, list sids) except -1:
        """End these subscriptions of a client, which are in queue groups."""
        cdef ClientConnection client = written.client
        cdef bytes padded
        cdef Sub *sub
        client.out.moving = MOVING_GONE
        for sid in sids:
            padded = sid + bytes(SLACK)
            sub = <Sub *>table_find(&client.subs, <const uint8_t *>padded, len(sid), <uint32_t>hash_bytes(
                <const uint8_t *>padded, len(sid), client.sublist.seed))
            if sub != NULL:
                self.end_one(written, sub)
        client.out.moving = MOVING_OUT
        if <uint32_t>len(written.counts) >= self.moves.slice_subs:
            self.say_counts(written)
        return 0

    cdef int end_one(self, Written written, Sub *sub) except -1:
        """End a subscription, and note what was delivered."""
        cdef bytes sid
        if sub.max_msgs != NO_MAX:
            written.bounded.discard((<uint8_t *>sub + sizeof(Sub))[:sub.key.size])
        if written.client.out.msgs != written.out_msgs:   # or they are what was written down
            if sub.delivered != <uint64_t>written.delivered.pop(<size_t>sub, 0):
                sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
                written.counts.append(records.FrozenCount(sid, sub.delivered))
        written.client.end_subscription(sub)
        return 0

    cdef int say_counts(self, Written written) except -1:
        """Not all in its record: that is made, sent and read in one piece."""
        words = records.encoded_counts(records.Counts(written.client.cid, tuple(written.counts), ()))
        written.counts = []
        return self.moves.send(self.new, b"MCOUNT %d %d\r\n%b\r\n" % (self.id, len(words), words))

    cdef int say_ended(self, Written written) except -1:
        ended = tuple([written.bounded.pop() for _ in range(self.moves.slice_subs)])
        words = records.encoded_counts(records.Counts(written.client.cid, (), ended))
        return self.moves.send(self.new, b"MCOUNT %d %d\r\n%b\r\n" % (self.id, len(words), words))

    cdef int on_fenced(self) except -1:
        self.is_fenced = True
        return self.look_whether_ready()

    cdef int look_whether_ready(self) except -1:
        """Hand them over, if siblings have seen everything that they have caused, and no publisher among them overtakes
        what it sent before: a move that this shard had marked must be marked by the next one too."""
        cdef Moves moves = self.moves
        if self.phase != PHASE_MARKED or not self.is_fenced or self.open \
                or moves.mesh.out_of_step & ~moves.mesh.newcomers:
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
        cdef Dropping dropping
        cdef object _keep = self   # (it is the moves' no more, before this is over)
        cdef ClientConnection client = <ClientConnection>self.clients.pop(cid)
        client.out.moving = MOVING_NOT   # (one that was closed before all was written down may have subscriptions left)
        if cid in self.gone:
            dropping = Dropping()
            dropping.client = client
            moves.do_or_put_off(dropping)
        elif client.is_closing or client.out.close_reason != CLOSE_NONE:
            client.release(HOLD_MOVE)
            out_call(&client.out)
        elif client.is_in_doubt:
            client.close(CLOSE_ROUTE_REMOVED)
            client.release(HOLD_MOVE)
            moves.n_lost += 1
        elif cid in self.deaf:   # what it said before is carried out here, where nobody waits for it
            self.let_stay(client)
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
        if self.phase == PHASE_ENDING:   # others have marked: it goes on to its end, in its turns
            self.given_up = why
            return 0
        is_marked = self.phase > PHASE_WAITING
        if self.phase == PHASE_PREPARING:   # the new shard has not heard of all, and has asked for nothing
            in_doubt = False
            if self.has_begun:
                moves.send(self.new, b"MOVED %d %d 0 0\r\n\r\n" % (self.old, self.id))
        self.phase = PHASE_OVER
        self.todo = []
        members = {(<Written>one).client.cid for _, part in self.parts for one, _ in part} if in_doubt else ()
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
            if cid not in self.gone and (is_marked or cid in members):
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
        cdef Staying staying = Staying()
        client.unanswered = None
        client.out.moving = MOVING_NOT
        client.out.is_shut = False
        staying.client = client
        staying.n_subs = client.subs.count
        staying.has_left = client.cid in self.gone
        if client.out.hung_up == HUNG_UP_AND_MISSES and not staying.has_left:
            client.out.is_deaf = 1
            out_condemn(&client.out, CLOSE_CLIENT_CLOSED)
        client.out.hung_up = NOT_HUNG_UP
        return self.moves.do_or_put_off(staying)


cdef class Chore:
    """What is left to do of a move that is over, some of it in each go_on()."""

    cdef bint work(self, uint32_t most) except -1:
        raise NotImplementedError


cdef class Staying(Chore):
    """A client that moves no more."""

    cdef bint work(self, uint32_t most) except -1:
        if self.has_left:
            return self.client.leave(most)
        if self.client.out.close_reason != CLOSE_NONE:   # (it may be leaving)
            self.client.release(HOLD_MOVE)
            return True
        self.at = let_maxima_go(self.client, self.at, most)
        if self.at != ALL:
            return False
        if self.client.subs.count != self.n_subs:
            # Some have ended meanwhile, and the table has put others in their place, from behind to before `at`.
            self.n_subs = self.client.subs.count
            self.at = 0
            return False
        self.client.release(HOLD_MOVE)
        return True


cdef class Dropping(Chore):
    """A connection that does not come."""

    cdef bint work(self, uint32_t most) except -1:
        return self.client.leave(most)


cdef class Arriving(Batch):
    """At the new shard."""

    def __cinit__(self):
        global last_number
        last_number += 1
        self.number = FIRST_NUMBER + last_number
        self.pinging = []

    def __dealloc__(self):
        free(self.bounded)

    cdef bint has_work(self) except -1:
        return len(self.todo) != 0 or self.phase == PHASE_ENDING

    cdef int work(self) except -1:
        cdef object cid
        if self.phase == PHASE_PREPARING:
            return self.admit_next()
        if self.phase == PHASE_ENDING:
            return self.count_next(self.moves.slice_subs * COUNTED)
        cid = self.todo[len(self.todo) - 1]
        if self.records[cid] is None:
            self.todo.pop()
            return self.moves.drop(self, cid)
        return self.settle(cid, self.records[cid])

    cdef int admit_next(self) except -1:
        """Make connections that were announced, or some subscriptions of one. Behind a part of the offer siblings are
        told of its members of queue groups; behind the last, wait for every sibling's PONG."""
        cdef object _keep = self
        cdef Moves moves = self.moves
        cdef ClientConnection client
        cdef uint32_t most = moves.slice_subs
        cdef uint64_t most_steps = match_steps + MOST_MATCHING   # for what they get of other accounts
        try:
            if self.part is None:
                self.part = records.decoded_offer(self.todo[len(self.todo) - 1])
                self.clients_left = list(reversed(self.part.clients))
                self.look_at_part()
            if self.coming is None and self.clients_left:
                self.coming = records.decoded_client(self.clients_left.pop())
                self.at = 0
                if self.coming.cid != self.last_cid:
                    self.last_cid = self.coming.cid
                    self.admit(self.coming)
            if self.coming is not None:
                client = <ClientConnection>self.clients[self.coming.cid]
                while self.at < <uint32_t>len(self.coming.subscriptions):
                    if most == 0 or match_steps > most_steps:
                        return 0
                    most -= 1
                    self.subscribe(client, records.decoded_subscription(self.coming.subscriptions[self.at]))
                    self.at += 1
                self.coming = None
            if self.clients_left:
                return 0
            if shifts_of(self.members) != self.part.shifts:
                raise records.RecordRefused("its accounts import other streams")
        except records.RecordRefused as error:
            return self.end(str(error), False)
        self.todo.pop()
        part, self.part = self.part, None
        self.members = {}
        if part.shifts:
            words = records.encoded_shifts(part.shifts)
            moves.stage(self.old, self.new, self.id, part.shifts)
            moves.send_all(b"MSHIFT %d %d %d\r\n%b\r\n" % (self.old, self.id, len(words), words))
        moves.send(self.old, b"MNEXT %d\r\n" % self.id)
        if not part.is_last:
            return 0
        self.phase = PHASE_WAITING
        return moves.fence.fence_batch(self)

    cdef bint part_is_last(self) except -1:
        return self.part is not None and self.part.is_last

    cdef int look_at_part(self) except -1:
        """RecordRefused."""
        cdef Moves moves = self.moves
        if moves.host is None:
            raise records.RecordRefused("this shard takes no connections")
        if moves.mesh.out_of_step or self.part.shards != moves.mesh.up | <uint64_t>1 << moves.mesh.shard:
            raise records.RecordRefused("its links to other shards are not the same")
        if not self.part.clients and not self.clients:
            raise records.RecordRefused("an offer of nobody")
        return 0

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
        if one.cid in self.moves.gone.get((self.old, self.id), ()):
            self.moves.forget(self.old, self.id, one.cid)
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
        cdef Mark mark
        if self.phase != PHASE_WAITING:
            return 0
        if moves.mesh.out_of_step or moves.mesh.up & ~self.shards or not moves.mesh.up >> self.old & 1:
            return self.end("its links to other shards have changed", False)
        self.phase = PHASE_MARKING
        self.shards = moves.mesh.up | own
        self.marked |= own
        mark = moves.mark(self.old, self.new, self.id)
        self.set_takes(own)
        moves.send_all(b"MARKQ %d %d %d\r\n" % (self.old, self.id, mark.n))
        return self.look_whether_marked()

    cdef int on_all_marked(self) except -1:
        """Queue groups count them from now on."""
        cdef object _keep = self
        self.set_takes(~<uint64_t>0)
        self.phase = PHASE_ENDING
        self.at = 0
        self.send_pongs()
        self.moves.close_mark((self.old, self.id))
        self.count_next(self.moves.slice_subs * COUNTED)
        return self.moves.begin_work(self) if self.phase == PHASE_ENDING else 0

    cdef int send_pongs(self) except -1:
        """PINGs have waited for the last mark (see await_marks())."""
        pinging, self.pinging = self.pinging, []
        for link in pinging:
            if not (<OriginLink>link).is_closing:
                (<OriginLink>link).on_settled(self.number)
        return 0

    cdef int count_next(self, uint32_t most) except -1:
        """Count so many of their members of queue groups; behind the last of all, say so."""
        cdef Moves moves = self.moves
        cdef Mark mark = <Mark>moves.marks[self.old, self.id]
        cdef uint32_t first = self.at
        while self.at < mark.n and most:
            mark.shifts[self.at].group.n_members += mark.shifts[self.at].members
            self.at += 1
            most -= 1
        mark.state.more_from = self.at
        if self.at > first:
            moves.send_all(b"MDONE %d %d %d\r\n" % (self.old, self.id, self.at - first))
        if self.at < mark.n:
            return 0
        self.phase = PHASE_MARKED
        self.at = 0
        for item in self.clients.values():
            (<ClientConnection>item).out.moving = MOVING_NOT
        moves.send_all(b"MOVED %d %d 1 0\r\n\r\n" % (self.old, self.id))
        moves.close_own((self.old, self.id))
        if self.records:
            self.todo = list(reversed(self.records))
            moves.begin_work(self)
        return moves.look_at_links()

    cdef int settle(self, uint64_t cid, frozen) except -1:
        """Its record is here: credit some of its subscriptions with what they have had at the old shard. Behind the
        last, it goes on, and is in todo no more. Those with a max wait until then: what is beyond it is dropped."""
        cdef ClientConnection client = <ClientConnection>self.clients[cid]
        cdef dict offered = <dict>self.offered[cid]
        cdef uint32_t most = self.moves.slice_subs
        cdef bytes sid
        cdef Sub *sub
        if self.told is None:
            self.told, self.ended = self.counts.pop(cid, ({}, set()))
            self.told.update({one.sid: one.delivered for one in frozen.counts})
            self.ended.update(frozen.ended)
            self.most = {}
            self.dropped = 0
            self.at = 0
        while client.subs.slots != NULL and self.at <= client.subs.mask:
            sub = <Sub *>slot_item(client.subs.slots[self.at])
            if client.subs.slots[self.at]:
                if most == 0:
                    return 0
                most -= 1
                if sub.max_msgs != NO_MAX:
                    if self.settle_bounded(client, sub, offered):
                        continue   # the table may have put another one in its place
                else:
                    if self.told or offered:
                        sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
                        before = offered.pop(sid, (0, 0))[0]   # (what is left there is let go in one piece)
                        credit(sub, self.told.pop(sid, before))
                    sub.max_msgs = 0
            self.at += 1
        return self.put_in_order(cid, frozen)

    cdef bint settle_bounded(self, ClientConnection client, Sub *sub, dict offered) except -1:
        """One with a max; whether it has ended, because that was reached at the old shard."""
        cdef bytes sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
        cdef uint64_t before, max_msgs
        cdef uint32_t room
        cdef void *bounds
        item = offered.pop(sid, None)
        if item is None:   # the table has put it here, and it is known
            return False
        before, max_msgs = item
        before = self.told.pop(sid, before)
        if sid in self.ended or before >= max_msgs:
            self.dropped += sub.delivered
            if sub.delivered:
                self.most[sid] = 0
            client.end_subscription(sub)
            return True
        if self.n_bounded == self.room_bounded:
            room = max(<uint32_t>16, 2 * self.room_bounded)
            bounds = realloc(self.bounded, room * sizeof(Bounded))
            if bounds == NULL:
                raise MemoryError
            self.bounded = <Bounded *>bounds
            self.room_bounded = room
        self.bounded[self.n_bounded].sub = sub
        self.bounded[self.n_bounded].before = before
        self.bounded[self.n_bounded].max_msgs = max_msgs
        self.n_bounded += 1
        return False

    cdef int put_in_order(self, uint64_t cid, frozen) except -1:
        """Old output first, then what was detached, without what is beyond a max."""
        cdef Moves moves = self.moves
        cdef ClientConnection client = <ClientConnection>self.clients.pop(cid)
        cdef OutBuf *out = &client.out
        cdef bytes detached = unsent_of(client)
        cdef bytes unsent = frozen.unsent
        cdef bytes sid
        cdef dict most = self.most
        cdef list ended = []
        cdef uint64_t dropped = self.dropped, cut_bytes = 0, msgs
        cdef Bounded *one
        cdef uint32_t i
        cdef size_t max_pending = out.max_pending, stall_mark = out.stall_mark
        cdef CloseReason reason = <CloseReason>out.close_reason
        cdef Sub *sub
        self.todo.pop()
        self.told = None
        self.at = 0
        del self.offered[cid]
        if not self.clients:
            moves.arriving.pop((self.old, self.id), None)
            self.phase = PHASE_OVER
        for i in range(self.n_bounded):
            one = &self.bounded[i]
            sub = one.sub
            if one.before + sub.delivered >= one.max_msgs:
                if one.before + sub.delivered > one.max_msgs:
                    sid = (<uint8_t *>sub + sizeof(Sub))[:sub.key.size]
                    most[sid] = one.max_msgs - one.before
                    dropped += one.before + sub.delivered - one.max_msgs
                ended.append(<size_t>sub)
            credit(sub, one.before)
            sub.max_msgs = one.max_msgs
        self.n_bounded = 0
        detached = trimmed(detached, most, frozen.takes_headers, &cut_bytes)
        out.payload_bytes -= cut_bytes
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
        tell_unanswered(client, frozen)
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
        if self.phase == PHASE_ENDING:   # others have marked, and will not hear that they have not come
            self.count_next(ALL)
        while self.phase == PHASE_MARKED and self.todo:   # they are here
            self.work()
        if self.phase == PHASE_OVER:
            return 0
        self.todo = []
        if self.phase != PHASE_MARKED:
            moves.send_all(b"MOVED %d %d 0 %d\r\n%b\r\n" % (self.old, self.id, len(words), words))
            moves.close_own((self.old, self.id))
        elif in_doubt and moves.mesh.up >> self.old & 1:
            moves.send(self.old, b"MOVED %d %d 0 %d\r\n%b\r\n" % (self.old, self.id, len(words), words))
        self.phase = PHASE_OVER
        self.send_pongs()
        moves.arriving.pop((self.old, self.id), None)
        for cid, client in list(self.clients.items()):
            moves.leave(<ClientConnection>client)
            moves.host.lost(self.old, self.id, client, self.records.get(cid), why)
        return moves.look_at_links()


cdef uint32_t told_of(const QueueGroup *group, uint32_t shard) noexcept:
    """How many members a sibling has, those that move as they count now."""
    cdef uint32_t i
    for i in range(group.n_remote):
        if group.remote[i].shard == shard:
            return weight_of(group, i)
    return 0


cdef class Mark:
    """A sibling's move of which this shard shifts counts, or will, and which it has marked, or will."""

    def __cinit__(self):
        self.state.less_from = self.state.more_from = NO_SHIFT
        self.accounts = {}

    def __dealloc__(self):   # (groups may be gone)
        cdef uint32_t i
        for i in range(self.n_over, self.n):
            free(self.shifts[i])
        free(self.shifts)

    cdef int add(self, Sublist sublist, bytes subject, bytes queue, uint32_t members, bint awaits_new) except -1:
        """MemoryError."""
        cdef bytes padded = subject + bytes(SLACK)
        cdef bytes padded_queue = queue + bytes(SLACK)
        cdef uint32_t room
        cdef void *shifts
        cdef GroupShift *shift
        if self.n == self.room:
            room = max(<uint32_t>64, 2 * self.room)
            shifts = realloc(self.shifts, room * sizeof(GroupShift *))
            if shifts == NULL:
                raise MemoryError
            self.shifts = <GroupShift **>shifts
            self.room = room
        shift = <GroupShift *>calloc(1, sizeof(GroupShift))
        if shift == NULL:
            raise MemoryError
        shift.state = &self.state
        shift.number = self.n
        shift.members = members
        shift.account = self.accounts.setdefault(sublist, len(self.accounts))
        if not sublist.stage(shift, <const uint8_t *>padded, len(subject), <const uint8_t *>padded_queue, len(queue),
                             awaits_new):
            free(shift)
            raise MemoryError
        self.shifts[self.n] = shift
        self.n += 1
        return 0

    cdef Sublist sublist_of(self, const GroupShift *shift):
        if self.sublists is None or len(self.sublists) != len(self.accounts):
            self.sublists = list(self.accounts)
        return <Sublist>self.sublists[shift.account]

    cdef bint is_heard(self) except -1:
        """Whether somebody here hears of siblings' members: the gateway's servers do."""
        cdef Sublist sublist = <Sublist>next(iter(self.accounts), None)
        return sublist is not None and sublist.sink.hears_remote

    cdef list of_each_group(self):
        """The number of one shift of each group: a client may have a million members in one group, and so thousands of
        shifts of it, and another one that moves meanwhile as many, which may be in front of these."""
        cdef list found = []
        cdef set behind = set()   # addresses of groups
        cdef const GroupShift *newest
        cdef uint32_t i
        for i in range(self.n_over, self.n):
            newest = self.shifts[i].group.shifts
            if newest.state == &self.state:
                if newest == self.shifts[i]:
                    found.append(i)
            elif <size_t>self.shifts[i].group not in behind:
                behind.add(<size_t>self.shifts[i].group)
                found.append(i)
        return found

    cdef int change(self, uint32_t *cursor, int shard, uint32_t start, uint32_t most, bint hears) except -1:
        """The shifts on one side hold, from `start` on, or (NO_SHIFT) none holds any more. `hears`: who hears of
        siblings' members hears of each (else there are as many on the other side). What matches is looked up anew: for
        more than so many shifts all that is published in their accounts."""
        cdef GroupShift *shift
        cdef Sublist sublist
        cdef uint32_t i, before = cursor[0]
        if hears and self.is_heard():
            for i in self.of_each_group():
                self.tell(i, shard, cursor, before, start)
        cursor[0] = start
        if self.n <= most:
            for i in range(self.n_over, self.n):
                shift = self.shifts[i]
                self.sublist_of(shift).node_changed(shift.group.node)
        else:
            for sublist in self.accounts:
                sublist.forget_entries()
        return 0

    cdef int tell_differences(self) except -1:
        """The shifts are about to hold on both sides. Who hears of siblings' members has nothing to hear, but where the
        old shard has not told yet of a member that moves: then there is one more now."""
        cdef Sublist sublist
        cdef QueueGroup *group
        cdef int64_t less
        cdef uint32_t i, less_before, more_before
        if not self.is_heard():
            return 0
        for i in self.of_each_group():
            group = self.shifts[i].group
            self.state.less_from = self.state.more_from = NO_SHIFT
            less_before = told_of(group, self.state.old)
            more_before = told_of(group, self.state.new)
            self.state.less_from = self.state.more_from = 0
            less = <int64_t>less_before - told_of(group, self.state.old)
            if <int64_t>told_of(group, self.state.new) - more_before != less:
                sublist = self.sublist_of(self.shifts[i])
                more_before += <uint32_t>less
                sublist.tell_remote_queue(group.node, group, self.state.new, more_before, sublist.sink)
        return 0

    cdef int tell(self, uint32_t number, int shard, uint32_t *cursor, uint32_t start, uint32_t then) except -1:
        """What becomes of the count of this one's group when the cursor goes from `start` to `then`."""
        cdef QueueGroup *group = self.shifts[number].group
        cdef Sublist sublist = self.sublist_of(self.shifts[number])
        cdef uint32_t i, before
        for i in range(group.n_remote):
            if group.remote[i].shard == <uint32_t>shard:
                cursor[0] = start
                before = weight_of(group, i)
                cursor[0] = then
                if weight_of(group, i) != before:
                    sublist.tell_remote_queue(group.node, group, shard, before, sublist.sink)
                break
        return 0

    cdef int count(self, uint32_t *cursor, int shard, int sign, uint32_t n) except -1:
        """The shard's own counts have so many more of the shifts from now on. ValueError: there are not so many."""
        cdef GroupShift *shift
        if n > self.n - cursor[0]:
            raise ValueError("MDONE of more shifts than there are")
        while n:
            shift = self.shifts[cursor[0]]
            cursor[0] += 1
            self.sublist_of(shift).count_shift(shift, shard, sign * <int64_t>shift.members)
            n -= 1
        return 0

    cdef int forget(self, uint32_t most) except -1:
        """Take out shifts that are over on both sides; at most so many."""
        cdef uint32_t end = min(self.n, self.state.less_from, self.state.more_from)
        cdef GroupShift *shift
        while self.n_over < end and most:
            shift = self.shifts[self.n_over]
            self.n_over += 1
            most -= 1
            self.sublist_of(shift).unstage(shift)
            free(shift)
        return 0


cdef class Forgetting(Chore):
    """A mark of which nothing holds any more."""

    cdef bint work(self, uint32_t most) except -1:
        self.mark.forget(most)
        return self.mark.n_over == self.mark.n


cdef class ChoreOfMesh(MeshWork):
    """A chore of a shard without a host."""

    cdef Chore chore

    cdef bint go_on(self, int64_t most) except -1:
        return self.chore.work(<uint32_t>min(most, <int64_t>ALL))


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
        self.gone = {}
        self.publishers = {}
        self.waiting_links = []
        self.slice_subs = SLICE_SUBS
        self.window = WINDOW
        self.chores = []
        mesh.moves = self

    @property
    def is_leaving(self) -> bool:
        """Whether connections move away: move() then refuses others."""
        return self.leaving is not None

    @property
    def n_arriving(self) -> int:
        """Connections that have been announced, and not been handed over."""
        cdef Arriving batch
        n = 0
        for item in self.arriving.values():
            batch = <Arriving>item
            n += len(batch.clients)
            if batch.phase == PHASE_PREPARING:   # (as far as is known)
                n += max(len(batch.clients_left), <int>(len(batch.clients) == 0))
        return n

    @property
    def is_idle(self) -> bool:
        """Whether no move is under way that this shard takes part in."""
        return self.leaving is None and not (self.arriving or self.marks or self.chores or self.waiting_links)

    # ---- the old shard

    def why_not(self, ClientConnection client not None) -> str | None:
        """Why this client cannot be moved now; None: it can."""
        if client.out.moving or client.holds & HOLD_MOVE:
            return "it is moving"
        return self.why_not_of(client)

    cdef str why_not_of(self, ClientConnection client):
        """… whether it moves or not."""
        if client.is_too_large:
            return f"more than {MOST_PART_BYTES:,} bytes have to be said of one of its subscriptions, or of its CONNECT"
        if client.bounded_members:
            return "a queue subscription of its has a max"
        if out_pending(&client.out) > MOST_UNSENT_BYTES:
            return f"{out_pending(&client.out):,} bytes wait to be sent to it; at most {MOST_UNSENT_BYTES:,} are moved"
        if client.holds & HOLD_STALL:
            return "it waits for a slow receiver"
        return why_not(client)

    def fitting(self, list clients not None) -> int:
        """How many of these clients, from the first on, can move together: by their number and their subscriptions."""
        cdef uint64_t subs = 0
        cdef int n = 0
        for item in clients[:MOST_CLIENTS]:
            subs += (<ClientConnection?>item).subs.count
            if n and subs > <uint64_t>MOST_SUBSCRIPTIONS:
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
        batch.part = []
        batch.part_members = []
        batch.parts = []
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
        if batch not in self.at_work:
            self.at_work.append(batch)
        self.host.soon()
        return 0

    cdef int do_or_put_off(self, Chore chore) except -1:
        """The rest of it is done in go_on()."""
        cdef ChoreOfMesh work
        cdef bint is_whole = self.host is None and self.mesh.soon is None
        if chore.work(ALL if is_whole else self.slice_subs):
            return 0
        if self.host is None:   # (the gateway has marks, and takes no clients)
            work = ChoreOfMesh()
            work.chore = chore
            return self.mesh.begin(work)
        self.chores.append(chore)
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
            batch = <Batch>self.at_work.pop(0)
            if batch.has_work():
                self.at_work.append(batch)   # (each in turn: one may have work for seconds)
                self.n_slices += 1
                before = self.dirty_links()
                batch.work()
                self.hold_back(self.dirty_links() & ~before)
                return True
        if self.chores:
            chore = self.chores.pop(0)   # (others may begin while it is done)
            self.n_slices += 1
            if not (<Chore>chore).work(self.slice_subs):
                self.chores.append(chore)
            return True
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

    @property
    def departing(self) -> list:
        """Clients that move away now."""
        return [] if self.leaving is None else list(self.leaving.clients.values())

    def on_hung_up(self, ClientConnection client not None):
        """A client that moves away has been closed, or its other end has, though what that sent is still to be read.

        It takes nothing more, at either shard: others get it, or its publisher hears that nobody is there.
        """
        cdef Leaving batch = self.leaving
        if batch is None or batch.clients.get(client.cid) is not client or client.cid in batch.deaf \
                or batch.phase == PHASE_HANDING:
            return
        if batch.phase == PHASE_PREPARING and len(batch.clients) == 1:   # (it may have many subscriptions)
            batch.end("its connection has ended", False)
            return
        batch.deaf.add(client.cid)
        out_hang_up(&client.out)
        if not client.out.is_shut:
            client.out.is_shut = True
            change_entries(client, self.slice_subs)
        self.host.hand_over(batch.new, batch.id, client, None)

    def on_ended(self, ClientConnection client not None):
        """A subscription of a moving client has had as many messages as it may (MeshFence.on_ended_moving). The table
        has put others from behind it in its place: at most those up to the next empty slot."""
        cdef Leaving batch = self.leaving
        if batch is not None and batch.phase == PHASE_PREPARING and client.subs.slots != NULL \
                and batch.todo and batch.todo[len(batch.todo) - 1] == client.cid:
            while batch.at and client.subs.slots[batch.at - 1]:
                batch.at -= 1

    def note_nobody(self, uint64_t cid, Sublist sublist not None, bytes subject not None, bytes reply not None):
        """Nobody responds to a request of a client without a subscription to the reply. If it moves, that has ended
        here alone, and its next shard tells it."""
        cdef ClientConnection client = None if self.leaving is None else self.leaving.clients.get(cid)
        if client is None or client.sublist is not sublist:
            return
        if client.unanswered is None:
            client.unanswered = []
        self.leaving.unanswered_bytes += <size_t>len(subject) + <size_t>len(reply)
        if self.leaving.unanswered_bytes <= MOST_UNANSWERED_BYTES:
            client.unanswered.append((subject, reply))

    def on_next_wanted(self, int shard, uint64_t id):
        """MNEXT."""
        cdef Leaving batch = self.leaving
        if batch is not None and batch.id == id and batch.new == shard and batch.phase == PHASE_PREPARING:
            batch.unheard -= 1
            self.n_heard += 1
            self.begin_work(batch)

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
        batch.last_cid = None
        batch.clients_left = []
        batch.counts = {}
        try:
            batch.part = records.decoded_offer(words)
            batch.shards = batch.part.shards
            batch.look_at_part()
        except records.RecordRefused as error:
            batch.end(str(error), False)
            return
        batch.clients_left = list(reversed(batch.part.clients))
        batch.todo.append(words)
        self.begin_work(batch)

    def on_part_of_offer(self, int old, uint64_t id, bytes words not None):
        """MPART. ValueError: there are too many."""
        cdef Arriving batch = self.arriving.get((old, id))
        if batch is None or batch.phase != PHASE_PREPARING:
            return
        if len(batch.todo) >= WINDOW:
            raise ValueError("more MPART than were asked for")
        batch.todo.insert(0, words)
        self.begin_work(batch)

    def on_counts(self, int old, uint64_t id, bytes words not None):
        """MCOUNT. ValueError: it is not well-formed."""
        cdef Arriving batch = self.arriving.get((old, id))
        said = records.decoded_counts(words)
        if batch is not None and said.cid in batch.clients:
            told, ended = batch.counts.setdefault(said.cid, ({}, set()))
            told.update({one.sid: one.delivered for one in said.counts})
            ended.update(said.ended)

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
        """This client does not come: it has gone while it moved. Said at once, perhaps before the client is offered,
        and again at the end."""
        cdef Arriving batch = self.arriving.get((old, id))
        if batch is None or cid not in batch.clients:
            self.gone.setdefault((old, id), set()).add(cid)
            return
        if cid in batch.records:
            return
        if batch.phase != PHASE_MARKED:   # counted with the others first
            batch.records[cid] = None
            out_condemn(&(<ClientConnection>batch.clients[cid]).out, CLOSE_CLIENT_CLOSED)   # it takes nothing more
            return
        self.drop(batch, cid)

    cdef int leave(self, ClientConnection client) except -1:
        """A connection does not come: other members get what is detached for it as a member of queue groups."""
        cdef bytes output = unsent_of(client)
        cdef dict queues = queues_of(client, output)
        cdef Sublist sublist = client.sublist
        cdef dict publishers = self.publishers.pop(client.cid, {})
        cdef Dropping dropping
        if client.subs.count <= <uint32_t>AT_ONCE:   # (one that is closed and is still there counts as one that moves)
            client.leave()
        elif not client.leave(self.slice_subs):
            dropping = Dropping()
            dropping.client = client
            self.do_or_put_off(dropping)
        return self.reroutes.place_output(sublist, queues, output, publishers)

    def note_publisher(self, ClientConnection client not None, uint64_t publisher):
        """The next message in the output of a client that moves is of this one, which wants no echo."""
        known = self.publishers.get(client.cid)
        if known is not None:
            known[client.out.msgs] = publisher

    cdef int drop(self, Arriving batch, uint64_t cid) except -1:
        cdef ClientConnection client = <ClientConnection>batch.clients.pop(cid)
        batch.counts.pop(cid, None)
        self.leave(client)
        self.host.lost(batch.old, batch.id, client, None, "it has gone")
        if not batch.clients:
            batch.phase = PHASE_OVER
            self.arriving.pop((batch.old, batch.id), None)
        return 0

    def end_arrivals(self, int old, uint64_t id=0):
        """The old shard hands nobody over any more, of this move or (0) of any: it has said so, or it is dead."""
        for key in [key for key in self.gone if key[0] == old and id in (0, key[1])]:
            del self.gone[key]
        for key, batch in list(self.arriving.items()):
            if key[0] == old and id in (0, key[1]):
                for cid in [cid for cid in (<Arriving>batch).clients if cid not in (<Arriving>batch).records]:
                    if (<Arriving>batch).phase == PHASE_MARKED:
                        self.drop(<Arriving>batch, cid)
                    else:
                        (<Arriving>batch).records[cid] = None
                if (<Arriving>batch).phase < PHASE_ENDING and not any((<Arriving>batch).records.values()):
                    (<Arriving>batch).end("its old shard hands it over no more", True)

    # ---- marks

    def on_shifts(self, int new, int old, uint64_t id, bytes words not None):
        """MSHIFT. ValueError: it is not well-formed."""
        cdef tuple shifts = records.decoded_shifts(words)
        cdef Mark mark = self.marks.get((old, id))
        cdef bytes padded
        if mark is not None and (mark.is_asked or mark.new != new):
            raise ValueError("MSHIFT behind MARKQ")
        for one in shifts:
            padded = one.subject + bytes(SLACK)
            if subject_kind(<const uint8_t *>padded, len(one.subject)) == SUBJECT_BAD or not one.queue:
                raise ValueError("bad subject or queue in MSHIFT")
        self.stage(old, new, id, shifts)

    def on_mark_wanted(self, int new, int old, uint64_t id, uint32_t n_shifts):
        """MARKQ. ValueError: it is not well-formed."""
        cdef bytes frame = b"MARK %d %d\r\n" % (old, id)
        cdef Leaving batch = self.leaving
        cdef Mark mark = self.marks.get((old, id))
        if mark is not None and (mark.is_asked or mark.new != new):
            raise ValueError("MARKQ twice for one move")
        if n_shifts != (0 if mark is None else mark.n):
            raise ValueError("MARKQ of other shifts than were sent")
        if old != self.mesh.shard:
            self.mark(old, new, id)
            self.send(new, frame)
            self.send(old, frame)
            return
        if batch is None or batch.id != id or batch.new != new or batch.marked >> old & 1:
            return
        batch.phase = PHASE_MARKING
        batch.marked |= <uint64_t>1 << old | <uint64_t>1 << new
        self.mark(old, new, id)
        batch.set_takes(~batch.marked)
        self.send(new, frame)
        # (A link that has come back waits for the end of this move, which would wait for its mark. Of another one that
        # broke nobody knows yet: on_gone() or defers() follows.)
        if any([batch.broken >> <int>shard & 1 for _, shard in self.waiting_links]):
            batch.end("a link between shards broke", True)
        else:
            batch.look_whether_marked()

    def on_counted(self, int shard, int old, uint64_t id, uint32_t n):
        """MDONE, of the old shard or of the new one. ValueError: there are not so many shifts."""
        cdef Mark mark = self.marks.get((old, id))
        if mark is None:
            return
        if shard == old and mark.state.less_from != NO_SHIFT:
            mark.count(&mark.state.less_from, shard, -1, n)
        elif shard == mark.new and mark.state.more_from != NO_SHIFT:
            mark.count(&mark.state.more_from, shard, 1, n)
            mark.is_open = False
        mark.forget(ALL)
        self.close_mark((old, id))

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

    cdef list await_marks(self, OriginLink link):
        """A sibling's PING is here. The numbers of moves to here that this sibling has marked, and others have not.

        What it sent behind its mark is detached; what others send to the old shard, before their marks, reaches the
        client before that. So nobody may hear yet that we have it: the PONG waits until on_settled() of the link was
        told each of these numbers.
        """
        cdef Arriving arriving
        cdef list found = []
        for item in self.arriving.values():
            arriving = <Arriving>item
            if arriving.phase == PHASE_MARKING and arriving.marked >> link.shard & 1:
                arriving.pinging.append(link)
                found.append(arriving.number)
        return found

    def on_moved(self, int shard, int old, uint64_t id, bint is_counted, bytes words not None):
        """MOVED, of the old shard or of the new one."""
        cdef Mark mark = self.marks.get((old, id))
        cdef Arriving arriving = self.arriving.get((old, id))
        if shard == old:
            self.over[old] = max(self.over.get(old, 0), id)
            self.end_marks_before(old, id, is_counted)
        if mark is not None and shard == old:
            self.end_side(mark, &mark.state.less_from, shard, -1, is_counted)
        elif mark is not None and shard == mark.new:
            self.end_side(mark, &mark.state.more_from, shard, 1, is_counted)
            mark.is_asked = True
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
            if key[0] == old and key[1] < id and mark.state.less_from != NO_SHIFT:
                self.end_side(mark, &mark.state.less_from, old, -1, is_counted)
                self.close_mark(key)
        return 0

    cdef int end_side(self, Mark mark, uint32_t *cursor, int shard, int sign, bint is_counted) except -1:
        """The shard's own counts have all its shifts from now on (is_counted), or never will."""
        if cursor[0] == NO_SHIFT:
            return 0
        if is_counted:
            mark.count(cursor, shard, sign, mark.n - cursor[0])
            cursor[0] = NO_SHIFT
        else:
            mark.change(cursor, shard, NO_SHIFT, self.slice_subs, True)
        return 0

    cdef Mark mark_of(self, int old, int new, uint64_t id):
        cdef Mark mark = self.marks.get((old, id))
        if mark is None:
            mark = self.marks[old, id] = Mark()
            mark.new = new
            mark.state.old = old
            mark.state.new = new
        return mark

    cdef int stage(self, int old, int new, uint64_t id, tuple shifts) except -1:
        """These hold from the mark on."""
        cdef Mark mark = self.mark_of(old, new, id)
        for one in shifts:
            mark.add(<Sublist>self.mesh.account(one.account), one.subject, one.queue, one.members,
                     new != self.mesh.shard)
        return 0

    cdef Mark mark(self, int old, int new, uint64_t id):
        cdef Mark mark = self.mark_of(old, new, id)
        # (Where its link has ended, or it has said that this is over, the counts that it tells are without them.)
        cdef bint is_old = old != self.mesh.shard and (self.mesh.up >> old) & 1 and id > self.over.get(old, 0)
        mark.is_asked = mark.is_open = True
        if is_old and new != self.mesh.shard:
            mark.tell_differences()
        if is_old:
            mark.change(&mark.state.less_from, old, 0, self.slice_subs, False)
        if new != self.mesh.shard:
            mark.change(&mark.state.more_from, new, 0, self.slice_subs, not is_old)
        else:
            mark.state.more_from = 0   # (they are not counted yet)
        return mark

    cdef int close_own(self, tuple key) except -1:
        """This shard, the new one, has counted them, or never will."""
        cdef Mark mark = self.marks.get(key)
        if mark is not None:
            mark.is_asked = True
            mark.state.more_from = NO_SHIFT
        return self.close_mark(key)

    cdef int close_mark(self, tuple key) except -1:
        """Forget the mark if nothing is left of it; who waited for its end goes on."""
        cdef Mark mark = self.marks.get(key)
        cdef Forgetting forgetting
        if mark is not None:
            if mark.new == self.mesh.shard:
                mark.is_open = False
            if mark.is_asked and not mark.is_open and mark.state.less_from == mark.state.more_from == NO_SHIFT:
                del self.marks[key]
                forgetting = Forgetting()
                forgetting.mark = mark
                self.do_or_put_off(forgetting)
        if self.leaving is not None and (mark is None or not mark.is_open):
            self.leaving.open.discard(key)
            self.leaving.look_whether_ready()
        return 0

    # ---- counts of queue members

    def remote_members(self, tuple key not None) -> int:
        """How many members of a queue group a sibling has as far as this shard knows: (shard, account, subject,
        queue)."""
        cdef bytes subject = key[2]
        cdef bytes queue = key[3]
        cdef bytes padded = subject + bytes(SLACK)
        return (<Sublist>self.mesh.account(key[1])).remote_members(key[0], <const uint8_t *>padded, len(subject),
                                                                   queue, len(queue))

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
            or any([(<Arriving>one).phase <= PHASE_ENDING for one in self.arriving.values()])

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
        if self.leaving is not None and self.leaving.phase == PHASE_PREPARING:
            self.stop()   # (it may have many subscriptions, and the link would wait for long)
        for batch in list(self.arriving.values()):
            if (<Arriving>batch).phase == PHASE_PREPARING and not (<Arriving>batch).part_is_last():
                (<Arriving>batch).end("a link between shards is about to join", False)
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
            if key[0] == shard:   # (what it has told is dropped, maybe later: see Mesh.part)
                self.end_side(mark, &mark.state.less_from, shard, -1, False)
            if mark.new == shard:
                self.end_side(mark, &mark.state.more_from, shard, 1, False)
                mark.is_open = False
                mark.is_asked = True
            self.close_mark(key)
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
