# Messages whose header asks for a trace: finds the header, and delivers such a message so that each receiver is noted.
#
#   HPUB with Nats-Trace-Dest ──→ ClientConnection.publish_traced() ─┐
#   HMSG with Nats-Trace-Hop  ──→ SiblingLink.message() ─────────────┴→ Fanout.trace = …, give_traced() ──→ its document
#
# A message without such a header costs a look at the letters with which its header's lines begin; one without a header
# costs nothing.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.entry cimport Entry
from gnatswarm.broker.fanout cimport Fanout, Outcome, Publish
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.sublist cimport Sublist


# Does a client's header ask for a trace? `by_parent`: a traceparent that says "sampled" does, too.
cdef bint asks_for_trace(const uint8_t *header, size_t size, bint by_parent) noexcept nogil
# Has a sibling traced this message?
cdef bint is_under_trace(const uint8_t *header, size_t size) noexcept nogil
# How many messages of a run come before the first that is traced.
cdef uint32_t untraced(const Publish *run, bint by_parent, bint by_sibling) noexcept nogil

# Delivers a message (never a run) and notes in Fanout.trace what became of it, at each subscription here and at each
# sibling; with Nats-Trace-Only it is noted what would have become of it. Like deliver() of a client's message, and like
# deliver_across() of one from another account.
cdef int give_traced(Fanout fanout, Sublist sublist, Entry *entry, Publish *publish, OutBuf *avoided,
                     Outcome *outcome) except -1
# The same for a sibling's message: like deliver_here().
cdef uint64_t give_traced_here(Fanout fanout, Sublist sublist, Entry *entry, Publish *publish, bint plainly,
                               const Token *queues, int n_queues, Outcome *outcome) except? 0xFFFFFFFFFFFFFFFF
