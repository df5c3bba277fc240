# cython: language_level=3, boundscheck=False, wraparound=False
"""A user's permissions to publish and subscribe.

A subscription is granted if an allowed entry covers its whole pattern and no denied entry matches it. Denied subjects
that a granted wildcard matches are excluded at delivery (keeps_out, called by the sublist once per match result). Pure:
no client, no clock. Cost: one trie step per token of the subject, whatever the number of entries.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from gnatswarm.broker.subject cimport SUBJECT_BAD, has_empty_token, subject_kind
from gnatswarm.broker.table cimport slot_item, table_find, table_free, table_init, table_insert
from gnatswarm.broker.word cimport SLACK, hash_bytes

import os

cdef uint64_t last_id = 0


cdef Rule *new_rule(const uint8_t *token, size_t size, uint32_t hash) except NULL:
    cdef Rule *rule = <Rule *>malloc(sizeof(Rule) + size)
    if rule == NULL:
        raise MemoryError
    memset(rule, 0, sizeof(Rule))
    rule.key.hash = hash
    rule.key.size = <unsigned short>size
    table_init(&rule.tokens, sizeof(Rule))
    memcpy(<uint8_t *>rule + sizeof(Rule), token, size)
    return rule


cdef void free_rule(Rule *rule) noexcept:
    cdef RuleQueue *queue
    cdef uint32_t i
    if rule == NULL:
        return
    free_rule(rule.star)
    free_rule(rule.rest)
    if rule.tokens.slots != NULL:
        for i in range(rule.tokens.mask + 1):
            if rule.tokens.slots[i]:
                free_rule(<Rule *>slot_item(rule.tokens.slots[i]))
    table_free(&rule.tokens)
    while rule.queues != NULL:
        queue = rule.queues
        rule.queues = queue.next
        free(queue)
    free(rule)


cdef bint covers_name(const uint8_t *pattern, size_t pattern_size, const uint8_t *name, size_t size) noexcept nogil:
    """Does a rule's queue name, which may have wildcards, match this queue's name?"""
    cdef const uint8_t *pattern_end = pattern + pattern_size
    cdef const uint8_t *end = name + size
    cdef const uint8_t *p
    cdef const uint8_t *n
    if pattern_size == size and memcmp(pattern, name, size) == 0:   # the name itself may contain wildcard characters
        return True
    while True:
        if pattern_end - pattern == 1 and pattern[0] == c'>':
            return True
        p = <const uint8_t *>memchr(pattern, c'.', pattern_end - pattern)
        n = <const uint8_t *>memchr(name, c'.', end - name)
        if p == NULL:
            p = pattern_end
        if n == NULL:
            n = end
        if p - pattern == 1 and pattern[0] == c'*':
            if n - name == 1 and name[0] == c'>':
                return False
        elif p - pattern != n - name or memcmp(pattern, name, p - pattern) != 0:
            return False
        if p == pattern_end or n == end:
            return p == pattern_end and n == end
        pattern = p + 1
        name = n + 1


cdef void note(const Rule *rule, Found *found) noexcept nogil:
    cdef const RuleQueue *queue = rule.queues
    if rule.is_plain:
        found.is_plain = True
    while queue != NULL:
        found.has_queues = True
        if found.queue != NULL and not found.has_queue:
            found.has_queue = covers_name(<const uint8_t *>queue + sizeof(RuleQueue), queue.size,
                                          found.queue, found.queue_size)
        queue = queue.next


cdef void walk(const Rule *at, uint64_t seed, const uint8_t *s, const uint8_t *end, Found *found,
               bint wholly) noexcept nogil:
    cdef const uint8_t *e = <const uint8_t *>memchr(s, c'.', end - s)
    cdef const Rule *child
    cdef bint is_star, is_rest
    if e == NULL:
        e = end
    is_star = wholly and e - s == 1 and s[0] == c'*'
    is_rest = wholly and e - s == 1 and s[0] == c'>'
    if at.rest != NULL:
        note(at.rest, found)
    if is_rest:
        return   # only a '>' covers a '>'
    if at.star != NULL:
        if e == end:
            note(at.star, found)
        else:
            walk(at.star, seed, e + 1, end, found, wholly)
    if is_star or at.tokens.count == 0:
        return
    child = <const Rule *>table_find(&at.tokens, s, e - s, <uint32_t>hash_bytes(s, e - s, seed))
    if child != NULL:
        if e == end:
            note(child, found)
        else:
            walk(child, seed, e + 1, end, found, wholly)


cdef bint any_plain(const Rule *at) noexcept nogil:
    cdef uint32_t i
    if at == NULL:
        return False
    if at.is_plain or any_plain(at.star) or any_plain(at.rest):
        return True
    if at.tokens.slots != NULL:
        for i in range(at.tokens.mask + 1):
            if at.tokens.slots[i] and any_plain(<const Rule *>slot_item(at.tokens.slots[i])):
                return True
    return False


cdef bint overlaps(const Rule *at, uint64_t seed, const uint8_t *s, const uint8_t *end) noexcept nogil:
    """Does an entry below `at` match a subject that the pattern from `s` on matches?"""
    cdef const uint8_t *e = <const uint8_t *>memchr(s, c'.', end - s)
    cdef const Rule *child
    cdef uint32_t i
    if e == NULL:
        e = end
    if at.rest != NULL and at.rest.is_plain:
        return True
    if e - s == 1 and s[0] == c'>':
        return any_plain(at)
    if at.star != NULL and (at.star.is_plain if e == end else overlaps(at.star, seed, e + 1, end)):
        return True
    if at.tokens.count == 0:
        return False
    if e - s == 1 and s[0] == c'*':
        for i in range(at.tokens.mask + 1):
            if at.tokens.slots[i]:
                child = <const Rule *>slot_item(at.tokens.slots[i])
                if child.is_plain if e == end else overlaps(child, seed, e + 1, end):
                    return True
        return False
    child = <const Rule *>table_find(&at.tokens, s, e - s, <uint32_t>hash_bytes(s, e - s, seed))
    return child != NULL and (child.is_plain if e == end else overlaps(child, seed, e + 1, end))


cdef class Rules:
    """A list of subjects with wildcards, some for one queue only."""

    def __cinit__(self, entries):
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.root = new_rule(b"", 0, 0)
        for text in entries:
            subject, _, queue = text.partition(" ")
            self.insert(subject.encode("utf-8", "surrogateescape"), queue.strip().encode("utf-8", "surrogateescape"))

    def __dealloc__(self):
        free_rule(self.root)

    def insert(self, bytes subject not None, bytes queue not None):
        """Adds an entry. ValueError for an invalid subject."""
        cdef bytes padded = subject + bytes(SLACK)   # hashing reads past the end
        cdef const uint8_t *s = padded
        cdef const uint8_t *end = s + len(subject)
        cdef const uint8_t *e
        cdef const uint8_t *name = queue
        cdef Rule *at = self.root
        cdef Rule *child
        cdef RuleQueue *named
        cdef uint32_t hash
        if subject_kind(s, len(subject)) == SUBJECT_BAD or len(subject) > 65000:
            raise ValueError(f"not a subject: {subject!r}")
        while True:
            e = <const uint8_t *>memchr(s, c'.', end - s)
            if e == NULL:
                e = end
            if e - s == 1 and s[0] == c'*':
                if at.star == NULL:
                    at.star = new_rule(s, 1, 0)
                child = at.star
            elif e - s == 1 and s[0] == c'>':
                if at.rest == NULL:
                    at.rest = new_rule(s, 1, 0)
                child = at.rest
            else:
                hash = <uint32_t>hash_bytes(s, e - s, self.seed)
                child = <Rule *>table_find(&at.tokens, s, e - s, hash)
                if child == NULL:
                    child = new_rule(s, e - s, hash)
                    if not table_insert(&at.tokens, &child.key):
                        free_rule(child)
                        raise MemoryError
            at = child
            if e == end:
                break
            s = e + 1
        if not queue:
            at.is_plain = True
        else:
            named = <RuleQueue *>malloc(sizeof(RuleQueue) + len(queue))
            if named == NULL:
                raise MemoryError
            named.size = len(queue)
            memcpy(<uint8_t *>named + sizeof(RuleQueue), name, named.size)
            named.next = at.queues
            at.queues = named
        self.count += 1

    cdef void look(self, const uint8_t *subject, size_t size, Found *found, bint wholly) noexcept nogil:
        walk(self.root, self.seed, subject, subject + size, found, wholly)

    cdef bint meets(self, const uint8_t *subject, size_t size) noexcept nogil:
        return overlaps(self.root, self.seed, subject, subject + size)


cdef bint passes_partly(Rules allow, Rules deny, const uint8_t *subject, size_t size) noexcept nogil:
    """Is any subject that this pattern matches allowed, and not denied? None: no rules. (Of a pattern that several
    deny rules cover together it says yes.)"""
    cdef Found found
    if subject_kind(subject, size) == SUBJECT_BAD:
        return False
    if allow is not None and not allow.meets(subject, size):
        return False
    if deny is None:
        return True
    memset(&found, 0, sizeof(found))
    deny.look(subject, size, &found, True)
    return not found.is_plain


cdef class Permissions:
    """The permissions of a user, from broker.options.Permissions. ValueError for an invalid subject in them."""

    def __cinit__(self, options not None):
        global last_id
        last_id += 1
        self.id = last_id
        self.options = options
        self.publish_allow = Rules(options.publish_allow) if options.publish_allow is not None else None
        self.publish_deny = Rules(options.publish_deny) if options.publish_deny else None
        self.subscribe_allow = Rules(options.subscribe_allow) if options.subscribe_allow is not None else None
        self.subscribe_deny = Rules(options.subscribe_deny) if options.subscribe_deny else None
        self.responses = options.responses
        self.responses_expire_us = <uint64_t>(options.responses_expire_s * 1e6) if options.responses_expire_s > 0 else 0
        if self.responses and self.publish_allow is None:   # it may only answer requests, as in nats-server
            self.publish_allow = Rules(())

    cdef bint may_publish(self, const uint8_t *subject, size_t size) noexcept nogil:
        cdef Found found
        if has_empty_token(subject, size):   # has no receivers; no rule matches it
            return self.publish_allow is None
        if self.publish_allow is not None:
            memset(&found, 0, sizeof(found))
            self.publish_allow.look(subject, size, &found, False)
            if not found.is_plain:
                return False
        if self.publish_deny is not None:
            memset(&found, 0, sizeof(found))
            self.publish_deny.look(subject, size, &found, False)
            if found.is_plain:
                return False
        return True

    cdef bint may_subscribe(self, const uint8_t *subject, size_t size, const uint8_t *queue,
                            size_t queue_size) noexcept nogil:
        cdef Found found
        if self.subscribe_allow is not None:
            if has_empty_token(subject, size):   # covered by nothing
                return False
            memset(&found, 0, sizeof(found))
            found.queue = queue
            found.queue_size = queue_size
            self.subscribe_allow.look(subject, size, &found, True)
            # If entries name queues, the queue must be one of them; a plain entry without those allows all queues.
            if not (found.has_queue if queue != NULL and found.has_queues else found.is_plain):
                return False
        # A subject with an empty token is matched by no rule, and so not denied: Invalid Subject is the error then.
        return not self.keeps_out(subject, size, queue, queue_size) or has_empty_token(subject, size)

    cdef bint keeps_out(self, const uint8_t *subject, size_t size, const uint8_t *queue,
                        size_t queue_size) noexcept nogil:
        cdef Found found
        if self.subscribe_deny is None:
            return False
        memset(&found, 0, sizeof(found))
        found.queue = queue
        found.queue_size = queue_size
        self.subscribe_deny.look(subject, size, &found, False)
        return found.is_plain or found.has_queue

    cdef bint may_publish_partly(self, const uint8_t *subject, size_t size) noexcept nogil:
        return passes_partly(self.publish_allow, self.publish_deny, subject, size)

    cdef bint may_subscribe_partly(self, const uint8_t *subject, size_t size) noexcept nogil:
        return passes_partly(self.subscribe_allow, self.subscribe_deny, subject, size)

    # ---- for tests, and for reloads, which check each subscription once

    def can_publish(self, bytes subject not None) -> bool:
        """May a message be published to it?"""
        cdef bytes padded = subject + bytes(SLACK)
        return self.may_publish(padded, len(subject))

    def can_subscribe(self, bytes subject not None, bytes queue not None = b"") -> bool:
        """May it be subscribed to, in a queue group if one is named?"""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *name = queue
        return self.may_subscribe(padded, len(subject), name if queue else NULL, len(queue))

    def is_delivered(self, bytes subject not None, bytes queue not None = b"") -> bool:
        """Is a message on it delivered to a wildcard subscription that was granted?"""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *name = queue
        return not self.keeps_out(padded, len(subject), name if queue else NULL, len(queue))

    def can_subscribe_partly(self, bytes subject not None) -> bool:
        """Is there any subject that this pattern matches, and that may be subscribed to?"""
        cdef bytes padded = subject + bytes(SLACK)
        return self.may_subscribe_partly(padded, len(subject))
