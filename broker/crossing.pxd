# Messages that go from one account into another: requests to imported services, and the answers to them.
#
#   importer's client ── PUB loc inbox ──→ ServiceImport ──→ exporter: req.fix _R_.00aB3dE9.0000k2…     (request)
#   importer's client ←─ MSG inbox ─── Response ←── exporter's client: PUB _R_.00aB3dE9.0000k2…         (answer)
#
# A reply subject says which shard made it up, so every shard knows where an answer belongs, and nobody needs to be
# told of interest in it: see Sublist.maker_of().

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from broker.fanout cimport AccountGate, Fanout, Publish
from broker.rules cimport ServiceImport
from broker.sublist cimport Entry, Sublist

cdef enum:
    # From account to account to account: further than anybody chains services. Rings are refused by the configuration.
    MOST_CROSSINGS = 16
    # Requests without an answer yet: some 300 bytes each. Past that the oldest cannot be answered any more.
    MOST_RESPONSES = 262144


# An answer that may come.
@cython.final
cdef class Response:
    cdef Sublist importer           # whose client has asked …
    cdef Sublist exporter           # … whom
    cdef bytes reply                # … and where it waits for the answer
    cdef int kind
    cdef uint64_t asked_us


@cython.final
cdef class Crossing(AccountGate):
    cdef Fanout fanout
    cdef bytes prefix               # of the reply subjects made up here
    cdef list thresholds_us         # of each lane: an answer may come for so long
    cdef list lanes                 # dicts, reply subject → Response, oldest first
    cdef uint32_t n_waiting
    cdef bint adds_headers
    cdef bytes random_pool
    cdef int random_at
    cdef int depth
    cdef uint64_t touched           # siblings that were sent something since take_touched()
    cdef readonly uint64_t n_requests
    cdef readonly uint64_t n_answers
    cdef readonly uint64_t n_expired

    cdef uint32_t enter(self, Sublist sublist, bytes subject, Publish *message) except? 0xFFFFFFFF
    cdef uint32_t request(self, ServiceImport rule, bytes subject, Publish *message, uint64_t rtt_us) \
        except? 0xFFFFFFFF
    cdef uint32_t respond(self, Sublist sublist, bytes subject, Publish *message) except? 0xFFFFFFFF
    cdef bytes expect(self, Sublist importer, Sublist exporter, bytes reply, int kind, uint64_t threshold_us)
    cdef uint32_t leave_from(self, Sublist sublist, Entry *entry, Publish *message, uint64_t rtt_us,
                             bint answers_only) except? 0xFFFFFFFF
    cdef uint32_t send(self, Sublist sublist, bytes subject, Publish *message, bytes reply, bytes note) \
        except? 0xFFFFFFFF
    cdef bytes random_bytes(self, int n)
    cdef dict lane_of(self, bytes reply)
    cdef int forget(self, bytes reply) except -1
