# The cached match of one subject: who gets what is published to it.
#
# It is made in one allocation from the nodes that the subject meets. What it points at is the Interest's; it belongs to
# the match cache that it is put into (broker.sublist).

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from gnatswarm.broker.interest cimport Node, QueueName, RemoteWeight, Sub
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.word cimport unlikely

cdef extern from *:
    """
    /* The stamp of an entry that must not be used; no sum of counters reaches it. */
    #define GN_STALE UINT64_MAX
    /* Of a target's prefix: many have this one, and the sid is put in when a message is sent. */
    #define GN_SHARED_PREFIX 0x80000000u
    """
    const uint64_t STALE "GN_STALE"
    const uint32_t SHARED_PREFIX "GN_SHARED_PREFIX"

# One subscription in a match result. text[prefix_at:][:prefix_size] is "HMSG <subject> <sid>"; "MSG …" is one on.
ctypedef struct Target:
    Sub *sub
    OutBuf *out
    uint32_t prefix_at
    uint32_t prefix_size     # with SHARED_PREFIX: of what stands in front of the sid: see prefix_size_of()

# One queue group in a match result: targets[first:][:n_local] here, and weights[first_remote:][:n_remote] elsewhere.
ctypedef struct Choice:
    QueueName *name
    uint32_t first
    uint32_t n_local
    uint32_t first_remote
    uint32_t n_remote
    uint32_t n_first         # of those elsewhere: they stand first; the others are second choice
    uint32_t n_own           # of those here, how many take what is published here; others move to another shard
    uint64_t n_members       # of those and elsewhere; those that are second choice where there are no others
    bint keeps_out           # a member here may not have this subject, and siblings do not know that

# What was counted on a subject since it was harvested. Narrow, because there may be a hundred thousand of them and
# every message touches one: Sublist.book() empties it before a count can overflow.
ctypedef struct Recent:
    uint32_t unwanted
    uint32_t link_out
    uint32_t link_in
    uint32_t widest
    uint32_t msgs
    uint32_t deliveries
    uint64_t payload_bytes
    uint64_t out_bytes

# For monitoring: the same since the subject's first entry was made, without what is in Recent.
ctypedef struct Earlier:
    uint64_t msgs
    uint64_t payload_bytes
    uint64_t deliveries

# What few entries have: what the account's rules make of a message, and who hears it from another account.
ctypedef struct Extras:
    int32_t mapping          # the number of the Mapping in Sublist.rules; -1: none
    uint32_t n_imports       # service imports in Sublist.rules, by number
    uint32_t *imports
    uint8_t *foreign         # of each target: is it a Shadow's? NULL: none is
    bint is_reply            # the subject is one that ServiceImports made up here

# VALID WHILE is_current(), until the next call that may build another.
ctypedef struct Entry:
    uint64_t hash
    uint64_t stamp
    uint16_t first_slot
    uint16_t second_slot
    uint32_t subject_size
    uint32_t n_plain
    uint32_t n_choices
    uint32_t extras_at       # Extras stand so far from the entry's beginning; 0: there are none
    uint32_t rmsg_at         # text[rmsg_at:][:rmsg_size] is "RMSG <account> <subject>"
    uint32_t rmsg_size
    uint8_t is_doubled       # some client has more than one plain subscription among the targets
    uint8_t is_new           # made since it was harvested
    uint8_t crosses          # what is published to it goes to other accounts as well: see Extras
    uint64_t remote          # siblings with plain interest
    uint64_t permitted       # id of the Permissions that were asked last whether this may be published to, and said yes
    Target *targets          # the plain ones first
    Choice *choices
    RemoteWeight *weights
    uint8_t *text            # begins with the subject
    size_t allocated
    uint64_t slow_until_us   # a sibling said that a subscriber there is behind: publishers are to wait
    uint64_t slow_told_us    # when siblings that feed us were last told the same …
    uint64_t slow_told_to    # … and which, a bit each
    Earlier *earlier         # what was harvested of it before, or of one in whose place it came; NULL: nothing
    Recent counts            # … and since then. Last: the targets begin in the same cache line


cdef inline Extras *extras_of(Entry *entry) noexcept nogil:
    return <Extras *>(<uint8_t *>entry + entry.extras_at) if entry.extras_at else NULL


# Whether target i is a subscription of another account, which imports this account's stream.
cdef inline bint is_foreign(Entry *entry, size_t i) noexcept nogil:
    cdef const Extras *extras = extras_of(entry)
    return extras != NULL and extras.foreign != NULL and extras.foreign[i]


# Puts a subscription's sid behind the `size` bytes that a prefix begins with; returns the prefix's size.
cdef inline size_t put_sid(uint8_t *prefix, size_t size, const Sub *sub) noexcept nogil:
    memcpy(prefix + size, <const uint8_t *>sub + sizeof(Sub), sub.key.size)
    return size + sub.key.size


# Puts a target's sid into its shared prefix, and returns that one's size. (Not inline: what sends messages has to be.)
cdef size_t name_sid(Entry *entry, const Target *target) noexcept nogil


# The size of a target's "HMSG <subject> <sid>", which is at text[prefix_at:] UNTIL THE NEXT CALL for this entry.
cdef inline size_t prefix_size_of(Entry *entry, const Target *target) noexcept nogil:
    if unlikely(target.prefix_size & SHARED_PREFIX):
        return name_sid(entry, target)
    return target.prefix_size


cdef enum:
    FEW_CHOICES = 16       # are looked through; more are in the order of their names


# How the name of a queue group compares with another: shorter ones come first. 0: it is the same.
cdef inline int compare_name(const QueueName *name, const uint8_t *at, size_t size) noexcept nogil:
    if name.key.size != size:
        return -1 if name.key.size < size else 1
    return memcmp(<const uint8_t *>name + sizeof(QueueName), at, size)


# The entry's queue group of that name, or NULL.
cdef inline Choice *choice_named(Entry *entry, Token name) noexcept nogil:
    cdef uint32_t first = 0, end = entry.n_choices, middle
    cdef int order
    while end - first > FEW_CHOICES:
        middle = (first + end) // 2
        order = compare_name(entry.choices[middle].name, name.at, name.size)
        if order == 0:
            return &entry.choices[middle]
        if order < 0:
            first = middle + 1
        else:
            end = middle
    while first < end:
        if compare_name(entry.choices[first].name, name.at, name.size) == 0:
            return &entry.choices[first]
        first += 1
    return NULL


# What an entry is to be made of. The caller fills in the first part.
ctypedef struct Draft:
    uint64_t gone            # siblings whose interest does not count, a bit each
    const uint8_t *subject
    size_t size
    const uint8_t *account
    size_t account_size
    uint64_t hash
    Node **found             # the nodes that the subject meets
    uint32_t n_found
    uint32_t n_rules         # rules that it meets: room for so many in Extras.imports
    bint is_reply            # a reply subject that ServiceImports made up here
    # … and draft_entry() the rest: how much there is
    uint64_t match           # this draft's number: see QueueName
    uint32_t n_looked_at     # subscriptions, also those that may not have it
    uint32_t n_plain
    uint32_t n_local
    uint32_t n_choices
    uint32_t n_weights
    size_t text_size
    bint has_shadows


# A copy in which every subscription sees the message on another subject. It shares the groups and weights of `entry`,
# has no counts, and is freed by the caller with free(). NULL: no memory.
cdef Entry *renamed_entry(const Entry *entry, const uint8_t *subject, size_t size) noexcept

# Makes the entry; its stamp, and which rules count, are the caller's to fill in. NULL: no memory.
cdef Entry *draft_entry(Draft *draft) noexcept
