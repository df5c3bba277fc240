# cython: language_level=3, boundscheck=False, wraparound=False
"""What waits until other servers have seen what they were told.

With `fence: cluster` that is the PONG to a sibling's PING, for members of the cluster; off, it costs one look per PING.
And always members of queue groups that have left a shard, for all servers (broker.lingering).

Who waits when a server has frames that it has not acknowledged waits for that server's PONG to a PING behind them;
connections are FIFO. Per server one PING is in flight and one waits, which all share who ask meanwhile, as in
broker.fence. A server that is told nothing any more (the gateway leaves) is waited for until its connection ends: it
closes when it has read all, and nothing that it sends comes after that. The wait is bounded: whoever calls expire()
lets those go that wait for too long, and a server that was too late is not waited for until it answers.
"""

from libc.stdint cimport int64_t

from gnatswarm.broker.outbuf cimport CLOSE_NONE, out_append

# Above the numbers that a link gives to queue messages.
cdef uint64_t FIRST_NUMBER = <uint64_t>1 << 63


cdef class ServerWait:
    """A sibling's PING whose PONG waits."""

    cdef int on_known(self) except -1:
        return 0 if self.link.is_closing else self.link.on_settled(self.number)


cdef class ServerFence:

    def __cinit__(self):
        self.pongs_due = [None] * MOST_SHARDS
        self.in_flight = [[] for _ in range(MOST_SHARDS)]
        self.waiting = [[] for _ in range(MOST_SHARDS)]
        self.waits = {}

    cdef int begin(self, int slot, OutBuf *out, list pongs_due, bint is_member) except -1:
        self.outs[slot] = self.rears[slot] = out
        self.pongs_due[slot] = pongs_due
        self.servers |= <uint64_t>1 << slot
        if is_member:
            self.members |= <uint64_t>1 << slot
        self.interest_frames[slot] = self.frames_acked[slot] = self.frames_pinged[slot] = 0
        return 0

    cdef int part(self, int slot) except -1:
        cdef uint64_t bit = <uint64_t>1 << slot
        cdef list done = self.in_flight[slot] + self.waiting[slot]
        self.servers &= ~bit
        self.members &= ~bit
        self.silent &= ~bit
        self.pinging &= ~bit
        self.late &= ~bit
        self.outs[slot] = self.rears[slot] = NULL
        self.pongs_due[slot] = None
        self.in_flight[slot] = []
        self.waiting[slot] = []
        return self.settle(done, slot)

    cdef uint64_t frames_to(self, int slot) noexcept:
        return self.interest_frames[slot] + self.outs[slot].msgs

    cdef uint64_t await_servers(self, OriginLink link) except? 0:
        cdef ServerWait wait
        if not self.is_on:
            return 0
        wait = ServerWait()
        wait.link = link
        return wait.number if self.await_some(wait, self.members) else 0

    cdef bint await_all(self, ServerWait wait) except -1:
        return self.await_some(wait, self.servers)

    cdef bint await_some(self, ServerWait wait, uint64_t servers) except -1:
        cdef uint64_t left = servers & ~self.late, bit
        cdef int slot = -1
        while left:
            slot += 1
            bit = left & 1
            left >>= 1
            if not bit or self.outs[slot].close_reason != CLOSE_NONE:
                continue
            bit <<= slot
            if not (self.pinging | self.silent) & bit and self.frames_acked[slot] == self.frames_to(slot) \
                    and self.rears[slot] == self.outs[slot]:   # (else it is being told, and its PING goes behind that)
                continue
            wait.slots |= bit
            if self.silent & bit or self.pinging & bit and self.frames_pinged[slot] != self.frames_to(slot):
                (<list>self.waiting[slot]).append(wait)
                continue
            (<list>self.in_flight[slot]).append(wait)
            if not self.pinging & bit:
                self.ping(slot)
        if wait.slots == 0:
            return False
        self.last_number += 1
        wait.number = FIRST_NUMBER + self.last_number
        wait.since_us = wait.link.out.box.now_us
        self.waits[wait.number] = wait
        if len(self.waits) == 1:
            self.on_wait()
        return True

    cdef int ping(self, int slot) except -1:
        if (self.silent >> slot) & 1:
            return 0
        self.pinging |= <uint64_t>1 << slot
        self.frames_pinged[slot] = self.frames_to(slot)
        (<list>self.pongs_due[slot]).append(True)
        out_append(self.rears[slot], b'PING\r\n', 6)
        return 0

    cdef int on_pong(self, int slot) except -1:
        cdef uint64_t bit = <uint64_t>1 << slot
        cdef list done = self.in_flight[slot]
        self.pinging &= ~bit
        self.late &= ~bit
        self.frames_acked[slot] = self.frames_pinged[slot]
        self.in_flight[slot] = self.waiting[slot]
        self.waiting[slot] = []
        if self.in_flight[slot]:
            self.ping(slot)
        return self.settle(done, slot)

    cdef int settle(self, list waits, int slot) except -1:
        """These wait for this server no longer."""
        cdef ServerWait wait
        for item in waits:
            wait = <ServerWait>item
            wait.slots &= ~(<uint64_t>1 << slot)
            if wait.slots == 0 and self.waits.pop(wait.number, None) is not None:
                wait.on_known()
        return 0

    def expire(self, uint64_t now_us, uint64_t bound_us) -> tuple[list[int], int]:
        """Let go who has waited for longer than the bound (µs). Returns the slots of the servers that were too late,
        and after how many µs to call again; 0: nobody waits."""
        cdef ServerWait wait
        cdef uint64_t late = 0
        cdef int slot
        for item in list(self.waits.values()):
            wait = <ServerWait>item
            if wait.since_us + bound_us > now_us:
                break
            late |= wait.slots
        late &= ~self.late
        self.late |= late
        slots = [slot for slot in range(MOST_SHARDS) if (late >> slot) & 1]
        for slot in slots:
            done = self.in_flight[slot] + self.waiting[slot]
            self.in_flight[slot] = []
            self.waiting[slot] = []
            self.settle(done, slot)
        for item in self.waits.values():
            wait = <ServerWait>item
            return slots, max(1000, <int64_t>(wait.since_us + bound_us - now_us))
        return slots, 0
