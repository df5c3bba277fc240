# cython: language_level=3, boundscheck=False, wraparound=False
"""Clients and siblings without sockets: the engine as tests, fuzzers and benches drive it.

It does with peers what the reactor does (read_parts, received, flush, close, resume), over byte strings and with a
clock that stands until it is set. Everything random in the engine follows from `seed`. Its own module, so that
no shard loads it.
"""

cimport cython
cimport gnatswarm.broker.sublist as matching
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from gnatswarm.broker.connection cimport Fence
from gnatswarm.broker.fanout cimport ORIGIN_SIBLING, Outcome, Publish, no_outcome, write_tail_head
from gnatswarm.broker.fence cimport MeshFence
from gnatswarm.broker.link cimport SiblingLink
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.moves cimport Moves
from gnatswarm.broker.outbuf cimport (
    Chunk, CLOSE_CLIENT_CLOSED, CLOSE_NONE, CLOSE_SLOW_CONSUMER_PENDING_BYTES, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE,
    MOVING_IN, MOVING_NOT, iovec, out_condemn, out_gather, out_init, out_pending, out_take)
from gnatswarm.broker.parser cimport (
    OP_HPUB, OP_MORE, OP_PUB, OP_UNKNOWN, Op, OpKind, Token, parse_op, parse_plain_publish,
)
from gnatswarm.broker.peer cimport HOLD_STALL
from gnatswarm.broker.reroutes cimport Reroutes
from gnatswarm.broker.interest cimport MOST_SHARDS, NO_MAX, InterestSink, QueueGroup, QueueName, Sub
from gnatswarm.broker.tally cimport Tally
from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.table cimport slot_item
from gnatswarm.broker.word cimport SLACK, hash_bytes


cdef void flush_probe(void *owner, OutBuf *out) noexcept:
    """What the engine calls when a chunk is full."""
    if out.owner != NULL:
        (<ProbeSocket>out.owner).flush()


cdef class ProbeLink(Peer):
    """The sending side of a link to a sibling: a buffer without a limit."""

    def __cinit__(self, Fanout fanout not None):
        out_init(&self.out, fanout.box, 0)


