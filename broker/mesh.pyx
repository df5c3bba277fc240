# cython: language_level=3, boundscheck=False, wraparound=False
"""This shard's siblings: who is linked, and what they are told of this shard's interest.

Interest is counted per account and subject, by the sublist: a sibling is told of a subject's first and last plain
subscription here, and of every change of a queue group's size. Not here: messages (fan-out), frames of siblings
(link).
"""

from cpython.ref cimport Py_REFCNT
from libc.string cimport memcmp

from gnatswarm.broker.interest cimport InterestCursor
from gnatswarm.broker.outbuf cimport out_pending
from gnatswarm.broker.peer cimport HOLD_MOVE, Peer, merge_freed
from gnatswarm.broker.routewire cimport write_interest
from gnatswarm.broker.sublist cimport CACHE_WAYS, N_WIDTHS, MOST_CACHES_BYTES, TRIMMED_CACHES_BYTES, caches_bytes
from gnatswarm.broker.table cimport Walk, spread_next
from gnatswarm.broker.tally cimport Tally


cdef enum:
    # Subjects that are told, or dropped, in one go_on(): some 0.1 to 0.3 ms.
    SLICE_NODES = 1024
    # … of which so many are told before a look at how much waits on the link.
    PIECE_NODES = 64
    # Places in match caches that are emptied in one trim_caches(): some 0.3 ms.
    TRIMMED_SLOTS = 8192

cdef double AGAIN_S = 0.001   # a link takes a quarter of MOST_TOLD_BYTES in that time, or less

cdef int64_t ALL = <int64_t>1 << 62


cdef class Retelling(InterestSink):
    """Tells one sibling this shard's whole interest."""

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


cdef class MeshWork:
    """Long work of a mesh, done some at a time."""

    cdef bint go_on(self, int64_t most) except -1:
        raise NotImplementedError

    cdef bint is_due(self) noexcept:
        return True


cdef class Accounts(MeshWork):
    """Goes over the interest of all accounts that there are at its beginning."""

    cdef list cursors_of(self, Sublist sublist):
        raise NotImplementedError

    cdef bint go_on(self, int64_t most) except -1:
        cdef InterestCursor cursor
        self.left = most
        while self.left > 0:
            if not self.cursors:
                if not self.sublists:
                    return True
                self.cursors = self.cursors_of(<Sublist>self.sublists.pop())
            cursor = <InterestCursor>self.cursors[len(self.cursors) - 1]
            if not cursor.go_on(self.left):
                self.left = cursor.left
                return False
            self.left = cursor.left - 1   # (one for the account, which may be empty)
            self.cursors.pop()
        return False

    cdef bint go_on_while_due(self, int64_t most) except -1:
        cdef bint is_done = False
        cdef int64_t some = most if most == ALL else PIECE_NODES
        while most > 0 and not is_done:
            is_done = Accounts.go_on(self, min(some, most))
            most -= min(some, most) - self.left   # (a table is told as a whole)
            if not self.is_due():   # (subjects may be of 64 KB)
                break
        return is_done

    cdef int end(self) except -1:
        for cursor in self.cursors:
            (<InterestCursor>cursor).interest.end_cursor(<InterestCursor>cursor)
        self.cursors = []
        return 0


cdef class Telling(Accounts):
    """A sibling whose link is new is told all interest. What begins or ends meanwhile it is told at once, and what it
    is told twice changes nothing."""

    cdef int shard
    cdef object on_told
    cdef list tellers        # Retellings

    cdef list cursors_of(self, Sublist sublist):
        return [sublist.telling_cursor(<Retelling>teller) for teller in self.tellers]

    cdef bint is_due(self) noexcept:
        return out_pending((<Retelling>self.tellers[0]).link) < <size_t>MOST_TOLD_BYTES

    cdef bint go_on(self, int64_t most) except -1:
        cdef bint is_done = self.go_on_while_due(most)
        for teller in self.tellers:
            self.mesh.interest_frames[self.shard] += (<Retelling>teller).n
            (<Retelling>teller).n = 0
        self.mesh.note_told(self.shard)
        if is_done:
            self.on_told()
        return is_done


