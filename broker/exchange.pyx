# cython: language_level=3, boundscheck=False, wraparound=False
"""What passes between this broker's shards and other servers: messages, and interest in them.

It belongs to the one shard that is connected to other servers, which has no clients. Interest of every peer is in the
sublists, by slot, as that of siblings is on each shard; so one frame goes to a peer, however many subscriptions it has.
Which kinds of peers hear of each other is data: MESSAGES and INTEREST below. What came by a route goes to no other
route, and a sibling's message to no sibling, because the table says so. Not here: frames of other servers
(broker.serverlink), and who they are (shards.gateway).
"""

import os
from functools import partial
from itertools import islice

from gnatswarm.broker.fanout cimport (
    ANOTHER_BROKER, MOST_QUEUES, ORIGIN_ACCOUNT, fits_line, write_named, write_queues, write_tail_head)
from gnatswarm.broker.entry cimport choice_named
from gnatswarm.broker.interest cimport SECOND_CHOICE, InterestCursor, QueueName, weight_of
from gnatswarm.broker.mesh cimport MOST_TOLD_BYTES as MOST_WAITING_BYTES, Retelling
from gnatswarm.broker.outbuf cimport (
    CLOSE_NONE, Blob, CloseReason, blob_release, out_append_all, out_condemn, out_mark_dirty, out_pending, out_reserve)
from gnatswarm.broker.reroutes cimport CAME_IN, LINGERING, REFUSED, OriginLink
from gnatswarm.broker.routewire cimport write_interest
from gnatswarm.broker.rules cimport StreamImport
from gnatswarm.broker.serverwire cimport DIALECT_LEAF, MOST_ORIGIN_BYTES, write_server_interest
from gnatswarm.broker.shadows cimport STEPS_A_LOOK, STEPS_A_SHADOW
from gnatswarm.broker.sublist cimport MOST_MATCHING, count_steps, match_steps
from gnatswarm.broker.table cimport MOST_KEY_BYTES
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, unlikely

from libc.stdint cimport int64_t
from libc.string cimport memchr, memcmp, memcpy

from gnatswarm.broker.rules import intersection

# The pattern of all generated reply subjects.
EVERY_REPLY = b"_R_.>"
# In the place of a server's short id.
NO_SERVER = b"-"
# In the place of those where it was: plain subscriptions are to have it, too.
TO_PLAIN = b"+"
# The bit of Publish.publisher that says that it is another server's client: no shard has one of this number.
cdef uint64_t FOREIGN = <uint64_t>1 << 63
# So long a request of another cluster may be answered.
cdef uint64_t FOR_CLUSTERS_US = 120_000_000
# For go_on(): all that there is.
cdef int64_t EVERYTHING = <int64_t>1 << 62
cdef uint64_t MOST_CID = (<uint64_t>1 << CID_BITS) - 1

cdef enum:
    STEPS_A_RENEWAL = 300   # of what a leaf node wants, at a reload
    MET_AT_ONCE = 1000      # subjects of an account, where one peer's are looked for
    TO_SIBLINGS = 1 << PEER_SIBLING
    TO_ROUTES = 1 << PEER_ROUTE
    TO_LEAVES = 1 << PEER_LEAF
    TO_HUBS = 1 << PEER_HUB

# To which kinds a message goes, by the kind of peer that it comes from; and whose interest a peer is told, by its kind.
cdef int[4] MESSAGES = [
    TO_ROUTES | TO_LEAVES | TO_HUBS,                  # PEER_SIBLING
    TO_SIBLINGS | TO_LEAVES,                          # PEER_ROUTE
    TO_SIBLINGS | TO_ROUTES | TO_LEAVES | TO_HUBS,    # PEER_LEAF
    TO_SIBLINGS | TO_LEAVES | TO_HUBS,                # PEER_HUB
]
cdef int[4] INTEREST = [
    TO_ROUTES | TO_LEAVES | TO_HUBS,
    TO_SIBLINGS | TO_LEAVES,
    TO_SIBLINGS | TO_ROUTES | TO_LEAVES | TO_HUBS,
    TO_SIBLINGS | TO_LEAVES,
]


cdef size_t ALL_OF_IT = <size_t>-1

cdef const uint8_t *ANSWERERS = b'_sys_'

cdef enum:
    WITHDRAWN = -2
    NOBODY = MOST_SHARDS         # no peer's number: see tell_group()
    MOST_MEMBERS = 999_999_999   # of a group, in one frame
    # A nats-server sends on what its members may not have, and so do others: without end, as nothing in the frame says
    # where it was. One of so many times it is not sent there again.
    SENT_BACK_ABOUT = 16
    SHORT_ID_BYTES = 12          # of a server's id: 55 bits by chance
    MOST_BEEN_BYTES = 1024       # of the names in a QMSG: more servers than can be connected here
    # Interest in one read of a server, some 100 lines, and how much is read without rests: 1,500 to 3,000 lines.
    MUCH_TOLD_BYTES = 4096
    BYTES_WITHOUT_REST = 65536


cdef bytes origin_of(PeerKind kind, str cluster):
    """The name of a leaf node's cluster in frames; b"": it has none, or none that fits there."""
    if kind != PEER_LEAF or any(one.isspace() for one in cluster):
        return b""
    origin = cluster.encode("utf-8", "surrogateescape")
    return origin if len(origin) <= MOST_ORIGIN_BYTES else b""


cdef bytes short_id(str server_id):
    """How QMSG names a server; b"": its id is none."""
    return server_id[:SHORT_ID_BYTES].encode() if server_id.isascii() and server_id.isalnum() else b""


cdef bint is_loop_subject(const uint8_t *subject, size_t size) noexcept nogil:
    return size > 5 and memcmp(subject, b'$LDS.', 5) == 0


cdef bint is_of_cluster(const uint8_t *subject, size_t size) noexcept nogil:
    return size > 5 and memcmp(subject, b'_GR_.', 5) == 0


cdef inline bint is_count(const uint8_t *subject, size_t size) noexcept nogil:
    """Of how many subscriptions members have: see shards.clients.system."""
    return size == 22 and memcmp(subject, b'$SYS.REQ.ACCOUNT.NSUBS', 22) == 0


cdef inline bint is_for_asker(const uint8_t *subject, size_t size) noexcept nogil:
    """Of how many subscriptions all have: the server of the asker answers alone."""
    return size == 22 and memcmp(subject, b'$SYS.DEBUG.SUBSCRIBERS', 22) == 0


cdef class Leaving(ServerWait):
    """A member of a queue group has left a shard, and lingers there until other servers know."""

    cdef int on_known(self) except -1:
        self.exchange.count_leaving(self, -1)
        return 0 if self.link.is_closing else self.link.acknowledge(self.id, True)


cdef class RetellingOthers(Retelling):
    """Tells one peer the interest of others: a sibling that of other servers, or a server what it is to know."""

    cdef Exchange exchange
    cdef int slot         # -1: a sibling; WITHDRAWN: all siblings, that it ends

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        cdef const uint8_t *account = interest.account
        if self.slot == WITHDRAWN:
            if after & self.exchange.outside and not is_loop_subject(subject, size):
                self.exchange.mesh.tell_all(interest, subject, size, NULL, 0, 0)
        elif self.slot >= 0:
            self.exchange.tell_change(self.slot, interest, subject, size, 0, after)
        elif after & self.exchange.outside and not is_loop_subject(subject, size) and not self.exchange.is_withdrawn:
            write_interest(self.link, account, len(interest.account), subject, size, NULL, 0, 1)
            self.n += 1

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        cdef const uint8_t *account = interest.account
        cdef uint32_t members
        if self.slot == WITHDRAWN:
            if choice_of(group, self.exchange.outside):
                self.exchange.mesh.tell_all(interest, subject, size, <const uint8_t *>group.name + sizeof(QueueName),
                                            group.name.key.size, 0)
            return
        if self.slot >= 0:
            self.exchange.tell_group(self.slot, interest, subject, size, group, NOBODY, 0)
            return
        members = choice_of(group, self.exchange.outside)
        if members and not self.exchange.is_withdrawn:
            write_interest(self.link, account, len(interest.account), subject, size,
                           <const uint8_t *>group.name + sizeof(QueueName), group.name.key.size, members)
            self.n += 1


cdef class TellingServer(Accounts):

    cdef list cursors_of(self, Sublist sublist):
        cdef RetellingOthers retelling = RetellingOthers()
        retelling.exchange = self.exchange
        retelling.hears_remote = True
        retelling.slot = self.slot
        self.ahead.discard(sublist)
        return [sublist.telling_cursor(retelling)]

    cdef bint is_due(self) noexcept:
        return out_pending(self.out) < <size_t>MOST_WAITING_BYTES or self.out.close_reason != CLOSE_NONE

    cdef bint go_on(self, int64_t most) except -1:
        cdef size_t max_pending = self.out.max_pending
        cdef bint is_done
        if max_pending:   # (what it is told at once is no reason to close it)
            self.out.max_pending = 0
        self.is_under_way = True
        is_done = self.go_on_while_due(most)
        self.is_under_way = False
        if max_pending:
            self.out.max_pending = max(max_pending, 2 * out_pending(self.out))
        self.behind.taken_us = self.out.taken_us
        self.exchange.check_behind(self.slot)
        if is_done:
            self.exchange.end_telling(self.slot)
        return is_done

    cdef bint is_ahead(self, Interest interest, const Node *node, const QueueGroup *group) noexcept:
        cdef InterestCursor cursor
        if self.is_under_way:
            return False
        if self.cursors:
            cursor = <InterestCursor>self.cursors[0]
            if cursor.interest is interest:
                return cursor.is_ahead(node, group)
        return interest in self.ahead


