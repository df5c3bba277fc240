# cython: language_level=3, boundscheck=False, wraparound=False
"""A sublist as tests see it: subscriptions by number, answers as Python values. For tests alone."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from gnatswarm.broker.interest cimport (
    MOST_SHARDS, DroppingCursor, Interest, InterestSink, QueueName, Sub, TellingCursor)
from gnatswarm.broker.outbuf cimport OutBuf, Outbox, out_init, out_release, outbox_new, outbox_release
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.entry cimport Choice, Entry, prefix_size_of
from gnatswarm.broker.sublist cimport (
    CACHE_WAYS, MOST_CACHE_BYTES, MOST_CACHE_SETS, MOST_CACHES_BYTES, TRIMMED_CACHES_BYTES, Sublist, caches_bytes)
from gnatswarm.broker.table cimport MOST_SPREAD, Table, spread_at, spread_table
from gnatswarm.broker.word cimport SLACK, hash_bytes


cdef class Recording(InterestSink):
    """Notes what a sibling is told: (subject, queue, members; 1: plain interest, 0: it has ended)."""

    cdef list told

    cdef uint64_t on_interest(self, Interest interest, const uint8_t *subject, size_t size, bint wanted) noexcept:
        self.told.append((subject[:size], b"", int(wanted)))
        return 0

    cdef uint64_t on_queue_interest(self, Interest interest, const uint8_t *subject, size_t size,
                                    const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        self.told.append((subject[:size], queue[:queue_size], members))
        return 0


cdef class SublistProbe:
    """A sublist as tests see it: subscriptions by number, answers as Python values."""

    cdef Sublist sublist
    cdef Recording sink
    cdef TellingCursor telling
    cdef dict dropping       # shard → its DroppingCursor
    cdef Outbox *box
    cdef OutBuf out
    cdef dict subs

    def __cinit__(self):
        self.box = outbox_new()
        out_init(&self.out, self.box, 0)
        self.sink = Recording()
        self.sink.told = []
        self.sublist = Sublist(b"$G", self.sink)
        self.subs = {}
        self.dropping = {}

    def __dealloc__(self):
        out_release(&self.out)
        outbox_release(self.box)
        outbox_release(self.box)   # the buffer's

    def subscribe(self, int number, bytes subject not None, bytes queue not None = b""):
        """Adds subscription `number` (its sid); ValueError for a bad subject."""
        cdef bytes sid = str(number).encode()
        cdef Sub *sub
        cdef uint64_t told = 0
        if subject_kind(subject, len(subject)) == SUBJECT_BAD:
            raise ValueError(f"not a subscription subject: {subject!r}")
        sub = self.sublist.insert(&self.out, subject, len(subject), queue, len(queue), sid, len(sid), 0, &told)
        if sub == NULL:
            raise MemoryError
        self.subs[number] = <size_t>sub

    def unsubscribe(self, int number):
        cdef uint64_t told = 0
        self.sublist.remove(<Sub *><size_t>self.subs.pop(number), &told)

    def set_remote(self, int shard, bytes subject not None, bint wanted):
        if not self.sublist.set_remote(shard, subject, len(subject), wanted):   # (asserts are compiled out)
            raise MemoryError

    def set_remote_queue(self, int shard, bytes subject not None, bytes queue not None, int members):
        if not self.sublist.set_remote_queue(shard, subject, len(subject), queue, len(queue), members):
            raise MemoryError

    def drop_remote(self, int shard):
        self.sublist.drop_remote(shard)

    def begin_telling(self):
        """A sibling is to be told everything: see tell()."""
        self.sink.told.clear()
        self.telling = self.sublist.telling_cursor(self.sink)

    def tell(self, int64_t most) -> bool:
        """About so much of it; whether that was the last."""
        return self.telling.go_on(most)

    def take_told(self) -> list:
        """What the sibling was told, by this and by changes: (subject, queue, members)."""
        told = list(self.sink.told)
        self.sink.told.clear()
        return told

    def begin_dropping(self, int shard):
        """A sibling is gone: see drop()."""
        self.sink.gone |= <uint64_t>1 << shard
        self.sublist.forget_entries()
        self.dropping[shard] = self.sublist.dropping_cursor(shard)

    def drop(self, int shard, int64_t most) -> bool:
        """About so much of what it wanted; whether that was the last."""
        if not (<DroppingCursor>self.dropping[shard]).go_on(most):
            return False
        del self.dropping[shard]
        self.sink.gone &= ~(<uint64_t>1 << shard)
        return True

    @property
    def has_cursors(self) -> bool:
        """Whether something is being told or dropped, as far as the sublist knows."""
        return self.sublist.cursors is not None

    def match(self, bytes subject not None) -> dict:
        """{"plain": sorted numbers, "queues": {name: (sorted numbers, {shard: members})}, "remote": set of shards}"""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *s = padded
        cdef Entry *entry = self.sublist.find(s, len(subject), hash_bytes(s, len(subject), self.sublist.seed))
        cdef Choice *choice
        cdef const uint8_t *prefix
        cdef uint32_t i, j
        if entry == NULL:
            raise MemoryError
        sids = []
        for i in range(entry.n_plain):
            sid = (<uint8_t *>entry.targets[i].sub + sizeof(Sub))[:entry.targets[i].sub.key.size]
            sids.append(int(sid))
            expected = b"HMSG %s %s" % (subject, sid)
            prefix = entry.text + entry.targets[i].prefix_at
            if prefix[:prefix_size_of(entry, &entry.targets[i])] != expected:
                raise AssertionError(expected)
        queues = {}
        for i in range(entry.n_choices):
            choice = &entry.choices[i]
            name = (<uint8_t *>choice.name + sizeof(QueueName))[:choice.name.key.size]
            members = []
            for j in range(choice.first, choice.first + choice.n_local):
                members.append(int((<uint8_t *>entry.targets[j].sub + sizeof(Sub))[:entry.targets[j].sub.key.size]))
            remote = {}
            for j in range(choice.first_remote, choice.first_remote + choice.n_remote):
                remote[entry.weights[j].shard] = remote.get(entry.weights[j].shard, 0) + entry.weights[j].members
            if choice.n_members != len(members) + sum(remote.values()):
                raise AssertionError(name)
            queues[name] = (sorted(members), remote)
        shards = {i for i in range(MOST_SHARDS) if (entry.remote >> i) & 1}
        return {"plain": sorted(sids), "queues": queues, "remote": shards}

    def slots_probed(self, bytes subject not None) -> int:
        """How many slots of its literal table lie between the subject's first one and the first empty one."""
        cdef uint32_t hash = <uint32_t>hash_bytes(subject, len(subject), self.sublist.seed)
        cdef Table *table = spread_table(&self.sublist.literals, hash)
        cdef int n = 0
        while table.slots != NULL and table.slots[(hash + n) & table.mask]:
            n += 1
        return n

    @property
    def counts(self) -> dict:
        return {"subscriptions": self.sublist.n_subs, "builds": self.sublist.n_builds,
                "cached": self.sublist.cache_count, "cache_bytes": self.sublist.cache_bytes,
                "most_cached": MOST_CACHE_SETS * CACHE_WAYS, "most_cache_bytes": MOST_CACHE_BYTES,
                "steps": self.sublist.n_steps, "queue_names": self.sublist.queue_names.count,
                "wide": self.sublist.wide.count,
                "literals": sum([spread_at(&self.sublist.literals, i).count for i in range(MOST_SPREAD)
                                 if spread_at(&self.sublist.literals, i) != NULL]),
                "patterns": self.sublist.root.tokens.count + (self.sublist.root.star != NULL)
                + (self.sublist.root.rest != NULL)}


def fill_cache(Sublist sublist not None, int first, int n, int size):
    """Have entries made of `n` subjects of about `size` bytes, by number from `first` on; some may be evicted again."""
    cdef bytes padded
    cdef const uint8_t *s
    for i in range(first, first + n):
        padded = b"%d.%b" % (i, b"x" * size) + bytes(SLACK)
        s = padded
        if sublist.find(s, len(padded) - SLACK, hash_bytes(s, len(padded) - SLACK, sublist.seed)) == NULL:
            raise MemoryError


def all_caches() -> tuple:
    """(bytes of all match caches of this process, the most that stay for long, what is left when they are trimmed)"""
    return caches_bytes, MOST_CACHES_BYTES, TRIMMED_CACHES_BYTES


def preset_link_out(Sublist sublist not None, bytes subject not None, uint32_t count):
    """So many messages on this subject went to siblings since it was harvested."""
    cdef bytes padded = subject + bytes(SLACK)
    cdef const uint8_t *s = padded
    cdef Entry *entry = sublist.find(s, len(subject), hash_bytes(s, len(subject), sublist.seed))
    if entry == NULL:
        raise MemoryError
    entry.counts.link_out = count
