# Pooled output buffers: the bytes that wait to be sent to one peer (a client or a sibling link).
#
#   OutBuf ── head → Chunk → Chunk → … → tail          pos: where the next byte goes, in the tail
#                                                        limit: the tail's last usable byte + 1
# A chunk holds its bytes itself, or refers to a Blob (one big payload, shared by all its receivers).
# The engine appends; the socket's owner takes. Nothing here knows a socket: the owner supplies `flush`.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.word cimport likely

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef enum:
    # One send() of this size costs the kernel little more than its copy, and a chunk stays in the L2 cache
    # beside the read buffer (16 to 128 KiB measured: deploy/decisions).
    CHUNK_BYTES = 65536
    # The first chunk of a peer with little output: 10,000 clients with one message each must not cost 640 MB.
    SMALL_CHUNK_BYTES = 2048
    # From this size on a payload is shared by reference instead of copied to every subscriber.
    BLOB_BYTES = 32768
    # A client that took bytes this recently is slow but not stuck, and publishers wait for it. The kernel reports room
    # only when a third of its send buffer is free, 1.4 of 4 MB, so the owner checks itself what is acknowledged; and on
    # a busy host a reader may not run for a while. With 100 ms such a reader counted as stuck, was flooded past
    # max_pending and closed, where nats-server waits for it.
    STALL_IF_TAKEN_US = 2000000
    # A run of messages of at least LARGE_STRIDE bytes each, and of DIRECT_BYTES together, is sent from where it was
    # read: its copy costs more than the send() that other output of the same round would have shared.
    LARGE_STRIDE = 1024
    DIRECT_BYTES = 32768

# Where a client's subscriptions are while its connection moves to another shard: see moves.pxd.
cdef enum Moving:
    MOVING_NOT = 0
    MOVING_OUT = 1     # at the old shard
    MOVING_IN = 2      # at the new one: queue groups do not count them yet
    MOVING_GONE = 3    # at the old one, which says by another frame that it does not count them any more

# Whether a moving client's other end has hung up: appends are refused until it stays, and its end is read.
cdef enum HangUp:
    NOT_HUNG_UP = 0
    HUNG_UP = 1
    HUNG_UP_AND_MISSES = 2   # something was refused: nothing may follow on that

# Why a peer must be closed; 0: it need not be. In the order of errors.CloseReason.
cdef enum CloseReason:
    CLOSE_NONE = 0
    CLOSE_CLIENT_CLOSED = 1
    CLOSE_AUTHENTICATION_TIMEOUT = 2
    CLOSE_AUTHENTICATION_FAILURE = 3
    CLOSE_TLS_HANDSHAKE_FAILURE = 4
    CLOSE_SLOW_CONSUMER_PENDING_BYTES = 5
    CLOSE_SLOW_CONSUMER_WRITE_DEADLINE = 6
    CLOSE_WRITE_ERROR = 7
    CLOSE_READ_ERROR = 8
    CLOSE_PARSE_ERROR = 9
    CLOSE_STALE_CONNECTION = 10
    CLOSE_PROTOCOL_VIOLATION = 11
    CLOSE_MAXIMUM_PAYLOAD_EXCEEDED = 12
    CLOSE_MAXIMUM_CONNECTIONS_EXCEEDED = 13
    CLOSE_MAXIMUM_SUBSCRIPTIONS_EXCEEDED = 14
    CLOSE_SERVER_SHUTDOWN = 15
    CLOSE_AUTHENTICATION_EXPIRED = 16
    CLOSE_KICKED = 17
    CLOSE_NO_RESPONDERS_REQUIRES_HEADERS = 18
    CLOSE_MAXIMUM_ACCOUNT_CONNECTIONS_EXCEEDED = 19
    CLOSE_ROUTE_REMOVED = 20
    CLOSE_PUBLISH_RATE_EXCEEDED = 21
    CLOSE_MAXIMUM_CONTROL_LINE_EXCEEDED = 22
    CLOSE_BAD_CLIENT_PROTOCOL_VERSION = 23

ctypedef struct Blob:
    size_t refs
    size_t size          # bytes of data, SLACK bytes more are allocated
    uint8_t *data        # right behind the struct

ctypedef struct Chunk:
    Chunk *next
    uint8_t *data        # its own bytes, or into blob->data
    size_t start         # data[start:end] is not yet taken by the kernel
    size_t end           # for the tail chunk valid only after out_seal
    size_t capacity      # bytes it can hold itself; 0: it refers to a blob, or to what is lent to one flush
    Blob *blob

# One per shard: chunk pool, dirty list, flush function. Shared by the shard and its peers; the last one to release it
# frees it.
ctypedef struct Outbox:
    size_t refs
    OutBuf *dirty        # peers with bytes appended since their last flush
    OutBuf *called       # peers whose owner must act: close them, or read them again
    void (*flush)(void *owner, OutBuf *out) noexcept   # sends what it can; may only call out_take and set is_blocked
    void *flush_owner
    Chunk *free_chunks
    Chunk *free_small
    uint32_t n_free_chunks
    uint32_t n_free_small
    OutBuf *stalling         # a peer past its stall mark was just appended to: the publisher must wait
    bint relieved            # a peer went from past its stall mark to under half of it
    size_t bytes_in_chunks   # memory held by chunks and blobs in use, for limits and monitoring
    uint64_t now_us          # the time of this turn (monotonic), set by the owner of the loop
    uint64_t condemned       # how many peers were condemned so far
    size_t direct_bytes      # DIRECT_BYTES, and of which …
    size_t large_stride      # … LARGE_STRIDE; tests have them smaller

