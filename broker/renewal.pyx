# cython: language_level=3, boundscheck=False, wraparound=False
"""A client's subscriptions after a reload: what they hear of other accounts is what those export to it now."""

from libc.stdint cimport uint8_t, uint32_t

from broker.connection cimport ClientConnection
from broker.interest cimport QueueName, Sub
from broker.shadows cimport Shadows
from broker.table cimport slot_item


def listen_anew(ClientConnection client not None) -> None:
    """The client's account imports other streams than before: see Sublist.streams."""
    cdef uint8_t subject[65536]   # the longest key of a table
    cdef bytes queue
    cdef size_t size
    cdef uint32_t i
    cdef Sub *sub
    if client.subs.slots == NULL or client.is_closing:
        return
    if client.shadows is None:
        client.shadows = Shadows()
    client.fanout.touched = 0
    for i in range(client.subs.mask + 1):
        if not client.subs.slots[i]:
            continue
        sub = <Sub *>slot_item(client.subs.slots[i])
        size = client.sublist.subject_of(sub.node, subject, sizeof(subject))
        queue = b""
        if sub.group != NULL:
            queue = (<uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size]
        client.shadows.renew(client.sublist, sub, subject[:size], queue)
    client.touched |= client.fanout.touched