cdef class Dropping(Accounts):
    """What a sibling wanted whose link has ended is taken out; it counts no more."""

    cdef int shard
    cdef object then

    cdef list cursors_of(self, Sublist sublist):
        return [sublist.dropping_cursor(self.shard)]

    cdef bint go_on(self, int64_t most) except -1:
        cdef bint is_done = Accounts.go_on(self, most)
        merge_freed()
        if not is_done:
            return False
        self.mesh.has_dropped(self.shard)
        if self.then is not None:
            self.then()
        return True


cdef size_t EVERY_SLOT = <size_t>1 << 48


cdef bint is_bare(Sublist sublist) except -1:
    """Whether it has nothing that would be missed, here or in the statistics."""
    cdef Walk walk = Walk(0, 0)
    cdef int i
    if sublist.n_subs or sublist.root.star != NULL or sublist.root.rest != NULL or sublist.root.tokens.count:
        return False
    if sublist.groups.next_of_all != &sublist.groups or sublist.gone_members or sublist.gone_deliveries:
        return False
    if sublist.cursors or sublist.stream_imports is not None or sublist.rules is not None or sublist.traces_parents:
        return False
    if sublist.former is not None and not is_bare(sublist.former):
        return False
    if spread_next(&sublist.literals, &walk) != NULL:
        return False
    if sublist.tally is None:
        return True
    for i in range(N_WIDTHS):
        if sublist.widths[i] or sublist.link_widths[i]:
            return False
    sublist.harvest(0, EVERY_SLOT)   # (what came from another account is in no width)
    return sublist.tally.is_empty


