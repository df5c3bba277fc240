# cython: language_level=3, boundscheck=False, wraparound=False
"""Who is interested in what: one account's subscriptions on this shard, and what sibling shards asked for.

Literal subjects are hash tables (a million of them cost a publish one probe), patterns a trie. A queue group is
known by its name, whatever its patterns. It matches nothing (broker.sublist does), and tells a sink when interest in
a subject begins, changes or ends.
"""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy, memset

from gnatswarm.broker.outbuf cimport MOVING_IN, MOVING_OUT
from gnatswarm.broker.subject cimport SUBJECT_WILDCARD, subject_kind
from gnatswarm.broker.table cimport (
    MOST_SPREAD, SPREAD_PARTS, Keyed, Walk, slot_item, spread_free, spread_init, spread_insert, spread_next,
    spread_remove, spread_table, table_find, table_free, table_init, table_insert, table_remove)
from gnatswarm.broker.word cimport SLACK, hash_bytes

import os
from sys import getsizeof


cdef enum:
    GROUP_KEY_BYTES = 16            # two pointers
    MOST_TOLD = 999999999           # as a frame can tell it
    MOST_GONE_BYTES = 16 * 1048576  # of rows of queue members that have left, of all accounts

cdef size_t gone_bytes = 0


cdef int64_t ALL = <int64_t>1 << 62


cdef struct GroupKey:
    const Node *node
    const QueueName *name
    uint8_t slack[SLACK]   # hashing reads past the end


cdef inline void set_key(GroupKey *key, const Node *node, const QueueName *name) noexcept nogil:
    memset(key, 0, sizeof(GroupKey))
    key.node = node
    key.name = name


cdef uint32_t shifted_weight(const QueueGroup *group, uint32_t i) noexcept nogil:
    cdef uint32_t shard = group.remote[i].shard
    cdef int64_t members = group.remote[i].members
    cdef const GroupShift *shift = group.shifts
    if members & SECOND_CHOICE:
        return <uint32_t>members
    while shift != NULL:
        if shift.state.old == shard and shift.number >= shift.state.less_from:
            members -= shift.members
        if shift.state.new == shard and shift.number >= shift.state.more_from:
            members += shift.members
        shift = shift.next
    return <uint32_t>min(max(members, <int64_t>0), <int64_t>MOST_TOLD)   # (counts and shifts come over different links)


cdef bint add_weight(QueueGroup *group, uint32_t shard, uint32_t members) noexcept:
    """False: no memory."""
    cdef RemoteWeight *remote = <RemoteWeight *>realloc(group.remote, (group.n_remote + 1) * sizeof(RemoteWeight))
    if remote == NULL:
        return False
    group.remote = remote
    remote[group.n_remote].shard = shard
    remote[group.n_remote].members = members
    group.n_remote += 1
    return True


