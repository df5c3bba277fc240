# cython: language_level=3, boundscheck=False, wraparound=False
"""A client's subscriptions after a reload: adapts them to the account's new stream imports."""

from libc.stdint cimport uint8_t, uint32_t

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.interest cimport QueueName, Sub
from gnatswarm.broker.shadows cimport Shadows
from gnatswarm.broker.table cimport slot_item


def listen_anew(ClientConnection client not None) -> int:
    """To be called when the stream imports of the client's account have changed: see Sublist.streams.

    Returns how often a subscription hears nothing of an import, because the exporter's subject is too long for a key.
    """
    cdef uint8_t subject[65536]   # the longest key of a table
    cdef bytes queue
    cdef size_t size
    cdef uint32_t i
    cdef Sub *sub
    cdef int n_unheard = 0
    if client.subs.slots == NULL or client.is_closing:
        return 0
    if client.shadows is None:
        client.shadows = Shadows()
    for i in range(client.subs.mask + 1):
        if not client.subs.slots[i]:
            continue
        sub = <Sub *>slot_item(client.subs.slots[i])
        size = client.sublist.subject_of(sub.node, subject, sizeof(subject))
        queue = b""
        if sub.group != NULL:
            queue = (<uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size]
        n_unheard += client.shadows.renew(client.sublist, sub, subject[:size], queue, &client.touched)
    return n_unheard
