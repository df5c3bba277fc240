# The frames between shards: the NATS server's own route protocol of the 2.x generation;
# deploy/LINK_PROTOCOL.md specifies them.
#
#   RS+ <account> <subject> [<queue> <members>]      RMSG <account> <subject> [reply] <size>\r\n<payload>\r\n
#   RS- <account> <subject> [<queue>]                RMSG <account> <subject> | <queue>… <size>    or + <reply> <queue>…
#                                                    HMSG … <header size> <size>: RMSG with a header
# and some of our own, for a queue message that found no member where it was sent (promise 4), and for
# back-pressure:
#   QMSG <id> <visited> <been> <publisher> <account> <subject> … for these queue groups only; visited: mask of shards
#                                           without one
#   QHMG …                                           QMSG with a header
#   QACK <id>                                        a member has taken it
#   QNAK <id>                                        no member, here or on any shard known here, can take it
#   QASK <id>                                        send QACK at once, which shows that all earlier frames arrived
#   QEND <id> <account> <subject> <queue>            to the gateway: a member here has left, and lingers until QACK
#   XMSG …, XHMG …, XQMG …, XQHG …                   RMSG, HMSG, QMSG, QHMG of a message that came from another account
#   MOVE <id> <size>\r\n<offer>\r\n                  connections of mine that are to move to you
#   MSTOP <id>                                       do not go on with it, if you can
#   MARKQ <old> <id> <size>\r\n<shifts>\r\n           mark, on both links, where your messages begin to go to me
#   MARK <old> <id>                                  here: what comes behind is for the new shard
#   MOVED <old> <id> <outcome> <size>\r\n<why>\r\n    my counts of queue members begin (end) to have them
#   RTAKE <prefix> <times>                           pass on the replies with this prefix of mine
#   ROWN <prefix> <times>                            replies with this prefix go to me
#   RGOES <prefix> <shard>                           from here on my replies with it go to that one
#   RDROP <prefix>                                   I pass on none with this prefix
#   RDUE <prefix> <last> <size>\r\n<replies>\r\n      what is due with it; last: and now you pass it on
#   NONE <number> <account> <subject> <reply>        nobody here has taken your n-th message, which is a request
#   SLOW <account> <subject>                         a subscriber here is behind: make its publishers wait a little
#   BYE                                              I leave: the end of the link that follows is no fault

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from gnatswarm.broker.fanout cimport MOST_QUEUES
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token, token_end
from gnatswarm.broker.word cimport load32

cdef enum RouteOpKind:
    ROUTE_MORE = 0
    ROUTE_MSG          # RMSG, HMSG, XMSG, XHMG
    ROUTE_QUEUE_MSG    # QMSG, QHMG, XQMG, XQHG
    ROUTE_SUB          # RS+
    ROUTE_UNSUB        # RS-
    ROUTE_QUEUE_ACK
    ROUTE_QUEUE_NAK
    ROUTE_ASK
    ROUTE_QUEUE_END
    ROUTE_SLOW
    ROUTE_NONE
    ROUTE_PING
    ROUTE_PONG
    ROUTE_INFO
    ROUTE_CONNECT
    ROUTE_BYE
    ROUTE_MOVE
    ROUTE_PART         # MPART
    ROUTE_COUNT        # MCOUNT
    ROUTE_NEXT         # MNEXT
    ROUTE_STOP         # MSTOP
    ROUTE_MARK
    ROUTE_SHIFT        # MSHIFT
    ROUTE_ASK_MARK     # MARKQ
    ROUTE_DONE         # MDONE
    ROUTE_MOVED
    ROUTE_TAKE         # RTAKE
    ROUTE_OWN          # ROWN
    ROUTE_GOES         # RGOES
    ROUTE_DROP         # RDROP
    ROUTE_DUE          # RDUE
    ROUTE_ERR
    ROUTE_BAD          # an invalid frame: the link is closed

