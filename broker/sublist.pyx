# cython: language_level=3, boundscheck=False, wraparound=False
"""Who gets what is published to a subject: interest, and the entries (cached matches) made from it.

A match is an Entry: the plain subscriptions, the queue groups (by queue name, whatever their patterns) and
the siblings. It delivers nothing and knows no socket. Cost: a cached entry is one probe, a new one a probe plus
a walk over the *wildcard* patterns that share the subject's tokens; both flat in the number of subscriptions.
The cache is validated, not emptied: see `is_current`.
"""

from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memset

from gnatswarm.broker.entry cimport STALE, Earlier, Extras, choice_named, draft_entry, extras_of
from gnatswarm.broker.interest cimport (
    MOST_SHARDS, NODE_LITERAL, NODE_TOKEN, SUB_SHADOW, Shadow, is_unused, node_key, subject_at)
from gnatswarm.broker.subject cimport has_empty_token
from gnatswarm.broker.table cimport MOST_KEY_BYTES, prefetch, spread_table, table_expect, table_find
from gnatswarm.broker.tally cimport Counts
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, unlikely

import os

cdef enum:
    NODE_SLOW = 2   # Node.key.flags, beside NODE_WIDE: see note_slow()
    MOST_EXPECTED_BYTES = 128   # of a subject that is looked at before its line is read
    FEW_STREAMS = 16            # a look at each import takes no longer than an index of them
    STEPS_COMPARED = 20         # for an import that the index looks at, whether it overlaps or not

# In place of counters of changes until there is one: most of the accounts, maybe ten thousands, have no such patterns.
cdef uint64_t[SECOND_TOKEN_SLOTS + 1] UNCHANGED

match_steps = 0
step_cost = 1
caches_bytes = 0


cdef void count_steps(uint64_t n) noexcept nogil:
    global match_steps
    match_steps += n


cdef index_of(list patterns):
    from gnatswarm.broker.pattern_index import PatternIndex

    return PatternIndex(patterns)


cdef void slow_down(Sublist sublist, Entry *entry, Node *node) noexcept:
    """The new entry meets a pattern of which SLOW was said: what that has brought holds for its subject, too."""
    cdef uint8_t[MOST_KEY_BYTES + SLACK] pattern
    cdef size_t size = subject_at(node, pattern, MOST_KEY_BYTES)
    cdef const Entry *slow = known_entry(sublist, pattern, size, hash_bytes(pattern, size, sublist.seed))
    if slow == NULL:
        node.key.flags &= ~NODE_SLOW
        return
    entry.slow_until_us = max(entry.slow_until_us, slow.slow_until_us)
    if slow.slow_told_us > entry.slow_told_us:
        entry.slow_told_us = slow.slow_told_us
        entry.slow_told_to = slow.slow_told_to


