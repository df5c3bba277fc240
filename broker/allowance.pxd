# How much the clients of a user and of its account may still publish: one bucket each for messages and for bytes.
#
# A bucket is one word, "paid up to": the moment at which all that was published so far is paid for at its rate. Who
# publishes moves it on; when it is a burst ahead of now, nothing more may be published (GCRA, ITU-T I.371). The words
# are shared by all processes of a broker, whose monotonic clock is one, so the rate is the broker's.

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

cdef enum:
    MOST_BUCKETS = 4
    # Carried out between two looks: so much may a shard go beyond the rate while another one uses it up, too.
    SLICE_BYTES = 16384
    LEAST_MESSAGE_BYTES = 9   # of an operation that publishes: PUB a 0, and two line ends

ctypedef struct Bucket:
    uint64_t *paid      # in TICKS of a µs; atomic
    double cost         # of one message or byte, in ticks
    double burst        # how far ahead it may be, in ticks
    bint is_of_bytes


@cython.final
cdef class Allowance:
    cdef Bucket buckets[MOST_BUCKETS]
    cdef int count
    cdef object memory           # keeps the words mapped
    cdef readonly uint64_t burst_us   # the longest of the buckets
    cdef readonly uint64_t stall_us   # a client may wait so long without a break of a burst; 0: for ever
    cdef readonly object key          # whose it is, for the owner

    # Bytes of operations that may be carried out before the next look, 1 to SLICE_BYTES; 0: none now. At most one
    # message more than is allowed comes of it.
    cdef size_t room(self, uint64_t now_us) noexcept
    # So many messages, with so many bytes together, were published.
    cdef void charge(self, uint64_t msgs, uint64_t payload_bytes, uint64_t now_us) noexcept
    # How long until there is room again; 0: there is.
    cdef uint64_t wait_us(self, uint64_t now_us) noexcept