cdef enum:
    LARGEST_PAYLOAD_BYTES = 68157440   # of any message, whatever max_payload says (broker.bounds)
    # Account, subject and reply (fanout.MOST_ADDRESS_BYTES), the queue names of one frame (fanout.MOST_NAME_BYTES, or
    # one of MOST_KEY_BYTES), numbers. With its verb a line must fit the read buffer, 262,144 bytes.
    MOST_ROUTE_LINE_BYTES = 261888
    MOST_MOVE_BYTES = 16777216        # of what a frame about a move has behind its line

# Pointers VALID UNTIL THE NEXT READ.
ctypedef struct RouteOp:
    RouteOpKind kind
    size_t line_size
    Token argument           # INFO, CONNECT, -ERR: the rest of the line
    Token account
    Token subject            # RTAKE, ROWN, RDROP, RDUE: the prefix
    Token reply              # size 0: none
    Token queues[MOST_QUEUES]
    int n_queues
    uint32_t members         # RS+ with a queue; MOVED: outcome, 1: they have moved; RDUE: last, 1: no more follow
    uint32_t header_size
    uint32_t size
    uint64_t id              # QMSG, QACK, QNAK, QASK, QEND, and of moves; RTAKE, ROWN: times; NONE: number
    int old_shard            # MARKQ, MARK, MOVED: whose move it is; RGOES: where replies go
    uint64_t visited         # QMSG
    uint64_t been            # QMSG: see Orphan.been
    uint64_t publisher       # QMSG: see Publish
    bint is_across           # XMSG, XHMG, XQMG, XQHG
    const uint8_t *tail      # " [reply] [header] size\r\n", if it is in a form that can be sent on unchanged, or NULL

cdef RouteOpKind parse_route_op(const uint8_t *data, size_t size, RouteOp *op) noexcept nogil

# Only "RMSG <account> <subject> <size>\r\n" exactly as shards write it: a fast path with the same result as
# parse_route_op.
cdef inline bint parse_plain_message(const uint8_t *data, size_t size, RouteOp *op) noexcept nogil:
    cdef const uint8_t *end = data + size
    cdef const uint8_t *account = data + 5
    cdef const uint8_t *subject
    cdef const uint8_t *digits
    cdef const uint8_t *at
    cdef uint32_t n = 0, digit
    if size < 13 or load32(data) != 0x47534d52 or data[4] != c' ':   # "RMSG", as a little-endian machine reads it
        return False
    at = token_end(account, end)
    if at == account or at == end or at[0] != c' ':
        return False
    subject = at + 1
    op.account.size = at - account
    at = token_end(subject, end)
    if at == subject or end - at < 4 or at[0] != c' ' or at - account > MOST_ROUTE_LINE_BYTES - 16:
        return False
    op.subject.size = at - subject
    digits = at + 1
    at = digits
    digit = at[0] - <uint32_t>c'0'
    if digit > 9:
        return False
    while digit <= 9:
        n = n * 10 + digit
        at += 1
        digit = at[0] - <uint32_t>c'0'   # at most at `end`, which is readable
    if end - at < 2 or at[0] != c'\r' or at[1] != c'\n' or at - digits > 9 or n > LARGEST_PAYLOAD_BYTES:
        return False
    op.kind = ROUTE_MSG
    op.line_size = at + 2 - data
    op.account.at = account
    op.subject.at = subject
    op.reply.at = NULL
    op.reply.size = 0
    op.n_queues = 0
    op.header_size = 0
    op.size = n
    op.is_across = False
    op.tail = digits - 1
    return True

# RS+ or RS-; queue_size 0: plain interest; members 0: RS-; of SECOND_CHOICE the number is not told. False: refused.
cdef bint write_interest(OutBuf *link, const uint8_t *account, size_t account_size, const uint8_t *subject, size_t size,
                         const uint8_t *queue, size_t queue_size, uint32_t members) noexcept


# Whether a frame about a move has more behind its line.
cdef inline bint has_words(RouteOpKind kind) noexcept nogil:
    return kind <= ROUTE_COUNT or kind == ROUTE_SHIFT or kind == ROUTE_MOVED