cdef class Withdrawing(Accounts):

    cdef list cursors_of(self, Sublist sublist):
        cdef RetellingOthers retelling = RetellingOthers()
        retelling.exchange = self.exchange
        retelling.hears_remote = True
        retelling.slot = WITHDRAWN
        return [sublist.telling_cursor(retelling)]

    cdef bint is_due(self) noexcept:
        cdef uint64_t left = self.mesh.up
        cdef int shard = 0
        while left:
            if left & 1 and out_pending(self.mesh.fanout.links[shard]) >= <size_t>MOST_WAITING_BYTES:
                return False
            left >>= 1
            shard += 1
        return True

    cdef bint go_on(self, int64_t most) except -1:
        if not self.go_on_while_due(most):
            return False
        self.exchange.call_when_known(self.call)
        return True


cdef class Answered(InterestSink):
    """What other servers are told of subjects to which shards answer requests: see Exchange.set_system_account()."""

    cdef Exchange exchange
    cdef uint32_t slot

    cdef bint has_answerers(self, Interest interest, const uint8_t *subject, size_t size) noexcept:
        cdef const Node *node = interest.node_at(subject, size)
        cdef const QueueGroup *group = node.groups if node != NULL else NULL
        while group != NULL:
            if is_answerers(group):
                return True
            group = group.next
        return False

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        if self.has_answerers(interest, subject, size):
            self.exchange.tell_change(self.slot, interest, subject, size, 0, after)

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        if is_answerers(group):
            self.exchange.tell_group(self.slot, interest, subject, size, group, NOBODY, 0)


cdef class Collecting(InterestSink):
    """What one peer is interested in: (account, subject, queue or b""), at most so many."""

    cdef uint32_t slot
    cdef size_t most
    cdef dict found

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        if (after >> self.slot) & 1 and <size_t>len(self.found) < self.most:
            self.found[interest.account, subject[:size], b""] = None

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        if <size_t>len(self.found) < self.most and members_of(group, <uint64_t>1 << self.slot):
            self.found[interest.account, subject[:size],
                       (<const uint8_t *>group.name + sizeof(QueueName))[:group.name.key.size]] = None


cdef uint32_t members_told(Sublist sublist, int slot, bytes subject, bytes queue) except? 0xFFFFFFFF:
    """What the other end of a leaf node connection wants of this now; 1 without a queue, 0: nothing."""
    cdef const uint8_t *at = subject
    cdef const uint8_t *name = queue
    cdef const Node *node
    if queue:
        return sublist.remote_members(slot, at, len(subject), name, len(queue)) & ~SECOND_CHOICE
    node = sublist.node_at(at, len(subject))
    return node != NULL and (node.remote >> slot) & 1


cdef inline bint is_answerers(const QueueGroup *group) noexcept:
    return group.name.key.size == 5 and memcmp(<const uint8_t *>group.name + sizeof(QueueName), ANSWERERS, 5) == 0


cdef inline uint32_t members_of(const QueueGroup *group, uint64_t slots) noexcept:
    """How many members it has at these slots; no more than a frame may say."""
    cdef uint64_t members = 0
    cdef uint32_t i
    for i in range(group.n_remote):
        if (slots >> group.remote[i].shard) & 1:
            members += weight_of(group, i) & ~SECOND_CHOICE
    return <uint32_t>min(members, <uint64_t>MOST_MEMBERS)


cdef inline uint32_t choice_of(const QueueGroup *group, uint64_t slots) noexcept:
    """The members that siblings choose from: those of second choice only if there are no others."""
    cdef uint64_t first = 0
    cdef uint32_t i, second = 0
    for i in range(group.n_remote):
        if (slots >> group.remote[i].shard) & 1:
            if group.remote[i].members & SECOND_CHOICE:
                second = SECOND_CHOICE | 1
            else:
                first += weight_of(group, i)
    return <uint32_t>min(first, <uint64_t>MOST_MEMBERS) if first else second


