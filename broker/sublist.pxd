# Who gets what is published to a subject: interest, and the entries (cached matches) made from it.
#
#   cache:    subject → Entry; valid while its stamp equals the counters it was made from
#
# Ownership: the Sublist owns its entries; what they point at is the Interest's.

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from gnatswarm.broker.entry cimport Choice, Draft, Entry
from gnatswarm.broker.interest cimport Interest, InterestSink, Node, Pattern, Sub
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.tally cimport Tally
from gnatswarm.broker.word cimport likely, same_bytes

cdef enum:
    FIRST_TOKEN_SLOTS = 1024
    SECOND_TOKEN_SLOTS = 4096
    CACHE_WAYS = 4
    # The cache is bounded twice: this many sets of CACHE_WAYS entries, and this many bytes of entries.
    FEWEST_CACHE_SETS = 64
    MOST_CACHE_SETS = 131072
    MOST_CACHE_BYTES = 100663296
    # What all caches of a process may have, for long: more than one and its rules' alone. See Mesh.trim_caches().
    MOST_CACHES_BYTES = 268435456
    TRIMMED_CACHES_BYTES = 251658240

cdef enum:
    # Messages by how many subscribers here they reached: 0 to 16, then 17-32, 33-64 and so on.
    N_WIDTHS = 45


cdef inline int width_bucket(uint32_t width) noexcept nogil:
    cdef int bucket = 17
    if likely(width <= 16):
        return <int>width
    width = (width - 1) >> 5
    while width:
        bucket += 1
        width >>= 1
    return bucket


# What making entries has cost all sublists: trie nodes looked below, and subscriptions at those that matched, some 20
# to 40 ns each. Who has others match gives way after MOST_MATCHING. Tests make a step dearer.
cdef uint64_t match_steps
cdef uint64_t step_cost
# Subscribers that were looked through for one of them.
cdef void count_steps(uint64_t n) noexcept nogil

cdef enum:
    MOST_MATCHING = 50000

# Of all sublists: bytes of entries, and of sets beyond the fewest.
cdef size_t caches_bytes


# Of a generated reply subject: "_R_.", the shard in two hex digits, eight characters of its boot, a dot. (Four hex
# digits follow, which name a table of requests, and random ones.)
cdef enum:
    PREFIX_BYTES = 15

# Of a prefix of replies, instead of a sibling's number.
cdef enum:
    OWNER_HERE = -1       # this shard passes them on
    OWNER_AWAITED = -2    # it will: until then it keeps them back


