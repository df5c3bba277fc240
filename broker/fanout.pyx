# cython: language_level=3, boundscheck=False, wraparound=False
"""One published message to everybody who wants it.

It matches nothing (the sublist did) and sends nothing (the owner of the sockets does). It copies a prepared
prefix and the message's tail into each receiver's output buffer. A sibling shard gets one frame, however many
subscribers it has. Plain subscriptions come before queue members, as on nats-server.
"""

from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcpy

from gnatswarm.broker.outbuf cimport (
    BLOB_BYTES, blob_new, blob_release, out_append, out_append_blob, out_mark_dirty, out_reserve, out_send_run,
    outbox_new, outbox_release)
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.entry cimport choice_named, is_foreign, prefix_size_of
from gnatswarm.broker.interest cimport GATEWAY_NUMBER, NO_MAX
from gnatswarm.broker.sublist cimport width_bucket
from gnatswarm.broker.word cimport SLACK, copy_run, decimal, likely, unlikely


cdef enum:
    LONGEST_RUN_BYTES = 262144   # a whole read, so that who takes none of it is not past its stall mark
    MOST_NUMBERS_BYTES = 31      # of a QMSG that nobody has sent on: its numbers
    MOST_PREFIX_BYTES = 512      # of frames of a run to a queue group; those with longer names are written one by one


cdef size_t write_tail_head(uint8_t *to, Token reply, bint with_header, uint32_t header_size,
                            uint32_t size) noexcept nogil:
    cdef size_t n = 1
    to[0] = c' '
    if reply.size:
        memcpy(to + 1, reply.at, reply.size)
        n += reply.size
        to[n] = c' '
        n += 1
    if with_header:
        n += decimal(to + n, header_size)
        to[n] = c' '
        n += 1
    n += decimal(to + n, size)
    to[n] = c'\r'
    to[n + 1] = c'\n'
    return n + 2


cdef size_t write_named(uint8_t *to, const Publish *publish, const Token *queues, int n_queues, bint with_header,
                        size_t cut) noexcept nogil:
    cdef size_t size = publish.size - cut
    cdef size_t n = write_queues(to, publish, queues, n_queues)
    n += write_tail_head(to + n, Token(NULL, 0), with_header, publish.header_size, <uint32_t>size)
    memcpy(to + n, publish.payload + cut, size)
    n += size
    to[n] = c'\r'
    to[n + 1] = c'\n'
    return n + 2


cdef size_t write_beginning(uint8_t *to, const Entry *entry, const Choice *choice, const Publish *publish,
                            uint64_t been) noexcept nogil:
    """How the frames of a run to one queue group begin, up to its name; QMSG, which says from whom, where there is a
    publisher that may not have it."""
    cdef size_t n = 4
    if publish.publisher:
        memcpy(to, b'QHMG 0 0 ' if publish.header_size else b'QMSG 0 0 ', 9)
        n = 9 + decimal(to + 9, been)
        to[n] = c' '
        n += 1 + decimal(to + n + 1, publish.publisher)
    else:
        memcpy(to, b'HMSG' if publish.header_size else b'RMSG', 4)
    memcpy(to + n, entry.text + entry.rmsg_at + 4, entry.rmsg_size - 4)   # " <account> <subject>"
    n += entry.rmsg_size - 4
    memcpy(to + n, b' | ', 3)
    memcpy(to + n + 3, <uint8_t *>choice.name + sizeof(QueueName), choice.name.key.size)
    return n + 3 + choice.name.key.size


cdef bytearray rewritten(Publish *other, const Publish *message, bytes header, Token reply):
    cdef size_t payload_size = message.size - message.header_size
    cdef bytearray room = bytearray(reply.size + 64 + len(header) + payload_size + SLACK)
    cdef uint8_t *to = <uint8_t *><char *>room
    cdef size_t head
    other[0] = message[0]
    other.reply = reply
    other.header_size = <uint32_t>len(header)
    other.size = other.header_size + <uint32_t>payload_size
    head = write_tail_head(to, reply, other.header_size != 0, other.header_size, other.size)
    other.tail = to
    other.payload = to + head
    memcpy(to + head, <const char *>header, other.header_size)
    memcpy(to + head + other.header_size, message.payload + message.header_size, payload_size)
    memcpy(to + head + other.size, b'\r\n', 2)
    other.tail_size = head + other.size + 2
    other.blob = NULL
    other.count = 1
    other.stride = other.tail_size
    return room


cdef int compare_counts(const void *one, const void *other) noexcept nogil:
    cdef uint32_t first = (<const uint32_t *>one)[0], second = (<const uint32_t *>other)[0]
    return (first > second) - (first < second)


cdef bint is_output_of(OutBuf *out, uint64_t cid) noexcept:
    return out.peer != NULL and getattr(<Peer>out.peer, "cid", 0) == cid


