# One operation of a client or a sibling, read from contiguous bytes.
#
#   PUB foo.bar reply 5\r\nhello\r\n
#       ^subject     ^tail: everything after the subject that is sent on, with the leading space
#
# Every pointer of an Op points into the caller's buffer: VALID UNTIL THE NEXT READ; copy it to keep it longer.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from gnatswarm.broker.word cimport load32, token_end

cdef enum OpKind:
    OP_MORE = 0        # the line is not complete
    OP_PUB
    OP_HPUB
    OP_SUB
    OP_UNSUB
    OP_PING
    OP_PONG
    OP_CONNECT
    OP_INFO
    OP_OK
    OP_ERR
    # from a broken peer
    OP_UNKNOWN         # not an operation: reported at its first wrong byte
    OP_BAD_ARGUMENTS   # closes silently
    OP_LINE_TOO_LONG

ctypedef struct Token:
    const uint8_t *at
    size_t size

ctypedef struct Op:
    OpKind kind
    size_t line_size         # bytes of the control line, its line end included
    Token argument           # everything after the verb, blanks trimmed (CONNECT, INFO, -ERR)
    Token subject
    Token reply              # size 0: none
    Token queue              # size 0: none
    Token sid
    int64_t max_msgs         # UNSUB: 0 is "now"
    uint32_t header_size     # HPUB: bytes of the header block
    uint32_t size            # bytes of header and payload, without the CRLF after them
    bint is_canonical        # the tail can be sent on unchanged

# Parses one control line from data[0:size]. CR before LF is optional; arguments are at most `max_line` bytes.
# Reads up to SLACK bytes past data[size], which must be allocated.
cdef OpKind parse_op(const uint8_t *data, size_t size, size_t max_line, Op *op) noexcept nogil

# The parts that sibling frames and client operations share.
cdef enum:
    MOST_TOKENS = 80   # an RMSG may name a queue per group; more groups than this go in several frames

# Splits [p, end) at blanks until the line feed. Returns the number of tokens; -1: no line feed yet; -2: more than
# `room` tokens in a complete line. `after` is set to the byte after the line feed; `single` is cleared unless tokens
# are separated by single spaces and the line ends with CRLF.
cdef int split_line(const uint8_t *p, const uint8_t *end, Token *tokens, int room,
                    const uint8_t **after, bint *single) noexcept nogil

# At most nine decimal digits; -1: not a number.
cdef int64_t parse_number(Token token) noexcept nogil

# Does [p, end) begin with `verb` (lower case, `size` bytes)? 1: yes, 0: so far, -1: no.
cdef int match_verb(const uint8_t *p, const uint8_t *end, const char *verb, size_t size) noexcept nogil


# Only "PUB <subject> <size>\r\n" exactly as clients write it: a fast path with the same result as parse_op.
cdef inline bint parse_plain_publish(const uint8_t *data, size_t size, size_t max_line, Op *op) noexcept nogil:
    cdef const uint8_t *end = data + size
    cdef const uint8_t *subject = data + 4
    cdef const uint8_t *at
    cdef uint32_t n = 0, digit
    if size < 9 or load32(data) != 0x20425550:   # "PUB ", as a little-endian machine reads it
        return False
    at = token_end(subject, end)
    if at == subject or end - at < 4 or at[0] != c' ':
        return False
    op.subject.at = subject
    op.subject.size = at - subject
    at += 1
    digit = at[0] - <uint32_t>c'0'
    if digit > 9:
        return False
    while digit <= 9:
        n = n * 10 + digit
        at += 1
        digit = at[0] - <uint32_t>c'0'   # at most at `end`, which is readable
    if end - at < 2 or at[0] != c'\r' or at[1] != c'\n' or at - subject > 9 + <Py_ssize_t>op.subject.size + 1 \
            or <size_t>(at - subject) > max_line:
        return False
    op.kind = OP_PUB
    op.line_size = at + 2 - data
    op.reply.at = NULL
    op.reply.size = 0
    op.header_size = 0
    op.size = n
    op.is_canonical = True
    return True
