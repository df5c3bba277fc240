# Former members of queue groups: they have unsubscribed, but siblings may not know it yet.
#
# A message that a sibling still sends to the group goes to a current member, on whatever shard. Only if there is none
# any more, a former member gets it (promise 4 of the design).

cimport cython
from libc.stdint cimport uint32_t

from gnatswarm.broker.interest cimport Sub
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.shadows cimport Shadows
from gnatswarm.broker.sublist cimport Sublist


# One former member. It ends when every sibling has acknowledged the UNSUB, other servers know, and no message promised
# to it is in flight.
@cython.final
cdef class Former:
    cdef Peer client
    cdef Sublist sublist          # its account's: `sub` is in sublist.former
    cdef Sub *sub                 # NULL: it has ended
    cdef bytes sid
    cdef bytes subject            # what it was subscribed to, …
    cdef bytes queue              # … and its group
    cdef Shadows shadows          # its stream imports; None: none
    cdef bint is_acknowledged     # every sibling knows that it has left
    cdef uint32_t n_unheard       # accounts in which other servers may not know it
    cdef uint32_t n_promised      # messages sent on to siblings, which come back to it if no member takes them


# The former members of one shard.
@cython.final
cdef class Formers:
    cdef dict by_sub              # address of its Sub → Former
    cdef dict by_client           # client → its sid → Former: a client may have many, and subscribe again to each sid

    # A member is about to unsubscribe. None: it could take nothing more (its max is reached). MemoryError.
    cdef Former note(self, Peer client, Sublist sublist, Sub *sub)
    # What siblings took it for: (account, subject) of its group, here and by its account's stream imports.
    cdef list groups(self, Former former)
    # It gets nothing more. Calling it twice is harmless.
    cdef int end(self, Former former) except -1
    # Its client has other permissions: whether it may have a message is asked anew.
    cdef int forget_entries(self, Former former) except -1
    # The former members of a client, and the one with this sid (None: there is none).
    cdef list of_client(self, Peer client)
    cdef Former with_sid(self, Peer client, bytes sid)
    # A former member that would get a message on `subject` for the group `queue`; None: there is none.
    cdef Former find(self, Sublist sublist, Token subject, Token queue)