cdef class Mesh(InterestSink):
    """The sibling shards, by number. Set `soon` to have long work done in turns, each a go_on()."""

    def __cinit__(self, Fanout fanout not None, int shard):
        self.fanout = fanout
        self.shard = fanout.shard = shard
        self.accounts = {}
        self.owners = {}
        self.formers = Formers()
        self.work = []
        self.waiting_links = []
        self.untrimmed = []
        self.slice_nodes = SLICE_NODES

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

    def trim_caches(self) -> bool:
        """Empty some match caches, one account's after the other, if all together have more than MOST_CACHES_BYTES.

        Returns whether to go on when others had their turn. An account alone is bounded by its sublist; but a subject
        that is used once, as a request's inbox, leaves an entry, and of accounts there may be thousands. Call it from
        the event loop, when no message is being delivered.
        """
        cdef int64_t left = TRIMMED_SLOTS
        cdef Sublist sublist
        if not self.untrimmed:
            if caches_bytes <= MOST_CACHES_BYTES:
                return False
            self.untrimmed = self.caches()
            self.trimmed_slots = 0
        while self.untrimmed and left > 0:
            sublist = <Sublist>self.untrimmed[len(self.untrimmed) - 1]
            left -= min(TRIMMED_SLOTS, (<int64_t>sublist.cache_mask + 1) * CACHE_WAYS)
            self.trimmed_slots = sublist.trim(self.trimmed_slots, TRIMMED_SLOTS)
            if not self.trimmed_slots:
                self.untrimmed.pop()
            if caches_bytes <= TRIMMED_CACHES_BYTES:
                self.untrimmed = []
        return bool(self.untrimmed)

    cdef list caches(self):
        """All sublists that have a match cache, those within others too, beginning with any."""
        cdef list found = []
        cdef Sublist sublist = None
        cdef size_t first
        for sublist in self.accounts.values():
            found.append(sublist)
            if sublist.former is not None:
                found.append(sublist.former)
            if sublist.rule_patterns is not None:
                found.append(sublist.rule_patterns)
        if sublist is not None:
            first = sublist.random() % <size_t>len(found)
            found = found[first:] + found[:first]
        return found

    @property
    def is_trimming(self) -> bool:
        """Whether trim_caches() has not done yet what it has begun."""
        return bool(self.untrimmed)

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

    def forget_accounts(self, set kept not None) -> int:
        """Forget accounts that are not among these, where there is no interest and nobody holds them; how many stay.

        They take some 5 KB each, and names may come and go for months. One that is named again is made anew.
        """
        cdef Sublist sublist
        cdef list found = []
        cdef int left = 0
        self.last_named = None
        for name, sublist in self.accounts.items():
            # Held by the dictionary, and by this variable.
            if name in kept:
                continue
            if Py_REFCNT(sublist) == 2 and is_bare(sublist):
                found.append(name)
            else:
                left += 1
        for name in found:
            sublist = self.accounts.pop(name)
            self.forgotten_inserts += sublist.n_inserts
            self.forgotten_removes += sublist.n_removes
            self.forgotten_builds += sublist.n_builds
        return left

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

    cdef int join(self, int shard, OutBuf *link, object on_told) except -1:
        cdef Telling telling = Telling()
        cdef Retelling teller = Retelling()
        link.stall_mark = LINK_STALL_BYTES
        self.fanout.links[shard] = link
        self.fresh_end[shard] = NULL
        self.up |= <uint64_t>1 << shard
        self.out_of_step |= <uint64_t>1 << shard
        self.note_told(shard)   # (until it has heard all: who subscribes to what others did waits for that)
        teller.link = link
        telling.mesh = self
        telling.shard = shard
        telling.on_told = on_told
        telling.tellers = [teller]
        if self.fanout.onward is not None:
            telling.tellers.append(self.fanout.onward.retelling(link))
        telling.sublists = list(self.accounts.values())
        telling.cursors = []
        return self.begin(telling)

    cdef int part(self, int shard) except -1:
        self.newcomers &= ~(<uint64_t>1 << shard)
        self.told_all &= ~(<uint64_t>1 << shard)
        self.fanout.links[shard] = NULL
        self.up &= ~(<uint64_t>1 << shard)
        self.unheard &= ~(<uint64_t>1 << shard)
        for work in list(self.work):
            if isinstance(work, Telling) and (<Telling>work).shard == shard:
                (<Telling>work).end()
                self.work.remove(work)
        if self.fanout.onward is not None:
            self.fanout.onward.on_part(shard)
        return self.drop(shard, list(self.accounts.values()), None)

    cdef int drop(self, int shard, list sublists, object then) except -1:
        cdef Dropping dropping = Dropping()
        self.gone |= <uint64_t>1 << shard
        for sublist in sublists:
            (<Sublist>sublist).forget_entries()
        dropping.mesh = self
        dropping.shard = shard
        dropping.then = then
        dropping.sublists = sublists
        dropping.cursors = []
        return self.begin(dropping)

    cdef int has_dropped(self, int shard) except -1:
        self.gone &= ~(<uint64_t>1 << shard)
        for item in [one for one in self.waiting_links if one[1] == shard]:
            self.waiting_links.remove(item)
            (<Peer>item[0]).release(HOLD_MOVE)
            item[0].join(shard)
        return 0

    cdef bint defers(self, object link, int shard) except -1:
        if not self.gone >> shard & 1:
            return False
        (<Peer>link).holds |= HOLD_MOVE
        self.waiting_links.append((link, shard))
        return True

    cdef int forget_link(self, object link) except -1:
        self.waiting_links = [one for one in self.waiting_links if one[0] is not link]
        return 0

    cdef int begin(self, MeshWork work) except -1:
        if self.soon is None:
            work.go_on(ALL)
            return 0
        self.work.append(work)
        self.soon()
        return 0

    cdef int end(self, MeshWork work) except -1:
        if work in self.work:
            self.work.remove(work)
        return 0

    def go_on(self) -> float | None:
        """Do some of the work that is due. After how many seconds there is more; None: there is none."""
        cdef MeshWork work
        cdef int _i
        for _i in range(len(self.work)):
            work = <MeshWork>self.work.pop(0)   # (each in turn; and others may begin or end while it is done)
            if not work.is_due():
                self.work.append(work)
                continue
            self.n_slices += 1
            self.work.insert(0, work)
            if work.go_on(self.slice_nodes):
                self.end(work)
            elif work in self.work:
                self.work.remove(work)
                self.work.append(work)
            return 0.0 if self.work else None
        return AGAIN_S if self.work else None
