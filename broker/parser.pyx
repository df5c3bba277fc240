# cython: language_level=3, boundscheck=False, wraparound=False
"""Parses one operation from contiguous bytes; keeps no state between calls.

It does not read payloads (the connection does, once it knows the limits) and knows no connection. An incomplete line is
OP_MORE: call again with the same bytes and more. A wrong byte is reported as soon as it arrives. What is an error, and
when, is nats-server 2.9.10's behaviour.
"""

from libc.string cimport memchr

from gnatswarm.broker.word cimport SLACK, token_end


cdef enum:
    # nats-server skips any bytes after PING on its line; we must hold the line until it ends.
    MOST_IGNORED_BYTES = 65536


cdef int match_verb(const uint8_t *p, const uint8_t *end, const char *verb, size_t size) noexcept nogil:
    cdef size_t i
    for i in range(size):
        if p + i == end:
            return 0
        if (p[i] | 0x20) != <uint8_t>verb[i]:
            return -1
    return 1


cdef int64_t parse_number(Token token) noexcept nogil:
    cdef int64_t n = 0
    cdef size_t i
    if token.size == 0 or token.size > 9:
        return -1
    for i in range(token.size):
        if token.at[i] < c'0' or token.at[i] > c'9':
            return -1
        n = n * 10 + token.at[i] - c'0'
    return n


cdef int split_line(const uint8_t *p, const uint8_t *end, Token *tokens, int room,
                    const uint8_t **after, bint *single) noexcept nogil:
    cdef int n = 0
    cdef const uint8_t *e
    cdef int blanks = 0
    while True:
        if p >= end:
            return -1
        if p[0] == c' ' or p[0] == c'\t' or p[0] == c'\r':
            blanks += 1
            if p[0] != c' ' and not (p[0] == c'\r' and p + 1 < end and p[1] == c'\n'):
                single[0] = False
            p += 1
            continue
        if p[0] == c'\n':
            if blanks != 1 or (p - 1)[0] != c'\r':
                single[0] = False
            after[0] = p + 1
            return n if n <= room else -2
        if blanks != (1 if n else 0):
            single[0] = False
        blanks = 0
        e = token_end(p, end)
        if e >= end:
            return -1
        if n < room:
            tokens[n].at = p
            tokens[n].size = e - p
        n += 1
        p = e


cdef inline bint is_too_long(const uint8_t *args, const uint8_t *end, size_t max_line) noexcept nogil:
    """Are the arguments before `end` over the limit? Leading blanks and a line end do not count; but the number of
    blanks is bounded too, because they must be held."""
    if <size_t>(end - args) > max_line + MOST_IGNORED_BYTES:
        return True
    while args < end and (args[0] == c' ' or args[0] == c'\t'):
        args += 1
    if end > args and (end - 1)[0] == c'\n':
        end -= 1
    if end > args and (end - 1)[0] == c'\r':
        end -= 1
    return <size_t>(end - args) > max_line


cdef inline OpKind finish(Op *op, OpKind kind) noexcept nogil:
    op.kind = kind
    return kind


cdef inline int read_arguments(const uint8_t *data, const uint8_t *args, const uint8_t *end, size_t max_line,
                               Token *tokens, int least, int most, Op *op) noexcept nogil:
    """How many arguments the line has; -1: not between `least` and `most`, too long or incomplete, as op.kind says."""
    cdef const uint8_t *after = NULL
    cdef bint single = True
    cdef int n = split_line(args, end, tokens, most, &after, &single)
    if n == -1:
        finish(op, OP_LINE_TOO_LONG if is_too_long(args, end, max_line) else OP_MORE)
        return -1
    op.line_size = after - data
    op.is_canonical = single
    if is_too_long(args, after, max_line):
        finish(op, OP_LINE_TOO_LONG)
    elif n < least:   # or -2: too many
        finish(op, OP_BAD_ARGUMENTS)
    else:
        return n
    return -1


