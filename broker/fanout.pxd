# One published message to everybody who wants it: local subscriptions, queue groups, sibling shards.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from gnatswarm.broker.asked cimport Asked
from gnatswarm.broker.outbuf cimport Blob, OutBuf, Outbox
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.interest cimport MOST_SHARDS, Interest, InterestSink, QueueGroup, QueueName, Sub
from gnatswarm.broker.entry cimport Choice, Entry, Target
from gnatswarm.broker.sublist cimport Sublist
from gnatswarm.broker.word cimport same_bytes

cdef enum:
    ANY_SHARD = 64            # Fanout.from_shard, and the next
    ANOTHER_BROKER = 65
    MOST_QUEUES = 64          # queue groups named in one frame to a sibling,
    MOST_NAME_BYTES = 32768   # and all their names together, unless it is one
    # Account, subject and reply of a message, together. With the longest queue name they fit a frame's line, and that
    # the read buffer (routewire.MOST_ROUTE_LINE_BYTES); to another server also with a cluster's name, or with where it
    # was. What a client writes is shorter by far, but mappings and imports may make any length of it.
    MOST_ADDRESS_BYTES = 194560
    # In the place where a QMSG to the gateway has where it was (Orphan.been): nowhere, and plain interest gets it, too.
    PLAINLY = 8
    HERE = -1                 # what choose_member() returns instead of a shard
    NOWHERE = -2

# Where a message comes from. From ORIGIN_ACCOUNT on it was published in another account; then subscriptions of a third
# account, which import this account's stream, do not get it.
cdef enum Origin:
    ORIGIN_CLIENT = 0             # a client here
    ORIGIN_SIBLING = 1            # a sibling
    ORIGIN_ACCOUNT = 2            # another account, here
    ORIGIN_SIBLING_ACCOUNT = 3    # another account, at a sibling

# A message on its way, or a run of messages that differ in their payload only: the next one's bytes begin `stride`
# bytes further on, pointers are the first one's. All pointers: VALID UNTIL deliver() RETURNS.
ctypedef struct Publish:
    Origin origin
    uint32_t count            # 1, or more in a run
    size_t stride
    const uint8_t *tail       # " [reply] [header] size\r\n<header><payload>\r\n"
    size_t tail_size
    const uint8_t *payload    # header block and payload, inside the tail
    Token reply               # size 0: none
    uint32_t header_size      # 0: no header
    uint32_t size             # header and payload
    Blob *blob                # what the tail lies in, where it is big; NULL: copy it
    uint64_t publisher        # cid of a client that wants no echo: it gets this from no shard; 0: it may go to anybody


cdef enum:
    # A run is scanned and then copied: this many bytes stay in the L1 cache between the two. And a publisher waits for
    # who is behind after a run. (A run of large messages may be longer where it is not copied: outbuf.pxd. Those that
    # may become a blob are none.)
    MOST_RUN_BYTES = 16384
    # Deliveries of one client's or sibling's messages in a turn, of 20 to 40 ns each, and of a run to so many
    # subscriptions; one message goes to any number.
    MOST_DELIVERED = 100000
    MANY_TARGETS = 64


# Is at p, which has `total` bytes, this line with a complete payload?
cdef inline bint line_stands_at(const uint8_t *line, size_t line_size, size_t total, const uint8_t *p) noexcept nogil:
    return same_bytes(p, line, line_size) and p[total - 2] == c'\r' and p[total - 1] == c'\n'


# The result of delivering a message, or a whole run. The caller begins with no_outcome(); deliveries add to it.
ctypedef struct Outcome:
    uint64_t touched          # siblings that it was sent to, taken or not
    uint32_t deliveries       # to subscriptions here
    bint stalls               # a receiver is behind: the sender has to wait


# Whether every frame of a message to siblings and servers has room for these; if not, nobody is sent it.
cdef inline bint fits_line(size_t account_size, size_t subject_size, size_t reply_size) noexcept nogil:
    return account_size + subject_size + reply_size <= MOST_ADDRESS_BYTES