ctypedef struct OutBuf:
    uint8_t *pos
    uint8_t *limit
    Chunk *head
    Chunk *tail
    Outbox *box
    OutBuf *next_dirty
    OutBuf *next_called
    size_t sealed            # unsent bytes in all chunks but the tail
    size_t max_pending       # 0: no limit (a link)
    uint64_t msgs            # messages delivered to this peer
    uint64_t payload_bytes   # payload (and header) bytes delivered to this peer
    uint64_t taken_us        # when the kernel last took bytes
    uint64_t taken_bytes     # so many have been taken out of the chunks
    void *owner              # the socket's owner: borrowed, set and cleared by it
    void *peer               # the Peer this belongs to: borrowed, for as long as it lives
    size_t stall_mark        # with more pending bytes than this, publishers to this peer must wait
    uint64_t match           # scratch of the sublist: the number of the last match that this peer was in
    uint64_t takes_from      # of a client that moves: the shards whose messages its subscriptions here take, a bit each
    void *filter             # Permissions that exclude messages from granted subscriptions: borrowed; NULL: none do
    uint8_t is_dirty
    uint8_t is_blocked       # the kernel takes no more: wait until the socket is writable
    uint8_t is_bulk          # filled more than a small chunk in its last flush
    uint8_t takes_headers
    uint8_t may_reply       # it may reply to messages with a reply subject: its peer is told of each one
    uint8_t is_called
    uint8_t is_behind        # past its stall mark
    uint8_t close_reason     # CloseReason; not 0: appends are refused
    uint8_t moving           # Moving; not 0: each of its subscriptions has a max, so that fan-out looks here
    uint8_t is_shut          # it moves, and takes none of what is published on this shard
    uint8_t is_narrowing     # some of its subscriptions may not be granted by `filter`, and are being ended
    uint8_t has_grace        # it has moved, or moves: GRACE_BYTES more may be pending, until its limit is enough
    uint8_t is_deaf          # a client that takes nothing more, as close_reason says, but is read on: see become_deaf()
    uint8_t hung_up          # HangUp; not 0: appends are refused
    uint8_t has_surplus      # detached, with a subscription's max: some of it may be dropped when its record is here

cdef enum:
    # What is queued for a client while it moves, and can take nothing: as much as siblings may still send when they are
    # told that it is behind (connection.OVERSHOOT_BYTES), and some runs of publishers that wait.
    GRACE_BYTES = 8388608

cdef Outbox *outbox_new() except NULL
# How many bytes may be pending now; 0: no limit.
cdef size_t out_most(const OutBuf *out) noexcept nogil
# Releases one reference.
cdef void outbox_release(Outbox *box) noexcept nogil

# The peer gets a reference to the box, which it releases with outbox_release() after out_release().
cdef void out_init(OutBuf *out, Outbox *box, size_t max_pending) noexcept nogil
# Takes it off the dirty list: what was appended waits for the next append, or for whoever marks it again.
cdef void out_mark_clean(OutBuf *out) noexcept nogil
# Releases every chunk; nothing more can be appended. The OutBuf leaves the dirty list.
cdef void out_release(OutBuf *out) noexcept nogil
# Puts this peer on the `called` list, so that its owner acts.
cdef void out_call(OutBuf *out) noexcept nogil
# Refuses further appends; its owner closes it when it is safe.
cdef void out_condemn(OutBuf *out, CloseReason reason) noexcept nogil
# Refuses further appends until `hung_up` is cleared; what is queued stays.
cdef void out_hang_up(OutBuf *out) noexcept nogil
cdef uint8_t *out_reserve_slow(OutBuf *out, size_t n) noexcept
# Appends by reference; the blob gets a reference. False: refused (closed or over its limit).
cdef bint out_append_blob(OutBuf *out, Blob *blob, const uint8_t *start, size_t n) noexcept
cdef bint out_append(OutBuf *out, const uint8_t *data, size_t n) noexcept
# Sends the tails of a run as it was read (no rewritten ones), each behind the prefix and `stride` bytes after the one
# before it, from where they are; what the kernel does not take of them is copied. Returns how many are settled so: the
# rest is for others to append. 0: it has other output, or may not be sent to now.
cdef uint32_t out_send_run(OutBuf *out, const uint8_t *prefix, size_t prefix_size, const uint8_t *tail,
                           size_t tail_size, size_t stride, uint32_t count) noexcept
# Appends all that waits in another one of the same box, which has nothing then.
cdef void out_append_all(OutBuf *out, OutBuf *other) noexcept nogil
# Bytes that wait to be sent.
cdef size_t out_pending(const OutBuf *out) noexcept nogil
# The kernel took n bytes (0 <= n <= pending).
cdef void out_take(OutBuf *out, size_t n) noexcept nogil
# Fills at most `room` parts with the bytes to send, for a gathering write; returns how many parts.
cdef int out_gather(OutBuf *out, iovec *parts, int room) noexcept nogil

cdef Blob *blob_new(Outbox *box, size_t size) noexcept nogil
cdef void blob_release(Outbox *box, Blob *blob) noexcept nogil


cdef inline void out_mark_dirty(OutBuf *out) noexcept nogil:
    if not out.is_dirty:
        out.is_dirty = 1
        out.next_dirty = out.box.dirty
        out.box.dirty = out


# Where n bytes (plus SLACK to overrun) may be written; NULL: refused. The caller writes them and advances `pos`.
cdef inline uint8_t *out_reserve(OutBuf *out, size_t n) noexcept:
    if likely(out.limit - out.pos >= <Py_ssize_t>n):
        return out.pos
    return out_reserve_slow(out, n)
