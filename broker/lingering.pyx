# cython: language_level=3, boundscheck=False, wraparound=False
"""Former members of queue groups: they have unsubscribed, but siblings may not know it yet.

They are subscriptions in a separate sublist of the account (Sublist.former), which is not told to siblings; so a former
member's pattern, permissions, renamed subjects and max still hold. This module decides nothing: the fence tells when
siblings know (MeshFence.linger), and Reroutes choose who gets a message. Cost: some 2 µs per UNSUB of a queue member
where there are siblings; otherwise none.
"""

from libc.stdint cimport uint8_t, uint64_t

from gnatswarm.broker.interest cimport SUB_FORMER, QueueName
from gnatswarm.broker.entry cimport Choice, Entry
from gnatswarm.broker.rules cimport StreamImport
from gnatswarm.broker.word cimport SLACK


cdef class Former:
    """See the .pxd."""


cdef class Formers:
    """The former members of one shard."""

    def __cinit__(self):
        self.by_sub = {}
        self.by_client = {}

    cdef Former note(self, Peer client, Sublist sublist, Sub *sub):
        cdef Former former
        cdef Sub *copy
        cdef bytearray room
        cdef bytes queue
        cdef size_t size
        cdef uint64_t told = 0   # no sibling
        cdef uint8_t *at
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            return None
        size = sublist.subject_of(sub.node, NULL, 0)
        room = bytearray(size + SLACK)
        at = <uint8_t *><char *>room
        sublist.subject_of(sub.node, at, size)
        queue = (<uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size]
        copy = sublist.former_members().insert(sub.out, at, size, queue, len(queue), <uint8_t *>sub + sizeof(Sub),
                                               sub.key.size, sub.key.hash, &told)
        if copy == NULL:
            raise MemoryError
        copy.key.kind = SUB_FORMER
        if sub.max_msgs:
            copy.max_msgs = sub.max_msgs - sub.delivered
        former = Former()
        former.client = client
        former.sublist = sublist
        former.sub = copy
        former.subject = at[:size]
        former.queue = queue
        if sublist.stream_imports is not None:
            former.shadows = Shadows()
            former.shadows.cast_former(sublist, copy, former.subject, queue, &told)
        former.sid = (<uint8_t *>copy + sizeof(Sub))[:copy.key.size]
        self.by_sub[<size_t>copy] = former
        self.by_client.setdefault(client, {})[former.sid] = former
        return former

    cdef list groups(self, Former former):
        cdef StreamImport stream
        cdef bytes wanted
        found = [(former.sublist.account, former.subject)]
        for item in former.sublist.streams_meeting(former.subject) if former.sublist.stream_imports is not None else ():
            stream = <StreamImport>item
            wanted = stream.wanted(former.subject)
            if wanted is not None:
                found.append((stream.exporter.account, wanted))
        return found

    cdef int end(self, Former former) except -1:
        cdef uint64_t told = 0   # no sibling
        if former.sub == NULL:
            return 0
        del self.by_sub[<size_t>former.sub]
        mine = self.by_client[former.client]
        del mine[former.sid]
        if not mine:
            del self.by_client[former.client]
        if former.shadows is not None:
            former.shadows.drop_former(former.sub, &told)
        former.sublist.former.remove(former.sub, &told)
        former.sub = NULL
        return 0

    cdef int forget_entries(self, Former former) except -1:
        former.sublist.former.forget_entries()
        if former.shadows is not None:
            former.shadows.forget_former_entries()
        return 0

    cdef list of_client(self, Peer client):
        return list(self.by_client.get(client, {}).values())

    cdef Former with_sid(self, Peer client, bytes sid):
        return self.by_client.get(client, {}).get(sid)

    cdef Former find(self, Sublist sublist, Token subject, Token queue):
        cdef Choice *choice
        cdef Entry *entry = sublist.former_group(subject, queue, &choice)
        cdef Former former
        cdef uint32_t i
        if entry == NULL:
            return None
        for i in range(choice.n_local):
            former = self.by_sub.get(<size_t>entry.targets[choice.first + i].sub)
            if former is not None and not former.client.is_closing:
                return former
        return None
