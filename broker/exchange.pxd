# What passes between this broker's shards and other servers: messages, and interest in them.
#
# It is the table of peers as data: each peer has a slot, a bit in the masks of the sublist as a sibling has, and a
# kind; MESSAGES and INTEREST say what goes from which kind to which. Slots below FIRST_SLOT are siblings'.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.entry cimport Choice, Entry
from gnatswarm.broker.fanout cimport Fanout, Onward, Outcome, Publish
from gnatswarm.broker.fence cimport MeshFence
from gnatswarm.broker.interest cimport MOST_SHARDS, Interest, InterestSink, Node, QueueGroup
from gnatswarm.broker.mesh cimport Accounts, Mesh
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.permissions cimport Permissions
from gnatswarm.broker.reply_permissions cimport ReplyPermissions
from gnatswarm.broker.server_fence cimport ServerFence, ServerWait
from gnatswarm.broker.serverwire cimport Dialect
from gnatswarm.broker.sublist cimport Sublist

cdef enum PeerKind:
    PEER_SIBLING = 0   # a shard of this broker, with its clients
    PEER_ROUTE = 1     # another server of the cluster
    PEER_LEAF = 2      # a leaf node, for which this broker is the hub
    PEER_HUB = 3       # a hub, for which this broker is the leaf node
    PEER_KINDS = 4

cdef enum:
    FIRST_SLOT = 32      # siblings have the numbers below
    MOST_TOLD_REPLIES = 1024   # prefixes of generated reply subjects that a server is told of, in each account
    MOST_TOLD_PATTERN_BYTES = 1024   # of one of these
    MOST_TOLD_ANSWERS = 1024   # reply subjects that a leaf node is told of: it can answer no more requests at a time
    MOST_TOLD_BYTES = 1048576  # of these together
    CID_BITS = 48              # of Publish.publisher; above, of another server's client: its slot, and which join()
    END_SLOT = 63        # … and this one is the number of the shard itself: its bit is for set_own_interest()


# A member of a queue group that has left a shard, and lingers there until other servers know.
@cython.final
cdef class Leaving(ServerWait):
    cdef Exchange exchange
    cdef Sublist sublist
    cdef uint64_t id          # of its QEND
    cdef bytes subject
    cdef bytes queue


# A server that connects is told all that it may be told, each thing once: what changes is told at once where the cursor
# has been, and else by the cursor. All else that is sent to it waits behind that, in an OutBuf of its own.
@cython.final
cdef class TellingServer(Accounts):
    cdef Exchange exchange
    cdef int slot
    cdef OutBuf *out
    cdef OutBuf *behind
    cdef set ahead               # the sublists that are still to come
    cdef bint is_under_way       # in go_on()

    # Whether a node's interest, or that of one of its groups (or NULL), is told later.
    cdef bint is_ahead(self, Interest interest, const Node *node, const QueueGroup *group) noexcept


# Tells all siblings that other servers want nothing any more.
@cython.final
cdef class Withdrawing(Accounts):
    cdef Exchange exchange
    cdef object call


