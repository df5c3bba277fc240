# One shard's counters on the shared page.

cimport cython
from libc.stdint cimport uint64_t

from gnatswarm.broker.exchange cimport Exchange
from gnatswarm.broker.fanout cimport Fanout
from gnatswarm.broker.interest cimport InterestSink
from gnatswarm.broker.word cimport unlikely
from gnatswarm.shards.boundary.page cimport PageHeader, ShardSlot


# What a slot has counted. (Not a ShardSlot, whose fields have cache lines of their own: Python aligns no object so, and
# a compiler that relies on it may use instructions that fail.)
ctypedef struct Counted:
    uint64_t in_msgs
    uint64_t in_bytes
    uint64_t out_msgs
    uint64_t out_bytes
    uint64_t slow_consumers
    uint64_t stalls
    uint64_t link_in_msgs
    uint64_t link_out_msgs


@cython.final
cdef class PageCounters:
    cdef object page                 # keeps `header` and `slot` valid
    cdef PageHeader *header
    cdef ShardSlot *slot
    cdef Counted before              # by this shard's predecessor: counters continue from there
    cdef Fanout fanout
    cdef InterestSink interest
    cdef Exchange exchange           # of the gateway; None: this shard has clients
    cdef uint64_t[4] servers_before  # as `before`, of what passes to and from other servers
    cdef public uint64_t own_subs    # subscriptions of the broker itself, not shown; the system account changes it


# Writes all of them. Called at least twice in each round, so it is inlined.
cdef inline void publish_counters(PageCounters counters, uint64_t slow_consumers, uint64_t stalls) noexcept:
    cdef ShardSlot *slot = counters.slot
    cdef Fanout fanout = counters.fanout
    slot.in_msgs = counters.before.in_msgs + fanout.in_msgs
    slot.in_bytes = counters.before.in_bytes + fanout.in_bytes
    slot.out_msgs = counters.before.out_msgs + fanout.out_msgs
    slot.out_bytes = counters.before.out_bytes + fanout.out_bytes
    slot.slow_consumers = counters.before.slow_consumers + slow_consumers
    slot.stalls = counters.before.stalls + stalls
    slot.link_in_msgs = counters.before.link_in_msgs + fanout.link_in_msgs
    slot.link_out_msgs = counters.before.link_out_msgs + fanout.link_out_msgs
    slot.subscriptions = counters.interest.n_subs - counters.own_subs
    if unlikely(counters.exchange is not None):
        publish_servers(counters)


cdef void publish_servers(PageCounters counters) noexcept
