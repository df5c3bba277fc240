# cython: language_level=3
"""One shard's counters on the shared page: messages, bytes, slow consumers, stalls, subscriptions.

The reactor writes them before it sends what they count, and again at the end of each round. Counters continue from
where a predecessor with the same number left them. Not here: connections and log-ins (shards.clients.clients).
"""

from gnatswarm.shards.boundary.page cimport Page


cdef class PageCounters:
    """Writes the slot of shard number `shard`; `interest` counts the subscriptions of all accounts."""

    def __cinit__(self, Page page not None, int shard, Fanout fanout not None, InterestSink interest not None):
        self.page = page
        self.slot = page.slot(shard)
        self.before = self.slot[0]
        self.fanout = fanout
        self.interest = interest
