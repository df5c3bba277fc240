# cython: language_level=3, boundscheck=False, wraparound=False
"""When the many publishers of a shard are read together: a pure function of how much was read, and when.

Patience sees single sockets. Where hundreds write a little each, none is quick by itself, and a prompt shard finds one
write per read; the cost is per read and per send. So when LEAST_RATE small reads a second have come for LEAST_SPAN_US,
sockets to which nothing is sent are looked at every few milliseconds. It is kept where reads become larger and the
publishers are not slowed down; a longer wait is kept where they become faster.
Not here: the sockets, their set and its clock (patient_set).
"""

cdef enum:
    # Small reads per second of one shard. Half of it costs nobody a wait: a read and what it causes take some 5 µs.
    LEAST_RATE = 40000
    # For so long. Publishers of 20,000 messages a second together that were stopped for 26 ms, as on a busy machine,
    # sent the next 1,024 at twice that rate; and once gathered, every message waits for 16 looks of 3 ms to be judged.
    LEAST_SPAN_US = 100000
    FIRST_TICK_US = 3000
    MOST_TICK_US = 12000
    # (Looks of 48 ms, four of the longest tick: 40 to 60 % more CPU, because long ticks were given up.)
    LOOKS_TO_JUDGE = 16
    FIRST_WAIT_US = 100000
    MOST_WAIT_US = 10000000

cdef double LEAST_SHARE = 0.7       # of the bytes per second that came before
cdef double LEAST_GROWTH = 1.5      # of the bytes per read
cdef double WORTH_LONGER = 1.05     # times as many bytes per second: what a longer tick must bring


cdef class Crowd(Pace):
    """The pace of one shard's looks at its crowd."""

    def __cinit__(self):
        self.tick_us = FIRST_TICK_US
        self.wait_us = self.longer_wait_us = FIRST_WAIT_US

    cdef void begin(self, uint64_t now_us) noexcept:
        self.measure_anew(now_us)

    cdef void end(self) noexcept:
        """Who comes next may be others, who write less: they would wait for the longest tick until they are judged."""
        self.is_gathering = False

    cdef void judge_prompt(self, uint64_t now_us) noexcept:
        """CROWD_READS small reads have come, or more: decide whether to gather."""
        cdef uint64_t took = max(1, now_us - self.since_us)
        if self.reads * 1000000 >= LEAST_RATE * took and now_us >= self.retry_us:
            if took < LEAST_SPAN_US:
                return
            self.is_gathering = True
            self.prompt_rate = <double>self.bytes_read / took
            self.prompt_size = <double>self.bytes_read / self.reads
            self.best_rate = self.shorter_rate = 0
            self.tick_us = FIRST_TICK_US
        self.measure_anew(now_us)

    cdef bint has_dispersed(self, uint64_t now_us) noexcept:
        """Nobody is gathered: whether it paused just when gathering was decided, and is none any more."""
        if self.is_gathering and now_us - self.since_us >= LEAST_SPAN_US:
            self.end()
        return not self.is_gathering

    cdef void after_look(self, size_t found, uint32_t reads, uint64_t now_us) noexcept:
        self.looks += 1
        self.reads += reads
        self.bytes_read += found
        if self.looks >= LOOKS_TO_JUDGE and self.is_gathering:
            self.judge_gathering(now_us)

    cdef void judge_gathering(self, uint64_t now_us) noexcept:
        """Decide whether to go on gathering, and how long to wait between looks."""
        cdef double rate = <double>self.bytes_read / max(1, now_us - self.since_us)
        if self.is_worth_it(rate, <double>self.bytes_read / max(1, self.reads)):
            self.wait_us = FIRST_WAIT_US
            self.choose_tick(rate, now_us)
        else:
            self.is_gathering = False
            self.retry_us = now_us + self.wait_us
            self.wait_us = min(MOST_WAIT_US, 2 * self.wait_us)
        self.measure_anew(now_us)

    cdef bint is_worth_it(self, double rate, double size) noexcept:
        return rate >= LEAST_SHARE * self.prompt_rate and size >= LEAST_GROWTH * self.prompt_size

    cdef void choose_tick(self, double rate, uint64_t now_us) noexcept:
        if self.shorter_rate:
            if rate < WORTH_LONGER * self.shorter_rate:
                self.tick_us //= 2
                self.best_rate = self.shorter_rate
                self.longer_us = now_us + self.longer_wait_us
                self.longer_wait_us = min(MOST_WAIT_US, 2 * self.longer_wait_us)
            else:
                self.best_rate = rate
                self.longer_wait_us = FIRST_WAIT_US
            self.shorter_rate = 0
        elif rate < LEAST_SHARE * self.best_rate:   # they write less now
            self.tick_us = FIRST_TICK_US
            self.best_rate = rate
        else:
            self.best_rate = max(self.best_rate, rate)
            if self.tick_us < MOST_TICK_US and now_us >= self.longer_us:
                self.shorter_rate = rate
                self.tick_us *= 2

    cdef void measure_anew(self, uint64_t now_us) noexcept:
        self.since_us = now_us
        self.reads = self.bytes_read = 0
        self.looks = 0

    # For tests, in place of the reactor.

    def read(self, size_t size, uint64_t now_us):
        """A small prompt read of so many bytes, of a socket to which nothing was sent."""
        note_prompt_read(self, size, now_us)

    def looked(self, size_t found, uint32_t reads, uint64_t now_us) -> int:
        """One look found so many bytes in so many reads; returns the µs to wait before the next."""
        self.after_look(found, reads, now_us)
        return self.tick_us

    def joined(self, now_us: int) -> bool:
        """The first one would be gathered: whether it is."""
        return not self.has_dispersed(now_us)

    def ended(self):
        """Looks find nothing any more."""
        self.end()