cdef OpKind parse_publish(const uint8_t *data, const uint8_t *args, const uint8_t *end, size_t max_line,
                          Op *op, bint with_header) noexcept nogil:
    """PUB subject [reply] size, HPUB subject [reply] header total; args is behind the verb's separator."""
    cdef Token tokens[4]
    cdef int numbers = 2 if with_header else 1
    cdef int n = read_arguments(data, args, end, max_line, tokens, numbers + 1, numbers + 2, op)
    cdef int64_t size, header = 0
    if n < 0:
        return op.kind
    size = parse_number(tokens[n - 1])
    if with_header:
        header = parse_number(tokens[n - 2])
    if size < 0 or header < 0 or header > size:
        return finish(op, OP_BAD_ARGUMENTS)
    op.subject = tokens[0]
    if n > numbers + 1:
        op.reply = tokens[1]
    else:
        op.reply.at = NULL
        op.reply.size = 0
    op.header_size = <uint32_t>header
    op.size = <uint32_t>size
    return finish(op, OP_HPUB if with_header else OP_PUB)


cdef OpKind parse_subscribe(const uint8_t *data, const uint8_t *args, const uint8_t *end, size_t max_line,
                            Op *op) noexcept nogil:
    """SUB subject [queue] sid"""
    cdef Token tokens[3]
    cdef int n = read_arguments(data, args, end, max_line, tokens, 2, 3, op)
    if n < 0:
        return op.kind
    op.subject = tokens[0]
    op.sid = tokens[n - 1]
    if n == 3:
        op.queue = tokens[1]
    else:
        op.queue.at = NULL
        op.queue.size = 0
    return finish(op, OP_SUB)


cdef OpKind parse_unsubscribe(const uint8_t *data, const uint8_t *args, const uint8_t *end, size_t max_line,
                              Op *op) noexcept nogil:
    """UNSUB sid [max]; a max that is no number counts as none, as it does for nats-server"""
    cdef Token tokens[2]
    cdef int n = read_arguments(data, args, end, max_line, tokens, 1, 2, op)
    if n < 0:
        return op.kind
    op.sid = tokens[0]
    op.max_msgs = 0
    if n == 2:
        op.max_msgs = parse_number(tokens[1])
        if op.max_msgs < 0:
            op.max_msgs = 0
    return finish(op, OP_UNSUB)


cdef OpKind parse_rest(const uint8_t *data, const uint8_t *args, const uint8_t *end, size_t max_line,
                       Op *op, OpKind kind) noexcept nogil:
    """An operation whose argument is the rest of its line."""
    cdef const uint8_t *newline = <const uint8_t *>memchr(args, c'\n', end - args)
    cdef const uint8_t *stop
    if newline == NULL:
        return finish(op, OP_LINE_TOO_LONG if is_too_long(args, end, max_line) else OP_MORE)
    op.line_size = newline + 1 - data
    if is_too_long(args, newline + 1, max_line):
        return finish(op, OP_LINE_TOO_LONG)
    stop = newline
    if stop > args and (stop - 1)[0] == c'\r':
        stop -= 1
    while args < stop and (args[0] == c' ' or args[0] == c'\t'):
        args += 1
    op.argument.at = args
    op.argument.size = stop - args
    return finish(op, kind)


