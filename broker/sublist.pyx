# cython: language_level=3, boundscheck=False, wraparound=False
"""Who wants a subject: one account's subscriptions on this shard, and what sibling shards asked for.

It answers with an Entry: the plain subscriptions, the queue groups (by queue name, whatever their patterns) and
the siblings. It delivers nothing and knows no socket. Cost: a cached answer is one probe, a new one a probe plus
a walk over the *wildcard* patterns that share the subject's tokens; both flat in the number of subscriptions.
The cache is validated, not emptied: see `is_current`.
"""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy, memset

from broker.permissions cimport Permissions
from broker.outbuf cimport out_init, out_release, Outbox, outbox_new, outbox_release
from broker.subject cimport SUBJECT_BAD, SUBJECT_WILDCARD, has_empty_token, subject_kind
from broker.table cimport slot_item, table_find, table_free, table_init, table_insert, table_remove
from broker.word cimport SLACK, hash_bytes

import os


cdef inline uint8_t *node_key(const Node *node) noexcept nogil:
    return <uint8_t *>node + (sizeof(Node) if node.key.kind == NODE_LITERAL else sizeof(Pattern))


cdef inline bint is_unused(const Node *node) noexcept nogil:
    return node.subs == NULL and node.groups == NULL and node.remote == 0


cdef inline bint is_admitted(const Sub *sub, const uint8_t *subject, size_t size) noexcept:
    """Does its client's permission let it have messages on `subject`? (Its pattern was granted.)"""
    cdef const QueueGroup *group = sub.group
    if sub.out.filter == NULL:
        return True
    if group == NULL:
        return not (<Permissions>sub.out.filter).keeps_out(subject, size, NULL, 0)
    return not (<Permissions>sub.out.filter).keeps_out(
        subject, size, <const uint8_t *>group.name + sizeof(QueueName), group.name.key.size)


