# What a user may publish and subscribe to, compiled from broker.options.Permissions.
#
# Rules is a trie of subjects with wildcards; an entry may name a queue ("jobs workers"). Permissions are four of them.
# Shared by all clients with the same rights, never changed: new rights are new Permissions.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.table cimport Keyed, Table

ctypedef struct RuleQueue:
    RuleQueue *next
    size_t size          # the name stands behind the struct

ctypedef struct Rule:
    Keyed key            # by token, which stands behind the struct
    Rule *star
    Rule *rest
    Table tokens
    RuleQueue *queues    # entries that end here and name a queue
    bint is_plain        # an entry that names none ends here

# What was found for one subject.
ctypedef struct Found:
    const uint8_t *queue     # looked for; NULL: none
    size_t queue_size
    bint is_plain            # an entry without a queue
    bint has_queues          # entries with a queue,
    bint has_queue           # and one of them is ours


@cython.final
cdef class Rules:
    cdef Rule *root
    cdef uint64_t seed
    cdef readonly uint32_t count

    # Which entries match `subject`, wildcards in it taken literally, or (`wholly`) everything that it matches as a
    # pattern. Reads up to SLACK bytes behind it.
    cdef void look(self, const uint8_t *subject, size_t size, Found *found, bint wholly) noexcept nogil


@cython.final
cdef class Permissions:
    cdef readonly object options     # broker.options.Permissions
    cdef readonly uint64_t id        # of no other in this process: an Entry remembers whom it let through
    cdef Rules publish_allow         # None: everything
    cdef Rules publish_deny          # None: nothing
    cdef Rules subscribe_allow
    cdef Rules subscribe_deny
    cdef readonly int64_t responses  # 0: none, -1: no limit
    cdef readonly uint64_t responses_expire_us   # 0: never

    cdef bint may_publish(self, const uint8_t *subject, size_t size) noexcept nogil
    # `subject` may be a pattern: it is one that is allowed wholly. queue: NULL for none.
    cdef bint may_subscribe(self, const uint8_t *subject, size_t size,
                            const uint8_t *queue, size_t queue_size) noexcept nogil
    # Is a message on `subject` to be left out for a subscription that was granted?
    cdef bint keeps_out(self, const uint8_t *subject, size_t size,
                        const uint8_t *queue, size_t queue_size) noexcept nogil
