# One client's operations, and what they cause.
#
# The usual publish repeats the last control line byte for byte: see repeat.pxd.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.allowance cimport Allowance
from gnatswarm.broker.reply_permissions cimport ReplyPermissions
from gnatswarm.broker.fanout cimport Fanout, Publish
from gnatswarm.broker.outbuf cimport Blob, OutBuf
from gnatswarm.broker.parser cimport Op, Token
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.permissions cimport Permissions
from gnatswarm.broker.repeat cimport Repeat
from gnatswarm.broker.interest cimport Sub
from gnatswarm.broker.lingering cimport Former
from gnatswarm.broker.shadows cimport Shadows
from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.sublist cimport Sublist
from gnatswarm.broker.table cimport Table
from gnatswarm.broker.talk cimport Talk


# Which subscriptions are being ended, some at a time (end_some). The client is held meanwhile.
cdef enum Ending:
    ENDING_NONE = 0
    ENDING_RENEWED = 1  # none: their account imports other streams
    ENDING_DENIED = 2   # those that new permissions do not allow, and that get nothing any more (OutBuf.is_narrowing)
    ENDING_ALL = 3      # it logs in anew
    ENDING_GONE = 4     # it takes nothing more: members of queue groups as where a connection ends


# Lets a PONG go out when siblings have seen everything that the client caused (promise 2 of the design).
cdef class Fence:
    # True: the caller sends PONG at once. False: the caller holds the client; release_pong() follows.
    cdef bint passes(self, ClientConnection client) noexcept
    # The client is gone.
    cdef void forget(self, ClientConnection client) noexcept
    # Siblings that have not acknowledged the last change of interest that they were told, a bit each.
    cdef uint64_t unheard(self) noexcept
    # A member of a queue group is about to unsubscribe: returns the former member that will linger, or None. linger()
    # follows when siblings were told. MemoryError.
    cdef Former former_of(self, ClientConnection client, Sub *sub)
    # The former member may get what siblings sent to the group before they knew.
    cdef int linger(self, Former former) except -1
    # Ends this client's former members: the one with this sid, or (sid NULL) all.
    cdef int end_formers(self, ClientConnection client, const uint8_t *sid, size_t size) except -1
    # This client has other permissions: ends its former members that these do not allow.
    cdef int review_formers(self, ClientConnection client) except -1
    # Many requests that this sibling was sent are not acknowledged: it is asked for that.
    cdef int on_many_asked(self, int shard) except -1
    # The client has gone while it moves: its subscriptions stay until the move is over, and leave() is called again.
    cdef int keep_moving(self, ClientConnection client) except -1
    # A subscription of it has ended because it had as many messages as it may.
    cdef void on_ended_moving(self, ClientConnection client) noexcept
    # The client moves, and is sent a message that this client may not get, whoever else gets it.
    cdef int note_publisher(self, ClientConnection client, uint64_t publisher) except -1
    # The max of a former member is reached.
    cdef int on_former_finished(self, Sub *sub) except -1


