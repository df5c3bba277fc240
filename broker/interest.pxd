# Who is interested in what: the subscriptions of one account on this shard, and what sibling shards asked for.
#
#   literals: hash tables of LITERAL nodes by whole subject       patterns: a trie of TOKEN/STAR/REST nodes
#
# Ownership: it owns nodes, groups and queue names; a Sub is owned by it too, but its client holds the pointer until it
# calls remove(). A Sub points at its client's OutBuf: the client removes its subs before it goes.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.table cimport Keyed, Spread, Table
from gnatswarm.broker.word cimport likely

cdef enum NodeKind:
    NODE_LITERAL = 0   # a whole subject without wildcards
    NODE_TOKEN = 1     # trie: a literal token
    NODE_STAR = 2      # trie: '*'
    NODE_REST = 3      # trie: '>'

cdef enum:
    MOST_SHARDS = 64   # one bit each in a mask
    GATEWAY_NUMBER = 63   # the shard that is connected to other servers (router.supervision.broker)

cdef extern from *:
    """
    /* The max_msgs of a subscription without a max, while its client moves. */
    #define GN_NO_MAX (UINT64_MAX >> 1)
    """
    const uint64_t NO_MAX "GN_NO_MAX"

ctypedef struct Sub:
    Keyed key            # by sid, in its client's table; the sid stands behind the struct, and 8 bytes behind that of
    #                      a queue member: how many of `delivered` were harvested. SUB_MARKED: 8 bytes more, how many
    #                      were taken for its client's row
    OutBuf *out          # where its messages go
    Node *node
    QueueGroup *group    # NULL: a plain subscription
    Sub *previous        # among the plain subs of the node, or the members of the group
    Sub *next
    uint64_t delivered   # since SUB
    uint64_t max_msgs    # UNSUB sid max; 0: none

cdef enum SubKind:     # Sub.key.kind
    SUB_OWN = 0
    SUB_SHADOW = 1     # a Shadow
    SUB_FORMER = 2     # of a member that has unsubscribed: see lingering.pxd

cdef enum:
    SUB_MARKED = 1         # Sub.key.flags
    FEW_GROUPS = 16        # of a node, which are looked through
    NODE_WIDE = 1          # Node.key.flags: it has, or had, more; they are in Interest.wide

# A subscription of another account's client, to what this account exports to it. Without a sid of its own.
ctypedef struct Shadow:
    Sub sub              # first: a Shadow is a Sub
    Sub *parent          # what the client asked for, in its own account: counts what is delivered
    void *renaming       # Transform from this account's subjects to the client's: borrowed; NULL: they are the same

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
    Keyed key            # in Interest.wide, by `node` and `name`, which follow; flags 1: it is there
    Node *node
    QueueName *name
    QueueGroup *next
    QueueGroup *previous
    QueueGroup *next_of_all   # every group of the account, in a ring with Interest.groups in it
    QueueGroup *previous_of_all
    Sub *members
    uint32_t n_members
    uint32_t n_admitted  # scratch of the match being built: of those
    uint32_t n_remote
    uint32_t number          # higher than those of all behind it in the ring: a cursor has met it, or not
    RemoteWeight *remote
    GroupShift *shifts   # of moves that are under way: see weight_of()

cdef extern from *:
    """
    #define GN_SECOND_CHOICE 0x80000000u
    """
    # Added to a group's members elsewhere that get a message only where no others are: those at leaf nodes and hubs.
    const uint32_t SECOND_CHOICE "GN_SECOND_CHOICE"

ctypedef struct RemoteWeight:
    uint32_t shard
    uint32_t members         # with SECOND_CHOICE: at leaf nodes or a hub. As it tells, so without shifts

cdef extern from *:
    """
    /* No shift has so high a number. */
    #define GN_NO_SHIFT UINT32_MAX
    """
    const uint32_t NO_SHIFT "GN_NO_SHIFT"

# What one move does to counts of queue members, as far as siblings' counts do not have it (broker.moves).
ctypedef struct ShiftState:
    uint32_t old
    uint32_t new
    uint32_t less_from       # shifts from this number on: as many fewer at the old shard than it tells; NO_SHIFT: none
    uint32_t more_from       # … and more at the new one

# Members of a group that move.
ctypedef struct GroupShift:
    GroupShift *next         # of the group, the newest first
    GroupShift *previous
    QueueGroup *group
    const ShiftState *state  # of its move
    uint32_t number
    uint32_t members
    uint32_t account         # the place of its account among those of its move


