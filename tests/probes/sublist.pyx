# cython: language_level=3, boundscheck=False, wraparound=False
"""A sublist as tests see it: subscriptions by number, answers as Python values. For tests alone."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.interest cimport MOST_SHARDS, InterestSink, QueueName, Sub
from gnatswarm.broker.outbuf cimport OutBuf, Outbox, out_init, out_release, outbox_new, outbox_release
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.entry cimport Choice, Entry
from gnatswarm.broker.sublist cimport CACHE_WAYS, MOST_CACHE_BYTES, MOST_CACHE_SETS, Sublist
from gnatswarm.broker.table cimport MOST_SPREAD, Table, spread_at, spread_table
from gnatswarm.broker.word cimport SLACK, hash_bytes


cdef class SublistProbe:
    """A sublist as tests see it: subscriptions by number, answers as Python values."""

    cdef Sublist sublist
    cdef Outbox *box
    cdef OutBuf out
    cdef dict subs

    def __cinit__(self):
        self.box = outbox_new()
        out_init(&self.out, self.box, 0)
        self.sublist = Sublist(b"$G", InterestSink())
        self.subs = {}

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

    def match(self, bytes subject not None) -> dict:
        """{"plain": sorted numbers, "queues": {name: (sorted numbers, {shard: members})}, "remote": set of shards}"""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *s = padded
        cdef Entry *entry = self.sublist.find(s, len(subject), hash_bytes(s, len(subject), self.sublist.seed))
        cdef Choice *choice
        cdef uint32_t i, j
        if entry == NULL:
            raise MemoryError
        sids = []
        for i in range(entry.n_plain):
            sid = (<uint8_t *>entry.targets[i].sub + sizeof(Sub))[:entry.targets[i].sub.key.size]
            sids.append(int(sid))
            expected = b"HMSG %s %s" % (subject, sid)
            if (entry.text + entry.targets[i].prefix_at)[:entry.targets[i].prefix_size] != expected:
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
