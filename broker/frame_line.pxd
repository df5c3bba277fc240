# The parts of a line that frames between shards (broker.routewire) and between servers (broker.serverwire) share: both
# are NATS's own route protocol.
#
#   message for queue groups    … <subject> | <queue>… <sizes>
#   with a reply                … <subject> + <reply> <queue>… <sizes>
#   interest                    … <subject> [<queue> [<members>]]
#   INFO, CONNECT, -ERR         the rest of the line

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.word cimport decimal


# The number of the first queue group's token; -1: this is no list of queue groups. `first`: the token behind the
# subject, which another one follows. Sets `reply`, if there is one.
cdef inline int first_queue(const Token *tokens, int first, Token *reply) noexcept nogil:
    if tokens[first].size != 1:
        return -1
    if tokens[first].at[0] == c'|':
        return first + 1
    if tokens[first].at[0] != c'+':
        return -1
    reply[0] = tokens[first + 1]
    return first + 2


# The rest of a line that ends with LF, at `newline`, or CR LF.
cdef inline Token rest_of_line(const uint8_t *args, const uint8_t *newline) noexcept nogil:
    cdef Token rest = Token(args, newline - args)
    if rest.size and (newline - 1)[0] == c'\r':
        rest.size -= 1
    return rest


# Writes "<subject>[ <queue>[ <members>]]\r\n" to `to`; how many bytes: at most size + queue_size + 14. `queue_size` 0:
# there is no queue.
cdef inline size_t write_interest_words(uint8_t *to, const uint8_t *subject, size_t size, const uint8_t *queue,
                                        size_t queue_size, bint with_members, uint32_t members) noexcept nogil:
    cdef size_t n = size
    memcpy(to, subject, size)
    if queue_size:
        to[n] = c' '
        memcpy(to + n + 1, queue, queue_size)
        n += 1 + queue_size
        if with_members:
            to[n] = c' '
            n += 1
            n += decimal(to + n, members)
    to[n] = c'\r'
    to[n + 1] = c'\n'
    return n + 2