cdef const Entry *known_entry(Sublist sublist, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
    """As Sublist.peek(), also where it is stale."""
    cdef const uint64_t *ways = sublist.cache + <size_t>(hash & sublist.cache_mask) * CACHE_WAYS
    cdef const Entry *entry
    cdef int i
    for i in range(CACHE_WAYS):
        entry = <Entry *>(ways[i] & ((<uint64_t>1 << 48) - 1))
        if entry != NULL and entry.hash == hash and entry.subject_size == size \
                and memcmp(entry.text, subject, size) == 0:
            return entry
    return NULL


cdef class Sublist(Interest):
    """The subscriptions of one account, and the entries of the subjects published in it."""

    def __cinit__(self, *args):
        self.random_state = int.from_bytes(os.urandom(8), "little") | 1
        self.cache_mask = FEWEST_CACHE_SETS - 1
        self.cache = <uint64_t *>calloc((<size_t>self.cache_mask + 1) * CACHE_WAYS, sizeof(uint64_t))
        self.first_token = self.second_token = UNCHANGED
        if self.cache == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef size_t i
        global caches_bytes
        if self.cache != NULL:
            for i in range((<size_t>self.cache_mask + 1) * CACHE_WAYS):
                if self.cache[i]:
                    self.evict(&self.cache[i])
            caches_bytes -= (<size_t>self.cache_mask + 1 - FEWEST_CACHE_SETS) * CACHE_WAYS * sizeof(uint64_t)
        free(self.cache)
        if self.first_token != UNCHANGED:
            free(self.first_token)
        if self.second_token != UNCHANGED:
            free(self.second_token)
        free(self.found)

    cdef uint64_t random(self) noexcept:
        """xorshift64*: even enough to choose queue members and cache victims."""
        self.random_state ^= self.random_state >> 12
        self.random_state ^= self.random_state << 25
        self.random_state ^= self.random_state >> 27
        return self.random_state * <uint64_t>0x2545F4914F6CDD1D

    cdef void stamp_slots(self, const uint8_t *subject, size_t size, uint16_t *first, uint16_t *second) noexcept:
        """Which counters the entry of a subject depends on, beside `any_first`."""
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
        """Make every cached entry stale that was made from `node`."""
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
            self.note_change(&self.first_token, FIRST_TOKEN_SLOTS, hash & (FIRST_TOKEN_SLOTS - 1))
            return
        hash = hash_bytes(node_key(&second.node), second.node.key.size, hash)
        # (one slot more, never bumped, for subjects of a single token)
        self.note_change(&self.second_token, SECOND_TOKEN_SLOTS + 1, hash & (SECOND_TOKEN_SLOTS - 1))

    cdef void note_change(self, uint64_t **counters, size_t n, size_t slot) noexcept:
        """Count a change in one of `n` counters, which are made at the first one."""
        cdef uint64_t *made
        if counters[0] == UNCHANGED:
            made = <uint64_t *>calloc(n, sizeof(uint64_t))
            if made == NULL:
                self.any_first += 1   # every entry is stale, these too
                return
            counters[0] = made
        counters[0][slot] += 1

    cdef void expect_next(self, const uint8_t *line, size_t before, size_t size, const uint8_t *end) noexcept:
        """Has the processor fetch where the next line's subject will be looked for, if that line begins as this one.

        Of a million subjects those places are in no cache: waiting for them was half of what such a line cost. Where
        there are few, there is nothing to wait for.
        """
        cdef const uint8_t *subject = line + size + before
        cdef const uint8_t *e = subject
        cdef uint64_t hash
        if likely(self.literals.split == 0) or subject >= end or memcmp(line, line + size, before):
            return
        if end - subject > MOST_EXPECTED_BYTES:
            end = subject + MOST_EXPECTED_BYTES
        while e < end and e[0] > c' ':
            e += 1
        hash = hash_bytes(subject, e - subject, self.seed)
        table_expect(spread_table(&self.literals, <uint32_t>hash), <uint32_t>hash)
        prefetch(self.cache + <size_t>(hash & self.cache_mask) * CACHE_WAYS)

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

    cdef bint gather(self, Draft *draft) noexcept:
        cdef Node *node
        if draft.size <= 65535:
            node = <Node *>table_find(spread_table(&self.literals, <uint32_t>draft.hash), draft.subject, draft.size,
                                      <uint32_t>draft.hash)
            if node != NULL and not self.add_found(node):
                return False
        return self.walk(self.root, draft.subject, draft.subject + draft.size)

    cdef Entry *build(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
        cdef Draft draft
        cdef Entry *entry
        cdef Entry *rules = NULL
        cdef uint64_t steps = self.n_steps
        cdef uint32_t i
        cdef int maker = -1
        global match_steps
        self.n_builds += 1
        self.n_found = 0
        memset(&draft, 0, sizeof(draft))
        draft.subject = subject
        draft.size = size
        draft.hash = hash
        draft.account = self.account
        draft.account_size = len(self.account)
        draft.gone = self.sink.gone
        if not has_empty_token(subject, size):
            if not self.gather(&draft):
                return NULL
            if unlikely(self.rule_patterns is not None):
                rules = self.rules_for(subject, size)
                draft.n_rules = 0 if rules == NULL else rules.n_plain
            if unlikely(subject[0] == c'_') and self.reply_prefix is not None:
                maker = self.maker_of(subject, size, &draft.is_reply)
        draft.found = self.found
        draft.n_found = self.n_found
        entry = draft_entry(&draft)
        match_steps += (self.n_steps - steps + draft.n_looked_at) * step_cost
        if entry == NULL:
            return NULL
        if maker >= 0:
            entry.remote |= <uint64_t>1 << maker
        if rules != NULL:
            self.fill_rules(entry, rules)
        self.stamp_slots(subject, size, &entry.first_slot, &entry.second_slot)
        entry.stamp = (self.any_first + self.first_token[entry.first_slot] + self.second_token[entry.second_slot])
        if not self.store(entry):
            free(entry)
            return NULL
        for i in range(self.n_found):
            if unlikely(self.found[i].key.flags & NODE_SLOW):
                slow_down(self, entry, self.found[i])
        return entry

    def note_slow(self, bytes pattern not None, bint is_elsewhere):
        """Entries that are made from here on, of subjects that match this pattern, have its own entry's slow_until_us
        and slow_told_us, while that is in the cache. If its subscriber `is_elsewhere`, those that are there are made
        anew: who publishes to them waits, too."""
        cdef bytes padded = pattern + bytes(SLACK)
        cdef Node *node = self.node_at(padded, len(pattern))
        if node != NULL:   # (else that interest has ended meanwhile)
            node.key.flags |= NODE_SLOW
            if is_elsewhere:
                self.node_changed(node)

    cdef Sublist former_members(self):
        if self.former is None:
            self.former = Sublist(self.account, InterestSink())
        return self.former

    cdef Entry *former_group(self, Token subject, Token queue, Choice **choice) noexcept:
        cdef Entry *entry
        if self.former is None:
            return NULL
        entry = self.former.find(subject.at, subject.size, hash_bytes(subject.at, subject.size, self.former.seed))
        choice[0] = NULL if entry == NULL else choice_named(entry, queue)
        return NULL if choice[0] == NULL else entry

    cdef Sub *insert_shadow(self, Sub *parent, void *renaming, const uint8_t *subject, size_t size,
                            const uint8_t *queue, size_t queue_size, uint64_t *told) noexcept:
        cdef Shadow *shadow = <Shadow *>calloc(1, sizeof(Shadow))
        if shadow == NULL:
            return NULL
        shadow.sub.key.kind = SUB_SHADOW
        shadow.sub.out = parent.out
        shadow.parent = parent
        shadow.renaming = renaming
        return self.attach(&shadow.sub, subject, size, queue, queue_size, told)

    # ---- rules

    cdef Entry *rules_for(self, const uint8_t *subject, size_t size) noexcept:
        cdef Entry *met = self.rule_patterns.find(subject, size, hash_bytes(subject, size, self.rule_patterns.seed))
        return met if met != NULL and met.n_plain else NULL

    cdef void fill_rules(self, Entry *entry, const Entry *met) noexcept:
        """Which rules count: the first mapping of the configuration, and every service import."""
        cdef Extras *extras = extras_of(entry)
        cdef uint32_t i, number
        for i in range(met.n_plain):
            number = <uint32_t>met.targets[i].sub.max_msgs
            if number >= self.n_mappings:
                extras.imports[extras.n_imports] = number
                extras.n_imports += 1
            elif extras.mapping < 0 or number < <uint32_t>extras.mapping:
                extras.mapping = number
        if extras.n_imports:
            entry.crosses = True

    cdef int maker_of(self, const uint8_t *subject, size_t size, bint *is_own) noexcept:
        """`_R_.<shard, two hex digits><boot>.<token>`"""
        cdef const uint8_t *own = self.reply_prefix
        cdef size_t prefix_size = len(self.reply_prefix)
        cdef int maker
        if size <= prefix_size or memcmp(subject, own, 4) != 0 or subject[prefix_size - 1] != c'.':
            return -1
        if memcmp(subject, own, prefix_size) == 0:
            is_own[0] = True
            return -1
        if unlikely(self.owners is not None and len(self.owners) != 0):   # shards have left
            owner = self.owners.get(subject[:prefix_size])
            if owner is not None:
                is_own[0] = owner < 0
                return max(-1, <int>owner)
        maker = hex_digit(subject[4]) * 16 + hex_digit(subject[5])
        if not 0 <= maker < MOST_SHARDS or memcmp(subject + 4, own + 4, 2) == 0:   # the latter: of who was here before
            return -1
        return maker

    @property
    def streams(self):
        """The StreamImport objects of this account, or None."""
        return self.stream_imports

    @streams.setter
    def streams(self, list imports):
        self.stream_imports = imports
        self.streams_here = self.streams_there = None

    cdef list streams_meeting(self, bytes subject):
        if len(self.stream_imports) <= FEW_STREAMS:
            return self.stream_imports
        if self.streams_here is None:
            self.streams_here = index_of([(one.local_subject, one) for one in self.stream_imports])
        compared = self.streams_here.compared
        found = self.streams_here.meeting(subject)
        count_steps((self.streams_here.compared - compared) * STEPS_COMPARED)
        return found

    cdef list streams_from(self, bytes subject):
        if len(self.stream_imports) <= FEW_STREAMS:
            return self.stream_imports
        if self.streams_there is None:
            self.streams_there = index_of([(one.subject, one) for one in self.stream_imports])
        return self.streams_there.around(subject)

    def set_rules(self, list mappings not None, list imports not None):
        """Mapping and ServiceImport objects that hold from here on, and no others."""
        cdef Sublist patterns = None
        cdef bytes subject
        cdef Sub *sub
        cdef uint32_t number = 0
        cdef uint64_t told = 0
        self.n_mappings = <uint32_t>len(mappings)
        self.rules = mappings + imports or None
        if self.rules is not None:
            patterns = Sublist(self.account, InterestSink())
            for rule in self.rules:
                subject = rule.subject
                # (no sid, and no sibling hears of it)
                sub = patterns.insert(&self.rule_out, subject, len(subject), NULL, 0, subject, 0, 0, &told)
                if sub == NULL:
                    raise MemoryError
                sub.max_msgs = number
                number += 1
        self.rule_patterns = patterns
        self.forget_entries()

    def set_reply_prefix(self, bytes prefix not None):
        """Reply subjects with this prefix lead to this shard's ServiceImports."""
        self.reply_prefix = prefix

    cdef void prefix_changed(self, const uint8_t *prefix, size_t size) noexcept:
        cdef uint16_t first, second
        self.stamp_slots(prefix, size, &first, &second)
        if self.second_token == UNCHANGED:
            self.any_first += 1   # all accounts are told, and for one change they get no counters
        else:
            self.second_token[second] += 1

    # ---- the cache

    cdef void evict(self, uint64_t *way) noexcept:
        cdef Entry *entry = <Entry *>(way[0] & ((<uint64_t>1 << 48) - 1))
        global caches_bytes
        if self.tally is not None and is_counted(entry):
            self.tell_tally(entry)
        free(entry.earlier)
        self.cache_bytes -= entry.allocated
        caches_bytes -= entry.allocated
        self.cache_count -= 1
        self.cache_epoch += 1
        way[0] = 0
        free(entry)

    cdef bint widen_cache(self) noexcept:
        """Twice the sets, so there is room for all. No memory: the cache stays as it is."""
        return self.resize_cache((self.cache_mask + 1) * 2)

    cdef void narrow_cache(self) noexcept:
        """As many sets as widening would have made of these entries, if that is a quarter or less of what there is."""
        cdef uint32_t sets = FEWEST_CACHE_SETS
        while sets < self.cache_count:
            sets *= 2
        if sets <= (self.cache_mask + 1) // 4:
            self.resize_cache(sets)

    cdef bint resize_cache(self, uint32_t sets) noexcept:
        """Entries move with their ways' order kept; what a full set has no way for is evicted."""
        cdef uint64_t *resized = <uint64_t *>calloc(<size_t>sets * CACHE_WAYS, sizeof(uint64_t))
        cdef uint64_t *set_
        cdef Entry *entry
        cdef size_t i
        cdef int j
        global caches_bytes
        if resized == NULL:
            return False
        for i in range((<size_t>self.cache_mask + 1) * CACHE_WAYS):
            if self.cache[i]:
                entry = <Entry *>(self.cache[i] & ((<uint64_t>1 << 48) - 1))
                set_ = resized + <size_t>(entry.hash & (sets - 1)) * CACHE_WAYS
                for j in range(CACHE_WAYS):
                    if set_[j] == 0:
                        set_[j] = self.cache[i]
                        break
                else:
                    self.evict(&self.cache[i])
        free(self.cache)
        caches_bytes += (<size_t>sets - self.cache_mask - 1) * CACHE_WAYS * sizeof(uint64_t)   # (or less, modulo 2**64)
        self.cache = resized
        self.cache_mask = sets - 1
        return True

    cdef size_t trim(self, size_t start, size_t slots) noexcept:
        cdef size_t all_slots = (<size_t>self.cache_mask + 1) * CACHE_WAYS
        cdef size_t end = min(start + slots, all_slots), at
        for at in range(start, end):
            if self.cache[at]:
                self.evict(&self.cache[at])
        if end < all_slots:
            return end
        self.narrow_cache()
        return 0

    cdef bint store(self, Entry *entry) noexcept:
        """Puts a new entry in: instead of a stale one for its subject, in a free way, or instead of any other.

        A quarter full is wide enough: at half, one set in twenty has more subjects than ways, and those thrash.
        """
        cdef uint64_t *ways
        cdef uint64_t *way = NULL
        cdef Entry *other
        cdef size_t i, n
        global caches_bytes
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
                entry.slow_until_us = other.slow_until_us   # a change of interest makes nobody quicker
                entry.slow_told_us = other.slow_told_us
                entry.slow_told_to = other.slow_told_to
                if is_counted(other):
                    self.book(other)
                entry.earlier = other.earlier   # (it is the same subject, and SLOW alone may have made it stale)
                other.earlier = NULL
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
        caches_bytes += entry.allocated
        n = (<size_t>self.cache_mask + 1) * CACHE_WAYS
        i = self.random() % n
        while self.cache_bytes > MOST_CACHE_BYTES and self.cache_count > 1:
            if self.cache[i] and &self.cache[i] != way:
                self.evict(&self.cache[i])
            i = i + 1 if i + 1 < n else 0
        return True

    # ---- statistics

    cdef void tell_tally(self, Entry *entry) noexcept:
        cdef Counts counts
        counts.msgs = entry.counts.msgs
        counts.payload_bytes = entry.counts.payload_bytes
        counts.deliveries = entry.counts.deliveries
        counts.out_bytes = entry.counts.out_bytes
        counts.unwanted = entry.counts.unwanted
        counts.link_out = entry.counts.link_out
        counts.link_in = entry.counts.link_in
        counts.widest = entry.counts.widest
        counts.misses = entry.is_new
        self.tally.add(entry.text, entry.subject_size, <uint32_t>entry.hash, &counts)

    cdef void book(self, Entry *entry) noexcept:
        if self.tally is not None:
            self.tell_tally(entry)
        if entry.earlier == NULL:
            entry.earlier = <Earlier *>calloc(1, sizeof(Earlier))
        if entry.earlier != NULL:   # (else monitoring shows less)
            entry.earlier.msgs += entry.counts.msgs
            entry.earlier.payload_bytes += entry.counts.payload_bytes
            entry.earlier.deliveries += entry.counts.deliveries
        entry.is_new = False
        memset(&entry.counts, 0, sizeof(entry.counts))

    def count_into(self, Tally tally) -> Tally | None:
        """What is counted from here on goes to this tally; None: nothing is kept. Returns the one before."""
        before = self.tally
        self.tally = tally
        self.most_gone = 0 if tally is None else tally.most
        return before

    def harvest(self, size_t start, size_t slots) -> int:
        """Adds the counts of so many slots of the match cache to the tally; where to go on, 0 after the last."""
        cdef size_t all_slots = (<size_t>self.cache_mask + 1) * CACHE_WAYS
        cdef size_t end = min(start + slots, all_slots)
        cdef size_t at
        cdef Entry *entry
        if self.tally is None:
            return 0
        for at in range(start, end):
            if self.cache[at]:
                entry = <Entry *>(self.cache[at] & ((<uint64_t>1 << 48) - 1))
                if is_counted(entry):
                    self.book(entry)
        return end if end < all_slots else 0

    def take_widths(self) -> tuple:
        """(of clients' messages, of siblings' messages): how many reached 0, 1, … 16, 17-32, 33-64, … subscribers
        here since the last time, without zeros at the end."""
        taken = counts_of(self.widths), counts_of(self.link_widths)
        memset(self.widths, 0, sizeof(self.widths))
        memset(self.link_widths, 0, sizeof(self.link_widths))
        return taken


cdef int hex_digit(uint8_t digit) noexcept nogil:
    if c'0' <= digit <= c'9':
        return digit - c'0'
    return digit - c'a' + 10 if c'a' <= digit <= c'f' else 1000


cdef bint is_counted(const Entry *entry) noexcept nogil:
    """Is there anything that was not harvested? (A message from another account has no place in `msgs`.)"""
    return entry.counts.msgs != 0 or entry.counts.link_in != 0 or entry.counts.deliveries != 0 \
        or entry.counts.link_out != 0


cdef tuple counts_of(const uint64_t *widths):
    cdef int n = N_WIDTHS
    while n and widths[n - 1] == 0:
        n -= 1
    return tuple([widths[i] for i in range(n)])