cdef class InterestSink:
    """Hears of this shard's interest; the base class ignores it (a broker of one shard)."""

    cdef void on_interest(self, Sublist sublist, const uint8_t *subject, size_t size, bint wanted) noexcept:
        pass

    cdef void on_queue_interest(self, Sublist sublist, const uint8_t *subject, size_t size,
                                const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        pass


cdef class Sublist:
    """The subscriptions of one account. `sink` hears when interest in a subject begins, changes or ends."""

    def __cinit__(self, bytes account not None, InterestSink sink not None):
        cdef int i
        self.account = account
        self.sink = sink
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.random_state = int.from_bytes(os.urandom(8), "little") | 1
        for i in range(LITERAL_TABLES):
            table_init(&self.literals[i], sizeof(Node))
        table_init(&self.queue_names, sizeof(QueueName))
        self.cache_mask = 63
        self.cache = <uint64_t *>calloc((<size_t>self.cache_mask + 1) * CACHE_WAYS, sizeof(uint64_t))
        self.first_token = <uint64_t *>calloc(FIRST_TOKEN_SLOTS, sizeof(uint64_t))
        # one slot more, never bumped, for subjects of a single token
        self.second_token = <uint64_t *>calloc(SECOND_TOKEN_SLOTS + 1, sizeof(uint64_t))
        self.root = <Pattern *>calloc(1, sizeof(Pattern))
        if self.cache == NULL or self.first_token == NULL or self.second_token == NULL or self.root == NULL:
            raise MemoryError
        self.root.node.key.kind = NODE_TOKEN
        table_init(&self.root.tokens, sizeof(Pattern))

    def __dealloc__(self):
        cdef size_t i
        cdef uint32_t j
        if self.cache != NULL:
            for i in range((<size_t>self.cache_mask + 1) * CACHE_WAYS):
                if self.cache[i]:
                    self.evict(&self.cache[i])
        for i in range(LITERAL_TABLES):
            if self.literals[i].slots != NULL:
                for j in range(self.literals[i].mask + 1):
                    if self.literals[i].slots[j]:
                        free_node_contents(<Node *>slot_item(self.literals[i].slots[j]))
                        free(slot_item(self.literals[i].slots[j]))
            table_free(&self.literals[i])
        if self.root != NULL:
            self.free_pattern(self.root)
        if self.queue_names.slots != NULL:
            for j in range(self.queue_names.mask + 1):
                free(slot_item(self.queue_names.slots[j]))
        table_free(&self.queue_names)
        free(self.cache)
        free(self.first_token)
        free(self.second_token)
        free(self.found)

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

    cdef uint64_t random(self) noexcept:
        """xorshift64*: even enough to choose queue members and cache victims."""
        self.random_state ^= self.random_state >> 12
        self.random_state ^= self.random_state << 25
        self.random_state ^= self.random_state >> 27
        return self.random_state * <uint64_t>0x2545F4914F6CDD1D

    # ---- nodes

    cdef Node *node_at(self, const uint8_t *subject, size_t size) noexcept:
        """The node of a subscription subject, or NULL."""
        cdef uint32_t hash
        cdef Pattern *at
        cdef const uint8_t *end = subject + size
        cdef const uint8_t *e
        if subject_kind(subject, size) != SUBJECT_WILDCARD:
            hash = <uint32_t>hash_bytes(subject, size, self.seed)
            return <Node *>table_find(&self.literals[hash >> 26], subject, size, hash)
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
            node = <Node *>table_find(&self.literals[hash >> 26], subject, size, hash)
            if node != NULL:
                return node
            node = <Node *>malloc(sizeof(Node) + size)
            if node == NULL:
                return NULL
            memset(node, 0, sizeof(Node))
            node.key.hash = hash
            node.key.size = <uint16_t>size
            node.key.kind = NODE_LITERAL
            memcpy(<uint8_t *>node + sizeof(Node), subject, size)
            if not table_insert(&self.literals[hash >> 26], &node.key):
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
        """Frees a node that nobody is interested in, and the trie above it as far as it is now empty."""
        cdef Pattern *at
        cdef Pattern *parent
        if not is_unused(node):
            return
        if node.key.kind == NODE_LITERAL:
            table_remove(&self.literals[node.key.hash >> 26], &node.key)
            free(node)
            return
        at = <Pattern *>node
        while at.parent != NULL and is_unused(&at.node) and at.star == NULL and at.rest == NULL \
                and at.tokens.count == 0:
            parent = at.parent
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

    cdef void stamp_slots(self, const uint8_t *subject, size_t size, uint32_t *first, uint32_t *second) noexcept:
        """Which counters the answer for a subject depends on, beside `any_first`."""
        cdef const uint8_t *end = subject + size
        cdef const uint8_t *e = <const uint8_t *>memchr(subject, c'.', size)
        cdef const uint8_t *f
        cdef uint64_t hash
        if e == NULL:
            e = end
        hash = hash_bytes(subject, e - subject, self.seed)
        first[0] = hash & (FIRST_TOKEN_SLOTS - 1)
        second[0] = SECOND_TOKEN_SLOTS
        if e < end:
            e += 1
            f = <const uint8_t *>memchr(e, c'.', end - e)
            if f == NULL:
                f = end
            second[0] = hash_bytes(e, f - e, hash) & (SECOND_TOKEN_SLOTS - 1)

    cdef void node_changed(self, Node *node) noexcept:
        """Makes every cached answer that `node` has a part in stale."""
        cdef uint64_t hash
        cdef uint64_t *ways
        cdef Entry *entry
        cdef Pattern *first
        cdef Pattern *second = NULL
        cdef int i
        if node.key.kind == NODE_LITERAL:
            hash = hash_bytes(node_key(node), node.key.size, self.seed)
            ways = self.cache + <size_t>(hash & self.cache_mask) * CACHE_WAYS
            for i in range(CACHE_WAYS):
                entry = <Entry *>(ways[i] & ((<uint64_t>1 << 48) - 1))
                if entry != NULL and entry.hash == hash:
                    entry.stamp = STALE
            return
        first = <Pattern *>node
        while first.parent != self.root:
            second = first
            first = first.parent
        if first.node.key.kind != NODE_TOKEN:
            self.any_first += 1
            return
        hash = hash_bytes(node_key(&first.node), first.node.key.size, self.seed)
        if second.node.key.kind != NODE_TOKEN:
            self.first_token[hash & (FIRST_TOKEN_SLOTS - 1)] += 1
            return
        hash = hash_bytes(node_key(&second.node), second.node.key.size, hash)
        self.second_token[hash & (SECOND_TOKEN_SLOTS - 1)] += 1

    # ---- queue groups

    cdef QueueGroup *group_for(self, Node *node, const uint8_t *queue, size_t size) noexcept:
        """The node's group of that name, made where it is missing. NULL: no memory."""
        cdef QueueGroup *group = node.groups
        cdef uint32_t hash = <uint32_t>hash_bytes(queue, size, self.seed)
        cdef QueueName *name = <QueueName *>table_find(&self.queue_names, queue, size, hash)
        while group != NULL:
            if group.name == name and name != NULL:
                return group
            group = group.next
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
        name.refs += 1
        group.name = name
        group.next = node.groups
        node.groups = group
        return group

    cdef void group_prune(self, Node *node, QueueGroup *group) noexcept:
        """Frees a group without members anywhere."""
        cdef QueueGroup **link = &node.groups
        if group.members != NULL or group.n_remote:
            return
        while link[0] != group:
            link = &link[0].next
        link[0] = group.next
        group.name.refs -= 1
        if group.name.refs == 0:
            table_remove(&self.queue_names, &group.name.key)
            free(group.name)
        free(group.remote)
        free(group)

    # ---- this shard's subscriptions

    cdef void tell(self, Node *node, QueueGroup *group, InterestSink sink) noexcept:
        """Tells the sink what is wanted at a node now: plainly, or by one group."""
        cdef uint8_t small[512]
        cdef uint8_t *subject = small
        cdef size_t size = self.subject_of(node, small, sizeof(small))
        if size > sizeof(small):
            subject = <uint8_t *>malloc(size)
            if subject == NULL:
                return
            self.subject_of(node, subject, size)
        if group == NULL:
            sink.on_interest(self, subject, size, node.subs != NULL)
        else:
            sink.on_queue_interest(self, subject, size, <uint8_t *>group.name + sizeof(QueueName),
                                   group.name.key.size, group.n_members)
        if subject != small:
            free(subject)

    cdef Sub *insert(self, OutBuf *out, const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                     const uint8_t *sid, size_t sid_size, uint32_t sid_hash) noexcept:
        cdef Sub *sub = <Sub *>malloc(sizeof(Sub) + sid_size)
        cdef Sub **first
        cdef Node *node
        if sub == NULL:
            return NULL
        memset(sub, 0, sizeof(Sub))
        sub.key.hash = sid_hash
        sub.key.size = <uint16_t>sid_size
        memcpy(<uint8_t *>sub + sizeof(Sub), sid, sid_size)
        sub.out = out
        node = sub.node = self.node_for(subject, size)
        if node == NULL:
            free(sub)
            return NULL
        if queue_size:
            sub.group = self.group_for(node, queue, queue_size)
            if sub.group == NULL:
                self.node_prune(node)
                free(sub)
                return NULL
            sub.group.n_members += 1
            first = &sub.group.members
        else:
            first = &node.subs
        sub.next = first[0]
        if first[0] != NULL:
            first[0].previous = sub
        first[0] = sub
        self.n_subs += 1
        self.n_inserts += 1
        self.node_changed(node)
        if sub.group != NULL or sub.next == NULL:
            self.tell(node, sub.group, self.sink)
        return sub

    cdef void remove(self, Sub *sub) noexcept:
        cdef Node *node = sub.node
        cdef QueueGroup *group = sub.group
        if sub.next != NULL:
            sub.next.previous = sub.previous
        if sub.previous != NULL:
            sub.previous.next = sub.next
        elif group != NULL:
            group.members = sub.next
        else:
            node.subs = sub.next
        if group != NULL:
            group.n_members -= 1
        free(sub)
        self.n_subs -= 1
        self.n_removes += 1
        self.node_changed(node)
        if group != NULL or node.subs == NULL:
            self.tell(node, group, self.sink)
        if group != NULL:
            self.group_prune(node, group)
        self.node_prune(node)

    cdef void replay(self, InterestSink sink) noexcept:
        cdef uint32_t i, j
        for i in range(LITERAL_TABLES):
            if self.literals[i].slots == NULL:
                continue
            for j in range(self.literals[i].mask + 1):
                if self.literals[i].slots[j]:
                    replay_node(self, <Node *>slot_item(self.literals[i].slots[j]), sink)
        self.replay_patterns(self.root, sink)

    cdef void replay_patterns(self, Pattern *at, InterestSink sink) noexcept:
        cdef uint32_t i
        if at != self.root:
            replay_node(self, &at.node, sink)
        if at.star != NULL:
            self.replay_patterns(at.star, sink)
        if at.rest != NULL:
            self.replay_patterns(at.rest, sink)
        if at.tokens.slots != NULL:
            for i in range(at.tokens.mask + 1):
                if at.tokens.slots[i]:
                    self.replay_patterns(<Pattern *>slot_item(at.tokens.slots[i]), sink)

    # ---- what siblings want

    cdef bint set_remote(self, uint32_t shard, const uint8_t *subject, size_t size, bint wanted) noexcept:
        cdef uint64_t bit = <uint64_t>1 << shard
        cdef Node *node = self.node_for(subject, size) if wanted else self.node_at(subject, size)
        if node == NULL:
            return not wanted
        if bool(node.remote & bit) == wanted:
            return True
        node.remote ^= bit
        self.node_changed(node)
        self.node_prune(node)
        return True

    cdef bint set_remote_queue(self, uint32_t shard, const uint8_t *subject, size_t size,
                               const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        cdef Node *node = self.node_for(subject, size) if members else self.node_at(subject, size)
        cdef QueueGroup *group
        cdef RemoteWeight *remote
        cdef uint32_t i
        if node == NULL:
            return not members
        group = self.group_for(node, queue, queue_size)
        if group == NULL:
            self.node_prune(node)
            return False
        for i in range(group.n_remote):
            if group.remote[i].shard == shard:
                if members:
                    group.remote[i].members = members
                else:
                    group.n_remote -= 1
                    group.remote[i] = group.remote[group.n_remote]
                break
        else:
            if members:
                remote = <RemoteWeight *>realloc(group.remote, (group.n_remote + 1) * sizeof(RemoteWeight))
                if remote == NULL:
                    self.group_prune(node, group)
                    self.node_prune(node)
                    return False
                group.remote = remote
                remote[group.n_remote].shard = shard
                remote[group.n_remote].members = members
                group.n_remote += 1
        self.node_changed(node)
        self.group_prune(node, group)
        self.node_prune(node)
        return True

    cdef bint drop_node(self, Node *node, uint32_t shard) noexcept:
        """Forgets a sibling at one node. Was there anything?"""
        cdef uint64_t bit = <uint64_t>1 << shard
        cdef QueueGroup *group = node.groups
        cdef QueueGroup *following
        cdef uint32_t i
        cdef bint changed = (node.remote & bit) != 0
        node.remote &= ~bit
        while group != NULL:
            following = group.next
            for i in range(group.n_remote):
                if group.remote[i].shard == shard:
                    group.n_remote -= 1
                    group.remote[i] = group.remote[group.n_remote]
                    changed = True
                    break
            self.group_prune(node, group)
            group = following
        if changed:
            self.node_changed(node)
        return changed

    cdef void drop_patterns(self, Pattern *at, uint32_t shard) noexcept:
        cdef uint32_t i = 0
        cdef Pattern *child
        cdef uint64_t slot
        if at.star != NULL:
            self.drop_patterns(at.star, shard)
        if at.rest != NULL:
            self.drop_patterns(at.rest, shard)
        # pruning shifts slots back, and frees an empty table: look at a slot again until it stays
        while at.tokens.slots != NULL and i <= at.tokens.mask:
            slot = at.tokens.slots[i]
            if slot:
                child = <Pattern *>slot_item(slot)
                self.drop_patterns(child, shard)
                if at.tokens.slots == NULL or at.tokens.slots[i] != slot:
                    continue
            i += 1
        if at != self.root:
            self.drop_node(&at.node, shard)
            if is_unused(&at.node) and at.star == NULL and at.rest == NULL and at.tokens.count == 0:
                # only itself: the parent is still being walked
                if at.node.key.kind == NODE_STAR:
                    at.parent.star = NULL
                elif at.node.key.kind == NODE_REST:
                    at.parent.rest = NULL
                else:
                    table_remove(&at.parent.tokens, &at.node.key)
                table_free(&at.tokens)
                free(at)

    cdef void drop_remote(self, uint32_t shard) noexcept:
        cdef uint32_t i, j
        cdef uint64_t slot
        cdef Node *node
        for i in range(LITERAL_TABLES):
            j = 0
            while self.literals[i].slots != NULL and j <= self.literals[i].mask:
                slot = self.literals[i].slots[j]
                if slot:
                    node = <Node *>slot_item(slot)
                    self.drop_node(node, shard)
                    self.node_prune(node)
                    if self.literals[i].slots == NULL or self.literals[i].slots[j] != slot:
                        continue
                j += 1
        self.drop_patterns(self.root, shard)

    # ---- matching

    cdef bint add_found(self, Node *node) noexcept:
        cdef Node **found
        cdef uint32_t room
        if is_unused(node):
            return True
        if self.n_found == self.room_found:
            room = self.room_found * 2 if self.room_found else 64
            found = <Node **>realloc(self.found, room * sizeof(Node *))
            if found == NULL:
                return False
            self.found = found
            self.room_found = room
        self.found[self.n_found] = node
        self.n_found += 1
        return True

    cdef bint walk(self, Pattern *at, const uint8_t *s, const uint8_t *end) noexcept:
        """Collects the patterns below `at` that match the tokens from s on. False: no memory."""
        cdef const uint8_t *e = <const uint8_t *>memchr(s, c'.', end - s)
        cdef Pattern *child
        self.n_steps += 1
        if e == NULL:
            e = end
        if at.rest != NULL and not self.add_found(&at.rest.node):
            return False
        if at.star != NULL:
            if not (self.add_found(&at.star.node) if e == end else self.walk(at.star, e + 1, end)):
                return False
        if at.tokens.count:
            child = <Pattern *>table_find(&at.tokens, s, e - s, <uint32_t>hash_bytes(s, e - s, self.seed))
            if child != NULL:
                return self.add_found(&child.node) if e == end else self.walk(child, e + 1, end)
        return True

    cdef Entry *build(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
        cdef Node *node
        cdef QueueGroup *group
        cdef Sub *sub
        cdef Entry *entry
        cdef Choice *choice
        cdef uint32_t i, j, n_plain = 0, n_local = 0, n_weights = 0, n_choices = 0, first, at
        cdef size_t text_size, allocated, targets_at, choices_at, weights_at, text_at
        cdef const uint8_t *account = self.account
        cdef size_t account_size = len(self.account)
        self.n_builds += 1
        self.n_found = 0
        if not has_empty_token(subject, size):
            if size <= 65535:
                node = <Node *>table_find(&self.literals[<uint32_t>hash >> 26], subject, size, <uint32_t>hash)
                if node != NULL and not self.add_found(node):
                    return NULL
            if not self.walk(self.root, subject, subject + size):
                return NULL
        # How much is there?
        self.match += 1
        text_size = size + 5 + account_size + 1 + size
        for i in range(self.n_found):
            node = self.found[i]
            sub = node.subs
            while sub != NULL:
                if is_admitted(sub, subject, size):
                    n_plain += 1
                    text_size += 6 + size + sub.key.size
                sub = sub.next
            group = node.groups
            while group != NULL:
                if group.name.match != self.match:
                    group.name.match = self.match
                    group.name.choice = n_choices
                    n_choices += 1
                group.n_admitted = 0
                n_weights += group.n_remote
                sub = group.members
                while sub != NULL:
                    if is_admitted(sub, subject, size):
                        group.n_admitted += 1
                        text_size += 6 + size + sub.key.size
                    sub = sub.next
                n_local += group.n_admitted
                group = group.next
        targets_at = sizeof(Entry)
        choices_at = targets_at + (<size_t>n_plain + n_local) * sizeof(Target)
        weights_at = choices_at + n_choices * sizeof(Choice)
        text_at = weights_at + n_weights * sizeof(RemoteWeight)
        allocated = text_at + text_size + SLACK
        if text_size > 0xFFFFFFFF:   # offsets into it are 32 bits wide
            return NULL
        entry = <Entry *>malloc(allocated)
        if entry == NULL:
            return NULL
        memset(entry, 0, sizeof(Entry))
        entry.hash = hash
        entry.subject_size = <uint32_t>size
        entry.n_plain = n_plain
        entry.n_choices = n_choices
        entry.allocated = allocated
        entry.targets = <Target *>(<uint8_t *>entry + targets_at)
        entry.choices = <Choice *>(<uint8_t *>entry + choices_at)
        entry.weights = <RemoteWeight *>(<uint8_t *>entry + weights_at)
        entry.text = <uint8_t *>entry + text_at
        memset(entry.choices, 0, n_choices * sizeof(Choice))
        self.stamp_slots(subject, size, &entry.first_slot, &entry.second_slot)
        entry.stamp = (self.any_first + self.first_token[entry.first_slot] + self.second_token[entry.second_slot])
        # Where does each group's part begin?
        for i in range(self.n_found):
            group = self.found[i].groups
            while group != NULL:
                choice = &entry.choices[group.name.choice]
                choice.name = group.name
                choice.n_local += group.n_admitted
                choice.n_remote += group.n_remote
                group = group.next
        first = n_plain
        at = 0
        for i in range(n_choices):
            entry.choices[i].first = first
            first += entry.choices[i].n_local
            entry.choices[i].n_local = 0
            entry.choices[i].first_remote = at
            at += entry.choices[i].n_remote
            entry.choices[i].n_remote = 0
        # Fill it in.
        memcpy(entry.text, subject, size)
        at = <uint32_t>size
        entry.rmsg_at = at
        memcpy(entry.text + at, b'RMSG ', 5)
        memcpy(entry.text + at + 5, account, account_size)
        entry.text[at + 5 + account_size] = c' '
        memcpy(entry.text + at + 6 + account_size, subject, size)
        entry.rmsg_size = <uint32_t>(6 + account_size + size)
        at += entry.rmsg_size
        first = 0
        for i in range(self.n_found):
            node = self.found[i]
            entry.remote |= node.remote
            sub = node.subs
            while sub != NULL:
                if is_admitted(sub, subject, size):
                    at = fill_target(entry, first, sub, at)
                    if sub.out.match == self.match:
                        entry.is_doubled = True
                    sub.out.match = self.match
                    first += 1
                sub = sub.next
            group = node.groups
            while group != NULL:
                choice = &entry.choices[group.name.choice]
                choice.n_members += group.n_admitted
                sub = group.members
                while sub != NULL:
                    if is_admitted(sub, subject, size):
                        at = fill_target(entry, choice.first + choice.n_local, sub, at)
                        choice.n_local += 1
                    sub = sub.next
                for j in range(group.n_remote):
                    entry.weights[choice.first_remote + choice.n_remote] = group.remote[j]
                    choice.n_remote += 1
                    choice.n_members += group.remote[j].members
                group = group.next
        if not self.store(entry):
            free(entry)
            return NULL
        return entry

    # ---- the cache

    cdef void evict(self, uint64_t *way) noexcept:
        cdef Entry *entry = <Entry *>(way[0] & ((<uint64_t>1 << 48) - 1))
        self.cache_bytes -= entry.allocated
        self.cache_count -= 1
        self.cache_epoch += 1
        way[0] = 0
        free(entry)

    cdef bint widen_cache(self) noexcept:
        """Twice the sets; entries move with their way's order kept. No memory: the cache stays as it is."""
        cdef uint32_t mask = self.cache_mask * 2 + 1
        cdef uint64_t *wide = <uint64_t *>calloc((<size_t>mask + 1) * CACHE_WAYS, sizeof(uint64_t))
        cdef uint64_t *set_
        cdef Entry *entry
        cdef size_t i
        cdef int j
        if wide == NULL:
            return False
        for i in range((<size_t>self.cache_mask + 1) * CACHE_WAYS):
            if self.cache[i]:
                entry = <Entry *>(self.cache[i] & ((<uint64_t>1 << 48) - 1))
                set_ = wide + <size_t>(entry.hash & mask) * CACHE_WAYS
                for j in range(CACHE_WAYS):   # a set's entries go to two sets: there is room
                    if set_[j] == 0:
                        set_[j] = self.cache[i]
                        break
        free(self.cache)
        self.cache = wide
        self.cache_mask = mask
        return True

    cdef bint store(self, Entry *entry) noexcept:
        """Puts a new entry in: instead of a stale one for its subject, in a free way, or instead of any other.

        A quarter full is wide enough: at half, one set in twenty has more subjects than ways, and those thrash.
        """
        cdef uint64_t *ways
        cdef uint64_t *way = NULL
        cdef Entry *other
        cdef size_t i, n
        if self.cache_count > self.cache_mask and self.cache_mask + 1 < MOST_CACHE_SETS:
            self.widen_cache()
        ways = self.cache + <size_t>(entry.hash & self.cache_mask) * CACHE_WAYS
        for i in range(CACHE_WAYS):
            other = <Entry *>(ways[i] & ((<uint64_t>1 << 48) - 1))
            if other == NULL:
                if way == NULL:
                    way = &ways[i]
            elif other.hash == entry.hash:   # the same subject, stale
                way = &ways[i]
                break
        if way == NULL:
            for i in range(CACHE_WAYS):
                if not self.is_current(<Entry *>(ways[i] & ((<uint64_t>1 << 48) - 1))):
                    way = &ways[i]
                    break
            else:
                way = &ways[self.random() % CACHE_WAYS]
        if way[0]:
            self.evict(way)
        way[0] = <uint64_t>entry | ((entry.hash >> 48) << 48)
        self.cache_count += 1
        self.cache_bytes += entry.allocated
        n = (<size_t>self.cache_mask + 1) * CACHE_WAYS
        i = self.random() % n
        while self.cache_bytes > MOST_CACHE_BYTES and self.cache_count > 1:
            if self.cache[i] and &self.cache[i] != way:
                self.evict(&self.cache[i])
            i = i + 1 if i + 1 < n else 0
        return True


cdef uint32_t fill_target(Entry *entry, uint32_t i, Sub *sub, uint32_t at) noexcept:
    """Writes target i and its prefix at text[at:]; returns where the next text goes."""
    cdef uint8_t *to = entry.text + at
    cdef Target *target = &entry.targets[i]
    target.sub = sub
    target.out = sub.out
    target.prefix_at = at
    target.prefix_size = 6 + entry.subject_size + sub.key.size
    memcpy(to, b'HMSG ', 5)
    memcpy(to + 5, entry.text, entry.subject_size)
    to[5 + entry.subject_size] = c' '
    memcpy(to + 6 + entry.subject_size, <uint8_t *>sub + sizeof(Sub), sub.key.size)
    return at + target.prefix_size


cdef void replay_node(Sublist sublist, Node *node, InterestSink sink) noexcept:
    cdef QueueGroup *group = node.groups
    if node.subs != NULL:
        sublist.tell(node, NULL, sink)
    while group != NULL:
        if group.n_members:
            sublist.tell(node, group, sink)
        group = group.next


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


cdef class SublistProbe:
    """A sublist as tests see it: subscriptions by number, answers as Python values."""

    cdef Sublist sublist
    cdef Outbox *box
    cdef OutBuf out
    cdef dict subs

    def __cinit__(self):
        self.box = outbox_new()
        out_init(&self.out, self.box, 0)
        self.sublist = Sublist(b"$G", InterestSink())
        self.subs = {}

    def __dealloc__(self):
        out_release(&self.out)
        outbox_release(self.box)
        outbox_release(self.box)   # the buffer's

    def subscribe(self, int number, bytes subject not None, bytes queue not None = b""):
        """Adds subscription `number` (its sid); ValueError for a bad subject."""
        cdef bytes sid = str(number).encode()
        cdef Sub *sub
        if subject_kind(subject, len(subject)) == SUBJECT_BAD:
            raise ValueError(f"not a subscription subject: {subject!r}")
        sub = self.sublist.insert(&self.out, subject, len(subject), queue, len(queue), sid, len(sid), 0)
        if sub == NULL:
            raise MemoryError
        self.subs[number] = <size_t>sub

    def unsubscribe(self, int number):
        self.sublist.remove(<Sub *><size_t>self.subs.pop(number))

    def set_remote(self, int shard, bytes subject not None, bint wanted):
        if not self.sublist.set_remote(shard, subject, len(subject), wanted):   # (asserts are compiled out)
            raise MemoryError

    def set_remote_queue(self, int shard, bytes subject not None, bytes queue not None, int members):
        if not self.sublist.set_remote_queue(shard, subject, len(subject), queue, len(queue), members):
            raise MemoryError

    def drop_remote(self, int shard):
        self.sublist.drop_remote(shard)

    def match(self, bytes subject not None) -> dict:
        """{"plain": sorted numbers, "queues": {name: (sorted numbers, {shard: members})}, "remote": set of shards}"""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *s = padded
        cdef Entry *entry = self.sublist.find(s, len(subject), hash_bytes(s, len(subject), self.sublist.seed))
        cdef Choice *choice
        cdef uint32_t i, j
        if entry == NULL:
            raise MemoryError
        sids = []
        for i in range(entry.n_plain):
            sid = (<uint8_t *>entry.targets[i].sub + sizeof(Sub))[:entry.targets[i].sub.key.size]
            sids.append(int(sid))
            expected = b"HMSG %s %s" % (subject, sid)
            if (entry.text + entry.targets[i].prefix_at)[:entry.targets[i].prefix_size] != expected:
                raise AssertionError(expected)
        queues = {}
        for i in range(entry.n_choices):
            choice = &entry.choices[i]
            name = (<uint8_t *>choice.name + sizeof(QueueName))[:choice.name.key.size]
            members = []
            for j in range(choice.first, choice.first + choice.n_local):
                members.append(int((<uint8_t *>entry.targets[j].sub + sizeof(Sub))[:entry.targets[j].sub.key.size]))
            remote = {}
            for j in range(choice.first_remote, choice.first_remote + choice.n_remote):
                remote[entry.weights[j].shard] = remote.get(entry.weights[j].shard, 0) + entry.weights[j].members
            if choice.n_members != len(members) + sum(remote.values()):
                raise AssertionError(name)
            queues[name] = (sorted(members), remote)
        shards = {i for i in range(MOST_SHARDS) if (entry.remote >> i) & 1}
        return {"plain": sorted(sids), "queues": queues, "remote": shards}

    def slots_probed(self, bytes subject not None) -> int:
        """How many slots of its literal table lie between the subject's first one and the first empty one."""
        cdef uint32_t hash = <uint32_t>hash_bytes(subject, len(subject), self.sublist.seed)
        cdef Table *table = &self.sublist.literals[hash >> 26]
        cdef int n = 0
        while table.slots != NULL and table.slots[(hash + n) & table.mask]:
            n += 1
        return n

    @property
    def counts(self) -> dict:
        return {"subscriptions": self.sublist.n_subs, "builds": self.sublist.n_builds,
                "cached": self.sublist.cache_count, "cache_bytes": self.sublist.cache_bytes,
                "most_cached": MOST_CACHE_SETS * CACHE_WAYS, "most_cache_bytes": MOST_CACHE_BYTES,
                "steps": self.sublist.n_steps, "queue_names": self.sublist.queue_names.count,
                "literals": sum([self.sublist.literals[i].count for i in range(LITERAL_TABLES)]),
                "patterns": self.sublist.root.tokens.count + (self.sublist.root.star != NULL)
                + (self.sublist.root.rest != NULL)}