cdef class AccountGate:
    """Keeps every message in its account."""

    cdef void leave(self, Sublist sublist, Entry *entry, Publish *message, object client, Outcome *outcome) noexcept:
        pass

    cdef int on_nobody(self, bytes reply) except -1:
        return 0

    cdef Entry *map(self, Sublist sublist, Entry *entry, bint *is_random) noexcept:
        is_random[0] = False
        return entry


cdef class Onward:
    """No other server."""

    cdef uint64_t pass_on(self, Sublist sublist, Entry *entry, Publish *publish, bint plainly, const Token *queues,
                          int n_queues, Outcome *outcome) noexcept:
        return 0

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        pass

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        pass

    cdef int on_part(self, int shard) except -1:
        return 0

    cdef InterestSink retelling(self, OutBuf *link):
        raise NotImplementedError

    cdef uint64_t await_servers(self, object link) except? 0:
        return 0

    cdef bint on_left(self, object link, Sublist sublist, uint64_t id, Token subject, Token queue) except -1:
        return False

    cdef OutBuf *output(self, int slot) noexcept:
        return NULL

    cdef int send_to_former(self, Sublist sublist, Token subject, Token queue, Publish *publish, uint64_t id,
                            uint64_t visited, uint64_t been) except -2:
        return -1


cdef class Fanout:
    """Delivers for one shard, and counts its totals. Owns the outbox of its peers' buffers."""

    def __cinit__(self, *, bint prefers_local=False):
        self.box = outbox_new()
        self.gate = AccountGate()
        self.asked = Asked()
        self.prefers_local = prefers_local

    def __dealloc__(self):
        free(self.finished)
        free(self.shorts)
        free(self.scratch)
        outbox_release(self.box)

    @property
    def n_asked(self) -> int:
        """Frames of requests of which siblings have neither said that nobody got them nor that they have arrived."""
        return self.asked.n_kept

    cdef void note_numbers(self, uint64_t *numbers) noexcept:
        cdef int shard
        for shard in range(MOST_SHARDS):
            if self.links[shard] != NULL:
                numbers[shard] = self.links[shard].msgs

    def prefer_local(self, bint prefers):
        """Whether queue groups choose members of this shard first, from now on."""
        self.prefers_local = prefers

    cdef bint rewrite_tail(self, Publish *message) noexcept:
        cdef uint8_t *to = self.scratch_for(message.reply.size + 32 + message.size + 2)
        cdef size_t head
        if to == NULL:
            return False
        head = write_tail_head(to, message.reply, message.header_size != 0, message.header_size, message.size)
        memcpy(to + head, message.payload, message.size)
        memcpy(to + head + message.size, b'\r\n', 2)
        message.tail = to
        message.tail_size = head + message.size + 2
        message.payload = to + head
        message.blob = NULL
        return True

    cdef uint8_t *scratch_for(self, size_t size) noexcept:
        cdef uint8_t *scratch
        if size + SLACK > self.scratch_room:
            scratch = <uint8_t *>realloc(self.scratch, size + SLACK)
            if scratch == NULL:
                return NULL
            self.scratch = scratch
            self.scratch_room = size + SLACK
        return self.scratch

    cdef uint32_t send_stripped(self, OutBuf *out, const uint8_t *prefix, size_t prefix_size, Publish *publish,
                                uint32_t count) noexcept:
        """The run without its header blocks, for a client that does not take headers."""
        cdef uint32_t size = publish.size - publish.header_size
        cdef const uint8_t *payload = publish.payload + publish.header_size
        cdef uint8_t *to
        cdef size_t n
        cdef uint32_t i
        for i in range(count):
            to = out_reserve(out, prefix_size + publish.reply.size + 32 + size + 2)
            if to == NULL:
                return i
            memcpy(to, prefix, prefix_size)
            n = prefix_size
            n += write_tail_head(to + n, publish.reply, False, 0, size)
            memcpy(to + n, payload + i * publish.stride, size)
            n += size
            to[n] = c'\r'
            to[n + 1] = c'\n'
            out.pos += n + 2
            out_mark_dirty(out)
        return count

    cdef inline uint32_t send_run(self, OutBuf *out, const uint8_t *prefix, size_t prefix_size, Publish *publish,
                                  uint32_t count) noexcept:
        """`count` messages of a run behind a prefix; how many were taken."""
        cdef size_t size = prefix_size + publish.tail_size
        cdef const uint8_t *tail = publish.tail
        cdef uint32_t left = count
        cdef size_t n
        if unlikely(publish.blob != NULL):   # never a run
            if not out_append(out, prefix, prefix_size) \
                    or not out_append_blob(out, publish.blob, tail, publish.tail_size):
                return 0
            return 1
        if count > 1 and unlikely(publish.stride >= out.box.large_stride) \
                and publish.stride * count >= out.box.direct_bytes:
            n = out_send_run(out, prefix, prefix_size, tail, publish.tail_size, publish.stride, count)
            left -= <uint32_t>n
            if left == 0:
                return count
            tail += n * publish.stride
        while True:
            if unlikely(out_reserve(out, size) == NULL):
                return count - left
            n = 1 if left == 1 else min(<size_t>left, <size_t>(out.limit - out.pos) // size)
            out.pos = copy_run(out.pos, prefix, prefix_size, tail, publish.tail_size, publish.stride, n)
            left -= <uint32_t>n
            if left == 0:
                break
            tail += n * publish.stride
        out_mark_dirty(out)
        return count

    cdef inline uint32_t send_target(self, Entry *entry, Target *target, Publish *publish) noexcept:
        """The run to one subscription; fewer where its max is reached, or the peer is closing or over its limit."""
        cdef OutBuf *out = target.out
        cdef const uint8_t *prefix = entry.text + target.prefix_at
        cdef size_t prefix_size = prefix_size_of(entry, target)
        cdef uint32_t n = publish.count
        cdef Sub *sub = target.sub
        if unlikely(sub.max_msgs != 0):
            n = self.left_of(sub, out, publish)
            if n == 0:
                self.n_shorts += 1
                return 0
        if likely(publish.header_size == 0):   # "MSG …" is "HMSG …" without its first letter
            n = self.send_run(out, prefix + 1, prefix_size - 1, publish, n)
        elif out.takes_headers:
            n = self.send_run(out, prefix, prefix_size, publish, n)
        else:
            n = self.send_stripped(out, prefix + 1, prefix_size - 1, publish, n)
            out.payload_bytes -= <uint64_t>n * publish.header_size   # counted below; it does not get them
        out.msgs += n
        out.payload_bytes += <uint64_t>n * publish.size
        sub.delivered += n
        if unlikely(out.may_reply != 0) and publish.reply.size and n:
            (<Peer>out.peer).on_request(publish.reply.at, publish.reply.size)
        if unlikely(n != publish.count):
            self.note_short(n)
        if unlikely(sub.max_msgs != 0) and sub.delivered >= sub.max_msgs:
            self.note_finished(sub)
        return n

    cdef uint32_t left_of(self, const Sub *sub, const OutBuf *out, const Publish *publish) noexcept:
        cdef int shard = self.shard
        cdef bint is_taken
        if sub.delivered >= sub.max_msgs:
            return 0
        if out.moving:   # it takes a message here or on its other shard
            if publish.origin == ORIGIN_SIBLING or publish.origin == ORIGIN_SIBLING_ACCOUNT:
                shard = self.from_shard
            if shard >= ANY_SHARD:   # once marks are asked for, the client has it in the end, wherever it is now
                is_taken = out.takes_from != 0
            else:
                is_taken = (out.takes_from >> shard) & 1
            if not is_taken:
                return 0
        if unlikely(publish.publisher != 0) and sub.max_msgs == NO_MAX and sub.group != NULL:
            (<Peer>out.peer).on_kept_from(publish.publisher)
        return <uint32_t>min(<uint64_t>publish.count, sub.max_msgs - sub.delivered)

    cdef void note_short(self, uint32_t taken) noexcept:
        cdef uint32_t *shorts
        cdef uint32_t room
        self.n_shorts += 1
        if taken == 0:
            return
        if self.n_kept_shorts == self.room_shorts:
            room = self.room_shorts * 2 if self.room_shorts else 16
            shorts = <uint32_t *>realloc(self.shorts, room * sizeof(uint32_t))
            if shorts == NULL:
                return   # counted as if it had taken nothing
            self.shorts = shorts
            self.room_shorts = room
        self.shorts[self.n_kept_shorts] = taken
        self.n_kept_shorts += 1

    cdef uint32_t count_widths(self, Entry *entry, uint64_t *widths, uint32_t count, uint32_t width) noexcept:
        """`width` targets took all of the run, the shorts only its beginning."""
        cdef uint32_t i, least, others = width + self.n_kept_shorts, at = 0
        # The shortest first: up to there, it and all the others took part. (There may be 50,000.)
        if self.n_kept_shorts > 1:
            qsort(self.shorts, self.n_kept_shorts, sizeof(uint32_t), compare_counts)
        for i in range(self.n_kept_shorts):
            least = self.shorts[i]
            widths[width_bucket(others - i)] += least - at
            if least > at and others - i > entry.counts.widest:
                entry.counts.widest = others - i
            at = least
        self.n_kept_shorts = 0
        widths[width_bucket(width)] += count - at
        if width > entry.counts.widest:
            entry.counts.widest = width
        return 0 if width else count - at

    cdef void note_finished(self, Sub *sub) noexcept:
        cdef Sub **finished
        cdef uint32_t room
        if self.n_finished == self.room_finished:
            room = self.room_finished * 2 if self.room_finished else 16
            finished = <Sub **>realloc(self.finished, room * sizeof(Sub *))
            if finished == NULL:
                return   # it ends with the next message
            self.finished = finished
            self.room_finished = room
        self.finished[self.n_finished] = sub
        self.n_finished += 1

    cdef void finish(self) noexcept:
        """Ends the subscriptions whose max was reached; the entry is stale afterwards."""
        cdef uint32_t i
        for i in range(self.n_finished):
            (<Peer>self.finished[i].out.peer).on_finished(self.finished[i])
        self.n_finished = 0

    cdef uint32_t send_plain_link(self, OutBuf *link, Entry *entry, Publish *publish) noexcept:
        """RMSG (or HMSG) <account> <subject> and the tails as they are."""
        cdef uint8_t *prefix = entry.text + entry.rmsg_at
        cdef uint32_t n
        if unlikely(publish.origin >= ORIGIN_ACCOUNT):
            memcpy(prefix, b'XHMG' if publish.header_size else b'XMSG', 4)
        else:
            prefix[0] = c'H' if publish.header_size else c'R'
        n = self.send_run(link, prefix, entry.rmsg_size, publish, publish.count)
        if unlikely(publish.origin >= ORIGIN_ACCOUNT):
            memcpy(prefix, b'RMSG', 4)
        link.msgs += n
        link.payload_bytes += <uint64_t>n * publish.size
        self.link_out_msgs += n
        if unlikely(n < publish.count):
            self.link_refused += 1
        return n

    cdef bint send_queued(self, OutBuf *link, const Entry *entry, const Token *queues, int n_queues, Publish *publish,
                          bint only_queues, uint64_t id, uint64_t visited, uint64_t been) noexcept:
        cdef size_t size = entry.rmsg_size + publish.reply.size + publish.size + 160
        cdef size_t n = 0
        cdef uint8_t *to
        cdef int i
        for i in range(n_queues):
            size += queues[i].size + 1
        to = out_reserve(link, size)
        if to == NULL:
            self.link_refused += 1
            return False
        if only_queues:
            memcpy(to, b'QHMG ' if publish.header_size else b'QMSG ', 5)
            if unlikely(publish.origin >= ORIGIN_ACCOUNT):
                memcpy(to, b'XQHG ' if publish.header_size else b'XQMG ', 5)
            n = 5 + decimal(to + 5, id)
            to[n] = c' '
            n += 1 + decimal(to + n + 1, visited)
            to[n] = c' '
            n += 1 + decimal(to + n + 1, been)
            to[n] = c' '
            n += 1 + decimal(to + n + 1, publish.publisher)
        else:
            memcpy(to, b'HMSG' if publish.header_size else b'RMSG', 4)
            if unlikely(publish.origin >= ORIGIN_ACCOUNT):
                memcpy(to, b'XHMG' if publish.header_size else b'XMSG', 4)
            n = 4
        memcpy(to + n, entry.text + entry.rmsg_at + 4, entry.rmsg_size - 4)   # " <account> <subject>"
        n += entry.rmsg_size - 4
        n += write_named(to + n, publish, queues, n_queues, publish.header_size != 0, 0)
        link.pos += n
        out_mark_dirty(link)
        link.msgs += 1
        link.payload_bytes += publish.size
        self.link_out_msgs += 1
        return True

    cdef bint choose_here(self, Entry *entry, Choice *choice, uint64_t start, Publish *publish,
                          OutBuf *avoided) noexcept:
        """Send it to one of the members here, beginning with the start-th. False: none takes it."""
        cdef uint32_t i
        cdef Target *target
        for i in range(choice.n_local):
            target = &entry.targets[choice.first + (start + i) % choice.n_local]
            if unlikely(publish.origin >= ORIGIN_ACCOUNT) and is_foreign(entry, target - entry.targets):
                continue
            if unlikely(publish.publisher != 0) and avoided == NULL and is_output_of(target.out, publish.publisher):
                continue
            if target.out != avoided and self.send_target(entry, target, publish):
                return True
        return False

    cdef int choose_member(self, Sublist sublist, Entry *entry, Choice *choice, Publish *publish,
                           OutBuf *avoided) noexcept:
        cdef uint64_t pick = sublist.random() % choice.n_members
        cdef uint32_t w, shard = 0
        if pick < choice.n_own or (self.prefers_local and choice.n_own):
            if self.choose_here(entry, choice, pick, publish, avoided):
                return HERE
            if choice.n_remote == 0:
                return NOWHERE
            pick = choice.n_own
            if choice.n_members > choice.n_own:   # (else there are members of second choice alone)
                pick += sublist.random() % (choice.n_members - choice.n_own)
        pick -= choice.n_own
        for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
            shard = entry.weights[w].shard
            if pick < entry.weights[w].members:
                break
            pick -= entry.weights[w].members
        if self.links[shard] != NULL:
            return shard
        return HERE if self.choose_here(entry, choice, sublist.random(), publish, avoided) else NOWHERE

    cdef uint32_t deliver_choices(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                                  Outcome *outcome) noexcept:
        """One message to one member of each queue group, here or at a sibling, and to siblings with plain interest.

        Every member is equally likely, wherever it is. Returns how many got it here.
        """
        cdef Token names[MOST_QUEUES]     # the groups that go to the sibling of the same place in `shards`
        cdef uint8_t shards[MOST_QUEUES]
        cdef int n_remote = 0
        cdef size_t name_bytes = 0
        cdef uint32_t n = 0, k
        cdef int shard
        cdef uint64_t served = 0
        cdef Choice *choice
        self.is_split = False
        for k in range(entry.n_choices):
            choice = &entry.choices[k]
            if choice.n_members == 0:
                continue
            shard = self.choose_member(sublist, entry, choice, publish, avoided)
            if shard < 0:
                n += shard == HERE
                continue
            if n_remote == MOST_QUEUES or (n_remote and name_bytes + choice.name.key.size > MOST_NAME_BYTES):
                # More groups than one frame names: those so far get frames of their own, which serve no plain one.
                if not self.is_split and publish.reply.size:
                    self.note_numbers(self.before)
                    self.is_split = True
                n_remote = self.send_early(entry, publish, names, shards, n_remote, &name_bytes, outcome)
                if n_remote == MOST_QUEUES or (n_remote and shard == GATEWAY_NUMBER
                                               and name_bytes + choice.name.key.size > MOST_NAME_BYTES):
                    outcome.touched |= self.send_choices(entry, publish, names, shards, n_remote, True)
                    n_remote = 0
                    name_bytes = 0
            name_bytes += choice.name.key.size
            names[n_remote].at = <const uint8_t *>choice.name + sizeof(QueueName)
            names[n_remote].size = choice.name.key.size
            shards[n_remote] = <uint8_t>shard
            n_remote += 1
        if n_remote:
            if unlikely(publish.publisher != 0) and publish.reply.size and not self.is_split:
                self.note_numbers(self.before)
                self.is_split = True
            served = self.send_choices(entry, publish, names, shards, n_remote, False)
            if unlikely(publish.publisher != 0):   # those have got a QMSG
                outcome.touched |= served
                served &= <uint64_t>1 << GATEWAY_NUMBER
        if entry.remote & ~served:
            served |= self.deliver_remote(entry, publish, entry.remote & ~served)
        outcome.touched |= served
        return n

    cdef uint64_t deliver_remote(self, Entry *entry, Publish *publish, uint64_t shards) noexcept:
        """A run to the plain subscriptions of each sibling in a mask."""
        cdef uint64_t touched = 0
        cdef int shard = 0
        while shards:
            if shards & 1 and self.links[shard] != NULL:
                self.send_plain_link(self.links[shard], entry, publish)
                touched |= <uint64_t>1 << shard
            shards >>= 1
            shard += 1
        return touched

    cdef uint32_t deliver_to_group(self, Sublist sublist, Entry *entry, Publish *publish) noexcept:
        """A run to one queue group with members here only: the usual work queue."""
        cdef Choice *choice = entry.choices
        cdef Publish message = publish[0]
        cdef uint32_t n = 0, _i
        cdef uint64_t pick
        message.count = 1
        for _i in range(publish.count):
            pick = ((sublist.random() >> 32) * choice.n_local) >> 32
            if self.send_target(entry, &entry.targets[choice.first + pick], &message) \
                    or self.choose_here(entry, choice, pick + 1, &message, NULL):
                n += 1
            message.tail += publish.stride
            message.payload += publish.stride
        return n

    cdef uint32_t deliver_to_group_anywhere(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                                            Outcome *outcome) noexcept:
        """A run without replies to one queue group with members at siblings: all its frames begin the same."""
        cdef uint8_t prefix[MOST_PREFIX_BYTES]
        cdef uint8_t onward[MOST_PREFIX_BYTES]   # for the gateway, where the publisher may not have it
        cdef Choice *choice = entry.choices
        cdef size_t size, onward_size = 0
        cdef Publish message = publish[0]
        cdef OutBuf *link
        cdef uint32_t n = 0, sent = 0, _i
        cdef int shard
        cdef bint is_taken
        if entry.rmsg_size + choice.name.key.size > MOST_PREFIX_BYTES - MOST_NUMBERS_BYTES - SLACK:
            return self.deliver_singly(sublist, entry, publish, avoided, outcome)
        size = write_beginning(prefix, entry, choice, publish, 0)
        if publish.publisher:
            onward_size = write_beginning(onward, entry, choice, publish, PLAINLY)
        message.count = 1
        for _i in range(publish.count):
            shard = self.choose_member(sublist, entry, choice, &message, avoided)
            if shard >= 0:
                link = self.links[shard]
                if unlikely(onward_size != 0) and shard == GATEWAY_NUMBER:
                    is_taken = self.send_run(link, onward, onward_size, &message, 1)
                else:
                    is_taken = self.send_run(link, prefix, size, &message, 1)
                if is_taken:
                    link.msgs += 1
                    link.payload_bytes += publish.size
                    sent += 1
                else:
                    self.link_refused += 1
                outcome.touched |= <uint64_t>1 << shard
            else:
                n += shard == HERE
            message.tail += publish.stride
            message.payload += publish.stride
        self.link_out_msgs += sent
        if sublist.tally is not None:
            sublist.widths[1] += n
            sublist.widths[0] += publish.count - n
            entry.counts.unwanted += publish.count - n - sent
            if n and entry.counts.widest == 0:
                entry.counts.widest = 1
        return n

    cdef uint32_t deliver_singly(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                                 Outcome *outcome) noexcept:
        """A run message by message, where it cannot go out as one: a queue group chooses anew for each, and a client
        with two subscriptions gets the first message on both before the second on either."""
        cdef Publish message = publish[0]
        cdef uint32_t n = 0, _i, _k, before
        cdef uint64_t frames
        cdef Target *target
        message.count = 1
        for _i in range(publish.count):
            before = n
            frames = self.link_out_msgs
            target = entry.targets
            for _k in range(entry.n_plain):
                if target.out != avoided:
                    n += self.send_target(entry, target, &message)
                target += 1
            if entry.n_choices:
                n += self.deliver_choices(sublist, entry, &message, avoided, outcome)
            else:
                outcome.touched |= self.deliver_remote(entry, &message, entry.remote)
            if sublist.tally is not None:
                sublist.widths[width_bucket(n - before)] += 1
                if n - before > entry.counts.widest:
                    entry.counts.widest = n - before
                if n == before and frames == self.link_out_msgs:
                    entry.counts.unwanted += 1
            message.tail += publish.stride
            message.payload += publish.stride
        return n

    cdef int send_early(self, Entry *entry, Publish *publish, Token *names, uint8_t *shards, int n_remote,
                        size_t *name_bytes, Outcome *outcome) noexcept:
        """Frames that serve these groups alone, but not to the gateway: a nats-server with plain subscriptions gets
        nothing for groups alone. How many are left, in front, and their bytes."""
        cdef Token others[MOST_QUEUES]
        cdef uint8_t theirs[MOST_QUEUES]
        cdef int i, n = 0, left = 0
        name_bytes[0] = 0
        for i in range(n_remote):
            if shards[i] == GATEWAY_NUMBER:
                names[left] = names[i]
                shards[left] = shards[i]
                name_bytes[0] += names[left].size
                left += 1
            else:
                others[n] = names[i]
                theirs[n] = shards[i]
                n += 1
        outcome.touched |= self.send_choices(entry, publish, others, theirs, n, True)
        return left

    cdef uint64_t send_choices(self, Entry *entry, Publish *publish, const Token *names, const uint8_t *shards,
                               int n_remote, bint only_queues) noexcept:
        """One frame to each sibling among `shards`, naming its groups; the mask of those. An RMSG serves
        the plain subscriptions there too, a QMSG (nobody visited yet) only the groups; a message that its publisher may
        not have goes as QMSG, which says so; to other servers one frame serves both."""
        cdef Token queues[MOST_QUEUES]
        cdef uint64_t done = 0, bit
        cdef int i, j, n_queues
        cdef bint is_kept = publish.publisher != 0
        for i in range(n_remote):
            bit = <uint64_t>1 << shards[i]
            if done & bit:
                continue
            n_queues = 0
            for j in range(i, n_remote):
                if shards[j] == shards[i]:
                    queues[n_queues] = names[j]
                    n_queues += 1
            self.send_queued(self.links[shards[i]], entry, queues, n_queues, publish, only_queues or is_kept, 0, 0,
                             PLAINLY if is_kept and not only_queues and shards[i] == GATEWAY_NUMBER else 0)
            done |= bit
        return done

    cdef uint32_t run_at(self, const Entry *entry, const uint8_t *line, size_t line_size, size_t total,
                         const uint8_t *p, const uint8_t *end) noexcept:
        cdef uint32_t n = 0, n_targets = entry.n_plain + entry.n_choices
        if end - p > MOST_RUN_BYTES and (total < self.box.large_stride or total >= BLOB_BYTES
                                         or not self.takes_long_run(entry)):
            end = p + MOST_RUN_BYTES
        if unlikely(n_targets > MANY_TARGETS):
            end = min(end, p + total * (MOST_DELIVERED // n_targets + 1))
        while True:
            n += 1
            p += total
            if <size_t>(end - p) < total or end < p or not line_stands_at(line, line_size, total, p):
                return n

    cdef bint takes_long_run(self, const Entry *entry) noexcept:
        cdef uint64_t left = entry.remote
        cdef OutBuf *out
        cdef int slot = 0
        if entry.n_choices or entry.n_plain > 1 or left & (left - 1) or (entry.n_plain and left) \
                or entry.slow_until_us > self.box.now_us:
            return False
        if entry.n_plain:
            out = entry.targets[0].out
        elif left:
            while not (left >> slot) & 1:
                slot += 1
            out = self.links[slot]
            if out == NULL and self.onward is not None:
                out = self.onward.output(slot)
        else:
            return True
        return out != NULL and out.head == NULL and not out.is_blocked and not out.moving \
            and (out.stall_mark == 0 or out.stall_mark >= <size_t>LONGEST_RUN_BYTES)

    cdef Blob *share(self, Publish *publish, uint32_t receivers) noexcept:
        """Decide how the tail goes out: copied to each receiver, or, where it is big, by reference.

        A big tail in the read buffer with several receivers is copied once, to a blob. Returns that blob, which the
        caller releases, or NULL.
        """
        cdef Blob *blob = NULL
        if likely(publish.tail_size < BLOB_BYTES):
            publish.blob = NULL
        elif publish.blob == NULL and receivers > 1:
            blob = blob_new(self.box, publish.tail_size)
            if blob != NULL:
                memcpy(blob.data, publish.tail, publish.tail_size)
                publish.payload = blob.data + (publish.payload - publish.tail)
                publish.tail = blob.data
                publish.blob = blob
        return blob

    cdef Outcome deliver(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided) noexcept:
        cdef Outcome outcome
        cdef Outcome singly
        cdef uint32_t n = 0, _i, others = entry.n_plain, unwanted
        cdef uint64_t frames = 0, touched = 0, in_bytes, out_bytes
        cdef Target *target = entry.targets
        cdef Blob *blob = NULL
        if likely(publish.tail_size < BLOB_BYTES):
            publish.blob = NULL
        else:
            blob = self.share(publish, entry.n_plain + (entry.remote != 0))
        self.n_shorts = self.n_kept_shorts = 0
        if likely(entry.n_choices == 0 and (publish.count == 1 or not entry.is_doubled)):
            for _i in range(entry.n_plain):
                if target.out != avoided:
                    n += self.send_target(entry, target, publish)
                else:
                    others -= 1
                target += 1
            if entry.remote:
                frames = self.link_out_msgs
                touched = self.deliver_remote(entry, publish, entry.remote)
            if likely(sublist.tally is not None):
                if unlikely(self.n_shorts != 0):
                    unwanted = self.count_widths(entry, sublist.widths, publish.count, others - self.n_shorts)
                    if touched == 0:
                        entry.counts.unwanted += unwanted
                else:
                    sublist.widths[width_bucket(others)] += publish.count
                    if others > entry.counts.widest:
                        entry.counts.widest = others
                    elif unlikely(others == 0) and touched == 0:
                        entry.counts.unwanted += publish.count
        elif entry.n_choices == 1 and entry.n_plain == 0 and entry.choices.n_remote == 0 and entry.remote == 0 \
                and avoided == NULL and entry.choices.n_local:
            n = self.deliver_to_group(sublist, entry, publish)
            if likely(sublist.tally is not None):
                sublist.widths[1] += n
                sublist.widths[0] += publish.count - n
                entry.counts.unwanted += publish.count - n
                if n:
                    entry.counts.widest = 1 if entry.counts.widest == 0 else entry.counts.widest
        else:
            frames = self.link_out_msgs
            no_outcome(&singly)
            if entry.n_choices == 1 and entry.n_plain == 0 and entry.remote == 0 and publish.reply.size == 0 \
                    and publish.blob == NULL and entry.choices.n_members:
                n = self.deliver_to_group_anywhere(sublist, entry, publish, avoided, &singly)
            else:
                n = self.deliver_singly(sublist, entry, publish, avoided, &singly)
            touched = singly.touched
        in_bytes = <uint64_t>publish.count * publish.size
        out_bytes = <uint64_t>n * publish.size
        entry.counts.msgs += publish.count
        entry.counts.payload_bytes += in_bytes
        entry.counts.deliveries += n
        entry.counts.out_bytes += out_bytes
        if touched:
            entry.counts.link_out += <uint32_t>(self.link_out_msgs - frames)
            if unlikely(entry.counts.link_out >> 31):
                sublist.book(entry)
        if unlikely((entry.counts.msgs | entry.counts.deliveries) >> 31):
            sublist.book(entry)
        self.in_msgs += publish.count
        self.in_bytes += in_bytes
        self.out_msgs += n
        self.out_bytes += out_bytes
        if unlikely(blob != NULL):
            blob_release(self.box, blob)
        if unlikely(self.n_finished):
            self.finish()
        outcome.touched = touched
        outcome.deliveries = n
        outcome.stalls = False
        if unlikely(self.box.stalling != NULL):
            self.box.stalling = NULL
            outcome.stalls = True
        return outcome

    cdef void deliver_across(self, Sublist sublist, Entry *entry, Publish *publish, Outcome *outcome) noexcept:
        cdef uint32_t n = 0, k
        cdef uint64_t frames = self.link_out_msgs
        cdef Blob *blob
        if self.onward is not None:
            self.onward.pass_on(sublist, entry, publish, True, NULL, -1, outcome)
            return
        blob = self.share(publish, entry.n_plain + (entry.remote != 0))
        self.n_shorts = self.n_kept_shorts = 0
        for k in range(entry.n_plain):
            if not is_foreign(entry, k):
                n += self.send_target(entry, &entry.targets[k], publish)
        if entry.n_choices:
            n += self.deliver_choices(sublist, entry, publish, NULL, outcome)
        else:
            outcome.touched |= self.deliver_remote(entry, publish, entry.remote)
        # The message was counted where it was published; here only its deliveries are.
        entry.counts.deliveries += n
        entry.counts.out_bytes += <uint64_t>n * publish.size
        entry.counts.link_out += <uint32_t>(self.link_out_msgs - frames)
        if unlikely((entry.counts.link_out | entry.counts.deliveries) >> 31):
            sublist.book(entry)
        self.out_msgs += n
        self.out_bytes += <uint64_t>n * publish.size
        if blob != NULL:
            blob_release(self.box, blob)
        if self.n_finished:
            self.finish()
        outcome.deliveries += n
        if self.box.stalling != NULL:
            self.box.stalling = NULL
            outcome.stalls = True

    cdef uint32_t deliver_doubled(self, Sublist sublist, Entry *entry, Publish *publish) noexcept:
        """A sibling's run to plain subscriptions of which several are one client's: message by message."""
        cdef Publish message = publish[0]
        cdef uint32_t n = 0, _i, k, before
        message.count = 1
        for _i in range(publish.count):
            before = n
            for k in range(entry.n_plain):
                n += self.send_target(entry, &entry.targets[k], &message)
            if sublist.tally is not None:
                sublist.link_widths[width_bucket(n - before)] += 1
                if n - before > entry.counts.widest:
                    entry.counts.widest = n - before
            message.tail += publish.stride
            message.payload += publish.stride
        return n

    cdef uint64_t deliver_here(self, Sublist sublist, Entry *entry, Publish *publish, bint plainly,
                               const Token *queues, int n_queues, Outcome *outcome) noexcept:
        cdef uint32_t n = 0, i, _i
        cdef uint64_t orphans = 0
        cdef int q
        cdef Target *target = entry.targets
        cdef Choice *choice
        cdef const uint8_t *tail = publish.tail
        cdef const uint8_t *payload = publish.payload
        cdef Blob *blob
        self.box.stalling = NULL   # (a link that is behind with the PONG before it makes nobody wait)
        if unlikely(self.onward is not None):
            return self.onward.pass_on(sublist, entry, publish, plainly, queues, n_queues, outcome)
        blob = self.share(publish, entry.n_plain)
        self.n_shorts = self.n_kept_shorts = 0
        if unlikely(publish.origin >= ORIGIN_ACCOUNT):   # never a run
            for i in range(entry.n_plain if plainly else 0):
                if not is_foreign(entry, i):
                    n += self.send_target(entry, &entry.targets[i], publish)
        elif plainly and (publish.count == 1 or not entry.is_doubled):
            for _i in range(entry.n_plain):
                n += self.send_target(entry, target, publish)
                target += 1
        elif plainly:
            n = self.deliver_doubled(sublist, entry, publish)
        if n_queues == 0 and (publish.count == 1 or not entry.is_doubled) and sublist.tally is not None:
            if likely(self.n_shorts == 0):
                sublist.link_widths[width_bucket(entry.n_plain)] += publish.count
                if entry.n_plain > entry.counts.widest:
                    entry.counts.widest = entry.n_plain
            else:
                self.count_widths(entry, sublist.link_widths, publish.count, entry.n_plain - self.n_shorts)
        for q in range(n_queues):
            choice = choice_named(entry, queues[q])
            # (the sender chose this shard for its number of members, and does not say which one)
            if choice != NULL and choice.n_local and self.choose_here(entry, choice, sublist.random(), publish, NULL):
                n += 1
            else:
                orphans |= <uint64_t>1 << q
        if n_queues and sublist.tally is not None:   # never a run
            sublist.link_widths[width_bucket(n)] += 1
            if n > entry.counts.widest:
                entry.counts.widest = n
        entry.counts.link_in += publish.count
        entry.counts.deliveries += n
        entry.counts.out_bytes += <uint64_t>n * publish.size
        if unlikely((entry.counts.link_in | entry.counts.deliveries) >> 31):
            sublist.book(entry)
        self.link_in_msgs += publish.count
        self.out_msgs += n
        self.out_bytes += <uint64_t>n * publish.size
        if unlikely(blob != NULL):
            blob_release(self.box, blob)
            publish.tail = tail
            publish.payload = payload
            publish.blob = NULL
        if unlikely(self.n_finished):
            self.finish()
        outcome.deliveries += n
        if unlikely(self.box.stalling != NULL):
            self.box.stalling = NULL
            outcome.stalls = True
        return orphans
