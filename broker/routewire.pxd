# The frames between shards: the NATS server's own route protocol of the 2.x generation;
# deploy/LINK_PROTOCOL.md specifies them.
#
#   RS+ <account> <subject> [<queue> <members>]      RMSG <account> <subject> [reply] <size>\r\n<payload>\r\n
#   RS- <account> <subject> [<queue>]                RMSG <account> <subject> | <queue>… <size>    or + <reply> <queue>…
#                                                    HMSG … <header size> <size>: RMSG with a header
# and some of our own, for a queue message that found no member where it was sent (promise 4), and for
# back-pressure:
#   QMSG <id> <visited> <account> <subject> …        for these queue groups only; visited: mask of shards without one
#   QHMG …                                           QMSG with a header
#   QACK <id>                                        a member has taken it
#   QNAK <id>                                        no member, here or on any shard known here, can take it
#   QASK <id>                                        send QACK at once, which shows that all earlier frames arrived
#   XMSG …, XHMG …, XQMG …, XQHG …                   RMSG, HMSG, QMSG, QHMG of a message that came from another account
#   SLOW <account> <subject>                         a subscriber here is behind: make its publishers wait a little

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from gnatswarm.broker.fanout cimport MOST_QUEUES
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token

cdef enum RouteOpKind:
    ROUTE_MORE = 0
    ROUTE_MSG          # RMSG, HMSG, XMSG, XHMG
    ROUTE_QUEUE_MSG    # QMSG, QHMG, XQMG, XQHG
    ROUTE_SUB          # RS+
    ROUTE_UNSUB        # RS-
    ROUTE_QUEUE_ACK
    ROUTE_QUEUE_NAK
    ROUTE_ASK
    ROUTE_SLOW
    ROUTE_PING
    ROUTE_PONG
    ROUTE_INFO
    ROUTE_CONNECT
    ROUTE_ERR
    ROUTE_BAD          # an invalid frame: the link is closed

cdef enum:
    # Account, subject, reply and the queue names of one frame, with room to spare: each but the names comes from one
    # control line of a client, and names are spread over frames (fanout.MOST_NAME_BYTES).
    MOST_ROUTE_LINE_BYTES = 229376

# Pointers VALID UNTIL THE NEXT READ.
ctypedef struct RouteOp:
    RouteOpKind kind
    size_t line_size
    Token argument           # INFO, CONNECT, -ERR: the rest of the line
    Token account
    Token subject
    Token reply              # size 0: none
    Token queues[MOST_QUEUES]
    int n_queues
    uint32_t members         # RS+ with a queue
    uint32_t header_size
    uint32_t size
    uint64_t id              # QMSG, QACK, QNAK, QASK
    uint64_t visited         # QMSG
    bint is_across           # XMSG, XHMG, XQMG, XQHG
    bint is_plain            # RMSG without queues, in the canonical form: its tail can be sent on unchanged

cdef RouteOpKind parse_route_op(const uint8_t *data, size_t size, RouteOp *op) noexcept nogil

# RS+ or RS-; queue_size 0: plain interest; members 0: RS-. False: refused.
cdef bint write_interest(OutBuf *link, const uint8_t *account, size_t account_size, const uint8_t *subject, size_t size,
                         const uint8_t *queue, size_t queue_size, uint32_t members) noexcept
