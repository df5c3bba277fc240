# cython: language_level=3, boundscheck=False, wraparound=False
"""Reply prefixes that change their shard: a shard that leaves has a successor pass on the replies that are still due.

A generated reply subject names the shard that keeps the request. The successor keeps replies with that prefix back
until the old shard has passed on what it was sent, and has handed over what is still due: none is lost or doubled, and
the replies of one responder stay in order. A shard may also be sent a reply because somebody there subscribes to its
subject: so each says from where on its replies go to the successor, and whom it does not say that to takes them for
plain messages. Where the successor or a link to it ends in the middle, the old shard keeps the prefix and asks another
one. No cost before the first hand-over.
"""

from gnatswarm.broker.interest cimport GATEWAY_NUMBER
from gnatswarm.broker.outbuf cimport out_append
from gnatswarm.broker.service_imports cimport Lane, ReplyTable, Response
from gnatswarm.broker.sublist cimport OWNER_AWAITED, OWNER_HERE

from gnatswarm.broker import due_replies


cdef class Giving(FencedBatch):
    """A prefix that is given away."""

    cdef int on_fenced(self) except -1:
        cdef ReplyPrefixes prefixes = self.prefixes
        cdef object _keep = self
        if prefixes.giving.get(self.prefix) is not self:
            return 0
        if self.phase == GIVING_SENT and self.table is None:
            del prefixes.giving[self.prefix]
            prefixes.n_given += 1
            return 0
        if self.phase != GIVING_SENT:
            self.phase = GIVING_SENT
            prefixes.begin_to_give(self)
        prefixes.give(self)
        return prefixes.fence.fence_batch(self)   # (what others send each other does not wait for more than a piece)


cdef class Taking:
    """A prefix that is taken over."""