cdef inline void no_outcome(Outcome *outcome) noexcept nogil:
    outcome.touched = 0
    outcome.deliveries = 0
    outcome.stalls = False


cdef inline void add_outcome(Outcome *outcome, const Outcome *more) noexcept nogil:
    outcome.touched |= more.touched
    outcome.deliveries += more.deliveries
    outcome.stalls = outcome.stalls or more.stalls


# Where messages leave one account for another (broker.service_imports). The base class lets none leave.
cdef class AccountGate:
    # Delivers a message whose entry `crosses` to other accounts. A sibling has handled its requests itself: of its
    # messages, call this for replies alone. The entry may be freed. `client`: the ClientConnection here that has
    # published it, or None. `asker`: the session of the leaf node connection (shards.gateway) that it came by, or None.
    cdef object asker
    cdef void leave(self, Sublist sublist, Entry *entry, Publish *message, object client, Outcome *outcome) noexcept
    # Nobody has got a request with this generated reply subject.
    cdef int on_nobody(self, bytes reply) except -1
    # The entry of the subject that a mapping leads to; NULL: the message is dropped.
    cdef Entry *map(self, Sublist sublist, Entry *entry, bint *is_random) noexcept


# Other servers, on the one shard that is connected to them (broker.exchange).
cdef class Onward:
    cdef uint64_t been   # of the message that is passed on not plainly: see Orphan.been

    # A sibling's message, or one from another account, to them instead of to subscriptions here: to plain interest if
    # `plainly`, and to one member of each group named (n_queues -1: of each group). Bit i of the result: queue i
    # found no member. The entry stays valid.
    cdef uint64_t pass_on(self, Sublist sublist, Entry *entry, Publish *publish, bint plainly, const Token *queues,
                          int n_queues, Outcome *outcome) noexcept
    # The interest of siblings and other servers has changed: see InterestSink.
    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept
    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept
    # The output of a server; NULL: there is none at this slot.
    cdef OutBuf *output(self, int slot) noexcept
    # The link to a sibling is gone.
    cdef int on_part(self, int shard) except -1
    # A mesh.Retelling that tells a new sibling the interest of other servers.
    cdef InterestSink retelling(self, OutBuf *link)
    # A sibling's PING came over this OriginLink. 0: its PONG waits for no other server; else what it waits for, with
    # which the link's on_settled() is called.
    cdef uint64_t await_servers(self, object link) except? 0
    # The shard of this OriginLink says that a member of a group there leaves, and lingers until the link acknowledges
    # `id`: when other servers have heard of what comes before its next PING. False: there is none.
    cdef bint on_left(self, object link, Sublist sublist, uint64_t id, Token subject, Token queue) except -1
    # Sends a queue message to such a shard, none that was `visited`; -1: there is none.
    cdef int send_to_former(self, Sublist sublist, Token subject, Token queue, Publish *publish, uint64_t id,
                            uint64_t visited, uint64_t been) except -2


