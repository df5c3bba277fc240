# One end of a byte stream: what is left of the last read, and what waits to be sent.
#
#   the owner of the socket:   read_parts() → the kernel fills them → received(n)      out → the kernel takes it
#
# A subclass turns bytes into operations in consume(). Client connection and sibling link are its two subclasses.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from broker.outbuf cimport Blob, CloseReason, OutBuf, Outbox, iovec
from broker.interest cimport Sub

# Why no operation is carried out for now; a mask.
cdef enum Hold:
    HOLD_STALL = 1     # somebody it feeds is behind
    HOLD_FENCE = 2     # its PONG is due: what its later operations cause must not overtake it
    HOLD_LOGIN = 4     # its log-in is being looked at
    HOLD_LINK = 8      # a client: a link is missing, and a sibling would not hear of it. A link: it is early


cdef class Peer:
    cdef OutBuf out
    cdef Blob *blob            # a big operation on its way, all its bytes: filled up to blob_filled
    cdef size_t blob_filled
    cdef uint8_t *partial      # an incomplete operation, or what was not read while held
    cdef size_t partial_size
    cdef size_t needs          # consume(): all the bytes of the operation it stopped at, where known
    cdef uint8_t holds         # Hold mask; not 0: nothing is read, what was read is kept
    cdef readonly bint is_closing   # consume() said so: send what there is, then close

    # Where to read to: at most two parts. `shared` has `room` bytes (and SLACK more) and is free until received().
    # 0: nothing may be read now.
    cdef int read_parts(self, uint8_t *shared, size_t room, iovec *parts) noexcept
    # The kernel put n bytes there. Raises only what consume() raises.
    cdef int received(self, uint8_t *shared, size_t room, size_t n) except -1
    # Takes away a reason to hold. With none left the owner is called to attention, and calls resume().
    cdef void release(self, uint8_t hold) noexcept
    # Goes on with what was kept.
    cdef int resume(self, uint8_t *shared, size_t room) except -1
    # Carries out the operations in data[0:size]; how many bytes are done with. The rest comes again, in front of
    # what follows. `whole` is the blob that data is, or NULL.
    cdef Py_ssize_t consume(self, const uint8_t *data, size_t size, Blob *whole) except -1
    cdef int carry_out(self, const uint8_t *data, size_t size) except -1
    # Keeps data[0:size] for the next read. False: no memory.
    cdef bint keep(self, const uint8_t *data, size_t size) noexcept
    # Nothing more is read: lets go of what was kept.
    cdef void forget_input(self) noexcept
    # UNSUB max was reached by the delivery that is going on: the subscription ends after it.
    cdef void on_finished(self, Sub *sub) noexcept
    # It was sent a message that may be answered (OutBuf.may_answer).
    cdef void on_request(self, const uint8_t *reply, size_t size) noexcept
    cdef void close(self, CloseReason reason) noexcept
