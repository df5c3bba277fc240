# A publish that repeats the last control line byte for byte: needs no parsing, no hashing, no look-up.
#
# Publishers use few subjects and few sizes, so the next line is most often the same as the last, and the read buffer
# most often has a run of them. The line, its match result and its sizes are stored per client or link, and a run goes
# to fan-out as one Publish. Used by connection.pyx, link.pyx and serverlink.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from gnatswarm.broker.fanout cimport Fanout, Origin, Publish, line_stands_at
from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.sublist cimport Sublist
from gnatswarm.broker.word cimport copy_bytes

cdef enum:
    # The longest line worth remembering: verb, a subject of some 100 bytes, reply, size.
    MOST_REPEAT_BYTES = 192
    # After this many lines in a row without a repetition, only every 16th is stored.
    MISSES_TO_GIVE_UP = 16

ctypedef struct Repeat:
    Entry *entry             # valid while epoch is the sublist's and the entry is current
    uint64_t epoch
    size_t line_size         # 0: nothing stored
    size_t total             # line, payload and CRLF
    size_t tail_at           # where the tail begins in the line
    size_t reply_at
    size_t reply_size
    uint32_t header_size
    uint32_t size
    uint32_t misses          # in a row
    uint8_t line[MOST_REPEAT_BYTES + 64]


cdef inline uint32_t repeat_run(Repeat *repeat, Sublist sublist, Fanout fanout, const uint8_t *p, const uint8_t *end,
                                Origin origin, Publish *message) noexcept:
    """The number of messages at p that repeat the stored line; `message` is set to all of them."""
    cdef uint32_t n
    if repeat == NULL or repeat.line_size == 0 or <size_t>(end - p) < repeat.total \
            or not line_stands_at(repeat.line, repeat.line_size, repeat.total, p) \
            or repeat.epoch != sublist.cache_epoch or not sublist.is_current(repeat.entry):
        return 0
    # (A call, so that this function stays inline, and most lines cost little that do not repeat.)
    n = fanout.run_at(repeat.entry, repeat.line, repeat.line_size, repeat.total, p, end)
    repeat.misses = 0
    message.origin = origin
    message.publisher = 0
    message.tail = p + repeat.tail_at
    message.tail_size = repeat.total - repeat.tail_at
    message.payload = p + repeat.line_size
    message.reply.at = p + repeat.reply_at
    message.reply.size = repeat.reply_size
    message.header_size = repeat.header_size
    message.size = repeat.size
    message.blob = NULL
    message.count = n
    message.stride = repeat.total
    return n


cdef inline void repeat_remember(Repeat *repeat, Sublist sublist, Entry *entry, const uint8_t *line, size_t line_size,
                                 const Publish *message) noexcept:
    """Stores the line of `message`, which is contiguous with it; or nothing, if lines have not repeated lately."""
    repeat.misses += 1
    if line_size > MOST_REPEAT_BYTES or (repeat.misses > MISSES_TO_GIVE_UP and repeat.misses & 15):
        repeat.line_size = 0
        return
    copy_bytes(repeat.line, line, line_size)
    repeat.entry = entry
    repeat.epoch = sublist.cache_epoch
    repeat.line_size = line_size
    repeat.total = line_size + message.size + 2
    repeat.tail_at = message.tail - line
    repeat.reply_size = message.reply.size
    repeat.reply_at = message.reply.at - line if message.reply.size else 0
    repeat.header_size = message.header_size
    repeat.size = message.size
