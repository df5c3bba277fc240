# Queue messages that found no member where they were sent, on their way to a shard that has one.
#
#   link ── place() ──→ Reroutes ─┬→ a current member here
#                                 ├→ QMSG to a sibling with members ──→ settled() by its QACK or QNAK
#                                 ├→ kept until all interest is known (on_step)
#                                 ├→ a former member here
#                                 └→ QMSG to the sibling that published it    … then the OriginLink hears on_settled()

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.entry cimport Choice, Entry
from gnatswarm.broker.fanout cimport Origin, Outcome, Publish
from gnatswarm.broker.fence cimport MeshFence
from gnatswarm.broker.lingering cimport Former
from gnatswarm.broker.mesh cimport Mesh
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.sublist cimport Sublist


# One message in a client's output: "MSG <subject> <sid> [reply] <size>", or "HMSG …" with two sizes.
ctypedef struct Sent:
    const uint8_t *at
    Token subject
    Token sid
    Token reply                  # without bytes: it has none
    const uint8_t *payload       # header block and body
    size_t header_size
    size_t size                  # of both
    const uint8_t *end           # behind its last CRLF

# Reads the message that begins there. False: none does, or only a part of one, which its client's limit cut off.
cdef bint read_sent(const uint8_t *at, const uint8_t *end, Sent *to) noexcept


# The link that a queue message came over, as far as Reroutes reply to it; SiblingLink is its one subclass.
cdef class OriginLink(Peer):
    cdef readonly int shard              # the sibling's number; -1: not known yet, or no sibling
    cdef set orphans                     # ids of its queue messages that are pending
    # Sends QACK or QNAK.
    cdef int acknowledge(self, uint64_t id, bint is_taken) except -1
    # A pending message of this link has arrived, or is lost.
    cdef int on_settled(self, uint64_t id) except -1
    # Nobody has taken this request of the sibling, the n-th message of the link.
    cdef int tell_nobody(self, uint64_t number, Sublist sublist, Token subject, Token reply) except -1
    # Who waits for the first also waits for all ids after `since`, up to `last`.
    cdef int wait_for_more(self, uint64_t first, uint64_t since, uint64_t last) except -1


# What became of a queue message that found no member where it was sent.
cdef enum Fate:
    FATE_TAKEN
    FATE_PENDING       # on its way to another sibling, or kept until all interest is known: on_settled() follows
    FATE_NOBODY        # no shard has a member


cdef enum:
    # Orphan.been, beside the bits of other servers' slots.
    CAME_IN = 1        # it came from another server
    REFUSED = 2        # there are members in this broker, which may not have it: it goes to no server for a second time
    LINGERING = 4      # the gateway knows of no member here, but that one who has left lingers on that shard
    # (8 is fanout.PLAINLY)


# A pending message.
@cython.final
cdef class Orphan:
    cdef uint64_t id                     # here
    cdef OriginLink origin               # it came over this link
    cdef uint64_t id_there               # the sibling's id, for QACK or QNAK; 0: the sibling waits for neither
    cdef int shard                       # where it was sent; -1: it is kept until all interest is known
    cdef bint is_answer                  # to a request to another account: it is kept until all interest is known
    cdef ClientConnection client         # held until its answer has been passed on; None: it came over a link
    cdef Former former                   # takes it if nobody else does; None: there is none
    # What a second try needs. `tail` None: there is no second try.
    cdef Sublist sublist
    cdef bytes subject
    cdef bytes queue
    cdef bytes reply
    cdef bytes tail
    cdef size_t payload_at               # in the tail
    cdef Origin published_by
    cdef uint64_t publisher              # as in Publish
    cdef uint32_t header_size
    cdef uint32_t size
    # [how many of the messages to the groups of a request nobody has refused yet, its number]: the sibling is told if
    # nobody takes any of them, because nobody else has got it. None: it is not told.
    cdef list request
    cdef bint has_gone_back              # to the shard that published it, because nobody was found
    cdef uint64_t visited                # shards that it has been on, a bit each
    cdef uint64_t been                   # CAME_IN, …, and slots of other servers where no member was found

    # Whether the shard that published it is another one, and has not been asked yet.
    cdef bint may_go_back(self) noexcept
    # Copies the message for a second try.
    cdef int keep(self, Sublist sublist, Token subject, Token queue, const Publish *message) except -1
    # Fills in the message that keep() copied. VALID AS LONG AS THIS OBJECT.
    cdef void fill(self, Publish *message) noexcept