cdef OpKind parse_op(const uint8_t *data, size_t size, size_t max_line, Op *op) noexcept nogil:
    cdef const uint8_t *end = data + size
    cdef const char *verb
    cdef size_t verb_size
    cdef OpKind kind
    cdef int matched
    cdef uint8_t first
    cdef const uint8_t *args
    if size == 0:
        return finish(op, OP_MORE)
    first = data[0] | 0x20
    if first == c'p':
        if size == 1:
            return finish(op, OP_MORE)
        first = data[1] | 0x20
        if first == c'u':
            kind, verb, verb_size = OP_PUB, b'pub', 3
        elif first == c'i':
            kind, verb, verb_size = OP_PING, b'ping', 4
        else:
            kind, verb, verb_size = OP_PONG, b'pong', 4
    elif first == c'h':
        kind, verb, verb_size = OP_HPUB, b'hpub', 4
    elif first == c's':
        kind, verb, verb_size = OP_SUB, b'sub', 3
    elif first == c'u':
        kind, verb, verb_size = OP_UNSUB, b'unsub', 5
    elif first == c'c':
        kind, verb, verb_size = OP_CONNECT, b'connect', 7
    elif first == c'i':
        kind, verb, verb_size = OP_INFO, b'info', 4
    elif data[0] == c'+':
        kind, verb, verb_size = OP_OK, b'+ok', 3
    elif data[0] == c'-':
        kind, verb, verb_size = OP_ERR, b'-err', 4
    else:
        return finish(op, OP_UNKNOWN)
    matched = match_verb(data, end, verb, verb_size)
    if matched < 0:
        return finish(op, OP_UNKNOWN)
    if matched == 0 or size == verb_size:
        return finish(op, OP_MORE)
    args = data + verb_size
    if kind == OP_PING or kind == OP_PONG or kind == OP_OK:   # the rest of the line is ignored
        return parse_rest(data, args, end, MOST_IGNORED_BYTES, op, kind)
    if kind == OP_CONNECT or kind == OP_INFO:
        return parse_rest(data, args, end, max_line, op, kind)
    if args[0] != c' ' and args[0] != c'\t':
        return finish(op, OP_UNKNOWN)
    args += 1
    if kind == OP_PUB or kind == OP_HPUB:
        return parse_publish(data, args, end, max_line, op, kind == OP_HPUB)
    if kind == OP_SUB:
        return parse_subscribe(data, args, end, max_line, op)
    if kind == OP_UNSUB:
        return parse_unsubscribe(data, args, end, max_line, op)
    return parse_rest(data, args, end, max_line, op, kind)


cdef bytes text(Token token):
    return token.at[:token.size] if token.size else b''


_NAMES = {OP_MORE: "MORE", OP_PUB: "PUB", OP_HPUB: "HPUB", OP_SUB: "SUB", OP_UNSUB: "UNSUB", OP_PING: "PING",
          OP_PONG: "PONG", OP_CONNECT: "CONNECT", OP_INFO: "INFO", OP_OK: "+OK", OP_ERR: "-ERR",
          OP_UNKNOWN: "UNKNOWN", OP_BAD_ARGUMENTS: "BAD_ARGUMENTS", OP_LINE_TOO_LONG: "LINE_TOO_LONG"}


def parse(bytes data not None, size_t max_line=4096) -> dict:
    """One operation of `data` as a dictionary: `op`, `line_size` and the operation's fields (for tests)."""
    cdef bytes padded = data + bytes(SLACK)
    cdef Op op
    cdef Op plain
    cdef OpKind kind = parse_op(<const uint8_t *><const char *>padded, len(data), max_line, &op)
    found = {"op": _NAMES[kind]}
    if parse_plain_publish(<const uint8_t *><const char *>padded, len(data), max_line, &plain) and not (
            kind == OP_PUB and plain.line_size == op.line_size and plain.subject.at == op.subject.at
            and plain.subject.size == op.subject.size and op.reply.size == 0 and plain.reply.size == 0
            and plain.size == op.size and plain.header_size == 0 and op.is_canonical and plain.is_canonical):
        raise AssertionError(f"the short way to a PUB says something else than {found}")
    if kind == OP_MORE or kind >= OP_UNKNOWN:
        return found
    found["line_size"] = op.line_size
    if kind == OP_PUB or kind == OP_HPUB:
        found.update(subject=text(op.subject), reply=text(op.reply), size=op.size, canonical=bool(op.is_canonical))
        if kind == OP_HPUB:
            found["header_size"] = op.header_size
    elif kind == OP_SUB:
        found.update(subject=text(op.subject), queue=text(op.queue), sid=text(op.sid))
    elif kind == OP_UNSUB:
        found.update(sid=text(op.sid), max_msgs=op.max_msgs)
    else:
        found["argument"] = text(op.argument)
    return found
