# A client connection as a record (broker.frozen), and back.
#
#   freeze(client) → FrozenClient ──→ another connection, here or on another shard: thaw(client, frozen)

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.interest cimport Sub

# Why the connection cannot be written down now; None: it can.
cdef str why_not(ClientConnection client)
# RecordRefused where the record does not fit the connection: another client or account, more than its limits.
cdef int fits(ClientConnection client, frozen) except -1
# All but subscriptions and output: flags, counters, reply permissions, unread input. MemoryError.
cdef int put_state(ClientConnection client, frozen) except -1
# Tells it of its requests to which nobody responds; all else is in its place.
cdef int tell_unanswered(ClientConnection client, frozen) except -1
# One subscription of the connection as a FrozenSubscription.
cdef object subscription_of(ClientConnection client, const Sub *sub)
# Adds one; MemoryError.
cdef Sub *put_subscription(ClientConnection client, frozen) except NULL
# The bytes that wait to be sent.
cdef bytes unsent_of(ClientConnection client)
