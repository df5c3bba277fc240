# cython: language_level=3, boundscheck=False, wraparound=False
"""This shard's siblings: who is linked, and what they are told of this shard's interest.

Interest is counted per account and subject, by the sublist: a sibling is told of a subject's first and last plain
subscription here, and of every change of a queue group's size. Not here: messages (fan-out), frames of siblings
(link).
"""

from libc.string cimport memcmp

from gnatswarm.broker.routewire cimport write_interest
from gnatswarm.broker.tally cimport Tally


cdef class Replay(InterestSink):
    """Tells one sibling this shard's whole interest."""

    cdef OutBuf *link
    cdef uint64_t n

    cdef uint64_t on_interest(self, Interest interest, const uint8_t *subject, size_t size, bint wanted) noexcept:
        cdef const uint8_t *account = interest.account
        write_interest(self.link, account, len(interest.account), subject, size, NULL, 0, 1)
        self.n += 1
        return 0

    cdef uint64_t on_queue_interest(self, Interest interest, const uint8_t *subject, size_t size,
                                    const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        cdef const uint8_t *account = interest.account
        write_interest(self.link, account, len(interest.account), subject, size, queue, queue_size, members)
        self.n += 1
        return 0


cdef class Mesh(InterestSink):
    """The sibling shards, by number."""

    def __cinit__(self, Fanout fanout not None, int shard):
        self.fanout = fanout
        self.shard = fanout.shard = shard
        self.accounts = {}
        self.owners = {}
        self.formers = Formers()

    def account(self, bytes name not None) -> Sublist:
        """The account's subscriptions on this shard; made when it is first named."""
        sublist = self.accounts.get(name)
        if sublist is None:
            sublist = self.accounts[name] = Sublist(name, self)
            (<Sublist>sublist).owners = self.owners
            if self.reply_prefix is not None:
                sublist.set_reply_prefix(self.reply_prefix)
            if self.tallied:
                sublist.count_into(Tally(self.tallied))
            (<Sublist>sublist).marks_subs = self.fanout.talk_lines != 0
        return sublist

    def set_reply_prefix(self, bytes prefix not None):
        """Set it in all accounts, also in those made later: see Sublist.set_reply_prefix()."""
        self.reply_prefix = prefix
        for sublist in self.accounts.values():
            sublist.set_reply_prefix(prefix)

    cdef int set_owner(self, bytes prefix, int owner) except -1:
        self.owners[prefix] = owner
        return self.prefix_changed(prefix)

    cdef int forget_owner(self, bytes prefix) except -1:
        self.owners.pop(prefix, None)
        if self.fanout.onward is not None:
            (<object>self.fanout.onward).forget_replies(prefix)
        return self.prefix_changed(prefix)

    cdef int prefix_changed(self, bytes prefix) except -1:
        for sublist in self.accounts.values():
            (<Sublist>sublist).prefix_changed(prefix, len(prefix))
        return 0

    def sublists(self) -> list:
        """The sublists of all accounts."""
        return list(self.accounts.values())

    def tally(self, uint32_t most, uint32_t talk_lines=0):
        """Count up to `most` subjects of each account, also of those made later.

        With `talk_lines`, what each client that comes from here on says and hears too, by so many subjects.
        """
        self.tallied = most
        self.fanout.talk_lines = talk_lines
        for sublist in self.accounts.values():
            (<Sublist>sublist).count_into(Tally(most))
            (<Sublist>sublist).marks_subs = talk_lines != 0

    def account_names(self) -> list:
        """All accounts that somebody has named."""
        return list(self.accounts)

    cdef Sublist known(self, const uint8_t *account, size_t size):
        cdef Sublist last = self.last_named
        if last is None or <size_t>len(last.account) != size or memcmp(<char *>last.account, account, size) != 0:
            last = self.accounts.get(account[:size])
            if last is not None:
                self.last_named = last
        return last

    cdef Sublist sublist_of(self, const uint8_t *account, size_t size):
        cdef Sublist sublist = self.known(account, size)
        # A sibling may know a new account before us, during a reload: so it is made here too.
        return sublist if sublist is not None else self.account(account[:size])

    cdef uint64_t frames_to(self, int shard) noexcept:
        cdef OutBuf *link = self.fanout.links[shard]
        return 0 if link == NULL else link.msgs + self.interest_frames[shard]

    cdef uint64_t on_interest(self, Interest interest, const uint8_t *subject, size_t size, bint wanted) noexcept:
        return self.tell_all(interest, subject, size, NULL, 0, 1 if wanted else 0)

    cdef uint64_t on_queue_interest(self, Interest interest, const uint8_t *subject, size_t size,
                                    const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        return self.tell_all(interest, subject, size, queue, queue_size, members)

    cdef void on_remote(self, Interest interest, const uint8_t *subject, size_t size, uint64_t before,
                        uint64_t after) noexcept:
        self.fanout.onward.on_remote(interest, subject, size, before, after)

    cdef void on_remote_queue(self, Interest interest, const uint8_t *subject, size_t size, const QueueGroup *group,
                              uint32_t shard, uint32_t before) noexcept:
        self.fanout.onward.on_remote_queue(interest, subject, size, group, shard, before)

    cdef uint64_t tell_all(self, Interest interest, const uint8_t *subject, size_t size,
                           const uint8_t *queue, size_t queue_size, uint32_t members) noexcept:
        cdef const uint8_t *account = interest.account
        cdef size_t account_size = len(interest.account)
        cdef uint64_t left = self.up
        cdef int shard = 0
        cdef OutBuf *link
        while left:
            if left & 1:
                link = self.fanout.links[shard]
                if members == 0 and queue_size == 0 and link.pos != NULL and link.pos == self.fresh_end[shard] \
                        and self.take_back(shard, account, account_size, subject, size):
                    pass
                elif write_interest(link, account, account_size, subject, size, queue, queue_size, members):
                    self.interest_frames[shard] += 1
                    self.fresh_end[shard] = link.pos if members and queue_size == 0 else NULL
                    self.fresh_frames[shard] = self.frames_to(shard)
                    self.note_told(shard)
            left >>= 1
            shard += 1
        return self.up   # (a link that refused it is about to end; the next one is told everything)

    cdef void note_told(self, int shard) noexcept:
        self.unheard |= <uint64_t>1 << shard
        self.told_at[shard] = self.frames_to(shard)

    cdef bint take_back(self, int shard, const uint8_t *account, size_t account_size,
                        const uint8_t *subject, size_t size) noexcept:
        """Plain interest ends before the sibling was told of it: removes the RS+ that was not sent yet.

        Nothing may have been sent behind it (frames_to, and the end), or the bytes before the end could be a payload.
        """
        cdef OutBuf *link = self.fanout.links[shard]
        cdef size_t n = account_size + size + 7
        cdef uint8_t *p
        if self.fresh_frames[shard] != self.frames_to(shard) or link.tail.blob != NULL \
                or <size_t>(link.pos - link.tail.data) < link.tail.start + n:
            return False
        p = link.pos - n
        if memcmp(p, b'RS+ ', 4) or memcmp(p + 4, account, account_size) or p[4 + account_size] != c' ' \
                or memcmp(p + 5 + account_size, subject, size):
            return False
        link.pos = p
        self.interest_frames[shard] -= 1
        self.told_at[shard] -= 1
        self.fresh_end[shard] = NULL
        return True

    cdef int join(self, int shard, OutBuf *link) except -1:
        cdef Replay replay = Replay()
        link.stall_mark = LINK_STALL_BYTES
        self.fanout.links[shard] = link
        self.fresh_end[shard] = NULL
        self.up |= <uint64_t>1 << shard
        replay.link = link
        for sublist in self.accounts.values():
            (<Sublist>sublist).replay(replay)
        if self.fanout.onward is not None:
            replay.n += self.fanout.onward.replay(link)
        self.interest_frames[shard] += replay.n
        self.note_told(shard)
        self.out_of_step |= <uint64_t>1 << shard
        return 0

    cdef int part(self, int shard) except -1:
        self.fanout.links[shard] = NULL
        self.up &= ~(<uint64_t>1 << shard)
        self.unheard &= ~(<uint64_t>1 << shard)
        for sublist in self.accounts.values():
            (<Sublist>sublist).drop_remote(shard)
        if self.fanout.onward is not None:
            self.fanout.onward.on_part(shard)
        return 0
