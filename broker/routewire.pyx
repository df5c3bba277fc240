# cython: language_level=3, boundscheck=False, wraparound=False
"""Parses and writes the frames between shards; keeps no state between calls.

A sibling is the same program on the same host: anything but an exact frame is ROUTE_BAD, and ends the link. Sizes are
checked before anything is allocated nevertheless.
"""

from libc.string cimport memchr, memcmp, memcpy

from gnatswarm.broker.bounds import LARGEST_FRAME_PAYLOAD_BYTES
from gnatswarm.broker.frame_line cimport first_queue, rest_of_line, write_interest_words
from gnatswarm.broker.interest cimport MOST_SHARDS, SECOND_CHOICE
from gnatswarm.broker.outbuf cimport out_mark_dirty, out_reserve
from gnatswarm.broker.parser cimport match_verb, parse_number, split_line
from gnatswarm.broker.sublist cimport PREFIX_BYTES
from gnatswarm.broker.word cimport SLACK

cdef uint64_t MOST_PAYLOAD_BYTES = LARGEST_FRAME_PAYLOAD_BYTES

cdef enum:
    # The most words behind a verb: the four numbers of QMSG, account, subject, +, reply, groups, and two sizes.
    MOST_ROUTE_TOKENS = MOST_QUEUES + 10


cdef inline RouteOpKind finish(RouteOp *op, RouteOpKind kind) noexcept nogil:
    op.kind = kind
    return kind


cdef bint parse_u64(Token token, uint64_t *value) noexcept nogil:
    cdef size_t i
    value[0] = 0
    if token.size == 0 or token.size > 20:
        return False
    for i in range(token.size):
        if token.at[i] < c'0' or token.at[i] > c'9':
            return False
        value[0] = value[0] * 10 + token.at[i] - c'0'
    return True


cdef RouteOpKind parse_message(const uint8_t *data, const uint8_t *args, const uint8_t *end, RouteOp *op,
                               bint with_header, bint only_queues) noexcept nogil:
    cdef Token tokens[MOST_ROUTE_TOKENS]
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, MOST_ROUTE_TOKENS, &after, &single)
    cdef int numbers = 2 if with_header else 1
    cdef int first = 0, i
    cdef int64_t number
    if n == -1:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    op.line_size = after - data
    if only_queues:
        if n < 4 or not parse_u64(tokens[0], &op.id) or not parse_u64(tokens[1], &op.visited) \
                or not parse_u64(tokens[2], &op.been) or not parse_u64(tokens[3], &op.publisher):
            return finish(op, ROUTE_BAD)
        first = 4
    if n < first + 2 + numbers:
        return finish(op, ROUTE_BAD)
    number = parse_number(tokens[n - 1])
    if number < 0 or <uint64_t>number > MOST_PAYLOAD_BYTES:
        return finish(op, ROUTE_BAD)
    op.size = <uint32_t>number
    op.header_size = 0
    if with_header:
        number = parse_number(tokens[n - 2])
        if number < 0 or number > op.size:
            return finish(op, ROUTE_BAD)
        op.header_size = <uint32_t>number
    op.account = tokens[first]
    op.subject = tokens[first + 1]
    op.reply.at = NULL
    op.reply.size = 0
    op.n_queues = 0
    op.tail = NULL
    n -= numbers
    first += 2
    if n - first <= 1:
        if only_queues:
            return finish(op, ROUTE_BAD)
        if n > first:
            op.reply = tokens[first]
        if single:
            op.tail = op.subject.at + op.subject.size
        return finish(op, ROUTE_MSG)
    first = first_queue(tokens, first, &op.reply)
    if first < 0:
        return finish(op, ROUTE_BAD)
    if n - first < 1 or n - first > MOST_QUEUES:
        return finish(op, ROUTE_BAD)
    for i in range(first, n):
        op.queues[op.n_queues] = tokens[i]
        op.n_queues += 1
    if single and op.reply.size == 0:
        op.tail = tokens[n - 1].at + tokens[n - 1].size
    return finish(op, ROUTE_QUEUE_MSG if only_queues else ROUTE_MSG)


