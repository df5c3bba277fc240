# cython: language_level=3, boundscheck=False, wraparound=False
"""One end of a byte stream: the unused rest of the last read, and the output that waits to be sent.

It knows no socket and no operations. Invariant: an idle peer holds no buffer at all; an incomplete operation is kept
from its first byte on, a big one in a blob of exactly its size, into which the kernel writes.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from gnatswarm.broker.outbuf cimport (
    BLOB_BYTES, CLOSE_NONE, CLOSE_READ_ERROR, blob_new, blob_release, out_call, out_condemn,
    out_pending, out_release, outbox_release)
from gnatswarm.broker.word cimport SLACK


cdef enum:
    MERGING_BYTES = 4096   # more than the small blocks of any malloc


cdef void merge_freed() noexcept nogil:
    """glibc merges small blocks that were freed when somebody asks for a larger one: of a million subscriptions all at
    once, which takes half a second. So each slice asks for one. (Without fast bins SUB and UNSUB would cost 15 % more.)
    """
    PyMem_RawFree(PyMem_RawMalloc(MERGING_BYTES))   # (a compiler leaves out free(malloc()))


cdef class Peer:

    def __dealloc__(self):
        self.forget_input()
        if self.out.box != NULL:
            out_release(&self.out)
            outbox_release(self.out.box)

    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1:
        raise NotImplementedError

    cdef void on_finished(self, Sub *sub) noexcept:
        pass

    cdef void on_kept_from(self, uint64_t publisher) noexcept:
        pass

    cdef void on_request(self, const uint8_t *reply, size_t size) noexcept:
        pass

    cdef void close(self, CloseReason reason) noexcept:
        """Have the owner close it, after sending as much queued output as the kernel takes."""
        if not self.is_closing:
            self.is_closing = True
            if self.out.close_reason == CLOSE_NONE:
                out_condemn(&self.out, reason)   # nothing may follow the final error

    cdef int read_parts(self, uint8_t *shared, size_t room, iovec *parts) noexcept:
        if self.holds or self.is_closing:
            return 0
        if self.blob != NULL:
            parts[0].iov_base = self.blob.data + self.blob_filled
            parts[0].iov_len = self.blob.size - self.blob_filled
            parts[1].iov_base = shared
            parts[1].iov_len = room
            return 2
        if self.partial_size:
            memcpy(shared, self.partial, self.partial_size)
        parts[0].iov_base = shared + self.partial_size
        parts[0].iov_len = room - self.partial_size
        return 1

    cdef int received(self, uint8_t *shared, size_t room, size_t n) except -1:
        cdef size_t missing, size
        cdef Blob *blob
        if self.blob != NULL:
            blob = self.blob
            missing = blob.size - self.blob_filled
            if n < missing:
                self.blob_filled += n
                return 0
            self.blob = NULL
            self.out.box.stalling = NULL   # (see carry_out())
            try:
                self.consume(blob.data, blob.size, blob)
            finally:
                blob_release(self.out.box, blob)
            n -= missing
            if n == 0 or self.is_closing:
                return 0
            size = n
        else:
            size = self.partial_size + n
            if self.partial_size:
                free(self.partial)
                self.partial = NULL
                self.partial_size = 0
        return self.carry_out(shared, size)

    cdef int carry_out(self, const uint8_t *data, size_t size) except -1:
        """Call consume(), and keep the bytes that it leaves."""
        cdef Py_ssize_t done = 0
        self.needs = 0
        self.out.box.stalling = NULL   # who is behind with what others have caused, such as clients that went
        if not self.holds:
            done = self.consume(data, size, NULL)
        if self.is_closing or <size_t>done == size:
            return 0
        if not self.keep(data + done, size - done):
            self.close(CLOSE_READ_ERROR)
        return 0

    cdef bint keep(self, const uint8_t *data, size_t size) noexcept:
        cdef Blob *blob
        if self.needs >= BLOB_BYTES and self.needs > size and not self.holds:
            blob = blob_new(self.out.box, self.needs)
            if blob == NULL:
                return False
            memcpy(blob.data, data, size)
            self.blob = blob
            self.blob_filled = size
            return True
        self.partial = <uint8_t *>malloc(size + SLACK)
        if self.partial == NULL:
            return False
        memcpy(self.partial, data, size)
        self.partial_size = size
        return True

    cdef void forget_input(self) noexcept:
        free(self.partial)
        self.partial = NULL
        self.partial_size = 0
        if self.blob != NULL:
            blob_release(self.out.box, self.blob)
            self.blob = NULL

    def wait(self):
        """Pause reading until go_on(): its messages would not reach a living sibling, or a link came too early."""
        self.holds |= HOLD_LINK

    def go_on(self):
        """Resume reading."""
        self.release(HOLD_LINK)

    cdef void release(self, uint8_t hold) noexcept:
        self.holds &= ~hold
        if not self.holds:
            out_call(&self.out)

    cdef bint on_failure(self) noexcept:
        return False

    cdef bint rest(self) except -1:
        return False

    cdef int resume(self, uint8_t *shared, size_t room) except -1:
        cdef size_t size = self.partial_size
        if size == 0 or self.is_closing or self.holds:
            return 0
        memcpy(shared, self.partial, size)
        free(self.partial)
        self.partial = NULL
        self.partial_size = 0
        return self.carry_out(shared, size)

    @property
    def out_msgs(self) -> int:
        """Messages queued for it so far."""
        return self.out.msgs

    @property
    def out_bytes(self) -> int:
        """… and their bytes: headers and payloads."""
        return self.out.payload_bytes

    @property
    def pending_bytes(self) -> int:
        """Output that waits to be sent."""
        return out_pending(&self.out)
