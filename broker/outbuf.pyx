# cython: language_level=3, boundscheck=False, wraparound=False
"""Pooled output buffers: the bytes that wait to be sent to one peer.

Not a socket and not a queue of messages: bytes in chunks, appended by fan-out, taken by the socket's owner.
Invariant: unsent bytes = sealed + (pos - tail.data - tail.start). An idle peer holds no chunk. Appending is two
copies; a full chunk is flushed at once, so that a peer that reads needs no second one. A long run of large messages is
not copied at all: chunks that refer to it are lent to one flush.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from gnatswarm.broker.word cimport SLACK, unlikely


cdef enum:
    # Chunks kept for reuse; further ones are freed (64 MiB and 8 MiB at most are kept).
    MOST_FREE_CHUNKS = 1024
    MOST_FREE_SMALL = 4096
    # Detached output, of which some may be dropped, has so many times max_pending; the limit itself holds when it is
    # detached no more (broker.moves).
    SURPLUS_FACTOR = 4
    # Parts of one gathering write, as the sockets have it: half of them prefixes.
    MOST_LENT = 64


cdef Outbox *outbox_new() except NULL:
    cdef Outbox *box = <Outbox *>calloc(1, sizeof(Outbox))
    if box == NULL:
        raise MemoryError
    box.refs = 1
    box.direct_bytes = DIRECT_BYTES
    box.large_stride = LARGE_STRIDE
    return box


cdef void outbox_release(Outbox *box) noexcept nogil:
    cdef Chunk *chunk
    box.refs -= 1
    if box.refs:
        return
    while box.free_chunks != NULL:
        chunk = box.free_chunks
        box.free_chunks = chunk.next
        free(chunk)
    while box.free_small != NULL:
        chunk = box.free_small
        box.free_small = chunk.next
        free(chunk)
    free(box)


cdef Blob *blob_new(Outbox *box, size_t size) noexcept nogil:
    """A blob of `size` bytes with one reference, or NULL without memory."""
    cdef Blob *blob = <Blob *>malloc(sizeof(Blob) + size + SLACK)
    if blob != NULL:
        blob.refs = 1
        blob.size = size
        blob.data = <uint8_t *>blob + sizeof(Blob)
        box.bytes_in_chunks += size
    return blob


cdef void blob_release(Outbox *box, Blob *blob) noexcept nogil:
    blob.refs -= 1
    if blob.refs == 0:
        box.bytes_in_chunks -= blob.size
        free(blob)


cdef Chunk *chunk_new(Outbox *box, size_t capacity) noexcept nogil:
    """An empty chunk: a pooled size, or one of exactly `capacity` bytes if that is larger than a chunk."""
    cdef Chunk *chunk
    if capacity <= SMALL_CHUNK_BYTES and box.free_small != NULL:
        chunk = box.free_small
        box.free_small = chunk.next
        box.n_free_small -= 1
    elif capacity == CHUNK_BYTES and box.free_chunks != NULL:
        chunk = box.free_chunks
        box.free_chunks = chunk.next
        box.n_free_chunks -= 1
    else:
        chunk = <Chunk *>malloc(sizeof(Chunk) + capacity + SLACK)
        if chunk == NULL:
            return NULL
        chunk.capacity = capacity
        chunk.data = <uint8_t *>chunk + sizeof(Chunk)
        chunk.blob = NULL
    box.bytes_in_chunks += capacity
    chunk.next = NULL
    chunk.start = chunk.end = 0
    return chunk


cdef void chunk_free(Outbox *box, Chunk *chunk) noexcept nogil:
    box.bytes_in_chunks -= chunk.capacity
    if chunk.blob != NULL:
        blob_release(box, chunk.blob)
        free(chunk)
    elif chunk.capacity == CHUNK_BYTES and box.n_free_chunks < MOST_FREE_CHUNKS:
        chunk.next = box.free_chunks
        box.free_chunks = chunk
        box.n_free_chunks += 1
    elif chunk.capacity == SMALL_CHUNK_BYTES and box.n_free_small < MOST_FREE_SMALL:
        chunk.next = box.free_small
        box.free_small = chunk
        box.n_free_small += 1
    elif chunk.capacity:   # (one that was lent is its lender's)
        free(chunk)


cdef size_t out_most(const OutBuf *out) noexcept nogil:
    cdef size_t most = out.max_pending
    if out.has_surplus:
        most *= SURPLUS_FACTOR
    if out.has_grace and most < out.max_pending + <size_t>GRACE_BYTES and out.max_pending:
        most = out.max_pending + <size_t>GRACE_BYTES
    return most


cdef void out_init(OutBuf *out, Outbox *box, size_t max_pending) noexcept nogil:
    memset(out, 0, sizeof(OutBuf))
    out.box = box
    box.refs += 1
    out.max_pending = max_pending


cdef void out_mark_clean(OutBuf *out) noexcept nogil:
    cdef OutBuf **link = &out.box.dirty
    if not out.is_dirty:
        return
    while link[0] != out:
        link = &link[0].next_dirty
    link[0] = out.next_dirty
    out.is_dirty = 0


cdef void out_release(OutBuf *out) noexcept nogil:
    cdef Chunk *chunk
    cdef OutBuf **link
    out_mark_clean(out)
    while out.head != NULL:
        chunk = out.head
        out.head = chunk.next
        chunk_free(out.box, chunk)
    out.tail = NULL
    out.pos = out.limit = NULL
    out.sealed = 0
    if out.is_behind:
        out.is_behind = 0
        out.box.relieved = 1
    if out.close_reason == CLOSE_NONE:
        out.close_reason = CLOSE_CLIENT_CLOSED
    if out.is_called:
        link = &out.box.called
        while link[0] != out:
            link = &link[0].next_called
        link[0] = out.next_called
        out.is_called = 0


cdef void out_call(OutBuf *out) noexcept nogil:
    if not out.is_called:
        out.is_called = 1
        out.next_called = out.box.called
        out.box.called = out


cdef void out_condemn(OutBuf *out, CloseReason reason) noexcept nogil:
    if out.close_reason == CLOSE_NONE:
        out_seal(out)
        out.limit = out.pos   # from now on every append takes the slow path, and is refused there
        out.close_reason = reason
        out.box.condemned += 1
    out_call(out)


cdef void out_hang_up(OutBuf *out) noexcept nogil:
    out_seal(out)
    out.limit = out.pos   # (as above)
    out.hung_up = HUNG_UP


cdef inline bint out_refuses(OutBuf *out) noexcept nogil:
    """Whether nothing may be appended; who has hung up misses something from here on."""
    if unlikely(out.hung_up != NOT_HUNG_UP):
        out.hung_up = HUNG_UP_AND_MISSES
        return True
    return out.close_reason != CLOSE_NONE


cdef inline void out_seal(OutBuf *out) noexcept nogil:
    """Stores where the tail ends."""
    if out.tail != NULL and out.tail.blob == NULL:
        out.tail.end = out.pos - out.tail.data


cdef size_t out_pending(const OutBuf *out) noexcept nogil:
    if out.tail == NULL:
        return 0
    if out.tail.blob != NULL:
        return out.sealed + out.tail.end - out.tail.start
    return out.sealed + (out.pos - out.tail.data) - out.tail.start


cdef bint out_push(OutBuf *out, Chunk *chunk) noexcept nogil:
    """Makes `chunk` the tail; the old tail's bytes count as sealed."""
    if out.tail == NULL:
        out.head = chunk
    else:
        out_seal(out)
        out.sealed += out.tail.end - out.tail.start
        out.tail.next = chunk
    out.tail = chunk
    out.pos = chunk.data + chunk.end
    out.limit = chunk.data + chunk.capacity if chunk.capacity else out.pos
    return True