cdef RouteOpKind parse_interest(const uint8_t *data, const uint8_t *args, const uint8_t *end, RouteOp *op,
                                bint wanted) noexcept nogil:
    cdef Token tokens[5]
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, 5, &after, &single)
    cdef int64_t members
    if n == -1:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    if n < 2:
        return finish(op, ROUTE_BAD)
    op.line_size = after - data
    op.account = tokens[0]
    op.subject = tokens[1]
    op.n_queues = 0
    op.members = 0
    if n > 2:
        op.queues[0] = tokens[2]
        op.n_queues = 1
    if n == 2 or (n == 3 and not wanted):
        return finish(op, ROUTE_SUB if wanted else ROUTE_UNSUB)
    if n != 4 or not wanted:
        return finish(op, ROUTE_BAD)
    members = parse_number(tokens[3])
    if members < 0:
        return finish(op, ROUTE_BAD)
    op.members = <uint32_t>members if members else SECOND_CHOICE | 1
    return finish(op, ROUTE_SUB)


cdef RouteOpKind parse_move(const uint8_t *data, const uint8_t *args, const uint8_t *end, RouteOp *op,
                            RouteOpKind kind) noexcept nogil:
    """[<old>] <id> [<outcome or number>] [<size>]"""
    cdef Token tokens[4]
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, 4, &after, &single)
    cdef int at = 0
    cdef int64_t number
    if n == -1:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    op.line_size = after - data
    op.size = op.members = 0
    if n != (2 if kind <= ROUTE_COUNT or kind == ROUTE_MARK else 1 if kind <= ROUTE_STOP
             else 4 if kind == ROUTE_MOVED else 3):
        return finish(op, ROUTE_BAD)
    if kind >= ROUTE_MARK:
        number = parse_number(tokens[0])
        if number < 0 or number >= MOST_SHARDS:
            return finish(op, ROUTE_BAD)
        op.old_shard = <int>number
        at = 1
    if not parse_u64(tokens[at], &op.id):
        return finish(op, ROUTE_BAD)
    if kind >= ROUTE_ASK_MARK:
        at += 1
        number = parse_number(tokens[at])
        if number < 0 or (kind == ROUTE_MOVED and number > 1):
            return finish(op, ROUTE_BAD)
        op.members = <uint32_t>number
    if has_words(kind):
        number = parse_number(tokens[at + 1])
        if not 0 <= number <= <int64_t>MOST_MOVE_BYTES:
            return finish(op, ROUTE_BAD)
        op.size = <uint32_t>number
    return finish(op, kind)


cdef RouteOpKind parse_queue_end(const uint8_t *data, const uint8_t *args, const uint8_t *end,
                                 RouteOp *op) noexcept nogil:
    """<id> <account> <subject> <queue>"""
    cdef Token tokens[5]
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, 5, &after, &single)
    if n == -1:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    if n != 4 or not parse_u64(tokens[0], &op.id):
        return finish(op, ROUTE_BAD)
    op.line_size = after - data
    op.account = tokens[1]
    op.subject = tokens[2]
    op.queues[0] = tokens[3]
    op.n_queues = 1
    return finish(op, ROUTE_QUEUE_END)


cdef RouteOpKind parse_none(const uint8_t *data, const uint8_t *args, const uint8_t *end, RouteOp *op) noexcept nogil:
    """<number> <account> <subject> <reply>"""
    cdef Token tokens[5]
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, 5, &after, &single)
    if n == -1:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    if n != 4 or not parse_u64(tokens[0], &op.id):
        return finish(op, ROUTE_BAD)
    op.line_size = after - data
    op.account = tokens[1]
    op.subject = tokens[2]
    op.reply = tokens[3]
    op.n_queues = 0
    return finish(op, ROUTE_NONE)


cdef bint is_prefix(Token token) noexcept nogil:
    """`_R_.<shard, two hex digits><boot>.`"""
    cdef const uint8_t *at = token.at
    return token.size == PREFIX_BYTES and memcmp(at, b'_R_.', 4) == 0 and c'0' <= at[4] <= c'3' \
        and (c'0' <= at[5] <= c'9' or c'a' <= at[5] <= c'f') and memchr(at + 6, c'.', PREFIX_BYTES - 7) == NULL \
        and at[PREFIX_BYTES - 1] == c'.'