cdef class Exchange(Onward):
    """The peers of the shard whose mesh this is."""

    def __cinit__(self, Mesh mesh not None, MeshFence siblings_fence=None):
        self.mesh = mesh
        self.siblings_fence = siblings_fence
        self.fence = ServerFence()
        self.fanout = mesh.fanout
        self.of_kind[<int>PEER_SIBLING] = ~<uint64_t>0
        self.accounts = [None] * MOST_SHARDS
        self.tellings = [None] * MOST_SHARDS
        self.permissions = [None] * MOST_SHARDS
        self.clusters = [""] * MOST_SHARDS
        self.answers = [None] * MOST_SHARDS
        self.told_answers = [None] * MOST_SHARDS
        self.for_clusters = [None] * MOST_SHARDS
        self.short_ids = [b""] * MOST_SHARDS
        self.own_short_id = NO_SERVER
        self.origins = [b""] * MOST_SHARDS
        self.leaves_of = {}
        self.told_apart = [{} for _ in range(MOST_SHARDS)]
        self.origin = b""
        self.onward = ~<uint64_t>0
        self.imported = [{} for _ in range(MOST_SHARDS)]
        self.sources = [{} for _ in range(MOST_SHARDS)]
        self.told_replies = {}
        self.due_replies = {}
        self.system_account = b""
        self.loop_subjects = {}
        self.own = {}
        self.leaving = {}
        self.unasked = {}
        self.fanout.onward = self
        mesh.hears_remote = True
        self.much_told_bytes = MUCH_TOLD_BYTES

    def loop_subject(self, bytes account not None) -> bytes:
        """A subject that this broker alone has, in this account: who hears of it from elsewhere is in a loop."""
        found = self.loop_subjects.get(account)
        if found is None:
            found = self.loop_subjects[account] = b"$LDS." + os.urandom(11).hex().encode()
        return found

    def forget_accounts(self):
        """Forget what is kept of accounts that the mesh has forgotten: their names may come and go for months."""
        for account in [one for one in self.loop_subjects if one not in self.mesh.accounts]:
            del self.loop_subjects[account]
        for account in [one for one in self.due_replies if one not in self.mesh.accounts]:
            del self.due_replies[account]
        for slot, account in [one for one in self.told_replies if one[1] not in self.mesh.accounts]:
            for pattern in self.told_replies.pop((slot, account)):
                if (self.told >> slot) & 1:
                    self.tell_pattern(slot, account, pattern, 0)

    cdef uint64_t reach(self, uint32_t slot) noexcept:
        cdef uint64_t slots = 0
        cdef int kind
        for kind in range(PEER_KINDS):
            if (MESSAGES[self.kinds[slot]] >> kind) & 1:
                slots |= self.of_kind[kind]
        return slots & ~self.mates[slot] & ~(<uint64_t>1 << slot)

    cdef uint64_t feeds(self, uint32_t slot) noexcept:
        cdef uint64_t slots = 0
        cdef int kind
        for kind in range(PEER_KINDS):
            if (INTEREST[self.kinds[slot]] >> kind) & 1:
                slots |= self.of_kind[kind]
        if self.kinds[slot] == PEER_ROUTE:   # a request that came by a route follows no imports
            slots &= ~(<uint64_t>1 << END_SLOT)
        if (self.isolated >> slot) & 1:
            slots &= ~self.of_kind[<int>PEER_LEAF]
        return slots & ~self.mates[slot] & ~(<uint64_t>1 << slot)

    cdef uint64_t feeds_on(self, uint32_t slot, const uint8_t *subject, size_t size) noexcept:
        """feeds() for one subject. A hub is not told that JetStream's API is imported here: its clients have their own,
        or none, and two would answer them. Loops are looked for also by leaf nodes that are isolated."""
        cdef uint64_t slots = self.feeds(slot)
        if unlikely((self.isolated >> slot) & 1) and is_loop_subject(subject, size):
            slots |= self.of_kind[<int>PEER_LEAF] & ~self.mates[slot] & ~(<uint64_t>1 << slot)
        if self.kinds[slot] == PEER_HUB and size == 9 and memcmp(subject, b'$JS.API.>', 9) == 0:
            slots &= ~(<uint64_t>1 << END_SLOT)
        return slots

    # ---- messages

    cdef uint64_t pass_on(self, Sublist sublist, Entry *entry, Publish *publish, bint plainly, const Token *queues,
                          int n_queues, Outcome *outcome) noexcept:
        if n_queues < 0:
            return self.forward(sublist, entry, publish, self.onward, plainly, queues, n_queues, outcome)
        entry.counts.link_in += publish.count
        self.fanout.link_in_msgs += publish.count
        return self.forward(sublist, entry, publish, self.outside, plainly, queues, n_queues, outcome)

    cdef int pick(self, Sublist sublist, const Entry *entry, const Choice *choice, uint64_t reach) noexcept:
        """A slot with members of the group, each member equally likely, of second choice if there are no others; -1:
        there is none. Where members of our cluster have some, hubs are not asked: what they tell may be the same ones,
        whom they would not send it."""
        cdef uint32_t w
        cdef int slot = self.pick_of(sublist, entry, choice.first_remote, choice.n_first, reach)
        if slot >= 0:
            return slot
        if unlikely(reach & self.of_kind[<int>PEER_HUB]) and self.of_kind[<int>PEER_ROUTE]:
            for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
                if ((reach & self.of_kind[<int>PEER_ROUTE]) >> entry.weights[w].shard) & 1:
                    reach &= ~self.of_kind[<int>PEER_HUB]
                    break
        return self.pick_of(sublist, entry, choice.first_remote + choice.n_first, choice.n_remote - choice.n_first,
                            reach)

    cdef int pick_of(self, Sublist sublist, const Entry *entry, uint32_t first, uint32_t n, uint64_t reach) noexcept:
        cdef uint64_t members = 0, at
        cdef uint32_t w
        for w in range(first, first + n):
            if (reach >> entry.weights[w].shard) & 1:
                members += entry.weights[w].members
        if members == 0:
            return -1
        at = sublist.random() % members
        for w in range(first, first + n):
            if (reach >> entry.weights[w].shard) & 1:
                if at < entry.weights[w].members:
                    return <int>entry.weights[w].shard
                at -= entry.weights[w].members
        return -1

    cdef bytes names_of(self, uint64_t slots, bint with_own):
        cdef int slot
        names = [self.own_short_id if with_own else NO_SERVER]
        for slot in range(FIRST_SLOT, END_SLOT):
            if (slots >> slot) & 1:
                names.append(self.short_ids[slot])
        return b",".join(names)

    cdef uint64_t slots_of(self, Token names) noexcept:
        cdef uint64_t found = 0
        cdef int slot
        for name in names.at[:min(names.size, <size_t>MOST_BEEN_BYTES)].split(b","):
            for slot in range(FIRST_SLOT, END_SLOT):
                if name and name == self.short_ids[slot]:
                    found |= <uint64_t>1 << slot
        return found

    cdef bytes publisher_name(self, uint64_t publisher):
        cdef int slot = (publisher >> (CID_BITS + 8)) & 63
        server = self.own_short_id
        if publisher & FOREIGN:
            server = self.short_ids[slot] if self.joins[slot] == (publisher >> CID_BITS) & 255 else b""
        return b"" if publisher == 0 or server in (b"", NO_SERVER) else b",~%b~%d" % (server, publisher & MOST_CID)

    cdef uint64_t publisher_in(self, Token names) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t slot, number
        for name in names.at[:min(names.size, <size_t>MOST_BEEN_BYTES)].split(b","):
            mark, *words = name.split(b"~")
            if mark or len(words) != 2 or not words[1].isdigit() or len(words[1]) > 14:
                continue
            number = int(words[1])
            if words[0] == self.own_short_id:
                return number
            for slot in range(FIRST_SLOT, END_SLOT):
                if words[0] and words[0] == self.short_ids[slot]:
                    return FOREIGN | slot << (CID_BITS + 8) | <uint64_t>self.joins[slot] << CID_BITS | number
        return 0

    cdef bint has_members(self, Entry *entry, Token queue, uint64_t slots) noexcept:
        cdef Choice *choice = choice_named(entry, queue)
        cdef uint32_t w
        if choice != NULL:
            for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
                if (slots >> entry.weights[w].shard) & 1:
                    return True
        return False

    cdef bint may_pass(self, uint32_t slot, Entry *entry) noexcept:
        """Whether the other server's permissions let it have a message."""
        cdef Permissions permissions = self.permissions[slot]
        return permissions is None or is_loop_subject(entry.text, entry.subject_size) \
            or permissions.may_publish(entry.text, entry.subject_size)

    cdef uint64_t kept_from(self, uint64_t slots, Entry *entry) noexcept:
        cdef uint64_t kept = 0
        cdef uint32_t slot
        for slot in range(FIRST_SLOT, END_SLOT):
            if (slots >> slot) & 1 and not self.may_pass(slot, entry) \
                    and not ((self.answering & ~self.checked) >> slot) & 1:   # (it may be an answer of ours)
                kept |= <uint64_t>1 << slot
        return kept

    cdef uint64_t forward(self, Sublist sublist, Entry *entry, Publish *publish, uint64_t reach, bint plainly,
                          const Token *queues, int n_queues, Outcome *outcome) noexcept:
        cdef Token names[MOST_QUEUES]     # the groups that go to the peer of the same place in `slots`
        cdef Token mine[MOST_QUEUES]
        cdef uint8_t slots[MOST_QUEUES]
        cdef uint64_t orphans = 0, left, bit
        cdef uint64_t frames = self.fanout.link_out_msgs
        cdef const uint8_t *tail = publish.tail
        cdef const uint8_t *payload = publish.payload
        cdef Blob *blob
        cdef Choice *choice
        cdef Token name
        cdef uint32_t run
        cdef int n = 0, i, q, slot
        cdef int count = n_queues if n_queues >= 0 else min(<int>entry.n_choices, <int>MOST_QUEUES)
        cdef uint64_t spared = 0, visited = 0
        cdef bytes been = None
        cdef bint is_asked = True
        cdef int own
        if unlikely(self.condemned != self.fanout.box.condemned):
            self.forget_condemned()
        reach &= self.told | self.mesh.up
        if unlikely(not plainly):
            # (to a server that does not know QMSG, a frame that names groups serves plain interest, too)
            spared = entry.remote & self.outside & ~self.takes_only_queues
            if self.been & REFUSED and self.been & CAME_IN and sublist.random() % SENT_BACK_ABOUT == 0:
                spared |= self.outside & ~self.takes_only_queues
            visited = self.been & self.outside
        left = entry.remote & reach if plainly else 0
        if unlikely(self.restricted & reach) and count:   # another member of the group may have it
            reach &= ~self.kept_from(self.restricted & reach, entry)
        for q in range(count):
            if n_queues >= 0:
                name = queues[q]
                choice = choice_named(entry, name)
            else:
                choice = &entry.choices[q]
                name.at = <const uint8_t *>choice.name + sizeof(QueueName)
                name.size = choice.name.key.size
            slot = -1
            own = -1
            if unlikely(not plainly and self.been & REFUSED) and choice != NULL:
                own = self.pick(sublist, entry, choice, reach & ~(
                    spared | visited | self.of_kind[<int>PEER_ROUTE] | self.of_kind[<int>PEER_HUB]))
            if own >= 0 and self.been & CAME_IN:   # others count members at our leaf nodes as ours
                slot = own
            elif choice != NULL:
                slot = self.pick(sublist, entry, choice, reach & ~(spared | visited))
                is_asked = is_asked and (own < 0 or slot == own)   # (else it may come back, for them)
            if unlikely(slot < 0 and visited != 0 and choice != NULL and not self.been & REFUSED):
                # A server where it was has members now, so it got them since: it has said that it had none left, before
                # it sent this on.
                visited = 0
                slot = self.pick(sublist, entry, choice, reach & ~spared)
            if slot < 0:
                orphans |= <uint64_t>1 << q
            else:
                names[n] = name
                slots[n] = <uint8_t>slot
                n += 1
                left |= <uint64_t>1 << slot
        if unlikely(not plainly):
            been = self.names_of(visited, is_asked)
        blob = self.fanout.share(publish, 2 if left & (left - 1) else 1)
        slot = 0
        while left:
            if left & 1:
                q = 0
                for i in range(n):
                    if slots[i] == slot:
                        mine[q] = names[i]
                        q += 1
                bit = <uint64_t>1 << slot
                if unlikely(bit & self.importing) and self.accounts[slot] is not sublist:
                    self.send_imported(slot, sublist, entry, publish, mine, q, been, outcome)
                elif bit & self.outside:
                    run = publish.count
                    if unlikely(is_of_cluster(entry.text, entry.subject_size)):
                        if not self.may_answer_cluster(slot, entry):
                            publish.count = 0
                    elif self.permissions[slot] is not None and not self.may_pass(slot, entry):
                        publish.count = self.answers_of(slot, entry, run)
                    if publish.count:
                        if unlikely(publish.reply.size > 4) and memcmp(publish.reply.at, b'_R_.', 4) == 0:
                            self.tell_reply(slot, sublist, publish.reply)
                        self.send(slot, entry, publish, mine, q, been)
                        outcome.deliveries += publish.count
                    publish.count = run
                elif q:
                    if unlikely(publish.publisher != 0) and plainly:   # (an RMSG does not say who that is)
                        if (entry.remote >> slot) & 1:
                            self.fanout.send_plain_link(self.fanout.links[slot], entry, publish)
                        self.fanout.send_queued(self.fanout.links[slot], entry, mine, q, publish, True, 0, 0, CAME_IN)
                    else:
                        self.fanout.send_queued(self.fanout.links[slot], entry, mine, q, publish, not plainly, 0, 0,
                                                self.been)
                    outcome.touched |= bit
                    self.is_link_behind |= self.fanout.box.stalling == self.fanout.links[slot]
                else:
                    self.fanout.send_plain_link(self.fanout.links[slot], entry, publish)
                    outcome.touched |= bit
                    self.is_link_behind |= self.fanout.box.stalling == self.fanout.links[slot]
            left >>= 1
            slot += 1
        entry.counts.link_out += <uint32_t>(self.fanout.link_out_msgs - frames)
        if unlikely((entry.counts.link_in | entry.counts.link_out) >> 31):
            sublist.book(entry)
        if unlikely(blob != NULL):
            blob_release(self.fanout.box, blob)
            publish.tail = tail
            publish.payload = payload
            publish.blob = NULL
        if unlikely(self.fanout.box.stalling != NULL):
            self.fanout.box.stalling = NULL
            outcome.stalls = True
        return orphans

    cdef void tell_reply(self, uint32_t slot, Sublist sublist, Token reply) noexcept:
        """A request of another account goes out: the server must hear that its reply subject is wanted, before it.

        One that hears of too many prefixes, because some server makes up ever new ones, is told that all are wanted:
        so no reply is lost, whose prefix it ever was, and neither end has to remember more. What it then sends that
        nobody here waits for is dropped.
        """
        cdef const uint8_t *dot = <const uint8_t *>memchr(reply.at + 4, c'.', reply.size - 4)
        cdef bytes pattern
        cdef dict told
        if dot == NULL:
            return
        pattern = reply.at[:dot + 1 - reply.at] + b'>'
        told = self.told_replies.get((slot, sublist.account))
        if told is None:
            told = self.told_replies[slot, sublist.account] = {}
        if pattern in told or EVERY_REPLY in told:
            return
        if len(told) < MOST_TOLD_REPLIES and len(pattern) <= MOST_TOLD_PATTERN_BYTES:
            told[pattern] = self.fanout.from_shard
            self.tell_pattern(slot, sublist.account, pattern, 1)
            return
        self.tell_pattern(slot, sublist.account, EVERY_REPLY, 1)
        for one in told:
            self.tell_pattern(slot, sublist.account, one, 0)
        told.clear()
        told[EVERY_REPLY] = ANOTHER_BROKER

    cdef void tell_pattern(self, uint32_t slot, bytes account, bytes pattern, uint32_t wanted) noexcept:
        cdef const uint8_t *at = account
        cdef const uint8_t *subject = pattern
        cdef Sublist sublist = self.mesh.accounts.get(account)
        if sublist is not None and self.is_plain(slot, sublist, subject, len(pattern)) \
                and self.may_tell(slot, subject, len(pattern), NULL, 0) \
                and not self.is_told_later(slot, sublist, subject, len(pattern), NULL):
            return   # it is told that somebody subscribes to that, and would take one end for both
        self.fence.interest_frames[slot] += 1
        write_server_interest(self.outs[slot], self.dialects[slot], b"", at, len(account), subject, len(pattern),
                              NULL, 0, wanted)

    cdef bint is_told_as_due(self, uint32_t slot, bytes account, const uint8_t *subject, size_t size) noexcept:
        if likely(size < 5 or memcmp(subject, b'_R_.', 4) != 0):
            return False
        return subject[:size] in self.told_replies.get((slot, account), ())

    def forget_replies(self, bytes prefix not None):
        """Replies to what begins so lead nowhere any more: no shard has this prefix now."""
        self.forget_those([one for told in [*self.told_replies.values(), *self.due_replies.values()] for one in told
                           if one.startswith(prefix)])

    cdef int forget_replies_of(self, int shard) except -1:
        """The shard has gone. Another broker's shard of that number has not."""
        cdef bytes prefix = b"_R_.%02x" % shard
        return self.forget_those([one for told in [*self.told_replies.values(), *self.due_replies.values()]
                                  for one, asker in told.items() if asker == shard and one.startswith(prefix)])

    cdef int forget_those(self, list patterns) except -1:
        """… unless another shard has taken them over."""
        gone = {one for one in patterns if one[:len(one) - 1] not in self.mesh.owners}
        if not gone:
            return 0
        for due in self.due_replies.values():
            for pattern in gone.intersection(due):
                del due[pattern]
        for (slot, account), told in self.told_replies.items():
            for pattern in gone.intersection(told):
                del told[pattern]
                if (self.told >> slot) & 1:
                    self.tell_pattern(slot, account, pattern, 0)
        return 0

    cdef void send(self, uint32_t slot, Entry *entry, Publish *publish, const Token *queues, int n_queues,
                   bytes been) noexcept:
        """A run, or one message with the groups that it is for, to another server. `been`: for these groups alone, and
        where it was; None: to plain interest, too."""
        cdef OutBuf *out = self.outs[slot]
        cdef OutBuf *to = self.rear(slot)
        cdef uint8_t *prefix = entry.text + entry.rmsg_at
        cdef size_t prefix_size = entry.rmsg_size
        cdef uint8_t kept[5]
        cdef bint with_header = publish.header_size != 0 and out.takes_headers
        cdef size_t cut = 0 if with_header else publish.header_size
        cdef uint32_t sent = 0
        if self.dialects[slot] == DIALECT_LEAF:   # "LMSG <subject>", in the place of "RMSG <account> <subject>"
            prefix += prefix_size - entry.subject_size - 5
            prefix_size = entry.subject_size + 5
        if unlikely(((self.answering & self.checked) >> slot) & 1) and publish.reply.size:
            self.expect_answer(slot, publish.reply.at, publish.reply.size)
        if unlikely(publish.publisher != 0) and n_queues and (self.takes_only_queues >> slot) & 1 \
                and (been is not None or len(self.origin) == 0):   # (else: LMSG says of whom it is)
            been = (TO_PLAIN if been is None else been) + self.publisher_name(publish.publisher)
        if unlikely(been is not None and (self.takes_only_queues >> slot) & 1):
            sent = self.send_rewritten(to, b'QMSG ', been, prefix + 5, prefix_size - 5, publish, queues, n_queues)
        elif unlikely(len(self.origin) != 0) and (self.takes_origin >> slot) & 1 \
                and (n_queues == 0 or (entry.remote >> slot) & 1):
            # (for groups alone any member will do, whosever it is, and only one gets it)
            sent = self.send_rewritten(to, b'LMSG ', self.origin, prefix + 5, prefix_size - 5, publish, queues,
                                       n_queues)
        else:
            memcpy(kept, prefix, 5)
            memcpy(prefix, b'HMSG ' if with_header else b'LMSG ' if self.dialects[slot] == DIALECT_LEAF else b'RMSG ',
                   5)
            if n_queues:
                sent = self.send_named(to, prefix, prefix_size, publish, queues, n_queues, with_header)
            elif cut:
                sent = self.fanout.send_stripped(to, prefix, prefix_size, publish, publish.count)
            else:
                sent = self.fanout.send_run(to, prefix, prefix_size, publish, publish.count)
            memcpy(prefix, kept, 5)
        if unlikely(to != out):
            self.check_behind(slot)
        out.msgs += sent
        out.payload_bytes += <uint64_t>sent * (publish.size - cut)
        self.out_msgs += sent
        self.out_bytes += <uint64_t>sent * (publish.size - cut)

    cdef uint32_t send_named(self, OutBuf *out, const uint8_t *prefix, size_t prefix_size, Publish *publish,
                             const Token *queues, int n_queues, bint with_header) noexcept:
        """One message behind a prefix, for these groups; 1, or 0: refused."""
        cdef size_t size = prefix_size + publish.reply.size + publish.size + 64
        cdef size_t n = prefix_size
        cdef uint8_t *to
        cdef int i
        for i in range(n_queues):
            size += queues[i].size + 1
        to = out_reserve(out, size)
        if to == NULL:
            return 0
        memcpy(to, prefix, prefix_size)
        n += write_named(to + n, publish, queues, n_queues, with_header, 0 if with_header else publish.header_size)
        out.pos += n
        out_mark_dirty(out)
        return 1

    # ---- answers of a leaf node that may not publish everything

    cdef int expect_answer(self, uint32_t slot, const uint8_t *reply, size_t size) except -1:
        cdef Permissions permissions = self.permissions[slot]
        cdef dict told = self.told_answers[slot]
        cdef bytes subject = reply[:size], oldest
        cdef const uint8_t *at
        (<ReplyPermissions>self.answers[slot]).expect(reply, size, self.fanout.box.now_us)
        if told is None or permissions is None or permissions.may_subscribe_partly(reply, size):
            return 0   # it is told like of all interest
        if told.pop(subject, False) is False:
            write_server_interest(self.outs[slot], DIALECT_LEAF, b"", NULL, 0, reply, size, NULL, 0, 1)
            self.told_answers_bytes[slot] += size
        told[subject] = None
        while len(told) > MOST_TOLD_ANSWERS or (self.told_answers_bytes[slot] > MOST_TOLD_BYTES and len(told) > 1):
            oldest = next(iter(told))
            del told[oldest]
            self.told_answers_bytes[slot] -= len(oldest)
            at = oldest
            write_server_interest(self.outs[slot], DIALECT_LEAF, b"", NULL, 0, at, len(oldest), NULL, 0, 0)
        return 0

    cdef bint may_answer(self, uint32_t slot, const uint8_t *subject, size_t size) except -1:
        return (<ReplyPermissions>self.answers[slot]).may_reply(subject, size, self.fanout.box.now_us)

    cdef uint32_t answers_of(self, uint32_t slot, Entry *entry, uint32_t count) noexcept:
        cdef uint32_t n = 0
        if ((self.answering & ~self.checked) >> slot) & 1:
            while n < count and self.may_answer(slot, entry.text, entry.subject_size):
                n += 1
        return n

    cdef int expect_for_cluster(self, uint32_t slot, const uint8_t *reply, size_t size) except -1:
        if self.for_clusters[slot] is None:
            self.for_clusters[slot] = ReplyPermissions(-1, FOR_CLUSTERS_US)
        (<ReplyPermissions>self.for_clusters[slot]).expect(reply, size, self.fanout.box.now_us)
        return 0

    cdef bint may_answer_cluster(self, uint32_t slot, Entry *entry) except -1:
        """The server there passes on whatever it is told to, also where it allows us to publish nothing else."""
        if self.for_clusters[slot] is None:
            return False
        return (<ReplyPermissions>self.for_clusters[slot]).may_reply(entry.text, entry.subject_size,
                                                                     self.fanout.box.now_us)

    def set_answers(self, int slot, int most, double expire_s, bint tells):
        """Who is there may publish `most` answers to the reply subject of each message that it was sent (negative:
        any number; 0: none), within expire_s of it (0: at any time). `tells`: it is told of those subjects."""
        cdef uint64_t bit = <uint64_t>1 << slot
        if not most:
            self.answering &= ~bit
            self.answers[slot] = self.told_answers[slot] = None
            return
        self.answering |= bit
        self.answers[slot] = ReplyPermissions(most, <uint64_t>(expire_s * 1e6))
        if tells and self.told_answers[slot] is None:
            self.told_answers[slot] = {}
            self.told_answers_bytes[slot] = 0

    # ---- streams that a leaf node's account imports

    cdef int follow_streams(self, int slot, bytes subject, bytes queue, uint32_t members) except -1:
        cdef Sublist importer = self.accounts[slot]
        cdef dict held = self.imported[slot]
        cdef StreamImport stream
        cdef bytes wanted
        cdef list streams = []
        cdef int n_unheard = 0
        before = held.pop((subject, queue), ())
        found = set()
        if members and importer.stream_imports is not None:
            streams = importer.streams_meeting(subject)
            for item in streams:
                stream = item
                wanted = stream.wanted(subject)
                if wanted is None or stream.exporter is importer:
                    continue
                if len(wanted) > MOST_KEY_BYTES:
                    n_unheard += 1
                else:
                    found.add((stream.exporter, wanted))
        if found:
            held[subject, queue] = found
            self.importing |= <uint64_t>1 << slot
        for exporter, wanted in found:
            self.want_stream(slot, exporter, wanted, queue, subject, members)
        for exporter, wanted in before:   # now: interest that goes on must not end in between
            if (exporter, wanted) not in found:
                self.want_stream(slot, exporter, wanted, queue, subject, 0)
        count_steps(len(streams) * STEPS_A_LOOK + (len(found) + len(before)) * STEPS_A_SHADOW)
        return n_unheard

    cdef int want_stream(self, int slot, Sublist exporter, bytes wanted, bytes queue, bytes subject,
                         uint32_t members) except -1:
        cdef const uint8_t *at = wanted
        cdef const uint8_t *name = queue
        cdef dict sources = self.sources[slot]
        cdef dict told = sources.setdefault((exporter, wanted, queue), {})
        if members:
            told[subject] = members
        else:
            told.pop(subject, None)
            if not told:
                del sources[exporter, wanted, queue]
        if queue:
            members = max(told.values(), default=0)
            exporter.set_remote_queue(slot, at, len(wanted), name, len(queue), members and members | SECOND_CHOICE)
        else:
            exporter.set_remote(slot, at, len(wanted), bool(told))
        return 0

    cdef void send_imported(self, uint32_t slot, Sublist exporter, Entry *entry, Publish *publish, const Token *queues,
                            int n_queues, bytes been, Outcome *outcome) noexcept:
        cdef Sublist importer = self.accounts[slot]
        cdef bytes subject = entry.text[:entry.subject_size], seen
        cdef Token names[MOST_QUEUES]
        cdef uint64_t served = 0   # groups that have been named: each gets the message once
        cdef StreamImport stream
        cdef const uint8_t *at
        cdef Choice *choice
        cdef Entry *local
        cdef uint32_t w
        cdef int i, n
        if publish.origin >= ORIGIN_ACCOUNT:   # it was imported itself, as a request: nobody else imports it
            return
        if importer.stream_imports is None:
            return
        for item in importer.streams_from(subject):
            stream = item
            if stream.exporter is not exporter or intersection(stream.subject, subject) != subject:
                continue
            seen = subject if stream.renaming is None else stream.renaming(subject)
            size = len(seen)
            if not fits_line(len(importer.account), size, publish.reply.size):
                continue
            seen += bytes(SLACK)
            at = seen
            local = importer.find(at, size, hash_bytes(at, size, importer.seed))
            if local == NULL or not self.may_pass(slot, local):
                continue
            n = 0
            for i in range(n_queues):
                choice = choice_named(local, queues[i]) if not (served >> i) & 1 else NULL
                if choice == NULL:
                    continue
                for w in range(choice.first_remote, choice.first_remote + choice.n_remote):
                    if local.weights[w].shard == slot:
                        names[n] = queues[i]
                        n += 1
                        served |= <uint64_t>1 << i
                        break
            if n or (been is None and (local.remote >> slot) & 1):
                self.send(slot, local, publish, names, n, been)
                outcome.deliveries += publish.count

    def interest_told(self, int slot, size_t most):
        """In steps, of some 0.4 ms: what the other end of a leaf node connection is interested in, at most so many of
        (subject, queue or b""). That is what the last step returns; interest may change in between."""
        cdef Sublist sublist = self.accounts[slot] if slot >= 0 else None
        cdef Collecting collecting = Collecting()
        cdef InterestCursor cursor
        collecting.hears_remote = True
        collecting.slot = slot
        collecting.most = most
        collecting.found = {}
        if sublist is not None:
            cursor = sublist.telling_cursor(collecting)
            try:
                while not cursor.go_on(MET_AT_ONCE) and <size_t>len(collecting.found) < most:
                    yield
                    if self.accounts[slot] is not sublist or self.outs[slot] == NULL:   # it has left
                        break
            finally:
                sublist.end_cursor(cursor)
        return [(subject, queue) for _, subject, queue in collecting.found]

    def interest_of_member(self, int slot, size_t most):
        """In steps, likewise: (account, subject, queue, cluster of leaf nodes) for all that a member wants, at most so
        many: b"": none."""
        cdef Collecting collecting = Collecting()
        cdef InterestCursor cursor
        cdef Sublist sublist
        collecting.hears_remote = True
        collecting.slot = slot
        collecting.most = most
        collecting.found = {}
        for item in list(self.mesh.accounts.values()):
            if slot < 0 or self.outs[slot] == NULL or <size_t>len(collecting.found) >= most:
                break
            sublist = item
            cursor = sublist.telling_cursor(collecting)
            try:
                while not cursor.go_on(MET_AT_ONCE) and <size_t>len(collecting.found) < most:
                    yield
            finally:
                sublist.end_cursor(cursor)
            yield
        apart = self.told_apart[slot] if slot >= 0 else {}
        rows = ((*one, origin) for one in collecting.found for origin in apart.get(one, (b"",)))
        return list(islice(rows, most))

    def renewals(self, accounts):
        """Accounts with these names (bytes) import other streams than before: leaf nodes get those when the last step
        is gone. A step takes some 2 ms, and interest may change in between."""
        cdef int slot
        cdef uint64_t most_steps = match_steps + MOST_MATCHING
        for slot in range(FIRST_SLOT, END_SLOT):
            importer = self.accounts[slot]
            if importer is None or self.outs[slot] == NULL or (<Sublist>importer).account not in accounts:
                continue
            wanted = yield from self.interest_told(slot, ALL_OF_IT)
            if self.accounts[slot] is not importer or self.outs[slot] == NULL:
                continue
            for subject, queue in {*wanted, *self.imported[slot]}:
                if self.accounts[slot] is not importer or self.outs[slot] == NULL:   # it has left
                    break
                self.follow_streams(slot, subject, queue, members_told(importer, slot, subject, queue))
                count_steps(STEPS_A_RENEWAL)
                if match_steps > most_steps:
                    yield
                    most_steps = match_steps + MOST_MATCHING

    cdef uint32_t send_rewritten(self, OutBuf *out, const char *verb, bytes first, const uint8_t *place,
                                 size_t place_size, Publish *publish, const Token *queues, int n_queues) noexcept:
        """LMSG to a member of the cluster, with the leaf node's cluster, or QMSG with where it was: `first` stands in
        front of `place`, which is account and subject. How many of the run were taken."""
        cdef const uint8_t *word = first
        cdef size_t word_size = len(first)
        cdef size_t room = word_size + place_size + publish.reply.size + publish.size + 80
        cdef size_t cut = 0 if out.takes_headers else publish.header_size
        cdef uint32_t size = publish.size - <uint32_t>cut, k
        cdef uint8_t *to
        cdef size_t n
        cdef int i
        for i in range(n_queues):
            room += queues[i].size + 1
        for k in range(publish.count):
            to = out_reserve(out, room)
            if to == NULL:
                return k
            memcpy(to, verb, 5)
            memcpy(to + 5, word, word_size)
            n = 5 + word_size
            to[n] = c' '
            memcpy(to + n + 1, place, place_size)
            n += 1 + place_size
            if n_queues:
                n += write_queues(to + n, publish, queues, n_queues)
            n += write_tail_head(to + n, Token(NULL, 0) if n_queues else publish.reply, True,
                                 publish.header_size if cut == 0 else 0, size)
            memcpy(to + n, publish.payload + k * publish.stride + cut, size)
            n += size
            to[n] = c'\r'
            to[n + 1] = c'\n'
            out.pos += n + 2
            out_mark_dirty(out)
        return publish.count

    # ---- interest

    cdef bint may_tell(self, uint32_t slot, const uint8_t *subject, size_t size, const uint8_t *queue,
                       size_t queue_size) noexcept:
        """Where our rights hold we tell what we may subscribe to there; a leaf node, or who has logged in here, is told
        what overlaps with what it may publish."""
        cdef Permissions permissions = self.permissions[slot]
        if permissions is None or is_loop_subject(subject, size) or is_of_cluster(subject, size):
            return True
        if self.kinds[slot] == PEER_LEAF or (self.checked >> slot) & 1:
            return permissions.may_subscribe_partly(subject, size)
        return permissions.may_subscribe(subject, size, queue, queue_size)

    cdef void tell_change(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                          uint64_t after) noexcept:
        cdef uint64_t feeds = self.feeds_on(slot, subject, size), some
        if unlikely(self.clustered and (self.tells_apart >> slot) & 1):
            for origin, slots in self.leaves_in(interest).items():
                some = <uint64_t>slots & feeds
                feeds &= ~some
                if bool(before & some) != bool(after & some):
                    self.tell(slot, interest, subject, size, origin, (after & some) != 0)
        elif unlikely(self.splitting) and (self.clustered >> slot) & 1:
            feeds &= ~self.only_of(self.origins[slot], interest, subject, size)
        if bool(before & feeds) != bool(after & feeds) and not self.is_answered(slot, interest, subject, size):
            self.tell(slot, interest, subject, size, b"", (after & feeds) != 0)

    cdef bint is_answered(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size) noexcept:
        """Whether shards answer requests to this: a slot is told so by tell_queue(), as if they had subscribed plainly,
        and plain subscriptions beside them change nothing for it."""
        cdef const Node *node
        cdef const QueueGroup *group
        if likely(interest.account != self.system_account) or is_for_asker(subject, size) \
                or (self.dialects[slot] == DIALECT_LEAF and is_count(subject, size)):
            return False
        node = interest.node_at(subject, size)
        group = node.groups if node != NULL else NULL
        while group != NULL:
            if is_answerers(group):
                return members_of(group, self.feeds(slot)) != 0
            group = group.next
        return False

    cdef bint is_plain(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size) noexcept:
        """Whether there are plain subscriptions of which a slot is told."""
        cdef const Node *node = interest.node_at(subject, size)
        return node != NULL and node.remote & self.feeds_on(slot, subject, size) != 0

    cdef void tell_group(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                         const QueueGroup *group, uint32_t who, uint32_t before) noexcept:
        cdef uint64_t feeds = self.feeds(slot), changed = ~<uint64_t>0, some
        cdef uint32_t now = 0, total
        if unlikely(self.splitting) and (self.clustered >> slot) & 1:
            self.tell_group_beside(slot, interest, subject, size, group, who, before)
            return
        if who != NOBODY:
            changed = <uint64_t>1 << who
            now = members_of(group, changed)
        if unlikely(self.clustered and (self.tells_apart >> slot) & 1):
            for origin, slots in self.leaves_in(interest).items():
                some = <uint64_t>slots & feeds
                feeds &= ~some
                if changed & some:
                    total = members_of(group, some)
                    self.tell_queue(slot, interest, subject, size, group, origin,
                                    0 if who == NOBODY else total - now + before, total)
        if changed & feeds:
            total = members_of(group, feeds)
            self.tell_queue(slot, interest, subject, size, group, b"", 0 if who == NOBODY else total - now + before,
                            total)

    cdef dict leaves_in(self, Interest interest):
        return self.leaves_of.get(interest if self.is_apart_by_account else None, {})

    cdef uint64_t only_of(self, bytes origin, Interest interest, const uint8_t *subject, size_t size):
        cdef uint64_t left = self.splitting, found = 0
        cdef int slot = 0
        key = interest.account, subject[:size], b""
        while left:
            if left & 1:
                split = (<dict>self.told_apart[slot]).get(key)
                if split is not None and len(split) == 1 and origin in split:
                    found |= <uint64_t>1 << slot
            left >>= 1
            slot += 1
        return found

    cdef uint32_t beside(self, bytes origin, dict split, uint32_t members):
        members &= ~SECOND_CHOICE
        if members == 0 or split is None or b"" in split:   # (then its own are those that are counted)
            return members
        return members - min(members, <uint32_t>split.get(origin, 0))

    cdef void tell_group_beside(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                                const QueueGroup *group, uint32_t who, uint32_t before) noexcept:
        cdef bytes origin = self.origins[slot]
        cdef bytes queue = (<const uint8_t *>group.name + sizeof(QueueName))[:group.name.key.size]
        cdef uint64_t feeds = self.feeds(slot), others = 0
        cdef uint32_t i, shard, members, now = 0
        key = interest.account, subject[:size], queue
        if who != NOBODY and not (feeds >> who) & 1:
            return
        for i in range(group.n_remote):
            shard = group.remote[i].shard
            if not (feeds >> shard) & 1:
                continue
            members = weight_of(group, i) & ~SECOND_CHOICE
            if (self.splitting >> shard) & 1:
                members = self.beside(origin, (<dict>self.told_apart[shard]).get(key), members)
            if shard == who:
                now = members
            else:
                others += members
        if who == NOBODY:
            before = 0
        else:
            split = self.split_before
            if split is None and (self.splitting >> who) & 1:
                split = (<dict>self.told_apart[who]).get(key)
            before = <uint32_t>min(others + self.beside(origin, split, before), <uint64_t>MOST_MEMBERS)
        self.tell_queue(slot, interest, subject, size, group, b"", before,
                        <uint32_t>min(others + now, <uint64_t>MOST_MEMBERS))

    cdef int resplit(self, uint32_t member, Sublist sublist, const uint8_t *subject, size_t size, bytes was,
                     bytes now) except -1:
        cdef const Node *node = sublist.node_at(subject, size)
        cdef uint64_t left, feeds
        cdef uint32_t slot
        if node == NULL:
            return 0
        for origin in {was} ^ {now}:   # (not a cluster's: b"" has no leaf nodes)
            left = self.leaves_in(sublist).get(origin, 0) & self.told
            slot = 0
            while left:
                if left & 1 and self.accounts[slot] is sublist:
                    feeds = self.feeds_on(slot, subject, size)
                    if (feeds >> member) & 1 and not node.remote & feeds & ~(<uint64_t>1 << member) \
                            & ~self.only_of(origin, sublist, subject, size):
                        self.tell(slot, sublist, subject, size, b"", origin == was)
                left >>= 1
                slot += 1
        return 0

    cdef void tell(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size, bytes origin,
                   bint wanted) noexcept:
        cdef const uint8_t *account = interest.account
        if self.may_tell(slot, subject, size, NULL, 0):
            if len(origin) == 0 and self.is_told_as_due(slot, interest.account, subject, size):
                return
            if self.is_told_later(slot, interest, subject, size, NULL):
                return
            if unlikely(self.noted is not None):
                self.noted[slot, interest.account, subject[:size], b"", origin] = 1
                return
            self.fence.interest_frames[slot] += 1
            write_server_interest(self.outs[slot], self.dialects[slot], origin, account, len(interest.account), subject,
                                  size, NULL, 0, wanted)

    cdef void tell_queue(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                         const QueueGroup *group, bytes origin, uint32_t before, uint32_t after) noexcept:
        """A group's weight. nats-server 2.9 counts it for others by its changes, which it understands only from 0 to 1
        and from 1 to 0: so the way to another weight, and to none, goes through 1."""
        cdef const uint8_t *account = interest.account
        cdef const uint8_t *queue = <const uint8_t *>group.name + sizeof(QueueName)
        cdef size_t queue_size = group.name.key.size
        cdef Dialect dialect = self.dialects[slot]
        cdef OutBuf *out = self.outs[slot]
        if before == after:
            return
        if queue_size == 5 and memcmp(queue, ANSWERERS, 5) == 0 and interest.account == self.system_account \
                and not (dialect == DIALECT_LEAF and is_count(subject, size)):
            # Every server answers a request to the system account: of this broker one shard does. Only how many
            # subscriptions all have is for the server of the asker to say; and each member says its own, no leaf node.
            if bool(before) != bool(after) and not is_for_asker(subject, size) \
                    and (after or not self.is_plain(slot, interest, subject, size)):
                self.tell(slot, interest, subject, size, origin, after != 0)
            return
        if not self.may_tell(slot, subject, size, queue, queue_size) \
                or self.is_told_later(slot, interest, subject, size, group):
            return
        if unlikely(self.noted is not None):
            self.noted[slot, interest.account, subject[:size], queue[:queue_size], origin] = after
            return
        self.fence.interest_frames[slot] += 1
        if (before == 0 and after > 1) or (after == 0 and before > 1):
            write_server_interest(out, dialect, origin, account, len(interest.account), subject, size, queue,
                                  queue_size, 1)
        write_server_interest(out, dialect, origin, account, len(interest.account), subject, size, queue, queue_size,
                              after)

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        cdef uint64_t left = self.told
        cdef uint32_t slot = 0
        # (while interest is withdrawn in turns what ends may not have had its turn)
        if bool(before & self.outside) != bool(after & self.outside) and not is_loop_subject(subject, size) \
                and not (self.is_withdrawn and after & self.outside):
            self.mesh.tell_all(interest, subject, size, NULL, 0, 1 if after & self.outside else 0)
        while left:
            if left & 1 and (self.accounts[slot] is None or self.accounts[slot] is interest):
                self.tell_change(slot, interest, subject, size, before, after)
            left >>= 1
            slot += 1

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        cdef uint64_t left = self.told, bit = <uint64_t>1 << shard
        cdef uint32_t slot = 0, members
        before &= ~SECOND_CHOICE
        if bit & self.outside:
            members = choice_of(group, self.outside)
            if not (self.is_withdrawn and members):
                self.mesh.tell_all(interest, subject, size, <const uint8_t *>group.name + sizeof(QueueName),
                                   group.name.key.size, members)
        while left:
            if left & 1 and (self.accounts[slot] is None or self.accounts[slot] is interest):
                self.tell_group(slot, interest, subject, size, group, shard, before)
            left >>= 1
            slot += 1

    cdef void forget_condemned(self) noexcept:
        """Between the end of a connection and part() the sockets of the same round are read: messages for queue groups
        that came then were lost, where another member could have had them."""
        cdef int slot
        self.condemned = self.fanout.box.condemned
        for slot in range(FIRST_SLOT, END_SLOT):
            if self.outs[slot] != NULL and self.outs[slot].close_reason != CLOSE_NONE:
                self.told &= ~(<uint64_t>1 << slot)

    cdef InterestSink retelling(self, OutBuf *link):
        cdef RetellingOthers retelling = RetellingOthers()
        retelling.exchange = self
        retelling.hears_remote = True
        retelling.link = link
        retelling.slot = -1
        return retelling

    cdef OutBuf *output(self, int slot) noexcept:
        return self.outs[slot]

    cdef uint64_t await_servers(self, object link) except? 0:
        if unlikely(len(self.unasked) != 0):
            self.ask_servers((<OriginLink>link).shard)
        return self.fence.await_servers(<OriginLink>link)

    # ---- members of queue groups that have left a shard

    cdef bint on_left(self, object link, Sublist sublist, uint64_t id, Token subject, Token queue) except -1:
        cdef Leaving leaving = Leaving()
        leaving.link = <OriginLink>link
        leaving.exchange = self
        leaving.sublist = sublist
        leaving.id = id
        leaving.subject = subject.at[:subject.size]
        leaving.queue = queue.at[:queue.size]
        if self.fence.servers == 0:
            return False
        self.unasked.setdefault(leaving.link.shard, []).append(leaving)
        self.count_leaving(leaving, 1)
        return True

    cdef int ask_servers(self, int shard) except -1:
        """A PING has come from there, behind what servers are to know."""
        for leaving in self.unasked.pop(shard, ()):
            if not self.fence.await_all(<Leaving>leaving):
                (<Leaving>leaving).on_known()
        return 0

    cdef int on_part(self, int shard) except -1:
        for leaving in self.unasked.pop(shard, ()):
            (<Leaving>leaving).on_known()
        self.forget_replies_of(shard)
        return 0

    cdef int count_leaving(self, Leaving leaving, int more) except -1:
        cdef const uint8_t *subject = leaving.subject
        cdef const uint8_t *queue = leaving.queue
        key = leaving.link.shard, leaving.sublist.account, leaving.subject, leaving.queue
        n = self.leaving.pop(key, 0) + more
        if n:
            self.leaving[key] = n
        leaving.sublist.former_members().set_remote_queue(leaving.link.shard, subject, len(leaving.subject), queue,
                                                          len(leaving.queue), n)
        return 0

    cdef int send_to_former(self, Sublist sublist, Token subject, Token queue, Publish *publish, uint64_t id,
                            uint64_t visited, uint64_t been) except -2:
        cdef Choice *choice
        cdef Entry *entry = sublist.former_group(subject, queue, &choice) if self.leaving else NULL
        cdef int shard
        if entry == NULL:
            return -1
        shard = self.pick(sublist, entry, choice, self.mesh.up & self.of_kind[<int>PEER_SIBLING] & ~visited)
        if shard < 0 or not self.fanout.send_queued(self.fanout.links[shard], entry, &queue, 1, publish, True, id,
                                                    visited | <uint64_t>1 << self.mesh.shard, been | LINGERING):
            return -1
        return shard

    # ---- peers

    cdef int join(self, PeerKind kind, Dialect dialect, OutBuf *out, Sublist account, str cluster, bint is_checked,
                  bint is_isolated) except -2:
        cdef int slot, other
        cdef uint64_t bit
        for slot in range(FIRST_SLOT, END_SLOT):
            bit = <uint64_t>1 << slot
            if self.outside & bit:
                continue
            self.outside |= bit
            self.joins[slot] += 1
            self.of_kind[<int>PEER_SIBLING] &= ~bit
            self.of_kind[<int>kind] |= bit
            self.kinds[slot] = kind
            if is_checked:
                self.checked |= bit
            if is_isolated and (kind == PEER_LEAF or is_checked):
                self.isolated |= bit
            self.dialects[slot] = dialect
            self.outs[slot] = out
            self.accounts[slot] = account
            self.clusters[slot] = cluster
            self.permissions[slot] = None
            self.mates[slot] = 0
            self.origins[slot] = origin = origin_of(kind, cluster)
            if origin:
                leaves = self.leaves_of.setdefault(account if self.is_apart_by_account else None, {})
                leaves[origin] = leaves.get(origin, 0) | bit
                self.clustered |= bit
            for other in range(FIRST_SLOT, END_SLOT):
                if other != slot and cluster and (self.outside >> other) & 1 and self.clusters[other] == cluster \
                        and self.kinds[other] == kind and (self.accounts[other] is account or kind != PEER_LEAF
                                                           or not self.is_apart_by_account):
                    self.mates[slot] |= <uint64_t>1 << other
                    self.mates[other] |= bit
            if self.is_holding:
                (<object>out.peer).wait()
            return slot
        return -1

    def hold(self):
        """Read no present or new server until go_on(): what it sends would miss a shard that lives."""
        cdef int slot
        self.is_holding = True
        for slot in range(FIRST_SLOT, END_SLOT):
            if self.outs[slot] != NULL:
                (<object>self.outs[slot].peer).wait()

    def go_on(self):
        """Read them again."""
        cdef int slot
        self.is_holding = False
        for slot in range(FIRST_SLOT, END_SLOT):
            if self.outs[slot] != NULL:
                (<object>self.outs[slot].peer).go_on()

    def doubt(self):
        """The sibling of a broken link lives, but messages on their way to it may be lost. A server that sent some, and
        has had no PONG since, must get none if its clients' PONGs wait for it (`fence: cluster`): its connection ends
        in its place. To others a PONG says only that this broker lives.

        Returns of how many servers messages may be lost.
        """
        cdef int slot, n = 0
        for slot in range(FIRST_SLOT, END_SLOT):
            if self.outs[slot] != NULL:
                n += (<object>self.outs[slot].peer).doubt()
        return n

    cdef int begin(self, int slot, list pongs_due, OutBuf *behind) except -1:
        cdef TellingServer telling = TellingServer()
        cdef RetellingOthers retelling = RetellingOthers()
        accounts = self.accounts_of(slot)
        self.told |= <uint64_t>1 << slot
        self.fence.begin(slot, self.outs[slot], pongs_due, self.kinds[slot] == PEER_ROUTE)
        for sublist in accounts:
            if (<Sublist>sublist).account == self.system_account:   # (at once: there plain interest and groups are one)
                retelling.exchange = self
                retelling.hears_remote = True
                retelling.slot = slot
                (<Sublist>sublist).replay(retelling)
        telling.exchange = self
        telling.mesh = self.mesh
        telling.slot = slot
        telling.out = self.outs[slot]
        telling.behind = self.behinds[slot] = behind
        telling.sublists = [one for one in accounts if (<Sublist>one).account != self.system_account]
        telling.ahead = set(telling.sublists)
        telling.cursors = []
        self.tellings[slot] = telling
        self.fence.rears[slot] = behind
        if self.mesh.soon is None or not telling.go_on(self.mesh.slice_nodes):
            self.mesh.begin(telling)
        for sublist in accounts:
            self.tell_due_replies(slot, <Sublist>sublist)
        return 0

    cdef int end_telling(self, int slot) except -1:
        cdef TellingServer telling = self.tellings[slot]
        if telling is None:
            return 0
        telling.end()
        self.mesh.end(telling)
        out_append_all(telling.out, telling.behind)
        if telling.out.max_pending:   # (what it was told now has not counted, and does not)
            telling.out.max_pending = max(telling.out.max_pending,
                                          out_pending(telling.out) + <size_t>MOST_WAITING_BYTES)
        self.tellings[slot] = None
        self.behinds[slot] = NULL
        self.fence.rears[slot] = telling.out
        return 0

    cdef bint is_told_later(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                            const QueueGroup *group) noexcept:
        cdef const Node *node
        if likely(self.behinds[slot] == NULL):
            return False
        node = interest.node_at(subject, size)
        return node != NULL and (<TellingServer>self.tellings[slot]).is_ahead(interest, node, group)

    cdef OutBuf *rear(self, int slot) noexcept:
        return self.outs[slot] if likely(self.behinds[slot] == NULL) else self.behinds[slot]

    cdef void check_behind(self, int slot) noexcept:
        if self.behinds[slot].close_reason != CLOSE_NONE and self.outs[slot].close_reason == CLOSE_NONE:
            out_condemn(self.outs[slot], <CloseReason>self.behinds[slot].close_reason)

    cdef list accounts_of(self, int slot):
        """The sublists whose messages pass there."""
        return [self.accounts[slot]] if self.accounts[slot] is not None else list(self.mesh.accounts.values())

    cdef int tell_due_replies(self, uint32_t slot, Sublist sublist) except -1:
        """A connection that ended may have had requests whose replies are still due, and this may be the next one."""
        due = self.due_replies.get(sublist.account)
        if not due:
            return 0
        if EVERY_REPLY in due:
            due = {EVERY_REPLY: ANOTHER_BROKER}
        self.told_replies[slot, sublist.account] = dict(due)
        for pattern in due:
            self.tell_pattern(slot, sublist.account, pattern, 1)
        return 0

    cdef int set_id(self, int slot, str server_id) except -1:
        self.short_ids[slot] = short_id(server_id)
        if self.short_ids[slot]:
            self.takes_only_queues |= <uint64_t>1 << slot
        return 0

    cdef int part(self, int slot) except -1:
        cdef uint64_t bit = <uint64_t>1 << slot
        for key in [key for key in self.told_replies if key[0] == slot]:
            due = self.due_replies.setdefault(key[1], {})
            due |= self.told_replies.pop(key)
            if len(due) > MOST_TOLD_REPLIES:
                self.due_replies[key[1]] = {EVERY_REPLY: ANOTHER_BROKER}
        self.told &= ~bit
        self.end_telling(slot)
        self.fence.part(slot)
        self.outs[slot] = NULL
        # (All that says what others were told of what it wanted stays until that is dropped, and its slot with it. Its
        # name does not: the same server may be here again before.)
        self.short_ids[slot] = b""
        sublists = dict.fromkeys(self.accounts_of(slot))
        sublists.update(dict.fromkeys([key[0] for key in self.sources[slot]]))
        return self.mesh.drop(slot, list(sublists), partial(self.empty, slot))

    def empty(self, int slot):
        """Nothing is left of who was connected there: the next one may be."""
        cdef uint64_t bit = <uint64_t>1 << slot
        cdef int other
        self.sources[slot], self.imported[slot] = {}, {}
        self.told_apart[slot] = {}
        self.splitting &= ~bit
        if self.clustered & bit:
            origin = self.origins[slot]
            account = self.accounts[slot] if self.is_apart_by_account else None
            leaves = self.leaves_of[account]
            leaves[origin] &= ~bit
            if not leaves[origin]:
                del leaves[origin]
            if not leaves:
                del self.leaves_of[account]
            self.clustered &= ~bit
        self.takes_origin &= ~bit
        self.takes_only_queues &= ~bit
        self.tells_apart &= ~bit
        self.importing &= ~bit
        self.answering &= ~bit
        self.answers[slot] = self.told_answers[slot] = self.for_clusters[slot] = None
        self.outside &= ~bit
        self.isolated &= ~bit
        self.checked &= ~bit
        self.restricted &= ~bit
        self.of_kind[self.kinds[slot]] &= ~bit
        self.of_kind[<int>PEER_SIBLING] |= bit
        self.accounts[slot] = self.permissions[slot] = None
        self.mates[slot] = 0
        for other in range(FIRST_SLOT, END_SLOT):
            self.mates[other] &= ~bit

    def set_own_interest(self, bytes account not None, subjects):
        """The subjects (bytes) that this broker itself wants in an account, in place of the last ones: services that
        the account imports, and what is mapped. Hubs and leaf nodes are told, because they send only what is wanted."""
        cdef Sublist sublist = self.mesh.account(account)
        cdef const uint8_t *at
        before = self.own.get(account, frozenset())
        wanted = frozenset([one for one in subjects if len(one) <= MOST_KEY_BYTES])
        if wanted:
            self.own[account] = wanted
        else:  # most accounts have none, and names come and go
            self.own.pop(account, None)
        for subject in before ^ wanted:
            at = <bytes>subject
            sublist.set_remote(END_SLOT, at, len(subject), subject in wanted)

    def set_system_account(self, bytes account not None):
        """The system account, in which shards answer requests; b"": there is none. Other servers, which have been told
        so in another way than of other groups, are told what differs."""
        cdef const uint8_t *name
        cdef const uint8_t *at
        cdef const uint8_t *group
        cdef uint32_t slot
        accounts = {self.system_account, account}
        for telling in [one for one in self.tellings if one is not None]:   # (of a part nobody could say what differs)
            (<TellingServer>telling).go_on(EVERYTHING)
        before = self.told_of_answerers(accounts)
        self.system_account = account
        after = self.told_of_answerers(accounts)
        # First what begins, so that nobody seems to be gone in between. (The way to another weight goes through 1.)
        changes = [(key, [1, n] if n > 1 else [1]) for key, n in after.items() if key not in before]
        changes += [(key, [1, 0] if n > 1 else [0]) for key, n in before.items() if key not in after]
        for (slot, account, subject, queue, origin), steps in changes:
            name, at, group = account, subject, queue
            for members in steps:
                self.fence.interest_frames[slot] += 1
                write_server_interest(self.outs[slot], self.dialects[slot], origin, name, len(account), at,
                                      len(subject), group, len(queue), members)

    cdef dict told_of_answerers(self, set accounts):
        cdef Answered answered = Answered()
        cdef int slot
        answered.exchange = self
        answered.hears_remote = True
        self.noted = found = {}
        for slot in range(FIRST_SLOT, END_SLOT):
            answered.slot = slot
            for sublist in self.accounts_of(slot) if (self.told >> slot) & 1 else ():
                if (<Sublist>sublist).account in accounts:
                    (<Sublist>sublist).replay(answered)
        self.noted = None
        return found

    def set_permissions(self, int slot, Permissions permissions):
        """What passes to and from a server from now on: publish rules are for what it is sent, subscribe rules for what
        is told to it and comes from it. None: everything. Before begin(): what has been told is not taken back, so a
        connection whose rights change has to be made anew."""
        self.permissions[slot] = permissions
        self.restricted &= ~(<uint64_t>1 << slot)
        if permissions is not None:
            self.restricted |= <uint64_t>1 << slot
        for sublist in self.mesh.accounts.values():
            (<Sublist>sublist).forget_entries()

    def withdraw(self, call):
        """Tell siblings that other servers want nothing any more, though those still get what is on its way to them;
        `call` when all siblings know, so that nothing more comes from them."""
        cdef Withdrawing withdrawing = Withdrawing()
        self.is_withdrawn = True
        withdrawing.exchange = self
        withdrawing.mesh = self.mesh
        withdrawing.call = call
        withdrawing.sublists = list(self.mesh.accounts.values())
        withdrawing.cursors = []
        self.mesh.begin(withdrawing)

    def call_when_known(self, call):
        """Call this when all siblings have what was sent to them so far."""
        if self.siblings_fence is None:
            call()
        else:
            self.siblings_fence.call_when_known(call)

    def rest_with(self, rest not None, size_t much_told_bytes=MUCH_TOLD_BYTES,
                  size_t bytes_without_rest=BYTES_WITHOUT_REST):
        """Have `rest` called with each ServerLink that tells much interest, after each piece that it has told; it is
        not read until its has_rested(). Much is what has more than much_told_bytes of it in one read; the first
        bytes_without_rest are read without."""
        self.rest = rest
        self.much_told_bytes = much_told_bytes
        self.bytes_without_rest = bytes_without_rest

    def set_own_id(self, str server_id not None):
        """The id of this broker, as other servers know it."""
        self.own_short_id = short_id(server_id)

    def hush(self):
        """Send other servers neither messages nor interest any more; what they send counts. Who waits until they know
        something waits for their ends."""
        cdef int slot
        for slot in range(FIRST_SLOT, END_SLOT):
            self.end_telling(slot)
        self.told = 0
        self.fence.silent = self.fence.servers

    def free_slots(self) -> int:
        """How many more servers can be connected."""
        return END_SLOT - FIRST_SLOT - bin(self.outside).count("1")