# Stands for the link where a message came over none: nobody's PING waits for it.
@cython.final
cdef class NoLink(OriginLink):
    pass


@cython.final
cdef class Reroutes:
    cdef Mesh mesh
    cdef MeshFence fence
    cdef uint64_t last_id
    cdef dict pending                    # id here → Orphan
    cdef readonly uint64_t n_sent_on
    cdef readonly uint64_t n_lingered    # taken by a former member
    cdef readonly uint64_t n_lost        # no shard had a member
    cdef readonly uint64_t n_kept_back   # answers that came before what is due with their prefix

    # Finds a place for a message to one queue group without a member here: a current member on another shard; later,
    # where a sibling's interest is not all known yet; or a former member.
    cdef Fate place(self, OriginLink origin, Sublist sublist, Token subject, Token queue, Publish *message,
                    uint64_t id_there, uint64_t visited, uint64_t been) except *
    cdef Fate try_place(self, Orphan orphan, Sublist sublist, Token subject, Token queue, Publish *message,
                        bint may_leave) except *
    cdef bint send_away(self, Orphan orphan, Sublist sublist, Entry *entry, Choice *choice, Token subject, Token queue,
                        Publish *message, bint may_linger) except *
    cdef bytearray trace_onward(self, Publish *other, const Publish *message, uint32_t shard)
    cdef bint give_back(self, Orphan orphan) except -1
    cdef bint give_to_former(self, Sublist sublist, Token subject, Token queue, Publish *message) noexcept
    cdef void count_delivery(self, Sublist sublist, Token subject, const Publish *message) noexcept
    cdef int ask(self, OriginLink origin, uint64_t shards) except -1
    # An answer to a request of this shard to another account: it goes to that account, now or when all siblings'
    # interest is known and what is due with its prefix has come.
    cdef int answer(self, OriginLink origin, Sublist sublist, Token subject, Entry *entry, Publish *message,
                    Outcome *outcome) except -1
    cdef int answer_now(self, Orphan orphan) except -1
    cdef int publish_kept(self, Orphan orphan) except -1
    # Such an answer that was published here (`client` None: by the broker itself), while what is due is still to come.
    cdef int keep_answer(self, Sublist sublist, bytes subject, Publish *message, object client) except -1
    cdef uint64_t unknown(self) noexcept
    cdef bint must_wait(self, const uint8_t *subject, size_t size) except -1
    # Whether answers with this prefix wait for a sibling whose interest is not known.
    cdef bint keeps_answers(self, bytes prefix) except -1
    # Finds a place for each message to a queue group in the output of a connection that is gone; `queues`: sid → group;
    # `publishers`: the number of a message, from 0 on, → the client that has published it and wants no echo.
    cdef int place_output(self, Sublist sublist, dict queues, bytes output, dict publishers) except -1
    # These messages that place() has just kept are a request that nobody else has got, the n-th message of its link.
    cdef int note_request(self, list ids, uint64_t number) except -1
    # QACK or QNAK came.
    cdef int settled(self, uint64_t id, bint is_taken) except -1
    cdef int conclude(self, Orphan orphan, bint is_taken) except -1
    # All interest is known, or a link that was out of step will not come back: kept messages are tried again.
    cdef int on_step(self) except -1
    # The link to a sibling is gone.
    cdef int on_part(self, int shard) except -1
