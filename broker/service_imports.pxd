# Service imports: requests from one account to another, and the replies to them.
#
#   importer's client ── PUB loc inbox ──→ ServiceImport ──→ exporter: req.fix _R_.00aB3dE9.0000k2…     (request)
#   importer's client ←─ MSG inbox ─── Response ←── exporter's client: PUB _R_.00aB3dE9.0000k2…         (reply)
#
# A generated reply subject names the shard that made it, so every shard knows where to send a reply, and interest in
# it need not be told to siblings: see Sublist.maker_of(). Where that shard leaves, its table of requests goes to
# another one with its prefix: see reply_prefixes.pxd.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.fanout cimport AccountGate, Fanout, Outcome, Publish
from gnatswarm.broker.reroutes cimport Reroutes
from gnatswarm.broker.rules cimport ServiceImport
from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.sublist cimport Sublist

cdef enum:
    # Longest chain of imported services; the configuration refuses rings.
    MOST_CROSSINGS = 16
    # Requests without a reply yet, of some 300 bytes each, and bytes of where they wait for it and of headers kept.
    # Beyond that some of the oldest can no longer get one, of the account that has most of them.
    MOST_RESPONSES = 262144
    MOST_RESPONSE_BYTES = 67108864
    DROPPED_AT_ONCE = 1024
    DROPPED_BYTES_AT_ONCE = 1048576


# A reply that may come.
@cython.final
cdef class Response:
    cdef Sublist importer           # whose client has asked …
    cdef Sublist exporter           # … whom
    cdef bytes reply                # … and where it waits for the reply
    cdef int kind
    cdef uint64_t asked_us
    cdef object responder           # what a sibling has told of who is about to reply: a dict, or None
    cdef bint was_wanted            # somebody subscribed to the reply subject when it was measured
    cdef object measured            # broker.service_latency.Measured; None: nobody wants to know how long it takes
    cdef size_t text_bytes          # of `reply` and of what `measured` keeps of headers


# Requests that one account has caused, and whose replies may take as long.
@cython.final
cdef class Lane:
    cdef dict due                   # reply subject → Response, oldest first
    cdef bytes account              # who asked first: behind a chain of imports not the one that imports the service
    cdef uint64_t threshold_us      # how long a reply may take
    cdef size_t text_bytes          # of all of them


# The requests with one prefix that may still get a reply.
@cython.final
cdef class ReplyTable:
    cdef bytes prefix
    cdef list lanes                 # each reply subject has the number of its lane
    cdef dict numbers               # (account, threshold_us) → the number of its lane, if they are generated here
    cdef set unused                 # numbers of lanes that are nobody's now
    cdef uint64_t times             # how often its shard has changed
    cdef uint64_t takes_from        # siblings that send their replies here to be passed on, a bit each
    cdef uint32_t count(self) except? 0xFFFFFFFF
    cdef int number_of(self, bytes account, uint64_t threshold_us) except -1
    # Nothing waits in this lane: its number, if it has one here, is nobody's.
    cdef int give_back(self, Lane lane) except -1
    cdef int trim(self) except -1
    # The lane that a reply subject with this prefix names; None: it names none.
    cdef Lane lane_of(self, bytes reply)


@cython.final
cdef class ServiceImports(AccountGate):
    cdef Fanout fanout
    cdef int shard
    cdef ReplyTable own             # of the reply subjects that are generated here now
    cdef dict others                # prefix → ReplyTable: those taken over from shards that have left
    cdef object prefixes            # ReplyPrefixes, which put themselves here; None: there are none
    cdef Reroutes reroutes          # … and where replies are kept back
    cdef uint32_t n_waiting
    cdef size_t waiting_bytes       # of their texts
    cdef bint adds_headers
    cdef object looked_at           # those of them that look_for_lost_interest() has still to look at
    cdef dict measured              # cid → replies to its requests that are measured
    # All are set by the shard; clock_ns() counts nanoseconds. describe(session) → who a client is, for others.
    # on_latency(Measured, status, session of the responder, or what describe() says of it, or None, µs since the
    # request, ns that passing the reply on took): there is an event to be sent.
    # on_measured_reply(session, reply subject): this client is about to reply to a measured request; None: nobody
    # wants to know. system_account: where siblings tell of that; None: they do not.
    cdef public object clock_ns
    cdef public object describe
    cdef public object on_latency
    cdef public object on_measured_reply
    cdef public bytes system_account
    cdef bytes random_pool
    cdef int random_at
    cdef int depth
    cdef list passed             # exports that the present message has come through: through each once
    cdef bytes cause             # the account that has sent it; None: it has crossed to no other yet
    cdef size_t n_swept          # lanes that sweep() has looked at, in this turn
    cdef bytes told              # what the request that is just being sent says of who asks; None: none is
    cdef readonly uint64_t n_requests
    cdef readonly uint64_t n_replies
    cdef readonly uint64_t n_expired

    cdef int enter(self, Sublist sublist, bytes subject, Publish *message, Outcome *outcome) except -1
    cdef int request(self, ServiceImport rule, bytes subject, Publish *message, object client,
                     Outcome *outcome) except -1
    cdef int respond(self, Sublist sublist, bytes subject, Publish *message, object client,
                     Outcome *outcome) except -1
    cdef bytes expect(self, Sublist importer, Sublist exporter, bytes reply, int kind, uint64_t threshold_us,
                      object measured)
    cdef object measure(self, ServiceImport rule, dict requestor, Publish *message, object client)
    cdef int report(self, object measured, int status, object responder, uint64_t system_ns) except -1
    cdef bint is_wanted(self, Sublist sublist, bytes subject) except -1
    cdef int look_for_lost_interest(self) except -1
    cdef int leave_from(self, Sublist sublist, Entry *entry, Publish *message, object client,
                        Outcome *outcome) except -1
    # What became of it, alone.
    cdef Outcome send(self, Sublist sublist, bytes subject, Publish *message, bytes reply, bytes note,
                      bytes traced_to=*) except *
    cdef Outcome send_traced(self, ServiceImport rule, bytes subject, Publish *message, bytes reply,
                             bytes note) except *
    cdef Outcome send_untraced(self, Sublist sublist, bytes subject, Publish *message, bytes reply,
                               bytes note) except *
    cdef bytes random_bytes(self, int n)
    cdef ReplyTable table_of(self, bytes reply)
    cdef Lane lane_of(self, bytes reply)
    cdef int add(self, Lane lane, bytes made, Response response) except -1
    cdef list all_lanes(self)
    cdef int drop_oldest(self) except -1
    cdef list fullest(self, bint are_many)
    cdef int forget(self, bytes reply) except -1
    cdef int let_go(self, Lane lane, bytes reply) except -1
    cdef int measure_no_more(self, uint64_t cid, bytes reply) except -1
    # Whether a reply is to be kept back: what is due with its prefix is still to come from the shard that had it.
    cdef bint is_awaited(self, Sublist sublist, bytes subject)
    # The own table becomes one of `others`, and an empty one with another prefix takes its place.
    cdef int renew(self) except -1
    cdef int add_table(self, bytes prefix, uint64_t times) except -1
    # Adds DueReplies to such a table.
    cdef int put_in(self, bytes prefix, tuple replies, object mesh) except -1
    # Forgets some of the replies of a table that was one of `others`, and returns them as DueReplies, the oldest first:
    # at most so many, which have about so many bytes.
    cdef list take_out(self, ReplyTable table, Py_ssize_t most, size_t most_bytes)
    # Forgets all of them.
    cdef int drop_table(self, ReplyTable table) except -1
