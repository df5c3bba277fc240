# One connection to another NATS server, and what its frames cause.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.exchange cimport Exchange
from gnatswarm.broker.fence cimport FencedBatch
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.fanout cimport Fanout, Outcome, Publish
from gnatswarm.broker.outbuf cimport Blob, OutBuf
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.permissions cimport Permissions
from gnatswarm.broker.repeat cimport Repeat
from gnatswarm.broker.serverwire cimport Dialect, ServerOp
from gnatswarm.broker.sublist cimport Sublist


# A PING of another member: its PONG says that all shards here know what came before it.
@cython.final
cdef class DuePong(FencedBatch):
    cdef ServerLink link
    cdef uint64_t in_msgs                # … of that server, in front of its PING
    cdef bint was_fenced                 # the server's clients waited for it when it asked


@cython.final
cdef class ServerLink(Peer):
    cdef Exchange exchange
    cdef Mesh mesh
    cdef Fanout fanout
    cdef Dialect dialect
    cdef object session                  # Python: see serverlink.pyi
    cdef readonly int slot               # in the exchange; -1: not joined
    cdef bint is_checked                 # it has logged in here: it is told when it does what it may not
    cdef Permissions withheld            # of a connection that we dialled: what is never sent there; None: nothing
    cdef public uint32_t max_payload_bytes   # of a message that it may send
    cdef bint follows_imports            # its messages go on to other accounts, as a client's do
    cdef readonly bint is_silent         # nothing may be sent any more, PONG included
    cdef public bint must_authenticate   # it was accepted, and has not logged in: nothing but CONNECT is carried out
    cdef public bint is_spare            # a second connection to its server: its first interest makes it the one
    cdef uint32_t second_choice          # added to its members of queue groups: SECOND_CHOICE, or 0 of a route
    cdef bytes origin                    # of a leaf node: the name of its cluster, for members of ours; b"": none
    cdef public bint takes_origins       # a member that can be told where a message of a leaf node comes from, …
    cdef public bint names_origins       # … and that tells of each origin's interest apart
    cdef public str only_queues_as       # the id of a server that knows QMSG; "": it does not
    cdef Sublist account                 # of a leaf node connection
    cdef bytes loop_subject              # … our own; b"": none
    cdef dict untaken                    # account not known here → {(origin, subject, queue): line}; None: too much
    cdef size_t untaken_bytes            # … of all these
    cdef OutBuf behind                   # what waits behind interest that it is being told; empty else
    cdef list pongs_due                  # for each PING without a PONG whether broker.server_fence has sent it
    cdef Sublist sublist                 # of the account named last
    cdef Repeat repeat
    cdef readonly uint64_t in_msgs
    cdef readonly uint64_t in_bytes
    cdef uint64_t acked_msgs             # of these, in front of its last PING that has a PONG
    cdef bint is_in_doubt                # some of the others may be lost: see Exchange.doubt()
    cdef public bint is_fenced           # its clients' PONGs wait for ours; else they promise nothing to anybody
    cdef readonly uint64_t subscriptions   # that it has told us
    cdef public uint64_t max_subscriptions   # … of which there may be so many; 0: any number
    cdef readonly uint64_t active_us     # when it last sent something
    cdef readonly uint64_t in_lines      # operations so far
    cdef uint64_t due_bytes              # write_timeout: close: it has to have taken so many (of out.taken_bytes) …
    cdef uint64_t due_since_us           # … within the write deadline from here on
    cdef uint32_t n_words                # INFO, -ERR, PING, PONG and refused messages in the last read
    cdef size_t told_bytes               # of interest in the last read
    cdef size_t much_told                # … since a read had much, while all have mostly that; 0: not now

    # Sends that, behind all that it was sent.
    cdef void append(self, const uint8_t *data, size_t n) noexcept
    cdef Py_ssize_t operate(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef Py_ssize_t message(self, const uint8_t *data, size_t size, ServerOp *op, Blob *whole) except -1
    cdef bint is_kept_out(self, Permissions permissions, ServerOp *op) except -1
    cdef bint make_message(self, const uint8_t *data, size_t total, ServerOp *op, Blob *whole,
                           Publish *message) noexcept
    cdef Entry *deliver_across(self, Sublist sublist, Entry *entry, Publish *message, bint is_reply,
                               Outcome *outcome) except? NULL
    cdef int forward(self, Sublist sublist, Entry *entry, Publish *message, ServerOp *op, bint names_groups,
                     Outcome *outcome) except -1
    cdef int send_on(self, Sublist sublist, Entry *entry, Publish *message, Token *queues, int n, uint64_t orphans,
                     uint64_t spared, Outcome *outcome) except -1
    cdef uint64_t send_to_formers(self, Sublist sublist, Token subject, Publish *message, Token *queues, int n,
                                  uint64_t orphans) except? 0xFFFFFFFFFFFFFFFF
    cdef void hold(self) noexcept
    cdef int slow_down(self, size_t size) except -1
    cdef bint may_rest(self) noexcept
    cdef int interest(self, const uint8_t *data, const uint8_t *end, ServerOp *op, bint wanted) except -1
    # Interest in an account that is not known here is kept until it is. False: it was too much, and is not.
    cdef int keep_untaken(self, const uint8_t *line, ServerOp *op, bint wanted) except -1
    cdef int forget_untaken(self, bytes account) except -1
    cdef bint take_untaken(self, bytes account) except -1
    cdef bint knows(self, Sublist sublist, ServerOp *op) noexcept
    cdef uint32_t weighed(self, Sublist sublist, ServerOp *op) noexcept
    cdef int add_up(self, Sublist sublist, ServerOp *op, bint wanted) except -1
    cdef int on_ping(self) except -1
    cdef int on_pong(self) except -1
    cdef bint may_hear(self, const uint8_t *subject, size_t size) noexcept
    cdef int broken(self, str why) except -1
    cdef Sublist sublist_of(self, ServerOp *op)
