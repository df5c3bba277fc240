# cython: language_level=3
"""One shard's counters on the shared page: messages, bytes, slow consumers, stalls, subscriptions; the gateway's of
what passes to and from other servers.

The reactor writes them before it sends what they count, and again at the end of each round. Counters continue from
where a predecessor with the same number left them. Not here: connections and log-ins (shards.clients.clients).
"""

from gnatswarm.shards.boundary.page cimport Page


cdef class PageCounters:
    """Writes the slot of shard number `shard`; `interest` counts the subscriptions of all accounts."""

    def __cinit__(self, Page page not None, int shard, Fanout fanout not None, InterestSink interest not None):
        cdef ShardSlot *slot
        self.page = page
        self.header = page.header
        self.slot = slot = page.slot(shard)
        self.before = Counted(slot.in_msgs, slot.in_bytes, slot.out_msgs, slot.out_bytes, slot.slow_consumers,
                              slot.stalls, slot.link_in_msgs, slot.link_out_msgs)
        self.fanout = fanout
        self.interest = interest

    def count_servers(self, Exchange exchange not None):
        """Count what passes through this, too."""
        cdef PageHeader *header = self.header
        self.servers_before = [header.servers_in_msgs, header.servers_in_bytes, header.servers_out_msgs,
                               header.servers_out_bytes]
        self.exchange = exchange


cdef void publish_servers(PageCounters counters) noexcept:
    cdef PageHeader *header = counters.header
    cdef Exchange exchange = counters.exchange
    header.servers_in_msgs = counters.servers_before[0] + exchange.in_msgs
    header.servers_in_bytes = counters.servers_before[1] + exchange.in_bytes
    header.servers_out_msgs = counters.servers_before[2] + exchange.out_msgs
    header.servers_out_bytes = counters.servers_before[3] + exchange.out_bytes