cdef class InterestSink:
    """Is told of this shard's interest; the base class ignores it (a broker of one shard)."""

    cdef uint64_t on_interest(self, Interest interest, const uint8_t *subject, size_t size, bint wanted) noexcept:
        return 0

    cdef uint64_t on_queue_interest(self, Interest interest, const uint8_t *subject, size_t size,
                                    const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        return 0

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        pass

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        pass


cdef size_t subject_at(const Node *node, uint8_t *to, size_t room) noexcept nogil:
    cdef const Pattern *at
    cdef size_t size, filled
    if node.key.kind == NODE_LITERAL:
        size = node.key.size
        if size <= room:
            memcpy(to, node_key(node), size)
        return size
    size = 0
    at = <const Pattern *>node
    while at.parent != NULL:
        size += at.node.key.size + 1
        at = at.parent
    size -= 1
    if size > room:
        return size
    filled = size
    at = <const Pattern *>node
    while at.parent != NULL:
        filled -= at.node.key.size
        memcpy(to + filled, node_key(&at.node), at.node.key.size)
        at = at.parent
        if at.parent != NULL:
            filled -= 1
            to[filled] = c'.'
    return size


cdef inline uint32_t reversed_bits(uint32_t n) noexcept nogil:
    n = n >> 16 | n << 16
    n = (n & <uint32_t>0xFF00FF00) >> 8 | (n & 0x00FF00FF) << 8
    n = (n & <uint32_t>0xF0F0F0F0) >> 4 | (n & 0x0F0F0F0F) << 4
    n = (n & <uint32_t>0xCCCCCCCC) >> 2 | (n & 0x33333333) << 2
    return (n & <uint32_t>0xAAAAAAAA) >> 1 | (n & 0x55555555) << 1


cdef inline bint comes_before(uint64_t turned, const Pattern *one, uint64_t than, const Pattern *other) noexcept nogil:
    return turned < than or (turned == than and <size_t>one < <size_t>other)


cdef class InterestCursor:
    """Meets every node and every queue group of an account, some at a time, while interest comes and goes."""

    cdef bint go_on(self, int64_t most) noexcept:
        self.left = most
        if self.pass_literals() and self.pass_patterns() and self.pass_groups():
            self.interest.end_cursor(self)
            return True
        return False

    cdef void on_plain(self, Node *node) noexcept:
        pass

    cdef void on_group(self, QueueGroup *group) noexcept:
        pass

    cdef bint is_ahead(self, const Node *node, const QueueGroup *group) noexcept:
        if group != NULL:   # (none was met, or all that were are gone: then those that are new come, too)
            return self.group == &self.interest.groups or group.number < self.group.number
        if node.key.kind == NODE_LITERAL:
            return (node.key.hash >> 22) >= self.part
        return self.is_pattern_ahead(<Pattern *>node)

    cdef bint is_pattern_ahead(self, Pattern *pattern) noexcept:
        """By the order of siblings below the last node that leads to both: star, rest, tokens as in next_child()."""
        cdef Pattern *common
        cdef Pattern *child = NULL     # on the way to this one, …
        cdef Pattern *ours = NULL      # … and to where the cursor is
        cdef Pattern *at = pattern
        cdef uint64_t turned
        while True:
            ours = NULL
            common = self.at
            while common != NULL and common != at:
                ours = common
                common = common.parent
            if common != NULL:
                break
            child = at
            at = at.parent
        if child == NULL:
            return False   # the cursor is there, or below
        if child.node.key.kind == NODE_STAR:
            return ours == NULL and self.stage == 0
        if child.node.key.kind == NODE_REST:
            return ours.node.key.kind == NODE_STAR if ours != NULL else self.stage < 2
        turned = reversed_bits(child.node.key.hash)
        if ours == NULL:
            return self.stage < 2 or comes_before(self.turned, self.token, turned, child)
        return ours.node.key.kind != NODE_TOKEN or comes_before(
            reversed_bits(ours.node.key.hash), ours, turned, child)

    cdef bint pass_literals(self) noexcept:
        """A part of them is met in one go: a thousandth, where there are many, and none moves to another part."""
        cdef Spread *literals = &self.interest.literals
        cdef Table *table
        cdef uint32_t i, slot, parts
        cdef uint64_t item
        while self.part < MOST_SPREAD:
            if self.left <= 0:
                return False
            i = self.part // SPREAD_PARTS
            parts = 1 if literals.split >> i & 1 else SPREAD_PARTS - self.part % SPREAD_PARTS
            slot = 0
            while True:   # (each time anew: who is met may be pruned, and its table with it)
                table = literals.parts + self.part if parts == 1 else &literals.wholes[i]
                if table.slots == NULL or slot > table.mask:
                    break
                item = table.slots[slot]
                if item:
                    self.left -= 1
                    self.on_plain(<Node *>slot_item(item))
                    if parts == 1 and not literals.split >> i & 1:
                        break   # that was the last one of all its parts
                    if table.slots == NULL or table.slots[slot] != item:
                        continue   # pruning shifts slots back
                slot += 1
            self.left -= parts == 1
            self.part += parts
        return True

    cdef bint pass_patterns(self) noexcept:
        cdef Pattern *child
        while self.left > 0:
            child = self.next_child()
            if child != NULL:
                self.left -= 1
                self.at = child
                self.stage = 0
                self.on_plain(&child.node)
            elif self.stage == 2 and self.turned >> 32:
                if self.at == self.interest.root:
                    return True
                self.step_behind(self.at)
        return False

    cdef Pattern *next_child(self) noexcept:
        """The next child of `at`. NULL: there is none, or (then it is not behind all) enough was looked at.

        Its tokens come by their hashes' bits in reverse order: each slot of a table is home to those between two such
        numbers, however many slots there are, so those of a table that has grown meanwhile come in the same order.
        """
        cdef Table *table = &self.at.tokens
        cdef Pattern *found = NULL
        cdef Pattern *item
        cdef uint64_t found_turned = 0, turned, step
        cdef uint32_t home, slot
        while self.stage < 2:
            item = self.at.star if self.stage == 0 else self.at.rest
            self.stage += 1
            if self.stage == 2:
                self.turned = 0
                self.token = NULL
            if item != NULL:
                return item
        if table.slots == NULL:
            self.turned = <uint64_t>1 << 32
        while self.left > 0 and not self.turned >> 32:
            home = slot = reversed_bits(<uint32_t>self.turned) & table.mask
            while table.slots[slot]:
                item = <Pattern *>slot_item(table.slots[slot])
                slot = (slot + 1) & table.mask
                if item.node.key.hash & table.mask != home:
                    continue
                turned = reversed_bits(item.node.key.hash)
                if comes_before(self.turned, self.token, turned, item) \
                        and (found == NULL or comes_before(turned, item, found_turned, found)):
                    found = item
                    found_turned = turned
            if found != NULL:
                return found
            self.left -= 1
            step = (<uint64_t>1 << 32) // (<uint64_t>table.mask + 1)
            self.turned = (self.turned // step + 1) * step
            self.token = NULL
        return NULL

    cdef void step_behind(self, Pattern *pattern) noexcept:
        self.at = pattern.parent
        self.turned = 0
        self.token = NULL
        if pattern.node.key.kind == NODE_STAR:
            self.stage = 1
        else:
            self.stage = 2
            if pattern.node.key.kind == NODE_TOKEN:
                self.turned = reversed_bits(pattern.node.key.hash)
                self.token = pattern

    cdef bint pass_groups(self) noexcept:
        while self.left > 0:
            self.group = self.group.next_of_all
            if self.group == &self.interest.groups:
                return True
            self.left -= 1
            self.on_group(self.group)
        return False


cdef class TellingCursor(InterestCursor):
    """Tells a sink this shard's own interest, or that of all siblings."""

    cdef void on_plain(self, Node *node) noexcept:
        if self.sink.hears_remote:
            # (a table of several parts may have items of one that was passed: see is_ahead())
            if node.remote and (node.key.kind != NODE_LITERAL or (node.key.hash >> 22) >= self.part):
                self.interest.tell_remote(node, 0, self.sink)
        elif node.subs != NULL:
            self.interest.tell(node, NULL, self.sink)

    cdef void on_group(self, QueueGroup *group) noexcept:
        if self.sink.hears_remote:
            if group.n_remote:
                self.interest.tell_remote_queue(group.node, group, MOST_SHARDS, 0, self.sink)
        elif group.n_members:
            self.interest.tell(group.node, group, self.sink)


cdef class DroppingCursor(InterestCursor):
    """Drops the interest of a sibling that is gone."""

    cdef void on_plain(self, Node *node) noexcept:
        cdef uint64_t bit = <uint64_t>1 << self.shard
        if not node.remote & bit:
            return
        node.remote ^= bit
        if self.interest.sink.hears_remote:
            self.interest.tell_remote(node, node.remote | bit, self.interest.sink)
        self.interest.node_changed(node)
        self.interest.node_prune(node)

    cdef void on_group(self, QueueGroup *group) noexcept:
        cdef Node *node = group.node
        cdef uint32_t i, before
        for i in range(group.n_remote):
            if group.remote[i].shard == self.shard:
                before = weight_of(group, i)
                group.n_remote -= 1
                group.remote[i] = group.remote[group.n_remote]
                if self.interest.sink.hears_remote:
                    self.interest.tell_remote_queue(node, group, self.shard, before, self.interest.sink)
                self.interest.node_changed(node)
                self.interest.group_prune(node, group)
                self.interest.node_prune(node)
                return


cdef class Interest:
    """The subscriptions of one account. `sink` is told when interest in a subject begins, changes or ends."""

    def __cinit__(self, bytes account not None, InterestSink sink not None):
        self.account = account
        self.sink = sink
        self.seed = int.from_bytes(os.urandom(8), "little")
        spread_init(&self.literals, sizeof(Node))
        table_init(&self.queue_names, sizeof(QueueName))
        table_init(&self.wide, sizeof(Keyed))
        self.groups.next_of_all = self.groups.previous_of_all = self.harvested = &self.groups
        self.gone_members = []
        self.root = <Pattern *>calloc(1, sizeof(Pattern))
        if self.root == NULL:
            raise MemoryError
        self.root.node.key.kind = NODE_TOKEN
        table_init(&self.root.tokens, sizeof(Pattern))

    def __dealloc__(self):
        cdef Walk walk = Walk(0, 0)
        cdef Keyed *item = spread_next(&self.literals, &walk)
        self.add_gone_bytes(-self.gone_bytes)
        cdef uint32_t j
        while item != NULL:
            free_node_contents(<Node *>item)
            free(item)
            item = spread_next(&self.literals, &walk)
        spread_free(&self.literals)
        if self.root != NULL:
            self.free_pattern(self.root)
        if self.queue_names.slots != NULL:
            for j in range(self.queue_names.mask + 1):
                free(slot_item(self.queue_names.slots[j]))
        table_free(&self.queue_names)
        table_free(&self.wide)

    cdef void free_pattern(self, Pattern *at) noexcept:
        cdef uint32_t i
        free_node_contents(&at.node)
        if at.star != NULL:
            self.free_pattern(at.star)
        if at.rest != NULL:
            self.free_pattern(at.rest)
        if at.tokens.slots != NULL:
            for i in range(at.tokens.mask + 1):
                if at.tokens.slots[i]:
                    self.free_pattern(<Pattern *>slot_item(at.tokens.slots[i]))
        table_free(&at.tokens)
        free(at)

    cdef void node_changed(self, Node *node) noexcept:
        pass

    # ---- nodes

    cdef Node *node_at(self, const uint8_t *subject, size_t size) noexcept:
        """The node of a subscription subject, or NULL."""
        cdef uint32_t hash
        cdef Pattern *at
        cdef const uint8_t *end = subject + size
        cdef const uint8_t *e
        if subject_kind(subject, size) != SUBJECT_WILDCARD:
            hash = <uint32_t>hash_bytes(subject, size, self.seed)
            return <Node *>table_find(spread_table(&self.literals, hash), subject, size, hash)
        at = self.root
        while at != NULL:
            e = <const uint8_t *>memchr(subject, c'.', end - subject)
            if e == NULL:
                e = end
            if e - subject == 1 and subject[0] == c'*':
                at = at.star
            elif e - subject == 1 and subject[0] == c'>':
                at = at.rest
            else:
                hash = <uint32_t>hash_bytes(subject, e - subject, self.seed)
                at = <Pattern *>table_find(&at.tokens, subject, e - subject, hash)
            if e == end:
                break
            subject = e + 1
        return <Node *>at

    cdef Node *node_for(self, const uint8_t *subject, size_t size) noexcept:
        """The node of a valid subscription subject, made where it is missing. NULL: no memory."""
        cdef uint32_t hash
        cdef Node *node
        cdef Pattern *at
        cdef Pattern *child
        cdef const uint8_t *end = subject + size
        cdef const uint8_t *e
        cdef NodeKind kind
        if subject_kind(subject, size) != SUBJECT_WILDCARD:
            hash = <uint32_t>hash_bytes(subject, size, self.seed)
            node = <Node *>table_find(spread_table(&self.literals, hash), subject, size, hash)
            if node != NULL:
                return node
            node = <Node *>calloc(1, sizeof(Node) + size)
            if node == NULL:
                return NULL
            node.key.hash = hash
            node.key.size = <uint16_t>size
            node.key.kind = NODE_LITERAL
            memcpy(<uint8_t *>node + sizeof(Node), subject, size)
            if not spread_insert(&self.literals, &node.key):
                free(node)
                return NULL
            return node
        at = self.root
        while True:
            e = <const uint8_t *>memchr(subject, c'.', end - subject)
            if e == NULL:
                e = end
            hash = 0
            if e - subject == 1 and subject[0] == c'*':
                kind, child = NODE_STAR, at.star
            elif e - subject == 1 and subject[0] == c'>':
                kind, child = NODE_REST, at.rest
            else:
                kind = NODE_TOKEN
                hash = <uint32_t>hash_bytes(subject, e - subject, self.seed)
                child = <Pattern *>table_find(&at.tokens, subject, e - subject, hash)
            if child == NULL:
                child = <Pattern *>malloc(sizeof(Pattern) + (e - subject))
                if child == NULL:
                    self.node_prune(&at.node)
                    return NULL
                memset(child, 0, sizeof(Pattern))
                child.node.key.hash = hash
                child.node.key.size = <uint16_t>(e - subject)
                child.node.key.kind = kind
                child.parent = at
                table_init(&child.tokens, sizeof(Pattern))
                memcpy(<uint8_t *>child + sizeof(Pattern), subject, e - subject)
                if kind == NODE_STAR:
                    at.star = child
                elif kind == NODE_REST:
                    at.rest = child
                elif not table_insert(&at.tokens, &child.node.key):
                    free(child)
                    self.node_prune(&at.node)
                    return NULL
            at = child
            if e == end:
                return &at.node
            subject = e + 1

    cdef void node_prune(self, Node *node) noexcept:
        """Frees a node without any interest, and the nodes of the trie above it that are now empty."""
        cdef Pattern *at
        cdef Pattern *parent
        if not is_unused(node):
            return
        if node.key.kind == NODE_LITERAL:
            spread_remove(&self.literals, &node.key)
            free(node)
            return
        at = <Pattern *>node
        while at.parent != NULL and is_unused(&at.node) and at.star == NULL and at.rest == NULL \
                and at.tokens.count == 0:
            parent = at.parent
            if self.cursors is not None:
                for cursor in self.cursors:
                    if (<InterestCursor>cursor).at == at:
                        (<InterestCursor>cursor).step_behind(at)
            if at.node.key.kind == NODE_STAR:
                parent.star = NULL
            elif at.node.key.kind == NODE_REST:
                parent.rest = NULL
            else:
                table_remove(&parent.tokens, &at.node.key)
            table_free(&at.tokens)
            free(at)
            at = parent

    cdef size_t subject_of(self, const Node *node, uint8_t *to, size_t room) noexcept:
        return subject_at(node, to, room)

    # ---- queue groups

    cdef QueueGroup *find_group(self, const Node *node, const QueueName *name) noexcept:
        cdef QueueGroup *group
        cdef GroupKey key
        if node.key.flags & NODE_WIDE:
            set_key(&key, node, name)
            return <QueueGroup *>table_find(&self.wide, <const uint8_t *>&key, GROUP_KEY_BYTES,
                                            <uint32_t>hash_bytes(<const uint8_t *>&key, GROUP_KEY_BYTES, self.seed))
        group = node.groups
        while group != NULL and group.name != name:
            group = group.next
        return group

    cdef QueueGroup *group_named(self, const Node *node, const uint8_t *queue, size_t size) noexcept:
        cdef uint32_t hash = <uint32_t>hash_bytes(queue, size, self.seed)
        cdef QueueName *name = <QueueName *>table_find(&self.queue_names, queue, size, hash)
        return NULL if name == NULL else self.find_group(node, name)

    cdef bint put_in_wide(self, QueueGroup *group) noexcept:
        """False: no memory."""
        cdef GroupKey key
        set_key(&key, group.node, group.name)
        group.key.size = GROUP_KEY_BYTES
        group.key.hash = <uint32_t>hash_bytes(<const uint8_t *>&key, GROUP_KEY_BYTES, self.seed)
        group.key.flags = table_insert(&self.wide, &group.key)
        return group.key.flags

    cdef QueueGroup *group_for(self, Node *node, const uint8_t *queue, size_t size) noexcept:
        """The node's group of that name, made where it is missing. NULL: no memory."""
        cdef QueueGroup *group
        cdef QueueGroup *other
        cdef uint32_t hash = <uint32_t>hash_bytes(queue, size, self.seed)
        cdef QueueName *name = <QueueName *>table_find(&self.queue_names, queue, size, hash)
        cdef int n = 0
        if name != NULL:
            group = self.find_group(node, name)
            if group != NULL:
                return group
        group = <QueueGroup *>calloc(1, sizeof(QueueGroup))
        if group == NULL:
            return NULL
        if name == NULL:
            name = <QueueName *>malloc(sizeof(QueueName) + size)
            if name == NULL:
                free(group)
                return NULL
            memset(name, 0, sizeof(QueueName))
            name.key.hash = hash
            name.key.size = <uint16_t>size
            memcpy(<uint8_t *>name + sizeof(QueueName), queue, size)
            if not table_insert(&self.queue_names, &name.key):
                free(name)
                free(group)
                return NULL
        group.name = name
        group.node = node
        if node.key.flags & NODE_WIDE and not self.put_in_wide(group):
            if name.refs == 0:
                table_remove(&self.queue_names, &name.key)
                free(name)
            free(group)
            return NULL
        name.refs += 1
        group.next = node.groups
        if group.next != NULL:
            group.next.previous = group
        node.groups = group
        if not node.key.flags & NODE_WIDE:
            other = group
            while other != NULL and n <= FEW_GROUPS:
                other = other.next
                n += 1
            if n > FEW_GROUPS:
                other = group
                while other != NULL and (other.key.flags or self.put_in_wide(other)):
                    other = other.next
                if other == NULL:   # (else the next one tries again)
                    node.key.flags |= NODE_WIDE
        if self.last_number == <uint32_t>0xFFFFFFFF:
            self.number_groups()
        self.last_number += 1
        group.number = self.last_number
        group.next_of_all = self.groups.next_of_all
        group.previous_of_all = &self.groups
        group.next_of_all.previous_of_all = group
        self.groups.next_of_all = group
        return group

    cdef void number_groups(self) noexcept:
        """Anew, after four billion of them."""
        cdef QueueGroup *group = self.groups.previous_of_all
        self.last_number = 0
        while group != &self.groups:
            self.last_number += 1
            group.number = self.last_number
            group = group.previous_of_all

    cdef void group_prune(self, Node *node, QueueGroup *group) noexcept:
        """Frees a group without members anywhere."""
        if group.members != NULL or group.n_remote or group.shifts != NULL:
            return
        if group.previous != NULL:
            group.previous.next = group.next
        else:
            node.groups = group.next
        if group.next != NULL:
            group.next.previous = group.previous
        if group.key.flags:
            table_remove(&self.wide, &group.key)
        if self.harvested == group:
            self.harvested = group.previous_of_all
        if self.cursors is not None:
            for cursor in self.cursors:
                if (<InterestCursor>cursor).group == group:
                    (<InterestCursor>cursor).group = group.previous_of_all
        group.previous_of_all.next_of_all = group.next_of_all
        group.next_of_all.previous_of_all = group.previous_of_all
        group.name.refs -= 1
        if group.name.refs == 0:
            table_remove(&self.queue_names, &group.name.key)
            free(group.name)
        free(group.remote)
        free(group)

    # ---- this shard's subscriptions

    cdef uint64_t tell(self, Node *node, QueueGroup *group, InterestSink sink) noexcept:
        """Tells the sink the present interest at a node: plain, or that of one group."""
        cdef uint64_t told
        cdef uint8_t small[512]
        cdef uint8_t *subject = small
        cdef size_t size = subject_at(node, small, sizeof(small))
        if size > sizeof(small):
            subject = <uint8_t *>malloc(size)
            if subject == NULL:
                return 0
            subject_at(node, subject, size)
        if group == NULL:
            told = sink.on_interest(self, subject, size, node.subs != NULL)
        else:
            told = sink.on_queue_interest(self, subject, size, <uint8_t *>group.name + sizeof(QueueName),
                                          group.name.key.size, group.n_members)
        if subject != small:
            free(subject)
        return told

    cdef Sub *insert(self, OutBuf *out, const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                     const uint8_t *sid, size_t sid_size, uint32_t sid_hash, uint64_t *told) noexcept:
        cdef Sub *sub = <Sub *>calloc(1, sizeof(Sub) + sid_size + (sizeof(uint64_t) if queue_size else 0)
                                      + (sizeof(uint64_t) if self.marks_subs else 0))
        if sub == NULL:
            return NULL
        sub.key.flags = SUB_MARKED if self.marks_subs else 0
        sub.key.hash = sid_hash
        sub.key.size = <uint16_t>sid_size
        memcpy(<uint8_t *>sub + sizeof(Sub), sid, sid_size)
        sub.out = out
        return self.attach(sub, subject, size, queue, queue_size, told)

    cdef Sub *attach(self, Sub *sub, const uint8_t *subject, size_t size, const uint8_t *queue,
                     size_t queue_size, uint64_t *told) noexcept:
        """Adds a new subscription to its node or group; NULL: no memory, and the subscription is freed."""
        cdef Sub **first
        cdef Node *node = self.node_for(subject, size)
        sub.node = node
        if node != NULL and queue_size:
            sub.group = self.group_for(node, queue, queue_size)
        if node == NULL or (queue_size and sub.group == NULL):
            if node != NULL:
                self.node_prune(node)
            free(sub)
            return NULL
        if queue_size:
            sub.group.n_members += sub.out.moving != MOVING_IN
            first = &sub.group.members
        else:
            first = &node.subs
        sub.next = first[0]
        if first[0] != NULL:
            first[0].previous = sub
        first[0] = sub
        count_subs(self, 1)
        self.n_inserts += 1
        self.node_changed(node)
        if sub.group == NULL and sub.next == NULL or sub.group != NULL and sub.out.moving != MOVING_IN:
            told[0] |= self.tell(node, sub.group, self.sink)
        return sub

    cdef void remove(self, Sub *sub, uint64_t *told) noexcept:
        cdef Node *node = sub.node
        cdef QueueGroup *group = sub.group
        cdef uint8_t moving = sub.out.moving
        if sub.next != NULL:
            sub.next.previous = sub.previous
        if sub.previous != NULL:
            sub.previous.next = sub.next
        elif group != NULL:
            group.members = sub.next
        else:
            node.subs = sub.next
        if group != NULL:
            group.n_members -= moving != MOVING_IN
            if sub.delivered and self.most_gone:
                self.book_leaver(sub)
        free(sub)
        count_subs(self, -1)
        self.n_removes += 1
        self.node_changed(node)
        if group == NULL and node.subs == NULL or group != NULL and moving <= MOVING_OUT:
            told[0] |= self.tell(node, group, self.sink)
        if group != NULL:
            self.group_prune(node, group)
        self.node_prune(node)

    cdef void replay(self, InterestSink sink) noexcept:
        self.telling_cursor(sink).go_on(ALL)

    cdef TellingCursor telling_cursor(self, InterestSink sink):
        cdef TellingCursor cursor = TellingCursor()
        cursor.sink = sink
        self.begin_cursor(cursor)
        return cursor

    cdef DroppingCursor dropping_cursor(self, uint32_t shard):
        cdef DroppingCursor cursor = DroppingCursor()
        cursor.shard = shard
        self.begin_cursor(cursor)
        return cursor

    cdef void begin_cursor(self, InterestCursor cursor) noexcept:
        cursor.interest = self
        cursor.at = self.root
        cursor.group = &self.groups
        if self.cursors is None:
            self.cursors = []
        self.cursors.append(cursor)

    cdef void end_cursor(self, InterestCursor cursor) noexcept:
        if self.cursors is not None and cursor in self.cursors:
            self.cursors.remove(cursor)
            if not self.cursors:
                self.cursors = None

    # ---- the interest of siblings

    cdef void tell_remote(self, Node *node, uint64_t before, InterestSink sink) noexcept:
        cdef size_t size = subject_at(node, NULL, 0)
        cdef uint8_t *subject = <uint8_t *>malloc(size + SLACK)
        if subject != NULL:
            subject_at(node, subject, size)
            sink.on_remote(self, subject, size, before, node.remote)
            free(subject)

    cdef void tell_remote_queue(self, Node *node, QueueGroup *group, uint32_t shard, uint32_t before,
                                InterestSink sink) noexcept:
        cdef size_t size = subject_at(node, NULL, 0)
        cdef uint8_t *subject = <uint8_t *>malloc(size + SLACK)
        if subject != NULL:
            subject_at(node, subject, size)
            sink.on_remote_queue(self, subject, size, group, shard, before)
            free(subject)

    cdef bint set_remote(self, uint32_t shard, const uint8_t *subject, size_t size, bint wanted) noexcept:
        cdef uint64_t bit = <uint64_t>1 << shard
        cdef Node *node = self.node_for(subject, size) if wanted else self.node_at(subject, size)
        if node == NULL:
            return not wanted
        if bool(node.remote & bit) == wanted:
            return True
        node.remote ^= bit
        if self.sink.hears_remote:
            self.tell_remote(node, node.remote ^ bit, self.sink)
        self.node_changed(node)
        self.node_prune(node)
        return True

    cdef bint set_remote_queue(self, uint32_t shard, const uint8_t *subject, size_t size,
                               const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        cdef Node *node = self.node_for(subject, size) if members else self.node_at(subject, size)
        cdef QueueGroup *group
        cdef uint32_t i, before = 0
        if node == NULL:
            return not members
        group = self.group_for(node, queue, queue_size)
        if group == NULL:
            self.node_prune(node)
            return False
        for i in range(group.n_remote):
            if group.remote[i].shard == shard:
                before = weight_of(group, i)
                if members or group.shifts != NULL:
                    group.remote[i].members = members
                    members = weight_of(group, i)
                else:
                    group.n_remote -= 1
                    group.remote[i] = group.remote[group.n_remote]
                break
        else:
            if members:
                if not add_weight(group, shard, members):
                    self.group_prune(node, group)
                    self.node_prune(node)
                    return False
                members = weight_of(group, group.n_remote - 1)
        if self.sink.hears_remote and before != members:
            self.tell_remote_queue(node, group, shard, before, self.sink)
        self.node_changed(node)
        self.group_prune(node, group)
        self.node_prune(node)
        return True

    cdef uint32_t remote_members(self, uint32_t shard, const uint8_t *subject, size_t size, const uint8_t *queue,
                                 size_t queue_size) noexcept:
        cdef Node *node = self.node_at(subject, size)
        cdef QueueGroup *group = self.group_named(node, queue, queue_size) if node != NULL else NULL
        cdef uint32_t i
        if group != NULL:
            for i in range(group.n_remote):
                if group.remote[i].shard == shard:
                    return weight_of(group, i)
        return 0

    cdef bint stage(self, GroupShift *shift, const uint8_t *subject, size_t size, const uint8_t *queue,
                    size_t queue_size, bint awaits_new) noexcept:
        cdef Node *node = self.node_for(subject, size)
        cdef QueueGroup *group = NULL if node == NULL else self.group_for(node, queue, queue_size)
        cdef uint32_t i, n
        if group == NULL:
            if node != NULL:
                self.node_prune(node)
            return False
        n = group.n_remote if awaits_new else 0
        for i in range(n):
            if group.remote[i].shard == shift.state.new:
                awaits_new = False
        if awaits_new and not add_weight(group, shift.state.new, 0):
            self.group_prune(node, group)
            self.node_prune(node)
            return False
        shift.group = group
        shift.next = group.shifts
        if shift.next != NULL:
            shift.next.previous = shift
        group.shifts = shift
        return True

    cdef void unstage(self, GroupShift *shift) noexcept:
        cdef QueueGroup *group = shift.group
        cdef Node *node = group.node
        cdef uint32_t i = 0
        if shift.next != NULL:
            shift.next.previous = shift.previous
        if shift.previous != NULL:
            shift.previous.next = shift.next
        else:
            group.shifts = shift.next
        if group.shifts == NULL:
            while i < group.n_remote:
                if group.remote[i].members == 0:
                    group.n_remote -= 1
                    group.remote[i] = group.remote[group.n_remote]
                else:
                    i += 1
        if group.members == NULL and group.n_remote == 0 and group.shifts == NULL:
            self.node_changed(node)   # (entries point at the group's name, though it had no members)
        self.group_prune(node, group)
        self.node_prune(node)

    cdef void count_shift(self, const GroupShift *shift, uint32_t shard, int64_t more) noexcept:
        cdef QueueGroup *group = shift.group
        cdef uint32_t i
        for i in range(group.n_remote):
            if group.remote[i].shard == shard and not group.remote[i].members & SECOND_CHOICE:
                more += group.remote[i].members
                group.remote[i].members = <uint32_t>min(max(more, <int64_t>0), <int64_t>MOST_TOLD)
                return
        if more > 0:
            add_weight(group, shard, <uint32_t>more)   # (no memory: nobody is sent anything there)

    cdef void drop_remote(self, uint32_t shard) noexcept:
        self.dropping_cursor(shard).go_on(ALL)

    # ---- statistics

    cdef void book_leaver(self, Sub *sub) noexcept:
        """A queue member leaves: keep its deliveries since the last harvest for the next one."""
        cdef uint64_t n = sub.delivered - take_harvested(sub)
        if n == 0:
            return
        if <uint32_t>len(self.gone_members) >= self.most_gone or gone_bytes >= MOST_GONE_BYTES:
            self.gone_deliveries += n
            return
        cdef tuple row = queue_row(self, sub, n)
        self.gone_members.append(row)
        self.add_gone_bytes(<size_t>sum(map(getsizeof, row), getsizeof(row)))

    cdef void add_gone_bytes(self, size_t size) noexcept:
        global gone_bytes
        self.gone_bytes += size
        gone_bytes += size

    def harvest_queues(self, uint32_t rows, uint32_t most) -> tuple:
        """([(subject, queue, client id, sid, deliveries)], deliveries that have no row, is there more?) since the last
        harvest, of members that have left meanwhile too. So many are looked at, or more: groups are not divided.

        At most `most` rows: those of 100,000 members with subjects of 4 KB would take 400 MB.
        """
        cdef list found = self.gone_members[:most]
        cdef uint64_t left_out = sum([row[4] for row in self.gone_members[most:]])
        cdef QueueGroup *group
        cdef Sub *sub
        cdef uint64_t n
        cdef uint32_t looked = 0
        self.gone_members = []
        self.add_gone_bytes(-self.gone_bytes)
        while looked < rows:
            group = self.harvested.next_of_all
            self.harvested = group
            if group == &self.groups:
                return found, left_out, False
            looked += 1
            sub = group.members
            while sub != NULL:
                looked += 1
                if sub.delivered:
                    n = sub.delivered - take_harvested(sub)
                    if n and <uint32_t>len(found) < most:
                        found.append(queue_row(self, sub, n))
                    elif n:
                        left_out += n
                sub = sub.next
        return found, left_out, True

    def take_gone_deliveries(self) -> int:
        """Deliveries to queue members that left when there was no room for a row of their own."""
        n = self.gone_deliveries
        self.gone_deliveries = 0
        return n


cdef uint64_t take_harvested(Sub *sub) noexcept:
    """How many of a queue member's deliveries were harvested before. Marks all of them as harvested."""
    cdef uint8_t *at = <uint8_t *>sub + sizeof(Sub) + sub.key.size
    cdef uint64_t before
    memcpy(&before, at, sizeof(before))
    memcpy(at, &sub.delivered, sizeof(before))
    return before


cdef tuple queue_row(Interest interest, Sub *sub, uint64_t n):
    cdef bytearray subject = bytearray(256)
    cdef size_t size = interest.subject_of(sub.node, subject, 256)
    cdef const QueueName *name = sub.group.name
    if size > 256:
        subject = bytearray(size)
        interest.subject_of(sub.node, subject, size)
    return (subject[:size].decode("utf-8", "replace"),
            (<const uint8_t *>name + sizeof(QueueName))[:name.key.size].decode("utf-8", "replace"),
            (<object>sub.out.peer).cid if sub.out.peer != NULL else 0,
            (<const uint8_t *>sub + sizeof(Sub))[:sub.key.size].decode("utf-8", "replace"), n)


cdef void free_node_contents(Node *node) noexcept:
    cdef QueueGroup *group
    cdef Sub *sub
    while node.subs != NULL:
        sub = node.subs
        node.subs = sub.next
        free(sub)
    while node.groups != NULL:
        group = node.groups
        node.groups = group.next
        while group.members != NULL:
            sub = group.members
            group.members = sub.next
            free(sub)
        free(group.remote)
        free(group)