cdef void out_refer(OutBuf *out, Chunk *chunk, const uint8_t *data, size_t n, Blob *blob) noexcept nogil:
    """Makes `chunk`, which has no bytes of its own, the tail: of a blob, or lent to the next flush."""
    chunk.next = NULL
    chunk.data = <uint8_t *>data
    chunk.start = 0
    chunk.end = n
    chunk.capacity = 0
    chunk.blob = blob
    out_push(out, chunk)


cdef bint out_admits(OutBuf *out, size_t n) noexcept:
    """May n more bytes be queued? Sends what is there first. Past max_pending the peer is condemned; past its stall
    mark its publishers must wait: always for a link, for a client only while it takes bytes."""
    cdef size_t pending
    if out_refuses(out):
        return False
    if out.head != NULL and out.box.flush != NULL and (not out.is_blocked or out.is_behind):
        # (Marked dirty, so that its owner checks whether it takes bytes at all.)
        out_mark_dirty(out)
        out.box.flush(out.box.flush_owner, out)
        if out.close_reason != CLOSE_NONE:
            return False
    pending = out_pending(out)
    if out.max_pending and pending + n > out.max_pending:
        if pending + n > out_most(out):
            out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
            return False
    elif out.has_grace and out.owner != NULL:   # (not while it is detached)
        out.has_grace = 0
    if out.stall_mark and pending > out.stall_mark:
        out.is_behind = 1
        if out.max_pending == 0 or out.box.now_us - out.taken_us < STALL_IF_TAKEN_US:
            out.box.stalling = out
    return True