@cython.final
cdef class ClientConnection(Peer):
    cdef Fanout fanout
    cdef Sublist sublist
    cdef Fence fence
    cdef Permissions permissions      # None: everything is allowed
    cdef ReplyPermissions reply_permissions   # None: it may publish no replies beyond its other permissions
    cdef Allowance allowance          # None: it may publish as much as it wants to
    cdef uint64_t limited_us          # since when it has waited for that, without a break of a burst; 0: it never has
    cdef uint64_t limited_until_us    # until when it waits, or waited last
    cdef readonly uint64_t publish_waits   # how often
    cdef uint32_t n_slow              # operations of what is being read for which Python was asked, of 4 µs each
    cdef uint32_t n_delivered         # deliveries of what is being read, of messages that had more than a few
    cdef uint64_t most_steps          # … and its turn is over when match_steps is past this
    cdef object session               # Python: who this is (ClientSession of connection.pyi); None: the broker itself
    cdef Table subs                   # by sid
    cdef Shadows shadows              # None: it has none
    cdef uint32_t left_at             # leave(): the next slot of subs
    cdef uint32_t bounded_members     # subscriptions in queue groups that have a max
    cdef bint is_too_large            # … for a frame that announces it to another shard
    cdef Ending ending
    cdef uint32_t end_at              # end_some(): the next slot of subs
    cdef readonly bint is_renewing             # … behind this, those that are left are renewed
    cdef readonly uint32_t n_unheard  # … how often one heard nothing of an import: too long a subject there
    cdef Repeat *repeat
    cdef Talk *talk                   # what it says and hears, by subject; NULL: nobody asks
    cdef uint64_t touched             # siblings told of interest since they last acknowledged everything …
    cdef uint64_t published           # … and siblings sent messages since then
    cdef uint32_t n_formers           # its former members: see lingering.pxd
    cdef bint is_in_doubt             # a link broke with messages of its on their way: it gets no PONG any more
    cdef size_t max_line_bytes
    cdef size_t max_payload_bytes
    cdef size_t max_subs              # 0: no limit
    cdef size_t max_subject_tokens    # … of a subscription; 0: no limit
    cdef readonly uint64_t cid
    cdef readonly uint64_t in_msgs
    cdef readonly uint64_t in_bytes
    cdef list unanswered              # while it moves: (subject, reply) of requests to which nobody responds; or None
    cdef uint64_t published_to        # hash of the subject of its latest message; 0: none yet
    cdef readonly uint64_t active_us  # when bytes last came in
    cdef readonly bint has_spoken     # … and whether any ever did
    cdef readonly uint64_t rtt_us     # 0: not known yet
    cdef readonly uint64_t pinged_us
    cdef readonly uint32_t pings_out  # unanswered
    cdef readonly bint is_verbose
    cdef readonly bint is_pedantic
    cdef readonly bint echoes
    cdef readonly bint wants_no_responders
    cdef readonly bint names_subject        # in the 503 of a request without responders
    cdef readonly bint offers_headers       # the broker does
    cdef readonly bint must_authenticate
    cdef readonly bint was_ponged           # has had its first PONG
    cdef bint is_own                        # the broker's own, no client's
    cdef bint is_asking                     # inside of publish_request …
    cdef bint is_traced                     # … or of publish_traced
    cdef readonly uint8_t protocol
    cdef bytes info_due                     # an INFO that waits for the next PONG

    cdef Py_ssize_t consume_limited(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef int wait_for_allowance(self) except -1
    # It has had its turn: others are served before it is read again.
    cdef int give_way(self) except -1
    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef Py_ssize_t publish(self, const uint8_t *data, size_t size, Op *op, Blob *whole) except -1
    cdef Py_ssize_t publish_request(self, const uint8_t *data, size_t size, Op *op, Blob *whole) except -1
    cdef Py_ssize_t publish_traced(self, const uint8_t *data, size_t size, Op *op, Blob *whole) except -1
    cdef int trace_refused(self, const uint8_t *data, const Op *op) except -1
    cdef int deliver_traced(self, Entry *entry, Publish *message) except -1
    cdef int deliver(self, Entry *entry, Publish *message) noexcept
    cdef Py_ssize_t incomplete(self, const uint8_t *data, size_t size, size_t total, const Op *op) except -1
    cdef bint is_permitted(self, Op *op, Entry *entry, bint *once) except -1
    cdef void wait_if_it_feeds_the_slow(self) noexcept
    # Sends a 503 to this client's own subscription to the reply subject; False: it has none.
    cdef bint tell_no_responders(self, Token asked, Token reply) noexcept
    # So many subscriptions got a message or a run: its turn may be over.
    cdef void note_many(self, uint32_t deliveries) noexcept
    # Nobody here got a request, which went to these siblings; 0: nobody is interested in it. `before`: the numbers of
    # the last messages that siblings were sent before it; NULL: the fan-out knows, or each was sent one frame.
    cdef void note_unanswered(self, const Entry *entry, Token reply, uint64_t shards, const uint64_t *before) noexcept
    cdef void note_asked(self, const Entry *entry, Token reply, uint64_t shards, const uint64_t *before) noexcept
    # Nobody has got this request of the client, which went to siblings. False: it has no subscription to the reply.
    cdef bint on_nobody(self, Token asked, Token reply) noexcept
    cdef bint map_subject(self, Op *op, uint64_t *hash, Entry **entry, bint *is_random) noexcept
    cdef void count_refused(self, Op *op) noexcept
    cdef void turn_to(self, const Op *op, uint64_t hash) noexcept
    cdef void hear(self, Sub *sub) noexcept
    cdef int deliver_across(self, Op *op, uint64_t hash, Entry *entry, Publish *message) except -1
    cdef bint may_publish(self, Op *op, Entry *entry, bint *once) except -1
    cdef int refuse(self, Op *op, object error) except -1
    cdef bint may_subscribe(self, Op *op) noexcept
    cdef bint has_too_many_tokens(self, const Op *op) noexcept
    cdef int subscribe(self, Op *op) except -1
    cdef int unsubscribe(self, Op *op) except -1
    cdef void end_subscription(self, Sub *sub) noexcept
    # It is a member of a queue group: it ends, and lingers.
    cdef int retire(self, Sub *sub) except -1
    cdef void begin_ending(self, Ending which) noexcept
    cdef int renew(self, Sub *sub, bytes subject, bytes queue) except -1
    cdef void finish_ending(self) noexcept
    cdef void set_filter(self) noexcept
    # The last of its former members has ended.
    cdef int on_members_left(self) except -1
    # Nothing that it is sent arrives any more: its output is dropped, and its subscriptions end. What it had said is
    # carried out. To be called once, in no fan-out, when it is_deaf (OutBuf).
    cdef int become_deaf(self) except -1
    cdef int fail(self, object error) except -1
    cdef void ok(self) noexcept
    cdef void release_pong(self) noexcept
    cdef void say(self, const char *line, size_t size) noexcept