cdef class ReplyPrefixes:
    """The reply prefixes of one shard, and where those of others that have left lead."""

    def __cinit__(self, Mesh mesh not None, MeshFence fence not None, Reroutes reroutes not None):
        self.mesh = mesh
        self.fence = fence
        self.reroutes = reroutes
        if isinstance(mesh.fanout.gate, ServiceImports):
            self.imports = mesh.fanout.gate
            self.imports.prefixes = self
            self.imports.reroutes = reroutes
        self.giving = {}
        self.taking = {}
        self.known = {}
        self.refused = set()
        mesh.prefixes = self

    @property
    def is_busy(self) -> bool:
        """Whether a prefix is being given away or taken over."""
        return bool(self.giving or self.taking)

    # ---- the old shard

    def hand_over(self, list to not None):
        """Have one of these shards take over every reply that is still due here. Call it again until nothing is due:
        what goes wrong is tried anew, and replies to replies come up meanwhile."""
        cdef Giving giving
        cdef ReplyTable table
        if self.imports is None or self.imports.n_waiting == 0 or self.mesh.out_of_step:
            return
        if self.imports.own.count():
            old = self.imports.own.prefix
            self.imports.renew()
            self.mesh.set_owner(old, OWNER_HERE)
            self.mesh.set_reply_prefix(self.imports.own.prefix)
        shards = [shard for shard in to if self.mesh.up >> <int>shard & 1]
        willing = [shard for shard in shards if shard not in self.refused]
        if not willing:
            self.refused.clear()
            return
        for prefix, item in self.imports.others.items():
            table = <ReplyTable>item
            if prefix in self.giving or prefix in self.taking or not table.count():
                continue
            giving = Giving()
            giving.prefixes = self
            giving.prefix = prefix
            giving.new = willing[0]
            giving.phase = GIVING_ASKED
            self.giving[prefix] = giving
            self.send(giving.new, b"RTAKE %b %d\r\n" % (prefix, table.times + 1))

    cdef int begin_to_give(self, Giving giving) except -1:
        """Nothing is on its way here or from here any more: what is due is the new shard's."""
        giving.table = <ReplyTable>self.imports.others.pop(giving.prefix)
        self.known[giving.prefix] = (giving.new, giving.table.times + 1)
        return self.mesh.set_owner(giving.prefix, giving.new)

    cdef int give(self, Giving giving) except -1:
        """Send some of what is due."""
        cdef bytes words = due_replies.encoded(
            self.imports.take_out(giving.table, due_replies.PIECE_REPLIES, due_replies.PIECE_BYTES))
        cdef bint is_last = giving.table.count() == 0
        if is_last:
            giving.table = None
        return self.send(giving.new, b"RDUE %b %d %d\r\n%b\r\n" % (giving.prefix, is_last, len(words), words))

    cdef int end_giving(self, Giving giving) except -1:
        """The new shard does not take it: replies come here again."""
        cdef ReplyTable table
        del self.giving[giving.prefix]
        if giving.table is not None:
            self.imports.drop_table(giving.table)
        if giving.phase != GIVING_SENT and giving.prefix in self.imports.others:
            table = <ReplyTable>self.imports.others[giving.prefix]
            table.times += 2
            self.send_all(self.own_words(giving.prefix), -1)
        return 0

    # ---- the new shard

    def on_wanted(self, int old, bytes prefix not None, uint64_t times):
        """RTAKE."""
        cdef Taking taking
        if self.imports is None or self.is_leaving or self.mesh.out_of_step or prefix in self.imports.others:
            self.send(old, b"RDROP %b\r\n" % prefix)
            return
        taking = Taking()
        taking.prefix = prefix
        taking.old = old
        self.taking[prefix] = taking
        self.known.pop(prefix, None)
        self.imports.add_table(prefix, times)
        self.mesh.set_owner(prefix, OWNER_AWAITED)
        self.send_all(self.own_words(prefix), old)
        self.send(old, b"RGOES %b %d\r\n" % (prefix, self.mesh.shard))
        self.look()

    def on_due(self, int old, bytes prefix not None, bint is_last, bytes words not None):
        """RDUE. ValueError: it is not well-formed."""
        cdef Taking taking = self.taking.get(prefix)
        cdef ReplyTable table
        replies = due_replies.decoded(words, prefix)
        if taking is None or taking.old != old:
            return
        self.imports.put_in(prefix, replies, self.mesh)
        if is_last:
            del self.taking[prefix]
            self.n_taken += 1
            table = <ReplyTable>self.imports.others[prefix]
            table.takes_from |= <uint64_t>1 << old
            self.mesh.set_owner(prefix, OWNER_HERE)
            self.tell_gateway()
            self.reroutes.on_step()

    cdef int tell_gateway(self) except -1:
        """Before the shard that had it leaves, and takes along what it has told: see due_interest()."""
        cdef bytes words
        if (self.mesh.up >> GATEWAY_NUMBER) & 1:
            words = self.due_interest()
            out_append(self.mesh.fanout.links[GATEWAY_NUMBER], words, len(words))
        return 0

    cdef int end_taking(self, Taking taking) except -1:
        """The old shard has gone, or the link to it: what was kept for its requests goes nowhere."""
        del self.taking[taking.prefix]
        self.drop(taking.prefix)
        return self.reroutes.on_step()

    def look_for_empty(self):
        """ServiceImports have forgotten replies: a prefix with which none is due is nobody's any more."""
        for prefix, table in list(self.imports.others.items()):
            if not (<ReplyTable>table).count() and prefix not in self.giving and prefix not in self.taking:
                self.drop(prefix)

    def drop(self, bytes prefix not None):
        """Replies with this prefix lead nowhere."""
        self.imports.drop_table(<ReplyTable>self.imports.others.pop(prefix))
        self.mesh.forget_owner(prefix)
        self.send_all(b"RDROP %b\r\n" % prefix, -1)

    # ---- every shard

    def own_words(self, bytes prefix not None) -> bytes:
        """ROWN."""
        return b"ROWN %b %d\r\n" % (prefix, (<ReplyTable>self.imports.others[prefix]).times)

    def words(self) -> bytes:
        """For a link that joins: the prefixes that lead here, and where others lead."""
        own = [self.own_words(prefix) for prefix in self.imports.others] if self.imports is not None else []
        return b"".join(own + [b"RGOES %b %d\r\n" % (prefix, shard) for prefix, (shard, _) in self.known.items()])

    def due_interest(self) -> bytes:
        """For a link that joins to the gateway, which may be a new one: the replies that are due here, as interest, so
        that other servers go on sending them. Once told, it lasts as long as the link."""
        cdef ReplyTable table
        cdef Response response
        cdef object last
        if self.imports is None:
            return b""
        wanted = set()
        for item in [self.imports.own, *self.imports.others.values()]:
            table = <ReplyTable>item
            last = None   # (there may be 262,144, most of them of one account)
            for lane in table.lanes:
                for due in (<Lane>lane).due.values():
                    response = <Response>due
                    if response.exporter is not last:
                        last = response.exporter
                        wanted.add((response.exporter.account, table.prefix))
        return b"".join([b"RS+ %b %b>\r\n" % one for one in sorted(wanted)])

    def takes(self, int shard, bytes prefix not None) -> bool:
        """Whether a sibling's message with this prefix is a reply that this shard is to pass on: not one that the
        sibling sends elsewhere for that, and here because somebody subscribes to it."""
        cdef ReplyTable table = self.imports.others.get(prefix) if self.imports is not None else None
        return table is None or bool(table.takes_from >> shard & 1)

    def on_goes(self, int shard, bytes prefix not None, int owner):
        """RGOES: where a sibling's replies go from here on."""
        cdef ReplyTable table = self.imports.others.get(prefix) if self.imports is not None else None
        if table is None:
            return
        if owner == self.mesh.shard:
            table.takes_from |= <uint64_t>1 << shard
        else:
            table.takes_from &= ~(<uint64_t>1 << shard)
        self.look()

    cdef int look(self) except -1:
        """Whether all siblings have said where their replies go, and all that came before has been passed on."""
        cdef Giving giving
        cdef Taking taking
        cdef ReplyTable table
        if self.mesh.out_of_step:   # on_step() follows
            return 0
        for item in list(self.taking.values()):
            taking = <Taking>item
            table = <ReplyTable>self.imports.others[taking.prefix]
            if not taking.is_told and not self.mesh.up & ~(table.takes_from | <uint64_t>1 << taking.old):
                taking.is_told = True
                self.send(taking.old, self.own_words(taking.prefix))
        for item in list(self.giving.values()):
            giving = <Giving>item
            if giving.phase != GIVING_ASKED or not giving.is_taken:
                continue
            table = <ReplyTable>self.imports.others[giving.prefix]
            if not table.takes_from & self.mesh.up and not self.reroutes.keeps_answers(giving.prefix):
                giving.phase = GIVING_PASSED
                self.fence.fence_batch(giving)
        return 0

    def on_own(self, int shard, bytes prefix not None, uint64_t times):
        """ROWN."""
        cdef Giving giving = self.giving.get(prefix)
        if giving is not None and giving.phase != GIVING_SENT:   # (once it is sent, its new shard may give it on)
            if giving.new == shard and giving.phase == GIVING_ASKED:
                giving.is_taken = True
                self.look()
            return
        if times > <object>self.known.get(prefix, (0, 0))[1] \
                and (self.imports is None or prefix not in self.imports.others):
            self.known[prefix] = (shard, times)
            self.mesh.set_owner(prefix, shard)
            self.send_all(b"RGOES %b %d\r\n" % (prefix, shard), -1)

    def on_dropped(self, int shard, bytes prefix not None):
        """RDROP: of a shard that does not take it, or with which nothing is due any more."""
        cdef Giving giving = self.giving.get(prefix)
        if giving is not None and giving.new == shard and giving.phase == GIVING_ASKED:
            self.refused.add(shard)
            del self.giving[prefix]
        elif self.known.get(prefix, (-1, 0))[0] == shard:
            self.lose_owner(prefix)

    cdef int lose_owner(self, bytes prefix) except -1:
        """Replies with this prefix go to the shard that it names, again."""
        del self.known[prefix]
        self.mesh.forget_owner(prefix)
        return self.send_all(b"RGOES %b %d\r\n" % (prefix, int(prefix[4:6], 16)), -1)

    def on_part(self, int shard):
        """A link has ended. What its sibling has said of prefixes ends with it."""
        self.refused.discard(shard)
        for item in list(self.giving.values()):
            if (<Giving>item).new == shard:
                self.end_giving(<Giving>item)
        for item in list(self.taking.values()):
            if (<Taking>item).old == shard:
                self.end_taking(<Taking>item)
        for prefix in [prefix for prefix, (owner, _) in self.known.items() if owner == shard]:
            self.lose_owner(prefix)
        if self.imports is not None:   # the next link says it again
            for prefix, table in self.imports.others.items():
                if int(prefix[4:6], 16) == self.mesh.shard:
                    (<ReplyTable>table).takes_from |= <uint64_t>1 << shard
                else:
                    (<ReplyTable>table).takes_from &= ~(<uint64_t>1 << shard)
        self.look()

    def on_step(self):
        """All links are in step, or an answer that waited for that has been passed on."""
        self.look()

    cdef int send(self, int shard, bytes frame) except -1:
        if self.mesh.fanout.links[shard] != NULL:
            out_append(self.mesh.fanout.links[shard], frame, len(frame))
        return 0

    cdef int send_all(self, bytes frame, int but) except -1:
        cdef int shard
        for shard in range(64):
            if (self.mesh.up >> shard) & 1 and shard != but:
                self.send(shard, frame)
        return 0
