# cython: language_level=3, boundscheck=False, wraparound=False
"""Parses and writes the frames between servers; keeps no state between calls.

The other end is another program, perhaps a hostile one: lines and payloads have bounds of our own, which are checked
before anything is allocated.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcpy

from gnatswarm.broker.bounds import LARGEST_FRAME_PAYLOAD_BYTES
from gnatswarm.broker.frame_line cimport first_queue, rest_of_line, write_interest_words
from gnatswarm.broker.outbuf cimport out_mark_dirty, out_reserve
from gnatswarm.broker.parser cimport match_verb, parse_number, split_line
from gnatswarm.broker.word cimport SLACK

cdef uint64_t MOST_PAYLOAD_BYTES = LARGEST_FRAME_PAYLOAD_BYTES


cdef inline ServerOpKind finish(ServerOp *op, ServerOpKind kind) noexcept nogil:
    op.kind = kind
    return kind


cdef ServerOpKind parse_message(const uint8_t *data, const uint8_t *args, const uint8_t *end, int words,
                                Token *tokens, ServerOp *op, bint with_header) noexcept nogil:
    """`words` stand in front of the subject: none, an account, or origin and account; with `only_queues` one more:
    where it was."""
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, MOST_SERVER_QUEUES + 9, &after, &single)
    cdef int numbers = 2 if with_header else 1
    cdef int first
    cdef int64_t number
    if n == -1:
        return finish(op, SERVER_TOO_LONG if end - args > MOST_SERVER_LINE_BYTES else SERVER_MORE)
    if n == -2 or after - data > MOST_SERVER_LINE_BYTES:
        return finish(op, SERVER_TOO_LONG)
    op.line_size = after - data
    if n < words + 1 + numbers:
        return finish(op, SERVER_BAD)
    number = parse_number(tokens[n - 1])
    if number < 0:
        return finish(op, SERVER_BAD)
    if <uint64_t>number > MOST_PAYLOAD_BYTES:
        return finish(op, SERVER_TOO_LONG)
    op.size = <uint32_t>number
    if with_header:
        number = parse_number(tokens[n - 2])
        if number < 0 or number > op.size:
            return finish(op, SERVER_BAD)
        op.header_size = <uint32_t>number
    n -= numbers
    if op.only_queues:
        op.been = tokens[0]
        words -= 1
        tokens += 1
        n -= 1
    if words == 2:
        op.origin = tokens[0]
    if words:
        op.account = tokens[words - 1]
    op.subject = tokens[words]
    first = words + 1
    if n - first <= 1:
        if op.only_queues:
            return finish(op, SERVER_BAD)
        if n > first:
            op.reply = tokens[first]
        op.is_plain = single and (not with_header or op.header_size != 0)
        return finish(op, SERVER_MSG)
    first = first_queue(tokens, first, &op.reply)
    if first < 0:
        return finish(op, SERVER_BAD)
    if n - first < 1:
        return finish(op, SERVER_BAD)
    op.queues = tokens + first
    op.n_queues = n - first
    return finish(op, SERVER_MSG)


cdef ServerOpKind parse_interest(const uint8_t *data, const uint8_t *args, const uint8_t *end, int words,
                                 Token *tokens, ServerOp *op, bint wanted) noexcept nogil:
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, 6, &after, &single)
    cdef int64_t members
    if n == -1:
        return finish(op, SERVER_TOO_LONG if end - args > MOST_SERVER_LINE_BYTES else SERVER_MORE)
    op.line_size = after - data
    if n < words + 1 or op.line_size > MOST_SERVER_LINE_BYTES:
        return finish(op, SERVER_BAD)
    if words == 2:
        op.origin = tokens[0]
    if words:
        op.account = tokens[words - 1]
    op.subject = tokens[words]
    n -= words + 1
    if n:
        op.queues = tokens + words + 1
        op.n_queues = 1
    if n == 0 or (n == 1 and not wanted):
        return finish(op, SERVER_SUB if wanted else SERVER_UNSUB)
    if n != 2 or not wanted:
        return finish(op, SERVER_BAD)
    members = parse_number(tokens[words + 2])
    if members < 0:
        return finish(op, SERVER_BAD)
    op.members = <uint32_t>members
    return finish(op, SERVER_SUB)


cdef ServerOpKind parse_server_op(const uint8_t *data, size_t size, Dialect dialect, Token *tokens,
                                  ServerOp *op) noexcept nogil:
    cdef const uint8_t *end = data + size
    cdef const uint8_t *newline
    cdef const uint8_t *args
    cdef ServerOpKind kind
    cdef const char *verb
    cdef size_t verb_size
    cdef int matched
    cdef int words = 0 if dialect == DIALECT_LEAF else 1
    cdef bint with_header = False
    cdef uint8_t first, second
    op.origin.size = op.account.size = op.reply.size = 0
    op.n_queues = 0
    op.members = op.header_size = op.size = 0
    op.is_plain = op.only_queues = False
    if size < 3:
        if size and (data[0] == c'\n' or data[0] == c'\r'):
            op.line_size = 1
            return finish(op, SERVER_IGNORED)
        return finish(op, SERVER_MORE)
    first = data[0] | 0x20
    second = data[1] | 0x20
    if first == c'l' and second == c'm' or first == c'r' and second == c'm' and dialect == DIALECT_ROUTE:
        kind, verb, verb_size = SERVER_MSG, (b'lmsg ' if first == c'l' else b'rmsg '), 5
        if first == c'l' and dialect == DIALECT_ROUTE:
            words = 2
            with_header = True
    elif first == c'h':
        kind, verb, verb_size = SERVER_MSG, b'hmsg ', 5
        with_header = True
    elif first == c'q':
        kind, verb, verb_size = SERVER_MSG, b'qmsg ', 5
        op.only_queues = with_header = True
        words += 1
    elif second == c's' and (first == c'l' or first == c'r' and dialect == DIALECT_ROUTE):
        kind = SERVER_SUB if data[2] == c'+' else SERVER_UNSUB
        if first == c'l':
            verb, verb_size = (b'ls+ ' if data[2] == c'+' else b'ls- '), 4
        else:
            verb, verb_size = (b'rs+ ' if data[2] == c'+' else b'rs- '), 4
        # (LS- has an origin if both ends said so)
        if first == c'l' and dialect == DIALECT_ROUTE and (kind == SERVER_SUB or op.names_origins):
            words = 2
    elif first == c'p' and second == c'i':
        kind, verb, verb_size = SERVER_PING, b'ping', 4
    elif first == c'p' and second == c'o':
        kind, verb, verb_size = SERVER_PONG, b'pong', 4
    elif first == c'i':
        kind, verb, verb_size = SERVER_INFO, b'info ', 5
    elif first == c'c':
        kind, verb, verb_size = SERVER_CONNECT, b'connect ', 8
    elif data[0] == c'-':
        kind, verb, verb_size = SERVER_ERR, b'-err', 4
    elif data[0] == c'+':
        kind, verb, verb_size = SERVER_IGNORED, b'+ok', 3
    elif first == c'a' and (data[1] == c'+' or data[1] == c'-'):
        kind, verb, verb_size = SERVER_IGNORED, b'a', 1
    elif data[0] == c'\r' or data[0] == c'\n':
        op.line_size = 1
        return finish(op, SERVER_IGNORED)
    else:
        return finish(op, SERVER_BAD)
    matched = match_verb(data, end, verb, verb_size)
    if matched <= 0:
        return finish(op, SERVER_BAD if matched < 0 else SERVER_MORE)
    args = data + verb_size
    if kind == SERVER_MSG:
        return parse_message(data, args, end, words, tokens, op, with_header)
    if kind == SERVER_SUB or kind == SERVER_UNSUB:
        return parse_interest(data, args, end, words, tokens, op, kind == SERVER_SUB)
    newline = <const uint8_t *>memchr(args, c'\n', end - args)
    if newline == NULL or newline - data > MOST_SERVER_LINE_BYTES:
        return finish(op, SERVER_TOO_LONG if end - args > MOST_SERVER_LINE_BYTES else SERVER_MORE)
    op.line_size = newline + 1 - data
    op.argument = rest_of_line(args, newline)
    return finish(op, kind)


cdef bint write_server_interest(OutBuf *out, Dialect dialect, bytes origin, const uint8_t *account, size_t account_size,
                                const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                                uint32_t members) noexcept:
    cdef const uint8_t *name = origin
    cdef size_t n = 4, origin_size = len(origin)
    cdef uint8_t *to = out_reserve(out, origin_size + account_size + size + queue_size + 28)
    if to == NULL:
        return False
    if dialect == DIALECT_ROUTE and origin_size == 0:
        memcpy(to, b'RS+ ' if members else b'RS- ', 4)
    else:
        memcpy(to, b'LS+ ' if members else b'LS- ', 4)
    if dialect == DIALECT_ROUTE:
        if origin_size:
            memcpy(to + n, name, origin_size)
            n += origin_size
            to[n] = c' '
            n += 1
        memcpy(to + n, account, account_size)
        n += account_size
        to[n] = c' '
        n += 1
    n += write_interest_words(to + n, subject, size, queue, queue_size, members != 0, members)
    out.pos += n
    out_mark_dirty(out)
    return True


def parse_server(bytes data not None, *, bint is_route, bint names_origins=False) -> dict:
    """One frame of `data` as a dictionary (for tests)."""
    cdef bytes padded = data + bytes(SLACK)
    cdef Token tokens[MOST_SERVER_QUEUES + 9]
    cdef ServerOp op
    cdef ServerOpKind kind
    op.names_origins = names_origins
    kind = parse_server_op(<const uint8_t *><const char *>padded, len(data),
                           DIALECT_ROUTE if is_route else DIALECT_LEAF, tokens, &op)
    names = {SERVER_MORE: "MORE", SERVER_MSG: "MSG", SERVER_SUB: "SUB", SERVER_UNSUB: "UNSUB", SERVER_PING: "PING",
             SERVER_PONG: "PONG", SERVER_INFO: "INFO", SERVER_CONNECT: "CONNECT", SERVER_ERR: "ERR",
             SERVER_IGNORED: "IGNORED", SERVER_TOO_LONG: "TOO_LONG", SERVER_BAD: "BAD"}
    found = {"op": names[kind]}
    if kind in (SERVER_MSG, SERVER_SUB, SERVER_UNSUB):
        found["subject"] = op.subject.at[:op.subject.size]
        found["queues"] = [op.queues[i].at[:op.queues[i].size] for i in range(op.n_queues)]
        if op.account.size:
            found["account"] = op.account.at[:op.account.size]
        if op.origin.size:
            found["origin"] = op.origin.at[:op.origin.size]
    if kind == SERVER_MSG:
        found["reply"] = op.reply.at[:op.reply.size] if op.reply.size else b""
        if op.only_queues:
            found["been"] = op.been.at[:op.been.size]
        found.update(size=op.size, header_size=op.header_size, line_size=op.line_size, is_plain=bool(op.is_plain))
    if kind == SERVER_SUB:
        found["members"] = op.members
    if kind in (SERVER_INFO, SERVER_CONNECT, SERVER_ERR):
        found["argument"] = op.argument.at[:op.argument.size]
    return found