# The collector may clear an object before it deallocates it, and __dealloc__ would find None for its peer: so it clears
# none of these. No cycle stays for that: each goes through a session or the lists of the probe as well.
@cython.no_gc_clear
cdef class ProbeSocket:
    """One peer's socket: what it was sent, and a kernel that takes as much as it is told to."""

    def __cinit__(self, Probe probe not None, Peer peer not None):
        self.probe = probe
        self.peer = peer
        self.sent = bytearray()
        self.unread = bytearray()
        self.unsent = b""
        self.takes = -1
        peer.out.owner = <void *>self

    def __dealloc__(self):
        self.peer.out.owner = NULL

    cdef void flush(self) noexcept:
        cdef iovec parts[8]
        cdef OutBuf *out = &self.peer.out
        cdef size_t took, n
        cdef int i, count
        if self.is_reset:
            self.refuse()
            return
        while out.head != NULL and not out.is_blocked and not self.is_over:
            took = 0
            count = out_gather(out, parts, 8)
            for i in range(count):
                n = parts[i].iov_len
                if self.takes >= 0 and n > <size_t>self.takes:
                    n = self.takes
                if not self.is_counting:
                    self.sent += (<uint8_t *>parts[i].iov_base)[:n]
                took += n
                if self.takes >= 0:
                    self.takes -= n
                if n < parts[i].iov_len:
                    out.is_blocked = 1
                    break
            if took:
                out.taken_us = out.box.now_us
            self.taken += took
            out_take(out, took)

    cdef void refuse(self) noexcept:
        """As Socket.hears_out() of shards.sockets.reactor."""
        cdef OutBuf *out = &self.peer.out
        if out.head == NULL or out.is_blocked or out.is_deaf or out.close_reason != CLOSE_NONE or self.is_over:
            return
        if out.moving != MOVING_NOT:
            out.is_blocked = 1
            return
        out.is_deaf = 1
        out_condemn(out, CLOSE_CLIENT_CLOSED)

    cdef int pump(self, pieces) except -1:
        """Lets the peer read what is unread, as far as it may."""
        cdef iovec parts[2]
        cdef Peer peer = self.peer
        cdef size_t most, left, n, piece
        cdef int count, i
        cdef uint8_t *data
        self.largest_read = 0
        while self.unread_at < <size_t>len(self.unread):
            count = peer.read_parts(self.probe.shared, self.probe.room, parts)
            if count == 0:
                break
            most = len(self.unread) - self.unread_at
            piece = next(pieces, most)
            if piece < most:
                most = piece
            data = <uint8_t *><char *>self.unread + self.unread_at
            n = 0
            for i in range(count):
                left = min(most - n, parts[i].iov_len)
                memcpy(parts[i].iov_base, data + n, left)
                n += left
            if n == 0:
                raise AssertionError("no room to read to")
            self.unread_at += n
            self.last_read = n
            self.largest_read = max(self.largest_read, n)
            peer.received(self.probe.shared, self.probe.room, n)
        if self.unread_at == <size_t>len(self.unread) or peer.is_closing:
            self.unread.clear()
            self.unread_at = 0
        return 0

    cdef bytes waiting(self, size_t skip):
        """What was queued and the kernel has not taken, without its first `skip` bytes."""
        cdef OutBuf *out = &self.peer.out
        cdef Chunk *chunk = out.head
        cdef size_t end, n
        cdef list parts = []
        while chunk != NULL:
            end = chunk.end if chunk != out.tail or chunk.blob != NULL else <size_t>(out.pos - chunk.data)
            n = end - chunk.start
            if skip < n:
                parts.append((chunk.data + chunk.start + skip)[:n - skip])
            skip -= min(skip, n)
            chunk = chunk.next
        return b"".join(parts)

    def queued_from(self, size_t offset) -> bytes:
        """What was queued for it from that place on, whether the kernel has taken it or not; also when it is over."""
        cdef size_t n = len(self.sent)
        cdef size_t skip = offset - n if offset > n else 0
        return bytes(self.sent[offset:]) + (self.unsent[skip:] if self.is_over else self.waiting(skip))

    @property
    def queued(self) -> int:
        """How many bytes were queued for it since it was opened."""
        return len(self.sent) + (len(self.unsent) if self.is_over else out_pending(&self.peer.out))

    @property
    def taken_us(self) -> int:
        """When the kernel last took bytes."""
        return self.peer.out.taken_us

    @property
    def is_behind(self) -> bool:
        """Whether it is past its stall mark, so that who feeds it has to wait."""
        return self.peer.out.is_behind

    def set_stall_mark(self, size_t n):
        """Past so many pending bytes it is behind."""
        self.peer.out.stall_mark = n

    @property
    def is_deaf(self) -> bool:
        """Whether it has been seen to take nothing more, and is read to its end."""
        return self.peer.out.is_deaf

    @property
    def connection(self) -> ClientConnection:
        """The client that it is the socket of; TypeError: it is none."""
        return <ClientConnection?>self.peer

    @property
    def link(self) -> SiblingLink:
        """The link that it is the socket of; TypeError: it is none."""
        return <SiblingLink?>self.peer

    @property
    def is_held(self) -> bool:
        return self.peer.holds != 0

    @property
    def is_stalled(self) -> bool:
        """Whether it waits for somebody slow."""
        return self.peer.holds & HOLD_STALL != 0

    @property
    def pending(self) -> int:
        return out_pending(&self.peer.out)

    @property
    def close_reason(self) -> int:
        """What the peer is to be closed for; 0: it is not."""
        return self.peer.out.close_reason

    @property
    def unread_bytes(self) -> int:
        """Bytes that came and the peer has not processed: it does not read, or the operation is not complete."""
        return len(self.unread) - self.unread_at + self.kept

    @property
    def kept(self) -> int:
        """Bytes of an incomplete operation that the peer holds."""
        return self.peer.partial_size + (self.peer.blob_filled if self.peer.blob != NULL else 0)


