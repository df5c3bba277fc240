# A user's permissions to publish and subscribe, compiled from broker.options.Permissions.
#
# Rules is a trie of subjects with wildcards; an entry may name a queue ("jobs workers"). Permissions are four of them.
# Shared by all clients with the same rights and never changed: new rights are a new object.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from gnatswarm.broker.table cimport Keyed, Table

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

# The result of a look-up for one subject.
ctypedef struct Found:
    const uint8_t *queue     # the queue to look up; NULL: none
    size_t queue_size
    bint is_plain            # an entry without a queue
    bint has_queues          # entries with a queue,
    bint has_queue           # and one of them is ours


@cython.final
cdef class Rules:
    cdef Rule *root
    cdef uint64_t seed
    cdef readonly uint32_t count

    # Finds the entries that match `subject`, wildcards in it taken literally, or (`wholly`) all that it matches as a
    # pattern. Reads up to SLACK bytes behind it.
    cdef void look(self, const uint8_t *subject, size_t size, Found *found, bint wholly) noexcept nogil
    # Does any entry without a queue match a subject that the pattern `subject` matches?
    cdef bint meets(self, const uint8_t *subject, size_t size) noexcept nogil


@cython.final
cdef class Permissions:
    cdef readonly object options     # broker.options.Permissions
    cdef readonly uint64_t id        # unique in this process: an Entry stores which Permissions have allowed it
    cdef Rules publish_allow         # None: everything
    cdef Rules publish_deny          # None: nothing
    cdef Rules subscribe_allow
    cdef Rules subscribe_deny
    cdef readonly int64_t responses  # 0: none, -1: no limit
    cdef readonly uint64_t responses_expire_us   # 0: never

    cdef bint may_publish(self, const uint8_t *subject, size_t size) noexcept nogil
    # Could a message that a subscription to this pattern is for be published? Wildcards need only overlap.
    cdef bint may_publish_partly(self, const uint8_t *subject, size_t size) noexcept nogil
    # `subject` may be a pattern: all that it matches must be allowed. queue: NULL for none.
    cdef bint may_subscribe(self, const uint8_t *subject, size_t size,
                            const uint8_t *queue, size_t queue_size) noexcept nogil
    # Is a message on `subject` excluded from a granted subscription?
    cdef bint keeps_out(self, const uint8_t *subject, size_t size,
                        const uint8_t *queue, size_t queue_size) noexcept nogil
    # Could a message that a subscription to this pattern is for be allowed by it? Wildcards need only overlap.
    cdef bint may_subscribe_partly(self, const uint8_t *subject, size_t size) noexcept nogil
