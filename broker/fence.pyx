# cython: language_level=3, boundscheck=False, wraparound=False
"""The PONG fence (promise 2 of the design), for a broker of several shards, and how long former queue members linger.

Costs nothing to a client whose earlier operations reached no sibling, or whose siblings have acknowledged
everything since; otherwise one or two round trips over a Unix socket, shared by all who ask meanwhile.
"""

from gnatswarm.broker.outbuf cimport CLOSE_NONE, CLOSE_ROUTE_REMOVED, out_append, out_call
from gnatswarm.broker.interest cimport GATEWAY_NUMBER
from gnatswarm.broker.peer cimport HOLD_FENCE
from gnatswarm.broker.word cimport unlikely


cdef uint64_t FIRST_END = <uint64_t>1 << 62   # see is_of_end()


cdef class FencedBatch:
    """Connections that move together."""

    cdef int on_fenced(self) except -1:
        raise NotImplementedError


cdef class Known(FencedBatch):
    """Who is to hear that siblings have what they were sent."""

    cdef object call

    cdef int on_fenced(self) except -1:
        self.call()
        return 0


cdef class Waiter:
    """One client's PING that waits for siblings."""


cdef class MeshFence(Fence):

    def __cinit__(self, Mesh mesh not None):
        self.mesh = mesh
        self.in_flight = [[] for _ in range(MOST_SHARDS)]
        self.waiting = [[] for _ in range(MOST_SHARDS)]
        self.due = {}
        self.ending = {}

    cdef bint passes(self, ClientConnection client) noexcept:
        cdef uint64_t published = client.published
        cdef Waiter waiter
        if client.is_in_doubt:
            client.close(CLOSE_ROUTE_REMOVED)
            return False
        client.published = 0
        waiter = self.wait_for_touched(client, published, None)
        if client.n_formers:   # they may still get messages, which must come before the PONG
            if waiter is None:
                waiter = Waiter()
            waiter.awaits_formers = True
            waiter.links_left += 1
        if waiter is None:
            return True
        waiter.client = client
        waiter.published = published
        self.due[client] = waiter
        return False

    cdef Waiter wait_for_touched(self, ClientConnection client, uint64_t more, Waiter waiter):
        """Have the waiter (None: a new one, if it is needed) wait for siblings that were told something because of
        this client, and for `more`, as far as they have not acknowledged it."""
        cdef uint64_t left = (client.touched | more) & self.mesh.up & ~self.unawaited
        cdef int shard = 0
        client.touched = 0
        while left:
            if left & 1 and (self.is_pinging[shard] or self.frames_acked[shard] != self.mesh.frames_to(shard)
                             or self.mesh.fanout.links[shard].close_reason != CLOSE_NONE):   # it accepts no more
                if waiter is None:
                    waiter = Waiter()
                self.wait_for(shard, waiter)
            left >>= 1
            shard += 1
        return waiter

    cdef int wait_for(self, int shard, Waiter waiter) except -1:
        waiter.links_left += 1
        if self.is_pinging[shard]:
            (<list>self.waiting[shard]).append(waiter)
            return 0
        (<list>self.in_flight[shard]).append(waiter)
        return self.ping(shard)

    cdef int fence_batch(self, FencedBatch batch) except -1:
        return self.fence_these(batch, self.mesh.up)

    cdef int fence_served(self, FencedBatch batch) except -1:
        return self.fence_these(batch, self.mesh.up & ~self.unawaited)

    def call_when_known(self, call):
        """Call this when all siblings have what they were sent so far, and what they have sent on of that has arrived.

        Where there are none that is at once, else while what a sibling has sent is being read.
        """
        cdef Known known = Known()
        known.call = call
        self.fence_served(known)

    cdef int fence_these(self, FencedBatch batch, uint64_t left) except -1:
        cdef Waiter waiter = Waiter()
        cdef int shard = 0
        waiter.batch = batch
        waiter.links_left = 1
        while left:
            if left & 1:
                self.wait_for(shard, waiter)
            left >>= 1
            shard += 1
        return self.settle(waiter)

    cdef int begin(self, int shard, bint is_new) except -1:
        self.is_pinging[shard] = 1
        if is_new:
            self.unawaited |= <uint64_t>1 << shard
        return 0

    cdef int ping(self, int shard) except -1:
        if unlikely(self.is_pinging[shard] != 0):   # since begin(): it is behind what all of them wait for
            self.unawaited &= ~(<uint64_t>1 << shard)
            self.in_flight[shard] = self.in_flight[shard] + self.waiting[shard]
            self.waiting[shard] = []
        self.is_pinging[shard] = 1
        self.frames_pinged[shard] = self.mesh.frames_to(shard)
        self.msgs_pinged[shard] = self.mesh.fanout.links[shard].msgs
        out_append(self.mesh.fanout.links[shard], b'PING\r\n', 6)
        return 0

    cdef int on_pong(self, int shard) except -1:
        cdef list done = self.in_flight[shard]
        self.is_pinging[shard] = 0
        self.frames_acked[shard] = self.frames_pinged[shard]
        self.mesh.fanout.asked.acknowledge(shard, self.msgs_pinged[shard])
        if self.frames_acked[shard] >= self.mesh.told_at[shard]:
            self.mesh.unheard &= ~(<uint64_t>1 << shard)
        self.in_flight[shard] = self.waiting[shard]
        self.waiting[shard] = []
        if self.in_flight[shard]:
            self.ping(shard)
        return self.acknowledge(done)

    cdef int on_break(self, int shard) except -1:
        # The next link begins with our PING, behind our whole interest: its PONG serves all of these waiters.
        self.in_flight[shard] = self.in_flight[shard] + self.waiting[shard]
        self.waiting[shard] = []
        self.is_pinging[shard] = 0
        self.unawaited &= ~(<uint64_t>1 << shard)
        if self.frames_acked[shard] != self.mesh.frames_to(shard) \
                or self.mesh.fanout.link_refused != self.refused_before:
            self.lossy |= <uint64_t>1 << shard
        self.refused_before = self.mesh.fanout.link_refused
        self.mesh.fanout.asked.forget(shard)
        self.frames_acked[shard] = self.frames_pinged[shard] = 0
        return self.end_all(shard)

    def doubt(self, int shard, connections, servers=None) -> int:
        """The sibling of a broken link lives, but messages on their way to it may be lost. A client that sent
        some, and has had no PONG since, must get none: it is closed, now or at its next PING. So is another server
        that relies on it (`servers`: the gateway's Exchange).

        Returns of how many of these connections, and of the servers, messages may be lost.
        """
        cdef ClientConnection client
        cdef Waiter waiter
        cdef uint64_t bit = <uint64_t>1 << shard
        cdef int n = 0
        if not self.lossy & bit:
            return 0
        self.lossy &= ~bit
        for item in connections:
            client = <ClientConnection?>item
            waiter = self.due.get(client)
            if waiter is not None and waiter.published & bit:
                client.close(CLOSE_ROUTE_REMOVED)
                out_call(&client.out)
                n += 1
            elif client.published & bit:
                client.is_in_doubt = True
                n += 1
        return n if servers is None else n + <int>servers.doubt()

    def gone(self, int shard):
        """The sibling of a broken link is dead: nobody waits for it, and no client is closed because of it."""
        self.lossy &= ~(<uint64_t>1 << shard)
        self.mesh.out_of_step &= ~(<uint64_t>1 << shard)
        self.on_part(shard)
        if self.mesh.moves is not None:
            self.mesh.moves.on_gone(shard)

    def forget_published(self, shard: int, connections):
        """That sibling is dead: what these connections published to it went with it. The next shard of its number was
        sent none of it, so that nobody is in doubt because of it when the link to that one breaks."""
        cdef uint64_t others = ~(<uint64_t>1 << <int>shard)
        cdef Waiter waiter
        cdef ClientConnection client
        for item in connections:
            client = <ClientConnection?>item
            if not client.is_in_doubt:   # (else its next PING has to come here, and closes it)
                client.published &= others
        for item in self.due.values():
            waiter = <Waiter>item
            waiter.published &= others

    cdef int on_part(self, int shard) except -1:
        cdef list done = self.in_flight[shard] + self.waiting[shard]
        self.in_flight[shard] = []
        self.waiting[shard] = []
        self.is_pinging[shard] = 0
        self.unawaited &= ~(<uint64_t>1 << shard)
        self.mesh.fanout.asked.forget(shard)
        self.frames_acked[shard] = self.frames_pinged[shard] = 0
        self.end_all(shard)
        return self.acknowledge(done)

    cdef int acknowledge(self, list waiters) except -1:
        for waiter in waiters:
            self.settle(<Waiter>waiter)
        return 0

    cdef int settle(self, Waiter waiter) except -1:
        """One of the acknowledgements that it waits for has come."""
        cdef ClientConnection client = waiter.client
        waiter.links_left -= 1
        if waiter.links_left:
            return 0
        if waiter.batch is not None:
            waiter.batch.on_fenced()
        elif waiter.former is not None:
            waiter.former.is_acknowledged = True
            self.look_at(waiter.former)
        elif client is not None:
            if unlikely(client.touched != 0):   # meanwhile: a subscription of it has reached its max
                self.wait_for_touched(client, 0, waiter)
                if waiter.links_left:
                    return 0
            del self.due[client]
            client.release_pong()
            client.release(HOLD_FENCE)
        return 0

    cdef int on_many_asked(self, int shard) except -1:
        return 0 if self.is_pinging[shard] else self.ping(shard)

    cdef int keep_moving(self, ClientConnection client) except -1:
        self.mesh.moves.on_left(client)
        return 0

    cdef void on_ended_moving(self, ClientConnection client) noexcept:
        self.mesh.moves.on_ended(client)

    cdef int note_publisher(self, ClientConnection client, uint64_t publisher) except -1:
        self.mesh.moves.note_publisher(client, publisher)
        return 0

    cdef void forget(self, ClientConnection client) noexcept:
        cdef Waiter waiter = self.due.pop(client, None)
        if waiter is not None:
            waiter.client = None
        if client.n_formers:
            self.end_formers(client, NULL, 0)

    cdef uint64_t unheard(self) noexcept:
        return self.mesh.unheard & self.mesh.up

    # ---- members of queue groups that have left

    cdef Former former_of(self, ClientConnection client, Sub *sub):
        cdef Former former
        if self.mesh.up & ~self.unawaited == 0:
            return None
        former = self.mesh.formers.note(client, client.sublist, sub)
        if unlikely((self.mesh.up >> GATEWAY_NUMBER) & 1) and former is not None:
            for account, subject in self.mesh.formers.groups(former):
                self.tell_gateway(account, subject, former)
        return former

    cdef int tell_gateway(self, bytes account, bytes subject, Former former) except -1:
        """In front of the end itself: the gateway never takes the group for one without a member that could take what
        comes from other servers. It asks them with our next PING, which is behind that."""
        cdef bytes frame
        self.last_end += 1
        frame = b"QEND %d %s %s %s\r\n" % (FIRST_END + self.last_end, account, subject, former.queue)
        if out_append(self.mesh.fanout.links[GATEWAY_NUMBER], frame, len(frame)):
            former.n_unheard += 1
            self.ending[FIRST_END + self.last_end] = former
        return 0

    cdef int on_ended(self, uint64_t number) except -1:
        cdef Former former = self.ending.pop(number, None)
        if former is None:
            return 0
        former.n_unheard -= 1
        return self.look_at(former)

    cdef int end_all(self, int shard) except -1:
        """The link to the gateway is gone, and with it what other servers would send to a former member."""
        if shard == GATEWAY_NUMBER:
            for number in list(self.ending):
                self.on_ended(number)
        return 0

    cdef int linger(self, Former former) except -1:
        cdef Waiter waiter = Waiter()
        cdef uint64_t left = self.mesh.up & ~self.unawaited
        cdef int shard = 0
        (<ClientConnection>former.client).n_formers += 1
        waiter.former = former
        while left:
            if left & 1:
                self.wait_for(shard, waiter)
            left >>= 1
            shard += 1
        return 0

    cdef int look_at(self, Former former) except -1:
        if former.is_acknowledged and former.n_unheard == 0 and former.n_promised == 0 and former.sub != NULL:
            self.end_former(former)
        return 0

    cdef int end_former(self, Former former) except -1:
        cdef ClientConnection client = <ClientConnection>former.client
        cdef Waiter waiter
        self.mesh.formers.end(former)
        client.n_formers -= 1
        if client.n_formers == 0:
            waiter = self.due.get(client)
            if waiter is not None and waiter.awaits_formers:
                waiter.awaits_formers = False
                self.settle(waiter)
            client.on_members_left()
        return 0

    cdef int end_formers(self, ClientConnection client, const uint8_t *sid, size_t size) except -1:
        cdef Former former
        if sid == NULL:
            for item in self.mesh.formers.of_client(client):
                self.end_former(<Former>item)
            return 0
        former = self.mesh.formers.with_sid(client, sid[:size])
        if former is not None:
            self.end_former(former)
        return 0

    cdef int review_formers(self, ClientConnection client) except -1:
        cdef Former former
        for item in self.mesh.formers.of_client(client):
            former = <Former>item
            if former.sublist is not client.sublist or client.permissions is not None \
                    and not client.permissions.can_subscribe(former.subject, former.queue):
                self.end_former(former)
            else:
                self.mesh.formers.forget_entries(former)
        return 0

    cdef int on_former_finished(self, Sub *sub) except -1:
        return self.end_former(<Former>self.mesh.formers.by_sub[<size_t>sub])
