# What one client has said and heard since it was asked last: counts by subject, bounded.
#
#   a run of publishes on one subject ── another subject, or the window's end ──→ Talk.said: subject → Line
#   a subscription that ends ────────────────────────────────────────────────→ Talk.heard: subject and queue → Line
#
# A run costs nothing: its messages are the growth of the client's own counters since it began.
#
# Ownership: a Talk belongs to its ClientConnection; a Line owns its text.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    # A longer subject has no line of its own.
    MOST_TALK_BYTES = 1024

ctypedef struct Line:
    uint64_t key             # hash of the text; 0: the slot is free
    uint64_t msgs
    uint64_t payload_bytes
    uint64_t requests        # of msgs: with a reply subject
    uint8_t *text            # what was published to; or subject, a blank, and the queue or nothing
    uint32_t size

ctypedef struct Lines:
    Line *slots              # NULL: none yet
    uint32_t mask            # slots - 1
    uint32_t count
    uint32_t misses          # how often there was no room for a line

ctypedef struct Talk:
    uint64_t subject         # hash of the present run's; 0: there is none
    bint is_request          # its messages have a reply subject
    Line *line               # that it counts in; NULL: in none
    uint64_t from_msgs       # the client's counters when it began
    uint64_t from_bytes
    uint64_t told[4]         # messages and bytes in and out, that were taken
    uint32_t skips           # runs that are not looked at, until one is: see talk.pyx
    uint32_t looks           # how often one was
    uint32_t most            # lines of each kind
    bint is_known            # was taken before
    Lines said
    Lines heard

cdef Talk *talk_new(uint32_t most) noexcept
cdef void talk_free(Talk *talk) noexcept
# The client goes on with what it had counted elsewhere, where that was taken.
cdef void talk_resume(Talk *talk, uint64_t in_msgs, uint64_t in_bytes, uint64_t out_msgs, uint64_t out_bytes) noexcept
# Ends the present run; `msgs` and `payload_bytes` are the client's counters now.
cdef void talk_settle(Talk *talk, uint64_t msgs, uint64_t payload_bytes) noexcept
# A run on another subject begins.
cdef void talk_turn(Talk *talk, uint64_t hash, const uint8_t *subject, size_t size, bint is_request, uint64_t msgs,
                    uint64_t payload_bytes) noexcept
# A subscription that ends has heard `msgs`.
cdef void talk_hear(Talk *talk, const uint8_t *subject, size_t size, const uint8_t *queue, size_t queue_size,
                    uint64_t msgs) noexcept
# Empties both tables; there is no run afterwards.
cdef void talk_clear(Talk *talk) noexcept
cdef list said_rows(const Talk *talk)     # [(subject, msgs, bytes, requests)]
cdef list heard_rows(const Talk *talk)    # [(subject, queue, msgs)]