cdef bint out_grow(OutBuf *out, size_t n) noexcept:
    """Moves the bytes of a first small chunk that is full to a big one, so that one send takes all. False: not so."""
    cdef Chunk *small = out.tail
    cdef Chunk *chunk
    cdef size_t pending
    if small is not out.head or small.capacity != SMALL_CHUNK_BYTES or small.blob != NULL or out.is_blocked \
            or out.is_behind or out_refuses(out):
        return False
    pending = out_pending(out)
    if pending + n > CHUNK_BYTES or (out.max_pending and pending + n > out.max_pending) \
            or (out.stall_mark and pending > out.stall_mark):
        return False
    chunk = chunk_new(out.box, CHUNK_BYTES)
    if chunk == NULL:
        return False
    memcpy(chunk.data, small.data + small.start, pending)
    chunk.end = pending
    out.head = out.tail = NULL
    out_push(out, chunk)
    chunk_free(out.box, small)
    out.is_bulk = 1
    return True


cdef uint8_t *out_reserve_slow(OutBuf *out, size_t n) noexcept:
    cdef size_t capacity
    cdef Chunk *chunk
    if out.tail != NULL:   # (the first bytes need no check: the limit is far above one chunk)
        if out_grow(out, n):
            return out.pos
        if not out_admits(out, n):
            return NULL
        out.is_bulk = 1
        if out.limit - out.pos >= <Py_ssize_t>n:   # the flush emptied it
            out_mark_dirty(out)
            return out.pos
    elif out_refuses(out):
        return NULL
    elif out.max_pending and n > out.max_pending:
        out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
        return NULL
    # A peer that is behind gets small chunks, so that each message or run comes here and makes its publisher wait.
    capacity = SMALL_CHUNK_BYTES if out.is_behind or (n <= SMALL_CHUNK_BYTES and not out.is_bulk) else CHUNK_BYTES
    chunk = chunk_new(out.box, n if n > capacity else capacity)
    if chunk == NULL:
        out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
        return NULL
    out_push(out, chunk)
    out_mark_dirty(out)
    return out.pos


cdef bint out_append(OutBuf *out, const uint8_t *data, size_t n) noexcept:
    cdef uint8_t *to = out_reserve(out, n)
    if to == NULL:
        return False
    memcpy(to, data, n)
    out.pos += n
    out_mark_dirty(out)
    return True


cdef bint out_append_blob(OutBuf *out, Blob *blob, const uint8_t *start, size_t n) noexcept:
    cdef Chunk *chunk
    if out_refuses(out):
        return False
    if out.tail != NULL and out_pending(out) + n > CHUNK_BYTES and not out_admits(out, n):
        return False
    chunk = <Chunk *>malloc(sizeof(Chunk))
    if chunk == NULL:
        out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
        return False
    blob.refs += 1
    out_refer(out, chunk, start, n, blob)
    out_mark_dirty(out)
    return True