@cython.final
cdef class Fanout:
    cdef Onward onward                   # None on a shard that is connected to no other server
    # Public, because it is given later: ServiceImports deliver through the fan-out, so this is made first.
    cdef public AccountGate gate
    cdef Outbox *box
    cdef uint32_t talk_lines             # of each new client's Talk; 0: clients have none
    cdef OutBuf *links[MOST_SHARDS]      # to the siblings that are up, owned by their links; NULL: none
    cdef bint prefers_local              # queue groups: members here first
    cdef public int shard                # our own number among siblings: set by the mesh
    # Shards' MessageTracing (fanout.pyi); None: no message is traced. And the MessageTrace of the one that is being
    # delivered; None: it is not traced.
    cdef public object tracing
    cdef object trace
    # Whose messages its link is delivering. ANY_SHARD: what is sent on, from any; ANOTHER_BROKER: a server's.
    cdef int from_shard
    cdef Asked asked                     # requests that went to siblings alone
    # Whether a sibling may have got several frames of the last message with queue groups: another for plain
    # subscriptions, or several for more groups than one frame names. `before`: see note_numbers(), from before it.
    cdef bint is_split
    cdef uint64_t before[MOST_SHARDS]
    cdef uint64_t link_refused           # how often a link refused a frame: it is about to end
    cdef Sub **finished                  # subscriptions that reach their max in this delivery
    cdef uint32_t n_finished
    cdef uint32_t room_finished
    cdef uint32_t *shorts                # of this run: how much each target took that took some of it, but not all
    cdef uint32_t n_shorts               # … and how many targets took less than all of it
    cdef uint32_t n_kept_shorts
    cdef uint32_t room_shorts
    cdef uint8_t *scratch
    cdef size_t scratch_room
    # this shard's totals
    cdef readonly uint64_t in_msgs       # from clients
    cdef readonly uint64_t in_bytes
    cdef readonly uint64_t refused_msgs  # of these: denied, or lost by a mapping. No entry has counted them
    cdef readonly uint64_t refused_bytes
    cdef readonly uint64_t out_msgs      # to clients
    cdef readonly uint64_t out_bytes
    cdef readonly uint64_t link_out_msgs
    cdef readonly uint64_t link_in_msgs

    # How many messages of `total` bytes at p begin with this line, in one run. The first does, and is whole.
    cdef uint32_t run_at(self, const Entry *entry, const uint8_t *line, size_t line_size, size_t total,
                         const uint8_t *p, const uint8_t *end) noexcept
    # Whether a run of large messages may be as long as it was read: one peer alone gets it, has no other output, and is
    # not behind when it takes none of it.
    cdef bint takes_long_run(self, const Entry *entry) noexcept
    # Delivers a client's message, or a whole run, to everybody. `avoided`: the publisher, where it wants no echo, or
    # NULL. The entry may be stale afterwards.
    cdef Outcome deliver(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided) noexcept
    # Delivers a message that came from another account.
    cdef void deliver_across(self, Sublist sublist, Entry *entry, Publish *publish, Outcome *outcome) noexcept
    # Delivers a sibling's message to the subscriptions here: plain ones if `plainly`, one member of each group named.
    # Bit i of the result: queue i (of at most 64) found no member. The entry may be stale afterwards.
    cdef uint64_t deliver_here(self, Sublist sublist, Entry *entry, Publish *publish, bint plainly,
                               const Token *queues, int n_queues, Outcome *outcome) noexcept
    # Sends a message for some queue groups of one sibling: RMSG, which serves its plain subscriptions too, or QMSG
    # (id 0: nobody waits for QACK), which also says who may not have it.
    cdef bint send_queued(self, OutBuf *link, const Entry *entry, const Token *queues, int n_queues, Publish *publish,
                          bint only_queues, uint64_t id, uint64_t visited, uint64_t been) noexcept
    cdef Blob *share(self, Publish *publish, uint32_t receivers) noexcept
    # The numbers of the last messages that siblings were sent, for those that have a link.
    cdef void note_numbers(self, uint64_t *numbers) noexcept
    # Writes the tail anew, in the canonical form, from reply, sizes and payload; it is valid until the next call.
    # False: no memory.
    cdef bint rewrite_tail(self, Publish *message) noexcept
    # Room for a rewritten tail; NULL: no memory. Valid until the next call.
    cdef uint8_t *scratch_for(self, size_t size) noexcept
    # Each sends a run to one subscription, or to one link; returns how many messages were taken.
    cdef uint32_t send_target(self, Entry *entry, Target *target, Publish *publish) noexcept
    cdef uint32_t send_run(self, OutBuf *out, const uint8_t *prefix, size_t prefix_size, Publish *publish,
                           uint32_t count) noexcept
    cdef uint32_t send_stripped(self, OutBuf *out, const uint8_t *prefix, size_t prefix_size, Publish *publish,
                                uint32_t count) noexcept
    cdef uint32_t send_plain_link(self, OutBuf *link, Entry *entry, Publish *publish) noexcept
    cdef bint choose_here(self, Entry *entry, Choice *choice, uint64_t start, Publish *publish,
                          OutBuf *avoided) noexcept
    cdef uint32_t deliver_choices(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                                  Outcome *outcome) noexcept
    cdef uint32_t deliver_to_group(self, Sublist sublist, Entry *entry, Publish *publish) noexcept
    cdef uint32_t deliver_to_group_anywhere(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                                            Outcome *outcome) noexcept
    # Chooses a member of a group, each equally likely, and sends it the message if it is here. Returns its shard if it
    # is elsewhere; HERE: it was sent; NOWHERE: nobody takes it.
    cdef int choose_member(self, Sublist sublist, Entry *entry, Choice *choice, Publish *publish,
                           OutBuf *avoided) noexcept
    cdef uint32_t deliver_singly(self, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                                 Outcome *outcome) noexcept
    cdef uint32_t deliver_doubled(self, Sublist sublist, Entry *entry, Publish *publish) noexcept
    # How many of a run a subscription with a max, or of a client that moves, takes here.
    cdef uint32_t left_of(self, const Sub *sub, const OutBuf *out, const Publish *publish) noexcept
    cdef void note_short(self, uint32_t taken) noexcept
    # Counts how wide a plain run went of which `width` targets took all; returns how many messages nobody got here.
    cdef uint32_t count_widths(self, Entry *entry, uint64_t *widths, uint32_t count, uint32_t width) noexcept
    # Sends to the siblings of a mask; returns those that it was sent to.
    cdef uint64_t deliver_remote(self, Entry *entry, Publish *publish, uint64_t shards) noexcept
    cdef int send_early(self, Entry *entry, Publish *publish, Token *names, uint8_t *shards, int n_remote,
                        size_t *name_bytes, Outcome *outcome) noexcept
    cdef uint64_t send_choices(self, Entry *entry, Publish *publish, const Token *names, const uint8_t *shards,
                               int n_remote, bint only_queues) noexcept
    cdef void note_finished(self, Sub *sub) noexcept
    cdef void finish(self) noexcept

