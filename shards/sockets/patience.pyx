# cython: language_level=3
"""When to read next from publishers that write in small pieces: a pure function of what the last looks found, and when.

Two modes. *Prompt*: a look every 20 to 200 µs, so that one look finds some 128 KiB. *Filling*: a look when some 96 KiB
have come. On a local connection a small write costs its writer the whole way through the kernel, unless earlier
writes still wait in its send buffer; then it costs a quarter. So filling is tried with publishers fast enough to send
that much in 3 ms, and kept where it brings more bytes per second than before.
Not here: the sockets, their set and its clock (patient_set).
"""

cdef enum:
    FIRST_TICK_US = 50
    LEAST_TICK_US = 20
    MOST_TICK_US = 200
    TICK_BYTES = 131072     # what a prompt look should find: what a narrow receive buffer holds (window.pyx)
    # What one look finds when it fills. (Trial builds, 10 messages of 16 B per write, nats-server 2.9.10 = 1:
    # 64 KiB 3.2 times less CPU at 0.95 of the rate; 96 KiB 6.5 and 1.3; 128 KiB 4.0 and 1.2; 256 KiB 2.4 and 0.9.)
    FILL_BYTES = 98304
    MOST_FILL_US = 3000
    LOOKS_TO_JUDGE = 16
    FIRST_WAIT_US = 100000
    MOST_WAIT_US = 10000000

# Filling delays messages, so it must bring this many times more bytes per second.
cdef double WORTH_WAITING = 1.25


cdef class Pace:
    """When a set of sockets is looked at. The base class looks at a fixed pace."""

    cdef void begin(self, uint64_t now_us) noexcept:
        pass

    cdef void after_look(self, size_t found, uint32_t reads, uint64_t now_us) noexcept:
        pass

    cdef void end(self) noexcept:
        pass


cdef class Patience(Pace):
    """The pace of one shard's looks. `tick_us` is the wait until the next after_look()."""

    def __cinit__(self):
        self.tick_us = FIRST_TICK_US
        self.wait_us = FIRST_WAIT_US

    cdef void begin(self, uint64_t now_us) noexcept:
        if self.is_filling:
            self.is_filling = False
            self.tick_us = FIRST_TICK_US
        self.since_us = now_us
        self.bytes_found = 0
        self.looks = 0

    cdef void after_look(self, size_t found, uint32_t reads, uint64_t now_us) noexcept:
        cdef uint64_t tick = self.tick_us
        self.looks += 1
        self.bytes_found += found
        if self.is_filling:
            tick = min(MOST_FILL_US, FILL_BYTES * tick // (found + 1))
        elif found > 2 * TICK_BYTES:
            tick = tick * 3 // 4
        elif found < TICK_BYTES // 2:
            tick = min(MOST_TICK_US, tick * 5 // 4)
        self.tick_us = max(LEAST_TICK_US, tick)
        if self.looks >= LOOKS_TO_JUDGE:
            self.judge(now_us)

    cdef void judge(self, uint64_t now_us) noexcept:
        """Decide whether filling is worth trying, or whether it was worth it."""
        cdef double rate = <double>self.bytes_found / max(1, now_us - self.since_us)
        if self.is_filling:
            if rate < WORTH_WAITING * self.prompt_rate:
                self.is_filling = False
                self.tick_us = MOST_TICK_US
                self.retry_us = now_us + self.wait_us
                self.wait_us = min(MOST_WAIT_US, 2 * self.wait_us)
            else:
                self.wait_us = FIRST_WAIT_US
        elif now_us >= self.retry_us and rate * MOST_FILL_US >= FILL_BYTES > rate * MOST_TICK_US:
            self.is_filling = True
            self.prompt_rate = rate
            self.tick_us = <uint32_t>(FILL_BYTES / rate)
        self.since_us = now_us
        self.bytes_found = 0
        self.looks = 0

    # For tests, in place of the reactor.

    def began(self, uint64_t now_us):
        self.begin(now_us)

    def looked(self, size_t found, uint64_t now_us) -> int:
        """One look found so many bytes; returns the µs to wait before the next."""
        self.after_look(found, 1, now_us)
        return self.tick_us