cdef void out_append_all(OutBuf *out, OutBuf *other) noexcept nogil:
    """Also past max_pending, which the next append meets. Of one that is closed it is dropped by out_release()."""
    if other.head == NULL or out.close_reason != CLOSE_NONE:
        return
    out_seal(other)
    if out.tail == NULL:
        out.head = other.head
    else:
        out_seal(out)
        out.sealed += out.tail.end - out.tail.start
        out.tail.next = other.head
    out.sealed += other.sealed
    out.tail = other.tail
    out.pos = other.pos
    out.limit = other.limit
    out.is_behind |= other.is_behind
    other.head = other.tail = NULL
    other.pos = other.limit = NULL
    other.sealed = 0
    other.is_behind = 0
    out_mark_dirty(out)


cdef bint out_keep_lent(OutBuf *out) noexcept:
    """Copies what is left of chunks that were lent, all there are. False: refused, as an append would be."""
    cdef size_t left = out_pending(out), most = out_most(out)
    cdef Chunk *lent = out.head
    cdef Chunk *chunk
    out.head = out.tail = NULL
    out.pos = out.limit = NULL
    out.sealed = 0
    if out.close_reason != CLOSE_NONE:
        return False
    chunk = chunk_new(out.box, left if left > CHUNK_BYTES else <size_t>CHUNK_BYTES)
    if chunk == NULL:
        out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
        return False
    while lent != NULL:
        memcpy(chunk.data + chunk.end, lent.data + lent.start, lent.end - lent.start)
        chunk.end += lent.end - lent.start
        lent = lent.next
    out_push(out, chunk)
    out_mark_dirty(out)
    if most and left > most:   # (it is closed with what it did not take, as the log says)
        out_condemn(out, CLOSE_SLOW_CONSUMER_PENDING_BYTES)
        return False
    return True