cdef RouteOpKind parse_prefix(const uint8_t *data, const uint8_t *args, const uint8_t *end, RouteOp *op,
                              RouteOpKind kind) noexcept nogil:
    """<prefix> [<times>] [<shard>] [<last> <size>]"""
    cdef Token tokens[4]
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, 4, &after, &single)
    cdef int64_t number
    if n == -1:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    if n != (1 if kind == ROUTE_DROP else 3 if kind == ROUTE_DUE else 2):
        return finish(op, ROUTE_BAD)
    op.line_size = after - data
    op.subject = tokens[0]
    op.size = op.members = 0
    if not is_prefix(tokens[0]):
        return finish(op, ROUTE_BAD)
    if (kind == ROUTE_TAKE or kind == ROUTE_OWN) and not parse_u64(tokens[1], &op.id):
        return finish(op, ROUTE_BAD)
    if kind == ROUTE_GOES:
        number = parse_number(tokens[1])
        if number < 0 or number >= MOST_SHARDS:
            return finish(op, ROUTE_BAD)
        op.old_shard = <int>number
    if kind == ROUTE_DUE:
        number = parse_number(tokens[1])
        if number < 0 or number > 1:
            return finish(op, ROUTE_BAD)
        op.members = <uint32_t>number
        number = parse_number(tokens[2])
        if not 0 <= number <= <int64_t>MOST_PAYLOAD_BYTES:
            return finish(op, ROUTE_BAD)
        op.size = <uint32_t>number
    return finish(op, kind)