# Whether this is the output of the client with this cid (as in Publish).
cdef bint is_output_of(OutBuf *out, uint64_t cid) noexcept

# `other` becomes the message with another header block (may be empty) and another reply. Its bytes are in the bytearray
# that is returned.
cdef bytearray rewritten(Publish *other, const Publish *message, bytes header, Token reply)

# Writes " [reply] [header] size\r\n" to `to`; how many bytes: at most reply.size + 28.
cdef size_t write_tail_head(uint8_t *to, Token reply, bint with_header, uint32_t header_size,
                            uint32_t size) noexcept nogil

# Writes " + reply queue…" or " | queue…", as routes have it; how many bytes: at most reply.size + 3, and one more than
# its size for each queue.
# A message for these groups behind a prefix, from " |" to the last CRLF; the first `cut` bytes of its payload, its
# header, are left out. `to` has room for it. How many bytes.
cdef size_t write_named(uint8_t *to, const Publish *publish, const Token *queues, int n_queues, bint with_header,
                        size_t cut) noexcept nogil
cdef inline size_t write_queues(uint8_t *to, const Publish *publish, const Token *queues, int n_queues) noexcept nogil:
    cdef size_t n = 2
    cdef int i
    to[0] = c' '
    to[1] = c'+' if publish.reply.size else c'|'
    if publish.reply.size:
        to[2] = c' '
        memcpy(to + 3, publish.reply.at, publish.reply.size)
        n += 1 + publish.reply.size
    for i in range(n_queues):
        to[n] = c' '
        memcpy(to + n + 1, queues[i].at, queues[i].size)
        n += 1 + queues[i].size
    return n
