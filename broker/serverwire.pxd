# The frames between servers: what nats-server says on a leaf node connection and on a route.
#
#   leaf node                                         route
#   LS+ <subject> [<queue> <weight>]                  RS+ <account> <subject> [<queue> <weight>]
#   LS- <subject> [<queue>]                           RS- <account> <subject> [<queue>]
#   LMSG <subject> [reply] <size>                     RMSG <account> <subject> [reply] <size>
#   LMSG <subject> | <queue>… <size>                  or + <reply> <queue>…, likewise
#   HMSG … <header size> <size>                       HMSG, likewise; LS+, LS- and LMSG with <origin> <account>
#   QMSG <been> <subject> |… <header size> <size>     QMSG <been> <account> <subject> |… likewise
#
# QMSG is ours: to members of its queue groups alone, and sent on because these had none where it was before: `been`
# are those servers, by the first letters of their ids, with commas. It goes to servers that say `only_queues`; for
# others, a frame that names groups is for plain subscriptions, too. Such is also one that begins with the name "+", and
# was nowhere. "~<id>~<number>" among the names is who has published it and wants no echo: a server and its client.
#
# Verbs in any case, blanks and line ends as in the client protocol. Unlike a sibling's (broker.routewire), these frames
# come from other programs.

from libc.stdint cimport uint8_t, uint32_t

from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token

cdef enum Dialect:
    DIALECT_LEAF = 0
    DIALECT_ROUTE = 1

cdef enum ServerOpKind:
    SERVER_MORE = 0
    SERVER_MSG
    SERVER_SUB
    SERVER_UNSUB
    SERVER_PING
    SERVER_PONG
    SERVER_INFO
    SERVER_CONNECT
    SERVER_ERR
    SERVER_IGNORED     # a line without meaning here, such as +OK
    SERVER_TOO_LONG    # a line or a payload over our bounds
    SERVER_BAD

cdef enum:
    # A control line that is read, with its verb: nats-server has no limit between servers. The read buffer is larger.
    # Its words have bounds of their own, as those of shards' frames have: account, subject and reply together
    # (fanout.MOST_ADDRESS_BYTES), and each group's name (MOST_KEY_BYTES). It goes on to others with these, and an
    # origin or where it was: so nobody is sent a line that is not read.
    MOST_SERVER_LINE_BYTES = 261888
    # The name of a leaf node's cluster in a frame.
    MOST_ORIGIN_BYTES = 1024
    # Queue groups named in one frame.
    MOST_SERVER_QUEUES = 1024

# Pointers VALID UNTIL THE NEXT READ.
ctypedef struct ServerOp:
    ServerOpKind kind
    size_t line_size
    Token argument           # INFO, CONNECT, -ERR: the rest of the line
    Token origin             # size 0: none
    Token account            # of a route's frame
    Token subject
    Token reply              # size 0: none
    Token *queues
    int n_queues
    uint32_t members         # with a queue
    uint32_t header_size
    uint32_t size
    bint names_origins       # SET BY THE CALLER: LS- of this route has an origin, as LS+ has
    bint only_queues         # QMSG
    Token been               # … the servers where it was
    bint is_plain            # without queues, in the canonical form: its tail can be sent on unchanged

# `tokens` has room for MOST_SERVER_QUEUES + 9.
cdef ServerOpKind parse_server_op(const uint8_t *data, size_t size, Dialect dialect, Token *tokens,
                                  ServerOp *op) noexcept nogil

# LS+ and LS-, or RS+ and RS-; queue_size 0: plain interest; members 0: the end of it. On a route, interest of a leaf
# node's cluster is LS+ and LS- with its name, `origin`; without one (b"") it is the server's own. False: refused.
cdef bint write_server_interest(OutBuf *out, Dialect dialect, bytes origin, const uint8_t *account, size_t account_size,
                                const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                                uint32_t members) noexcept
