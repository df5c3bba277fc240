# This shard's siblings: who is linked, and what they are told of this shard's interest.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from gnatswarm.broker.fanout cimport Fanout
from gnatswarm.broker.outbuf cimport OutBuf
from gnatswarm.broker.interest cimport MOST_SHARDS, Interest, InterestSink, QueueGroup
from gnatswarm.broker.lingering cimport Formers
from gnatswarm.broker.sublist cimport Sublist

cdef enum:
    # A link's pending bytes past which the publishers that feed it wait, until it is under half of them. Two siblings
    # that flood each other hold twice this much; a fence waits behind at most this much.
    LINK_STALL_BYTES = 4194304


cdef enum:
    # While so much waits on a link, it is told no more interest: a message, or who waits for its PONG, would wait
    # behind all of it.
    MOST_TOLD_BYTES = 262144


# Long work of a mesh, done some at a time.
cdef class MeshWork:
    # Does some of it. Whether it is done.
    cdef bint go_on(self, int64_t most) except -1
    # Whether it can go on now.
    cdef bint is_due(self) noexcept


# Goes over the interest of accounts.
cdef class Accounts(MeshWork):
    cdef Mesh mesh
    cdef list sublists       # those that are still to come, …
    cdef list cursors        # … and the cursors of the present one
    cdef int64_t left        # of `most` in the last go_on(); negative: it was more

    cdef list cursors_of(self, Sublist sublist)
    # As go_on(), and looks at is_due() now and then.
    cdef bint go_on_while_due(self, int64_t most) except -1
    cdef int end(self) except -1


# Tells one sibling interest. A subclass tells that of other servers.
cdef class Retelling(InterestSink):
    cdef OutBuf *link
    cdef uint64_t n                          # frames


@cython.final
cdef class Mesh(InterestSink):
    cdef readonly Fanout fanout
    cdef readonly int shard                  # our own number
    cdef readonly uint64_t up                # siblings that are linked, a bit each
    cdef uint64_t interest_frames[MOST_SHARDS]   # RS+ and RS- sent to each
    # If a link's last frame is a plain RS+: where it ends, and frames_to() then. Its RS- removes it (take_back).
    cdef uint8_t *fresh_end[MOST_SHARDS]
    cdef uint64_t fresh_frames[MOST_SHARDS]
    # Siblings that have not acknowledged the last change of interest that they were told, and frames_to() at that.
    cdef uint64_t unheard
    cdef uint64_t told_at[MOST_SHARDS]
    # Siblings that do not know our interest, or we theirs: their link is new, or broke while they live. Of these, those
    # that were not linked with this shard before, at which nobody is connected yet; and those that told all theirs.
    cdef readonly uint64_t out_of_step
    cdef uint64_t newcomers
    cdef uint64_t told_all
    cdef readonly Formers formers            # members of queue groups that have left and linger
    cdef dict accounts                       # name → Sublist; see forget_accounts()
    # What sublists had counted that were forgotten, for monitoring: the sums go on.
    cdef readonly uint64_t forgotten_inserts
    cdef readonly uint64_t forgotten_removes
    cdef readonly uint64_t forgotten_builds
    cdef Sublist last_named                  # by a sibling or another server: the next frame is mostly of the same
    cdef bytes reply_prefix                  # for Sublist.set_reply_prefix(); None: not set yet
    cdef dict owners                         # of replies' prefixes: see Sublist
    cdef uint32_t tallied                    # subjects counted per account; 0: none
    cdef public object moves                 # Moves, which put themselves here; None: there are none
    cdef public object prefixes              # ReplyPrefixes, which put themselves here; None: there are none
    cdef public object soon                  # () → None: go_on() is due; None: everything is done at once
    cdef public uint32_t slice_nodes         # subjects that are done in one go_on()
    cdef list work                           # MeshWork
    cdef list waiting_links                  # (link, shard): they join when what was told by the last one is dropped
    cdef readonly uint64_t n_slices          # of work that were done
    cdef list untrimmed                      # Sublists whose match caches are emptied next, the last one first
    cdef size_t trimmed_slots                # of that one, those that are done

    # The account's subscriptions; None: nobody has named it yet.
    cdef Sublist known(self, const uint8_t *account, size_t size)
    # … an empty sublist if nobody has.
    cdef Sublist sublist_of(self, const uint8_t *account, size_t size)
    cdef uint64_t tell_all(self, Interest interest, const uint8_t *subject, size_t size,
                           const uint8_t *queue, size_t queue_size, uint32_t members) noexcept
    cdef bint take_back(self, int shard, const uint8_t *account, size_t account_size,
                        const uint8_t *subject, size_t size) noexcept
    # How many frames that a fence has to wait for were sent to a sibling.
    cdef uint64_t frames_to(self, int shard) noexcept
    # Replies with this prefix go to this sibling, or OWNER_…; or again to the shard that the prefix names.
    cdef int set_owner(self, bytes prefix, int owner) except -1
    cdef int forget_owner(self, bytes prefix) except -1
    cdef int prefix_changed(self, bytes prefix) except -1
    # The sibling has been told of a change of interest just now.
    cdef void note_told(self, int shard) noexcept
    # There is a link: sends it this shard's whole interest, and calls on_told() behind that; from now on it is sent
    # messages.
    cdef int join(self, int shard, OutBuf *link, object on_told) except -1
    # The link is gone: that sibling's interest counts no more, and is dropped.
    cdef int part(self, int shard) except -1
    # Whether the link (a Peer) has to wait, because what the last one to this sibling told is not dropped yet. Then its
    # join(shard) is called.
    cdef bint defers(self, object link, int shard) except -1
    cdef int forget_link(self, object link) except -1
    # Does it now, or in turns.
    cdef int begin(self, MeshWork work) except -1
    # The rest of it will not be done.
    cdef int end(self, MeshWork work) except -1
    cdef list caches(self)
    # What this sibling or other server wants in these accounts counts no more, and is dropped, now or in turns. `then`
    # is called behind that, if it is not None.
    cdef int drop(self, int shard, list sublists, object then) except -1
    cdef int has_dropped(self, int shard) except -1