@cython.final
cdef class Exchange(Onward):
    cdef Mesh mesh
    cdef Fanout fanout
    cdef MeshFence siblings_fence        # None: a PING of a route is answered at once
    cdef readonly ServerFence fence
    cdef object rest                     # see rest_with()
    cdef uint64_t condemned              # of Outbox, when forget_condemned() looked last
    cdef size_t much_told_bytes          # in one read of a server's: little of it is read at a time from there on, …
    cdef size_t bytes_without_rest       # … and after so many it rests, too
    cdef readonly uint64_t outside       # slots of other servers
    cdef readonly uint64_t told          # … of those that have been told the interest here: they get messages
    cdef bint is_withdrawn               # siblings are not told of other servers any more: see withdraw()
    cdef uint64_t isolated               # slots of leaf nodes that hear nothing of other leaf nodes' interest
    cdef uint64_t of_kind[PEER_KINDS]    # slots of each kind; siblings: all that are of no other
    cdef uint8_t kinds[MOST_SHARDS]
    cdef Dialect dialects[MOST_SHARDS]
    cdef OutBuf *outs[MOST_SHARDS]       # owned by their links; NULL: none
    cdef OutBuf *behinds[MOST_SHARDS]    # … of those that are being told all interest: for all else; or NULL
    cdef list tellings                   # … and their TellingServers, or None
    cdef uint64_t mates[MOST_SHARDS]     # other slots to which nothing of a slot's goes: see join()
    cdef list accounts                   # the Sublist of a slot that has one account, else None
    cdef list permissions                # Permissions of a slot, or None: everything may pass
    cdef uint64_t restricted             # … slots that have some
    cdef uint64_t checked                # slots that have logged in here, a leaf node or a hub: their rights hold here
    cdef uint64_t answering              # slots that may answer what they were sent, beside what they may publish, …
    cdef list answers                    # … by these ReplyPermissions: theirs if `checked`, else ours; or None
    cdef list told_answers               # … reply subjects that a leaf node was told, oldest first; or None
    cdef size_t told_answers_bytes[MOST_SHARDS]
    cdef list for_clusters               # reply subjects of requests that came there from other clusters; or None
    cdef list clusters                   # the cluster's name of a slot
    cdef list origins                    # … of a leaf node as frames have it; b"": none
    # Nothing goes from a leaf node to its cluster in the account from which it comes, or else in any: 2.15 and 2.9.
    cdef public bint is_apart_by_account
    cdef dict leaves_of                  # account (None: any) → cluster → slots of its leaf nodes here
    cdef uint64_t clustered              # slots of all leaf nodes of which a cluster is known
    cdef uint64_t tells_apart            # members of the cluster that are told of each such cluster's interest apart
    cdef uint64_t splitting              # … that have told so: where there is an origin, …
    cdef list told_apart                 # … of each (account, subject, queue) → {origin, b"" for its own: members or 1}
    cdef dict split_before               # … of one such key, before the change that is being made; or None
    # While a link's bytes are carried out:
    cdef bytes origin                    # the cluster of the leaf node that they came from; b"": of none
    cdef bint is_holding                 # a link to a shard that lives is missing: no server is read
    cdef bint is_link_behind             # a link to a shard is past its mark: who feeds it is not read for a while
    cdef uint64_t onward                 # the slots to which a request goes on in another account
    cdef uint64_t takes_origin           # members of the cluster that are told where a message comes from
    cdef uint64_t takes_only_queues      # servers that know QMSG
    cdef uint8_t joins[MOST_SHARDS]      # of each slot: how often a server has joined, modulo 256
    cdef list short_ids                  # of each slot: the first letters of the server's id; b"": none
    cdef bytes own_short_id
    cdef readonly bytes system_account   # b"": none; see tell_queue()
    cdef dict noted                      # what would be told, while this is a dict, by told_of_answerers()
    # (slot, account) → patterns of generated reply subjects that it was told, and with each which shard has asked, or
    # ANOTHER_BROKER; and those that were told over connections that have ended, by account.
    cdef dict told_replies
    cdef dict due_replies
    cdef uint64_t importing              # slots with interest in what other accounts export to theirs
    cdef list imported                   # … of each: (subject, queue) told → set of (exporter, its subject)
    cdef list sources                    # … and (exporter, its subject, queue) → {subject told: members}
    cdef readonly dict leaving           # (shard, account, subject, queue) → members that have left, and linger there
    cdef dict unasked                    # shard → Leavings for which servers are asked at its next PING
    cdef dict own                        # account → subjects that this broker itself wants in it
    cdef dict loop_subjects              # account → the subject that shows that a message would come back
    cdef readonly uint64_t in_msgs       # from other servers
    cdef readonly uint64_t in_bytes
    cdef readonly uint64_t out_msgs      # to them
    cdef readonly uint64_t out_bytes

    # Where messages of a slot go, and whose interest a slot is told.
    cdef uint64_t reach(self, uint32_t slot) noexcept
    cdef uint64_t feeds(self, uint32_t slot) noexcept
    cdef uint64_t feeds_on(self, uint32_t slot, const uint8_t *subject, size_t size) noexcept
    # A message to the slots of `reach`: see Onward.pass_on().
    cdef uint64_t forward(self, Sublist sublist, Entry *entry, Publish *publish, uint64_t reach, bint plainly,
                          const Token *queues, int n_queues, Outcome *outcome) noexcept
    cdef int pick(self, Sublist sublist, const Entry *entry, const Choice *choice, uint64_t reach) noexcept
    # A message with a reply subject goes to a slot that may answer it, or has come from one where we may.
    cdef int expect_answer(self, uint32_t slot, const uint8_t *reply, size_t size) except -1
    cdef bint may_answer(self, uint32_t slot, const uint8_t *subject, size_t size) except -1
    # A request of another cluster has come from a slot; and whether a message may go there as an answer to one.
    cdef int expect_for_cluster(self, uint32_t slot, const uint8_t *reply, size_t size) except -1
    cdef bint may_answer_cluster(self, uint32_t slot, Entry *entry) except -1
    # How many of a run of messages go out as our answers, as nothing else.
    cdef uint32_t answers_of(self, uint32_t slot, Entry *entry, uint32_t count) noexcept
    # So many more, or fewer, former members of its group are known to linger on its shard.
    cdef int count_leaving(self, Leaving leaving, int more) except -1
    cdef int ask_servers(self, int shard) except -1
    # Whether a group has members at these slots, by what they have told.
    cdef bint has_members(self, Entry *entry, Token queue, uint64_t slots) noexcept
    cdef int pick_of(self, Sublist sublist, const Entry *entry, uint32_t first, uint32_t n, uint64_t reach) noexcept
    # Those of `slots` whose permissions keep such messages from them.
    cdef uint64_t kept_from(self, uint64_t slots, Entry *entry) noexcept
    cdef bint may_pass(self, uint32_t slot, Entry *entry) noexcept
    cdef void tell_reply(self, uint32_t slot, Sublist sublist, Token reply) noexcept
    cdef int forget_replies_of(self, int shard) except -1
    cdef int forget_those(self, list patterns) except -1
    # What the next connections are told of those.
    cdef int tell_due_replies(self, uint32_t slot, Sublist sublist) except -1
    cdef void tell_pattern(self, uint32_t slot, bytes account, bytes pattern, uint32_t wanted) noexcept
    # Whether it was told so of a pattern of replies: that somebody subscribes to the same changes nothing for it.
    cdef bint is_told_as_due(self, uint32_t slot, bytes account, const uint8_t *subject, size_t size) noexcept
    cdef void send(self, uint32_t slot, Entry *entry, Publish *publish, const Token *queues, int n_queues,
                   bytes been) noexcept
    # The server of this slot knows QMSG, and has this id. Without an id it is sent none: none could say where it was.
    cdef int set_id(self, int slot, str server_id) except -1
    # The servers of a mask as QMSG has them, and this broker `with_own`; and the mask of those that a QMSG has.
    cdef bytes names_of(self, uint64_t slots, bint with_own)
    cdef uint64_t slots_of(self, Token names) noexcept
    # Who has published it and wants no echo (Publish.publisher), as one of those names; b"": nobody, or nobody knows.
    cdef bytes publisher_name(self, uint64_t publisher)
    cdef uint64_t publisher_in(self, Token names) except? 0xFFFFFFFFFFFFFFFF
    cdef uint32_t send_named(self, OutBuf *out, const uint8_t *prefix, size_t prefix_size, Publish *publish,
                             const Token *queues, int n_queues, bint with_header) noexcept
    cdef uint32_t send_rewritten(self, OutBuf *out, const char *verb, bytes first, const uint8_t *place,
                                 size_t place_size, Publish *publish, const Token *queues, int n_queues) noexcept
    cdef bint may_tell(self, uint32_t slot, const uint8_t *subject, size_t size, const uint8_t *queue,
                       size_t queue_size) noexcept
    # What other peers want has changed: `before` and `after` have a bit for each that does. A slot is told if it
    # changes anything for it: what the clusters of leaf nodes here want, by their names, and all else as ours.
    cdef void tell_change(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                          uint64_t after) noexcept
    cdef bint is_answered(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size) noexcept
    cdef bint is_plain(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size) noexcept
    # … likewise a group: the members of peer `who`, of whom there were `before`; NOBODY: a slot is told it all.
    cdef void tell_group(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                         const QueueGroup *group, uint32_t who, uint32_t before) noexcept
    # (slot, account, subject, queue, origin) → members, for what shards answer in these accounts.
    cdef dict told_of_answerers(self, set accounts)
    cdef void tell(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size, bytes origin,
                   bint wanted) noexcept
    cdef void tell_queue(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                         const QueueGroup *group, bytes origin, uint32_t before, uint32_t after) noexcept
    # Of an account's messages: cluster → slots of leaf nodes of it that are connected here, and get none of their own.
    cdef dict leaves_in(self, Interest interest)
    # Members of the cluster whose interest in this is that of one cluster of leaf nodes alone, and how many members of
    # a group a member has beside those.
    cdef uint64_t only_of(self, bytes origin, Interest interest, const uint8_t *subject, size_t size)
    cdef uint32_t beside(self, bytes origin, dict split, uint32_t members)
    # As tell_group(), to a leaf node: it hears nothing of its own cluster's members, wherever they are.
    cdef void tell_group_beside(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                                const QueueGroup *group, uint32_t who, uint32_t before) noexcept
    # A member's interest in a subject, where there was some and still is: that of `was` alone before, of `now` alone
    # from now on; b"": of others, too.
    cdef int resplit(self, uint32_t member, Sublist sublist, const uint8_t *subject, size_t size, bytes was,
                     bytes now) except -1
    # A slot's interest has changed: in a subject of its account, which may be one of an imported stream. `members` of
    # the queue group, or 1; 0: the interest has ended.
    # Returns of how many streams nothing comes, because the exporter's subject is longer than MOST_KEY_BYTES.
    cdef int follow_streams(self, int slot, bytes subject, bytes queue, uint32_t members) except -1
    cdef int want_stream(self, int slot, Sublist exporter, bytes wanted, bytes queue, bytes subject,
                         uint32_t members) except -1
    # A message of another account, to a slot whose account imports it.
    cdef void send_imported(self, uint32_t slot, Sublist exporter, Entry *entry, Publish *publish, const Token *queues,
                            int n_queues, bytes been, Outcome *outcome) noexcept
    # A link begins to pass messages: its slot; -1: there is none left.
    cdef int join(self, PeerKind kind, Dialect dialect, OutBuf *out, Sublist account, str cluster, bint is_checked,
                  bint is_isolated) except -2
    # Tells it the interest here, and sends it messages from now on.
    # `pongs_due`: see ServerFence.begin(). `behind` is used while it is told.
    cdef int begin(self, int slot, list pongs_due, OutBuf *behind) except -1
    # The sublists whose messages pass there.
    cdef list accounts_of(self, int slot)
    # It has been told all, or will not be told the rest: what has waited behind that follows.
    cdef int end_telling(self, int slot) except -1
    # Whether it will be told of this in its turn.
    cdef bint is_told_later(self, uint32_t slot, Interest interest, const uint8_t *subject, size_t size,
                            const QueueGroup *group) noexcept
    # What goes out there now, but interest.
    cdef OutBuf *rear(self, int slot) noexcept
    # A message of another server's would be past max_pending.
    cdef void check_behind(self, int slot) noexcept
    # Nothing more goes to servers whose connection is about to end.
    cdef void forget_condemned(self) noexcept
    cdef int part(self, int slot) except -1


cdef bytes origin_of(PeerKind kind, str cluster)

# The queue group of the shards, of which one answers a request to the system account.
cdef const uint8_t *ANSWERERS

cdef bint is_loop_subject(const uint8_t *subject, size_t size) noexcept nogil
# A reply subject that a hub's gateway to another cluster has given to a request from there: _GR_.<cluster>.<server>.….
cdef bint is_of_cluster(const uint8_t *subject, size_t size) noexcept nogil
