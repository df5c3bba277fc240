# One end of a byte stream: the unused rest of the last read, and the output that waits to be sent.
#
#   the owner of the socket:   read_parts() → the kernel fills them → received(n)      out → the kernel takes it
#
# A subclass executes operations in consume(): ClientConnection, SiblingLink and ServerLink do.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.outbuf cimport Blob, CloseReason, OutBuf, Outbox, iovec
from gnatswarm.broker.interest cimport Sub

# Why operations are not executed for now; a mask.
cdef enum Hold:
    HOLD_STALL = 1     # a receiver of its messages is behind
    HOLD_FENCE = 2     # it waits for a PONG, which effects of its later operations must not overtake
    HOLD_LOGIN = 4     # its log-in is being checked
    HOLD_LINK = 8      # client: a link is missing, its messages would not reach a sibling. Link: too early
    HOLD_MOVE = 16     # client: it moves to another shard. Link: a new sibling waits for the end of a move
    HOLD_RATE = 32     # its user or account has published as much as it may; or it has had its turn
    HOLD_REPLY = 64    # it has replied to a request that another shard is about to hand over to this one
    HOLD_REST = 128    # another server that tells much interest, or whose messages, as a sibling's, take long to match:
    #                    clients are served first
    HOLD_ENDING = 128  # client: its subscriptions are being ended, some at a time


# To be called behind each slice of work that frees many small blocks: their merging is done in slices, too.
cdef void merge_freed() noexcept nogil


cdef class Peer:
    cdef OutBuf out
    cdef Blob *blob            # a big operation on its way, all its bytes: filled up to blob_filled
    cdef size_t blob_filled
    cdef uint8_t *partial      # an incomplete operation, or unprocessed input while held
    cdef size_t partial_size
    cdef size_t needs          # consume(): all the bytes of the operation it stopped at, where known
    cdef size_t still_coming   # of a refused operation: bytes that it announced and that were not here yet
    cdef uint8_t holds         # Hold mask; not 0: nothing is read, and input read before is kept
    cdef readonly bint is_closing   # set by consume(): send the queued output, then close

    # The buffers to read into: at most two. `shared` has `room` bytes (and SLACK more) and is free until received().
    # Returns 0: nothing may be read now.
    cdef int read_parts(self, uint8_t *shared, size_t room, iovec *parts) noexcept
    # The kernel put n bytes there. Raises only what consume() raises.
    cdef int received(self, uint8_t *shared, size_t room, size_t n) except -1
    # That was an error of ours. Whether it costs this connection alone: it is closed; else the process ends.
    cdef bint on_failure(self) noexcept
    # Much of it is still to be carried out: hold it until others had their turn. False: nobody would read it on.
    cdef bint rest(self) except -1
    # Removes a reason to hold. When none is left, the owner is told (out_call), and calls resume().
    cdef void release(self, uint8_t hold) noexcept
    # Processes the input that was kept.
    cdef int resume(self, uint8_t *shared, size_t room) except -1
    # Executes the operations in data[0:size]; returns how many bytes were used. The rest is passed again, in front of
    # what follows. `whole` is the blob that data is, or NULL.
    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef int carry_out(self, const uint8_t *data, size_t size) except -1
    # Keeps data[0:size] for the next read. False: no memory.
    cdef bint keep(self, const uint8_t *data, size_t size) noexcept
    # Drops kept input; nothing more is read.
    cdef void forget_input(self) noexcept
    # The present delivery has reached the subscription's max (UNSUB): it ends after this delivery.
    cdef void on_finished(self, Sub *sub) noexcept
    # It is being sent a message that it may reply to (OutBuf.may_reply).
    cdef void on_request(self, const uint8_t *reply, size_t size) noexcept
    # As a member of a queue group, while it moves, it is sent a message of this client, which wants no echo.
    cdef void on_kept_from(self, uint64_t publisher) noexcept
    cdef void close(self, CloseReason reason) noexcept