cdef uint32_t out_send_run(OutBuf *out, const uint8_t *prefix, size_t prefix_size, const uint8_t *tail,
                           size_t tail_size, size_t stride, uint32_t count) noexcept:
    cdef Chunk lent[MOST_LENT]
    cdef bint is_contiguous = prefix_size + tail_size == stride \
        and memcmp(tail - prefix_size, prefix, prefix_size) == 0
    cdef uint32_t sent = 0, n, i
    cdef size_t left
    while sent < count and out.head == NULL and not out.is_blocked and not out_refuses(out) \
            and out.box.flush != NULL:
        n = count - sent
        if is_contiguous:
            out_refer(out, &lent[0], tail - prefix_size, n * stride, NULL)
        else:
            n = min(n, <uint32_t>MOST_LENT // 2)
            for i in range(n):
                out_refer(out, &lent[2 * i], prefix, prefix_size, NULL)
                out_refer(out, &lent[2 * i + 1], tail + i * stride, tail_size, NULL)
        out.box.flush(out.box.flush_owner, out)
        if out.head != NULL:
            left = out_pending(out)
            if not out_keep_lent(out):
                return sent + n - <uint32_t>((left + prefix_size + tail_size - 1) // (prefix_size + tail_size))
        tail += n * stride
        sent += n
    return sent


cdef void out_take(OutBuf *out, size_t n) noexcept nogil:
    cdef Chunk *chunk
    cdef size_t unsent
    out_seal(out)
    out.taken_bytes += n
    if n <= SMALL_CHUNK_BYTES:
        out.is_bulk = 0
    if out.is_behind and out_pending(out) - n < out.stall_mark // 2:
        out.is_behind = 0
        out.box.relieved = 1
    while out.head != NULL:
        chunk = out.head
        unsent = chunk.end - chunk.start
        if n < unsent:
            chunk.start += n
            if chunk is not out.tail:
                out.sealed -= n
            return
        n -= unsent
        if chunk is out.tail:
            out.head = out.tail = NULL
            out.pos = out.limit = NULL
        else:
            out.sealed -= unsent
            out.head = chunk.next
        chunk_free(out.box, chunk)


cdef int out_gather(OutBuf *out, iovec *parts, int room) noexcept nogil:
    cdef Chunk *chunk = out.head
    cdef int n = 0
    out_seal(out)
    while chunk != NULL and n < room:
        if chunk.end > chunk.start:
            parts[n].iov_base = chunk.data + chunk.start
            parts[n].iov_len = chunk.end - chunk.start
            n += 1
        chunk = chunk.next
    return n


cdef void probe_flush(void *owner, OutBuf *out) noexcept:
    (<OutBufProbe>owner).on_flush()


cdef class OutBufProbe:
    """A buffer with its own outbox, for tests. `kernel` is asked how much it takes when a chunk is full."""

    cdef Outbox *box
    cdef OutBuf out
    cdef object kernel     # called with the pending bytes; returns how many it takes; None: no flush

    def __cinit__(self, size_t max_pending=0, *, size_t stall_mark=0, kernel=None):
        self.box = outbox_new()
        out_init(&self.out, self.box, max_pending)
        self.out.stall_mark = stall_mark
        self.kernel = kernel
        if kernel is not None:
            self.box.flush = probe_flush
            self.box.flush_owner = <void *>self

    def __dealloc__(self):
        out_release(&self.out)
        outbox_release(self.box)
        outbox_release(self.box)   # the buffer's reference

    cdef void on_flush(self) noexcept:
        cdef size_t n = self.kernel(out_pending(&self.out))
        if n:
            self.out.taken_us = self.box.now_us
        out_take(&self.out, n)

    def append(self, bytes data not None) -> bool:
        """False: refused."""
        return out_append(&self.out, data, len(data))

    def append_blob(self, bytes data not None, size_t start=0) -> bool:
        """Appends a blob's bytes from `start` on, by reference. False: refused."""
        cdef Blob *blob = blob_new(self.box, len(data))
        if blob == NULL:
            raise MemoryError
        memcpy(blob.data, <const uint8_t *>data, len(data))
        cdef bint taken = out_append_blob(&self.out, blob, blob.data + start, len(data) - start)
        blob_release(self.box, blob)
        return taken

    def send_run(self, bytes prefix not None, bytes run not None, size_t tail_at, uint32_t count) -> int:
        """Sends what `run` holds, `count` messages of the same size, from `tail_at` on, each behind the prefix. Returns
        how many are settled."""
        cdef size_t stride = len(run) // count
        return out_send_run(&self.out, prefix, len(prefix), <const uint8_t *><const char *>run + tail_at,
                            stride - tail_at, stride, count)

    def gather(self, int room=64) -> list:
        """The parts that a gathering write of at most `room` parts would send."""
        cdef iovec parts[64]
        cdef int n = out_gather(&self.out, parts, min(room, 64)), i
        return [(<uint8_t *>parts[i].iov_base)[:parts[i].iov_len] for i in range(n)]

    def take(self, size_t n):
        if n > out_pending(&self.out):
            raise ValueError(n)
        out_take(&self.out, n)

    def condemn(self, int reason):
        out_condemn(&self.out, <CloseReason>reason)

    def release(self):
        out_release(&self.out)

    def set_clock(self, uint64_t now_us):
        self.box.now_us = now_us

    @property
    def pending(self) -> int:
        return out_pending(&self.out)

    @property
    def close_reason(self) -> int:
        return self.out.close_reason

    @property
    def flags(self) -> set:
        """Which of dirty, called, behind, stalling, relieved are set; reading clears the last two."""
        cdef bint stalling = self.box.stalling == &self.out, relieved = self.box.relieved
        self.box.stalling = NULL
        self.box.relieved = 0
        names = {"dirty": self.out.is_dirty, "called": self.out.is_called, "behind": self.out.is_behind,
                 "stalling": stalling, "relieved": relieved}
        return {name for name, holds in names.items() if holds}

    @property
    def memory(self) -> dict:
        return {"in_use": self.box.bytes_in_chunks, "free_chunks": self.box.n_free_chunks,
                "free_small": self.box.n_free_small}