cdef RouteOpKind parse_route_op(const uint8_t *data, size_t size, RouteOp *op) noexcept nogil:
    cdef const uint8_t *end = data + size
    cdef const uint8_t *newline
    cdef const uint8_t *args
    cdef RouteOpKind kind
    cdef const char *verb
    cdef size_t verb_size
    cdef int matched
    if size < 5:   # every frame has a verb and at least one more byte
        return finish(op, ROUTE_MORE)
    op.is_across = False
    if data[0] == c'R' and data[1] == c'M':
        kind, verb, verb_size = ROUTE_MSG, b'rmsg ', 5
    elif data[0] == c'H':
        kind, verb, verb_size = ROUTE_MSG, b'hmsg ', 5
    elif data[0] == c'R' and data[1] == c'S':
        if data[2] == c'+':
            kind, verb, verb_size = ROUTE_SUB, b'rs+ ', 4
        else:
            kind, verb, verb_size = ROUTE_UNSUB, b'rs- ', 4
    elif data[0] == c'R' and data[1] == c'T':
        kind, verb, verb_size = ROUTE_TAKE, b'rtake ', 6
    elif data[0] == c'R' and data[1] == c'O':
        kind, verb, verb_size = ROUTE_OWN, b'rown ', 5
    elif data[0] == c'R' and data[1] == c'G':
        kind, verb, verb_size = ROUTE_GOES, b'rgoes ', 6
    elif data[0] == c'R' and data[1] == c'D' and data[2] == c'R':
        kind, verb, verb_size = ROUTE_DROP, b'rdrop ', 6
    elif data[0] == c'R':
        kind, verb, verb_size = ROUTE_DUE, b'rdue ', 5
    elif data[0] == c'P' and data[1] == c'I':
        kind, verb, verb_size = ROUTE_PING, b'ping', 4
    elif data[0] == c'P':
        kind, verb, verb_size = ROUTE_PONG, b'pong', 4
    elif data[0] == c'Q' and data[1] == c'M':
        kind, verb, verb_size = ROUTE_QUEUE_MSG, b'qmsg ', 5
    elif data[0] == c'Q' and data[1] == c'H':
        kind, verb, verb_size = ROUTE_QUEUE_MSG, b'qhmg ', 5
    elif data[0] == c'X' and data[1] == c'M':
        kind, verb, verb_size = ROUTE_MSG, b'xmsg ', 5
        op.is_across = True
    elif data[0] == c'X' and data[1] == c'H':
        kind, verb, verb_size = ROUTE_MSG, b'xhmg ', 5
        op.is_across = True
    elif data[0] == c'X' and data[2] == c'M':
        kind, verb, verb_size = ROUTE_QUEUE_MSG, b'xqmg ', 5
        op.is_across = True
    elif data[0] == c'X':
        kind, verb, verb_size = ROUTE_QUEUE_MSG, b'xqhg ', 5
        op.is_across = True
    elif data[0] == c'Q' and data[1] == c'A' and data[2] == c'S':
        kind, verb, verb_size = ROUTE_ASK, b'qask ', 5
    elif data[0] == c'Q' and data[1] == c'E':
        kind, verb, verb_size = ROUTE_QUEUE_END, b'qend ', 5
    elif data[0] == c'Q' and data[1] == c'N':
        kind, verb, verb_size = ROUTE_QUEUE_NAK, b'qnak ', 5
    elif data[0] == c'Q':
        kind, verb, verb_size = ROUTE_QUEUE_ACK, b'qack ', 5
    elif data[0] == c'N':
        kind, verb, verb_size = ROUTE_NONE, b'none ', 5
    elif data[0] == c'S':
        kind, verb, verb_size = ROUTE_SLOW, b'slow ', 5
    elif data[0] == c'M' and data[1] == c'S' and data[2] == c'H':
        kind, verb, verb_size = ROUTE_SHIFT, b'mshift ', 7
    elif data[0] == c'M' and data[1] == c'S':
        kind, verb, verb_size = ROUTE_STOP, b'mstop ', 6
    elif data[0] == c'M' and data[1] == c'P':
        kind, verb, verb_size = ROUTE_PART, b'mpart ', 6
    elif data[0] == c'M' and data[1] == c'N':
        kind, verb, verb_size = ROUTE_NEXT, b'mnext ', 6
    elif data[0] == c'M' and data[1] == c'C':
        kind, verb, verb_size = ROUTE_COUNT, b'mcount ', 7
    elif data[0] == c'M' and data[1] == c'D':
        kind, verb, verb_size = ROUTE_DONE, b'mdone ', 6
    elif data[0] == c'M' and data[1] == c'A' and data[4] == c'Q':
        kind, verb, verb_size = ROUTE_ASK_MARK, b'markq ', 6
    elif data[0] == c'M' and data[1] == c'A':
        kind, verb, verb_size = ROUTE_MARK, b'mark ', 5
    elif data[0] == c'M' and data[4] == c'D':
        kind, verb, verb_size = ROUTE_MOVED, b'moved ', 6
    elif data[0] == c'M':
        kind, verb, verb_size = ROUTE_MOVE, b'move ', 5
    elif data[0] == c'I':
        kind, verb, verb_size = ROUTE_INFO, b'info ', 5
    elif data[0] == c'C':
        kind, verb, verb_size = ROUTE_CONNECT, b'connect ', 8
    elif data[0] == c'B':
        kind, verb, verb_size = ROUTE_BYE, b'bye', 3
    else:
        kind, verb, verb_size = ROUTE_ERR, b'-err', 4
    matched = match_verb(data, end, verb, verb_size)
    if matched <= 0:
        return finish(op, ROUTE_BAD if matched < 0 else ROUTE_MORE)
    args = data + verb_size
    if kind == ROUTE_MSG:
        return parse_message(data, args, end, op, data[0] == c'H' or (op.is_across and data[1] == c'H'), False)
    if kind == ROUTE_QUEUE_MSG:
        return parse_message(data, args, end, op, data[2 if op.is_across else 1] == c'H', True)
    if kind == ROUTE_SUB or kind == ROUTE_UNSUB:
        return parse_interest(data, args, end, op, kind == ROUTE_SUB)
    if kind == ROUTE_SLOW:
        kind = parse_interest(data, args, end, op, False)
        if kind == ROUTE_UNSUB:
            return finish(op, ROUTE_BAD if op.n_queues else ROUTE_SLOW)
        return kind
    if kind == ROUTE_NONE:
        return parse_none(data, args, end, op)
    if kind == ROUTE_QUEUE_END:
        return parse_queue_end(data, args, end, op)
    if ROUTE_MOVE <= kind <= ROUTE_MOVED:
        return parse_move(data, args, end, op, kind)
    if ROUTE_TAKE <= kind <= ROUTE_DUE:
        return parse_prefix(data, args, end, op, kind)
    newline = <const uint8_t *>memchr(args, c'\n', end - args)
    if newline == NULL:
        return finish(op, ROUTE_BAD if end - args > MOST_ROUTE_LINE_BYTES else ROUTE_MORE)
    op.line_size = newline + 1 - data
    op.argument = rest_of_line(args, newline)
    if (kind == ROUTE_QUEUE_ACK or kind == ROUTE_QUEUE_NAK or kind == ROUTE_ASK) and not parse_u64(op.argument, &op.id):
        return finish(op, ROUTE_BAD)
    return finish(op, kind)