@cython.final
cdef class Sublist(Interest):
    cdef uint64_t random_state
    # the match cache
    cdef uint64_t *cache             # sets of CACHE_WAYS packed (hash's top 16 bits, Entry *)
    cdef uint32_t cache_mask         # sets - 1
    cdef readonly uint32_t cache_count
    cdef readonly size_t cache_bytes
    cdef uint64_t cache_epoch        # changes whenever an Entry is freed: who keeps a pointer compares it
    cdef uint64_t any_first          # changes of patterns that begin with a wildcard,
    cdef uint64_t *first_token       # … of those with one literal token first, by its slot,
    cdef uint64_t *second_token      # … and of those with two or more, by both tokens' slot
    # scratch for building an entry
    cdef Node **found
    cdef uint32_t n_found
    cdef uint32_t room_found
    # what the configuration says about other accounts, and about subjects of this one: see rules.pxd
    cdef public bint traces_parents  # a header `traceparent` may ask for a trace
    cdef list stream_imports         # StreamImports, or None: see the property `streams`
    cdef object streams_here         # a PatternIndex of many of them by the subjects here, and
    cdef object streams_there        # … one by those of their exporters; None: not needed yet
    cdef readonly list rules         # Mappings and ServiceImports, or None
    cdef Sublist rule_patterns       # whose "subscriptions" are the rules' subjects; max_msgs is the rule's number
    cdef uint32_t n_mappings         # the first of the rules
    cdef OutBuf rule_out             # … and their OutBuf, which nothing is ever written to
    cdef bytes reply_prefix          # of reply subjects that this shard's ServiceImports makes up; None: none
    cdef dict owners                 # prefix of replies → the sibling that passes them on now, or OWNER_…: the mesh's
    cdef Sublist former              # members of queue groups that have left: see lingering.pxd; None: none yet
    # statistics
    cdef readonly Tally tally        # None: nobody harvests
    cdef uint64_t[N_WIDTHS] widths   # of clients' messages since they were taken
    cdef uint64_t[N_WIDTHS] link_widths   # of siblings' messages
    # counters for monitoring
    cdef readonly uint64_t n_builds  # cache misses
    cdef readonly uint64_t n_steps   # trie nodes that those looked below

    # The line at `line`, of `size` bytes, tells interest in a subject that is `before` bytes in. Others often follow.
    cdef void expect_next(self, const uint8_t *line, size_t before, size_t size, const uint8_t *end) noexcept
    # The slow way of find(): makes the entry. NULL: no memory.
    cdef Entry *build(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept
    cdef void note_change(self, uint64_t **counters, size_t n, size_t slot) noexcept
    # Collects the nodes that a subject meets. False: no memory.
    cdef bint gather(self, Draft *draft) noexcept
    cdef bint add_found(self, Node *node) noexcept
    cdef bint walk(self, Pattern *at, const uint8_t *s, const uint8_t *end) noexcept
    cdef bint store(self, Entry *entry) noexcept
    cdef bint widen_cache(self) noexcept
    cdef void narrow_cache(self) noexcept
    cdef bint resize_cache(self, uint32_t sets) noexcept
    # Evicts what is in so many slots of the cache; where to go on, 0 after the last. NOT WHILE AN ENTRY IS IN USE.
    cdef size_t trim(self, size_t start, size_t slots) noexcept
    cdef void evict(self, uint64_t *way) noexcept
    cdef void tell_tally(self, Entry *entry) noexcept
    # The sublist of members of queue groups that have left. MemoryError.
    cdef Sublist former_members(self)
    # The entry there that has members of this group, and its choice of them in `choice`; NULL: there are none.
    cdef Entry *former_group(self, Token subject, Token queue, Choice **choice) noexcept
    # Adds a Shadow of `parent`; NULL: no memory.
    cdef Sub *insert_shadow(self, Sub *parent, void *renaming, const uint8_t *subject, size_t size,
                            const uint8_t *queue, size_t queue_size, uint64_t *told) noexcept
    # The rules that a subject meets, in rule_patterns; NULL: none. VALID UNTIL THE NEXT BUILD THERE.
    cdef Entry *rules_for(self, const uint8_t *subject, size_t size) noexcept
    cdef void fill_rules(self, Entry *entry, const Entry *met) noexcept
    # Those of the stream imports whose subjects here share some with this one; all, where there are few.
    cdef list streams_meeting(self, bytes subject)
    # The same for a literal subject of an exporter.
    cdef list streams_from(self, bytes subject)
    # The sibling or this shard (`is_own`) that made up a reply subject; -1: none did.
    cdef int maker_of(self, const uint8_t *subject, size_t size, bint *is_own) noexcept
    # Reply subjects with this prefix lead elsewhere.
    cdef void prefix_changed(self, const uint8_t *prefix, size_t size) noexcept
    # Moves its counts to the tally, and to what monitoring shows.
    cdef void book(self, Entry *entry) noexcept
    cdef void stamp_slots(self, const uint8_t *subject, size_t size, uint16_t *first, uint16_t *second) noexcept
    cdef uint64_t random(self) noexcept

    cdef inline bint is_current(self, const Entry *entry) noexcept nogil:
        return entry.stamp == (self.any_first + self.first_token[entry.first_slot]
                               + self.second_token[entry.second_slot])

    # The entry of a published subject if it is cached, or NULL.
    cdef inline Entry *peek(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
        cdef uint64_t *ways = self.cache + <size_t>(hash & self.cache_mask) * CACHE_WAYS
        cdef Entry *entry
        cdef int i
        for i in range(CACHE_WAYS):
            if ways[i] >> 48 == hash >> 48:
                entry = <Entry *>(ways[i] & ((<uint64_t>1 << 48) - 1))
                if entry != NULL and entry.hash == hash and entry.subject_size == size \
                        and same_bytes(entry.text, subject, size) and likely(self.is_current(entry)):
                    return entry
        return NULL

    # The entry of a published subject. NULL: no memory.
    cdef inline Entry *find(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
        cdef Entry *entry = self.peek(subject, size, hash)
        return entry if likely(entry != NULL) else self.build(subject, size, hash)

    # Every entry is made anew: somebody's permissions have changed.
    cdef inline void forget_entries(self) noexcept:
        self.any_first += 1