# Is told when this shard's interest in a subject begins or ends, or when the size of a queue group changes.
cdef class InterestSink:
    cdef readonly uint64_t n_subs    # subscriptions of all accounts that use this sink
    # Siblings that are gone, a bit each, of whose interest some is still there: it counts no more.
    cdef readonly uint64_t gone
    cdef bint hears_remote           # it is told of the interest of siblings too: see on_remote()

    # Both return the siblings that are told, a bit each.
    cdef uint64_t on_interest(self, Interest interest, const uint8_t *subject, size_t size, bint wanted) noexcept
    cdef uint64_t on_queue_interest(self, Interest interest, const uint8_t *subject, size_t size,
                                    const uint8_t *queue, size_t queue_size, uint32_t members) noexcept
    # The siblings with plain interest in a subject were these, and are those, a bit each.
    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept
    # A sibling had so many members in a group, which has its present ones; MOST_SHARDS: none has changed (a replay).
    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept


# Meets every node and every queue group of an account, some at a time, while interest comes and goes: each that is
# there from its beginning to its end, and maybe some that are not. Literals come by the part of their table, patterns
# in an order that does not depend on their tables' sizes, groups in their ring.
cdef class InterestCursor:
    cdef Interest interest
    cdef int64_t left        # so much may still be done in this go_on()
    cdef uint32_t part       # of the literals: the next one
    cdef Pattern *at         # whose children come next …
    cdef uint8_t stage       # … 0: its star, 1: its rest, 2: its tokens, behind that with …
    cdef uint64_t turned     # … this hash, its bits in reverse order; 2**32: behind all
    cdef Pattern *token      # … and among several with that hash, this one; NULL: before all of them
    cdef QueueGroup *group   # the last one that was met

    # Meets some more, about so many. True: it has met all.
    cdef bint go_on(self, int64_t most) noexcept
    # Whether this node, or this group of it (or NULL), is still to come: it is there, and the cursor has not ended.
    cdef bint is_ahead(self, const Node *node, const QueueGroup *group) noexcept
    cdef bint is_pattern_ahead(self, Pattern *pattern) noexcept
    # It may prune the node, or the group and its node.
    cdef void on_plain(self, Node *node) noexcept
    cdef void on_group(self, QueueGroup *group) noexcept
    cdef bint pass_literals(self) noexcept
    cdef bint pass_patterns(self) noexcept
    cdef bint pass_groups(self) noexcept
    cdef Pattern *next_child(self) noexcept
    # It goes on behind this one, and what is below it.
    cdef void step_behind(self, Pattern *pattern) noexcept


# Tells a sink this shard's own interest (for a new sibling), or, if it hears_remote, that of all siblings.
cdef class TellingCursor(InterestCursor):
    cdef InterestSink sink


# Drops the interest of a sibling that is gone.
cdef class DroppingCursor(InterestCursor):
    cdef uint32_t shard