cdef class Probe:
    """Clients on one fan-out and one sublist. `room` is the size of the shared read buffer.

    `shard`: its number among siblings that dial() links it to; -1: a broker of one shard.
    """

    def __cinit__(self, limits, *, uint64_t seed=1, size_t room=PROBE_READ_BYTES, bint prefers_local=False,
                  int shard=-1):
        self.limits = limits
        self.room = room
        self.shared = <uint8_t *>malloc(room + SLACK)
        if self.shared == NULL:
            raise MemoryError
        self.fanout = Fanout(prefers_local=prefers_local)
        self.fanout.box.flush = flush_probe
        self.fanout.box.now_us = 1_000_000
        if shard < 0:
            self.fence = Fence()
            self.sublist = Sublist(b"$G", InterestSink())
        else:
            self.mesh = Mesh(self.fanout, shard)
            self.fence = MeshFence(self.mesh)
            self.reroutes = Reroutes(self.mesh, self.fence)
            self.moves = Moves(self.mesh, self.fence, self.reroutes)
            self.sublist = self.mesh.account(b"$G")
        self.sublist.seed = seed
        self.sublist.random_state = seed * 2 + 1
        self.sockets = []
        self.links = {}

    def __dealloc__(self):
        free(self.shared)

    def send_directly(self):
        """Every run is sent from where it was read, however short it is."""
        self.fanout.box.direct_bytes = self.fanout.box.large_stride = 1

    def rest_often(self):
        """Links that are adopted from here on rest after each message that they have delivered."""
        self.is_brief = True

    def seed(self, Sublist sublist not None, uint64_t seed):
        """What is random in the subscriptions of another account follows from this, too."""
        sublist.seed = seed
        self.begin_choices(sublist, seed)

    def begin_choices(self, Sublist sublist not None, uint64_t seed):
        """Who of a queue group is chosen follows from this, as if the account was new."""
        sublist.random_state = seed * 2 + 1

    # ---- peers

    def open(self, session, *, offers_headers=True, must_authenticate=False) -> ProbeSocket:
        """A new client with this session. Its connection is `socket.connection`."""
        cdef ClientConnection connection
        self.last_cid += 1
        connection = ClientConnection(self.fanout, self.sublist, self.fence, self.last_cid, self.limits, session,
                                      offers_headers=offers_headers, must_authenticate=must_authenticate)
        socket = ProbeSocket(self, connection)
        self.sockets.append(socket)
        return socket

    def connection(self, uint64_t cid, session, *, Sublist sublist=None) -> ClientConnection:
        """A connection without a socket, with another shard's client id: what a move puts its client into."""
        return ClientConnection(self.fanout, self.sublist if sublist is None else sublist, self.fence, cid,
                                self.limits, session)

    def let_go(self, ProbeSocket socket not None):
        """The socket leaves this engine without being closed; what is unread in the kernel stays there."""
        self.sockets.remove(socket)
        socket.peer.out.owner = NULL

    def take_in(self, ProbeSocket socket not None, ClientConnection connection not None):
        """A socket that another engine let go, for this connection."""
        socket.probe = self
        socket.peer = connection
        connection.out.owner = <void *>socket
        connection.out.is_blocked = 0
        self.sockets.append(socket)
        socket.flush()

    def groups(self, Sublist sublist not None) -> dict:
        """(subject, queue) → (members as siblings are told, {sibling: its members}) of an account's queue groups."""
        cdef QueueGroup *group = sublist.groups.next_of_all
        cdef bytearray subject
        cdef size_t size
        cdef uint32_t i
        found = {}
        while group != &sublist.groups:
            size = sublist.subject_of(group.node, NULL, 0)
            subject = bytearray(size)
            sublist.subject_of(group.node, <uint8_t *><char *>subject, size)
            name = (<uint8_t *>group.name + sizeof(QueueName))[:group.name.key.size]
            found[bytes(subject), name] = group.n_members, {
                group.remote[i].shard: group.remote[i].members for i in range(group.n_remote)}
            group = group.next_of_all
        return found

    def miscounted(self, Sublist sublist not None) -> list:
        """(members as siblings are told, members that count, shifts) of groups that siblings are told wrongly of, or
        that a move still shifts."""
        cdef QueueGroup *group = sublist.groups.next_of_all
        cdef Sub *sub
        cdef uint32_t n
        found = []
        while group != &sublist.groups:
            n = 0
            sub = group.members
            while sub != NULL:
                n += sub.out.moving != MOVING_IN
                sub = sub.next
            if n != group.n_members or group.shifts != NULL:
                found.append((group.n_members, n, group.shifts != NULL))
            group = group.next_of_all
        return found

    def left_of_moves(self, ClientConnection connection not None) -> list:
        """What is wrong with a client's subscriptions when it does not move."""
        cdef uint32_t i, bounded = 0
        cdef Sub *sub
        found = []
        if connection.subs.slots != NULL:
            for i in range(connection.subs.mask + 1):
                sub = <Sub *>slot_item(connection.subs.slots[i])
                if sub == NULL:
                    continue
                if sub.max_msgs == NO_MAX:
                    found.append((<uint8_t *>sub + sizeof(Sub))[:sub.key.size])
                elif sub.max_msgs and sub.group != NULL:
                    bounded += 1
        if bounded != connection.bounded_members:
            found.append((bounded, connection.bounded_members))
        return found

    def link(self, int shard) -> ProbeSocket:
        """A sibling to send to."""
        cdef ProbeLink link = ProbeLink(self.fanout)
        if not 0 <= shard < MOST_SHARDS:
            raise ValueError(shard)
        self.links[shard] = ProbeSocket(self, link)
        self.fanout.links[shard] = &link.out
        return self.links[shard]

    def dial(self, session) -> ProbeSocket:
        """One end of a link that is not joined yet, with this session. The link is `socket.link`: join it, leave it."""
        cdef SiblingLink link = SiblingLink(self.mesh, self.fence, self.reroutes, session)
        socket = ProbeSocket(self, link)
        self.sockets.append(socket)
        return socket

    def adopt(self, Peer link not None) -> ProbeSocket:
        """The socket of a link that somebody else has made."""
        socket = ProbeSocket(self, link)
        if self.is_brief and isinstance(link, SiblingLink):
            (<SiblingLink>link).most_delivered = 0
        self.sockets.append(socket)
        return socket

    def unlink(self, int shard):
        """The sibling is gone, and its interest."""
        self.fanout.links[shard] = NULL
        self.sublist.drop_remote(shard)
        del self.links[shard]

    def set_remote(self, int shard, bytes subject not None, bytes queue not None = b"", unsigned int members=1):
        """What a sibling wants; `members` 0: no longer."""
        if queue:
            done = self.sublist.set_remote_queue(shard, subject, len(subject), queue, len(queue), members)
        else:
            done = self.sublist.set_remote(shard, subject, len(subject), members != 0)
        if not done:
            raise MemoryError

    # ---- what a reactor does

    def feed(self, ProbeSocket socket not None, bytes data not None, pieces=(), *, bint finish=True):
        """The client sends `data`, which is read in pieces of so many bytes, the rest of it at once."""
        if not socket.is_over:
            socket.unread += data
        sizes = iter(pieces)
        socket.pump(sizes)
        if finish:
            self.finish(sizes)

    def finish(self, pieces=()):
        """The end of a round: sends what there is to send, closes who is to be closed, goes on with who may."""
        cdef OutBuf *out
        cdef ProbeSocket socket
        sizes = iter(pieces)
        while self.fanout.box.dirty != NULL or self.fanout.box.called != NULL:
            while self.fanout.box.dirty != NULL:
                out = self.fanout.box.dirty
                self.fanout.box.dirty = out.next_dirty
                out.is_dirty = 0
                if out.owner != NULL:
                    (<ProbeSocket>out.owner).flush()
            while self.fanout.box.called != NULL:
                out = self.fanout.box.called
                self.fanout.box.called = out.next_called
                out.is_called = 0
                if out.owner == NULL:
                    continue
                socket = <ProbeSocket>out.owner
                if socket.peer.is_closing or (out.close_reason != CLOSE_NONE and not out.is_deaf):
                    self.end(socket)
                    continue
                if socket.is_reset and out.is_blocked and not socket.peer.holds:
                    out.is_blocked = 0
                    socket.flush()
                if out.is_deaf and not socket.is_heard_out:
                    socket.is_heard_out = True
                    (<ClientConnection>socket.peer).become_deaf()
                if not socket.peer.holds:
                    socket.peer.resume(self.shared, self.room)
                    socket.pump(sizes)
                    if socket.is_reset:
                        self.end_if_read(socket)

    def reset(self, ProbeSocket socket not None):
        """The other end of a client's connection resets it: what is unread is still read, and its end then."""
        socket.is_reset = True
        socket.takes = -1
        if not socket.peer.holds:
            self.end_if_read(socket)
        self.finish()

    cdef int end_if_read(self, ProbeSocket socket) except -1:
        if not socket.peer.holds and socket.unread_at == <size_t>len(socket.unread) and not socket.is_over:
            self.end(socket)
        return 0

    def end(self, ProbeSocket socket not None):
        """The socket is closed: what was queued goes out if the close has a word to say, and the client leaves."""
        cdef int reason = socket.peer.out.close_reason
        if socket.is_over:
            return
        if reason == CLOSE_NONE:
            reason = CLOSE_CLIENT_CLOSED
        if reason not in (CLOSE_CLIENT_CLOSED, CLOSE_SLOW_CONSUMER_PENDING_BYTES, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE):
            socket.flush()
        socket.unsent = socket.waiting(0)
        socket.reason = reason
        socket.is_over = True
        socket.peer.is_closing = True
        socket.unread.clear()
        socket.unread_at = 0
        if isinstance(socket.peer, ClientConnection):
            (<ClientConnection>socket.peer).leave()
        elif isinstance(socket.peer, SiblingLink):
            (<SiblingLink>socket.peer).session.on_closed(reason)
            (<SiblingLink>socket.peer).leave()
        else:   # a link to another server
            (<object>socket.peer).leave()
        socket.peer.out.owner = NULL
        self.sockets.remove(socket)

    def leave_in_slices(self, ProbeSocket socket not None, uint32_t most_subs) -> int:
        """The client leaves, so many subscriptions at a time; how many times that took."""
        cdef int times = 1
        while not (<ClientConnection>socket.peer).leave(most_subs):
            times += 1
        socket.is_over = True
        self.sockets.remove(socket)
        return times

    def set_takes(self, ProbeSocket socket not None, Py_ssize_t n):
        """The kernel takes so many bytes from now on (-1: all), and says that it is writable."""
        socket.takes = n
        socket.peer.out.is_blocked = 0
        socket.flush()
        self.finish()

    @property
    def is_relieved(self) -> bool:
        """Whether somebody who was behind is so no more: the reactor then lets all go on who wait."""
        return self.fanout.box.relieved

    def release_stalls(self) -> bool:
        """Lets those go on who wait for somebody slow; was somebody relieved who was behind?"""
        cdef ProbeSocket socket
        cdef bint relieved = self.fanout.box.relieved
        self.fanout.box.relieved = 0
        for socket in list(self.sockets):
            if socket.peer.holds & HOLD_STALL:
                socket.peer.release(HOLD_STALL)
        self.finish()
        return relieved

    def set_clock(self, uint64_t now_us):
        self.fanout.box.now_us = now_us

    def tally(self, int most, int talk_lines=0):
        """Statistics are on, as in a shard; 0: off. With `talk_lines`, by client too, of clients made from here on."""
        self.sublist.count_into(Tally(most) if most else None)
        self.sublist.marks_subs = talk_lines != 0
        self.fanout.talk_lines = talk_lines

    def harvest(self, size_t slots) -> list[int]:
        """All that was counted goes to the tally, so many slots at a time; its longest probe after each."""
        cdef size_t at = 0
        longest = []
        while True:
            at = self.sublist.harvest(at, slots)
            longest.append(self.sublist.tally.longest_probe)
            if at == 0:
                return longest

    @property
    def now_us(self) -> int:
        return self.fanout.box.now_us

    # ---- messages of siblings

    def deliver_here(self, bytes subject not None, bytes payload not None, *, bint plainly=True, queues=(),
                     bytes reply not None = b"", int header_size=0) -> set:
        """A sibling's message; the queues that found no member here."""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *s = padded
        cdef bytearray tail = bytearray(len(reply) + 64 + len(payload) + SLACK)
        cdef uint8_t *to = <uint8_t *><char *>tail
        cdef Token names[64]
        cdef Publish message
        cdef Outcome outcome
        cdef Entry *entry = self.sublist.find(s, len(subject), hash_bytes(s, len(subject), self.sublist.seed))
        cdef uint64_t orphans
        cdef bytes name
        cdef int i, n = 0
        if entry == NULL:
            raise MemoryError
        queues = list(queues)
        if len(queues) > 64:
            raise ValueError("at most 64 queues")
        for name in queues:
            names[n].at = name
            names[n].size = len(name)
            n += 1
        memset(&message, 0, sizeof(message))
        message.reply.at = reply
        message.reply.size = len(reply)
        message.header_size = header_size
        message.size = len(payload)
        message.origin = ORIGIN_SIBLING
        message.publisher = 0
        message.count = 1
        message.tail = to
        message.tail_size = write_tail_head(to, message.reply, header_size != 0, header_size, len(payload))
        message.payload = to + message.tail_size
        memcpy(to + message.tail_size, <const uint8_t *>payload, len(payload))
        memcpy(to + message.tail_size + len(payload), b"\r\n", 2)
        message.tail_size += len(payload) + 2
        no_outcome(&outcome)
        orphans = self.fanout.deliver_here(self.sublist, entry, &message, plainly, names, n, &outcome)
        self.finish()
        return {queues[i] for i in range(n) if (orphans >> i) & 1}

    # ---- what tests and benches ask

    def match_all(self, list subjects not None, int times) -> int:
        """Finds the entry of each subject, so many times over; how many targets they had."""
        cdef bytes joined = b"".join([subject + bytes(SLACK) for subject in subjects])
        cdef size_t n = len(subjects), i, at = 0
        cdef size_t *starts = <size_t *>malloc(n * sizeof(size_t))
        cdef size_t *sizes = <size_t *>malloc(n * sizeof(size_t))
        if n == 0 or starts == NULL or sizes == NULL:
            raise MemoryError
        cdef const uint8_t *text = joined
        cdef Entry *entry
        cdef uint64_t found = 0
        for i in range(n):
            starts[i] = at
            sizes[i] = len(<bytes>subjects[i])
            at += sizes[i] + SLACK
        while times > 0:
            times -= 1
            for i in range(n):
                entry = self.sublist.find(text + starts[i], sizes[i],
                                          hash_bytes(text + starts[i], sizes[i], self.sublist.seed))
                found += entry.n_plain
        free(starts)
        free(sizes)
        return found

    @property
    def memory(self) -> dict:
        """Bytes in chunks and blobs, subscriptions, and what is in the lists that the reactor goes through."""
        return {"bytes_in_chunks": self.fanout.box.bytes_in_chunks, "subscriptions": self.sublist.n_subs,
                "queue_names": self.sublist.queue_names.count,
                "lingering": 0 if self.sublist.former is None else self.sublist.former.n_subs,
                "dirty": self.fanout.box.dirty != NULL, "called": self.fanout.box.called != NULL}

    @property
    def builds(self) -> int:
        """Entries that were not in the match cache."""
        return self.sublist.n_builds

    @property
    def cached(self) -> int:
        return self.sublist.cache_count


def set_step_cost(uint64_t n):
    """Looking at one node or subscription to make an entry counts as so many (1: as usual), in this whole process."""
    matching.step_cost = n


def parse_all(bytes data not None, int times) -> int:
    """Parses all operations of `data`, so many times over, as a connection does; how many there were."""
    cdef bytes padded = data + bytes(SLACK)
    cdef const uint8_t *start = padded
    cdef size_t size = len(data), at
    cdef Op op
    cdef OpKind kind
    cdef uint64_t n = 0
    while times > 0:
        times -= 1
        at = 0
        while at < size:
            if parse_plain_publish(start + at, size - at, 4096, &op):
                kind = OP_PUB
            else:
                kind = parse_op(start + at, size - at, 4096, &op)
            if kind == OP_MORE or kind >= OP_UNKNOWN:
                raise ValueError(data[at:at + 40])
            at += op.line_size
            if kind == OP_PUB or kind == OP_HPUB:
                at += op.size + 2
            n += 1
    return n


def replies_allowed(ClientConnection client not None) -> int:
    """How many messages the client may still reply to, as far as that was looked at."""
    return len(client.reply_permissions.replies)
