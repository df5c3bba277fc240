# Who wants a subject: the subscriptions of one account on this shard, and what sibling shards asked for.
#
#   literals: 64 hash tables of LITERAL nodes by whole subject       patterns: a trie of TOKEN/STAR/REST nodes
#   cache:    subject → Entry, the ready answer; valid while its stamp equals the counters it was made from
#
# Ownership: the Sublist owns nodes, groups, queue names and entries; a Sub is owned by it too, but its client holds the
# pointer until it calls remove(). A Sub points at its client's OutBuf: the client removes its subs before it goes.

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from broker.outbuf cimport OutBuf
from broker.table cimport Keyed, Table
from broker.word cimport likely, same_bytes

cdef enum NodeKind:
    NODE_LITERAL = 0   # a whole subject without wildcards
    NODE_TOKEN = 1     # trie: a literal token
    NODE_STAR = 2      # trie: '*'
    NODE_REST = 3      # trie: '>'

cdef enum:
    LITERAL_TABLES = 64
    MOST_SHARDS = 64        # one bit each in a mask
    FIRST_TOKEN_SLOTS = 1024
    SECOND_TOKEN_SLOTS = 4096
    CACHE_WAYS = 4
    # The cache is bounded twice: this many sets of CACHE_WAYS entries, and this many bytes of entries.
    MOST_CACHE_SETS = 131072
    MOST_CACHE_BYTES = 67108864

cdef extern from *:
    """
    /* The stamp of an entry that must not be used; no sum of counters reaches it. */
    #define GN_STALE UINT64_MAX
    """
    const uint64_t STALE "GN_STALE"

ctypedef struct Sub:
    Keyed key            # by sid, in its client's table; the sid stands behind the struct
    OutBuf *out          # where its messages go
    Node *node
    QueueGroup *group    # NULL: a plain subscription
    Sub *previous        # among the plain subs of the node, or the members of the group
    Sub *next
    uint64_t delivered   # since SUB
    uint64_t max_msgs    # UNSUB sid max; 0: none

ctypedef struct Node:
    Keyed key            # by subject (LITERAL) or token; it stands behind the struct that the node is part of
    Sub *subs
    QueueGroup *groups
    uint64_t remote      # siblings with plain interest, a bit each

ctypedef struct Pattern:
    Node node            # first: a Pattern is a Node
    Pattern *parent      # NULL: the root
    Pattern *star
    Pattern *rest
    Table tokens

ctypedef struct QueueName:
    Keyed key
    uint32_t refs
    uint32_t choice      # scratch of the match being built: its place there …
    uint64_t match       # … and which match that was

ctypedef struct QueueGroup:
    QueueGroup *next
    QueueName *name
    Sub *members
    uint32_t n_members
    uint32_t n_admitted  # scratch of the match being built: of those
    uint32_t n_remote
    RemoteWeight *remote

ctypedef struct RemoteWeight:
    uint32_t shard
    uint32_t members

# One subscription in a match result. text[prefix_at:][:prefix_size] is "HMSG <subject> <sid>"; "MSG …" is one further.
ctypedef struct Target:
    Sub *sub
    OutBuf *out
    uint32_t prefix_at
    uint32_t prefix_size

# One queue group in a match result: targets[first:][:n_local] here, and weights[first_remote:][:n_remote] elsewhere.
ctypedef struct Choice:
    QueueName *name
    uint32_t first
    uint32_t n_local
    uint32_t first_remote
    uint32_t n_remote
    uint64_t n_members       # here and elsewhere

# The answer for one subject, in one allocation. VALID WHILE is_current(), and until the next call that may build another.
ctypedef struct Entry:
    uint64_t hash
    uint64_t stamp
    uint32_t first_slot
    uint32_t second_slot
    uint32_t subject_size
    uint32_t n_plain
    uint32_t n_choices
    uint32_t subject_at
    uint32_t rmsg_at         # text[rmsg_at:][:rmsg_size] is "RMSG <account> <subject>"
    uint32_t rmsg_size
    bint is_doubled          # some client has more than one plain subscription among the targets
    uint64_t remote          # siblings with plain interest
    uint64_t permitted       # id of the Permissions that were asked last whether this may be published to, and said yes
    Target *targets          # the plain ones first
    Choice *choices
    RemoteWeight *weights
    uint8_t *text
    size_t allocated
    uint64_t slow_until_us   # a sibling said that a subscriber there is behind: publishers are to wait
    uint64_t slow_told_us    # when the sibling that feeds us was last told the same
    uint64_t msgs            # what was published to it here since it was made …
    uint64_t payload_bytes
    uint64_t deliveries      # … and delivered from here