cdef bint write_interest(OutBuf *link, const uint8_t *account, size_t account_size, const uint8_t *subject, size_t size,
                         const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
    cdef uint8_t *to = out_reserve(link, account_size + size + queue_size + 24)
    cdef size_t n
    if to == NULL:
        return False
    memcpy(to, b'RS+ ' if members else b'RS- ', 4)
    n = 4
    memcpy(to + n, account, account_size)
    n += account_size
    to[n] = c' '
    n += 1
    n += write_interest_words(to + n, subject, size, queue, queue_size, members != 0,
                              0 if members & SECOND_CHOICE else members)
    link.pos += n
    out_mark_dirty(link)
    return True


def parse_route(bytes data not None) -> dict:
    """One frame of `data` as a dictionary (for tests)."""
    cdef bytes padded = data + bytes(SLACK)
    cdef RouteOp op
    cdef RouteOpKind kind = parse_route_op(<const uint8_t *><const char *>padded, len(data), &op)
    cdef RouteOp plain
    if parse_plain_message(<const uint8_t *><const char *>padded, len(data), &plain) and not (
            kind == ROUTE_MSG and plain.line_size == op.line_size and plain.account.at == op.account.at
            and plain.account.size == op.account.size and plain.subject.at == op.subject.at
            and plain.subject.size == op.subject.size and op.reply.size == 0 and op.n_queues == 0
            and plain.size == op.size and op.header_size == 0 and not op.is_across and plain.tail == op.tail):
        raise AssertionError(f"the short way to an RMSG says something else than {kind} for {data[:100]}")
    names = {ROUTE_MORE: "MORE", ROUTE_MSG: "MSG", ROUTE_QUEUE_MSG: "QUEUE_MSG", ROUTE_SUB: "SUB",
             ROUTE_UNSUB: "UNSUB", ROUTE_QUEUE_ACK: "QUEUE_ACK", ROUTE_QUEUE_NAK: "QUEUE_NAK",
             ROUTE_SLOW: "SLOW", ROUTE_NONE: "NONE",
             ROUTE_MOVE: "MOVE", ROUTE_STOP: "STOP", ROUTE_ASK_MARK: "ASK_MARK", ROUTE_MARK: "MARK",
             ROUTE_MOVED: "MOVED", ROUTE_PART: "PART", ROUTE_NEXT: "NEXT", ROUTE_SHIFT: "SHIFT", ROUTE_COUNT: "COUNT",
             ROUTE_DONE: "DONE", ROUTE_TAKE: "TAKE", ROUTE_OWN: "OWN", ROUTE_GOES: "GOES", ROUTE_DROP: "DROP",
             ROUTE_DUE: "DUE",
             ROUTE_ASK: "ASK", ROUTE_QUEUE_END: "QUEUE_END", ROUTE_PING: "PING", ROUTE_PONG: "PONG",
             ROUTE_INFO: "INFO", ROUTE_CONNECT: "CONNECT", ROUTE_BYE: "BYE", ROUTE_ERR: "ERR", ROUTE_BAD: "BAD"}
    found = {"op": names[kind]}
    if kind in (ROUTE_MSG, ROUTE_QUEUE_MSG, ROUTE_SUB, ROUTE_UNSUB, ROUTE_SLOW, ROUTE_NONE, ROUTE_QUEUE_END):
        found["account"] = op.account.at[:op.account.size]
        found["subject"] = op.subject.at[:op.subject.size]
        found["queues"] = [op.queues[i].at[:op.queues[i].size] for i in range(op.n_queues)]
    if kind == ROUTE_NONE:
        found["reply"] = op.reply.at[:op.reply.size]
    if kind in (ROUTE_MSG, ROUTE_QUEUE_MSG):
        found["reply"] = op.reply.at[:op.reply.size] if op.reply.size else b""
        found.update(size=op.size, header_size=op.header_size, line_size=op.line_size)
        if op.is_across:
            found["is_across"] = True
    if kind == ROUTE_QUEUE_MSG:
        found.update(id=op.id, visited=op.visited, been=op.been, publisher=op.publisher)
    if kind == ROUTE_SUB:
        found["members"] = op.members
    if ROUTE_MOVE <= kind <= ROUTE_MOVED:
        found.update(id=op.id, size=op.size, line_size=op.line_size)
        if kind >= ROUTE_MARK:
            found["old_shard"] = op.old_shard
        if kind == ROUTE_MOVED:
            found["outcome"] = op.members
        elif kind >= ROUTE_ASK_MARK:
            found["shifts"] = op.members
    if ROUTE_TAKE <= kind <= ROUTE_DUE:
        found.update(prefix=op.subject.at[:op.subject.size], line_size=op.line_size)
        if kind == ROUTE_TAKE or kind == ROUTE_OWN:
            found["times"] = op.id
        if kind == ROUTE_GOES:
            found["shard"] = op.old_shard
        if kind == ROUTE_DUE:
            found.update(is_last=op.members, size=op.size)
    if kind in (ROUTE_QUEUE_ACK, ROUTE_QUEUE_NAK, ROUTE_ASK, ROUTE_QUEUE_END, ROUTE_NONE):
        found["id"] = op.id
    return found