cdef class Interest:
    cdef readonly bytes account
    cdef InterestSink sink
    cdef Spread literals
    cdef Pattern *root
    cdef Table queue_names
    cdef Table wide                  # groups of nodes with many
    cdef uint64_t seed
    cdef bint marks_subs             # subscriptions made from here on are SUB_MARKED
    cdef uint32_t last_number        # of a group
    cdef list cursors                # InterestCursors that are under way; None: none is
    # statistics of queue groups
    cdef QueueGroup groups           # head of the ring of all groups
    cdef QueueGroup *harvested       # the last group that harvest_queues() looked at
    cdef uint32_t most_gone          # members that have left and are remembered until the next harvest; 0: none is
    cdef list gone_members           # … as rows of harvest_queues()
    cdef size_t gone_bytes           # … what these take
    cdef uint64_t gone_deliveries    # … and the deliveries to those for which there was no room
    # counters for monitoring
    cdef readonly uint64_t n_subs
    cdef readonly uint64_t n_inserts
    cdef readonly uint64_t n_removes

    # Adds a subscription (the subject is valid); NULL: no memory. `told` gains the siblings that hear of it.
    cdef Sub *insert(self, OutBuf *out, const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                     const uint8_t *sid, size_t sid_size, uint32_t sid_hash, uint64_t *told) noexcept
    # Removes and frees it.
    cdef void remove(self, Sub *sub, uint64_t *told) noexcept
    # Sets the interest of sibling `shard`. False: no memory.
    cdef bint set_remote(self, uint32_t shard, const uint8_t *subject, size_t size, bint wanted) noexcept
    cdef bint set_remote_queue(self, uint32_t shard, const uint8_t *subject, size_t size,
                               const uint8_t *queue, size_t queue_size, uint32_t members) noexcept
    # A sibling is gone: drops its interest.
    cdef void drop_remote(self, uint32_t shard) noexcept
    # Tells `sink` all of this shard's own interest (for a new sibling), or, if it hears_remote, all of the siblings'.
    cdef void replay(self, InterestSink sink) noexcept
    # Shifts the group of this subject and name as the move's state says, until unstage(); False: no memory. `shift` has
    # its state, number and members; `awaits_new`: a count of the new shard's may be shifted.
    cdef bint stage(self, GroupShift *shift, const uint8_t *subject, size_t size, const uint8_t *queue,
                    size_t queue_size, bint awaits_new) noexcept
    cdef void unstage(self, GroupShift *shift) noexcept
    # The sibling's own count has it from now on: so many members more or (negative) fewer. Nothing is told of it.
    cdef void count_shift(self, const GroupShift *shift, uint32_t shard, int64_t more) noexcept
    # How many members of a queue group a sibling has, as far as is known here.
    cdef uint32_t remote_members(self, uint32_t shard, const uint8_t *subject, size_t size, const uint8_t *queue,
                                 size_t queue_size) noexcept
    # A node's subject, if it fits into `room` bytes at `to`; its size.
    cdef size_t subject_of(self, const Node *node, uint8_t *to, size_t room) noexcept
    # The interest at a node has changed: a subclass drops the entries made from it.
    cdef void node_changed(self, Node *node) noexcept
    cdef Sub *attach(self, Sub *sub, const uint8_t *subject, size_t size, const uint8_t *queue,
                     size_t queue_size, uint64_t *told) noexcept
    cdef Node *node_for(self, const uint8_t *subject, size_t size) noexcept
    cdef Node *node_at(self, const uint8_t *subject, size_t size) noexcept
    cdef void node_prune(self, Node *node) noexcept
    cdef QueueGroup *group_for(self, Node *node, const uint8_t *queue, size_t size) noexcept
    # The node's group of that name; NULL: there is none.
    cdef QueueGroup *group_named(self, const Node *node, const uint8_t *queue, size_t size) noexcept
    cdef void number_groups(self) noexcept
    cdef QueueGroup *find_group(self, const Node *node, const QueueName *name) noexcept
    cdef bint put_in_wide(self, QueueGroup *group) noexcept
    cdef void group_prune(self, Node *node, QueueGroup *group) noexcept
    cdef void book_leaver(self, Sub *sub) noexcept
    cdef void add_gone_bytes(self, size_t size) noexcept
    cdef uint64_t tell(self, Node *node, QueueGroup *group, InterestSink sink) noexcept
    cdef void tell_remote(self, Node *node, uint64_t before, InterestSink sink) noexcept
    cdef void tell_remote_queue(self, Node *node, QueueGroup *group, uint32_t shard, uint32_t before,
                                InterestSink sink) noexcept
    cdef TellingCursor telling_cursor(self, InterestSink sink)
    cdef DroppingCursor dropping_cursor(self, uint32_t shard)
    cdef void begin_cursor(self, InterestCursor cursor) noexcept
    cdef void end_cursor(self, InterestCursor cursor) noexcept
    cdef void free_pattern(self, Pattern *at) noexcept


# How many of a marked subscription's deliveries were not taken before. Marks all of them as taken.
cdef inline uint64_t take_marked(Sub *sub) noexcept nogil:
    cdef uint8_t *at = <uint8_t *>sub + sizeof(Sub) + sub.key.size + (sizeof(uint64_t) if sub.group != NULL else 0)
    cdef uint64_t before
    if not sub.key.flags & SUB_MARKED:
        return 0
    memcpy(&before, at, sizeof(before))
    memcpy(at, &sub.delivered, sizeof(before))
    return sub.delivered - before


cdef uint32_t shifted_weight(const QueueGroup *group, uint32_t i) noexcept nogil


# How many members the group has at remote[i]: there may be none while some move.
cdef inline uint32_t weight_of(const QueueGroup *group, uint32_t i) noexcept nogil:
    if likely(group.shifts == NULL):
        return group.remote[i].members
    return shifted_weight(group, i)


cdef inline uint8_t *node_key(const Node *node) noexcept nogil:
    return <uint8_t *>node + (sizeof(Node) if node.key.kind == NODE_LITERAL else sizeof(Pattern))


# Writes the node's subject, without a terminating 0, if it fits; returns its size.
cdef size_t subject_at(const Node *node, uint8_t *to, size_t room) noexcept nogil


cdef inline bint is_unused(const Node *node) noexcept nogil:
    return node.subs == NULL and node.groups == NULL and node.remote == 0


# Adds to the number of subscriptions, of this account and of all accounts together.
cdef inline void count_subs(Interest interest, int more) noexcept:
    interest.n_subs += more
    interest.sink.n_subs += more