# Told when this shard's interest in a subject begins or ends, or a queue group's size changes.
cdef class InterestSink:
    cdef void on_interest(self, Sublist sublist, const uint8_t *subject, size_t size, bint wanted) noexcept
    cdef void on_queue_interest(self, Sublist sublist, const uint8_t *subject, size_t size,
                                const uint8_t *queue, size_t queue_size, uint32_t members) noexcept


@cython.final
cdef class Sublist:
    cdef readonly bytes account
    cdef InterestSink sink
    cdef Table literals[LITERAL_TABLES]
    cdef Pattern *root
    cdef Table queue_names
    cdef uint64_t seed
    cdef uint64_t random_state
    cdef uint64_t match              # number of the match being built: see QueueName
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
    # counters for monitoring
    cdef readonly uint64_t n_subs
    cdef readonly uint64_t n_inserts
    cdef readonly uint64_t n_removes
    cdef readonly uint64_t n_builds  # cache misses
    cdef readonly uint64_t n_steps   # trie nodes that those looked below

    # Adds a subscription (the subject is valid); NULL: no memory.
    cdef Sub *insert(self, OutBuf *out, const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                     const uint8_t *sid, size_t sid_size, uint32_t sid_hash) noexcept
    # Takes it out and frees it.
    cdef void remove(self, Sub *sub) noexcept
    # What sibling `shard` wants. False: no memory.
    cdef bint set_remote(self, uint32_t shard, const uint8_t *subject, size_t size, bint wanted) noexcept
    cdef bint set_remote_queue(self, uint32_t shard, const uint8_t *subject, size_t size,
                               const uint8_t *queue, size_t queue_size, uint32_t members) noexcept
    # A sibling is gone: nothing it wanted counts any more.
    cdef void drop_remote(self, uint32_t shard) noexcept
    # Tells `sink` all of this shard's own interest (for a new sibling).
    cdef void replay(self, InterestSink sink) noexcept
    # The slow way of find(): makes the entry. NULL: no memory.
    cdef Entry *build(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept
    # A sub's subject, at most MOST_SUBJECT_BYTES, into `to`; its size.
    cdef size_t subject_of(self, const Node *node, uint8_t *to, size_t room) noexcept
    cdef Node *node_for(self, const uint8_t *subject, size_t size) noexcept
    cdef Node *node_at(self, const uint8_t *subject, size_t size) noexcept
    cdef void node_changed(self, Node *node) noexcept
    cdef void node_prune(self, Node *node) noexcept
    cdef QueueGroup *group_for(self, Node *node, const uint8_t *queue, size_t size) noexcept
    cdef void group_prune(self, Node *node, QueueGroup *group) noexcept
    cdef void tell(self, Node *node, QueueGroup *group, InterestSink sink) noexcept
    cdef bint add_found(self, Node *node) noexcept
    cdef bint walk(self, Pattern *at, const uint8_t *s, const uint8_t *end) noexcept
    cdef bint store(self, Entry *entry) noexcept
    cdef bint widen_cache(self) noexcept
    cdef void evict(self, uint64_t *way) noexcept
    cdef void stamp_slots(self, const uint8_t *subject, size_t size, uint32_t *first, uint32_t *second) noexcept
    cdef void replay_patterns(self, Pattern *at, InterestSink sink) noexcept
    cdef void drop_patterns(self, Pattern *at, uint32_t shard) noexcept
    cdef bint drop_node(self, Node *node, uint32_t shard) noexcept
    cdef void free_pattern(self, Pattern *at) noexcept
    cdef uint64_t random(self) noexcept

    cdef inline bint is_current(self, const Entry *entry) noexcept nogil:
        return entry.stamp == (self.any_first + self.first_token[entry.first_slot]
                               + self.second_token[entry.second_slot])

    # The answer for a published subject if there is one already, or NULL.
    cdef inline Entry *peek(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
        cdef uint64_t *ways = self.cache + <size_t>(hash & self.cache_mask) * CACHE_WAYS
        cdef Entry *entry
        cdef int i
        for i in range(CACHE_WAYS):
            if ways[i] >> 48 == hash >> 48:
                entry = <Entry *>(ways[i] & ((<uint64_t>1 << 48) - 1))
                if entry != NULL and entry.hash == hash and entry.subject_size == size \
                        and same_bytes(entry.text + entry.subject_at, subject, size) and likely(self.is_current(entry)):
                    return entry
        return NULL

    # The answer for a published subject. NULL: no memory.
    cdef inline Entry *find(self, const uint8_t *subject, size_t size, uint64_t hash) noexcept:
        cdef Entry *entry = self.peek(subject, size, hash)
        return entry if likely(entry != NULL) else self.build(subject, size, hash)

    # Every answer is made anew: somebody's permissions have changed.
    cdef inline void forget_answers(self) noexcept:
        self.any_first += 1
