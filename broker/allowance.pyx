# cython: language_level=3, boundscheck=False, wraparound=False
"""How much the clients of a user and of its account may still publish, over all shards together.

Pure: it knows words in memory, rates and a time that it is given. A connection without limits has none, and looks once
per read. Cost where there is one: some 60 instructions for each slice of a read, whatever is in it.
"""

cimport cython
from libc.stdint cimport uintptr_t

cdef extern from *:
    """
    #include <stdint.h>
    /* A tick is 1/16 ns: a byte at 1 GB/s costs 16. */
    #define TICKS_PER_US 16000

    static inline uint64_t paid_up_to(const uint64_t *paid) {
        return __atomic_load_n(paid, __ATOMIC_RELAXED);
    }
    /* Moves the word on by `cost`, from now at the earliest: what was not used earlier is not saved up. */
    static inline void pay(uint64_t *paid, uint64_t cost, uint64_t now) {
        uint64_t was = __atomic_load_n(paid, __ATOMIC_RELAXED), next;
        do {
            next = (was > now ? was : now) + cost;
        } while (!__atomic_compare_exchange_n(paid, &was, next, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
    """
    const uint64_t TICKS_PER_US
    uint64_t paid_up_to(const uint64_t *paid) noexcept
    void pay(uint64_t *paid, uint64_t cost, uint64_t now) noexcept


@cython.final
cdef class Allowance:
    """`buckets`: (address of the word, units per second, seconds of burst, whether the unit is a byte); at most four.

    `memory` keeps those words mapped. ValueError: a rate or a burst that is not positive, too many buckets.
    """

    def __cinit__(self, list buckets not None, object memory, *, double stall_s=0.0, key=None):
        cdef Bucket *bucket
        if len(buckets) > MOST_BUCKETS or stall_s < 0:
            raise ValueError(f"{len(buckets)} buckets, stall {stall_s}: at most {MOST_BUCKETS}, and no negative time")
        self.memory = memory
        self.key = key
        self.stall_us = <uint64_t>(stall_s * 1e6)
        for address, per_second, burst_s, is_of_bytes in buckets:
            if per_second <= 0 or burst_s <= 0:
                raise ValueError(f"a rate of {per_second} with a burst of {burst_s} s")
            bucket = &self.buckets[self.count]
            bucket.paid = <uint64_t *><uintptr_t>address
            bucket.cost = TICKS_PER_US * 1e6 / per_second
            bucket.burst = burst_s * 1e6 * TICKS_PER_US
            bucket.is_of_bytes = is_of_bytes
            self.burst_us = max(self.burst_us, <uint64_t>(burst_s * 1e6))
            self.count += 1

    cdef size_t room(self, uint64_t now_us) noexcept:
        cdef uint64_t now = now_us * TICKS_PER_US
        cdef uint64_t paid
        cdef double left, most = SLICE_BYTES
        cdef int i
        for i in range(self.count):
            paid = paid_up_to(self.buckets[i].paid)
            left = self.buckets[i].burst - (<double>(paid - now) if paid > now else 0.0)
            if left <= 0:
                return 0
            left /= self.buckets[i].cost
            if not self.buckets[i].is_of_bytes:
                left *= LEAST_MESSAGE_BYTES
            if left < most:
                most = left
        return <size_t>most if most >= 1 else 1

    cdef void charge(self, uint64_t msgs, uint64_t payload_bytes, uint64_t now_us) noexcept:
        cdef uint64_t now = now_us * TICKS_PER_US
        cdef uint64_t units
        cdef int i
        for i in range(self.count):
            units = payload_bytes if self.buckets[i].is_of_bytes else msgs
            if units:
                pay(self.buckets[i].paid, <uint64_t>(<double>units * self.buckets[i].cost), now)

    cdef uint64_t wait_us(self, uint64_t now_us) noexcept:
        cdef uint64_t now = now_us * TICKS_PER_US
        cdef uint64_t paid
        cdef double over, longest = -1.0
        cdef int i
        for i in range(self.count):
            paid = paid_up_to(self.buckets[i].paid)
            if paid <= now:
                continue
            over = <double>(paid - now) - self.buckets[i].burst
            if over > longest:
                longest = over
        return <uint64_t>(longest / TICKS_PER_US) + 1 if longest >= 0 else 0

    # ---- for tests

    def look(self, uint64_t now_us) -> tuple:
        """(room, wait in µs) at this time."""
        return self.room(now_us), self.wait_us(now_us)

    def publish(self, uint64_t msgs, uint64_t payload_bytes, uint64_t now_us) -> None:
        """Charge for these messages, with so many bytes together."""
        self.charge(msgs, payload_bytes, now_us)
